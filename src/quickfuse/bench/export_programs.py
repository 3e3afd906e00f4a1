"""Small programs that ask something of who exports them, each with calls that tell whether the export is right."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import quickfuse
from quickfuse import errors


@dataclass
class Case:
    """`make()` gives a module. It is exported with the first of `calls`, and run with all of them. `reads` gives what the
    program is to have changed."""

    make: Callable[[], nn.Module]
    calls: list[tuple[Any, ...]]
    reads: Callable[[Any], list[Any]] = lambda module: []
    gradients: bool = False


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


class Running(nn.Module):
    average: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.average = self.average * 0.9 + x.mean(0) * 0.1
        return x - self.average


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x * self.count


class Remembering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(x.sum())
        return x + len(self.seen)


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(self.net(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 3


class WithOwnGradient(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Doubled.apply(x * self.weight)


class Stopped(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            target = super().forward(x).sigmoid()
        return super().forward(x) - target


def _branch(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.sum() > 0 else x - 1


def _doubled_in_place(x: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return x + 1


def _print(x: torch.Tensor) -> torch.Tensor:
    print(end="")
    return x + 1


x = torch.ones(3, 4)

PROGRAMS: dict[str, Case] = {
    "a branch on a number": Case(lambda: Function(lambda x, s: x * s if s > 1 else x), [(x, 2.0), (x, 3.0)]),
    "a number as it comes": Case(lambda: Function(lambda x, s: x * s), [(x, 2.0), (x, 0.5)]),
    "a branch on a tensor": Case(lambda: Function(_branch), [(x,), (-x,)]),
    "printing": Case(lambda: Function(_print), [(x,)]),
    "a buffer that is assigned to": Case(Running, [(x,), (x * 2,)], lambda m: list(m.buffers())),
    "an input that is changed": Case(lambda: Function(_doubled_in_place), [(x,), (-x,)]),
    "a counter": Case(Counting, [(x,), (x,)]),
    "a list that grows": Case(Remembering, [(x,), (x,)]),
    "no_grad inside": Case(lambda: Stopped(4, 4), [(x,)], gradients=True),
    "a function with its own gradient": Case(WithOwnGradient, [(x,)], gradients=True),
    "a functional transform": Case(lambda: Function(lambda x: torch.func.grad(lambda z: (z**3).sum())(x)), [(x,), (x * 2,)]),
    "a number out of a tensor": Case(lambda: Function(lambda x: x * x.sum().item()), [(x,), (x * 2,)]),
    "a training step": Case(Step, [(x, torch.tensor([0, 1, 2]))] * 3, lambda m: list(m.parameters())),
    "a step in evaluation, then training": Case(
        lambda: nn.Sequential(nn.Dropout(0.5)).eval(), [(x,)], lambda m: [_in_training(m)]
    ),
}  # fmt: skip


def _in_training(module: nn.Module) -> Any:
    torch.manual_seed(0)
    return module.train()(x)


#: What says that a program cannot be exported, or called so. PyTorch has no class of errors for it.
REFUSALS: dict[str, type[Exception]] = {"quickfuse": errors.QuickfuseError, "torch.export": Exception}


def exported(who: str, model: Any, args: tuple[Any, ...]) -> Any:
    """A model exported by quickfuse or by PyTorch."""
    if who == "quickfuse":
        return quickfuse.export(model, args)
    return torch.export.export(model, args)


def verdict(who: str, name: str) -> str:
    """What came of a program: "right", "refused" or "wrong".

    Raises:
        Exception: any other error of quickfuse's.
    """
    case = PROGRAMS[name]
    torch.manual_seed(0)
    original = case.make()
    try:
        ours = exported(who, copy.deepcopy(original), copy.deepcopy(case.calls[0])).module()
        if not all(_agree(ours, original, call, case.gradients) for call in case.calls):
            return "wrong"
        found = case.reads(ours)
    except REFUSALS[who]:
        return "refused"
    return "right" if _same(found, case.reads(original)) else "wrong"


def _agree(ours: Any, original: nn.Module, call: tuple[Any, ...], gradients: bool) -> bool:
    """Whether a call gives what the original gives, and changes its arguments as that does."""
    mine, others = copy.deepcopy(call), copy.deepcopy(call)
    got, wanted = ours(*mine), original(*others)
    if not _same([got, *mine], [wanted, *others]):
        return False
    if not gradients:
        return True
    got.sum().backward()
    wanted.sum().backward()
    pairs = zip(ours.parameters(), original.parameters(), strict=True)
    return all(p.grad is not None and q.grad is not None and torch.allclose(p.grad, q.grad) for p, q in pairs)


def _same(one: list[Any], two: list[Any]) -> bool:
    if len(one) != len(two):
        return False
    pairs = zip(one, two, strict=True)
    try:
        return all(torch.allclose(a, b, atol=1e-6) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)
    except (RuntimeError, TypeError):  # tensors of other shapes, or without data, which have got into the program's objects
        return False
