"""Weak references. One to an object of the user's gives it back while no change may have let go of it, one to what captured
code made while a variable of the captured program leads to it."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Iterator
from types import CellType, FunctionType, MethodType
from typing import Any

import numpy
import torch

from ...errors import Unsupported
from ...ir.source import Source, steps_to
from ..interpreter import Interpreter
from ..symbolic import PLAIN_TYPES, ForeignObject, FromOutside, TensorProxy, Unread, instance_dict, type_of
from ..symbolic.kinds import is_transient
from ..symbolic.made import DELETED
from ..symbolic.outside import ForeignProxy

#: How many elements of a list that is let go of are looked at.
_LONGEST = 16

#: The modules of the containers that hold their elements by weak references.
WEAK_CONTAINERS = frozenset({"weakref", "_weakrefset"})


class _Callback:
    """What a reference of the captured code's to an object of the user's calls: nothing, while the program is captured. In
    its place compiled code puts the program's own. With a callback, a reference is an object of its own."""

    def __init__(self, called: Any) -> None:
        self.called = called

    def __call__(self, reference: Any) -> None:
        pass


def _reference(i: Interpreter, value: Any, callback: Any = None) -> Any:
    """`weakref.ref(value)`: of an object without a callback there is one, as there is of the real one."""
    if type(value) is TensorProxy or i.is_created(value):
        if callback is not None:
            raise Unsupported("a weak reference with a callback")
        made = i.mark_created(i.native(weakref.ref, value))
    elif isinstance(value, FromOutside):
        check_nothing_let_go(i)
        alike = (known for known in i.references if i.referenced[id(known)] is value and callback_of(known) is None)
        made = next(alike, None) if callback is None else None
        if made is None:
            made = i.mark_created(i.read(weakref.ref, value.real, _Callback(callback)))
            i.references.append(made)
    else:
        raise Unsupported(f"a weak reference to a {type_of(value).__name__}")
    i.referenced[id(made)] = value
    return made


def callback_of(reference: Any) -> Any:
    """What the program gave a reference to call."""
    own = reference.__callback__
    return own.called if type(own) is _Callback else None


def called(i: Interpreter, reference: ForeignObject) -> Any:
    """`reference()`, of one from outside."""
    check_nothing_let_go(i)
    return i.outside.wrap(weakref.ref.__call__(reference.real), reference.source.referent())


def behind(i: Interpreter, proxy: ForeignProxy) -> Any:
    """What a `weakref.proxy` from outside is to. It stays the same object as long as that lives: the proxy is guarded, and a
    reference of our own leads to the object."""
    check_nothing_let_go(i)
    found = _object_of(proxy.real)
    if found is None:
        raise Unsupported("a weakref.proxy to what is gone")
    if isinstance(found, (FunctionType, type)):  # a graph holds them
        raise Unsupported("a weakref.proxy to a function or class")
    if weakref.proxy(found) is not proxy.real:  # as all without a callback are; a guard keeps the proxy, and so the callback
        raise Unsupported("a weakref.proxy with a callback")
    roots = i.outside.roots
    i.outside.guard("same", proxy.source, roots.constant("that proxy", proxy.real))  # a value would be asked for its class
    return i.outside.wrap(found, roots.constant("reference", weakref.ref(found)).referent())


def _object_of(proxy: Any) -> Any:
    """The object, None where it is gone. Python gives it nowhere: each attribute of a proxy is one of the object's, whose
    class may say what that is."""
    address = ctypes.pythonapi.PyWeakref_GetObject(ctypes.py_object(proxy))
    return ctypes.cast(ctypes.c_void_p(address), ctypes.py_object).value


ctypes.pythonapi.PyWeakref_GetObject.restype = ctypes.c_void_p  # the reference is not ours


def referent(i: Interpreter, reference: Any) -> Any:
    """`reference()`. Raises `Unsupported` where no variable leads to the object: nothing tells when CPython frees it."""
    wanted = i.referenced[id(reference)]
    if isinstance(wanted, FromOutside):
        check_nothing_let_go(i)
        if is_transient(wanted.source) and not _is_reached(i, wanted.source):
            raise Unsupported("a weak reference to what may be gone")
        return wanted
    if not _is_held(i, wanted):
        raise Unsupported("a weak reference to what may be gone")
    return wanted


def check_nothing_let_go(i: Interpreter) -> None:
    """Require that no change of the captured code's may have let go of an object of the user's: it is not done yet. Raises
    `Unsupported` where one may have."""
    for value, source in _replaced(i):
        few = type(value) in (list, tuple) and len(value) <= _LONGEST  # such as a scheduler's last learning rates
        if not _is_plain(value) and not (source is not None and few and all(map(_is_plain, value))):
            raise Unsupported("a weak reference to what may be gone")
        if source is None:
            continue
        i.outside.guard("type", source, type(value))
        if type(value) in (list, tuple):
            i.outside.guard("length", source, len(value))
            for k, element in enumerate(value):
                i.outside.guard("type", source.item(k), type(element))


def _is_plain(value: Any) -> bool:
    return type_of(value) in PLAIN_TYPES or issubclass(type_of(value), (torch.Tensor, numpy.number))


def _replaced(i: Interpreter) -> Iterator[tuple[Any, Source | None]]:
    """What was where the captured code has assigned, deleted or taken out something, with the paths to what it did not read
    before."""
    outside = i.outside
    for owner, name in outside.changed_attributes:
        instance = instance_dict(owner.real)
        if instance is not None and name in instance and owner.source is not None:
            yield instance[name], owner.source.attr("__dict__").item(name)
    for variable in outside.variables:
        place, name = variable.place, variable.name
        if isinstance(place, type):
            source = outside.source_of(place)
            if name in place.__dict__:
                yield place.__dict__[name], None if source is None else source.attr("__dict__").item(name)
        elif name and name in place:
            yield place[name], outside.roots.global_(name, place)
        elif not name:
            source = outside.source_of(place)
            for contents in gc.get_referents(place):
                yield contents, None if source is None else source.attr("cell_contents")
    for shadow in outside.dictionaries:
        held = (dict.get(shadow.real, key, DELETED) for key in shadow.changes)
        yield from ((value, None) for value in held if value is not DELETED)
    for container in outside.containers:
        kept = {*map(id, container.original if container.items is None else container.items)}
        yield from ((element, None) for element in container.original if id(element) not in kept)


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


def _is_reached(i: Interpreter, source: Source) -> bool:
    """Whether a variable or stack entry of a frame still has what the path to an argument's part leads through."""
    path = {*steps_to(source)}
    values = (value for frame in i.frames for value in (*frame.locals, *frame.stack))
    return any(value.source in path for value in values if isinstance(value, (FromOutside, Unread)))


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
