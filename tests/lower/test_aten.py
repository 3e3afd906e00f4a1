"""Graphs of ATen operators, forward and backward, against eager: rules are found, fused and right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import quickfuse
from aten_helper import check_aten, check_gradients, externs, kernels

X = torch.Tensor


def seeded(*shape: int, dtype: torch.dtype = torch.float32) -> X:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64).to(dtype)


LAYOUTS: dict[str, Callable[[X], X]] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.mT.contiguous().mT,
    "strided": lambda x: x.repeat(1, 2)[:, ::2],
}

#: Functions of single elements, whose gradients are, too.
POINTWISE: dict[str, Callable[[X], X]] = {
    "relu": F.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "gelu": F.gelu, "silu": F.silu, "mish": F.mish,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "hardswish": lambda x: F.hardswish(x * 2),
    "hardsigmoid": lambda x: F.hardsigmoid(x * 2), "hardtanh": F.hardtanh, "relu6": lambda x: F.relu6(x * 4),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.1), "elu": lambda x: F.elu(x, 0.7), "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.6), "softplus": lambda x: F.softplus(x, 1.5, 2.0), "logsigmoid": F.logsigmoid,
    "hardshrink": F.hardshrink, "softshrink": F.softshrink, "softsign": F.softsign, "tanhshrink": F.tanhshrink,
    "threshold": lambda x: F.threshold(x, 0.1, 2.0), "logit": lambda x: x.sigmoid().logit(1e-3),
    "prelu": lambda x: F.prelu(x, x.detach()[0, :1]),
    "clamp": lambda x: x.clamp(-0.5, 0.5), "where": lambda x: torch.where(x > 0, x, x * 2),
    "masked_fill": lambda x: x.masked_fill(x > 0.5, 1.0), "pow": lambda x: x.pow(3) + x.abs().pow(1.5),
    "sqrt": lambda x: x.exp().sqrt().rsqrt().reciprocal(), "trig": lambda x: x.sin() * x.cos() + x.atan(),
    "lerp": lambda x: torch.lerp(x, x * 2, 0.3), "addcmul": lambda x: torch.addcmul(x, x, x.exp(), value=0.5),
    "addcdiv": lambda x: torch.addcdiv(x, x, x.exp(), value=0.5), "maximum": lambda x: torch.maximum(x, x * x),
    "logaddexp": lambda x: torch.logaddexp(x, x * 2), "erf": torch.erf, "expm1": lambda x: x.expm1() + x.exp().log1p(),
    "round": lambda x: x.round() + x.sign() + x.frac(), "division": lambda x: 1 / (x.abs() + 1) + x / 3,
    "to_double": lambda x: x.double() * 2, "views": lambda x: x.t()[1:].reshape(-1, 2).unsqueeze(0).expand(2, -1, -1).sin(),
    "glu": lambda x: F.glu(x, 1),
}  # fmt: skip


@pytest.mark.parametrize("first", range(0, len(POINTWISE), 8))
def test_pointwise(first: int) -> None:
    """Several functions at a time, as tracing takes longest."""
    functions = list(POINTWISE.values())[first : first + 8]
    x = seeded(6, 10)
    x[0, :4] = torch.tensor([0.0, -0.0, 0.5, -0.5])
    for k, inputs in enumerate((x, LAYOUTS["transposed"](x.double()), LAYOUTS["strided"](x.bfloat16()))):

        def each(*copies: X) -> list[X]:
            return [function(copy) for function, copy in zip(functions, copies, strict=True)]

        assert not externs(check_gradients(each, *[inputs.clone() for _ in functions], ulps=2 if k == 2 else 32))


NORMS: dict[str, Callable[[X, X, X], X]] = {
    "layer": lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b),
    "layer_plain": lambda x, w, b: F.layer_norm(x, x.shape[1:]),
    "layer_weight": lambda x, w, b: F.layer_norm(x, x.shape[-1:], w),
    "rms": lambda x, w, b: F.rms_norm(x, x.shape[-1:], w),
    "softmax": lambda x, w, b: (x * w).softmax(-1),
    "log_softmax": lambda x, w, b: (x + b).log_softmax(-1),
    "softmax_first": lambda x, w, b: x.softmax(0),
    "logsumexp": lambda x, w, b: x.logsumexp(1),
    "normalize": lambda x, w, b: F.normalize(x, dim=-1),
    "fused_rms": lambda x, w, b: torch.ops.aten._fused_rms_norm(x, [x.shape[-1]], w, 1e-5)[0],
}


@pytest.mark.parametrize("name", NORMS)
def test_norms_of_rows(name: str) -> None:
    function, (w, b) = NORMS[name], (seeded(70), seeded(70) + 1)
    for x in (seeded(5, 70), seeded(3, 4, 9)):
        assert not externs(check_gradients(function, x, w[: x.shape[-1]], b[: x.shape[-1]], ulps=64))
    check_gradients(function, LAYOUTS["transposed"](seeded(33, 17).double()), w[:17].double(), b[:17].double(), ulps=64)
    check_gradients(function, LAYOUTS["strided"](seeded(9, 33).bfloat16()), w[:33].bfloat16(), b[:33].bfloat16(), ulps=6)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "layer_plain"])
def test_rows_and_their_gradient_are_one_kernel(name: str) -> None:
    x = seeded(40, 70)
    schedule = check_gradients(lambda x: NORMS[name](x, torch.ones(()), torch.zeros(())), x, ulps=64)
    assert kernels(schedule) == 1


def _batch(x: X, w: X, b: X) -> X:
    return F.batch_norm(x, None, None, w, b, True)


CHANNELS: dict[str, Callable[[X, X, X], X]] = {
    "batch": _batch,
    "batch_relu": lambda x, w, b: F.relu(_batch(x, w, b)),
    "batch_evaluation": lambda x, w, b: F.batch_norm(x, w.detach() * 2, b.detach().abs() + 0.1, w, b, False),
    "batch_plain": lambda x, w, b: F.batch_norm(x, None, None, training=True),
    "group": lambda x, w, b: F.group_norm(x, 2, w, b),
    "group_plain": lambda x, w, b: F.group_norm(x, 4),
    "instance": lambda x, w, b: F.instance_norm(x, None, None, w, b),
}


@pytest.mark.parametrize("name", CHANNELS)
def test_norms_of_channels(name: str) -> None:
    w, b = seeded(8), seeded(8)
    for x in (seeded(3, 8, 5, 6), seeded(3, 8, 5, 6).to(memory_format=torch.channels_last), seeded(4, 8, 3), seeded(20, 8)):
        if x.dim() == 2 and "instance" in name:
            continue
        if x.dim() == 2 and "group" in name:
            continue  # groups of so few elements that rounding errors are large
        schedule = check_gradients(CHANNELS[name], x, w, b, ulps=128)
        assert name == "instance" or not externs(schedule)
    check_gradients(CHANNELS[name], seeded(4, 8, 3).double(), w.double(), b.double(), ulps=128)
    if name not in ("instance", "batch_relu"):  # the type of the weights; zeros that rounding moves
        check_gradients(CHANNELS[name], seeded(3, 8, 5, 6).bfloat16(), w.bfloat16(), b.bfloat16(), ulps=8)


def test_running_statistics() -> None:
    def training(x: X, mean: X, var: X, w: X, b: X) -> Any:
        return torch.ops.aten._native_batch_norm_legit_functional(x, w, b, mean, var, True, 0.3, 1e-5)

    def evaluation(x: X, mean: X, var: X, w: X, b: X) -> Any:
        return torch.ops.aten.native_batch_norm(x, w, b, mean, var, False, 0.3, 1e-5)[0]

    arguments = (seeded(3, 8, 5, 6), seeded(8), seeded(8).abs(), seeded(8), seeded(8))
    for function in (training, evaluation):
        assert not externs(check_aten(function, *arguments, ulps=64))


LOSSES: dict[str, Callable[[X, X], X]] = {
    "mse": F.mse_loss,
    "mse_sum": lambda x, y: F.mse_loss(x, y, reduction="sum"),
    "mse_none": lambda x, y: F.mse_loss(x, y, reduction="none"),
    "l1": F.l1_loss,
    "smooth_l1": lambda x, y: F.smooth_l1_loss(x, y, beta=0.7),
    "huber": lambda x, y: F.huber_loss(x, y, delta=0.7),
    "bce": lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
    "bce_weighted": lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid(), y.detach().exp(), reduction="sum"),
    "bce_with_logits": lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()),
    "kl": lambda x, y: F.kl_div(x, y.sigmoid(), reduction="batchmean"),
    "cross_entropy": lambda x, y: F.cross_entropy(x, y.softmax(-1)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_two_tensors(name: str) -> None:
    x, y = seeded(20, 70), seeded(20, 70) * 0.5
    assert not externs(check_gradients(LOSSES[name], x, y, ulps=128)) or "bce" in name
    check_gradients(LOSSES[name], x.double().t(), y.double().t(), ulps=128)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("shape", [(20, 70), (4, 9, 5, 7), (12,)])
def test_losses_of_classes(shape: tuple[int, ...], reduction: str) -> None:
    x, classes = seeded(*shape), shape[1] if len(shape) > 1 else shape[0]
    t = torch.randint(0, classes, (shape[0], *shape[2:]) if len(shape) > 1 else (), generator=torch.Generator())
    weight = seeded(classes).abs() + 0.1
    if len(shape) > 1:
        t = torch.where(t == t.flatten()[0], -100, t)
    check_gradients(lambda x, t: F.cross_entropy(x, t, reduction=reduction), x, t, ulps=64)
    check_gradients(lambda x, t: F.cross_entropy(x, t, reduction=reduction, label_smoothing=0.1), x, t, ulps=64)
    check_gradients(lambda x, t, w: F.cross_entropy(x, t, w.detach(), reduction=reduction), x, t, weight, ulps=64)
    check_gradients(lambda x, t: F.nll_loss(x, t, reduction=reduction), x, t, ulps=64)


#: Operators that PyTorch runs, between kernels; and others, which are found by name.
OTHERS: dict[str, Callable[..., Any]] = {
    "linear": lambda x, w: F.gelu(F.linear(x, w, w[:, 0])),
    "matmul": lambda x, w: (x @ w.t()).relu().sum(0),
    "bmm": lambda x, w: torch.einsum("bi,ci->bc", x.sin(), w),
    "mean": lambda x, w: x.mean(0) + x.sum(0) * 2,
    "moments": lambda x, w: x.var(0) + x.std(1).sum(),
    "extrema": lambda x, w: x.amax(1) + x.max(1)[0] + x.min(1)[0],
    "prod": lambda x, w: (x * 0.1 + 1).prod(1),
    "vector_norm": lambda x, w: x.norm(dim=1) + torch.linalg.vector_norm(x, 3, dim=1),
    "attention": lambda x, w: F.scaled_dot_product_attention(x.view(1, 1, *x.shape), x.view(1, 1, *x.shape), w[None, None]),
    "conv": lambda x, w: F.conv1d(x[None], w[:, :, None].expand(-1, -1, 1)[:, : x.shape[0]], stride=2).relu(),
    "cumsum": lambda x, w: x.cumsum(1),
    "cat": lambda x, w: torch.cat([x, x * 2], 1).sin(),
    "index": lambda x, w: x[1:3] * 2 + x[0],
    "creation": lambda x, w: x + torch.arange(x.shape[1]) * torch.full_like(x, 2.0) + torch.zeros(1),
    "chunk": lambda x, w: x.chunk(2, 1)[0] * x.split(4, 1)[0].sin() if x.shape[1] == 8 else x,
    "lstm_cell": lambda x, w: torch.lstm_cell(x, [x[:, :2], x[:, 2:4]], w, w[:, :2])[0],
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_operators(name: str) -> None:
    x, w = seeded(8, 8), seeded(8, 8)
    check_gradients(OTHERS[name], x, w, ulps=64)


def test_only_wanted_gradients_are_computed() -> None:
    def function(x: X, w: X, b: X) -> Any:
        y, mean, scale = torch.ops.aten.native_layer_norm(x, [7], w, b, 1e-5)
        first = torch.ops.aten.native_layer_norm_backward(y, x, [7], mean, scale, w, b, [True, False, False])
        grads = torch.ops.aten.convolution_backward(
            y[None], x[None], w[None, :5, None].expand(5, 5, 1).contiguous(), [5], [1], [0], [1], False, [0], 1,
            [True, False, True],
        )  # fmt: skip
        return [first[0], grads[0], grads[2]]

    check_aten(function, seeded(5, 7), seeded(7), seeded(7), ulps=64)


def test_an_operator_without_the_name_of_its_overload() -> None:
    compiled = quickfuse.compile(lambda grad, y: torch.ops.aten.tanh_backward(grad, y))
    grad, y = seeded(5, 7), seeded(5, 7).tanh()
    torch.testing.assert_close(compiled(grad, y), grad * (1 - y * y))
    assert compiled.specialisations[0].kernels == 1


def test_what_loops_cannot_hold_is_called() -> None:
    def choices(x: X, mask: X) -> tuple[X, X]:
        return torch.where(mask, x, x * 2), x.masked_fill(mask, 1j)

    x, mask = torch.complex(seeded(4), seeded(4)), torch.tensor([True, False, True, False])
    assert all(map(torch.equal, quickfuse.compile(choices)(x, mask), choices(x, mask)))
    assert quickfuse.compile(lambda x: torch.linalg.pinv(x) + 1)(torch.ones(3, 0)).shape == (0, 3)


@pytest.mark.filterwarnings("ignore:where received a uint8 condition")
def test_a_condition_that_is_no_mask_stays_the_condition() -> None:
    """`x.where(condition, y)` takes it second, `torch.where` first: either may be a mask."""
    bytes_, mask, x = torch.tensor([2, 4, 0, 1], dtype=torch.uint8), torch.tensor(True), torch.tensor([2, 4, 4, 3])
    for function in (lambda: torch.where(bytes_, mask, x), lambda: mask.where(bytes_, x), lambda: bytes_.where(mask, x)):
        torch.testing.assert_close(quickfuse.compile(function)(), function())
