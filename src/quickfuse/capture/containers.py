"""Containers and iteration: items, membership, length, and the methods of the user's dictionaries.

Containers made by captured code are real ones and are changed in place. Lists, sets and deques of the user's are
`ShadowContainer`s, dictionaries of the user's are `ShadowDict`s.
"""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable, Iterator
from types import FunctionType, GenericAlias, UnionType
from typing import TYPE_CHECKING, Any

from ..errors import Unsupported
from . import dictionaries, generators, symbolic_keys
from .frame import GeneratorValue
from .iterators import ITERATORS, GeneratorIterator, ItemIterator, ObjectIterator
from .kinds import VIEW_TYPES
from .raising import raise_in_program
from .torch_function import call_torch
from .values import (
    ABSENT,
    DELETED,
    ShadowContainer,
    ShadowDict,
    Symbol,
    TensorProxy,
    contains_symbolic,
    is_constant,
)

if TYPE_CHECKING:
    from .interpreter import Interpreter

Then = Callable[[Any], None]

SEQUENCES = (list, tuple, str, bytes, range)
DICT_LIKE = (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)
SETS = (set, frozenset)



# iteration ------------------------------------------------------------------------------------------------------


def make_iterator(i: Interpreter, value: Any) -> Any:
    """`iter(value)`: a native iterator over stand-ins."""
    kind = type(value)
    if kind is GeneratorValue or isinstance(value, ITERATORS):
        return value
    if kind is Symbol:
        raise_in_program(TypeError(f"'{value.kind.__name__}' object is not iterable"))
    if kind is TensorProxy:
        if value.meta.ndim == 0:
            raise_in_program(TypeError("iteration over a 0-d tensor"))
        return iter(i.graph.call("call_method", "unbind", (value, 0), {}))
    if kind is ShadowDict:
        return iter(dict_view(i, value, "keys"))
    method = lookup(kind, "__iter__")
    if isinstance(method, FunctionType):
        made = i.call_now(method, (value,))
        if isinstance(lookup(type(made), "__next__"), FunctionType):
            return ObjectIterator(i, made)
        return make_iterator(i, made)
    if kind is ShadowContainer:
        return iter(i.outside.open(value))
    if isinstance(value, SEQUENCES) or (
        isinstance(value, (*DICT_LIKE, *VIEW_TYPES, *SETS, collections.deque)) and not i.outside.is_outside(value)
    ):
        return iter(value)
    if isinstance(lookup(kind, "__next__"), FunctionType):
        return ObjectIterator(i, value)
    if isinstance(method := lookup(kind, "__getitem__"), FunctionType):
        return ItemIterator(i, value, method)
    if value is None or is_constant(value):
        raise_in_program(TypeError(f"'{kind.__name__}' object is not iterable"))
    raise Unsupported(f"iterating over a {kind.__name__}")


def lookup(kind: type, name: str) -> Any:
    """A method as the interpreter finds it: on the class, not on the instance."""
    for owner in kind.__mro__:
        if name in owner.__dict__:
            return owner.__dict__[name]
    return None


def native_iterator(i: Interpreter, value: Any) -> Iterator[Any]:
    """An iterator that native functions such as `zip` can use, also over generators of the captured code."""
    iterator = make_iterator(i, value)
    if type(iterator) is GeneratorValue:
        return GeneratorIterator(i, iterator)
    if i.outside.is_outside(iterator):
        raise Unsupported("advancing an iterator from outside")
    return iterator if isinstance(iterator, ITERATORS) else ObjectIterator(i, iterator)


def next_of(i: Interpreter, iterator: Any) -> tuple[bool, Any]:
    """(True, element) or, at the end, (False, None)."""
    if type(iterator) is GeneratorValue:
        return generators.resume(i, iterator)
    if i.outside.is_outside(iterator):
        raise Unsupported("advancing an iterator from outside")
    if not isinstance(iterator, ITERATORS):
        if not isinstance(lookup(type(iterator), "__next__"), FunctionType):
            raise Unsupported(f"advancing a {type(iterator).__name__}")
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
    value = i.outside.contents(value)
    if type(value) in (list, tuple):
        return value  # type: ignore[no-any-return]
    return i.native(list, native_iterator(i, value))  # type: ignore[no-any-return]


