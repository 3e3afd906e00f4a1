"""A training program while it is drawn: the lines of its model, its step and what it sets up, and the random choices."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

Choice = TypeVar("Choice")

#: Functions of one tensor that keep its shape, as they are written in programs.
ACTIVATIONS = (
    "F.relu({})", "F.gelu({})", "F.gelu({}, approximate='tanh')", "F.silu({})", "F.mish({})", "F.softplus({})",
    "torch.tanh({})", "torch.sigmoid({})", "F.elu({})", "F.leaky_relu({}, 0.1)", "F.hardswish({})", "F.softsign({})",
    "F.selu({})", "F.celu({}, 0.7)", "F.logsigmoid({})", "F.hardtanh({})", "F.relu6({})", "F.hardsigmoid({})",
    "F.relu({}).square()", "torch.sin({})", "({}).clamp(-1.5, 1.5)", "F.tanhshrink({})", "F.softshrink({}, 0.1)",
    "torch.erf({})", "torch.atan({})", "torch.log1p(({}).abs())",
)  # fmt: skip


@dataclass(frozen=True)
class Tokens:
    """Activations of shape (batch, time, width)."""

    batch: int
    time: int
    width: int


@dataclass(frozen=True)
class Rows:
    """Activations of shape (batch, width)."""

    batch: int
    width: int


@dataclass(frozen=True)
class Images:
    """Activations of shape (batch, channels, height, width)."""

    batch: int
    channels: int
    height: int
    width: int


Shape = Tokens | Rows | Images


@dataclass
class Draft:
    """What has been drawn of one program. Lines are without the indentation of where they will stand."""

    rng: random.Random
    #: "float64", "float32", or "autocast": float32 with products in bfloat16.
    precision: str = "float64"
    init: list[str] = field(default_factory=list)
    forward: list[str] = field(default_factory=list)
    setup: list[str] = field(default_factory=list)
    step: list[str] = field(default_factory=list)
    #: Names in the setup that are compared after each step.
    watched: list[str] = field(default_factory=lambda: ["model"])
    features: set[str] = field(default_factory=set)
    counts: dict[str, int] = field(default_factory=dict)

    # choices ----------------------------------------------------------------------------------------------------

    def pick(self, *options: Choice) -> Choice:
        return self.rng.choice(options)

    def weighted(self, options: dict[Choice, float]) -> Choice:
        return self.rng.choices([*options], [*options.values()])[0]

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def divisor(self, size: int, largest: int = 8) -> int:
        """A number of groups or heads."""
        return self.rng.choice([k for k in range(1, largest + 1) if size % k == 0])

    def activation(self, text: str) -> str:
        return self.rng.choice(ACTIVATIONS).format(text)

    # names and lines --------------------------------------------------------------------------------------------

    def name(self, kind: str) -> str:
        """A new name: `norm0`, `norm1`, ..."""
        number = self.counts.get(kind, 0)
        self.counts[kind] = number + 1
        return f"{kind}{number}"

    def module(self, kind: str, made_by: str) -> str:
        """A submodule or parameter of the model; returns how `forward` says it."""
        name = self.name(kind)
        self.init.append(f"self.{name} = {made_by}")
        return f"self.{name}"

    def linear(self, inputs: int, outputs: int, kind: str = "linear") -> str:
        bias = "" if self.chance(0.7) else ", bias=False"
        return self.module(kind, f"nn.Linear({inputs}, {outputs}{bias})")

    def parameter(self, *sizes: int, around: float = 0.0, spread: float = 0.1, kind: str = "scale") -> str:
        shape = ", ".join(map(str, sizes)) or "()"
        start = f"{around} + " if around else ""
        return self.module(kind, f"nn.Parameter({start}{spread} * torch.randn({shape}))")

    def buffer(self, kind: str, made_by: str) -> str:
        name = self.name(kind)
        self.init.append(f"self.register_buffer('{name}', {made_by})")
        return f"self.{name}"

    def line(self, *lines: str) -> None:
        self.forward.extend(lines)

    def uses(self, feature: str) -> None:
        self.features.add(feature)


def indented(lines: Sequence[str], depth: int = 1) -> list[str]:
    return ["    " * depth + line for line in lines]


def arguments(**values: Any) -> str:
    """Keyword arguments as source text, without those that are None."""
    return ", ".join(f"{name}={value!r}" for name, value in values.items() if value is not None)
