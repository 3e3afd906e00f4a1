"""`isinstance` and `issubclass`: classes answer by themselves, or their metaclasses do."""

from __future__ import annotations

import abc
import typing
import weakref
from collections.abc import Callable
from types import FunctionType, GenericAlias, UnionType
from typing import Any

import torch

from ...errors import Unsupported
from ..inference.number_operators import check_kind
from ..interpreter import Interpreter
from ..symbolic import real_of, type_of
from ..symbolic.containers import ShadowContainer, ShadowDict
from ..symbolic.frame import GeneratorValue
from ..symbolic.graph_values import DynamicTensor, FormedText, LateNumber, Selection, Symbol, TensorProxy
from ..symbolic.kinds import is_trusted_class
from ..symbolic.made import ABSENT
from ..symbolic.outside import ForeignProxy, ForeignScalar
from ..symbolic.raising import raise_in_program
from .class_attributes import guard_absent, guard_class_attribute, guard_order, is_changeable, lookup_class

#: Stand-ins that are no instances of what they stand for.
_KNOWN_BY_CLASS = (
    TensorProxy, DynamicTensor, Selection, FormedText, LateNumber, Symbol, GeneratorValue, ShadowDict, ShadowContainer,
    ForeignScalar,
)  # fmt: skip

#: The attributes that make a tensor of another class one of these, too.
_MARKS = {torch.nn.Parameter: "_is_param", torch.nn.Buffer: "_is_buffer"}


def check_instance(i: Interpreter, value: Any, kinds: Any) -> bool:
    wanted = _flatten(i, i.outside.contents(kinds))
    # a class may have ints and no floats, or floats and no ints; abstract ones may have any
    if any((kind in int.__mro__) != (kind in float.__mro__) or isinstance(kind, abc.ABCMeta) for kind in wanted):
        check_kind(value)
    return any(_is_instance(i, value, kind) for kind in wanted)


def _is_instance(i: Interpreter, value: Any, wanted: Any) -> bool:
    """`isinstance(value, wanted)` for one class: its metaclass may say in Python what that means."""
    kind = type_of(value)
    if kind is wanted:
        return True
    says = lookup_class(kind, "__class__")[0]
    tells = says is object or is_trusted_class(says)
    if type(value) is ForeignProxy and type(wanted) is type:  # it is of the class of what it is to, too
        seen = i.attribute_now(value, "__class__")
        guard_order(i, seen)
        return wanted in kind.__mro__ or wanted in seen.__mro__
    if issubclass(kind, weakref.ProxyTypes) or not tells:
        raise Unsupported(f"isinstance() of a {kind.__name__}, which says that it is of another class")
    guard_order(i, kind)
    metaclass = type(wanted)
    if metaclass is _TENSOR_TYPE:
        device = "cuda" if wanted.is_cuda else "xpu" if wanted.is_xpu else "cpu"
        meta = value.meta if type(value) in (TensorProxy, DynamicTensor) and wanted.layout is torch.strided else None
        return meta is not None and meta.dtype is wanted.dtype and meta.device.type == device
    if (check := _said_in_python(i, wanted, "__instancecheck__")) is not None:
        return i.truth(i.call_now(check, (wanted, value)))
    if type(value) is TensorProxy and wanted in _MARKS and i.truth(i.call_now(getattr, (value, _MARKS[wanted], False))):
        return True
    if type(value) in _KNOWN_BY_CLASS:
        outcome = _is_subclass_of(kind, wanted)
    else:
        outcome = bool(i.read(isinstance, real_of(value), wanted))
    if getattr(wanted, "_is_protocol", False):
        _guard_members(i, value, kind, wanted)
    if isinstance(metaclass, type) and issubclass(metaclass, abc.ABCMeta):
        _guard_virtual(i, kind, wanted, outcome)
    elif metaclass is not type and isinstance(wanted, type):
        guard_absent(i, metaclass.__mro__, "__instancecheck__")
    return outcome


