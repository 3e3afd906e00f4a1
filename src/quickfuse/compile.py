"""`compile()`, as a function or decorator, and `reset()`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar, overload

import torch

from . import logs
from .errors import kind_of
from .ir.marks import without_peer
from .module import CompiledModule
from .pipeline.compiled import Compiled, forget_everything
from .settings import Settings

F = TypeVar("F", bound=Callable[..., Any])


@overload
def compile(
    model: F, *, fullgraph: bool = False, dynamic: bool | None = None, backend: Any = "quickfuse",
    mode: str | None = None, options: dict[str, Any] | None = None, disable: bool = False, name: str | None = None,
    recompile_limit: int | None = None, isolate_recompiles: bool = False,
) -> F: ...  # fmt: skip
@overload
def compile(
    model: None = None, *, fullgraph: bool = False, dynamic: bool | None = None, backend: Any = "quickfuse",
    mode: str | None = None, options: dict[str, Any] | None = None, disable: bool = False, name: str | None = None,
    recompile_limit: int | None = None, isolate_recompiles: bool = False,
) -> Callable[[F], F]: ...  # fmt: skip
def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: Any = "quickfuse",
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    disable: bool = False,
    name: str | None = None,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = False,
) -> Any:
    """Compile a function or method; also a decorator, with or without arguments.

    Args:
        model: the callable. Without it, a decorator is returned. Of a class of yours, calls of its objects are compiled.
        fullgraph: raise `errors.GraphBreak` where the function cannot be captured whole, instead of running natively.
        dynamic: accepted for compatibility.
        backend: "quickfuse", "eager" (runs the captured graph), a registered name, or a callable
            `(graph_module, example_inputs) -> callable`.
        mode: "default", "reduce-overhead" (what runs on a GPU is replayed as CUDA graphs), "max-autotune" (the same,
            and the launch shapes of large kernels are measured) or "max-autotune-no-cudagraphs" (the latter alone).
        options: `{"raise_internal_errors": True}` raises the compiler's own failures. Options of torch.compile are accepted;
            where one asks for something that is not done here, the log says so.
        disable: return `model` as it is.
        name: what messages call the function.
        recompile_limit: how often it is compiled for calls that differ in more than sizes, before such calls run natively;
            None stands for `config.recompile_limit`.
        isolate_recompiles: accepted for compatibility: each compiled function counts for itself.

    Raises:
        ValueError: for an unknown mode, option or backend, whose message names the known ones; for a limit below 1.
        TypeError: if `model` is not callable, or a class of PyTorch's or without `__call__`; for
            options of the wrong type.
    """
    settings = Settings(fullgraph, dynamic, backend, mode, options, disable, name, recompile_limit)

    def decorate(function: Any) -> Any:
        if not callable(function):
            raise TypeError(f"quickfuse.compile needs a callable, not {kind_of(function)}")
        if isinstance(function, type):
            return _class_of_compiled_calls(function, None if disable else settings)
        if disable:
            return function
        function = without_peer(function)
        if isinstance(function, CompiledModule):
            function = function._original
        if isinstance(function, torch.nn.Module):
            return CompiledModule(function, functools.partial(Compiled, settings=settings))
        return Compiled(function, settings)

    return decorate if model is None else decorate(model)


def _class_of_compiled_calls(cls: type, settings: Settings | None) -> type:
    """The class itself: calls of its objects are compiled from now on, those of subclasses as well."""
    name, package = cls.__name__, cls.__module__.partition(".")[0]
    is_module = issubclass(cls, torch.nn.Module)
    if package == "torch":
        raise TypeError(
            f"quickfuse.compile would change PyTorch's own class: compile an object of it, quickfuse.compile({name}(...)), "
            "or a subclass"
        )
    called = "_call_impl" if is_module else "__call__"  # what `Module.__call__` calls includes hooks
    function = inspect.getattr_static(cls, called, None)
    if isinstance(function, Compiled):
        function = function.function
    if not isinstance(function, FunctionType):
        raise TypeError(
            f"quickfuse.compile needs a function, a method or a module, not the class {name}, whose objects cannot be "
            "called: compile the methods that matter, with @quickfuse.compile over each"
        )
    if settings is not None:
        setattr(cls, called, Compiled(function, settings))
    return cls


def reset() -> None:
    """Forget everything that was compiled."""
    forget_everything()
    logs.reset_stage_seconds()
