"""Rules of normalisation and losses against eager, as programs and as emitted kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import quickfuse
from quickfuse.ir.kernel import KernelCall
from quickfuse.ir.loop import Extern
from schedule_interpreter import check

X = torch.Tensor


def seeded(*shape: int) -> X:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def kernels(schedule: Any) -> int:
    externs = [step for step in schedule.steps if isinstance(step, Extern)]
    assert not externs, str(schedule)
    return sum(isinstance(step, KernelCall) for step in schedule.steps)


NORMS: dict[str, Callable[..., Any]] = {
    "layer": lambda x, w, b: F.layer_norm(x, x.shape[-1:], w[: x.shape[-1]], b[: x.shape[-1]]),
    "layer_of_three": lambda x, w, b: F.layer_norm(x, x.shape[1:]),
    "rms": lambda x, w, b: F.rms_norm(x, x.shape[-1:], w[: x.shape[-1]]),
    "rms_eps": lambda x, w, b: F.rms_norm(x, x.shape[-1:], eps=1e-3),
    "group": lambda x, w, b: F.group_norm(x, 2, w, b),
    "group_one": lambda x, w, b: F.group_norm(x, 1),
    "instance": lambda x, w, b: F.instance_norm(x, None, None, w, b),
    "batch": lambda x, w, b: F.batch_norm(x, w, b.abs(), w, b),
    "batch_plain": lambda x, w, b: F.batch_norm(x, w, b.abs()),
    "batch_training": lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
    "normalize": lambda x, w, b: F.normalize(x, dim=-1),
    "normalize_1": lambda x, w, b: F.normalize(x, p=1.0),
}
LAYOUTS: dict[str, Callable[[X], X]] = {
    "contiguous": lambda x: x,
    "channels_last": lambda x: x.to(memory_format=torch.channels_last),
    "strided": lambda x: x.repeat(1, 1, 2, 2)[:, :, ::2, 1::2],
    "transposed": lambda x: x.mT.contiguous().mT,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", NORMS)
def test_normalisation(name: str, layout: str) -> None:
    for shape in ((3, 8, 5, 6), (2, 8, 3, 40)):
        x = LAYOUTS[layout](seeded(*shape))
        if "layer" not in name and "rms" not in name:
            count = kernels(check(NORMS[name], x, seeded(8, 5).flatten()[: shape[1]], seeded(8), emitted=True, ulps=32))
            assert count == 1
        if "layer" in name or "rms" in name:
            assert kernels(check(NORMS[name], x, seeded(40), seeded(4, 10).flatten(), emitted=True, ulps=32)) == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_types(name: str, dtype: torch.dtype) -> None:
    x = seeded(3, 8, 5, 8).to(dtype)
    try:
        NORMS[name](x, seeded(8).to(dtype), seeded(8).to(dtype))
    except RuntimeError:
        return
    check(NORMS[name], x, seeded(8).to(dtype), seeded(8).to(dtype), emitted=True, ulps=32)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_running_statistics_are_updated_in_place(layout: str) -> None:
    def function(x: X, mean: X, var: X, w: X, b: X) -> X:
        return F.batch_norm(x, mean, var, w, b, True, 0.3).relu()

    x = LAYOUTS[layout](seeded(3, 8, 5, 6))
    assert kernels(check(function, x, seeded(8), seeded(8).abs(), seeded(8), seeded(8), emitted=True, ulps=32)) == 1


def test_neighbours_share_the_kernel() -> None:
    def block(x: X, w: X, b: X, y: X) -> tuple[X, X]:
        z = x + F.gelu(y)
        return z, F.layer_norm(z, x.shape[-1:], w, b).relu() * 2

    assert kernels(check(block, seeded(20, 70), seeded(70), seeded(70), seeded(20, 70), emitted=True, ulps=32)) == 1
    x = seeded(3, 8, 5, 6)
    assert kernels(check(lambda x, y: F.group_norm(x + y, 2).relu() + y, x, x * 0.5, emitted=True, ulps=32)) == 1


LOSSES: dict[str, Callable[[X, X, str], X]] = {
    "mse": lambda x, y, r: F.mse_loss(x, y, reduction=r),
    "l1": lambda x, y, r: F.l1_loss(x, y, reduction=r),
    "smooth_l1": lambda x, y, r: F.smooth_l1_loss(x, y, reduction=r, beta=0.5),
    "huber": lambda x, y, r: F.huber_loss(x, y, r, 0.5),
    "bce_with_logits": lambda x, y, r: F.binary_cross_entropy_with_logits(x, y, reduction=r),
    "kl_div": lambda x, y, r: F.kl_div(x, y, reduction="batchmean" if r == "mean" else r),
    "kl_div_log": lambda x, y, r: F.kl_div(x, y, reduction="batchmean" if r == "mean" else r, log_target=True),
}


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_two_tensors(name: str, reduction: str) -> None:
    x, y = seeded(20, 70), seeded(20, 70).sigmoid()
    assert kernels(check(lambda x, y: LOSSES[name](x, y, reduction), x, y, emitted=True, ulps=64)) == 1
    check(lambda x, y: LOSSES[name](x, y, reduction), x.t(), y.double().t(), emitted=True, ulps=64)
    if name in ("mse", "l1"):
        check(lambda x, y: LOSSES[name](x, y, reduction), x.bfloat16(), y.bfloat16(), emitted=True, ulps=8)


@pytest.mark.parametrize(
    "function, dtype",
    [(F.smooth_l1_loss, torch.bfloat16), (F.smooth_l1_loss, torch.float16), (F.huber_loss, torch.float16),
     (F.huber_loss, torch.bfloat16)],
)  # fmt: skip
def test_where_losses_of_16_bits_are_rounded(function: Callable[..., X], dtype: torch.dtype) -> None:
    """PyTorch's kernels round in each of their steps, or once in the end, according to loss and type."""
    x, y = (3 * seeded(20, 70)).to(dtype), (3 * seeded(20, 70).t().reshape(20, 70)).to(dtype)
    found = quickfuse.compile(lambda x, y: function(x, y, reduction="none"))(x, y)
    assert torch.equal(found, function(x, y, reduction="none"))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("shape", [(20, 70), (4, 9, 5, 7), (12,), (1, 3)])
