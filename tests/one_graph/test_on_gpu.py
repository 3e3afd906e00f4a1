"""What a program asks of tensors on a GPU ends no graph where it would not on the CPU: it waits for the GPU there anyway."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import quickfuse

pytestmark = pytest.mark.gpu


def clamps_what_is_not_finite(x: torch.Tensor) -> torch.Tensor:
    x = x * 2
    if not torch.isfinite(x).all():
        x = torch.clamp(x, min=-100.0, max=100.0)
    return x + 1


def asserts(x: torch.Tensor) -> torch.Tensor:
    assert x.max() < 1e30, "too large"
    return x.sin() * 2


def raises_by_item(x: torch.Tensor) -> torch.Tensor:
    y = x.abs()
    if y.sum().item() > 1e30:
        raise ValueError("too large")
    return y + 1


def by_cpu_indices(x: torch.Tensor) -> torch.Tensor:
    rows = torch.arange(3).flip(0)
    x = x.clone()
    x[rows] = x[rows[:, None], torch.tensor([1, 0, 2, 2])] * 2
    return x[rows.view(-1, 1), rows]


def by_constants(x: torch.Tensor) -> torch.Tensor:
    lengths = torch.tensor([2, 1], device=x.device)
    if lengths.sum() > 2:
        x = x * 2
    return x.repeat_interleave(lengths.repeat(2)[:3], 0)


def divides_by_what_is_known(x: torch.Tensor) -> torch.Tensor:
    mean = x.abs().sum().item() / x.numel()
    share = int(x.shape[0] * 7) % 4 + x[0, 1].item() // 0.5
    return x * mean + share


def divides(x: torch.Tensor) -> torch.Tensor:
    ratio = x[0, 1].item() / x[0, 0].item()
    y = x * ratio
    return y + (x[0, 2].item() + 1) % (y[1, 0].item() * 2)


PROGRAMS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    clamps_what_is_not_finite, asserts, raises_by_item, by_cpu_indices, by_constants,
    divides_by_what_is_known, divides,
]  # fmt: skip


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except (ArithmeticError, AssertionError, ValueError) as error:
        return type(error)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_programs(program: Callable[[torch.Tensor], torch.Tensor], mode: str) -> None:
    compiled = quickfuse.compile(program, mode=mode)
    for round in range(5):
        x = torch.arange(12.0, device="cuda").view(3, 4) + round
        if round == 3:
            x[0, 0] = float("inf")
        made, wanted = outcome(compiled, x.clone()), outcome(program, x.clone())
        if isinstance(wanted, torch.Tensor):
            torch.testing.assert_close(made, wanted)
        else:
            assert made == wanted
    if mode == "default":
        assert not compiled.breaks, compiled.breaks
        assert compiled.graph_count == 1


@pytest.mark.parametrize("program", PROGRAMS[:2], ids=lambda program: program.__name__)
def test_training(program: Callable[[torch.Tensor], torch.Tensor]) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(4, 4).cuda()

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = program(layer(x)).square().mean()
        loss.backward()
        return loss

    compiled = quickfuse.compile(step)
    for _ in range(3):
        x = torch.randn(3, 4, device="cuda")
        wanted, gradients = step(x), [p.grad.clone() for p in layer.parameters()]
        layer.zero_grad()
        torch.testing.assert_close(compiled(x), wanted)
        torch.testing.assert_close([p.grad for p in layer.parameters()], gradients)
        layer.zero_grad()
    assert not compiled.breaks and compiled.graph_count == 1


def by_sizes(x: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    rows, columns = sizes.tolist()
    return x[:rows, :columns].repeat_interleave(sizes, 0) * sizes[0]


def test_sizes_in_tensors() -> None:
    compiled = quickfuse.compile(by_sizes)
    x = torch.arange(20.0, device="cuda").view(4, 5)
    for sizes in ([2, 3], [2, 3], [2, 1], [2, 3]):
        given = torch.tensor(sizes, device="cuda")
        torch.testing.assert_close(compiled(x, given), by_sizes(x, given))
    assert compiled.graph_count == 2 and not compiled.breaks


class Padded(nn.Module):
    """A layer whose padding follows from its buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("size", torch.tensor(3))
        self.register_buffer("stride", torch.tensor(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        missing = (x.shape[-1] + self.size) % self.stride
        if missing > 0:
            x = torch.nn.functional.pad(x, (0, int(missing)))
        return x.cos()


def test_buffers_that_decide() -> None:
    model = Padded().cuda()
    compiled = quickfuse.compile(model)
    for _ in range(3):
        x = torch.randn(2, 4, device="cuda")
        torch.testing.assert_close(compiled(x), model(x))
    model.stride.fill_(1)
    torch.testing.assert_close(compiled(x), model(x))
