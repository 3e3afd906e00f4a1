"""Calls of `torch.autograd.Function` whose `forward` and `backward` are part of the graph and of its gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

import quickfuse
from own_gradients import Exponential


class Spike(torch.autograd.Function):
    """A step, with the gradient of something smooth."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, width: float) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.width = width
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return gradient / (1 + ctx.width * x.abs()) ** 2, None


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.round(x * 4) / 4

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, strength: float) -> torch.Tensor:
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient.neg() * ctx.strength, None


class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.clamp(-0.01, 0.01)


class Linear(torch.autograd.Function):
    """Of the tutorial."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(x, weight, bias)
        made = x.mm(weight.t())
        if bias is not None:
            made += bias.unsqueeze(0).expand_as(made)
        return made

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, weight, bias = ctx.saved_tensors
        by_x = by_weight = by_bias = None
        if ctx.needs_input_grad[0]:
            by_x = gradient.mm(weight)
        if ctx.needs_input_grad[1]:
            by_weight = gradient.t().mm(x)
        if bias is not None and ctx.needs_input_grad[2]:
            by_bias = gradient.sum(0)
        return by_x, by_weight, by_bias


class Largest(torch.autograd.Function):
    """Two results, one of them without gradients; an inner value kept as an attribute."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        values, places = x.max(1)
        ctx.mark_non_differentiable(places)
        ctx.mask = torch.zeros_like(x).scatter(1, places[:, None], 1.0)
        return values, places

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return ctx.mask * gradient[:, None] * 0.5