def as_plain_dict(i: Interpreter, value: Any) -> dict[Any, Any]:
    if type(value) is ShadowDict:
        dictionaries.keys(i.outside, value)
        return {dictionaries.key_value(i.outside, k): dictionaries.get(i.outside, value, k) for k in list(value.entries)}
    if isinstance(value, dict) and not i.outside.is_outside(value):
        return value
    raise Unsupported(f"a {type(value).__name__} as a mapping")


# items ----------------------------------------------------------------------------------------------------------


def concrete_key(i: Interpreter, key: Any) -> Any:
    """An index or key with plain numbers in it."""
    kind = type(key)
    if kind is Symbol:
        return i.outside.concrete(key)
    if kind is slice:
        return slice(*(i.outside.concrete(v) for v in (key.start, key.stop, key.step)))
    if kind is tuple:
        return tuple([concrete_key(i, k) for k in key])
    return key


def hashable(i: Interpreter, value: Any) -> Any:
    """A value as an element of a set or a key of a dictionary that captured code makes."""
    value = i.outside.concrete(value)
    kind = type(value)
    if isinstance(value, tuple):
        return kind([hashable(i, v) for v in value]) if kind is tuple else value
    if kind in (ShadowDict, ShadowContainer):
        raise_in_program(TypeError(f"unhashable type: '{type(value.real).__name__}'"))
    if isinstance(lookup(kind, "__hash__"), FunctionType) or isinstance(lookup(kind, "__eq__"), FunctionType):
        raise Unsupported(f"hashing a {kind.__name__}")
    return value


def get_item(i: Interpreter, base: Any, key: Any, then: Then) -> None:
    """`base[key]`, given to `then`."""
    number = symbolic_keys.item(i, base, key)
    if number is not ABSENT:
        then(number)
        return
    base = i.outside.contents(base)
    kind = type(base)
    if isinstance(method := lookup(kind, "__getitem__"), FunctionType):
        from .calls import call

        call(i, method, (base, key), {}, then)
        return
    key = concrete_key(i, key)
    if kind is TensorProxy:
        then(call_torch(i, "call_function", operator.getitem, (base, key), {}))
    elif kind is ShadowDict:
        then(_shadow_item(i, base, key))
    elif isinstance(base, SEQUENCES):
        then(_created(i, i.native(operator.getitem, base, key)))
    elif isinstance(base, (dict, collections.deque)) and not i.outside.is_outside(base):
        then(_inside_item(i, base, key))
    elif is_constant(base) or (isinstance(base, type) and _is_type_argument(key)):
        then(i.native(operator.getitem, base, key))
    else:
        raise Unsupported(f"an item of a {kind.__name__}")


def _is_type_argument(key: Any) -> bool:
    """What may stand in the brackets of a generic type, or of an enumeration."""
    if isinstance(key, tuple):
        return all(map(_is_type_argument, key))
    return is_constant(key) or isinstance(key, (type, list, UnionType, GenericAlias)) or type(key).__module__ == "typing"


def _created(i: Interpreter, value: Any) -> Any:
    return i.mark_created(value) if type(value) is list and not i.outside.is_outside(value) else value


def _inside_item(i: Interpreter, base: Any, key: Any) -> Any:
    if isinstance(base, dict) and key not in base:
        if isinstance(base, collections.defaultdict) and base.default_factory is not None:
            base[key] = i.call_now(base.default_factory, ())
            return base[key]
        if not isinstance(base, collections.Counter):
            raise_in_program(KeyError(key))
    return i.native(operator.getitem, base, key)


def _shadow_item(i: Interpreter, shadow: ShadowDict, key: Any) -> Any:
    stored = dictionaries.stored_key(i.outside, key)
    value = dictionaries.get(i.outside, shadow, stored)
    if value is not DELETED:
        return value
    factory = getattr(shadow.real, "default_factory", None)
    if factory is None:
        raise_in_program(KeyError(key))
    factory = i.outside.wrap(factory, shadow.source.attr("default_factory"))
    value = i.call_now(factory, ())
    set_item(i, shadow, key, value)
    return value


