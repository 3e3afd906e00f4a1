"""Objects of the user's: what is asked of one is read by its path, with a guard."""

from __future__ import annotations

import collections
import operator
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

from ...errors import Unsupported
from ...ir.endings import is_ordinary_class
from ...ir.marks import CAPTURED_AS
from .. import calls
from ..inference.mutation import IN_PLACE_OF, name_of
from ..interpreter import Interpreter
from ..library import locks
from ..library.cached_functions import call_cached
from ..library.script_functions import SCRIPTED, python_call
from ..library.weak_references import behind, called
from ..objects import binary_operators, changing_parts, containers, generators, outside_iterators
from ..objects.binary_operators import COMPARISONS
from ..objects.class_attributes import CACHED, lookup_class, python_method
from ..objects.containers import one_by_one
from ..objects.iterators import ITERATORS
from ..objects.keys import hashable
from ..pytorch.operators import is_operator
from ..symbolic import contains_symbolic, instance_dict, type_of
from ..symbolic.containers import CONTAINERS, DICTS, ShadowContainer
from ..symbolic.made import BuiltinMethod
from ..symbolic.outside import ForeignObject, ForeignProxy, FromOutside
from ..symbolic.raising import call_handler
from .code import GETTERS
from .kind import Args, Kwargs, Then
from .object import Methods, ObjectKind, check_hashable

#: What dictionaries and deques have besides what they hold.
_SETTINGS = {"default_factory": collections.defaultdict, "maxlen": collections.deque}


class OutsideKind(ObjectKind):
    """What everything that is a `FromOutside` has in common."""

    def attribute(self, i: Interpreter, base: FromOutside, name: str, then: Then) -> None:
        if type(base.real) not in DICTS and type(base.real) not in CONTAINERS:
            super().attribute(i, base, name, then)
        elif name == "__class__":
            then(type_of(base))
        elif callable(lookup_class(type(base.real), name)[1]):
            then(BuiltinMethod(base, name))  # type: ignore[arg-type]
        elif instance_dict(base.real) is not None:  # an ordered dictionary
            super().attribute(i, base, name, then)
        elif type(base.real) is _SETTINGS.get(name):
            then(i.outside.wrap(getattr(base.real, name), base.source.attr(name)))
        else:
            i.read(getattr, base.real, name)
            raise Unsupported(f"the attribute {name} of a {type(base.real).__name__}")

    def key(self, i: Interpreter, value: Any) -> Any:
        check_hashable(i, value)
        raise Unsupported(f"hashing a {type_of(value).__name__}")


def _init(i: Interpreter, value: ForeignObject, *args: Any, **kwargs: Any) -> None:
    if isinstance(value.real, BaseException):
        raise Unsupported("__init__ of an exception from outside")
    call_handler(i, ObjectKind.methods["__init__"], "__init__", (value, *args), kwargs)  # type: ignore[arg-type]


def _call(i: Interpreter, value: ForeignObject) -> Any:
    if not isinstance(value.real, weakref.ref):
        raise Unsupported(f"the method __call__ of a {type_of(value).__name__}")
    return called(i, value)


