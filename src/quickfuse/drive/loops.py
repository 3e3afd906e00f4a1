"""Loops of a code object: which instructions belong to one, and where control goes when it ends."""

from __future__ import annotations

from types import CodeType
from typing import NamedTuple

from ..bytecode.decoding import Decoded, Instruction
from ..ir.frame import FrameState
from .program import program_of

_ENDS = frozenset({"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"})
_ALWAYS_JUMPS = frozenset({"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"})


class Loop(NamedTuple):
    """The instructions of a loop, handlers that go on with it included, and the instruction after it, if there is one."""

    members: frozenset[int]
    end: int | None


def loop_around(code: CodeType, position: int) -> Loop | None:
    """The innermost loop around an instruction that has another one after it; None outside of loops."""
    program = program_of(code)
    if program.loops is None:
        program.loops = find_loops(program.decoded)
    around = [loop for loop in program.loops if position in loop.members and loop.end is not None]
    return min(around, key=lambda loop: len(loop.members)) if around else None


def loop_end(frame: FrameState) -> int | None:
    """The instruction after the innermost loop around a frame's position; None outside of loops."""
    loop = loop_around(frame.code, frame.position)
    return None if loop is None else loop.end


def find_loops(decoded: Decoded) -> list[Loop]:
    """Every loop: what a jump back closes.

    Positions between a loop's first and last instruction need not belong to it. A handler whose end goes on with the loop
    stands after what follows the loop, and so does its jump back.
    """
    instructions = decoded.instructions
    jumps: dict[int, list[int]] = {}  # by the loop's head
    for position, instruction in enumerate(instructions):
        if "BACKWARD" in instruction.name and "NO_INTERRUPT" not in instruction.name:
            jumps.setdefault(instruction.value, []).append(position)
    if not jumps:
        return []
    before: list[list[int]] = [[] for _ in instructions]
    for position, instruction in enumerate(instructions):
        for successor in _successors(decoded, position, instruction):
            if successor < len(before):
                before[successor].append(position)
    loops = []
    for head, tails in jumps.items():
        members = _members(before, head, tails)
        if head == 0 or 0 not in members:  # else the jump back leads into something that is not a loop of its own
            loops.append(Loop(members, _end(decoded, head, max(tails), members)))
    return loops


def _members(before: list[list[int]], head: int, tails: list[int]) -> frozenset[int]:
    """What comes before the jumps back without passing the head."""
    members = {head}
    waiting = list(tails)
    while waiting:
        position = waiting.pop()
        if position not in members:
            members.add(position)
            waiting += before[position]
    return frozenset(members)


def _end(decoded: Decoded, head: int, tail: int, members: frozenset[int]) -> int | None:
    instructions = decoded.instructions
    if instructions[head].name == "FOR_ITER":
        return int(instructions[head].value)
    exits = {
        successor
        for position in members
        for successor in flow(position, instructions[position])
        if successor not in members
    }
    exits = {position for position in exits if not _returns_constant(instructions, position)} or exits
    if tail + 1 in exits:
        return tail + 1
    return min((position for position in exits if position > head), default=None)


def _returns_constant(instructions: list[Instruction], position: int) -> bool:
    """Whether the function ends here, with nothing left to do."""
    names = [instruction.name for instruction in instructions[position : position + 2]]
    return names[0] == "RETURN_CONST" or names == ["LOAD_CONST", "RETURN_VALUE"]


def _successors(decoded: Decoded, position: int, instruction: Instruction) -> list[int]:
    handler = decoded.handler_for(position)
    found = flow(position, instruction)
    return found if handler is None else [*found, handler.target]


def flow(position: int, instruction: Instruction) -> list[int]:
    """Where control goes when nothing is raised."""
    name = instruction.name
    if name in _ENDS:
        return []
    if name in _ALWAYS_JUMPS:
        return [instruction.value]
    if "JUMP" in name or name in ("FOR_ITER", "SEND"):
        return [position + 1, instruction.value]
    return [position + 1]