#: The class of `torch.FloatTensor`, which stands for the tensors of one dtype, and of the aliases in `typing`.
_TENSOR_TYPE, _ALIAS = type(torch.FloatTensor), type(typing.Sequence)


def _said_in_python(i: Interpreter, wanted: Any, name: str) -> FunctionType | None:
    """The method by which a metaclass says in Python what a check means, None where it leaves that to Python."""
    metaclass = type(wanted)
    owner, check = lookup_class(metaclass, name)
    if not isinstance(check, FunctionType) or metaclass.__module__ in _NATIVE_CHECKS:
        return None
    guard_class_attribute(i, metaclass.__mro__, owner, name, check)
    return check


def _guard_members(i: Interpreter, value: Any, kind: type, protocol: Any) -> None:
    """What a class needs to have for its instances to be of a protocol: in the classes, or in the instance itself."""
    if not is_changeable(kind) or is_trusted_class(kind):
        return
    source, own = i.outside.source_of(value), getattr(real_of(value), "__dict__", {})
    for name in sorted(typing._get_protocol_attrs(protocol)):  # type: ignore[attr-defined]
        owner, found = lookup_class(kind, name)
        if found is not ABSENT:
            guard_class_attribute(i, kind.__mro__, owner, name, found)
            continue
        guard_absent(i, kind.__mro__, name)
        if source is not None and name in own:
            i.outside.wrap(own[name], source.attr(name))
        elif source is not None and type(own) is dict:
            i.outside.guard("absent", source.attr("__dict__"), (name,))


#: Whose metaclasses' checks are asked as they are.
_NATIVE_CHECKS = ("abc", "typing", "torch.nn.parameter", "torch._C", "torch")


def _guard_virtual(i: Interpreter, kind: type, wanted: type, outcome: bool) -> None:
    """A class may be registered with an abstract one later."""
    if not (is_trusted_class(wanted) and (is_trusted_class(kind) or not is_changeable(kind))):
        i.outside.guard("subclass", None, (kind, wanted, outcome))


def _is_subclass_of(kind: type, wanted: Any) -> bool:
    if typing.get_origin(wanted) is not None:
        raise Unsupported("isinstance with a generic type")
    if not isinstance(wanted, type):
        raise_in_program(TypeError("isinstance() arg 2 must be a type, a tuple of types, or a union"))
    if wanted.__module__ == "torch.nn.parameter":
        return kind is wanted or wanted in kind.__mro__
    return issubclass(kind, wanted)


def _flatten(i: Interpreter, kinds: Any) -> list[Any]:
    """The classes that the second argument of `isinstance` stands for."""
    if isinstance(kinds, tuple):
        return [k for group in kinds for k in _flatten(i, group)]
    if type(kinds) is UnionType or typing.get_origin(kinds) is typing.Union:
        return [k for member in typing.get_args(kinds) for k in _flatten(i, member)]
    if isinstance(kinds, GenericAlias):
        raise Unsupported("isinstance with a generic type")
    real = real_of(kinds)
    if not isinstance(real, _ALIAS):
        return [kinds]
    if (source := i.outside.source_of(kinds)) is not None:
        i.outside.guard("is", source, real)
    return [real.__origin__]


def check_subclass(i: Interpreter, cls: Any, kinds: Any) -> bool:
    if not isinstance(cls, type):
        raise Unsupported(f"issubclass() of a {type_of(cls).__name__}")
    return any(_is_derived(i, cls, wanted) for wanted in _flatten(i, i.outside.contents(kinds)))


def _is_derived(i: Interpreter, cls: type, wanted: Any) -> bool:
    if (check := _said_in_python(i, wanted, "__subclasscheck__")) is not None:
        return i.truth(i.call_now(check, (wanted, cls)))
    guard_order(i, cls)
    outcome = bool(i.native(issubclass, cls, wanted))
    if isinstance(wanted, abc.ABCMeta):
        _guard_virtual(i, cls, wanted, outcome)
    return outcome


HANDLERS: dict[Any, Callable[..., Any]] = {isinstance: check_instance, issubclass: check_subclass}
