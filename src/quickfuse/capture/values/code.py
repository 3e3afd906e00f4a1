"""Functions, methods and classes: what they are is what they do. Callables that wrap others, such as `functools.partial`."""

from __future__ import annotations

import collections
import functools
import operator
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, MethodType
from typing import Any

import torch

from ...errors import Unsupported
from ...ir.segment import Call, Constant, Recipe
from .. import calls
from ..calls import handler_of
from ..effects import RecipeBook
from ..inference.tensor_subclasses import own_member
from ..interpreter import Interpreter
from ..library.in_python import CatchWarnings
from ..objects import attributes
from ..objects.binary_operators import constant_operator, is_same
from ..objects.class_attributes import (
    CODE_DATA,
    guard_class_attribute,
    load_class_attribute,
    load_super,
    lookup_class,
    name_of_code,
    store_class_attribute,
)
from ..objects.construction import construct, make
from ..objects.containers import is_type_argument
from ..objects.iterators import ITERATORS
from ..objects.keys import concrete_key
from ..pytorch.operators import call_tensor_method
from ..revival import call_with, make_function
from ..symbolic import ABSENT, DELETED, BuiltinMethod, NativeHandler, SuperProxy, TensorProxy, type_of
from ..symbolic.kinds import CODE_TYPES, NUMPY_METHOD, is_trusted_class, is_trusted_module
from ..symbolic.raising import call_handler, raise_in_program
from .kind import Args, Kind, Kwargs, Then, always_true, itself
from .object import ObjectKind

_TYPE_CALL = type.__dict__["__call__"]
_OWNERS = (list, tuple, dict, set, frozenset, collections.deque)


class CodeKind(ObjectKind):
    """Objects that are what they are: compared by identity, and the same in each call of the compiled code."""

    def attribute(self, i: Interpreter, base: Any, name: str, then: Then) -> None:
        then(i.native(getattr, base, name))

    set_attribute, delete_attribute = Kind.set_attribute, Kind.delete_attribute

    def binary(self, i: Interpreter, function: Any, left: Any, right: Any, then: Then) -> None:
        compared = function in (operator.eq, operator.ne)
        if compared and isinstance(left, FunctionType) and isinstance(right, FunctionType):
            then(is_same(i, left, right) ^ (function is operator.ne))
        elif compared and isinstance(left, CODE_TYPES) and isinstance(right, CODE_TYPES):
            then(i.native(function, left, right))
        else:
            constant_operator(i, function, left, right, then)

    key = itself

    def rebuild(self, book: RecipeBook, value: Any) -> Recipe:
        return super().rebuild(book, value) if book.i.is_created(value) else Constant(value)


class BuiltinKind(CodeKind):
    """A native function, or a method of an object that captured code made."""

    def call(self, i: Interpreter, function: Any, args: Args, kwargs: Kwargs, then: Then) -> None:
        if not calls.call_known(i, function, args, kwargs, then):
            then(calls.call_builtin(i, function, args, kwargs))

    def rebuild(self, book: RecipeBook, value: BuiltinFunctionType) -> Recipe:
        if isinstance(value.__self__, _OWNERS):
            return Call(getattr, [book.recipe(value.__self__), Constant(value.__name__)])
        return super().rebuild(book, value)


class DescriptorKind(CodeKind):
    """A method of a builtin class as its class has it: `list.append`."""

    def call(self, i: Interpreter, function: Any, args: Args, kwargs: Kwargs, then: Then) -> None:
        if calls.call_known(i, function, args, kwargs, then):
            return
        if not args:
            raise Unsupported(f"a call of {function.__name__} without an object")
        if type(function) is NUMPY_METHOD:
            raise Unsupported(f"random numbers of numpy.random.{function.__name__}()")
        if function is _TYPE_CALL and isinstance(args[0], type):
            make(i, args[0], args[1:], kwargs, then)
        else:
            if not issubclass(type_of(args[0]), function.__objclass__):  # which the method refuses
                raise Unsupported(f"{function.__name__} of a {type_of(args[0]).__name__}")
            then(i.kind_of(args[0]).method(i, function, args[0], args[1:], kwargs))


