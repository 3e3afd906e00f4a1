"""What autograd visits where one graph computes several results: only what those depend on that are differentiated, as in
eager."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import quickfuse
from differentiate.twins import compiled, joined, leaf


class Traced(torch.autograd.Function):
    """A function with gradients of its own, which notes that it is asked for them, and whether they are zeros."""

    @staticmethod
    def forward(ctx: Any, t: torch.Tensor, name: str, seen: list[Any]) -> torch.Tensor:
        ctx.save_for_backward(t)
        ctx.name, ctx.seen = name, seen
        return t * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (_,) = ctx.saved_tensors
        ctx.seen.append((ctx.name, bool(gradient.any())))
        return gradient * 2, None, None


def apart(a: Any, b: Any, w: Any) -> Any:
    return (a.sin() * a).sum(), (b.cos() * b).sum()


def overlapping(a: Any, b: Any, w: Any) -> Any:
    return (a.sin() * w).sum(), (b.cos() * w).sum(), (a * b * w).sum()


def through_shared(a: Any, b: Any, w: Any) -> Any:
    hidden = (a * w).tanh()
    return hidden.sum(), (hidden * b).sum()


def sharing_what_saves_nothing(a: Any, b: Any, w: Any) -> Any:
    both = a + w
    return both.sin().sum(), (both.cos() * b).sum()


def in_a_chain(a: Any, b: Any, w: Any) -> Any:
    one, other = a.exp(), b.exp()
    return one.sum(), (one * other).sum(), other.sum()


def of_a_parameter(a: Any, b: Any, w: Any) -> Any:
    return (a.sin() * w).sum(), (w * w).sum(), b * 2


def views(a: Any, b: Any, w: Any) -> Any:
    both = torch.stack([a, b])
    return a[0] * 2, b.view(-1), both[1].sum(), (b * w).t()


def given_back(a: Any, b: Any, w: Any) -> Any:
    return a, (b * w).sin(), a.sin() * w


def partly_without(a: Any, b: Any, w: Any) -> Any:
    with torch.no_grad():
        c = a * b
    return (a * c).sum(), b.detach().sum() * w.sum(), (b.detach() * b).sum(), c


def changed_inside(a: Any, b: Any, w: Any) -> Any:
    c = a * 2
    c.mul_(w)
    d = b.clone()
    d[0] = a[0]
    return c.sin().sum(), d.cos().sum()


def one_from_another(a: Any, b: Any, w: Any) -> Any:
    t = (a * w).sin()
    return t, (t * b).cos().sum()


FUNCTIONS = [apart, overlapping, through_shared, sharing_what_saves_nothing, in_a_chain, of_a_parameter, views, given_back,
             partly_without, changed_inside, one_from_another]  # fmt: skip


def each(results: Any, leaves: Any) -> None:
    for result in results:
        if result.requires_grad:
            result.sum().backward()


def each_from_the_last(results: Any, leaves: Any) -> None:
    each(results[::-1], leaves)


def first(results: Any, leaves: Any) -> None:
    results[0].sum().backward()


def first_alone(results: list[Any], leaves: Any) -> None:
    result = results[0].sum()
    results.clear()
    result.backward()


def second(results: Any, leaves: Any) -> None:
    results[1].sum().backward()


def all_at_once(results: Any, leaves: Any) -> None:
    torch.autograd.backward([r.sum() for r in results if r.requires_grad])


def first_and_last(results: Any, leaves: Any) -> None:
    (results[0].sum() + results[-1].sum() if results[-1].requires_grad else results[0].sum()).backward()


def first_retained(results: Any, leaves: Any) -> None:
    results[0].sum().backward(retain_graph=True)
    all_at_once(results, leaves)


def each_retained(results: Any, leaves: Any) -> None:
    for result in [*results, *results]:
        if result.requires_grad:
            result.sum().backward(retain_graph=True)


def asked_for(results: Any, leaves: Any) -> Any:
    return [torch.autograd.grad(r.sum(), leaves, allow_unused=True, retain_graph=True) for r in results if r.requires_grad]


def asked_for_as_zeros(results: Any, leaves: Any) -> Any:
    return torch.autograd.grad(results[0].sum(), leaves, materialize_grads=True)


def asked_for_one(results: Any, leaves: Any) -> Any:
    return [torch.autograd.grad(r.sum(), leaves[:1], allow_unused=True) for r in results if r.requires_grad]


def asked_for_in_vain(results: Any, leaves: Any) -> Any:
    return torch.autograd.grad(results[0].sum(), leaves)


def twice(results: Any, leaves: Any) -> None:
    found = torch.autograd.grad(results[0].sum(), leaves, create_graph=True, allow_unused=True)
    torch.autograd.backward([g.square().sum() for g in found if g is not None and g.requires_grad])


def same_twice(results: Any, leaves: Any) -> None:
    results[0].sum().backward()
    results[0].sum().backward()


def hooked(results: Any, leaves: Any) -> Any:
    seen: list[Any] = []
    for k, result in enumerate(results):
        if result.requires_grad:
            result.register_hook(lambda g, k=k: seen.append((k, 0.0 if g is None else g.sum().item())))
            result.register_hook(lambda g: None if g is None else g * 2)
    for result in results:
        if result.requires_grad:
            result.sum().backward(retain_graph=True)
    return torch.tensor([value for _, value in seen]), [k for k, _ in seen]


def retained(results: Any, leaves: Any) -> Any:
    for result in results:
        if result.requires_grad:
            result.retain_grad()
    results[-1 if results[-1].requires_grad else 0].sum().backward()
    return [r.grad for r in results]


USES = [each, each_from_the_last, first, first_alone, second, all_at_once, first_and_last, first_retained, each_retained,
        asked_for, asked_for_as_zeros, asked_for_one, asked_for_in_vain, twice, same_twice, hooked, retained]  # fmt: skip


def as_leaves(leaves: Any, seen: list[Any]) -> Any:
    return leaves


def from_functions(leaves: Any, seen: list[Any]) -> Any:
    a, b, w = leaves
    return Traced.apply(a, "a", seen), Traced.apply(b, "b", seen), w


def from_operators(leaves: Any, seen: list[Any]) -> Any:
    made = [t.exp() for t in leaves]
    for name, t in zip("abw", made, strict=True):
        t.register_hook(lambda g, name=name: seen.append((name, g is None)))
        t.retain_grad()
    return made


def from_one_function(leaves: Any, seen: list[Any]) -> Any:
    a, b, w = leaves
    both = Traced.apply(torch.stack([a, b]), "both", seen)
    return *both.unbind(), w


SOURCES = [as_leaves, from_functions, from_operators, from_one_function]


def outcome(function: Any, source: Any, use: Any, around: Any = None) -> Any:
    leaves = [leaf(2, 3, seed=k) for k in range(3)]
    seen: list[Any] = []
    for name, t in zip("abw", leaves, strict=True):
        t.register_hook(lambda g, name=name: seen.append((name, "leaf")))
        t.register_post_accumulate_grad_hook(lambda t, name=name: seen.append((name, "after")))
    operands = source(leaves, seen)
    error, found = None, None
    try:
        found = use([*(function(*operands) if around is None else around(function, *operands))], leaves)
    except RuntimeError as raised:
        error = str(raised).split("(")[0][:60]
    return error, found, sorted(seen, key=str), [t.grad for t in leaves], [t.grad for t in operands if t.retains_grad]


def compare(expected: Any, found: Any, which: str = "") -> None:
    assert found[0] == expected[0], which
    if expected[0] is not None:
        return  # how far it came before that is not compared
    assert found[2] == expected[2], which
    torch.testing.assert_close([found[1], *found[3:]], [expected[1], *expected[3:]], msg=lambda text: f"{which}: {text}")


def _checkpointed(function: Any, *operands: Any) -> Any:
    return checkpoint(function, *operands, use_reentrant=False)


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: s.__name__)
@pytest.mark.parametrize("use", [each, first, second, all_at_once, retained], ids=lambda use: use.__name__)
@pytest.mark.parametrize("function", [apart, overlapping, through_shared], ids=lambda f: f.__name__)
def test_in_a_checkpoint(function: Callable[..., Any], use: Callable[..., Any], source: Any) -> None:
    compare(outcome(function, source, use, _checkpointed), outcome(compiled(function), source, use, _checkpointed))


def test_a_result_that_another_thread_used() -> None:
    """Autograd numbers nodes by thread, so that it may come to one result after an input of another."""

    def run(function: Callable[..., Any]) -> Any:
        seen: list[Any] = []
        leaves = [leaf(2, 3, seed=k) for k in range(3)]
        operands = from_functions(leaves, seen)
        for _ in range(100):
            operands[0].sin()  # this thread's numbers are larger
        one, *others = function(*operands)
        with ThreadPoolExecutor(1) as pool:
            value = pool.submit(lambda: sum(other.sin() for other in others)).result()
        torch.autograd.backward([one, value])
        return None, None, sorted(seen), [t.grad for t in leaves]

    for function in (apart, overlapping):
        compare(run(function), run(compiled(function)))


@pytest.mark.parametrize("function", [apart, overlapping, through_shared, in_a_chain], ids=lambda f: f.__name__)
@pytest.mark.parametrize("kept", [0, 1])
def test_a_result_that_is_gone_before_backward(function: Callable[..., Any], kept: int) -> None:
    """Its node is gone with it."""

    def run(function: Callable[..., Any]) -> Any:
        seen: list[Any] = []
        leaves = [leaf(2, 3, seed=k) for k in range(3)]
        function(*from_functions(leaves, seen))[kept].backward()
        return None, None, sorted(seen), [t.grad for t in leaves]

    compare(run(function), run(compiled(function)))


def test_what_is_saved_is_freed_with_the_results_that_need_it() -> None:
    def run(function: Callable[..., Any]) -> list[bool]:
        a, b = (leaf(64, 64, seed=k).exp() for k in range(2))
        refs = [weakref.ref(a.untyped_storage()), weakref.ref(b.untyped_storage())]
        one, other = function(a, b, None)
        del a, b
        alive = [[ref() is not None for ref in refs]]
        for result in (one, other):
            result.backward()
            alive.append([ref() is not None for ref in refs])
        return [*alive]

    gc.disable()
    try:
        expected = run(apart)
        assert run(compiled(apart)) == expected
    finally:
        gc.enable()


@pytest.mark.parametrize("create_graph", [False, True])
def test_asked_in_vain_once_it_is_freed(create_graph: bool) -> None:
    """Of inputs that a result does not reach: eager does not come to what has been freed."""

    def results(a: Any, b: Any, w: Any) -> Any:
        return a.sin() * w, (b * b).sum(), b.exp()

    def run(function: Callable[..., Any]) -> Any:
        first, b, w = (leaf(2, 3, seed=k) for k in range(3))
        made = function(first.exp(), b, w)
        made[1].backward()
        found = [torch.autograd.grad(made[1], t, allow_unused=True, create_graph=create_graph)[0] for t in (w, first)]
        made[2].sum().backward(inputs=[w])
        return [*found, w.grad, b.grad]

    torch.testing.assert_close(run(compiled(results)), run(results))


def used_later(a: Any, b: Any) -> Any:
    shared = a.sin()
    other = (shared * b.norm()).exp()
    quickfuse.graph_break()
    return shared.square().sum(), (other * 2).sum(), b.cos() * 1.0


def computed_between(a: Any, b: Any) -> Any:
    shared, other = a.sin(), b.exp()
    (quickfuse.disable(lambda: shared.mul_(2)))()
    mixed = (quickfuse.disable(lambda: shared * other))()
    return shared.square().sum(), (other * 2).sum(), mixed.sum() * 2


@pytest.mark.parametrize("program", [used_later, computed_between])
def test_hooks_of_results_of_which_nothing_is_asked(program: Callable[..., Any]) -> None:
    """The result is computed from one of an earlier graph, which has others of which something is asked."""

    def run(function: Callable[..., Any]) -> Any:
        a, b, c = (leaf(2, 3, seed=k) for k in range(3))
        made, called = function(a, b), []
        for k, result in enumerate(made):
            result.register_hook(lambda g, k=k: called.append((torch.tensor(k), g.sum())))
        for k, result in enumerate(made):
            for asked in ([a], [b], [c], [a, b], [a, c], [b, c], [made[k]], [made[0], c]):
                try:
                    loss = (result * result).sum()
                    called.append(torch.autograd.grad(loss, asked, allow_unused=True, retain_graph=True))
                except RuntimeError as error:
                    called.append(str(error))
        return called

    torch.testing.assert_close(run(compiled(program)), run(program))


#: So many uses in a row are made of what is compiled once. For another function or source, others are the first ones.
_OF_ONE_TWIN = 6


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: s.__name__)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_visits(function: Callable[..., Any], source: Any) -> None:
    first = (FUNCTIONS.index(function) + SOURCES.index(source)) % _OF_ONE_TWIN
    twin = compiled(function)
    for number, use in enumerate(USES):
        if number % _OF_ONE_TWIN == first:
            twin = compiled(function)
        expected = outcome(function, source, use)
        compare(expected, outcome(twin, source, use), use.__name__)
        assert joined(twin), use
