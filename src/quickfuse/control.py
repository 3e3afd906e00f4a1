"""What users tell the compiler about their code: keep out of this, break the graph here, take this call as it is."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterable
from types import BuiltinFunctionType, FunctionType, TracebackType
from typing import Any, TypeVar, overload

import torch

from .errors import kind_of
from .ir.marks import CAPTURED_AS, Mark, put_mark

F = TypeVar("F", bound=Callable[..., Any])


class _Disabled(threading.local):
    """How many `disable`s this thread is in."""

    depth = 0


disabled = _Disabled()


class Disable:
    """What `disable()` without a function gives: a decorator, and a context manager."""

    def __init__(self, recursive: bool = True, reason: str | None = None) -> None:
        self.recursive = recursive
        self.reason = reason

    def __call__(self, function: F) -> F:
        return disable(function, self.recursive, reason=self.reason)

    def __enter__(self) -> None:
        disabled.depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        disabled.depth -= 1


@overload
def disable(function: F, recursive: bool = True, *, reason: str | None = None) -> F: ...
@overload
def disable(function: None = None, recursive: bool = True, *, reason: str | None = None) -> Disable: ...
def disable(function: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """Run natively: a function, or what is inside of `with quickfuse.disable():`.

        quickfuse.disable(function)

        @quickfuse.disable
        def function(): ...

        @quickfuse.disable(reason="talks to a database")
        def function(): ...

        with quickfuse.disable():
            compiled(x)  # runs the original

    Captured code that calls a disabled function ends its graph there, calls it as one step of Python, and goes on.

    Args:
        recursive: compiled functions that the disabled one calls run natively as well.
        reason: shown where a graph breaks because of this.

    Raises:
        TypeError: for something that cannot be called.
    """
    if function is None:
        return Disable(recursive, reason)
    if not callable(function):
        raise TypeError(f"quickfuse.disable needs a callable, not {kind_of(function)}")
    if isinstance(function, torch.nn.Module):
        from .module import CompiledModule

        original = function._original if isinstance(function, CompiledModule) else function
        return CompiledModule(original, Disable(recursive, reason))
    captured_as = getattr(type(function), CAPTURED_AS, None)
    if captured_as is not None:
        function = getattr(function, captured_as)
    if isinstance(function, type):
        raise TypeError("quickfuse.disable takes functions and modules; for a class, disable the methods that matter")

    @functools.wraps(function)
    def natively(*args: Any, **kwargs: Any) -> Any:
        if not recursive:
            return function(*args, **kwargs)
        disabled.depth += 1
        try:
            return function(*args, **kwargs)
        finally:
            disabled.depth -= 1

    if inspect.iscoroutinefunction(function) and hasattr(inspect, "markcoroutinefunction"):
        inspect.markcoroutinefunction(natively)
    owner = getattr(function, "__self__", None)
    if isinstance(owner, torch.nn.Module):
        natively.__qualname__ = type(owner).__qualname__
    put_mark(natively, Mark("disabled", reason or ""))
    return natively


def graph_break() -> None:
    """End the graph here, in captured code; nothing otherwise."""


def is_compiling() -> bool:
    """True in captured code, False in code that runs natively."""
    return False


def allow_in_graph(function: F) -> F:
    """Make calls of `function` one node of the graph, without looking inside. Also a decorator.

    Its results are found out by running it on tensors without data (of PyTorch's `meta` device), when a graph is captured:
    so their shapes and types may depend on nothing but those of the arguments, and on arguments that are no tensors. Where
    that does not work, or where it changes its arguments or returns a view of one, the graph breaks at the call. A graph
    with such a call runs operator by operator.

    Raises:
        TypeError: for something else than a function.
    """
    if not isinstance(function, (FunctionType, BuiltinFunctionType)):
        raise TypeError(f"quickfuse.allow_in_graph needs a function, not {kind_of(function)}")
    put_mark(function, Mark("in graph"))
    return function


def mark_dynamic(tensor: torch.Tensor, index: int | Iterable[int]) -> None:
    """Hint that a tensor's size in a dimension (or several) is going to change. It never changes a result.

    Raises:
        TypeError: for something else than a tensor and integers.
        IndexError: for a dimension that the tensor does not have.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"quickfuse.mark_dynamic needs a tensor, not {kind_of(tensor)}")
    dims = [index] if isinstance(index, int) else list(index)
    for dim in dims:
        if not isinstance(dim, int) or isinstance(dim, bool):
            raise TypeError(f"a dimension is an int, not {kind_of(dim)}")
        if not -tensor.dim() <= dim < tensor.dim():
            raise IndexError(f"dimension {dim} of a tensor that has {tensor.dim()}")
    known: frozenset[int] = getattr(tensor, "_quickfuse_dynamic_dims", frozenset())
    tensor._quickfuse_dynamic_dims = known | {dim % tensor.dim() for dim in dims}  # type: ignore[attr-defined]


put_mark(disable, Mark("disabled"))
put_mark(Disable.__enter__, Mark("disabled"))
put_mark(Disable.__exit__, Mark("disabled"))
put_mark(graph_break, Mark("graph break"))
put_mark(is_compiling, Mark("is compiling"))
put_mark(mark_dynamic, Mark("hint"))
