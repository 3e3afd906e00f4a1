"""Where in the user's program something happened: cheap to note while capturing, readable when somebody asks."""

from __future__ import annotations

import traceback
from types import CodeType

from ..bytecode.decoding import decode

#: The frames of the user's program, outermost first: each frame's code and the index of its current instruction.
Trace = tuple[tuple[CodeType, int], ...]


def location_of(trace: Trace) -> str:
    """ "file:line" of the innermost frame."""
    if not trace:
        return ""
    code, position = trace[-1]
    return f"{code.co_filename}:{line_of(code, position)}"


def line_of(code: CodeType, position: int) -> int:
    """The source line of an instruction."""
    instructions = decode(code).instructions
    return instructions[min(position, len(instructions) - 1)].line


def summary(trace: Trace) -> traceback.StackSummary:
    """The frames as Python's own traceback tools know them; source lines are read when they are first asked for."""
    frames = [
        traceback.FrameSummary(code.co_filename, line_of(code, position), code.co_name, lookup_line=False)
        for code, position in trace
    ]
    return traceback.StackSummary.from_list(frames)


def as_text(trace: Trace) -> str:
    """The frames as a traceback prints them, without marks under the line: what torch.fx expects as a stack trace."""
    return "".join(
        f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}\n    {frame.line}\n' for frame in summary(trace)
    )
