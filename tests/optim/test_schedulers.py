"""Every learning rate scheduler, stepped inside the compiled function and outside, against eager over 50 steps.

A scheduler changes numbers: nothing is compiled for that. It also has branches of its own (is the warm-up over, is this
epoch a milestone), and each path through them is a specialisation, compiled once. The paths are not only counted in the
table below but also observed: eager's scheduler is traced line by line, and a step whose path was taken before compiles
nothing.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler, swa_utils

import quickfuse
from optim.step_twins import EXACT, Twins, compile_step, compiled_count, difference

STEPS = 50
#: Two groups with rates of their own, so that schedulers walk lists.
RATES = (0.02, 0.005)
#: While the compiled function is young, a first step may differ from later ones for the optimizer's own reasons.
YOUNG = 3
SCHEDULER_FILES = (lr_scheduler.__file__, swa_utils.__file__, __file__)
Make = Callable[[torch.optim.Optimizer], Any]


@dataclass(frozen=True)
class Schedule:
    """`paths`: the ways through the lines of the scheduler's `step()` in 50 steps; the comments name their branches.
    `within_builtins`: further ways, that differ in what `min` or `max` return."""

    make: Make
    paths: int
    within_builtins: int = 0
    takes_metric: bool = False


def warm_up(epoch: int) -> float:
    if epoch < 10:
        return (epoch + 1) / 10
    return 1.0


def plateau(epoch: int) -> float:
    """A loss that falls, stays, falls once more and stays."""
    return max(1.0 - 0.1 * epoch, 0.5) if epoch < 20 else 0.2


def chained(optimizer: torch.optim.Optimizer) -> Any:
    constant = lr_scheduler.ConstantLR(optimizer, factor=0.5, total_iters=5)
    return lr_scheduler.ChainedScheduler([constant, lr_scheduler.ExponentialLR(optimizer, gamma=0.9)])


def sequential(optimizer: torch.optim.Optimizer) -> Any:
    first = lr_scheduler.ConstantLR(optimizer, factor=0.5, total_iters=20)
    return lr_scheduler.SequentialLR(optimizer, [first, lr_scheduler.ExponentialLR(optimizer, gamma=0.9)], milestones=[10])


def cyclic(**options: Any) -> Make:
    limits = {"base_lr": [0.001, 0.002], "max_lr": [0.01, 0.02], "step_size_up": 4, "step_size_down": 6}
    return lambda optimizer: lr_scheduler.CyclicLR(optimizer, **limits, **options)


def one_cycle(**options: Any) -> Make:
    return lambda optimizer: lr_scheduler.OneCycleLR(optimizer, max_lr=[0.1, 0.2], total_steps=STEPS + 1, **options)


# "first": LRScheduler.step asks `_step_count == 1` in the first step, to warn about schedulers stepped before optimizers.
SCHEDULES: dict[str, Schedule] = {
    # first; any other
    "LambdaLR": Schedule(lambda o: lr_scheduler.LambdaLR(o, [lambda e: 0.95**e, lambda e: 1 / (1 + e)]), 2),
    # first; the function's branch `epoch < 10` taken; not taken
    "LambdaLR-warm-up": Schedule(lambda o: lr_scheduler.LambdaLR(o, warm_up), 3),
    # first; any other
    "MultiplicativeLR": Schedule(lambda o: lr_scheduler.MultiplicativeLR(o, lambda e: 0.99 - 0.001 * e), 2),
    # first; `last_epoch % step_size != 0`; a multiple
    "StepLR": Schedule(lambda o: lr_scheduler.StepLR(o, step_size=7, gamma=0.5), 3),
    # first; `last_epoch not in milestones`; a milestone, whichever it is and however often it is listed
    "MultiStepLR": Schedule(lambda o: lr_scheduler.MultiStepLR(o, milestones=[5, 12, 30, 30], gamma=0.5), 3),
    # first; `last_epoch != total_iters`; equal
    "ConstantLR": Schedule(lambda o: lr_scheduler.ConstantLR(o, factor=0.25, total_iters=10), 3),
    # first; on the way; `last_epoch > total_iters`
    "LinearLR": Schedule(lambda o: lr_scheduler.LinearLR(o, start_factor=0.1, total_iters=10), 3),
    # first; any other
    "ExponentialLR": Schedule(lambda o: lr_scheduler.ExponentialLR(o, gamma=0.9), 2),
    # first; on the way; `last_epoch > total_iters`
    "PolynomialLR": Schedule(lambda o: lr_scheduler.PolynomialLR(o, total_iters=20, power=2.0), 3),
    # first; any other; `(last_epoch - 1 - T_max) % (2 * T_max) == 0`
    "CosineAnnealingLR": Schedule(lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=10, eta_min=1e-4), 3),
    # any; `T_cur >= T_i`, a restart. It has a step() of its own, which has no first-step branch.
    "CosineAnnealingWarmRestarts": Schedule(lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=4, T_mult=2), 2),
    # first, which is on the way up; `x <= step_ratio`, up; down
    "CyclicLR": Schedule(cyclic(), 3),
    "CyclicLR-triangular2": Schedule(cyclic(mode="triangular2"), 3),
    "CyclicLR-exp_range": Schedule(cyclic(mode="exp_range", gamma=0.99), 3),
    "CyclicLR-scale_fn": Schedule(cyclic(scale_fn=lambda x: 1 / (5.0 ** (x * 0.0001)), cycle_momentum=False), 3),
    # first, which is in the first phase; first phase; second phase
    "OneCycleLR": Schedule(one_cycle(), 3),
    # as above, and a third phase
    "OneCycleLR-three-phase": Schedule(one_cycle(three_phase=True, anneal_strategy="linear"), 4),
    # first, of both; `last_epoch != total_iters` of ConstantLR; equal
    "ChainedScheduler": Schedule(chained, 3),
    # first of ConstantLR; any other of ConstantLR; the milestone; first of ExponentialLR; any other of ExponentialLR
    "SequentialLR": Schedule(sequential, 5),
    # better; not better; too often not better, so that the rate falls; not better during the cooldown after that
    "ReduceLROnPlateau": Schedule(
        lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=0.5, patience=2, cooldown=1), 4, takes_metric=True
    ),
    # first, while annealing; annealing; `alpha == 1`, annealed. `min(1, step / anneal_epochs)` is a float, then the int.
    "SWALR": Schedule(lambda o: swa_utils.SWALR(o, swa_lr=[0.001, 0.002], anneal_epochs=10), 3, within_builtins=1),
    "SWALR-linear": Schedule(
        lambda o: swa_utils.SWALR(o, swa_lr=0.001, anneal_epochs=10, anneal_strategy="linear"), 3, within_builtins=1
    ),
}


def make_optimizer(parameters: list[torch.nn.Parameter], rate: str) -> torch.optim.Optimizer:
    groups = []
    for parameter, lr in zip(parameters, RATES, strict=True):
        groups.append({"params": [parameter], "lr": torch.tensor(lr) if rate == "tensor" else lr})
    return torch.optim.Adam(groups, foreach=False)


def rates_of(optimizer: torch.optim.Optimizer) -> Any:
    """All numbers of the groups that a scheduler may change, copied."""
    names = ("lr", "betas", "initial_lr")
    return [{name: torch.clone(v) if isinstance(v := group[name], torch.Tensor) else v for name in names if name in group}
            for group in optimizer.param_groups]  # fmt: skip


class Tracer:
    """The path of a call: the lines that run in the files of schedulers."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, int]] = []

    def path(self, call: Callable[[], Any]) -> tuple[tuple[str, int], ...]:
        self.lines = []
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            call()
        finally:
            sys.settrace(before)
        return tuple(self.lines)

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        return self._line if frame.f_code.co_filename in SCHEDULER_FILES else None

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            self.lines.append((frame.f_code.co_filename, frame.f_lineno))
        return self._line


