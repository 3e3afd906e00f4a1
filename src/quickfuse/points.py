"""Places in a program where segments begin, and what was compiled for each."""

from __future__ import annotations

from typing import Any

from .ir.guard import Guard
from .specialise import Specialisation


class Point:
    """A place in the program where a segment may begin: the call itself, or where a break left off.

    `specialisations` are tried in order, the most recently used first. After a break, those that leave to Python what keeps
    changing (`general`) come last: they fit where the others do, and a loop that runs again is to take the same ones.
    """

    __slots__ = ("capturable", "failed_guards", "failures", "frames", "general", "specialisations", "unusual", "useful",
                 "volatile")  # fmt: skip

    def __init__(self, codes: tuple[Any, ...] = (), volatile: frozenset[str] = frozenset()) -> None:
        self.specialisations: list[Specialisation] = []
        self.general: set[Specialisation] = set()
        self.capturable = True
        self.failures = 0
        self.useful = False
        self.unusual = 0  # how often a branch had another outcome than usual
        self.failed_guards: list[Guard | None] = []  # of the last call that none of them fitted, one for each
        self.volatile = volatile
        self.frames = codes  # keeps the code objects alive whose identities name this place

    def add(self, specialisation: Specialisation) -> None:
        """Note what was compiled."""
        if self.frames and self.volatile:
            self.general.add(specialisation)
            self.specialisations = [*self.specialisations, specialisation]
        else:
            self.specialisations = [specialisation, *self.specialisations]

    def put_first(self, specialisation: Specialisation) -> None:
        """Try this one, which is not general, first from now on."""
        others = [known for known in self.specialisations if known is not specialisation]
        if len(others) < len(self.specialisations):
            self.specialisations = [specialisation, *others]
