"""Rules for the layout of results say what PyTorch does, and spare the first call the import of its compiler."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

import quickfuse
from quickfuse.differentiate import layouts, shapes
from quickfuse.differentiate.layouts import Out
from quickfuse.differentiate.plain_shapes import RULES
from quickfuse.differentiate.traced import Memory, make_traced
from trace_helper import meta_of

aten = torch.ops.aten
T = torch.Tensor

#: Tensors of shape (3, 4, 5), and some that are broadcast to it, in many layouts.
LAYOUTS: dict[str, T] = {
    "contiguous": torch.rand(3, 4, 5),
    "transposed": torch.rand(5, 4, 3).transpose(0, 2),
    "permuted": torch.rand(4, 5, 3).permute(2, 0, 1),
    "sliced": torch.rand(3, 4, 9)[..., 2:7],
    "every other": torch.rand(3, 8, 5)[:, ::2],
    "sliced and permuted": torch.rand(4, 9, 3)[:, :5].permute(2, 0, 1),
    "repeated": torch.rand(3, 1, 5).expand(3, 4, 5),
    "a row": torch.rand(5),
    "a column": torch.rand(4, 1),
    "a number": torch.rand(()),
    "one of an axis": torch.rand(3, 1, 5),
    "double": torch.rand(3, 4, 5).double(),
    "whole": torch.arange(60).view(3, 4, 5),
    "halves": torch.rand(3, 4, 5).bfloat16(),
    "none": torch.rand(0, 4),
}
IMAGES = {
    "contiguous": torch.rand(2, 3, 4, 5), "channels last": torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "one channel": torch.rand(2, 1, 4, 5), "a pixel": torch.rand(2, 3, 1, 1), "sliced": torch.rand(2, 3, 4, 9)[..., 2:7],
}  # fmt: skip


def agrees(function: Any, *args: Any, **kwargs: Any) -> bool:
    """Whether there is a rule for these operands. Then it says what the operator returns."""

    def traced(value: Any) -> Any:
        if isinstance(value, T):
            return make_traced(meta_of(value), Memory(None, meta_of(value)), (), None)  # type: ignore[arg-type]
        return [traced(v) for v in value] if isinstance(value, list) else value

    found = {**layouts.RULES, **RULES}[function](*[traced(a) for a in args], **kwargs)
    if found is NotImplemented:
        return False
    real = function(*args, **kwargs)
    for out, tensor in zip(*[[x] if isinstance(x, (Out, T)) else x for x in (found, real)], strict=True):
        assert (out.meta.dtype, out.meta.shape, out.offset) == (tensor.dtype, tuple(tensor.shape), 0)
        assert out.meta.stride == tensor.stride(), (function, args, kwargs)
    return True


MOMENTS = (aten.var_mean.correction, aten.std_mean.correction)
ONE = [f for f in RULES if len(f._schema.arguments) - len([a for a in f._schema.arguments if a.has_default_value()]) == 1
       and f not in (aten.mean.dim, aten.sum.dim_IntList, aten.cat.default, aten.stack.default, *MOMENTS)
       and any(str(a.type) == "Tensor" for a in f._schema.arguments)]  # fmt: skip


@pytest.mark.parametrize("function", ONE, ids=str)
def test_operators_on_one_tensor(function: Any) -> None:
    known = {name for name, x in LAYOUTS.items() if agrees(function, x)}
    assert {"contiguous", "transposed", "sliced", "double"} <= known and "repeated" not in known


@pytest.mark.parametrize("function", [aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor], ids=str)
def test_arithmetic(function: Any) -> None:
    for name, x in LAYOUTS.items():
        known = {other for other, y in LAYOUTS.items() if other != "none" and name != "none" and agrees(function, x, y)}
        assert name != "contiguous" or {"contiguous", "transposed", "a row", "a number", "repeated"} <= known
    assert agrees(function, LAYOUTS["sliced"], 2.0) and agrees(function, LAYOUTS["permuted"], 2)
    assert not agrees(function, LAYOUTS["whole"], 2.5)
    assert agrees(function, LAYOUTS["whole"], 2) == (function is not aten.div.Tensor)


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "gelu", "silu"])
def test_gradients_of_activations(name: str) -> None:
    for one in ("contiguous", "transposed", "sliced", "permuted"):
        for other in ("contiguous", "transposed", "sliced and permuted"):
            assert agrees(getattr(aten, f"{name}_backward").default, LAYOUTS[one], LAYOUTS[other])
    assert agrees(aten.threshold_backward.default, LAYOUTS["sliced"], LAYOUTS["transposed"], 0)


def test_reductions() -> None:
    for name, x in {**LAYOUTS, **IMAGES}.items():
        for dims in ([0], [-1], [0, x.ndim - 1] if x.ndim > 1 else [0]):
            for keepdim in (False, True):
                for function in (aten.mean.dim, aten.sum.dim_IntList):
                    assert agrees(function, x, dims, keepdim) == (name not in ("whole", "a number")) or not x.ndim
    assert not agrees(aten.sum.dim_IntList, LAYOUTS["contiguous"], [0], dtype=torch.double)


def test_batch_norm() -> None:
    channels_last = {"a pixel": (2, 3, 1, 1), "one channel": (2, 1, 4, 5), "both": (2, 1, 1, 1), "a column": (2, 3, 4, 1)}
    laid = {f"{name}, channels last": torch.empty_strided((n, c, h, w), (c * h * w, 1, w * c, c)).normal_()
            for name, (n, c, h, w) in channels_last.items()}  # fmt: skip
    for x in {**IMAGES, **laid}.values():
        given = [torch.rand(x.shape[1]) for _ in range(4)]
        for training in (False, True):
            assert agrees(aten.native_batch_norm.default, x, *given, training, 0.1, 1e-5)
            statistics = aten.native_batch_norm(x, *given, training, 0.1, 1e-5)[1:]
            for grad in (x, torch.rand(x.shape), torch.empty_like(x, memory_format=torch.channels_last).normal_()):
                mean, var = given[2:]
                assert agrees(aten.native_batch_norm_backward.default, grad, x, given[0], mean, var, *statistics,
                              training, 1e-5, [True] * 3)  # fmt: skip


@pytest.mark.parametrize("function", MOMENTS, ids=str)
@pytest.mark.parametrize("options", [{}, {"dim": [0]}, {"dim": [-1, 1], "keepdim": True, "correction": 0}], ids=str)
def test_moments(function: Any, options: dict[str, Any]) -> None:
    known = {name for name, x in LAYOUTS.items() if x.dim() == 3 and agrees(function, x, **options)}
    assert {"contiguous", "permuted", "sliced", "repeated", "double"} <= known


def test_products() -> None:
    for left in (torch.rand(3, 4), torch.rand(4, 3).t(), torch.rand(3, 8)[:, ::2]):
        for right in (torch.rand(4, 5), torch.rand(5, 4).t()):
            assert agrees(aten.mm.default, left, right) and agrees(aten.addmm.default, torch.rand(5), left, right)
    for added in (torch.rand(3, 5), torch.rand(5, 3).t(), torch.rand(3, 1), torch.rand(())):
        assert agrees(aten.addmm.default, added, torch.rand(3, 4), torch.rand(4, 5), beta=0.5, alpha=2)
    batch = torch.rand(2, 3, 4)
    for left in (batch, torch.rand(2, 4, 3).mT, torch.rand(3, 2, 4).transpose(0, 1), torch.rand(2, 3, 8)[..., ::2]):
        for right in (torch.rand(2, 4, 5), torch.rand(5, 2, 4).permute(1, 2, 0), torch.rand(1, 4, 5).expand(2, 4, 5)):
            assert agrees(aten.bmm.default, left, right)
            assert agrees(aten.baddbmm.default, torch.rand(3, 1), left, right, beta=2)
    for x in (torch.rand(4), torch.rand(8)[::2], torch.rand(()).expand(4)):
        assert agrees(aten.mv.default, torch.rand(4, 3).t(), x)
        assert agrees(aten.addmv.default, torch.rand(3), torch.rand(3, 4), x)
        assert agrees(aten.dot.default, x, x) and agrees(aten.vdot.default, x, x)


def test_factories() -> None:
    for limits in ((5,), (0,), (2, 7), (7, 2, -2), (0, 7, 3), (3, 3)):
        function = (aten.arange.default, aten.arange.start, aten.arange.start_step)[len(limits) - 1]
        assert agrees(function, *limits) and agrees(function, *limits, dtype=torch.float64)
    for wrong in ((7, 2), (2.5, 7)):
        assert not agrees(aten.arange.start, *wrong)
    for size in ([2, 3], [], [0, 4]):
        assert agrees(aten.full.default, size, 2, dtype=torch.float32)
        assert not agrees(aten.full.default, size, 2)


def test_joined_tensors() -> None:
    for x in (LAYOUTS["contiguous"], LAYOUTS["transposed"], LAYOUTS["sliced"], *IMAGES.values()):
        for y in (x, x.contiguous(), x.transpose(1, 2).contiguous().transpose(1, 2)):
            assert agrees(aten.cat.default, [x, y], 1) and agrees(aten.cat.default, [x, y], -1)
    for x in (torch.rand(3, 4), torch.rand(4, 3).t(), torch.rand(5)):
        assert agrees(aten.stack.default, [x, x], 1) and agrees(aten.stack.default, [x, x], -1)
    assert not agrees(aten.cat.default, [torch.rand(0), torch.rand(3)], 0)


def test_softmax_and_losses() -> None:
    for x in (torch.rand(3, 4), torch.rand(4, 3).t(), torch.rand(3, 8)[:, ::2]):
        for function in (aten._softmax.default, aten._log_softmax.default):
            assert agrees(function, x, 1, False)
        for function in (aten._softmax_backward_data.default, aten._log_softmax_backward_data.default):
            assert agrees(function, x, x, 1, torch.float32)
        target = torch.tensor([0, 1, 2])
        for reduction in (1, 2):
            assert agrees(aten.nll_loss_forward.default, x, target, None, reduction, -100)
            operands = (torch.tensor(1.0), x, target, None, reduction, -100, torch.tensor(3.0))
            assert agrees(aten.nll_loss_backward.default, *operands) == x.is_contiguous()
        assert not agrees(aten.nll_loss_forward.default, x, target, None, 0, -100)
    images, target = torch.rand(2, 3, 4, 5).transpose(1, 2), torch.zeros(2, 3, 5, dtype=torch.long)
    assert agrees(aten.nll_loss2d_forward.default, images, target, None, 1, -100)
    operands = (torch.tensor(1.0), images.contiguous(), target, None, 1, -100, torch.tensor(30.0))
    assert agrees(aten.nll_loss2d_backward.default, *operands)


def test_embeddings() -> None:
    indices = torch.tensor([[0, 1], [2, 0]])
    assert agrees(aten.embedding.default, torch.rand(3, 4), indices)
    assert agrees(aten.embedding.default, torch.rand(4, 3).t(), indices.t())
    assert agrees(aten.gather.default, torch.rand(4, 3).t(), 1, indices.t(), sparse_grad=False)
    assert agrees(aten.gather.default, torch.rand(()), 0, torch.tensor(0))
    assert agrees(aten.embedding_dense_backward.default, torch.rand(2, 2, 4), indices, 3, -1, False)


_PROGRAM = """
import sys, torch, quickfuse
from torch import nn
model = nn.Sequential(nn.Embedding(5, 8), nn.Linear(8, 8), nn.Tanh(), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 5))
loss = quickfuse.compile(lambda x, y: nn.functional.cross_entropy(model(x), y))(torch.tensor([1, 2]), torch.tensor([0, 1]))
loss.backward()
assert model[1].weight.grad is not None and type(loss.grad_fn).__name__ == "_JoinedBackward"

