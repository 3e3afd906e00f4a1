"""Every exception that quickfuse raises on purpose."""

from __future__ import annotations

from types import CodeType


class QuickfuseError(Exception):
    """Base of all errors of quickfuse."""


class Unsupported(QuickfuseError):
    """A stage met something that it has no rule for. Internal: `compile.py` turns it into a logged fall-back.

    `reason` is a clause for the user ("no rule for the operator aten.foo"), `hint` what to write instead, `location` the
    "file:line" that the user should look at, where known, and `trace` the captured program's frames (see `ir.trace`).
    """

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self.location = ""
        self.trace: tuple[tuple[CodeType, int], ...] = ()


class GraphBreak(QuickfuseError):
    """Raised under `fullgraph=True` where a graph would break: the reason, the user's source line and a hint."""


class BackendError(QuickfuseError):
    """A custom backend raised. The cause is chained; the message names the backend."""


class InternalError(QuickfuseError):
    """The compiler itself failed, with `raise_internal_errors` set. The cause is chained."""


class RecompileLimit(QuickfuseError):
    """A function was specialised more often than `config.recompile_limit`, with `config.on_recompile_limit="error"`."""
