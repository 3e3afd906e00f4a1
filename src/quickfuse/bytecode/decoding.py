"""Decoding of code objects: the one place that knows how CPython versions differ.

`decode(code)` gives the instructions as a list indexed by position, with jump targets as positions, so that the
interpreter never sees byte offsets, inline caches or extended arguments. The instructions are the same for all versions: see
`table.py`, and `python_3_11.py` and so on for what each version has in their place.
"""

from __future__ import annotations

import bisect
import dis
import functools
import importlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, NamedTuple

from .table import Part, Raw, Table, Written

#: The table of the interpreter that runs this.
TABLE: Table = importlib.import_module(f"{__package__}.python_{sys.version_info[0]}_{sys.version_info[1]}").TABLE

_JUMPS = frozenset(dis.opname[opcode] for opcode in (*dis.hasjrel, *dis.hasjabs))
_CONSTANTS = frozenset({"KW_NAMES", *(dis.opname[opcode] for opcode in dis.hasconst)})
_NAMES = frozenset(dis.opname[opcode] for opcode in dis.hasname)
_EXTENDED_ARG = dis.EXTENDED_ARG


class Instruction(NamedTuple):
    """`arg` is the raw argument, `value` the resolved one: a constant, a name, or the position of a jump's target.

    The value of FOR_ITER is where control goes when the iterator is exhausted, which is off the stack then.
    """

    name: str
    arg: int
    value: Any
    line: int


@dataclass(frozen=True, slots=True)
class Handler:
    """An exception-table entry: instructions in [start, end) are handled at `target` with `depth` values kept."""

    start: int
    end: int
    target: int
    depth: int
    push_lasti: bool


@dataclass(frozen=True, slots=True)
class Decoded:
    """The instructions of a code object, the same for all versions of CPython, and where they are in its own bytes.

    All places count code units. `units[position]` is what CPython calls `lasti` at an instruction. To go on natively before
    it, perform the instructions in `before`, if there are any for that position, and go to unit `starts[position]`.
    """

    instructions: list[Instruction]
    handlers: list[Handler]
    starts: list[int] = field(default_factory=list)
    units: list[int] = field(default_factory=list)
    before: dict[int, tuple[Written, ...]] = field(default_factory=dict)

    def handler_for(self, position: int) -> Handler | None:
        for entry in self.handlers:
            if entry.start <= position < entry.end:
                return entry
        return None


@functools.lru_cache(maxsize=4096)
def decode(code: CodeType) -> Decoded:
    """The instructions and exception handlers of a code object."""
    return _Decoder(code).decoded()


