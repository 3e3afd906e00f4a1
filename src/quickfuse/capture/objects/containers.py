"""What can be done with containers, each with its own answer in `values/`: items, membership, iteration, length, equality.

Containers made by captured code are real ones and are changed in place. Lists, sets and deques of the user's are
`ShadowContainer`s, dictionaries of the user's are `ShadowDict`s.
What a class says in Python about an operation comes first.
"""

from __future__ import annotations

import collections
import math
import operator
import sys
from collections.abc import Iterator
from types import GenericAlias, UnionType
from typing import Any

import numpy as np

from ...errors import Unsupported
from ...ir.guard import NumberExpr
from ...ir.source import Source
from ..interpreter import Interpreter, Then
from ..symbolic import contains_symbolic, real_of, type_of
from ..symbolic.containers import ShadowContainer, ShadowDict, opened
from ..symbolic.frame import GeneratorValue
from ..symbolic.graph_values import DynamicTensor, Symbol, TensorProxy
from ..symbolic.made import ABSENT, HeldArray
from ..symbolic.outside import ForeignArray, ForeignObject, ForeignScalar, ForeignTensor, FromOutside, is_constant, is_numpy
from ..symbolic.raising import Raised, TensorOfOtherSizes, raise_in_program
from .arrays import in_memory_of, tensor_of
from .class_attributes import name_in_messages, python_method, special_method
from .iterators import ITERATORS, AdvancedIterator, ObjectIterator
from .keys import as_index, hashable

# iteration ------------------------------------------------------------------------------------------------------


def make_iterator(i: Interpreter, value: Any) -> Any:
    """`iter(value)`: a native iterator over stand-ins."""
    kind = i.kind_of(value)
    if kind.asks_class and (method := python_method(i, value, "__iter__")) is not None:
        made = i.call_now(method, (value,))
        if special_method(i, made, "__next__") is ABSENT:
            raise Unsupported(f"an __iter__ that gives a {type_of(made).__name__}, which is no iterator")
        return ObjectIterator(i, made) if _is_python_iterator(i, made) else make_iterator(i, made)
    return kind.iterate(i, value)


def _is_python_iterator(i: Interpreter, value: Any) -> bool:
    return i.kind_of(value).asks_class and python_method(i, value, "__next__") is not None


def native_iterator(i: Interpreter, value: Any) -> Iterator[Any]:
    """An iterator that native functions such as `zip` can use, also over generators of the captured code."""
    iterator = make_iterator(i, value)
    if type(iterator) is GeneratorValue or (isinstance(iterator, FromOutside) and not _is_python_iterator(i, iterator)):
        return AdvancedIterator(i, iterator)
    return iterator if isinstance(iterator, ITERATORS) else ObjectIterator(i, iterator)


def next_of(i: Interpreter, iterator: Any) -> tuple[bool, Any]:
    """(True, element) or, at the end, (False, None)."""
    if _is_python_iterator(i, iterator):
        iterator = ObjectIterator(i, iterator)
    return i.kind_of(iterator).advance(i, iterator)


def iterate(i: Interpreter, value: Any) -> list[Any] | tuple[Any, ...]:
    """All elements."""
    found = _elements(i, value)
    return found if type(found) in (list, tuple) else i.native(list, found)


def _elements(i: Interpreter, value: Any) -> Any:
    """All elements where they are at hand, else an iterator that native functions can use."""
    if type(value) in (list, tuple):
        return value
    if type(value) is ShadowContainer and type(value.real) in (list, tuple):
        return i.outside.open(value)
    return native_iterator(i, value)


def listed(i: Interpreter, value: Any) -> list[Any] | tuple[Any, ...]:
    """All elements, for what makes a list of them: it also asks the object how many to expect."""
    return iterate(i, arriving(i, value))


def arriving(i: Interpreter, value: Any) -> Any:
    """The same for what adds the elements to a list: where they are not at hand, an iterator, since captured code that gives
    them sees those that were added already."""
    found = _elements(i, value)
    _ask_length(i, value)
    return found


