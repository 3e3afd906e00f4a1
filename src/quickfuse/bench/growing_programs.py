"""Programs of any length, to see how compile time grows with it: chains, unrolled loops, optimizers, stacks of blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

#: A function and its arguments, made for a length.
Made = tuple[Callable[..., Any], tuple[Any, ...]]


def pointwise_chain(length: int) -> Made:
    """x = sin(x) * c + 0.1, each time with another constant c."""

    def program(x: torch.Tensor) -> torch.Tensor:
        for k in range(length):
            x = torch.sin(x) * (1 + k / 7919) + 0.1
        return x

    return program, (torch.randn(4, 16),)


def norms_and_products(length: int) -> Made:
    """x = layer_norm(x) @ w."""
    weights = [torch.randn(16, 16) for _ in range(length)]

    def program(x: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            x = F.layer_norm(x, (16,)) @ weight
        return x

    return program, (torch.randn(4, 16),)


def softmaxes(length: int) -> Made:
    """x = softmax(x * c)."""

    def program(x: torch.Tensor) -> torch.Tensor:
        for k in range(length):
            x = torch.softmax(x * (2 + k / 7919), dim=-1)
        return x

    return program, (torch.randn(4, 16),)


def recurrent_steps(length: int) -> Made:
    """A gated recurrent cell over a sequence, forward and backward."""
    cell = nn.GRUCell(16, 16)

    def program(x: torch.Tensor) -> torch.Tensor:
        h = x.new_zeros(4, 16)
        for k in range(length):
            h = cell(x[:, k], h)
        cell.zero_grad()
        loss = h.pow(2).mean()
        loss.backward()
        return loss.detach()

    return program, (torch.randn(4, length, 16),)


def _optimizer(length: int, foreach: bool) -> Made:
    parameters = [nn.Parameter(torch.randn(4, 4 + k % 3)) for k in range(length)]
    optimizer = torch.optim.Adam(parameters, foreach=foreach)
    for p in parameters:
        p.grad = torch.randn_like(p)
    optimizer.step()  # its state is there from the first call on
    return lambda: optimizer.step(), ()


def optimizer_lists(length: int) -> Made:
    """Adam's step on as many parameters, in lists."""
    return _optimizer(length, True)


def optimizer_singly(length: int) -> Made:
    """Adam's step on as many parameters, one by one."""
    return _optimizer(length, False)


class Block(nn.Module):
    """Attention and a feed-forward network, with norms before them."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = (s.view(b, t, 2, d // 2).transpose(1, 2) for s in self.qkv(self.first(x)).chunk(3, dim=-1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.second(x))))


def transformer_forward(length: int) -> Made:
    """As many blocks, evaluated."""
    model = nn.Sequential(*[Block() for _ in range(length)])

    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return model(x)  # type: ignore[no-any-return]

    return program, (torch.randn(2, 6, 16),)


def transformer_step(length: int) -> Made:
    """A whole training step of as many blocks, with Adam."""
    model = nn.Sequential(*[Block() for _ in range(length)])
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(2, 6, 16)
    model(x).sum().backward()
    optimizer.step()

    def program(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return program, (x,)


#: Name on the command line -> what makes the program of a length.
SERIES: dict[str, Callable[[int], Made]] = {
    "pointwise": pointwise_chain,
    "norms": norms_and_products,
    "softmaxes": softmaxes,
    "recurrent": recurrent_steps,
    "optimizer": optimizer_lists,
    "optimizer-singly": optimizer_singly,
    "transformer": transformer_forward,
    "transformer-step": transformer_step,
}
