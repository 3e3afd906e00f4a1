"""Calls with tensors of many sizes: looked up, compiled when they are worth it, forgotten when there are too many."""

from __future__ import annotations

import gc
import logging
import math
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import quickfuse
from quickfuse import config
from quickfuse.pipeline import sizes as sizes_module
from quickfuse.pipeline.compiled import Compiled
from quickfuse.pipeline.sizes import AT_ONCE, LOOKED_UP_FROM, SMALLEST_GAIN, UNKNOWN_GAIN, CompileTimes, Gains
from quickfuse.pipeline.specialise import Specialisation


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    before = quickfuse.logs.log.propagate
    quickfuse.logs.log.propagate = True
    yield
    quickfuse.logs.log.propagate = before


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Calls in plain Python take 1, compiling a size 3."""
    now = {"thread": 0.0, "compile": 3.0}

    def tick() -> float:
        now["thread"] += 0.5
        return 2 * now["thread"]

    monkeypatch.setattr(config, "measure_short_calls", True)
    monkeypatch.setattr(sizes_module.time, "thread_time", tick)
    monkeypatch.setattr(CompileTimes, "usual", lambda self, on_cpu: now["compile"])
    monkeypatch.setattr(Gains, "share", lambda self: 1.0)
    monkeypatch.setattr(CompileTimes, "are_cheap", lambda self: True)
    return now


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The specialisations that are asked whether they fit."""
    asked: list[Any] = []
    made = Specialisation.__init__

    def counting(self: Specialisation, segment: Any, glue: Any, run: Callable[..., Any], *rest: Any) -> None:
        def counted(*args: Any, **kwargs: Any) -> Any:
            asked.append(self)
            return run(*args, **kwargs)

        counted.__defaults__, counted.__kwdefaults__ = run.__defaults__, run.__kwdefaults__
        made(self, segment, glue, counted, *rest)

    monkeypatch.setattr(Specialisation, "__init__", counting)
    return asked


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def rows(n: int) -> torch.Tensor:
    return torch.arange(3.0 * n).reshape(n, 3) / n


def rescale(x: torch.Tensor) -> torch.Tensor:
    return (x * 3 - x.amax(0)).relu()


def test_all_sizes_that_recur_are_compiled_once() -> None:
    compiled = quickfuse.compile(rescale)
    for _ in range(4):
        for n in range(2, 62, 2):
            assert torch.equal(compiled(rows(n)), rescale(rows(n)))
    assert compiled.graph_count == compiled.captures == 30


def test_one_specialisation_is_asked(tried: list[Any]) -> None:
    compiled = quickfuse.compile(rescale)
    for n in [*range(2, 42, 2)] * 2:
        compiled(rows(n))
    for n in (40, 2, 20, 2):
        tried.clear()
        compiled(rows(n))
        assert len(tried) == 1
    tried.clear()
    assert torch.equal(compiled(rows(100)), rescale(rows(100)))
    assert not tried, "a new size is none of theirs"


def test_a_kernel_is_for_all_sizes() -> None:
    compiled = quickfuse.compile(rescale)
    compiled(rows(2))
    before = quickfuse.logs.counts.get("distinct kernels", 0)
    for n in range(4, 24, 2):
        compiled(rows(n))
    assert compiled.graph_count == 11
    assert quickfuse.logs.counts.get("distinct kernels", 0) - before <= 2, "few forms, such as for lengths of a vector"


def test_a_size_is_compiled_once_plain_python_took_as_long(clock: dict[str, float]) -> None:
    compiled = quickfuse.compile(rescale)
    lengths = [*range(2, 2 * AT_ONCE + 2, 2)]
    for n in lengths:
        compiled(rows(n))
    assert compiled.graph_count == AT_ONCE
    counts = []
    for _ in range(5):
        assert torch.equal(compiled(rows(50)), rescale(rows(50)))
        counts.append(compiled.graph_count - AT_ONCE)
    assert counts == [0, 0, 0, 1, 1]
    for n in range(60, 160, 2):
        compiled(rows(n))
    assert compiled.captures == AT_ONCE + 1, "those that come once are never compiled"


