"""Sizes that first differ after a graph break: looked up there, and compiled when they are worth it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import quickfuse
from quickfuse import config
from quickfuse.drive.regions import Natively
from quickfuse.pipeline import sizes as sizes_module
from quickfuse.pipeline.compiled import Compiled
from quickfuse.pipeline.points import Point
from quickfuse.pipeline.sizes import AT_ONCE, CompileTimes, Gains

LENGTHS = [*range(2, 42, 2)]


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    before = quickfuse.logs.log.propagate
    quickfuse.logs.log.propagate = True
    yield
    quickfuse.logs.log.propagate = before


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A region in plain Python takes 1, compiling a size 3."""
    now = [0.0]

    def tick() -> float:
        now[0] += 1.0
        return now[0]

    monkeypatch.setattr(config, "measure_short_calls", True)
    monkeypatch.setattr(sizes_module.time, "thread_time", tick)
    monkeypatch.setattr(CompileTimes, "usual", lambda self, on_cpu: 3.0)
    monkeypatch.setattr(Gains, "share", lambda self: 1.0)
    monkeypatch.setattr(CompileTimes, "are_cheap", lambda self: True)


@pytest.fixture(autouse=True)
def nothing_is_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if each program had a model of some hundred operators, which is not left to Python at once."""
    monkeypatch.setattr("quickfuse.pipeline.other_sizes.FEW_OPERATORS", 0)


def deep(x: torch.Tensor) -> torch.Tensor:
    for k in range(2):
        x = (x * (0.5 + k / 100) - x.mean(0)).tanh()
    return x + x.amax(0)


def prefix(x: torch.Tensor, n: int) -> torch.Tensor:
    print(end="")
    return deep(x[:n])


def masked(x: torch.Tensor, n: int) -> torch.Tensor:
    kept = x[torch.arange(len(x)) < n]
    return deep(kept)


def other_batch(x: torch.Tensor, others: list[torch.Tensor]) -> torch.Tensor:
    y = x.exp()
    print(end="")
    return deep(others[0]) + y[0, 0]


X = torch.linspace(-1, 1, 300).reshape(100, 3)
PROGRAMS: dict[str, tuple[Callable[..., torch.Tensor], Callable[[int], Any]]] = {
    "prefix": (prefix, lambda n: n),
    "masked": (masked, lambda n: n),
    "other_batch": (other_batch, lambda n: [X[:n] * 2]),
}


def most(compiled: Compiled) -> int:
    """The number of specialisations at the place after a break that has the most."""
    return max(len(point.specialisations) for point in compiled.points.values())


@pytest.mark.parametrize("name", PROGRAMS)
def test_all_that_recur_are_compiled_once(name: str, caplog: pytest.LogCaptureFixture) -> None:
    program, second = PROGRAMS[name]
    compiled = quickfuse.compile(program)
    counts = []
    for _ in range(4):
        for n in LENGTHS:
            torch.testing.assert_close(compiled(X, second(n)), program(X, second(n)))
        counts.append(most(compiled))
    assert counts[2:] == [len(LENGTHS)] * 2
    assert "runs natively" not in caplog.text.replace("others run natively at first", "")
    captures = compiled.captures
    for n in LENGTHS:
        compiled(X, second(n))
    assert compiled.captures == captures


@pytest.mark.parametrize("name", PROGRAMS)
def test_those_that_come_once_are_never_compiled(name: str, clock: None) -> None:
    program, second = PROGRAMS[name]
    compiled = quickfuse.compile(program)
    for n in range(2, 90):
        torch.testing.assert_close(compiled(X, second(n)), program(X, second(n)))
    assert most(compiled) == AT_ONCE
    counts = []
    for _ in range(5):
        torch.testing.assert_close(compiled(X, second(50)), program(X, second(50)))
        counts.append(most(compiled) - AT_ONCE)
    assert counts == [0, 0, 1, 1, 1]


def test_one_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = quickfuse.compile(prefix)
    for n in LENGTHS * 4:
        compiled(X, n)
    point = max(compiled.points.values(), key=lambda point: len(point.specialisations))
    asked = []
    for specialisation in point.specialisations:
        run = specialisation.run
        monkeypatch.setattr(specialisation, "run", lambda frames, run=run: [asked.append(1), run(frames)][1])
    for count, n in enumerate(LENGTHS, 1):
        torch.testing.assert_close(compiled(X, n), prefix(X, n))
        assert len(asked) == count


def test_in_a_loop(clock: None) -> None:
    """Each turn of a loop runs natively up to where the next one begins, and not the loop over all data."""
    def program(batches: list[torch.Tensor], starts: torch.Tensor) -> list[float]:
        losses = []
        for start in starts.tolist():
            batch = batches[0][start:]
            print(end="")
            losses.append((deep(batch) ** 2).mean().item())
        return losses

    compiled = quickfuse.compile(program)
    starts = torch.arange(60)
    for _ in range(4):
        torch.testing.assert_close(compiled([X], starts), program([X], starts))
    assert most(compiled) >= len(starts)


def test_gradients(clock: None) -> None:
    weight, twin = (torch.full((3,), 0.5, requires_grad=True) for _ in range(2))

    def program(x: torch.Tensor, n: int, w: torch.Tensor) -> torch.Tensor:
        print(end="")
        return deep(x[:n] * w).sum()

    compiled = quickfuse.compile(program)
    for _ in range(4):
        for n in LENGTHS[:8]:
            compiled(X, n, weight).backward()
            program(X, n, twin).backward()
            torch.testing.assert_close(weight.grad, twin.grad)
    assert most(compiled) == 8


def test_what_differs_at_the_call_is_not_waited_for_again(clock: None) -> None:
    """A size that the call was compiled for is compiled after a break as it comes."""
    def program(x: torch.Tensor) -> torch.Tensor:
        x = x.softmax(0) * 2
        print(end="")
        return deep(x)

    compiled = quickfuse.compile(program)
    for _ in range(5):
        for n in LENGTHS:
            torch.testing.assert_close(compiled(X[:n]), program(X[:n]))
            ways = {len(point.specialisations) for point in (compiled.entry, *compiled.points.values()) if point.useful}
            assert len(ways) == 1
    assert ways == {len(LENGTHS)}


def test_no_longer_than_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "most_sizes", 6)
    monkeypatch.setattr(config, "recompile_limit", 6)
    monkeypatch.setattr("quickfuse.pipeline.limits.FORGET_FOR", 3)
    compiled = quickfuse.compile(prefix)
    for turn in range(8):
        for n in LENGTHS[:10]:
            torch.testing.assert_close(compiled(X, n), prefix(X, n))
        assert most(compiled) == 6, turn
    assert compiled.captures < 40


def test_what_is_said(clock: None, caplog: pytest.LogCaptureFixture) -> None:
    quickfuse.set_logs(graph_breaks=True)
    compiled = quickfuse.compile(prefix)
    for n in LENGTHS:
        compiled(X, n)
    line = prefix.__code__.co_firstlineno + 2
    assert "prefix runs natively: another size of S[" in caplog.text
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert sum(f"test_sizes_after_breaks.py:{line} was called with more than 16 sizes" in text for text in warned) == 1


# regions ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def always_natively(monkeypatch: pytest.MonkeyPatch) -> list[Point]:
    """Each other time that a place has a region, that runs natively."""
    made: list[Point] = []
    compiled_run = Compiled._run_segment

    def run(self: Compiled, point: Point, frames: list[Any]) -> Any:
        if point.region is not None and point.region.possible and point.capturable and not (made and made[-1] is point):
            made.append(point)
            return Natively(point.region, lambda seconds: None)
        made.clear()
        return compiled_run(self, point, frames)

    monkeypatch.setattr(Compiled, "_run_segment", run)
    return made


def loop_with_a_break(x: torch.Tensor, said: list[str]) -> torch.Tensor:
    for k in range(5):
        x = x * k + 1
        said.append(f"{x.sum().item():.3f}")
        x = x - x.mean()
    return x


def callee(x: torch.Tensor, said: list[str]) -> torch.Tensor:
    y = x * 2
    said.append(f"{y.sum().item():.3f}")
    return y.relu() + 1


def nested(x: torch.Tensor, said: list[str]) -> torch.Tensor:
    for k in range(3):
        x = callee(x, said) * k + callee(x - 1, said)
    return x.sum(0)


def handlers(x: torch.Tensor, said: list[str]) -> torch.Tensor:
    for k in range(4):
        try:
            said.append(f"{x.sum().item():.3f}")
            y = x * 2
            if k % 2:
                raise LookupError(k)
            x = y + 1
        except LookupError as error:
            said.append(str(error))
            x = x.tanh()
        finally:
            x = x * 0.5
    return x


def raises(x: torch.Tensor, said: list[str]) -> torch.Tensor:
    print(end="")
    y = x * 3
    if said:
        raise ValueError("too late")
    return callee(y, said)


def warns(x: torch.Tensor, said: list[str]) -> torch.Tensor:
    print(end="")
    y = x * 3
    warnings.warn("look", stacklevel=1)
    said.append(sys._getframe(1).f_code.co_name)
    return y + 1


def generated(x: torch.Tensor, said: list[str]) -> torch.Tensor:
    def parts() -> Iterator[torch.Tensor]:
        for k in range(3):
            said.append(f"{x.sum().item():.3f}")
            yield x * k + 1

    return sum(part.tanh() for part in parts())  # type: ignore[return-value]


def conditional(x: torch.Tensor, said: list[str]) -> torch.Tensor:
    for k in range(4):
        y = x * 2 + k
        said.append(f"{y.sum().item():.3f}" if y.sum() > 0 else "less")
        (said.append if k % 2 else said.extend)(str(k))
        x = y.tanh()
    with torch.no_grad():
        said.append(f"{x.mean().item():.3f}")
        return x + 1


@pytest.mark.parametrize(
    "program", [loop_with_a_break, nested, handlers, raises, warns, generated, conditional], ids=lambda f: f.__name__
)
def test_regions(program: Callable[..., torch.Tensor], always_natively: list[Point]) -> None:
    compiled = quickfuse.compile(program)

    def outcome(function: Callable[..., torch.Tensor], x: torch.Tensor) -> tuple[Any, ...]:
        said = ["first"] if program is raises and turn % 3 == 2 else []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                result: Any = function(x, said)
            except ValueError as error:
                trace, result = error.__traceback__, list[Any]()
                while trace is not None:
                    if trace.tb_frame.f_code.co_name == program.__name__:
                        result.append(trace.tb_lineno)
                    trace = trace.tb_next
        return result, said, [(str(one.message), one.filename, one.lineno) for one in caught]

    for turn in range(8):
        x = torch.linspace(-1, 1 + turn, 6).reshape(2, 3)
        (got, *rest), (want, *others) = outcome(compiled, x), outcome(program, x)
        torch.testing.assert_close(got, want)
        assert rest == others
