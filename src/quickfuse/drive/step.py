"""Performing a single bytecode instruction of the user's program, with real values.

An instruction that can neither run code of the user's nor fail is done here, in Python. Every other one is done by CPython
itself, in a micro-function (see `micro.py`): which values it takes and leaves is in the table of `effects.py`.
"""

from __future__ import annotations

import builtins
import inspect
import pdb
import sys
import traceback
from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any

from ..errors import Unsupported
from ..ir.bytecode import PY312, Instruction
from ..ir.frame import NULL, UNBOUND, FrameState
from .callers import call_below, is_own
from .effects import CONTAINER_OPERATIONS, effect
from .micro import EXHAUSTED, MICRO_VARIABLES, Micro, call_handling, handled_exception, reraise
from .native import step_natively
from .program import Program, program_of
from .unwind import Returned, unwind

__all__ = ["Returned", "leave", "looks_at_frames", "needs_own_frame", "perform"]

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
    try:
        return operation(frames, frame, arg, value)
    except BaseException as error:
        if not _handle(frames, error):
            raise  # without an entry for this function, and without another context
        return None


def leave(frames: list[FrameState], result: Any) -> Returned | None:
    """The innermost frame returned a value, natively: pop it and go on as `perform` does after a return instruction."""
    try:
        return _leave(frames, result)
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
    return unwind(frames, error, reraised=not raised_here)


# calls that look at the caller's frame --------------------------------------------------------------------------

#: Functions that look at the frame which calls them, or at the whole stack.
_LOOK_AT_FRAMES: tuple[Any, ...] = (
    builtins.locals, builtins.breakpoint, sys._getframe, sys._current_frames, sys.settrace, sys.setprofile,
    inspect.currentframe, inspect.stack, inspect.trace, pdb.set_trace, traceback.print_stack, traceback.extract_stack,
    traceback.format_stack, traceback.walk_stack,
)  # fmt: skip
#: The same, but only with fewer arguments than this.
_LOOK_AT_FRAMES_BELOW: tuple[tuple[Any, int], ...] = (
    (builtins.vars, 1), (builtins.dir, 1), (builtins.eval, 2), (builtins.exec, 2),
)  # fmt: skip


_ENOUGH_ARGUMENTS = {id(function): enough for function, enough in _LOOK_AT_FRAMES_BELOW} | {
    id(function): sys.maxsize for function in _LOOK_AT_FRAMES
}

_SPECIAL_CALLS = frozenset({*_ENOUGH_ARGUMENTS, id(super)})


def looks_at_frames(function: Any, arguments: int = 0) -> bool:
    """Whether a call with that many positional arguments looks at the variables or at the stack of its caller."""
    return arguments < _ENOUGH_ARGUMENTS.get(id(function), 0)


def needs_own_frame(frame: FrameState) -> bool:
    """Whether the next instruction is a call that needs a real frame of the user's function as its caller.

    `perform` gives it one for this instruction only. With `native.finish`, the frame that it finds goes on running.
    """
    program = program_of(frame.code)
    operation, arg, _ = (program.steps or _prepare(program))[frame.position]
    if operation is not _call and operation is not _call_with_unpacked:
        return False
    stack = frame.stack
    if operation is _call_with_unpacked:
        args = stack[-1 - (arg & 1)]
        return looks_at_frames(stack[-2 - (arg & 1)], len(args) if type(args) is tuple else 0)
    given = arg - len(frame.keyword_names)
    if stack[-arg - 2] is not NULL:
        return looks_at_frames(stack[-arg - 2], given + 1)
    return looks_at_frames(stack[-arg - 1], given)


# running micro-functions ----------------------------------------------------------------------------------------


def _run(frames: list[FrameState], frame: FrameState, micro: Micro, values: list[Any]) -> Any:
    function = FunctionType(micro.code or micro.build(frame.code), frame.globals)
    handled = handled_exception(frames)
    if handled is None:
        return function(values)
    return call_handling(handled, function, values)


