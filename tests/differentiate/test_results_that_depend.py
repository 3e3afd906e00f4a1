"""Results of one graph that are computed from each other: gradients by them, their hooks and what they retain."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import quickfuse
from differentiate.dependent_results import (  # fmt: skip
    FUNCTIONS,
    USES,
    all_retained,
    by_all,
    by_first,
    chain,
    each_by_each,
    hooked,
    hooked_and_gone,
    last,
    of_a_view_and_all,
    past_one,
    retained,
    then_last,
    twice,
)
from differentiate.twins import compiled, joined, leaf
from quickfuse.launch import asked, dependent_results
from seeding import seed_torch


def as_leaves(leaves: Any) -> Any:
    return leaves


def from_operators(leaves: Any) -> Any:
    made = [t * 1.5 for t in leaves]
    for t in made:
        t.retain_grad()
    return made


def outcome(function: Any, source: Any, use: Any, seed: int = 0) -> Any:
    leaves = [leaf(2, 3, seed=3 * seed + k) for k in range(3)]
    operands = source(leaves)
    seed_torch(seed)
    try:
        found = use([*function(*operands)], leaves)
    except RuntimeError as raised:
        return str(raised).split("(")[0][:40], None, None
    return None, found, [t.grad for t in (*leaves, *operands) if t.is_leaf or t.retains_grad]


#: Where inputs are computed, a call may have several nodes.
CASES = [(as_leaves, use) for use in USES] + [
    (from_operators, use) for use in (by_first, by_all, all_retained, hooked, twice, then_last)
]

#: So many uses in a row are made of what is compiled once. For another function, others are the first ones.
_OF_ONE_TWIN = 8


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_as_in_eager(function: Callable[..., Any]) -> None:
    first = FUNCTIONS.index(function) % _OF_ONE_TWIN
    twin = compiled(function)
    for number, (source, use) in enumerate(CASES):
        if number % _OF_ONE_TWIN == first:
            twin = compiled(function)
        for seed in range(3):
            expected, found = outcome(function, source, use, seed), outcome(twin, source, use, seed)
            if expected[0] is not None and expected[0].startswith("one of the variables"):
                continue  # what eager saves, a graph may compute again
            which = f"{source.__name__}, {use.__name__}"
            assert found[0] == expected[0], which
            torch.testing.assert_close(
                found[1:], expected[1:], rtol=1e-4, atol=1e-4, equal_nan=True, msg=lambda text, at=which: f"{at}: {text}"
            )
        assert joined(twin), (source, use)


def test_who_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody asks for gradients of results, the compiled backward computes all."""
    looked: list[int] = []
    gradients = dependent_results._State.gradients

    def noting(state: Any, *args: Any) -> Any:
        looked.append(1)
        return gradients(state, *args)

    monkeypatch.setattr(dependent_results._State, "gradients", noting)
    twin = compiled(chain)
    leaves = [leaf(2, 3, seed=k) for k in range(3)]

    def looks(use: Callable[[Any, Any], Any]) -> bool:
        looked.clear()
        t, y = twin(*leaves)
        use(t, y.sum())
        return bool(looked)

    assert not looks(lambda t, loss: loss.backward())
    assert not looks(lambda t, loss: (loss + t.sum()).backward())
    assert not looks(lambda t, loss: loss.backward(inputs=leaves[:1]))
    assert not looks(lambda t, loss: torch.autograd.grad(loss, leaves))
    assert looks(lambda t, loss: torch.autograd.grad(loss, t))
    assert looks(lambda t, loss: torch.autograd.grad(loss, [leaves[0], t]))
    assert looks(lambda t, loss: torch.autograd.grad(loss, [torch.autograd.graph.get_gradient_edge(t), leaves[0]]))
    assert looks(lambda t, loss: loss.backward(inputs=[t]))


def test_in_a_backward_inside_of_another_one() -> None:
    def run(function: Callable[..., Any]) -> Any:
        leaves = [leaf(2, 3, seed=k) for k in range(3)]
        found: list[Any] = []

        def hook(gradient: torch.Tensor) -> None:
            with torch.enable_grad():
                t, y = function(*leaves)
                found.extend(torch.autograd.grad(y.sum(), [t, *leaves]))

        t, y = function(*leaves)
        y.register_hook(hook)
        found += torch.autograd.grad(y.sum(), [t, *leaves])
        return found

    torch.testing.assert_close(run(compiled(chain)), run(chain))


