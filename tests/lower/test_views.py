"""Views, in-place operators and what outputs share, against eager."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from operator import mul
from random import Random
from typing import Any

import pytest
import torch

from quickfuse.errors import Unsupported
from quickfuse.ir.kernel import KernelCall
from quickfuse.ir.loop import Extern, View
from quickfuse.ir.overlaps import apart
from schedule_interpreter import check, compile_for_test

VIEWS: list[Callable[[torch.Tensor], Any]] = [
    lambda x: x.t(), lambda x: x.T, lambda x: x.mT, lambda x: x.transpose(0, 1), lambda x: torch.permute(x, (1, 0)),
    lambda x: x.view(-1), lambda x: x.view(2, 2, 6), lambda x: x.reshape(8, 3), lambda x: x.flatten(), lambda x: x.ravel(),
    lambda x: x.unsqueeze(1), lambda x: x.unsqueeze(0).squeeze(0), lambda x: x[1], lambda x: x[:, 2], lambda x: x[1:3],
    lambda x: x[::2, 1::3], lambda x: x[None, ..., 2], lambda x: x[..., None], lambda x: x[-1, -2], lambda x: x[0:0],
    lambda x: x.select(1, 3), lambda x: x.narrow(0, 1, 2), lambda x: x.expand(3, 4, 6), lambda x: x[:, :1].expand(4, 5),
    lambda x: x.diagonal(), lambda x: x.unfold(1, 2, 2), lambda x: x.movedim(0, 1), lambda x: x.detach(),
    lambda x: x.as_strided((2, 3), (1, 5), 4), lambda x: x.view(4, 3, 2).permute(2, 0, 1), lambda x: x.unflatten(1, (2, 3)),
    lambda x: x.chunk(2, 1)[1], lambda x: x.split(3, 1)[0], lambda x: x.unbind(0)[2],
    lambda x: torch.broadcast_to(x, (2, 4, 6)), lambda x: x.t().reshape(-1),
    lambda x: x.t()[1:].reshape(5, 2, 2), lambda x: x.swapaxes(0, 1), lambda x: +x,
    lambda x: x.view_as(x.detach()), lambda x: x[2:3].squeeze(), lambda x: x.adjoint(),
]  # fmt: skip


@pytest.mark.parametrize("view", VIEWS, ids=range(len(VIEWS)))
def test_views(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Of an input, of a computed tensor, in computations, and as outputs."""
    x, row = torch.randn(4, 6), torch.randn(6)
    check(lambda x: view(x) * 2 + 1, x)
    check(lambda x: view(x.sin()).exp(), x)
    check(view, x)
    check(lambda x: view(x * 2), x)
    check(lambda x, row: view(x * row + 1) * 2, x, row)
    check(lambda x: (view(x.exp()), x.exp()), x)
    if view not in (VIEWS[5], VIEWS[6]):  # `view` refuses this layout
        check(lambda x: view(x.t().contiguous().t()) - 1, x)


