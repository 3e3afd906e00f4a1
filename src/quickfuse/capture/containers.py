"""Containers and iteration: items, membership, length, and the methods of the user's dictionaries.

Containers made by captured code are real ones and are changed in place. Lists of the user's are copies (`Outside`
compares them at the end); dictionaries of the user's are `ShadowDict`s.
"""

from __future__ import annotations

import collections
import itertools
import operator
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from ..errors import Unsupported
from .frame import GeneratorValue
from .values import (
    DELETED,
    ShadowDict,
    Symbol,
    TensorProxy,
    contains_symbolic,
    is_constant,
    symbolic_leaves,
)

if TYPE_CHECKING:
    from .interpreter import Interpreter

Then = Callable[[Any], None]

SEQUENCES = (list, tuple, str, bytes, range)
DICT_LIKE = (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)
SETS = (set, frozenset)

#: Iterators that captured code makes: they run natively, and pull symbolic values out of what they iterate over.
ITERATORS: tuple[type, ...] = (
    *(type(iter(x)) for x in ([], (), {}, set(), "", b"", range(0), {}.items(), {}.values())),
    type(reversed([])), type(x for x in ()), zip, map, filter, enumerate, itertools.chain, itertools.count,
    itertools.repeat, itertools.islice, itertools.cycle, itertools.product, itertools.zip_longest, itertools.accumulate,
    itertools.starmap, itertools.takewhile, itertools.dropwhile, itertools.combinations, itertools.permutations,
)  # fmt: skip

VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))


def _raise(exception: BaseException) -> Any:
    from .interpreter import Raised

    raise Raised(exception)


# iteration ------------------------------------------------------------------------------------------------------


def make_iterator(i: Interpreter, value: Any) -> Any:
    """`iter(value)`: a native iterator over stand-ins."""
    kind = type(value)
    if kind is GeneratorValue or isinstance(value, ITERATORS):
        return value
    if kind is Symbol:
        _raise(TypeError(f"'{value.kind.__name__}' object is not iterable"))
    if kind is TensorProxy:
        if value.meta.ndim == 0:
            _raise(TypeError("iteration over a 0-d tensor"))
        return iter(i.graph.call("call_method", "unbind", (value, 0), {}))
    if kind is ShadowDict:
        return iter(i.outside.dict_keys(value))
    if isinstance(value, SEQUENCES + DICT_LIKE + VIEWS) or kind is collections.deque:
        return iter(value)
    if isinstance(value, SETS) and not i.outside.is_outside(value):
        return iter(value)
    method = getattr(kind, "__iter__", None)
    if isinstance(method, FunctionType):
        return make_iterator(i, i.call_now(method, (value,)))
    if isinstance(getattr(kind, "__next__", None), FunctionType):
        return drive_object(i, value)
    raise Unsupported(f"iterating over a {kind.__name__}")


def native_iterator(i: Interpreter, value: Any) -> Iterator[Any]:
    """An iterator that native functions such as `zip` can use, also over generators of the captured code."""
    iterator = make_iterator(i, value)
    return drive(i, iterator) if type(iterator) is GeneratorValue else iterator  # type: ignore[no-any-return]


def drive(i: Interpreter, generator: GeneratorValue) -> Iterator[Any]:
    """Run a generator of the captured code from native code."""
    while True:
        found, element = i.resume_generator(generator)
        if not found:
            return
        yield element


def drive_object(i: Interpreter, value: Any) -> Iterator[Any]:
    """Run an object with a Python `__next__` from native code."""
    from .interpreter import Raised

    while True:
        try:
            element = i.call_now(type(value).__next__, (value,))
        except Raised as raised:
            if isinstance(raised.exception, StopIteration):
                return
            raise
        yield element


def next_of(i: Interpreter, iterator: Any) -> tuple[bool, Any]:
    """(True, element) or, at the end, (False, None)."""
    if type(iterator) is GeneratorValue:
        return i.resume_generator(iterator)
    try:
        return True, next(iterator)
    except StopIteration:
        return False, None


def iterate(i: Interpreter, value: Any) -> list[Any] | tuple[Any, ...]:
    """All elements."""
    if type(value) in (list, tuple):
        return value  # type: ignore[no-any-return]
    return list(native_iterator(i, value))


def as_plain_dict(i: Interpreter, value: Any) -> dict[Any, Any]:
    if type(value) is ShadowDict:
        i.outside.dict_keys(value)
        return {i.outside.key_value(k): i.outside.dict_get(value, k) for k in list(value.entries)}
    if isinstance(value, dict):
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


