"""Containers and iteration: items, membership, length and equality.

Containers made by captured code are real ones and are changed in place. Lists, sets and deques of the user's are
`ShadowContainer`s, dictionaries of the user's are `ShadowDict`s: see `container_methods` for what can be called on them.
What a class says in Python about an operation comes first.
"""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable, Iterator
from types import FunctionType, GenericAlias, UnionType
from typing import Any

from ..errors import Unsupported
from . import generators, symbolic_keys
from .class_attributes import guard_class_attribute, lookup_class, python_method, special_method
from .frame import GeneratorValue
from .interpreter import Interpreter
from .iterators import ITERATORS, GeneratorIterator, ItemIterator, ObjectIterator
from .kinds import VIEW_TYPES, is_trusted_class
from .raising import raise_in_program
from .torch_function import call_torch
from .values import (
    ABSENT,
    DELETED,
    ForeignObject,
    ForeignScalar,
    FromOutside,
    MappingProxy,
    ShadowContainer,
    ShadowDict,
    Symbol,
    TensorProxy,
    contains_symbolic,
    is_constant,
    is_numpy,
    key_value,
    numpy_class,
    opened,
    real_of,
    stored_key,
    type_of,
)

Then = Callable[[Any], None]

SEQUENCES = (list, tuple, str, bytes, range)
DICT_LIKE = (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)
SETS = (set, frozenset)


# iteration ------------------------------------------------------------------------------------------------------


def make_iterator(i: Interpreter, value: Any) -> Any:
    """`iter(value)`: a native iterator over stand-ins."""
    value = opened(value)
    kind = type(value)
    if kind is GeneratorValue or isinstance(real_of(value), ITERATORS):
        return value
    if kind is Symbol:
        raise_in_program(TypeError(f"'{value.kind.__name__}' object is not iterable"))
    if kind is TensorProxy:
        if value.meta.ndim == 0:
            raise_in_program(TypeError("iteration over a 0-d tensor"))
        return iter(i.graph.call("call_method", "unbind", (value, 0), {}))
    if (method := python_method(i, value, "__iter__")) is not None:
        made = i.call_now(method, (value,))
        return ObjectIterator(i, made) if _is_python_iterator(i, made) else make_iterator(i, made)
    if kind is ShadowDict:
        return iter(dict_view(i, value, "keys"))
    if kind is ForeignScalar:
        return make_iterator(i, i.outside.concrete(value))
    value = i.outside.contents(value)
    if i.outside.is_changed_set(value):
        raise Unsupported("the order of a set that was changed")
    if isinstance(value, (*SEQUENCES, *DICT_LIKE, *VIEW_TYPES, *SETS, collections.deque)):
        return iter(value)
    if special_method(i, value, "__iter__") is ABSENT and (method := python_method(i, value, "__getitem__")) is not None:
        return ItemIterator(i, value, method)
    if value is None or is_constant(value):
        raise_in_program(TypeError(f"'{kind.__name__}' object is not iterable"))
    raise Unsupported(f"iterating over a {type_of(value).__name__}")


def _is_python_iterator(i: Interpreter, value: Any) -> bool:
    plain = type(value) in (TensorProxy, Symbol, GeneratorValue) or isinstance(value, ITERATORS)
    return not plain and python_method(i, value, "__next__") is not None


def native_iterator(i: Interpreter, value: Any) -> Iterator[Any]:
    """An iterator that native functions such as `zip` can use, also over generators of the captured code."""
    iterator = make_iterator(i, value)
    if type(iterator) is GeneratorValue:
        return GeneratorIterator(i, iterator)
    if isinstance(iterator, FromOutside) and not _is_python_iterator(i, iterator):
        raise Unsupported("advancing an iterator from outside")
    return iterator if isinstance(iterator, ITERATORS) else ObjectIterator(i, iterator)


def next_of(i: Interpreter, iterator: Any) -> tuple[bool, Any]:
    """(True, element) or, at the end, (False, None)."""
    if type(iterator) is GeneratorValue:
        return generators.resume(i, iterator)
    if isinstance(iterator, FromOutside) and not _is_python_iterator(i, iterator):
        raise Unsupported("advancing an iterator from outside")
    if not isinstance(iterator, ITERATORS):
        if not _is_python_iterator(i, iterator):
            raise Unsupported(f"advancing a {type_of(iterator).__name__}")
        iterator = ObjectIterator(i, iterator)
    try:
        return True, next(iterator)
    except StopIteration as stop:
        return False, stop.value
    except (RuntimeError, ValueError) as error:  # a container that changed during iteration, or zip(strict=True)
        if isinstance(error, Unsupported):
            raise
        raise_in_program(error)