def attend(x, weight):
    queries, keys, values = (part.view(2, 6, 2, 4).transpose(1, 2) for part in (x @ weight).split(8, -1))
    mask = torch.full((6, 6), float("-inf")).triu(1)
    seen = (queries @ keys.transpose(-1, -2) / 2 + mask).softmax(-1) @ values
    return seen.transpose(1, 2).reshape(2, 6, 8)

def normalise(x, weight):
    variance, mean = torch.var_mean(x, -1, keepdim=True)
    x = (x - mean) / (variance + 1e-5).sqrt()
    return torch.cat([x.masked_fill(x > 1, 0.5), x.masked_fill(x < 0, torch.tensor(2.0))], 1).cumprod(0)

def products(x, weight):
    first, second = x[0], x[1]
    return torch.addr(torch.mv(first, first[0]).outer(second[0]), first[:, 0], second[0]) + torch.dot(x[0, 0], x[1, 1])

def images(x, weight):
    x = x.view(2, 3, 4, 4)
    x = torch.cat([x, x.to(memory_format=torch.channels_last)], 1) + torch.diag_embed(x[:, :, 0]).sum() + x.quantile(0.5)
    x = nn.functional.glu(nn.functional.rms_norm(x, (4, 4)), 1).deg2rad().nan_to_num()
    return torch.block_diag(x[0, 0], x[0, 1]) + (~x.isposinf()).sum()

