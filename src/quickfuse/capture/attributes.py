"""Reading and writing names, cells and attributes, with Python's lookup rules.

Reads of the user's objects come with guards; writes to them are noted in `Outside` and replayed later.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from types import CellType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import torch

from ..errors import Unsupported
from ..ir.marks import CAPTURED_AS
from ..ir.source import Source
from . import tensor_attributes
from .containers import DICT_METHODS
from .frame import Frame, GeneratorValue
from .outside import CODE_TYPES, is_trusted_module
from .values import (
    ABSENT,
    DELETED,
    ContainerMethod,
    NativeHandler,
    ShadowContainer,
    ShadowDict,
    SuperProxy,
    Symbol,
    TensorProxy,
    is_constant,
)

if TYPE_CHECKING:
    from .interpreter import Interpreter

Then = Callable[[Any], None]

_BUILTINS: dict[str, Any] = __builtins__ if isinstance(__builtins__, dict) else vars(__builtins__)

#: Attributes that every exception has.
_EXCEPTION_DATA = frozenset("args __cause__ __context__ __suppress_context__ __traceback__ value __dict__ name obj".split())

#: What reads a field of a namedtuple.
_TUPLE_FIELD: type = type(collections.namedtuple("_Example", "field").field)

#: Attributes of functions, classes and modules that are plain data.
_CODE_DATA = frozenset({"__name__", "__qualname__", "__module__", "__doc__"})


# names ----------------------------------------------------------------------------------------------------------


def load_global(i: Interpreter, globals_: dict[str, Any], name: str) -> Any:
    stored = i.outside.global_stores.get((id(globals_), name))
    if stored is not None and stored[1] is not DELETED:
        return stored[1]
    trusted = is_trusted_module(globals_.get("__name__"))
    if name in globals_ and stored is None:
        return i.outside.wrap(globals_[name], i.outside.roots.global_(name, globals_), trusted)
    if name in _BUILTINS:
        if not trusted:
            i.outside.guard("absent", i.outside.roots.constant("globals()", globals_), (name,))
        return _BUILTINS[name]
    raise_program(i, NameError(f"name '{name}' is not defined"))


def store_global(i: Interpreter, globals_: dict[str, Any], name: str, value: Any) -> None:
    i.outside.global_stores[id(globals_), name] = (globals_, value)


def delete_global(i: Interpreter, globals_: dict[str, Any], name: str) -> None:
    load_global(i, globals_, name)
    if name not in globals_ and (id(globals_), name) not in i.outside.global_stores:
        raise_program(i, NameError(f"name '{name}' is not defined"))
    i.outside.global_stores[id(globals_), name] = (globals_, DELETED)


def load_cell(i: Interpreter, f: Frame, index: int) -> Any:
    cell: CellType = f.locals[index]
    stored = i.outside.cell_stores.get(id(cell))
    if stored is not None:
        return stored[1]
    try:
        value = cell.cell_contents
    except ValueError:
        name = f.names[index]
        if id(cell) not in i.created:
            raise Unsupported("a variable of an enclosing function without a value") from None
        if name in f.code.co_cellvars:
            raise_program(
                i, UnboundLocalError(f"cannot access local variable '{name}' where it is not associated with a value")
            )
        raise_program(
            i, NameError(f"cannot access free variable '{name}' where it is not associated with a value in enclosing scope")
        )
    if id(cell) in i.created:
        return value
    source, trusted = _cell_source(i, f, index)
    return i.outside.wrap(value, source, trusted)


def _cell_source(i: Interpreter, f: Frame, index: int) -> tuple[Source, bool]:
    name = f.names[index]
    known = i.outside.source_of(f.locals[index])
    if known is not None:
        return known.attr("cell_contents"), False
    if f is i.frames[0] and f.function_source is None:
        return i.outside.roots.closure(name), False
    source = f.function_source
    if source is None:
        whole = i.frames[0]
        if whole.function_source is None:  # an inner function of the compiled one shares the cells that this closes over
            for own, cell in zip(whole.names, whole.locals, strict=True):
                if cell is f.locals[index] and own in whole.code.co_freevars:
                    return i.outside.roots.closure(own), False
        raise Unsupported(f"the free variable {name} of a function without a path to it")
    position = f.code.co_freevars.index(name)
    trusted = is_trusted_module(f.globals.get("__name__"))
    return source.attr("__closure__").item(position).attr("cell_contents"), trusted


def store_cell(i: Interpreter, cell: CellType, value: Any) -> None:
    if id(cell) in i.created:
        cell.cell_contents = value
    else:
        i.outside.cell_stores[id(cell)] = (cell, value)


def builtin_type(value: Any) -> type:
    """The class of the object that a stand-in stands for."""
    from .builtin_calls import type_of

    return type_of(value)


def raise_program(i: Interpreter, exception: BaseException) -> Any:
    from .interpreter import Raised

    raise Raised(exception)


# reading attributes ---------------------------------------------------------------------------------------------


def load(i: Interpreter, base: Any, name: str, then: Then) -> None:
    """`base.name`, given to `then`."""
    kind = type(base)
    if kind is TensorProxy:
        tensor_attributes.load(i, base, name, then)
    elif kind is ShadowDict:
        if name not in DICT_METHODS:
            raise Unsupported(f"the attribute {name} of a dictionary")
        then(ContainerMethod(base, name))
    elif kind is ShadowContainer:
        if not callable(getattr(type(base.real), name, None)):
            i.native(getattr, base.real, name)
            raise Unsupported(f"the attribute {name} of a {type(base.real).__name__}")
        then(ContainerMethod(base, name))
    elif kind is NativeHandler:
        raise Unsupported(f"the attribute {name} of a function that capture stands in for")
    elif kind is GeneratorValue:
        then(generator_method(base, name))
    elif kind is ModuleType or isinstance(base, ModuleType):
        then(_module_attribute(i, base, name))
    elif isinstance(base, type):
        _class_attribute(i, base, name, then)
    elif kind is SuperProxy:
        load_super(i, base.cls, base.instance, name, then)
    elif kind is Symbol:
        if name not in ("is_integer", "bit_length", "real", "__class__"):
            raise Unsupported(f"the attribute {name} of a number")
        then(getattr(i.outside.concrete(base), name))
    elif kind is MethodType and name in ("__func__", "__self__"):
        then(getattr(base, name))
    elif kind is MethodType:
        load(i, base.__func__, name, then)
    elif isinstance(base, CODE_TYPES):
        then(_code_attribute(i, base, name))
    elif is_constant(base) or (kind in (list, dict, tuple, set) and not i.outside.is_outside(base)):
        then(i.native(getattr, base, name))
    elif kind in (list, tuple, set):
        then(MethodType(getattr(kind, name), base) if callable(getattr(kind, name, None)) else i.native(getattr, base, name))
    else:
        _object_attribute(i, base, name, then)


def generator_method(generator: GeneratorValue, name: str) -> NativeHandler:
    """`generator.send`, `throw`, `close` and `__next__`."""

    def element(i: Interpreter, found: bool, value: Any) -> Any:
        if not found:
            raise_program(i, i.mark_created(StopIteration() if value is None else StopIteration(value)))
        return value

    def throw(i: Interpreter, kind: Any, value: Any = None, traceback: Any = None) -> Any:
        exception = kind if isinstance(kind, BaseException) else value
        if not isinstance(exception, BaseException):
            exception = i.call_now(kind, () if value is None else (value,))
        return element(i, *i.throw_into(generator, exception))

    def close(i: Interpreter) -> None:
        from .interpreter import Raised

        if generator.done or generator.frame.position == 0:
            generator.done = True
            return
        try:
            found, _ = i.throw_into(generator, i.mark_created(GeneratorExit()))
        except Raised as raised:
            if not isinstance(raised.exception, (GeneratorExit, StopIteration)):
                raise
            return
        if found:
            raise_program(i, RuntimeError("generator ignored GeneratorExit"))

    methods: dict[str, Callable[..., Any]] = {
        "__next__": lambda i: element(i, *i.resume_generator(generator)),
        "send": lambda i, value: element(i, *i.resume_generator(generator, value)),
        "__iter__": lambda i: generator,
        "throw": throw,
        "close": close,
    }
    if name not in methods:
        raise Unsupported(f"the attribute {name} of a generator")
    return NativeHandler(methods[name])


def _module_attribute(i: Interpreter, module: ModuleType, name: str) -> Any:
    stored = i.outside.attributes.get((id(module), name), ABSENT)
    if stored is not ABSENT:
        return stored
    trusted = is_trusted_module(module.__name__) and _in_trusted_code(i)
    if name not in module.__dict__:
        if module is torch._VF:  # PyTorch's own functions by another name
            return getattr(module, name)
        lazy = torch_lazy_module(module, name)
        if lazy is not None:
            return lazy
        if name not in ("__class__", "__dict__") and not hasattr(module, name):
            raise_program(i, AttributeError(f"module '{module.__name__}' has no attribute '{name}'"))
        raise Unsupported(f"the computed attribute {name} of module {module.__name__}")
    source = i.outside.source_of(module) or i.outside.roots.constant(module.__name__, module)
    return i.outside.wrap(module.__dict__[name], source.attr(name), trusted)


class PeerModule:
    """Stands for a module of PyTorch's own compiler, which capture knows by name only and never imports."""

    def __init__(self, name: str) -> None:
        self.name = name


