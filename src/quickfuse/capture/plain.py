"""Values as plain Python objects, for native functions that look at all there is in them."""

from __future__ import annotations

from typing import Any

from ..errors import Unsupported
from .containers import as_plain_dict
from .interpreter import Interpreter
from .symbolic import is_constant, type_of


def plain_copy(i: Interpreter, value: Any, what: str) -> Any:
    """A constant, or a list, tuple, dictionary or set of such, with the values of numbers, each guarded.

    Raises:
        Unsupported: for anything else; `what` of it was asked for.
    """
    value = i.outside.concrete(value)
    if is_constant(value):
        return value
    kind = type_of(value)
    if kind is dict:
        entries = as_plain_dict(i, value)
        return {plain_copy(i, k, what): plain_copy(i, v, what) for k, v in entries.items()}
    if kind not in (list, tuple, set, frozenset):
        raise Unsupported(f"{what} of a {kind.__name__}")
    elements = i.outside.contents(value)
    if kind is set and i.outside.is_changed_set(elements):
        raise Unsupported("the order of a set that was changed")
    copied = kind([plain_copy(i, v, what) for v in elements])
    if kind in (set, frozenset) and list(copied) != list(elements):
        raise Unsupported("a set whose order comes from what was in it before")
    return copied


def adopt(i: Interpreter, value: Any) -> Any:
    """What a native function made anew: its containers may be changed by the captured code."""
    if type(value) in (list, tuple, dict, set):
        for element in value.values() if type(value) is dict else value:
            adopt(i, element)
        if type(value) is not tuple:
            i.mark_created(value)
    return value


