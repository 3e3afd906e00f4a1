"""Tensors from outside that begin or end to require gradients inside of what is compiled: images that are attacked, critics
that are frozen while the generator learns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import quickfuse
from differential import same

T = torch.Tensor


class World:
    """What the programs find: each call gets a new `x`, and the same modules."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.critic = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        self.maker = nn.Linear(3, 3)
        self.of_critic = torch.optim.Adam(self.critic.parameters(), lr=0.1)
        self.of_maker = torch.optim.SGD(self.maker.parameters(), lr=0.1)
        self.weight = nn.Parameter(torch.randn(4, 3))
        self.plain = torch.randn(4, 3)
        self.seen: list[Any] = []

    def tensors(self) -> list[T]:
        return [*self.critic.parameters(), *self.maker.parameters(), self.weight, self.plain]

    def state(self) -> list[Any]:
        return [(t.detach().clone(), t.requires_grad, None if t.grad is None else t.grad.clone()) for t in self.tensors()]


def gradient_of_an_input(w: World, x: T) -> Any:
    x.requires_grad_()
    w.critic(x).sum().backward()
    return x.grad.sign(), x.requires_grad, x.is_leaf


def a_penalty(w: World, x: T) -> Any:
    x.requires_grad = True
    (g,) = torch.autograd.grad(w.critic(x).sum(), x, create_graph=True)
    return (g.norm(dim=1) - 1).square().mean()


def an_attack(w: World, x: T) -> Any:
    x.requires_grad_(True)
    for _ in range(3):
        (g,) = torch.autograd.grad(w.critic(x).sum(), x)
        with torch.no_grad():
            x.add_(0.1 * g.sign()).clamp_(-1, 1)
    x.requires_grad_(False)
    return x * 2, w.critic(x)


def returned(w: World, x: T) -> Any:
    return w.critic(x.requires_grad_())


def used_before(w: World, x: T) -> Any:
    y = w.critic(x) + x.sum(1, keepdim=True)
    x.requires_grad_()
    return y * 2 + w.critic(x * 3)


def changed_before(w: World, x: T) -> Any:
    x.mul_(2)
    x.requires_grad_()
    return (x * w.weight).sum()


def changed_behind(w: World, x: T) -> Any:
    y = (x * w.weight).sum()
    w.weight.requires_grad_(False)
    w.weight.add_(1)
    return y, w.weight * 2


def frozen_before(w: World, x: T) -> Any:
    w.critic.requires_grad_(False)
    y = w.critic(w.maker(x))
    w.critic.requires_grad_(True)
    return y


def frozen_for_ever(w: World, x: T) -> Any:
    for p in w.critic.parameters():
        p.requires_grad = False
    return w.critic(w.maker(x)).sum(), [p.requires_grad for p in w.critic.parameters()]


def frozen_behind(w: World, x: T) -> Any:
    y = (w.weight * x).sum()
    w.weight.requires_grad_(False)
    return y, (w.weight * x).sum()


def frozen_before_its_gradients(w: World, x: T) -> Any:
    y = (w.weight * x * w.plain).sum() + w.maker(x).sum()
    w.weight.requires_grad_(False)
    y.backward()
    return w.weight.grad


def adversarial(w: World, x: T) -> Any:
    for p in w.critic.parameters():
        p.requires_grad = True
    w.of_critic.zero_grad()
    of_critic = w.critic(w.maker(x).detach()).mean() - w.critic(x).mean()
    of_critic.backward()
    w.of_critic.step()
    for p in w.critic.parameters():
        p.requires_grad = False
    w.of_maker.zero_grad()
    of_maker = -w.critic(w.maker(x)).mean()
    of_maker.backward()
    w.of_maker.step()
    return of_critic.detach(), of_maker.detach()


def adversarial_twice(w: World, x: T) -> Any:
    return adversarial(w, x), adversarial(w, x * 2)


def with_a_break(w: World, x: T) -> Any:
    y = x * 2
    x.requires_grad_()
    quickfuse.graph_break()
    z = (x * w.plain + y).sum()
    w.weight.requires_grad_(False)
    quickfuse.graph_break()
    return z + (w.weight * x).sum()


def a_view(w: World, x: T) -> Any:
    h = x[:, None]
    h.requires_grad = True
    return (h * w.weight).sum(1).sin(), x * 2, x.requires_grad