def torch_lazy_module(module: ModuleType, name: str) -> PeerModule | None:
    """`torch._dynamo` before anything imported it."""
    return PeerModule("torch." + name) if module is torch and name in ("_dynamo", "_inductor") else None


def _code_attribute(i: Interpreter, base: Any, name: str) -> Any:
    if name in _CODE_DATA or name == "__class__":
        return getattr(base, name)
    if name == "__func__" and isinstance(base, (classmethod, staticmethod)):
        return base.__func__
    if isinstance(base, FunctionType):
        if name == "__get__":
            return NativeHandler(lambda i, instance, owner=None: base if instance is None else MethodType(base, instance))
        if name in base.__dict__:
            source = i.outside.source_of(base)
            if source is None:
                if id(base) in i.created:
                    return base.__dict__[name]
                source = i.outside.roots.constant(base.__qualname__, base)
            return i.outside.wrap(base.__dict__[name], source.attr(name))
        if name in ("__code__", "__globals__", "__defaults__", "__closure__", "__kwdefaults__", "__dict__"):
            raise Unsupported(f"the attribute {name} of a function")
        raise_program(i, AttributeError(f"'function' object has no attribute '{name}'"))
    return i.native(getattr, base, name)


def _class_attribute(i: Interpreter, cls: type, name: str, then: Then) -> None:
    if name in _CODE_DATA or name in ("__class__", "__mro__", "__bases__"):
        then(getattr(cls, name))
        return
    if name == "__dict__":
        raise Unsupported("the __dict__ of a class")
    owner, raw = lookup_class(cls, name)
    if raw is ABSENT:
        owner, raw = lookup_class(type(cls), name)
        _guard_absent(i, cls.__mro__, name)
        if raw is ABSENT:
            _guard_absent(i, type(cls).__mro__, name)
            raise_program(i, AttributeError(f"type object '{cls.__name__}' has no attribute '{name}'"))
        if isinstance(raw, FunctionType):
            then(MethodType(raw, cls))
            return
        then(i.native(getattr, cls, name))
        return
    guard_class_attribute(i, cls.__mro__, owner, name, raw)
    if isinstance(raw, staticmethod):
        then(raw.__func__)
    elif isinstance(raw, classmethod):
        then(MethodType(raw.__func__, cls))
    elif isinstance(raw, CODE_TYPES):
        then(raw)
    elif hasattr(type(raw), "__get__"):
        then(i.native(getattr, cls, name))
    else:
        then(i.outside.wrap(raw, _class_source(i, owner).attr(name), is_trusted_module(owner.__module__)))


