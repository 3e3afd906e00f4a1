"""Places in a program where segments begin, and what was compiled for each."""

from __future__ import annotations

from typing import Any

from ..ir.guard import Guard
from ..ir.number_parameters import changed
from ..ir.source import is_element
from .specialise import Specialisation

#: How many specialisations may differ in the value of one number before the number's value counts as changing.
VOLATILE_AFTER = 4
#: The same where a program goes on after a break, where numbers count iterations. Of what an iterator gives, which differs
#: from turn to turn of a loop, one value is enough.
VOLATILE_AFTER_BREAK = 2


class Point:
    """A place in the program where a segment may begin: the call itself, or where a break left off.

    `specialisations` are tried in order, the most recently used first. After a break, those that leave to Python what keeps
    changing (`general`) come last: they fit where the others do, and a loop that runs again is to take the same ones.
    """

    __slots__ = ("capturable", "changed", "failed_guards", "failures", "frames", "general", "lets_go", "specialisations",
                 "unusual", "useful", "volatile")  # fmt: skip

    def __init__(
        self, codes: tuple[Any, ...] = (), volatile: frozenset[str] = frozenset(), lets_go: bool = True
    ) -> None:
        self.specialisations: list[Specialisation] = []
        self.general: set[Specialisation] = set()
        self.capturable = True
        self.failures = 0
        self.useful = False
        self.unusual = 0  # how often a branch had another outcome than usual
        self.failed_guards: list[Guard | None] = []  # of the last call that none of them fitted, one for each
        self.volatile = volatile
        self.changed: frozenset[str] = frozenset()  # the numbers that had two values
        self.lets_go = lets_go  # of each of the frames' values: none is an object whose end can be seen
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

    def note_changed(self) -> None:
        """Note the numbers of which the failed guards hold a value."""
        held = [guard for guard in self.failed_guards if guard is not None and guard.values_held()]
        self.changed |= {changed(str(source)) for guard in held for source in guard.sources()}

    def keeps_changing(self) -> frozenset[str]:
        """The names of numbers, texts and lengths of which the failed guards hold too many values."""
        names = [name for guard in self.failed_guards if guard is not None for name in guard.values_held()]
        if not self.frames:
            return frozenset(name for name in names if names.count(name) >= VOLATILE_AFTER)
        return frozenset(name for name in names if is_element(name) or names.count(name) >= VOLATILE_AFTER_BREAK)