class Run:
    """Two equal optimizers with schedulers, stepped in lockstep; iterate to get (step, path, seen before)."""

    def __init__(self, schedule: Schedule, rate: str) -> None:
        self.schedule = schedule
        self.twins = Twins(lambda p: make_optimizer(p, rate), shapes=((4, 3), (5,)))
        self.scheduler = schedule.make(self.twins.optimizer)
        self.eager_scheduler = schedule.make(self.twins.eager)
        self.paths: set[tuple[tuple[str, int], ...]] = set()

    def steps(self, compiled_step: Callable[[float], None]) -> Iterator[tuple[int, bool]]:
        """After each step, its number and whether the scheduler went a way that it had gone before."""
        tracer = Tracer()
        for k in range(STEPS):
            metric = plateau(k)
            self.twins.gradients()
            self.twins.eager.step()
            path = tracer.path(lambda: self.advance(self.eager_scheduler, metric))  # noqa: B023
            compiled_step(metric)
            yield k, path in self.paths
            self.paths.add(path)
            self.check(k)

    def advance(self, scheduler: Any, metric: float) -> None:
        scheduler.step(metric) if self.schedule.takes_metric else scheduler.step()

    def check(self, k: int) -> None:
        found = difference(rates_of(self.twins.optimizer), rates_of(self.twins.eager), EXACT, f"step {k}: param_groups")
        assert not found, found
        for mine, theirs in zip(self.twins.parameters, self.twins.eager_parameters, strict=True):
            assert not (found := difference(mine, theirs, EXACT, f"step {k}: a parameter")), found

    def finish(self) -> None:
        """The schedulers' own state, and the optimizers'."""
        mine, theirs = state_of(self.scheduler), state_of(self.eager_scheduler)
        assert not (found := difference(mine, theirs, EXACT, "the scheduler")), found
        self.twins.check()


