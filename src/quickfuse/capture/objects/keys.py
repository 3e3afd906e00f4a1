"""Keys of dictionaries, elements of sets and indices: what captured code hashes or counts by, and as what it is stored."""

from __future__ import annotations

from typing import Any

import torch

from ...errors import Unsupported
from ..branches.held_contents import size_in
from ..interpreter import Interpreter
from ..symbolic import type_of
from ..symbolic.graph_values import FormedText, Symbol, TensorProxy
from ..symbolic.outside import ForeignObject, ForeignScalar, is_constant, is_numpy, numpy_class
from .class_attributes import python_method


def concrete_key(i: Interpreter, key: Any) -> Any:
    """An index or key with plain numbers in it."""
    kind = type(key)
    if kind is Symbol or kind is ForeignScalar:
        return plain_key(i, key)
    if kind is slice:
        return slice(*(as_index(i, v) for v in (key.start, key.stop, key.step)))
    if kind is tuple:
        return tuple([concrete_key(i, k) for k in key])
    return key


def is_late_key(i: Interpreter, key: Any) -> bool:
    """Whether a key is made of numbers and texts of which some are told only by the graph, or keep changing."""
    return can_be_late(i, key) and _has_late_part(i, key)


def can_be_late(i: Interpreter, key: Any) -> bool:
    """Whether compiled code can make a key after the graph, without a guard on the numbers and texts that it is made of."""
    kind = type(key)
    if kind is tuple:
        return all(can_be_late(i, part) for part in key)
    if kind is ForeignScalar:
        return i.outside.is_changing_text(key)
    return kind is FormedText or is_constant(key) or (kind is Symbol and key.cls is key.kind)


def _has_late_part(i: Interpreter, key: Any) -> bool:
    if type(key) is tuple:
        return any(_has_late_part(i, part) for part in key)
    if type(key) is Symbol:
        return key.from_tensor or i.outside.has_changing_sources(key)
    return type(key) in (FormedText, ForeignScalar)


def plain_key(i: Interpreter, number: Any) -> Any:
    """A number as a key."""
    plain = i.outside.concrete(number)
    if plain != plain:
        raise Unsupported("NaN as a key, which is found by its identity")
    return plain


def as_index(i: Interpreter, value: Any) -> Any:
    """What `value.__index__()` gives, where a class says that in Python; other values as they are, plain."""
    if i.outside.is_dynamic_size(value):
        return value
    if type(value) is not ForeignScalar or value.cls is int or python_method(i, value, "__index__") is None:
        value = i.outside.concrete(value)
    if type(value) is TensorProxy:
        return size_in(i, value)
    if is_constant(value):
        return int(value) if numpy_class(value) is int else value
    if (method := python_method(i, value, "__index__")) is not None:
        return number_given(i, method, value, int)
    return value


#: What a class may say of the number that native code takes an object for.
_CONVERSIONS = ("__float__", "__int__", "__index__", "__complex__", "__array__")


def check_conversions(i: Interpreter, value: Any) -> None:
    """Require that native functions take a number for what it is, whatever its class says of converting it."""
    is_number = type(value) is ForeignScalar and value.cls in (int, float, complex)
    if is_number and any(python_method(i, value, name) is not None for name in _CONVERSIONS):
        raise Unsupported(f"a native function of a {type_of(value).__name__}, whose class says how to convert it")


def number_given(i: Interpreter, method: Any, value: Any, kind: type) -> Any:
    """The plain number that a special method such as `__index__` gives. Raises `Unsupported` where it gives something else,
    of which Python says so by an exception or a warning."""
    found = i.call_now(method, (value,))
    if type_of(found) is not kind:
        raise Unsupported(f"{method.__name__} that gives a {type_of(found).__name__}")
    return i.outside.concrete(found)


def hashable(i: Interpreter, value: Any) -> Any:
    """A value that is hashed, as an element of a set or a key of a dictionary that captured code makes or changes."""
    if is_of_own_class(value):
        raise Unsupported(f"a {type_of(value).__name__} as a key, which is found by its plain value and keeps its class")
    value = lookup_key(i, value)
    if isinstance(value, (TensorProxy, ForeignObject)) and value.source is not None:  # hashed by its identity
        i.outside.hashed[value.source] = None
    return value


def is_of_own_class(value: Any) -> bool:
    """Whether a key is a number or text of a class of the user's, or has such parts."""
    if type(value) is tuple:
        return any(map(is_of_own_class, value))
    return type(value) is ForeignScalar and type(value.real) is not value.cls and not is_numpy(value.real)


def lookup_key(i: Interpreter, value: Any) -> Any:
    """A value as a key to look up in a dictionary of the user's."""
    if isinstance(value, (torch.finfo, torch.iinfo)) or is_numpy(value):  # of which some cannot be hashed
        try:
            hash(value)
        except TypeError:
            raise Unsupported(f"hashing a {type(value).__name__}") from None
    if is_constant(value) and not isinstance(value, (tuple, slice)):
        return value
    return i.kind_of(value).key(i, value)


def sought(i: Interpreter, value: Any) -> Any:
    """A value to look for among what captured code made: hashed as it would be stored, or by its plain value, where it would
    be stored with its class."""
    return lookup_key(i, value) if is_of_own_class(value) else hashable(i, value)
