"""`tensor.data = value`: a tensor takes the memory of another one, and stays what it is to autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import quickfuse
from differential import same


class World:
    """Two models, statistics, and what a step keeps."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model, self.other, self.norm = nn.Linear(3, 2), nn.Linear(3, 2), nn.BatchNorm1d(2)
        self.kept: list[torch.Tensor] = []

    def seen(self) -> list[Any]:
        """What is in its tensors, how often they were changed, what they are to autograd, and which share their memory."""
        tensors = [*self.model.parameters(), *self.other.parameters(), *self.norm.buffers(), *self.kept]
        places = [tensor.untyped_storage().data_ptr() for tensor in tensors]
        described = [(t.detach().clone(), t._version, t.is_leaf, t.requires_grad, None if t.grad is None else t.grad.clone())
                     for t in tensors]  # fmt: skip
        return [*described, [[a == b for a in places] for b in places]]


Step = Callable[[World, torch.Tensor], Any]


def update(w: World, x: torch.Tensor) -> Any:
    w.model.zero_grad()
    loss = w.model(x).square().mean()
    loss.backward()
    for p in w.model.parameters():
        p.data = p.data - 0.1 * p.grad
    return loss.detach()


@torch.no_grad()
def without_gradients(w: World, x: torch.Tensor) -> Any:
    with torch.enable_grad():
        loss = w.model(x).square().mean()
    for p, g in zip(w.model.parameters(), torch.autograd.grad(loss, list(w.model.parameters())), strict=True):
        p.data = p - 0.1 * g
    return loss.detach(), w.model(x), w.model.weight.norm()


def moving_average(w: World, x: torch.Tensor) -> Any:
    for a, b in zip(w.model.parameters(), w.other.parameters(), strict=True):
        a.data = 0.9 * a.data + 0.1 * b.data
    return x + w.model.weight.data.sum()


def swap(w: World, x: torch.Tensor) -> Any:
    for a, b in zip(w.model.parameters(), w.other.parameters(), strict=True):
        held = a.data
        a.data = b.data
        b.data = held
    return x + w.model.weight.detach().sum()


def of_another_parameter(w: World, x: torch.Tensor) -> Any:
    w.model.weight.data = w.other.weight
    return x + 1


def keep_before_and_after(w: World, x: torch.Tensor) -> Any:
    w.kept.append(w.model.weight.data)
    w.model.weight.data = w.model.weight.data * 2
    w.kept.append(w.model.weight.data)
    return x * 2


def twice(w: World, x: torch.Tensor) -> Any:
    w.model.weight.data = w.model.weight.data + 1
    w.model.weight.data = w.model.weight.data.clamp(-1, 1)
    return x + w.model.weight.data.sum()


def changed_through_aliases(w: World, x: torch.Tensor) -> Any:
    value = w.model.weight.data * 2
    w.model.weight.data = value
    value.add_(1)
    w.model.weight.data.mul_(0.5)
    return value + 0


def in_place_before(w: World, x: torch.Tensor) -> Any:
    w.kept.append(w.model.weight.data)
    with torch.no_grad():
        w.model.weight.add_(1)
        w.model.weight.data = w.model.weight * 0.5
    return x + 1


def its_own(w: World, x: torch.Tensor) -> Any:
    w.model.weight.data = w.model.weight.data
    w.model.weight.data = w.model.weight
    return x + 1


def clipped_gradients(w: World, x: torch.Tensor) -> Any:
    w.model(x).square().mean().backward()
    for p in w.model.parameters():
        p.grad.data = p.grad.data.clamp(-0.1, 0.1)
        p.data.add_(p.grad.data, alpha=-0.1)
    return x + 1


def buffers(w: World, x: torch.Tensor) -> Any:
    w.norm.running_mean.data = w.norm.running_mean * 0.5 + x.mean(0)[:2]
    w.norm.running_var.data = torch.ones_like(w.norm.running_var)
    w.norm.num_batches_tracked.data = w.norm.num_batches_tracked + 1
    return x + w.norm.running_mean.sum() + w.norm.num_batches_tracked


def with_a_history(w: World, x: torch.Tensor) -> Any:
    value = w.other.weight * 2
    w.model.weight.data = value
    return value.sum()


def returned(w: World, x: torch.Tensor) -> Any:
    value = torch.stack([x.mean(0), x.sum(0)])
    w.model.weight.data = value
    w.kept.append(value)
    return value


def of_a_new_tensor(w: World, x: torch.Tensor) -> Any:
    made = torch.zeros(4, 3)
    made.data = x * 2
    made.data.add_(1)
    w.kept.append(made)
    return made + 1


