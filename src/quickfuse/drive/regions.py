"""Regions: from where a segment begins to where it ends, for the program to run through natively instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CodeType
from typing import NamedTuple

from ..bytecode.decoding import decode
from .loops import flow
from .native import GENERATORS, may_stop_at

#: A function, and the position in it of the next instruction.
Position = tuple[CodeType, int]

#: What may be performed one by one, as it calls nothing: CPython cannot stop where the stack has what is pushed for a call.
_PUSHING = ("LOAD_", "PUSH_NULL", "KW_NAMES", "PRECALL", "BUILD_", "COPY", "SWAP")


class Region:
    """Where a region ends: in the innermost of `depth` frames, which CPython runs up to the instruction `stop`; from there
    to `end`, there is nothing but what is pushed for a call. A depth of zero is the end of the program. `possible`: CPython
    can go on where it begins."""

    __slots__ = ("depth", "end", "possible", "stop")

    def __init__(self, depth: int, stop: int, end: int) -> None:
        self.depth = depth
        self.stop = stop
        self.end = end
        self.possible = True


class Natively(NamedTuple):
    """That a region runs natively this once, and what is told the seconds that it took."""

    region: Region
    note: Callable[[float], None]


def region_between(began: Sequence[Position], ended: Sequence[Position]) -> Region | None:
    """The region from some suspended frames to others, outermost first, which are none at the end of the program; None
    where CPython cannot run through it alone.

    Where it ends inside of a function that it calls, it goes on to the end of that one.
    """
    if any(code.co_flags & GENERATORS for code, _ in began):
        return None
    if not ended:
        return Region(0, 0, 0)
    same = 0
    while same < min(len(began), len(ended)) and began[same] == ended[same]:
        same += 1
    if same == min(len(began), len(ended)) or began[same][0] is not ended[same][0]:
        return None
    depth, (code, end) = same + 1, ended[same]
    if len(ended) > depth:
        stop = end if may_stop_at(code, end) else None
    else:
        stop = _stop_at(code, end)
    if stop is None or (depth == len(began) and began[same][1] in range(stop, end + 1)):  # it is there already
        return None
    return Region(depth, stop, max(stop, end))


def _stop_at(code: CodeType, end: int) -> int | None:
    """The last instruction before which CPython can stop, and after which nothing is called before `end`; the one after
    `end` where there is none; None where that is not sure to follow."""
    instructions, at = decode(code).instructions, end
    while not may_stop_at(code, at):
        at -= 1
        if at < 0 or not instructions[at].name.startswith(_PUSHING):
            follows = flow(end, instructions[end]) == [end + 1] and may_stop_at(code, end + 1)
            return end + 1 if follows else None
    return at
