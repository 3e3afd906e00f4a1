"""Changes in place, after a break, of what was computed before it and has gradients: they change what autograd knows of the
tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import quickfuse
from differential import same

T = torch.Tensor


def activation(y: T, w: T) -> Any:
    return F.relu(y, inplace=True).mul(w).sin()


def residual(y: T, w: T) -> Any:
    other = (w * 2).exp()
    y += other
    return (y * w).tanh(), y


def assigned(y: T, w: T) -> Any:
    y[0] = 1.5
    y[1:, 0] = w[0, 0]
    return y.exp() * w


def several_times(y: T, w: T) -> Any:
    y.mul_(2).add_(w)
    z = y * w
    y.clamp_(-1, 1)
    return z.sum() + y.exp().sum()


def in_a_loop(y: T, w: T) -> Any:
    for _ in range(3):
        y.add_(w.sin())
    return y.exp()


def read_before(y: T, w: T) -> Any:
    z = y + w
    y.mul_(3)
    return z.exp() + y


def needed_before(y: T, w: T) -> Any:
    z = y * w
    y.mul_(3)
    return z.exp() + y


def seen_before(y: T, w: T) -> Any:
    row = y[0]
    y.add_(w)
    return row.exp(), (y * 2).sin()


def by_a_view(y: T, w: T) -> Any:
    y[0].mul_(2)
    y.view(-1)[1:4].add_(w[0])
    return y.exp() * 2


def a_part(y: T, w: T) -> Any:
    y[:, :2] += w[:, 1:]
    y[1] = w[0] * 2
    y.t()[0].mul_(3)
    return (y * w).exp()


def a_part_read_before(y: T, w: T) -> Any:
    row = y[0]
    z = row * w
    row.mul_(2)
    return z.sum() + (y * w).exp()


def masked(y: T, w: T) -> Any:
    y.masked_fill_(y.detach() > 0, 0.5)
    return (y * w).exp()


def without_history(y: T, w: T) -> Any:
    with torch.no_grad():
        y.add_(1)
    y.mul_(w)
    return y.sin().exp()


def replaced(y: T, w: T) -> Any:
    y.copy_(w * 2)
    return y.sin().exp(), y


def refused(y: T, w: T) -> Any:
    y.add_(w[:, :2].contiguous())
    return y.sin()


def with_random_numbers(y: T, w: T) -> Any:
    F.dropout(y, 0.5, inplace=True)
    return (y * w).exp()


def stepped(y: T, w: T) -> Any:
    y.add_(1)
    loss = (y * w).sin().sum()
    loss.backward()
    return loss.detach()


def centered(y: T, w: T) -> Any:
    y.mul_(2.0).sub_(y.mean())
    return (y * w).exp()


def gated_by_itself(y: T, w: T) -> Any:
    other = (w * 2).exp()
    y *= (y + w).sigmoid()
    return (y * other).sin()


class Halved(torch.autograd.Function):
    """Gradients that are not the function's own."""

    @staticmethod
    def forward(ctx: Any, x: T) -> T:
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, grad: T) -> T:
        return 0.5 * grad


def behind_own_gradients(y: T, w: T) -> Any:
    z = Halved.apply((y * w).sin())
    z += 0.1
    return (z * w).exp()


def a_part_behind_own_gradients(y: T, w: T) -> Any:
    z = Halved.apply((y * w).sin())
    z[0].mul_(2)
    return (z * w).exp()


def read_behind_own_gradients(y: T, w: T) -> Any:
    z = Halved.apply((y * w).sin())
    other = (z + w).exp() * w
    z += 0.1
    return (z * other).exp()


def counted_beside_own_gradients(y: T, w: T) -> Any:
    z, v = (y * w).sin(), y + w
    z.mul_(w.sigmoid())
    v.t().add_(0.1)
    return Halved.apply(z), z, v


def beside_own_gradients(y: T, w: T) -> Any:
    z = (y * w).exp()
    z += Halved.apply(w)  # eager has kept it
    return (z * w).sin()


def losses_added_beside_own_gradients(y: T, w: T) -> Any:
    z, loss = y, 0
    for k in range(3):
        z = Halved.apply(z * w)
        loss += (z * k).sin().mean()
    loss /= 3
    return loss


def read_and_changed_beside_own_gradients(y: T, w: T) -> Any:
    z = y * w
    other = (z + 1).exp() * z.detach().sum()  # of which eager keeps nothing in the memory of z
    z.add_(Halved.apply(w)).mul_(2)
    return z.sin() + other


def begun_beside_own_gradients(y: T, w: T) -> Any:
    total, rows, before = torch.zeros(3, 3), torch.empty(2, 3, 3), w.detach() * 2
    first = total[0]
    for k in range(2):
        spikes = Halved.apply(y * w + k)
        total += spikes
        rows[k] = spikes + before
    before.add_(Halved.apply(rows[0]))
    return total, rows.exp(), first * 2, before


