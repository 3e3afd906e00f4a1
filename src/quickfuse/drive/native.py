"""Going on natively: suspended frames that CPython runs at full speed, to their end or to a position."""

from __future__ import annotations

import bisect
from collections.abc import Generator, Sequence
from types import CodeType, FunctionType
from typing import Any

from ..bytecode.stack_effects import effect
from ..ir.frame import UNBOUND, FrameState
from .callers import call_below, call_nothing
from .loops import flow
from .micro import call_handling, handled_exception
from .program import program_of
from .resume import EXIT, FINISH, GENERATOR, STEP, STOPPED, CannotResume, Resume, exit_kinds, resume_function
from .stacks import LASTI, SAVED
from .tracebacks import hides_own
from .unwind import Returned

__all__ = ["CannotResume", "as_generator", "end_of_use", "finish", "may_stop_at", "run_loop", "step_natively"]

_CO_GENERATOR = 0x20
_CO_COROUTINE_OR_ASYNC_GENERATOR = 0x80 | 0x200
#: The flags of code whose frames are those of generators of any kind.
GENERATORS = _CO_GENERATOR | _CO_COROUTINE_OR_ASYNC_GENERATOR


def finish(frame: FrameState, callers: Sequence[FrameState] = ()) -> Any:
    """Run the rest of a frame and return its value. `callers` are the frames below it, outermost first.

    The frame's values move out of `frame`: it is used up. An exception's traceback begins with the frame's own entry.

    Raises:
        CannotResume: before anything has run.
    """
    _refuse_generators(frame)
    function, _ = resume_function(frame, FINISH)
    _forget_values(frame)
    with hides_own:
        return _call(function, callers)


def run_loop(frame: FrameState, exit_position: int, callers: Sequence[FrameState] = ()) -> Returned | None:
    """Run a frame until control reaches `exit_position`, and bring `frame` up to date.

    Returns:
        None at the exit; `Returned` if the frame returned before. It is used up then, as it is when an exception leaves
        it: that is raised here, for the caller to pop the frame and to unwind.

    Raises:
        CannotResume: before anything has run.
    """
    _refuse_generators(frame)
    if frame.position == exit_position:
        return None
    function, resume = resume_function(frame, EXIT, exit_position)
    _forget_values(frame)
    with hides_own:
        result = _call(function, callers)
    if not _is_stopped(result):
        return Returned(result)
    frame.stack, frame.locals, _ = result
    del result  # or it would be kept by this function's frame, which tracebacks keep
    _translate_stack(frame, resume)
    frame.position = exit_position
    frame.lasti = exit_position - 1
    return None


def may_stop_at(code: CodeType, position: int) -> bool:
    """Whether `run_loop` can stop in front of an instruction."""
    return exit_kinds(program_of(code), position) is not None


def end_of_use(code: CodeType, position: int, place: int) -> int | None:
    """The instruction after `position` before which the stack has no more than `place` values, so that what was there is
    used up; None where control may go elsewhere, or `run_loop` cannot stop there."""
    program = program_of(code)
    instructions, at = program.decoded.instructions, position
    while True:
        ways = flow(at, instructions[at])
        forward = [way for way in ways if at < way < len(instructions)]
        if not ways or len(forward) < len(ways):
            return None
        ends = [len(kinds) <= place for way in ways if (kinds := program.kinds(way)) is not None]
        if len(ways) > 1 and any(ends):
            return None
        at = ways[0]
        if any(ends):
            return at if may_stop_at(code, at) else None


def step_natively(frames: list[FrameState]) -> None:
    """Perform one instruction in a real frame, with the user's variables: for what looks at its caller's frame.

    The instruction must be one that goes on to the next. What it raises is raised here, and the frame has not moved.
    """
    frame = frames[-1]
    position = frame.position
    function, _ = resume_function(frame, STEP, position + 1)
    name, arg, _, _ = program_of(frame.code).decoded.instructions[position]
    numbers = effect(name, arg)
    assert numbers is not None
    del frame.stack[len(frame.stack) - numbers[0] :]
    results, frame.locals[:], _ = _call(function, frames[:-1], handled_exception(frames))
    frame.stack += results
    frame.keyword_names = ()
    frame.position = position + 1


