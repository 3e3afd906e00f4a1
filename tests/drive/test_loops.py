"""Where loops end, and what belongs to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from quickfuse.bytecode.decoding import decode
from quickfuse.drive.loops import loop_end
from quickfuse.ir.frame import FrameState


def counts(items):
    total = 0
    for item in items:
        total += item
    after = total
    return after


def handler_that_goes_on(items):
    total = 0
    for item in items:
        try:
            total += item
        except TypeError:
            continue
    after = total
    for item in items:
        after += item
    last = after
    return last


def nested(rows):
    total = 0
    for row in rows:
        start = total
        for item in row:
            total += item
        total += start
    after = total
    return after


def until_it_breaks(limit):
    n = 0
    while True:
        n += 1
        if n > limit:
            break
        if n > 100:
            return None
    after = n
    return after


def while_with_else(limit):
    n = 0
    while n < limit:
        n += 1
    else:
        n = -n
    after = n
    return after


def ends_by_line(function: Callable[..., Any]) -> dict[str, set[str | None]]:
    """For each line of a function, on what lines the loops around its instructions end."""
    import inspect

    source, first = inspect.getsourcelines(function)
    instructions = decode(function.__code__).instructions
    found: dict[str, set[str | None]] = {}
    for position, instruction in enumerate(instructions):
        end = loop_end(FrameState(function.__code__, {}, [], [], position))
        assert end != position
        text = source[instruction.line - first].strip()
        found.setdefault(text, set()).add(None if end is None else source[instructions[end].line - first].strip())
    return found


@pytest.mark.parametrize(
    ("function", "inside", "outside"),
    [
        (counts, {"total += item": "after = total"}, ["total = 0", "after = total", "return after"]),
        (handler_that_goes_on,
         {"total += item": "after = total", "continue": "after = total", "after += item": "last = after"},
         ["total = 0", "after = total", "last = after", "return last"]),
        (nested, {"start = total": "after = total", "total += start": "after = total", "total += item": "total += start"},
         ["total = 0", "after = total", "return after"]),
        (until_it_breaks, {"n += 1": "break"}, ["n = 0", "break", "after = n", "return after"]),
        (while_with_else, {"n += 1": "n = -n"}, ["n = 0", "n = -n", "after = n", "return after"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)  # fmt: skip
def test_ends(function: Any, inside: dict[str, str], outside: list[str]) -> None:
    found = ends_by_line(function)
    for line, end in inside.items():
        assert found[line] == {end}, line
    for line in outside:
        assert found[line] == {None}, line
