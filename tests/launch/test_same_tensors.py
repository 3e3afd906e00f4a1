"""Steps over many tensors, to which anything may happen between two calls: checks are skipped only while nothing did."""

from __future__ import annotations

import contextlib
import copy
import gc
import random
import sys
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import quickfuse
from quickfuse.launch import replayed, same_tensors, unchanged
from quickfuse.launch.replayed import Recorder
from quickfuse.launch.same_tensors_ir import COUNTING_THREADS, THREADS
from quickfuse.launch.tensor_check import lazy_bits
from quickfuse.launch.tensor_layout import tensor_layout
from quickfuse.pipeline import kernels

COUNT, SIZE = 14, 4

pytestmark = pytest.mark.skipif(not same_tensors.available(), reason="tensors are laid out differently here")


class Watched(same_tensors.SameTensors):
    """Counts how often nothing had changed."""

    found = 0

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        holds = self.holds

        def counted(held: list[Any]) -> Any:
            tensors = holds(held)
            Watched.found += tensors is not None
            return tensors

        self.holds = counted


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    Watched.found = 0
    monkeypatch.setattr(same_tensors, "helpers", lambda: {"same_tensors": Watched})
    for module in (same_tensors, unchanged):  # so that words are written down again soon
        monkeypatch.setattr(module, "_LONGEST_WAIT", 1)