class ForeignKind(OutsideKind):
    """A `ForeignObject`, which is known by its type alone."""

    methods: ClassVar[Methods] = {**ObjectKind.methods, "__init__": _init, "__call__": _call}

    def call(self, i: Interpreter, function: ForeignObject, args: Args, kwargs: Kwargs, then: Then) -> None:
        """What native code does with an object depends on which it is."""
        real = function.real
        kind = type(real)
        if kind in GETTERS:
            i.outside.guard("is", function.source, real)  # nothing else tells what is in it
            i.call(real, args, kwargs, then)
        elif kind is CACHED:
            then(call_cached(i, function, args, kwargs))
        elif kind is SCRIPTED and (original := python_call(real, args, kwargs)) is not None:
            i.outside.guard("is", function.source, real)
            i.call(*original, then)
        elif issubclass(kind, weakref.ref) and kind.__call__ is weakref.ref.__call__ and not (args or kwargs):
            then(called(i, function))
        elif type(function) is ForeignObject and (handler := calls.handler_of(real)) is not None:
            i.outside.guard("is", function.source, real)
            then(call_handler(i, handler, name_of(real), args, kwargs))
        elif (equivalent := calls.equivalent_of(real)) is not None:
            i.outside.guard("is", function.source, real)
            i.call(equivalent, args, kwargs, then)
        elif is_operator(real):
            i.outside.guard("is", function.source, real)
            i.call(real, args, kwargs, then)
        elif (stands_for := getattr(kind, CAPTURED_AS, None)) is not None:
            i.attribute(function, stands_for, lambda original: i.call(original, args, kwargs, then))
        else:
            super().call(i, function, args, kwargs, then)

    def key(self, i: Interpreter, value: ForeignObject) -> Any:
        found = ObjectKind.key(self, i, value)
        if not (value.is_hashed_by_identity or value.by_content):
            raise Unsupported(f"hashing a {type_of(value).__name__}")
        return found

    def attribute(self, i: Interpreter, base: Any, name: str, then: Then) -> None:
        outside_iterators.check_asked(i, base, name)
        super().attribute(i, base, name, then)

    def method(self, i: Interpreter, function: Any, value: Any, args: Args, kwargs: Kwargs) -> Any:
        if locks.is_lock(value):
            return locks.method(i, function.__name__, value, args, kwargs)
        return super().method(i, function, value, args, kwargs)

    def advance(self, i: Interpreter, iterator: ForeignObject) -> tuple[bool, Any]:
        if outside_iterators.is_generator(iterator):
            return generators.resume(i, outside_iterators.begin(i, iterator))
        return outside_iterators.next_of(i, iterator)

    def item(self, i: Interpreter, base: ForeignObject, key: Any, then: Then) -> None:
        if changing_parts.has_raw_numbers(base):
            then(changing_parts.raw_element(i, base, key))
        else:
            super().item(i, base, key, then)

    def length(self, i: Interpreter, value: ForeignObject) -> int | None:
        return changing_parts.raw_length(i, value) if changing_parts.has_raw_numbers(value) else super().length(i, value)

    def iterate(self, i: Interpreter, value: ForeignObject) -> Any:
        if changing_parts.has_raw_numbers(value):
            return iter(changing_parts.raw_elements(i, value))
        is_iterator = isinstance(value.real, ITERATORS) or outside_iterators.is_generator(value)
        return value if is_iterator else super().iterate(i, value)


def _of_referent(question: Callable[..., Any]) -> Any:
    """What the object answers that a `weakref.proxy` is to, whose class comes first."""
    return lambda kind, i, proxy, *operands: question(i, behind(i, proxy), *operands)


class WeakProxyKind(ForeignKind):
    """A `weakref.proxy`: what it is to answers, but for its class, its identity and its own text."""

    attribute = _of_referent(lambda i, base, name, then: i.attribute(base, name, then))
    set_attribute = _of_referent(lambda i, base, name, value: i.kind_of(base).set_attribute(i, base, name, value))
    delete_attribute = _of_referent(lambda i, base, name: i.kind_of(base).delete_attribute(i, base, name))
    item = _of_referent(lambda i, base, key, then: i.item(base, key, then))
    call = _of_referent(lambda i, function, args, kwargs, then: i.call(function, args, kwargs, then))
    iterate = _of_referent(lambda i, value: i.iterator(value))
    length = _of_referent(lambda i, value: i.length(value))
    truth = _of_referent(lambda i, value: i.truth(value))
    set_item, delete_item, contains = map(_of_referent, (containers.set_item, containers.delete_item, containers.contains))

    def unary(self, i: Interpreter, function: Any, value: ForeignProxy, then: Then) -> None:
        raise Unsupported(f"{function.__name__} of a weakref.proxy")

    def entries(self, i: Interpreter, value: ForeignProxy) -> dict[Any, Any]:
        raise Unsupported("a weakref.proxy as a mapping")


def _within(name: str) -> Any:
    """What a value gives that another one stands in front of."""

    def answer(kind: WrappedKind, i: Interpreter, value: Any, *operands: Any) -> Any:
        within = kind.within(i, value)
        return getattr(i.kind_of(within), name)(i, within, *operands)

    return answer


class WrappedKind(OutsideKind):
    """What stands in front of another value, which answers."""

    item, set_item, delete_item = _within("item"), _within("set_item"), _within("delete_item")
    contains, iterate, backwards, length = map(_within, ("contains", "iterate", "backwards", "length"))

    def within(self, i: Interpreter, value: Any) -> Any:
        """That value."""
        raise NotImplementedError


