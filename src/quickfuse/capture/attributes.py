"""Reading and writing attributes of objects and modules, with Python's lookup rules.

Reads of the user's objects come with guards; writes to them are noted in `Outside` and replayed later.
"""

from __future__ import annotations

import enum
import threading
import types
import weakref
from collections.abc import Callable
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch

from ..errors import Unsupported
from ..ir.source import Source
from . import container_methods, generators, tensor_attributes
from .class_attributes import (
    CODE_DATA,
    TUPLE_FIELD,
    bind,
    class_source,
    descriptor,
    guard_absent,
    guard_class_attribute,
    in_trusted_code,
    load_class_attribute,
    load_super,
    lookup_class,
    name_of_code,
    python_method,
    special_method,
)
from .frame import GeneratorValue
from .interpreter import Interpreter
from .kinds import CODE_TYPES, CONSTANT_TYPES, is_trusted_class, is_trusted_module
from .raising import Raised, raise_in_program
from .unwinding import set_traceback, traceback_of
from .values import (
    ABSENT,
    CONTAINERS,
    DELETED,
    DICTS,
    FromOutside,
    NativeHandler,
    ShadowDict,
    SuperProxy,
    Symbol,
    TensorProxy,
    is_constant,
    real_of,
    type_of,
)

Then = Callable[[Any], None]

#: Builtin classes of what captured code makes.
_NATIVE_KINDS = (list, tuple, dict, set, frozenset, str, bytes, int, float, bool, complex)

#: Attributes that every exception has.
_EXCEPTION_DATA = frozenset("args __cause__ __context__ __suppress_context__ __traceback__ value __dict__ name obj".split())


# reading attributes ---------------------------------------------------------------------------------------------


def load(i: Interpreter, base: Any, name: str, then: Then) -> None:
    """`base.name`, given to `then`."""
    kind = type(base)
    if kind is TensorProxy:
        tensor_attributes.load(i, base, name, then)
    elif isinstance(base, FromOutside):
        if name == "__class__":
            then(type_of(base))
        elif type(base.real) in DICTS or type(base.real) in CONTAINERS:
            then(container_methods.load_method(i, base, name))
        else:
            _object_attribute(i, base, name, then)
    elif kind is NativeHandler:
        raise Unsupported(f"the attribute {name} of a function that capture stands in for")
    elif kind is GeneratorValue:
        then(generators.method(base, name))
    elif isinstance(base, ModuleType):
        _module_attribute(i, base, name, then)
    elif isinstance(base, type):
        load_class_attribute(i, base, name, then)
    elif kind is SuperProxy:
        load_super(i, base.cls, base.instance, name, then)
    elif kind is Symbol:
        if name not in ("is_integer", "bit_length", "real", "__class__"):
            raise Unsupported(f"the attribute {name} of a number")
        then(getattr(i.outside.concrete(base), name))
    elif kind is MethodType and name in ("__func__", "__self__", "__class__"):
        then(getattr(base, name))
    elif kind is MethodType:
        load(i, base.__func__, name, then)
    elif isinstance(base, CODE_TYPES):
        then(_code_attribute(i, base, name))
    elif isinstance(base, enum.Enum):
        _member_attribute(i, base, name, then)
    elif name == "__class__" and kind in _NATIVE_KINDS:
        then(kind)
    elif is_constant(base) or kind in (list, dict, tuple, set):
        then(i.native(getattr, base, name))
    else:
        _object_attribute(i, base, name, then)