class Twin:
    """Parameters and their optimizer, twice: one is for the compiled step."""

    def __init__(
        self, seed: int, optimizer: Callable[..., torch.optim.Optimizer], kind: Callable[[Any], Any] = torch.nn.Parameter
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.parameters = [kind(torch.randn(SIZE, SIZE, generator=generator)) for _ in range(COUNT)]
        for parameter in self.parameters:
            parameter.grad = torch.randn(SIZE, SIZE, generator=generator)
        self.optimizer = optimizer(self.parameters)
        self.optimizer.step()
        self.kept: list[Any] = []

    def everything(self) -> list[Any]:
        found: list[Any] = [*self.parameters, *(p.grad for p in self.parameters), *self.kept]
        for parameter in self.parameters:
            found += self.optimizer.state[parameter].values()
        return found


Change = Callable[[Twin, random.Random], None]


def _tensor(chance: random.Random, like: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(chance.randrange(1 << 30))
    return torch.randn(like.shape, generator=generator, dtype=like.dtype)


def _any(twin: Twin, chance: random.Random) -> torch.nn.Parameter:
    return chance.choice(twin.parameters)


def nothing(twin: Twin, chance: random.Random) -> None:
    """Most calls should find everything as it was."""


def other_gradient(twin: Twin, chance: random.Random) -> None:
    parameter = _any(twin, chance)
    parameter.grad = _tensor(chance, parameter)


def other_gradients(twin: Twin, chance: random.Random) -> None:
    for parameter in twin.parameters:
        parameter.grad = None
    for parameter in twin.parameters:
        parameter.grad = _tensor(chance, parameter)


def gradient_in_place(twin: Twin, chance: random.Random) -> None:
    parameter = _any(twin, chance)
    if parameter.grad is not None:
        parameter.grad.copy_(_tensor(chance, parameter))


def set_to_none(twin: Twin, chance: random.Random) -> None:
    parameter = _any(twin, chance)
    parameter.grad = None
    twin.kept.append(torch.ones(SIZE, SIZE))  # in that memory, most likely


def shared_gradient(twin: Twin, chance: random.Random) -> None:
    one, other = chance.sample(twin.parameters, 2)
    if one.grad is not None and one.grad.dtype == other.dtype and one.shape == other.shape:
        other.grad = one.grad


def its_own_data_as_gradient(twin: Twin, chance: random.Random) -> None:
    parameter = _any(twin, chance)
    parameter.grad = parameter.data


def other_data(twin: Twin, chance: random.Random) -> None:
    parameter = _any(twin, chance)
    parameter.data = _tensor(chance, parameter)


def data_of_another(twin: Twin, chance: random.Random) -> None:
    parameter = _any(twin, chance)
    whole = torch.zeros(3 * parameter.numel(), dtype=parameter.dtype)
    parameter.data = (
        whole[chance.randrange(5) :][: parameter.numel()].view(parameter.shape).copy_(_tensor(chance, parameter))
    )


def other_strides(twin: Twin, chance: random.Random) -> None:
    with torch.no_grad():
        _any(twin, chance).t_()


def strided_anew(twin: Twin, chance: random.Random) -> None:
    parameter = _any(twin, chance)
    with torch.no_grad():
        parameter.as_strided_(parameter.shape, chance.choice([(SIZE, 1), (1, SIZE)]))


def other_size(twin: Twin, chance: random.Random) -> None:
    parameter = _any(twin, chance)
    shape = chance.choice([(SIZE, SIZE), (2, SIZE), (SIZE * SIZE,)])
    parameter.grad = None
    parameter.data.resize_(shape)
    parameter.data = _tensor(chance, torch.empty(shape, dtype=parameter.dtype))
    parameter.grad = _tensor(chance, parameter)
    for name, value in twin.optimizer.state[parameter].items():
        if value.ndim:
            twin.optimizer.state[parameter][name] = torch.zeros(shape, dtype=parameter.dtype)


def resized_in_place(twin: Twin, chance: random.Random) -> None:
    parameter = _any(twin, chance)
    tensors = [parameter.data, parameter.grad, *(v for v in twin.optimizer.state[parameter].values() if v.ndim)]
    if all(t is not None and t.is_contiguous() and t.numel() == SIZE * SIZE for t in tensors):
        with torch.no_grad():
            for tensor in tensors:
                tensor.resize_((2, SIZE)).resize_((SIZE, SIZE))


def other_dtype(twin: Twin, chance: random.Random) -> None:
    parameter = _any(twin, chance)
    dtype = torch.float64 if parameter.dtype == torch.float32 else torch.float32
    gradient, parameter.grad = parameter.grad, None
    parameter.data = parameter.data.to(dtype)
    parameter.grad = None if gradient is None else gradient.to(dtype)
    for name, value in twin.optimizer.state[parameter].items():
        if value.ndim:
            twin.optimizer.state[parameter][name] = value.to(dtype)


def without_gradients(twin: Twin, chance: random.Random) -> None:
    parameter = _any(twin, chance)
    parameter.requires_grad_(not parameter.requires_grad)


def another_parameter(twin: Twin, chance: random.Random) -> None:
    number = chance.randrange(COUNT)
    old = twin.parameters[number]
    new = torch.nn.Parameter(_tensor(chance, old), old.requires_grad)
    new.grad = old.grad
    state = twin.optimizer.state.pop(old)
    twin.optimizer.state[new] = {name: value.clone() for name, value in state.items()}
    twin.parameters[number] = new
    twin.optimizer.param_groups[0]["params"][number] = new
    del old, state
    gc.collect()
    twin.kept.append([torch.ones(SIZE, SIZE) for _ in range(3)])


def a_parameter_less(twin: Twin, chance: random.Random) -> None:
    parameters = twin.optimizer.param_groups[0]["params"]
    if len(parameters) > COUNT - 3:
        old = parameters.pop(chance.randrange(len(parameters)))
        twin.optimizer.state.pop(old)
        twin.parameters[:] = [p for p in twin.parameters if p is not old]
        del old
        gc.collect()
    while len(twin.parameters) < COUNT:
        new = torch.nn.Parameter(_tensor(chance, torch.empty(SIZE, SIZE)))
        new.grad = _tensor(chance, new)
        twin.parameters.append(new)
        parameters.append(new)
        first = twin.optimizer.state[twin.parameters[0]]
        twin.optimizer.state[new] = {n: v.clone() if not v.ndim else torch.zeros(SIZE, SIZE) for n, v in first.items()}


def other_state(twin: Twin, chance: random.Random) -> None:
    state = twin.optimizer.state[_any(twin, chance)]
    name = chance.choice([*state])
    state[name] = state[name].clone() if chance.random() < 0.5 else state[name]
    state[name].mul_(2)


def loaded_state(twin: Twin, chance: random.Random) -> None:
    twin.optimizer.load_state_dict(copy.deepcopy(twin.optimizer.state_dict()))


def swapped(twin: Twin, chance: random.Random) -> None:
    one, other = chance.sample(twin.parameters, 2)
    if one.dtype == other.dtype and one.shape == other.shape:
        one.data, other.data = other.data, one.data


def swapped_inside(twin: Twin, chance: random.Random) -> None:
    parameter = _any(twin, chance)
    other = torch.nn.Parameter(_tensor(chance, parameter))
    other.grad = parameter.grad
    torch.utils.swap_tensors(parameter, other)


def freed_storage(twin: Twin, chance: random.Random) -> None:
    parameter = _any(twin, chance)
    contents = parameter.detach().clone()
    size = parameter.untyped_storage().nbytes()
    parameter.untyped_storage().resize_(0)
    twin.kept.append(torch.ones(SIZE, SIZE))
    parameter.untyped_storage().resize_(size)
    parameter.data.copy_(contents)


def copied_lazily(twin: Twin, chance: random.Random) -> None:
    twin.kept.append(torch._lazy_clone(_any(twin, chance).detach()))


def another_rate(twin: Twin, chance: random.Random) -> None:
    twin.optimizer.param_groups[0]["lr"] = chance.choice([0.1, 0.01, 0.003])


def no_leaf(twin: Twin, chance: random.Random) -> None:
    """What a gradient belongs to is a result now. Eager warns, and leaves it as it is."""
    one = _any(twin, chance)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one.requires_grad_(False).mul_(torch.ones(1, requires_grad=True))


CHANGES: list[Change] = [
    other_gradient, other_gradients, gradient_in_place, set_to_none, shared_gradient, its_own_data_as_gradient, other_data,
    data_of_another,
    other_strides, strided_anew, other_size, resized_in_place, other_dtype, without_gradients, another_parameter,
    a_parameter_less, other_state, loaded_state, swapped, swapped_inside, freed_storage, copied_lazily, another_rate,
]  # fmt: skip


def check(left: Any, right: Any) -> None:
    if isinstance(left, list):
        for one, other in zip(left, right, strict=True):
            check(one, other)
    elif isinstance(left, torch.Tensor):
        one, other, near = left.detach(), right.detach(), {"rtol": 1e-5, "atol": 1e-6}
        if one.dtype != other.dtype or not torch.equal(one, other):  # comparing up to rounding is slow
            torch.testing.assert_close(one, other, **near)
        assert left.stride() == right.stride()
        assert left.requires_grad == right.requires_grad
    else:
        assert left == right


def sgd(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.1, momentum=0.9)


def adam(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, 0.1)


def adam_in_lists(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, 0.1, foreach=True)


def step_of(twin: Twin) -> Callable[[], Any]:
    return quickfuse.compile(twin.optimizer.step, options={"raise_internal_errors": True})


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_each_change_is_seen(change: Change, kind: Any = torch.nn.Parameter) -> None:
    twins = [Twin(3, adam, kind), Twin(3, adam, kind)]
    step = step_of(twins[0])
    for number in range(12):
        if number in (7, 10):
            for twin in twins:
                change(twin, random.Random(number))
        step()
        twins[1].optimizer.step()
        check(*(twin.everything() for twin in twins))
        assert number != 6 or Watched.found > 0
    versions = [[p._version for p in twin.parameters] for twin in twins]
    assert versions[0] == versions[1] or change in (another_parameter, a_parameter_less)


@pytest.mark.parametrize("change", [*CHANGES, no_leaf], ids=lambda change: change.__name__)
def test_each_change_of_plain_tensors_is_seen(change: Change) -> None:
    """Whether they are leaves is asked of them, other than of parameters: that has to be the same, too."""
    test_each_change_is_seen(change, torch.Tensor.requires_grad_)


@pytest.mark.parametrize("change", [other_gradient, other_data, other_strides, swapped_inside, loaded_state])
def test_each_change_is_seen_by_several_threads(change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads go through shares of the tensors: none is left out."""

    class ByThreads(Watched):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            watched = self.holds

            def holds(held: list[Any]) -> Any:
                self.block[THREADS] = self.block[COUNTING_THREADS] = 3
                return watched(held)

            self.holds = holds

    monkeypatch.setattr(same_tensors, "helpers", lambda: {"same_tensors": ByThreads})
    test_each_change_is_seen(change)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("optimizer", [sgd, adam, adam_in_lists])
def test_random_changes(seed: int, optimizer: Any) -> None:
    chance = random.Random(seed)
    twins = [Twin(seed, optimizer), Twin(seed, optimizer)]
    step = step_of(twins[0])
    usual = [other_gradient, other_gradients, gradient_in_place, other_data, another_parameter, other_state, loaded_state,
             swapped, swapped_inside, freed_storage, copied_lazily, another_rate, shared_gradient]  # fmt: skip
    for _ in range(100):
        changes = [chance.choice(usual) for _ in range(max(0, chance.randrange(-12, 4)))]
        for change in changes:
            number = chance.randrange(1 << 30)
            for twin in twins:
                change(twin, random.Random(number))
        step()
        twins[1].optimizer.step()
        check(*(twin.everything() for twin in twins))
    assert Watched.found > 5


class Marked(torch.Tensor):
    """Has a class of its own, and nothing else."""


def _usual(chance: random.Random, like: torch.Tensor) -> torch.Tensor:
    return _tensor(chance, like)


def _transposed(chance: random.Random, like: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(like.shape, (1, like.shape[0])).copy_(_tensor(chance, like))


def _view(chance: random.Random, like: torch.Tensor) -> torch.Tensor:
    return _tensor(chance, like).t()


def _part_of_a_bucket(chance: random.Random, like: torch.Tensor) -> torch.Tensor:
    first = chance.randrange(9)
    return torch.cat([torch.zeros(first), _tensor(chance, like).flatten()])[first:].view(like.shape)


def _with_history(chance: random.Random, like: torch.Tensor) -> torch.Tensor:
    return _tensor(chance, like).requires_grad_()


def _of_a_subclass(chance: random.Random, like: torch.Tensor) -> torch.Tensor:
    return _tensor(chance, like).as_subclass(Marked)


def _lazily_copied(chance: random.Random, like: torch.Tensor) -> torch.Tensor:
    return torch._lazy_clone(_tensor(chance, like))


def _negated(chance: random.Random, like: torch.Tensor) -> torch.Tensor:
    return torch._neg_view(_tensor(chance, like))


def _the_parameter(chance: random.Random, like: torch.Tensor) -> torch.Tensor:
    return like.detach()


@pytest.mark.parametrize("usual", [_usual, _transposed])
@pytest.mark.parametrize(
    "one",
    [_usual, _transposed, _view, _part_of_a_bucket, _with_history, _of_a_subclass, _lazily_copied, _negated,
     _the_parameter],
)  # fmt: skip
def test_gradients_that_are_new_in_each_step(usual: Any, one: Any) -> None:
    """They need not be the same tensors, but of the same kind. Now and then one is of another kind."""
    twins = [Twin(3, adam), Twin(3, adam)]
    step = step_of(twins[0])
    for number in range(24):
        for twin in twins:
            for k, parameter in enumerate(twin.parameters):
                chance = random.Random(100 * number + k)
                make = one if number >= 12 and number % 3 == 0 and k == 5 else usual
                parameter.grad = make(chance, parameter)
        step()
        twins[1].optimizer.step()
        check(*(twin.everything() for twin in twins))
        assert number != 11 or Watched.found > 5


def test_gradients_of_backward() -> None:
    """They have no Python objects."""
    twins = [Twin(3, adam), Twin(3, adam)]
    step = step_of(twins[0])
    x = torch.randn(SIZE)
    for number in range(16):
        for twin in twins:
            twin.optimizer.zero_grad()
            sum((p * x * (number + k)).square().sum() for k, p in enumerate(twin.parameters)).backward()
        step()
        twins[1].optimizer.step()
        check(*(twin.parameters for twin in twins))
    assert Watched.found > 5


@pytest.mark.parametrize("requires_grad", [False, True])
def test_tensors_without_gradients(requires_grad: bool) -> None:
    def double(tensors: list[torch.Tensor]) -> torch.Tensor:
        torch._foreach_mul_(tensors, 2.0)
        return torch.rand(2)  # a call that ran twice would draw twice

    ours, theirs = ([torch.ones(SIZE, requires_grad=requires_grad) for _ in range(COUNT)] for _ in range(2))
    compiled = quickfuse.compile(double)
    for seed in range(8):
        drawn = []
        for function, tensors in ((double, theirs), (compiled, ours)):
            torch.manual_seed(seed)
            with torch.no_grad():
                drawn.append((function(tensors), torch.get_rng_state()))
        assert all(map(torch.equal, drawn[0], drawn[1]))
        assert all(map(torch.equal, ours, theirs))
    assert Watched.found > 2


def test_versions_count_as_in_eager_mode() -> None:
    twins = [Twin(1, adam), Twin(1, adam)]
    step = step_of(twins[0])
    for _ in range(8):
        step()
        twins[1].optimizer.step()
    assert Watched.found > 0
    assert [t._version for t in twins[0].everything()] == [t._version for t in twins[1].everything()]


def test_failure_of_ours(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """What is noted for the next call never makes this one run twice."""

    def fail(*_: Any) -> None:
        raise ValueError("our own")

    def add(tensors: list[torch.Tensor]) -> None:
        torch._foreach_add_(tensors, torch.rand(()))

    monkeypatch.setattr(Watched, "_write_down", fail)
    monkeypatch.setattr(quickfuse.config, "raise_internal_errors", False)
    compiled = quickfuse.compile(add)
    results = []
    for function in (add, compiled):
        torch.manual_seed(0)
        tensors = [torch.zeros(SIZE) for _ in range(COUNT)]
        for _ in range(8):
            function(tensors)
        results.append((tensors, torch.rand(2)))
    torch.testing.assert_close(*results, rtol=0, atol=0)
    assert "internal error while noting tensors (ValueError: our own)" in caplog.text
    monkeypatch.setattr(quickfuse.config, "raise_internal_errors", True)
    compiled = quickfuse.compile(add)
    with pytest.raises(quickfuse.errors.InternalError):
        for _ in range(8):
            compiled(tensors)


def test_tensors_are_not_kept_alive() -> None:
    twin = Twin(1, adam)
    step = step_of(twin)
    for _ in range(6):
        step()
    assert Watched.found > 0

    watched = [weakref.ref(p.grad) for p in twin.parameters]
    for parameter in twin.parameters:
        parameter.grad = None
    gc.collect()
    assert not any(ref() is not None for ref in watched)
    parameters = [weakref.ref(p) for p in twin.parameters]
    del twin, step, parameter
    gc.collect()
    quickfuse.reset()
    gc.collect()
    assert not any(ref() is not None for ref in parameters)


@pytest.mark.parametrize("threads", [1, 3])
def test_tensors_are_held_while_they_are_in_use(threads: int) -> None:
    tensors = [torch.full((SIZE,), float(k)) for k in range(COUNT)]
    made: list[Watched] = []

    def add(tensors: list[torch.Tensor]) -> None:
        torch._foreach_add_(tensors, 1.0)

    step = quickfuse.compile(add, options={"raise_internal_errors": True})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Watched, "note", lambda self, *given: (made.append(self), same_tensors.SameTensors.note(self, *given)))
        for _ in range(6):
            step(tensors)
    assert Watched.found > 0
    counts = [*map(sys.getrefcount, tensors)]
    same = made[-1]
    same.block[THREADS] = threads
    held = same.holds([*tensors])
    assert [*map(sys.getrefcount, tensors)] == [count + 1 for count in counts]
    again = same.holds([*tensors])
    assert all(a is b for a, b in zip(same.listed(again), tensors, strict=True))
    del again
    assert [*map(sys.getrefcount, tensors)] == [count + 1 for count in counts]
    assert same.holds([*tensors[1:], tensors[0]]) is None
    watched = [weakref.ref(tensor) for tensor in tensors]
    kept = tensors[::3]
    del tensors[:]
    assert all(ref() is not None for ref in watched)
    del held
    assert [ref() is not None for ref in watched] == [k % 3 == 0 for k in range(COUNT)]
    assert [t[0].item() for t in kept] == [k + 6.0 for k in range(0, COUNT, 3)]


def test_two_optimizers_take_turns() -> None:
    twins = [[Twin(s, adam), Twin(s, adam)] for s in (1, 2)]

    def step(optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()

    compiled = quickfuse.compile(step, options={"raise_internal_errors": True})
    for number in range(24):
        pair = twins[number // 4 % 2]
        compiled(pair[0].optimizer)
        pair[1].optimizer.step()
        check(*(twin.everything() for twin in pair))


def test_while_something_records_operators() -> None:
    twin = Twin(1, adam)
    step = step_of(twin)
    for _ in range(6):
        step()
    hits = Watched.found
    assert hits > 0

    def transformed(x: torch.Tensor) -> torch.Tensor:
        step()
        return x.sum()

    with contextlib.suppress(RuntimeError):  # what eager says of it
        torch.func.grad(transformed)(torch.ones(3))
    assert Watched.found == hits


def test_the_layout_is_known_here() -> None:
    layout = tensor_layout()
    assert layout is not None
    assert layout.first <= layout.sizes < layout.strides < layout.last


class FakeRecording:
    """Of a graph without kernels on a GPU: all of them run before it."""

    bytes = 0
    replays = 0

    def capture(self, run: Callable[[], Any]) -> Any:
        return run()

    def replay(self, scalars: tuple[Any, ...]) -> None:
        FakeRecording.replays += 1


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "why_not_recorded", lambda schedule: None)
    recorder = Recorder(FakeRecording, lambda: "a stream", lambda: False)
    monkeypatch.setattr(kernels, "recorder", lambda schedule, calls: recorder)
    monkeypatch.setattr(replayed, "on_cpu", lambda tensor: False)
    FakeRecording.replays = 0


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.usefixtures("recorded")
def test_each_change_is_seen_where_graphs_are_replayed(change: Change) -> None:
    twins = [Twin(3, adam_in_lists), Twin(3, adam_in_lists)]
    step = quickfuse.compile(twins[0].optimizer.step, mode="reduce-overhead", options={"raise_internal_errors": True})
    for number in range(20):
        if number in (9, 10, 15):
            for twin in twins:
                change(twin, random.Random(number))
        step()
        twins[1].optimizer.step()
        check(*(twin.everything() for twin in twins))
        assert number != 8 or (Watched.found > 0 and FakeRecording.replays > Watched.found)


def test_the_layout_is_found_whatever_lies_beside_the_tensors() -> None:
    """What is asked of the layout is a difference between words, some of which are addresses."""
    for number in range(100):
        beside = [torch.zeros(k % 7 + 1, requires_grad=bool(k % 2)) for k in range(number % 13)]
        assert tensor_layout.__wrapped__() == tensor_layout(), len(beside)
        assert lazy_bits() is not None
