"""Tensors from outside that have a history and are changed in place: gradients flow through the change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from differentiate.twins import compiled, leaf

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