def _in_trusted_code(i: Interpreter) -> bool:
    """Whether PyTorch or the standard library is looking: what the user's own code reads is guarded wherever it stands,
    since a user who replaces a function of PyTorch's does it to be noticed."""
    return not i.frames or is_trusted_module(i.frames[-1].globals.get("__name__"))


def _class_source(i: Interpreter, cls: type) -> Source:
    return i.outside.source_of(cls) or i.outside.roots.constant(cls.__qualname__, cls)


def guard_class_attribute(i: Interpreter, order: tuple[type, ...], owner: type, name: str, raw: Any) -> None:
    """Methods of the user's own classes may be replaced or overridden later; those of PyTorch and the standard library
    may not. `order` are the classes that were searched, up to `owner` and perhaps beyond."""
    _guard_absent(i, order[: order.index(owner)], name)
    trusted = is_trusted_module(owner.__module__) and _in_trusted_code(i)
    if not trusted and isinstance(raw, CODE_TYPES):
        i.outside.guard("is", _class_source(i, owner).attr("__dict__").item(name), raw)
    elif _is_python_descriptor(raw) and id(raw) not in i.created and not i.outside.is_outside(raw):
        source = _class_source(i, owner).attr("__dict__").item(name)
        i.outside.guard("is", source, raw)
        i.outside._remember(raw, source)


