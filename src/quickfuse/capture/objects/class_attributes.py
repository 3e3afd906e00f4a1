"""Attributes that classes define: finding them, binding them to instances, and the guards that they are not replaced."""

from __future__ import annotations

import abc
import collections
import enum
import functools
import sys
import types
from types import FunctionType, MethodType
from typing import Any

import torch

from ...errors import Unsupported
from ...ir.marks import CAPTURED_AS
from ...ir.source import Source
from ..interpreter import Interpreter, Then
from ..symbolic import ABSENT, TENSOR_TYPES, Assigned, ForeignScalar, SuperProxy, Symbol, TensorProxy, is_constant, type_of
from ..symbolic.kinds import CODE_TYPES, NUMPY_METHOD, is_trusted_class
from ..symbolic.raising import raise_in_program

#: What reads a field of a namedtuple.
TUPLE_FIELD: type = type(collections.namedtuple("_Example", "field").field)

#: A function behind `functools.lru_cache`.
CACHED: type = type(functools.lru_cache(lambda: None))

#: Attributes of functions, classes and modules that are plain data.
CODE_DATA = frozenset({"__name__", "__qualname__", "__module__", "__doc__"})


def _static(i: Interpreter, raw: staticmethod[Any, Any]) -> Any:
    """What a staticmethod gives. The guard on it holds a function with a cache, too."""
    function = raw.__func__
    return descriptor(i, function) if type(function) is CACHED else function


def _method_of_class(i: Interpreter, raw: Any, cls: type) -> MethodType:
    """What a classmethod gives. Other descriptors than functions in it are asked by some versions of Python."""
    function = raw.__func__
    if type(function) is CACHED:
        return MethodType(descriptor(i, function), cls)
    if type(function) is not FunctionType and (hasattr(type(function), "__get__") or not callable(function)):
        raise Unsupported("a class method of a descriptor")
    return MethodType(function, cls)


def load_class_attribute(i: Interpreter, cls: type, name: str, then: Then) -> None:
    if name in ("__mro__", "__bases__", "__base__"):
        guard_order(i, cls)
        then(getattr(cls, name))
    elif name == "__class__":
        then(type(cls))
    elif name in CODE_DATA:
        then(name_of_code(i, cls, name, is_changeable(cls) and not is_trusted_class(cls)))
    elif name == "__annotations__" and name not in cls.__dict__ and cls in i.outside.classes_made:
        then(_computed_annotations(i, cls))
    elif name == "__dict__" or (name == "__annotations__" and name not in cls.__dict__):  # those of a class itself
        raise Unsupported(f"the {name} of a class")
    elif (stored := new_in_class(i, cls, name)) is not None:
        then(stored.value)
    else:
        _load_from_class(i, cls, name, then)


def _load_from_class(i: Interpreter, cls: type, name: str, then: Then) -> None:
    """An attribute of a class, its base classes, or its metaclass."""
    owner, raw = lookup_class(cls, name)
    if raw is not ABSENT and is_changeable(type(cls)):
        over, own = lookup_class(type(cls), name)
        if isinstance(own, property):
            _of_metaclass(i, cls, name, over, own, then)
            return
        if own is ABSENT:
            guard_absent(i, type(cls).__mro__, name)
    if raw is not ABSENT:
        guard_class_attribute(i, cls.__mro__, owner, name, raw)
        _give_through_class(i, cls, owner, name, raw, then)
        return
    owner, raw = lookup_class(type(cls), name)
    guard_absent(i, cls.__mro__, name)
    if raw is not ABSENT:
        _of_metaclass(i, cls, name, owner, raw, then)
        return
    guard_absent(i, type(cls).__mro__, name)
    if (fallback := python_method(i, cls, "__getattr__")) is None:
        text = f"type object '{name_in_messages(cls)}' has no attribute '{name}'"
        raise_in_program(AttributeError(text, name=name, obj=cls))
    then(i.call_now(fallback, (cls, name)))


def _give_through_class(i: Interpreter, cls: type, owner: type, name: str, raw: Any, then: Then) -> None:
    """What reading an attribute of `owner`, in which it is `raw`, through a class gives."""
    if isinstance(raw, staticmethod):
        then(_static(i, raw))
    elif isinstance(raw, classmethod):
        then(_method_of_class(i, raw, cls))
    elif isinstance(raw, CODE_TYPES):
        then(raw)
    elif isinstance(getter := special_method(i, raw, "__get__"), FunctionType):
        i.call(getter, (descriptor(i, raw), None, cls), {}, then)
    elif getter is not ABSENT:
        then(_given_by_class(i, raw, i.native(type(raw).__get__, raw, None, cls)))
    else:
        then(class_value(i, owner, name, raw))


