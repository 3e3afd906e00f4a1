"""The symbolic interpreter: runs the bytecode of a function on stand-ins for its values.

It keeps its own stack of frames, so that calls of Python functions are inlined without recursion. It never changes an
object of the user's: what the program does to them is noted, and replayed when compiled code runs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

from ..errors import Unsupported
from . import opcodes
from .frame import ArgumentsMismatch, Frame, GeneratorValue, bind_arguments
from .graph import GraphBuilder
from .metadata import OperatorFailed
from .outside import Outside, is_trusted_module
from .values import Symbol, TensorProxy

MAX_DEPTH = 200
CO_GENERATOR = 0x20
CO_COROUTINES = 0x80 | 0x100 | 0x200

_dispatch: dict[str, Callable[..., None]] = {}


class Raised(Exception):
    """The captured program raised `exception`."""

    def __init__(self, exception: BaseException) -> None:
        super().__init__(exception)
        self.exception = exception


class Interpreter:
    """Captures one call."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.outside = Outside(self.location)
        self.graph = GraphBuilder(self.location, self.outside.guard_requires_grad, self.outside.guard)
        self.created: dict[int, Any] = {}

    def release(self) -> None:
        """Let go of the user's objects: an interpreter is part of reference cycles, which may live long."""
        self.created.clear()
        self.outside.release()

    # running ----------------------------------------------------------------------------------------------------

    def run_function(self, function: FunctionType, values: list[Any]) -> Any:
        """Run a function whose arguments are bound already, to its return value."""
        result: list[Any] = []
        self.push_frame(function, values, result.append, None)
        self.run_until(0)
        return result[0]

    def run_until(self, depth: int) -> None:
        """Run until only `depth` frames are left."""
        frames = self.frames
        while len(frames) > depth:
            frame = frames[-1]
            instructions = frame.decoded.instructions
            try:
                while True:
                    position = frame.position
                    name, arg, value, _ = instructions[position]
                    frame.lasti = position
                    frame.position = position + 1
                    handler = _dispatch.get(name)
                    if handler is None:
                        handler = self._find(name)
                    handler(self, frame, arg, value)
                    if frames[-1] is not frame if frames else True:
                        break
            except Raised as raised:
                self._unwind(raised.exception, depth)
            except OperatorFailed as failed:
                raise Unsupported(f"an operator that raises: {failed}") from failed

    def _find(self, name: str) -> Callable[..., None]:
        handler = getattr(opcodes, f"op_{name}", None)
        if handler is None:
            raise Unsupported(f"the bytecode instruction {name}")
        _dispatch[name] = handler
        return handler  # type: ignore[no-any-return]

    def _unwind(self, exception: BaseException, depth: int) -> None:
        """Give an exception to the innermost handler, popping frames as CPython does."""
        while len(self.frames) > depth:
            frame = self.frames[-1]
            handler = frame.decoded.handler_for(frame.lasti)
            if handler is not None:
                del frame.stack[handler.depth :]
                if handler.push_lasti:
                    frame.stack.append(frame.lasti)
                frame.stack.append(exception)
                frame.position = handler.target
                return
            self.frames.pop()
            if frame.generator is not None:
                frame.generator.done = True
        raise Raised(exception)

    def location(self) -> str:
        """The user's innermost line: frames of PyTorch and the standard library are passed over."""
        for frame in reversed(self.frames):
            if not is_trusted_module(frame.globals.get("__name__")):
                return frame.location
        return self.frames[-1].location if self.frames else ""

    # calls ------------------------------------------------------------------------------------------------------

    def push_frame(
        self, function: FunctionType, values: list[Any], on_result: Callable[[Any], None], source: Any
    ) -> None:
        """Begin running a Python function; `on_result` gets what it returns."""
        if len(self.frames) >= MAX_DEPTH:
            raise Unsupported("recursion deeper than capture follows")
        code = function.__code__
        if code.co_flags & CO_COROUTINES:
            raise Unsupported("a coroutine")
        frame = Frame(code, function.__globals__, on_result, source)
        frame.locals[: len(values)] = values
        for k, cell in enumerate(function.__closure__ or (), len(frame.names) - len(code.co_freevars)):
            frame.locals[k] = cell
        if code.co_flags & CO_GENERATOR:
            generator = GeneratorValue(frame)
            frame.generator = generator
            on_result(generator)
            return
        self.frames.append(frame)

    def inline(
        self, function: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any], on_result: Callable[[Any], None]
    ) -> None:
        """Run a Python function as part of the capture."""
        source = self.outside.source_of(function)
        if source is not None:
            self.outside.guard_function(function, source)
        try:
            values = bind_arguments(function, args, kwargs, partial(self.outside.default, function, source))
        except ArgumentsMismatch:
            raise Unsupported(f"a call that does not fit the signature of {function.__qualname__}") from None
        self.push_frame(function, values, on_result, source)

    def call_now(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        """Call anything and run it to its result before going on."""
        from .calls import call

        result: list[Any] = []
        depth = len(self.frames)
        call(self, function, args, kwargs or {}, result.append)
        self.run_until(depth)
        return result[0]

    def resume_generator(self, generator: GeneratorValue) -> tuple[bool, Any]:
        """Run a generator to its next yield: (True, value), or to its end: (False, return value)."""
        if generator.done:
            return False, None
        if generator.running:
            raise Raised(ValueError("generator already executing"))
        depth = len(self.frames)
        result: list[Any] = []
        frame = generator.frame
        frame.on_result = result.append
        if frame.position == 0:
            frame.stack.clear()
        else:
            frame.stack.append(None)
        generator.running = True
        self.frames.append(frame)
        try:
            self.run_until(depth)
        finally:
            generator.running = False
        return not generator.done, result[0]

    # helpers for handlers ---------------------------------------------------------------------------------------

    def native(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a pure native function now. What it raises is raised in the captured program."""
        try:
            return function(*args, **kwargs)
        except Unsupported:
            raise
        except Exception as error:
            raise Raised(error) from None

    def truth(self, value: Any) -> bool:
        """`bool(value)` as the captured program sees it."""
        from .containers import length_of

        kind = type(value)
        if kind is bool:
            return value  # type: ignore[no-any-return]
        if value is None:
            return False
        if kind is Symbol:
            return self.outside.truth(value)
        if kind is TensorProxy:
            raise Unsupported("a branch on a tensor's value", "torch.where keeps both sides on the device")
        if kind in (int, float, str, bytes, tuple, list, dict, set, frozenset, complex):
            return bool(value)
        size = length_of(self, value)
        if size is not None:
            return size != 0
        for method in ("__bool__", "__len__"):
            function = getattr(kind, method, None)
            if isinstance(function, FunctionType):
                return self.truth(self.call_now(function, (value,)))
            if function is not None and not self.outside.is_outside(value):
                return bool(value)
            if function is not None:
                raise Unsupported(f"the truth of a {kind.__name__}")
        return True

    def binary(self, function: Callable[..., Any], left: Any, right: Any, on_result: Callable[[Any], None]) -> None:
        """A binary operator or comparison."""
        from .calls import binary_operator

        binary_operator(self, function, left, right, on_result)

    def mark_created(self, value: Any) -> Any:
        """Note that the captured code made this object, so that it may be changed in place."""
        self.created[id(value)] = value
        return value
