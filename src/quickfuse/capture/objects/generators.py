"""Generators that captured code makes and consumes: running one to its next yield, and its methods."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import FunctionType, GeneratorType
from typing import Any

from ...bytecode.decoding import TABLE
from ...errors import Unsupported
from ..interpreter import Interpreter
from ..symbolic import NativeHandler
from ..symbolic.frame import Frame, GeneratorValue
from ..symbolic.raising import Raised, raise_in_program
from .exceptions import stop_iteration, unwind

#: Where the iterators are from that have neither `throw` nor `close`.
_PLAIN_ITERATORS = ("builtins", "collections", "itertools")


def make(i: Interpreter, frame: Frame, function: FunctionType) -> GeneratorValue:
    """What a call of a generator function gives: its frame, of which nothing has run yet."""
    frame.on_result = _nowhere
    generator = GeneratorValue(frame, function, i.note_ending)
    i.generators.append(weakref.ref(generator))
    return generator


def resume(i: Interpreter, generator: GeneratorValue, sent: Any = None) -> tuple[bool, Any]:
    """Run a generator to its next yield: (True, value), or to its end: (False, return value)."""
    if generator.done:
        return False, None
    if generator.running:
        raise_in_program(ValueError("generator already executing"))
    frame = generator.frame
    if frame.position == 0:
        if sent is not None:
            raise_in_program(TypeError("can't send non-None value to a just-started generator"))
        frame.stack.clear()
    else:
        frame.stack.append(sent)
    return _run(i, generator)


def throw_into(i: Interpreter, generator: GeneratorValue, exception: BaseException) -> tuple[bool, Any]:
    """Raise an exception where a generator is suspended, and run it to its next yield or its end."""
    if generator.done or generator.frame.position == 0:
        generator.done = True
        raise_in_program(exception)
    if generator.running:
        raise_in_program(ValueError("generator already executing"))
    if (receiver := _delegate(generator.frame)) is not None:
        generator.running = True
        try:
            if isinstance(exception, GeneratorExit):
                close(i, receiver)
            else:
                found, value = throw_into(i, receiver, exception)
                if found:
                    return True, value
                _leave_delegation(generator.frame, value)
                generator.running = False
                return _run(i, generator)
        except Raised as raised:
            exception = raised.exception
        finally:
            generator.running = False
    return _run(i, generator, exception)


def _delegate(frame: Frame) -> GeneratorValue | None:
    """The generator that a suspended one waits for in a `yield from`. An exception is raised there first. Raises
    `Unsupported` where it waits for an object with methods of its own for that."""
    instructions = frame.decoded.instructions
    if instructions[frame.position - 1].name != "YIELD_VALUE" or instructions[frame.position - 2].name != "SEND":
        return None
    receiver = frame.stack[-1]
    if type(receiver) is GeneratorValue:
        return receiver
    if type(receiver).__module__ not in _PLAIN_ITERATORS:
        raise Unsupported("raising an exception in an iterator that has methods of its own")
    return None


def _leave_delegation(frame: Frame, value: Any) -> None:
    """Go on after a `yield from` whose generator returned `value`."""
    if not TABLE.send_keeps_receiver:
        frame.stack.pop()
    frame.stack.append(value)
    frame.position = frame.decoded.instructions[frame.position - 2].value


def _run(i: Interpreter, generator: GeneratorValue, thrown: BaseException | None = None) -> tuple[bool, Any]:
    """Run a suspended generator to its next yield or its end; `thrown` is raised first, where it is suspended."""
    depth = len(i.frames)
    result: list[Any] = []
    frame = generator.frame
    frame.on_result = result.append
    frame.generator = generator
    generator.running = True
    i.frames.append(frame)
    try:
        if thrown is not None:
            frame.stack.append(None)  # what is sent then, as CPython has it
            unwind(i, thrown, depth)
        i.run_until(depth)
    finally:
        generator.running = False
        frame.generator = None  # a reference would keep it alive
        frame.on_result = _nowhere
    return not generator.done, result[0]


def close(i: Interpreter, generator: GeneratorValue) -> Any:
    """`generator.close()`: what also happens when nothing refers to it any more. From Python 3.13 on, it gives what the
    generator returns."""
    if generator.done or generator.frame.position == 0:
        generator.done = True
        return None
    try:
        found, value = throw_into(i, generator, i.mark_created(GeneratorExit()))
    except Raised as raised:
        if not isinstance(raised.exception, (GeneratorExit, StopIteration)):
            raise
        return None
    if found:
        raise_in_program(RuntimeError("generator ignored GeneratorExit"))
    return value if sys.version_info >= (3, 13) else None


def attribute(generator: GeneratorValue, name: str) -> Any:
    """`generator.send`, `throw`, `close` and `__next__`, and its names."""

    def element(i: Interpreter, found: bool, value: Any) -> Any:
        if not found:
            stop_iteration(i, value)
        return value

    def throw(i: Interpreter, kind: Any, value: Any = None, traceback: Any = None) -> Any:
        exception = kind if isinstance(kind, BaseException) else value
        if not isinstance(exception, BaseException):
            exception = i.call_now(kind, () if value is None else (value,))
        return element(i, *throw_into(i, generator, exception))

    methods: dict[str, Callable[..., Any]] = {
        "__next__": lambda i: element(i, *resume(i, generator)),
        "send": lambda i, value: element(i, *resume(i, generator, value)),
        "__iter__": lambda i: generator,
        "throw": throw,
        "close": lambda i: close(i, generator),
    }
    if name in ("__name__", "__qualname__"):
        return getattr(generator.function, name)
    if name not in methods or (generator.kind is not GeneratorType and name in ("send", "throw", "close")):
        raise Unsupported(f"the attribute {name} of a generator")
    return NativeHandler(methods[name])


def _nowhere(result: Any) -> None:
    """Where a generator's results go while it is not running."""
