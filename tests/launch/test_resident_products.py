"""Small products are stored in memory that is there already: no tensor is made for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import quickfuse

T = torch.Tensor

# Always the same: exponentials of products turn the last bits of some operands into more than the comparison allows.
_DRAWN = torch.Generator().manual_seed(0)
X, W, B = (torch.randn(shape, generator=_DRAWN) for shape in ((4, 6), (6, 6), (6,)))
BATCH = torch.randn(3, 4, 4, generator=_DRAWN)

PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[T, ...]]] = {
    "a chain of products": (lambda x, w: torch.tanh(torch.tanh(torch.tanh(x @ w) @ w) @ w), (X, W)),
    "mm": (lambda x, w: torch.relu(torch.mm(torch.sin(x), w)) @ w, (X, W)),
    "linear": (lambda x, w, b: torch.relu(F.linear(torch.relu(F.linear(x, w, b)), w)), (X, W, B)),
    "addmm with numbers": (lambda x, w, b: torch.addmm(b, x, w, beta=2, alpha=0.5).exp() * 2, (X, W, B)),
    "addmm in place of its operand": (lambda x, w: torch.addmm(x.cos(), x.sin(), w).tanh() @ w, (X, W)),
    "batches": (lambda x: torch.bmm(torch.bmm(x, x).tanh(), x).relu(), (BATCH,)),
    "transposed operands": (lambda x, w: ((x.t() @ x).tanh().t() @ w).exp(), (X, W)),
    "one operand twice": (lambda x, w: (lambda y: (y @ y).tanh() + y)((x.t() @ x).tanh()), (X, W)),
    "a product that is returned too": (lambda x, w: (lambda y: (y, (y.tanh() @ w).exp()))(x @ w), (X, W)),
    "a product of vectors": (lambda x, w: torch.tanh(x[0] @ w) @ w, (X, W)),
    "other types": (lambda x, w: torch.tanh(x.double() @ w.double()).float() @ w, (X, W)),
    "no elements": (lambda x, w: torch.tanh(x[:0] @ w) @ w, (X, W)),
    "with something that is no product": (lambda x, w: torch.linalg.inv((x.t() @ x).tanh() + w).sum() * (x @ w), (X, W)),
}  # fmt: skip


def sources(compiled: Any) -> str:
    return "\n".join(s.glue.source for s in compiled.specialisations)


@pytest.mark.parametrize("name", PROGRAMS)
def test_agrees(name: str) -> None:
    function, args = PROGRAMS[name]
    compiled = quickfuse.compile(function)
    results = []
    for step in range(3):
        given = tuple([a + step for a in args])
        results.append((compiled(*given), function(*given)))
    for got, wanted in results:  # after all calls: no later one writes to what an earlier one returned
        torch.testing.assert_close(got, wanted)


def test_no_tensor_is_made_for_a_product() -> None:
    function, _ = PROGRAMS["a chain of products"]
    compiled = quickfuse.compile(function)
    compiled(torch.randn(4, 600), torch.randn(600, 600) / 25)  # too large for a kernel of ours
    assert sources(compiled).count("out=") == 3
    assert sources(compiled).count("_new") == 1


def test_what_is_returned_is_made_anew() -> None:
    compiled = quickfuse.compile(PROGRAMS["a product that is returned too"][0])
    first, _ = compiled(X, W)
    kept = first.clone()
    compiled(X + 1, W)
    assert torch.equal(first, kept)


@pytest.mark.parametrize("inside", [False, True])
def test_in_inference_mode(inside: bool) -> None:
    function, args = PROGRAMS["a chain of products"]
    compiled = quickfuse.compile(function)
    for mode in (inside, not inside, inside):
        with torch.inference_mode(mode):
            torch.testing.assert_close(compiled(*args), function(*args))


def test_with_gradients() -> None:
    function, (x, w) = PROGRAMS["a chain of products"]
    compiled = quickfuse.compile(function)
    for _ in range(2):
        found = []
        for run in (function, compiled):
            leaves = [t.clone().requires_grad_() for t in (x, w)]
            run(*leaves).square().sum().backward()
            found.append([leaf.grad for leaf in leaves])
        torch.testing.assert_close(found[1], found[0])


def test_gradients_are_tensors_of_their_own() -> None:
    """They may be changed in place, and no later call changes them."""
    net = torch.nn.Sequential(*[torch.nn.Linear(6, 6) for _ in range(3)])
    compiled = quickfuse.compile(net)
    compiled(X).sum().backward()
    kept = [(p.grad, p.grad.clone()) for p in net.parameters()]
    for p in net.parameters():
        p.grad = None
    compiled(X * 2).sum().backward()
    for grad, copy in kept:
        assert torch.equal(grad, copy)
        grad.mul_(2)
        assert torch.equal(grad, copy * 2)