def state_of(scheduler: Any) -> dict[str, Any]:
    """A scheduler's attributes: those of the schedulers in it instead of the schedulers, and no functions."""
    state = {name: value for name, value in vars(scheduler).items() if name != "optimizer" and not callable(value)}
    state.pop("lr_lambdas", None)
    if "_schedulers" in state:
        state["_schedulers"] = [state_of(inner) for inner in state["_schedulers"]]
    return state


@pytest.mark.parametrize("rate", ["float", "tensor"])
@pytest.mark.parametrize("label", SCHEDULES)
def test_inside(label: str, rate: str) -> None:
    run = Run(SCHEDULES[label], rate)
    optimizer, scheduler = run.twins.optimizer, run.scheduler

    def train(metric: float) -> None:
        optimizer.step()
        if takes_metric:
            scheduler.step(metric)
        else:
            scheduler.step()

    takes_metric = run.schedule.takes_metric
    compiled = compile_step(train)
    before, surprises = 0, []
    for k, seen in run.steps(compiled):
        count = compiled_count(compiled)
        if seen and count > before and k >= YOUNG:
            surprises.append(k)
        before = count
    run.finish()
    assert len(run.paths) == run.schedule.paths, "the table is wrong about this version of PyTorch"
    within = run.schedule.within_builtins
    assert len(surprises) <= within, f"steps {surprises} compiled, on ways that the scheduler had gone before"
    assert 1 <= before <= run.schedule.paths + within


@pytest.mark.parametrize("rate", ["float", "tensor"])
@pytest.mark.parametrize("label", SCHEDULES)
def test_outside(label: str, rate: str) -> None:
    """Only the optimizer's step is compiled. What the scheduler does to it is a number: one specialisation."""
    run = Run(SCHEDULES[label], rate)
    compiled = compile_step(run.twins.optimizer.step)

    def train(metric: float) -> None:
        compiled()
        run.advance(run.scheduler, metric)

    for _ in run.steps(train):
        assert compiled_count(compiled) == 1
    run.finish()


def test_every_scheduler_is_in_the_table() -> None:
    known = {name.partition("-")[0] for name in SCHEDULES}
    assert set(lr_scheduler.__all__) - {"LRScheduler"} <= known and "SWALR" in known


def test_metric_in_a_tensor() -> None:
    """The loss as it comes from the model: its value decides in Python, and the trajectory is eager's."""
    run = Run(SCHEDULES["ReduceLROnPlateau"], "float")
    optimizer, scheduler = run.twins.optimizer, run.scheduler

    def train(metric: torch.Tensor) -> None:
        optimizer.step()
        scheduler.step(metric)

    compiled = compile_step(train, fullgraph=False)
    # In float64, so that the tensor's value is the number that eager's scheduler gets.
    for _ in run.steps(lambda metric: compiled(torch.tensor(metric, dtype=torch.float64))):
        pass
    run.finish()


@pytest.mark.parametrize("label", ["CosineAnnealingLR", "OneCycleLR", "SequentialLR", "ReduceLROnPlateau"])
def test_kernels(label: str) -> None:
    """The same through the whole pipeline."""
    run = Run(SCHEDULES[label], "float")
    optimizer, scheduler = run.twins.optimizer, run.scheduler

    def train(metric: float) -> None:
        optimizer.step()
        run.advance(scheduler, metric)

    compiled = compile_step(train, fullgraph=False, backend="quickfuse")
    for k in range(STEPS):
        run.twins.gradients()
        run.twins.eager.step()
        run.advance(run.eager_scheduler, plateau(k))
        compiled(plateau(k))
        found = difference(rates_of(optimizer), rates_of(run.twins.eager), EXACT, f"step {k}: param_groups")
        assert not found, found
    run.twins.check((1e-5, 1e-6))


def _stepping(scheduler_first: bool, compiled: bool) -> tuple[list[float], list[tuple[str, int]], Any]:
    """The rates after each of some whole steps, the places that were warned of, and the step."""
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch)

    def step(x):
        optimizer.zero_grad()
        net(x).square().sum().backward()
        if scheduler_first:
            scheduler.step()
        optimizer.step()
        if not scheduler_first:
            scheduler.step()

    run = quickfuse.compile(step) if compiled else step
    rates = []
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for _ in range(4):
            run(torch.ones(2, 3))
            rates += [optimizer.param_groups[0]["lr"], scheduler._step_count]
    return rates, [(warning.filename, warning.lineno) for warning in heard], run


def test_the_first_step_of_a_scheduler_has_the_graph_of_all_others() -> None:
    rates, heard, step = _stepping(False, True)
    assert step.graph_count == 1
    assert (rates, heard) == _stepping(False, False)[:2]


def test_a_scheduler_that_steps_too_early_is_warned_of() -> None:
    eager, heard, _ = _stepping(True, False)
    assert heard
    assert _stepping(True, True)[:2] == (eager, heard)
