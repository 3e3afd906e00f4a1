"""Short calls are measured, compiled and as plain Python, and go on as what was faster."""

from __future__ import annotations

import inspect
import itertools
import sys
import warnings

import pytest
import torch

import quickfuse
from quickfuse.pipeline import trials

CALLS = trials.SETTLED_AFTER + 2 * trials.MEASURED + 4


class _Clock:
    """Time as a test wants it: `slow` and `fast` seconds for each call that is timed, of compiled code and of Python."""

    def __init__(self, compiled: float, native: float) -> None:
        self.seconds = {"compiled": compiled, "native": native}
        self.now = 0.0

    def thread_time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = _Clock(2e-4, 1e-4)
    monkeypatch.setattr(trials, "time", made)
    monkeypatch.setattr(quickfuse.config, "measure_short_calls", True)
    return made


def _program(clock, seen):
    """A function with a break that notes how it runs."""

    def function(x):
        y = x + 1
        seen.append(0)
        if y.sum() > 0:
            y = y * 2
        _tick(clock)
        return y

    return function


@quickfuse.disable
def _tick(clock):
    frame, compiled = sys._getframe(), False
    while frame is not None:
        compiled |= frame.f_code.co_name == "_go_on"
        frame = frame.f_back
    clock.now += clock.seconds["compiled" if compiled else "native"]
    clock.last = "compiled" if compiled else "native"


def _calls(compiled, clock, count, x):
    modes = []
    for _ in range(count):
        compiled(x)
        modes.append(clock.last)
    return modes


def test_what_is_slower_than_python_is_left_to_it(clock):
    seen = []
    compiled = quickfuse.compile(_program(clock, seen))
    modes = _calls(compiled, clock, CALLS, torch.ones(3))
    assert modes[:3] == ["compiled"] * 3
    assert modes[-3:] == ["native"] * 3
    assert len(seen) == CALLS  # whatever ran


def test_what_is_faster_stays_compiled(clock):
    clock.seconds = {"compiled": 1e-4, "native": 2e-4}
    compiled = quickfuse.compile(_program(clock, []))
    modes = _calls(compiled, clock, CALLS, torch.ones(3))
    assert modes.count("native") == trials.MEASURED
    assert modes[-3:] == ["compiled"] * 3
    assert compiled.trial is None


def test_first_calls_of_generated_code_may_be_slow(clock):
    clock.seconds = {"compiled": 1e-3, "native": 2e-4}
    compiled = quickfuse.compile(_program(clock, []))
    _calls(compiled, clock, 12, torch.ones(3))
    # calls that are timed may wait for something else
    for slow, count in ((1e-4, 8), (1e-3, trials.ROUND), (1e-4, trials.ROUND)):
        clock.seconds["compiled"] = slow
        _calls(compiled, clock, count, torch.ones(3))
    assert _calls(compiled, clock, CALLS, torch.ones(3))[-3:] == ["compiled"] * 3
    assert compiled.trial is None


@pytest.mark.parametrize("native", [1e-4, 1e-2])
def test_what_is_compiled_again_and_again(clock, native, monkeypatch):
    """Short calls are left to Python at last, long ones are not."""
    clock.seconds["native"] = native
    compiled = quickfuse.compile(_program(clock, []))
    specialise = compiled._specialise

    def slowly(*args):
        clock.now += 0.02
        return specialise(*args)

    monkeypatch.setattr(compiled, "_specialise", slowly)
    modes = []
    for number in range(trials.UNSETTLED_AFTER + 2 * trials.MEASURED):
        if number % 8 == 0:
            _forget(compiled)
        modes += _calls(compiled, clock, 1, torch.ones(3))
    assert modes[: trials.UNSETTLED_AFTER] == ["compiled"] * trials.UNSETTLED_AFTER
    assert modes[-3:] == ["native" if native < trials.SHORT else "compiled"] * 3


@pytest.mark.parametrize("size", [3, 3_000_000])
def test_longer_calls_between_breaks(clock, size):
    """What plain Python takes no more memory for is measured though a call takes some milliseconds."""
    clock.seconds = {"compiled": 9e-3, "native": 5e-3}
    compiled = quickfuse.compile(_program(clock, []))
    modes = _calls(compiled, clock, CALLS, torch.ones(size))
    assert modes[-3:] == ["native" if size == 3 else "compiled"] * 3


def _forget(compiled):
    """As if guards failed: what was compiled does not hold any longer."""
    for point in (compiled.entry, *compiled.points.values()):
        point.specialisations = []


def test_long_calls_are_not_tried(clock):
    clock.seconds = {"compiled": 1e-1, "native": 1e-2}
    compiled = quickfuse.compile(_program(clock, []))
    assert "native" not in _calls(compiled, clock, CALLS, torch.ones(3))


def test_calls_that_grow_are_compiled_again(clock):
    compiled = quickfuse.compile(_program(clock, []))
    assert _calls(compiled, clock, CALLS, torch.ones(3))[-1] == "native"
    clock.seconds = {"compiled": 1e-3, "native": 5e-3}
    modes = _calls(compiled, clock, 2 * trials.UNTIMED, torch.ones(30))
    assert modes[-3:] == ["compiled"] * 3
    assert modes.count("native") < trials.UNTIMED + 50


