"""Objects whose end can be seen: letting go of the last reference to one runs code of the program's.

A generator that is suspended in a `try` or `with` statement runs the handlers, an object with `__del__` that method. So it
matters at which instruction a variable lets go of such an object. Other objects may live a little longer.
"""

from __future__ import annotations

import collections
import dis
import functools
import gc
import itertools
import sys
import weakref
from collections.abc import Sequence
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import torch

from .frame import FrameState, Marker

_ORDINARY = frozenset({
    type(None), int, float, bool, complex, str, bytes, list, tuple, dict, set, frozenset, range, slice, type, FunctionType,
    BuiltinFunctionType, MethodType, ModuleType, Marker, torch.Tensor, torch.nn.Parameter, torch.Size, torch.dtype,
    collections.deque, collections.OrderedDict, collections.defaultdict, type(iter(())), type(iter([])),
    type(iter(range(0))),
})  # fmt: skip
#: Iterators that keep others.
_HOLDERS = (map, filter, zip, enumerate, itertools.chain, itertools.islice, itertools.takewhile, itertools.cycle)
#: Those, and classes of the program's that were met and have no finalizer.
_ordinary: set[type] = {*_ORDINARY}
_MOST_CLASSES = 200
_DEEPEST = 4
#: The frame's, and the argument.
_OWN_REFERENCES = 2

#: (index of the frame, "L" for a variable, "S" for a value of the stack or "A" for the frame's activation, index)
Slot = tuple[int, str, int]


def visible_endings(frames: Sequence[FrameState]) -> list[tuple[Slot, Any]]:
    """The slots of suspended frames with objects whose end can be seen, and frames in tracebacks: mostly none.

    A frame that waits for another one keeps its values, so that those of ordinary classes need not be looked at again: only
    what its cells hold may be another object now.
    """
    found: list[tuple[Slot, Any]] = []
    innermost = len(frames) - 1
    for depth, frame in enumerate(frames):
        if frame.activation is not None:
            if sys.getrefcount(frame.activation) > _OWN_REFERENCES:
                found.append(((depth, "A", 0), frame.activation))
            else:  # the exception is gone
                frame.activation = None
        if depth < innermost:
            cells = frame.cells
            if cells is not None and _ordinary.issuperset(map(type, gc.get_referents(*cells))):
                continue
            frame.cells = _only_cells([*frame.locals, *frame.stack])
        for place, values in (("L", frame.locals), ("S", frame.stack)):
            if not _ordinary.issuperset(map(type, values)):
                for index in [k for k, kind in enumerate(map(type, values)) if kind not in _ordinary]:
                    value = values[index]
                    kind = type(value)
                    if kind is CellType and (contents := gc.get_referents(value)):  # often, and mostly of an ordinary class
                        kind = type(contents[0])
                    if kind not in _ordinary and ends_visibly(value):
                        found.append(((depth, place, index), value))
    return found


def _only_cells(values: Sequence[Any]) -> tuple[CellType, ...] | None:
    """The values that are not of ordinary classes, if these are all cells."""
    others = tuple([value for value in values if type(value) not in _ordinary])
    return others if all(type(value) is CellType for value in others) else None


def is_ordinary_class(cls: type) -> bool:
    """Whether no instance of a class has an end that can be seen."""
    if cls in _ordinary:
        return True
    holds = cls in _HOLDERS or cls is CellType or cls is GeneratorType or issubclass(cls, BaseException)
    return not holds and not hasattr(cls, "__del__")


def reads_others(cls: type | None) -> bool:
    """Whether iterators of this class keep others, and what these gave."""
    return cls in _HOLDERS


def ends_visibly(value: Any, depth: int = 0) -> bool:
    """Whether code of the program's runs when nothing refers to an object any more."""
    kind = type(value)
    if kind in _ordinary or depth > _DEEPEST:
        return False
    if kind is GeneratorType:
        frame = value.gi_frame
        if frame is None or value.gi_running:
            return False
        if value.gi_suspended and is_handled(value.gi_code, frame.f_lasti):
            return True
        return any(ends_visibly(part, depth + 1) for part in gc.get_referents(value))
    if kind is CellType:
        contents = gc.get_referents(value)  # none where the cell is empty
        return bool(contents) and ends_visibly(contents[0], depth + 1)
    if kind in _HOLDERS:
        for referent in gc.get_referents(value):
            parts = referent if type(referent) is tuple else (referent,)
            if not _ordinary.issuperset(map(type, parts)) and any(ends_visibly(part, depth + 1) for part in parts):
                return True
        return False
    if issubclass(kind, BaseException):
        return _exception_ends_visibly(value, depth)
    if hasattr(kind, "__del__"):
        return True
    if len(_ordinary) > _MOST_CLASSES:  # they are kept alive
        _ordinary.intersection_update(_ORDINARY)
    _ordinary.add(kind)
    return False


def _exception_ends_visibly(exception: BaseException, depth: int) -> bool:
    """By way of the variables in the frames of its traceback."""
    entry = exception.__traceback__
    while entry is not None:
        # Asking for f_locals would make a dictionary that keeps the values.
        if any(type(part) not in _ordinary and _may_end_there(part) and ends_visibly(part, depth + 1)
               for part in gc.get_referents(entry.tb_frame)):  # fmt: skip
            return True
        entry = entry.tb_next
    context = exception.__context__
    return context is not None and ends_visibly(context, depth + 1)


def _may_end_there(part: Any) -> bool:
    """Exceptions in the variables of a traceback's frames may have the frames in their tracebacks again."""
    return type(part) is GeneratorType or hasattr(type(part), "__del__")


class OwnReference(weakref.ref[Any]):
    """A weak reference of compiled code's: a class, because CPython makes one reference for all who ask for a plain one."""

    __slots__ = ()


def watched_endings(frames: Sequence[FrameState]) -> list[Any]:
    """Variables of suspended frames that weak references of the program refer to, and nothing else does: their end may call
    the weak reference's function, and the program may ask whether they are still there."""
    held = collections.Counter(id(value) for frame in frames for value in (*frame.locals, *frame.stack))
    return [value for frame in frames for value in frame.locals
            if weakref.getweakrefcount(value) and sys.getrefcount(value) <= held[id(value)] + _OWN_REFERENCES
            and any(type(reference) is not OwnReference for reference in weakref.getweakrefs(value))]  # fmt: skip


@functools.lru_cache(maxsize=1024)
def is_handled(code: CodeType, offset: int) -> bool:
    """Whether an exception at this offset of a generator's code, in bytes, goes to a handler of the program's."""
    entries = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    for _ in range(len(entries) + 1):
        target = next((entry.target for entry in entries if entry.start <= offset < entry.end), None)
        if target is None:
            return False
        name, arg = dis.opname[code.co_code[target]], code.co_code[target + 1]
        if name == "CALL_INTRINSIC_1" and arg == 3:  # turns StopIteration into RuntimeError, in all generators
            return False
        if name != "CLEANUP_THROW":  # which belongs to `yield from`
            return True
        offset = target
    return False