def as_generator(frame: FrameState) -> Generator[Any, Any, Any]:
    """A real generator that goes on from a frame that is suspended after a YIELD_VALUE, or has not begun.

    The frame is used up.

    Raises:
        CannotResume: for coroutines and asynchronous generators.
    """
    code = frame.code
    if code.co_flags & _CO_COROUTINE_OR_ASYNC_GENERATOR or not code.co_flags & _CO_GENERATOR:
        raise CannotResume("a frame that is not a generator's")
    if not _has_begun(frame):
        return _call_from_start(frame)
    function, _ = resume_function(frame, GENERATOR)
    _forget_values(frame)
    generator: Generator[Any, Any, Any] = function()
    next(generator)  # to where the frame was suspended
    return generator


# helpers --------------------------------------------------------------------------------------------------------


def _refuse_generators(frame: FrameState) -> None:
    flags = frame.code.co_flags
    if flags & GENERATORS:
        raise CannotResume("a generator" if flags & _CO_GENERATOR else "a coroutine or asynchronous generator")


def _forget_values(frame: FrameState) -> None:
    """So that objects die when the program lets go of them, not when the driver does."""
    frame.locals = [UNBOUND] * len(frame.locals)
    frame.stack = []
    frame.keyword_names = ()


def _call(function: FunctionType, callers: Sequence[FrameState], handled: BaseException | None = None) -> Any:
    if handled is None and callers:
        handled = handled_exception(callers)
    if handled is None:
        return call_below(callers, call_nothing, function)
    return call_handling(handled, lambda start: call_below(callers, call_nothing, start), function)


def _is_stopped(result: Any) -> bool:
    return type(result) is tuple and len(result) == 3 and result[2] is STOPPED


def _translate_stack(frame: FrameState, resume: Resume) -> None:
    """From what CPython keeps on the stack to what a FrameState keeps there."""
    stack, kinds = frame.stack, resume.exit_kinds
    saved = [slot for slot, kind in enumerate(kinds) if kind.name == SAVED]
    frame.handled = [stack[slot] for slot in saved[1:]]
    if saved:
        frame.handled.append(stack.pop())
        stack[saved[0]] = None
    units = program_of(frame.code).units
    for slot, kind in enumerate(kinds):
        if kind == LASTI:
            # During a call it is the last of the instruction's inline caches that counts as the current unit.
            stack[slot] = bisect.bisect_right(units, stack[slot] - resume.base) - 1


def _has_begun(frame: FrameState) -> bool:
    instructions = program_of(frame.code).decoded.instructions
    return any(instruction.name == "RETURN_GENERATOR" for instruction in instructions[: frame.position])


def _call_from_start(frame: FrameState) -> Generator[Any, Any, Any]:
    """Call the user's own code with the frame's arguments."""
    code = frame.code
    slots = list(frame.locals)
    for name, index, _, _ in program_of(code).decoded.instructions[: frame.position]:
        if name == "MAKE_CELL" and index < len(code.co_varnames):
            slots[index] = slots[index].cell_contents
    closure = tuple(frame.locals[len(slots) - len(code.co_freevars) :])
    function = FunctionType(code, frame.globals, code.co_name, None, closure)
    total = code.co_argcount + code.co_kwonlyargcount
    args = slots[: code.co_argcount]
    kwargs = dict(zip(code.co_varnames[code.co_argcount : total], slots[code.co_argcount : total], strict=True))
    if code.co_flags & 0x04:
        args += slots[total]
        total += 1
    if code.co_flags & 0x08:
        kwargs.update(slots[total])
    return function(*args, **kwargs)
