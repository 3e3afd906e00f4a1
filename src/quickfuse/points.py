"""Places in a program where segments begin, and what was compiled for each."""

from __future__ import annotations

from typing import Any

from .ir.guard import Guard
from .specialise import Specialisation


class Point:
    """A place in the program where a segment may begin: the call itself, or where a break left off.

    `specialisations` are tried in order, the most recently used first.
    """

    __slots__ = ("capturable", "failed_guards", "failures", "frames", "specialisations", "useful", "volatile")

    def __init__(self, codes: tuple[Any, ...] = (), volatile: frozenset[str] = frozenset()) -> None:
        self.specialisations: list[Specialisation] = []
        self.capturable = True
        self.failures = 0
        self.useful = False
        self.failed_guards: list[Guard | None] = []  # of the last call that none of them fitted, one for each
        self.volatile = volatile
        self.frames = codes  # keeps the code objects alive whose identities name this place
