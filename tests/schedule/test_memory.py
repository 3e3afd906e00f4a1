"""Temporaries die: a schedule needs no more memory at a time than eager does."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import quickfuse
from quickfuse.ir.kernel import KernelCall, Schedule
from quickfuse.ir.loop import Buffer, View
from quickfuse.schedule.dependence import Node
from quickfuse.schedule.fusion import FusionGroup
from schedule_interpreter import compile_for_test

X = torch.Tensor


def peak(schedule: Schedule) -> int:
    """The most bytes that buffers have at a time which live from their first to their last use, outputs to the end."""
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    for number, step in enumerate(schedule.steps):
        for buffer in step.buffers:
            if buffer.kind in ("temp", "output"):
                first.setdefault(buffer, number)
                last[buffer] = number
    for output in schedule.program.outputs:
        last[output.buffer if isinstance(output, View) else output] = len(schedule.steps)
    size = {buffer: buffer.meta.numel * buffer.meta.dtype.itemsize for buffer in first}
    return max(sum(size[b] for b in first if first[b] <= n <= last[b]) for n in range(len(schedule.steps)))


class Bytes(TorchDispatchMode):
    """Counts the memory of tensors that are alive."""

    def __init__(self, *known: X) -> None:
        super().__init__()
        self.live = self.most = 0
        self.known = [tensor.untyped_storage() for tensor in known]
        self.sizes = {storage._cdata: 0 for storage in self.known}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (list, tuple)) else [result]:
            storage = tensor.untyped_storage()
            if storage._cdata not in self.sizes:
                self.sizes[storage._cdata] = storage.nbytes()
                self.live += storage.nbytes()
                self.most = max(self.most, self.live)
                weakref.finalize(storage, self._gone, storage._cdata)
        return result

    def _gone(self, storage: int) -> None:
        self.live -= self.sizes.pop(storage)


def dense_block(x: X, *weights: X) -> X:
    """Each layer sees what all before it have made, as in DenseNet."""
    features = [x]
    for weight in weights:
        seen = torch.cat(features, 1)
        features.append(F.conv2d(F.relu(seen * 2 + 1), weight[:, : seen.shape[1]], padding=1))
    return torch.cat(features, 1).mean((2, 3))


def chain(x: X, *weights: X) -> X:
    for _ in range(6):
        x = (x @ x.t()).softmax(-1) @ x
        x = torch.cat([x[:, :8].exp(), x[:, 8:].sin()], 1) + x
    return x


@pytest.mark.parametrize("function", [dense_block, chain])
def test_peak(function: Callable[..., X]) -> None:
    x = torch.randn(2, 8, 16, 16) if function is dense_block else torch.randn(64, 64)
    weights = [torch.randn(8, 80, 3, 3) for _ in range(8)] if function is dense_block else []
    schedule, _ = compile_for_test(function, x, *weights)
    with torch.no_grad(), Bytes(x, *weights) as eager:
        function(x, *weights)
    assert peak(schedule) <= eager.most


def test_results_lie_where_operands_end() -> None:
    """What an activation makes of a product's result is stored in its place, and so is what the next loop makes of that."""
    def program(x: X, w: X) -> X:
        y = torch.relu(torch.mm(x, w) * 2)
        product = torch.mm(y, w)
        z = product - product.mean(1, keepdim=True)
        return torch.mm(z, w)

    schedule, _ = compile_for_test(program, torch.randn(200, 200), torch.randn(200, 200))
    assert peak(schedule) <= 2 * 200 * 200 * 4
    written = [slot.access for step in schedule.steps if isinstance(step, KernelCall) for slot in step.body.slots]
    assert "rw" in written


def test_what_may_share_memory_with_a_result_is_left_alone() -> None:
    """`reshape` of rows without gaps is the same memory, which is read once more after the last loop that reads the rows."""
    def program(x: X, w: X) -> tuple[X, X]:
        product = torch.mm(x, w)
        same = product.reshape(50, 800)
        return torch.mm(torch.sin(product) * 2, w), torch.linalg.qr(same)[1]

    x, w = torch.randn(200, 200), torch.randn(200, 200)
    for mine, eager in zip(quickfuse.compile(program)(x, w), program(x, w), strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-3, atol=1e-3)


def test_what_frees_memory_runs_first() -> None:
    """Rows are added up before the other kernel of their rank makes a large tensor."""
    def program(x: X, *rows: X) -> tuple[X, X]:
        products = [torch.mm(row, x) for row in rows]
        table = torch.zeros(4000, 256).index_add_(0, torch.arange(64), torch.mm(products[0].t()[:64], products[1]))
        return table, sum(product.sum(0) for product in products)

    x, rows = torch.randn(256, 256), [torch.randn(200, 256) for _ in range(8)]
    schedule, _ = compile_for_test(program, x, *rows)
    assert peak(schedule) <= 4 * (4000 * 256 + 2 * 200 * 256)


def test_calls_with_large_results_wait_until_they_are_needed() -> None:
    def program(x: X, *weights: X) -> X:
        total = torch.mm(x, x.t())
        for weight in weights:
            total = torch.mm(torch.sin(total), total) + torch.mm(x, weight)
        return total

    schedule, _ = compile_for_test(program, torch.randn(200, 8), *[torch.randn(8, 200) for _ in range(6)])
    assert peak(schedule) <= 4 * 200 * 200 * 4


def test_what_scheduling_made_needs_no_garbage_collection() -> None:
    """Of hundreds of thousands of objects, a first call's garbage collection took a twentieth of its time."""
    gc.collect()
    gc.disable()
    try:
        schedule, _ = compile_for_test(lambda x: torch.softmax(x, 1) @ x.relu() + x.sum(0), torch.randn(4, 4))
        left = [made for made in gc.get_objects() if type(made) in (Node, FusionGroup)]
    finally:
        gc.enable()
    assert schedule.steps and not left