def _is_python_descriptor(raw: Any) -> bool:
    """Whether a class attribute is an object whose class says in Python how it is read or set."""
    return any(isinstance(lookup_class(type(raw), name)[1], FunctionType) for name in ("__get__", "__set__"))


def _guard_absent(i: Interpreter, classes: tuple[type, ...], name: str) -> None:
    """Require that none of the user's classes among these gets an attribute."""
    for cls in classes:
        if not is_trusted_module(cls.__module__):
            i.outside.guard("absent", _class_source(i, cls).attr("__dict__"), (name,))


def lookup_class(cls: type, name: str) -> tuple[type, Any]:
    """The class in the resolution order that defines `name`, and the raw value; `ABSENT` where none does."""
    for owner in cls.__mro__:
        if name in owner.__dict__:
            return owner, owner.__dict__[name]
    return cls, ABSENT


def load_super(i: Interpreter, cls: type, instance: Any, name: str, then: Then) -> None:
    kind = instance if isinstance(instance, type) and issubclass(instance, cls) else builtin_type(instance)
    order = kind.__mro__
    if cls not in order:
        raise_program(i, TypeError("super(type, obj): obj must be an instance or subtype of type"))
    for owner in order[order.index(cls) + 1 :]:
        if name in owner.__dict__:
            raw = owner.__dict__[name]
            guard_class_attribute(i, order[order.index(cls) + 1 :], owner, name, raw)
            _bind(i, raw, instance, kind, then)
            return
    raise_program(i, AttributeError(f"'super' object has no attribute '{name}'"))