def _module_attribute(i: Interpreter, module: ModuleType, name: str, then: Then) -> None:
    source = i.outside.source_of(module) or i.outside.roots.constant(module.__name__, module)
    trusted = is_trusted_module(module.__name__) and in_trusted_code(i)
    if name in module.__dict__:
        then(i.outside.wrap(module.__dict__[name], source.attr(name), trusted))
    elif module is torch._VF:  # PyTorch's own functions by another name
        then(getattr(module, name))
    elif (lazy := torch_lazy_module(module, name)) is not None:
        then(lazy)
    elif name in ("__class__", "__dict__"):
        raise Unsupported(f"the computed attribute {name} of module {module.__name__}")
    elif type(module) is not ModuleType:
        _attribute_of_module_class(i, module, name, source, then)
    else:
        i.outside.guard("absent", source.attr("__dict__"), (name,))
        _missing_from_module(i, module, name, source, then)


def _missing_from_module(i: Interpreter, module: ModuleType, name: str, source: Source, then: Then) -> None:
    if "__getattr__" not in module.__dict__:
        i.outside.guard("absent", source.attr("__dict__"), ("__getattr__",))
        raise_in_program(AttributeError(f"module '{module.__name__}' has no attribute '{name}'", name=name, obj=module))
    if is_trusted_module(module.__name__):
        raise Unsupported(f"the computed attribute {name} of module {module.__name__}")
    i.call(i.outside.wrap(module.__dict__["__getattr__"], source.attr("__getattr__")), (name,), {}, then)


def _attribute_of_module_class(i: Interpreter, module: ModuleType, name: str, source: Source, then: Then) -> None:
    """What a module is not given, but its class computes, as modules do that import their parts when these are wanted."""
    getters = [python_method(i, module, getter) for getter in ("__getattribute__", "__getattr__")]
    if getters[0] is not None or getters[1] is None or lookup_class(type(module), name)[1] is not ABSENT:
        raise Unsupported(f"the computed attribute {name} of module {module.__name__}")
    i.outside.guard("absent", source.attr("__dict__"), (name,))
    guard_absent(i, type(module).__mro__, name)
    i.call(getters[1], (module, name), {}, then)


class PeerModule:
    """Stands for a module of PyTorch's own compiler, which capture knows by name only and never imports."""

    def __init__(self, name: str) -> None:
        self.name = name


def torch_lazy_module(module: ModuleType, name: str) -> PeerModule | None:
    """`torch._dynamo` before anything imported it."""
    return PeerModule("torch." + name) if module is torch and name in ("_dynamo", "_inductor") else None


def _code_attribute(i: Interpreter, base: Any, name: str) -> Any:
    if name in CODE_DATA:
        return name_of_code(i, base, name, isinstance(base, FunctionType) and not is_trusted_module(base.__module__))
    if name == "__class__":
        return type(base)
    if name == "__func__" and isinstance(base, (classmethod, staticmethod)):
        return base.__func__
    if isinstance(base, FunctionType):
        if name == "__get__":
            return NativeHandler(lambda i, instance, owner=None: base if instance is None else MethodType(base, instance))
        if name in base.__dict__:
            source = i.outside.source_of(base)
            if source is None:
                if i.is_created(base):
                    return base.__dict__[name]
                source = i.outside.roots.constant(base.__qualname__, base)
            return i.outside.wrap(base.__dict__[name], source.attr(name))
        return _function_attribute(i, base, name)
    return i.native(getattr, base, name)


#: What a function is made of, read by its path. What it closes over is not among them: cells have no path of their own.
_FUNCTION_PARTS = frozenset({"__code__", "__defaults__", "__kwdefaults__", "__annotations__", "__dict__"})


def _function_attribute(i: Interpreter, function: FunctionType, name: str) -> Any:
    made = i.is_created(function)
    source = i.outside.source_of(function) or i.outside.roots.constant(function.__qualname__, function)
    if name in _FUNCTION_PARTS and not (made and name == "__dict__"):
        found = getattr(function, name)
        return found if made else i.outside.wrap(found, source.attr(name))
    if hasattr(function, name):
        raise Unsupported(f"the attribute {name} of a function")
    if not made:
        i.outside.guard("absent", source.attr("__dict__"), (name,))
    raise_in_program(AttributeError(f"'function' object has no attribute '{name}'", name=name, obj=function))