class ShadowContainerKind(WrappedKind):
    """A list, set, deque or tuple of the user's, past its class: what it holds answers, each element read by its path."""

    rank = 6

    def within(self, i: Interpreter, value: ShadowContainer) -> Any:
        return i.outside.open(value)

    def set_item(self, i: Interpreter, base: ShadowContainer, key: Any, value: Any) -> None:
        super().set_item(i, base, key, value)
        _check_taken_out(i, base)

    def delete_item(self, i: Interpreter, base: ShadowContainer, key: Any) -> None:
        super().delete_item(i, base, key)
        _check_taken_out(i, base)

    def method(self, i: Interpreter, function: Any, value: Any, args: Args, kwargs: Kwargs) -> Any:
        name, cls = function.__name__, value.cls
        if name in ("__setattr__", "__delattr__", "__getattribute__"):
            return super().method(i, function, value, args, kwargs)
        if value.items is None and getattr(value.real, "maxlen", None) is None and len(args) == 1:  # no look is needed
            if name == ("add" if cls is set else "append"):
                value.added.append(hashable(i, args[0]) if cls is set else args[0])
                return None
            if name == ("update" if cls is set else "extend"):
                one = cls.add if cls is set else cls.append  # type: ignore[attr-defined]
                for element in one_by_one(i, args[0], for_list=cls is list):  # which may look at what was added
                    self.method(i, one, value, (element,), {})
                return None
        if cls not in (list, tuple) and type(value.real) is not cls and name in _OF_ITS_CLASS:
            raise Unsupported(f"the method {name} of a {type(value.real).__name__}")
        contents = i.outside.open(value)
        found = i.kind_of(contents).method(i, getattr(cls, name), contents, args, kwargs)
        _check_taken_out(i, value)
        return value if found is contents else found

    def truth(self, i: Interpreter, value: ShadowContainer) -> bool:
        if changing_parts.is_growing(i, value):
            return bool(value.added) or i.truth(changing_parts.growing_length(i, value))
        return super().truth(i, value)

    def item(self, i: Interpreter, base: ShadowContainer, key: Any, then: Then) -> None:
        if base.items is None and type(base.real) is list and type(key) is int and -len(base.added) <= key < 0:
            then(base.added[key])  # what was just appended, for which it does not matter what else there is
        elif (found := self._read_alone(i, base, key)) is not NotImplemented:
            then(found)
        elif base.cls is collections.deque and python_method(i, base, "__len__") is not None:
            raise Unsupported(f"an item of a {type(base.real).__name__}, whose __len__ counts for negative indices")
        else:
            super().item(i, base, key, lambda found: then(_copied(base, found) if found is base.items else found))

    def _read_alone(self, i: Interpreter, base: ShadowContainer, key: Any) -> Any:
        """An item that needs no look at the others; NotImplemented where it does."""
        found = changing_parts.growing_element(i, base, key) if changing_parts.is_growing(i, base) else NotImplemented
        return changing_parts.changing_element(i, base, key) if found is NotImplemented else found

    def binary(self, i: Interpreter, function: Any, left: Any, right: Any, then: Then) -> None:
        of_list = type(left) is list or (type(left) is ShadowContainer and left.cls is list)
        extends = function is operator.iadd and of_list
        for value in () if extends else (left, right):
            derived = type(value) is ShadowContainer and type(value.real) is not value.cls
            if derived and value.cls not in (list, tuple) and function not in COMPARISONS:  # the result is of the class
                raise Unsupported(f"{name_of(function)} of a {type(value.real).__name__}")
        if extends:  # the class of a list asks that of `right` for its elements
            i.kind_of(left).method(i, list.extend, left, (right,), {})
            then(left)
        elif function in IN_PLACE_OF and type(left) is ShadowContainer:
            self._change(i, function, left, i.outside.contents(right))
            then(left)
        else:
            left, right = (_copied(value, i.outside.contents(value)) for value in (left, right))
            binary_operators.binary_operator(i, function, left, right, then)

    def _change(self, i: Interpreter, function: Any, left: ShadowContainer, right: Any) -> None:
        contents = i.outside.open(left)
        if function is operator.imul and left.cls is list:
            times = i.outside.concrete(right)
            if type(times) not in (int, bool):
                raise Unsupported(f"a list of the user's repeated by a {type_of(right).__name__}")
            contents[:] = i.native(operator.mul, contents, times)
            _check_taken_out(i, left)
        elif not isinstance(contents, set) or contains_symbolic(right):
            raise Unsupported(f"{name_of(function)} of a {type(contents).__name__} of the user's")
        else:
            i.native(function, contents, right)


def _copied(value: Any, contents: Any) -> Any:
    """The contents of a tuple of a class of the user's as another tuple: for all elements of a plain one Python gives that
    tuple itself, but not for those of one whose class derives from it."""
    return (*contents,) if type(value) is ShadowContainer and value.cls is tuple else contents


def _check_taken_out(i: Interpreter, shadow: ShadowContainer) -> None:
    """Leave it to Python to take out what was in a container of the user's and may end visibly then."""
    if shadow.ending is None:
        shadow.ending = [element for element in shadow.original if not is_ordinary_class(type_of(element))]
    for element in shadow.ending:
        if not any(element is kept for kept in shadow.items):
            i.overwritten(type_of(element))


#: Methods of sets and deques that give another one of the same class.
_OF_ITS_CLASS = frozenset(
    "copy union intersection difference symmetric_difference __or__ __and__ __sub__ __xor__ __ror__ __rand__ __rsub__ "
    "__rxor__ __add__ __mul__ __rmul__ __copy__".split()
)