def iterate(i: Interpreter, value: Any) -> list[Any] | tuple[Any, ...]:
    """All elements."""
    if type(value) in (list, tuple):
        return value  # type: ignore[no-any-return]
    if type(value) is ShadowContainer and type(value.real) in (list, tuple):
        return i.outside.open(value)  # type: ignore[no-any-return]
    return i.native(list, native_iterator(i, value))  # type: ignore[no-any-return]


def is_dict(value: Any) -> bool:
    return isinstance(real_of(value), dict)


def as_plain_dict(i: Interpreter, value: Any) -> dict[Any, Any]:
    """A mapping as a dictionary, as `**value` and `dict.update(value)` read it: a dictionary past its class, others by their
    `keys()` and items."""
    value = opened(value)
    if type(value) is ShadowDict and not _is_read_by_keys(i, value):
        value.keys(i.outside)
        return {key_value(i.outside, k): value.get(i.outside, k) for k in list(value.entries)}
    if isinstance(value, dict) and not _is_read_by_keys(i, value):
        return value
    if keys_method(i, value) is None:
        raise Unsupported(f"a {type_of(value).__name__} as a mapping")

    keys = list(iterate(i, i.call_now(i.attribute_now(value, "keys"), ())))
    return {hashable(i, key): i.now(i.item, value, key) for key in keys}


def key_value_pairs(i: Interpreter, value: Any) -> list[tuple[Any, Any]]:
    """What `dict(value)` and `dict.update(value)` take: the entries of a mapping, or the pairs of an iterable."""
    if is_dict(value) or keys_method(i, value) is not None:
        return list(as_plain_dict(i, value).items())
    pairs = []
    for pair in iterate(i, value):
        parts = iterate(i, pair)
        if len(parts) != 2:
            raise Unsupported("a dictionary of what are not pairs")
        pairs.append((hashable(i, parts[0]), parts[1]))
    return pairs


def _is_read_by_keys(i: Interpreter, value: Any) -> bool:
    """CPython reads a dictionary directly, unless its class says in Python how to iterate over it. Ordered ones are always
    read by their keys."""
    ordered = issubclass(type_of(value), collections.OrderedDict)
    names = ("__iter__", "keys", "__getitem__") if ordered else ("__iter__",)
    return any(python_method(i, value, name) is not None for name in names)


def keys_method(i: Interpreter, value: Any) -> Any:
    """`type(value).keys`, by which mappings are told from sequences of pairs; None where it has none."""
    if type(value) in (TensorProxy, Symbol, GeneratorValue, list, tuple, *ITERATORS) or is_constant(value):
        return None
    found = special_method(i, value, "keys")
    return None if found is ABSENT or found is None else found


# items ----------------------------------------------------------------------------------------------------------


def concrete_key(i: Interpreter, key: Any) -> Any:
    """An index or key with plain numbers in it."""
    kind = type(key)
    if kind is Symbol or kind is ForeignScalar:
        return i.outside.concrete(key)
    if kind is slice:
        return slice(*(as_index(i, v) for v in (key.start, key.stop, key.step)))
    if kind is tuple:
        return tuple([concrete_key(i, k) for k in key])
    return key


def as_index(i: Interpreter, value: Any) -> Any:
    """What `value.__index__()` gives, where a class says that in Python; other values as they are, plain."""
    if type(value) is not ForeignScalar or value.cls is int or python_method(i, value, "__index__") is None:
        value = i.outside.concrete(value)
    if type(value) is TensorProxy and not value.meta.shape and not value.meta.dtype.is_floating_point:
        constant = i.graph.contents.constant(value)
        return value if constant is None else constant.item()
    if type(value) is TensorProxy or is_constant(value):
        return value
    if (method := python_method(i, value, "__index__")) is not None:
        return i.outside.concrete(i.call_now(method, (value,)))
    return value


def hashable(i: Interpreter, value: Any) -> Any:
    """A value as an element of a set or a key of a dictionary that captured code makes or changes."""
    value = lookup_key(i, value)
    if isinstance(value, (TensorProxy, ForeignObject)) and value.source is not None:  # hashed by its identity
        i.outside.hashed[value.source] = None
    return value


