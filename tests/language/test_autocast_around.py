"""Compiled functions that are called inside of a `torch.autocast` block, as trainers do."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import quickfuse


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).view(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return x + self.out(y)


class Breaking(nn.Module):
    """The second graph begins in the block that the caller, or this module, has entered."""

    def __init__(self, enters: bool) -> None:
        super().__init__()
        self.a, self.b, self.enters = nn.Linear(8, 8), nn.Linear(8, 5), enters

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16) if self.enters else contextlib.nullcontext():
            x = F.gelu(self.a(x))
            print(end="")
            return self.b(F.silu(x))


class Damped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 0.5


class WithFunction(nn.Module):
    """A graph with a call between two subgraphs."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(self.b(F.gelu(Damped.apply(F.silu(self.a(x)) + 1))))


class PartlyOff(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        with torch.autocast("cpu", enabled=False):
            x = self.b(x.float()).softmax(-1)
        return x @ self.b.weight


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 5)),
    "attention": Attention,
    "convolutions": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 3)), nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()
    ),
    "recurrent": lambda: nn.GRU(8, 6, batch_first=True),
    "break": lambda: Breaking(enters=False),
    "block inside": lambda: Breaking(enters=True),
    "partly off": PartlyOff,
    "function": WithFunction,
    "LSTM": lambda: nn.LSTM(8, 6, batch_first=True),
}


def _made(name: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = MODELS[name]()
    return model, torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)


def _loss(out: Any) -> torch.Tensor:
    out = out[0] if isinstance(out, tuple) else out
    return out.float().square().mean()


def _trained(name: str, wrap: Callable[[Any], Any], around: str) -> list[torch.Tensor]:
    """All losses, parameters and their gradients of a few steps; `around` says what the block is around."""
    model, optimizer = _made(name)
    call, seen = wrap(model), []
    torch.manual_seed(1)

    def block(where: str) -> Any:
        return torch.autocast("cpu", torch.bfloat16) if where == around else contextlib.nullcontext()

    with block("loop"):
        for _ in range(5):
            x = torch.randn(4, 3, 8)
            with block("step"):
                with block("forward"):
                    loss = _loss(call(x))
                with block("two calls"):
                    loss = loss + _loss(call(x)) if around == "forward" else _loss(call(x)) + _loss(call(2 * x))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            seen += [loss.detach(), *[p.grad.clone() for p in model.parameters() if p.grad is not None]]
    return [*seen, *[p.detach() for p in model.parameters()]]


@pytest.mark.parametrize("around", ["forward", "two calls", "step", "loop"])
@pytest.mark.parametrize("name", MODELS)
def test_training(name: str, around: str) -> None:
    """Within a loop's block eager goes on with the first weights' converted copies, and so does what is compiled."""
    expected = _trained(name, lambda model: model, around)
    made = _trained(name, quickfuse.compile, around)
    assert len(made) == len(expected)
    for ours, theirs in zip(made, expected, strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.02 * theirs.abs().max().item() + 1e-4)


@pytest.mark.parametrize("name", ["mlp", "attention", "break", "block inside", "function"])
def test_kernels(name: str) -> None:
    """From the second block on, and from the second call in a block, as weights stay as they were."""
    model, _ = _made(name)
    compiled = quickfuse.compile(model)
    model.eval()
    for grad in (torch.no_grad(), torch.enable_grad()):
        with grad:
            for _ in range(3):
                with torch.autocast("cpu", torch.bfloat16):
                    first, second = (compiled(torch.ones(2, 3, 8)) for _ in range(2))
                assert torch.equal(first, second)
    segments = compiled._compiled.specialisations
    assert all(s.kernels and not s.without_kernels for s in segments if s.segment.operators)


def test_settings_are_guarded() -> None:
    """Of the block's type, and that there is one. Gradients of gradients are computed in its types, outside of it."""
    linear = nn.Linear(8, 8)

    @quickfuse.compile
    def run(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(linear(x))

    x = torch.randn(4, 8, requires_grad=True)
    for _ in range(2):
        for dtype in (torch.bfloat16, torch.float16, None):
            with torch.autocast("cpu", dtype) if dtype else contextlib.nullcontext():
                out = run(x)
            assert out.dtype == (dtype or torch.float32)
            (slope,) = torch.autograd.grad(out.float().square().sum(), x, create_graph=True)
            (twice,) = torch.autograd.grad(slope.square().sum(), x)
            assert not torch.is_autocast_enabled("cpu")
            wanted = torch.tanh(linear(x))
            (slope,) = torch.autograd.grad(wanted.square().sum(), x, create_graph=True)
            torch.testing.assert_close(out.float(), wanted, rtol=0.05, atol=0.02)
            torch.testing.assert_close(twice, torch.autograd.grad(slope.square().sum(), x)[0], rtol=0.1, atol=0.1)
