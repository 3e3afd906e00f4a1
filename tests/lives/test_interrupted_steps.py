"""Steps that raise in the middle: what came before is done, and nothing of what follows."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import quickfuse
from lives.test_regressions import outcome
from own_gradients import Square


def _changed_in_place(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x.add_(1)  # it changes first, and is refused then


def _saved(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (x * weight).sum()


def _differentiated(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    (x * weight).sum().backward()
    return x


def _handled(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    try:
        return x.mul_(2) + weight
    except RuntimeError as error:
        return weight * len(str(error))


@pytest.mark.parametrize("end", [_changed_in_place, _saved, _differentiated, _handled])
@pytest.mark.parametrize("change", [True, False])
def test_inference_tensors_are_refused_after_effects(end: Callable[..., Any], change: bool) -> None:
    """What came before is done, as in eager, and no more random numbers are drawn."""
    found = []
    for compiler in (lambda f: f, quickfuse.compile):
        weight, total, log = torch.ones(3, requires_grad=True), torch.zeros(3), []

        def step(x: torch.Tensor, weight: Any = weight, total: Any = total, log: Any = log) -> torch.Tensor:
            weight.grad = None
            if change:
                total.add_(1)
            log.append(random.random())
            return end(x, weight)

        compiled = compiler(step)
        random.seed(0)
        for number in range(4):
            with torch.inference_mode(number != 1):
                x = torch.zeros(3)
            raised = outcome(compiled, x)
            found.append((raised, total.tolist(), [*log], x.tolist(), random.getstate()))
    assert found[:4] == found[4:]


@pytest.mark.parametrize("loss", [F.multi_margin_loss, F.multilabel_margin_loss])
@pytest.mark.parametrize("needs_grad", [False, True])
def test_random_numbers_of_python_where_a_label_is_refused(loss: Callable[..., Any], needs_grad: bool) -> None:
    """The graph draws them first, and gives them back where the loss raises."""
    x = torch.randn(2, 5, requires_grad=needs_grad)

    def step(target: torch.Tensor) -> torch.Tensor:
        return loss(x, target) * random.random()

    target = torch.zeros(2, 5, dtype=torch.long) if loss is F.multilabel_margin_loss else torch.zeros(2, dtype=torch.long)
    found = []
    for function in (step, quickfuse.compile(step)):
        random.seed(0)
        for label in (1, 1000, 1000, 1):
            target.view(-1)[0] = label
            found.append((outcome(function, target), random.getstate()))
    assert "range" in found[1][0]
    assert found[:4] == found[4:]


def test_an_optimizer_has_no_state_where_a_call_between_graphs_failed_before_it() -> None:
    """Such a graph has changed something by then, so that it goes on where it failed and does not begin again."""
    found = []
    for compiler in (lambda f: f, quickfuse.compile):
        first, second = (torch.ones(3, 4, requires_grad=True) for _ in range(2))
        optimizers, total = [torch.optim.Adam([p]) for p in (first, second)], torch.zeros(3, requires_grad=True)

        def step(target: torch.Tensor, first: Any = first, second: Any = second, optimizers: Any = optimizers,
                 total: Any = total) -> None:  # fmt: skip
            first.grad = torch.ones_like(first)
            optimizers[0].step()
            with torch.no_grad():
                total.add_(1)
            Square.apply((total + 1).sum()).backward()
            F.cross_entropy(second, target).backward()
            optimizers[1].step()

        compiled = compiler(step)
        for label in (4, 4, 2):
            raised = outcome(compiled, torch.tensor([0, 1, label]))
            found.append((raised, [[*map(len, o.state.values())] for o in optimizers], total.tolist(), first.tolist()))
    assert found[:3] == found[3:]


def _masked(weight: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return weight * mask


def _seen_differently(weight: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (weight * mask).exp().t().contiguous().t()[:]


def _of_something_changed(weight: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        mask.mul_(0.5)
    return weight * mask


def _without_history(weight: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return weight.detach().split(3, 1)[0] * mask


@pytest.mark.parametrize("made", [_masked, _seen_differently, _of_something_changed, _without_history])
def test_values_that_only_the_program_holds_where_a_call_between_graphs_failed(made: Callable[..., Any]) -> None:
    """As pruned layers do, which keep the weight that they make: the whole graph returns the last of them only."""
    found = []
    for compiler in (lambda f: f, quickfuse.compile):
        torch.manual_seed(0)
        weight, mask, total = torch.randn(4, 3, requires_grad=True), torch.ones(4, 3), torch.zeros(())
        other, mean, variance = torch.randn(4, 4, requires_grad=True), torch.zeros(4), torch.ones(4)
        kept: dict[str, Any] = {}

        def step(x: torch.Tensor, targets: list[torch.Tensor], weight: Any = weight, mask: Any = mask,
                 total: Any = total, kept: Any = kept, other: Any = other, mean: Any = mean,
                 variance: Any = variance) -> None:  # fmt: skip
            weight.grad = None
            for target in targets:
                total.add_(1)
                kept["made"] = made(weight, mask)
                out = F.batch_norm(F.linear(x, kept["made"]), mean, variance, training=True)
                loss = F.cross_entropy(Square.apply(F.linear(out, other)), target)
                loss.backward()
                kept["loss"] = loss.detach()

        compiled = compiler(step)
        x = torch.randn(3, 3)
        for label, count in ((3, 3), (4, 2), (4, 2), (2, 2)):
            raised = outcome(compiled, x, [torch.tensor([0, 1, label])] * count)
            now, gradient = kept["made"], weight.grad
            found.append((
                raised, total.item(), now.detach().clone(), now.requires_grad, mask.clone(), kept["loss"],
                None if gradient is None else gradient.clone(),
            ))  # fmt: skip
    for expected, given in zip(found[:4], found[4:], strict=True):
        for left, right in zip(expected, given, strict=True):
            if isinstance(left, torch.Tensor):
                torch.testing.assert_close(right, left)
            else:
                assert right == left


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_groups_of_types_are_updated_in_the_order_of_pytorch(order: tuple[int, ...]) -> None:
    """One of them is refused, and those after it keep their step."""
    found = []
    for compiler in (lambda f: f, quickfuse.compile):
        types = [torch.float64, torch.float32, torch.bfloat16]
        weights = [torch.ones(3, dtype=types[k], requires_grad=True) for k in order]
        optimizer = torch.optim.Adam(weights, fused=True)
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        step = compiler(lambda o=optimizer: o.step())
        step()
        refused = weights[order.index(1)]
        optimizer.state[refused]["exp_avg"] = optimizer.state[refused]["exp_avg"].double()
        found.append([(outcome(step), [int(s["step"]) for s in optimizer.state.values()]) for _ in range(2)])
    assert found[0] == found[1]


def test_gradients_to_a_value_that_only_the_program_holds() -> None:
    """What was computed from it is known, as the graph needs that later, and is to lead to what the program gets."""

    def step(weight: torch.Tensor, target: torch.Tensor, total: torch.Tensor, kept: dict[str, Any]) -> None:
        total.add_(1)
        kept["outer"] = weight * 2
        kept["inner"] = torch.sin(kept["outer"])
        Square.apply(weight.sum()).backward()
        F.cross_entropy(weight.view(2, 3) * 1.0, target).backward()
        kept["outer"], kept["last"] = None, kept["inner"] * total.sum()

    found = []
    for function in (step, quickfuse.compile(step)):
        for label in (1, 1000, 1000):
            weight = torch.linspace(-1, 1, 6).requires_grad_()
            kept: dict[str, Any] = {}
            raised = outcome(function, weight, torch.tensor([0, label]), torch.zeros(2), kept)
            if raised != "nothing":
                kept["outer"].register_hook(lambda gradient: gradient * 10)
                kept["inner"].sum().backward()
            found.append((raised, weight.grad))
    for (raised, gradient), (expected, right) in zip(found[3:], found[:3], strict=True):
        assert raised == expected
        torch.testing.assert_close(gradient, right)
