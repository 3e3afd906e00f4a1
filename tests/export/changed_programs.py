"""Programs to export whose calls are then changed in all kinds of ways: `changed_calls`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Program(nn.Module):
    """A module with a parameter, a buffer and a plain method: what its `body` does with them and the arguments."""

    average: torch.Tensor

    def __init__(self, body: Callable[..., Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4, generator=torch.Generator().manual_seed(1)))
        self.register_buffer("average", torch.ones(4))
        self.body = body

    def forward(self, x: Any, y: Any, scale: Any = 2.0, options: Any = None) -> Any:
        return self.body(self, x, y, scale, options)


def _in_place(self: Program, x: Any, y: Any, scale: Any, options: Any) -> Any:
    x.add_(1)
    return x * y, x


def _in_place_through_a_view(self: Program, x: Any, y: Any, scale: Any, options: Any) -> Any:
    x[1:].mul_(2)
    return x + y, y.t()


def _running(self: Program, x: Any, y: Any, scale: Any, options: Any) -> Any:
    self.average.mul_(0.5).add_(x.detach().mean(0))
    return x - self.average, y * 2


def _replaced_buffer(self: Program, x: Any, y: Any, scale: Any, options: Any) -> Any:
    self.average = self.average * 0.5 + y.detach().mean(0)
    return x * self.average


def _branches(self: Program, x: Any, y: Any, scale: Any, options: Any) -> Any:
    if scale > 1:
        x = x * scale
    if self.training:
        x = x + 1
    return x if options is None else x - y


def _asks_for_gradients(self: Program, x: Any, y: Any, scale: Any, options: Any) -> Any:
    if x.requires_grad:
        return x * 2
    return x @ self.weight if self.weight.requires_grad else x - 1


def _asks_the_state(self: Program, x: Any, y: Any, scale: Any, options: Any) -> Any:
    made = x.to(self.average.dtype) + self.weight.shape[0] + torch.zeros_like(self.average)
    return made if self.average.is_contiguous() else made * 2


def _makes_tensors(self: Program, x: Any, y: Any, scale: Any, options: Any) -> Any:
    steps = torch.arange(4) / 2
    return torch.full((4,), 0.5) * steps, torch.zeros(3, 4) + steps, torch.linspace(0, 1, 4)


def _numbers(self: Program, x: Any, y: Any, scale: Any, options: Any) -> Any:
    return x * scale, scale * 2, torch.tensor([1, 2]) * scale


def _without_gradients(self: Program, x: Any, y: Any, scale: Any, options: Any) -> Any:
    with torch.no_grad():
        target = (y @ self.weight).sigmoid()
    return x @ self.weight - target + x.detach()


def _layers(self: Program, x: Any, y: Any, scale: Any, options: Any) -> Any:
    made = functional.layer_norm(functional.linear(x, self.weight), (4,)).softmax(-1)
    return functional.gelu(made @ y.t()), functional.dropout(made, 0.5, self.training)


def _views(self: Program, x: Any, y: Any, scale: Any, options: Any) -> Any:
    return x.t(), x[1:], y.reshape(-1), self.average.expand(3, 4), self.weight.t() * 1


def _nested(self: Program, x: Any, y: Any, scale: Any, options: Any) -> Any:
    return {"x": [x + 1, None, (y, scale)], "options": options, "sum": x.sum() + y.sum()}


def _number_out_of_a_tensor(self: Program, x: Any, y: Any, scale: Any, options: Any) -> Any:
    return x * y.sum().item(), y.numel()


def _indices(self: Program, x: Any, y: Any, scale: Any, options: Any) -> Any:
    made = torch.zeros_like(x)
    made[[0, 2]] = y[[1, 1]]
    return made.index_add(0, torch.tensor([1, 1, 2]), x), torch.empty_like(x).fill_(scale), x.cumsum(0)


def _normalised(self: Program, x: Any, y: Any, scale: Any, options: Any) -> Any:
    return functional.batch_norm(x, self.average, self.average + 1, training=False) + y


BODIES: dict[str, Callable[..., Any]] = {
    "in place": _in_place, "in place through a view": _in_place_through_a_view, "running average": _running,
    "replaced buffer": _replaced_buffer, "branches": _branches, "asks for gradients": _asks_for_gradients,
    "asks the state": _asks_the_state, "makes tensors": _makes_tensors, "numbers": _numbers,
    "without gradients": _without_gradients, "layers": _layers, "views": _views, "nested": _nested,
    "number out of a tensor": _number_out_of_a_tensor, "indices": _indices, "normalised": _normalised,
}  # fmt: skip


class Tied(Program):
    """Two names for one parameter."""

    def __init__(self) -> None:
        super().__init__(lambda self, x, y, scale, options: functional.linear(x @ self.weight, self.again) + y)
        self.again = self.weight


class Step(Program):
    """A training step of itself."""

    def __init__(self, momentum: float = 0.9) -> None:
        super().__init__(self._step)
        self.norm = nn.BatchNorm1d(4)
        parameters = [self.weight, *self.norm.parameters()]
        self.optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=momentum)

    @staticmethod
    def _step(self: Any, x: Any, y: Any, scale: Any, options: Any) -> Any:
        self.optimizer.zero_grad()
        loss = functional.mse_loss(self.norm(x @ self.weight), y) * scale
        loss.backward()
        self.optimizer.step()
        return loss.detach()


PROGRAMS: dict[str, Callable[[], Program]] = {
    **{name: lambda body=body: Program(body) for name, body in BODIES.items()}, "tied": Tied, "step": Step,
}  # fmt: skip
