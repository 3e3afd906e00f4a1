"""The symbolic interpreter: runs the bytecode of a function on stand-ins for its values.

It keeps its own stack of frames, so that calls of Python functions are inlined without recursion. It never changes an
object of the user's: what the program does to them is noted, and replayed when compiled code runs.

Between two instructions of the outermost loop, every frame is explicit data: there a segment can end. Code that a native
function calls back (a sort key, `__bool__`) runs in a nested loop instead; if that has to stop, the segment ends before
the instruction that called the native function.
"""

from __future__ import annotations

import enum
import weakref
from collections.abc import Callable
from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import Any

from ..errors import Unsupported
from ..ir.guard import NumberExpr
from ..ir.source import Source
from ..ir.trace import Trace
from . import generators, opcodes, opcodes_building, opcodes_flow
from .class_attributes import python_method, special_method
from .failing import is_in_try
from .frame import ArgumentsMismatch, Constructed, Frame, GeneratorValue, bind_arguments
from .graph import GraphBuilder
from .outside import Outside
from .raising import Raised, TracebackStandIn, unwind
from .results import OperatorFailed
from .values import ABSENT, ForeignScalar, Symbol, TensorProxy, Unread, is_constant, type_of

MAX_DEPTH = 200
CO_GENERATOR = 0x20
CO_COROUTINES = 0x80 | 0x100 | 0x200

#: How many instructions a loop of the user's may take without touching a tensor before it is left to CPython.
LONGEST_PLAIN_LOOP = 2_500

VISIBLE_ENDING = "letting go of an object whose end runs code, such as a generator in the middle of a try statement"

#: The modules that have a function for each bytecode instruction.
_OPERATIONS = (opcodes, opcodes_building, opcodes_flow)

_dispatch: dict[str, Callable[..., None]] = {}


class LongLoop(Unsupported):
    """A loop that does nothing for tensors goes on and on: capture should have stopped after `stop_at` instructions,
    for the loop to run natively until the instruction `loop_end`."""

    def __init__(self, stop_at: int, loop_end: int) -> None:
        super().__init__("a long loop without tensors")
        self.stop_at = stop_at
        self.loop_end = loop_end


