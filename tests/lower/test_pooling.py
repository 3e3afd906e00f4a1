"""Pooling and upsampling against eager: windows, borders, types, layouts, and the operators around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from aten_helper import check_aten, check_gradients, externs
from quickfuse.ir.kernel import KernelCall
from schedule_interpreter import check

X = torch.Tensor


def image(*shape: int, dtype: torch.dtype = torch.float32) -> X:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def only_kernels(schedule: Any) -> None:
    assert all(isinstance(step, KernelCall) for step in schedule.steps), str(schedule)


POOLS: dict[str, Callable[[X], Any]] = {
    "max2": lambda x: F.max_pool2d(x, 2),
    "max3": lambda x: F.max_pool2d(x * 2, 3, 2, 1).relu(),
    "max_uneven": lambda x: F.max_pool2d(x, (2, 3), (1, 2), (0, 1)),
    "max_ceil": lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    "max_dilated": lambda x: F.max_pool2d(x, 2, 1, 1, 3),
    "max_indices": lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
    "max_indices_dilated": lambda x: F.max_pool2d(x, 3, 2, 1, 2, return_indices=True),
    "max1d": lambda x: F.max_pool1d(x[0], 3, 2, 1),
    "max3d": lambda x: F.max_pool3d(x[None], 2),
    "avg2": lambda x: F.avg_pool2d(x, 2),
    "avg3": lambda x: F.avg_pool2d(x, 3, 2, 1) * 2,
    "avg_without_padding": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "avg_ceil": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
    "avg_ceil_without_padding": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
    "avg_divisor": lambda x: F.avg_pool2d(x, 2, divisor_override=3),
    "avg1d": lambda x: F.avg_pool1d(x[0], 3, 2, 1),
    "avg3d": lambda x: F.avg_pool3d(x[None], 2, 1),
    "adaptive_global": lambda x: F.adaptive_avg_pool2d(x.relu(), 1).flatten(1) * 2,
    "adaptive_tiles": lambda x: F.adaptive_avg_pool2d(x[..., :9, :12], (3, 4)),
    "adaptive_uneven": lambda x: F.adaptive_avg_pool2d(x, (4, 5)),
    "adaptive_more": lambda x: F.adaptive_avg_pool2d(x, (12, 5)),
    "adaptive1d": lambda x: F.adaptive_avg_pool1d(x[0], 4),
    "nearest": lambda x: F.interpolate(x, scale_factor=2) * 2,
    "nearest3": lambda x: F.interpolate(x + 1, scale_factor=3),
    "nearest_size": lambda x: F.interpolate(x, size=(14, 5)),
    "nearest_scale": lambda x: F.interpolate(x, scale_factor=1.7),
    "nearest_exact": lambda x: F.interpolate(x, size=(14, 5), mode="nearest-exact"),
    "nearest1d": lambda x: F.interpolate(x[0], scale_factor=2.0),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear").relu(),
    "bilinear_aligned": lambda x: F.interpolate(x, size=(17, 5), mode="bilinear", align_corners=True),
    "bilinear_scale": lambda x: F.interpolate(x, scale_factor=0.6, mode="bilinear"),
    "linear": lambda x: F.interpolate(x[0], scale_factor=2, mode="linear"),
    "trilinear": lambda x: F.interpolate(x[None], scale_factor=2, mode="trilinear"),
    "unet": lambda x: torch.cat([F.interpolate(F.max_pool2d(x, 2), size=(9, 13), mode="nearest"), x], 1) * 2,
}


@pytest.mark.parametrize("name", POOLS)
def test_against_eager(name: str) -> None:
    schedule = check(POOLS[name], image(2, 3, 9, 13), emitted=True, ulps=16)
    only_kernels(schedule)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.float16], ids=str)
def test_types(dtype: torch.dtype) -> None:
    def function(x: X) -> list[X]:
        return [F.max_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 3, 2, 1), F.adaptive_avg_pool2d(x, 1),
                F.interpolate(x, scale_factor=2)]  # fmt: skip

    check(function, image(2, 3, 9, 13, dtype=dtype), emitted=True)


def test_layouts_and_special_values() -> None:
    x = image(2, 3, 9, 13)
    x[0, 0, 2, 3], x[0, 1, 4:], x[1, 2] = float("nan"), float("-inf"), float("inf")
    for pool in (POOLS["max3"], POOLS["max_indices"], POOLS["avg3"]):
        check(pool, x, emitted=True)
        check(pool, x.transpose(2, 3).contiguous().transpose(2, 3)[..., 1:], emitted=True)
        check(pool, x.to(memory_format=torch.channels_last), emitted=True)
    check(POOLS["max2"], torch.randint(0, 99, (2, 3, 8, 8)), emitted=True)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_nearest_elements_by_scales(dtype: torch.dtype, mode: str) -> None:
    """Eager's kernels for the CPU differ in what they do with a scale that is not the quotient of the sizes."""
    flat, last = torch.contiguous_format, torch.channels_last
    for scale in (1.05, 1.3, 1.9, 2.1, 2.3, 3.2, 0.7):
        for sizes, layout in (((3, 5), flat), ((61, 77), flat), ((61, 77), last), ((5, 140), last)):
            x = image(1, 4, *sizes, dtype=dtype).to(memory_format=layout)
            check(lambda x, s=scale: F.interpolate(x, scale_factor=s, mode=mode), x, exact=True)
            check(lambda x, s=scale: F.interpolate(x[:, :3, 1], scale_factor=s, mode=mode), x, exact=True)
        x = image(1, 4, 5, 60, dtype=dtype).view(1, 4, 5, 6, 10)
        check(lambda x, s=scale: F.interpolate(x, scale_factor=s, mode=mode), x, exact=True)
        x = x.to(memory_format=torch.channels_last_3d)
        check(lambda x, s=scale: F.interpolate(x, scale_factor=s, mode=mode), x, exact=True)


