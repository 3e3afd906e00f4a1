"""Hooks of tensors and modules that are called while the compiled function takes gradients: they are a part of its graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import quickfuse
from differential import same

T = torch.Tensor
#: Makes a program: a function of a batch, and what it uses of a model.
Maker = Callable[[nn.Sequential, list[Any]], Callable[[T], Any]]


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Sigmoid(), nn.Linear(6, 3)).double()


def halved(m: nn.Sequential, seen: list[Any]) -> Callable[[T], Any]:
    def step(x: T) -> Any:
        m.zero_grad()
        h = m[:2](x)
        h.register_hook(lambda g: g * 0.5)
        loss = m[2:](h).square().mean() + h.sum()
        loss.backward()
        return loss.detach()

    return step


def returned_with_its_history(m: nn.Sequential, seen: list[Any]) -> Callable[[T], Any]:
    def step(x: T) -> Any:
        m.zero_grad()
        h = m[:2](x)
        h.register_hook(lambda g: g * 0.5)
        loss = m[2:](h).square().mean()
        loss.backward()
        return loss

    return step


def logged(m: nn.Sequential, seen: list[Any]) -> Callable[[T], Any]:
    """Hooks see gradients in autograd's order, those of leaves among them."""

    def step(x: T) -> Any:
        m.zero_grad()
        order: list[Any] = []
        handles = []
        for k in (0, 2):
            name = f"w{k}"
            handles.append(m[k].weight.register_hook(lambda g, name=name: order.append((name, g.detach()))))
        h = x
        for k, layer in enumerate(m):
            h = layer(h)
            h.register_hook(lambda g, k=k: order.append((k, g.detach(), g.norm())))
        h.square().mean().backward()
        for handle in handles:
            handle.remove()
        return order

    return step


def numbers_kept(m: nn.Sequential, seen: list[Any]) -> Callable[[T], Any]:
    store: dict[str, float] = {"norm": 0.0}

    def step(x: T) -> Any:
        m.zero_grad()
        h = m[:2](x)
        h.register_hook(lambda g: store.__setitem__("norm", g.norm().item()))
        m[2:](h).square().mean().backward()
        return torch.tensor(store["norm"])

    return step


def several_of_one(m: nn.Sequential, seen: list[Any]) -> Callable[[T], Any]:
    """Each gets what the one before gave; one that was removed is not called."""

    def step(x: T) -> Any:
        found: list[T] = []
        m.zero_grad()
        h = m[:2](x)
        h.register_hook(lambda g: g + 1)
        gone = h.register_hook(lambda g: g * 100)
        h.register_hook(lambda g: found.append(g.sum()))
        h.register_hook(lambda g: g.clamp(-1, 1.001))
        gone.remove()
        m[2:](h).square().mean().backward()
        return found

    return step


def one_behind_another(m: nn.Sequential, seen: list[Any]) -> Callable[[T], Any]:
    def step(x: T) -> Any:
        m.zero_grad()
        a = m[:2](x)
        b = m[2:4](a) + a
        c = m[4](b) + a.sum()
        for tensor, factor in ((a, 2.0), (b, 3.0), (c, -1.0)):
            tensor.register_hook(lambda g, factor=factor: g * factor)
        c.square().mean().backward()

    return step


def reversed_gradients(m: nn.Sequential, seen: list[Any]) -> Callable[[T], Any]:
    strength = [0.1]

    def step(x: T) -> Any:
        m.zero_grad()
        strength[0] += 0.25
        h = m[:2](x)
        apart = h.view_as(h)
        apart.register_hook(lambda g: -strength[0] * g)
        (m[2:](apart).square().mean() + h.square().mean()).backward()

    return step


def changing_closure(m: nn.Sequential, seen: list[Any]) -> Callable[[T], Any]:
    """What a hook reads is what there is when it is called."""

    def step(x: T) -> Any:
        m.zero_grad()
        factor = torch.ones((), dtype=x.dtype)
        h = m[:2](x)
        h.register_hook(lambda g: g * factor)
        factor = x.mean()
        m[2:](h).square().mean().backward()
        factor = x.sum()

    return step


