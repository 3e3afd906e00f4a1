"""Hooks that the compiled function registers and leaves for a backward outside: those that use nothing which may change
until then are part of the backward graph, others are Python's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import quickfuse
from differential import same
from own_gradients import Square

T = torch.Tensor
SCALE = 1.0
seen: list[T] = []


def halved(g: T) -> T:
    return g * 0.5


def scaled(g: T) -> T:
    return g * SCALE


def of_a_module(x: T, w: T) -> Any:
    h = (x @ w).tanh()
    h.register_hook(halved)
    return (h * w).sum()


def clipped(x: T, w: T) -> Any:
    h = (x @ w).tanh()
    h.register_hook(lambda g: torch.clamp(g, -0.3, 0.3))
    h.register_hook(lambda g: torch.nan_to_num(g) * 3.5)
    return (h * w).sum()


def reversed_gradients(x: T, w: T) -> Any:
    strength = 0.25
    h = (x @ w).tanh()
    apart = h.view_as(h)
    apart.register_hook(lambda g: -strength * g)
    return (apart * w).sum() + h.square().sum()


def of_a_tensor_made_inside(x: T, w: T) -> Any:
    h, factor = (x @ w).tanh(), x.mean()
    h.register_hook(lambda g: g * factor)
    return h.exp().sum(), (w * 2).sum()


def without_a_result(x: T, w: T) -> Any:
    h = (x @ w).tanh()
    h.register_hook(lambda g: None)
    return (h * h).sum()


def removed(x: T, w: T) -> Any:
    h = (x @ w).tanh()
    handle = h.register_hook(lambda g: g * 3)
    h.register_hook(lambda g: g + 1)
    handle.remove()
    return (h * w).sum()


def on_two_ways(x: T, w: T) -> Any:
    a = x @ w
    b = a.sin() + a
    a.register_hook(lambda g: g.clamp(-1, 1))
    b.register_hook(lambda g: g * g)
    return (b * a).sum(), b.mean()


def of_which_nothing_is_saved(x: T, w: T) -> Any:
    """Results come together in a hook that is no sum of what it is for each."""
    h = x + w
    h.register_hook(lambda g: g * g)
    return h.sum(), (h * 2).sum(), (h - x).mean()


ONE_GRAPH = [
    of_a_module, clipped, reversed_gradients, of_a_tensor_made_inside, without_a_result, removed, on_two_ways,
    of_which_nothing_is_saved,
]  # fmt: skip


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: T) -> T:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, *grads: T) -> T:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grads[0] * (s + x * s * (1 - s))


def of_an_operand_of_a_function(x: T, w: T) -> Any:
    h = (x @ w).tanh()
    h.register_hook(lambda g: 0.5 * g)
    return (Swish.apply(h) ** 2).sum()


#: A function with gradients of its own stays a call, so that the graph is in two parts.
IN_PARTS = [of_an_operand_of_a_function]


def of_a_global_number(x: T, w: T) -> Any:
    h = (x @ w).tanh()
    h.register_hook(scaled)
    return (h * w).sum()


def of_a_parameter(x: T, w: T) -> Any:
    h = (x @ w).tanh()
    h.register_hook(lambda g: g * w.detach())
    return h.exp().sum()


def logged(x: T, w: T) -> Any:
    h = (x @ w).tanh()
    h.register_hook(lambda g: seen.append(g.sum()))
    return (h * w).sum()


def of_a_variable(x: T, w: T) -> Any:
    factor = 2.0

    def change() -> None:
        nonlocal factor
        factor = 3.0

    h = (x @ w).tanh()
    h.register_hook(lambda g: g * factor)
    return (h * w).sum(), change


def of_a_result(x: T, w: T) -> Any:
    h = (x @ w).tanh()
    h.register_hook(halved)
    return (h * w).sum(), h


def of_what_is_handed_out(x: T, w: T) -> Any:
    h, factor = (x @ w).tanh(), x.detach() * 2
    h.register_hook(lambda g: g * factor)
    return (h * w).sum(), factor


def of_another_shape(x: T, w: T) -> Any:
    h = (x @ w).tanh()
    h.register_hook(lambda g: g.sum())
    return (h * w).sum()


OTHERS = [
    of_a_global_number, of_a_parameter, logged, of_a_variable, of_a_result, of_what_is_handed_out, of_another_shape,
]  # fmt: skip


def outcomes(program: Callable[[T, T], Any], compile_: Callable[[Any], Any]) -> tuple[Any, list[Any]]:
    global SCALE
    torch.manual_seed(0)
    w = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    called, found = compile_(program), []
    for k in range(5):
        w.grad, SCALE = None, 1.0
        seen.clear()
        made = called(torch.randn(3, 3, dtype=torch.float64), w)
        made = made if isinstance(made, tuple) else (made,)
        SCALE = 5.0
        for result in made:
            if callable(result) and not isinstance(result, T):
                result()
            elif isinstance(result, T) and not result.requires_grad:
                result.mul_(2)
        losses = [r.sum() for r in made if isinstance(r, T) and r.requires_grad]
        loss = losses[0] if k == 3 else sum(losses[1:], losses[0])
        try:
            if k == 2 and program in (*ONE_GRAPH, *IN_PARTS):
                (first,) = torch.autograd.grad(loss, w, create_graph=True)
                loss = first.square().sum()
            loss.backward(retain_graph=k == 1)
            if k == 1:
                loss.backward()
        except RuntimeError as error:
            found.append(str(error))
        found.append(([r.detach().clone() for r in made if isinstance(r, T)], w.grad, [*seen]))
    SCALE = 1.0
    return called, found


@pytest.mark.parametrize("program", [*ONE_GRAPH, *IN_PARTS, *OTHERS], ids=lambda program: program.__name__)
def test_as_eager(program: Callable[[T, T], Any]) -> None:
    _, expected = outcomes(program, lambda f: f)
    compiled, got = outcomes(program, quickfuse.compile)
    assert same(got, expected, rtol=1e-9, atol=1e-9), f"{expected}\n{got}"
    assert not any(s.without_kernels for s in compiled.specialisations)
    assert bool(compiled.breaks) == (program in OTHERS)


@pytest.mark.parametrize("breaks", [False, True])
def test_an_autocast_block_is_left_once(breaks: bool) -> None:
    def nesting() -> int:
        torch.autocast_increment_nesting()
        return torch.autocast_decrement_nesting()

    def outcome(compiler: Any) -> list[Any]:
        torch.manual_seed(0)
        first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)

        def loss_of(x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                y = first(x)
                if breaks:
                    print(end="")
                z = second(y).tanh()
                z.register_hook(lambda gradient: 0.5 * gradient)
                return z.float().square().mean()

        run, found = compiler(loss_of), []
        for _ in range(3):
            run(torch.ones(3, 4)).backward()
            found += [second.bias.grad.clone(), nesting(), torch.is_autocast_enabled("cpu")]
            with torch.no_grad():  # autocast goes on with old copies of what changes within a block, not after it
                second.weight.mul_(1.5)
        return found

    expected, found = outcome(lambda f: f), outcome(quickfuse.compile)
    torch.testing.assert_close(found[::3], expected[::3])
    assert found[1::3] == expected[1::3] == [0, 0, 0] and found[2::3] == [False] * 3


@pytest.mark.parametrize("asked", ["all", "others"])
def test_a_hook_on_a_parameter_that_was_frozen_since(asked: str) -> None:
    """It is not called, and gradients of the frozen one are refused as in eager."""
    frozen, other = (torch.ones(3, requires_grad=True) for _ in range(2))
    frozen.register_hook(lambda g: (g.mul_(0.5), None)[1])
    frozen.requires_grad_(False)

    def step(x: T) -> tuple[T, ...]:
        loss = (frozen * other * x).sum()
        wanted = [frozen, other] if asked == "all" else [other]
        return torch.autograd.grad(loss, wanted, allow_unused=True)

    compiled = quickfuse.compile(step)
    for _ in range(2):
        if asked == "all":
            for function in (step, compiled):
                with pytest.raises(RuntimeError, match="does not require grad"):
                    function(torch.ones(3))
        else:
            assert same(compiled(torch.ones(3)), step(torch.ones(3)))


class _Both(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: T, b: T) -> tuple[T, T]:
        ctx.save_for_backward(a, b)
        return a * b, a + b

    @staticmethod
    def backward(ctx: Any, first: T, second: T) -> tuple[T, T]:
        a, b = ctx.saved_tensors
        return first * b + second, first * a + 2 * second


def _careful(factor: T) -> Callable[[T], T | None]:
    return lambda g: None if g is None else g * factor


def _careless(factor: T) -> Callable[[T], T]:
    return lambda g: g * factor


@pytest.mark.parametrize("hook", [_careful, _careless])
@pytest.mark.parametrize("used", [True, False])
def test_a_result_without_a_gradient(hook: Any, used: bool) -> None:
    """A hook gets None where nothing needs the gradient of one of several results."""
    def step(x: T, w: T) -> T:
        product, total = _Both.apply(w * x, x + w)
        total.register_hook(hook(x + 1))
        return product.sin().sum() + (total.sum() if used else 0)

    def outcome(function: Callable[..., T]) -> Any:
        x, w = (torch.linspace(start, 2, 6, dtype=torch.float64).reshape(2, 3) for start in (-1, 1))
        w.requires_grad_()
        try:
            function(x, w).backward()
        except TypeError as error:
            return str(error)
        return w.grad

    compiled = quickfuse.compile(step)
    for _ in range(2):
        got, expected = outcome(compiled), outcome(step)
        assert type(got) is type(expected) and (got == expected if isinstance(got, str) else torch.allclose(got, expected))


def _penalised(x: T, w: T) -> T:
    hidden = w + x
    hidden.register_hook(lambda g: g * 2)
    loss = (Square.apply(hidden.sin()) ** 2).sum()
    (gradient,) = torch.autograd.grad(loss, [w], create_graph=True)
    return loss + (gradient**2).sum()


def _of_both_sides(x: T, w: T) -> T:
    hidden = w + x
    made = Square.apply(hidden.sin())
    hidden.register_hook(lambda g: g * 2)
    hidden.register_hook(lambda g: -g)
    (gradient,) = torch.autograd.grad((made * hidden).sum(), [w], create_graph=True)
    return (gradient**2).sum()


@pytest.mark.parametrize("program", [_penalised, _of_both_sides])
def test_gradients_of_gradients_with_a_function(program: Callable[..., T]) -> None:
    compiled = quickfuse.compile(program)
    for _ in range(2):
        found = []
        for function in (compiled, program):
            x, w = (torch.linspace(start, 2, 6, dtype=torch.float64) for start in (-1, 1))
            loss = function(x, w.requires_grad_())
            loss.backward()
            found.append([loss, w.grad])
        torch.testing.assert_close(*found)


def test_gradients_of_gradients_through_a_result_that_is_gone() -> None:
    """Its hooks may see no gradient of a gradient any more: better no result than one without them."""
    def step(x: T, w: T) -> tuple[T, T]:
        hidden = w + x
        return hidden, hidden.sin()

    def gradients(keeps: bool, function: Callable[..., Any]) -> T:
        x, w = (torch.linspace(start, 2, 6, dtype=torch.float64) for start in (-1, 1))
        hidden, made = function(x, w.requires_grad_())
        hidden.register_hook(halved)
        kept = [hidden] if keeps else []
        del hidden
        (gradient,) = torch.autograd.grad((made**4).sum(), [w], create_graph=True)
        torch.testing.assert_close(gradient.detach(), (2 * made**3 * (x + w).cos()).detach())
        (gradient**2).sum().backward()
        assert len(kept) == keeps and w.grad is not None
        return w.grad

    torch.testing.assert_close(gradients(True, quickfuse.compile(step)), gradients(True, step))
    with pytest.raises(RuntimeError, match="has hooks and has been freed"):
        gradients(False, quickfuse.compile(step))


def test_gradients_with_a_graph_of_their_own_after_a_break() -> None:
    """The hook is of a tensor from which a result is computed, on a way that is left to the result itself."""
    linear = torch.nn.Linear(3, 2).double()

    def program(x: T, w: T) -> Any:
        h = x * w
        h.register_hook(lambda g: 0.5 * g)
        out = linear(h)
        (slopes,) = torch.autograd.grad(out.sum(), [w], create_graph=True)
        return out.square().sum() + slopes.sum() ** 2

    found = []
    for function in (program, quickfuse.compile(program)):
        x, w = torch.linspace(-1, 1, 3).double(), torch.linspace(-2, 1, 3).double().requires_grad_()
        for _ in range(2):
            function(x, w).backward()
        found.append(w.grad)
    assert same(found[1], found[0])
