"""What every object of the user's has in common, while captured code uses it."""

from __future__ import annotations

from typing import Any

from ...ir.source import Source


class FromOutside:
    """What stands for an object that existed before the call: `real` is the object, which capture reads and never changes,
    `source` where it was found first. `attributes` are those that the captured code has set, or deleted."""

    __slots__ = ("attributes", "real", "source")

    def __init__(self, real: Any, source: Source) -> None:
        self.real = real
        self.source = source
        self.attributes: dict[str, Any] = {}


class Place(FromOutside):
    """Where an object was found that lies on the stack as it is: a function, class, module or method, which is the same
    object at each call, or (`by_code`) which is known by its code or its owner, so that another one may stand at its source;
    a variable of an enclosing function; or a tuple, method or partial function, in whose place is
    one of stand-ins, its `contents`."""

    __slots__ = ("by_code", "contents")

    def __init__(self, real: Any, source: Source, by_code: bool = False) -> None:
        super().__init__(real, source)
        self.by_code = by_code
        self.contents: Any = None
