"""Objects that lie on the stack as they are because capture made them."""

from __future__ import annotations

from typing import Any


class Made:
    """How such an object, `value`, came to be. By the captured code itself, where `owner` is None: it may change the object,
    and compiled code makes another one. Otherwise it belongs to `owner`: reading its attribute or calling its method `name`
    gives the object, or, where `name` is empty, it holds the contents of that container of the user's."""

    __slots__ = ("name", "owner", "value")

    def __init__(self, value: Any, owner: Any = None, name: str = "") -> None:
        self.value = value
        self.owner = owner
        self.name = name
