"""The symbolic interpreter: runs the bytecode of a function on stand-ins for its values.

It keeps its own stack of frames, so that calls of Python functions are inlined without recursion. It never changes an
object of the user's: what the program does to them is noted, and replayed when compiled code runs.

Between two instructions of the outermost loop, every frame is explicit data: there a segment can end. Code that a native
function calls back (a sort key, `__bool__`) runs in a nested loop instead; if that has to stop, the segment ends before
the instruction that called the native function.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from types import BuiltinFunctionType, FunctionType, TracebackType
from typing import Any, NamedTuple

from ..errors import Unsupported
from ..ir.guard import NumberExpr
from ..ir.source import Source
from ..ir.trace import Trace
from . import opcodes
from .failing import is_in_try
from .frame import ArgumentsMismatch, Constructed, Frame, GeneratorValue, bind_arguments
from .graph import GraphBuilder
from .metadata import OperatorFailed
from .outside import Outside, is_trusted_module
from .values import Symbol, TensorProxy, Unread

MAX_DEPTH = 200
CO_GENERATOR = 0x20
CO_COROUTINES = 0x80 | 0x100 | 0x200

#: How many instructions a loop of the user's may take without touching a tensor before it is left to CPython.
LONGEST_PLAIN_LOOP = 2_500

VISIBLE_ENDING = "letting go of an object whose end runs code, such as a generator in the middle of a try statement"

_dispatch: dict[str, Callable[..., None]] = {}


class Raised(Exception):
    """The captured program raised `exception`."""

    def __init__(self, exception: BaseException) -> None:
        super().__init__(exception)
        self.exception = exception


class LongLoop(Unsupported):
    """A loop that does nothing for tensors goes on and on: capture should have stopped after `stop_at` instructions,
    for the loop to run natively until the instruction `loop_end`."""

    def __init__(self, stop_at: int, loop_end: int) -> None:
        super().__init__("a long loop without tensors")
        self.stop_at = stop_at
        self.loop_end = loop_end


class TracebackStandIn(NamedTuple):
    """A traceback of an exception, as it was when the exception had this number of entries."""

    traceback: Any
    exception: BaseException
    entries: int


class Interpreter:
    """Captures one segment, of at most `stop_at` instructions."""

    def __init__(self, stop_at: int = -1, volatile: frozenset[str] = frozenset()) -> None:
        self.frames: list[Frame] = []
        self.outside = Outside(self.location, volatile)
        self.outside.frames = self.frames
        self.graph = GraphBuilder(self.trace, self.outside.guard_requires_grad, self.outside.guard)
        self.created: dict[int, Any] = {}
        self.results: list[Any] = []
        #: Where each exception that the captured code raised came by: the entries of its traceback, innermost first.
        self.traces: dict[int, list[tuple[Frame, int]]] = {}
        #: What stands for the traceback of an exception, by its identity: see `traceback_of`.
        self.tracebacks: dict[int, TracebackStandIn] = {}
        self.generators: list[weakref.ref[GeneratorValue]] = []
        #: Objects from outside whose end can be seen, by identity: see `ir.endings`.
        self.ending: dict[int, Any] = {}
        self.ended = False
        self.stop_at = stop_at
        self.performed = 0
        self.raised_at = 0
        self.nesting = 0

    def release(self) -> None:
        """Let go of the user's objects: an interpreter is part of reference cycles, which may live long."""
        self.created.clear()
        self.results.clear()
        self.traces.clear()
        self.ending.clear()
        self.tracebacks.clear()
        self.frames.clear()
        self.graph.release()
        self.outside.release()

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
                    if self.ended:
                        raise Unsupported(VISIBLE_ENDING)
                    self.performed += 1
                    if not frames or frames[-1] is not frame:
                        break
            except Raised as raised:
                self.raised_at = self.performed
                self._unwind(raised.exception, 0)
                if self.ended:
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
                        if not frames or frames[-1] is not frame:
                            break
                except Raised as raised:
                    self._unwind(raised.exception, depth)
                except OperatorFailed as failed:
                    raise Unsupported(f"an operator that raises: {failed}") from failed
        finally:
            self.nesting -= 1

    def _find(self, name: str) -> Callable[..., None]:
        handler = getattr(opcodes, f"op_{name}", None)
        if handler is None:
            raise Unsupported(f"the bytecode instruction {name}")
        _dispatch[name] = handler
        return handler  # type: ignore[no-any-return]

    def _unwind(self, exception: BaseException, depth: int) -> None:
        """Give an exception to the innermost handler, popping frames as CPython does."""
        if id(exception) not in self.created and self.outside.is_outside(exception):
            raise Unsupported("raising an exception from outside")  # its traceback gets an entry for each frame
        self._chain(exception)
        trace = self.traces.setdefault(id(exception), [])
        while len(self.frames) > depth:
            frame = self.frames[-1]
            if not trace or not _is_reraise(frame):
                trace.append((frame, frame.lasti))
            handler = frame.decoded.handler_for(frame.lasti)
            if handler is not None:
                frame.in_traceback = True
                gone = frame.stack[handler.depth :]
                del frame.stack[handler.depth :]
                if self.ending:
                    for value in gone:
                        self.let_go(value)
                gone.clear()
                if handler.push_lasti:
                    frame.stack.append(frame.lasti)
                frame.stack.append(exception)
                frame.position = handler.target
                return
            self.frames.pop()
            self.leave(frame)
            if frame.generator is not None:
                frame.generator.done = True
                if isinstance(exception, StopIteration):
                    stop = exception
                    exception = self.mark_created(RuntimeError("generator raised StopIteration"))
                    exception.__cause__ = exception.__context__ = stop
        raise Raised(exception)

    def _chain(self, exception: BaseException) -> None:
        """Set `__context__` as CPython does for an exception that is raised while another one is handled."""
        handled = next((e for f in reversed(self.frames) for e in reversed(f.exceptions) if e is not None), None)
        if handled is None or handled is exception:
            return
        if id(exception) not in self.created and self.outside.is_outside(exception):
            raise Unsupported("raising an exception from outside in an exception handler")
        if exception.__context__ is None and not _leads_to(handled, exception):
            exception.__context__ = handled

    def in_try(self) -> bool:
        """Whether the user's code would handle an exception that is raised now."""
        return any(is_in_try(f.code, f.lasti) for f in self.frames if not is_trusted_module(f.globals.get("__name__")))

    def note_loop(self, frame: Frame, head: int) -> None:
        """A loop comes round, to the instruction `head`.

        Raises:
            LongLoop: if it did nothing for tensors for a long time.
        """
        if self.nesting or is_trusted_module(frame.globals.get("__name__")):
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
                end = start.value + (1 if opcodes.PY312 else 0)
            raise LongLoop(first[0], end)

    def location(self) -> str:
        """The user's innermost line: frames of PyTorch and the standard library are passed over."""
        for frame in reversed(self.frames):
            if not is_trusted_module(frame.globals.get("__name__")):
                return frame.location
        return self.frames[-1].location if self.frames else ""

    def trace(self) -> Trace:
        """The user's frames; all of them where PyTorch's or the standard library's own code was compiled."""
        users = [frame for frame in self.frames if not is_trusted_module(frame.globals.get("__name__"))]
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
            frame.on_result = _nowhere
            generator = GeneratorValue(frame, function, self._note_ending)
            self.generators.append(weakref.ref(generator))
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
        if function.__code__.co_flags & 0x08:
            self.mark_created(values[-1])
        if self._goes_to_caller(on_result):
            self.push_frame(function, values, on_result, source)
            return
        result: list[Any] = []
        depth = len(self.frames)
        self.push_frame(function, values, result.append, source)
        self.run_until(depth)
        on_result(result[0])

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

        result: list[Any] = []
        depth = len(self.frames)
        call(self, function, args, kwargs or {}, result.append)
        self.run_until(depth)
        return result[0]

    def resume_generator(self, generator: GeneratorValue, sent: Any = None) -> tuple[bool, Any]:
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
            if sent is not None:
                raise Raised(TypeError("can't send non-None value to a just-started generator"))
            frame.stack.clear()
        else:
            frame.stack.append(sent)
        generator.running = True
        frame.generator = generator
        self.frames.append(frame)
        try:
            self.run_until(depth)
        finally:
            generator.running = False
            frame.generator = None  # a reference would keep it alive
            frame.on_result = _nowhere
        return not generator.done, result[0]

    def throw_into(self, generator: GeneratorValue, exception: BaseException) -> tuple[bool, Any]:
        """Raise an exception where a generator is suspended, and run it to its next yield or its end."""
        frame = generator.frame
        if generator.done or frame.position == 0:
            generator.done = True
            raise Raised(exception)
        if generator.running:
            raise Raised(ValueError("generator already executing"))
        depth = len(self.frames)
        result: list[Any] = []
        frame.on_result = result.append
        generator.running = True
        frame.generator = generator
        self.frames.append(frame)
        try:
            self._unwind(exception, depth)
            self.run_until(depth)
        finally:
            generator.running = False
            frame.generator = None  # a reference would keep it alive
            frame.on_result = _nowhere
        return not generator.done, result[0]

    # the end of objects -----------------------------------------------------------------------------------------

    def _note_ending(self) -> None:
        self.ended = True

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

    # helpers for handlers ---------------------------------------------------------------------------------------

    def native(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a pure native function now. What it raises is raised in the captured program."""
        try:
            return function(*args, **kwargs)
        except (Unsupported, Raised, OperatorFailed):
            raise
        except Exception as error:
            raise Raised(self.mark_created(error.with_traceback(None))) from None

    def traceback_of(self, exception: BaseException) -> Any:
        """The traceback of an exception that captured code made: some traceback, which only the real one replaces."""
        entries = len(self.traces.get(id(exception), ()))
        for known in self.tracebacks.values():
            if known.exception is exception and known.entries == entries:
                return known.traceback
        # Of a frame that has no caller: one that had would keep the interpreter's own frames.
        traceback = TracebackType(None, (nothing for nothing in ()).gi_frame, 0, 1)
        self.tracebacks[id(traceback)] = TracebackStandIn(traceback, exception, entries)
        return traceback

    def set_traceback(self, exception: BaseException, traceback: Any) -> None:
        """`exception.__traceback__ = traceback`, for an exception that captured code made: back to what it was before."""
        if traceback is None:
            self.traces.pop(id(exception), None)
            return
        known = self.tracebacks.get(id(traceback))
        if known is None or known.exception is not exception:
            raise Unsupported("giving an exception another traceback")
        del self.traces[id(exception)][known.entries :]

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
        from .calls import binary_operator

        binary_operator(self, function, left, right, on_result)

    def mark_created(self, value: Any) -> Any:
        """Note that the captured code made this object, so that it may be changed in place."""
        self.created[id(value)] = value
        return value


def _nowhere(result: Any) -> None:
    """Where a generator's results go while it is not running."""


def _refers(frame: Frame, real: Any) -> bool:
    """Whether a frame has an object in one of its slots."""
    if any(value is real for value in frame.stack) or any(exception is real for exception in frame.exceptions):
        return True
    return any(value is real or (type(value) is Unread and value.value is real) for value in frame.locals)


def _is_reraise(frame: Frame) -> bool:
    """Whether the last instruction raised an exception that has its entry for this frame already."""
    name, arg, _, _ = frame.decoded.instructions[frame.lasti]
    return name == "RERAISE" or (name == "RAISE_VARARGS" and not arg)


def _leads_to(exception: BaseException, wanted: BaseException) -> bool:
    """Whether `wanted` is in the chain of contexts of `exception`."""
    seen: BaseException | None = exception
    while seen is not None:
        if seen is wanted:
            return True
        seen = seen.__context__
    return False
