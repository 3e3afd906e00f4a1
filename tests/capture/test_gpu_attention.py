"""Attention on a GPU: capture finds out which of PyTorch's kernels will run, since the layouts of their results differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import quickfuse
from quickfuse.capture.inference.metadata import result_of
from quickfuse.capture.inference.results import meta_of
from quickfuse.capture.symbolic import TensorProxy

gpu = pytest.mark.gpu

MASKS: dict[str, Callable[[int, int], torch.Tensor]] = {
    "bool": lambda n, m: torch.ones(2, 1, n, m, dtype=torch.bool).tril(m - n),
    "of keys": lambda n, m: torch.ones(2, 1, 1, m, dtype=torch.bool).expand(2, 3, n, m),
    "added": lambda n, m: torch.randn(n, m),
}


@pytest.mark.parametrize("mask", MASKS)
def test_what_a_mask_becomes_has_no_data(mask: str) -> None:
    """Capture runs attention on tensors that have no data. PyTorch makes others there, of a mask of truth values."""
    q, k, m = torch.empty(2, 3, 5, 16), torch.empty(2, 3, 7, 16), MASKS[mask](5, 7)
    operands = [TensorProxy(replace(meta_of(t), device=torch.device("cuda", 0))) for t in (q, k, m)]
    made = result_of(F.scaled_dot_product_attention, (operands[0], *operands[1:2] * 2, operands[2]), {}, operands, False)
    assert made.structure.shape == (2, 3, 5, 16) and made.structure.device.type == "cuda"


def test_weights_without_elements_may_be_anywhere() -> None:
    """What calls `multi_head_attention_forward` with three weights gives an empty tensor in place of the one for all."""

    def on_gpu(*shape: int) -> TensorProxy:
        return TensorProxy(replace(meta_of(torch.empty(shape)), device=torch.device("cuda", 0)))

    query, weight, bias, nothing = on_gpu(5, 2, 16), on_gpu(16, 16), on_gpu(16), TensorProxy(meta_of(torch.empty(0)))
    weights = dict.fromkeys(("q_proj_weight", "k_proj_weight", "v_proj_weight"), weight)
    made, _ = result_of(
        F.multi_head_attention_forward,
        (query, query, query, 16, 2, nothing, on_gpu(48), None, None, False, 0.0, weight, bias),
        {"training": False, "use_separate_proj_weight": True, **weights}, [query, weight, bias, nothing], False,
    ).structure  # fmt: skip
    assert made.shape == (5, 2, 16) and made.device.type == "cuda"


@gpu
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("sizes", [(16, 16), (15, 15), (1, 14)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_masks(dtype: torch.dtype, sizes: tuple[int, int], mask: str) -> None:
    n, m = sizes
    q, k, v = (torch.randn(2, 3, size, 16, device="cuda", dtype=dtype, requires_grad=True) for size in (n, m, m))
    given = MASKS[mask](n, m).cuda()
    given = given if given.dtype is torch.bool else given.to(dtype)

    def attend(*operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out = F.scaled_dot_product_attention(*operands, attn_mask=given)
        return out.detach(), *torch.autograd.grad((out * 2).sum(), operands)

    wanted = attend(q, k, v)
    found = quickfuse.compile(attend, fullgraph=True, options={"raise_internal_errors": True})(q, k, v)
    assert [t.stride() for t in found] == [t.stride() for t in wanted]
    torch.testing.assert_close(found, wanted)


@gpu

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
