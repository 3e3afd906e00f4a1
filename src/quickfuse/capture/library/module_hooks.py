"""Hooks of modules and optimizers that captured code registers and removes again: nothing of them is left after its graph.

In eager a hook stands in a dictionary under a number that nothing had before, so that what runs with it in place would be
compiled for that number. Here it gets the same one in each call, which nothing else in the process has.
"""

from __future__ import annotations

from typing import Any, NoReturn

from torch.utils.hooks import BackwardHook, RemovableHandle

from ...errors import Unsupported
from ..interpreter import Interpreter
from ..symbolic.hooks import HookHandle, ModuleGradients, forget_hook, refuse
from ..symbolic.raising import SuspendedInside


def _handle(i: Interpreter, table: Any, *, extra_dict: Any = None) -> Any:
    """`RemovableHandle(table)`."""
    others = [] if extra_dict is None else extra_dict if isinstance(extra_dict, list) else [extra_dict]
    made_at = _called_at(i)
    number, handle = new_handle(i, [table, *others], made_at)
    i.hooks[number] = made_at
    return handle


def new_handle(i: Interpreter, tables: list[Any], made_at: int) -> tuple[int, Any]:
    """A number for a hook that stands in the first of some `tables`, and a handle that removes it from all of them."""
    number = RemovableHandle.next_id
    RemovableHandle.next_id += 1
    i.outside.classes_made.setdefault(HookHandle, made_at)
    return number, i.call_now(HookHandle, (number, i.mark_created(tables)))


def _called_at(i: Interpreter) -> int:
    """Where the program called the method that registers a hook, by instructions that were performed before."""
    at = i.performed
    for frame in reversed(i.frames):
        if not frame.is_library:
            break
        at = frame.called_at
    return at


def _forget(i: Interpreter, number: Any) -> None:
    i.hooks.pop(number, None)
    for hooks in i.tensor_hooks.values():
        hooks.registered.pop(number, None)


def check_hooks_removed(i: Interpreter) -> None:
    """Require that the captured code removed the hooks that it registered. Raises `SuspendedInside` where it did not: the
    segment is to end in front of the call that registers the first of them."""
    if i.hooks:
        raise SuspendedInside(min(i.hooks.values()), "a hook that is made inside and outlives the graph")


def _of_call(i: Interpreter, module: Any, hooks: Any, pre_hooks: Any) -> Any:
    """`BackwardHook(module, hooks, pre_hooks)`, which PyTorch makes for a call of a module with hooks for gradients."""
    i.outside.classes_made.setdefault(ModuleGradients, i.performed)
    return i.call_now(ModuleGradients, (module, hooks, pre_hooks))


def _refuse(i: Interpreter, reason: str) -> NoReturn:
    raise Unsupported(reason)


HANDLERS: dict[Any, Any] = {
    RemovableHandle: _handle, forget_hook: _forget, BackwardHook: _of_call, refuse: _refuse,
}  # fmt: skip