def test_losses_of_classes(shape: tuple[int, ...], reduction: str) -> None:
    x, classes = seeded(*shape), shape[1] if len(shape) > 1 else shape[0]
    target = torch.randint(0, classes, (shape[0], *shape[2:]) if len(shape) > 1 else (), generator=torch.Generator())
    weight = torch.rand(classes) + 0.5
    for t in (target, torch.where(target == target.flatten()[0], -100, target)):
        for w in (None, weight):
            for function in (F.cross_entropy, F.nll_loss):
                arguments = (x, t) if w is None else (x, t, w)
                schedule = check(
                    lambda x, t, w=None, f=function: f(x, t, w, reduction=reduction), *arguments, emitted=True, ulps=64
                )
                assert kernels(schedule) <= 3  # of which one checks the targets


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_of_probabilities_and_smoothed(smoothing: float, reduction: str) -> None:
    def entropy(x: X, t: X, w: X | None = None) -> X:
        return F.cross_entropy(x, t, w, reduction=reduction, label_smoothing=smoothing)

    count = 1 if reduction == "none" else 2
    for shape in ((20, 70), (3, 8, 5)):
        x, target = seeded(*shape), torch.randint(0, shape[1], (shape[0], *shape[2:]))
        target[0] = -100
        assert kernels(check(entropy, x, x.roll(1).softmax(1), emitted=True, ulps=64)) == count
        assert kernels(check(entropy, x, target, emitted=True, ulps=64)) <= 3
        assert kernels(check(entropy, x, target, torch.rand(shape[1]), emitted=True, ulps=64)) <= 3


def test_targets_that_change_afterwards() -> None:
    def function(x: X, t: X) -> X:
        loss = F.cross_entropy(x, t)
        t.add_(1).remainder_(x.shape[1])
        return loss + F.cross_entropy(x, t)

    check(function, seeded(20, 70), torch.randint(0, 70, (20,)), emitted=True, ulps=64)


def test_targets_out_of_bounds() -> None:
    for wrong in (7, -1):
        target = torch.tensor([0, wrong, 2])
        compiled = quickfuse.compile(lambda x, t: F.cross_entropy(x, t))
        with pytest.raises(IndexError, match=f"Target {wrong} is out of bounds"):
            compiled(seeded(3, 7), target)
        assert compiled(seeded(3, 7), torch.tensor([0, -100, 6])) > 0


@pytest.mark.parametrize("function", [F.cross_entropy, F.nll_loss])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_losses_that_are_what_is_compiled(function: Any, reduction: str) -> None:
    compiled = quickfuse.compile(function, fullgraph=True)
    scores, target = torch.randn(6, 5).log_softmax(1), torch.tensor([0, 4, 2, -100, 1, 3])
    torch.testing.assert_close(compiled(scores, target, reduction=reduction), function(scores, target, reduction=reduction))
    (specialisation,) = compiled.specialisations
    assert specialisation.kernels and not specialisation.without_kernels
