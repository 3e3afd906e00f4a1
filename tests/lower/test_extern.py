"""Calls of PyTorch's operators within programs of kernels: what they do to their operands, and what happens if they fail."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import quickfuse
from comparing import differences, outcome_of
from operator_cases import breaks
from quickfuse.lower.schemas import never_fails

T = torch.Tensor
X = torch.linspace(-2, 2, 12).reshape(3, 4)
C = torch.complex(X, X.flip(0))
I = torch.tensor([2, 0])  # noqa: E741
SINGULAR = torch.zeros(3, 3)


def _compare(function: Callable[..., Any], args: tuple[Any, ...]) -> list[str]:
    """Run natively and compiled, twice; returns what the log says about breaks and graphs without kernels."""
    theirs = copy.deepcopy(args)
    expected = outcome_of(function, list(theirs))
    state = torch.get_rng_state()
    compiled = quickfuse.compile(function)
    reasons: list[str] = []
    for _ in range(2):
        mine = copy.deepcopy(args)
        with breaks(reasons):
            found = outcome_of(compiled, list(mine))
        wrong = list(differences(theirs, mine, "arguments", tolerance=None))
        if expected[0] == "raised":
            assert found == expected
        else:
            wrong += differences(expected[1], found[1], "result", tolerance=None)
        assert not wrong, "\n".join(wrong)
        assert torch.equal(torch.get_rng_state(), state), "other random numbers were drawn"
    return reasons


def _in_order(x: T) -> Any:
    first = torch.rand(3)
    second = torch.bernoulli((x.sigmoid() + 1) / 2)  # needs a kernel before
    third = torch.randn(3)
    return first, second, third, F.dropout(second, 0.5)


def _unused_numbers(x: T) -> Any:
    torch.rand(5)
    return x + torch.rand(4)


def _assigned(x: T) -> Any:
    x[1:, 2] = 5
    x[0, ::2] += 1
    x[torch.tensor([0, 1])] = 7.0
    return x * 2


def _part_of_an_intermediate(x: T) -> Any:
    y = x * 2
    y[:, 1].uniform_()
    return y, y.sum(), y.t()[1]


def _numbers(x: T) -> Any:
    low = x.min().item()
    return x.clamp(low / 2), x.roll(1).masked_fill(x > 0, low * low), torch.full_like(x, low)


def _out(x: T) -> Any:
    out = torch.empty(0)
    torch.cumsum(x, 0, out=out)
    values, indices = torch.empty(3, 4), torch.empty(3, 4, dtype=torch.int64)
    torch.sort(x, out=(values, indices))
    return out + 1, values, indices


def _aliases(x: T) -> Any:
    a, b = torch.broadcast_tensors(x, x[:1])
    y = x.detach()
    y.add_(1)
    return a, b, torch.meshgrid(x[0], x[1], indexing="ij")[0] + 1


COMPILED: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "random numbers in order": (_in_order, (X,)),
    "random numbers that nobody uses": (_unused_numbers, (X,)),
    "in place": (lambda x: (x.normal_(), x.exponential_().add_(1), torch.relu_(x)), (X,)),
    "assignment": (_assigned, (X,)),
    "a part in place": (lambda x: (x[0].zero_(), x[:, 1].mul_(2), x + 1), (X,)),
    "a part of an intermediate": (_part_of_an_intermediate, (X,)),
    "shapes in place": (lambda x: ((x * 2).t_(), (x + 1).unsqueeze_(0).sum(0), (x * 1).transpose_(0, 1)), (X,)),
    "numbers of tensors": (_numbers, (X,)),
    "out": (_out, (X,)),
    "views": (_aliases, (X,)),
    "nested results": (lambda x: torch.histogramdd(x, [2, 2, 2, 2]), (X,)),
    "running statistics": (lambda x, m, v: F.batch_norm(x, m, v, training=True), (X, torch.zeros(4), torch.ones(4))),
    "complex numbers": (lambda c: (c.clone(), c * 2, c.t().contiguous(), c[0].mul_(2), torch.zeros(2, dtype=c.dtype)), (C,)),
    "complex to real": (lambda x: (torch.fft.fft(x).abs(), torch.fft.rfft2(x).imag + 1), (X,)),
    "conjugates": (lambda c: (c.conj(), c.conj().t(), c.adjoint() @ c, torch.cat([c.conj(), c])), (C,)),
    "as another type": (lambda c: (torch.view_as_real(c), torch.view_as_real(c * 2)[0]), (C,)),
    "bits": (lambda x: x.view(torch.int32) & 1, (X,)),
    "empty": (lambda x: (torch.sort(x), torch.linalg.pinv(x)), (torch.empty(3, 0),)),
}  # fmt: skip

#: What cannot be in a program, with the beginning of the reason.
LEFT: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "a view as another type that is written to": (lambda c: (torch.view_as_real(c).add_(1), c * 2), (C,), "memory that is"),
    "two outputs that are one memory": (lambda c: (d := c * 2, torch.view_as_real(d)), (C,), "memory that is"),
    "a copy of a conjugate": (lambda c: c.conj().t().contiguous(), (C,), "a copy of a tensor"),
    "another size": (lambda x: (x * 2).resize_(2), (X,), "resize_, which"),
}


@pytest.mark.parametrize("name", COMPILED)
def test_compiled(name: str) -> None:
    assert not _compare(*COMPILED[name])


@pytest.mark.parametrize("name", LEFT)
def test_left_to_eager(name: str) -> None:
    function, args, reason = LEFT[name]
    assert any(f"operator by operator: {reason}" in found for found in _compare(function, args))


@pytest.mark.parametrize("shape", [(0,), (5, 0)])
@pytest.mark.parametrize("autocast", [False, True])
def test_a_resized_result_is_laid_out_as_its_operands_are(shape: tuple[int, ...], autocast: bool) -> None:
    def function(x: T) -> Any:
        made = torch.empty(shape, dtype=torch.float64)
        with torch.autocast("cpu", enabled=autocast):
            return torch.add(x.mT, 1, out=made), torch.maximum(x.mT, x.mT, out=torch.empty(0)), x + 1

    _compare(function, (X,))


@pytest.mark.parametrize(
    "function",
    [
        lambda c: [torch.cat([torch.view_as_real(c)])],
        lambda c: [c * 1, torch.cat([torch.view_as_real(c)])],
        lambda c: [d := c * 2, torch.cat([torch.view_as_real(d)])],
        lambda c: [d := torch.view_as_real(c), torch.cat([d])],
        lambda c: [torch.view_as_real(c), torch.view_as_real(c).clone() * 2],
        lambda c: [torch.view_as_real(c).clone()],
        lambda c: [torch.cat([torch.view_as_real(torch.fft.fft(c[None]))])],
        lambda c: [d := torch.fft.fft(c[None]), torch.view_as_real(d).clone()],
    ],
)
def test_a_copy_of_a_result_as_another_type_has_its_own_memory(function: Callable[[T], Any]) -> None:
    for given in (C.clone(), C[0, 0].clone()):
        before, found = given.clone(), quickfuse.compile(function)(given)
        torch.testing.assert_close(found, function(given))
        found[-1].fill_(7)
        assert torch.equal(given, before)
        torch.testing.assert_close(found[:-1], function(given)[:-1])


@pytest.mark.parametrize(
    "function",
    [lambda c: torch.view_as_real(c.t().reshape(-1)[:1]), lambda c: c.t().contiguous()[:1, :1].view(torch.float32),
     lambda c: torch.view_as_real(torch.fft.fft(c).clone()), lambda c: torch.view_as_real(c[0])],
)  # fmt: skip
def test_a_result_as_another_type_shares_memory_as_in_eager(function: Callable[[T], T]) -> None:
    """A copy has memory of its own, also where it is never stored but read from what it was copied from."""
    theirs, mine = C.clone(), C.clone()
    function(theirs).zero_()
    quickfuse.compile(function)(mine).zero_()
    assert torch.equal(theirs, mine)


def _fails_after_a_change(x: T, a: T) -> Any:
    x.add_(1)
    return torch.linalg.inv(a)


def _fails_before_a_change(x: T, a: T) -> Any:
    inverse = torch.linalg.inv(a)
    x.add_(1)
    return inverse


def _fails_after_random_numbers(x: T, a: T) -> Any:
    noise = torch.rand(3)
    return torch.linalg.inv(a) + noise


def _index_out_of_range(x: T, i: T) -> Any:
    x.add_(1)
    noise = torch.rand(4)
    picked = x[i]
    x.mul_(2)
    return picked + noise


FAILING: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "after a change": (_fails_after_a_change, (X, SINGULAR)),
    "before a change": (_fails_before_a_change, (X, SINGULAR)),
    "after random numbers": (_fails_after_random_numbers, (X, SINGULAR)),
    "an index": (_index_out_of_range, (X, I + 1)),
}


@pytest.mark.parametrize("name", FAILING)
def test_failing(name: str) -> None:
    """Everything before the failing operator has happened, and nothing after it."""
    _compare(*FAILING[name])


def test_no_history_is_recorded() -> None:
    weight = X.t().clone().requires_grad_()

    def function(x: T, w: T) -> Any:
        with torch.no_grad():
            product = x @ w
            return product, torch.sort(product)[0], product + 1

    assert not any(result.requires_grad for result in quickfuse.compile(function)(X, weight))


def _attention(p: float) -> Callable[..., Any]:
    return lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], None, p) * 2


def _recurrent(kind: type, packed: bool, dropout: float, training: bool) -> Callable[..., Any]:
    module = kind(4, 4, 2, dropout=dropout).train(training)

    def function(x: T) -> Any:
        x = torch.stack([x, x + 1, x - 1])
        with torch.no_grad():
            return (module(torch.nn.utils.rnn.pack_padded_sequence(x, [3, 2, 1]))[0].data if packed else module(x)[0]) * 2

    return function


@pytest.mark.parametrize(("function", "draws"), [
    (_attention(0.0), False), (_attention(0.5), True),
    *[
        (_recurrent(kind, packed, dropout, training), dropout > 0 and training)
        for kind in (torch.nn.LSTM, torch.nn.GRU)
        for packed, dropout, training in [(False, 0.0, True), (False, 0.5, False), (False, 0.5, True), (True, 0.5, False)]
    ],
])  # fmt: skip
def test_only_dropout_draws_random_numbers(function: Callable[..., Any], draws: bool) -> None:
    """Nothing is done about the state of the generator where a call of PyTorch draws no random numbers."""
    compiled = quickfuse.compile(function)
    compiled(X)
    assert any(".get_state()" in s.glue.source for s in compiled.specialisations) is draws

    def among_others(x: T) -> Any:
        return torch.rand(3) + 1, function(x), torch.rand(2) * 2

    states = []
    for callee in (among_others, quickfuse.compile(among_others)):
        torch.manual_seed(5)
        states.append((callee(X), torch.get_rng_state()))
    assert not [*differences(states[0], states[1], "result", tolerance=None)]


def test_products_may_refuse_operands_of_several_types() -> None:
    """PyTorch's rules without data give them a result. Nothing that the program changes may come before them."""
    single, double = torch.float32, torch.float64
    for name in ("mm", "addmm", "linear", "conv2d"):
        assert never_fails(name, [single, single])
        assert not never_fails(name, [single, double])
    assert never_fails("native_batch_norm_backward", [torch.bfloat16, single])
