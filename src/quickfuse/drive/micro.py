"""Micro-functions: one bytecode instruction of the user's, as a function that CPython runs.

What an instruction does, and each word of its error messages, is CPython's own, since it is CPython that executes it. The
function has the user's file, function name, line and globals, so `warnings.warn`, the logging module and tracebacks see
the user's code. It is made once for each position of a code object:

    def step(values):              # the operands, the topmost first
        <values, onto the stack>; values.clear()
        <the instruction>
        return <what it left on the stack>

The list is cleared because an operand must die where it dies natively: in a function that deletes its argument, say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CodeType, FunctionType
from typing import Any

from ..bytecode.decoding import TABLE
from ..ir.frame import FrameState, Marker
from .assemble import LocationWriter, Protected, Writer, exception_table, location_at

#: What the micro-function of FOR_ITER returns at the end.
EXHAUSTED = Marker("EXHAUSTED")

#: The name of its variable tells a micro-function from the user's, whose file it claims to be in.
MICRO_VARIABLES = ("<operands>",)

_EVERYTHING = slice(None)
_CO_OPTIMIZED_NEWLOCALS = 0x3
_CO_FUTURE = 0x1FE0000  # inherited by eval() and compile()


class Micro:
    """The micro-function for one position. `taken` and `left` count values of the stack, without a call's NULL."""

    __slots__ = ("code", "instructions", "is_call", "left", "position_unit", "taken")

    def __init__(
        self, position_unit: int, instructions: tuple[tuple[str, int], ...], taken: int, left: int, is_call: bool = False
    ) -> None:
        self.position_unit = position_unit
        self.instructions = instructions
        self.taken = taken
        self.left = left
        self.is_call = is_call
        self.code: CodeType | None = None

    def build(self, code: CodeType) -> CodeType:
        writer = Writer()
        writer.emit("RESUME")
        if self.is_call:
            writer.emit_null_below()
        if self.taken:
            writer.emit("LOAD_FAST")
            writer.emit("UNPACK_SEQUENCE", self.taken)
            writer.emit("LOAD_FAST")
            writer.emit_constant(_EVERYTHING)
            writer.emit("DELETE_SUBSCR")
        if self.is_call:
            writer.emit_null_above(self.taken - 1)
        for name, arg in self.instructions:
            if name == "FOR_ITER":
                _emit_for_iter(writer)
            elif name == "KW_NAMES":
                writer.emit(name, writer.constant(code.co_consts[arg]))
            else:
                writer.emit(name, arg)
        if self.left > 1:
            writer.emit("BUILD_TUPLE", self.left)
        elif self.left == 0:
            writer.emit_constant(None)
        writer.emit("RETURN_VALUE")
        self.code = as_user_code(code, self.position_unit, writer, MICRO_VARIABLES, 1, self.taken + self.left + 8)
        return self.code


def _emit_for_iter(writer: Writer) -> None:
    writer.emit("FOR_ITER", 3)
    writer.emit("SWAP", 2)
    writer.emit("POP_TOP")
    writer.emit("RETURN_VALUE")
    for name in TABLE.for_end:
        writer.emit(name)
    writer.emit_constant(EXHAUSTED)


def as_user_code(
    code: CodeType, unit: int, writer: Writer, variables: tuple[str, ...], arguments: int, stack_size: int
) -> CodeType:
    """A function body that looks as if it stood at `unit` of the user's code; the first variables are its arguments."""
    locations = LocationWriter(code.co_firstlineno)
    locations.add(writer.units, location_at(code, unit))
    return code.replace(
        co_code=bytes(writer.data),
        co_consts=tuple(writer.constants),
        co_linetable=bytes(locations.data),
        co_exceptiontable=b"",
        co_varnames=variables,
        co_nlocals=len(variables),
        co_argcount=arguments,
        co_posonlyargcount=0,
        co_kwonlyargcount=0,
        co_cellvars=(),
        co_freevars=(),
        co_flags=_CO_OPTIMIZED_NEWLOCALS | code.co_flags & _CO_FUTURE,
        co_stacksize=stack_size,
    )


# exceptions that are being handled ------------------------------------------------------------------------------


def handled_exception(frames: Sequence[FrameState]) -> BaseException | None:
    """The exception that the innermost running handler of these frames handles."""
    for frame in reversed(frames):
        if frame.handled:
            for exception in reversed(frame.handled):
                if exception is not None:
                    return exception
    return None


def _assembled(like: Any, writer: Writer, protected: list[Protected]) -> FunctionType:
    """A function of this module's, with other instructions."""
    code = like.__code__
    locations = LocationWriter(code.co_firstlineno)
    locations.add(writer.units, (code.co_firstlineno, None, None, None))
    return FunctionType(
        code.replace(
            co_code=bytes(writer.data),
            co_consts=tuple(writer.constants),
            co_linetable=bytes(locations.data),
            co_exceptiontable=exception_table(protected),
            co_stacksize=8,
        ),
        {"__builtins__": {}, "__name__": __name__},
    )


def _assemble_call_handling() -> Callable[[BaseException, Callable[[Any], Any], Any], Any]:
    def call_handling(exception: BaseException, function: Callable[[Any], Any], operand: Any) -> Any:
        raise NotImplementedError

    writer = Writer((None,))
    writer.emit("RESUME")
    writer.emit("LOAD_FAST", 0)
    writer.emit("PUSH_EXC_INFO")
    writer.emit("POP_TOP")
    start = writer.units
    writer.emit_null_below()
    writer.emit("LOAD_FAST", 1)
    writer.emit("LOAD_FAST", 2)
    writer.emit_null_above(1)
    writer.emit("CALL", 1)
    end = writer.units
    writer.emit("SWAP", 2)
    writer.emit("POP_EXCEPT")
    writer.emit("RETURN_VALUE")
    target = writer.units
    writer.emit("SWAP", 2)
    writer.emit("POP_EXCEPT")
    writer.emit("RERAISE", 0)
    return _assembled(call_handling, writer, [Protected(start, end, target, 1, False)])


def _assemble_reraise() -> Callable[[BaseException], None]:
    def reraise(exception: BaseException) -> None:
        raise NotImplementedError

    writer = Writer((None,))
    writer.emit("RESUME")
    writer.emit("LOAD_FAST", 0)
    writer.emit("RERAISE", 0)
    return _assembled(reraise, writer, [])


#: `call_handling(exception, function, operand)` is `function(operand)` while the exception is being handled.
#: `try: raise exception` would do the same, but that changes the exception's traceback and context.
call_handling = _assemble_call_handling()
#: `reraise(exception)` raises it as it is. A `raise` statement would give it another context and a longer traceback.
reraise = _assemble_reraise()