class WrapperKind(ObjectKind):
    """Methods of builtin classes that are bound to an object. By `torch.Tensor.shape.__get__` and its like, a torch function
    mode is told that an attribute is read."""

    def attribute(self, i: Interpreter, base: Any, name: str, then: Then) -> None:
        if not _reads_attribute(base):
            super().attribute(i, base, name, then)
            return
        then(i.native(getattr, base, name))

    def call(self, i: Interpreter, function: Any, args: Args, kwargs: Kwargs, then: Then) -> None:
        if not _reads_attribute(function):
            super().call(i, function, args, kwargs, then)
            return
        if kwargs or len(args) != 1 or type(args[0]) is not TensorProxy:
            raise Unsupported("reading an attribute of something else than a tensor")
        i.attribute(args[0], function.__self__.__name__, then)

    def binary(self, i: Interpreter, function: Any, left: Any, right: Any, then: Then) -> None:
        if function in (operator.eq, operator.ne) and _reads_attribute(left) and type(left) is type(right):
            then(i.native(function, left, right))
            return
        super().binary(i, function, left, right, then)

    def rebuild(self, book: RecipeBook, value: Any) -> Recipe:
        return Constant(value) if _reads_attribute(value) else super().rebuild(book, value)


def _reads_attribute(function: Any) -> bool:
    """Whether a bound method is one that reads an attribute of tensors."""
    descriptor = getattr(function, "__self__", None)
    name = getattr(descriptor, "__name__", "")
    return getattr(function, "__name__", "") == "__get__" and getattr(torch.Tensor, str(name), None) is descriptor


class OperatorKind(CodeKind):
    """`torch.ops.aten.add` and its overloads."""

    attribute = ObjectKind.attribute

    def call(self, i: Interpreter, function: Any, args: Args, kwargs: Kwargs, then: Then) -> None:
        calls.call_known(i, function, args, kwargs, then)


#: What a function is made of, read by its path. What it closes over is not among them: cells have no path of their own.
_MADE_OF = frozenset({"__code__", "__defaults__", "__kwdefaults__", "__annotations__", "__dict__"})


class FunctionKind(CodeKind):
    """A function of the user's, the same object at each call or known by its code, or one that captured code made."""

    def attribute(self, i: Interpreter, base: FunctionType, name: str, then: Then) -> None:
        made = i.is_created(base)
        source = i.outside.source_of(base) or i.outside.roots.constant(base.__qualname__, base)
        changed = getattr(i.outside.known.get(id(base)), "attributes", None)
        if changed and name == "__dict__":
            raise Unsupported("the dictionary of a function that was given attributes")
        if changed and name in changed:
            if changed[name] is DELETED:
                raise_in_program(AttributeError(f"'function' object has no attribute '{name}'", name=name, obj=base))
            then(changed[name])
        elif name in CODE_DATA:
            then(name_of_code(i, base, name, not is_trusted_module(base.__module__)))
        elif name == "__class__":
            then(FunctionType)
        elif name == "__get__":
            then(NativeHandler(lambda i, instance, owner=None: base if instance is None else MethodType(base, instance)))
        elif name in base.__dict__ or (name in _MADE_OF and not (made and name == "__dict__")):
            found = base.__dict__[name] if name in base.__dict__ else getattr(base, name)
            then(found if made else i.outside.wrap(found, source.attr(name)))
        else:
            attributes.missing_from_code(i, base, name, source)

    def set_attribute(self, i: Interpreter, base: FunctionType, name: str, value: Any) -> None:
        if i.is_created(base):
            i.read(setattr, base, name, value)
        else:
            self._change(i, base, name, i.attribute_or(base, name, ABSENT), value)

    def delete_attribute(self, i: Interpreter, base: FunctionType, name: str) -> None:
        if i.is_created(base):
            i.native(delattr, base, name)
        else:
            self._change(i, base, name, i.attribute_now(base, name), DELETED)

    def _change(self, i: Interpreter, base: FunctionType, name: str, before: Any, value: Any) -> None:
        """Set an attribute of a function of the user's, or delete it; `before` is what is there, which a guard holds."""
        if name.startswith("__") or is_trusted_module(base.__module__):
            raise Unsupported("setting an attribute of a function")
        i.overwritten(type_of(before))
        i.outside.note_place(base, i.outside.roots.constant(base.__qualname__, base))
        i.outside.set_attribute(i.outside.known[id(base)], name, value)

    def call(self, i: Interpreter, function: FunctionType, args: Args, kwargs: Kwargs, then: Then) -> None:
        if not calls.call_known(i, function, args, kwargs, then):
            calls.call(i, function, args, kwargs, then)

    def rebuild(self, book: RecipeBook, value: FunctionType) -> Recipe:
        if not book.i.is_created(value):
            return Constant(value)
        given = next((call for method, call in book.i.dispatched.values() if method is value), None)
        if given is not None:  # the one that is kept for that object
            return Call(given[0], [book.recipe(part) for part in given[1:]])
        closure = book.recipe(value.__closure__) if value.__closure__ else Constant(None)
        # From Python 3.14 on a function computes them, which may fail, when they are asked for.
        annotations = "__annotate__" if getattr(value, "__annotate__", None) is not None else "__annotations__"
        extras = {
            name: getattr(value, name)
            for name in ("__kwdefaults__", annotations, "__name__", "__qualname__", "__module__", "__doc__")
            if getattr(value, name)
        }
        extras.update(value.__dict__)
        parts = [Constant(value.__code__), Constant(value.__globals__), book.recipe(value.__defaults__), closure]
        return Call(make_function, [*parts, book.recipe(extras)])