def gradient_of_a_view(w: World, x: T) -> Any:
    h = x.t()
    before = h.sum()
    h.requires_grad_()
    after = h * 2 + x.t()
    (after * w.plain.t() * before).sum().backward()
    return h.grad + 1, x.grad is None, w.critic(x).sum()


def views_of_what_is_made(w: World, x: T) -> Any:
    y = x * 2
    h, other = y[1:], y[:2]
    h.requires_grad_()
    seen = other.requires_grad, y.requires_grad, y[0].requires_grad, h[0].requires_grad
    with torch.no_grad():
        y.add_(1)
    (g,) = torch.autograd.grad((h * h).sum() + (other * w.weight[:2]).sum(), h)
    h.requires_grad_(False)
    return g, (h * w.weight[1:]).sum(), seen


def a_view_of_a_view(w: World, x: T) -> Any:
    h = x[1:]
    rest = h[1:]
    h.requires_grad_()
    return (h * w.weight[1:]).sum() + (rest * 2).sum(), h.requires_grad


def without_gradients(w: World, x: T) -> Any:
    with torch.no_grad():
        x.requires_grad_()
        y = x * w.weight
        w.weight.requires_grad_(False)
    return y, x * w.weight


def without_operators(w: World, x: T) -> Any:
    x.requires_grad_()
    w.weight.requires_grad_(not w.weight.requires_grad)
    return x.requires_grad, w.weight.requires_grad


def views_behind(w: World, x: T) -> Any:
    v = w.weight.view(-1)
    w.weight.requires_grad_(False)
    u = w.weight.t()
    return v.sum() * 2, u.sum(), v.requires_grad, u.requires_grad


def view_handed_out(w: World, x: T) -> Any:
    y = (w.weight * x).sum()
    w.weight.requires_grad_(False)
    v = w.weight[1:]
    u = v * 2
    w.weight.requires_grad_(True)
    return y, v.detach(), v.requires_grad, v._base is w.weight, u


def no_leaf(w: World, x: T) -> Any:
    y = w.weight * x
    y.requires_grad_(True)
    w.seen.append(1)
    try:
        y.requires_grad = True
    except RuntimeError as error:
        w.seen.append(str(error))
    return y, [*w.seen]


def raising(w: World, x: T) -> Any:
    x.requires_grad_()
    y = x * 2
    w.seen.append(1)
    return y.index_select(0, torch.tensor([w.seen.count(1) * 100]))


def caught(w: World, x: T) -> Any:
    y = x * w.weight
    try:
        y.requires_grad_(False)
    except RuntimeError as error:
        w.seen.append(str(error))
    try:
        torch.ones(2, dtype=torch.int64).requires_grad_()
    except RuntimeError as error:
        w.seen.append(str(error))
    return y, [*w.seen]


def view_done_with(w: World, x: T) -> Any:
    w.weight.requires_grad_(False)
    v = w.weight.t()[1:]
    y = v.sum() * x.sum()
    w.weight.requires_grad_(True)
    z = (w.weight.t() @ x).square().sum()
    z.backward()
    with torch.no_grad():
        w.weight.sub_(w.weight.grad / 100)
    w.weight.grad = None
    return y, z.detach(), w.weight.t() * 2


def view_of_before(w: World, x: T) -> Any:
    w.weight.requires_grad_(False)
    v = w.weight.t()
    w.weight.requires_grad_(True)
    z = (w.weight * x).sum()
    z.backward()
    asked = v.requires_grad
    with torch.no_grad():
        w.weight.sub_(w.weight.grad)
    w.weight.grad = None
    return z.detach(), asked, v.requires_grad, v * 2, v


def view_of_before_written(w: World, x: T) -> Any:
    w.weight.requires_grad_(False)
    v = w.weight[1:]
    w.weight.requires_grad_(True)
    z = (w.weight * x).sum()
    z.backward()
    with torch.no_grad():
        v.mul_(2)
    w.weight.grad = None
    return z.detach(), (w.weight * x).sum()