def test_exceptions_of_calls_in_plain_python(clock: dict[str, float]) -> None:
    """What the program raises in plain Python is the program's, and the call counts."""
    def program(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 40:
            raise LookupError(x.shape[0])
        return x * 2

    compiled = quickfuse.compile(program)
    for n in range(2, 2 * AT_ONCE + 2, 2):
        compiled(rows(n))
    for _ in range(6):
        with pytest.raises(LookupError, match="50") as raised:
            compiled(rows(50))
        files = [entry.path.name for entry in raised.traceback]
        assert files[-1] == files[0] == "test_sizes.py" and "callers.py" not in files and files.count(files[0]) == 2
    assert torch.equal(compiled(rows(3)), rows(3) * 2)


def test_gradients_and_steps(clock: dict[str, float]) -> None:
    def make() -> tuple[Any, Any]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
        adam = torch.optim.Adam(net.parameters(), lr=0.01)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            adam.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            adam.step()
            return loss.detach()

        return net, step

    (net, compiled), (twin, eager) = make(), make()
    compiled = quickfuse.compile(compiled)
    for turn in range(4):
        for n in (2, 3, 5, 7, 11, 13, 17):
            y = torch.arange(n) % 2
            torch.testing.assert_close(compiled(rows(n), y), eager(rows(n), y))
        assert len(compiled.entry.specialisations) == (7 if turn == 3 else AT_ONCE)
    for ours, theirs in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_behind_a_break(clock: dict[str, float]) -> None:
    """What is not compiled for a size does not come to the break as compiled code, either."""
    def program(x: torch.Tensor) -> torch.Tensor:
        x = rescale(x) + 1
        quickfuse.graph_break()
        return x.softmax(1) * 3

    compiled = quickfuse.compile(program)
    for _ in range(5):
        for n in range(2, 62, 2):
            torch.testing.assert_close(compiled(rows(n)), program(rows(n)))
    assert {len(point.specialisations) for point in (compiled.entry, *compiled.points.values())} == {30}


@pytest.mark.parametrize("whole", [True, False])
def test_limit_of_sizes(whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The least recently used is forgotten, and let go of."""
    monkeypatch.setattr(config, "most_sizes", 6)
    monkeypatch.setattr(config, "recompile_limit", 6)
    monkeypatch.setattr(sizes_module, "FORGET_FOR", 2)
    monkeypatch.setattr("quickfuse.pipeline.limits.FORGET_FOR", 2)
    compiled = quickfuse.compile(rescale, fullgraph=whole)
    for n in (16, 2, 4, 6, 8, 10, 12, 12, 2, 6):
        compiled(rows(n))
    assert len(compiled.entry.sizes.table) == 6, "16 is forgotten"
    forgotten = weakref.ref(compiled.entry.sizes.table[(torch.Size([4, 3]),)][0].run)
    for _ in range(3):
        assert torch.equal(compiled(rows(20)), rescale(rows(20)))
    gc.collect()
    assert forgotten() is None
    shapes = {key[0][0] for key in compiled.entry.sizes.table}
    assert shapes == {2, 6, 8, 10, 12, 20} and len(compiled.entry.specialisations) == 6
    assert torch.equal(compiled(rows(4)), rescale(rows(4)))


def test_other_guards_hold_too() -> None:
    """Of one size, there are several: types, modes, strides, and what requires gradients."""
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(1.0))
    compiled = quickfuse.compile(lambda x, flag: net(x * 2) if flag else x * 3)

    def calls() -> Iterator[tuple[torch.Tensor, Any]]:
        for n in range(2, 14, 2):
            for flag in (True, False):
                for x in (rows(n), rows(n).requires_grad_(), rows(n).t().contiguous().t()):
                    yield x, flag
            yield rows(n).double(), False

    for turn in range(4):
        net.train(turn % 2 == 1)
        for x, flag in calls():
            got, want = compiled(x, flag), net(x * 2) if flag else x * 3
            torch.testing.assert_close(got, want)
            assert got.requires_grad == want.requires_grad and got.stride() == want.stride()


class Batch:
    def __init__(self, ids: torch.Tensor, lengths: torch.Tensor) -> None:
        self.ids = ids
        self.lengths = lengths


def test_tensors_in_objects(tried: list[Any]) -> None:
    def program(batch: Batch, more: dict[str, torch.Tensor], *, scale: float = 1.0) -> torch.Tensor:
        return batch.ids * scale + more["mask"].sum() - batch.lengths.sum()

    compiled = quickfuse.compile(program)
    arguments = [
        (Batch(rows(n), torch.ones(k)), {"mask": torch.ones(n, k)}) for n in range(2, 12, 3) for k in range(1, 12, 3)
    ]
    for args in arguments * 2:
        torch.testing.assert_close(compiled(*args), program(*args))
    assert compiled.graph_count == len(arguments)
    for args in arguments:
        tried.clear()
        torch.testing.assert_close(compiled(*args, scale=1.0), program(*args))
        assert len(tried) == 1


def test_nothing_of_the_users_runs_to_find_the_size() -> None:
    """Where another class is than before, its properties are not asked."""
    asked = []

    class Lazy:
        @property
        def ids(self) -> torch.Tensor:
            asked.append(1)
            return rows(3)

        lengths = torch.ones(1)

    class Loud(torch.Tensor):
        @property
        def shape(self) -> Any:  # type: ignore[override]
            asked.append(2)
            return torch.Size([7, 3])

    def program(batch: Any) -> Any:
        return batch.ids * 2

    compiled = quickfuse.compile(program)
    for n in [*range(2, 12)] * 2:
        compiled(Batch(rows(n), rows(1)))
    reader = compiled.entry.sizes.read
    assert reader(Batch(rows(4), rows(1))) == ((4, 3),)
    missed = [Batch(rows(4).as_subclass(Loud), rows(1)), Lazy(), None, Batch(None, None)]  # type: ignore[arg-type]
    assert {str(reader(batch)) for batch in missed} == {"MISS"} and not asked
    assert torch.equal(compiled(Lazy()), rows(3) * 2) and asked
    with torch.device("cpu"):  # a mode that sees functions
        assert torch.equal(compiled(Batch(rows(4), rows(1))), rows(4) * 2)


def test_calls_that_do_not_fit_the_signature() -> None:
    compiled = quickfuse.compile(rescale)
    for n in range(2, 12):
        compiled(rows(n))
    with pytest.raises(TypeError, match=r"rescale\(\) missing 1 required positional argument"):
        compiled()
    assert torch.equal(compiled(x=rows(4)), rescale(rows(4)))


def test_growing_sizes_are_symbols_beside_others() -> None:
    compiled = quickfuse.compile(lambda x: x.softmax(0) @ x.t())
    with torch.no_grad():
        for n in (*range(5, 30), 40, 60, 80, 100, 40, 60, 80, 100):
            torch.testing.assert_close(compiled(rows(n)), rows(n).softmax(0) @ rows(n).t())
    assert compiled.graph_count < 5


def test_what_is_said(clock: dict[str, float], caplog: pytest.LogCaptureFixture) -> None:
    quickfuse.set_logs(graph_breaks=True)
    compiled = quickfuse.compile(rescale)
    for n in range(2, 2 * AT_ONCE + 2, 2):
        compiled(rows(n))
    assert not said(caplog)
    for n in range(30, 34):
        compiled(rows(n))
    assert len(said(caplog)) == 1
    assert "rescale runs natively: another size of L['x'], at first: each is compiled once that would" in caplog.text
    for n in range(34, 60):
        compiled(rows(n))
    assert len(said(caplog)) == 2
    assert f"test_sizes.py:{rescale.__code__.co_firstlineno} was called with more than 16 sizes of L['x']" in said(caplog)[1]
    assert f" {AT_ONCE} of them are compiled" in said(caplog)[1] and "padded if need be" in said(caplog)[1]
    explained = quickfuse.explain(compiled)(rows(3))
    assert explained.earlier_calls == [
        f"{AT_ONCE} sizes of L['x'] are compiled; 30 others ran natively: each is compiled once that would have saved as "
        "much as compiling takes"
    ]
    assert f"Of earlier calls: {AT_ONCE} sizes" in str(explained)


def test_an_error_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "on_recompile_limit", "error")
    monkeypatch.setattr(config, "recompile_limit", 5)
    compiled = quickfuse.compile(rescale)
    with pytest.raises(quickfuse.errors.RecompileLimit, match=r"L\['x'\] is a Tensor float32"):
        for n in range(2, 20):
            compiled(rows(n))
    assert compiled.graph_count == 5


def test_first_sizes_wait_where_compiling_takes_long(clock: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first five sizes, those from the third on, unless the program has run for long."""
    cheap = [False]
    monkeypatch.setattr(CompileTimes, "are_cheap", lambda self: cheap[0])
    compiled = quickfuse.compile(lambda x, scale: x * scale - x.amax(0) if scale else rescale(x))
    for n in range(2, 20, 2):
        assert torch.equal(compiled(rows(n), 3), rescale(rows(n)) * 0 + rows(n) * 3 - rows(n).amax(0))
    assert compiled.captures == LOOKED_UP_FROM
    assert torch.equal(compiled(rows(4), 0), rescale(rows(4))), "a known size does not wait"
    assert compiled.captures == LOOKED_UP_FROM + 1
    cheap[0] = True
    for n in range(20, 40, 2):
        compiled(rows(n), 3)
    assert compiled.captures == AT_ONCE + 1


def test_compiling_is_cheap_once_the_program_has_run_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(sizes_module, "CHEAP", 0.1)
    monkeypatch.setattr(sizes_module.time, "perf_counter", lambda: now[0])
    times = CompileTimes()

    def take(seconds: float) -> None:
        times.begin_size()
        with times:
            now[0] += seconds

    take(5.0)
    now[0] += 10.0
    take(1.0)
    found = []
    for _ in range(3):
        found.append(times.are_cheap())
        now[0] += 10.0
    assert found == [False, True, True]
    take(3.0)
    assert not times.are_cheap(), "what others took counts"


def test_what_computes_with_other_sizes_is_left_to_python_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss with other targets in each call: the rest is compiled once for all of them, at the fifth size."""
    monkeypatch.setattr(config, "measure_short_calls", True)
    monkeypatch.setattr(CompileTimes, "are_cheap", lambda self: False)
    net = torch.nn.Sequential(*[torch.nn.Linear(3, 3) for _ in range(4)])

    def program(x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        y = net(x).tanh().softmax(1).relu()
        return torch.cdist(y, targets, p=1.0).min(1).values.mean()

    compiled = quickfuse.compile(program)
    counts = []
    for n in range(2, 40):
        torch.testing.assert_close(compiled(rows(5), rows(n)), program(rows(5), rows(n)))
        counts.append(compiled.captures)
    assert counts[:4] == [1, 2, 2, 2] and counts[-1] == counts[12], counts


def test_times() -> None:
    times = CompileTimes()
    with times:
        pass
    assert times.usual() == 0.0
    for _ in range(3):
        times.begin_size()
        for _ in range(2):
            with times:
                sum(range(1000))
    assert times.usual() > 0


def test_frames_in_plain_python(clock: dict[str, float]) -> None:
    """Warnings name the user's line."""
    def program(x: torch.Tensor) -> torch.Tensor:
        warnings.warn("look here", stacklevel=1)
        return x * 2

    compiled = quickfuse.compile(program)
    for n in range(2, 30):
        with pytest.warns(UserWarning, match="look here") as caught:
            compiled(rows(n))
        assert caught[0].filename == __file__


def test_who_called_plain_python(clock: dict[str, float]) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, str, int]:
        caller = sys._getframe(1)
        return x * 2, caller.f_code.co_name, caller.f_lineno

    compiled = quickfuse.compile(program)
    for n in range(2, 20):
        found = compiled(rows(n))[1:], program(rows(n))[1:]
        assert found[0] == found[1] == ("test_who_called_plain_python", found[1][1])


def test_reset(clock: dict[str, float]) -> None:
    compiled: Compiled = quickfuse.compile(rescale)
    for n in range(2, 40):
        compiled(rows(n))
    compiled.reset()
    assert compiled.entry.sizes is None and not compiled.graph_count
    compiled(rows(2))
    assert compiled.graph_count == 1


def test_backward_outside_counts(clock: dict[str, float]) -> None:
    clock["compile"] = 9.0
    w = torch.ones(3, requires_grad=True)
    compiled = quickfuse.compile(lambda x: rescale(x * w).sum())
    for n in [*range(2, 2 * AT_ONCE + 2, 2), *[50] * 5]:
        compiled(rows(n)).backward()
    assert w.grad is not None and compiled.captures == AT_ONCE + 1


@pytest.mark.parametrize(("compiled_takes", "share"), [(0.25, 0.75), (2.0, SMALLEST_GAIN)])
def test_what_compiled_code_saves(compiled_takes: float, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is measured in calls that had run in plain Python, which took 1."""
    now = [0.0]
    monkeypatch.setattr(config, "measure_short_calls", True)
    monkeypatch.setattr(sizes_module.time, "thread_time", lambda: now[0])
    monkeypatch.setattr(CompileTimes, "usual", lambda self, on_cpu: 3.0)
    monkeypatch.setattr(CompileTimes, "are_cheap", lambda self: True)

    def program(x: torch.Tensor, scale: float = 3.0) -> torch.Tensor:
        return x * scale - x.amax(0)

    def native(callers: Any, call: Any, called: Callable[[], Any]) -> torch.Tensor:
        now[0] += 1
        return called()  # type: ignore[no-any-return]

    compiled = quickfuse.compile(program)
    monkeypatch.setattr("quickfuse.pipeline.compiled.call_below", native)
    for n in range(2, 2 * AT_ONCE + 2, 2):
        compiled(rows(n))
    for _ in range(math.ceil(3.0 / UNKNOWN_GAIN)):
        compiled(rows(50))
        assert compiled.captures == AT_ONCE
    compiled(rows(50))
    assert compiled.captures == AT_ONCE + 1 and compiled.entry.gains.share() == UNKNOWN_GAIN
    specialisation = compiled.specialisations[0]
    timed: Any = specialisation.run
    cell = timed.__closure__[timed.__code__.co_freevars.index("run")]
    made = cell.cell_contents

    def slow(*args: Any, **kwargs: Any) -> Any:
        now[0] += compiled_takes
        return made(*args, **kwargs)

    cell.cell_contents = slow
    for _ in range(20):
        assert torch.equal(compiled(rows(50)), program(rows(50)))
    assert specialisation.run is slow and compiled.entry.gains.share() == share


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("most", [1, 3, 8])
def test_fewer_are_kept_than_there_are_sizes(
    whole: bool, most: int, monkeypatch: pytest.MonkeyPatch, clock: dict[str, float]
) -> None:
    """They are not compiled by turns, each for another that is forgotten."""
    clock["compile"] = 1000.0
    monkeypatch.setattr(config, "most_sizes", most)
    compiled = quickfuse.compile(rescale, fullgraph=whole)
    for n in [*range(2, 26, 2)] * 5:
        assert torch.equal(compiled(rows(n)), rescale(rows(n)))
    assert compiled.captures <= max(most, LOOKED_UP_FROM) + 1
    assert len(compiled.entry.specialisations) == min(most, compiled.captures)


def test_several_of_a_size_take_all_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quickfuse.pipeline.points.MOST_BYTES", 0)
    dropout = torch.nn.Dropout(1.0)
    compiled = quickfuse.compile(lambda x: dropout(x * 2), fullgraph=True)
    for n in [*range(2, 32, 2)] * 4:
        for training in (True, False):
            dropout.train(training)
            assert torch.equal(compiled(rows(n)), dropout(rows(n) * 2))
    assert compiled.captures == config.recompile_limit + 1


def test_an_error_where_fewer_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "on_recompile_limit", "error")
    monkeypatch.setattr(config, "most_sizes", 4)
    compiled = quickfuse.compile(rescale)
    with pytest.raises(quickfuse.errors.RecompileLimit):
        for n in range(2, 40):
            compiled(rows(n))
    assert compiled.graph_count == config.recompile_limit


def test_what_a_specialisation_holds_tells_no_sizes() -> None:
    """Each holds the indices that its numbers give, of a size of its own, which no call has."""

    def program(x: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        rows, columns = sizes.tolist()
        return x[:rows, :columns].repeat_interleave(sizes, 0) * sizes[0]

    compiled = quickfuse.compile(program)
    x = torch.arange(20.0).view(4, 5)
    for sizes in ([2, 3], [2, 3], [2, 1], [2, 3], [2, 1], [2, 3]):
        given = torch.tensor(sizes)
        torch.testing.assert_close(compiled(x, given), program(x, given))
    assert compiled.graph_count == 2 and not compiled.breaks


def test_sizes_that_first_differ_after_a_break(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the call has several sizes too, those behind are not compiled for ever."""
    monkeypatch.setattr("quickfuse.pipeline.other_sizes.FEW_OPERATORS", 0)  # nothing is left to Python for being little

    def program(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        x = x * 2
        quickfuse.graph_break()
        kept = torch.zeros(int(n.item()), 3)
        quickfuse.graph_break()
        return (kept * 0 + x.sum()).sum(0).tanh()

    compiled = quickfuse.compile(program)
    captures = []
    for k in range(60):
        x, n = rows(2 + 3 * (k % 4)), torch.tensor(3 + 2 * k + k % 3)
        torch.testing.assert_close(compiled(x, n), program(x, n))
        captures.append(max(len(point.specialisations) for point in compiled.points.values()))
    assert captures[-1] <= config.recompile_limit + 4


def test_memory_of_what_comes_after_a_break(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many sizes of the call are kept as there is room for all of their parts."""
    monkeypatch.setattr("quickfuse.pipeline.points.MOST_BYTES", 2**20)
    monkeypatch.setattr(Gains, "share", lambda self: 1e6)

    def program(x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        quickfuse.graph_break()
        for _ in range(20):
            x = (x.softmax(1) @ x.t() @ x).tanh()
        return x

    compiled = quickfuse.compile(program)
    captures = []
    for _ in range(12):
        for n in range(2, 22):
            torch.testing.assert_close(compiled(rows(n)), program(rows(n)))
        captures.append(compiled.captures)
    ways = {len(point.specialisations) for point in (compiled.entry, *compiled.points.values())}
    assert ways == {config.recompile_limit}, captures



def test_sizes_that_grow_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The third one shows that they grow, and has the graph for all of them."""
    monkeypatch.setattr(config, "measure_short_calls", True)
    monkeypatch.setattr(CompileTimes, "are_cheap", lambda self: False)
    compiled = quickfuse.compile(lambda x: x.softmax(0) @ x.t())
    with torch.no_grad():
        for n in range(5, 20):
            torch.testing.assert_close(compiled(rows(n)), rows(n).softmax(0) @ rows(n).t())
    assert compiled.captures == 3 and compiled.specialisations[0].segment.is_dynamic


def test_all_targets_are_left_to_python_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of them whose sizes were several tells of the others in the same list."""
    monkeypatch.setattr(config, "measure_short_calls", True)
    monkeypatch.setattr(CompileTimes, "are_cheap", lambda self: False)
    net = torch.nn.Sequential(*[torch.nn.Linear(3, 3) for _ in range(8)])

    def program(x: torch.Tensor, targets: list[torch.Tensor]) -> torch.Tensor:
        y = net(x).tanh().softmax(1).relu() * 2 + 1
        return sum(torch.cdist(y, target, p=1.0).min(1).values.mean() for target in targets)  # type: ignore[return-value]

    compiled = quickfuse.compile(program)
    for n in range(2, 22):
        targets = [rows(n + 3 * k) for k in range(3)]
        torch.testing.assert_close(compiled(rows(5), targets), program(rows(5), targets))
    general = [s.segment for s in compiled.entry.specialisations if s.segment.pause is not None]
    assert len(general) == 1 and len(compiled.entry.specialisations) == 3
