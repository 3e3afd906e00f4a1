"""What is drawn of one program, and lines that its scenarios share."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from lives.event import Event
from lives.models import Model
from training import optimizers
from training.draft import Draft, indented


@dataclass
class Life:
    """What has been drawn of one program: a setup, and calls that can be made again and again."""

    d: Draft
    model: Model
    setup: list[str] = field(default_factory=list)
    #: Lines by the name of the call. `{batch}` stands for the arguments' source, `(x, target)`.
    calls: dict[str, list[str]] = field(default_factory=dict)
    #: Names that are compared after each call and event; they may be assigned to.
    watched: list[str] = field(default_factory=list)
    models: list[str] = field(default_factory=lambda: ["model"])
    optimizers: list[str] = field(default_factory=lambda: ["optimizer"])
    schedulers: list[str] = field(default_factory=list)
    #: Names of functions that make something compiled anew: `again = compile(function)`.
    functions: dict[str, str] = field(default_factory=dict)
    #: What can happen in this program only.
    events: list[Event] = field(default_factory=list)

    def define(self, name: str, parameters: str, lines: list[str]) -> None:
        """A function of the program, compiled under its own name."""
        self.setup += [f"def plain_{name}({parameters}):", *indented(lines), f"{name} = compile(plain_{name})"]
        self.functions[name] = f"plain_{name}"

    def without_checkpoints(self) -> None:
        """Where the model is called with other parameters: eager's checkpoints compute again with the model's own."""
        checkpoint = r"torch\.utils\.checkpoint\.checkpoint\((self\.\w+), x, use_reentrant=\w+\)"
        self.model.lines[:] = [re.sub(checkpoint, r"\1(x)", line) for line in self.model.lines]

    @property
    def forward(self) -> list[str]:
        return [f"out = model(x){self.model.rows}", f"loss = {self.model.loss}"]


def optimizer(life: Life) -> list[str]:
    """Set up `optimizer`, and maybe `scheduler`; returns the lines of an update."""
    d = life.d
    life.setup += ["model = Model()", "trained = [p for p in model.parameters() if p.requires_grad]"]
    drawn = Draft(d.rng)
    lines = optimizers.optimizer(drawn)
    life.setup += drawn.setup
    d.features |= drawn.features
    life.schedulers += [name for name in drawn.watched if name == "scheduler"]
    life.watched += [name for name in drawn.watched if name != "model"]
    return lines


def zeroing(d: Draft, of: str = "optimizer") -> str:
    return d.pick(f"{of}.zero_grad()", f"{of}.zero_grad()", f"{of}.zero_grad(set_to_none=False)")
