"""What the driver keeps for each code object: its decoded form, where its instructions are, and the code derived from it."""

from __future__ import annotations

import weakref
from types import CodeType
from typing import Any

from ..bytecode.decoding import Decoded, decode
from .stacks import Kinds, stack_kinds


class Program:
    """`steps` belongs to `step.py`, `resumes` to `resume.py`, `stand_ins` to `callers.py`, `loops` to `loops.py`.

    For `starts` and `units` see `Decoded`.
    """

    __slots__ = ("_decoded", "_kinds", "code_ref", "loops", "resumes", "stand_ins", "steps")

    def __init__(self, code: CodeType) -> None:
        self.code_ref = weakref.ref(code)
        self.steps: list[Any] | None = None
        self.resumes: dict[Any, Any] = {}
        self.loops: list[Any] | None = None
        self.stand_ins: dict[Any, CodeType] = {}  # by unit, and by (position,) of a suspended frame
        self._decoded: Decoded | None = None
        self._kinds: list[Kinds | None] | None = None

    @property
    def code(self) -> CodeType:
        code = self.code_ref()
        assert code is not None
        return code

    @property
    def decoded(self) -> Decoded:
        if self._decoded is None:
            self._decoded = decode(self.code)
        return self._decoded

    @property
    def starts(self) -> list[int]:
        return self.decoded.starts

    @property
    def units(self) -> list[int]:
        return self.decoded.units

    def kinds(self, position: int) -> Kinds | None:
        """What is on the stack before the instruction at `position`; None where control never gets."""
        if self._kinds is None:
            self._kinds = stack_kinds(self.decoded)
        return self._kinds[position] if position < len(self._kinds) else None


# By identity: code objects that compare equal may come from different files, and hashing one takes a microsecond.
_programs: dict[int, Program] = {}


def program_of(code: CodeType) -> Program:
    found = _programs.get(id(code))
    if found is None:
        found = _programs[id(code)] = Program(code)
        weakref.finalize(code, _programs.pop, id(code), None).atexit = False
    return found