def _run_call(frames: list[FrameState], frame: FrameState, micro: Micro, values: list[Any]) -> Any:
    function = FunctionType(micro.code or micro.build(frame.code), frame.globals)
    handled = handled_exception(frames)
    if handled is None:
        return call_below(frames[:-1], function, values)
    return call_handling(handled, lambda operand: call_below(frames[:-1], function, operand), values)


def _take(stack: list[Any], count: int) -> list[Any]:
    """The topmost values, the topmost first."""
    values = stack[: -count - 1 : -1]
    del stack[len(stack) - count :]
    return values


def _by_micro(frames: list[FrameState], frame: FrameState, arg: int, micro: Micro) -> None:
    """An instruction about which nothing is special."""
    result = _run(frames, frame, micro, _take(frame.stack, micro.taken))
    if micro.left == 1:
        frame.stack.append(result)
    elif micro.left:
        frame.stack.extend(result)


def _natively(frames: list[FrameState], frame: FrameState) -> None:
    """An instruction that needs the frame's variables."""
    position = frame.position
    frame.position = position - 1
    try:
        step_natively(frames)
    finally:
        frame.position = position


# nothing to do, and the stack -----------------------------------------------------------------------------------


def _nothing(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    pass


def _pop_top(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    f.stack.pop()


def _copy(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    f.stack.append(f.stack[-arg])


def _swap(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    stack = f.stack
    stack[-1], stack[-arg] = stack[-arg], stack[-1]


def _push_null(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    f.stack.append(NULL)


def _end_for(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    del f.stack[-2:]


def _push(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    f.stack.append(value)


def _push_assertion_error(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    f.stack.append(AssertionError)


# variables ------------------------------------------------------------------------------------------------------


def _load_fast(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    local = f.locals[arg]
    if local is UNBOUND:
        _natively(frames, f)  # which raises
    else:
        f.stack.append(local)


def _load_fast_unchecked(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    local = f.locals[arg]
    if local is UNBOUND:
        raise SystemError("a frame whose variables do not fit its code")
    f.stack.append(local)


def _load_fast_and_clear(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    f.stack.append(f.locals[arg])
    f.locals[arg] = UNBOUND


def _store_fast(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    local = f.stack.pop()
    f.locals[arg] = UNBOUND if local is NULL else local


def _delete_fast(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    if f.locals[arg] is UNBOUND:
        _natively(frames, f)
    else:
        f.locals[arg] = UNBOUND


def _make_cell(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    local = f.locals[arg]
    f.locals[arg] = CellType() if local is UNBOUND else CellType(local)


def _load_closure(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    f.stack.append(f.locals[arg])


def _load_deref(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    content = _content(f.locals[arg])
    if content is UNBOUND:
        _natively(frames, f)
    else:
        f.stack.append(content)


def _store_deref(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    f.locals[arg].cell_contents = f.stack.pop()


def _delete_deref(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    if _content(f.locals[arg]) is UNBOUND:
        _natively(frames, f)
    else:
        del f.locals[arg].cell_contents


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return UNBOUND


def _load_global(frames: list[FrameState], f: FrameState, arg: int, value: tuple[str, Micro]) -> None:
    name, micro = value
    if arg & 1:
        f.stack.append(NULL)
    globals_ = f.globals
    if type(globals_) is dict and name in globals_:
        f.stack.append(globals_[name])
    else:
        f.stack.append(_run(frames, f, micro, []))


def _store_global(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    f.globals[value] = f.stack.pop()


# attributes -----------------------------------------------------------------------------------------------------


def _load_method(frames: list[FrameState], f: FrameState, arg: int, micro: Micro) -> None:
    """What is called is loaded as one object, a bound method: CPython allows for either."""
    loaded = _run(frames, f, micro, _take(f.stack, micro.taken))
    f.stack += (NULL, loaded)


def _load_super_attr(frames: list[FrameState], f: FrameState, arg: int, value: tuple[Micro, Micro]) -> None:
    # With both arguments given, as the stack has them, super() need not ask the frame.
    micro = value[1] if f.stack[-3] is super else value[0]
    loaded = _run(frames, f, micro, _take(f.stack, 3))
    f.stack += (NULL, loaded) if arg & 1 else (loaded,)


# operators and jumps --------------------------------------------------------------------------------------------


def _is_op(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    right = f.stack.pop()
    f.stack[-1] = (f.stack[-1] is right) is not bool(arg)


def _jump(frames: list[FrameState], f: FrameState, arg: int, value: int) -> None:
    f.position = value


def _truth(frames: list[FrameState], f: FrameState, value: Any, micro: Micro) -> bool:
    if value is True or value is False:
        return value  # type: ignore[no-any-return]
    return value is not None and not _run(frames, f, micro, [value])


def _jump_if_true(frames: list[FrameState], f: FrameState, arg: int, value: tuple[int, Micro]) -> None:
    if _truth(frames, f, f.stack.pop(), value[1]):
        f.position = value[0]


def _jump_if_false(frames: list[FrameState], f: FrameState, arg: int, value: tuple[int, Micro]) -> None:
    if not _truth(frames, f, f.stack.pop(), value[1]):
        f.position = value[0]


def _jump_if_none(frames: list[FrameState], f: FrameState, arg: int, value: int) -> None:
    if f.stack.pop() is None:
        f.position = value


def _jump_if_not_none(frames: list[FrameState], f: FrameState, arg: int, value: int) -> None:
    if f.stack.pop() is not None:
        f.position = value


def _jump_if_true_or_pop(frames: list[FrameState], f: FrameState, arg: int, value: tuple[int, Micro]) -> None:
    if _truth(frames, f, f.stack[-1], value[1]):
        f.position = value[0]
    else:
        f.stack.pop()


def _jump_if_false_or_pop(frames: list[FrameState], f: FrameState, arg: int, value: tuple[int, Micro]) -> None:
    if not _truth(frames, f, f.stack[-1], value[1]):
        f.position = value[0]
    else:
        f.stack.pop()


def _for_iter(frames: list[FrameState], f: FrameState, arg: int, value: tuple[int, Micro]) -> None:
    element = _run(frames, f, value[1], [f.stack[-1]])
    if element is EXHAUSTED:
        f.stack.pop()
        f.position = value[0]
    else:
        f.stack.append(element)


# containers -----------------------------------------------------------------------------------------------------


def _build_tuple(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    f.stack.append(tuple(_take(f.stack, arg)[::-1]))


def _build_list(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    f.stack.append(_take(f.stack, arg)[::-1])


def _list_to_tuple(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    f.stack[-1] = tuple(f.stack[-1])


def _list_append(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    element = f.stack.pop()
    f.stack[-arg].append(element)


def _change_container(frames: list[FrameState], f: FrameState, arg: int, micro: Micro) -> None:
    stack = f.stack
    _run(frames, f, micro, [*_take(stack, micro.taken - 1), stack[-arg]])


# calls ----------------------------------------------------------------------------------------------------------


def _kw_names(frames: list[FrameState], f: FrameState, arg: int, value: tuple[str, ...]) -> None:
    f.keyword_names = value


def _call(frames: list[FrameState], f: FrameState, arg: int, value: tuple[Micro, Micro]) -> None:
    stack = f.stack
    if stack[-arg - 2] is NULL:
        micro, count = value[0], arg + 1
    else:
        micro, count = value[1], arg + 2
    if id(stack[-count]) in _SPECIAL_CALLS and _call_specially(frames, f, count):
        return
    values = _take(stack, count)
    if micro is value[0]:
        stack.pop()
    f.keyword_names = ()
    stack.append(_run_call(frames, f, micro, values))


def _call_specially(frames: list[FrameState], f: FrameState, count: int) -> bool:
    """Perform a call, of `count` values with the function itself, if it is one that looks at its caller's frame."""
    stack = f.stack
    function = stack[-count]
    if function is super and count == 1:
        _call_super(frames, f)
        return True
    if looks_at_frames(function, count - 1 - len(f.keyword_names)):
        _natively(frames, f)
        return True
    return False


def _call_super(frames: list[FrameState], f: FrameState) -> None:
    """`super()`, which asks its caller's frame for the class and for the first argument."""
    code = f.code
    try:
        index = len(f.locals) - len(code.co_freevars) + code.co_freevars.index("__class__")
        first = f.locals[0]
        if code.co_varnames[0] in code.co_cellvars:
            first = first.cell_contents
        result = super(f.locals[index].cell_contents, first)
    except (ValueError, IndexError, TypeError, AttributeError):
        _natively(frames, f)  # which raises what it raises
        return
    f.stack[-2:] = [result]


def _call_with_unpacked(frames: list[FrameState], f: FrameState, arg: int, micro: Micro) -> None:
    if id(f.stack[-2 - (arg & 1)]) in _SPECIAL_CALLS:
        _natively(frames, f)
        return
    values = _take(f.stack, micro.taken)
    f.stack.pop()
    f.stack.append(_run_call(frames, f, micro, values))


def _return_value(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> Returned | None:
    return _leave(frames, f.stack.pop())


def _return_const(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> Returned | None:
    return _leave(frames, value)


def _leave(frames: list[FrameState], result: Any) -> Returned | None:
    replacement = frames.pop().replacement
    if replacement is not UNBOUND:
        if result is not None:
            _refuse_result_of_init(frames, result)
        result = replacement
    if not frames:
        return Returned(result)
    frames[-1].stack.append(result)
    return None


def _refuse_result_of_init(frames: list[FrameState], result: Any) -> None:
    error = TypeError(f"__init__() should return None, not '{type(result).__name__}'")
    if not frames:
        raise error
    caller = frames[-1]
    unit = program_of(caller.code).units[caller.position - 1]
    _run(frames, caller, Micro(unit, (("RAISE_VARARGS", 1),), 1, 0), [error])


# exceptions -----------------------------------------------------------------------------------------------------


def _push_exc_info(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    exception = f.stack.pop()
    f.stack += (f.handled[-1] if f.handled else None, exception)
    f.handled.append(exception)


def _pop_except(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    f.stack.pop()
    f.handled.pop()


def _reraise(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    exception = f.stack.pop()
    if arg:
        f.lasti = f.stack[-arg]
    reraise(exception)


def _check_eg_match(frames: list[FrameState], f: FrameState, arg: int, micro: Micro) -> None:
    _by_micro(frames, f, arg, micro)
    match = f.stack[-1]
    if match is not None:
        f.handled[-1] = match


# the table ------------------------------------------------------------------------------------------------------

#: Done in Python. The value is the instruction's own.
_PLAIN: dict[str, Operation] = {
    "NOP": _nothing, "RESUME": _nothing, "CACHE": _nothing, "PRECALL": _nothing, "COPY_FREE_VARS": _nothing,
    "POP_TOP": _pop_top, "COPY": _copy, "SWAP": _swap, "PUSH_NULL": _push_null, "END_FOR": _end_for,
    "LOAD_CONST": _push, "LOAD_ASSERTION_ERROR": _push_assertion_error,
    "LOAD_FAST": _load_fast_unchecked if PY312 else _load_fast, "LOAD_FAST_CHECK": _load_fast,
    "LOAD_FAST_AND_CLEAR": _load_fast_and_clear, "STORE_FAST": _store_fast, "DELETE_FAST": _delete_fast,
    "MAKE_CELL": _make_cell, "LOAD_CLOSURE": _load_closure, "LOAD_DEREF": _load_deref, "STORE_DEREF": _store_deref,
    "DELETE_DEREF": _delete_deref,    "STORE_GLOBAL": _store_global, "IS_OP": _is_op, "KW_NAMES": _kw_names,
    "JUMP_FORWARD": _jump, "JUMP_BACKWARD": _jump, "JUMP_BACKWARD_NO_INTERRUPT": _jump,
    "POP_JUMP_IF_NONE": _jump_if_none, "POP_JUMP_IF_NOT_NONE": _jump_if_not_none,
    "POP_JUMP_FORWARD_IF_NONE": _jump_if_none, "POP_JUMP_FORWARD_IF_NOT_NONE": _jump_if_not_none,
    "POP_JUMP_BACKWARD_IF_NONE": _jump_if_none, "POP_JUMP_BACKWARD_IF_NOT_NONE": _jump_if_not_none,
    "BUILD_TUPLE": _build_tuple, "BUILD_LIST": _build_list, "LIST_TO_TUPLE": _list_to_tuple, "LIST_APPEND": _list_append,
    "RETURN_VALUE": _return_value, "RETURN_CONST": _return_const,
    "PUSH_EXC_INFO": _push_exc_info, "POP_EXCEPT": _pop_except, "RERAISE": _reraise,
}  # fmt: skip

#: Done in Python as far as they look at a value's truth. The value is (target, micro-function of UNARY_NOT).
_BY_TRUTH: dict[str, Operation] = {
    "POP_JUMP_IF_TRUE": _jump_if_true, "POP_JUMP_IF_FALSE": _jump_if_false,
    "POP_JUMP_FORWARD_IF_TRUE": _jump_if_true, "POP_JUMP_FORWARD_IF_FALSE": _jump_if_false,
    "POP_JUMP_BACKWARD_IF_TRUE": _jump_if_true, "POP_JUMP_BACKWARD_IF_FALSE": _jump_if_false,
    "JUMP_IF_TRUE_OR_POP": _jump_if_true_or_pop, "JUMP_IF_FALSE_OR_POP": _jump_if_false_or_pop,
}  # fmt: skip

#: Found in generators, coroutines, and the bodies of modules and classes only.
_REFUSED = frozenset({"YIELD_VALUE", "SEND", "END_SEND", "RETURN_GENERATOR", "GET_YIELD_FROM_ITER", "CLEANUP_THROW"})


def _prepare(program: Program) -> list[Step]:
    instructions = program.decoded.instructions
    units = program.units
    keywords = [()] + [(("KW_NAMES", i.arg),) if i.name == "KW_NAMES" else () for i in instructions]
    steps: list[Step] = []
    for position, instruction in enumerate(instructions):
        if instruction.name == "CALL":
            before = position - 1 if instructions[position - 1].name == "PRECALL" else position
            steps.append(_prepare_call(units[position], instruction.arg, keywords[before]))
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
            return _for_iter, arg, (value + 1 if PY312 else value, Micro(unit, ((name, arg),), 1, 1))
        case "LOAD_GLOBAL":
            return _load_global, arg, (value, Micro(unit, ((name, arg & ~1),), 0, 1))
        case "LOAD_METHOD":
            return _load_method, arg, Micro(unit, (("LOAD_ATTR", arg),), 1, 1)
        case "LOAD_ATTR" if left == 2:
            return _load_method, arg, Micro(unit, ((name, arg & ~1),), taken, 1)
        case "LOAD_SUPER_ATTR":
            micros = [Micro(unit, ((name, one),), taken, 1) for one in (arg & ~1, arg & ~1 | 2)]
            return _load_super_attr, arg, tuple(micros)
        case "CALL_FUNCTION_EX":
            return _call_with_unpacked, arg, Micro(unit, ((name, arg),), taken - 1, 1, null_below=True)
        case "CHECK_EG_MATCH":
            return _check_eg_match, arg, Micro(unit, ((name, arg),), taken, left)
        case _ if name in CONTAINER_OPERATIONS:
            # The container comes below its operands, and what is left of it is dropped with the function's frame.
            return _change_container, arg, Micro(unit, ((name, 1), ("POP_TOP", 0)), taken + 1, 0)
    return _by_micro, arg, Micro(unit, ((name, arg),), taken, left)


def _prepare_call(unit: int, arg: int, keywords: tuple[tuple[str, int], ...]) -> Step:
    def micro(arguments: int) -> Micro:
        precall = () if PY312 else (("PRECALL", arguments),)
        return Micro(unit, (*keywords, *precall, ("CALL", arguments)), arguments + 1, 1, null_below=True)

    return _call, arg, (micro(arg), micro(arg + 1))
