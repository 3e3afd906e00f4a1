"""Attention on a GPU: capture finds out which of PyTorch's kernels will run, since the layouts of their results differ."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import quickfuse

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("width", [5, 8, 32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_one_graph_with_gradients(dtype: torch.dtype, width: int, transposed: bool, dropout: float) -> None:
    shape = (2, 16, 3, width) if transposed else (2, 3, 16, width)
    q, k, v = (torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3))

    def attend(*operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
        heads = [t.transpose(1, 2) if transposed else t for t in operands]
        out = F.scaled_dot_product_attention(*heads, dropout_p=dropout, is_causal=True)
        return out.detach(), *torch.autograd.grad((out * 2).sum(), operands)

    wanted = attend(q, k, v)
    found = quickfuse.compile(attend, fullgraph=True, options={"raise_internal_errors": True})(q, k, v)
    assert [t.stride() for t in found] == [t.stride() for t in wanted]
    if not dropout:
        torch.testing.assert_close(found, wanted)