def get_item(i: Interpreter, base: Any, key: Any, then: Then) -> None:
    """`base[key]`, given to `then`."""
    kind = type(base)
    key = concrete_key(i, key)
    if kind is TensorProxy:
        then(i.graph.call("call_function", operator.getitem, (base, key), {}))
    elif kind is ShadowDict:
        then(_shadow_item(i, base, key))
    elif isinstance(base, SEQUENCES) and not isinstance(kind.__dict__.get("__getitem__"), FunctionType):
        then(_created(i, i.native(operator.getitem, base, key)))
    elif isinstance(base, (dict, collections.deque)) and not i.outside.is_outside(base):
        then(_inside_item(i, base, key))
    elif isinstance(base, type) and is_constant(key) | isinstance(key, type):
        then(i.native(operator.getitem, base, key))
    else:
        method = getattr(kind, "__getitem__", None)
        if not isinstance(method, FunctionType):
            raise Unsupported(f"an item of a {kind.__name__}")
        from .calls import call

        call(i, method, (base, key), {}, then)


def _created(i: Interpreter, value: Any) -> Any:
    return i.mark_created(value) if type(value) is list and not i.outside.is_outside(value) else value


def _inside_item(i: Interpreter, base: Any, key: Any) -> Any:
    if isinstance(base, dict) and key not in base:
        if isinstance(base, collections.defaultdict) and base.default_factory is not None:
            base[key] = i.call_now(base.default_factory, ())
            return base[key]
        if not isinstance(base, collections.Counter):
            _raise(KeyError(key))
    return i.native(operator.getitem, base, key)


def _shadow_item(i: Interpreter, shadow: ShadowDict, key: Any) -> Any:
    stored = i.outside.stored_key(key)
    value = i.outside.dict_get(shadow, stored)
    if value is not DELETED:
        return value
    factory = getattr(shadow.real, "default_factory", None)
    if factory is None:
        _raise(KeyError(key))
    factory = i.outside.wrap(factory, shadow.source.attr("default_factory"))
    value = i.call_now(factory, ())
    set_item(i, shadow, key, value)
    return value


def set_item(i: Interpreter, base: Any, key: Any, value: Any) -> None:
    """`base[key] = value`."""
    kind = type(base)
    key = concrete_key(i, key)
    if kind is TensorProxy:
        i.graph.call("call_function", operator.setitem, (base, key, value), {})
    elif kind is ShadowDict:
        stored = i.outside.stored_key(key)
        i.outside.dict_get(base, stored)
        base.entries[stored] = value
        base.changes[stored] = None
    elif kind is list or (isinstance(base, (dict, collections.deque)) and not i.outside.is_outside(base)):
        if isinstance(key, slice):
            value = list(iterate(i, value))
        i.native(operator.setitem, base, key, value)
    else:
        method = getattr(kind, "__setitem__", None)
        if not isinstance(method, FunctionType):
            raise Unsupported(f"setting an item of a {kind.__name__}")
        i.call_now(method, (base, key, value))


def delete_item(i: Interpreter, base: Any, key: Any) -> None:
    """`del base[key]`."""
    key = concrete_key(i, key)
    if type(base) is ShadowDict:
        stored = i.outside.stored_key(key)
        if i.outside.dict_get(base, stored) is DELETED:
            _raise(KeyError(key))
        del base.entries[stored]
        base.changes[stored] = None
        base.removed[stored] = None
    elif type(base) is list or (isinstance(base, dict) and not i.outside.is_outside(base)):
        i.native(operator.delitem, base, key)
    else:
        method = getattr(type(base), "__delitem__", None)
        if not isinstance(method, FunctionType):
            raise Unsupported(f"deleting an item of a {type(base).__name__}")
        i.call_now(method, (base, key))


def contains(i: Interpreter, container: Any, element: Any) -> bool:
    """`element in container`."""
    kind = type(container)
    if kind is ShadowDict:
        return i.outside.dict_get(container, i.outside.stored_key(element)) is not DELETED
    if isinstance(container, DICT_LIKE + SETS) and not i.outside.is_outside(container):
        return bool(i.native(operator.contains, container, i.outside.concrete(element)))
    if isinstance(container, (str, bytes, range)):
        return bool(i.native(operator.contains, container, i.outside.concrete(element)))
    if isinstance(container, (list, tuple, *VIEWS)) or kind is GeneratorValue or isinstance(container, ITERATORS):
        return any(_equal(i, candidate, element) for candidate in native_iterator(i, container))
    method = getattr(kind, "__contains__", None)
    if isinstance(method, FunctionType):
        return i.truth(i.call_now(method, (container, element)))
    raise Unsupported(f"membership in a {kind.__name__}")


def _equal(i: Interpreter, left: Any, right: Any) -> bool:
    if left is right:
        return True
    left, right = i.outside.concrete(left), i.outside.concrete(right)
    if contains_symbolic(left) or contains_symbolic(right):
        raise Unsupported("comparing tensors to find one in a container")
    result: list[Any] = []
    depth = len(i.frames)
    i.binary(operator.eq, left, right, result.append)
    i.run_until(depth)
    return i.truth(result[0])