def read_often_before(y: T, w: T) -> Any:
    parts = [y + k * w for k in range(7)]
    y.add_(w.exp())
    return sum(part.exp() for part in parts) + y


def several_accumulators(y: T, w: T) -> Any:
    first, second, third = y[0], y[1], y[2]
    quickfuse.graph_break()
    for k in range(3):
        loss = (w * (k + 1)).sin()
        first += loss[0]
        second += loss[1].exp()
        third += loss[2] * loss[0]
    first *= 0.1
    second *= 0.2
    third *= 0.3
    return (first + second + third).sum(), y


def accumulated_with_breaks(y: T, w: T) -> Any:
    total = y.sum()
    for k in range(4):
        quickfuse.graph_break()
        total += (w * y * k).sin().sum()
    return total


def masked_behind_a_break(y: T, w: T) -> Any:
    losses = (y * w).square()
    quickfuse.graph_break()
    losses[losses > 1] = 0
    return losses.mean(), losses


def in_equal_parts(y: T, w: T) -> Any:
    a, b, c = y.t().chunk(3)
    y.add_(w.sin() * 2)
    return a.exp(), b.sin() * c


def row_kept(y: T, w: T) -> Any:
    row = y[1]
    row.mul_(w[0]).add_(1)
    column = y[:, 0]
    y.sub_(w.cos() * 0.1)
    return row, column, y


def transposed(y: T, w: T) -> Any:
    y = y.t()
    quickfuse.graph_break()
    y.mul_(w.sin() + 2)
    return y.exp() * w


def a_column(y: T, w: T) -> Any:
    column = y[:, 1]
    quickfuse.graph_break()
    z = column + w[0].exp()
    column += w[1].sin()
    return z.sum() + (y * w).sum() + column.exp().sum()


def both_in_one_memory(y: T, w: T) -> Any:
    row = y[1]
    quickfuse.graph_break()
    z = (row * 2).sin()
    row += w[0].sin()
    return (y * w).exp() + z


def asked_for(y: T, w: T) -> Any:
    z = (w * y).sum()
    y += w.sin() * 2
    loss = (y * w).exp().sum() + z
    (of_y,) = torch.autograd.grad(loss, y, retain_graph=True)
    return loss, of_y


def hooked(y: T, w: T) -> Any:
    y.register_hook(lambda g: g * 2)
    quickfuse.graph_break()
    y += (w * 2).sin()
    y.register_hook(lambda g: g * 3)
    return (y * w).exp()


def retained(y: T, w: T) -> Any:
    y += (w * 2).sin()
    y.retain_grad()
    return (y * w).exp(), y


def of_one_of_many_views(y: T, w: T) -> Any:
    row = y.unbind()[1]
    quickfuse.graph_break()
    z = (w * 2).exp()
    row += z[0]
    return (row * w).exp()


def begun_without(y: T, w: T) -> Any:
    total = torch.zeros(3, 3)
    quickfuse.graph_break()
    total += (y * w).sin()
    total[0] = 2
    quickfuse.graph_break()
    total *= w.exp()
    return total.sum()


def detached_before(y: T, w: T) -> Any:
    plain = y.detach()
    y += (w * 2).sin()
    return plain * 2, plain, (y * w).exp()


def without_a_trace(y: T, w: T) -> Any:
    y += (w * 2).sin()
    with torch.no_grad():
        y *= 2
        row = y[0]
    y -= w.cos()
    return row, y.exp()


def reshaped_behind(y: T, w: T) -> Any:
    y.mul_(2)
    y.unsqueeze_(0)
    return (y * w).tanh(), y


def transposed_between(y: T, w: T) -> Any:
    y.mul_(w)
    y.t_()
    y.add_(w)
    return y.exp()


KERNELS = [
    read_often_before, several_accumulators, accumulated_with_breaks, masked_behind_a_break, row_kept, transposed,
    a_column, both_in_one_memory, hooked, retained, detached_before,
    activation, residual, assigned, a_part, by_a_view, without_history, replaced, with_random_numbers,
    behind_own_gradients, a_part_behind_own_gradients, centered, gated_by_itself, losses_added_beside_own_gradients,
    read_and_changed_beside_own_gradients,
]  # fmt: skip
PROGRAMS = [
    *KERNELS, several_times, in_a_loop, read_before, needed_before, seen_before, a_part_read_before, masked, refused,
    asked_for, in_equal_parts, begun_without, of_one_of_many_views, without_a_trace, stepped, read_behind_own_gradients,
    beside_own_gradients, counted_beside_own_gradients, reshaped_behind, transposed_between,
    begun_beside_own_gradients,
]  # fmt: skip


