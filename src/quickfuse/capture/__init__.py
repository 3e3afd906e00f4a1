"""Python bytecode -> a torch.fx graph, guards, and what to do to the user's objects afterwards."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import torch

from ..errors import Unsupported
from ..ir.segment import Segment
from .effects import RecipeBook
from .frame import ArgumentsMismatch, bind_arguments
from .interpreter import Interpreter, Raised
from .torch_calls import prepare_step


def capture(function: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Segment:
    """Run `function` symbolically on these arguments, without touching any object of the user's.

    Raises:
        Unsupported: where the function does something that has to happen in Python; `location` tells where.
    """
    interpreter = Interpreter()
    try:
        return _capture(interpreter, function, args, kwargs)
    except Unsupported as error:
        if not error.location:
            error.location = interpreter.location()
            error.stack = [frame.location for frame in interpreter.frames]
        raise
    finally:
        interpreter.release()


def _capture(i: Interpreter, function: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Segment:
    _check_surroundings(i)
    i.outside.guard_function(function, i.outside.roots.constant(function.__qualname__, function))
    try:
        bound = bind_arguments(function, args, kwargs)
    except ArgumentsMismatch:
        raise Unsupported("a call that does not fit the signature") from None
    names = function.__code__.co_varnames
    values = []
    for name, value in zip(names, bound, strict=False):
        if type(value) is dict and function.__code__.co_flags & 0x08 and name == names[len(bound) - 1]:
            root = i.outside.roots.local(name)
            i.outside.guard("keys", root, tuple(value))
            values.append(i.mark_created({k: i.outside.wrap(v, root.item(k)) for k, v in value.items()}))
        else:
            values.append(i.outside.wrap(value, i.outside.roots.local(name)))
    prepare_step(i, function, bound[-1] if bound and type(bound[-1]) is tuple else tuple(bound))
    grad_before = i.graph.grad_enabled
    try:
        result = i.run_function(function, values)
    except Raised as raised:
        raise Unsupported(f"an exception: {type(raised.exception).__name__}: {raised.exception}") from raised.exception
    if i.graph.grad_enabled != grad_before:
        raise Unsupported("grad mode is left changed")
    book = RecipeBook(i)
    recipe = book.recipe(result)
    effects = book.effects()
    return Segment(
        function.__code__,
        i.graph.finish(book.outputs),
        i.graph.inputs,
        i.outside.guards,
        recipe,
        effects,
        frozenset(i.graph.mutated),
        i.graph.differentiable,
    )


def _check_surroundings(i: Interpreter) -> None:
    """Settings of PyTorch that change what every operator does: guarded, and captured only in their usual state."""
    for setting, value in (
        ("torch.is_grad_enabled()", torch.is_grad_enabled()),
        ("torch._C._is_any_autocast_enabled()", torch._C._is_any_autocast_enabled()),
        ("torch._C._len_torch_function_stack()", torch._C._len_torch_function_stack()),
        ("torch._C._len_torch_dispatch_stack()", torch._C._len_torch_dispatch_stack()),
        ("torch.autograd.forward_ad._current_level", torch.autograd.forward_ad._current_level),
    ):
        i.outside.guard("state", None, (setting, value))
    if torch._C._is_any_autocast_enabled():
        raise Unsupported("autocast")
    if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
        raise Unsupported("an active torch function or dispatch mode")
    if torch.autograd.forward_ad._current_level >= 0:
        raise Unsupported("forward-mode differentiation")


__all__ = ["capture"]
