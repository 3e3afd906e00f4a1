"""Lists, sets and deques of the user's as the captured code sees them: the real ones are not touched."""

from __future__ import annotations

import collections
from typing import Any

from ...ir.source import Source
from .dictionary import ShadowDict
from .from_outside import FromOutside

#: The containers, besides dictionaries, whose methods are native and known to capture.
CONTAINERS: tuple[type, ...] = (list, set, collections.deque, tuple, frozenset)


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

    @property
    def is_changed(self) -> bool:
        """Whether the captured code left it with other contents than it found."""
        if self.items is None:
            return bool(self.added)
        if isinstance(self.items, set):
            return self.items != set(self.original)
        return list(map(id, self.items)) != list(map(id, self.original))


class ContainerMethod:
    """`c.name` for a `ShadowDict` or `ShadowContainer`, not yet called."""

    __slots__ = ("name", "shadow")

    def __init__(self, shadow: ShadowDict | ShadowContainer, name: str) -> None:
        self.shadow = shadow
        self.name = name