class Interpreter:
    """Captures one segment, of at most `stop_at` instructions."""

    def __init__(
        self, stop_at: int = -1, volatile: frozenset[str] = frozenset(), only_moved: frozenset[int] = frozenset()
    ) -> None:
        self.frames: list[Frame] = []
        self.outside = Outside(self.location, volatile)
        self.outside.frames = self.frames
        self.graph = GraphBuilder(self.trace, self.outside.guard_requires_grad, self.outside.guard)
        self.graph.in_library = self.in_library
        self.graph.performed = lambda: self.performed
        self.created: dict[int, Any] = {}
        self.results: list[Any] = []
        #: See `Segment.autograd_asked`.
        self.autograd_asked: set[Source | None] = set()
        #: Where each exception that the captured code raised came by: the entries of its traceback, innermost first.
        self.traces: dict[int, list[tuple[Frame, int]]] = {}
        #: What stands for the traceback of an exception, by its identity: see `raising.traceback_of`.
        self.tracebacks: dict[int, TracebackStandIn] = {}
        self.generators: list[weakref.ref[GeneratorValue]] = []
        #: Objects from outside whose end can be seen, by identity: see `ir.endings`.
        self.ending: dict[int, Any] = {}
        #: Generators that nothing refers to any more, suspended where an exception handler is yet to run.
        self.dropped: list[GeneratorValue] = []
        self.released = False
        self.stop_at = stop_at
        #: Instructions that only put a variable on the stack, where the segment leaves it: nothing reads its value.
        self.only_moved = only_moved
        #: Where the values of variables went that were read from frames of the beginning: the frame, and the place there.
        self.loads: dict[int, tuple[Frame, int, Any]] = {}
        self.performed = 0
        self.raised_at = 0
        self.nesting = 0

    def release(self) -> None:
        """Let go of the user's objects: an interpreter is part of reference cycles, which may live long."""
        self.released = True
        self.dropped.clear()
        self.created.clear()
        self.results.clear()
        self.traces.clear()
        self.ending.clear()
        self.tracebacks.clear()
        self.frames.clear()
        self.loads.clear()
        self.graph.release()
        self.outside.release()

    def loads_left(self) -> frozenset[int]:
        """The instructions whose values are on the stack, as they were loaded."""
        frames = {id(frame) for frame in self.frames}
        return frozenset(
            number
            for number, (frame, place, value) in self.loads.items()
            if id(frame) in frames and place < len(frame.stack) and frame.stack[place] is value
        )

    def note_autograd_asked(self, tensor: TensorProxy | None) -> None:
        """The program asked whether a tensor needs gradients, or (None) for the grad mode."""
        if not self.in_library():
            self.autograd_asked.add(None if tensor is None else tensor.source)

    # running ----------------------------------------------------------------------------------------------------

    def run(self) -> bool:
        """Run until the outermost frame returns (True; `results` has its value) or `stop_at` instructions are performed.

        Raises:
            Raised: an exception leaves the outermost frame; `raised_at` instructions came before the one that raised it.
            Unsupported: `performed` instructions came before the one that capture cannot follow.
        """
        frames = self.frames
        stop_at = self.stop_at
        while frames:
            frame = frames[-1]
            instructions = frame.decoded.instructions
            try:
                while True:
                    if self.performed == stop_at:
                        return False
                    position = frame.position
                    name, arg, value, _ = instructions[position]
                    frame.lasti = position
                    frame.position = position + 1
                    handler = _dispatch.get(name)
                    if handler is None:
                        handler = self._find(name)
                    handler(self, frame, arg, value)
                    if self.dropped:
                        self._close_dropped()
                    self.performed += 1
                    if not frames or frames[-1] is not frame:
                        break
            except Raised as raised:
                self.raised_at = self.performed
                unwind(self, raised.exception, 0)
                if self.dropped:
                    raise Unsupported(VISIBLE_ENDING) from None
                self.performed += 1
            except OperatorFailed as failed:
                raise Unsupported(f"an operator that raises: {failed}") from failed
        return True

    def run_until(self, depth: int) -> None:
        """Run, within an instruction, until only `depth` frames are left."""
        frames = self.frames
        self.nesting += 1
        try:
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
                        if self.dropped:
                            self._close_dropped()
                        if not frames or frames[-1] is not frame:
                            break
                except Raised as raised:
                    unwind(self, raised.exception, depth)
                    if self.dropped:
                        raise Unsupported(VISIBLE_ENDING) from None
                except OperatorFailed as failed:
                    raise Unsupported(f"an operator that raises: {failed}") from failed
        finally:
            self.nesting -= 1

    def _find(self, name: str) -> Callable[..., None]:
        handler = next((h for module in _OPERATIONS if (h := getattr(module, f"op_{name}", None)) is not None), None)
        if handler is None:
            raise Unsupported(f"the bytecode instruction {name}")
        _dispatch[name] = handler
        return handler

    def in_try(self) -> bool:
        """Whether the user's code would handle an exception that is raised now."""
        return any(is_in_try(f.code, f.lasti) for f in self.frames if not f.is_library)

    def in_library(self) -> bool:
        """Whether it is PyTorch's or the standard library's own code that is running."""
        return bool(self.frames) and self.frames[-1].is_library

    def note_loop(self, frame: Frame, head: int) -> None:
        """A loop comes round, to the instruction `head`.

        Raises:
            LongLoop: if it did nothing for tensors for a long time.
        """
        if self.nesting or frame.is_library:
            return
        progress = self.graph.operators + self.outside.tensors_read
        performed = self.performed + 1
        first = frame.loops.get(head)
        if first is None or first[1] != progress:
            frame.loops[head] = (performed, progress)
        elif performed - first[0] > LONGEST_PLAIN_LOOP:
            instructions = frame.decoded.instructions
            start = instructions[head]
            end = frame.lasti + 1
            if start.name == "FOR_ITER":
                end = start.value
            raise LongLoop(first[0], end)

    def location(self) -> str:
        """The user's innermost line: frames of PyTorch and the standard library are passed over."""
        for frame in reversed(self.frames):
            if not frame.is_library:
                return frame.location
        return self.frames[-1].location if self.frames else ""

    def trace(self) -> Trace:
        """The user's frames; all of them where PyTorch's or the standard library's own code was compiled."""
        users = [frame for frame in self.frames if not frame.is_library]
        return tuple([(frame.code, frame.lasti) for frame in users or self.frames])

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
            on_result(generators.make(self, frame, function))
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
        if function.__code__.co_flags & 0x08:
            self.mark_created(values[-1])
        if self._goes_to_caller(on_result):
            self.push_frame(function, values, on_result, source)
            return
        on_result(self.now(lambda then: self.push_frame(function, values, then, source)))

    def _goes_to_caller(self, on_result: Callable[[Any], None]) -> bool:
        """Whether a result simply lands on the stack of the calling frame, so that a segment may end within the call."""
        if type(on_result) is Constructed:
            on_result = on_result.then
        return (
            type(on_result) is BuiltinFunctionType
            and bool(self.frames)
            and on_result.__self__ is self.frames[-1].stack
            and on_result.__name__ == "append"
        )

    def call_now(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        """Call anything and run it to its result before going on."""
        from .calls import call

        return self.now(call, self, function, args, kwargs or {})

    def now(self, step: Callable[..., None], *operands: Any) -> Any:
        """The result that `step(*operands, then)` gives to `then`: the frames that it needs run before going on."""
        result: list[Any] = []
        depth = len(self.frames)
        step(*operands, result.append)
        self.run_until(depth)
        return result[0]

    # the end of objects -----------------------------------------------------------------------------------------

    def note_ending(self, generator: GeneratorValue) -> None:
        """A generator whose end runs code came to it."""
        if not self.released:
            self.dropped.append(generator)

    def _close_dropped(self) -> None:
        """Run what CPython runs when nothing refers to a suspended generator any more.

        Raises:
            Unsupported: where that raises.
        """
        while self.dropped:
            generator = self.dropped.pop(0)
            try:
                generators.close(self, generator)
            except Raised:
                raise Unsupported(VISIBLE_ENDING) from None

    def let_go(self, value: Any) -> None:
        """A slot of a frame no longer has this value.

        Raises:
            Unsupported: where that is the end of an object from outside, and can be seen.
        """
        real = value.value if type(value) is Unread else value
        if id(real) in self.ending and not any(_refers(frame, real) for frame in self.frames):
            raise Unsupported(VISIBLE_ENDING)

    def leave(self, frame: Frame) -> None:
        """A frame is done, and lets go of its values. Those of the outermost one live until the segment's end, those of
        one in a traceback perhaps longer."""
        if self.ending and (self.frames or frame.in_traceback):
            for value in (*frame.locals, *frame.stack):
                self.let_go(value)
        frame.locals.clear()
        frame.stack.clear()
        if self.dropped and frame.in_traceback:  # which keeps its variables alive
            raise Unsupported(VISIBLE_ENDING)

    # helpers for handlers ---------------------------------------------------------------------------------------

    def native(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a pure native function now. What it raises is raised in the captured program.

        Raises:
            Unsupported: where an operand is the user's, and not of a kind that its guards describe.
        """
        foreign = next((a for a in (*args, *kwargs.values()) if self.outside.is_foreign(a)), None)
        if foreign is not None:
            raise Unsupported(f"native code on a {type_of(foreign).__name__}")
        return self.read(function, *args, **kwargs)

    def read(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The same on objects of the user's, for reading what gets guards of its own."""
        try:
            return function(*args, **kwargs)
        except (Unsupported, Raised, OperatorFailed):
            raise
        except Exception as error:
            raise Raised(self.mark_created(error.with_traceback(None))) from None

    def truth(self, value: Any) -> bool:
        """`bool(value)` as the captured program sees it."""
        from .containers import length_of

        kind = type(value)
        if kind is bool:
            return value  # type: ignore[no-any-return]
        if value is None:
            return False
        if kind is TensorProxy or (kind is Symbol and value.from_tensor):
            return self._truth_in_tensor(value)
        if kind is Symbol:
            return self.outside.truth(value)
        if isinstance(value, enum.Enum):
            found = ((name, python_method(self, value, name)) for name in ("__bool__", "__len__"))
            said = next(((name, method) for name, method in found if method is not None), None)
            return bool(value) if said is None else self._checked_truth(said[0], self.call_now(said[1], (value,)))
        if kind in (int, float, str, bytes, tuple, list, dict, set, frozenset, complex) or is_constant(value):
            return bool(value)
        for name in ("__bool__", "__len__"):
            function = python_method(self, value, name)
            if function is not None:
                return self._checked_truth(name, self.call_now(function, (value,)))
            if name == "__bool__" and kind is ForeignScalar:
                return self.truth(self.outside.number(value))
            if name == "__bool__" and special_method(self, value, name) is not ABSENT:
                raise Unsupported(f"the truth of a {type_of(value).__name__}")
        size = length_of(self, value)
        if size is None and special_method(self, value, "__len__") is not ABSENT:
            raise Unsupported(f"the truth of a {type_of(value).__name__}")
        return size != 0

    def _checked_truth(self, name: str, result: Any) -> bool:
        """What `__bool__` or `__len__` said, where that is of the right kind."""
        wanted = bool if name == "__bool__" else int
        if type_of(result) is not wanted:
            raise Unsupported(f"{name} that gives a {type_of(result).__name__}")
        return self.truth(result)

    def _truth_in_tensor(self, value: TensorProxy | Symbol) -> bool:
        """A branch on a tensor's value: a guard where that can be told before the graph runs."""
        known = self.graph.contents.of(value)
        if known is None:
            how = "" if type(value) is TensorProxy else " (through item())"
            raise Unsupported(f"a branch on a tensor's value{how}", "torch.where keeps both sides on the device")
        outcome = bool(known.hint)
        if isinstance(known.expr, Source):
            self.outside.require(NumberExpr("{}", (known.expr,)), outcome)
        elif isinstance(known.expr, NumberExpr):
            self.outside.require(known.expr, outcome)
        return outcome

    def binary(self, function: Callable[..., Any], left: Any, right: Any, on_result: Callable[[Any], None]) -> None:
        """A binary operator or comparison."""
        from .binary_operators import binary_operator

        binary_operator(self, function, left, right, on_result)

    def mark_created(self, value: Any) -> Any:
        """Note that the captured code made this object, so that it may be changed in place."""
        self.created[id(value)] = value
        return value


def _refers(frame: Frame, real: Any) -> bool:
    """Whether a frame has an object in one of its slots."""
    if any(value is real for value in frame.stack) or any(exception is real for exception in frame.exceptions):
        return True
    return any(value is real or (type(value) is Unread and value.value is real) for value in frame.locals)