class MethodKind(ObjectKind):
    """A function of a class, and the object that it was found in."""

    def attribute(self, i: Interpreter, base: MethodType, name: str, then: Then) -> None:
        if name in ("__func__", "__self__", "__class__"):
            then(getattr(base, name))
        else:
            i.attribute(base.__func__, name, then)

    def call(self, i: Interpreter, function: MethodType, args: Args, kwargs: Kwargs, then: Then) -> None:
        called, instance = function.__func__, function.__self__
        users = type(called) is FunctionType and not is_trusted_module(called.__module__)
        if type(instance) is TensorProxy and not users and own_member(instance.cls, called.__name__)[1] is not called:
            i.call(BuiltinMethod(instance, called.__name__), args, kwargs, then)
        elif type(called) is not FunctionType and (handler := handler_of(called)) is not None:  # of an extension module
            then(call_handler(i, handler, called.__name__, (instance, *args), kwargs))
        else:
            i.call(called, (instance, *args), kwargs, then)

    def rebuild(self, book: RecipeBook, value: MethodType) -> Recipe:
        of_iterator = isinstance(value.__self__, ITERATORS) and not isinstance(value.__func__, FunctionType)
        if of_iterator or isinstance(value.__self__, CatchWarnings):
            name = Constant(value.__func__.__name__)  # of what will be an object of another type
            return Call(getattr, [book.recipe(value.__self__), name])
        return book.build(MethodType, [value.__func__, value.__self__])


class BuiltinMethodKind(ObjectKind):
    def attribute(self, i: Interpreter, base: BuiltinMethod, name: str, then: Then) -> None:
        owner = type_of(base.base)
        member = getattr(owner, base.name)
        if name == "__self__":
            then(base.base)
        elif name == "__name__":
            then(base.name)
        elif name == "__doc__":
            then(member.__doc__)
        elif name == "__qualname__" and type(member) is MethodDescriptorType:
            then(f"{owner.__qualname__}.{base.name}")
        else:
            raise Unsupported(f"the attribute {name} of a method")

    def call(self, i: Interpreter, function: BuiltinMethod, args: Args, kwargs: Kwargs, then: Then) -> None:
        base, name = function.base, function.name
        if type(base) is TensorProxy:
            then(call_tensor_method(i, base, name, args, kwargs))
        else:
            then(i.kind_of(base).method(i, getattr(type_of(base), name), base, args, kwargs))

    def rebuild(self, book: RecipeBook, value: BuiltinMethod) -> Recipe:
        return Call(getattr, [book.recipe(value.base), Constant(value.name)])


class ClassKind(CodeKind):
    """A class; its metaclass may say in Python what is done with it."""

    def attribute(self, i: Interpreter, base: type, name: str, then: Then) -> None:
        load_class_attribute(i, base, name, then)

    def set_attribute(self, i: Interpreter, base: type, name: str, value: Any) -> None:
        store_class_attribute(i, base, name, value)

    def item(self, i: Interpreter, base: type, key: Any, then: Then) -> None:
        key = concrete_key(i, key)
        if (method := _class_getitem(i, base)) is not None:
            then(i.call_now(method, (base, key)))
        elif is_type_argument(key):
            then(i.native(operator.getitem, base, key))
        else:
            super().item(i, base, key, then)

    def call(self, i: Interpreter, function: type, args: Args, kwargs: Kwargs, then: Then) -> None:
        if not calls.call_known(i, function, args, kwargs, then):
            construct(i, function, args, kwargs, then)


