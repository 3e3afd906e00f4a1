"""Dictionaries of the user's: reading their entries and their keys, with the guards that this needs."""

from __future__ import annotations

import collections
from typing import Any, Protocol

import torch

from ..errors import Unsupported
from ..ir.source import Source
from .kinds import CODE_TYPES
from .values import DELETED, LAZY, ForeignObject, ShadowDict, TensorProxy, is_constant


class Outside(Protocol):
    """What dictionaries ask of `outside.Outside`."""

    def guard(self, kind: str, source: Source | None, value: Any) -> None: ...

    def wrap(self, value: Any, source: Source, trusted: bool = False) -> Any: ...

    def concrete(self, value: Any) -> Any: ...

    def source_of(self, value: Any) -> Source | None: ...

    def stand_in(self, value: Any) -> Any: ...



def get(outside: Outside, shadow: ShadowDict, key: Any, default: Any = DELETED) -> Any:
    """The value at a key (as stored: tensors as real tensors), `default` if it has none."""
    value = shadow.entries.get(key, DELETED)
    if value is LAZY:
        value = outside.wrap(dict.__getitem__(shadow.real, key), shadow.source.item(_key_source(outside, key)))
        shadow.entries[key] = value
    elif value is DELETED:
        if key not in shadow.changes and key not in shadow.mirrored:
            outside.guard("absent", shadow.source, (_key_source(outside, key),))
        return default
    return value


def mirror(shadow: ShadowDict, name: str, value: Any) -> None:
    """Let the stand-in of an object's `__dict__` show an attribute that was set, or deleted."""
    if value is DELETED:
        shadow.entries.pop(name, None)
    else:
        shadow.entries[name] = value
    shadow.mirrored.add(name)


def begin_change(shadow: ShadowDict, key: Any) -> None:
    """The captured code is about to set or to delete an entry."""
    if key in shadow.mirrored:
        raise Unsupported("changing an attribute in two ways")


def keys(outside: Outside, shadow: ShadowDict) -> list[Any]:
    """All keys in order, guarded to stay the same."""
    order = collections.OrderedDict.__iter__ if shadow.cls is collections.OrderedDict else dict.__iter__
    outside.guard("keys", shadow.source, tuple(_key_source(outside, k) for k in order(shadow.real)))
    return [key_value(outside, k) for k in shadow.entries]


def length(outside: Outside, shadow: ShadowDict) -> int:
    if len(shadow.entries) != dict.__len__(shadow.real) or shadow.changes:
        keys(outside, shadow)
    else:
        outside.guard("length", shadow.source, dict.__len__(shadow.real))
    return len(shadow.entries)


def _key_source(outside: Outside, key: Any) -> Any:
    """A key as it stands in a source: constants as they are, tensors and objects by where they come from."""
    if isinstance(key, torch.Tensor):
        return key_value(outside, key).source
    if type(key) in (str, int, bool, float, type(None)):
        return key
    if isinstance(key, type) or is_constant(key):
        return key
    if type(key) is tuple and all(type(part) is str or _is_plain_class(part) for part in key):
        return key
    if isinstance(key, CODE_TYPES):
        raise Unsupported(f"a dictionary key of type {type(key).__name__}")
    source = outside.source_of(key)
    if source is None:
        raise Unsupported(f"a dictionary key of type {type(key).__name__}")
    return source


def _is_plain_class(value: Any) -> bool:
    """Whether a value is a class that is equal to itself alone."""
    return isinstance(value, type) and type(value).__eq__ is type.__eq__ and type(value).__hash__ is type.__hash__


def key_value(outside: Outside, key: Any) -> Any:
    """A stored key as the captured code sees it."""
    if is_constant(key) or isinstance(key, CODE_TYPES):
        return key
    stand_in = outside.stand_in(key)
    if stand_in is None and not isinstance(key, tuple):
        raise Unsupported(f"a dictionary key of type {type(key).__name__} without a path to it")
    return key if stand_in is None else stand_in


def stored_key(outside: Outside, key: Any) -> Any:
    """A key of the captured code as it is stored in the user's dictionary."""
    if type(key) is TensorProxy:
        if key.real is None:
            raise Unsupported("a new tensor as a dictionary key")
        return key.real
    return key.real if type(key) is ForeignObject else outside.concrete(key)