def outcomes(program: Callable[[T, T], Any], compile_: Callable[[Any], Any]) -> tuple[Any, list[Any]]:
    torch.manual_seed(0)
    weight, own = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    seen: list[Any] = []

    def whole(x: T) -> Any:
        y = x @ own
        quickfuse.graph_break()
        seen.append(y)
        return program(y, weight)

    called, found = compile_(whole), []
    for k in range(4):
        weight.grad = own.grad = None
        torch.manual_seed(k)
        try:
            made = called(torch.randn(3, 3))
            results = [made] if isinstance(made, T) else [*made]
            loss = sum([r.sum() for r in results if r.requires_grad], torch.zeros(()))
            if k == 2 and loss.requires_grad:
                (first,) = torch.autograd.grad(loss, own, create_graph=True)
                loss = first.square().sum() if first.requires_grad else loss * 0
            if loss.requires_grad:
                loss.backward()
        except RuntimeError as error:
            results = [type(error).__name__]
        versions = [t._version for t in (seen[-1], *results) if isinstance(t, T)]
        found.append((results, seen[-1].detach().clone(), versions, weight.grad, own.grad))
    return called, found


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_as_eager(program: Callable[[T, T], Any]) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        _, expected = outcomes(program, lambda f: f)
        _, got = outcomes(program, quickfuse.compile)
    finally:
        torch.set_default_dtype(torch.float32)
    assert same(expected, got, rtol=1e-11, atol=1e-12), f"{expected}\n{got}"


@pytest.mark.parametrize("program", KERNELS, ids=lambda program: program.__name__)
def test_kernels(program: Callable[[T, T], Any]) -> None:
    compiled, _ = outcomes(program, quickfuse.compile)
    assert not any(s.without_kernels for s in compiled.specialisations)


def viewed_before(y: T, other: T) -> Any:
    row = y.squeeze()
    y.mul_(2)
    other[::2] += 1
    return [row, torch.ones(()) * 3.5, y]


@pytest.mark.parametrize("length", [0, 1, 4])
@pytest.mark.parametrize("together", [False, True], ids=["apart", "together"])
def test_a_view_from_before_is_in_its_place_where_memory_is_shared(length: int, together: bool) -> None:
    def made(compile_: Callable[[Any], Any]) -> Any:
        y = torch.arange(float(length), requires_grad=True) * 1
        other = y.detach() if together else torch.zeros(length)
        return compile_(viewed_before)(y, other)

    assert same(made(lambda f: f), made(quickfuse.compile))


@pytest.mark.parametrize("shape", [(1,), (3, 1)])
def test_axes_of_one_element_are_left_out_in_place(shape: tuple[int, ...]) -> None:
    def changed(y: T) -> None:
        y.mul_(2)
        y.squeeze_()

    def made(compile_: Callable[[Any], Any]) -> T:
        y = torch.ones(shape, requires_grad=True) * 1
        compile_(changed)(y)
        return y

    assert same(made(lambda f: f), made(quickfuse.compile))


def after_a_break_without_gradients(y: T, w: T) -> Any:
    with torch.no_grad():
        chosen = w[1]
        if torch.all(w[0] == 0):  # the graph after it begins where gradients are off
            chosen = w[0]
    y -= (chosen * w).mean()
    return y


def in_a_block_with_gradients(y: T, w: T) -> Any:
    with torch.no_grad():
        if torch.all(w[0] == 0):
            w = w * 2
        with torch.enable_grad():
            y.mul_(w.sin()).add_(1)
        y[0] *= 2
    return y.exp()


def twice_after_breaks_without_gradients(y: T, w: T) -> Any:
    for k in range(2):
        with torch.no_grad():
            if torch.all(w[k] == 0):
                w = w * 2
        y += (w[k] * w).sum(0)
    return y * w


@pytest.mark.parametrize(
    "program",
    [after_a_break_without_gradients, in_a_block_with_gradients, twice_after_breaks_without_gradients],
    ids=lambda program: program.__name__,
)
def test_a_graph_that_begins_where_gradients_are_off(program: Callable[[T, T], Any]) -> None:
    def made(compile_: Callable[[Any], Any]) -> list[Any]:
        x = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(4, 3).requires_grad_()
        w = x.detach().cos().requires_grad_()
        called = compile_(lambda x, w: program(x * 2, w))
        found = []
        for _ in range(3):
            y = called(x, w)
            y.square().sum().backward()
            found.append([y, x.grad.clone(), w.grad.clone()])
        return found

    assert same(made(lambda f: f), made(quickfuse.compile), rtol=1e-9, atol=1e-9)