def test_a_call_left_to_python_runs_nothing_of_ours(clock):
    clock.seconds = {"compiled": 2e-4, "native": 1e-4}
    x = torch.ones(3)
    function = _program(clock, [])

    class Model:
        def __init__(self):
            self.run = quickfuse.compile(self.run)

        def run(self, x):
            return function(x)

    for compiled in (quickfuse.compile(function), Model().run):
        assert _calls(compiled, clock, CALLS, x)[-1] == "native"
        called = []
        sys.setprofile(lambda frame, event, _, called=called: called.append(frame.f_code) if event == "call" else None)
        try:
            compiled(x)
        finally:
            sys.setprofile(None)
        files = [code.co_filename for code in called if code is not _tick.__code__]
        assert called[0].co_filename == __file__
        assert not [file for file in files if file.endswith(("/compiled.py", "/trials.py"))]


def test_no_frame_of_ours_is_below_plain_python(clock):
    """In any call: those that are timed, those that are not, and compiled ones."""

    def function(x):
        warnings.warn("again", stacklevel=2)
        y = x + 1
        _tick(clock)
        return y * 2, sys._getframe(1).f_code.co_name

    compiled = quickfuse.compile(function)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        modes, callers = [], set()
        for _ in range(2 * CALLS + trials.UNTIMED):
            callers.add(compiled(torch.ones(3))[1])
            modes.append(clock.last)
    assert modes[-1] == "native" and callers == {"test_no_frame_of_ours_is_below_plain_python"}
    assert len(seen) == len(modes) and {warning.filename for warning in seen} == {__file__}


def test_what_calls_are_at_each_stage(clock):
    compiled = quickfuse.compile(_program(clock, []))
    for _ in range(CALLS):
        compiled(torch.ones(3))
        assert str(inspect.signature(compiled)) == "(x)" and inspect.signature(compiled.__call__)


def test_calls_that_call_themselves_and_calls_that_fail_are_timed(clock):
    def function(x, depth):
        _tick(clock)
        if depth == 0:
            raise ValueError("deep")
        return compiled(x + 1, depth - 1)

    compiled = quickfuse.compile(function)
    for _ in range(CALLS):
        with pytest.raises(ValueError, match="deep"):
            compiled(torch.ones(3), 3)
    assert compiled.trial.native and len(compiled.trial.records) <= 1


def test_a_function_keeps_its_turns_apart(clock):
    """Each third call takes long as Python and each other one as compiled code: whole rounds are compared."""
    turn = itertools.cycle([("native", 9e-4), ("compiled", 4e-4), ("compiled", 4e-4)])
    compiled = quickfuse.compile(_program(clock, []))
    for _ in range(CALLS + 2):
        slow, seconds = next(turn)
        clock.seconds = {"compiled": 1e-4, "native": 1e-4, slow: seconds}
        compiled(torch.ones(3))
    assert compiled.trial is None


def test_another_function_that_calls_it_is_not_captured_again(clock):
    inner = quickfuse.compile(_program(clock, []))
    outer = quickfuse.compile(lambda x: inner(x) + 1, backend="eager")
    outer(torch.ones(3))
    assert _calls(inner, clock, CALLS, torch.ones(3))[-1] == "native"
    captures = outer.captures
    torch.testing.assert_close(outer(torch.ones(3)), torch.full((3,), 5.0))
    assert outer.captures == captures


def test_reset_begins_anew(clock):
    compiled = quickfuse.compile(_program(clock, []))
    assert _calls(compiled, clock, CALLS, torch.ones(3))[-1] == "native"
    quickfuse.reset()
    assert _calls(compiled, clock, 2, torch.ones(3)) == ["compiled"] * 2


@pytest.mark.parametrize("options", [{"fullgraph": True}, {"backend": "eager"}])
def test_only_where_nothing_else_is_asked_for(clock, options):
    compiled = quickfuse.compile(lambda x: x + 1, **options)
    assert compiled.trial is None


def test_a_function_that_asks_whether_it_is_compiled_stays_so(clock):
    def function(x):
        y = x + 1
        y = y * 2 if torch.compiler.is_compiling() else y
        _tick(clock)
        return y

    compiled = quickfuse.compile(function)
    for _ in range(CALLS):
        torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 4.0))


def test_exceptions_and_methods(clock):
    class Model:
        calls = 0

        def run(self, x, *, fail=False):
            self.calls += 1
            _tick(clock)
            if fail:
                raise ValueError(self.calls)
            return x * self.calls

    model = Model()
    compiled = quickfuse.compile(model.run)
    for number in range(1, 3 * CALLS):
        if number % 4 == 0:
            with pytest.raises(ValueError, match=f"^{number}$"):
                compiled(torch.ones(2), fail=True)
        else:
            torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), float(number)))
    assert model.calls == 3 * CALLS - 1


def test_the_log_says_why(clock, caplog):
    quickfuse.set_logs(graph_breaks=True)
    try:
        compiled = quickfuse.compile(_program(clock, []))
        _calls(compiled, clock, CALLS, torch.ones(3))
    finally:
        quickfuse.set_logs(graph_breaks=False)
    assert "function runs natively: compiled calls took 200 us, and calls in plain Python 100 us" in caplog.text


def test_turned_off(monkeypatch):
    monkeypatch.setattr(quickfuse.config, "measure_short_calls", False)
    assert quickfuse.compile(lambda x: x + 1).trial is None