def _member_attribute(i: Interpreter, member: enum.Enum, name: str, then: Then) -> None:
    """An attribute of a member of an enumeration."""
    kind = type(member)
    i.outside.note_place(member, i.outside.roots.constant(f"{kind.__qualname__}.{member._name_}", member))
    own = {"name": "_name_", "value": "_value_"}.get(name, name)
    owner, raw = lookup_class(kind, name)
    native = own in ("_name_", "_value_") and (raw is ABSENT or owner.__module__ == "enum")
    if native and is_constant(found := member.__dict__.get(own)):
        guard_absent(i, kind.__mro__, name)
        if not is_trusted_class(kind):
            i.outside.guard("equal", i.outside.source_of(member).attr(own), found)  # type: ignore[union-attr]
        then(found)
        return
    _object_attribute(i, member, name, then)


#: Native classes whose instances give attributes of other objects.
_OTHER_GETTERS = (weakref.ProxyType, weakref.CallableProxyType, types.GenericAlias)


def _object_attribute(i: Interpreter, base: Any, name: str, then: Then) -> None:
    kind = type_of(base)
    if isinstance(base, PeerModule):
        then(PeerModule(f"{base.name}.{name}"))
        return
    if name == "__class__":
        then(kind)
        return
    getter = lookup_class(kind, "__getattribute__")[1]
    if isinstance(getter, FunctionType):
        _custom_attribute(i, base, name, getter, then)
        return
    if issubclass(kind, _OTHER_GETTERS):
        raise Unsupported(f"the attribute {name} of a {kind.__name__}")
    if issubclass(kind, threading.local) and special_method(i, base, "__init__") is not object.__init__:
        raise Unsupported(f"the attribute {name} of a {kind.__name__}, which each thread makes for itself")
    load_plain(i, base, name, then)


def _custom_attribute(i: Interpreter, base: Any, name: str, getter: FunctionType, then: Then) -> None:
    """A class that defines `__getattribute__`, and perhaps `__getattr__` for where it raises."""
    special_method(i, base, "__getattribute__")
    fallback = special_method(i, base, "__getattr__")
    if not isinstance(fallback, FunctionType):
        i.call(getter, (base, name), {}, then)
        return
    try:
        value = i.call_now(getter, (base, name))
    except Raised as raised:
        if not isinstance(raised.exception, AttributeError):
            raise
        i.call(fallback, (base, name), {}, then)
        return
    then(value)


def load_plain(i: Interpreter, base: Any, name: str, then: Then) -> None:
    """`object.__getattribute__(base, name)`, and `__getattr__` where that finds nothing."""
    kind = type_of(base)
    if isinstance(base, BaseException) and name in _EXCEPTION_DATA:
        then(_of_exception(i, base, name))
        return
    stored = _stored(base, name)
    owner, raw = lookup_class(kind, name)
    if raw is not ABSENT and _is_data_descriptor(raw):
        _with_fallback(i, base, name, raw, then, _data_descriptor, i, base, name, owner, raw)
        return
    if stored is not ABSENT and stored is not DELETED:
        then(stored)
        return
    instance = _instance_dict(base)
    if stored is not DELETED and instance is not None and name in _own_names(i, instance):
        then(_instance_value(i, base, instance, name))
        return
    source = i.outside.source_of(base)
    if source is not None and instance is not None and stored is not DELETED:
        i.outside.guard("absent", source.attr("__dict__"), (name,))
    if raw is not ABSENT:
        guard_class_attribute(i, kind.__mro__, owner, name, raw)
        if isinstance(raw, CODE_TYPES) or hasattr(type(raw), "__get__"):
            _with_fallback(i, base, name, raw, then, bind, i, raw, base, kind)
        else:
            then(i.outside.wrap(raw, class_source(i, owner).attr(name), is_trusted_class(owner)))
        return
    if name == "__dict__" and instance is not None:
        then(_namespace(i, base))
        return
    guard_absent(i, kind.__mro__, name)
    _missing(i, base, name, then)