class _Decoder:
    def __init__(self, code: CodeType) -> None:
        self.code = code
        #: Exception-table entries in bytes, in the order of the instructions.
        self.table = dis._parse_exception_table(code)  # type: ignore[attr-defined]
        self.raws = _raw_instructions(code, {entry.target // 2 for entry in self.table})
        self.starts = [raw.start for raw in self.raws]
        #: For each raw instruction, and the end, the position of the first of ours that is made of it.
        self.position_of: list[int] = []
        #: For each of ours: the part, the index of its group's first raw instruction, and how many the group has.
        self.parts: list[tuple[Part, int, int]] = []

    def decoded(self) -> Decoded:
        raws, parts = self.raws, self.parts
        self._find_parts()
        lines = _lines_by_unit(self.code)
        end = len(self.code.co_code) // 2
        instructions, starts, units, before = [], [], [], {}
        for position, (part, first, count) in enumerate(parts):
            unit = raws[first + part.raw].unit
            value = self._value(part, first, count)
            instructions.append(Instruction(part.name, part.arg, value, lines.get(unit, self.code.co_firstlineno)))
            units.append(unit)
            entered = first + part.enter
            starts.append(raws[entered].start if entered < len(raws) else end)
            if part.before:
                before[position] = part.before
        return Decoded(instructions, self._handlers(units), starts, units, before)

    def _find_parts(self) -> None:
        raws, rules = self.raws, TABLE.rules
        index = 0
        while index < len(raws):
            raw = raws[index]
            rule = rules.get(raw.name)
            group = None if rule is None else rule(raws, index)
            count, parts = (1, [Part(raw.name, raw.arg)]) if group is None else group
            self.position_of += [len(self.parts)] * count
            self.parts += [(part, index, count) for part in parts]
            index += count
        self.position_of.append(len(self.parts))

    def _value(self, part: Part, first: int, count: int) -> Any:
        name, arg = part.name, part.arg
        code = self.code
        if part.constant is not None:
            return part.constant[0]
        if name in _JUMPS:
            raw = next(raw for raw in self.raws[first : first + count] if raw.name == name)
            index = bisect.bisect_left(self.starts, _target(raw))
            return self.position_of[index + TABLE.behind_for if name == "FOR_ITER" else index]
        if name in _CONSTANTS:
            return code.co_consts[arg]
        if name in _NAMES:
            return code.co_names[arg >> _flag_bits(name)]
        if name == "COMPARE_OP":
            return dis.cmp_op[TABLE.compared(arg)]
        return None

    def _handlers(self, units: list[int]) -> list[Handler]:
        """An instruction of ours is handled where the raw instruction is that CPython would call the current one."""
        found: list[Handler] = []
        entries = iter(self.table)
        entry = next(entries, None)
        for position, unit in enumerate(units):
            while entry is not None and entry.end <= 2 * unit:
                entry = next(entries, None)
            if entry is None or 2 * unit < entry.start:
                continue
            target = self.position_of[bisect.bisect_left(self.starts, entry.target // 2)]
            last = found[-1] if found else None
            if last is not None and (last.end, last.target, last.depth) == (position, target, entry.depth):
                found[-1] = Handler(last.start, position + 1, target, entry.depth, entry.lasti)
            else:
                found.append(Handler(position, position + 1, target, entry.depth, entry.lasti))
        return found


def _raw_instructions(code: CodeType, targets: set[int]) -> list[Raw]:
    """The instructions as they are, without inline caches, and with EXTENDED_ARG folded into what it extends.

    `targets` are the units of exception handlers.
    """
    data = code.co_code
    found: list[tuple[int, int, str, int]] = []
    names = dis.opname
    start, unit, high = None, 0, 0
    while 2 * unit < len(data):
        opcode = data[2 * unit]
        arg = data[2 * unit + 1] | high
        start = unit if start is None else start
        if opcode == _EXTENDED_ARG:
            high = arg << 8
        else:
            name = names[opcode]
            found.append((start, unit, name, arg))
            if name in _JUMPS:
                targets.add(_target(Raw(start, unit, name, arg, False)))
            start, high = None, 0
            unit += caches_of(opcode)
        unit += 1
    return [Raw(start, unit, name, arg, start not in targets) for start, unit, name, arg in found if name != "CACHE"]


def _target(raw: Raw) -> int:
    """The unit that a jump goes to."""
    after = raw.unit + 1 + caches_of(dis.opmap[raw.name])
    return after - raw.arg if "BACKWARD" in raw.name or raw.name == "END_ASYNC_FOR" else after + raw.arg


def _read_caches() -> Sequence[int]:
    entries: Any = dis._inline_cache_entries  # type: ignore[attr-defined]
    return [entries.get(name, 0) for name in dis.opname] if isinstance(entries, dict) else list(entries)


_caches = _read_caches()


def caches_of(opcode: int) -> int:
    """How many units of inline cache follow an instruction."""
    return _caches[opcode]


def _lines_by_unit(code: CodeType) -> dict[int, int]:
    lines = {}
    for start, stop, line in code.co_lines():
        if line is not None:
            for unit in range(start // 2, stop // 2):
                lines[unit] = line
    return lines


def _flag_bits(name: str) -> int:
    """How many of the lowest bits of an index of a name are flags."""
    if name == "LOAD_SUPER_ATTR":
        return 2
    return 1 if name in ("LOAD_GLOBAL", "LOAD_ATTR") else 0


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and that of all functions within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_in(constant)


def local_names(code: CodeType) -> tuple[str, ...]:
    """Names of the fast locals, in the order of their indices: locals, then cells that are not arguments, then free
    variables."""
    cells = tuple(name for name in code.co_cellvars if name not in code.co_varnames)
    return code.co_varnames + cells + code.co_freevars
