"""Writing code objects: instructions, source locations and exception tables as bytes.

The driver's small functions are derived from the user's code object with `CodeType.replace`, so that they keep its file,
name and constants. This module writes the parts that change. All sizes and offsets here count code units (two bytes).
"""

from __future__ import annotations

import dis
import itertools
from types import CodeType
from typing import Any, NamedTuple

from ..bytecode.decoding import TABLE, caches_of

_EXTENDED_ARG = dis.EXTENDED_ARG
#: LOAD_FAST of a variable that may have no value.
LOAD_FAST_CHECKED = "LOAD_FAST" if TABLE.load_fast_checks else "LOAD_FAST_CHECK"
#: Line, last line, column, last column; None where not known.
Location = tuple[int | None, int | None, int | None, int | None]

_NO_LOCATION, _LONG_LOCATION, _LINE_ONLY = 15, 14, 13
_MOST_UNITS = 8  # that one entry of a location table describes


class Writer:
    """Collects instructions, and the constants that they use.

    The instructions are those of `decode`; they are written as the interpreter has them.
    """

    def __init__(self, constants: tuple[Any, ...] = ()) -> None:
        self.data = bytearray()
        self.constants = list(constants)
        self._own_constants = len(constants)
        self._names_are_given = False

    @property
    def units(self) -> int:
        return len(self.data) // 2

    def emit(self, name: str, arg: int = 0) -> None:
        if name == "CALL" and self._names_are_given:
            name = "CALL_WITH_NAMES" if "CALL_WITH_NAMES" in TABLE.writing else name
        self._names_are_given = name == "KW_NAMES"
        write = TABLE.writing.get(name)
        for written in ((name, arg),) if write is None else write(arg):
            self._emit_raw(*written)

    def _emit_raw(self, name: str, arg: int) -> None:
        data = self.data
        for shift in (24, 16, 8):
            if arg >> shift:
                data += bytes((_EXTENDED_ARG, arg >> shift & 0xFF))
        opcode = dis.opmap[name]
        data += bytes((opcode, arg & 0xFF))
        data += bytes(2 * caches_of(opcode))

    def emit_constant(self, value: Any) -> None:
        self.emit("LOAD_CONST", self.constant(value))

    def emit_null_below(self) -> None:
        """The NULL of a call, before the callable is on the stack: where the interpreter wants it below."""
        if TABLE.null_first:
            self.emit("PUSH_NULL")

    def emit_null_above(self, arguments: int) -> None:
        """The NULL of a call, with the callable and its arguments on the stack: where the interpreter wants it between."""
        if not TABLE.null_first:
            self.emit("PUSH_NULL")
            for depth in range(arguments + 1, 1, -1):
                self.emit("SWAP", depth)

    def constant(self, value: Any) -> int:
        """The index of a constant. It may be any object."""
        for index in range(self._own_constants, len(self.constants)):
            if self.constants[index] is value:
                return index
        self.constants.append(value)
        return len(self.constants) - 1


# source locations -----------------------------------------------------------------------------------------------


class LocationWriter:
    """Writes a location table: `add` once for each run of instructions, in their order."""

    def __init__(self, first_line: int) -> None:
        self.data = bytearray()
        self.line = first_line

    def add(self, units: int, location: Location | None = None) -> None:
        while units > 0:
            step = min(units, _MOST_UNITS)
            self._entry(step, location)
            units -= step

    def _entry(self, units: int, location: Location | None) -> None:
        line, last_line, column, last_column = location or (None, None, None, None)
        if line is None:
            self.data.append(0x80 | _NO_LOCATION << 3 | units - 1)
            return
        change, self.line = line - self.line, line
        if last_line is None or column is None or last_column is None:
            self.data.append(0x80 | _LINE_ONLY << 3 | units - 1)
            self._signed(change)
            return
        self.data.append(0x80 | _LONG_LOCATION << 3 | units - 1)
        self._signed(change)
        self._unsigned(last_line - line)
        self._unsigned(column + 1)
        self._unsigned(last_column + 1)

    def _signed(self, value: int) -> None:
        self._unsigned((-value << 1 | 1) if value < 0 else value << 1)

    def _unsigned(self, value: int) -> None:
        while value > 0x3F:
            self.data.append(0x40 | value & 0x3F)
            value >>= 6
        self.data.append(value)


def location_at(code: CodeType, unit: int) -> Location:
    return next(itertools.islice(code.co_positions(), unit, None), (None, None, None, None))


# exception tables -----------------------------------------------------------------------------------------------


class Protected(NamedTuple):
    """Units in [start, end) are handled at `target`, with `depth` values kept on the stack."""

    start: int
    end: int
    target: int
    depth: int
    push_lasti: bool

    def moved(self, by: int) -> Protected:
        return Protected(self.start + by, self.end + by, self.target + by, self.depth, self.push_lasti)


def protected_ranges(code: CodeType) -> list[Protected]:
    return [
        Protected(e.start // 2, e.end // 2, e.target // 2, e.depth, e.lasti)
        for e in dis._parse_exception_table(code)  # type: ignore[attr-defined]
    ]


def exception_table(entries: list[Protected]) -> bytes:
    """The encoded table of entries that do not overlap."""
    data = bytearray()
    for entry in sorted(entries):
        if entry.start < entry.end:
            _table_number(data, entry.start, 0x80)
            _table_number(data, entry.end - entry.start)
            _table_number(data, entry.target)
            _table_number(data, entry.depth << 1 | entry.push_lasti)
    return bytes(data)


def _table_number(data: bytearray, value: int, first_mark: int = 0) -> None:
    chunks = [value & 0x3F]
    while value > 0x3F:
        value >>= 6
        chunks.append(value & 0x3F | 0x40)
    chunks.reverse()
    chunks[0] |= first_mark
    data.extend(chunks)


def without_unit(entries: list[Protected], unit: int) -> list[Protected]:
    """The entries with one unit taken out of whatever protects it."""
    result = []
    for entry in entries:
        if entry.start <= unit < entry.end:
            result += [entry._replace(end=unit), entry._replace(start=unit + 1)]
        else:
            result.append(entry)
    return [entry for entry in result if entry.start < entry.end]