def test_after_a_break() -> None:
    def penalty(a: Any, b: Any, w: Any) -> Any:
        t, y = chain(a, b, w)
        print(end="")
        (slope,) = torch.autograd.grad(y.sum(), t, create_graph=True)
        return slope.square().sum() + t.sum()

    twin = compiled(penalty)
    for seed in range(3):
        mine, theirs = ([leaf(2, 3, seed=seed + k) for k in range(3)] for _ in range(2))
        value, expected = twin(*mine), penalty(*theirs)
        value.backward()
        expected.backward()
        torch.testing.assert_close([value, *[t.grad for t in mine]], [expected, *[t.grad for t in theirs]])


def test_a_penalty_that_leads_through_a_result() -> None:
    """Who will ask for the gradient of a result is not known when gradients of gradients are recorded."""

    def run(function: Callable[..., Any]) -> Any:
        x, w = leaf(2, 3), leaf(3, 3, seed=1)
        t, y = function(x, w)
        (slope,) = torch.autograd.grad(y, w, create_graph=True)
        loss = y + slope.square().sum()
        return torch.autograd.grad(loss, [t, w], retain_graph=True), torch.autograd.grad(loss, w)

    def through_sine(x: torch.Tensor, w: torch.Tensor) -> Any:
        t = (x @ w).sin()
        return t, t.exp().sum()

    torch.testing.assert_close(run(compiled(through_sine)), run(through_sine))


def test_a_hook_on_a_node() -> None:
    """What a node of autograd's graph gets and gives is eager's, where the program asks for the node in the function."""

    def step(x: torch.Tensor) -> Any:
        given = []
        loss = (x.sin() * 2).sum()
        loss.grad_fn.register_hook(lambda inputs, outputs: given.append((inputs, outputs)) or (inputs[0] + 1,))
        loss.backward()
        return given, type(loss.grad_fn).__name__

    twin, sides = compiled(step), []
    for function in (step, twin, twin):
        x = leaf(3)
        sides.append((*function(x), x.grad))
    torch.testing.assert_close(sides[1][0], sides[0][0])
    torch.testing.assert_close(sides[2][2], sides[0][2])
    assert sides[1][1] == sides[0][1] == "SumBackward0"


@pytest.mark.parametrize("reentrant", [False, True])
def test_in_a_checkpoint(reentrant: bool) -> None:
    def run(function: Callable[..., Any]) -> Any:
        leaves = [leaf(2, 3, seed=k) for k in range(3)]
        t, y = checkpoint(function, *leaves, use_reentrant=reentrant)
        t.retain_grad()
        (t.exp().sum() + y.sum()).backward()
        return [t.grad, *[t.grad for t in leaves]]

    torch.testing.assert_close(run(compiled(chain)), run(chain))


def test_what_saved_tensors_hooks_see() -> None:
    twin = compiled(chain)
    seen: list[Any] = []

    def pack(tensor: torch.Tensor) -> Any:
        seen.append(tensor.shape)
        return tensor.numpy(force=True)

    leaves = [leaf(2, 3, seed=k) for k in range(3)]
    with torch.autograd.graph.saved_tensors_hooks(pack, torch.from_numpy):
        t, y = twin(*leaves)
    assert seen
    t.retain_grad()
    y.sum().backward()
    expected, other = chain(*leaves)
    torch.testing.assert_close(t.grad, *torch.autograd.grad(other.sum(), expected))


@pytest.mark.parametrize("use", [last, retained, by_all, twice, each_by_each, hooked_and_gone], ids=lambda use: use.__name__)
@pytest.mark.parametrize("function", [chain, past_one, of_a_view_and_all], ids=lambda f: f.__name__)
def test_nothing_is_kept_alive(function: Callable[..., Any], use: Callable[..., Any]) -> None:
    twin = compiled(function)
    leaves = [leaf(2, 3, seed=k) for k in range(3)]
    use([*twin(*leaves)], leaves)
    gc.collect()
    gc.disable()
    try:
        results = [*twin(*leaves)]
        memory = [weakref.ref(r.untyped_storage()) for r in results]
        use(results, leaves)
        results.clear()
        for t in leaves:
            t.grad = None
        assert not any(ref() is not None for ref in memory)
    finally:
        gc.enable()


