"""Tensors from outside that have a history and are changed in place: gradients flow through the change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from differentiate.twins import check, compiled, leaf

CHANGES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "an item": lambda w, v: w.__setitem__(0, 1.5), "an item from a tensor": lambda w, v: w.__setitem__(0, v[0]),
    "a slice": lambda w, v: w.__setitem__((slice(None), slice(0, 1)), 0), "a mask": lambda w, v: w.__setitem__(w > 0, 0),
    "rows": lambda w, v: w.__setitem__(torch.tensor([0]), v[:1]), "filled": lambda w, v: w.fill_(2),
    "a view zeroed": lambda w, v: w[0].zero_(), "copied": lambda w, v: w.copy_(v),
    "lists": lambda w, v: torch._foreach_mul_([w], 2.0), "a product": lambda w, v: w.mul_(v),
}  # fmt: skip


def alone(change: Any, w: Tensor, v: Tensor) -> None:
    change(w, v)


def returned(change: Any, w: Tensor, v: Tensor) -> Tensor:
    change(w, v)
    return w


def before_a_break(change: Any, w: Tensor, v: Tensor) -> Tensor:
    change(w, v)
    print(end="")
    return w.sin()


def without_gradients(change: Any, w: Tensor, v: Tensor) -> Tensor:
    with torch.no_grad():
        change(w, v)
    return w * 2


@pytest.mark.parametrize("needing", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("program", [alone, returned, before_a_break, without_gradients], ids=lambda p: p.__name__)
@pytest.mark.parametrize("change", CHANGES)
def test_gradients_flow_through_the_change(change: str, program: Any, needing: tuple[bool, bool]) -> None:
    def run(function: Any, seed: int) -> Any:
        first, second = (leaf(2, 3, seed=seed + k, grad=needs) for k, needs in enumerate(needing))
        w, v = first * 2, second * 1
        result = function(CHANGES[change], w, v)
        for t in (w, result):
            if isinstance(t, Tensor) and t.requires_grad:
                t.cos().sum().backward(retain_graph=True)
        return [w.requires_grad, w.is_leaf, w._version], [w, result, first.grad, second.grad]

    twin = compiled(program)
    for seed in range(3):
        expected, found = run(program, seed), run(twin, seed)
        assert found[0] == expected[0]
        torch.testing.assert_close(found[1], expected[1])


PARTS: dict[str, Callable[[Tensor], Any]] = {
    "an item": lambda w: w.__setitem__(0, w[0] * 2), "a row": lambda w: w[0].sub_(0.1), "rows": lambda w: w[1:].mul_(0.9),
    "a column": lambda w: w.t()[1].mul_(0.9), "a view of a view": lambda w: w.view(-1)[2:].view(2, -1)[0].zero_(),
    "one view after another": lambda w: [row.mul_(k) for k, row in enumerate(w)],
    "lists": lambda w: torch._foreach_add_(list(w), 1.0),
}  # fmt: skip


@pytest.mark.parametrize("change", PARTS)
def test_a_part_of_a_parameter_that_changes_without_gradients(change: str) -> None:
    """PyTorch does not say of a view that was made without gradients, and changed since, whether it is a leaf. To ask for it
    made the whole graph run operator by operator."""

    def step(w: Tensor, x: Tensor) -> Tensor:
        (x @ w).cos().sum().backward()
        with torch.no_grad():
            PARTS[change](w)
        return (x @ w).sin()

    check(step, *((leaf(3, 4, seed=seed), leaf(2, 3, seed=seed + 9, grad=False)) for seed in range(3)))


@pytest.mark.parametrize("use", [lambda v: v * 2, lambda v: v.detach() * 2, lambda v: v])
def test_a_changed_part_that_was_taken_without_gradients(use: Callable[[Tensor], Tensor]) -> None:
    """Eager raises where such a view is used with gradients."""

    def step(w: Tensor, x: Tensor) -> Any:
        with torch.no_grad():
            row = w[0]
            row.mul_(2)
        return (x @ w).sin(), use(row).detach()

    outcomes = []
    for run in (step, compiled(step)):
        w, results, raised = leaf(3, 4), (), ""
        try:
            results = run(w, leaf(2, 3, grad=False))
            results[0].sum().backward()
        except RuntimeError as error:
            raised = str(error)[:60]
        outcomes.append((raised, [w, w.grad, *results]))
    assert outcomes[1][0] == outcomes[0][0]
    torch.testing.assert_close(outcomes[1][1], outcomes[0][1])
