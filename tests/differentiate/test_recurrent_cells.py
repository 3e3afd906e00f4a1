"""The formulas that stand for PyTorch's cells on GPUs, against these cells."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import quickfuse
from quickfuse.differentiate.recurrent_cells import _CELLS


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("cell", [torch.gru_cell, torch.lstm_cell])
def test_formulas(cell: Any, bias: bool) -> None:
    gates = 3 if cell is torch.gru_cell else 4
    shapes = [(2, 5), (2, 7), (2, 7), (gates * 7, 5), (gates * 7, 7), (gates * 7,), (gates * 7,)]
    x, hidden, state, w_x, w_hidden, *biases = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes)
    carried = hidden if gates == 3 else (hidden, state)
    operands = [x, carried, w_x, w_hidden, *(biases if bias else ())]
    wanted, found = cell(*operands), _CELLS[cell](*operands)
    torch.testing.assert_close(found, wanted)
    leaves = [x, hidden, w_x, w_hidden, *(biases if bias else ())]
    for one, other in zip(*(torch.autograd.grad(_sum(r), leaves) for r in (wanted, found)), strict=True):
        torch.testing.assert_close(one, other)


def _sum(result: Any) -> torch.Tensor:
    total: torch.Tensor = sum(
        (k + 1) * t.sum() for k, t in enumerate([result] if isinstance(result, torch.Tensor) else result)
    )
    return total


@pytest.mark.gpu
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("cell", [torch.nn.GRUCell, torch.nn.LSTMCell])
def test_on_a_gpu(cell: Any, autocast: bool) -> None:
    module = cell(5, 7).cuda()

    def step(x: torch.Tensor) -> Any:
        module.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            result = module(x)
        loss = _sum(result)
        loss.backward()  # `torch.autograd.grad` through a cell under autocast ends a graph there
        return loss.detach(), [p.grad for p in module.parameters()]

    compiled = quickfuse.compile(step, fullgraph=True, options={"raise_internal_errors": True})
    x = torch.randn(3, 5, device="cuda")
    tolerance = {"rtol": 3e-2, "atol": 3e-2} if autocast else {}
    torch.testing.assert_close(compiled(x), step(x), **tolerance)
