"""The symbolic interpreter: runs the bytecode of a function on stand-ins for its values.

It keeps its own stack of frames, so that calls of Python functions are inlined without recursion. It never changes an
object of the user's: what the program does to them is noted, and replayed when compiled code runs.

Between two instructions of the outermost loop, every frame is explicit data: there a segment can end. Code that a native
function calls back (a sort key, `__bool__`) runs in a nested loop instead; if that has to stop, the segment ends before
the instruction that called the native function.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import Any

from ...errors import Unsupported
from ..branches import assertions, held_contents, input_conditions
from ..inference.results import OperatorFailed
from ..interpreter import VISIBLE_ENDING, Args, Interpreter, Kwargs, Then
from ..library.weak_references import WEAK_CONTAINERS, check_nothing_let_go
from ..objects import binary_operators, containers, generators, hashing
from ..objects.exceptions import unwind
from ..symbolic import Symbol, TensorProxy
from ..symbolic.frame import ArgumentsMismatch, Constructed, Frame, bind_arguments, refusal
from ..symbolic.raising import Raised, raise_in_program
from ..values.kind import Kind
from ..values.table import kind_of
from . import loops, opcodes, opcodes_building, opcodes_flow

MAX_DEPTH = 200
CO_GENERATOR = 0x20
CO_COROUTINES = 0x80 | 0x100 | 0x200

#: The modules that have a function, or a line of a table, for each bytecode instruction.
_OPERATIONS = (opcodes, opcodes_building, opcodes_flow)

_dispatch: dict[str, Callable[..., None]] = {}


def _push(function: Callable[..., Any]) -> Callable[..., None]:
    return lambda i, f, arg, value: f.stack.append(function(i, f, arg, value))


def _taking(count: int, function: Callable[..., Any]) -> Callable[..., None]:
    def operation(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
        values = f.stack[-count:]
        del f.stack[-count:]
        function(i, f, arg, value, *values)

    return operation if count else function


class BytecodeInterpreter(Interpreter):
    """Captures one segment, of at most `stop_at` instructions."""

    # running ----------------------------------------------------------------------------------------------------

    def run(self) -> bool:
        """Run until the outermost frame returns (True; `results` has its value) or `stop_at` instructions are performed.
        Raises `Raised` where an exception leaves the outermost frame, after `raised_at` instructions, and `Unsupported`
        after `performed` instructions where capture cannot follow the next one."""
        self._run(0, self.stop_at, 1)
        return not self.frames

    def run_until(self, depth: int) -> None:
        self.nesting += 1
        try:
            self._run(depth, -1, 0)
        finally:
            self.nesting -= 1

    def _run(self, depth: int, stop_at: int, step: int) -> None:
        """Run until `depth` frames are left, or `performed` is `stop_at`; each instruction counts `step` there."""
        frames, known = self.frames, _dispatch.get
        while len(frames) > depth:
            frame = frames[-1]
            instructions = frame.decoded.instructions
            try:
                while True:
                    if self.performed == stop_at:
                        return
                    position = frame.position
                    name, arg, value, _ = instructions[position]
                    frame.lasti = position
                    frame.position = position + 1
                    (known(name) or self._find(name))(self, frame, arg, value)
                    while self.dropped:  # generators that nothing refers to any more: CPython closes them
                        try:
                            generators.close(self, self.dropped.pop(0))
                        except Raised:
                            raise Unsupported(VISIBLE_ENDING) from None
                    self.performed += step
                    if not frames or frames[-1] is not frame:
                        break
            except Raised as raised:
                if step:
                    self.raised_at = self.performed
                unwind(self, raised.exception, depth)
                if self.dropped:
                    raise Unsupported(VISIBLE_ENDING) from None
                self.performed += step
            except OperatorFailed as failed:
                raise Unsupported(f"an operator that raises: {failed}") from failed

    def _find(self, name: str) -> Callable[..., None]:
        for module in _OPERATIONS:
            if (handler := getattr(module, f"op_{name}", None)) is not None or name in module.PUSHED:
                return _dispatch.setdefault(name, handler or _push(module.PUSHED[name]))
            if name in module.TAKING:
                return _dispatch.setdefault(name, _taking(*module.TAKING[name]))
        raise Unsupported(f"the bytecode instruction {name}")

    def note_loop(self, frame: Frame, head: int) -> None:
        if not (self.nesting or frame.is_library):
            loops.note_turn(self, frame, head)

    # calls ------------------------------------------------------------------------------------------------------

    def push_frame(self, function: FunctionType, values: list[Any], on_result: Callable[[Any], None], source: Any) -> None:
        """Begin running a Python function; `on_result` gets what it returns."""
        if len(self.frames) >= MAX_DEPTH:
            raise Unsupported("recursion deeper than capture follows")
        code = function.__code__
        if code.co_flags & CO_COROUTINES:
            raise Unsupported("a coroutine")
        if function.__globals__.get("__name__") in WEAK_CONTAINERS:
            check_nothing_let_go(self)  # which would take it out of them
        frame = Frame(code, function.__globals__, on_result, source)
        if self.frames:
            frame.called_at = self.performed
        frame.locals[: len(values)] = values
        for k, cell in enumerate(function.__closure__ or (), len(frame.names) - len(code.co_freevars)):
            frame.locals[k] = cell
        if code.co_flags & CO_GENERATOR:
            on_result(generators.make(self, frame, function))
            return
        self.frames.append(frame)

    def inline(self, function: FunctionType, args: Args, kwargs: Kwargs, on_result: Callable[[Any], None]) -> None:
        source = self.outside.source_of(function)
        if source is None and not self.is_created(function):
            source = self.outside.roots.constant(function.__qualname__, function)
            self.outside.note_place(function, source)
        if source is not None:
            self.outside.guard_function(function, source)
        try:
            values = bind_arguments(function, args, kwargs, partial(self.outside.default, function, source))
        except ArgumentsMismatch:
            if self.in_try() and (error := refusal(function, len(args), kwargs)) is not None:
                raise_in_program(self.mark_created(TypeError(*error.args)))
            raise Unsupported(f"a call that does not fit the signature of {function.__qualname__}") from None
        if function.__code__.co_flags & 0x08:
            self.mark_created(values[-1])
        if self._goes_to_caller(on_result):
            self.push_frame(function, values, on_result, source)
            return
        on_result(self.now(lambda then: self.push_frame(function, values, then, source)))

    def run_class_body(self, body: FunctionType, namespace: dict[str, Any]) -> None:
        depth = len(self.frames)
        self.push_frame(body, [], lambda cell: None, None)
        self.frames[-1].namespace = namespace
        self.run_until(depth)

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

    # questions about values -------------------------------------------------------------------------------------

    item, binary = containers.get_item, binary_operators.binary_operator
    iterator, length = containers.make_iterator, containers.length
    looked_up, fails_unless = hashing.looked_up, assertions.fails_unless

    def kind_of(self, value: Any) -> Kind:
        return kind_of(value)

    def call(self, function: Any, args: Args, kwargs: Kwargs, then: Then) -> None:
        kind_of(function).call(self, function, args, kwargs, then)

    def attribute(self, base: Any, name: str, then: Then) -> None:
        kind_of(base).attribute(self, base, name, then)

    def truth(self, value: Any) -> bool:
        return value if type(value) is bool else kind_of(value).truth(self, value)

    def truth_in_tensor(self, value: TensorProxy | Symbol) -> bool:
        known = self.graph.contents.of(value)
        if known is None and (outcome := held_contents.truth(self, value)) is not None:
            return outcome
        if known is None and (outcome := input_conditions.truth(self, value)) is not None:
            return outcome
        if known is None:
            how = "" if type(value) is TensorProxy else " (through item())"
            raise Unsupported(f"a branch on a tensor's value{how}", "torch.where keeps both sides on the device")
        return self.outside.require_truth(known.expr, known.hint)

    def number_out_of_tensor(self, symbol: Symbol) -> Any:
        """The value of a number out of an argument's tensor, or of a condition, guarded to stay so; None for others."""
        if not self.begins_call:
            return None
        held = held_contents.number_of(self, symbol)
        return input_conditions.truth(self, symbol) if held is None and symbol.kind is bool else held
