"""Objects of Python classes: what the captured code made, and what all that derives from builtin classes has in common."""

from __future__ import annotations

import collections
import contextlib
import operator
import sys
from collections.abc import Callable, Mapping
from types import FunctionType, MethodType
from typing import Any, ClassVar

from ...errors import Unsupported
from ...ir.segment import Existing, New, Recipe
from ..effects import RecipeBook
from ..interpreter import Interpreter
from ..library import in_python as library
from ..objects import attributes, binary_operators, containers, hashing, module_calls
from ..objects.class_attributes import python_method, special_method
from ..objects.iterators import ItemIterator
from ..objects.native_functions import Reader, as_is, run
from ..symbolic import ABSENT, Unread, contains_symbolic, instance_dict, real_of, type_of
from ..symbolic.raising import call_handler, raise_in_program
from .kind import Args, Kind, Kwargs, Then

#: A method of a builtin class, by name: what it does, or how the native one reads its arguments.
Methods = Mapping[str, Callable[..., Any] | tuple[Reader, ...]]


def _init(i: Interpreter, value: Any, *args: Any, **kwargs: Any) -> None:
    if args or kwargs:
        raise_in_program(TypeError("object.__init__() takes exactly one argument (the instance to initialize)"))


def is_among(kind: Kind, i: Interpreter, container: Any, element: Any) -> bool:
    """`element in container`, by what iteration gives."""
    return containers.is_among(i, container, element)


def check_hashable(i: Interpreter, value: Any) -> None:
    """Raise in the program what Python says of a value that cannot be hashed, unless that is what it was to be used as."""
    if special_method(i, value, "__hash__") is None:
        if sys.version_info < (3, 14):
            i.native(hash, real_of(value))
        raise Unsupported(f"hashing a {type_of(value).__name__}")


class ObjectKind(Kind):
    """An object that the captured code made. Its class answers, or the attributes that the object has."""

    #: Every builtin class has these, perhaps under another function.
    methods: ClassVar[Methods] = {
        "__init__": _init,
        "__setattr__": attributes.set_plain,
        "__delattr__": attributes.delete_plain,
        "__getattribute__": lambda i, value, name: i.now(attributes.load_plain, i, value, name),
    }

    def attribute(self, i: Interpreter, base: Any, name: str, then: Then) -> None:
        attributes.load_object(i, base, name, then)

    def set_attribute(self, i: Interpreter, base: Any, name: str, value: Any) -> None:
        attributes.store_object(i, base, name, value)

    def delete_attribute(self, i: Interpreter, base: Any, name: str) -> None:
        attributes.delete_object(i, base, name)

    def contains(self, i: Interpreter, container: Any, element: Any) -> bool:
        if python_method(i, container, "__iter__") is None:
            return super().contains(i, container, element)
        return containers.is_among(i, container, element)

    def iterate(self, i: Interpreter, value: Any) -> Any:
        method = python_method(i, value, "__getitem__") if special_method(i, value, "__iter__") is ABSENT else None
        return super().iterate(i, value) if method is None else ItemIterator(i, value, method)

    def truth(self, i: Interpreter, value: Any) -> bool:
        for name in ("__bool__", "__len__"):
            if (method := python_method(i, value, name)) is not None:
                result = i.call_now(method, (value,))
                if type_of(result) is not (bool if name == "__bool__" else int):
                    raise Unsupported(f"{name} that gives a {type_of(result).__name__}")
                if name == "__len__" and i.truth(i.now(i.binary, operator.lt, result, 0)):
                    raise Unsupported("a __len__ that gives something else than a length")
                return i.truth(result)
            if name == "__bool__" and special_method(i, value, name) is not ABSENT:
                return self.native_truth(i, value)
        size = self.length(i, value)
        if size is None and special_method(i, value, "__len__") is not ABSENT:
            return super().truth(i, value)
        return size != 0

    def native_truth(self, i: Interpreter, value: Any) -> bool:
        """What a builtin class's `__bool__` gives."""
        raise Unsupported(f"the truth of a {type_of(value).__name__}")

    def binary(self, i: Interpreter, function: Any, left: Any, right: Any, then: Then) -> None:
        binary_operators.object_operator(i, function, left, right, then)

    def method(self, i: Interpreter, function: Any, value: Any, args: Args, kwargs: Kwargs) -> Any:
        rule = self.methods.get(function.__name__)
        if rule is None:
            return super().method(i, function, value, args, kwargs)
        if callable(rule):
            return call_handler(i, rule, function.__name__, (value, *args), kwargs)
        return run(i, function, (as_is, *rule), (value, *args), kwargs)

    def call(self, i: Interpreter, function: Any, args: Args, kwargs: Kwargs, then: Then) -> None:
        module_calls.call_object(i, function, args, kwargs, then)

    def key(self, i: Interpreter, value: Any) -> Any:
        check_hashable(i, value)
        return hashing.key_by_content(i, value) if hashing.is_by_content(i, value) else value

    def rebuild(self, book: RecipeBook, value: Any) -> Recipe:
        kind = type(value)
        if not (book.i.is_created(value) and kind.__flags__ & (1 << 9)) or kind.__module__ == library.__name__:
            return super().rebuild(book, value)
        made = book.begin(value, New(kind, {}))
        made.attributes.update({name: book.recipe(v) for name, v in (instance_dict(value) or {}).items()})
        for cls in kind.__mro__:
            slots = cls.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                mangled = f"_{cls.__name__.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name
                held = ABSENT
                with contextlib.suppress(AttributeError):  # one that is not set
                    held = object.__getattribute__(value, mangled)
                if name not in ("__dict__", "__weakref__") and held is not ABSENT:
                    made.slots[mangled] = book.recipe(held)
        if issubclass(kind, collections.defaultdict):
            made.slots["default_factory"] = book.recipe(value.default_factory)
        if issubclass(kind, dict):
            items = (collections.OrderedDict if isinstance(value, collections.OrderedDict) else dict).items(value)
            made.items = [(book.recipe(k), book.recipe(v)) for k, v in items]
        elif issubclass(kind, (list, set)):
            made.items = [book.recipe(v) for v in (list if isinstance(value, list) else set).__iter__(value)]
        return made


