"""Resume functions: the user's code with a prologue that puts a suspended frame's values in place and jumps to its position.

The user's bytes stay as they are, after the prologue. All jumps are relative, so only the exception table moves. The
values come in a cell, a free variable after those of the user's. Variables that are cells are restored as the cell
objects, so whoever shares them goes on sharing them.

        COPY_FREE_VARS, MAKE_CELL ..            what makes the frame's slots look right to locals() and super()
        RESUME
        <locals> <stack>                        from the cell, which is then emptied
        JUMP_FORWARD position
        <the user's bytes>                      in mode EXIT and STEP with a trap at the exit
        <return the frame's values>             in mode EXIT and STEP
"""

from __future__ import annotations

import dis
from types import CellType, CodeType, FunctionType
from typing import Any, NamedTuple

from ..bytecode.decoding import TABLE, local_names
from ..bytecode.stack_effects import effect
from ..bytecode.table import Written
from ..errors import Unsupported
from ..ir.frame import NULL, UNBOUND, FrameState, Marker
from .assemble import (
    LOAD_FAST_CHECKED,
    LocationWriter,
    Protected,
    Writer,
    exception_table,
    location_at,
    protected_ranges,
    without_unit,
)
from .program import Program, program_of
from .stacks import LASTI, MAYBE_NULL, NULL_SLOT, SAVED, Kinds


class CannotResume(Unsupported):
    """A frame that cannot go on natively: the reason is a clause for the user."""


#: To the end of the function.
FINISH = "finish"
#: As a generator that is suspended at a `yield`.
GENERATOR = "generator"
#: Until control reaches another position.
EXIT = "exit"
#: One instruction only, whose exceptions are for the caller to handle.
STEP = "step"
#: Not to run at all, but to raise an exception whose traceback then has the frame. What is on the stack is kept with it.
TRACEBACK = "traceback"

#: The last element of what a function in mode EXIT or STEP returns when it stopped at the exit.
STOPPED = Marker("STOPPED")

_STATE_NAME = "<suspended>"
_LOCALS, _EXCEPTION, _FIRST_SLOT = 0, 1, 2  # indices in the state
_CO_GENERATOR = 0x20


class Shape(NamedTuple):
    """What decides about the code of a resume function: everything but the values.

    `saved_positions` are those on the stack where the interpreter has no objects for them.
    """

    mode: str
    position: int
    exit_position: int
    bound: tuple[int, ...]
    nulls: tuple[bool, ...]
    keyword_names: tuple[str, ...]
    saved_positions: tuple[int, ...]
    handles: bool


class Resume(NamedTuple):
    """`base` is where the user's code begins; `lasti_slots` and `exit_kinds` tell which slots need a translation.

    `lasti` and `line` are what a traceback says about the position.
    """

    code: CodeType
    base: int
    lasti_slots: tuple[int, ...]
    exit_kinds: Kinds
    defaults: tuple[None, ...]
    keyword_defaults: dict[str, None]
    lasti: int
    line: int


def resume_function(
    frame: FrameState, mode: str, exit_position: int = -1, exception: BaseException | None = None
) -> tuple[FunctionType, Resume]:
    """The function to call, without arguments, to go on with `frame`. The frame keeps its values."""
    code = frame.code
    program = program_of(code)
    slots = frame.locals
    bound = [index for index, value in enumerate(slots) if value is not UNBOUND]
    stack = _operands(frame) if mode == STEP else frame.stack
    handles = bool(frame.handled) and mode not in (STEP, TRACEBACK)
    shape = Shape(
        mode,
        frame.position,
        exit_position,
        tuple(bound),
        tuple([value is NULL or value is UNBOUND for value in stack]),
        frame.keyword_names,
        () if TABLE.lasti_is_object or mode in (STEP, TRACEBACK) else _saved_positions(program, frame),
        handles,
    )
    resume = program.resumes.get(shape)
    if resume is None:
        resume = program.resumes[shape] = _Builder(code, program, shape).build()
    if resume.lasti_slots:
        stack = list(stack)
        for slot in resume.lasti_slots:
            stack[slot] = resume.base + program.units[stack[slot]]
    if handles:
        exception = frame.handled[-1]
    state = (tuple([slots[index] for index in bound]), exception, *stack)
    free = [value if type(value) is CellType else CellType() for value in slots[len(slots) - len(code.co_freevars) :]]
    function = FunctionType(resume.code, frame.globals, code.co_name, resume.defaults, (*free, CellType(state)))
    if resume.keyword_defaults:
        function.__kwdefaults__ = resume.keyword_defaults
    return function, resume