def of_parameters(m: nn.Sequential, seen: list[Any]) -> Callable[[T], Any]:
    def step(x: T) -> Any:
        m.zero_grad()
        handles = [p.register_hook(lambda g: g.clamp(-0.01, 0.01)) for p in m.parameters()]
        m(x).square().mean().backward()
        for handle in handles:
            handle.remove()

    return step


def of_parameters_before(m: nn.Sequential, seen: list[Any]) -> Callable[[T], Any]:
    for parameter in m.parameters():
        parameter.register_hook(lambda g: g.clamp(-0.01, 0.01))
    m[0].weight.register_hook(lambda g: seen.append(g.sum()))

    def step(x: T) -> Any:
        m.zero_grad()
        m(x).square().mean().backward()

    return step


def optimizers_in_backward(m: nn.Sequential, seen: list[Any]) -> Callable[[T], Any]:
    optimizers = {p: torch.optim.Adam([p], lr=0.1) for p in m.parameters()}

    def hook(parameter: T) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in m.parameters():
        parameter.register_post_accumulate_grad_hook(hook)

    def step(x: T) -> Any:
        loss = m(x).square().mean()
        loss.backward()
        return loss.detach(), [p.grad for p in m.parameters()], [p.detach().clone() for p in m.parameters()]

    return step


def behind_adding(m: nn.Sequential, seen: list[Any]) -> Callable[[T], Any]:
    def step(x: T) -> Any:
        def hook(parameter: T) -> None:
            with torch.no_grad():
                parameter.sub_(parameter.grad, alpha=0.1)
            parameter.grad = None

        handles = [p.register_post_accumulate_grad_hook(hook) for p in m.parameters()]
        loss = m(x).square().mean()
        loss.backward()
        for handle in handles:
            handle.remove()
        return loss.detach(), [p.detach().clone() for p in m.parameters()]

    return step


def retained(m: nn.Sequential, seen: list[Any]) -> Callable[[T], Any]:
    def step(x: T) -> Any:
        m.zero_grad()
        h, states = x, []
        for layer in m:
            h = layer(h)
            h.retain_grad()
            states.append(h)
        before = [state.grad is None for state in states]
        h.square().mean().backward()
        return before, [state.grad for state in states]

    return step


def retained_and_replaced(m: nn.Sequential, seen: list[Any]) -> Callable[[T], Any]:
    """What is retained is what the hooks gave, and is added up."""

    def step(x: T) -> Any:
        m.zero_grad()
        h = m[:2](x)
        h.retain_grad()
        h.register_hook(lambda g: g * 3)
        loss = m[2:](h).square().mean()
        loss.backward(retain_graph=True)
        first = h.grad.clone()
        loss.backward()
        return first, h.grad

    return step


def of_a_leaf_made_inside(m: nn.Sequential, seen: list[Any]) -> Callable[[T], Any]:
    def step(x: T) -> Any:
        leaf = x.clone().requires_grad_()
        leaf.register_hook(lambda g: g * 2)
        m(leaf).square().mean().backward()
        return leaf.grad

    return step


def asked_for(m: nn.Sequential, seen: list[Any]) -> Callable[[T], Any]:
    """`torch.autograd.grad` calls hooks that are on the way, and those of what it is asked for."""

    def step(x: T) -> Any:
        found: list[T] = []
        a = m[:2](x)
        b = m[2:4](a)
        a.register_hook(lambda g: g * 2)
        b.register_hook(lambda g: found.append(g.sum()))
        b.register_hook(lambda g: g * 3)
        loss = m[4](b).square().mean()
        of_a, of_weight = torch.autograd.grad(loss, [a, m[0].weight])
        return of_a, of_weight, found

    return step


def not_on_the_way(m: nn.Sequential, seen: list[Any]) -> Callable[[T], Any]:
    def step(x: T) -> Any:
        found: list[T] = []
        a = m[:2](x)
        a.register_hook(lambda g: found.append(g.sum()))
        loss = m[2:](a).square().mean()
        (of_weight,) = torch.autograd.grad(loss, [m[4].weight])
        return of_weight, found, loss.detach()

    return step