def _stored(base: Any, name: str) -> Any:
    """The attribute as the captured code has set it, `ABSENT` where it left it alone."""
    return base.attributes.get(name, ABSENT) if isinstance(base, FromOutside) else ABSENT


def _of_exception(i: Interpreter, exception: BaseException, name: str) -> Any:
    """What is in an exception that captured code made."""
    if name == "__traceback__":
        return traceback_of(i, exception)
    found = i.native(getattr, exception, name)
    stand_in = i.outside.stand_in(found)  # of another exception, from outside
    return found if stand_in is None else stand_in


def _missing(i: Interpreter, base: Any, name: str, then: Then) -> None:
    """An attribute that was not found: `__getattr__` comes into play, or AttributeError."""
    fallback = special_method(i, base, "__getattr__")
    if isinstance(fallback, FunctionType):
        i.call(fallback, (base, name), {}, then)
        return
    if fallback is not ABSENT:
        raise Unsupported(f"the attribute {name} of a {type_of(base).__name__}")
    shown = real_of(base)
    raise_in_program(AttributeError(f"'{type(shown).__name__}' object has no attribute '{name}'", name=name, obj=shown))


def _with_fallback(
    i: Interpreter, base: Any, name: str, raw: Any, then: Then, read: Callable[..., None], *operands: Any
) -> None:
    """`read(*operands, then)`, which may run code of the user's: what it does not find, `__getattr__` may give."""
    runs_code = isinstance(raw, property) or isinstance(lookup_class(type(raw), "__get__")[1], FunctionType)
    if not (runs_code or isinstance(raw, types.MemberDescriptorType)) or not isinstance(
        lookup_class(type_of(base), "__getattr__")[1], FunctionType
    ):
        read(*operands, then)
        return
    try:
        value = i.now(read, *operands)
    except Raised as raised:
        if not isinstance(raised.exception, AttributeError):
            raise
        _missing(i, base, name, then)
        return
    then(value)


def _is_data_descriptor(raw: Any) -> bool:
    return hasattr(type(raw), "__set__") or hasattr(type(raw), "__delete__")


def _data_descriptor(i: Interpreter, base: Any, name: str, owner: type, raw: Any, then: Then) -> None:
    kind = type_of(base)
    if isinstance(raw, property):
        guard_class_attribute(i, kind.__mro__, owner, name, raw)
        bind(i, raw, base, kind, then)
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
            value = i.read(raw.__get__, _itself(i, base))
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
    if isinstance(lookup_class(type(raw), "__get__")[1], FunctionType) or type(raw) is TUPLE_FIELD:
        guard_class_attribute(i, kind.__mro__, owner, name, raw)
        bind(i, raw, base, kind, then)
        return
    raise Unsupported(f"a descriptor of type {type(raw).__name__}")


def _itself(i: Interpreter, base: Any) -> Any:
    """The object of the user's that a value is, or stands for."""
    container = i.outside.container_of(base)
    return real_of(base) if container is None else container.real


def _namespace(i: Interpreter, base: Any) -> Any:
    """`base.__dict__`, with the attributes that the captured code has set."""
    real = real_of(base)
    if i.is_created(base):
        return i.outside.mark_made(object.__getattribute__(real, "__dict__"), base, "__dict__")
    source = i.outside.source_of(base)
    if source is None:
        raise Unsupported(f"the __dict__ of a {type_of(base).__name__} without a path to it")
    namespace = object.__getattribute__(real, "__dict__")  # past what its class says of reading attributes
    known = i.outside.stand_in(namespace)
    shadow = i.outside.wrap(namespace, source.attr("__dict__"))
    if known is None and type(shadow) is ShadowDict and isinstance(base, FromOutside):
        for name, value in base.attributes.items():
            if not _is_data_descriptor(lookup_class(type_of(base), name)[1]):
                shadow.mirror(name, value)
    return shadow


