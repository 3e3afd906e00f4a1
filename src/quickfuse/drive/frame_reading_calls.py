"""Calls that look at the frames of their callers, and those that surely do not."""

from __future__ import annotations

import builtins
import inspect
import io
import sys
import time
import traceback
from types import FunctionType, MethodWrapperType
from typing import Any

#: Functions that look at the frame which calls them, or at the whole stack.
_LOOK_AT_FRAMES: tuple[Any, ...] = (
    builtins.locals, builtins.breakpoint, sys._getframe, sys._current_frames, sys.settrace, sys.setprofile,
    builtins.eval, builtins.exec,  # where they are given no dictionaries, or None in their place
    inspect.currentframe, inspect.stack, inspect.trace, traceback.print_stack, traceback.extract_stack,
    traceback.format_stack, traceback.walk_stack,
)  # fmt: skip
#: The same, but only with fewer arguments than this.
_LOOK_AT_FRAMES_BELOW: tuple[tuple[Any, int], ...] = (
    (builtins.vars, 1), (builtins.dir, 1),
)  # fmt: skip

_ENOUGH_ARGUMENTS = {id(function): enough for function, enough in _LOOK_AT_FRAMES_BELOW} | {
    id(function): sys.maxsize for function in _LOOK_AT_FRAMES
}

#: Functions that are not called like others, by identity.
SPECIAL_CALLS = frozenset({*_ENOUGH_ARGUMENTS, id(super)})


def may_look_at_frames(function: Any) -> bool:
    """False where `looks_at_frames` is, however many arguments there are; told by the callable alone."""
    return type(function) in (FunctionType, MethodWrapperType) or id(function) in SPECIAL_CALLS


def looks_at_frames(function: Any, arguments: int = 0) -> bool:
    """Whether a call with that many positional arguments looks at the variables or at the stack of its caller."""
    if arguments < _ENOUGH_ARGUMENTS.get(id(function), 0):
        return True
    if type(function) is MethodWrapperType:  # `super(C).__init__()` asks for the class again, in the frame
        return arguments == 0 and function.__name__ == "__init__" and type(function.__self__) is super
    return type(function) is FunctionType and function.__module__ == "pdb"  # imported by those only who use it


def sees_no_frames(values: list[Any]) -> bool:
    """Whether a call runs no Python code that could look at its callers, so that these need not be there. The operands are
    the topmost first, the callable last."""
    function = values[-1]
    if function is print:
        stdout = sys.stdout
        return (
            type(stdout) is io.StringIO
            or type(stdout) is io.TextIOWrapper
            and type(stdout.buffer) is io.BufferedWriter
            and type(stdout.buffer.raw) is io.FileIO
        ) and _PRINTED.issuperset(map(type, values[:-1]))
    return id(function) in _CLOCKS


#: Classes whose text and truth are not the user's.
_PRINTED = frozenset({str, int, float, bool, complex, bytes, type(None)})
_CLOCKS = frozenset(
    id(clock)
    for name in ("time", "perf_counter", "monotonic", "process_time", "thread_time")
    for clock in (getattr(time, name), getattr(time, f"{name}_ns"))
)