def _saved_positions(program: Program, frame: FrameState) -> tuple[int, ...]:
    kinds = program.kinds(frame.position) or ()
    return tuple([value for value, kind in zip(frame.stack, kinds, strict=False) if kind == LASTI])


def _operands(frame: FrameState) -> list[Any]:
    name, arg, _, _ = program_of(frame.code).decoded.instructions[frame.position]
    numbers = effect(name, arg)
    assert numbers is not None
    return frame.stack[len(frame.stack) - numbers[0] :]


class _Builder:
    def __init__(self, code: CodeType, program: Program, shape: Shape) -> None:
        self.code = code
        self.program = program
        self.shape = shape
        self.names = local_names(code)
        self.state = len(self.names)  # the slot of the free variable after the user's
        self.writer = Writer(code.co_consts)
        self.locations = LocationWriter(code.co_firstlineno)
        self.protected: list[Protected] = []
        self.exit_kinds: Kinds = ()
        self.kinds = self._checked_kinds()

    def build(self) -> Resume:
        code, shape = self.code, self.shape
        self._enter()
        self._restore_locals()
        if shape.mode == TRACEBACK:
            self._raise()
        else:
            self._restore_stack()
            self.writer.emit("DELETE_DEREF", self.state)
            self._go_on()
        base = self.writer.units
        if shape.mode not in (STEP, TRACEBACK):
            self.protected += [entry.moved(base) for entry in protected_ranges(code)]
        self.writer.data += self._body()
        self.locations.data += code.co_linetable
        if shape.mode in (EXIT, STEP):
            self._stop_at_exit(base)
        depth = len(shape.nulls) + len(self.exit_kinds)
        resumed = code.replace(
            co_code=bytes(self.writer.data),
            co_consts=tuple(self.writer.constants),
            co_linetable=bytes(self.locations.data),
            co_exceptiontable=exception_table(self.protected),
            co_freevars=(*code.co_freevars, _STATE_NAME),
            co_stacksize=code.co_stacksize + depth + len(self.names) + 8,
            co_flags=code.co_flags & ~_CO_GENERATOR if shape.mode == TRACEBACK else code.co_flags,
        )
        keyword_only = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
        unit = self.program.units[shape.position]
        line = location_at(code, unit)[0]
        return Resume(
            resumed,
            base,
            tuple(slot for slot, kind in enumerate(self.kinds) if kind == LASTI and TABLE.lasti_is_object),
            self.exit_kinds,
            defaults=(None,) * code.co_argcount,
            keyword_defaults=dict.fromkeys(keyword_only),
            lasti=2 * (base + unit),
            line=self.program.decoded.instructions[shape.position].line if line is None else line,
        )

    def _body(self) -> bytearray:
        """The user's bytes, but for the instruction that would look for the free variables after those of the user's."""
        body = bytearray(self.code.co_code)
        for instruction, unit in zip(self.program.decoded.instructions, self.program.units, strict=True):
            if instruction.name == "COPY_FREE_VARS":
                body[2 * unit : 2 * unit + 2] = bytes((dis.opmap["NOP"], 0))
            elif instruction.name == "RESUME":  # the end of what comes before the user's own instructions
                break
        return body

    def _checked_kinds(self) -> Kinds:
        """The kinds of the stack's slots. A frame that does not fit its code would crash the process."""
        shape = self.shape
        if shape.mode in (STEP, TRACEBACK):
            return ()
        kinds = self.program.kinds(shape.position)
        if kinds and shape.mode == GENERATOR:
            kinds = kinds[:-1]  # without what will be sent
        if kinds is None or len(kinds) != len(shape.nulls):
            raise CannotResume("a frame whose stack does not fit its code")
        for kind, null in zip(kinds, shape.nulls, strict=True):
            if kind != MAYBE_NULL and null != (kind == NULL_SLOT):
                raise CannotResume("a frame whose stack does not fit its code")
        return kinds

    # the prologue -----------------------------------------------------------------------------------------------

    def _enter(self) -> None:
        writer = self.writer
        writer.emit("COPY_FREE_VARS", len(self.code.co_freevars) + 1)
        for name in self.code.co_cellvars:
            writer.emit("MAKE_CELL", self.names.index(name))
        if self.shape.mode == GENERATOR:
            writer.emit("RETURN_GENERATOR")
            writer.emit("POP_TOP")
        writer.emit("RESUME")

    def _load(self, index: int) -> None:
        self.writer.emit("LOAD_DEREF", self.state)
        self.writer.emit_constant(index)
        self.writer.emit("BINARY_SUBSCR")

    def _restore_locals(self) -> None:
        bound = self.shape.bound
        if bound:
            self._load(_LOCALS)
            self.writer.emit("UNPACK_SEQUENCE", len(bound))
            for index in bound:
                self.writer.emit("STORE_FAST", index)
        for index in self._filled_by_the_call() - set(bound):
            self.writer.emit("DELETE_FAST", index)

    def _filled_by_the_call(self) -> set[int]:
        """Slots with values of their own that are not the frame's. Free variables keep the cells that they got: CPython
        takes it for granted that there is one in each."""
        code = self.code
        arguments = code.co_argcount + code.co_kwonlyargcount
        arguments += bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)
        cells = {self.names.index(name) for name in code.co_cellvars}
        return cells | set(range(arguments))

    def _restore_stack(self) -> None:
        writer = self.writer
        outermost = _outermost_saved(self.kinds) if self.shape.handles else None
        saved_positions = iter(self.shape.saved_positions)
        for slot, null in enumerate(self.shape.nulls):
            if null:
                writer.emit("PUSH_NULL")
            elif self.shape.saved_positions and self.kinds[slot] == LASTI:
                self._restore_position(next(saved_positions), depth=slot)
            elif outermost is None or self.kinds[slot] != self.kinds[outermost]:
                self._load(_FIRST_SLOT + slot)
            elif slot == outermost:
                # Leaves what is handled by the frames outside, which is what the handler's end has to restore.
                self._load(_EXCEPTION)
                writer.emit("PUSH_EXC_INFO")
                writer.emit("POP_TOP")
            else:
                writer.emit("COPY", slot - outermost)
        if self.shape.handles and outermost is None:
            raise CannotResume("a frame that handles an exception outside of a handler")

    def _restore_position(self, position: int, depth: int) -> None:
        """Only a handler's entry can put a position on the stack: so raise something there, as if at that position."""
        writer = self.writer
        writer.emit_constant(StopIteration)
        self.locations.add(writer.units - _units_described(self.locations))
        start = writer.units
        writer.emit("RAISE_VARARGS", 1)
        self.locations.add(1, location_at(self.code, self.program.units[position]))
        self.protected.append(Protected(start, writer.units, writer.units, depth, True))
        writer.emit("POP_TOP")

    def _go_on(self) -> None:
        writer, shape = self.writer, self.shape
        destination = shape.position
        if shape.mode == GENERATOR:
            destination = self._yield_once()
        if shape.keyword_names:
            writer.emit("KW_NAMES", writer.constant(shape.keyword_names))
        before = self.program.decoded.before.get(destination)
        if before is not None:
            self._perform(before, destination)
        writer.emit("JUMP_FORWARD", self.program.starts[destination])
        self._describe_rest()

    def _perform(self, before: tuple[Written, ...], position: int) -> None:
        """What CPython did not do before it goes on in the middle of an instruction. It raises as if done there."""
        writer, starts = self.writer, self.program.starts
        self.locations.add(writer.units - _units_described(self.locations))
        start = writer.units
        for name, arg in before:
            writer.emit(name, arg)
        self.locations.add(writer.units - start, location_at(self.code, self.program.units[position]))
        handler = self.program.decoded.handler_for(position)
        if handler is not None and self.shape.mode != STEP:
            target = writer.units + _units_of_jump(starts[position]) + starts[handler.target]
            self.protected.append(Protected(start, writer.units, target, handler.depth, handler.push_lasti))

    def _yield_once(self) -> int:
        """Wait at a copy of the `yield`: the first value that is sent, or exception that is thrown, belongs there.

        Returns the position to jump to.
        """
        writer, starts = self.writer, self.program.starts
        position = self.shape.position
        instructions = self.program.decoded.instructions
        before, following = instructions[position - 1], instructions[position]
        if before.name != "YIELD_VALUE" or following.name != "RESUME":
            raise CannotResume("a generator that is not suspended at a yield")
        destination = position + 1
        sending = instructions[position - 2]
        delegates = sending.name == "SEND" and not TABLE.send_keeps_receiver
        if delegates:
            # When a throw() into `yield from` makes the inner generator return, CPython itself looks for the SEND before
            # the yield, and goes on where that jumps to: here, after the jump that goes back into the loop.
            destination = sending.value
            back = Writer()
            back.emit("JUMP_FORWARD", _units_of_jump(starts[destination]) + starts[position + 1])
        writer.emit_constant(None)
        if delegates:
            writer.emit("JUMP_FORWARD", 1)
            writer.emit("SEND", 2 + back.units)
        self.locations.add(writer.units)
        start = writer.units
        writer.emit("YIELD_VALUE", before.arg)
        writer.emit("RESUME", following.arg)
        if delegates:
            writer.data += back.data
        handler = self.program.decoded.handler_for(position - 1)
        if handler is not None:
            target = writer.units + _units_of_jump(starts[destination]) + starts[handler.target]
            self.protected.append(Protected(start, writer.units, target, handler.depth, handler.push_lasti))
        self.locations.add(writer.units - start, location_at(self.code, self.program.units[position - 1]))
        return destination

    def _raise(self) -> None:
        writer = self.writer
        self._load(_EXCEPTION)
        if not self.shape.nulls:
            writer.emit("DELETE_DEREF", self.state)
        self.locations.add(writer.units)
        writer.emit("RAISE_VARARGS", 1)
        self.locations.add(1, location_at(self.code, self.program.units[self.shape.position]))
        writer.emit("NOP")
        self._describe_rest()

    def _describe_rest(self) -> None:
        """Locations for what has been written; the user's table that follows counts from the first line."""
        first = self.code.co_firstlineno
        described = _units_described(self.locations)
        away = self.locations.line != first
        self.locations.add(self.writer.units - described, (first, None, None, None) if away else None)

    # the exit ---------------------------------------------------------------------------------------------------

    def _stop_at_exit(self, base: int) -> None:
        """Divert control at the exit to instructions that return the stack and the locals.

        There may be no room for a jump, but an instruction that raises, in a protected range of its own, always fits.
        """
        kinds = self._kinds_at_exit()
        self.exit_kinds = kinds
        writer = self.writer
        trap = base + self.program.starts[self.shape.exit_position]
        trap_code = Writer()
        trap_code.emit("RAISE_VARARGS", 0)
        writer.data[2 * trap : 2 * trap + 2] = trap_code.data
        self.protected = without_unit(self.protected, trap)
        begin = writer.units
        self.protected.append(Protected(trap, trap + 1, begin, len(kinds), False))

        outermost = _outermost_saved(kinds)
        if outermost is None:
            writer.emit("POP_TOP")
            writer.emit("BUILD_LIST", len(kinds))
        else:
            # Leave the handler, as a return from inside it would, and add what it was handling to the stack's values.
            writer.emit("PUSH_EXC_INFO")
            writer.emit("POP_TOP")
            writer.emit("COPY", len(kinds) - outermost + 1)
            writer.emit("POP_EXCEPT")
            writer.emit("BUILD_LIST", len(kinds) + 1)
        # Where a traceback or the program keeps this frame, it is not to keep the variables: a handler deletes its name for
        # the exception from the frame that goes on, and here that would lead to itself for ever. Cells are shared.
        cells = {*self.code.co_cellvars, *self.code.co_freevars}
        for index, name in enumerate(self.names):
            moves = self.shape.mode == EXIT and name not in cells
            self._load_or_marker(index, depth=1 + index, moves=moves)
        writer.emit("BUILD_LIST", self.state)
        writer.emit_constant(STOPPED)
        writer.emit("BUILD_TUPLE", 3)
        writer.emit("RETURN_VALUE")
        # A frame that somebody keeps after the stop is at this line.
        self.locations.line = _last_line(self.code)
        last = self.program.units[self.shape.position]
        self.locations.add(writer.units - begin, (location_at(self.code, last)[0], None, None, None))

    def _load_or_marker(self, index: int, depth: int, moves: bool) -> None:
        writer = self.writer
        start = writer.units
        writer.emit(LOAD_FAST_CHECKED, index)
        end = writer.units
        if moves:
            writer.emit("DELETE_FAST", index)
        otherwise = Writer(tuple(writer.constants))
        otherwise.emit("POP_TOP")
        otherwise.emit("LOAD_CONST", writer.constant(UNBOUND))
        writer.emit("JUMP_FORWARD", otherwise.units)
        self.protected.append(Protected(start, end, writer.units, depth, False))
        writer.data += otherwise.data

    def _kinds_at_exit(self) -> Kinds:
        if self.shape.mode == STEP:
            name, arg, _, _ = self.program.decoded.instructions[self.shape.position]
            numbers = effect(name, arg)
            assert numbers is not None
            return (MAYBE_NULL,) * numbers[1]
        kinds = exit_kinds(self.program, self.shape.exit_position)
        if kinds is None:
            raise CannotResume("an exit in the middle of an expression, or that control never reaches")
        return kinds


def exit_kinds(program: Program, position: int) -> Kinds | None:
    """What is on the stack before an instruction, if a frame can stop there, and control reaches it."""
    kinds = program.kinds(position)
    if kinds is None or position in program.decoded.before:  # in the middle of an instruction
        return None
    if LASTI in kinds and not TABLE.lasti_is_object:  # in the entry of an exception handler
        return None
    for slot, kind in enumerate(kinds):
        if kind in (NULL_SLOT, MAYBE_NULL) or (kind.name == SAVED and kind.slot != slot):
            return None
    return kinds


def _last_line(code: CodeType) -> int:
    """The line that a location table goes on from at its end."""
    line = code.co_firstlineno
    for _, _, found in code.co_lines():
        if found is not None:
            line = found
    return line


def _units_of_jump(distance: int) -> int:
    writer = Writer()
    writer.emit("JUMP_FORWARD", distance)
    return writer.units


def _outermost_saved(kinds: Kinds) -> int | None:
    for slot, kind in enumerate(kinds):
        if kind.name == SAVED:
            return slot
    return None


def _units_described(locations: LocationWriter) -> int:
    return sum((byte & 0x07) + 1 for byte in locations.data if byte & 0x80)