def adversarial_with_normed_weights(w: World, x: T) -> Any:
    for p in w.critic.parameters():
        p.requires_grad_(False)
    made = w.maker(x)
    loss = w.critic(made).mean()
    w.of_maker.zero_grad()
    loss.backward()
    w.of_maker.step()
    for p in w.critic.parameters():
        p.requires_grad_(True)
    of_critic = (w.critic(x) - w.critic(made.detach())).mean()
    of_critic.backward()
    gradients = [p.grad.clone() for p in w.critic.parameters()]
    with torch.no_grad():
        for p in w.critic.parameters():
            p.sub_(p.grad)
            p.grad = None
    return loss.detach(), of_critic.detach(), gradients


PROGRAMS = [
    gradient_of_an_input, a_penalty, an_attack, returned, used_before, changed_before, changed_behind, frozen_before,
    frozen_for_ever, frozen_behind, frozen_before_its_gradients, adversarial, adversarial_twice, a_view, gradient_of_a_view,
    views_of_what_is_made, view_done_with, with_a_break, a_view_of_a_view, view_of_before, view_of_before_written,
    without_gradients, without_operators, views_behind, view_handed_out, no_leaf, raising, caught,
]  # fmt: skip


def run(program: Callable[[World, T], Any], compile_: Callable[[Any], Any]) -> tuple[Any, list[Any]]:
    world, found = World(), []
    called = compile_(lambda x: program(world, x))
    for k in range(5):
        x = torch.randn(4, 3)
        try:
            made = called(x)
        except Exception as error:
            found.append((f"{type(error).__name__}: {error}", x.requires_grad, x.grad))
            continue
        found.append((made, x.detach().clone(), x.requires_grad, None if x.grad is None else x.grad.clone(), world.state()))
        for tensor in made if isinstance(made, tuple) else (made,):
            if isinstance(tensor, T) and tensor.grad_fn is not None:
                if k == 3 and x.requires_grad:
                    (g,) = torch.autograd.grad(tensor.sum(), x, create_graph=True, allow_unused=True)
                    second = g is not None and g.grad_fn is not None
                    found.append((g, torch.autograd.grad(g.sum(), x, allow_unused=True) if second else None))
                else:
                    tensor.sum().backward(retain_graph=True)
        found.append((None if x.grad is None else x.grad.clone(), world.state()))
        if k in (1, 3):
            for t in world.tensors():
                t.grad = None
        if k == 2:
            world.weight.requires_grad_(True)
    return called, found