for function in (attend, normalise, products, images):
    x, weight = torch.rand(2, 6, 8, requires_grad=True), torch.rand(8, 24, requires_grad=True)
    result = quickfuse.compile(function)(x, weight)
    assert type(result.grad_fn).__name__ == "_JoinedBackward", function
    result.sum().backward()
    found = [name for name in ("torch._dynamo", "sympy") if name in sys.modules]
    assert not found, (function, found)
"""


@pytest.mark.usefixtures("forked_interpreters")
def test_nothing_large_is_imported() -> None:
    found = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True)
    assert not found.returncode, found.stderr


def test_images() -> None:
    """With the channels last, also where one image could be either."""
    for batch in (1, 2):
        for layout in (torch.contiguous_format, torch.channels_last):
            x = torch.randn(batch, 12, 8, 6).to(memory_format=layout)
            for rule, args in (
                (aten.pixel_shuffle.default, (2,)), (aten.channel_shuffle.default, (3,)),
                (aten.log_sigmoid_forward.default, ()),
                (aten.native_group_norm.default, (torch.ones(12), None, batch, 12, 48, 3, 1e-5)),
                (aten.native_group_norm.default, (None, None, batch, 12, 48, 4, 1e-5)),
            ):  # fmt: skip
                assert agrees(rule, x, *args)
            _, mean, rstd = aten.native_group_norm(x, torch.ones(12), None, batch, 12, 48, 3, 1e-5)
            args = (mean, rstd, torch.ones(12), batch, 12, 48, 3, [True] * 3)
            assert agrees(aten.native_group_norm_backward.default, torch.randn_like(x), x, *args)


def test_attention() -> None:
    """PyTorch 2.11 says of the second result that it is in float32, of whatever type the operands are."""
    attention = aten._scaled_dot_product_flash_attention_for_cpu.default
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        x = torch.randn(2, 6, 3, 8, dtype=dtype)
        for query in (x, x.transpose(1, 2), torch.randn(2, 6, 3, 24, dtype=dtype)[..., 8:16].transpose(1, 2), x[:1, :, :1]):
            key = torch.randn(query.shape[0], query.shape[1], 7, 8, dtype=dtype)
            assert agrees(attention, query, key, key, 0.0, False)


def test_wrong_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where PyTorch says the wrong type of a result, which kernels would read or backward would convert, eager runs."""

    def wrong(query: Any, *args: Any, **kwargs: Any) -> Any:
        value, sums = layouts._flash_attention_on_cpu(query)
        return value, Out(replace(sums.meta, dtype=torch.float32), 0)

    monkeypatch.setitem(layouts.RULES, aten._scaled_dot_product_flash_attention_for_cpu.default, wrong)
    monkeypatch.setattr(shapes, "_memo", {})
    attend = torch.nn.functional.scaled_dot_product_attention
    x = torch.randn(1, 2, 5, 4, dtype=torch.float64, requires_grad=True)

    def run(x: T) -> T:
        value = attend(x, x, x, is_causal=True).square().sum()
        return torch.autograd.grad(value, x)[0]

    compiled = quickfuse.compile(lambda x: attend(x, x, x, is_causal=True).square().sum())
    for _ in range(2):
        assert torch.equal(torch.autograd.grad(compiled(x), x)[0], run(x))
    assert torch.equal(quickfuse.compile(run)(x), run(x))


@pytest.mark.parametrize("shapes_of", [
    ((512, 1), (1, 1000)), ((1, 1000), (512, 1)), ((8, 1, 200), (1, 90, 200)), ((300, 1, 300), (300, 1)),
    ((200, 300, 4), (4,)), ((1, 2, 300, 400), (2, 1, 1)), ((70, 1, 1, 40), (1, 60, 1)),
    ((1, 1, 200000), (3, 1, 1)), ((3, 1, 40000), (1, 5, 1)),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("function", [aten.eq.Tensor, aten.mul.Tensor, aten.atan2.default], ids=str)
def test_large_results_of_broadcasting(function: Any, shapes_of: tuple[tuple[int, ...], ...]) -> None:
    """Small results show what large ones look like."""
    operands = [torch.ones(shape) for shape in shapes_of]
    metas = [meta_of(t) for t in operands]
    spec = shapes.spec_of(function, tuple(make_traced(m, Memory(None, m), (), None) for m in metas), {})  # type: ignore[arg-type]
    assert isinstance(spec, Out) and spec.meta == meta_of(function(*operands))
