"""What each bytecode instruction does to suspended frames: `name(frames, frame, arg, value)`.

The frame has been moved on to the next instruction already. A micro-function comes with the value, where one is needed.
"""

from __future__ import annotations

from contextlib import suppress
from types import CellType, FunctionType, MethodWrapperType
from typing import Any

import torch

from ..ir.data_writes import tell_calls
from ..ir.frame import NULL, UNBOUND, FrameState
from .callers import call_below
from .frame_reading_calls import SPECIAL_CALLS, looks_at_frames, sees_no_frames
from .micro import EXHAUSTED, Micro, call_handling, handled_exception, reraise
from .native import step_natively
from .program import program_of
from .unwind import QUIET, Returned

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
        return call_below(frames[:-1], function, values, frames)
    return call_handling(handled, lambda operand: call_below(frames[:-1], function, operand), values)


def _take(stack: list[Any], count: int) -> list[Any]:
    """The topmost values, the topmost first."""
    values = stack[: -count - 1 : -1]
    del stack[len(stack) - count :]
    return values


def by_micro(frames: list[FrameState], frame: FrameState, arg: int, micro: Micro) -> None:
    """An instruction about which nothing is special."""
    result = _run(frames, frame, micro, _take(frame.stack, micro.taken))
    if micro.left == 1:
        frame.stack.append(result)
    elif micro.left:
        frame.stack.extend(result)


def load_data(frames: list[FrameState], frame: FrameState, arg: int, micro: Micro) -> None:
    """`x.data`, through which a tensor may change unseen by autograd."""
    tensor = frame.stack[-1]
    if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
        tell_calls(tensor, frames)
    by_micro(frames, frame, arg, micro)


def _natively(frames: list[FrameState], frame: FrameState) -> None:
    """An instruction that needs the frame's variables."""
    position = frame.position
    frame.position = position - 1
    try:
        step_natively(frames)
    finally:
        frame.position = position


# nothing to do, and the stack -----------------------------------------------------------------------------------


