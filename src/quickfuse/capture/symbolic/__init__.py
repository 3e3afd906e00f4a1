"""Values on the symbolic stack, a file for each kind.

Constants, functions, and containers and objects that the captured code made are the real Python objects. The classes here
stand for what is known only when the compiled code runs, or belongs to the user and must not be touched during capture.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, MethodWrapperType, WrapperDescriptorType
from typing import Any

import torch

from ...errors import Unsupported
from .containers import DICTS, MappingProxy, ShadowContainer, ShadowDict
from .frame import GeneratorValue
from .graph_values import (
    TENSOR_TYPES,
    DynamicSize,
    DynamicTensor,
    Either,
    FormedText,
    LateNumber,
    Selection,
    Symbol,
    TensorProxy,
    mapped,
    tensors_among,
)
from .made import ABSENT, DELETED, Assigned, BuiltinMethod, HeldArray, MadeTraceback, NativeHandler, SuperProxy
from .outside import (
    ATOMS,
    PLAIN_TYPES,
    ForeignArray,
    ForeignObject,
    ForeignScalar,
    ForeignTensor,
    FromOutside,
    Unread,
    is_constant,
    is_numpy,
    numpy_class,
)


def contains_symbolic(value: Any) -> bool:
    """Whether a tensor or symbol stands in `value` or in the containers in it."""
    return next(symbolic_leaves(value), None) is not None


def symbolic_leaves(value: Any) -> Iterator[Any]:
    """The tensors and symbols in `value` and in the containers in it, past their classes."""
    kind = type(value)
    if kind in _SYMBOLIC:
        yield value
    elif (builtin := next((cls for cls in _OF_ELEMENTS if isinstance(value, cls)), None)) is not None:
        for element in builtin.__iter__(value):
            yield from symbolic_leaves(element)
    elif isinstance(value, dict):
        for element in dict.values(value):
            yield from symbolic_leaves(element)
    elif kind is slice:
        yield from symbolic_leaves((value.start, value.stop, value.step))


#: What the symbolic stack holds in place of a value.
_SYMBOLIC = frozenset({
    TensorProxy, Symbol, ShadowDict, ShadowContainer, ForeignScalar, DynamicTensor, FormedText, LateNumber, Selection,
    Either,
})  # fmt: skip
_OF_ELEMENTS: tuple[Any, ...] = (list, tuple, set, frozenset, collections.deque)


def real_of(value: Any) -> Any:
    """The object that a stand-in stands for; other values as they are."""
    return value.real if issubclass(type(value), FromOutside) else value


def instance_dict(value: Any) -> dict[str, Any] | None:
    """An object's `__dict__`, past what its class says of reading attributes; there is one of each thread's own."""
    getter = threading.local if issubclass(type(value), threading.local) else object
    try:
        found = getter.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return found if type(found) is dict else None


def type_of(value: Any) -> type:
    """`type(value)` of the value that a stand-in stands for."""
    kind = type(value)
    if kind is TensorProxy or kind is Symbol or kind is LateNumber:
        return value.cls  # type: ignore[no-any-return]
    if issubclass(kind, FromOutside):
        return type(value.real)
    if kind is Unread:  # no answer is right before there is a guard
        raise Unsupported("a look at what was only to be handed on")
    if kind is Either:
        raise value.left()
    if kind is GeneratorValue:
        return value.kind  # type: ignore[no-any-return]
    if kind is BuiltinMethod:
        return _BOUND.get(type(getattr(type_of(value.base), value.name, None)), BuiltinFunctionType)
    return type(value.array) if kind is HeldArray else STANDS_FOR.get(kind, kind)


#: What stands for values of one class.
STANDS_FOR: dict[type, type] = {
    DynamicTensor: torch.Tensor, Selection: torch.Tensor, DynamicSize: torch.Size, FormedText: str,
    SuperProxy: super,
}  # fmt: skip
#: What a function of a class is, bound to an object: `torch.Tensor` has methods in Python, too.
_BOUND: dict[type, type] = {FunctionType: MethodType, WrapperDescriptorType: MethodWrapperType}


__all__ = [
    "ABSENT", "ATOMS", "DELETED", "DICTS", "PLAIN_TYPES", "TENSOR_TYPES", "Assigned", "BuiltinMethod", "DynamicSize",
    "DynamicTensor", "ForeignArray", "ForeignObject", "ForeignScalar", "ForeignTensor", "FormedText", "FromOutside",
    "HeldArray", "LateNumber", "MadeTraceback", "MappingProxy", "NativeHandler", "STANDS_FOR", "Selection",
    "ShadowContainer", "ShadowDict", "SuperProxy", "Symbol", "TensorProxy", "Unread", "contains_symbolic", "instance_dict",
    "is_constant", "is_numpy", "mapped", "numpy_class", "real_of", "symbolic_leaves", "tensors_among", "type_of",
]  # fmt: skip
