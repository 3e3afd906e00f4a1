"""What a compiled function says: in logs, in its list of breaks, and in exceptions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import config, errors, logs
from ..capture.graph.failing import is_in_try
from ..errors import Unsupported
from ..explain.hints import hint_for, says_program_raises
from ..ir.frame import FrameState
from ..ir.segment import Break
from ..ir.trace import summary
from ..settings import Settings
from .points import Point
from .report import save_report


class Reporting:
    """The part of `Compiled` that tells users what became of their function, and why."""

    __slots__ = ()

    function: Callable[..., Any]
    settings: Settings
    points: dict[Any, Point]
    breaks: list[Break]
    native_reason: str | None
    _plain: Any  # the Python function, if there is one; as such mypy would take it for a method

    def _say_break(self, pause: Break) -> None:
        """Log a break, once for each place and reason."""
        if self._remember_break(pause) and logs.enabled("graph_breaks"):
            line = errors.line_at(pause.location)
            source = f"\n    {line}" if line else ""
            logs.emit("graph_breaks", f"graph break at {pause.location}: {pause.reason}{source}\n  hint: {pause.hint}")

    def _remember_break(self, pause: Break) -> bool:
        if any(known.location == pause.location and known.reason == pause.reason for known in self.breaks):
            return False
        pause.hint = hint_for(pause.reason, pause.hint)
        self.breaks.append(pause)
        return True

    def _graph_break(self, reason: Unsupported) -> errors.GraphBreak:
        hint = hint_for(reason.reason, reason.hint)
        return errors.GraphBreak(reason.reason, hint, reason.location or self._beginning(), summary(reason.trace))

    def _raises(self, reason: Unsupported) -> bool:
        """Whether capture ended where the program raises, so that running it shows its exception."""
        return says_program_raises(reason.reason) and not any(is_in_try(code, position) for code, position in reason.trace)

    def _beginning(self) -> str:
        if self._plain is None:
            return ""
        return f"{self._plain.__code__.co_filename}:{self._plain.__code__.co_firstlineno}"

    def _raise_internal_errors(self) -> bool:
        return self.settings.raise_internal_errors or config.raise_internal_errors

    def _refuse_or_log(self, reason: str) -> None:
        """Say that this call is not captured.

        Raises:
            GraphBreak: where the whole function is to be one graph.
        """
        if self.settings.fullgraph:
            raise self._graph_break(Unsupported(reason))
        self.say_native(reason)

    def _shown(self) -> str:
        """The name of the function, or of the class of what is called, or what the user calls it."""
        return self.settings.name or getattr(self.function, "__qualname__", None) or type(self.function).__name__

    def say_native(self, reason: str, location: str = "") -> None:
        """Log why calls run natively."""
        logs.emit("graph_breaks", f"{self._shown()} runs natively: {reason}{f' at {location}' if location else ''}")

    def _log_at(self, reason: str, frame: FrameState) -> None:
        logs.emit("graph_breaks", f"{frame.code.co_qualname} at {frame.location}: {reason}")

    def _report_internal_error(self, error: Exception) -> None:
        if not self.points:
            self.native_reason = f"internal error: {type(error).__name__}: {error}"  # type: ignore[misc]  # see `Compiled`
        logs.log.warning(
            "internal error while compiling %s (%s: %s); it runs natively. %s",
            getattr(self.function, "__qualname__", type(self.function).__name__), type(error).__name__, error,
            save_report(self.function, error),
        )  # fmt: skip