def test_upsampling_of_many_elements() -> None:
    for aligned in (False, True):
        check(lambda x, a=aligned: F.interpolate(x, size=(90, 101), mode="bilinear", align_corners=a) * 2,
              image(1, 3, 37, 41), emitted=True, ulps=256)  # positions are rounded to float32


def test_large_windows_are_left_to_pytorch() -> None:
    check(lambda x: F.avg_pool2d(x, 9) + F.max_pool2d(x, 9), image(2, 3, 9, 13))


def test_aten_forms() -> None:
    aten, x = torch.ops.aten, image(2, 3, 9, 13)

    def function(x: X) -> list[X]:
        best, places = aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1])
        return [best, places, aten.avg_pool2d(x, [2, 2]), aten._adaptive_avg_pool2d(x, [1, 1]),
                aten.upsample_nearest2d(x, [18, 26], 2.0, 2.0), aten.upsample_bilinear2d(x, [18, 26], False)]  # fmt: skip

    assert not externs(check_aten(function, x))


GRADIENTS: dict[str, Callable[[X], Any]] = {
    "avg2": lambda x: F.avg_pool2d(x, 2),
    "avg3": lambda x: F.avg_pool2d(x, 3, 2, 1).exp(),
    "avg_gaps": lambda x: F.avg_pool2d(x, 2, 3),
    "avg_without_padding": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "avg_ceil": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
    "avg_divisor": lambda x: F.avg_pool2d(x, 2, divisor_override=3),
    "global": lambda x: F.adaptive_avg_pool2d(x, 1),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x[..., :9, :12], (3, 4)),
    "nearest": lambda x: F.interpolate(x, scale_factor=2).square(),
    "max": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max_of_all": lambda x: F.max_pool2d(x[..., :3, :4], (3, 4)),
    "max1d_of_all": lambda x: F.max_pool1d(x[0], 13),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str) -> None:
    assert not externs(check_gradients(GRADIENTS[name], image(2, 3, 9, 13)))


@pytest.mark.parametrize("size", [2, 3])
def test_gradients_of_maxima_lie_as_their_operands(size: int) -> None:
    aten, sizes, pads = torch.ops.aten, [size, size], [size // 2, size // 2]

    def function(x: X, weight: X) -> X:
        y = torch.conv2d(x, weight)
        best, places = aten.max_pool2d_with_indices(y, sizes, [2, 2], pads)
        gradient = aten.max_pool2d_with_indices_backward(best, y, sizes, [2, 2], pads, [1, 1], False, places)
        return torch.conv2d(gradient, weight)

    schedule = check_aten(function, image(2, 3, 9, 13), image(3, 3, 2, 2))
    images = [buffer.meta for buffer in schedule.temps if len(buffer.meta.shape) == 4]
    assert len(images) >= 4 and all(meta.stride[1] == 1 for meta in images), str(schedule)
