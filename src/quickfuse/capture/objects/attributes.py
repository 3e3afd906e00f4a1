"""Reading and writing attributes of objects and modules, with Python's lookup rules.

Reads of the user's objects come with guards; writes to them are noted in `Outside` and replayed later.
"""

from __future__ import annotations

import contextlib
import threading
import types
import weakref
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

from ...errors import Unsupported
from ...ir.source import Source
from ..interpreter import Interpreter, Then
from ..symbolic import ABSENT, DELETED, FromOutside, ShadowDict, instance_dict, is_constant, real_of, type_of
from ..symbolic.kinds import CODE_TYPES, CONSTANT_TYPES, is_trusted_module
from ..symbolic.raising import Raised, raise_in_program
from .class_attributes import (
    TUPLE_FIELD,
    bind,
    descriptor,
    guard_absent,
    guard_class_attribute,
    is_changeable,
    lookup_class,
    name_in_messages,
    new_in_class,
    own_method,
    special_method,
)
from .module_calls import MODULE_GETATTR, in_tables

# reading attributes ---------------------------------------------------------------------------------------------


def load_object(i: Interpreter, base: Any, name: str, then: Then) -> None:
    """`base.name` of an object of a Python class, given to `then`."""
    kind = type_of(base)
    if has_own_getter(i, base):
        _custom_attribute(i, base, name, then)
    elif issubclass(kind, _OTHER_GETTERS):
        raise Unsupported(f"the attribute {name} of a {kind.__name__}")
    elif name == "__class__" and lookup_class(kind, name)[1] is _CLASS_OF:
        then(kind)
    elif issubclass(kind, threading.local) and special_method(i, base, "__init__") is not object.__init__:
        raise Unsupported(f"the attribute {name} of a {kind.__name__}, which each thread makes for itself")
    else:
        load_plain(i, base, name, then, or_else=True)


_CLASS_OF = object.__dict__["__class__"]
#: Native classes whose instances give attributes of other objects.
_OTHER_GETTERS = (weakref.ProxyType, weakref.CallableProxyType, types.GenericAlias, super)


def has_own_getter(i: Interpreter, base: Any) -> bool:
    """Whether a class says how each attribute is read, guarded where it does not."""
    return own_method(i, base, "__getattribute__") is not None


def missing_from_code(i: Interpreter, function: FunctionType, name: str, source: Source) -> None:
    """An attribute that a function does not have of its own, or that is not known to capture."""
    if hasattr(function, name):
        raise Unsupported(f"the attribute {name} of a function")
    if not i.is_created(function):
        i.outside.guard("absent", source.attr("__dict__"), (name,))
    raise_in_program(AttributeError(f"'function' object has no attribute '{name}'", name=name, obj=function))


def _custom_attribute(i: Interpreter, base: Any, name: str, then: Then) -> None:
    """A class that defines `__getattribute__`, and perhaps `__getattr__` for where it raises."""
    getter, fallback = own_method(i, base, "__getattribute__"), own_method(i, base, "__getattr__")
    if fallback is not None:
        instead = partial(i.call, fallback, (base, name), {}, then)
        _or_if_missing(i, instead, then, i.call, getter, (base, name), {})
    else:
        i.call(getter, (base, name), {}, then)


def _or_if_missing(
    i: Interpreter, instead: Callable[[], None], then: Then, read: Callable[..., None], *operands: Any
) -> None:
    """`read(*operands, then)`, and `instead()` where that raises AttributeError."""
    try:
        value = i.now(read, *operands)
    except Raised as raised:
        if not isinstance(raised.exception, AttributeError):
            raise
        instead()
    else:
        then(value)