def _computed_annotations(i: Interpreter, cls: Any) -> Any:
    """The annotations of a class that captured code made, which from Python 3.14 on are computed when they are asked for."""
    if _ANNOTATIONS not in cls.__dict__:
        annotate = cls.__dict__.get("__annotate_func__")
        found = i.mark_created({}) if annotate is None else i.call_now(annotate, (_VALUES,))
        setattr(cls, _ANNOTATIONS, found)
    return cls.__dict__[_ANNOTATIONS]


#: Where a class keeps them then.
_ANNOTATIONS = "__annotations__" if sys.version_info < (3, 14) else "__annotations_cache__"
#: The format of annotations that are evaluated, `annotationlib.Format.VALUE`.
_VALUES = 1


def _given_by_class(i: Interpreter, raw: Any, found: Any) -> Any:
    """What native code found for an attribute of a class: perhaps the very object that is there, which a guard holds."""
    return found if found is not raw or is_constant(raw) or isinstance(raw, CODE_TYPES) else descriptor(i, raw)


def _of_metaclass(i: Interpreter, cls: type, name: str, owner: type, raw: Any, then: Then) -> None:
    """An attribute that a class has from its metaclass."""
    guard_class_attribute(i, type(cls).__mro__, owner, name, raw)
    if cls.__class__ is enum.EnumMeta and name == "__members__":
        then(i.outside.mark_made(dict(cls.__members__), cls, name))  # type: ignore[attr-defined]
    elif isinstance(raw, FunctionType):
        then(MethodType(raw, cls))
    elif isinstance(raw, property) and isinstance(raw.fget, FunctionType) and not is_trusted_class(owner):
        bind(i, owner, name, raw, cls, type(cls), then)
    elif isinstance(raw, types.GetSetDescriptorType) and is_changeable(cls) and not i.is_created(cls):
        # Data of the class itself, such as its annotations, which Python 3.14 does not keep under their name.
        found = i.native(getattr, cls, name)
        then(i.outside.wrap(found, class_source(i, cls).attr(name), is_trusted_class(cls)))
    elif isinstance(raw, CODE_TYPES) or hasattr(type(raw), "__get__"):
        then(_given_by_class(i, raw, i.native(getattr, cls, name)))
    else:
        then(class_value(i, owner, name, raw))


def name_of_code(i: Interpreter, code: Any, name: str, changeable: bool) -> Any:
    """A name or text that belongs to a function or class, which the user may give it anew."""
    found = getattr(code, name)
    if changeable and not i.is_created(code):
        source = i.outside.source_of(code) or i.outside.roots.constant(code.__qualname__, code)
        return i.outside.wrap(found, source.attr(name))
    return found


def in_trusted_code(i: Interpreter) -> bool:
    """Whether PyTorch or the standard library is looking: what the user's own code reads is guarded wherever it stands,
    since a user who replaces a function of PyTorch's does it to be noticed."""
    return not i.frames or i.frames[-1].is_library


def class_value(i: Interpreter, owner: type, name: str, raw: Any) -> Any:
    """A class attribute that is plain data."""
    if i.is_created(owner):
        return raw
    if (stored := i.outside.assigned(owner, name)) is not None:
        return stored.value
    return i.outside.wrap(raw, class_source(i, owner).attr("__dict__").item(name), is_trusted_class(owner))


def store_class_attribute(i: Interpreter, cls: type, name: str, value: Any) -> None:
    """`cls.name = value` of a class of the user's that has this attribute itself, where both values are plain data."""
    plain_class = type(cls) in _PLAIN_METACLASSES and is_changeable(cls) and not is_trusted_class(cls)
    if not plain_class or i.is_created(cls) or name.startswith("__"):
        raise Unsupported("setting an attribute of a class that may say what that does")
    before = lookup_class(cls, name)[1]
    if not (before is ABSENT or _is_data(before)) or not _is_data(value):
        raise Unsupported("a class attribute that is not plain data")
    if name in cls.__dict__:
        class_value(i, cls, name, before)  # which guards that it is data
    else:
        guard_absent(i, cls.__mro__ if before is ABSENT else (cls,), name)
        i.outside.new_in_classes.add(name)
    i.outside.assign(cls, name, value)