class TwoResults(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        ctx.save_for_backward(x, y)
        return x * y, x - y

    @staticmethod
    def backward(ctx: Any, one: torch.Tensor, two: torch.Tensor) -> Any:
        x, y = ctx.saved_tensors
        return one * y + 2 * two, one * x - two


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * ctx.saved_tensors[0].cos() * 2


class Clipped(torch.autograd.Function):
    """Changes in place what it made, and the gradient's copy."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        made = x.clone()
        made[made < 0] = 0.25
        ctx.save_for_backward(x)
        return made.mul_(2)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        made = gradient.clone()
        made[x < 0] = 0
        return made


class Scan(torch.autograd.Function):
    """A running sum of products, in place of what it made, some of that by operators whose schema says nothing of memory."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        made = F.pad(x, (0, 0, 0, 1)).transpose(0, 1)
        made[:, 1:4].add_(made[:, :3] * 0.5)
        ctx.save_for_backward(x)
        return made.transpose(0, 1)[:4]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        made = gradient.clone().transpose(0, 1)
        shifted = F.pad(ctx.saved_tensors[0][1:], (0, 0, 0, 1))
        shifted.mul_(2)
        made[:, :3].add_(made[:, 1:] * 0.5)
        made.add_(shifted.t())
        return made.transpose(0, 1)


class KeepsOperand(torch.autograd.Function):
    """It does not save its operand, but keeps it: what is changed later is seen by `backward`."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ctx.y = y
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient * ctx.y, None


class NoZeros(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, one: torch.Tensor | None, two: torch.Tensor | None) -> torch.Tensor | None:
        return one if two is None else two if one is None else one + two


class Logs(torch.autograd.Function):
    seen: list[Any] = []

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        Logs.seen.append(len(Logs.seen))
        return gradient * 3


def hyper(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = w.clone()
    z = KeepsOperand.apply(x, y)
    y = y.mul_(2)
    return z.sum() + y.sum()


INLINED: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "a surrogate gradient": lambda x, w: (Spike.apply(x @ w, 10.0) * x).sum(),
    "a number that is computed": lambda x, w: (Spike.apply(x @ w, 5 * 2.0) * x).sum(),
    "straight through": lambda x, w: StraightThrough.apply(x @ w).square().sum(),
    "reversed": lambda x, w: Reversal.apply((x @ w).tanh(), 0.5).square().sum(),
    "the operand itself": lambda x, w: Same.apply(x @ w).square().sum(),
    "of an input": lambda x, w: Same.apply(w).square().sum() + Reversal.apply(w, 2.0).sin().sum(),
    "linear": lambda x, w: Linear.apply(x, w, w[0]).tanh().sum(),
    "linear without a bias": lambda x, w: Linear.apply(x.sin(), w.exp(), None).tanh().sum(),
    "its result saved": lambda x, w: (Exponential.apply(x @ w) * w[0]).sum(),
    "several results": lambda x, w: (lambda v, k: (v * k).sum() + x[0, k[0]] * w.sum())(*Largest.apply(x @ w)),
    "two results": lambda x, w: (lambda a, b: (a * b.sin()).sum())(*TwoResults.apply(x, w)),
    "one result of two": lambda x, w: TwoResults.apply(x.exp(), w)[1].square().sum(),
    "differentiable once": lambda x, w: Once.apply(x @ w).square().sum(),
    "changes of its own": lambda x, w: Clipped.apply(x @ w).square().sum(),
    "changes of what is padded": lambda x, w: Scan.apply(x @ w).square().sum(),
    "a gradient with other strides": lambda x, w: (Exponential.apply(x @ w).t() @ w).square().sum(),
    "one with strides that is changed": lambda x, w: (Scan.apply((x @ w).t()) @ w).square().sum(),
    "an expanded gradient": lambda x, w: Clipped.apply((x @ w).t()).sum() + Scan.apply(x.t() * w).mean(),
    "one after the other": lambda x, w: Exponential.apply(Spike.apply(StraightThrough.apply(x) @ w, 2.0) * w).sum(),
    "a result that is changed": lambda x, w: (lambda y: y.mul_(2).sin().sum() + y.sum())(StraightThrough.apply(x @ w)),
    "a loss on both sides": lambda x, w: sum([Spike.apply(x @ w * k, 3.0).mean() * w.sum() for k in range(4)]) + x.sum(),
}  # fmt: skip
CALLED: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "no zeros for what has no gradient": lambda x, w: NoZeros.apply(x @ w)[0].square().sum(),
    "an operand that is not saved": lambda x, w: KeepsOperand.apply(x @ w, w.detach()).square().sum(),
    "a change of it": hyper,
    "side effects": lambda x, w: Logs.apply(x @ w).square().sum(),
    "a change of what shows an operand": lambda x, w: (
        lambda a: (Reversal.apply(a, 2.0).sin().sum(), a.mul_(2).sum())
    )(x @ w)[0],
}  # fmt: skip


def inputs(turn: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(turn)
    return [torch.randn(4, 4, dtype=torch.float64, generator=generator, requires_grad=True) for _ in range(2)]


def outside(function: Callable[..., Any], turn: int) -> Any:
    leaves = inputs(turn)
    result = function(*leaves)
    result.backward()
    return result.detach(), [leaf.grad for leaf in leaves]


def outcome(run: Callable[[], Any]) -> Any:
    Logs.seen.clear()
    try:
        return run(), [*Logs.seen]
    except RuntimeError as error:
        return type(error)


def agree(made: Any, expected: Any) -> None:
    if isinstance(expected, tuple) and isinstance(made, tuple):
        torch.testing.assert_close(made, expected)
    else:  # both have raised
        assert made is expected


@pytest.mark.parametrize("name", [*INLINED, *CALLED])
def test_backward_outside(name: str) -> None:
    function = {**INLINED, **CALLED}[name]
    compiled = quickfuse.compile(function, options={"raise_internal_errors": True})
    for turn in range(3):
        agree(*(outcome(lambda f=f, turn=turn: outside(f, turn)) for f in (compiled, function)))


@pytest.mark.parametrize("name", [*INLINED, *CALLED])
def test_steps(name: str) -> None:
    function = {**INLINED, **CALLED}[name]

    def step(x: torch.Tensor, w: torch.Tensor) -> Any:
        x.grad = w.grad = None
        loss = function(x, w)
        loss.backward()
        with torch.no_grad():
            for p in (x, w):
                if p.grad is not None:
                    p -= 0.1 * p.grad
        return loss.detach(), x.detach(), w.detach()

    compiled = quickfuse.compile(step, options={"raise_internal_errors": True})
    for turn in range(3):
        agree(*(outcome(lambda f=f, turn=turn: [t.clone() for t in f(*inputs(turn))]) for f in (compiled, step)))
    if name in INLINED:
        assert compiled.graph_count == 1 and not compiled.breaks
        assert all(not s.without_kernels for s in compiled.specialisations)


@pytest.mark.parametrize("name", ["its result saved", "two results", "straight through", "differentiable once", "reversed"])
def test_gradients_of_gradients(name: str) -> None:
    function = INLINED[name]

    def penalty(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        (by_x,) = torch.autograd.grad(function(x, w), x, create_graph=True)
        return by_x.square().sum() + x.sum() * w.sum()

    compiled = quickfuse.compile(penalty, options={"raise_internal_errors": True})
    outer = quickfuse.compile(function)

    def around(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        (by_x,) = torch.autograd.grad(outer(x, w), x, create_graph=True)
        return by_x.square().sum() + x.sum() * w.sum()

    for turn in range(3):
        expected = outcome(lambda turn=turn: outside(penalty, turn))
        for run in (compiled, around):
            agree(outcome(lambda run=run, turn=turn: outside(run, turn)), expected)
    assert name == "differentiable once" or (compiled.graph_count == 1 and not compiled.breaks)


@pytest.mark.parametrize("name", INLINED)
def test_gradients_in_the_graph(name: str) -> None:
    """Of `torch.autograd.grad`, in one graph with what is computed of them."""
    function = INLINED[name]

    def step(x: torch.Tensor, w: torch.Tensor) -> Any:
        loss = function(x, w)
        by_x, by_w = torch.autograd.grad(loss, (x, w), allow_unused=True)
        found = (by_x if by_x is not None else x * 0) + 1
        return loss.detach(), found * 2, by_w

    compiled = quickfuse.compile(step, fullgraph=True, options={"raise_internal_errors": True})
    for turn in range(3):
        torch.testing.assert_close(compiled(*inputs(turn)), step(*inputs(turn)))


def test_what_backward_reads_is_guarded() -> None:
    class Scaled(torch.autograd.Function):
        factor = 2.0

        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.sin()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * Scaled.factor

    def step(x: torch.Tensor) -> Any:
        x.grad = None
        Scaled.apply(x * 2).sum().backward()
        return x.grad

    compiled = quickfuse.compile(step, fullgraph=True)
    x = torch.randn(3, requires_grad=True)
    for factor in (2.0, 2.0, 3.0, 4.0, 5.0, 2.0):
        Scaled.factor = factor
        torch.testing.assert_close(compiled(x), step(x))
    Scaled.backward = staticmethod(lambda ctx, gradient: gradient * 100)  # type: ignore[method-assign]
    torch.testing.assert_close(compiled(x), step(x))


def test_under_autocast() -> None:
    """`backward` runs outside of the block, and computes in single precision there."""

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x, weight)
            return x @ weight.t()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            x, weight = ctx.saved_tensors
            gradient = gradient.float()
            return gradient @ weight, gradient.t() @ x

    model, twin = nn.Linear(8, 8), nn.Linear(8, 8)
    twin.load_state_dict(model.state_dict())

    def make(model: nn.Module) -> Callable[[torch.Tensor], Any]:
        def step(x: torch.Tensor) -> Any:
            model.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = Product.apply(model(x).float(), model.weight).float().square().mean()
            loss.backward()
            return loss.detach(), [p.grad for p in model.parameters()]

        return step

    compiled = quickfuse.compile(make(model))
    for turn in range(3):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(turn))
        torch.testing.assert_close(compiled(x), make(twin)(x), rtol=2e-2, atol=2e-2)


def test_layers_of_a_network_as_one_graph() -> None:
    """A network of spiking neurons in time: one graph, with the optimizer's step."""

    def make() -> tuple[nn.Module, Callable[..., torch.Tensor]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 12), nn.Linear(12, 3)).double()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            one, two, loss = torch.zeros(4, 12).double(), torch.zeros(4, 3).double(), torch.zeros(()).double()
            for _ in range(5):
                one = 0.9 * one + model[0](x)
                spikes = Spike.apply(one - 1, 10.0)
                one = one - spikes.detach()
                two = 0.9 * two + model[1](spikes)
                loss += F.cross_entropy(two, y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return model, step

    model, step = make()
    twin, eager = make()
    compiled = quickfuse.compile(step, fullgraph=True)
    for turn in range(4):
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(turn)).double()
        y = torch.arange(4) % 3
        torch.testing.assert_close(compiled(x, y), eager(x, y))
        torch.testing.assert_close(copy.deepcopy(model.state_dict()), twin.state_dict())


