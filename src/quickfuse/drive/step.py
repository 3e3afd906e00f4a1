"""Performing a single bytecode instruction of the user's program, with real values.

An instruction that can neither run code of the user's nor fail is done here, in Python. Every other one is done by CPython
itself, in a micro-function (see `micro.py`): which values it takes and leaves is in the table of `effects.py`. The
functions are in `operations.py`; this module has the table of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..bytecode.decoding import TABLE, Instruction
from ..bytecode.stack_effects import CONTAINER_OPERATIONS, effect
from ..errors import Unsupported
from ..ir.frame import After, FrameState, Marker
from . import operations as do
from .callers import is_own
from .frame_reading_calls import looks_at_frames, may_look_at_frames
from .micro import MICRO_VARIABLES, Micro
from .places import WithoutSegment
from .program import Program, program_of
from .unwind import QUIET, Returned, unwind

__all__ = ["Returned", "leave", "looks_at_frames", "needs_own_frame", "perform", "perform_through"]

Operation = Callable[[list[FrameState], FrameState, int, Any], Returned | None]
#: What `perform` looks up: who does the instruction, its argument, and whatever else that one wants to know.
Step = tuple[Operation | None, int, Any]


def perform(frames: list[FrameState]) -> Returned | None:
    """Perform the next instruction of the innermost frame (the last one), as CPython would, and update the frames.

    What the instruction raises goes to the innermost handler, and frames without a handler are popped. A call is performed
    as one instruction.

    Returns:
        `Returned` when the outermost frame returned. No frame is left then.

    Raises:
        Unsupported: for an instruction that is found in generators, coroutines and class bodies only. Nothing has run.
        BaseException: what no frame handles. No frame is left then, and the traceback has an entry for each.
    """
    frame = frames[-1]
    program = program_of(frame.code)
    steps = program.steps or _prepare(program)
    position = frame.position
    operation, arg, value = steps[position]
    if operation is None:
        raise Unsupported(f"the bytecode instruction {value}")
    frame.lasti = position
    frame.position = position + 1
    frame.cells = None
    try:
        returned = operation(frames, frame, arg, value)
    except BaseException as error:
        if not _handle(frames, error):
            raise  # without an entry for this function, and without another context
        return None
    return None if returned is QUIET else returned


def perform_through(frames: list[FrameState], without_segment: WithoutSegment, after: After) -> tuple[int | Returned, bool]:
    """Perform the next instruction of the innermost frame as `perform` does, and those after it as long as each is one that
    no segment begins with, and that neither calls nor returns from the outermost frame.

    Returns:
        How many were performed, below zero where no segment may begin now either, and zero where the next one is a call
        that needs a real frame (see `needs_own_frame`); `Returned` when the outermost frame returned. And whether none of
        them could run code of the program's.

    Raises:
        Unsupported, BaseException: as `perform` does.
    """
    count = 0
    quiet = True
    while True:
        frame = frames[-1]
        depth = len(frames)
        function = after.functions.get(depth)
        if function is None:
            program = program_of(frame.code)
            function = program.steps or _prepare(program), without_segment.positions(frames)
            after.functions[depth] = function
        steps, positions = function
        frame.cells = None
        while True:
            position = frame.position
            operation, arg, value = steps[position]
            if not count:
                if operation is None:
                    raise Unsupported(f"the bytecode instruction {value}")
                if operation in _CALLS and _looks_at_frames(frame, operation, arg):
                    return 0, False
            elif position not in positions:
                return count, quiet
            elif count >= _MOST_IN_A_ROW or (operation in _LEAVE and (depth == 1 or operation not in _RETURN)):
                return -count, quiet
            frame.lasti = position
            frame.position = position + 1
            count += 1
            if quiet and operation not in _QUIET:
                quiet = _runs_nothing(operation, frame, arg)
            try:
                returned = operation(frames, frame, arg, value)
            except BaseException as error:
                if not _handle(frames, error):
                    raise  # without an entry for this function, and without another context
                quiet = False
                break
            if returned is not None:
                if returned is not QUIET:
                    return returned, False
                quiet = True  # no other instruction comes before a call
            elif operation in _RETURN:
                break


def _runs_nothing(operation: Operation | None, frame: FrameState, arg: int) -> bool:
    """Whether an instruction that could run code of the program's does not, with these operands."""
    if operation in _POPS:
        return type(frame.stack[-1]) in _SIMPLE
    if operation is do.store_fast:
        return type(frame.locals[arg]) in _SIMPLE
    return False


def leave(frames: list[FrameState], result: Any) -> Returned | None:
    """The innermost frame returned a value, natively: pop it and go on as `perform` does after a return instruction."""
    try:
        return do.leave_frame(frames, result)
    except BaseException as error:
        if not _handle(frames, error):
            raise
        return None


