"""Decoding of code objects: the one place that knows how CPython versions differ in layout.

`decode(code)` gives the instructions as a list indexed by position, with jump targets as positions, so that the
interpreter never sees byte offsets, inline caches or extended arguments.
"""

from __future__ import annotations

import dis
import functools
import sys
from dataclasses import dataclass
from types import CodeType
from typing import Any, NamedTuple

PY312 = sys.version_info >= (3, 12)

_JUMPS = frozenset(dis.hasjrel) | frozenset(dis.hasjabs)
_SKIPPED = frozenset({"CACHE", "EXTENDED_ARG"})


class Instruction(NamedTuple):
    """`arg` is the raw argument, `value` the resolved one: a constant, a name, or the position of a jump's target."""

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
    instructions: list[Instruction]
    handlers: list[Handler]

    def handler_for(self, position: int) -> Handler | None:
        for entry in self.handlers:
            if entry.start <= position < entry.end:
                return entry
        return None


@functools.lru_cache(maxsize=4096)
def decode(code: CodeType) -> Decoded:
    """The instructions and exception handlers of a code object."""
    raw = _raw_instructions(code)
    position_of: dict[int, int] = {}
    kept: list[tuple[int, str, int]] = []
    pending: list[int] = []
    for offset, name, arg in raw:
        pending.append(offset)
        if name in _SKIPPED:
            continue
        for earlier in pending:
            position_of[earlier] = len(kept)
        pending.clear()
        kept.append((offset, name, arg))
    end = len(kept)
    for earlier in [*pending, len(code.co_code)]:
        position_of[earlier] = end

    lines = _lines_by_offset(code)
    instructions = [
        Instruction(name, arg, _resolve(code, offset, name, arg, position_of), lines.get(offset, code.co_firstlineno))
        for offset, name, arg in kept
    ]
    handlers = [
        Handler(position_of[e.start], position_of[e.end], position_of[e.target], e.depth, e.lasti)
        for e in dis._parse_exception_table(code)  # type: ignore[attr-defined]
    ]
    return Decoded(instructions, handlers)


def _raw_instructions(code: CodeType) -> list[tuple[int, str, int]]:
    """(offset, name, argument) with EXTENDED_ARG folded into the instruction it extends."""
    data = code.co_code
    names = dis.opname
    extended = dis.EXTENDED_ARG
    result = []
    high = 0
    for offset in range(0, len(data), 2):
        opcode = data[offset]
        arg = data[offset + 1] | high
        high = (arg << 8) if opcode == extended else 0
        result.append((offset, names[opcode], arg))
    return result


def _lines_by_offset(code: CodeType) -> dict[int, int]:
    lines = {}
    for start, stop, line in code.co_lines():
        if line is not None:
            for offset in range(start, stop, 2):
                lines[offset] = line
    return lines


def _resolve(code: CodeType, offset: int, name: str, arg: int, position_of: dict[int, int]) -> Any:
    opcode = dis.opmap[name]
    if opcode in _JUMPS:
        after = offset + 2 + 2 * _caches(opcode)
        return position_of[after - 2 * arg if "BACKWARD" in name else after + 2 * arg]
    if opcode in dis.hasconst or name == "KW_NAMES":
        return code.co_consts[arg]
    if opcode in dis.hasname:
        return code.co_names[_name_index(name, arg)]
    if name == "COMPARE_OP":
        return dis.cmp_op[arg >> 4 if PY312 else arg]
    return None


def _caches(opcode: int) -> int:
    return dis._inline_cache_entries[opcode]  # type: ignore[attr-defined,no-any-return]


def _name_index(name: str, arg: int) -> int:
    """Some opcodes keep flags in the low bits of their name index."""
    if name == "LOAD_GLOBAL" or (PY312 and name == "LOAD_ATTR"):
        return arg >> 1
    if name == "LOAD_SUPER_ATTR":
        return arg >> 2
    return arg


def local_names(code: CodeType) -> tuple[str, ...]:
    """Names of the fast locals, in the order of their indices: locals, then cells that are not arguments, then free
    variables."""
    cells = tuple(name for name in code.co_cellvars if name not in code.co_varnames)
    return code.co_varnames + cells + code.co_freevars
