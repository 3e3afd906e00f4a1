"""Runs functions as suspended frames in several ways, and describes all that a caller can see of the outcome."""

from __future__ import annotations

import contextlib
import inspect
import io
import itertools
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType, TracebackType
from typing import Any

from quickfuse.bytecode.decoding import local_names
from quickfuse.drive import native
from quickfuse.drive.step import Returned, leave, perform
from quickfuse.drive.unwind import unwind
from quickfuse.ir.frame import NULL, UNBOUND, FrameState

MOST_STEPS = 20_000

#: What a policy answers: perform one instruction, finish the innermost frame natively, or run natively up to a position.
PERFORM, FINISH = "perform", "finish"
Policy = Callable[[int, list[FrameState]], "str | int"]


def begin(function: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> FrameState:
    """The frame of a call that has not begun."""
    code = function.__code__
    bound = inspect.signature(function, follow_wrapped=False).bind(*args, **kwargs or {})
    bound.apply_defaults()
    names = local_names(code)
    # A comprehension's argument is called ".0", which inspect calls "implicit0".
    slots = [bound.arguments.get(name.replace(".", "implicit"), UNBOUND) for name in names]
    closure = function.__closure__ or ()
    slots[len(slots) - len(closure) :] = closure
    return FrameState(code, function.__globals__, slots, [], 0)


def run(frame: FrameState, policy: Policy, inline: str = "") -> Any:
    """Run a frame to its result. Calls of Python functions in files whose name ends with `inline` push frames, as
    capture does."""
    frames = [frame]
    for step in range(MOST_STEPS):
        returned = _advance(frames, policy(step, frames), inline)
        if returned is not None:
            assert not frames
            return returned.value
    raise AssertionError("the function does not end")


def _advance(frames: list[FrameState], action: str | int, inline: str) -> Returned | None:
    frame = frames[-1]
    if action == PERFORM:
        if inline and push_call(frames, inline):
            return None
        return perform(frames)
    try:
        if action == FINISH:
            return leave(frames, native.finish(frame, frames[:-1]))
        returned = native.run_loop(frame, int(action), frames[:-1])
        return None if returned is None else leave(frames, returned.value)
    except native.CannotResume:
        pass  # perform below: outside of this handler, which the function run must not see
    except BaseException as error:
        if frames[-1:] != [frame]:
            raise
        frames.pop()
        error.__traceback__ = error.__traceback__.tb_next  # without this function
        if not unwind(frames, error):
            raise
        return None
    return perform(frames)


def push_call(frames: list[FrameState], file: str) -> bool:
    """Push a frame for the call that is next, if it is one of a Python function or class."""
    frame = frames[-1]
    name, arg, _, _ = frame.decoded.instructions[frame.position]
    if name != "CALL":
        return False
    stack = frame.stack
    function, *values = [value for value in stack[len(stack) - arg - 2 :] if value is not NULL]
    replacement: Any = UNBOUND
    if inspect.ismethod(function):
        values.insert(0, function.__self__)
        function = function.__func__
    elif type(function) is type and function.__new__ is object.__new__ and type(function.__init__) is FunctionType:
        replacement = object.__new__(function)
        values.insert(0, replacement)
        function = function.__init__
    if type(function) is not FunctionType or function.__code__.co_flags & 0x2A0:
        return False
    if not function.__code__.co_filename.endswith(file):
        return False
    names = frame.keyword_names
    split = len(values) - len(names)
    try:
        pushed = begin(function, tuple(values[:split]), dict(zip(names, values[split:], strict=True)))
    except TypeError:
        return False
    pushed.replacement = replacement
    del stack[len(stack) - arg - 2 :]
    frame.keyword_names = ()
    frame.position += 1
    frames.append(pushed)
    return True


def run_generator(frame: FrameState, sent: list[Any]) -> list[Any]:
    """Drive a generator's frame until it is suspended after a yield for each value that is sent; what it yielded."""
    yielded = []
    for value in sent:
        if frame.position:
            frame.stack.append(value)
        while True:
            name, arg, target, _ = frame.decoded.instructions[frame.position]
            if name == "RETURN_GENERATOR":
                frame.stack.append(None)
            elif name == "YIELD_VALUE":
                yielded.append(frame.stack.pop())
                frame.position += 1
                break
            elif name == "GET_YIELD_FROM_ITER":
                if not inspect.isgenerator(frame.stack[-1]):
                    frame.stack[-1] = iter(frame.stack[-1])
            elif name == "SEND":
                _send(frame, target)
            elif name == "END_SEND":
                del frame.stack[-2]
            else:
                perform([frame])
                continue
            frame.position += 1
    return yielded


def _send(frame: FrameState, target: int) -> None:
    value = frame.stack.pop()
    receiver = frame.stack[-1]
    try:
        result = next(receiver) if value is None else receiver.send(value)
    except StopIteration as stop:
        if sys.version_info < (3, 12):
            frame.stack.pop()
        frame.stack.append(stop.value)
        frame.position = target - 1
    else:
        frame.stack.append(result)


# what can be seen -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    result: str
    error: tuple[Any, ...] | None
    printed: str
    arguments: str

    def __str__(self) -> str:
        return f"result {self.result}\nerror {self.error}\nprinted {self.printed!r}\narguments {self.arguments}"


def observe(call: Callable[..., Any], make_arguments: Callable[[], tuple[Any, ...]], handling: bool = False) -> Outcome:
    """Call with new arguments, if asked in an exception handler, and describe the outcome."""
    if handling:
        try:
            raise LookupError("outside")
        except LookupError as outside:
            outcome = observe(call, make_arguments)
            assert sys.exc_info()[1] is outside
            return outcome
    arguments = make_arguments()
    printed = io.StringIO()
    result, error = "", None
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            value = call(*arguments)
            result = describe(value)
        except BaseException as caught:
            error = describe_error(caught)
    return Outcome(result, error, printed.getvalue(), describe(arguments))


def describe(value: Any) -> str:
    return re.sub("0x[0-9a-f]+", "0x..", f"{type(value).__name__}:{value!r}")


def describe_error(error: BaseException | None, depth: int = 0) -> tuple[Any, ...] | None:
    if error is None or depth > 6:
        return None
    parts = tuple(describe_error(e, depth + 1) for e in error.exceptions) if isinstance(error, BaseExceptionGroup) else ()
    return (
        type(error).__name__,
        str(error),
        tuple(user_entries(error.__traceback__)),
        ("context", describe_error(error.__context__, depth + 1)),
        ("cause", describe_error(error.__cause__, depth + 1)),
        error.__suppress_context__,
        getattr(error, "__notes__", None),
        parts,
    )


def user_entries(entries: TracebackType | None) -> Iterator[tuple[Any, ...]]:
    """(function, line, position in the line) of a traceback's entries but for those of the tests."""
    while entries is not None:
        code = entries.tb_frame.f_code
        if not code.co_filename.endswith(("frame_harness.py", "test_driving.py")):
            positions = next(itertools.islice(code.co_positions(), entries.tb_lasti // 2, None))
            yield code.co_name, entries.tb_lineno, positions, code.co_filename.rsplit("/", 1)[-1]
        entries = entries.tb_next
