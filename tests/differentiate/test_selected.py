"""`x[k]` with a number in a tensor, which is a view in PyTorch: kernels where nobody can tell it from a copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import quickfuse
from differential import same

T = torch.Tensor


def a_row(x: T, k: T) -> Any:
    return (x[k] * x).sum()


def a_part_of_a_row(x: T, k: T) -> Any:
    return x.sin()[k, 1:3].exp()


def behind(x: T, k: T) -> Any:
    return x[:, k] * 2 + x[..., k]


def both(x: T, k: T) -> Any:
    return x[k, k] * 3, x[k, None, k].sum(), x[1, k] + x[-1, ..., k]


def with_other_indices(x: T, k: T) -> Any:
    return x[k, [0, 2]] * 2, x[torch.tensor([1, 0, 1]), k].exp()


def of_small_integers(x: T, k: T) -> Any:
    return x[k.int()] * x[k.long() - 1]


def in_a_loop(x: T, k: T) -> Any:
    total = x.sum() * 0
    for j in range(2):
        total = total + x[(k + j) % 3].square().sum()
    return total


def gradients_inside(x: T, k: T) -> Any:
    loss = (x[k] * 2).exp().sum()
    return torch.autograd.grad(loss, x)[0] + 1


def in_a_step(x: T, k: T) -> Any:
    x.grad = None
    (x[k] * x).sum().backward()
    with torch.no_grad():
        x -= 0.1 * x.grad
    return x.grad * 1


def views_of_it(x: T, k: T) -> Any:
    rows = x[k].view(2, 2).t()
    return rows * 2, rows[0] + 1


def handed_out(x: T, k: T) -> Any:
    row = (x * 2)[k]
    return row, row * 2


def a_view_handed_out(x: T, k: T) -> Any:
    return (x * 2)[k].view(2, 2), x.sum()


def a_loss_handed_out(x: T, k: T) -> Any:
    x.grad = None
    losses = x.square().sum(1)
    loss = losses[k]
    loss.backward()
    return loss.detach(), x.grad * 1


def number_changed_since(x: T, k: T) -> Any:
    place = k.clone()
    first = x.sin()[place]
    place += 1
    place.clamp_(-2, 2)
    return first * x.exp()[place], place


def stored_to(x: T, k: T) -> Any:
    y = x * 2
    y[k].mul_(3)
    return y * 1


def assigned(x: T, k: T) -> Any:
    y, z = x * 2, x.detach() * 1
    y[k] = 0.5
    z[k] = x[0] * 2
    z[k, 1:3] = x[1, :2]
    z[k, k] = x.double().sum()
    return y * x, z


def added_to(x: T, k: T) -> Any:
    y, z = x * 2, x.detach() * 1
    y[k] += x.sum(0)
    y[0, k] *= 3
    z[k] -= 1
    return y * y, z


def changed_and_used(x: T, k: T) -> Any:
    y = x * 2
    row = y[k]
    row.mul_(3).add_(x[0])
    row += 1
    return row * row, y * y


def in_a_step_changed(x: T, k: T) -> Any:
    x.grad = None
    y = x * 2
    y[k] *= 0.5
    y.square().sum().backward()
    with torch.no_grad():
        x[k] += 1
        x[k].clamp_(-1, 1)
    return x.grad * 1


KERNELS = [
    a_row, a_part_of_a_row, behind, both, with_other_indices, of_small_integers, in_a_loop, gradients_inside, in_a_step,
    views_of_it, handed_out, a_view_handed_out, a_loss_handed_out, number_changed_since, stored_to, assigned, added_to,
    changed_and_used, in_a_step_changed,
]  # fmt: skip


def stored_to_the_whole(x: T, k: T) -> Any:
    y = x * 2
    row = y[k]
    y.add_(1)
    return row * 3, y.sum()


def stored_before(x: T, k: T) -> Any:
    y = x * 2
    y.add_(1)
    return y[k] * 3, y.sum()


def an_unpacked_part(x: T, k: T) -> Any:
    first, second = (x * 2).chunk(2)
    row = first[k.clamp(0, 1)]
    second.add_(1)
    return row.sum() + second.sum()


def as_a_mask(x: T, k: T) -> Any:
    return x[k > 100].sum(), x[k.bool()].sum()


def views_of_what_is_changed(x: T, k: T) -> Any:
    y = x * 2
    row = y[k]
    part = row[1:]
    row += 1
    part *= 2
    return y * 1, row * 1, part * 1


def rows_of_one(x: T, k: T) -> Any:
    y = x * 2
    first, second = y[k], y[k]
    first.mul_(3)
    second.add_(1)
    return y * 1, first * 1, second * 1


def number_changed_between(x: T, k: T) -> Any:
    y, place = x * 2, k.clamp(0, 2)
    row = y[place]
    place += 1
    row.mul_(3)
    y[place] = 0
    return y * 1, row * 1


def a_row_of_a_leaf(x: T, k: T) -> Any:
    x[k] += 1
    return x * 2


def swapped(x: T, k: T) -> Any:
    y = x * 2
    y[k], y[0] = y[0], y[k]
    return y * 1


OTHERS = [
    stored_to_the_whole, stored_before, an_unpacked_part, as_a_mask, views_of_what_is_changed, rows_of_one,
    number_changed_between, a_row_of_a_leaf, swapped,
]  # fmt: skip


def rows_in_lists(x: T, k: T) -> Any:
    rows = [x[j] for j in range(4)]
    rows[2] = x.sin()[k, ..., None]
    return rows[2] * 2, x[k : k + 1].shape, x[None, k].shape


#: Those in which the number may as well be Python's.
WITH_NUMBERS = [
    a_row, a_part_of_a_row, behind, both, in_a_loop, gradients_inside, in_a_step, views_of_it, handed_out, a_view_handed_out,
    a_loss_handed_out, stored_to, assigned, added_to, changed_and_used, in_a_step_changed, stored_to_the_whole,
    stored_before, views_of_what_is_changed, rows_of_one, a_row_of_a_leaf, swapped, rows_in_lists,
]  # fmt: skip
_ONCE = {a_row, a_part_of_a_row, behind, both, in_a_step, views_of_it, handed_out, stored_to, assigned, in_a_step_changed}


def outcomes(called: Callable[[T, Any], Any], number: Callable[[Any], Any] = torch.tensor) -> list[Any]:
    torch.manual_seed(0)
    found: list[Any] = []
    for k in (0, 2, -1, 3, 7, -5, 1, -4, 2):
        x = torch.randn(4, 4, requires_grad=True)
        try:
            made = called(x, number(k))
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
            continue
        results = made if isinstance(made, tuple) else (made,)
        results = [r for r in results if isinstance(r, T)]
        for result in results:
            if result.requires_grad and not result.is_leaf:
                result.sum().backward(retain_graph=True)
        with torch.no_grad():  # a view of another one changes with it
            seen = [r.detach().clone() for r in results]
            for result in results:
                result.detach().add_(1)
        found.append((seen, [r.detach().clone() for r in results], x.detach().clone(), x.grad))
    return found


@pytest.mark.parametrize("program", [*KERNELS, *OTHERS], ids=lambda program: program.__name__)
def test_as_eager(program: Callable[[T, T], Any]) -> None:
    assert same(outcomes(program), outcomes(quickfuse.compile(program)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("program", WITH_NUMBERS, ids=lambda program: program.__name__)
def test_numbers_that_change(program: Callable[[T, Any], Any]) -> None:
    compiled = quickfuse.compile(program)
    assert same(outcomes(program, int), outcomes(compiled, int), rtol=1e-5, atol=1e-6)
    if program in _ONCE:  # for the first number, and for all others
        assert compiled.graph_count == 2 and not compiled.breaks


def test_numbers_in_the_index_of_a_parameter() -> None:
    """As the embedding of a position, or of a task."""
    def build() -> Any:
        torch.manual_seed(0)
        table, layer = torch.nn.Parameter(torch.randn(9, 4)), torch.nn.Linear(4, 4)
        optimizer = torch.optim.Adam([table, *layer.parameters()], lr=0.01)

        def step(x: T, n: int) -> Any:
            optimizer.zero_grad()
            loss = layer(x + table[n]).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach(), table.detach().clone()

        return step

    plain, compiled = build(), quickfuse.compile(build())
    for n in (3, 1, 4, 1, 5, -1, 2, 6, 5, 0, 8):
        x = torch.randn(2, 4)
        assert same(plain(x, n), compiled(x, n), rtol=1e-5, atol=1e-6)
    assert compiled.graph_count <= 3 and not compiled.breaks


@pytest.mark.parametrize("program", KERNELS, ids=lambda program: program.__name__)
def test_kernels(program: Callable[[T, T], Any], caplog: Any) -> None:
    notes: list[str] = []
    quickfuse.set_logs(graph_breaks=True)
    try:
        with caplog.at_level("INFO"):
            compiled = quickfuse.compile(program, fullgraph=True)
            for k in (0, 2):
                compiled(torch.randn(4, 4, requires_grad=True), torch.tensor(k))
        notes = [r.getMessage() for r in caplog.records]
    finally:
        quickfuse.set_logs(graph_breaks=False)
    assert all(not s.without_kernels for s in compiled.specialisations)
    assert not any("stays a call" in note for note in notes), notes
