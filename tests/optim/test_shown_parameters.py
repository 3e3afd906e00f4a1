"""Parameters that a step looks at as another type, `torch.view_as_complex(kernel)` say, and changes afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map

import quickfuse
from quickfuse import logs

T = torch.Tensor
Step = Callable[[T], Any]
#: What makes a step of two parameters, and whether kernels see each memory as one type.
CASES: dict[str, tuple[Callable[[nn.Parameter, nn.Parameter], Step], bool]] = {}


def case(one_type: bool = True) -> Callable[[Any], Any]:
    def note(make: Any) -> Any:
        CASES[make.__name__] = (make, one_type)
        return make

    return note


def update(*parameters: nn.Parameter) -> None:
    with torch.no_grad():
        for parameter in parameters:
            parameter -= 0.3 * parameter.grad
            parameter.grad = None


@case()
def a_state_space_layer(c: nn.Parameter, d: nn.Parameter) -> Step:
    optimizer = torch.optim.AdamW([c, d], 0.1)

    def step(x: T) -> Any:
        optimizer.zero_grad()
        steps = d.exp()
        kernel = torch.view_as_complex(c) * steps[:, None]
        found = (kernel[..., None] * torch.linspace(0, 0.3, 6)).exp().sum(1).real
        y = torch.fft.irfft(torch.fft.rfft(x, 12) * torch.fft.rfft(found, 12), 12)
        loss = y.square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


@case()
def changed_before(c: nn.Parameter, d: nn.Parameter) -> Step:
    def step(x: T) -> Any:
        with torch.no_grad():
            c.mul_(1.1)
        loss = (torch.view_as_complex(c) * x[:, :3]).abs().sum()
        loss.backward()
        update(c)
        return loss

    return step


@case(False)
def read_after(c: nn.Parameter, d: nn.Parameter) -> Step:
    def step(x: T) -> Any:
        shown = torch.view_as_complex(c.detach())
        y = (shown * x[:, :3]).real
        with torch.no_grad():
            c.mul_(1.1)
        return y + shown.real, shown.imag * 2

    return step


@case()
def written_by_way_of_the_view(c: nn.Parameter, d: nn.Parameter) -> Step:
    def step(x: T) -> Any:
        with torch.no_grad():
            shown = torch.view_as_complex(c)
            y = shown * x[:, :3]
            shown.mul_(1j)
            c.add_(1)
        return y.real

    return step


@case(False)
def handed_out(c: nn.Parameter, d: nn.Parameter) -> Step:
    def step(x: T) -> Any:
        with torch.no_grad():
            shown = torch.view_as_complex(c)
            y, part = shown * x[:, :3], shown.real
            c.add_(1)
        return y.real, part

    return step


@case()
def shown_twice(c: nn.Parameter, d: nn.Parameter) -> Step:
    def step(x: T) -> Any:
        with torch.no_grad():
            y = (torch.view_as_complex(c) * x[:, :3]).abs()
            c.add_(0.5)
            z = torch.view_as_complex(c) * x[:, :3]
            c.mul_(0.9)
        return y, z.real, c * 1

    return step


@case()
def bits(c: nn.Parameter, d: nn.Parameter) -> Step:
    def step(x: T) -> Any:
        y = (c.detach().view(torch.int32) & 255).sum()
        with torch.no_grad():
            c.mul_(1.5)
        return y, x * 2

    return step


@case()
def a_part_of_it(c: nn.Parameter, d: nn.Parameter) -> Step:
    def step(x: T) -> Any:
        loss = (torch.view_as_complex(c[1:]) * d[1:, None] * x[1:, :3]).abs().sum()
        loss.backward()
        update(c, d)
        return loss

    return step


@case()
def several_steps(c: nn.Parameter, d: nn.Parameter) -> Step:
    def step(x: T) -> Any:
        losses = []
        for _ in range(3):
            loss = (torch.view_as_complex(c) * d[:, None] * x[:, :3]).abs().sum()
            loss.backward()
            update(c, d)
            losses.append(loss)
        return losses

    return step


@case()
def differentiated_after_the_call(c: nn.Parameter, d: nn.Parameter) -> Step:
    """Eager refuses that: what it has saved is the memory that was changed."""

    def step(x: T) -> Any:
        shown = torch.view_as_complex(c)
        loss = (shown * shown * x[:, :3]).abs().sum()
        with torch.no_grad():
            c.mul_(2)
        return loss

    return step


@case()
def differentiated_again_after_the_call(c: nn.Parameter, d: nn.Parameter) -> Step:
    def step(x: T) -> Any:
        shown = torch.view_as_complex(c)
        loss = (shown * shown * x[:, :3]).abs().sum()
        loss.backward(retain_graph=True)
        update(c)
        return loss

    return step


@case(False)
def added_to_a_total(c: nn.Parameter, d: nn.Parameter) -> Step:
    """Eager refuses a later backward pass, also where the history is of a tensor that was there before."""

    def step(x: T) -> Any:
        total, shown = torch.zeros(()), torch.view_as_complex(c)
        total += (shown * shown * x[:, :3]).abs().sum()
        with torch.no_grad():
            c.mul_(2)
        return total

    return step


@case(False)
def differentiated_in_part(c: nn.Parameter, d: nn.Parameter) -> Step:
    def step(x: T) -> Any:
        shown, other = torch.view_as_complex(c), x.clone().requires_grad_()
        loss = (shown * shown * x[:, :3]).abs().sum() + other.sum()
        torch.autograd.grad(loss, [other])
        with torch.no_grad():
            c.mul_(2)
        return loss

    return step


@case(False)
def changed_by_way_of_another_input(c: nn.Parameter, d: nn.Parameter) -> Step:
    flat = c.detach().view(-1)

    def step(x: T) -> Any:
        shown = torch.view_as_complex(c.detach())
        flat.mul_(1.5)
        y = (shown * 2).abs().sum()
        with torch.no_grad():
            c.mul_(0.9)
        return y, flat * 1

    return step


@pytest.mark.parametrize("name", CASES)
def test_as_eager(name: str) -> None:
    make, one_type = CASES[name]
    wanted = outcomes(make, lambda step: step)
    compiled: list[Any] = []

    def compile_(step: Step) -> Any:
        compiled.append(quickfuse.compile(step, options={"raise_internal_errors": True}))
        return compiled[0]

    torch.testing.assert_close(outcomes(make, compile_), wanted)
    assert compiled[0].graph_count == 1 and not compiled[0].breaks
    assert not one_type or not any(s.without_kernels for s in compiled[0].specialisations)


def outcomes(make: Any, compile_: Callable[[Step], Any]) -> list[Any]:
    """Results, parameters and gradients of some calls, and whether `backward()` of a result works then."""
    torch.manual_seed(0)
    c, d = nn.Parameter(torch.randn(4, 3, 2)), nn.Parameter(torch.randn(4))
    step = compile_(make(c, d))
    found: list[Any] = []
    for _ in range(3):
        result = step(torch.randn(4, 6))
        found.append(tree_map(lambda tensor: tensor.detach().clone(), (result, c, d)))
        if isinstance(result, T) and result.requires_grad:
            try:
                result.backward()
                found.append(1)
            except RuntimeError:
                found.append(0)
        found += [p.grad.clone() for p in (c, d) if p.grad is not None]
    return found


def test_one_graph_for_the_gradients(caplog: pytest.LogCaptureFixture) -> None:
    """The parameter was shown by a call between two graphs, and the gradients were a call, too."""
    quickfuse.set_logs(graph_breaks=True)
    logs.log.propagate = True
    try:
        outcomes(CASES["a_state_space_layer"][0], quickfuse.compile)
    finally:
        quickfuse.set_logs(graph_breaks=False)
    assert not caplog.messages
