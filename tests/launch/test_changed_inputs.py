"""What happens to changed inputs where an operator returns another shape than it says, or memory runs out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import quickfuse
from quickfuse.ir.gradients import Unfit
from quickfuse.launch.joined import JoinedCall


@pytest.fixture
def head_backward() -> Iterator[Callable[..., Any]]:
    """An operator whose fake kernel is wrong: what it returns has one row only. By its name it never fails, so that inputs
    may be changed before it runs."""
    with torch.library._scoped_library("quickfuse_tests", "FRAGMENT") as library:
        library.define("head_backward(Tensor x) -> Tensor")
        library.impl("head_backward", lambda x: x[:1] * 2, "CPU")
        library.impl("head_backward", lambda x: torch.empty_like(x), "Meta")
        yield torch.ops.quickfuse_tests.head_backward


def steps(compiler: Callable[..., Any], operator: Callable[..., Any]) -> tuple[list[Any], Any]:
    """What three steps return and leave behind, and the compiled function."""
    torch.manual_seed(0)
    model, calls = nn.Linear(4, 3), torch.zeros(3)
    velocity = [torch.zeros_like(p) for p in model.parameters()]

    def step(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        calls.add_(1)
        model.zero_grad()
        loss = model(x).pow(2).sum()
        loss.backward()
        with torch.no_grad():
            for p, v in zip(model.parameters(), velocity, strict=True):
                v.mul_(0.9).add_(p.grad)
                p.sub_(v, alpha=0.1)
            head = operator(model.weight @ x.t())
        return loss.detach(), head

    seen: list[Any] = []
    compiled = compiler(step)
    for number in range(3):
        made = compiled(torch.arange(8.0).view(2, 4) / 8 + number)
        seen += [t.detach().clone() for t in (*made, calls, *model.parameters(), *velocity)]
    return seen, compiled


def test_another_shape_after_changes(head_backward: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    run, early = JoinedCall._run_compiled, []

    def note(self: JoinedCall, *args: Any) -> Any:
        early.append(self.early)
        return run(self, *args)

    monkeypatch.setattr(JoinedCall, "_run_compiled", note)
    expected, _ = steps(lambda function: function, head_backward)
    found, compiled = steps(quickfuse.compile, head_backward)
    for e, f in zip(expected, found, strict=True):
        torch.testing.assert_close(f, e)
    assert compiled.graph_count >= 1
    assert early and all(early), "this test is about changes before the operator runs"


def test_another_shape_in_a_later_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be put back then. Said in an exception that users know, and never passed over."""
    run = JoinedCall._run_compiled
    calls = 0

    def run_once(self: JoinedCall, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        made = run(self, *args)
        if calls == 3:  # the second call finds gradients where the first found none, and is compiled for itself
            raise Unfit
        return made

    monkeypatch.setattr(JoinedCall, "_run_compiled", run_once)
    with pytest.raises(quickfuse.errors.InternalError, match="another shape than before"):
        steps(quickfuse.compile, lambda x: x * 2)


def test_out_of_memory_in_the_first_call(head_backward: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies are made of what changes early: where there is no room for them, the call begins again without."""
    run = JoinedCall._run_compiled
    calls = 0

    def run_short_of_memory(self: JoinedCall, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        made = run(self, *args)
        if calls == 1:
            assert self.early
            raise torch.OutOfMemoryError
        return made

    def square(x: torch.Tensor) -> torch.Tensor:
        return x @ x.t()

    expected, _ = steps(lambda function: function, square)
    monkeypatch.setattr(JoinedCall, "_run_compiled", run_short_of_memory)
    found, _ = steps(quickfuse.compile, square)
    for e, f in zip(expected, found, strict=True):
        torch.testing.assert_close(f, e)
    assert calls == 4