def an_unused_result_with_gradients(w: World, x: torch.Tensor) -> Any:
    size = w.other.weight.norm() * w.norm.running_var.sum()
    return update(w, x), size.detach()


def in_place_after(w: World, x: torch.Tensor) -> Any:
    with torch.no_grad():
        w.model.weight.data = w.model.weight * 0.5
        w.model.weight.add_(1)
        w.kept.append(w.model.weight.data)
        w.model.weight.mul_(0.5)
        w.model.weight.data = w.model.weight + 1
        w.model.weight[0] = 1.5
    return x + 1


def in_the_memory_of_another(w: World, x: torch.Tensor) -> Any:
    value = w.model.weight.data * 2
    w.model.weight.data, w.model.bias.data = value, w.other.bias
    with torch.no_grad():
        torch._foreach_add_([w.model.weight, w.model.bias], 1.0)
    w.norm.running_mean.data = w.norm.running_mean + 1
    w.norm.running_mean.mul_(0.5)
    w.kept.append(value)
    return x + w.model.weight.detach().sum() + w.other.bias.detach().sum()


def back_to_where_it_was(w: World, x: torch.Tensor) -> Any:
    """Sharpness-aware minimization: gradients from next to the parameters."""
    parameters = [*w.model.parameters()]
    w.model(x).square().mean().backward()
    with torch.no_grad():
        norm = torch.stack([p.grad.norm() for p in parameters]).norm()
        before = [p.data.clone() for p in parameters]
        for p in parameters:
            p.add_(p.grad * (0.05 / (norm + 1e-12)))
    w.model.zero_grad()
    loss = w.model(x).square().mean()
    loss.backward()
    for p, data in zip(parameters, before, strict=True):
        p.data = data
    with torch.no_grad():
        for p in parameters:
            p.add_(p.grad, alpha=-0.1)
    w.model.zero_grad()
    return loss.detach()


def changed_in_a_loop(w: World, x: torch.Tensor) -> Any:
    """What `data` gave is set again, changed in place: the tensor's memory stays the same."""
    first = w.model(x).square().mean().detach()
    for _ in range(3):
        w.model.zero_grad()
        w.model(x).square().mean().backward()
        for p in w.model.parameters():
            p.data -= 0.1 * p.grad.data
    w.norm.running_mean.data *= 0.5
    w.norm.running_mean.data += w.model.bias.data
    return first, w.model(x).detach()


IN_ONE_GRAPH: list[Step] = [
    changed_in_a_loop, update, without_gradients, moving_average, swap, of_another_parameter, keep_before_and_after, twice,
    changed_through_aliases, in_place_before, its_own, clipped_gradients, buffers, with_a_history, returned, of_a_new_tensor,
    an_unused_result_with_gradients, in_place_after, in_the_memory_of_another, back_to_where_it_was,
]  # fmt: skip


def in_a_loop(w: World, x: torch.Tensor) -> Any:
    for _ in range(3):
        w.model.zero_grad()
        w.model(x).square().mean().backward()
        for p in w.model.parameters():
            p.data = p.data - 0.1 * p.grad.data
    return w.model(x)


def before_backward(w: World, x: torch.Tensor) -> Any:
    loss = (w.model(x) @ w.model.weight).square().mean()
    w.model.weight.data = w.model.weight.data * 2
    loss.backward()
    return loss.detach()


def before_a_later_backward(w: World, x: torch.Tensor) -> Any:
    y = w.model.weight.sin()
    w.model.weight.data = w.model.weight.data * 0.5
    return (y + x.sum()).sum()


def written_before_a_later_backward(w: World, x: torch.Tensor) -> Any:
    held = torch.ones(2, 6)
    held[:, :3].mul_(w.model.weight.detach())
    y = w.other.weight * held[:, :3]
    w.model.weight.data = w.model.weight.data * 0.5
    return y.sum()


def changed_before_backward(w: World, x: torch.Tensor) -> Any:
    loss = (w.model(x) @ w.model.weight).square().mean()
    w.model.weight.data *= 2
    loss.backward()
    return loss.detach()


def changed_before_a_later_backward(w: World, x: torch.Tensor) -> Any:
    y = w.model.weight.sin() * w.model.weight
    w.kept.append(w.model.weight.data)
    w.model.weight.data *= 0.5
    return (y + x.sum()).sum()


def another_view_of_its_own(w: World, x: torch.Tensor) -> Any:
    held = w.norm.running_mean.data
    held += 1
    w.norm.running_mean.data = held.view(1, 2)
    w.norm.running_mean.data = held
    w.norm.running_var.data = w.norm.running_var.data.t_()
    return x + held.sum() + w.norm.running_mean.sum()