@pytest.mark.parametrize("view", VIEWS, ids=range(len(VIEWS)))
def test_views_see_changes_of_their_base(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        seen = view(x)
        before = seen * 2
        x.mul_(3).add_(1)
        return before, seen * 2, seen

    check(function, torch.randn(4, 6))
    check(lambda x: function(x + 1), torch.randn(4, 6))


WHOLE_VIEWS = [VIEWS[k] for k in (0, 3, 5, 6, 7, 10, 29, 30)]


@pytest.mark.parametrize("view", WHOLE_VIEWS, ids=range(len(WHOLE_VIEWS)))
def test_changes_through_views_of_all_elements(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        part = view(x)
        part.add_(1).mul_(view(y))
        return x * part.sum()

    check(function, torch.randn(4, 6), torch.randn(4, 6))
    check(lambda x, y: function(x.sin(), y), torch.randn(4, 6), torch.randn(4, 6))


def test_changes_of_parts() -> None:
    for function in (lambda x: x[0].add_(1), lambda x: x[:, 1:].zero_(), lambda x: x.diagonal().fill_(2)):
        check(function, torch.randn(4, 4))
    check(lambda x: (x * 2)[:, 1].mul_(3), torch.randn(4, 4))


def test_assignment() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x[:] = y.exp()
        y[...] = 2.5
        x[x > 1] = 7
        return x + y

    check(function, torch.randn(4, 4), torch.randn(4))


def test_changed_inputs_are_stored_once() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for _ in range(5):
            x.mul_(y).add_(1)
        x += y
        x *= 2
        return x

    schedule = check(function, torch.randn(4, 4), torch.randn(4, 4))
    (call,) = schedule.steps
    assert isinstance(call, KernelCall)
    assert sorted(slot.access for slot in call.body.slots) == ["r", "rw"]
    assert schedule.program.outputs == [schedule.program.inputs[0]]
    assert not schedule.temps


def test_outputs_that_share_memory() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        made = x * 2
        return [made, made.t(), made, made[1:], x, x.t(), x.detach(), y.add_(1), y, made.detach(), (y + 1)[1:]]

    schedule = check(function, torch.randn(4, 4), torch.randn(4, 4))
    kinds = [type(output).__name__ for output in schedule.program.outputs]
    assert kinds[:7] == ["Buffer", "View", "Buffer", "View", "Buffer", "View", "View"]


def test_a_lone_view_needs_no_memory_for_its_base() -> None:
    schedule = check(lambda x: (x * 2).t(), torch.randn(4, 6))
    (output,) = schedule.program.outputs
    assert output.meta.stride == (1, 6)
    schedule = check(lambda x: (x * 2)[1], torch.randn(4, 6))
    assert schedule.program.outputs[0].meta.shape == (6,)


def test_operators_between_different_views_of_one_tensor() -> None:
    schedule = check(lambda x: x + x.t(), torch.randn(5, 5))
    (call,) = schedule.steps
    assert isinstance(call, KernelCall) and len(call.body.slots) == 3
    check(lambda x: x[1:] - x[:-1], torch.randn(8))
    check(lambda x: x[1:] - x[:-1], torch.randn(8, 3))


MERGES: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x.flatten(2), lambda x: x.flatten(2).transpose(1, 2), lambda x: x.view(2, 16, 1, 64),
    lambda x: x.permute(0, 2, 3, 1).reshape(2, 64, 16),
]  # fmt: skip


@pytest.mark.parametrize("merge", MERGES, ids=range(len(MERGES)))
def test_pixels_are_merged_where_channels_lie_last(merge: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """A convolution gives its result with the channels last; no copy changes that for the view of eager's tensor."""

    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return merge(torch.conv2d(x, weight, padding=1)).exp() * 2

    schedule = check(function, torch.randn(2, 8, 8, 8), torch.randn(16, 8, 3, 3), ulps=1e5)
    assert [step for step in schedule.steps if isinstance(step, KernelCall)][1:] == schedule.steps[-1:]


@pytest.mark.parametrize("merge", [lambda x: x.flatten(1), lambda x: x.flatten(0, 1), lambda x: x.reshape(2, 4, -1)])
def test_axes_that_are_apart_in_memory_are_copied(merge: Callable[[torch.Tensor], torch.Tensor]) -> None:
    check(lambda x, w: merge(torch.conv2d(x, w)).exp() * 2, torch.randn(2, 8, 8, 8), torch.randn(16, 8, 3, 3), ulps=1e5)


def test_chains_of_transposed_sums_do_not_explode() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        for _ in range(30):
            x = (x + x.t() * 0.5).sin()
        return x

    schedule = check(function, torch.randn(5, 5))
    assert len(schedule.steps) < 20
    check(lambda x: function(x.expand(5, 5)), torch.randn(5, 1))


def test_swaps_and_transposes_in_place() -> None:
    """Stores that others' loads of the old value stand in the way of."""

    def swap(x: torch.Tensor, y: torch.Tensor) -> None:
        old = x.clone()
        x.copy_(y)
        y.copy_(old)

    def crossed(x: torch.Tensor, y: torch.Tensor) -> None:
        old = x.clone()
        x.copy_(y.t())
        y.copy_(old.t())

    def rotate(x: torch.Tensor, y: torch.Tensor) -> None:
        z = x + 1
        x.copy_(y.t())
        y.copy_(z * 2)

    for function in (swap, crossed, rotate):
        check(function, torch.randn(4, 4), torch.randn(4, 4))
    assert len(check(swap, torch.randn(4, 4), torch.randn(4, 4)).steps) == 1


@pytest.mark.parametrize("part", [lambda x: x.t(), lambda x: x[0], lambda x: x[:, :1]], ids=range(3))
def test_changes_by_a_copy_of_a_part(part: Callable[[torch.Tensor], torch.Tensor]) -> None:
    check(lambda x: x.copy_(part(x) + 0), torch.randn(4, 4))
    check(lambda x: x.add_(part(x).clone()), torch.randn(4, 4))


def test_overlapping_operands_are_left_to_pytorch() -> None:
    """Eager raises an error for some and computes with half-updated values for others."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sub_(x[:, :1])

    with pytest.raises(Unsupported, match="overlapping"):
        compile_for_test(function, torch.randn(4, 4))


@pytest.mark.parametrize(
    "change",
    [
        lambda y: y.view(4, 3, 2)[..., 1].mul_(y.view(4, 3, 2)[..., 0]),
        lambda y: y[:, 1::2].add_(y[:, ::2]),
        lambda y: y.t()[1::2].view(3, 2, 2)[1:, :, 0].mul_(y.t()[1::2].view(3, 2, 2)[:-1, :, 1]),
        lambda y: y.view(2, 2, 6)[:, 1, 1::3].copy_(y.view(2, 2, 6)[:, 1, ::3]),
    ],
    ids=range(4),
)
def test_changes_of_what_lies_between_the_operands(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Every second element, by the others: neither is a part of the memory by itself."""

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        change(y)
        return y

    check(function, torch.randn(4, 6))


def test_what_two_views_have_in_common() -> None:
    random = Random(0)
    shapes, steps = (0, 1, 2, 3, 4, 5), (0, 1, 2, 3, 4, 6, 8, 12, 24, -1, -3)
    seen = set()
    for _ in range(2000):
        places = []
        for _ in range(2):
            axes = random.randint(0, 4)
            shape = tuple(random.choices(shapes, (1, 6, 6, 6, 6, 6), k=axes))
            places.append((random.randint(0, 30), shape, tuple(random.choices(steps, k=axes))))
        one, two = (
            {offset + sum(map(mul, index, strides)) for index in product(*map(range, shape))}
            for offset, shape, strides in places
        )
        seen.add(one.isdisjoint(two))
        assert apart(*places) == one.isdisjoint(two), places
    assert len(seen) == 2


def test_a_chain_of_copies_through_many_tensors() -> None:
    def function(*xs: torch.Tensor) -> None:
        for x, y in zip(xs, xs[1:], strict=False):
            x.copy_(y.t() + 1)

    def backward(*xs: torch.Tensor) -> None:
        for x, y in zip(reversed(xs), list(reversed(xs))[1:], strict=False):
            x.copy_(y.t() + 1)

    for f in (function, backward):
        check(f, *(torch.randn(3, 3) for _ in range(12)))


def test_values_from_before_a_change() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        before, copy, view = x + 1, x.clone(), x.t()
        x.zero_()
        between = x + 1
        x.fill_(3)
        return before, copy, view + 0, between, x + 1

    check(function, torch.randn(3, 3))


def test_inputs_with_gaps_and_overlaps() -> None:
    base = torch.randn(8, 8)
    check(lambda x: x.mul_(2) + x.t(), base[::2, ::2])
    check(lambda x: (x * 2, x.sum(0)), torch.randn(4, 1).expand(4, 3))
    check(lambda x, y: x.copy_(y), base[1:4, 2:5], torch.randn(3))


def test_zero_sizes() -> None:
    schedule = check(lambda x: (x + 1, x.t() * 2, x.sort(0)[0]), torch.randn(0, 3))
    assert all(isinstance(step, Extern) for step in schedule.steps)
    check(lambda x: (x + 1, x.t() * 2, x.sum(0)), torch.randn(0, 3))
    check(lambda x: x.mul_(2), torch.randn(2, 0))
    check(lambda x: (x[:0] + 1, x.exp()[:0].view(-1)), torch.randn(3, 2))


def test_calls_of_pytorch_get_views_and_current_values() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        one = x.t() @ y
        x.mul_(2)
        two = x @ y.t() + 1
        y.add_(two.sum())
        return [one, torch.softmax(two, -1), two.mean(0) * x[0, 0], torch.cat([x, y]), y[1:] @ one]

    schedule = check(function, torch.randn(4, 4), torch.randn(4, 4), ulps=32)
    externs = [step for step in schedule.steps if isinstance(step, Extern)]
    assert any(isinstance(argument, View) for step in externs for argument in step.args)


def test_calls_that_return_several_tensors() -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        values, indices = torch.sort(x + 1)
        top = x.topk(2)
        return [values * 2, indices, top[0], x.max(0)[0], x.gather(1, indices)]

    check(function, torch.randn(4, 5))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.bernoulli(x.sigmoid()), lambda x: torch.rand_like(x), lambda x: torch.nn.functional.dropout(x),
        lambda x: x.uniform_(), lambda x: x.nonzero(), lambda x: x[x > 0], lambda x: x.view(torch.int32),
        lambda x: torch.view_as_complex(x), lambda x: torch.einsum("ij->ji", x), lambda x: x.resize_(8),
    ],
    ids=range(10),
)  # fmt: skip
def test_what_nobody_noted_effects_of(function: Callable[[torch.Tensor], Any]) -> None:
    """In a graph that was not captured: PyTorch's schemas alone do not say enough."""
    with pytest.raises(Unsupported):
        compile_for_test(function, torch.rand(4, 2))