def members(i: Interpreter, value: Any) -> list[Any] | tuple[Any, ...]:
    """What a set takes from an operand: the elements of another set, past an `__iter__` of its class."""
    if issubclass(type_of(value), (set, frozenset)):
        value = i.outside.contents(value)
        return i.native(list, i.kind_of(value).iterate(i, value))  # type: ignore[no-any-return]
    return iterate(i, value)


def one_by_one(i: Interpreter, value: Any, for_list: bool = False) -> Iterator[Any]:
    """The elements, each of which is put away before the next is asked for: captured code that gives them sees that."""
    if issubclass(type_of(value), (list, tuple, set, frozenset, dict, collections.deque)):
        yield from list((listed if for_list else iterate)(i, value))  # perhaps what they are added to, or taken from
        return
    iterator = native_iterator(i, value)
    if for_list:
        _ask_length(i, value)
    while (element := i.native(next, iterator, ABSENT)) is not ABSENT:
        yield element


def tupled(i: Interpreter, value: Any) -> list[Any] | tuple[Any, ...]:
    """All elements, for what makes a tuple of them: until Python 3.13 as for a list."""
    return iterate(i, value) if sys.version_info >= (3, 14) else listed(i, value)


def _ask_length(i: Interpreter, value: Any) -> None:
    """What makes a list asks first how many elements there are: a class may say so in Python."""
    if i.kind_of(value).asks_class and any(python_method(i, value, name) is not None for name in _ANNOUNCE):
        i.call_now(operator.length_hint, (value,))


_ANNOUNCE = ("__len__", "__length_hint__")


def is_no_iterable(value: Any) -> bool:
    """Whether a number or another constant has no elements."""
    cls = type_of(value) if type(value) is Symbol or is_constant(value) else list
    return not hasattr(cls, "__iter__")


def is_among(i: Interpreter, container: Any, element: Any) -> bool:
    """Whether an element is equal to one that iteration gives."""
    try:
        return any(equal(i, candidate, element) for candidate in native_iterator(i, container))
    except RuntimeError as error:
        if isinstance(error, (Unsupported, RecursionError)):
            raise
        raise Unsupported(f"a {type_of(container).__name__} that a comparison of its elements changes") from None


def is_dict(value: Any) -> bool:
    return isinstance(real_of(value), dict)


def as_plain_dict(i: Interpreter, value: Any, by_ordered: bool = False) -> dict[Any, Any]:
    """A mapping as a dictionary, as `**value` and `dict.update(value)` read it, or that of an ordered one: a dictionary
    past its class, others by their `keys()` and items."""
    value = opened(value)
    if is_dict(value) and not _is_read_by_keys(i, value, by_ordered):
        return i.kind_of(value).entries(i, value)  # type: ignore[attr-defined, no-any-return]
    if keys_method(i, value) is None:
        raise Unsupported(f"a {type_of(value).__name__} as a mapping")
    keys = list(iterate(i, i.call_now(i.attribute_now(value, "keys"), ())))
    return {hashable(i, key): i.now(i.item, value, key) for key in keys}


def key_value_pairs(i: Interpreter, value: Any, by_ordered: bool = False) -> Iterator[tuple[Any, Any]]:
    """What `dict(value)` and `dict.update(value)` take, or those of an ordered dictionary: the entries of a mapping, or the
    pairs of an iterable, one by one."""
    if is_dict(value) or keys_method(i, value) is not None:
        yield from list(as_plain_dict(i, value, by_ordered).items())
        return
    for pair in one_by_one(i, value):
        try:
            parts = iterate(i, pair)
        except Raised as raised:
            if isinstance(raised.exception, TypeError):
                raise Unsupported("a dictionary of what are not pairs") from None
            raise
        if len(parts) != 2:
            raise Unsupported("a dictionary of what are not pairs")
        yield hashable(i, parts[0]), parts[1]


def _is_read_by_keys(i: Interpreter, value: Any, by_ordered: bool) -> bool:
    """CPython reads a dictionary directly, unless its class says in Python how to iterate over it. Ordered ones are always
    read by their keys, and an ordered one reads all by their keys but plain dictionaries."""
    by_keys = by_ordered or issubclass(type_of(value), collections.OrderedDict)
    names = ("__iter__", "keys", "__getitem__") if by_keys else ("__iter__",)
    return any(python_method(i, value, name) is not None for name in names)


