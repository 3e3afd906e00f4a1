"""Kernels for a GPU that go through rows: what they compute, by Triton's interpreter, and their code, by compiling it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from quickfuse.emit.triton import emit
from quickfuse.ir.kernel import Access, Form
from quickfuse.ir.target import CUDA
from quickfuse.launch.cuda_shapes import program_table

pytest.importorskip("triton")

from triton_runner import check, compiled, gpu_schedule, kernels, shape_of

aten = torch.ops.aten
R = torch.randn


def bf(*shape: int) -> torch.Tensor:
    return R(*shape).bfloat16()


def whole(most: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, most, shape)


def same(function: Callable[..., Any], *inputs: Any, launches: int = 0, ulps: float = 16) -> None:
    check(function, *inputs, launches=launches, ulps=ulps)


def test_sums() -> None:
    same(lambda x: (x.sum(-1), x.sum(-1, keepdim=True) + x), R(13, 37), launches=1)
    same(lambda x: x.sum(0), R(13, 37), launches=1)
    same(lambda x: x.sum(), R(13, 37), launches=1, ulps=64)
    same(lambda x: x.sum(1), R(5, 7, 9), launches=1)
    same(lambda x: x.sum((0, 2)), R(5, 7, 9), launches=1, ulps=64)
    same(lambda x: x.sum(-1), bf(13, 37), launches=1)
    same(lambda x: x.sum(1), whole(100, 5, 7), launches=1)
    same(lambda x: x.double().sum(1), R(5, 7), launches=1)


def test_several_reductions_of_the_same_elements_are_one_pass() -> None:
    same(lambda x: (x.mean(1), x.amax(1), x.amin(1), (x > 0).any(1), (x > -3).all(1)), R(13, 37), launches=1)
    same(lambda x: (x.argmax(1), *x.max(1), x.argmin(1)), R(13, 37), launches=1)


def test_nan_is_the_largest_and_the_least() -> None:
    x = R(3, 5)
    x[1, 2] = torch.nan
    same(lambda x: (x.amax(1), x.amin(1), x.max(1), torch.softmax(x, 1)), x)
    same(lambda x: torch.softmax(x, 1), torch.full((2, 3), -torch.inf))


def test_products_and_moments() -> None:
    same(lambda x: (x.prod(1), x.var(1), x.std(1), x.norm(dim=1)), R(13, 7))
    same(lambda x: (x.var(0), x.norm()), R(13, 37), ulps=64)


@pytest.mark.parametrize("make", [R, bf], ids=["float32", "bfloat16"])
def test_softmax(make: Any) -> None:
    for axis in (0, 1):
        same(lambda x, axis=axis: torch.softmax(x, axis), make(13, 37), launches=1)
        same(lambda x, axis=axis: torch.log_softmax(x, axis), make(13, 37), launches=1)
    y = torch.softmax(make(13, 37), 1)
    same(lambda g, y: aten._softmax_backward_data(g, y, 1, y.dtype), make(13, 37), y, launches=1)
    y = torch.log_softmax(make(13, 37), 1)
    same(lambda g, y: aten._log_softmax_backward_data(g, y, 1, y.dtype), make(13, 37), y, launches=1, ulps=32)
    same(lambda x: torch.logsumexp(x, 1), make(13, 37), launches=1)


@pytest.mark.parametrize("make", [R, bf], ids=["float32", "bfloat16"])
def test_layer_norm(make: Any) -> None:
    x, w, b = make(13, 48), make(48), make(48)
    same(lambda x, w, b: F.layer_norm(x, (48,), w, b), x, w, b, launches=1)
    same(lambda x, w: F.rms_norm(x, (48,), w), x, w, launches=1)
    _, mean, scale = aten.native_layer_norm(x.float(), [48], None, None, 1e-5)
    if make is R:
        same(
            lambda g, *o: aten.native_layer_norm_backward(g, o[0], [48], *o[1:], [True] * 3),
            make(13, 48), x, mean, scale, w, b, ulps=64,
        )  # fmt: skip


def test_group_and_batch_norm() -> None:
    x, w, b = R(3, 6, 4, 5), R(6), R(6)
    same(lambda x, w, b: F.group_norm(x, 2, w, b), x, w, b, launches=1)
    same(lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, True), x, R(6), R(6).abs(), w, b, launches=1, ulps=64)
    same(lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, False), x, R(6), R(6).abs(), w, b, launches=1)
    last = x.contiguous(memory_format=torch.channels_last)
    same(lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, True), last, R(6), R(6).abs(), w, b, ulps=64)
    _, mean, scale = aten.native_batch_norm(x, w, b, None, None, True, 0.1, 1e-5)
    same(lambda g, x, w, m, s: aten.native_batch_norm_backward(g, x, w, None, None, m, s, True, 1e-5, [True] * 3),
         R(3, 6, 4, 5), x, w, mean, scale, launches=1, ulps=64)  # fmt: skip


def test_cross_entropy() -> None:
    same(lambda x, t: F.cross_entropy(x, t), R(13, 37), whole(37, 13))
    same(lambda x, t: F.nll_loss(x, t), R(13, 37), whole(37, 13))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_log_probabilities_of_a_loss_are_not_stored(dtype: torch.dtype) -> None:
    """Only those of the targets are computed, in types that are rounded, too."""
    x, target = R(13, 37).to(dtype), whole(37, 13)
    schedule, _ = gpu_schedule(F.cross_entropy, x, target)
    assert all(x.shape != buffer.meta.shape for buffer in schedule.temps)
    same(lambda x, t: F.cross_entropy(x, t), x, target)


def test_statistics_that_change_in_place() -> None:
    same(lambda x, m: m.lerp_(x.mean(0), 0.1), R(13, 37), R(37), launches=1)


def test_members_of_different_sizes() -> None:
    same(lambda xs: [torch.softmax(x, -1) for x in xs], [R(5, 6), R(3, 4), R(2, 40)], launches=1)
    same(lambda xs: torch._foreach_norm(xs), [R(5), R(3, 4), R(40)], launches=1, ulps=64)


def test_joined_and_moved() -> None:
    same(lambda x, y: torch.cat([x, y * 2], 1).relu(), R(5, 7), R(5, 9))
    same(lambda x, y: (torch.stack([x, y]), F.pad(x, (1, 2)), x.roll(3, 1)), R(5, 7), R(5, 7))
    same(lambda x: (x.tril(), x.triu(1)), R(5, 5))
    same(lambda x: x.t().contiguous() + 1, R(33, 20), launches=1)
    same(lambda x, y: x + y.t(), R(33, 20), R(20, 33), launches=1)
    same(lambda x: x.contiguous(memory_format=torch.channels_last) * 2, R(2, 17, 4, 5), launches=1)


def test_loads_at_computed_indices() -> None:
    index = whole(9, 3, 5)
    same(lambda w, i: F.embedding(i, w), R(9, 16), index)
    same(lambda x, i: x.gather(1, i), R(3, 9), index)
    same(lambda x, i: (x[i] + 1, x.index_select(0, i[0])), R(9, 4), index)


def test_a_load_at_a_computed_index_for_one_element() -> None:
    same(lambda x, t: F.cross_entropy(x, t), R(37), torch.tensor(3))
    same(lambda x, i: x[i].sum() + x.gather(0, i[:1]), R(37), whole(37, 1))


def test_an_index_out_of_range_stops_the_kernel() -> None:
    schedule, _ = gpu_schedule(lambda w, i: F.embedding(i, w), R(9, 16), whole(9, 3))
    checks, loads = compiled(schedule)
    assert "__assertfail" in checks.ptx and "__assertfail" not in loads.ptx


def test_scatters() -> None:
    index = torch.tensor([3, 1, 3, 0, 8])
    same(lambda x, i, y: x.index_add(0, i, y), R(9, 4), index, R(5, 4))
    same(lambda x, i, y: x.index_add(0, i, y), bf(9, 4), torch.arange(5), bf(5, 4))
    same(lambda x, i, y: x.scatter_add(1, i, y), R(3, 9), whole(9, 3, 5), R(3, 5))
    same(lambda x, i, y: (x.index_put((i,), y, True), x.scatter(0, i[:, None], y)), R(9, 4), index[1:], R(4, 4))
    same(lambda g, i: aten.embedding_dense_backward(g, i, 9, -1, False), R(3, 5, 16), whole(9, 3, 5), ulps=64)
    same(lambda x, i, y: x.index_copy(0, i, y), R(9, 4), torch.tensor([3, 1, 0]), R(3, 4))


def test_scatters_are_calls_where_their_order_counts() -> None:
    arguments = (R(9, 4), torch.tensor([3, 1, 3]), R(3, 4))
    check(lambda x, i, y: x.index_reduce(0, i, y, "prod"), *arguments, calls=1)
    try:
        torch.use_deterministic_algorithms(True)
        check(lambda x, i, y: x.index_add(0, i, y), *arguments, calls=1)
    finally:
        torch.use_deterministic_algorithms(False)


def test_scans() -> None:
    for axis in (0, 1):
        same(lambda x, axis=axis: x.cumsum(axis), R(5, 11), ulps=64)
    same(lambda x: (x.cumprod(1), *x.cummax(1)), R(5, 11))
    same(lambda x: x.cumsum(0), whole(9, 50))
    x = R(2, 19)
    x[0, 1] = torch.inf
    same(lambda x: (x.cumsum(1), *x.cummax(1)), x, ulps=64)


def test_windows() -> None:
    x = R(2, 3, 6, 8)
    same(lambda x: F.max_pool2d(x, 2), x)
    same(lambda x: F.avg_pool2d(x, 3, 2, 1), x)
    same(lambda x: F.adaptive_avg_pool2d(x, 1), x)
    same(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), x)
    out, places = F.max_pool2d(x, 2, return_indices=True)
    same(
        lambda g, x, i: aten.max_pool2d_with_indices_backward(g, x, [2, 2], [2, 2], [0, 0], [1, 1], False, i),
        R(*out.shape),
        x,
        places,
    )
    images = whole(3, 2, 3, 7, 6).float().to(memory_format=torch.channels_last)
    settings = ([3, 3], [2, 2], [1, 1], [1, 1], False)
    out, places = aten.max_pool2d_with_indices(images, *settings)
    gradient = aten.max_pool2d_with_indices_backward.default
    same(lambda g, x, i: gradient(g, x, *settings, i), R(*out.shape), images, places)


def test_moments_of_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(CUDA, least_row_by_parts=64, whole_row_of_many=32, costs=replace(CUDA.costs, most_units=8))
    monkeypatch.setattr("quickfuse.lower.moments.CUDA", small)
    monkeypatch.setattr("quickfuse.ir.target.CUDA", small)
    x = R(4, 3, 8, 8) * 3 + 100
    for images in (x, x.to(memory_format=torch.channels_last)):
        same(lambda x, w: F.batch_norm(x, None, None, w, training=True), images, R(3), launches=3, ulps=2048)


def _sources(function: Callable[..., Any], *inputs: Any) -> str:
    return "".join(emit(call.body, "k", shape_of(call).form) for call in kernels(gpu_schedule(function, *inputs)[0]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_what_is_rounded_to_16_bits_needs_fewer_instructions(dtype: torch.dtype) -> None:
    x = R(13, 37).to(dtype) * 20
    x[3, 4:] = -math.inf
    assert "quick_exp" in _sources(lambda x: torch.softmax(x, 1), x)
    assert "quick_div" in _sources(lambda x: torch.softmax(x, 1), x)
    same(lambda x: torch.softmax(x, 1), x, launches=1)
    same(lambda x: (x.float() / (1 + x.float().square().sum(1, True))).to(dtype), x)


def test_what_is_not_rounded_is_exact() -> None:
    """Nor what is rounded and used elsewhere as well, or where a difference could bring its error out."""
    x = R(13, 37).bfloat16()
    for function in (
        lambda x: torch.softmax(x.float(), 1),
        lambda x: (y := torch.softmax(x.float(), 1), y.bfloat16()),
        lambda x: ((x.float() - x.float().amax(1, True)).exp() - 1).bfloat16(),
        lambda x: (torch.softmax(x.float(), 1) - 0.5).bfloat16(),
        lambda x: (x.float().exp() / 3).bfloat16(),
    ):
        assert "qm.quick_" not in _sources(function, x)


def test_chains() -> None:
    same(lambda x: F.layer_norm(torch.softmax(x, 1) + x, (37,)), R(13, 37), launches=1, ulps=64)


# ---------------------------------------------------------------------------------------------------------------------
# Shapes and code


def test_long_rows_are_gone_through_in_loops_and_few_are_cut_up() -> None:
    def shapes(function: Callable[..., Any], *inputs: Any) -> list[Any]:
        schedule, _ = gpu_schedule(function, *inputs)
        return [
            (shape_of(call, 132), len(program_table(call.body, call.members, shape_of(call, 132))))
            for call in kernels(schedule)
        ]

    for length, access in ((1000, Access.WIDE), (1001, Access.NARROW), (1024, Access.FULL)):
        ((shape, programs),) = shapes(lambda x: torch.softmax(x, 1), torch.zeros(512, length))
        assert (shape.form, shape.columns, shape.access) == (Form.WHOLE, 1024, access) and programs >= 256
    ((shape, programs),) = shapes(lambda x: torch.softmax(x, 1), torch.zeros(600, 16512))
    assert (shape.form, programs, shape.access) == (Form.LOOPED, 600, Access.WIDE)
    (_, programs), *_ = shapes(lambda x: x.sum(0), torch.zeros(4096, 768))
    assert programs > 264


def test_narrow_accesses_take_no_more_registers_than_wide_ones() -> None:
    def limits(function: Callable[..., Any], *inputs: torch.Tensor) -> list[str]:
        return re.findall(r"\.maxnreg (\d+)", "".join(kernel.ptx for kernel in compiled(gpu_schedule(function, *inputs)[0])))

    operands = torch.zeros(512, 4096), torch.zeros(4096), torch.zeros(4096)
    assert limits(lambda x, w, b: F.layer_norm(x, (4096,), w, b), *(t.bfloat16() for t in operands)) == ["64"]
    assert limits(lambda x, w, b: F.layer_norm(x, (4096,), w, b), *operands) == ["64"]
    assert limits(lambda x, y, w, b: F.layer_norm(x * y + 1 / y, (4096,), w, b), operands[0], *operands) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_threads_have_several_accesses_of_a_transpose(dtype: torch.dtype) -> None:
    schedule, _ = gpu_schedule(lambda x: x.t().contiguous(), torch.zeros(512, 512, dtype=dtype))
    (kernel,) = compiled(schedule)
    assert kernel.shape.block * kernel.shape.columns == 64 // dtype.itemsize * kernel.shape.threads
    assert len(re.findall(r"ld\.global\.v4\.b32", kernel.ptx)) >= dtype.itemsize


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_accesses_of_whole_rows_are_wide(dtype: torch.dtype) -> None:
    x, w = torch.zeros(512, 4096, dtype=dtype), torch.zeros(4096, dtype=dtype)
    for function, inputs in (
        (lambda x: torch.softmax(x, 1), (x,)),
        (lambda x, w: F.layer_norm(x, (4096,), w), (x, w)),
        (lambda x: x.t().contiguous(), (x,)),
        (lambda x: x.sum(0), (x,)),
    ):
        kernel = compiled(gpu_schedule(function, *inputs)[0])[0]
        assert re.search(r"ld\.global\S*v4\.b32", kernel.ptx)
        assert re.search(r"st\.global\S*v4\.b32", kernel.ptx) or "sum" in str(kernel.name) or function(*inputs).ndim == 1
        assert ".local" not in kernel.ptx


def test_families_compile() -> None:
    index = whole(9, 5)
    for function, inputs in (
        (lambda x: (x.amax(1), x.argmax(1), (x > 0).any(1), x.prod(1)), (R(300, 777),)),
        (lambda x: x.cumsum(1), (R(30, 70),)),
        (lambda x, i, y: x.index_add(0, i, y), (R(9, 4), index, R(5, 4))),
        (lambda x, t: F.cross_entropy(x, t), (R(60, 20000), whole(20000, 60))),
        (lambda x, m, v: F.batch_norm(x, m, v, training=True), (R(8, 300, 14, 14), R(300), R(300))),
        (lambda x: F.batch_norm(x, None, None, training=True), (bf(32, 64, 56, 56).to(memory_format=torch.channels_last),)),
    ):
        for kernel in compiled(gpu_schedule(function, *inputs)[0]):
            assert kernel.cubin.startswith(b"\x7fELF")
