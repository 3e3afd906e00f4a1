"""Every exception that quickfuse raises on purpose."""

from __future__ import annotations

import linecache
import traceback
from types import CodeType


def line_at(location: str) -> str:
    """The text of the line at "file:line"."""
    filename, _, line = location.rpartition(":")
    return linecache.getline(filename, int(line)).strip() if line.isdigit() else ""


def kind_of(value: object) -> str:
    """What kind of value somebody gave, with its article: "an int", "a list"."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


#: How many characters a reason may have: some quote what the program raised, which may be of any length.
LONGEST_REASON = 200


def shortened(reason: str) -> str:
    """A reason as one line of bounded length."""
    line = " ".join(reason.split())
    return line if len(line) <= LONGEST_REASON else line[: LONGEST_REASON - 3] + "..."


class QuickfuseError(Exception):
    """Base of all errors of quickfuse."""


class Unsupported(QuickfuseError):
    """A stage met something that it has no rule for. Internal: `pipeline/compiled.py` turns it into a logged fall-back.

    `reason` is a clause for the user ("no rule for the operator aten.foo"), `hint` what to write instead, `location` the
    "file:line" that the user should look at, where known, and `trace` the captured program's frames (see `ir.trace`).
    """

    def __init__(self, reason: str, hint: str = "") -> None:
        reason = shortened(reason)
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self.location = ""
        self.trace: tuple[tuple[CodeType, int], ...] = ()


class GraphBreak(QuickfuseError):
    """Raised under `fullgraph=True` where a graph would break.

    `reason` says what could not be captured, `hint` what to write instead, `location` is the user's "file:line",
    `source_line` the text of that line, and `user_stack` has the frames of the program, outermost first.
    """

    def __init__(
        self, reason: str, hint: str = "", location: str = "", user_stack: traceback.StackSummary | None = None
    ) -> None:
        self.reason = reason
        self.hint = hint
        self.location = location
        self.source_line = line_at(location)
        self.user_stack = user_stack if user_stack is not None else traceback.StackSummary()
        super().__init__(reason)

    def __str__(self) -> str:
        lines = [f"{self.location}: {self.reason}" if self.location else self.reason]
        if self.source_line:
            lines.append(f"    {self.source_line}")
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


class BackendError(QuickfuseError):
    """A custom backend raised. The cause is chained; the message names the backend."""


class InternalError(QuickfuseError):
    """The compiler itself failed, with `raise_internal_errors` set. The cause is chained."""


class RecompileLimit(QuickfuseError):
    """A function was specialised more often than `config.recompile_limit`, with `config.on_recompile_limit="error"`."""


class ExportError(QuickfuseError):
    """A program that cannot be exported whole: it changes Python objects, or takes arguments that a graph cannot take."""


class ExportedCallError(ExportError):
    """A call of an exported program does not fit what the program was exported for; the message says where."""


class ExportFileError(ExportError):
    """A file that is no exported program, or a damaged one, or one that this version cannot read."""