class InOrder(torch.autograd.Function):
    """A view, whose gradient lies in another order."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return 3 * gradient.transpose(0, 1).contiguous().transpose(0, 1)


class ViewAndTwice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        return x.view_as(x), x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, of_twice: torch.Tensor) -> torch.Tensor:
        return gradient * 3 + of_twice


def _two_views(x: torch.Tensor) -> torch.Tensor:
    a, b = (x * 2).view(2, 3, 4).unbind(0)
    a, b = InOrder.apply(a), InOrder.apply(b)
    return a @ b.t()


VIEWS: list[Callable[[torch.Tensor], Any]] = [
    lambda x: Reversal.apply(x * 2, 5.0), lambda x: Reversal.apply((x * 2).view(3, 8), 5.0),
    lambda x: (lambda y: (Reversal.apply(y.view(3, 8), 5.0), y * 2))(x * 2),
    lambda x: (lambda y: (Reversal.apply(y.view(3, 8), 5.0).t(), y, InOrder.apply(y)))(x * 2),
    lambda x: (Reversal.apply(x, 5.0), x.sin()), lambda x: (Reversal.apply(x, 5.0).t(), x.sin()),
    lambda x: (lambda y: (*ViewAndTwice.apply(y), y))(x * 2),
    lambda x: (lambda y: (*ViewAndTwice.apply(y)[0].unbind(0), y))(x * 2),
    lambda x: (lambda y: (InOrder.apply(y).detach(), InOrder.apply(y)[0], y))(x * 2), _two_views,
]  # fmt: skip


@pytest.mark.parametrize("function", VIEWS)
def test_views_with_gradients_of_their_own(function: Callable[[torch.Tensor], Any]) -> None:
    def gradient(results: Any) -> Any:
        results = results if isinstance(results, tuple) else (results,)
        total = sum((result * (k + 1)).sum() for k, result in enumerate(results) if result.requires_grad)
        return torch.autograd.grad(total, x)

    x = torch.randn(6, 4, requires_grad=True)
    wanted = function(x)
    for got in (quickfuse.compile(function)(x), quickfuse.compile(function, fullgraph=True)(x)):
        torch.testing.assert_close(got, wanted)
        torch.testing.assert_close(gradient(got), gradient(function(x)))
    torch.testing.assert_close(quickfuse.compile(lambda x: gradient(function(x)))(x), gradient(wanted))
