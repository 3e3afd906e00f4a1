"""Methods of the user's dictionaries, lists, sets and deques.

What changes one is noted in its stand-in, and replayed when compiled code runs.
"""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable
from typing import Any

from ..errors import Unsupported
from .class_attributes import lookup_class, python_method
from .containers import (
    as_plain_dict,
    dict_view,
    is_dict,
    key_value_pairs,
    lookup_key,
    shadow_item,
)
from .interpreter import Interpreter
from .raising import raise_in_program
from .symbolic import DELETED, ContainerMethod, ShadowDict, key_value, stored_key, type_of


def native_items(i: Interpreter, shadow: ShadowDict) -> dict[Any, Any]:
    """The entries of a dictionary of the user's, past its class."""
    shadow.keys(i.outside)
    found = [(key_value(i.outside, k), shadow.get(i.outside, k)) for k in list(shadow.entries)]
    return dict(found)


def _value(i: Interpreter, shadow: ShadowDict, key: Any) -> Any:
    """The value at a key, `DELETED` if there is none."""
    return shadow.get(i.outside, stored_key(i.outside, lookup_key(i, key)))


def _get(i: Interpreter, shadow: ShadowDict, key: Any, default: Any = None) -> Any:
    value = _value(i, shadow, key)
    return default if value is DELETED else value


def _pop(i: Interpreter, shadow: ShadowDict, key: Any, default: Any = DELETED) -> Any:
    value = _value(i, shadow, key)
    if value is DELETED:
        if default is DELETED:
            raise_in_program(KeyError(key))
        return default
    i.kind_of(shadow).delete_item(i, shadow, key)
    return value


def _popitem(i: Interpreter, shadow: ShadowDict) -> tuple[Any, Any]:
    keys = shadow.keys(i.outside)
    if not keys:
        raise_in_program(KeyError("popitem(): dictionary is empty"))
    return keys[-1], _pop(i, shadow, keys[-1])


def _setdefault(i: Interpreter, shadow: ShadowDict, key: Any, default: Any = None) -> Any:
    value = _value(i, shadow, key)
    if value is DELETED:
        i.kind_of(shadow).set_item(i, shadow, key, default)
        return default
    return value


def _update(i: Interpreter, shadow: ShadowDict, *others: Any, **kwargs: Any) -> None:
    pairs = [pair for other in others for pair in key_value_pairs(i, other)]
    own = python_method(i, shadow, "__setitem__") if shadow.cls is collections.OrderedDict else None  # which it calls
    for key, value in [*pairs, *kwargs.items()]:
        if own is not None:
            i.call_now(own, (shadow, key, value))
        else:
            i.kind_of(shadow).set_item(i, shadow, key, value)


def _clear(i: Interpreter, shadow: ShadowDict) -> None:
    for key in shadow.keys(i.outside):
        i.kind_of(shadow).delete_item(i, shadow, key)


def copy_of(i: Interpreter, shadow: ShadowDict) -> Any:
    """`d.copy()`: of the same class where that is one of Python's own; what derives from `dict` gives a plain one."""
    kind = type(shadow.real)
    if shadow.cls is dict:
        return i.mark_created(native_items(i, shadow))
    if kind is collections.OrderedDict:
        return i.mark_created(collections.OrderedDict(native_items(i, shadow)))
    if kind is collections.defaultdict:
        factory = i.outside.wrap(shadow.real.default_factory, shadow.source.attr("default_factory"))
        return i.mark_created(collections.defaultdict(factory, native_items(i, shadow)))
    raise Unsupported(f"copying a {kind.__name__}")


def _compared(outcome: bool) -> Callable[..., Any]:
    def compare(i: Interpreter, shadow: ShadowDict, other: Any) -> Any:
        if not is_dict(other):
            return NotImplemented
        other = ordered_copy(i, other)
        return i.now(i.binary, operator.eq if outcome else operator.ne, ordered_copy(i, shadow), other)

    return compare


def ordered_copy(i: Interpreter, value: Any) -> Any:
    """A dictionary with the entries of one, past its class: an ordered one of an ordered one."""
    if type(value) is not ShadowDict:
        return value
    items = native_items(i, value)
    return i.mark_created(collections.OrderedDict(items) if value.cls is collections.OrderedDict else items)


def _merged(i: Interpreter, shadow: ShadowDict, other: Any) -> Any:
    if not is_dict(other):
        return NotImplemented
    if type(shadow.real) not in (dict, collections.OrderedDict, collections.defaultdict):
        raise Unsupported(f"merging a {type(shadow.real).__name__}")
    made = copy_of(i, shadow)
    made.update(as_plain_dict(i, other))
    return made


def _merged_into(i: Interpreter, shadow: ShadowDict, other: Any) -> Any:
    _update(i, shadow, other)
    return shadow


#: Methods of dictionaries, past the classes of the user's that derive from them.
DICT_METHODS: dict[str, Callable[..., Any]] = {
    "keys": lambda i, d: dict_view(i, d, "keys"),
    "values": lambda i, d: dict_view(i, d, "values"),
    "items": lambda i, d: dict_view(i, d, "items"),
    "get": _get,
    "pop": _pop,
    "popitem": _popitem,
    "setdefault": _setdefault,
    "update": _update,
    "clear": _clear,
    "copy": copy_of,
    "__copy__": copy_of,
    "__init__": _update,
    "__getitem__": shadow_item,
    "__setitem__": lambda i, d, key, value: i.kind_of(d).set_item(i, d, key, value),
    "__delitem__": lambda i, d, key: i.kind_of(d).delete_item(i, d, key),
    "__contains__": lambda i, d, key: _value(i, d, key) is not DELETED,
    "__len__": lambda i, d: d.length(i.outside),
    "__iter__": lambda i, d: iter(dict_view(i, d, "keys")),
    "__reversed__": lambda i, d: reversed(dict_view(i, d, "keys")),
    "__eq__": _compared(True),
    "__ne__": _compared(False),
    "__or__": _merged,
    "__ior__": _merged_into,
}

def is_container_method(shadow: Any, name: str) -> bool:
    """Whether `name` is a method of the builtin class of a container of the user's."""
    if type(shadow) is ShadowDict:
        return name in DICT_METHODS
    return name != "__class__" and callable(lookup_class(shadow.cls, name)[1])


def load_method(i: Interpreter, shadow: Any, name: str) -> Any:
    """`container.name` of a container whose class is Python's own."""
    if name == "__class__":
        return type_of(shadow)
    if not is_container_method(shadow, name):
        i.read(getattr, shadow.real, name)
        raise Unsupported(f"the attribute {name} of a {type(shadow.real).__name__}")
    return ContainerMethod(shadow, name)