def lookup_key(i: Interpreter, value: Any) -> Any:
    """A value as a key to look up in a dictionary of the user's."""
    if type(value) is ForeignScalar and any(python_method(i, value, name) is not None for name in ("__hash__", "__eq__")):
        raise Unsupported(f"hashing a {type_of(value).__name__}")
    value = i.outside.concrete(value)
    kind = type(value)
    if isinstance(value, tuple):
        return kind([hashable(i, v) for v in value]) if kind is tuple else value
    if kind in (ShadowDict, ShadowContainer) and type(value.real) in (dict, list, set):
        raise_in_program(TypeError(f"unhashable type: '{type(value.real).__name__}'"))
    if kind in (ShadowDict, ShadowContainer, Symbol, slice):
        raise Unsupported(f"hashing a {type_of(value).__name__}")
    if is_constant(value) or kind is TensorProxy:
        return value
    if special_method(i, value, "__hash__") is None:
        raise_in_program(TypeError(f"unhashable type: '{type_of(value).__name__}'"))
    own = any(python_method(i, value, name) is not None for name in ("__hash__", "__eq__"))
    if own or (kind is ForeignObject and not value.is_hashed_by_identity):
        raise Unsupported(f"hashing a {type_of(value).__name__}")
    return value


def get_item(i: Interpreter, base: Any, key: Any, then: Then) -> None:
    """`base[key]`, given to `then`."""
    kind = type(base)
    if kind is ForeignObject and type(base.real).__module__ == "typing" and _is_type_argument(key):
        found = i.read(operator.getitem, base.real, key)
        then(i.outside.constant_object(found, str(found)))  # `List[int]`
        return
    if kind is not TensorProxy and (method := python_method(i, base, "__getitem__")) is not None:
        i.call(method, (base, key), {}, then)
        return
    number = symbolic_keys.item(i, base, key)
    if number is not ABSENT:
        then(number)
        return
    if type(base) is ShadowContainer and base.cls is collections.deque and python_method(i, base, "__len__") is not None:
        raise Unsupported(f"an item of a {type(base.real).__name__}, whose __len__ counts for negative indices")
    base = i.outside.contents(base)
    kind = type(base)
    key = concrete_key(i, key)
    if kind is TensorProxy:
        then(call_torch(i, "call_function", operator.getitem, (base, tensor_index(i, key)), {}))
    elif kind is ShadowDict:
        then(shadow_item(i, base, key))
    elif kind is ForeignScalar:
        then(i.native(operator.getitem, i.outside.concrete(base), as_index(i, key)))
    elif isinstance(base, SEQUENCES):
        then(_created(i, i.native(operator.getitem, base, as_index(i, key))))
    elif isinstance(base, collections.deque):
        then(i.native(operator.getitem, base, as_index(i, key)))
    elif isinstance(base, dict):
        then(_inside_item(i, base, hashable(i, key)))
    elif isinstance(base, type) and (method := _class_getitem(i, base)) is not None:
        then(i.call_now(method, (base, key)))
    elif is_constant(base) or (isinstance(base, type) and _is_type_argument(key)):
        then(i.native(operator.getitem, base, key))
    else:
        raise Unsupported(f"an item of a {type_of(base).__name__}")


def tensor_index(i: Interpreter, key: Any) -> Any:
    """An index into a tensor: constants and tensors, and lists and tuples of them.

    Raises:
        Unsupported: for anything else.
    """
    if type(key) is ShadowContainer and type(key.real) is not key.cls:
        raise Unsupported(f"a {type(key.real).__name__} as an index of a tensor")
    if is_numpy(real_of(key)) and numpy_class(real_of(key)) is bool:
        raise Unsupported("a bool of NumPy's in a tensor's index, or as an element")
    key = i.outside.contents(key)
    if isinstance(key, (list, tuple)):
        return type(key)([tensor_index(i, k) for k in key]) if type(key) in (list, tuple) else tuple(key)
    if type(key) is slice:
        bounds = (key.start, key.stop, key.step)
        return slice(*(as_index(i, bound) if type(bound) is TensorProxy else bound for bound in bounds))
    if type(key) in (TensorProxy, Symbol):
        return key
    plain = i.outside.number(as_index(i, key))
    if not is_constant(plain) or is_numpy(plain):
        raise Unsupported(f"a {type_of(plain).__name__} as an index of a tensor")
    if type(plain) is complex and repr(eval(repr(plain))) != repr(plain):  # torch.fx writes constants so
        raise Unsupported("a complex number with a negative zero")
    return plain


