"""What the verifier says of a schedule that is wrong."""

from __future__ import annotations

from collections.abc import Iterable

from quickfuse.ir.expr import Expr, statements

#: What may be wrong, by the name that a `ScheduleError` has for it.
KINDS = {
    "value": "what is stored, or given to a call, is not what the program says",
    "bounds": "an access outside of its buffer",
    "unwritten": "a read of what nothing has written",
    "twice": "an element is stored to more than once",
    "missing": "a store, or a call, that the program says never happens",
    "race": "iterations of one launch that meet in memory",
    "order": "random draws, flags, or calls that may fail, in the wrong order",
    "form": "a kernel that contradicts itself",
    "memory": "buffers that are alive together in the same memory",
    "program": "the lowered program itself has no one meaning",
}

#: Statements are cut to so many lines and characters.
_MOST_LINES, _MOST_CHARACTERS = 12, 2000


class ScheduleError(Exception):
    """A schedule does not do what its program says. `kind` is one of `KINDS`; the message has the statements."""

    def __init__(self, kind: str, message: str) -> None:
        assert kind in KINDS, kind
        super().__init__(f"{kind} ({KINDS[kind]}): {message}")
        self.kind = kind


def assignment_text(left: str, value: Expr) -> str:
    """An assignment as text, with names for what its value uses several times."""
    return shortened("; ".join(statements([(left, value)])))


def shortened(text: str) -> str:
    lines = text.splitlines()
    if len(lines) > _MOST_LINES:
        text = "\n".join([*lines[:_MOST_LINES], "..."])
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + " ..."


def both(program: str, schedule: str) -> str:
    """The statements of a program and of a schedule that do not agree."""
    return f"\n  the program:  {program}\n  the schedule: {schedule}"


def listed(parts: Iterable[object]) -> str:
    return ", ".join(map(str, parts))