def length_of(i: Interpreter, value: Any) -> int | None:
    """`len(value)` of a container, None where `value` has no length that capture knows."""
    kind = type(value)
    if kind is ShadowDict:
        return i.outside.dict_length(value)
    if kind is TensorProxy:
        if not value.meta.shape:
            _raise(TypeError("len() of a 0-d tensor"))
        return int(value.meta.shape[0])
    if isinstance(value, SEQUENCES) or (
        isinstance(value, DICT_LIKE + SETS + VIEWS + (collections.deque,)) and not i.outside.is_outside(value)
    ):
        return len(value)
    return None


# methods --------------------------------------------------------------------------------------------------------


def _dict_items(i: Interpreter, shadow: ShadowDict) -> list[tuple[Any, Any]]:
    i.outside.dict_keys(shadow)
    return [(i.outside.key_value(k), i.outside.dict_get(shadow, k)) for k in list(shadow.entries)]


def _dict_get(i: Interpreter, shadow: ShadowDict, key: Any, default: Any = None) -> Any:
    value = i.outside.dict_get(shadow, i.outside.stored_key(key))
    return default if value is DELETED else value


def _dict_pop(i: Interpreter, shadow: ShadowDict, key: Any, default: Any = DELETED) -> Any:
    value = i.outside.dict_get(shadow, i.outside.stored_key(key))
    if value is DELETED:
        return _raise(KeyError(key)) if default is DELETED else default
    delete_item(i, shadow, key)
    return value


def _dict_setdefault(i: Interpreter, shadow: ShadowDict, key: Any, default: Any = None) -> Any:
    value = i.outside.dict_get(shadow, i.outside.stored_key(key))
    if value is DELETED:
        set_item(i, shadow, key, default)
        return default
    return value


def _dict_update(i: Interpreter, shadow: ShadowDict, other: Any = (), /, **kwargs: Any) -> None:
    pairs = as_plain_dict(i, other).items() if isinstance(other, (dict, ShadowDict)) else iterate(i, other)
    for key, value in [*pairs, *kwargs.items()]:
        set_item(i, shadow, key, value)


def _dict_clear(i: Interpreter, shadow: ShadowDict) -> None:
    for key in i.outside.dict_keys(shadow):
        delete_item(i, shadow, key)


#: Methods of the user's dictionaries.
DICT_METHODS: dict[str, Callable[..., Any]] = {
    "keys": lambda i, d: i.outside.dict_keys(d),
    "values": lambda i, d: [v for _, v in _dict_items(i, d)],
    "items": _dict_items,
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
}

#: Methods of lists and other containers made by captured code that never look at what the elements are.
NATIVE_METHODS: dict[type, frozenset[str]] = {
    list: frozenset("append extend insert pop clear reverse copy __getitem__ __len__ __iter__".split()),
    tuple: frozenset("__getitem__ __len__ __iter__".split()),
    dict: frozenset("keys values items get pop popitem setdefault update clear copy __getitem__ __setitem__".split()),
    set: frozenset("add discard remove union difference intersection update clear copy issubset issuperset pop".split()),
    frozenset: frozenset("union difference intersection issubset issuperset copy".split()),
    collections.deque: frozenset("append appendleft extend pop popleft clear rotate copy".split()),
}


def call_native_method(i: Interpreter, instance: Any, name: str, args: Any, kwargs: Any) -> Any:
    """A method of a container that captured code made, or of a plain constant."""
    kind = next((k for k in NATIVE_METHODS if isinstance(instance, k)), None)
    if kind is None or i.outside.is_outside(instance) and kind is not list:
        if is_constant(instance) and is_constant(args := tuple(i.outside.concrete(a) for a in args)):
            return i.native(getattr(instance, name), *args, **kwargs)
        if isinstance(instance, str) and name in ("join", "format"):
            parts = [list(iterate(i, a)) if not is_constant(a) else a for a in args]
            if not any(True for _ in symbolic_leaves(parts)):
                return i.native(getattr(instance, name), *parts, **kwargs)
        raise Unsupported(f"the method {name} of a {type(instance).__name__}")
    if name in NATIVE_METHODS[kind]:
        if name in ("extend", "update", "union", "difference", "intersection"):
            args = tuple(as_plain_dict(i, a) if type(a) is ShadowDict else iterate(i, a) for a in args)
        elif kind is not list or name in ("pop", "insert"):
            args = (*(i.outside.concrete(a) for a in args[:1]), *args[1:])
        result = i.native(getattr(instance, name), *args, **kwargs)
        return list(result) if isinstance(result, VIEWS) else result
    if contains_symbolic(instance) or contains_symbolic(args):
        raise Unsupported(f"the method {name} of a {kind.__name__} of tensors or numbers")
    if kwargs or any(isinstance(a, (FunctionType, MethodType)) for a in args):
        raise Unsupported(f"the method {name} with a function")
    return i.native(getattr(instance, name), *args)
