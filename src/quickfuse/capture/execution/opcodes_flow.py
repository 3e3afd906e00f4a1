"""Bytecode instructions that decide where to go on: jumps, loops, generators, `with` and exceptions."""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import torch

from ...bytecode.decoding import TABLE
from ...errors import Unsupported
from ...ir.iterating import is_readable
from ..branches.assertions import truth_of_branch
from ..interpreter import Interpreter
from ..library.locks import is_lock
from ..objects import containers, exceptions, generators, outside_iterators
from ..objects.class_attributes import special_method
from ..objects.exceptions import traceback_of
from ..symbolic import ForeignObject, FromOutside, real_of, type_of
from ..symbolic.frame import TAKE_UNREAD, Frame, GeneratorValue
from ..symbolic.raising import raise_in_program

# jumps ----------------------------------------------------------------------------------------------------------


def _jump(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    f.position = value
    if value <= f.lasti:
        i.note_loop(f, value)


def _jump_if(jumps: Callable[[Interpreter, Frame, Any, int], bool]) -> Callable[..., None]:
    """A conditional jump: whether it goes to an instruction, by what is on top of the stack."""

    def operation(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
        if jumps(i, f, f.stack.pop(), value):
            _jump(i, f, arg, value)

    return operation


def _jump_or_pop(wanted: bool) -> Callable[..., None]:
    def operation(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
        if i.truth(f.stack[-1]) is wanted:
            f.position = value
        else:
            f.stack.pop()

    return operation


op_JUMP_FORWARD = op_JUMP_BACKWARD = _jump
op_POP_JUMP_IF_TRUE = op_POP_JUMP_FORWARD_IF_TRUE = op_POP_JUMP_BACKWARD_IF_TRUE = _jump_if(
    lambda i, f, top, to: truth_of_branch(i, f, top, to, f.position)
)
op_POP_JUMP_IF_FALSE = op_POP_JUMP_FORWARD_IF_FALSE = op_POP_JUMP_BACKWARD_IF_FALSE = _jump_if(
    lambda i, f, top, to: not truth_of_branch(i, f, top, f.position, to)
)
op_POP_JUMP_IF_NONE = op_POP_JUMP_FORWARD_IF_NONE = op_POP_JUMP_BACKWARD_IF_NONE = _jump_if(
    lambda i, f, top, to: top is None
)
op_POP_JUMP_IF_NOT_NONE = op_POP_JUMP_FORWARD_IF_NOT_NONE = op_POP_JUMP_BACKWARD_IF_NOT_NONE = _jump_if(
    lambda i, f, top, to: top is not None
)
op_JUMP_IF_TRUE_OR_POP, op_JUMP_IF_FALSE_OR_POP = _jump_or_pop(True), _jump_or_pop(False)


def op_JUMP_BACKWARD_NO_INTERRUPT(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    f.position = value  # the loop is that of a `yield from`


# loops and generators -------------------------------------------------------------------------------------------


def op_FOR_ITER(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    iterator = f.stack[-1]
    if type(iterator) is ForeignObject and is_readable(iterator.real):
        only_moved = f.decoded.instructions[f.position].name in TAKE_UNREAD
        found, element = outside_iterators.next_of(i, iterator, only_moved)
    else:
        found, element = containers.next_of(i, iterator)
    if found:
        f.stack.append(element)
    else:
        f.stack.pop()
        f.position = value


def op_YIELD_VALUE(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    i.frames.pop()
    f.on_result(f.stack.pop())


def op_GET_YIELD_FROM_ITER(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    if type(f.stack[-1]) is not GeneratorValue:
        f.stack.append(containers.make_iterator(i, f.stack.pop()))


def op_SEND(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    sent = f.stack.pop()
    receiver = f.stack[-1]
    if type(receiver) is GeneratorValue:
        found, element = generators.resume(i, receiver, sent)
    elif sent is not None:
        raise Unsupported(f"sending a value into a {type(receiver).__name__}")
    else:
        found, element = containers.next_of(i, receiver)
    if found:
        f.stack.append(element)
        return
    if not TABLE.send_keeps_receiver:
        f.stack.pop()
    f.stack.append(element)
    f.position = value


def op_END_SEND(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    del f.stack[-2]


def op_CLEANUP_THROW(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    """An exception came out of a `yield from`: the end of what it waits for, or any other."""
    exception = f.stack.pop()
    if not isinstance(exception, StopIteration):
        raise_in_program(exception)
    f.stack[-2:] = [None, exception.value]


# with and exceptions --------------------------------------------------------------------------------------------


def op_BEFORE_WITH(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    """Push what leaves the context, then what entering gives."""
    manager = f.stack.pop()
    enter, leave = (special_method(i, manager, name) for name in ("__enter__", "__exit__"))
    captured = isinstance(enter, FunctionType) and isinstance(leave, FunctionType)
    if not (captured or type(manager) is torch.device or is_lock(manager)):
        raise Unsupported(f"the context manager {type_of(manager).__name__}")
    f.stack.append(MethodType(leave, manager))
    i.call(enter, (manager,), {}, f.stack.append)


def op_WITH_EXCEPT_START(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    exception = f.stack[-1]
    if isinstance(exception, FromOutside):
        traceback = i.outside.wrap(exception.real.__traceback__, exception.source.attr("__traceback__"))
    else:
        traceback = traceback_of(i, exception)
    function, *rest = (value for value in f.stack[-3 - TABLE.with_values : -3] if value is not operator.call)
    i.call(function, (*rest, type_of(exception), exception, traceback), {}, f.stack.append)


def op_PUSH_EXC_INFO(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    exception = f.stack.pop()
    f.stack.append(f.exceptions[-1] if f.exceptions else None)
    f.exceptions.append(exception)
    f.stack.append(exception)


def op_POP_EXCEPT(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    f.stack.pop()
    handled = f.exceptions.pop()
    if i.ending:
        i.let_go(handled)


def op_CHECK_EG_MATCH(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    wanted = f.stack.pop()
    taken, f.stack[-1] = exceptions.divide(i, f.stack[-1], wanted)
    if taken is not None:
        f.exceptions[-1] = taken
    f.stack.append(taken)


def op_PREP_RERAISE_STAR(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    unhandled = f.stack.pop()
    f.stack[-1] = exceptions.left_over(i, f.stack[-1], unhandled)


def op_CALL_INTRINSIC_2(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    if arg != 1:
        raise Unsupported(f"the intrinsic function {arg} of two values")
    op_PREP_RERAISE_STAR(i, f, arg, value)


def op_RAISE_VARARGS(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    if arg == 0:
        handled = exceptions.handled_now(i)
        if handled is None:
            raise Unsupported("raising again what a caller may handle")
        raise_in_program(handled)
    cause = f.stack.pop() if arg == 2 else None
    exception = f.stack.pop()
    if isinstance(exception, type) and issubclass(exception, BaseException):
        exception = i.call_now(exception, ())
    if isinstance(exception, FromOutside):
        raise Unsupported("raising an exception from outside")  # its traceback gets an entry for each frame
    if not isinstance(exception, BaseException):
        raise_in_program(TypeError("exceptions must derive from BaseException"))
    if arg == 2:
        if isinstance(cause, type) and issubclass(cause, BaseException):
            cause = i.call_now(cause, ())
        if not (cause is None or isinstance(real_of(cause), BaseException)):
            raise Unsupported("the cause of an exception that is none")
        exception.__cause__ = real_of(cause)
    raise_in_program(exception)


#: Instructions that do one thing with values which they take off the stack: how many, and what.
TAKING: dict[str, tuple[int, Callable[..., Any]]] = {
    "RERAISE": (1, lambda i, f, arg, value, exception: raise_in_program(exception)),
    "CHECK_EXC_MATCH": (2, lambda i, f, arg, value, exception, wanted: f.stack.extend(
        [exception, issubclass(type_of(exception), exceptions.caught_classes(wanted))])),
}  # fmt: skip

#: Instructions that do no more than to put a value on the stack: what it is.
PUSHED: dict[str, Callable[[Interpreter, Frame, int, Any], Any]] = {
    "GET_ITER": lambda i, f, arg, value: containers.make_iterator(i, f.stack.pop()),
    "RETURN_GENERATOR": lambda i, f, arg, value: None,
    "LOAD_ASSERTION_ERROR": lambda i, f, arg, value: AssertionError,
}
