"""Calling with the user's suspended frames visible below.

`warnings.warn(..., stacklevel=2)` asks who called the function that it is in. Natively that is the user's caller; here it
would be the driver. So stand-ins for the user's frames are put between: functions that only call on, and have a frame's
file, name, line and globals.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from types import CodeType, FrameType, FunctionType
from typing import Any

from ..ir.frame import FrameState
from .assemble import Writer
from .micro import MICRO_VARIABLES, as_user_code
from .program import program_of

_STAND_IN_VARIABLES = ("<next>", "<operands>")
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def is_own(code: CodeType) -> bool:
    """Whether this is code of the compiler's, which the user should not see."""
    return (
        code.co_filename.startswith((_PACKAGE, "<quickfuse"))
        or code.co_varnames == MICRO_VARIABLES
        or code.co_varnames == _STAND_IN_VARIABLES
    )


def call_below(frames: Sequence[FrameState], function: Callable[..., Any], *operands: Any) -> Any:
    """`function(*operands)`, called by the innermost of these frames, as it seems, and below by the user's real frame."""
    for frame in reversed(frames):
        code = _stand_in(frame.code, program_of(frame.code).units[max(frame.position - 1, 0)])
        function, operands = FunctionType(code, frame.globals), (function, operands)
    caller = _user_frame(sys._getframe(1))
    if caller is not None and caller.f_lasti >= 0:
        code = _stand_in(caller.f_code, caller.f_lasti // 2)
        function, operands = FunctionType(code, caller.f_globals), (function, operands)
    return function(*operands)


def _user_frame(frame: FrameType | None) -> FrameType | None:
    while frame is not None and is_own(frame.f_code):
        frame = frame.f_back
    return frame


def _stand_in(code: CodeType, unit: int) -> CodeType:
    """`def frame(next, operands): return next(*operands)`, looking as if it stood at `unit` of the user's code."""
    known = program_of(code).stand_ins
    if unit not in known:
        writer = Writer()
        writer.emit("RESUME")
        writer.emit("PUSH_NULL")
        writer.emit("LOAD_FAST", 0)
        writer.emit("LOAD_FAST", 1)
        writer.emit("CALL_FUNCTION_EX")
        writer.emit("RETURN_VALUE")
        known[unit] = as_user_code(code, unit, writer, _STAND_IN_VARIABLES, 4)
    return known[unit]