def some_gradients_taken(w: World, x: torch.Tensor) -> Any:
    loss = (w.model(x) * w.other(x)).sum()
    (g,) = torch.autograd.grad(loss, [w.model.bias])
    w.model.bias.data = w.model.bias.data - 0.1 * g
    w.other.bias.data = w.other.bias.data - 0.1 * g
    return loss.detach()


def other_layouts(w: World, x: torch.Tensor) -> Any:
    w.model.weight.data = (x.t() @ x)[:2].t().contiguous().t()
    w.norm.running_mean.data = torch.zeros(3).expand(2, 3)
    w.norm.running_mean.data = w.norm.running_mean.data[0, :2]
    return w.model(x).detach()


def other_types(w: World, x: torch.Tensor) -> Any:
    w.norm.running_mean.data = w.norm.running_mean.data.double()
    return x + w.norm.running_mean.sum()


def refused(w: World, x: torch.Tensor) -> Any:
    w.model.weight.data = torch.zeros(2, 3, dtype=torch.int64)
    return x


def of_a_result(w: World, x: torch.Tensor) -> Any:
    made = w.model.weight * 2
    made.data = x[:2]
    return made


def power_iteration(w: World, x: torch.Tensor) -> Any:
    """A norm of a layer, called twice: autograd keeps the vector itself, and backward sees what it was set to last."""
    u, total = w.norm.running_mean, 0.0
    for k in range(2):
        u.data = torch.nn.functional.normalize(torch.mv(w.model.weight.data, x[k]), dim=0)
        total = total + (x[k] @ (w.model.weight / u.dot(w.model.weight.mv(x[k]))).t()).sin().sum()
    return total


def of_one_call_for_a_later_one(w: World, x: torch.Tensor) -> Any:
    w.norm.running_var.data = w.norm.running_var + 1
    w.kept.append((w.other.bias * w.norm.running_var).sum())
    if len(w.kept) == 4:
        w.kept[0].backward()
    return x + 1


OTHERS: list[Step] = [
    power_iteration, of_one_call_for_a_later_one,
    changed_before_backward, changed_before_a_later_backward, another_view_of_its_own,
    in_a_loop, before_backward, before_a_later_backward, written_before_a_later_backward,
    some_gradients_taken, other_layouts, other_types, refused, of_a_result,
]  # fmt: skip


def results(step: Step, fullgraph: bool | None) -> list[Any]:
    world, found = World(), []
    called: Any = lambda x: step(world, x)
    if fullgraph is not None:
        called = quickfuse.compile(called, fullgraph=fullgraph)
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        x = torch.randn(4, 3, generator=generator)
        try:
            result = called(x)
        except RuntimeError as error:
            result = str(error)
        if isinstance(result, torch.Tensor) and result.requires_grad:
            result.sum().backward()
        found.append((result, world.seen()))
    return found


@pytest.mark.parametrize("step", IN_ONE_GRAPH + OTHERS, ids=lambda step: step.__name__)
def test_set_data(step: Step) -> None:
    quickfuse.reset()
    eager, compiled = results(step, None), results(step, step in IN_ONE_GRAPH)
    for expected, got in zip(eager, compiled, strict=True):
        assert same(expected, got, rtol=1e-5, atol=1e-6), f"eager gives {expected}, compiled gives {got}"


def test_tensors_that_become_one() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.data = y * 2
        return x + y

    compiled = quickfuse.compile(f, fullgraph=True)
    for count in range(6):
        x = torch.full((3,), 2.0 + count)
        y = (torch.ones(3), x, x.view(3))[count % 3]
        mine = x.clone()
        theirs = (y, mine, mine.view(3))[count % 3]
        assert torch.equal(compiled(x, y), f(mine, theirs))
        assert torch.equal(x, mine) and torch.equal(y, theirs)


@pytest.mark.parametrize(
    "convert",
    [
        lambda m, x: m.to(x.device),
        lambda m, x: m.to(x),
        lambda m, x: m.float().cpu(),
        lambda m, x: m.to("cpu", torch.float32).to(dtype=x.dtype),
    ],
    ids=["device", "like", "methods", "names"],
)
def test_conversions_of_modules_that_change_nothing(convert: Callable[[nn.Module, torch.Tensor], Any]) -> None:
    def run(compile_: Any) -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step(x: torch.Tensor) -> torch.Tensor:
            convert(model, x)
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        called = compile_(step)
        losses = [called(torch.randn(4, 3)) for _ in range(4)]
        return losses, [p.detach() for p in model.parameters()], [p._version for p in model.parameters()]

    expected, got = run(lambda step: step), run(lambda step: quickfuse.compile(step, fullgraph=True))
    assert same(expected, got, rtol=1e-5, atol=1e-5)