class ContainerKind(ObjectKind):
    """Containers that captured code made: real ones, which hold stand-ins. `makes` are the methods that give another one."""

    rank = 1
    makes: ClassVar[frozenset[str]] = frozenset()

    def method(self, i: Interpreter, function: Any, value: Any, args: Args, kwargs: Kwargs) -> Any:
        name = function.__name__
        if name not in ObjectKind.methods and i.outside.made(value) is None and not isinstance(value, (tuple, frozenset)):
            raise Unsupported(f"the method {name} of a {type(value).__name__}")
        if name in self.methods:
            found = super().method(i, function, value, args, kwargs)
            return i.mark_created(found) if name in self.makes else found
        if kwargs or any(isinstance(a, (FunctionType, MethodType)) for a in args):
            raise Unsupported(f"the method {name} with a function")
        return self.on_whole(i, function, value, *args)

    def binary(self, i: Interpreter, function: Any, left: Any, right: Any, then: Then) -> None:
        if function in (operator.eq, operator.ne) and binary_operators.are_unlike(left, right):
            then(function is operator.ne)
        elif type(left) in binary_operators.BUILTIN_CONTAINERS and type(right) in binary_operators.BUILTIN_CONTAINERS:
            then(self.operator(i, function, left, right))
        else:
            super().binary(i, function, left, right, then)

    def operator(self, i: Interpreter, function: Any, left: Any, right: Any) -> Any:
        """A binary operator or comparison of builtin containers."""
        return self.on_whole(i, function, left, right)

    def on_whole(self, i: Interpreter, function: Any, value: Any, *operands: Any) -> Any:
        """What a native function gives that looks at all there is in containers: only constants may be there."""
        if contains_symbolic(value) or contains_symbolic(operands):
            raise Unsupported(f"{function.__name__} of a {type(value).__name__} of tensors or numbers")
        found = i.native(function, value, *operands)
        return i.mark_created(found) if isinstance(found, (list, dict, set)) and found is not value else found


class UnreadKind(Kind):
    """A variable of a suspended frame that nothing read."""

    def rebuild(self, book: RecipeBook, value: Unread) -> Recipe:
        return Existing(value.source)