def _instance_dict(base: Any) -> dict[str, Any] | None:
    getter = threading.local if isinstance(real_of(base), threading.local) else object  # one dictionary for each thread
    try:
        found = getter.__getattribute__(real_of(base), "__dict__")
    except AttributeError:
        return None
    return found if type(found) is dict else None


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
    return i.outside.wrap(instance[name], source.attr(name))


# writing attributes ---------------------------------------------------------------------------------------------


def store(i: Interpreter, base: Any, name: str, value: Any) -> None:
    """`base.name = value`."""
    kind = type(base)
    if kind is TensorProxy:
        tensor_attributes.store(i, base, name, value)
        return
    if kind is FunctionType and i.is_created(base):
        i.read(setattr, base, name, value)
        return
    if isinstance(base, (type, ModuleType, FunctionType)) or kind is Symbol:
        raise Unsupported(f"setting an attribute of a {kind.__name__}")
    setter = special_method(i, base, "__setattr__")
    if isinstance(setter, FunctionType):
        i.call_now(setter, (base, name, value))
        return
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
            raise_in_program(AttributeError(f"property '{name}' of '{kind.__name__}' object has no setter"))
        i.call_now(raw.fset, (base, value))
        return
    if name == "__traceback__" and isinstance(base, BaseException) and i.is_created(base):
        set_traceback(i, base, value)
        return
    if raw is not ABSENT and _is_data_descriptor(raw) and not isinstance(raw, types.MemberDescriptorType):
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
    if _instance_dict(base) is None and not (raw is not ABSENT and _is_data_descriptor(raw)):
        raise Unsupported(f"setting the attribute {name} of a {kind.__name__}, which cannot have it")
    shadow = None if raw is not ABSENT and _is_data_descriptor(raw) else i.outside.stand_in(_instance_dict(base))
    if type(shadow) is ShadowDict:
        if name in shadow.changes:
            shadow.entries[name] = value
            return
        shadow.mirror(name, value)
    i.outside.set_attribute(base, name, value)


def delete(i: Interpreter, base: Any, name: str) -> None:
    """`del base.name`."""
    if type(base) is TensorProxy:
        raise Unsupported("deleting an attribute of a tensor")
    if isinstance(own := special_method(i, base, "__delattr__"), FunctionType):
        i.call_now(own, (base, name))
        return
    delete_plain(i, base, name)


def delete_plain(i: Interpreter, base: Any, name: str) -> None:
    """`object.__delattr__(base, name)`."""
    raw = lookup_class(type_of(base), name)[1]
    if i.is_created(base):
        i.native(object.__delattr__, base, name)
        return
    if not isinstance(base, FromOutside) or (raw is not ABSENT and _is_data_descriptor(raw)):
        raise Unsupported(f"deleting an attribute of a {type_of(base).__name__}")
    _own_attribute_or_raise(i, base, name)
    shadow = i.outside.stand_in(_instance_dict(base))
    if type(shadow) is ShadowDict:
        shadow.begin_change(name)
        shadow.mirror(name, DELETED)
    i.outside.set_attribute(base, name, DELETED)


def _own_attribute_or_raise(i: Interpreter, base: Any, name: str) -> None:
    """What `del base.name` needs: that the object itself has the attribute."""
    stored = _stored(base, name)
    instance = _instance_dict(base)
    if stored is ABSENT and instance is not None and name in _own_names(i, instance):
        _instance_value(i, base, instance, name)
    elif stored is ABSENT or stored is DELETED:
        if stored is ABSENT and instance is not None:
            i.outside.guard("absent", _dict_source(i, base), (name,))
        raise_in_program(AttributeError(f"'{type_of(base).__name__}' object has no attribute '{name}'"))
