"""Breaks that run none of the program's code: what ends in between ends where it does natively.

After such a break the driver does not look again for values whose end can be seen, so each program has some that come, go
and change places between breaks of this kind and others.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import quickfuse
from drive.frame_harness import begin, push_call
from quickfuse.drive.places import key_of
from quickfuse.drive.step import perform
from quickfuse.ir.endings import ends_visibly, is_ordinary_class
from quickfuse.ir.iterating import ahead, next_of

T = torch.Tensor
LOG: list[Any] = []


class Ends:
    """Says when it ends."""

    def __init__(self, name: Any) -> None:
        self.name = name

    def __del__(self) -> None:
        LOG.append(("ends", self.name))


def rows(name):
    try:
        yield name
        yield name
    finally:
        LOG.append(("closed", name))


@quickfuse.disable
def note(what: Any) -> None:
    LOG.append(what)


@quickfuse.disable
def begun(name: Any) -> Any:
    generator = rows(name)
    next(generator)
    return generator


@quickfuse.disable
def make(name: Any) -> Any:
    return Ends(name)


def clocks_only(x):
    for k in range(4):
        x = torch.relu(x + k)
        time.perf_counter()
        LOG.append(k)
    return x


def made_between(x):
    held = None
    for k in range(5):
        x = torch.relu(x + k)
        time.perf_counter()
        held = make(k)
        x = x * 2
        time.perf_counter()
        note(("turn", k))
    return x, held is None


def dropped_after_a_clock(x):
    for k in range(4):
        held = make(k)
        x = torch.relu(x + k)
        start = time.perf_counter()
        x = x * 2
        held = start  # noqa: F841
        x = x + 1
        time.perf_counter()
        note(("turn", k))
    return x


def generators(x):
    held = None
    for k in range(4):
        x = torch.relu(x + k)
        time.perf_counter()
        if k % 2:
            held = begun(k)
        x = x * 2
        time.perf_counter()
        held = None if k == 2 else held
        x = x + 1
        note(("turn", k))
    return x


def in_a_cell(x):
    held = None

    @quickfuse.disable
    def hold(k):
        nonlocal held
        held = Ends(k) if k != 2 else None

    for k in range(5):
        x = torch.relu(x + k)
        time.perf_counter()
        hold(k)
        x = x * 2
        time.perf_counter()
        x = x + 1
        note(("turn", k))
    return x


def in_a_caller(x):
    def inner(x, k):
        x = torch.relu(x + k)
        time.perf_counter()
        note(("inner", k))
        x = x * 2
        time.perf_counter()
        return x + 1

    held = make("outer")
    for k in range(3):
        x = inner(x, k)
        time.perf_counter()
        held = make(k) if k else held
        x = inner(x, k) + 1
    note("last")
    return x


def enumerated(x):
    objects = [make(k) for k in range(4)]
    for k, _ in enumerate(objects):
        x = torch.relu(x + k)
        time.perf_counter()
        x = x * 2
        objects[k] = None
        x = x + 1
        note(("turn", k))
    return x


def zipped(x):
    weights = [torch.full((3,), float(k)) for k in range(4)]
    for weight, name in zip(weights, "abcd", strict=True):
        x = torch.relu(x + weight)
        time.perf_counter()
        note(name)
    return x


def branches(x):
    for k in range(4):
        x = torch.tanh(x + k)
        if x.sum() > 1:
            held = make(k)
        x = x * 2
        if x.sum() > 1e9:
            held = None  # noqa: F841
        note(("turn", k))
    return x


def handlers(x):
    for k in range(4):
        x = torch.relu(x + k)
        try:
            time.perf_counter()
            if k == 2:
                note(k)
                raise ValueError(k)
            x = x * 2
            time.perf_counter()
        except ValueError as error:
            held = (error, make(k))
            x = x + 1
            time.perf_counter()
            del held
        note(("turn", k))
    return x


PROGRAMS: list[Callable[..., Any]] = [
    clocks_only, made_between, dropped_after_a_clock, generators, in_a_cell, in_a_caller, enumerated, zipped, branches,
    handlers,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_values_end_where_they_do_natively(program: Callable[..., Any]) -> None:
    x = torch.randn(3)
    LOG.clear()
    expected, logged = program(x), [*LOG]
    compiled = quickfuse.compile(program)
    for _ in range(4):
        LOG.clear()
        torch.testing.assert_close(compiled(x), expected)
        assert [*LOG] == logged
    assert compiled.graph_count


def waits(x):
    quickfuse.graph_break()


def calls_again(x):
    while True:
        waits(x)


def test_a_frame_that_waits_for_a_call_has_no_result_of_the_call_before() -> None:
    """It is at the same position with the same variables, and so is taken for a frame that the segment did not touch."""
    frames = [begin(calls_again, (torch.ones(2),))]
    while not push_call(frames, "test_settled.py"):
        perform(frames)
    waiting = frames[0].position
    while len(frames) == 2:
        perform(frames)
    assert frames[0].position == waiting and frames[0].stack == [None]
    driver = quickfuse.compile(calls_again).driver
    suspended = driver._run_segment(driver._beginning(key_of(frames), frames), frames)
    assert [(frame.code.co_name, frame.stack) for frame in suspended[:1]] == [("calls_again", [])]
    assert len(suspended) == 2 and suspended[0].position == waiting


def test_the_next_element_is_that_of_a_copy() -> None:
    """`next_of` reads iterators of each kind as `ahead` does, which copies them, at each position and at their ends."""

    class Elsewhere(list[int]):
        def __getitem__(self, index: Any) -> Any:
            raise AssertionError("a method of the user's")

    table = {"a": 1, "b": 2, "c": 3}
    sequences: list[Any] = [[1, 2, 3], (1, 2, 3), range(1, 7, 2), "abc", b"abc", Elsewhere([1, 2, 3]), table, {1, 2, 3},
                            table.values(), table.items(), [], (), range(0), {}, range(1 << 70, (1 << 70) + 3)]  # fmt: skip
    made: list[Callable[[Any], Any]] = [
        iter, enumerate, lambda s: enumerate(s, 5), lambda s: zip(s, s, strict=False),
        lambda s: enumerate(zip(s, s, strict=False)),
    ]  # fmt: skip
    for sequence in sequences:
        for make_iterator in made:
            iterator = make_iterator(sequence)
            for _ in range(5):
                assert next_of(iterator) == ahead(iterator)[0]
                assert type(next_of(iterator)) is type(ahead(iterator)[0])
                assert next(iterator, None) in (None, *make_iterator(sequence))
    assert next_of(reversed([1, 2])) == 2


def test_classes_without_a_visible_end() -> None:
    """What is told by the class alone agrees with what is told of values."""
    for value in (1, "a", [1], None, T(), object(), {}, iter([])):
        assert is_ordinary_class(type(value)) and not ends_visibly(value)
    for cls in (Ends, type(begun(1)), enumerate, zip, ValueError):
        assert not is_ordinary_class(cls)
