"""Making objects: what calling a class does in captured code."""

from __future__ import annotations

import abc
import enum
import types
from types import CellType, FunctionType, MethodType, WrapperDescriptorType
from typing import Any

import torch

from ...errors import Unsupported
from ..interpreter import Args, Interpreter, Kwargs, Then
from ..symbolic import ABSENT, FromOutside, Symbol, TensorProxy, contains_symbolic, is_constant, type_of
from ..symbolic.frame import Constructed
from ..symbolic.hooks import HookHandle
from ..symbolic.kinds import CODE_TYPES
from ..symbolic.raising import Raised, SuspendedInside
from .class_attributes import guard_absent, guard_class_attribute, lookup_class, special_method, special_of_class
from .exceptions import check_group

#: What `__new__` must be for an instance to be made without running code: the object holds its elements itself.
_NATIVE_NEW = {cls.__dict__["__new__"]: cls for cls in (object, list, dict, set, property) if "__new__" in cls.__dict__}


def construct(i: Interpreter, cls: type, args: Args, kwargs: Kwargs, then: Then) -> None:
    """Call a class: `__new__` and `__init__` run symbolically where they are Python, natively where that is safe."""
    caller = special_method(i, cls, "__call__") if type(cls) not in (type, abc.ABCMeta, enum.EnumMeta) else None
    if issubclass(cls, BaseException):
        _exception(i, cls, args, kwargs, then)
    elif cls is types.SimpleNamespace and not args:
        instance = i.mark_created(types.SimpleNamespace())
        instance.__dict__.update(kwargs)
        then(instance)
    elif cls in (property, staticmethod, classmethod) and not kwargs and all(type(a) is FunctionType for a in args):
        then(i.mark_created(i.native(cls, *args)))
    elif cls is MethodType and len(args) == 2 and not kwargs and callable(args[0]):
        then(MethodType(*args))
    elif isinstance(cls, enum.EnumMeta):
        if len(args) != 1 or not is_constant(value := i.outside.concrete(args[0])):
            raise Unsupported(f"looking up a {cls.__name__}")
        then(i.native(cls, value))
    elif cls.__module__ == "torch.return_types" and issubclass(cls, tuple):
        then(_several_results(i, cls, *args, **kwargs))
    elif caller is dict:  # a TypedDict
        i.call(dict, args, kwargs, then)
    elif isinstance(caller, FunctionType):
        i.call(caller, (cls, *args), kwargs, then)
    elif cls.__flags__ & (1 << 20):  # an abstract class
        raise Unsupported(f"making a {cls.__name__}")
    else:
        make(i, cls, args, kwargs, then)


def _several_results(i: Interpreter, cls: Any, given: Any = (), *others: Any, **named: Any) -> Any:
    """What PyTorch's functions with several results return, made of a sequence of these."""
    elements = i.outside.contents(given) if issubclass(type_of(given), (list, tuple)) else ()
    if others or named or len(elements) != cls.n_sequence_fields:
        raise Unsupported(f"making a {cls.__name__}")
    return cls(tuple(elements))


def make(i: Interpreter, cls: type, args: Args, kwargs: Kwargs, then: Then) -> None:
    """`type.__call__(cls, *args, **kwargs)`."""
    if hasattr(cls, "__del__"):
        raise Unsupported(f"making a {cls.__name__}, which has a finalizer")
    owner, new = lookup_class(cls, "__new__")
    guard_class_attribute(i, cls.__mro__, owner, "__new__", new)
    if isinstance(new, staticmethod):
        new = new.__func__
    if isinstance(new, FunctionType):
        instance = i.call_now(new, (cls, *args), kwargs)
        if not issubclass(type_of(instance), cls):
            then(instance)
            return
    elif new in _NATIVE_NEW:
        try:
            instance = i.mark_created(i.native(new, cls))
        except Raised:
            raise Unsupported(f"making a {cls.__name__}") from None
    elif new is torch.Tensor.__new__ and cls is not torch.Tensor and issubclass(cls, torch.Tensor):
        instance = _tensor_of_subclass(i, cls, args, kwargs)
    else:
        raise Unsupported(f"making a {cls.__name__}")
    kind = type_of(instance)  # what `__new__` gave may be of a class that derives from the one called
    owner, init = lookup_class(kind, "__init__")
    guard_class_attribute(i, kind.__mro__, owner, "__init__", init)
    if isinstance(init, FunctionType):
        i.call(init, (instance, *args), kwargs, Constructed(instance, then))
    elif not isinstance(init, WrapperDescriptorType):
        raise Unsupported(f"making a {kind.__name__}, whose __init__ is a {type(init).__name__}")
    elif issubclass(type(instance), (list, dict, set)) and type(instance) is not owner and (args or kwargs):
        i.call(MethodType(init, instance), args, kwargs, Constructed(instance, then))
    elif (args or kwargs) and not isinstance(lookup_class(cls, "__new__")[1], (FunctionType, staticmethod)):
        raise Unsupported(f"making a {cls.__name__} with arguments")
    else:
        then(instance)