def of_a_module(m: nn.Sequential, seen: list[Any]) -> Callable[[T], Any]:
    m[3].register_full_backward_hook(lambda module, inputs, outputs: seen.append((inputs[0].norm(), outputs[0])))
    m[2].register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 0.5,))
    m[2].register_full_backward_pre_hook(lambda module, outputs: (outputs[0] * 3,))

    def step(x: T) -> Any:
        m.zero_grad()
        loss = m(x).square().mean()
        loss.backward()
        return loss.detach()

    return step


def of_a_module_and_its_result(m: nn.Sequential, seen: list[Any]) -> Callable[[T], Any]:
    """Hooks of a module are those of a node, which come after the hooks of its results."""
    m[2].register_full_backward_hook(lambda module, inputs, outputs: seen.append((inputs[0].norm(), outputs[0].norm())))
    m[2].register_full_backward_pre_hook(lambda module, outputs: (outputs[0] * 3,))

    def step(x: T) -> Any:
        m.zero_grad()
        h = m[2](m[:2](x))
        h.retain_grad()
        h.register_hook(lambda g: seen.append(g.sum()))
        h.register_hook(lambda g: g * 0.5)
        m[3:](h).square().mean().backward()
        return h.grad

    return step


def class_activation(m: nn.Sequential, seen: list[Any]) -> Callable[[T], Any]:
    found: dict[str, T] = {}
    m[2].register_forward_hook(lambda module, args, y: found.__setitem__("activation", y.detach()))
    m[2].register_full_backward_hook(lambda module, inputs, outputs: found.__setitem__("gradient", outputs[0].detach()))

    def step(x: T) -> Any:
        m.zero_grad()
        scores = m(x)
        scores[:, 1].sum().backward()
        return (found["activation"] * found["gradient"].mean(0)).sum(1).relu()

    return step


def of_a_first_module(m: nn.Sequential, seen: list[Any]) -> Callable[[T], Any]:
    """Of hooks of a module that gets nothing which needs gradients PyTorch warns."""
    m[0].register_full_backward_hook(lambda module, inputs, outputs: seen.append((inputs, outputs[0].norm())))

    def step(x: T) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            m.zero_grad()
            m(x).square().mean().backward()

    return step


ONE_GRAPH: list[Maker] = [
    halved, returned_with_its_history, logged, numbers_kept, several_of_one, one_behind_another, reversed_gradients,
    changing_closure, of_parameters, of_parameters_before, optimizers_in_backward, behind_adding, retained,
    retained_and_replaced, of_a_leaf_made_inside, asked_for, not_on_the_way, of_a_module, of_a_module_and_its_result,
    class_activation,
    of_a_first_module,
]  # fmt: skip


# what Python does ---------------------------------------------------------------------------------------------------


def changed_in_place_without_result(m: nn.Sequential, seen: list[Any]) -> Callable[[T], Any]:
    def hook(g: T) -> None:
        g.mul_(0.5)

    def step(x: T) -> Any:
        m.zero_grad()
        h = m[:2](x)
        h.register_hook(hook)
        m[2:](h).square().mean().backward()

    return step


def tensor_changed_since(m: nn.Sequential, seen: list[Any]) -> Callable[[T], Any]:
    """Hooks stay with what a tensor was when they were registered."""

    def step(x: T) -> Any:
        m.zero_grad()
        h = m[0](x)
        h.register_hook(lambda g: g * 2)
        h.mul_(3)
        m[1:](h).square().mean().backward()

    return step


def raising(m: nn.Sequential, seen: list[Any]) -> Callable[[T], Any]:
    def hook(g: T) -> T:
        seen.append(g.sum())
        if len(seen) % 2:
            raise ValueError("stopped")
        return g * 2

    def step(x: T) -> Any:
        m.zero_grad()
        h = m[:2](x)
        h.register_hook(hook)
        try:
            m[2:](h).square().mean().backward()
        except ValueError as error:
            return str(error)

    return step


