"""Results of one graph that have nothing in common are differentiated one after the other, as in eager."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import quickfuse
from differentiate.twins import compiled, leaf


class Networks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic, self.inner = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)


def apart(nets: Networks, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return nets.actor(x).tanh().square().sum(), nets.critic(nets.inner(x).tanh()).tanh().square().sum()


def sharing_parameters(nets: Networks, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (nets.actor(x).tanh() * 2).sum(), nets.actor(x).sin().sum() + nets.critic(x).sum()


def sharing_a_layer(nets: Networks, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    hidden = nets.actor(x).tanh()
    return hidden.sum(), nets.critic(hidden).sum()


def views(nets: Networks, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    hidden = nets.actor(x)
    return hidden[0].sum(), nets.critic(x).t()


def heads_of_a_trunk(nets: Networks, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    hidden = nets.inner(x).tanh()
    return nets.actor(hidden).sin().sum(), nets.critic(hidden)


def a_loss_of_scores(nets: Networks, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    scores = nets.actor(x)
    return scores.square().mean(), scores


def one_after_the_other(nets: Networks, results: tuple[torch.Tensor, ...]) -> Any:
    results[0].backward()
    results[1].sum().backward()


def in_the_other_order(nets: Networks, results: tuple[torch.Tensor, ...]) -> Any:
    results[1].sum().backward()
    results[0].backward()


def one_twice(nets: Networks, results: tuple[torch.Tensor, ...]) -> Any:
    results[0].backward(retain_graph=True)
    results[0].backward()
    results[1].sum().backward()
    results[0].backward()


def updated_between(nets: Networks, results: tuple[torch.Tensor, ...]) -> Any:
    results[0].backward()
    with torch.no_grad():
        nets.actor.weight.add_(1)
    results[1].sum().backward()


def changed_what_is_needed(nets: Networks, results: tuple[torch.Tensor, ...]) -> Any:
    results[0].backward()
    with torch.no_grad():
        nets.critic.weight.add_(1)
    results[1].sum().backward()


def updated_while_the_graph_is_retained(nets: Networks, results: tuple[torch.Tensor, ...]) -> Any:
    results[0].backward(retain_graph=True)
    with torch.no_grad():
        nets.actor.weight.add_(1)
    results[1].sum().backward()


def changed_a_result(nets: Networks, results: tuple[torch.Tensor, ...]) -> Any:
    results[1].mul_(2)
    results[1].sum().backward(retain_graph=True)
    results[0].backward()


def hooked(nets: Networks, results: tuple[torch.Tensor, ...]) -> Any:
    seen: list[float] = []
    handles = [p.register_hook(lambda g: seen.append(g.sum().item())) for p in nets.parameters()]
    handles += [p.register_hook(lambda g: g * 2) for p in nets.parameters()]
    results[0].backward()
    for handle in handles:
        handle.remove()
    return torch.tensor(sorted(seen)), [len(p._backward_hooks) for p in nets.parameters()]


def differentiated_twice(nets: Networks, results: tuple[torch.Tensor, ...]) -> Any:
    first = torch.autograd.grad(results[0], [nets.actor.weight], create_graph=True)[0]
    first.square().sum().backward()
    results[1].sum().backward()


def by_what_it_does_not_depend_on(nets: Networks, results: tuple[torch.Tensor, ...]) -> Any:
    found = torch.autograd.grad(results[0], [*nets.critic.parameters()], allow_unused=True)
    results[0].backward(inputs=[*nets.actor.parameters()], retain_graph=True)
    results[1].sum().backward(inputs=[*nets.critic.parameters()])
    return [gradient is None for gradient in found]


USES = [one_after_the_other, in_the_other_order, one_twice, updated_between, changed_what_is_needed, hooked,
        differentiated_twice, by_what_it_does_not_depend_on, updated_while_the_graph_is_retained,
        changed_a_result]  # fmt: skip
FUNCTIONS = [apart, sharing_parameters, sharing_a_layer, views, heads_of_a_trunk, a_loss_of_scores]

#: Of two faults eager names the other; and it frees for second derivatives what the compiled graph computes again.
OTHERWISE = {
    *[(function, changed_what_is_needed) for function in (sharing_a_layer, heads_of_a_trunk)],
    *[(function, differentiated_twice) for function in (sharing_a_layer, heads_of_a_trunk, a_loss_of_scores)],
}


def outcome(function: Callable[..., Any], use: Callable[..., Any], nets: Networks) -> Any:
    try:
        seen = use(nets, function(nets, leaf(2, 4, grad=False))) or []
    except RuntimeError as error:
        seen = str(error).split(":")[0]
    return seen, [p.grad for p in nets.parameters()]


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_backward_from_one_result(function: Callable[..., Any], use: Callable[..., Any]) -> None:
    nets = Networks()
    expected, found = [outcome(f, use, copy.deepcopy(nets)) for f in (function, compiled(function))]
    if isinstance(expected[0], str):  # eager has added up some gradients before it raises
        assert found[0] == expected[0] or (function, use) in OTHERWISE
        return
    torch.testing.assert_close(found[0], expected[0])
    assert [g is None for g in found[1]] == [g is None for g in expected[1]]
    kept = [k for k, g in enumerate(expected[1]) if g is not None]
    torch.testing.assert_close([found[1][k] for k in kept], [expected[1][k] for k in kept])


@pytest.mark.parametrize("change", ["itself", "a view"])
def test_a_result_is_changed_that_retains_its_gradient(change: str) -> None:
    """It is the first of its node's results, wherever the program has put it: else PyTorch's change in place crashes."""

    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x * w).detach(), x * w

    found = []
    for run in (function, compiled(function)):
        first, result = run(leaf(3), leaf(3, seed=1))
        result.retain_grad()
        (result if change == "itself" else result.view_as(result)).mul_(1.5)
        (result * first).sum().backward()
        found.append([first, result.grad])
    torch.testing.assert_close(found[1], found[0])


def test_nothing_is_kept_alive() -> None:
    nets, twin = Networks(), compiled(apart)
    gc.disable()
    try:
        for begun in range(3):
            results = twin(nets, leaf(2, 4))
            for result in results[:begun]:
                result.backward()
            refs = [weakref.ref(result) for result in results]
            del results
            if begun:
                del result
            assert [ref() for ref in refs] == [None, None]
    finally:
        gc.enable()


def squared(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * x


def sums(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x * x).sum(), (y * y).sum()


@pytest.mark.parametrize("again", [False, True])
def test_graphs_that_get_no_gradient_keep_what_they_saved(again: bool) -> None:
    """The second function is one node after both graphs of the first: backward passes on nothing to one of them."""

    def run(first: Callable[..., Any], second: Callable[..., Any]) -> Any:
        a, b = leaf(3), leaf(3, seed=1)
        one, other = second(first(a), first(b))
        one.backward()
        other.backward()
        if again:
            with pytest.raises(RuntimeError, match="a second time"):
                other.backward()
        return [a.grad, b.grad]

    torch.testing.assert_close(run(compiled(squared), compiled(sums)), run(squared, sums))


def test_what_is_kept_without_a_gradient_must_not_change() -> None:
    for first, second in ((squared, sums), (compiled(squared), compiled(sums))):
        a, b = leaf(3), leaf(3, seed=1)
        one, other = second(first(a), first(b))
        one.backward()
        with torch.no_grad():
            b.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            other.backward()


@pytest.mark.parametrize("dropped", [[0], [1], [2], [0, 1], [1, 2]])
def test_results_that_are_gone_before_backward(dropped: list[int]) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        a, b = x.sin(), w.cos()
        return [a, b, a * b]

    found = []
    for run in (function, compiled(function)):
        x, w = leaf(3), leaf(3, seed=1)
        results = run(x * 2, w * 3)
        for k in dropped:
            results[k] = None
        sum(result.sum() for result in results if result is not None).backward()
        found.append([x.grad, w.grad])
    torch.testing.assert_close(found[1], found[0])


def of_factors(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.exp() * w, x * w


def of_factors_and_a_layer(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    hidden = w.sin()
    return (x.exp() * hidden).cos(), (x.t() * 2 + hidden).sigmoid(), x * hidden


def of_views(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x.t().sin() + w).square(), x @ w


def of_norms(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.relu(torch.layer_norm(x * w, (4,), x[0])), (x * w).sin()


@pytest.mark.parametrize("chosen", [0, 1, -1])
@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("function", [of_factors, of_factors_and_a_layer, of_views, of_norms], ids=lambda f: f.__name__)
def test_a_changed_input_that_eager_keeps_for_another_result(function: Any, behind: bool, chosen: int) -> None:
    def within(w: torch.Tensor, x: torch.Tensor) -> Any:
        results = function(w, x)
        print(end="")
        x.copy_(torch.zeros(4, 4))
        results[chosen].sum().backward()
        return [r.detach() for r in results]

    def around(run: Any, w: torch.Tensor, x: torch.Tensor) -> Any:
        if behind:
            return run(w, x)
        results = run(w, x)
        x.copy_(torch.zeros(4, 4))
        results[chosen].sum().backward()
        return [r.detach() for r in results]

    program = within if behind else function
    twin = compiled(program)
    for seed in range(2):
        found = []
        for run in (program, twin):
            w, x = leaf(4, 4, seed=seed), leaf(4, 4, seed=seed + 5, grad=False)
            try:
                found.append([*around(run, w, x), w.grad])
            except RuntimeError as error:
                found.append(str(error).split(":")[0])
        if isinstance(found[0], list):
            torch.testing.assert_close(found[1], found[0])
        else:
            assert found[1] == found[0] or isinstance(found[1], list)  # it may have kept no input


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
@pytest.mark.parametrize("from_outside", ["a leaf", "what was computed"])
def test_hooks_of_what_gets_no_gradient(register: str, from_outside: str) -> None:
    """They are registered after the call, which cannot know then that somebody will look."""

    def function(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return v.sin(), (w * x).sin()

    logs = []
    for run in (function, compiled(function)):
        x, v, w = leaf(3), leaf(3, seed=1), leaf(3, seed=2)
        results = run(x if from_outside == "a leaf" else x * 2, v, w)
        log: list[float | None] = []
        getattr(w, register)(lambda t, log=log, w=w: log.append(w.grad.sum().item() if t is w else t.sum().item()))
        for k in (0, 1, 0):
            results[k].sum().backward(retain_graph=True)
        logs.append(log)
    assert len(logs[0]) == 1 and logs[1] == pytest.approx(logs[0])


@pytest.mark.parametrize("changed", ["of another result", "of a product alone"])
def test_second_derivatives_after_a_change_that_does_not_matter(changed: str) -> None:
    def function(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x.sin() * 3 + v).square().sum() if changed == "of another result" else (x.sin() - 2 * w).sum(), (v * w).sum()

    found = []
    for run in (function, compiled(function)):
        x, w, v = leaf(3), leaf(3, seed=1), leaf(3, seed=2)
        first, _ = run(x, w, v)
        with torch.no_grad():
            w.add_(1)
        (gradient,) = torch.autograd.grad(first, x, create_graph=True)
        found.append([gradient, *torch.autograd.grad(gradient.sum(), x)])
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("order", [(0, 1), (0, 2), (0, 1, 2), (0, 0, 1), (1, 0)], ids=str)
def test_a_backward_that_is_refused_takes_nothing_from_others(order: tuple[int, ...]) -> None:
    """One result needs what has changed since the call; all share what else is saved."""

    def function(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = (x * w).tanh()
        return (h * c).sum(), (h * w).sum(), h.exp().sum()

    logs = []
    for run in (function, compiled(function)):
        x, w, c = leaf(4), leaf(4, seed=1), leaf(4, seed=2, grad=False)
        results = run(x, w, c)
        c.mul_(2)
        log: list[Any] = []
        for k in order:
            try:
                results[k].backward()
                log.append((x.grad.clone(), w.grad.clone()))
            except RuntimeError:
                log.append(None)
        logs.append(log)
    torch.testing.assert_close(logs[1], logs[0], equal_nan=True)


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("asked", range(4))
def test_hooks_are_called_on_the_way_to_what_is_asked_for(computed: bool, asked: int) -> None:
    """Not those of results that do not lead there, but for results that backward begins from, nor those of the input itself
    where nothing leads to it."""

    def function(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return -a, (a * b).tanh(), (b * b).mean(), b.exp()

    logs = []
    for run in (function, compiled(function)):
        leaves = [leaf(3), leaf(3, seed=1)]
        operands = [t * 2 for t in leaves] if computed else leaves
        results, log = run(*operands), []  # type: ignore[var-annotated]
        for k, hooked in enumerate([*results, *leaves]):
            hooked.register_hook(lambda g, k=k, log=log: log.append((k, g.sum().item())))
        wanted = [*leaves, *operands][asked]
        sum((k + 1) * r.sum() for k, r in enumerate(results)).backward(inputs=[wanted], retain_graph=True)  # type: ignore[union-attr]
        for result in results:
            torch.autograd.grad(result.sum(), wanted, allow_unused=True, retain_graph=True)
            torch.autograd.grad(result, wanted, torch.ones_like(result), allow_unused=True, retain_graph=True)
        logs.append(sorted(log))
    torch.testing.assert_close(logs[1], logs[0], rtol=1e-5, atol=1e-5)


def test_hooks_that_come_later_are_not_called_without_a_gradient() -> None:
    """`backward(inputs=...)` of a result that does not reach the input at all."""

    def function(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return b.tanh().mean(), (a * b).square()

    logs = []
    for run in (function, compiled(function)):
        a, b, log = leaf(3), leaf(3, seed=1), []  # type: ignore[var-annotated]
        results = run(a, b)
        a.register_hook(log.append)
        a.register_post_accumulate_grad_hook(log.append)
        results[0].backward(inputs=[a])
        logs.append((log, a.grad))
    assert logs == [([], None)] * 2


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (3, 1), (3, 0), (2, 0), (1, 2)], ids=str)
def test_second_derivatives_after_others_were_let_go_of(order: tuple[int, int]) -> None:
    """The inputs were computed for this call, and nobody else has them: those that another result needs are kept for it, and
    the others do not matter."""

    def function(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (a * w).sin(), torch.atan2(b, w), a * 2, (b * b).sum()

    found = []
    for run in (function, compiled(function)):
        leaves = [leaf(4, seed=k) for k in range(3)]
        results = run(leaves[0].exp(), leaves[1].exp(), leaves[2])
        results[order[0]].sum().backward()
        try:
            loss = results[order[1]].square().sum()
            gradients = torch.autograd.grad(loss, leaves, create_graph=True, allow_unused=True)
            sum(g.square().sum() for g in gradients if g is not None).backward()  # type: ignore[union-attr]
        except RuntimeError as error:
            gradients = (str(error)[:40],)
        found.append([*gradients, *[t.grad for t in leaves]])
    for mine, theirs in zip(*found, strict=True):
        if isinstance(theirs, torch.Tensor):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
        else:
            assert mine == theirs


@pytest.mark.parametrize("asked", [(0,), (1,), (0, 1)], ids=str)
def test_hooks_of_results_whose_own_gradients_are_asked_for(asked: tuple[int, ...]) -> None:
    """Backward goes no further than to the results, whose hooks change what is given."""

    def function(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.tanh(a)[0], b * 2

    found = []
    for run in (function, compiled(function)):
        results = run(leaf(3), leaf(3, seed=1))
        for result in results:
            result.register_hook(lambda g: g * 2)
        chosen = [results[k] for k in asked]
        found.append(torch.autograd.grad(sum(r.square().sum() for r in chosen), chosen))
    torch.testing.assert_close(found[1], found[0])


def test_second_derivatives_of_what_another_result_had_saved() -> None:
    """The first result's backward reads an input that the second one's is computed again from, and that nobody else has."""

    def function(v: torch.Tensor, x: torch.Tensor, a: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return a * v, (torch.lerp(v, x, 0.3) @ w).sum()

    found = []
    for run in (function, compiled(function)):
        x, a, w = leaf(3, 3, grad=False), leaf(3, 3, seed=1), leaf(3, 3, seed=2)
        one, other = run(x * 2, x, a, w)
        one.sum().backward()
        found.append([a.grad, *torch.autograd.grad(other, w, create_graph=True)])
    torch.testing.assert_close(found[1], found[0])


def test_one_of_two_results_outside_of_the_autocast_in_which_the_graph_began() -> None:
    """Backward without a gradient for the other one is recorded when it is asked for, with the conversions of then."""
    weight = torch.randn(5, 64, requires_grad=True)

    def step(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu"):
            x = (x * 2).bfloat16()
            quickfuse.graph_break()
            loss = F.linear(x + x, weight).flatten(0, 1).softmax(-1).square().sum()
        (loss / 2).backward()
        return loss

    compiled = quickfuse.compile(step)
    for _ in range(3):
        x = torch.randn(2, 5, 64, requires_grad=True)
        found = []
        for function in (step, compiled):
            weight.grad = x.grad = None
            loss = function(x)
            assert weight.grad is not None and x.grad is not None
            found.append((loss.detach(), weight.grad, x.grad))
        torch.testing.assert_close(found[1], found[0], atol=0.02, rtol=0.02)