def keys_method(i: Interpreter, value: Any) -> Any:
    """`type(value).keys`, by which mappings are told from sequences of pairs; None where it has none."""
    if not i.kind_of(value).asks_class or type(value) in (list, tuple) or is_constant(value):
        return None
    found = special_method(i, value, "keys")
    return None if found is ABSENT or found is None else found


# items ----------------------------------------------------------------------------------------------------------


def get_item(i: Interpreter, base: Any, key: Any, then: Then) -> None:
    """`base[key]`, given to `then`."""
    if type(base) is ForeignObject and type(base.real).__module__ == "typing" and is_type_argument(key):
        found = i.read(operator.getitem, base.real, key)
        then(i.outside.constant_object(found, str(found)))  # `List[int]`
        return
    kind = i.kind_of(base)
    if kind.asks_class and (method := python_method(i, base, "__getitem__")) is not None:
        i.call(method, (base, key), {}, then)
        return
    number = item_at_number(i, base, key)
    if number is not ABSENT:
        then(number)
    else:
        kind.item(i, base, key, then)


def tensor_index(i: Interpreter, key: Any) -> Any:
    """An index into a tensor: constants and tensors, and lists and tuples of them. Raises `Unsupported` for others."""
    if type(key) is ShadowContainer and type(key.real) is not key.cls:
        raise Unsupported(f"a {type(key.real).__name__} as an index of a tensor")
    key = i.outside.contents(key)
    if isinstance(key, (list, tuple)):
        return type(key)([tensor_index(i, k) for k in key]) if type(key) in (list, tuple) else tuple(key)
    if type(key) is slice:
        bounds = (key.start, key.stop, key.step)
        return slice(*(as_index(i, bound) if type(bound) is TensorProxy else bound for bound in bounds))
    if type(key) in (TensorProxy, DynamicTensor, Symbol):
        return key
    if type(key) is ForeignArray and key.real.dtype in (np.int64, np.int32) and key.real.ndim:
        return in_memory_of(i, key)
    if type(key) is HeldArray and key.array.dtype in (np.int64, np.int32) and key.array.ndim:
        return tensor_of(i, key, False)
    if type(key) is ForeignTensor:
        raise TensorOfOtherSizes
    plain = i.outside.number(as_index(i, key))
    if not is_constant(plain) or is_numpy(plain):
        raise Unsupported(f"a {type_of(plain).__name__} as an index of a tensor")
    if type(plain) is complex and repr(eval(repr(plain))) != repr(plain):  # torch.fx writes constants so
        raise Unsupported("a complex number with a negative zero")
    return plain


def set_item(i: Interpreter, base: Any, key: Any, value: Any) -> None:
    """`base[key] = value`."""
    kind = i.kind_of(base)
    if kind.asks_class and (method := python_method(i, base, "__setitem__")) is not None:
        i.call_now(method, (base, key, value))
    else:
        kind.set_item(i, base, key, value)


def delete_item(i: Interpreter, base: Any, key: Any) -> None:
    """`del base[key]`."""
    kind = i.kind_of(base)
    if kind.asks_class and (method := python_method(i, base, "__delitem__")) is not None:
        i.call_now(method, (base, key))
    else:
        kind.delete_item(i, base, key)


def contains(i: Interpreter, container: Any, element: Any) -> bool:
    """`element in container`."""
    kind = i.kind_of(container)
    if kind.asks_class and (method := python_method(i, container, "__contains__")) is not None:
        return i.truth(i.call_now(method, (container, element)))
    outcome = contains_number(i, container, element)
    return kind.contains(i, container, element) if outcome is ABSENT else bool(outcome)


def equal(i: Interpreter, left: Any, right: Any) -> bool:
    if left is right:
        return True
    if _is_nan(left) and _is_nan(right):
        raise Unsupported("NaN, which is found by its identity")
    by_class = any(type(v) is ForeignScalar and python_method(i, v, "__eq__") is not None for v in (left, right))
    if not by_class and not (_is_known_number(left) and _is_known_number(right)):
        left, right = i.outside.concrete(left), i.outside.concrete(right)
        by_element = _is_sequence(left) and _is_sequence(right)
        if not by_element and (contains_symbolic(left) or contains_symbolic(right)):
            raise Unsupported("comparing tensors, or numbers that only the graph tells, in a container")
    return i.truth(i.now(i.binary, operator.eq, left, right))