def of_another_shape(m: nn.Sequential, seen: list[Any]) -> Callable[[T], Any]:
    def step(x: T) -> Any:
        m.zero_grad()
        h = m[:2](x)
        h.register_hook(lambda g: g.sum())
        try:
            m[2:](h).square().mean().backward()
        except RuntimeError as error:
            return str(error)

    return step


def of_a_parameter_s_memory(m: nn.Sequential, seen: list[Any]) -> Callable[[T], Any]:
    """Autograd gives the parameter its own memory as its gradient, which clipping then changes."""
    m[0].bias.register_hook(lambda g: m[0].bias.data)

    def step(x: T) -> Any:
        m.zero_grad()
        m(x).square().sum().backward()
        nn.utils.clip_grad_norm_(m.parameters(), 0.5)
        return m[0].bias.grad.data_ptr() == m[0].bias.data_ptr(), m[0].bias.detach().clone()

    return step


def printing(m: nn.Sequential, seen: list[Any]) -> Callable[[T], Any]:
    def step(x: T) -> Any:
        m.zero_grad()
        h = m[:2](x)
        h.register_hook(lambda g: print(g.shape, end="") or seen.append(len(str(g))))
        m[2:](h).square().mean().backward()

    return step


def left_behind(m: nn.Sequential, seen: list[Any]) -> Callable[[T], Any]:
    def step(x: T) -> Any:
        m.zero_grad()
        h = m[:2](x)
        h.register_hook(lambda g: seen.append(g.sum()))
        h.register_hook(lambda g: g * 3)
        return m[2:](h).square().mean()

    return step


def graph_kept(m: nn.Sequential, seen: list[Any]) -> Callable[[T], Any]:
    def step(x: T) -> Any:
        m.zero_grad()
        h = m[:2](x)
        h.register_hook(lambda g: seen.append(g.sum()))
        loss = m[2:](h).square().mean()
        loss.backward(retain_graph=True)
        return loss

    return step


def left_to_a_parameter(m: nn.Sequential, seen: list[Any]) -> Callable[[T], Any]:
    def step(x: T) -> Any:
        m.zero_grad()
        m[0].weight.register_hook(lambda g: seen.append(g.sum()))
        m(x).square().mean().backward()

    return step


def handle_kept(m: nn.Sequential, seen: list[Any]) -> Callable[[T], Any]:
    def step(x: T) -> Any:
        m.zero_grad()
        h = m[:2](x)
        handle = h.register_hook(lambda g: seen.append(g.sum()))
        m[2:](h).square().mean().backward()
        return handle.id >= 0, handle

    return lambda x: step(x)[0]


def break_between(m: nn.Sequential, seen: list[Any]) -> Callable[[T], Any]:
    def step(x: T) -> Any:
        m.zero_grad()
        h = m[:2](x)
        h.register_hook(lambda g: seen.append(g.sum()))
        quickfuse.graph_break()
        m[2:](h).square().mean().backward()

    return step


def second_derivatives(m: nn.Sequential, seen: list[Any]) -> Callable[[T], Any]:
    def step(x: T) -> Any:
        m.zero_grad()
        leaf = x.clone().requires_grad_()
        h = m[:2](leaf)
        h.register_hook(lambda g: g * 2)
        loss = m[2:](h).square().mean()
        (first,) = torch.autograd.grad(loss, leaf, create_graph=True)
        (loss + first.square().sum()).backward()

    return step


def module_with_several(m: nn.Sequential, seen: list[Any]) -> Callable[[T], Any]:
    class Both(nn.Module):
        def forward(self, a: T, b: T) -> tuple[T, T]:
            return a * b, a + b

    both = Both()
    both.register_full_backward_hook(lambda module, inputs, outputs: seen.append((*inputs, *outputs)))

    def step(x: T) -> Any:
        m.zero_grad()
        a, b = both(m[:2](x), m[2:4](m[:2](x)))
        (m[4](a).square().mean() + b.mean()).backward()

    return step


