"""Containers of the user's as the captured code sees them: the real ones are not touched."""

from __future__ import annotations

import collections
from typing import Any

from ...ir.source import Source
from .from_outside import FromOutside
from .missing import LAZY

#: The dictionaries, and the other containers, whose methods are native and known to capture.
DICTS: tuple[type, ...] = (collections.OrderedDict, collections.defaultdict, dict)
CONTAINERS: tuple[type, ...] = (list, set, collections.deque, tuple, frozenset)


class ShadowDict(FromOutside):
    """A dictionary that belongs to the user, as the captured code sees it: the real one is not touched. `cls` is the class
    of `DICTS` that it is an instance of, perhaps through a class of the user's.

    `entries` has every key of the real dictionary in order, with `LAZY` in place of values that nobody read; keys that
    are tensors are the real tensors. `changes` lists the keys that the captured code set or deleted, in order, and
    `removed` those that were deleted, perhaps to be set again, at the end. `mirrored` are entries of an object's `__dict__`
    that are attributes which the captured code has set: they are changes of the object.
    """

    __slots__ = ("changes", "cls", "entries", "mirrored", "removed")

    def __init__(self, real: dict[Any, Any], source: Source) -> None:
        super().__init__(real, source)
        self.cls: type = next(cls for cls in DICTS if isinstance(real, cls))
        keys = collections.OrderedDict.__iter__(real) if isinstance(real, collections.OrderedDict) else dict.__iter__(real)
        self.entries: dict[Any, Any] = dict.fromkeys(keys, LAZY)
        self.changes: dict[Any, None] = {}
        self.removed: dict[Any, None] = {}
        self.mirrored: set[str] = set()


class ShadowContainer(FromOutside):
    """A list, set or deque that belongs to the user, as the captured code sees it: the real one is not touched. So are
    tuples and frozensets of classes of the user's. `cls` is the builtin class.

    `items` is a container of that class that holds stand-ins and is changed in place; None until something looks at
    the contents. Adding at the end needs no look: `added` has what was added before that.
    """

    __slots__ = ("added", "cls", "items", "original")

    def __init__(self, real: Any, source: Source) -> None:
        super().__init__(real, source)
        self.cls: type = next(cls for cls in CONTAINERS if isinstance(real, cls))
        self.items: Any = None
        self.added: list[Any] = []
        self.original: list[Any] = []


class ContainerMethod:
    """`c.name` for a `ShadowDict` or `ShadowContainer`, not yet called."""

    __slots__ = ("name", "shadow")

    def __init__(self, shadow: ShadowDict | ShadowContainer, name: str) -> None:
        self.shadow = shadow
        self.name = name
