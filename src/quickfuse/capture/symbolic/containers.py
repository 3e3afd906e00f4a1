"""Containers of the user's as the captured code sees them: the real ones are not touched."""

from __future__ import annotations

import collections
import gc
import weakref
from types import FunctionType, MappingProxyType
from typing import Any

import torch

from ...errors import Unsupported
from ...ir.guard import NumberExpr
from ...ir.source import Source
from .graph_values import TensorProxy
from .kinds import CODE_TYPES
from .made import DELETED, LAZY
from .outside import ForeignObject, FromOutside, is_constant

#: The dictionaries whose methods are native and known to capture.
DICTS: tuple[type, ...] = (collections.OrderedDict, collections.defaultdict, dict)


class ShadowDict(FromOutside):
    """A dictionary that belongs to the user, as the captured code sees it: the real one is not touched. `cls` is the class
    of `DICTS` that it is an instance of, perhaps through a class of the user's.

    `entries` has every key of the real dictionary in order, with `LAZY` in place of values that nobody read; keys that
    are tensors are the real tensors. `changes` lists the keys that the captured code set or deleted, in order, and
    `removed` those that were deleted, perhaps to be set again, at the end. `mirrored` are entries of an object's `__dict__`
    that are attributes which the captured code has set: they are changes of the object. `late` are keys and values that were
    set once a key was known only by the number or text that it is made of, in order, after all other changes: what the
    dictionary has from then on is not known. `seen`: all keys were looked at. `outside` is the `outside.reading.Outside`.
    """

    __slots__ = ("changes", "cls", "compares", "entries", "late", "mirrored", "removed", "seen")

    def __init__(self, real: dict[Any, Any], source: Source) -> None:
        super().__init__(real, source)
        self.cls: type = next(cls for cls in DICTS if issubclass(type(real), cls))
        by_order = issubclass(self.cls, collections.OrderedDict)
        self.entries: dict[Any, Any]
        if by_order:  # whose views are of classes of their own
            self.entries = collections.OrderedDict.fromkeys(collections.OrderedDict.__iter__(real), LAZY)
        else:  # of a dictionary, without asking keys for their hashes
            self.entries = dict.fromkeys(real if type(real) is dict else dict.copy(real), LAZY)
        if len(self.entries) != dict.__len__(real):
            raise Unsupported("a dictionary of which two keys are equal by now")
        self.compares: bool | None = None  # whether its keys, looked up, do nothing but compare what they have
        self.changes: dict[Any, None] = {}
        self.removed: dict[Any, None] = {}
        self.mirrored: set[str] = set()
        self.late: list[tuple[Any, Any]] = []
        self.seen = False

    @property
    def is_changed(self) -> bool:
        """Whether the captured code set or deleted something."""
        return bool(self.changes or self.removed or self.late)

    @property
    def may_have_late_keys(self) -> bool:
        """Whether a key may be set that only the graph tells: not among attributes and globals, nor under a view of keys."""
        is_namespace = self.source.kind == "attr" and self.source.key == "__dict__"
        return not (is_namespace or self.seen or self.mirrored or dict.__contains__(self.real, "__builtins__"))

    def get(self, outside: Any, key: Any, default: Any = DELETED) -> Any:
        """The value at a key (as stored: tensors as real tensors), `default` if it has none."""
        self._refuse_late()
        value = self.entries.get(key, DELETED)
        if is_by_content(key) and key not in self.changes and (value is DELETED) is dict.__contains__(self.real, key):
            raise Unsupported("a dictionary whose keys were changed")
        if value is LAZY:
            value = outside.wrap(dict.__getitem__(self.real, key), self.source.item(_looked_up(outside, key)))
            self.entries[key] = value
        elif value is DELETED:
            if key not in self.changes and key not in self.mirrored:
                self._guard_absent(outside, key)
            return default
        return value

    def _guard_absent(self, outside: Any, key: Any) -> None:
        looked_up = _looked_up(outside, key)
        if isinstance(looked_up, NumberExpr):
            outside.require(NumberExpr("({} in {})", (looked_up, self.source)), False)
        else:
            outside.guard("absent", self.source, (looked_up,))

    def has_unread_tensor(self, outside: Any, key: Any) -> bool:
        """Whether a tensor is at a key that nobody has looked at. Its class is guarded alone: what is only replaced may have
        another shape in each call."""
        self._refuse_late()
        if self.entries.get(key) is not LAZY or type(dict.__getitem__(self.real, key)) is not torch.Tensor:
            return False
        outside.guard("type", self.source.item(_looked_up(outside, key)), torch.Tensor)
        return True

    def keys(self, outside: Any) -> list[Any]:
        """All keys in order, guarded to stay the same. Raises `Unsupported` where they did not in many calls."""
        self._refuse_changing(outside)
        self.seen = True
        order = collections.OrderedDict.__iter__ if self.cls is collections.OrderedDict else dict.__iter__
        for place, key in enumerate(order(self.real)):
            has_no_path = is_constant(key) or isinstance(key, (*CODE_TYPES, torch.Tensor, tuple))
            if not has_no_path and outside.source_of(key) is None:
                outside.wrap(key, self.source.keys().item(place))
        outside.guard("keys", self.source, tuple(_key_source(outside, k) for k in order(self.real)))
        return [key_value(outside, k) for k in self.entries]

    def length(self, outside: Any) -> int:
        """`len(d)`."""
        self._refuse_late()
        if self.mirrored:
            self.keys(outside)
        else:
            self._refuse_changing(outside)
            outside.guard("length", self.source, dict.__len__(self.real))
        return len(self.entries)

    def _refuse_late(self) -> None:
        if self.late:
            raise Unsupported("a look at a dictionary with a new key that keeps changing, or that only the graph tells")

    def _refuse_changing(self, outside: Any) -> None:
        self._refuse_late()
        if outside.keeps_changing(self.source):
            raise Unsupported(f"looking at the keys of a {type(self.real).__name__} that keeps changing")

    def mirror(self, name: str, value: Any) -> None:
        """Let the stand-in of an object's `__dict__` show an attribute that was set, or deleted."""
        if value is DELETED:
            self.entries.pop(name, None)
        else:
            self.entries[name] = value
        self.mirrored.add(name)

    def begin_change(self, key: Any) -> None:
        """The captured code is about to set or to delete an entry."""
        if key in self.mirrored:
            raise Unsupported("changing an attribute in two ways")
        if dict.__contains__(self.real, "__builtins__"):  # names are looked up past this stand-in
            raise Unsupported("a change of globals in their dictionary")