def set_item(i: Interpreter, base: Any, key: Any, value: Any) -> None:
    """`base[key] = value`."""
    base = i.outside.contents(base)
    kind = type(base)
    if isinstance(method := lookup(kind, "__setitem__"), FunctionType):
        i.call_now(method, (base, key, value))
        return
    key = concrete_key(i, key)
    if kind is TensorProxy:
        value = i.outside.contents(value)
        call_torch(i, "call_function", operator.setitem, (base, key, value), {})
    elif kind is ShadowDict:
        stored = dictionaries.stored_key(i.outside, key)
        dictionaries.begin_change(i.outside, base, stored)
        dictionaries.get(i.outside, base, stored)
        base.entries[stored] = value
        base.changes[stored] = None
    elif kind is list or (isinstance(base, (dict, collections.deque)) and not i.outside.is_outside(base)):
        if isinstance(base, dict):
            key = hashable(i, key)
        if isinstance(key, slice):
            value = list(iterate(i, value))
        i.native(operator.setitem, base, key, value)
    else:
        raise Unsupported(f"setting an item of a {kind.__name__}")


def delete_item(i: Interpreter, base: Any, key: Any) -> None:
    """`del base[key]`."""
    base = i.outside.contents(base)
    if isinstance(method := lookup(type(base), "__delitem__"), FunctionType):
        i.call_now(method, (base, key))
        return
    key = concrete_key(i, key)
    if type(base) is ShadowDict:
        stored = dictionaries.stored_key(i.outside, key)
        if dictionaries.get(i.outside, base, stored) is DELETED:
            raise_in_program(KeyError(key))
        dictionaries.begin_change(i.outside, base, stored)
        del base.entries[stored]
        base.changes[stored] = None
        base.removed[stored] = None
    elif type(base) is list or (isinstance(base, (list, dict, collections.deque)) and not i.outside.is_outside(base)):
        i.native(operator.delitem, base, key)
    else:
        raise Unsupported(f"deleting an item of a {type(base).__name__}")


def contains(i: Interpreter, container: Any, element: Any) -> bool:
    """`element in container`."""
    outcome = symbolic_keys.contains(i, container, element)
    if outcome is not ABSENT:
        return bool(outcome)
    container = i.outside.contents(container)
    kind = type(container)
    if isinstance(method := lookup(kind, "__contains__"), FunctionType):
        return i.truth(i.call_now(method, (container, element)))
    if kind is ShadowDict:
        return dictionaries.get(i.outside, container, dictionaries.stored_key(i.outside, element)) is not DELETED
    if isinstance(container, DICT_LIKE + SETS) and not i.outside.is_outside(container):
        return bool(i.native(operator.contains, container, i.outside.concrete(element)))
    if isinstance(container, (str, bytes, range)):
        return bool(i.native(operator.contains, container, i.outside.concrete(element)))
    iterated = (list, tuple, collections.deque, GeneratorValue, *VIEW_TYPES, *ITERATORS)
    if isinstance(container, iterated) or isinstance(lookup(kind, "__iter__"), FunctionType):
        return any(equal(i, candidate, element) for candidate in native_iterator(i, container))
    raise Unsupported(f"membership in a {kind.__name__}")


def equal(i: Interpreter, left: Any, right: Any) -> bool:
    if left is right:
        return True
    if not (_is_known_number(left) and _is_known_number(right)):
        left, right = i.outside.concrete(left), i.outside.concrete(right)
        if contains_symbolic(left) or contains_symbolic(right):
            raise Unsupported("comparing tensors to find one in a container")
    return i.truth(i.now(i.binary, operator.eq, left, right))


def _is_known_number(value: Any) -> bool:
    """A number whose comparison with another number can be guarded."""
    return type(value) in (int, float, bool) or (type(value) is Symbol and not value.from_tensor)


def length_of(i: Interpreter, value: Any) -> int | None:
    """`len(value)` of a container, None where `value` has no length that capture knows."""
    value = i.outside.contents(value)
    kind = type(value)
    if isinstance(lookup(kind, "__len__"), FunctionType):
        return None
    if kind is ShadowDict:
        return dictionaries.length(i.outside, value)
    if kind is TensorProxy:
        if not value.meta.shape:
            raise_in_program(TypeError("len() of a 0-d tensor"))
        return int(value.meta.shape[0])
    if isinstance(value, SEQUENCES) or (
        isinstance(value, DICT_LIKE + SETS + VIEW_TYPES + (collections.deque,)) and not i.outside.is_outside(value)
    ):
        return len(value)
    return None


# methods --------------------------------------------------------------------------------------------------------


def _dict_items(i: Interpreter, shadow: ShadowDict) -> list[tuple[Any, Any]]:
    dictionaries.keys(i.outside, shadow)
    return [(dictionaries.key_value(i.outside, k), dictionaries.get(i.outside, shadow, k)) for k in list(shadow.entries)]


