"""Operators that select elements by tensors of indices, against eager: as programs and as emitted kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import quickfuse
from quickfuse.bench.traffic import kernel_work, on_gpu
from quickfuse.ir.kernel import KernelCall
from schedule_interpreter import Compiled, RunInEager, check, compile_for_test
from seeding import seed_torch

X = torch.Tensor

TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool]


def values(*shape: int, dtype: torch.dtype = torch.float32) -> X:
    seed_torch(0)
    return (torch.rand(shape) * 7 - 2).abs().to(dtype) if dtype is torch.uint8 else (torch.rand(shape) * 7 - 2).to(dtype)


def indices(high: int, *shape: int, low: int = 0, dtype: torch.dtype = torch.int64) -> X:
    seed_torch(1)
    return torch.randint(low, high, shape, dtype=dtype)


def only_kernels(schedule: Any, count: int | None = None) -> None:
    assert all(isinstance(step, KernelCall) for step in schedule.steps), str(schedule)
    assert count is None or len(schedule.steps) == count, str(schedule)


CASES: dict[str, tuple[Callable[..., Any], tuple[X, ...]]] = {
    "embedding": (lambda w, i: F.embedding(i, w) * 2, (values(11, 40), indices(11, 3, 5))),
    "embedding_int32": (lambda w, i: F.embedding(i, w), (values(11, 7), indices(11, 6, dtype=torch.int32))),
    "embedding_0d": (lambda w, i: torch.embedding(w, i), (values(11, 7), indices(11))),
    "embedding_padding": (lambda w, i: F.embedding(i, w, padding_idx=0).relu(), (values(11, 7), indices(11, 4, 1))),
    "gather0": (lambda x, i: x.gather(0, i) + 1, (values(5, 9), indices(5, 3, 8))),
    "gather1": (lambda x, i: torch.gather(x, -1, i), (values(5, 9), indices(9, 5, 33))),
    "gather_transposed": (lambda x, i: x.t().gather(1, i), (values(5, 9), indices(5, 9, 4))),
    "gather_0d": (lambda x, i: x.gather(0, i), (values(), indices(1))),
    "index_select0": (lambda x, i: x.index_select(0, i).exp(), (values(5, 9, 2), indices(5, 7))),
    "index_select2": (lambda x, i: x.index_select(-1, i), (values(5, 9, 20), indices(20, 33))),
    "index_select_number": (lambda x, i: x.index_select(1, i), (values(5, 9), indices(9))),
    "index_select_expanded": (lambda x, i: x.expand(4, 3, 9).index_select(1, i), (values(3, 9), indices(3, 5))),
    "take": (lambda x, i: x.take(i), (values(5, 9), indices(45, 3, 4, low=-45))),
    "take_transposed": (lambda x, i: x.t().take(i), (values(5, 9), indices(45, 30))),
    "take_along": (lambda x, i: torch.take_along_dim(x, i, 1), (values(5, 9), indices(9, 5, 4))),
    "take_along_all": (lambda x, i: torch.take_along_dim(x, i), (values(5, 9), indices(45, 6))),
    "take_along_broadcast": (lambda x, i: torch.take_along_dim(x, i, 1), (values(1, 9), indices(9, 5, 4))),
    "take_along_sorted": (lambda x: torch.take_along_dim(x, x.argsort(1), 1), (values(5, 9),)),
    "rows": (lambda x, i: x[i], (values(5, 9), indices(5, 3, 2, low=-5))),
    "columns": (lambda x, i: x[:, i] * 2, (values(5, 9), indices(9, 12, low=-9))),
    "middle": (lambda x, i: x[:, i], (values(4, 5, 6), indices(5, 2, 3))),
    "pairs": (lambda x, i, j: x[i, j], (values(5, 9), indices(5, 7), indices(9, 7, low=-9))),
    "broadcast_pairs": (lambda x, i, j: x[i[:, None], j], (values(5, 9), indices(5, 3), indices(9, 4))),
    "adjacent": (lambda x, i, j: x[:, i, j], (values(3, 5, 9), indices(5, 7), indices(9, 7))),
    "apart": (lambda x, i, j: x[i, :, j], (values(5, 3, 9), indices(5, 7), indices(9, 2, 7))),
    "slices": (lambda x, i: x[1:, ..., i, ::2], (values(3, 2, 9, 5), indices(9, 4))),
    "new_axis": (lambda x, i: x[None, i, 1:], (values(5, 9), indices(5, 4))),
    "integer": (lambda x, i: x[2, i], (values(5, 9), indices(9, 4))),
    "computed": (lambda x, y: x.gather(1, (y * 3).long().clamp(0, 8)), (values(5, 9), values(5, 6))),
    "computed_source": (lambda x, i: (x.sin() * 2)[i] + 1, (values(5, 9), indices(5, 4))),
    "of_argmax": (lambda x: x.gather(1, x.argmax(1, keepdim=True)) - x, (values(5, 9),)),
    "summed": (lambda x, i: x[i].sum(-1), (values(5, 70), indices(5, 40))),
    "summed_columns": (lambda x, i: x[i].sum(0), (values(5, 70), indices(5, 40))),
    "summed_gather": (lambda x, i: x.gather(1, i).mean(1), (values(5, 70), indices(70, 5, 100))),
    "twice": (lambda x, i: x[i][:, i], (values(9, 9), indices(9, 4))),
    "reshaped": (lambda x, i: x[i].reshape(3, -1).t() * 2, (values(5, 8), indices(5, 6))),
    "no_indices": (lambda x, i: x[i] + 1, (values(5, 9), indices(5, 0))),
    "empty_rows": (lambda x, i: x[:, i] + 1, (values(0, 9), indices(9, 4))),
    "large": (lambda x, i: x.index_select(1, i) + x.gather(1, i[None].expand(30, -1)), (values(30, 300), indices(300, 999))),
}


@pytest.mark.parametrize("name", CASES)
def test_against_eager(name: str) -> None:
    function, inputs = CASES[name]
    schedule = check(function, *inputs, emitted=True, ulps=16)
    if name not in ("take_along_sorted", "gather_0d"):
        only_kernels(schedule)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_types(dtype: torch.dtype) -> None:
    x, i = values(6, 35, dtype=dtype), indices(35, 6, 50)
    schedule = check(lambda x, i: (x.gather(1, i), x[i[:, 0] % 6], x.t()[i[0]]), x, i, emitted=True, exact=True)
    only_kernels(schedule)


def test_fuses_with_neighbours() -> None:
    schedule = check(lambda x, w, i: (F.embedding(i, w) + x).relu(), values(3, 5, 40), values(11, 40), indices(11, 3, 5),
                     emitted=True)  # fmt: skip
    only_kernels(schedule, 2)  # the other one checks the indices
    only_kernels(check(lambda x, i: (x + 3).gather(1, i) * 2, values(5, 9), indices(9, 5, 4), emitted=True), 1)


def test_input_that_is_changed_where_it_is_gathered_from() -> None:
    def function(x: X, i: X) -> X:
        y = x[i] * 2
        x += 1
        return y

    check(function, values(5, 9), indices(5, 4), emitted=True)
    check(lambda x, i: x.copy_(x[i]), values(5, 9), indices(5, 5), emitted=True)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: x[i], lambda x, i: x.gather(0, i[:, None]), lambda x, i: x.index_select(0, i) * 2,
        lambda x, i: F.embedding(i, x), lambda x, i: x.take(i * 9), lambda x, i: x[i, i] + 1,
    ],
)  # fmt: skip
@pytest.mark.parametrize("bad", [5, 1 << 40, -6, -(1 << 62)])
def test_out_of_range(function: Callable[..., X], bad: int) -> None:
    x, good = values(5, 9), torch.tensor([0, 4, 2])
    schedule, interpreter = compile_for_test(function, x, good)
    for runner in (interpreter, Compiled(schedule, interpreter.names)):
        torch.testing.assert_close(runner(x, good)[0], function(x, good))
        with pytest.raises(RunInEager):
            runner(x, torch.tensor([0, bad, 2]))


@pytest.mark.parametrize("others", [[1, 2, 3], [2], [0, 3]], ids=str)
@pytest.mark.parametrize("name", ["taken", "set", "put"])
def test_a_mask_beside_a_tensor_of_indices(name: str, others: list[int]) -> None:
    """How many elements a mask selects is known when it runs: there are as many of the others, or one."""

    def changed(x: X, mask: X, i: X) -> X:
        x = x * 2
        x[mask, i] = 1.0
        return x

    def taken(x: X, mask: X, i: X) -> X:
        return x[mask, i] + 1

    def put(x: X, mask: X, i: X) -> X:
        return x.index_put((mask, i), torch.tensor(2.0), accumulate=True) * 2

    function = {"taken": taken, "set": changed, "put": put}[name]
    compiled = quickfuse.compile(function, options={"raise_internal_errors": True})
    x, i = values(7, 4), torch.tensor(others)
    for selected in ([0, 2, 5], [0, 5]):
        mask = torch.zeros(7, dtype=torch.bool).index_fill(0, torch.tensor(selected), True)
        if len(others) in (1, len(selected)):
            torch.testing.assert_close(compiled(x, mask, i), function(x, mask, i), rtol=0, atol=0)
        else:
            with pytest.raises((IndexError, RuntimeError)):
                compiled(x, mask, i)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_few_elements_of_a_formula_are_computed_in_any_type(dtype: torch.dtype) -> None:
    """Cross entropy reads the logarithm of one probability of each row: it is not stored for all classes."""

    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x, target)

    x, target = torch.randn(64, 3000).to(dtype), torch.arange(64)
    (schedule,) = on_gpu(loss, x, target)
    assert sum(work.moved for work in kernel_work(schedule)) < 1.1 * x.nbytes