def _key_source(outside: Any, key: Any) -> Any:
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
        if outside.is_by_code(key) or outside.made(key) is not None:
            raise Unsupported(f"a dictionary key of type {type(key).__name__}")
        return key  # by its identity, which a guard holds where it was found
    source = outside.source_of(key)
    if source is None:
        raise Unsupported(f"a dictionary key of type {type(key).__name__}")
    return source


def _looked_up(outside: Any, key: Any) -> Any:
    """The same for a key that is looked up. What another object is equal to is found by an expression: the object at the
    key's path, or a copy of one that captured code made, which may be another one in each call."""
    if not is_by_content(key):
        return _key_source(outside, key)
    return outside.key_of_expr(outside.program.looked_up(key))


def is_by_content(key: Any) -> bool:
    """Whether a key is an object whose class says in Python how it is hashed, or a weak reference, or a tuple with such."""
    if type(key) is tuple:
        return any(map(is_by_content, key))
    if isinstance(key, weakref.ref):
        return True
    return isinstance(type(key).__hash__, FunctionType) and not is_constant(key) and not isinstance(key, torch.Tensor)


def _is_plain_class(value: Any) -> bool:
    """Whether a value is a class that is equal to itself alone."""
    return isinstance(value, type) and type(value).__eq__ is type.__eq__ and type(value).__hash__ is type.__hash__


def key_value(outside: Any, key: Any) -> Any:
    """A stored key as the captured code sees it."""
    if is_constant(key) or isinstance(key, CODE_TYPES):
        return key
    stand_in = outside.stand_in(key)
    if stand_in is None and (made := outside.made(key)) is not None and made.owner is None:
        return key
    if stand_in is None and not isinstance(key, tuple):
        raise Unsupported(f"a dictionary key of type {type(key).__name__} without a path to it")
    return key if stand_in is None else stand_in


def stored_key(outside: Any, key: Any) -> Any:
    """A key of the captured code as it is stored in the user's dictionary."""
    if type(key) is TensorProxy:
        if key.real is None:
            raise Unsupported("a new tensor as a dictionary key")
        return key.real
    return key.real if type(key) is ForeignObject else outside.concrete(key)


#: The containers, besides dictionaries, whose methods are native and known to capture.
CONTAINERS: tuple[type, ...] = (list, set, collections.deque, tuple, frozenset)


class ShadowContainer(FromOutside):
    """A list, set or deque that belongs to the user, as the captured code sees it: the real one is not touched. So are
    tuples and frozensets of classes of the user's. `cls` is the builtin class.

    `items` is a container of that class that holds stand-ins and is changed in place; None until something looks at
    the contents. Adding at the end needs no look: `added` has what was added before that. `original` are the stand-ins that
    it began with, `ending` those of them whose end can be seen, once that was asked. `unordered`: `items` is a set
    in another order than the real one.
    """

    __slots__ = ("added", "cls", "ending", "items", "original", "unordered")

    def __init__(self, real: Any, source: Source) -> None:
        super().__init__(real, source)
        self.cls: type = next(cls for cls in CONTAINERS if isinstance(real, cls))
        self.items: Any = None
        self.added: list[Any] = []
        self.original: list[Any] = []
        self.ending: list[Any] | None = None
        self.unordered = False

    @property
    def is_changed(self) -> bool:
        """Whether the captured code left it with other contents than it found."""
        if self.items is None:
            return bool(self.added)
        if isinstance(self.items, (set, frozenset)):
            return self.items != set(self.original)
        return list(map(id, self.items)) != list(map(id, self.original))


class MappingProxy(ForeignObject):
    """A view of the user's; `behind` stands for the dictionary that it shows."""

    __slots__ = ("behind",)

    def __init__(self, real: MappingProxyType[Any, Any], source: Source, behind: ShadowDict) -> None:
        super().__init__(real, source)
        self.behind = behind


def dictionary_behind(proxy: MappingProxyType[Any, Any]) -> dict[Any, Any] | None:
    """The dictionary that a view shows, None if it shows another mapping."""
    behind = gc.get_referents(proxy)
    return behind[0] if len(behind) == 1 and type(behind[0]) in (dict, collections.OrderedDict) else None


def opened(value: Any) -> Any:
    """What stands for the dictionary behind a view; other values as they are."""
    return value.behind if type(value) is MappingProxy else value
