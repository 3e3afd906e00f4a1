"""Losses of classes: backward computes the logarithms of probabilities again, from the scores and two numbers a row."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from differentiate.test_memory import kept_by_eager, share
from differentiate.twins import compiled
from quickfuse.bench.traffic import kernel_work, on_gpu

ROWS, CLASSES = 96, 704


class Head(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.linear = nn.Linear(8, CLASSES, dtype=dtype)

    def forward(self, x, target):
        return F.cross_entropy(self.linear(x), target)


def classes() -> torch.Tensor:
    return torch.randint(0, CLASSES, (ROWS,))


def smoothed(x, t):
    return F.cross_entropy(x * 3, t, label_smoothing=0.1)


def weighted(x, t):
    return F.cross_entropy(x * 3, t, torch.arange(CLASSES, dtype=x.dtype), reduction="sum")


def ignoring(x, t):
    return F.cross_entropy(x * 3, t.where(t > 100, -7), ignore_index=-7)


def each(x, t):
    return F.cross_entropy(x * 3, t, reduction="none").square().sum()


def of_probabilities(x, t):
    return F.cross_entropy(x * 3, F.one_hot(t, CLASSES).to(x.dtype) * 0.7 + 0.3 / CLASSES)


def logarithms(x, t):
    return (F.log_softmax(x * 3, -1) * t[:, None]).sum()


def of_columns(x, t):
    return F.nll_loss(F.log_softmax(x.t().contiguous()[None] * 3, 1), t[None])


def with_another_type(x, t):
    return F.nll_loss(F.log_softmax(x, 1, dtype=torch.float32), t)


def wanted_too(x, t):
    logs = F.log_softmax(x * 3, -1)
    return F.nll_loss(logs, t) + (logs * logs.exp()).mean(), logs


FUNCTIONS = [
    F.cross_entropy, smoothed, weighted, ignoring, each, of_probabilities, logarithms, of_columns, with_another_type,
    wanted_too,
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradients(function, dtype) -> None:
    torch.manual_seed(0)
    x, target = (100 * torch.randn(ROWS, CLASSES)).to(dtype), classes()
    found = []
    for run in (function, compiled(lambda x, t: function(x, t))):
        leaf = x.clone().requires_grad_()
        result = run(leaf, target)
        loss = result[0] if isinstance(result, tuple) else result
        loss.backward()
        found.append((loss.detach(), leaf.grad))
    eps = torch.finfo(loss.dtype).eps
    for expected, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=16 * eps, atol=16 * eps * float(expected.abs().max()))


def test_extremes() -> None:
    """Rows with infinities, and of nothing but negative infinity."""
    x, target = torch.randn(ROWS, CLASSES), classes()
    x[0, 5], x[1], x[2, :600], x[3, 7], x[4, 9] = torch.inf, -torch.inf, -torch.inf, torch.nan, 3e38
    found = []
    for run in (F.cross_entropy, compiled(lambda x, t: F.cross_entropy(x, t))):
        leaf = x.clone().requires_grad_()
        run(leaf, target).backward()
        found.append(leaf.grad)
    torch.testing.assert_close(found[1], found[0], equal_nan=True)


def test_scores_may_change_before_backward() -> None:
    """Eager does not keep them, and raises no exception."""
    x, target = torch.randn(ROWS, CLASSES), classes()
    found = []
    for run in (F.cross_entropy, compiled(lambda x, t: F.cross_entropy(x, t))):
        leaf = x.clone().requires_grad_()
        loss = run(leaf, target)
        with torch.no_grad():
            leaf.mul_(2)
        loss.backward()
        found.append(leaf.grad)
    torch.testing.assert_close(found[1], found[0])


def test_only_one_gradient() -> None:
    x, target = torch.randn(ROWS, CLASSES), classes()
    run = compiled(lambda x, t: wanted_too(x, t))
    for k in (0, 1, 0):
        leaf, other = x.clone().requires_grad_(), x.clone().requires_grad_()
        run(leaf, target)[k].sum().backward()
        wanted_too(other, target)[k].sum().backward()
        torch.testing.assert_close(leaf.grad, other.grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_two_numbers_a_row_are_kept_beside_the_scores(dtype) -> None:
    model, x, target = Head(dtype), torch.randn(ROWS, 8, dtype=dtype), classes()
    scores = ROWS * CLASSES * dtype.itemsize
    kept = share(model, x, target) * kept_by_eager(model, x, target)
    assert scores <= kept <= scores + ROWS * 8 + 64


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_forward_reads_scores_once(dtype) -> None:
    model, x, target = Head(dtype), torch.randn(ROWS, 8, dtype=dtype), classes()

    def loss(x, target):
        return model(x, target)

    scores = ROWS * CLASSES * dtype.itemsize
    forward, backward = (sum(work.moved for work in kernel_work(schedule)) for schedule in on_gpu(loss, x, target))
    assert forward < 1.2 * scores  # with the operands of the product, which are converted
    assert backward < 2.2 * scores


def test_a_copy_of_scores_costs_no_pass() -> None:
    """Scores that are an input are not kept in eager, so there is a copy of them: stored as they are read."""
    x = torch.randn(ROWS, CLASSES, requires_grad=True)
    forward, _ = on_gpu(lambda x, t: F.cross_entropy(x, t), x, classes())
    large = [work for work in kernel_work(forward) if work.moved >= x.nbytes]
    assert len(large) == 1 and large[0].moved < 2.1 * x.nbytes


@pytest.mark.parametrize("classes, smaller", [(1000, False), (9000, True)])
def test_on_cpus_scores_are_copied_in_long_rows_alone(classes, smaller) -> None:
    x, target = torch.randn(64, classes, requires_grad=True), torch.randint(0, classes, (64,))
    loss = compiled(lambda x, t: F.cross_entropy(x, t))(x, target)
    assert smaller == any(tensor.shape == (64, 1) for tensor in loss.grad_fn.saved_tensors)
    loss.backward()
    torch.testing.assert_close(x.grad, torch.autograd.grad(F.cross_entropy(x, target), x)[0])


def test_short_rows_are_kept() -> None:
    model = nn.Sequential(nn.Linear(8, 10), nn.LogSoftmax(-1))
    assert share(model, torch.randn(9000, 8)) <= 1.0


POOLS = [
    (lambda x: F.max_pool2d(x * 2, 3, 2, 1), (4, 8, 36, 32), torch.int16),
    (lambda x: F.max_pool2d(x * 2, 2), (64, 64, 8, 8), torch.int8),
    (lambda x: F.max_pool2d(x * 2, (1, 3)), (1, 1, 300, 300), torch.int32),
    (lambda x: F.max_pool3d(x * 2, 2), (8, 8, 8, 16, 12), torch.int16),
    (lambda x: F.max_pool2d((x * 2).contiguous(memory_format=torch.channels_last), 3, 2, 1), (4, 8, 40, 40), torch.int16),
]


@pytest.mark.parametrize("function, shape, dtype", POOLS)
def test_indices_are_kept_in_few_bits(function, shape, dtype) -> None:
    x = torch.randint(-9, 9, shape).float()  # the largest elements are not alone
    found = []
    for run in (function, compiled(lambda x: function(x))):
        leaf = x.clone().requires_grad_()
        result = run(leaf)
        kept = [t.dtype for t in getattr(result.grad_fn, "saved_tensors", ())]
        result.backward(torch.arange(result.numel()).view(result.shape).float())
        found.append(leaf.grad)
    assert dtype in kept and torch.int64 not in kept
    torch.testing.assert_close(found[1], found[0])


def test_indices_that_are_a_result_are_kept_as_they_are() -> None:
    def function(x):
        return F.max_pool2d(x * 2, 2, return_indices=True)

    x = torch.randn(2, 8, 64, 64, requires_grad=True)
    result, indices = compiled(function)(x)
    assert all(t.dtype is not torch.int16 for t in result.grad_fn.saved_tensors)
    expected, where = function(x)
    assert torch.equal(indices, where)
    mine, its = (torch.autograd.grad(r.sum(), x)[0] for r in (result, expected))
    torch.testing.assert_close(mine, its)