def _handle(frames: list[FrameState], error: BaseException) -> bool:
    """Unwind, after taking the entries in front out of the traceback that are ours."""
    entries = error.__traceback__
    raised_here = False
    while entries is not None and not raised_here and is_own(entries.tb_frame.f_code):
        raised_here = entries.tb_frame.f_code.co_varnames == MICRO_VARIABLES
        entries = entries.tb_next
    error.__traceback__ = entries
    caught = [error]
    del error  # see `tracebacks._frame_that_raises`
    return unwind(frames, caught.pop(), reraised=not raised_here)


def needs_own_frame(frame: FrameState) -> bool:
    """Whether the next instruction is a call that needs a real frame of the user's function as its caller.

    `perform` gives it one for this instruction only. With `native.finish`, the frame that it finds goes on running.
    """
    program = program_of(frame.code)
    operation, arg, _ = (program.steps or _prepare(program))[frame.position]
    return operation in _CALLS and _looks_at_frames(frame, operation, arg)


def _looks_at_frames(frame: FrameState, operation: Operation | None, arg: int) -> bool:
    """Whether a call looks at the frames of its callers."""
    stack = frame.stack
    if operation is do.call_with_unpacked:
        args = stack[-1 - (arg & 1)]
        function, _ = do.called(stack, 1 + (arg & 1))
        return looks_at_frames(function, len(args) if type(args) is tuple else 0)
    function, given = do.called(stack, arg)
    return may_look_at_frames(function) and looks_at_frames(function, given - len(frame.keyword_names))


#: After so many instructions without a segment the driver decides whether to go on one by one.
_MOST_IN_A_ROW = 64
_CALLS = frozenset({do.call, do.call_with_unpacked})
_RETURN = frozenset({do.return_value, do.return_const})
#: Where `perform_through` may have to stop: what cannot be performed, calls and returns.
_LEAVE = _RETURN | _CALLS | {None}

#: Instructions that run no code of the program's: nothing ends with them, and nobody is asked.
_QUIET = frozenset({
    do.nothing, do.copy, do.swap, do.push_null, do.push, do.load_fast, do.load_fast_unchecked, do.load_closure, do.jump,
    do.kw_names,
})  # fmt: skip
#: Those for which that is so where they drop a value of a class that is `_SIMPLE`, or ask it for its truth.
_POPS = frozenset({do.pop_top, do.jump_if_true, do.jump_if_false, do.jump_if_none, do.jump_if_not_none})
_SIMPLE = frozenset({type(None), bool, int, float, str, Marker, torch.Tensor})

# the table ------------------------------------------------------------------------------------------------------

#: Done in Python. The value is the instruction's own.
_PLAIN: dict[str, Operation] = {
    "NOP": do.nothing, "RESUME": do.nothing, "CACHE": do.nothing, "COPY_FREE_VARS": do.nothing,
    "POP_TOP": do.pop_top, "COPY": do.copy, "SWAP": do.swap, "PUSH_NULL": do.push_null, "END_FOR": do.end_for,
    "LOAD_CONST": do.push, "LOAD_ASSERTION_ERROR": do.push_assertion_error,
    "LOAD_FAST": do.load_fast if TABLE.load_fast_checks else do.load_fast_unchecked, "LOAD_FAST_CHECK": do.load_fast,
    "LOAD_FAST_AND_CLEAR": do.load_fast_and_clear, "STORE_FAST": do.store_fast, "DELETE_FAST": do.delete_fast,
    "MAKE_CELL": do.make_cell, "LOAD_CLOSURE": do.load_closure, "LOAD_DEREF": do.load_deref, "STORE_DEREF": do.store_deref,
    "DELETE_DEREF": do.delete_deref,    "STORE_GLOBAL": do.store_global, "IS_OP": do.is_op, "KW_NAMES": do.kw_names,
    "JUMP_FORWARD": do.jump, "JUMP_BACKWARD": do.jump, "JUMP_BACKWARD_NO_INTERRUPT": do.jump,
    "POP_JUMP_IF_NONE": do.jump_if_none, "POP_JUMP_IF_NOT_NONE": do.jump_if_not_none,
    "POP_JUMP_FORWARD_IF_NONE": do.jump_if_none, "POP_JUMP_FORWARD_IF_NOT_NONE": do.jump_if_not_none,
    "POP_JUMP_BACKWARD_IF_NONE": do.jump_if_none, "POP_JUMP_BACKWARD_IF_NOT_NONE": do.jump_if_not_none,
    "BUILD_TUPLE": do.build_tuple, "BUILD_LIST": do.build_list, "LIST_TO_TUPLE": do.list_to_tuple,
    "LIST_APPEND": do.list_append,
    "RETURN_VALUE": do.return_value, "RETURN_CONST": do.return_const,
    "PUSH_EXC_INFO": do.push_exc_info, "POP_EXCEPT": do.pop_except, "RERAISE": do.raise_again,
}  # fmt: skip