def _is_sequence(value: Any) -> bool:
    """A list or tuple, whose elements are compared one by one."""
    return (value.cls if type(value) is ShadowContainer else type(value)) in (list, tuple)


def _is_nan(value: Any) -> bool:
    number = value.hint if type(value) is Symbol else value
    return type(number) is float and number != number


def _is_known_number(value: Any) -> bool:
    """A number whose comparison with another number can be guarded."""
    return type(value) in (int, float, bool) or (type(value) is Symbol and not value.from_tensor)


_OWN_PACKAGE = __name__.partition(".")[0]


def length(i: Interpreter, value: Any) -> Any:
    """`len(value)`."""
    kind = i.kind_of(value)
    method = python_method(i, value, "__len__") if kind.asks_class else None
    found = kind.length(i, value) if method is None else i.outside.concrete(i.call_now(method, (value,)))
    if found is None and method is None:
        ours = type_of(value).__module__.partition(".")[0] == _OWN_PACKAGE  # a stand-in, whose real class it does not tell
        if not ours and special_method(i, value, "__len__") is ABSENT:
            raise_in_program(TypeError(f"object of type '{name_in_messages(type_of(value))}' has no len()"))
        raise Unsupported(f"len() of a {type_of(value).__name__}")
    if type(found) is not int or not 0 <= found <= sys.maxsize:
        raise Unsupported("a __len__ that gives something else than a length")
    return found


def is_type_argument(key: Any) -> bool:
    """What may stand in the brackets of a generic type, or of an enumeration."""
    if isinstance(key, tuple):
        return all(map(is_type_argument, key))
    return is_constant(key) or isinstance(key, (type, list, UnionType, GenericAlias)) or type(key).__module__ == "typing"


# membership and lookup by a number from outside: the outcome is guarded, or the number found is one from outside too -


#: Dictionaries that look a key up without adding it.
_PLAIN_DICTS = (dict, collections.OrderedDict, collections.Counter)
_WRITTEN_OUT = (list, tuple, set, frozenset)


def contains_number(i: Interpreter, container: Any, element: Any) -> Any:
    """`element in container`, `ABSENT` where the element's value has to be seen."""
    if type(element) is not Symbol or element.from_tensor:
        return ABSENT
    place = _unchanged(i, container)
    if place is not None:
        real, where = place
        if not all(type(v) in (int, float, bool, str, type(None)) for v in real):
            return ABSENT
    elif isinstance(container, range) or type(container) in _WRITTEN_OUT and all(
        type(v) in (int, bool, str, type(None)) or (type(v) is float and math.isfinite(v)) for v in container
    ):
        real = where = container if isinstance(container, range) else tuple(container)
    else:
        return ABSENT
    outcome = element.hint in real
    i.outside.require(NumberExpr("({} in {})", (element.expr, where)), outcome)
    return outcome


def item_at_number(i: Interpreter, base: Any, key: Any) -> Any:
    """`base[key]` where that is a number, `ABSENT` where the key's value has to be seen."""
    if type(key) is not Symbol or key.from_tensor:
        return ABSENT
    real, source = _unchanged(i, base) or (None, None)
    if source is None or not isinstance(real, _PLAIN_DICTS if isinstance(real, dict) else list):
        return ABSENT
    try:
        value = real[key.hint]
    except LookupError:
        return ABSENT
    return i.outside.wrap(value, source.item(i.outside.key_of(key))) if type(value) in (int, float) else ABSENT


def _unchanged(i: Interpreter, container: Any) -> tuple[Any, Source] | None:
    """A container of the user's that captured code left as it is, and where it is found."""
    kind = type(container)
    if kind is ShadowDict and not container.is_changed and type(container.real) in _PLAIN_DICTS:
        return container.real, container.source
    if kind is ShadowContainer and not container.added and type(container.real) is container.cls:
        opened = container.items is not None
        if not opened or list(map(id, container.items)) == list(map(id, container.original)):
            return container.real, container.source
    return None