def _tensor_of_subclass(i: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> Any:
    """`torch.Tensor.__new__(cls, *sizes)`: the memory of a tensor with these sizes, with whatever is in it."""
    sizes = [i.outside.concrete(size) for size in args]
    if kwargs or not all(isinstance(size, int) for size in sizes) or i.graph.default_device is not None:
        raise Unsupported(f"making a {cls.__name__} of something else than sizes")
    made = i.call_now(torch.empty, tuple(map(int, sizes)) or (0,), {"device": "cpu"})
    return i.call_now(torch.Tensor.as_subclass, (made, cls))


def init_property(i: Interpreter, made: Any, *functions: Any) -> None:
    """`property.__init__(made, *functions)`, called by an `__init__` of captured code."""
    plain = all(type(f) is FunctionType and not i.outside.is_by_code(f) for f in functions)
    if not plain or not isinstance(made, property) or not i.is_created(made):
        raise Unsupported("property.__init__ of something else than functions")
    i.native(property.__init__, made, *functions)


def new_object(i: Interpreter, cls: Any, *args: Any, **kwargs: Any) -> Any:
    """`object.__new__(cls)`, called by a `__new__` of captured code."""
    if not isinstance(cls, type) or lookup_class(cls, "__new__")[1] is ABSENT:
        raise Unsupported("object.__new__ of something else than a class")
    if isinstance(cls, enum.EnumMeta):  # capture takes a member for a constant, whatever is set on it
        raise Unsupported("making a member of an enumeration")
    others = (None,) if args or kwargs else ()  # it looks only at whether there are any
    return i.mark_created(i.native(object.__new__, cls, *others))


def _exception(i: Interpreter, cls: type, args: Args, kwargs: Kwargs, then: Then) -> None:
    """Exceptions are real ones, made natively; a Python `__init__` runs symbolically on the object."""
    init, new = special_of_class(i, cls, "__init__"), special_of_class(i, cls, "__new__")
    if isinstance(new, (FunctionType, staticmethod)):
        raise Unsupported(f"making a {cls.__name__}")
    concrete = tuple(i.outside.concrete(a) for a in args)
    if issubclass(cls, BaseExceptionGroup):
        check_group(i, cls, concrete)
    if isinstance(init, FunctionType):
        instance = i.mark_created(i.read(cls.__new__, cls, *concrete))
        i.call(init, (instance, *args), kwargs, Constructed(instance, then))
        return
    if contains_symbolic(kwargs):
        raise Unsupported(f"a {cls.__name__} with tensors among its keywords")
    then(i.mark_created(i.read(cls, *concrete, **kwargs)))


# classes that the captured code makes, for itself: real ones, whose functions are its own --------------------------


_PLAIN = (TensorProxy, Symbol, list, dict, set, tuple)


def build_class(i: Interpreter, body: Any, name: Any, *bases: Any, **keywords: Any) -> type:
    """`__build_class__`: what a class statement calls."""
    if keywords or type(body) is not FunctionType or not i.is_created(body) or type(name) is not str:
        raise Unsupported("a class that is made with a metaclass or other arguments")
    for base in bases:
        if type(base) is not type or lookup_class(base, "__init_subclass__")[0] is not object:
            raise Unsupported("a class whose base classes have a metaclass or an __init_subclass__")
        guard_absent(i, base.__mro__, "__init_subclass__")
    made_at = i.performed
    namespace: dict[str, Any] = i.mark_created({})
    i.run_class_body(body, namespace)
    for value in namespace.values():
        if not _may_be_attribute(value):
            raise Unsupported(f"a class attribute that is a {type_of(value).__name__}")
    made: type = i.native(type, name, bases, dict(namespace))
    i.outside.mark_made(made)
    i.outside.classes_made[made] = made_at
    return made


def _may_be_attribute(value: Any) -> bool:
    """Whether making a class does nothing with a value, and reading it from an instance gives that value."""
    if isinstance(value, FromOutside):
        return not any(hasattr(type_of(value), name) for name in ("__get__", "__set_name__"))
    return isinstance(value, (*CODE_TYPES, CellType)) or type(value) in _PLAIN or is_constant(value)


def refuse_outside(i: Interpreter, value: Any) -> None:
    """See to it that no class that captured code made, no instance of one, no handle of a hook and no generator of random
    numbers outlives it. Raises `SuspendedInside` where one does: the segment is to end in front of the statement that makes
    it."""
    if i.outside.generators_made and (made_at := i.outside.generators_made.get(getattr(value, "source", None))) is not None:
        raise SuspendedInside(made_at, "a generator of random numbers that is made inside and outlives the graph")
    if i.outside.classes_made:
        made_at = i.outside.classes_made.get(value if isinstance(value, type) else type(value))
        if made_at is not None:
            what = "a hook" if type(value) is HookHandle else "a class"
            raise SuspendedInside(made_at, f"{what} that is made inside and outlives the graph")