def _bind(i: Interpreter, raw: Any, instance: Any, kind: type, then: Then) -> None:
    """What reading a class attribute through an instance gives."""
    from .calls import call

    if isinstance(raw, FunctionType) or hasattr(type(raw), CAPTURED_AS):
        then(MethodType(raw, instance))
    elif isinstance(raw, property):
        if raw.fget is None:
            raise_program(i, AttributeError("unreadable attribute"))
        call(i, raw.fget, (instance,), {}, then)
    elif isinstance(raw, staticmethod):
        then(raw.__func__)
    elif isinstance(raw, classmethod):
        then(MethodType(raw.__func__, kind))
    elif isinstance(raw, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        then(MethodType(raw, instance))
    elif isinstance(getter := lookup_class(type(raw), "__get__")[1], FunctionType):
        call(i, getter, (raw, instance, kind), {}, then)
    elif type(raw) is _TUPLE_FIELD and isinstance(instance, tuple):
        then(tuple.__getitem__(instance, raw.__reduce__()[1][0]))
    elif hasattr(type(raw), "__get__"):
        raise Unsupported(f"a descriptor of type {type(raw).__name__}")
    else:
        then(raw)


def _object_attribute(i: Interpreter, base: Any, name: str, then: Then) -> None:
    kind = type(base)
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
    load_plain(i, base, name, then)


def _custom_attribute(i: Interpreter, base: Any, name: str, getter: FunctionType, then: Then) -> None:
    """A class that defines `__getattribute__`, and perhaps `__getattr__` for where it raises."""
    from .calls import call
    from .interpreter import Raised

    fallback = lookup_class(type(base), "__getattr__")[1]
    if not isinstance(fallback, FunctionType):
        call(i, getter, (base, name), {}, then)
        return
    try:
        value = i.call_now(getter, (base, name))
    except Raised as raised:
        if not isinstance(raised.exception, AttributeError):
            raise
        call(i, fallback, (base, name), {}, then)
        return
    then(value)


def load_plain(i: Interpreter, base: Any, name: str, then: Then) -> None:
    """`object.__getattribute__(base, name)`, and `__getattr__` where that finds nothing."""
    kind = type(base)
    if isinstance(base, BaseException) and not i.outside.is_outside(base) and name in _EXCEPTION_DATA:
        then(i.traceback_of(base) if name == "__traceback__" else i.native(getattr, base, name))
        return
    stored = i.outside.attributes.get((id(base), name), ABSENT)
    owner, raw = lookup_class(kind, name)
    if raw is not ABSENT and _is_data_descriptor(raw):
        _data_descriptor(i, base, name, owner, raw, then)
        return
    if stored is not ABSENT and stored is not DELETED:
        then(stored)
        return
    instance = _instance_dict(base)
    if stored is not DELETED and instance is not None and name in _own_names(i, instance):
        then(_instance_value(i, base, instance, name))
        return
    outside = i.outside.is_outside(base)
    if raw is not ABSENT:
        if outside and instance is not None and stored is not DELETED:
            i.outside.guard("absent", _dict_source(i, base), (name,))
        guard_class_attribute(i, kind.__mro__, owner, name, raw)
        if isinstance(raw, CODE_TYPES) or hasattr(type(raw), "__get__"):
            _bind(i, raw, base, kind, then)
        else:
            then(i.outside.wrap(raw, _class_source(i, owner).attr(name), is_trusted_module(owner.__module__)))
        return
    if name == "__dict__" and instance is not None:
        if not outside:
            raise Unsupported("the __dict__ of an object made by the captured code")
        then(i.outside.wrap(instance, i.outside.source_of(base).attr("__dict__")))  # type: ignore[union-attr]
        return
    _, fallback = lookup_class(kind, "__getattr__")
    _guard_absent(i, kind.__mro__, name)
    if outside and instance is not None and stored is not DELETED:
        i.outside.guard("absent", _dict_source(i, base), (name,))
    if isinstance(fallback, FunctionType):
        from .calls import call

        call(i, fallback, (base, name), {}, then)
        return
    raise_program(i, AttributeError(f"'{kind.__name__}' object has no attribute '{name}'", name=name, obj=base))


def _is_data_descriptor(raw: Any) -> bool:
    return hasattr(type(raw), "__set__") or hasattr(type(raw), "__delete__")


def _data_descriptor(i: Interpreter, base: Any, name: str, owner: type, raw: Any, then: Then) -> None:
    if isinstance(raw, property):
        guard_class_attribute(i, type(base).__mro__, owner, name, raw)
        _bind(i, raw, base, type(base), then)
        return
    if name == "__dict__":
        source = i.outside.source_of(base)
        if source is None:
            raise Unsupported("the __dict__ of an object made by the captured code")
        if any(key[0] == id(base) for key in i.outside.attributes):
            raise Unsupported("the __dict__ of an object whose attributes changed")
        then(i.outside.wrap(base.__dict__, source.attr("__dict__")))
        return
    if isinstance(raw, (types.MemberDescriptorType, types.GetSetDescriptorType)):
        stored = i.outside.attributes.get((id(base), name), ABSENT)
        if stored is not ABSENT:
            then(stored)
            return
        value = i.native(getattr, base, name)
        source = i.outside.source_of(base)
        then(i.outside.wrap(value, source.attr(name)) if source is not None else value)
        return
    if isinstance(lookup_class(type(raw), "__get__")[1], FunctionType) or type(raw) is _TUPLE_FIELD:
        guard_class_attribute(i, type(base).__mro__, owner, name, raw)
        _bind(i, raw, base, type(base), then)
        return
    raise Unsupported(f"a descriptor of type {type(raw).__name__}")


def _instance_dict(base: Any) -> dict[str, Any] | None:
    try:
        found = object.__getattribute__(base, "__dict__")
    except AttributeError:
        return None
    return found if type(found) is dict else None


def _dict_source(i: Interpreter, base: Any) -> Source:
    source = i.outside.source_of(base)
    if source is None:
        raise Unsupported(f"a {type(base).__name__} without a path to it")
    return source.attr("__dict__")


def _own_names(i: Interpreter, instance: dict[str, Any]) -> Any:
    """The keys of an object's `__dict__`, as the captured code left it."""
    shadow = i.outside.stand_in(instance)
    return shadow.entries if type(shadow) is ShadowDict and shadow.changes else instance


def _instance_value(i: Interpreter, base: Any, instance: dict[str, Any], name: str) -> Any:
    source = i.outside.source_of(base)
    if source is None:
        return instance[name]
    shadow = i.outside.stand_in(instance)
    if type(shadow) is ShadowDict:
        return i.outside.dict_get(shadow, name)
    return i.outside.wrap(instance[name], source.attr(name))


# writing attributes ---------------------------------------------------------------------------------------------


def store(i: Interpreter, base: Any, name: str, value: Any) -> None:
    """`base.name = value`."""
    kind = type(base)
    if kind is TensorProxy:
        tensor_attributes.store(i, base, name, value)
        return
    if kind is FunctionType and id(base) in i.created:
        i.native(setattr, base, name, value)
        return
    if isinstance(base, (type, ModuleType, FunctionType)) or kind in (ShadowDict, ShadowContainer, Symbol):
        raise Unsupported(f"setting an attribute of a {kind.__name__}")
    setter = lookup_class(kind, "__setattr__")[1]
    if isinstance(setter, FunctionType):
        i.call_now(setter, (base, name, value))
        return
    set_plain(i, base, name, value)


def set_plain(i: Interpreter, base: Any, name: str, value: Any) -> None:
    """`object.__setattr__(base, name, value)`."""
    owner, raw = lookup_class(type(base), name)
    if isinstance(raw, property):
        if raw.fset is None:
            raise_program(i, AttributeError(f"property '{name}' of '{type(base).__name__}' object has no setter"))
        i.call_now(raw.fset, (base, value))
        return
    if name == "__traceback__" and isinstance(base, BaseException) and id(base) in i.created:
        i.set_traceback(base, value)
        return
    if raw is not ABSENT and _is_data_descriptor(raw) and not isinstance(raw, types.MemberDescriptorType):
        setter = lookup_class(type(raw), "__set__")[1]
        if not isinstance(setter, FunctionType):
            raise Unsupported(f"setting the attribute {name} through a descriptor")
        guard_class_attribute(i, type(base).__mro__, owner, name, raw)
        i.call_now(setter, (raw, base, value))
        return
    if id(base) in i.created:
        i.native(object.__setattr__, base, name, value)
        return
    if not i.outside.is_outside(base):
        raise Unsupported(f"setting an attribute of a {type(base).__name__} without a path to it")
    i.outside.attributes[id(base), name] = value
    i.outside.changed_attributes[id(base), name] = base


def delete(i: Interpreter, base: Any, name: str) -> None:
    """`del base.name`."""
    if type(base) is TensorProxy:
        raise Unsupported("deleting an attribute of a tensor")
    if isinstance(own := lookup_class(type(base), "__delattr__")[1], FunctionType):
        i.call_now(own, (base, name))
        return
    delete_plain(i, base, name)


def delete_plain(i: Interpreter, base: Any, name: str) -> None:
    """`object.__delattr__(base, name)`."""
    raw = lookup_class(type(base), name)[1]
    if id(base) in i.created:
        i.native(object.__delattr__, base, name)
        return
    if not i.outside.is_outside(base) or (raw is not ABSENT and _is_data_descriptor(raw)):
        raise Unsupported(f"deleting an attribute of a {type(base).__name__}")
    missing: list[Any] = []
    load_plain(i, base, name, missing.append)
    i.outside.attributes[id(base), name] = DELETED
    i.outside.changed_attributes[id(base), name] = base
