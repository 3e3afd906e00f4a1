"""Hooks of modules and optimizers that captured code registers and removes again: nothing of them is left after its graph.

In eager a hook stands in a dictionary under a number that nothing had before, so that what runs with it in place would be
compiled for that number. Here it gets the same one in each call, which nothing else in the process has.
"""

from __future__ import annotations

from typing import Any

from torch.utils.hooks import RemovableHandle

from ..graph.modes import SuspendedInside
from ..interpreter import Interpreter
from ..symbolic.hooks import HookHandle, forget_hook


def _handle(i: Interpreter, table: Any, *, extra_dict: Any = None) -> Any:
    """`RemovableHandle(table)`."""
    others = [] if extra_dict is None else extra_dict if isinstance(extra_dict, list) else [extra_dict]
    made_at = _called_at(i)
    number = RemovableHandle.next_id
    RemovableHandle.next_id += 1
    i.hooks[number] = made_at
    i.outside.classes_made.setdefault(HookHandle, made_at)
    return i.call_now(HookHandle, (number, i.mark_created([table, *others])))


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


def check_hooks_removed(i: Interpreter) -> None:
    """Require that the captured code removed the hooks that it registered.

    Raises:
        SuspendedInside: where it did not: the segment is to end in front of the call that registers the first of them.
    """
    if i.hooks:
        raise SuspendedInside(min(i.hooks.values()), "a hook that is made inside and outlives the graph")


HANDLERS: dict[Any, Any] = {RemovableHandle: _handle, forget_hook: _forget}
