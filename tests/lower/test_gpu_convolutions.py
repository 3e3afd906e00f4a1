"""Networks of convolutions on a GPU: layouts, moments and poolings, in verified schedules that run on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from quickfuse.differentiate.expand import expand
from quickfuse.emit.recordable import why_not_recorded
from quickfuse.ir import target
from quickfuse.ir.expr import Op, Place, walk
from quickfuse.ir.kernel import KernelCall, Schedule
from quickfuse.ir.loop import Access, Buffer, Extern, View
from quickfuse.ir.values import TensorMeta, contiguous_stride
from quickfuse.lower import lower
from quickfuse.lower import moments as moments_
from quickfuse.lower.layout import axes_as_read
from schedule_interpreter import Interpreter, fused
from trace_helper import copy_inputs, flatten, on_gpu, trace

aten = torch.ops.aten
CONVOLUTIONS: dict[str, tuple[Any, ...]] = {
    # shapes of images and weight, bias, stride, padding, dilation, transposed, output padding, groups
    "3x3": ((2, 4, 6, 5), (8, 4, 3, 3), True, [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
    "without bias": ((2, 4, 6, 5), (8, 4, 3, 3), False, [2, 1], [1, 0], [1, 2], False, [0, 0], 1),
    "1x1": ((2, 4, 6, 5), (8, 4, 1, 1), True, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
    "heavy weight": ((1, 16, 2, 2), (64, 16, 3, 3), False, [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
    "depthwise": ((2, 4, 6, 5), (4, 1, 3, 3), False, [1, 1], [1, 1], [1, 1], False, [0, 0], 4),
    "groups": ((2, 4, 6, 5), (8, 2, 3, 3), True, [1, 1], [1, 1], [1, 1], False, [0, 0], 2),
    "transposed": ((2, 4, 6, 5), (4, 8, 2, 2), True, [2, 2], [0, 0], [1, 1], True, [1, 0], 1),
}
TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def schedule_of(function: Callable[..., Any], *inputs: Any, tolerance: float = 1e-4) -> Schedule:
    """The verified schedule of a function on a GPU, whose results are compared with the function's own."""
    gm = on_gpu(trace(function, *copy_inputs(inputs)))
    schedule = fused(lower(gm.graph, (), expand))
    names = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
    expected = flatten(function(*copy_inputs(inputs)))
    made = Interpreter(schedule, names)(*flatten(copy_inputs(inputs)))
    for one, two in zip(made, expected, strict=True):
        assert one.dtype is two.dtype and one.shape == two.shape and one.stride() == two.stride()
        torch.testing.assert_close(one.double(), two.double(), rtol=tolerance, atol=tolerance)
    return schedule


def calls(schedule: Schedule) -> list[Extern]:
    return [step for step in schedule.steps if isinstance(step, Extern)]


def kernels(schedule: Schedule) -> list[KernelCall]:
    return [step for step in schedule.steps if isinstance(step, KernelCall)]


def has_channels_last(operand: Any) -> bool:
    shape, stride = (
        (operand.shape, operand.stride) if isinstance(operand, View) else (operand.meta.shape, operand.meta.stride)
    )
    return len(shape) != 4 or stride == torch.empty(shape).to(memory_format=torch.channels_last).stride()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_and_their_gradients(name: str, dtype: torch.dtype) -> None:
    images, weights, with_bias, *settings = CONVOLUTIONS[name]
    out_channels = weights[1] if settings[3] else weights[0]
    torch.manual_seed(0)
    x, w = torch.randn(images).to(dtype), (torch.randn(weights) / 4).to(dtype)
    bias = [torch.randn(out_channels, dtype=dtype)] if with_bias else []

    def function(x: torch.Tensor, w: torch.Tensor, *bias: torch.Tensor) -> Any:
        y = torch.convolution(torch.tanh(x), w, *(bias or [None]), *settings)
        backward = aten.convolution_backward.default
        return y * 2, *backward(torch.sin(y), x * 2, w, [out_channels], *settings, [True, True, True])

    schedule = schedule_of(function, x, w, *bias, tolerance=1e-4 if dtype.itemsize > 2 else 0.3)
    forward, backward = calls(schedule)
    last = dtype is not torch.float64 and name != "groups"
    assert all(map(has_channels_last, (*forward.args[:2], *forward.outputs, *backward.args[:3]))) is last
    if last:
        assert forward.args[2] is None and backward.args[-1] == [True, True, False]
        assert why_not_recorded(schedule) is None


def test_without_tensor_cores_images_keep_their_layout() -> None:
    with torch.backends.cudnn.flags(allow_tf32=False):
        schedule = schedule_of(lambda x, w: torch.conv2d(x * 2, w), torch.randn(2, 4, 6, 5), torch.randn(8, 4, 3, 3))
    assert not any(map(has_channels_last, calls(schedule)[0].args[:2]))