#: Done in Python as far as they look at a value's truth. The value is (target, micro-function of UNARY_NOT).
_BY_TRUTH: dict[str, Operation] = {
    "POP_JUMP_IF_TRUE": do.jump_if_true, "POP_JUMP_IF_FALSE": do.jump_if_false,
    "POP_JUMP_FORWARD_IF_TRUE": do.jump_if_true, "POP_JUMP_FORWARD_IF_FALSE": do.jump_if_false,
    "POP_JUMP_BACKWARD_IF_TRUE": do.jump_if_true, "POP_JUMP_BACKWARD_IF_FALSE": do.jump_if_false,
    "JUMP_IF_TRUE_OR_POP": do.jump_if_true_or_pop, "JUMP_IF_FALSE_OR_POP": do.jump_if_false_or_pop,
}  # fmt: skip

#: Found in generators, coroutines, and the bodies of modules and classes only.
_REFUSED = frozenset({"YIELD_VALUE", "SEND", "END_SEND", "RETURN_GENERATOR", "GET_YIELD_FROM_ITER", "CLEANUP_THROW"})


def _prepare(program: Program) -> list[Step]:
    instructions = program.decoded.instructions
    units = program.units
    keywords = [(), *[(("KW_NAMES", i.arg),) if i.name == "KW_NAMES" else () for i in instructions]]
    steps: list[Step] = []
    for position, instruction in enumerate(instructions):
        if instruction.name == "CALL":
            steps.append(_prepare_call(units[position], instruction.arg, keywords[position]))
        else:
            steps.append(_prepare_one(units[position], instruction))
    program.steps = steps
    return steps


def _prepare_one(unit: int, instruction: Instruction) -> Step:
    name, arg, value, _ = instruction
    numbers = effect(name, arg)
    if name in _PLAIN:
        return _PLAIN[name], arg, value
    if name in _BY_TRUTH:
        return _BY_TRUTH[name], arg, (value, Micro(unit, (("UNARY_NOT", 0),), 1, 1))
    if numbers is None or name in _REFUSED:
        return None, arg, name
    taken, left = numbers
    match name:
        case "FOR_ITER":
            return do.for_iter, arg, (value, Micro(unit, ((name, arg),), 1, 1))
        case "LOAD_GLOBAL":
            return do.load_global, arg, (value, Micro(unit, ((name, arg & ~1),), 0, 1))
        case "LOAD_ATTR" if left == 2:
            return do.load_method, arg, Micro(unit, ((name, arg & ~1),), taken, 1)
        case "LOAD_ATTR" if value == "data":
            return do.load_data, arg, Micro(unit, ((name, arg),), taken, left)
        case "LOAD_SUPER_ATTR":
            micros = [Micro(unit, ((name, one),), taken, 1) for one in (arg & ~1, arg & ~1 | 2)]
            return do.load_super_attr, arg, tuple(micros)
        case "BEFORE_WITH" if TABLE.with_values == 2:
            entered = Micro(unit, (("CALL", 0),), 1, 1, is_call=True)
            return do.before_with, arg, (Micro(unit, ((name, arg), ("POP_TOP", 0), ("POP_TOP", 0)), 1, 1), entered)
        case "CALL_FUNCTION_EX":
            return do.call_with_unpacked, arg, Micro(unit, ((name, arg),), taken - 1, 1, is_call=True)
        case "CHECK_EG_MATCH":
            return do.check_eg_match, arg, Micro(unit, ((name, arg),), taken, left)
        case "WITH_EXCEPT_START":
            return do.with_except_start, arg, Micro(unit, ((name, arg),), taken, left)
        case _ if name in CONTAINER_OPERATIONS:
            # The container comes below its operands, and what is left of it is dropped with the function's frame.
            return do.change_container, arg, Micro(unit, ((name, 1), ("POP_TOP", 0)), taken + 1, 0)
    return do.by_micro, arg, Micro(unit, ((name, arg),), taken, left)


def _prepare_call(unit: int, arg: int, keywords: tuple[tuple[str, int], ...]) -> Step:
    def micro(arguments: int) -> Micro:
        return Micro(unit, (*keywords, ("CALL", arguments)), arguments + 1, 1, is_call=True)

    return do.call, arg, (micro(arg), micro(arg + 1))