def _class_getitem(i: Interpreter, cls: type) -> FunctionType | None:
    """What a class of the user's says `cls[...]` is, None where it says nothing or leaves it to the standard library."""
    owner, found = lookup_class(cls, "__class_getitem__")
    if found is ABSENT or is_trusted_class(owner):
        return None
    guard_class_attribute(i, cls.__mro__, owner, "__class_getitem__", found)
    if not isinstance(found, classmethod) or not isinstance(found.__func__, FunctionType):
        raise Unsupported(f"__class_getitem__ of {cls.__name__}")
    return found.__func__


def _is_type_argument(key: Any) -> bool:
    """What may stand in the brackets of a generic type, or of an enumeration."""
    if isinstance(key, tuple):
        return all(map(_is_type_argument, key))
    return is_constant(key) or isinstance(key, (type, list, UnionType, GenericAlias)) or type(key).__module__ == "typing"


def _created(i: Interpreter, value: Any) -> Any:
    return i.mark_created(value) if type(value) is list else value


def _inside_item(i: Interpreter, base: Any, key: Any) -> Any:
    if isinstance(base, dict) and key not in base:
        if isinstance(base, collections.defaultdict) and base.default_factory is not None:
            base[key] = i.call_now(base.default_factory, ())
            return base[key]
        if not isinstance(base, collections.Counter):
            raise_in_program(KeyError(key))
    return i.read(operator.getitem, base, key)


def shadow_item(i: Interpreter, shadow: ShadowDict, key: Any) -> Any:
    """`dict.__getitem__(d, key)` of a dictionary of the user's."""
    stored = stored_key(i.outside, lookup_key(i, key))
    value = shadow.get(i.outside, stored)
    if value is not DELETED:
        return value
    if (method := python_method(i, shadow, "__missing__")) is not None:
        return i.call_now(method, (shadow, key))
    if shadow.cls is not collections.defaultdict:
        raise_in_program(KeyError(key))
    factory = i.outside.wrap(shadow.real.default_factory, shadow.source.attr("default_factory"))
    if factory is None:
        raise_in_program(KeyError(key))
    value = i.call_now(factory, ())
    set_item(i, shadow, key, value)
    return value


def set_item(i: Interpreter, base: Any, key: Any, value: Any) -> None:
    """`base[key] = value`."""
    if type(base) is not TensorProxy and (method := python_method(i, base, "__setitem__")) is not None:
        i.call_now(method, (base, key, value))
        return
    if type(base) is MappingProxy:
        raise Unsupported("setting an item of a mappingproxy")
    base = i.outside.contents(base)
    kind = type(base)
    key = concrete_key(i, key)
    if kind is TensorProxy:
        if python_method(i, value, "__index__") is not None:  # which counts for indices only
            raise Unsupported(f"a {type_of(value).__name__} as an element of a tensor")
        operands = (base, tensor_index(i, key), tensor_index(i, value))
        call_torch(i, "call_function", operator.setitem, operands, {})
        return
    set_native_item(i, base, key, value)


def set_native_item(i: Interpreter, base: Any, key: Any, value: Any) -> None:
    """What the builtin class of `base` does with `base[key] = value`."""
    kind = type(base)
    if kind is ShadowDict:
        stored = stored_key(i.outside, hashable(i, key))
        base.begin_change(stored)
        base.get(i.outside, stored)
        base.entries[stored] = value
        base.changes[stored] = None
    elif kind is list or isinstance(base, (dict, collections.deque)):
        if isinstance(base, dict):
            key = hashable(i, key)
        if isinstance(key, slice):
            value = list(iterate(i, value))
        if not isinstance(base, dict):
            key = as_index(i, key)
        cls = next(cls for cls in (list, collections.OrderedDict, dict, collections.deque) if isinstance(base, cls))
        i.read(cls.__setitem__, base, key, value)
    else:
        raise Unsupported(f"setting an item of a {type_of(base).__name__}")


def delete_item(i: Interpreter, base: Any, key: Any) -> None:
    """`del base[key]`."""
    if type(base) is not TensorProxy and (method := python_method(i, base, "__delitem__")) is not None:
        i.call_now(method, (base, key))
        return
    if type(base) is MappingProxy:
        raise Unsupported("deleting an item of a mappingproxy")
    delete_native_item(i, i.outside.contents(base), key)


def delete_native_item(i: Interpreter, base: Any, key: Any) -> None:
    """What the builtin class of `base` does with `del base[key]`."""
    key = concrete_key(i, key)
    if type(base) is ShadowDict:
        stored = stored_key(i.outside, hashable(i, key))
        if base.get(i.outside, stored) is DELETED:
            raise_in_program(KeyError(key))
        base.begin_change(stored)
        del base.entries[stored]
        base.changes[stored] = None
        base.removed[stored] = None
    elif isinstance(base, (list, dict, collections.deque)):
        cls = next(cls for cls in (list, collections.OrderedDict, dict, collections.deque) if isinstance(base, cls))
        i.read(cls.__delitem__, base, hashable(i, key) if isinstance(base, dict) else as_index(i, key))
    else:
        raise Unsupported(f"deleting an item of a {type_of(base).__name__}")


