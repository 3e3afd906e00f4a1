"""Calling with the user's suspended frames visible below.

`warnings.warn(..., stacklevel=2)` asks who called the function that it is in. Natively that is the user's caller; here it
would be the driver. So stand-ins for the user's frames are put between: functions that only call on, and have a frame's
file, name, line and globals.
"""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Callable, Sequence
from types import CodeType, FrameType, FunctionType
from typing import Any

from ..ir.frame import FrameState, Suspension
from .assemble import Writer
from .micro import MICRO_VARIABLES, as_user_code
from .program import Program, program_of

_STAND_IN_VARIABLES = ("<operand>", "<stand-in>")
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep

#: `call_nothing(function)` is `function()`, without a frame in between.
call_nothing = operator.methodcaller("__call__")

_own_codes: dict[int, CodeType] = {}


def is_own(code: CodeType) -> bool:
    """Whether this is code of the compiler's, which the user should not see in a traceback."""
    return _is_in_compiler(code) or code.co_varnames == MICRO_VARIABLES or code.co_varnames == _STAND_IN_VARIABLES


def _is_in_compiler(code: CodeType) -> bool:
    if code.co_filename.startswith(_PACKAGE):
        _own_codes[id(code)] = code  # kept, so that its identity is not used again
        return True
    return code.co_filename.startswith("<quickfuse")


def call_below(
    callers: Sequence[FrameState], function: Callable[[Any], Any], operand: Any, driven: Sequence[FrameState] = ()
) -> Any:
    """`function(operand)`, called by the innermost of `callers`, as it seems, and below by the user's real frame.

    `driven` are all frames of the program: where it is a `Suspension`, it keeps what stands for the real frame.
    """
    for frame in reversed(callers):
        program = program_of(frame.code)
        position = frame.position
        code = program.stand_ins.get((position,)) or _stand_in_at(program, position)
        function, operand = FunctionType(code, frame.globals), (function, operand)
    caller = getattr(driven, "caller", None) or _caller_of(driven)
    if caller is not None:
        function, operand = FunctionType(*caller), (function, operand)
    return function(operand)


def _caller_of(driven: Sequence[FrameState]) -> tuple[CodeType, dict[str, Any]] | None:
    """A stand-in for the user's real frame, the same one as long as the program is being driven.

    A micro-function or stand-in that comes first stands for the user's function there: that one is being driven, too.
    """
    caller: FrameType | None = sys._getframe(2)
    while caller is not None:
        code = caller.f_code
        if id(code) not in _own_codes and not _is_in_compiler(code):
            break
        caller = caller.f_back
    if caller is None:
        return None
    unit = caller.f_lasti // 2
    found = program_of(code).stand_ins.get(unit) or _stand_in(code, unit), caller.f_globals
    if isinstance(driven, Suspension):
        driven.caller = found
    return found


def _stand_in_at(program: Program, position: int) -> CodeType:
    """For a frame that is suspended after a call."""
    unit = program.units[max(position - 1, 0)]
    found = program.stand_ins[position,] = _stand_in(program.code, unit)
    return found


def _stand_in(code: CodeType, unit: int) -> CodeType:
    """`def frame(operand): next, rest = operand; return next(rest)`, as if it stood at `unit` of the user's code."""
    writer = Writer()
    writer.emit("RESUME")
    writer.emit_null_below()
    writer.emit("LOAD_FAST", 0)
    writer.emit("UNPACK_SEQUENCE", 2)
    writer.emit("SWAP", 2)
    writer.emit_null_above(1)
    writer.emit("CALL", 1)
    writer.emit("RETURN_VALUE")
    found = as_user_code(code, max(unit, 0), writer, _STAND_IN_VARIABLES, 1, 4)
    program_of(code).stand_ins[unit] = found
    return found