@pytest.mark.parametrize("backend", ["quickfuse", "eager"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_as_eager(program: Callable[[World, T], Any], backend: str) -> None:
    _, expected = run(program, lambda f: f)
    _, got = run(program, lambda f: quickfuse.compile(f, backend=backend))
    assert same(expected, got, rtol=1e-5, atol=1e-6), f"{expected}\n{got}"


@pytest.mark.parametrize("program", PROGRAMS[: PROGRAMS.index(with_a_break)], ids=lambda program: program.__name__)
def test_one_graph_of_kernels(program: Callable[[World, T], Any]) -> None:
    compiled, _ = run(program, lambda f: quickfuse.compile(f, fullgraph=True))
    assert not any(s.without_kernels for s in compiled.specialisations)


def test_weights_with_a_spectral_norm() -> None:
    found = []
    for compile_ in (lambda f: f, quickfuse.compile):
        world = World()
        nn.utils.spectral_norm(world.critic[0])
        nn.utils.parametrizations.spectral_norm(world.critic[2])
        called = compile_(lambda x, world=world: adversarial_with_normed_weights(world, x))
        found.append([called(x) for x in torch.ones(4, 4, 3) * torch.arange(4.0).view(4, 1, 1).sin()])
    assert same(found[0], found[1], rtol=1e-4, atol=1e-5)
    assert called.graph_count and not called.breaks


# --- tensors that are others, or fail ---


def is_another(x: T, y: T) -> Any:
    x.requires_grad_()
    return (y * 2).requires_grad, (x * y).sum()


def is_another_frozen(x: T, y: T) -> Any:
    x.requires_grad_(False)
    return y.requires_grad, y * 3


def has_a_view(x: T, y: T) -> Any:
    x.requires_grad_()
    return y.requires_grad, y * 2, x * 3


def out_of_range(x: T, y: T) -> Any:
    y.add_(1)
    x.requires_grad_()
    z = (x * 2)[y.long()]
    y.add_(1)
    return z * 2


def singular(x: T, y: T) -> Any:
    y.add_(1)
    x.requires_grad_()
    z = torch.linalg.inv(x.view(2, 2) * y[0])
    y.add_(1)
    return z * 2


def three_times(x: T, y: T) -> Any:
    x.requires_grad_()
    z = x * y
    x.requires_grad_(False)
    u = x * y
    x.requires_grad_()
    return x, z + u * 2 + x


def gradient(x: T, y: T) -> Any:
    x.requires_grad_()
    (x * y).sum().backward()
    return x.grad * 1


def needing(x: T) -> T:
    return x.requires_grad_()


def hooked(x: T) -> T:
    x.requires_grad_().register_hook(lambda g: g * 2)
    return x


def unusual(x: T) -> T:
    with torch.inference_mode():
        return x + 1


PAIRS: list[tuple[Callable[[T, T], Any], Callable[[int, T, T], tuple[T, T]]]] = [
    (is_another, lambda k, x, y: (x, x if k == 2 else y)),
    (is_another_frozen, lambda k, x, y: (needing(x), x if k == 2 else needing(y))),
    (has_a_view, lambda k, x, y: (x, x.view(2, 2) if k in (1, 2) else y)),
    (has_a_view, lambda k, x, y: (x[:2], x.view(2, 2) if k == 0 else y)),
    (out_of_range, lambda k, x, y: (x, torch.full((4,), 7.0 * (k % 2)))),
    (singular, lambda k, x, y: (x, torch.full((4,), k % 2 - 1.0))),
    (three_times, lambda k, x, y: (x, y)),
    (three_times, lambda k, x, y: (needing(x) if k % 2 else x, y)),
    (three_times, lambda k, x, y: (needing(x) * 2 if k == 2 else x, y)),
    (three_times, lambda k, x, y: (unusual(x) if k == 2 else x, y)),
    (gradient, lambda k, x, y: (hooked(x) if k == 3 else x, y)),
]


def outcomes(called: Callable[[T, T], Any], operands: Callable[[int, T, T], tuple[T, T]]) -> list[Any]:
    torch.manual_seed(0)
    found: list[Any] = []
    for k in range(4):
        given = operands(k, torch.randn(4), torch.randn(4))
        try:
            made = called(*given)
        except Exception as error:
            made = f"{type(error).__name__}: {error}"
        for tensor in made if isinstance(made, tuple) else ():
            if isinstance(tensor, T) and tensor.requires_grad:
                tensor.sum().backward(retain_graph=True)
        seen = [(t.detach().clone(), t.requires_grad, t.is_leaf, t.grad if t.is_leaf else None) for t in given]
        found.append((made, seen))
    return found


@pytest.mark.parametrize("backend", ["quickfuse", "eager"])
@pytest.mark.parametrize("program, operands", PAIRS)
def test_operands(program: Any, operands: Any, backend: str) -> None:
    expected, got = outcomes(program, operands), outcomes(quickfuse.compile(program, backend=backend), operands)
    assert same(expected, got, rtol=1e-5, atol=1e-6), f"{expected}\n{got}"


def _backward(results: tuple[T, T], x: T) -> Any:
    results[1].sum().backward()


def _second_derivatives(results: tuple[T, T], x: T) -> Any:
    (g,) = torch.autograd.grad(results[1].sum(), x, create_graph=True)
    g.square().sum().backward()
    return g


def _gradient_of_a_result(results: tuple[T, T], x: T) -> Any:
    results[0].retain_grad()
    results[1].sum().backward()
    return results[0].grad


@pytest.mark.parametrize("use", [_backward, _second_derivatives, _gradient_of_a_result], ids=lambda use: use.__name__)
@pytest.mark.parametrize("frozen", ["weight", "all"])
def test_frozen_between_the_call_and_backward(use: Callable[..., Any], frozen: str) -> None:
    found = []
    for compile_ in (lambda function: function, quickfuse.compile):
        w = World()
        x = torch.ones(2, 3, requires_grad=True)

        def program(x: T, w: World = w) -> tuple[T, T]:
            hidden = w.critic[0](x).tanh()
            return hidden, w.critic[2](hidden)

        results = compile_(program)(x)
        for p in [w.critic[0].weight] if frozen == "weight" else w.critic.parameters():
            p.requires_grad_(False)
        found.append([use(results, x), x.grad, w.state()])
    assert same(found[1], found[0], rtol=1e-5, atol=1e-6), found
