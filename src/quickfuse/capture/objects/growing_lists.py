"""Lists of the user's that grow from call to call, such as histories of losses: their length is a number from outside, and
the elements at their ends are read without a look at all others."""

from __future__ import annotations

import operator
from typing import Any

from ...ir.guard import NumberExpr
from ..interpreter import Interpreter
from ..outside.numbers import LENGTH
from ..symbolic import ShadowContainer, Symbol

#: So many elements at the end of a list may be read together.
MOST_TOGETHER = 64


def is_growing(i: Interpreter, value: Any) -> bool:
    """Whether a value is a list whose length keeps changing, to which the captured code has only appended."""
    unopened = type(value) is ShadowContainer and type(value.real) is list and value.items is None
    return unopened and i.outside.keeps_changing(value.source)


def length(i: Interpreter, growing: ShadowContainer) -> Symbol:
    """`len(growing)`."""
    before = Symbol(int, len(growing.real), NumberExpr(LENGTH, (growing.source,)))
    return i.graph.number(operator.add, before, len(growing.added)) if growing.added else before  # type: ignore[no-any-return]


def element(i: Interpreter, growing: ShadowContainer, key: Any) -> Any:
    """`growing[key]`, an element or a slice up to the end; `NotImplemented` where only a look at the whole list tells."""
    added = growing.added
    if type(key) is int:
        if key < 0 and key + len(added) >= 0:
            return added[key]
        place = key + len(added) if key < 0 else key
        return _read(i, growing, place) if _reaches(i, growing, place) else NotImplemented
    if type(key) is slice and type(key.start) is int and key.stop is key.step is None and -MOST_TOGETHER <= key.start < 0:
        first = key.start + len(added)
        if first >= 0:
            return i.mark_created(added[key.start :])
        if _reaches(i, growing, first):
            return i.mark_created([*[_read(i, growing, place) for place in range(first, 0)], *added])
    return NotImplemented


def _reaches(i: Interpreter, growing: ShadowContainer, place: int) -> bool:
    """Whether the list has had an element at a place from the start; a guard holds that it still has."""
    needed = -place if place < 0 else place + 1
    if len(growing.real) < needed:
        return False
    i.outside.require(NumberExpr("(_len({}) >= {})", (growing.source, needed)), True)
    return True


def _read(i: Interpreter, growing: ShadowContainer, place: int) -> Any:
    return i.outside.wrap(growing.real[place], growing.source.item(place))