def new_in_class(i: Interpreter, kind: type, name: str) -> Assigned | None:
    """What the captured code gave a class that had no such attribute, where instances of `kind` find it."""
    if name in i.outside.new_in_classes:
        for place, owner in enumerate(kind.__mro__):
            if (stored := i.outside.assigned(owner, name)) is not None:
                guard_absent(i, kind.__mro__[:place], name)
                return stored
            if name in owner.__dict__:
                break
    return None


def _is_data(value: Any) -> bool:
    """Whether a value does nothing when it is read from a class, or let go of."""
    return type(value) in _DATA or (isinstance(value, torch.Tensor) and type(value) in TENSOR_TYPES)


_DATA = (bool, int, float, str, types.NoneType, Symbol, TensorProxy, ForeignScalar, list, dict, tuple)


def class_source(i: Interpreter, cls: type) -> Source:
    return i.outside.source_of(cls) or i.outside.roots.constant(cls.__qualname__, cls)


def guard_class_attribute(i: Interpreter, order: tuple[type, ...], owner: type, name: str, raw: Any) -> None:
    """Methods of the user's own classes may be replaced or overridden later; those of PyTorch and the standard library
    may not. `order` are the classes that were searched, up to `owner` and perhaps beyond."""
    guard_order(i, order[0])
    guard_absent(i, order[: order.index(owner)], name)
    if not is_changeable(owner) or i.is_created(owner):
        return
    trusted = is_trusted_class(owner) and in_trusted_code(i)
    in_python = any(isinstance(lookup_class(type(raw), name)[1], FunctionType) for name in ("__get__", "__set__"))
    is_code = not trusted and isinstance(raw, (*CODE_TYPES, types.MemberDescriptorType))
    if is_code or in_python or type(raw) is CACHED:  # which do something when they are read, or called
        i.outside.guard("is", class_source(i, owner).attr("__dict__").item(name), raw)


def is_changeable(cls: type) -> bool:
    """Whether a class may get other attributes: one that is written in C may not."""
    return bool(cls.__flags__ & (1 << 9)) and not cls.__flags__ & (1 << 8)


def special_method(i: Interpreter, value: Any, name: str) -> Any:
    """What the language finds for an operation on a value: the class attribute of this name, past the instance, guarded to
    be found there again; `ABSENT`, guarded to stay so, where no class has it."""
    kind = type_of(value)
    if type(kind) not in _PLAIN_METACLASSES:
        return special_of_class(i, kind, name)
    index = (kind, name, in_trusted_code(i))
    if index not in i.special_methods:
        i.special_methods[index] = special_of_class(i, kind, name)
    return i.special_methods[index]


#: The classes of classes that are hashed without code of the user's.
_PLAIN_METACLASSES = (type, abc.ABCMeta)


def special_of_class(i: Interpreter, kind: type, name: str) -> Any:
    """The same, for the instances of a class."""
    owner, raw = lookup_class(kind, name)
    if not is_changeable(kind) or kind.__module__.startswith(_OWN_PACKAGE):
        return raw
    if raw is ABSENT:
        guard_absent(i, kind.__mro__, name)
    else:
        guard_class_attribute(i, kind.__mro__, owner, name, raw)
        if raw is None and is_changeable(owner) and not is_trusted_class(owner) and not i.is_created(owner):
            i.outside.guard("is", class_source(i, owner).attr("__dict__").item(name), None)
    return raw


def python_method(i: Interpreter, value: Any, name: str) -> FunctionType | None:
    """The same, where it is a Python function; None where the class leaves it to a native method, or has none. Raises
    `Unsupported` where it is something else, such as None, which says that there is none."""
    found = special_method(i, value, name)
    if isinstance(found, FunctionType):
        return found
    if not replaces(found, name):
        return None
    raise Unsupported(f"{name} of a {type_of(value).__name__}, which is a {type(found).__name__}")


def own_method(i: Interpreter, value: Any, name: str) -> Any:
    """The same, but also a native method that has another name, as in `__setattr__ = dict.__setitem__`."""
    found = special_method(i, value, name)
    return found if isinstance(found, _NATIVE_METHODS[:2]) and replaces(found, name) else python_method(i, value, name)