def module_changed_in_place(m: nn.Sequential, seen: list[Any]) -> Callable[[T], Any]:
    m[2].register_full_backward_hook(lambda module, inputs, outputs: seen.append(outputs[0].norm()))

    def step(x: T) -> Any:
        m.zero_grad()
        try:
            m[4](torch.relu_(m[:3](x))).sum().backward()
        except RuntimeError as error:
            return str(error)[:40]

    return step


OTHERS: list[Maker] = [
    of_a_parameter_s_memory,
    changed_in_place_without_result, tensor_changed_since, raising, of_another_shape, printing, left_behind,
    graph_kept, left_to_a_parameter, handle_kept, break_between, second_derivatives, module_with_several,
    module_changed_in_place,
]  # fmt: skip


def outcomes(make: Maker, compile_: Callable[[Any], Any]) -> tuple[Any, list[Any]]:
    m, seen = model(), []
    called, found = compile_(make(m, seen)), []
    torch.manual_seed(1)
    for _ in range(4):
        seen.clear()
        made = called(torch.randn(2, 4).double())
        gradients = [None if p.grad is None else p.grad.clone() for p in m.parameters()]
        if isinstance(made, torch.Tensor) and made.requires_grad and make is not returned_with_its_history:
            made.backward()
            gradients += [p.grad.clone() for p in m.parameters()]
        found.append((made, [*seen], gradients))
    return called, found


@pytest.mark.parametrize("make", [*ONE_GRAPH, *OTHERS], ids=lambda make: make.__name__)
def test_as_eager(make: Maker) -> None:
    _, expected = outcomes(make, lambda f: f)
    compiled, got = outcomes(make, quickfuse.compile)
    assert same(got, expected, rtol=1e-9, atol=1e-9), f"{expected}\n{got}"
    assert not any(s.without_kernels for s in compiled.specialisations)
    if make in ONE_GRAPH:
        assert not compiled.breaks, compiled.breaks


@pytest.mark.parametrize("make", ONE_GRAPH, ids=lambda make: make.__name__)
def test_operator_by_operator(make: Maker) -> None:
    """A backend that runs the captured graph takes gradients as often as hooks replace some."""
    _, expected = outcomes(make, lambda f: f)
    _, got = outcomes(make, lambda f: quickfuse.compile(f, backend="eager"))
    assert same(got, expected, rtol=1e-9, atol=1e-9), f"{expected}\n{got}"


@pytest.mark.parametrize("inside", [False, True])
def test_hooks_registered_anew_for_each_call(inside: bool) -> None:
    """They have other numbers, for which nothing is compiled from some point on."""
    w = nn.Parameter(torch.ones(3))

    @quickfuse.compile
    def step(x: T) -> None:
        w.grad = None
        if inside:
            w.register_hook(lambda g: g * 0.9)
        (x * w).sum().backward()

    for k in range(10):
        handle = None if inside else w.register_hook(lambda g: g * 0.9)
        step(torch.ones(3))
        torch.testing.assert_close(w.grad, torch.full((3,), 0.9 ** (k + 1 if inside else 1)))
        if handle is not None:
            handle.remove()
    assert len(step.specialisations) <= 6


@pytest.mark.parametrize("create_graph", [False, True])
def test_inputs_that_retain_their_gradients(create_graph: bool) -> None:
    """What is no leaf and retains its gradient gets it where the compiled function asks for it; other inputs do not."""

    def function(x: torch.Tensor) -> torch.Tensor:
        (slope,) = torch.autograd.grad(x.cos().sum(), x, create_graph=create_graph)
        return slope * 2

    def outcome(call: Callable[[torch.Tensor], torch.Tensor]) -> list[Any]:
        found: list[Any] = []
        for kind in ("no leaf", "retains", "leaf", "retains", "retains, twice", "no leaf"):
            x = torch.arange(3.0).requires_grad_()
            x = x if kind == "leaf" else x * 1
            if "retains" in kind:
                x.retain_grad()
            found += [call(x) for _ in range(1 + ("twice" in kind))]
            found.append(x.grad if x.retains_grad else None)
        return found

    torch.testing.assert_close(outcome(quickfuse.compile(function)), outcome(function))