def _class_getitem(i: Interpreter, cls: type) -> FunctionType | None:
    """What a class of the user's says `cls[...]` is, None where it says nothing or leaves it to the standard library."""
    owner, found = lookup_class(cls, "__class_getitem__")
    if found is ABSENT or is_trusted_class(owner):
        return None
    guard_class_attribute(i, cls.__mro__, owner, "__class_getitem__", found)
    if not isinstance(found, classmethod) or not isinstance(found.__func__, FunctionType):
        raise Unsupported(f"__class_getitem__ of {cls.__name__}")
    return found.__func__


#: From Python 3.14 on.
_PLACEHOLDER = getattr(functools, "Placeholder", object())
GETTERS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)


class PartialKind(ObjectKind):
    def call(self, i: Interpreter, function: functools.partial[Any], args: Args, kwargs: Kwargs, then: Then) -> None:
        if any(argument is _PLACEHOLDER for argument in function.args):
            raise Unsupported("a functools.partial with placeholders")
        i.call(function.func, (*function.args, *args), {**function.keywords, **kwargs}, then)

    def set_attribute(self, i: Interpreter, base: Any, name: str, value: Any) -> None:
        if name in ("func", "args", "keywords"):
            raise Unsupported(f"setting the attribute {name} of a functools.partial")
        super().set_attribute(i, base, name, value)

    def rebuild(self, book: RecipeBook, value: functools.partial[Any]) -> Recipe:
        if value.__dict__:
            raise Unsupported("a functools.partial with attributes that outlives the captured code")
        given, keywords = book.recipe((value.func, *value.args)), book.recipe(dict(value.keywords))
        return Call(call_with, [Constant(functools.partial), given, keywords])


class GetterKind(ObjectKind):
    """`operator.itemgetter`, `attrgetter` and `methodcaller`."""

    def call(self, i: Interpreter, function: Any, args: Args, kwargs: Kwargs, then: Then) -> None:
        if len(args) != 1 or kwargs:
            raise Unsupported(f"a call of an {type(function).__name__} with these arguments")
        _, wanted, named = _parts(function)
        if type(function) is operator.methodcaller:
            i.call(_attribute(i, args[0], wanted[0]), wanted[1:], named, then)
        else:
            of_items = type(function) is operator.itemgetter
            found = [i.now(i.item, args[0], key) if of_items else _attribute(i, args[0], key) for key in wanted]
            then(found[0] if len(found) == 1 else tuple(found))

    def rebuild(self, book: RecipeBook, value: Any) -> Recipe:
        maker, arguments, keywords = _parts(value)
        return Call(call_with, [Constant(maker), book.recipe(arguments), book.recipe(keywords)])


def _parts(getter: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """(class, arguments, keyword arguments) of the call that makes an equal one."""
    maker, arguments = getter.__reduce__()
    if isinstance(maker, functools.partial):
        return maker.func, (*maker.args, *arguments), dict(maker.keywords)
    return maker, arguments, {}


def _attribute(i: Interpreter, value: Any, path: str) -> Any:
    return functools.reduce(i.attribute_now, path.split("."), value)


class HandlerKind(Kind):
    """A `NativeHandler`: what capture itself does when it is called."""

    def call(self, i: Interpreter, function: NativeHandler, args: Args, kwargs: Kwargs, then: Then) -> None:
        then(function.run(i, *args, **kwargs))

    truth, key = always_true, itself

    def rebuild(self, book: RecipeBook, value: NativeHandler) -> Recipe:
        if value.made_by is None:
            return super().rebuild(book, value)  # type: ignore[no-any-return]
        function, first, options = value.made_by
        return Call(call_with, [Constant(function), book.recipe((first,)), book.recipe(dict(options))])


class SuperKind(Kind):
    """`super()` inside an inlined method."""

    def attribute(self, i: Interpreter, base: SuperProxy, name: str, then: Then) -> None:
        if name in i.outside.new_in_classes:
            raise Unsupported("an attribute by super() that a class was given before")
        load_super(i, base.cls, base.instance, name, then)

    def rebuild(self, book: RecipeBook, value: SuperProxy) -> Recipe:
        return Call(super, [Constant(value.cls), book.recipe(value.instance)])
