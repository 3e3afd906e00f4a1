"""What the driver remembers and says, and which objects it does not let segments drop."""

from __future__ import annotations

import gc
import weakref
from types import CellType
from typing import Any

import pytest
import torch

import quickfuse
from drive.frame_harness import begin
from quickfuse.drive.driver import NO_SEGMENT, Driver
from quickfuse.drive.loops import find_loops
from quickfuse.drive.places import key_of
from quickfuse.drive.tracebacks import entry
from quickfuse.drive.unwind import unwind
from quickfuse.ir.endings import ends_visibly
from quickfuse.ir.frame import FrameState


class Suspended(list[FrameState]):
    pass


class Nothing:
    """A place without segments."""

    useful = False


def make_driver(said: list[str]) -> Driver:
    """A driver without segments."""
    return Driver(
        lambda key, frames: Nothing(), lambda place, frames: NO_SEGMENT, Suspended,
        lambda reason, frame: said.append(reason),
    )  # fmt: skip


def sums(items, before):
    total = 0
    for _ in range(before):
        total += 1
    for item in items:
        if item % 2:
            total += item * 2 - 1
        else:
            total -= item // 2 + 1
    return total


def test_a_loop_is_said_once() -> None:
    said: list[str] = []
    driver = make_driver(said)
    for before in range(8):
        assert driver.run([begin(sums, (range(20), before))]) == sums(range(20), before)
    assert len(said) == len(set(driver.left_to_python.values())) == 2
    frame = begin(sums, (range(20), 0))
    for loop in find_loops(frame.decoded):
        for frame.position in loop.members:  # from several places
            driver.leave_loop(frame, loop.end or 0, "a loop without tensor work runs natively")
    assert len(said) == 2 < len(driver.left_to_python)


def test_a_place_behind_the_loop_that_was_left() -> None:
    """The end of a loop may be noted as a place in it: the driver still goes on."""
    driver = make_driver([])
    frames = [begin(sums, (range(20), 3))]
    for position in range(len(frames[0].decoded.instructions)):
        driver.left_to_python[id(sums.__code__), position] = position
    assert driver.run(frames) == sums(range(20), 3)


# objects whose end can be seen ----------------------------------------------------------------------------------


def guarded(limit):
    try:
        yield from range(limit)
    finally:
        print()


def plain(limit):
    yield from range(limit)


def delegating(limit):
    yield from guarded(limit)


def begun(generator: Any) -> Any:
    next(generator)
    return generator


def finished(generator: Any) -> Any:
    list(generator)
    return generator


class WithFinalizer:
    def __del__(self) -> None:
        pass


def error_of(function: Any) -> BaseException:
    try:
        function()
    except ValueError as error:
        return error
    raise AssertionError


def fails_with_generator() -> None:
    row = begun(guarded(3))
    raise ValueError(row.gi_running)


def fails() -> None:
    raise ValueError


@pytest.mark.parametrize(
    ("make", "visible"),
    [
        (lambda: begun(guarded(3)), True), (lambda: guarded(3), False), (lambda: finished(guarded(3)), False),
        (lambda: begun(plain(3)), False), (lambda: begun(delegating(3)), True), (lambda: enumerate(begun(plain(3))), False),
        (lambda: zip(begun(guarded(3)), [1], strict=False), True), (lambda: map(str, begun(guarded(2))), True),
        (lambda: CellType(begun(guarded(3))), True), (lambda: CellType(), False), (lambda: CellType(1), False),
        (WithFinalizer, True), (lambda: object(), False), (lambda: error_of(fails_with_generator), True),
        (lambda: error_of(fails), False), (lambda: 1, False),
    ],
)  # fmt: skip
def test_visible_endings(make: Any, visible: bool) -> None:
    value = make()
    assert ends_visibly(value) is visible
    frame = begin(sums, ([], 0))
    before = key_of([frame])
    frame.stack.append(value)
    assert (key_of([frame]) != before) is visible


def test_a_frame_in_a_traceback_keeps_its_variables() -> None:
    def handles(x):
        try:
            y = [x]
            raise ValueError
        except ValueError:
            pass
        return y

    frame = begin(handles, (1,))
    error: ValueError | None = ValueError()
    frame.position = next(k for k, i in enumerate(frame.decoded.instructions) if i.name == "RAISE_VARARGS") + 1
    assert error is not None and unwind([frame], error)
    assert frame.activation is not None and frame.stack.pop() is error
    kept = frame.activation
    assert key_of([frame]) == ((id(handles.__code__), frame.position), ((0, "A", 0),))
    frame.end()
    assert kept.variables[0] == 1 and frame.activation is None


def test_an_exception_that_is_gone_keeps_nothing() -> None:
    gc.disable()
    try:
        frame = begin(sums, ([], 0))
        entries: Any = entry(frame, 3, None, variables=False)
        assert key_of([frame])[-1] == ((0, "A", 0),)
        del entries
        assert key_of([frame]) == (id(sums.__code__), frame.position) and frame.activation is None
    finally:
        gc.enable()


# frames that a segment leaves as they are -----------------------------------------------------------------------


def test_outer_frames_are_not_made_again() -> None:
    """A break in a layer leaves its callers as they are: the glue goes on with the same objects."""
    said: list[int] = []

    @quickfuse.disable
    def say(number: int) -> None:
        said.append(number)

    def layer(x, number):
        x = torch.relu(x + number)
        say(number)
        return x * 2

    def layers(x, count):
        unread = x + 1  # noqa: F841
        for number in range(count):
            x = layer(x, number)
        return x

    def model(x, count):
        kept = x * 2
        return layers(x, count) + kept

    compiled = quickfuse.compile(model)
    x = torch.randn(3)
    for _ in range(3):
        said.clear()
        torch.testing.assert_close(compiled(x, 5), model(x, 5))
        assert said == [*range(5)] * 2
    assert any("= _frames[0]" in s.glue.source for s in compiled.specialisations)


def test_values_die_where_they_die_natively() -> None:
    """What an outer frame reads no more is not kept by a frame that goes on."""
    seen: list[bool] = []

    class Thing:
        pass

    def body(x, reference):
        for _ in range(3):
            x = x + 1
            note(reference)
        return x

    @quickfuse.disable
    def note(reference: Any) -> None:
        gc.collect()
        seen.append(reference() is None)

    def outer(x):
        thing = Thing()
        reference = weakref.ref(thing)
        thing = None
        return body(x, reference) * 2

    for function in (outer, quickfuse.compile(outer)):
        seen.clear()
        function(torch.ones(2))
        assert seen == [True] * 3


def test_what_follows_a_short_loop_is_not_left_to_python() -> None:
    @quickfuse.disable
    def made(k: int) -> int:
        return k

    def function(x: torch.Tensor) -> torch.Tensor:
        numbers = [made(k) for k in range(4)]
        return (x * numbers[3]).relu()

    compiled = quickfuse.compile(function)
    for _ in range(3):
        x = torch.randn(3)
        assert torch.equal(compiled(x), function(x))
    assert compiled.graph_count == 1