def load_plain(i: Interpreter, base: Any, name: str, then: Then, or_else: bool = False) -> None:
    """`object.__getattribute__(base, name)`, and `or_else` what `__getattr__` gives where that finds nothing."""
    kind = type_of(base)
    stored = _stored(base, name)
    owner, raw = lookup_class(kind, name)
    if raw is not ABSENT and _is_data_descriptor(i, raw):
        _with_fallback(i, base, name, raw, then, or_else, _data_descriptor, i, base, name, owner, raw)
        return
    if stored is not ABSENT and stored is not DELETED:
        then(stored)
        return
    instance = instance_dict(real_of(base))
    if stored is not DELETED and instance is not None and name in _own_names(i, instance):
        then(_instance_value(i, base, instance, name))
        return
    source = i.outside.source_of(base)
    if source is not None and instance is not None and stored is not DELETED and name not in instance:  # nor taken out here
        i.outside.guard("absent", source.attr("__dict__"), (name,))
    if (assigned := new_in_class(i, kind, name)) is not None:
        then(assigned.value)
    elif raw is not ABSENT:
        guard_class_attribute(i, kind.__mro__, owner, name, raw)
        _with_fallback(i, base, name, raw, then, or_else, bind, i, owner, name, raw, base, kind)
    elif name == "__dict__" and instance is not None:
        then(_namespace(i, base))
    else:
        guard_absent(i, kind.__mro__, name)
        _missing(i, base, name, then, or_else)


def _stored(base: Any, name: str) -> Any:
    """The attribute as the captured code has set it, `ABSENT` where it left it alone."""
    return base.attributes.get(name, ABSENT) if issubclass(type(base), FromOutside) else ABSENT


def _missing(i: Interpreter, base: Any, name: str, then: Then, or_else: bool) -> None:
    """An attribute that was not found: `__getattr__` comes into play, or AttributeError."""
    fallback = own_method(i, base, "__getattr__") if or_else else None
    if fallback is not None:
        found = ABSENT
        by_class = isinstance(lookup_class(type_of(base), "__dict__")[1], property)  # which says what `__dict__` is
        if fallback is MODULE_GETATTR and isinstance(base, FromOutside) and not by_class:
            found = in_tables(i, _namespace(i, base), name)
        if found is ABSENT:
            i.call(fallback, (base, name), {}, then)
        else:
            then(found)
        return
    shown = real_of(base)
    _check_missing(shown, name)
    text = f"'{name_in_messages(type_of(shown))}' object has no attribute '{name}'"
    raise_in_program(AttributeError(text, name=name, obj=shown))


def _check_missing(value: Any, name: str) -> None:
    """See to it that an object has no attribute that only its class, which is written in C, knows of."""
    getter = lookup_class(type(value), "__getattribute__")[1]
    if getter is not object.__getattribute__ and isinstance(getter, types.WrapperDescriptorType):
        with contextlib.suppress(AttributeError):
            getter(value, name)
            raise Unsupported(f"the attribute {name} of a {type(value).__name__}")


def _with_fallback(
    i: Interpreter, base: Any, name: str, raw: Any, then: Then, or_else: bool, read: Callable[..., None], *operands: Any
) -> None:
    """`read(*operands, then)`, which may run code of the user's: what it does not find, `__getattr__` may give."""
    runs_code = isinstance(raw, property) or isinstance(lookup_class(type(raw), "__get__")[1], FunctionType)
    or_else = or_else and lookup_class(type_of(base), "__getattr__")[1] is not ABSENT
    if or_else and (runs_code or isinstance(raw, types.MemberDescriptorType)):
        _or_if_missing(i, partial(_missing, i, base, name, then, or_else), then, read, *operands)
    else:
        read(*operands, then)


def _is_data_descriptor(i: Interpreter, raw: Any) -> bool:
    """Whether a class attribute comes before what the object itself has, guarded to stay so."""
    if not is_changeable(type(raw)):
        return hasattr(type(raw), "__set__") or hasattr(type(raw), "__delete__")
    found = [special_method(i, raw, name) for name in ("__set__", "__delete__")]
    return found != [ABSENT, ABSENT]


def _data_descriptor(i: Interpreter, base: Any, name: str, owner: type, raw: Any, then: Then) -> None:
    kind = type_of(base)
    in_python = isinstance(lookup_class(type(raw), "__get__")[1], FunctionType)
    if isinstance(raw, property) or (name != "__dict__" and (in_python or type(raw) is TUPLE_FIELD)):
        guard_class_attribute(i, kind.__mro__, owner, name, raw)
        bind(i, owner, name, raw, base, kind, then)
        return
    if name == "__dict__":
        then(_namespace(i, base))
        return
    if isinstance(raw, (types.MemberDescriptorType, types.GetSetDescriptorType)):
        guard_class_attribute(i, kind.__mro__, owner, name, raw)
        stored = _stored(base, name)
        if stored is not ABSENT:
            then(stored)
            return
        source = i.outside.source_of(base)
        try:
            value = i.read(raw.__get__, real_of(i.outside.itself(base)))
        except Raised:
            if source is not None and isinstance(raw, types.MemberDescriptorType):
                i.outside.guard("unset", source, raw)
            raise
        if source is not None:
            value = i.outside.wrap(value, source.attr(name))
        elif isinstance(base, CONSTANT_TYPES):
            pass  # `int | None` is for ever of the same types
        elif not (i.is_created(base) or isinstance(base, tuple) or is_constant(value) or isinstance(value, CODE_TYPES)):
            raise Unsupported(f"the attribute {name} of a {kind.__name__} without a path to it")
        then(value)
        return
    raise Unsupported(f"a descriptor of type {type(raw).__name__}")


