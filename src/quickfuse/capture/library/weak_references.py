"""Weak references to what captured code made: they give it back while a variable of the captured program leads to it."""

from __future__ import annotations

import weakref
from types import CellType, MethodType
from typing import Any

from ...errors import Unsupported
from ..interpreter import Interpreter
from ..symbolic import FromOutside, TensorProxy, instance_dict, type_of


def _reference(i: Interpreter, value: Any, callback: Any = None) -> Any:
    """`weakref.ref(value)`: of an object without a callback there is one, as there is of the real one."""
    if callback is not None:
        raise Unsupported("a weak reference with a callback")
    if type(value) is not TensorProxy and not i.is_created(value):
        raise Unsupported(f"a weak reference to a {type_of(value).__name__}")
    made = i.mark_created(i.native(weakref.ref, value))
    i.referenced[id(made)] = value
    return made


def referent(i: Interpreter, reference: Any) -> Any:
    """`reference()`.

    Raises:
        Unsupported: where no variable leads to the object: when CPython gives it back is not followed.
    """
    wanted = i.referenced[id(reference)]
    if not _is_held(i, wanted):
        raise Unsupported("a weak reference to what may be gone")
    return wanted


def _is_held(i: Interpreter, wanted: Any) -> bool:
    """Whether a variable or stack entry of a frame leads to an object."""
    pending = [value for frame in i.frames for value in (*frame.locals, *frame.stack)]
    seen: set[int] = set()
    while pending:
        value = pending.pop()
        if value is wanted:
            return True
        if id(value) not in seen:
            seen.add(id(value))
            pending += _parts(i, value)
    return False


def _parts(i: Interpreter, value: Any) -> list[Any]:
    """What an object surely keeps."""
    if isinstance(value, CellType):
        try:
            return [value.cell_contents]
        except ValueError:
            return []
    if isinstance(value, MethodType):
        return [value.__self__]
    held: list[Any] = list(value.attributes.values()) if isinstance(value, FromOutside) else []
    if isinstance(value, dict):
        held += dict.values(value)
    elif isinstance(value, (list, tuple)):
        held += (list if isinstance(value, list) else tuple).__iter__(value)
    return held + list((instance_dict(value) or {}).values()) if i.is_created(value) else held


HANDLERS: dict[Any, Any] = {weakref.ref: _reference}
