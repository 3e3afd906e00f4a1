"""Whole numbers in tensors that programs count with, and branch on: guards follow what was added to them."""

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import quickfuse
from whole_programs import difference


def counted(n, x):
    n += 1
    return x * 2 if n >= 3 else x * 3


def method(n, x):
    n.add_(2).sub_(1)
    return x + 1 if n.item() == 2 else x - 1


def doubled(n, x):
    n.mul_(2)
    if n > 20:
        n.zero_()
    return x + 1 if n == 0 else x - 1


def filled(n, x):
    n.fill_(x.shape[0])
    x = x * 2 if n == 4 else x * 3
    n.copy_(torch.tensor(7, dtype=n.dtype))
    return x if n != 7 else x + 1


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("program", [counted, method, doubled, filled], ids=lambda p: p.__name__)
@pytest.mark.parametrize("start", [1, "last"])
def test_one_graph(program, dtype, start):
    outcomes = []
    compiled = quickfuse.compile(program, options={"raise_internal_errors": True})
    for called in (program, compiled):
        torch.manual_seed(0)
        n = torch.tensor(torch.iinfo(dtype).max - 1 if start == "last" else start, dtype=dtype)
        outcomes.append([(called(n, torch.randn(4)), n.clone()) for _ in range(6)])
    assert difference(*outcomes) is None
    assert not compiled.breaks


def test_a_loop_that_counts():
    def function(n, x):
        while n < 6:
            n += 1
            x = x * 1.5
        return x

    compiled = quickfuse.compile(function)
    for start in (0, 3, 6, 1):
        x = torch.randn(3)
        one, other = torch.tensor(start), torch.tensor(start)
        assert difference((function(one, x), one), (compiled(other, x), other)) is None


@pytest.mark.parametrize("rule", [None, get_ema_multi_avg_fn(0.9)], ids=["mean", "moving"])
def test_averages_of_two_steps(rule):
    """They copy in the first step, and average in the next."""
    outcomes, breaks = [], []
    for compiling in (False, True):
        torch.manual_seed(0)
        layer = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        average = AveragedModel(layer, multi_avg_fn=rule, use_buffers=True)
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)

        def steps(batches):
            for x in batches:
                optimizer.zero_grad()
                layer(x).square().mean().backward()
                optimizer.step()
                average.update_parameters(layer)

        called = quickfuse.compile(steps) if compiling else steps
        for _ in range(3):
            called(torch.randn(2, 4, 3).unbind())
        breaks += called.breaks if compiling else []
        outcomes.append([v.clone() for v in average.state_dict().values()])
    assert difference(*outcomes) is None
    assert not breaks


def even(n, x):
    n += 1
    return x * 2 if n % 2 == 0 else x * 3


def each_third(n, x):
    return (x + 1 if (n + 1) // 3 * 3 == n + 1 else x - 1) + n.add_(1)


def warm(n, x):
    """As the moving averages of diffusion models do."""
    decay = 0.5
    if n >= 0:
        n += 1
        decay = min(decay, (1 + n) / (10 + n))
    return x * (1 - decay)


def slower(n, x):
    rate = 1.0
    if 7 / n * n / 5 > 7 / 5:
        rate = n / 7 * 3
    n += 3
    return x * max(rate, 1 - 0.1 * (n - 1))


def changed_result(n, x):
    after = n + 1
    n.add_(5)
    x = x + 1 if after == 2 else x - 1
    after.mul_(2)
    return x + 1 if after == 4 else x - 1


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32, torch.float64])
@pytest.mark.parametrize("program", [even, each_third, warm, slower, changed_result], ids=lambda p: p.__name__)
@pytest.mark.parametrize("start", [1, -3, "last", (1 << 60) + (1 << 36) + 1])
def test_arithmetic_on_counters(program, dtype, start):
    outcomes = []
    compiled = quickfuse.compile(program, options={"raise_internal_errors": True})
    if start == "last":
        start = torch.iinfo(dtype).max - 1 if dtype in (torch.int32, torch.int64) else 1e30
    if dtype is torch.int32 and abs(start) > 1 << 32:
        pytest.skip("no number of this type")
    for called in (program, compiled):
        torch.manual_seed(0)
        n = torch.tensor(start, dtype=dtype)
        outcomes.append([(called(n, torch.randn(4)), n.clone()) for _ in range(6)])
    assert difference(*outcomes) is None
    divides = dtype.is_floating_point and program in (even, each_third)  # the rest of a float is not followed
    assert not compiled.breaks or divides or start == -3  # which counts up to zero


def test_a_divisor_that_becomes_zero():
    def function(n, x):
        x = x + 1 if 4 % n == 0 else x - 1
        return x + 1 if 1 / n > 0.4 else x - 1

    compiled = quickfuse.compile(function)
    for start in (2, 1, 3):
        assert difference(*(f(torch.tensor(start), torch.ones(2)) for f in (function, compiled))) is None
    for called in (function, compiled):
        with pytest.raises((RuntimeError, ZeroDivisionError), match="ZeroDivisionError|by zero"):
            called(torch.tensor(0), torch.ones(2))
    compiled(torch.tensor(2), torch.ones(2))
    assert difference(*(f(torch.tensor(0.0), torch.ones(2)) for f in (function, compiled))) is None


def test_a_loop_that_computes_its_counter():
    def function(n, x):
        while n < 40:
            n = n + 1
            x = x * 1.01
        return x

    compiled = quickfuse.compile(function)
    for start in (0, 3, 39, 1):
        assert difference(*(f(torch.tensor(start), torch.ones(3)) for f in (function, compiled))) is None
