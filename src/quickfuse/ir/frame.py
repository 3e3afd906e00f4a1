"""A suspended frame of the user's program: what CPython keeps for a running function, as real values.

Capture ends a segment by describing such frames, the driver performs single instructions on them, and capture begins
the next segment from them.
"""

from __future__ import annotations

from types import CellType, CodeType
from typing import Any

from ..bytecode.decoding import Decoded, decode
from .trace import line_of


class Marker:
    """A value of a frame that is no object of the program's."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> str:
        return self.name


#: A local variable without a value.
UNBOUND = Marker("UNBOUND")
#: What PUSH_NULL leaves on the stack.
NULL = Marker("NULL")


class Activation:
    """What keeps the variables of a frame that is in an exception's traceback, and goes on.

    CPython has one object for the running function and for the traceback: as long as the exception lives, so do the
    function's variables, after its end too. Here the traceback's entry has a frame of its own, which refers to this
    object, and the suspended frame puts its variables there at its end.
    """

    __slots__ = ("variables",)

    def __init__(self) -> None:
        self.variables: list[Any] = []


class FrameState:
    """One suspended frame.

    * `locals` has a value for each name of `local_names(code)`: `UNBOUND` where there is none. Cell and free variables
      hold their `CellType` object once MAKE_CELL or COPY_FREE_VARS has run.
    * `stack` may hold `NULL` and, below an exception handler's values, the positions that it pushed (`lasti`).
    * `position` is the index of the next instruction in `decode(code).instructions`.
    * `keyword_names` is what KW_NAMES left for the CALL that follows.
    * `handled` are the exceptions whose handlers are running, innermost last; None for what was handled outside.
    * `replacement` is what the caller gets in place of the frame's return value: the new object, for an `__init__` that
      runs as part of a call of its class. `UNBOUND` for other frames.
    * `activation` is set while the frame may be in a traceback.
    * `cells` are, of a frame that waits for another one, the only values whose end may be seen one day (see
      `ir.endings`); None where that is not known.
    """

    __slots__ = (
        "activation", "cells", "code", "globals", "handled", "keyword_names", "lasti", "locals", "position", "replacement",
        "stack",
    )  # fmt: skip

    def __init__(
        self,
        code: CodeType,
        globals_: dict[str, Any],
        locals_: list[Any],
        stack: list[Any],
        position: int,
        keyword_names: tuple[str, ...] = (),
        handled: list[BaseException | None] | None = None,
        replacement: Any = UNBOUND,
    ) -> None:
        self.code = code
        self.globals = globals_
        self.locals = locals_
        self.stack = stack
        self.position = position
        self.lasti = position
        self.keyword_names = keyword_names
        self.handled: list[BaseException | None] = [] if handled is None else handled
        self.replacement = replacement
        self.activation: Activation | None = None
        self.cells: tuple[CellType, ...] | None = None

    def end(self) -> None:
        """The frame is done."""
        if self.activation is not None:
            self.activation.variables = self.locals
        self.forget()

    def forget(self) -> None:
        """Let go of the values: others describe the frame from here on, or it is done. An exception that passed it may
        keep this object, by way of the driver's frames in its traceback."""
        self.activation = None
        self.locals = []
        self.stack = []
        self.handled = []
        self.replacement = UNBOUND

    @property
    def decoded(self) -> Decoded:
        return decode(self.code)

    @property
    def line(self) -> int:
        return line_of(self.code, self.position)

    @property
    def location(self) -> str:
        return f"{self.code.co_filename}:{self.line}"

    def __repr__(self) -> str:
        return f"<frame of {self.code.co_qualname} at {self.location}, instruction {self.position}>"


class After:
    """What is known of where a program goes on after one compiled segment.

    Each call of the segment leaves frames of the same functions, at the same positions. Of these only the innermost one
    moves, until it returns: so their number and its position say where the program stands.

    * `functions` has, for a number of frames, what `perform_through` needs to know about the innermost one's function.
    * `points` has what begins there, for a number of frames and a position, where no frame has objects whose end can be
      seen.
    """

    __slots__ = ("functions", "points")

    def __init__(self) -> None:
        self.functions: dict[int, Any] = {}
        self.points: dict[tuple[int, int], Any] = {}


class Suspension(list[FrameState]):
    """A suspended program: its frames, outermost first.

    `caller` is a stand-in for the user's frame that called the program, and its globals: found when it is first needed (see
    `drive.callers`). `after` is what is known of where the program goes on, for frames that compiled code left.
    `settled` says of these that no value has an end that can be seen (see `ir.endings`), if none had where that code began.
    """

    __slots__ = ("after", "caller", "settled")

    after: After
    settled: bool
    caller: tuple[CodeType, dict[str, Any]] | None