def replaces(found: Any, name: str) -> bool:
    """Whether a class has something else than the native method of a name in its place."""
    return found is not ABSENT and not (isinstance(found, _NATIVE_METHODS) and found.__name__ == name)


_OWN_PACKAGE = __name__.rpartition(".")[0]
_NATIVE_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.BuiltinFunctionType)


def descriptor(i: Interpreter, raw: Any) -> Any:
    """The object of a class attribute that a guard holds in its place, as the methods of its class see it."""
    return i.outside.constant_object(raw, type(raw).__qualname__)


def guard_order(i: Interpreter, cls: type) -> None:
    """Require that a class of the user's keeps its base classes, and theirs."""
    if is_changeable(cls) and not is_trusted_class(cls) and not i.is_created(cls):
        i.outside.guard("is", class_source(i, cls).attr("__mro__"), cls.__mro__)


def guard_absent(i: Interpreter, classes: tuple[type, ...], name: str) -> None:
    """Require that none of the user's classes among these gets an attribute."""
    if classes:
        guard_order(i, classes[0])
    for cls in classes:
        if is_changeable(cls) and not is_trusted_class(cls) and not i.is_created(cls):
            i.outside.guard("absent", class_source(i, cls).attr("__dict__"), (name,))


def lookup_class(cls: type, name: str) -> tuple[type, Any]:
    """The class in the resolution order that defines `name`, and the raw value; `ABSENT` where none does."""
    for owner in cls.__mro__:
        if name in owner.__dict__:
            return owner, owner.__dict__[name]
    return cls, ABSENT


def name_in_messages(cls: type) -> str:
    """How CPython names a class in messages: with its module where C defines it so. The message about an attribute that a
    class has not got says it, in 50 letters at most."""
    try:
        type.__getattribute__(cls, "")
    except AttributeError as error:
        said = str(error).split("'")[1]
        return said if said.endswith(f".{cls.__name__}") else cls.__name__
    return cls.__name__


def load_super(i: Interpreter, cls: type, instance: Any, name: str, then: Then) -> None:
    kind = instance if isinstance(instance, type) and issubclass(instance, cls) else type_of(instance)
    order = kind.__mro__
    guard_order(i, kind)
    if cls not in order:
        raise Unsupported("super() of an object of another class")
    for owner in order[order.index(cls) + 1 :]:
        if name in owner.__dict__:
            raw = owner.__dict__[name]
            guard_class_attribute(i, order[order.index(cls) + 1 :], owner, name, raw)
            if kind is instance:
                _give_through_class(i, kind, owner, name, raw, then)
            else:
                bind(i, owner, name, raw, instance, kind, then)
            return
    text = f"'super' object has no attribute '{name}'"
    raise_in_program(AttributeError(text, name=name, obj=SuperProxy(cls, instance)))


def bind(i: Interpreter, owner: type, name: str, raw: Any, instance: Any, kind: type, then: Then) -> None:
    """What reading an attribute of a class, `owner`, through an instance gives."""
    if isinstance(raw, (FunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, NUMPY_METHOD)):
        then(MethodType(raw, instance))
    elif hasattr(type(raw), CAPTURED_AS) and not getattr(raw, "becomes_method", False):
        then(class_value(i, owner, name, raw))
    elif type(raw) is CACHED or hasattr(type(raw), CAPTURED_AS):
        then(MethodType(descriptor(i, raw), instance))
    elif isinstance(raw, property):
        if raw.fget is None:
            text = f"property '{name}' of '{kind.__qualname__}' object has no getter"
            raise_in_program(i.mark_created(AttributeError(text, name=name, obj=instance)))
        i.call(raw.fget, (instance,), {}, then)
    elif isinstance(raw, staticmethod):
        then(_static(i, raw))
    elif isinstance(raw, classmethod):
        then(_method_of_class(i, raw, kind))
    elif isinstance(lookup_class(type(raw), "__get__")[1], FunctionType):
        getter = special_method(i, raw, "__get__")
        i.call(getter, (descriptor(i, raw), instance, kind), {}, then)
    elif type(raw) is TUPLE_FIELD and isinstance(contents := i.outside.contents(instance), tuple):
        then(tuple.__getitem__(contents, raw.__reduce__()[1][0]))
    elif hasattr(type(raw), "__get__"):
        raise Unsupported(f"a descriptor of type {type(raw).__name__}")
    elif isinstance(raw, CODE_TYPES):
        then(raw)
    else:
        then(class_value(i, owner, name, raw))
