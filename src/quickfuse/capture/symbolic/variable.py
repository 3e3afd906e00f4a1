"""Variables of the user's that the captured code assigned."""

from __future__ import annotations

from typing import Any


class Assigned:
    """The value that a variable has now, `DELETED` if it has none: the global `name` of the dictionary `place`, or what the
    cell `place` holds, where `name` is empty."""

    __slots__ = ("name", "place", "value")

    def __init__(self, place: Any, name: str, value: Any) -> None:
        self.place = place
        self.name = name
        self.value = value