def _namespace(i: Interpreter, base: Any) -> Any:
    """`base.__dict__`, with the attributes that the captured code has set."""
    real = real_of(base)
    if i.is_created(base):
        return i.outside.mark_made(object.__getattribute__(real, "__dict__"), base, "__dict__")
    source = i.outside.source_of(base)
    if source is None:
        raise Unsupported(f"the __dict__ of a {type_of(base).__name__} without a path to it")
    namespace = instance_dict(real)
    known = i.outside.stand_in(namespace)
    shadow = i.outside.wrap(namespace, source.attr("__dict__"))
    if known is None and type(shadow) is ShadowDict and isinstance(base, FromOutside):
        for _, name, value in i.outside.attribute_changes(base):
            if not _is_data_descriptor(i, lookup_class(type_of(base), name)[1]):
                shadow.mirror(name, value)
    return shadow


def _dict_source(i: Interpreter, base: Any) -> Source:
    source = i.outside.source_of(base)
    if source is None:
        raise Unsupported(f"a {type_of(base).__name__} without a path to it")
    return source.attr("__dict__")


def _own_names(i: Interpreter, instance: dict[str, Any]) -> Any:
    """The keys of an object's `__dict__`, as the captured code left it."""
    shadow = i.outside.stand_in(instance)
    return shadow.entries if type(shadow) is ShadowDict else instance


def _instance_value(i: Interpreter, base: Any, instance: dict[str, Any], name: str) -> Any:
    source = i.outside.source_of(base)
    if source is None:
        if i.is_created(base):
            return instance[name]
        raise Unsupported(f"the attribute {name} of a {type_of(base).__name__} without a path to it")
    shadow = i.outside.stand_in(instance)
    if type(shadow) is ShadowDict:  # past the class, which may get a property of that name
        owner, raw = lookup_class(type_of(base), name)
        order = type_of(base).__mro__
        guard_absent(i, order if raw is ABSENT else order[: order.index(owner)], name)
        return shadow.get(i.outside, name)
    if not _runs_code_if_missing(type_of(base), name):
        return i.outside.wrap(instance[name], source.attr(name))
    owner, raw = lookup_class(type_of(base), name)
    if raw is ABSENT:
        guard_absent(i, type_of(base).__mro__, name)
    else:
        guard_class_attribute(i, type_of(base).__mro__, owner, name, raw)
    return i.outside.wrap(instance[name], _dict_source(i, base).item(name))


def _runs_code_if_missing(kind: type, name: str) -> bool:
    """Whether reading an attribute runs code of the user's if the object itself does not have it."""
    raw = lookup_class(kind, name)[1]
    if raw is not ABSENT:
        return hasattr(type(raw), "__get__") and not isinstance(raw, CODE_TYPES)
    fallback = lookup_class(kind, "__getattr__")[1]
    return isinstance(fallback, FunctionType) and not is_trusted_module(fallback.__module__)


# writing attributes ---------------------------------------------------------------------------------------------


def store_object(i: Interpreter, base: Any, name: str, value: Any) -> None:
    """`base.name = value` of an object of a Python class."""
    if (setter := own_method(i, base, "__setattr__")) is not None:
        i.call_now(setter, (base, name, value))
    else:
        set_plain(i, base, name, value)