def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = replace(target.GPU_COSTS, most_units=8)
    small = replace(target.CUDA, least_row_by_parts=64, whole_row_of_many=32, costs=costs)
    for module in (target, moments_):
        monkeypatch.setattr(module, "CUDA", small)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_batch_norm_reads_images_twice(layout: torch.memory_format, offset: float, monkeypatch: pytest.MonkeyPatch) -> None:
    small_parts(monkeypatch)
    x = (torch.randn(4, 3, 8, 8) + offset).to(memory_format=layout)
    x[1, 2, 3, 4] = 50 + offset  # far from the others
    x[:, 1] = 7.0  # no variance

    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        return aten.native_batch_norm(x, w, b, None, None, True, 0.1, 1e-5)

    schedule = schedule_of(function, x, torch.rand(3), torch.rand(3), tolerance=2e-3 if offset else 2e-4)
    image = [call for call in kernels(schedule) if any(b.kind == "input" and b.meta.ndim == 4 for b in call.buffers)]
    assert len(image) == 2 and len(image[0].body.passes) == 1 and len(kernels(schedule)) == 3


def test_moments_of_rows_without_equal_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    small_parts(monkeypatch)
    schedule_of(lambda x: F.layer_norm(x, (101,)), torch.randn(3, 101))
    schedule_of(lambda x: F.group_norm(x, 2), torch.randn(3, 4, 7, 6))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize(
    "settings", [([3, 3], [2, 2], [1, 1]), ([2, 2], [2, 2], [0, 0]), ([3, 2], [1, 2], [1, 0]), ([4, 4], [3, 3], [2, 1])]
)
def test_gradients_of_maxima_are_gathered(layout: torch.memory_format, settings: Any) -> None:
    x = torch.randint(0, 4, (2, 3, 9, 8)).float().to(memory_format=layout)  # many are equal

    def function(x: torch.Tensor) -> Any:
        y, indices = aten.max_pool2d_with_indices(x, *settings, [1, 1], True)
        return aten.max_pool2d_with_indices_backward(torch.sin(y) + 1, x, *settings, [1, 1], True, indices)

    schedule = schedule_of(function, x)
    assert not any(store.offset is not None for call in kernels(schedule) for store in call.body.stores)


def test_weights_are_converted_in_one_launch() -> None:
    def function(x: torch.Tensor, ws: list[torch.Tensor]) -> torch.Tensor:
        x = x.bfloat16()
        for w in ws:
            x = torch.conv2d(torch.relu(x), w.bfloat16(), padding=1)
        return x

    schedule = schedule_of(function, torch.randn(2, 4, 6, 5), [torch.randn(4, 4, 3, 3) for _ in range(5)], tolerance=0.5)
    assert max(len(call.members) for call in kernels(schedule)) == 5


def test_batch_norms_of_several_sizes_share_kernels() -> None:
    def function(xs: list[torch.Tensor], w: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        return [aten.native_batch_norm(x * 2, w, b, None, None, True, 0.1, 1e-5)[0] for x in xs]

    images = [torch.randn(4, 3, n, n).to(memory_format=torch.channels_last) for n in (160, 150, 170)]
    assert {image.numel() // 3 >= target.CUDA.least_row_by_parts for image in images} == {True}
    schedule = schedule_of(function, images, torch.rand(3), torch.rand(3))
    applying = [call for call in kernels(schedule) if any(b.kind == "output" for b in call.buffers)]
    assert sum(len(call.members) for call in applying) == 3 and len({call.body for call in applying}) == 1


def operations(call: KernelCall) -> set[str]:
    return {node.name for node in walk(*call.body.roots) if isinstance(node, Op)}


def test_what_belongs_to_channels_that_lie_last_is_computed_once() -> None:
    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.relu(aten.native_batch_norm(x * 2, w, b, None, None, True, 0.1, 1e-5)[0])

    images = torch.randn(4, 8, 160, 160).to(memory_format=torch.channels_last)
    schedule = schedule_of(function, images, torch.rand(8), torch.rand(8))
    large = [call for call in kernels(schedule) if any(b.kind == "output" for b in call.buffers)]
    assert len(large) == 1 and not operations(large[0]) & {"div", "rsqrt"}
    assert len(kernels(schedule)) <= 3, "it comes with the statistics"


def test_what_was_rounded_is_stored_in_as_few_bits() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.relu(x * w).bfloat16().float()
        return y.sum(0), (y - y.mean(0)).pow(2).sum(0)

    schedule = schedule_of(function, torch.randn(700, 64), torch.randn(64), tolerance=2e-2)
    stored = {b.meta.dtype for call in kernels(schedule) for b in call.buffers if b.kind == "temp" and b.meta.numel == 44800}
    assert stored <= {torch.bfloat16}


def test_what_is_read_at_computed_pixels_lies_as_its_operand_does() -> None:
    shape, lies = (4, 8, 10, 10), (800, 1, 80, 8)
    image = Buffer("image", TensorMeta(torch.float32, shape, lies, torch.device("cuda")), "temp")
    place = Place(Access(image, 0, (800, 1, 0, 0)), torch.float32)
    assert axes_as_read(place, shape, contiguous_stride(shape)) == (0, 2, 3, 1)