def dict_view(i: Interpreter, shadow: ShadowDict, name: str) -> Any:
    """`d.keys()`, `d.values()` or `d.items()`: a live view of the stand-in's entries, as the user's would be."""
    keys = dictionaries.keys(i.outside, shadow)
    if name != "keys":
        for key in list(shadow.entries):
            dictionaries.get(i.outside, shadow, key)
    if any(type(key) is TensorProxy for key in keys):  # whose keys are real tensors
        stored = {key: dictionaries.stored_key(i.outside, key) for key in keys}
        return getattr({key: dictionaries.get(i.outside, shadow, own) for key, own in stored.items()}, name)()
    view = getattr(shadow.entries, name)()
    i.outside.views[id(view)] = (view, shadow, name)
    return view


def _dict_get(i: Interpreter, shadow: ShadowDict, key: Any, default: Any = None) -> Any:
    value = dictionaries.get(i.outside, shadow, dictionaries.stored_key(i.outside, key))
    return default if value is DELETED else value


def _dict_pop(i: Interpreter, shadow: ShadowDict, key: Any, default: Any = DELETED) -> Any:
    value = dictionaries.get(i.outside, shadow, dictionaries.stored_key(i.outside, key))
    if value is DELETED:
        if default is DELETED:
            raise_in_program(KeyError(key))
        return default
    delete_item(i, shadow, key)
    return value


def _dict_setdefault(i: Interpreter, shadow: ShadowDict, key: Any, default: Any = None) -> Any:
    value = dictionaries.get(i.outside, shadow, dictionaries.stored_key(i.outside, key))
    if value is DELETED:
        set_item(i, shadow, key, default)
        return default
    return value


def _dict_update(i: Interpreter, shadow: ShadowDict, other: Any = (), /, **kwargs: Any) -> None:
    pairs = as_plain_dict(i, other).items() if isinstance(other, (dict, ShadowDict)) else iterate(i, other)
    for key, value in [*pairs, *kwargs.items()]:
        set_item(i, shadow, key, value)


def _dict_clear(i: Interpreter, shadow: ShadowDict) -> None:
    for key in dictionaries.keys(i.outside, shadow):
        delete_item(i, shadow, key)


#: Methods of the user's dictionaries.
DICT_METHODS: dict[str, Callable[..., Any]] = {
    "keys": lambda i, d: dict_view(i, d, "keys"),
    "values": lambda i, d: dict_view(i, d, "values"),
    "items": lambda i, d: dict_view(i, d, "items"),
    "get": _dict_get,
    "pop": _dict_pop,
    "setdefault": _dict_setdefault,
    "update": _dict_update,
    "clear": _dict_clear,
    "copy": lambda i, d: i.mark_created(dict(_dict_items(i, d))),
    "__getitem__": lambda i, d, k: _shadow_item(i, d, k),
    "__setitem__": set_item,
    "__delitem__": delete_item,
    "__contains__": contains,
    "__len__": length_of,
    "__iter__": make_iterator,
    "popitem": lambda i, d: _dict_popitem(i, d),
    "__eq__": lambda i, d, other: equal(i, as_plain_dict(i, d), other),
}


def _dict_popitem(i: Interpreter, shadow: ShadowDict) -> tuple[Any, Any]:
    keys = dictionaries.keys(i.outside, shadow)
    if not keys:
        raise_in_program(KeyError("popitem(): dictionary is empty"))
    return keys[-1], _dict_pop(i, shadow, keys[-1])


def call_container_method(i: Interpreter, shadow: Any, name: str, args: Any, kwargs: Any) -> Any:
    """A method of a dictionary, list, set or deque of the user's."""
    if type(shadow) is ShadowDict:
        return DICT_METHODS[name](i, shadow, *args, **kwargs)
    kind = type(shadow.real)
    if shadow.items is None and getattr(shadow.real, "maxlen", None) is None and len(args) == 1:
        if name == ("add" if kind is set else "append"):
            shadow.added.append(args[0])
            return None
        if name == ("update" if kind is set else "extend"):
            shadow.added.extend(iterate(i, args[0]))
            return None
    from .native_methods import call_method

    return call_method(i, getattr(kind, name), i.outside.open(shadow), args, kwargs)