def set_plain(i: Interpreter, base: Any, name: str, value: Any) -> None:
    """`object.__setattr__(base, name, value)`."""
    kind = type_of(base)
    owner, raw = lookup_class(kind, name)
    if raw is ABSENT:
        guard_absent(i, kind.__mro__, name)
    if isinstance(raw, property):
        guard_class_attribute(i, kind.__mro__, owner, name, raw)
        if raw.fset is None:
            raise_in_program(AttributeError(f"property '{name}' of '{kind.__qualname__}' object has no setter"))
        i.call_now(raw.fset, (base, value))
        return
    by_descriptor = raw is not ABSENT and _is_data_descriptor(i, raw)
    if by_descriptor and not isinstance(raw, types.MemberDescriptorType):
        setter = special_method(i, raw, "__set__")
        if not isinstance(setter, FunctionType):
            raise Unsupported(f"setting the attribute {name} through a descriptor")
        guard_class_attribute(i, kind.__mro__, owner, name, raw)
        i.call_now(setter, (descriptor(i, raw), base, value))
        return
    if i.is_created(base):
        i.read(object.__setattr__, base, name, value)
        return
    if not isinstance(base, FromOutside):
        raise Unsupported(f"setting an attribute of a {kind.__name__} without a path to it")
    if isinstance(raw, types.MemberDescriptorType) and "__slots__" not in vars(raw.__objclass__):
        raise Unsupported(f"setting the attribute {name} of a {kind.__name__}, a class in C")  # which may refuse it
    held = instance_dict(real_of(base))
    if held is None and not by_descriptor:
        raise Unsupported(f"setting the attribute {name} of a {kind.__name__}, which cannot have it")
    shadow = None if by_descriptor else i.outside.stand_in(held)
    if type(shadow) is ShadowDict:
        if _goes_by_dictionary(shadow, name):
            i.kind_of(shadow).set_item(i, shadow, name, value)
            return
        shadow.mirror(name, value)
    if held is not None and name in held:
        i.overwritten(type(held[name]))
    i.outside.set_attribute(base, name, value)


def delete_object(i: Interpreter, base: Any, name: str) -> None:
    """`del base.name` of an object of a Python class."""
    if (own := own_method(i, base, "__delattr__")) is not None:
        i.call_now(own, (base, name))
    else:
        delete_plain(i, base, name)


def delete_plain(i: Interpreter, base: Any, name: str) -> None:
    """`object.__delattr__(base, name)`."""
    raw = lookup_class(type_of(base), name)[1]
    if i.is_created(base):
        i.native(object.__delattr__, base, name)
        return
    if not isinstance(base, FromOutside) or (raw is not ABSENT and _is_data_descriptor(i, raw)):
        raise Unsupported(f"deleting an attribute of a {type_of(base).__name__}")
    _own_attribute_or_raise(i, base, name)
    shadow = i.outside.stand_in(instance_dict(real_of(base)))
    if type(shadow) is ShadowDict:
        if _goes_by_dictionary(shadow, name):
            i.kind_of(shadow).delete_item(i, shadow, name)
            return
        shadow.begin_change(name)
        shadow.mirror(name, DELETED)
    i.outside.set_attribute(base, name, DELETED)


def _goes_by_dictionary(shadow: ShadowDict, name: str) -> bool:
    """Whether an attribute is set or deleted as an entry of the object's `__dict__`: once entries of that were, so that the
    order stays the program's. Raises `Unsupported` where the attribute was deleted as one before, so that it comes last now.
    """
    if not shadow.changes:
        return False
    if name in shadow.mirrored and name not in shadow.entries:
        raise Unsupported("changing an attribute in two ways")
    return name not in shadow.mirrored


def _own_attribute_or_raise(i: Interpreter, base: Any, name: str) -> None:
    """What `del base.name` needs: that the object itself has the attribute."""
    stored = _stored(base, name)
    instance = instance_dict(real_of(base))
    if stored is ABSENT and instance is not None and name in _own_names(i, instance):
        if name in instance:
            i.outside.wrap(instance[name], _dict_source(i, base).item(name))
            i.overwritten(type(instance[name]))
    elif stored is ABSENT or stored is DELETED:
        if stored is ABSENT and instance is None:
            i.read(object.__delattr__, real_of(base), name)  # which says why it cannot have it
        elif stored is ABSENT:
            i.outside.guard("absent", _dict_source(i, base), (name,))
        raise_in_program(AttributeError(f"'{type_of(base).__name__}' object has no attribute '{name}'"))