def contains(i: Interpreter, container: Any, element: Any) -> bool:
    """`element in container`."""
    if type(container) is not TensorProxy and (method := python_method(i, container, "__contains__")) is not None:
        return i.truth(i.call_now(method, (container, element)))
    outcome = symbolic_keys.contains(i, container, element)
    if outcome is not ABSENT:
        return bool(outcome)
    container = i.outside.contents(container)
    kind = type(container)
    if kind is ShadowDict:
        stored = stored_key(i.outside, lookup_key(i, element))
        return container.get(i.outside, stored) is not DELETED
    if kind is ForeignScalar:
        return bool(i.native(operator.contains, i.outside.concrete(container), i.outside.concrete(element)))
    if isinstance(container, DICT_LIKE + SETS):
        cls = next(cls for cls in (dict, set, frozenset) if isinstance(container, cls))
        return bool(i.read(cls.__contains__, container, hashable(i, element)))
    if isinstance(container, (str, bytes, range)):
        return bool(i.native(operator.contains, container, i.outside.concrete(element)))
    iterated = (list, tuple, collections.deque, GeneratorValue, *VIEW_TYPES, *ITERATORS)
    if isinstance(container, iterated) or (kind is not TensorProxy and python_method(i, container, "__iter__") is not None):
        return any(equal(i, candidate, element) for candidate in native_iterator(i, container))
    raise Unsupported(f"membership in a {type_of(container).__name__}")


def equal(i: Interpreter, left: Any, right: Any) -> bool:
    if left is right:
        return True
    by_class = any(type(v) is ForeignScalar and python_method(i, v, "__eq__") is not None for v in (left, right))
    if not by_class and not (_is_known_number(left) and _is_known_number(right)):
        left, right = i.outside.concrete(left), i.outside.concrete(right)
        if contains_symbolic(left) or contains_symbolic(right):
            raise Unsupported("comparing tensors to find one in a container")
    return i.truth(i.now(i.binary, operator.eq, left, right))


def _is_known_number(value: Any) -> bool:
    """A number whose comparison with another number can be guarded."""
    return type(value) in (int, float, bool) or (type(value) is Symbol and not value.from_tensor)


def length(i: Interpreter, value: Any) -> Any:
    """`len(value)`."""
    found = length_of(i, value)
    if found is not None:
        return found
    method = python_method(i, value, "__len__")
    if method is None:
        raise Unsupported(f"len() of a {type_of(value).__name__}")
    found = i.outside.concrete(i.call_now(method, (value,)))
    if type(found) is not int or found < 0:
        raise Unsupported("a __len__ that gives something else than a length")
    return found


def length_of(i: Interpreter, value: Any) -> int | None:
    """`len(value)` of a container, None where `value` has no length that capture knows."""
    if type(value) is TensorProxy:
        if not value.meta.shape:
            raise_in_program(TypeError("len() of a 0-d tensor"))
        return int(value.meta.shape[0])
    if python_method(i, value, "__len__") is not None:
        return None
    value = opened(value)
    if type(value) is ShadowDict:
        return value.length(i.outside)
    value = i.outside.contents(value)
    if type(value) is ForeignScalar and value.cls in (str, bytes):
        return len(i.outside.concrete(value))
    if isinstance(value, SEQUENCES):
        return len(value)
    for cls in (dict, set, frozenset, collections.deque, *VIEW_TYPES):
        if isinstance(value, cls):
            return int(cls.__len__(value))
    return None


def dict_view(i: Interpreter, shadow: ShadowDict, name: str) -> Any:
    """`d.keys()`, `d.values()` or `d.items()`: a live view of the stand-in's entries, as the user's would be."""
    keys = shadow.keys(i.outside)
    if name != "keys":
        for key in list(shadow.entries):
            shadow.get(i.outside, key)
    if any(type(key) is TensorProxy for key in keys):  # whose keys are real tensors
        stored = {key: stored_key(i.outside, lookup_key(i, key)) for key in keys}
        return getattr({key: shadow.get(i.outside, own) for key, own in stored.items()}, name)()
    view = getattr(shadow.entries, name)()
    return i.outside.mark_made(view, shadow, name)
