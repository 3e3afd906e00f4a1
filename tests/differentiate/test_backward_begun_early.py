"""Backward's kernels begun beside forward's, as on a GPU, whose kernels other processes compile."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from differentiate.twins import compiled, leaf
from quickfuse import logs
from quickfuse.errors import Unsupported
from quickfuse.pipeline import joining


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the graphs that are begun, in order."""
    monkeypatch.setattr(joining, "_are_compiled_elsewhere", lambda checked: True)
    names, begin = [], joining._begin

    def noted(name: str, *args: Any, **kwargs: Any) -> Any:
        names.append(name)
        lies, finish = begin(name, *args, **kwargs)

        def finished() -> Any:
            names.append(f"{name} finished")
            return finish()

        return lies, finished

    monkeypatch.setattr(joining, "_begin", noted)
    return names


def two(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    h = torch.tanh(x @ w)
    return h.t().sin(), h * x.sum()


def gradients(run: Any, x: torch.Tensor, w: torch.Tensor, loss: Any) -> list[torch.Tensor]:
    return [*torch.autograd.grad(loss(*run(x, w)), [x, w])]


def test_backward_is_begun_before_forward_is_finished(elsewhere: list[str]) -> None:
    x, w = leaf(3, 4), leaf(4, 5)
    fast = compiled(lambda x, w: torch.tanh(x @ w).t().sin())
    loss = fast(x, w).sum()
    assert elsewhere == ["forward", "backward", "forward finished"]
    found = torch.autograd.grad(loss, [x, w])
    assert elsewhere[3:] == ["backward finished"]
    torch.testing.assert_close(found, torch.autograd.grad(torch.tanh(x @ w).t().sin().sum(), [x, w]))
    for _ in range(3):
        torch.testing.assert_close(torch.autograd.grad(fast(x, w).sum(), [x, w]), found)
    assert len(elsewhere) == 4


@pytest.mark.parametrize("loss", [lambda a, b: a.sum() + b.sum(), lambda a, b: a.sum(), lambda a, b: b.square().sum()])
def test_what_nobody_asks_for(loss: Any) -> None:
    x, w = leaf(3, 4), leaf(4, 5)
    both = compiled(lambda x, w: (torch.tanh(x @ w).t().sin(), (x @ w) * x.sum()))
    expected = gradients(lambda x, w: (torch.tanh(x @ w).t().sin(), (x @ w) * x.sum()), x, w, loss)
    for _ in range(2):
        torch.testing.assert_close(gradients(both, x, w, loss), expected)


def test_forward_has_no_kernels_in_the_end(monkeypatch: pytest.MonkeyPatch, elsewhere: list[str]) -> None:
    """Without Triton, say: operators are called, whose results lie as in eager, and not as backward was told."""
    begin = joining.begin_kernels

    def failing(*args: Any, **kwargs: Any) -> Any:
        begun = begin(*args, **kwargs)

        def finish() -> Any:
            raise Unsupported("no compiler")

        return begun if elsewhere[-1] == "backward" else type(begun)(begun.schedule, finish)

    monkeypatch.setattr(joining, "begin_kernels", failing)
    x, w = leaf(3, 4), leaf(4, 5)

    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ w).t().sin() * 2

    before = logs.counts.get("internal errors", 0)
    fast = compiled(program)
    for _ in range(2):
        found = torch.autograd.grad(fast(x, w).sum(), [x, w])
        torch.testing.assert_close(found, torch.autograd.grad(program(x, w).sum(), [x, w]))
    assert elsewhere[:4] == ["forward", "backward", "forward finished", "backward"]
    assert logs.counts.get("internal errors", 0) == before


def test_a_backward_that_cannot_be_begun_is_tried_again(monkeypatch: pytest.MonkeyPatch, elsewhere: list[str]) -> None:
    begin, broken = joining.begin_kernels, [True]

    def failing(*args: Any, **kwargs: Any) -> Any:
        if elsewhere[-1] == "backward" and broken.pop() if broken else False:
            raise KeyError("a fault")
        return begin(*args, **kwargs)

    monkeypatch.setattr(joining, "begin_kernels", failing)
    x, w = leaf(3, 4), leaf(4, 5)
    fast = compiled(lambda x, w: (x @ w).sin())
    found = torch.autograd.grad(fast(x, w).sum(), [x, w])
    torch.testing.assert_close(found, torch.autograd.grad((x @ w).sin().sum(), [x, w]))