def nothing(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    pass


def pop_top(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    f.stack.pop()


def copy(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    f.stack.append(f.stack[-arg])


def swap(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    stack = f.stack
    stack[-1], stack[-arg] = stack[-arg], stack[-1]


def push_null(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    f.stack.append(NULL)


def end_for(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    del f.stack[-2:]


def push(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    f.stack.append(value)


def push_assertion_error(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    f.stack.append(AssertionError)


# variables ------------------------------------------------------------------------------------------------------


def load_fast(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    local = f.locals[arg]
    if local is UNBOUND:
        _natively(frames, f)  # which raises
    else:
        f.stack.append(local)


def load_fast_unchecked(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    local = f.locals[arg]
    if local is UNBOUND:
        raise SystemError("a frame whose variables do not fit its code")
    f.stack.append(local)


def load_fast_and_clear(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    f.stack.append(f.locals[arg])
    f.locals[arg] = UNBOUND


def store_fast(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    local = f.stack.pop()
    f.locals[arg] = UNBOUND if local is NULL else local


def delete_fast(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    if f.locals[arg] is UNBOUND:
        _natively(frames, f)
    else:
        f.locals[arg] = UNBOUND


def make_cell(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    local = f.locals[arg]
    f.locals[arg] = CellType() if local is UNBOUND else CellType(local)


def load_closure(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    f.stack.append(f.locals[arg])


def load_deref(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    content = _content(f.locals[arg])
    if content is UNBOUND:
        _natively(frames, f)
    else:
        f.stack.append(content)


def store_deref(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    f.locals[arg].cell_contents = f.stack.pop()


def delete_deref(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    if _content(f.locals[arg]) is UNBOUND:
        _natively(frames, f)
    else:
        del f.locals[arg].cell_contents


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return UNBOUND


def load_global(frames: list[FrameState], f: FrameState, arg: int, value: tuple[str, Micro]) -> None:
    name, micro = value
    if arg & 1:
        f.stack.append(NULL)
    globals_ = f.globals
    if type(globals_) is dict and name in globals_:
        f.stack.append(globals_[name])
    else:
        f.stack.append(_run(frames, f, micro, []))


def store_global(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    f.globals[value] = f.stack.pop()


# attributes -----------------------------------------------------------------------------------------------------


def load_method(frames: list[FrameState], f: FrameState, arg: int, micro: Micro) -> None:
    """What is called is loaded as one object, a bound method: CPython allows for either."""
    loaded = _run(frames, f, micro, _take(f.stack, micro.taken))
    f.stack += (NULL, loaded)


def load_super_attr(frames: list[FrameState], f: FrameState, arg: int, value: tuple[Micro, Micro]) -> None:
    # With both arguments given, as the stack has them, super() need not ask the frame.
    micro = value[1] if f.stack[-3] is super else value[0]
    loaded = _run(frames, f, micro, _take(f.stack, 3))
    f.stack += (NULL, loaded) if arg & 1 else (loaded,)


# operators and jumps --------------------------------------------------------------------------------------------


def is_op(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    right = f.stack.pop()
    f.stack[-1] = (f.stack[-1] is right) is not bool(arg)


def jump(frames: list[FrameState], f: FrameState, arg: int, value: int) -> None:
    f.position = value


def _truth(frames: list[FrameState], f: FrameState, value: Any, micro: Micro) -> bool:
    if value is True or value is False:
        return value  # type: ignore[no-any-return]
    return value is not None and not _run(frames, f, micro, [value])


def jump_if_true(frames: list[FrameState], f: FrameState, arg: int, value: tuple[int, Micro]) -> None:
    if _truth(frames, f, f.stack.pop(), value[1]):
        f.position = value[0]


def jump_if_false(frames: list[FrameState], f: FrameState, arg: int, value: tuple[int, Micro]) -> None:
    if not _truth(frames, f, f.stack.pop(), value[1]):
        f.position = value[0]


def jump_if_none(frames: list[FrameState], f: FrameState, arg: int, value: int) -> None:
    if f.stack.pop() is None:
        f.position = value


def jump_if_not_none(frames: list[FrameState], f: FrameState, arg: int, value: int) -> None:
    if f.stack.pop() is not None:
        f.position = value


def jump_if_true_or_pop(frames: list[FrameState], f: FrameState, arg: int, value: tuple[int, Micro]) -> None:
    if _truth(frames, f, f.stack[-1], value[1]):
        f.position = value[0]
    else:
        f.stack.pop()


def jump_if_false_or_pop(frames: list[FrameState], f: FrameState, arg: int, value: tuple[int, Micro]) -> None:
    if not _truth(frames, f, f.stack[-1], value[1]):
        f.position = value[0]
    else:
        f.stack.pop()


#: Iterators whose next element needs none of the user's code, and cannot fail.
_ITERATORS = frozenset({type(iter(())), type(iter([])), type(iter(range(0))), type(iter("")), type(reversed([]))})


def for_iter(frames: list[FrameState], f: FrameState, arg: int, value: tuple[int, Micro]) -> None:
    iterator = f.stack[-1]
    if type(iterator) in _ITERATORS:
        element = next(iterator, EXHAUSTED)
    else:
        element = _run(frames, f, value[1], [iterator])
    if element is EXHAUSTED:
        f.stack.pop()
        f.position = value[0]
    else:
        f.stack.append(element)


# containers -----------------------------------------------------------------------------------------------------


def build_tuple(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    f.stack.append(tuple(_take(f.stack, arg)[::-1]))


def build_list(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    f.stack.append(_take(f.stack, arg)[::-1])


def list_to_tuple(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    f.stack[-1] = tuple(f.stack[-1])


def list_append(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    element = f.stack.pop()
    f.stack[-arg].append(element)


def change_container(frames: list[FrameState], f: FrameState, arg: int, micro: Micro) -> None:
    stack = f.stack
    _run(frames, f, micro, [*_take(stack, micro.taken - 1), stack[-arg]])


# calls ----------------------------------------------------------------------------------------------------------


def kw_names(frames: list[FrameState], f: FrameState, arg: int, value: tuple[str, ...]) -> None:
    f.keyword_names = value


def call(frames: list[FrameState], f: FrameState, arg: int, value: tuple[Micro, Micro]) -> Returned | None:
    stack = f.stack
    at = len(stack) - arg - 2  # see `called`
    function, above = stack[at], stack[at + 1]
    given = arg
    if function is NULL:
        function, values = above, stack[:at:-1]
    elif above is NULL:
        values = stack[: at + 1 : -1]
        values.append(function)
    else:
        given += 1
        values = stack[at:]
        values.reverse()
    special = id(function) in SPECIAL_CALLS or type(function) is MethodWrapperType
    if special and _call_specially(frames, f, function, given):
        return None
    del stack[at:]
    f.keyword_names = ()
    micro = value[given - arg]
    if sees_no_frames(values):
        stack.append(_run(frames, f, micro, values))
        return QUIET
    stack.append(_run_call(frames, f, micro, values))
    return None


def called(stack: list[Any], arguments: int) -> tuple[Any, int]:
    """What a call calls, and with how many arguments: below so many values come a callable, and `self` or a NULL."""
    below, above = stack[-arguments - 2], stack[-arguments - 1]
    if below is NULL:
        return above, arguments
    return below, arguments + (above is not NULL)


def _take_call(stack: list[Any], arguments: int) -> list[Any]:
    """The values of a call without the NULL, the topmost first."""
    values = _take(stack, arguments + 2)
    if values[-1] is NULL:
        values.pop()
    elif values[-2] is NULL:
        del values[-2]
    return values


def _call_specially(frames: list[FrameState], f: FrameState, function: Any, given: int) -> bool:
    """Perform a call if it is one that looks at its caller's frame."""
    if function is super and given == 0:
        _call_super(frames, f)
        return True
    if looks_at_frames(function, given - len(f.keyword_names)):
        _natively(frames, f)
        return True
    return False


def _call_super(frames: list[FrameState], f: FrameState) -> None:
    """`super()`, which asks its caller's frame for the class and for the first argument."""
    code = f.code
    with suppress(ValueError, IndexError, TypeError, AttributeError):
        index = len(f.locals) - len(code.co_freevars) + code.co_freevars.index("__class__")
        first = f.locals[0]
        if code.co_varnames[0] in code.co_cellvars:
            first = first.cell_contents
        f.stack[-2:] = [super(f.locals[index].cell_contents, first)]
        return
    _natively(frames, f)  # which raises what it raises, not in the context of what was raised here


def call_with_unpacked(frames: list[FrameState], f: FrameState, arg: int, micro: Micro) -> None:
    operands = 1 + (arg & 1)
    function, _ = called(f.stack, operands)
    if id(function) in SPECIAL_CALLS:
        _natively(frames, f)
        return
    values = _take_call(f.stack, operands)
    f.stack.append(_run_call(frames, f, micro, values))


def before_with(frames: list[FrameState], f: FrameState, arg: int, value: tuple[Micro, Micro]) -> None:
    """From 3.14 on, where the methods are looked up by an instruction that may leave a NULL."""
    manager = f.stack.pop()
    leaving, entering = _special_method(manager, "__exit__"), _special_method(manager, "__enter__")
    if leaving is None or entering is None:
        _run(frames, f, value[0], [manager])  # which raises
    f.stack.append(leaving)
    f.stack.append(_run_call(frames, f, value[1], [entering]))


def _special_method(owner: Any, name: str) -> Any:
    """A method as `with` finds it: in the class only. None where there is none."""
    for cls in type.__dict__["__mro__"].__get__(type(owner)):
        if name in cls.__dict__:
            found = cls.__dict__[name]
            get = getattr(type(found), "__get__", None)
            return found if get is None else get(found, owner, type(owner))
    return None


def return_value(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> Returned | None:
    return leave_frame(frames, f.stack.pop())


def return_const(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> Returned | None:
    return leave_frame(frames, value)


def leave_frame(frames: list[FrameState], result: Any) -> Returned | None:
    done = frames.pop()
    replacement = done.replacement
    done.end()
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


def push_exc_info(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    exception = f.stack.pop()
    f.stack += (f.handled[-1] if f.handled else None, exception)
    f.handled.append(exception)


def pop_except(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    f.stack.pop()
    f.handled.pop()


def raise_again(frames: list[FrameState], f: FrameState, arg: int, value: Any) -> None:
    exception = f.stack.pop()
    if arg:
        f.lasti = f.stack[-arg]
    reraise(exception)


def with_except_start(frames: list[FrameState], f: FrameState, arg: int, micro: Micro) -> None:
    """Its operands stay where they are, also where it raises: the handler has to find them."""
    f.stack.append(_run(frames, f, micro, f.stack[: -micro.taken - 1 : -1])[-1])


def check_eg_match(frames: list[FrameState], f: FrameState, arg: int, micro: Micro) -> None:
    by_micro(frames, f, arg, micro)
    match = f.stack[-1]
    if match is not None:
        f.handled[-1] = match
