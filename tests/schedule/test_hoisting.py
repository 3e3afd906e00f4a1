"""What depends on few axes is computed once for each index on these, not for each element."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from quickfuse.ir.expr import Op, walk
from quickfuse.ir.kernel import KernelCall, Schedule, StoreKind
from schedule_interpreter import check

IMAGES = torch.randn(4, 16, 24, 24)
CHANNELS_LAST = IMAGES.to(memory_format=torch.channels_last)
MEAN, VARIANCE, WEIGHT, BIAS = torch.randn(16), torch.rand(16) + 0.5, torch.randn(16), torch.randn(16)


def operations(schedule: Schedule, least: int) -> set[str]:
    """The operations of kernels that store to at least so many elements."""
    calls = [step for step in schedule.steps if isinstance(step, KernelCall)]
    large = [c for c in calls if max(b.meta.numel for m in c.members for b in m.buffers) >= least]
    return {node.name for c in large for node in walk(*c.body.roots) if isinstance(node, Op)}


@pytest.mark.parametrize("x", [IMAGES, CHANNELS_LAST], ids=["contiguous", "channels last"])
def test_normalising_takes_no_root_an_element(x: torch.Tensor) -> None:
    schedule = check(lambda *a: F.batch_norm(*a).relu(), x, MEAN, VARIANCE, WEIGHT, BIAS, emitted=True, ulps=32)
    assert len(schedule.steps) == 2
    assert not operations(schedule, x.numel()) & {"div", "sqrt", "rsqrt"}


def test_many_layers_share_one_small_kernel() -> None:
    def layers(*tensors: torch.Tensor) -> list[torch.Tensor]:
        return [F.batch_norm(*tensors[k : k + 5]) for k in range(0, len(tensors), 5)]

    inputs = [torch.rand(shape) + 0.5 for _ in range(5) for shape in ((4, 16, 24, 24), *[(16,)] * 4)]
    assert len(check(layers, *inputs, emitted=True, ulps=32).steps) == 2


STAY: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], int]] = {
    "small": (F.batch_norm, (IMAGES[:1, :, :20, :20].clone(), MEAN, VARIANCE, WEIGHT, BIAS), 1),
    "cheap": (lambda x, w: x * (w * 2 + 1), (torch.randn(512, 64), WEIGHT.repeat(4)), 1),
    "of rows that are reduced": (lambda x: F.layer_norm(x, x.shape[-1:]), (torch.randn(512, 64),), 1),
}


@pytest.mark.parametrize("name", STAY)
def test_what_stays(name: str) -> None:
    function, inputs, kernels = STAY[name]
    assert len(check(function, *inputs, emitted=True, ulps=32).steps) == kernels


@pytest.mark.parametrize("channels", [2, 8, 24])
def test_groups_of_channels_that_lie_last(channels: int) -> None:
    """Kernels go along all channels of a pixel, not along those of a group, which are too few for vectors."""
    x = torch.randn(2, 8 * channels, 32, 32).to(memory_format=torch.channels_last)
    weight, bias = torch.randn(8 * channels), torch.randn(8 * channels)
    schedule = check(lambda *a: F.group_norm(a[0], 8, *a[1:]), x, weight, bias, emitted=True, ulps=64)
    large = [step for step in schedule.steps if isinstance(step, KernelCall) and step.members[0].sizes[0] == 2]
    assert [sorted(step.members[0].sizes) for step in large] == [sorted([2, 8 * channels, 1024])] * 3


def test_gradients_of_groups_of_channels_that_lie_last() -> None:
    def gradients(x: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor) -> Any:
        y, mean, scale = torch.ops.aten.native_group_norm(x, weight, None, 2, 64, 256, 8, 1e-5)
        return torch.ops.aten.native_group_norm_backward(grad, x, mean, scale, weight, 2, 64, 256, 8, [True, True, True])

    x, grad = (torch.randn(2, 64, 16, 16).to(memory_format=torch.channels_last) for _ in range(2))
    schedule = check(gradients, x, torch.randn(64), grad, emitted=True, ulps=512)
    assert all(max(step.members[0].sizes) >= 16 for step in schedule.steps if isinstance(step, KernelCall))


@pytest.mark.parametrize("name", ["pairs", "repeated"])
def test_one_of_many_equal_rows_is_reduced(name: str) -> None:
    x = torch.randn(48, 32)
    function = {
        "pairs": lambda x: F.cosine_similarity(x[:, None], x[None], dim=-1),
        "repeated": lambda x: torch.softmax(x[:, None].expand(-1, 48, -1), -1),
    }[name]
    schedule = check(function, x, emitted=True, ulps=32)
    calls = [step for step in schedule.steps if isinstance(step, KernelCall)]
    large = [call for call in calls if any(math.prod(member.sizes) > 48 * 48 for member in call.members)]
    assert not {node.name for call in large for node in walk(*call.body.roots) if isinstance(node, Op)} & {"sqrt", "exp"}
    assert sum(store.kind is StoreKind.REDUCE for call in large for store in call.body.stores) == (name == "pairs")
