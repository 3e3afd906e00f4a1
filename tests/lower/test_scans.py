"""Scans and scatters against eager: what goes along an axis in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from aten_helper import check_aten, check_gradients, externs
from quickfuse.ir.kernel import KernelCall
from schedule_interpreter import Compiled, RunInEager, check, compile_for_test

X = torch.Tensor

TYPES = [torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool]


def values(*shape: int, dtype: torch.dtype = torch.float32) -> X:
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.rand(shape, generator=generator) * 7 - 2).abs().to(dtype)


def indices(high: int, *shape: int, low: int = 0) -> X:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(high + len(shape)))


def only_kernels(schedule: Any, count: int | None = None) -> None:
    assert all(isinstance(step, KernelCall) for step in schedule.steps), str(schedule)
    assert count is None or len(schedule.steps) == count, str(schedule)


SCANS: dict[str, Callable[[X], Any]] = {
    "cumsum": lambda x: x.cumsum(-1),
    "cumsum_first": lambda x: (x * 2).cumsum(0) + 1,
    "cumsum_middle": lambda x: torch.cumsum(x, 1) * x,
    "cumprod": lambda x: (x / 3).cumprod(2),
    "cummax": lambda x: x.cummax(1),
    "cummin": lambda x: (x - 1).cummin(-1),
    "normalised": lambda x: x.cumsum(-1) / x.sum(-1, keepdim=True),
    "of_softmax": lambda x: x.softmax(-1).cumsum(-1) > 0.5,
    "twice": lambda x: x.cumsum(-1).cumsum(0),
    "two_axes": lambda x: x.cumsum(-1) + x.cumsum(0),
    "differences": lambda x: (lambda c: c[..., 3:] - c[..., :-3])(x.cumsum(-1)),
    "flipped": lambda x: x.flip(-1).cumsum(-1).flip(-1),
    "one_element": lambda x: x[:, :1].cumsum(1),
    "vector": lambda x: x[0, 0].cumsum(0),
    "transposed": lambda x: x.transpose(0, 2).cumsum(0) * 2,
    "type": lambda x: x.cumsum(-1, dtype=torch.float64),
}


@pytest.mark.parametrize("name", SCANS)
def test_scans(name: str) -> None:
    only_kernels(check(SCANS[name], values(3, 5, 37), emitted=True, ulps=16))
    check(SCANS[name], values(3, 5, 37).transpose(1, 2), emitted=True, ulps=64)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_types_of_scans(dtype: torch.dtype) -> None:
    def function(x: X) -> list[Any]:
        extrema = [] if dtype is torch.bool else [x.cummax(0), x.cummin(1)]
        return [x.cumsum(0), x.cumsum(1), x[:5].cumprod(0), *extrema]

    check(function, values(6, 21, dtype=dtype), emitted=True, ulps=2)


def test_special_values_in_scans() -> None:
    x = values(4, 9)
    x[0, 3], x[1], x[2, 5] = float("nan"), float("-inf"), float("inf")
    for name in ("cumsum", "cummax", "cummin"):
        check(lambda x, name=name: getattr(x, name)(1), x, emitted=True)
        check(lambda x, name=name: getattr(x, name)(0), x, emitted=True)


def test_a_scan_is_stored_once() -> None:
    schedule = check(lambda x: (x * 2).cumsum(-1).relu() + 1, values(8, 40), emitted=True)
    only_kernels(schedule, 1)


def mean_by_index(i: X, y: X) -> X:
    return torch.zeros(4, 40).index_add(0, i, y) / torch.zeros(4).index_add(0, i, torch.ones(9))[:, None]


SCATTERS: dict[str, tuple[Callable[..., Any], tuple[X, ...]]] = {
    "scatter_add": (lambda x, i, y: x.scatter_add(0, i, y) * 2, (values(5, 9), indices(5, 8, 9), values(8, 9))),
    "scatter_add_last": (lambda x, i, y: x.scatter_add(1, i, y), (values(5, 9), indices(9, 5, 30), values(5, 31))),
    "scatter_add_part": (lambda x, i, y: x.scatter_add(0, i, y), (values(5, 9), indices(5, 3, 4), values(8, 9))),
    "scatter_add_middle": (lambda x, i, y: x.scatter_add(1, i, y.exp()),
                           (values(3, 5, 9), indices(5, 3, 7, 9), values(3, 7, 9))),
    "scatter": (lambda x, i, y: x.scatter(1, i, y), (values(5, 9), indices(9, 5, 1), values(5, 1))),
    "scatter_value": (lambda x, i: x.scatter(1, i, 3.5), (values(5, 9), indices(9, 5, 4))),
    "scatter_reduce": (lambda x, i, y: x.scatter_reduce(0, i, y, "amax") + x.scatter_reduce(0, i, y, "prod"),
                       (values(5, 9), indices(5, 8, 9), values(8, 9))),
    "scatter_multiply": (lambda x, i, y: x.scatter(0, i, y, reduce="multiply"),
                         (values(5, 9), indices(5, 8, 9), values(8, 9))),
    "index_add": (lambda x, i, y: x.index_add(0, i, y) + 1, (values(5, 40), indices(5, 8), values(8, 40))),
    "index_add_last": (lambda x, i, y: x.index_add(1, i, y, alpha=2), (values(6, 40), indices(40, 8), values(6, 8))),
    "index_copy": (lambda x, i, y: x.index_copy(0, i, y), (values(5, 40), indices(5, 3), values(3, 40))),
    "index_fill": (lambda x, i: x.index_fill(1, i, 7.0), (values(5, 40), indices(40, 3, low=-40))),
    "index_put": (lambda x, i, y: x.index_put((i,), y), (values(5, 40), indices(5, 3, low=-5), values(3, 40))),
    "index_put_accumulate": (lambda x, i, y: x.index_put((i,), y, accumulate=True),
                             (values(5, 40), indices(5, 30), values(30, 40))),
    "index_put_pairs": (lambda x, i, j, y: x.index_put((i, j), y, accumulate=True),
                        (values(5, 9), indices(5, 30), indices(9, 30, low=-9), values(30))),
    "index_put_broadcast": (lambda x, i, j: x.index_put((i[:, None], j), x[0, 0] * 2, accumulate=True),
                            (values(5, 9), indices(5, 6), indices(9, 4))),
    "setitem": (lambda x, i, y: x.__setitem__(i, y), (values(5, 40), indices(5, 3, low=-5), values(40))),
    "setitem_number": (lambda x, i: x.__setitem__((slice(None), i), 2.0), (values(5, 40), indices(40, 3))),
    "setitem_part": (lambda x, i, y: x.__setitem__((slice(1, 3), i), y), (values(5, 40), indices(40, 3), values(2, 3))),
    "setitem_computed": (lambda x, i: [x.__setitem__(i, x[i] + 1), x * 2], (values(5, 40), indices(5, 3))),
    "in_place": (lambda x, i, y: x.index_add_(0, i, y).mul_(2), (values(5, 40), indices(5, 8), values(8, 40))),
    "in_place_scatter": (lambda x, i, y: x.t().scatter_add_(0, i, y), (values(9, 5), indices(5, 8, 9), values(8, 9))),
    "histogram": (lambda i: torch.zeros(7).scatter_add(0, i, torch.ones(100)), (indices(7, 100),)),
    "mean_by_index": (mean_by_index, (torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 3]), values(9, 40))),
}  # fmt: skip


@pytest.mark.parametrize("name", SCATTERS)
def test_scatters(name: str) -> None:
    function, inputs = SCATTERS[name]
    only_kernels(check(function, *inputs, emitted=True, ulps=16))


CACHES: dict[str, Callable[..., Any]] = {
    "setitem": lambda cache, i, k: cache.__setitem__(i, k * 2),
    "index_copy": lambda cache, i, k: cache.index_copy_(0, i, k).sum(),
    "index_add": lambda cache, i, k: (cache.sum(1), cache.index_add_(0, i, k), k + 1),
    "twice": lambda cache, i, k: (cache.__setitem__(i, k), cache.index_add_(0, i, k)),
    "read_before": lambda cache, i, k: (cache[i] + k, cache.__setitem__(i, k), k.mul_(2)),
}


@pytest.mark.parametrize("name", CACHES)
def test_scatters_to_inputs_are_in_place(name: str) -> None:
    schedule = check(CACHES[name], values(50, 8), indices(50, 4), values(4, 8), emitted=True, ulps=16)
    only_kernels(schedule)
    copies = [buffer for buffer in schedule.temps if buffer.meta.shape == (50, 8)]
    assert bool(copies) == (name in ("index_copy", "twice")), "what a scatter leaves is read afterwards"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64, torch.uint8], ids=str)
def test_types_of_scatters(dtype: torch.dtype) -> None:
    x, i, y = values(5, 9, dtype=dtype), indices(5, 8, 9), values(8, 9, dtype=dtype)

    def function(x: X, i: X, y: X) -> list[X]:
        return [x.scatter_add(0, i, y), x.index_add(0, i[:, 0], y), x.scatter(1, i[:5, :1], y)]

    check(function, x, i, y, emitted=True, ulps=2)


@pytest.mark.parametrize("bad", [5, -6, 1 << 40])
def test_out_of_range(bad: int) -> None:
    x, good, y = values(5, 9), torch.tensor([0, 4, 2]), values(3, 9)
    for function in (lambda x, i, y: x.index_add(0, i, y), lambda x, i, y: x.index_put((i,), y),
                     lambda x, i, y: x.scatter_add(0, i[:, None], y)):  # fmt: skip
        schedule, interpreter = compile_for_test(function, x, good, y)
        for runner in (interpreter, Compiled(schedule, interpreter.names)):
            with pytest.raises(RunInEager):
                runner(x, torch.tensor([0, bad, 2]), y)


GRADIENTS: dict[str, tuple[Callable[..., Any], tuple[X, ...]]] = {
    "embedding": (lambda w, i: F.embedding(i, w, padding_idx=2), (values(7, 40), indices(7, 3, 5))),
    "gather": (lambda x, i: x.gather(1, i), (values(5, 9), indices(9, 5, 12))),
    "index_select": (lambda x, i: x.index_select(1, i), (values(5, 9), indices(9, 12))),
    "index": (lambda x, i: x[:, i], (values(5, 9), indices(9, 12))),
    "pairs": (lambda x, i, j: x[i, j], (values(5, 9), indices(5, 12), indices(9, 12))),
    "cumsum": (lambda x: x.cumsum(1), (values(5, 9),)),
    "slices": (lambda x: x[1:3, ::2].sin() + x[0, 0], (values(5, 9),)),
    "cat": (lambda x, y: torch.cat([x * 2, y], 1).exp(), (values(5, 9), values(5, 3))),
    "pad": (lambda x: F.pad(x, (1, 2, 0, 1)).square(), (values(5, 9),)),
    "roll": (lambda x: x.roll(2, 1) * x.flip(0), (values(5, 9),)),
    "tril": (lambda x: x.tril() @ x.t(), (values(5, 9),)),
    "max_pool": (lambda x: F.max_pool2d(x, 3, 2, 1), (values(2, 3, 9, 13),)),
    "max_pool_tiles": (lambda x: F.max_pool2d(x, 2).square(), (values(2, 3, 8, 12),)),
    "repeat": (lambda x: x.repeat(2, 1) * x.repeat_interleave(2, 0), (values(5, 9),)),
    "scatter_add": (lambda x, i, y: x.scatter_add(0, i, y), (values(5, 9), indices(5, 8, 9), values(8, 9))),
    "stack": (lambda x: torch.stack([x, x.sin()], 1), (values(5, 9),)),
    "diagonal": (lambda x: x.diagonal(1) * 2, (values(5, 9),)),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str) -> None:
    function, inputs = GRADIENTS[name]
    called = externs(check_gradients(function, *inputs))
    assert not [c for c in called if "mm" not in c and "small_product" not in c], called


def test_gradient_of_pooling_in_channels_last() -> None:
    check_gradients(lambda x: F.max_pool2d(x, 3, 2, 1), values(2, 3, 9, 13).to(memory_format=torch.channels_last))
    aten = torch.ops.aten
    grad, i = values(12, 40), indices(7, 12)
    assert not externs(check_aten(lambda g, i: aten.embedding_dense_backward(g, i, 7, 3, False), grad, i))


def test_aten_forms() -> None:
    aten, x, i = torch.ops.aten, values(5, 5, 9), indices(5, 2, 4)

    def function(x: X, i: X, y: X, z: X) -> list[X]:
        return [aten.index_put(x, [None, i], y, True) * 2, aten.index_put(x, [i, None, i], z, False),
                aten.index_put(x, [i], z[0, 0, 0], True), aten.index(x, [None, i]), aten.index(x, [i, None, i])]  # fmt: skip

    assert not externs(check_aten(function, x, i, values(5, 2, 4, 9), values(2, 4, 5)))
