"""Methods that are bound to an object: of Python classes, of tensors, and of containers of the user's."""

from __future__ import annotations

from types import FunctionType, MethodDescriptorType, MethodType

from ...errors import Unsupported
from ...ir.segment import Call, Constant, Recipe
from ..calls import handler_of
from ..effects import RecipeBook
from ..inference.tensor_subclasses import own_member
from ..interpreter import Interpreter
from ..library.in_python import CatchWarnings
from ..objects.iterators import ITERATORS
from ..pytorch import functions as torch_calls
from ..symbolic import BuiltinMethod, TensorProxy, type_of
from ..symbolic.kinds import is_trusted_module
from ..symbolic.raising import call_handler
from .kind import Args, Kwargs, Then
from .object import ObjectKind


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
            then(torch_calls.call_tensor_method(i, base, name, args, kwargs))
        else:
            then(i.kind_of(base).method(i, getattr(type_of(base), name), base, args, kwargs))

    def rebuild(self, book: RecipeBook, value: BuiltinMethod) -> Recipe:
        return Call(getattr, [book.recipe(value.base), Constant(value.name)])