class Scorer(torch.nn.Module):
    """Returns what it has computed scores from, as Grad-CAM takes it."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 8, 3)
        self.norm = torch.nn.BatchNorm2d(8)
        self.linear = torch.nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> Any:
        features = torch.relu(self.norm(self.convolution(x)))
        return features, self.linear(features.mean((2, 3)))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_features_and_scores(device: str) -> None:
    seed_torch(0)
    eager = Scorer().to(device)
    mine = copy.deepcopy(eager)
    twin = compiled(mine)
    for _ in range(3):
        x, sides = torch.randn(2, 3, 8, 8, device=device), []
        for model in (eager, twin):
            features, scores = model(x)
            (slope,) = torch.autograd.grad(scores[0, 1], features, retain_graph=True)
            others = torch.autograd.grad(scores.sum(), [*model.parameters()], retain_graph=True)
            features.retain_grad()
            scores.square().sum().backward()
            sides.append([slope, *others, features.grad, scores.detach()])
        torch.testing.assert_close(sides[1], sides[0], rtol=1e-4, atol=1e-4)
    for one, other in zip(mine.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close([*mine.buffers()], [*eager.buffers()])


def test_gradients_asked_for_by_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, autograd runs nodes in a thread of its own, whose stack does not say what is asked for."""
    runs: list[bool] = []
    looked: list[Any] = []
    calls_of, run = asked._backward_calls, dependent_results.Links.run

    def hidden_at_first(frame: Any) -> list[Any]:
        looked.append(frame)
        return [] if len(looked) == 1 else calls_of(frame)

    monkeypatch.setattr(asked, "_backward_calls", hidden_at_first)
    monkeypatch.setattr(dependent_results.Links, "run", lambda *args: runs.append(True) or run(*args))
    x, w = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    t, y = compiled(lambda x, w: ((s := x.sin()), s * w))(x, w)
    for wanted, expected, again in (([x, w], [x.cos() * w, x.sin()], 0), ([t, x], [w, x.cos() * w], 1)):
        looked.clear()
        found = torch.autograd.grad(y.sum(), wanted, retain_graph=True)
        torch.testing.assert_close(found, tuple(expected))
        assert len(runs) == again


def four_that_depend(x: torch.Tensor, weights: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    a = x @ weights[0]
    b = (a @ weights[1]).sin()
    return a, b, (b @ weights[2]).cos(), (a * weights[3]).exp()


@pytest.mark.parametrize("hooked", [(0,), (1,), (2,), (3,), (1, 2), (0, 3)], ids=str)
def test_hooks_where_some_gradients_are_asked_for(hooked: tuple[int, ...]) -> None:
    """A hook is called where its tensor leads to what is asked for, or is what is asked for itself. Numbers are those of
    weights, letters of results."""
    seen: list[list[Any]] = []
    for run in (four_that_depend, quickfuse.compile(four_that_depend)):
        seen.append([])
        torch.manual_seed(0)
        x = torch.randn(3, 3)
        weights = [torch.randn(3, 3, requires_grad=True) for _ in range(5)]
        for wanted in ("0", "1", "2", "3", "03", "12", "4", "a", "b", "c", "d", "a2", "b3", "b2"):
            for begun in ((2,), (3,), (1, 3), (2, 3)):
                results = run(x, weights)
                called: list[Any] = []
                for k in hooked:
                    results[k].register_hook(lambda g, k=k, called=called: called.append((k, g.sum().item())))
                tensors = [weights[int(w)] if w.isdigit() else results["abcd".index(w)] for w in wanted]
                loss = sum(results[k].sum() for k in begun)
                for _ in range(2):
                    torch.autograd.grad(loss, tensors, retain_graph=True, allow_unused=True)  # type: ignore[arg-type]
                seen[-1].append((wanted, begun, [k for k, _ in called], [value for _, value in called]))
    for expected, found in zip(*seen, strict=True):
        assert found[:3] == expected[:3]
        assert found[3] == pytest.approx(expected[3], rel=1e-4, abs=1e-5)
