"""Calls of Python functions: most are captured as a part of the program."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from ..errors import Unsupported
from ..ir.marks import kept_from_peer
from . import single_dispatch, torch_calls, transforms
from .inlining import is_left_to_python
from .interpreter import Interpreter, Then
from .kinds import is_trusted_module
from .on_device import KEPT_FROM_COMPILER
from .text import AROUND_REPR
from .user_marks import call_marked, user_mark


def call(
    i: Interpreter, function: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any], then: Then
) -> None:
    mark = user_mark(function)
    if mark is not None:
        then(call_marked(i, mark, function, args, kwargs))
        return
    if (made := transforms.made_outside(i, function)) is not None:
        then(made.run(i, *args, **kwargs))
        return
    if (original := _counted_by_peer(function)) is not None:
        i.call(original, args, kwargs, then)
        return
    if (function.__module__ or "").startswith(("torch._dynamo", "torch._inductor")):
        then(torch_calls.call_peer(i, f"{function.__module__}.{function.__name__}"))
        return
    if function.__code__ is single_dispatch.CODE:
        then(single_dispatch.call(i, function, args, kwargs))
        return
    if function.__code__ is single_dispatch.GET_CACHED:
        single_dispatch.method(i, function, args, kwargs, then)
        return
    if function.__code__ is AROUND_REPR:
        i.call(function.__wrapped__, args, kwargs, then)  # type: ignore[attr-defined]
        return
    if function.__code__ is KEPT_FROM_COMPILER and is_trusted_module(function.__module__):
        i.call(function.__wrapped__, args, kwargs, then)  # type: ignore[attr-defined]
        return
    if (kept := kept_from_peer(function)) is not None:
        i.call(_without_peer(function, kept), args, kwargs, then)
        return
    if is_left_to_python(function):
        raise Unsupported(f"a call of {function.__module__}.{function.__qualname__}")
    torch_calls.prepare_step(i, function, args)
    i.inline(function, args, kwargs, then)


def _counted_by_peer(function: FunctionType) -> Any:
    """`nn.Module.__init__`, where PyTorch's compiler was used in the process and counts since then when modules are made."""
    names = ("patched_init", "patched_setstate")
    if function.__module__ != "torch._dynamo.mutation_guard" or function.__name__ not in names:
        return None
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))
    original = cells.get("init" if function.__name__ == "patched_init" else "setstate")
    return None if original is None else original.cell_contents


def _without_peer(function: FunctionType, kept: Any) -> Any:
    """The function behind a wrapper of PyTorch's own compiler. The user's wish not to compile one is honoured; PyTorch
    wraps its own (once its compiler is imported) for the sake of that compiler."""
    if not is_trusted_module(function.__module__):
        raise Unsupported(f"{function.__qualname__}, which torch.compiler.disable keeps out of graphs")
    return kept
