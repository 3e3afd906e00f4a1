"""Random whole training steps: a seed is a program, written out as Python source.

The program defines `setup(dtype)`, which returns the step, the batches to call it with, and the objects by name whose
tensors are compared after each step. The step runs forward, backward, clipping, updates and averages.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from training import losses, model, more_twists, optimizers, script_twists, steps, twists
from training.draft import Draft, Images, Rows, Tokens, indented

#: Steps that a program takes.
STEPS = 3
HEADER = '''"""Training step {seed}: {features}"""

import collections
import contextlib
import copy
import dataclasses
import functools
import random

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

DTYPE = torch.{dtype}
AUTOCAST = {autocast}
DEVICE = "cpu"
'''


@dataclass(frozen=True)
class Program:
    seed: int
    source: str
    features: frozenset[str]


def program(seed: int, twisted: bool = False) -> Program:
    """The program of a seed; `twisted`: with what people write between layers."""
    rng = random.Random(seed)
    d = Draft(rng, precision=rng.choices(["float64", "float32", "autocast"], [55, 35, 10])[0])
    shape, inputs, vocabulary = model.model(d)
    if isinstance(shape, Images) or (isinstance(shape, Tokens) and not (vocabulary and d.chance(0.6))):
        shape = model.rows_of(d, shape)
    rows = shape.batch * (shape.time if isinstance(shape, Tokens) else 1)
    classes = d.pick(3, 5, 10)
    tied = bool(vocabulary) and isinstance(shape, Tokens) and _embedded_width(d) == shape.width and d.chance(0.5)
    loss = losses.loss(d, rows, classifying=tied or (bool(vocabulary) and isinstance(shape, Tokens)))
    classes = vocabulary if tied else classes
    model.head(d, shape, classes, tied)
    target = loss.target.format(n=rows, c=classes, shape=_out_shape(shape, rows, classes, loss.flat))
    call = losses.Loss(loss.call.format(n=rows, c=classes), target, loss.flat)
    _draw_step(d, call, shape)
    if twisted:
        twists.twist(d, seed)
    return Program(seed, _render(d, seed, inputs, target), frozenset(d.features | {d.precision}))


def _embedded_width(d: Draft) -> int:
    return int(next(line for line in d.init if line.startswith("self.tokens")).split(", ")[1].rstrip(")"))


def _out_shape(shape: Rows | Tokens, rows: int, classes: int, flat: bool) -> str:
    if flat or isinstance(shape, Rows):
        return f"{rows}, {classes}"
    return f"{shape.batch}, {shape.time}, {classes}"


def _draw_step(d: Draft, loss: losses.Loss, shape: Rows | Tokens) -> None:
    flatten = d.pick(".flatten(0, 1)", ".reshape(-1, out.shape[-1])") if isinstance(shape, Tokens) else ""
    if "out.shape" in flatten:
        flatten = ".flatten(0, -2)"
    d.setup += steps.freezing(d)
    lines = steps.forward(d, loss, flatten)
    zeroing = d.pick("model.zero_grad()", "model.zero_grad()", "for p in trained: p.grad = None")
    update = optimizers.updates(d)
    if "optimizer" in d.watched and "other" not in d.watched:
        zeroing = d.pick("optimizer.zero_grad()", "optimizer.zero_grad(set_to_none=False)", zeroing)
    d.step += steps.gradients(d, lines, zeroing) + steps.clipping(d) + update + steps.averaging(d)
    if d.chance(0.05):
        d.step.append("model.zero_grad()")
    d.step.append(steps.result(d))


def _render(d: Draft, seed: int, inputs: str, target: str) -> str:
    features = ", ".join(sorted(d.features))
    header = HEADER.format(
        seed=seed,
        features=features,
        dtype="float64" if d.precision == "float64" else "float32",
        autocast=d.precision == "autocast",
    )
    watched = ", ".join(f"{name}={name}" for name in d.watched)
    lines = [
        "class Model(nn.Module):",
        *indented(["def __init__(self):", "    super().__init__()", *indented(d.init), "", "def forward(self, x):"]),
        *indented([*d.forward, "return x"], 2),
        "", "",
        "def setup(dtype):",
        *indented([
            f"torch.manual_seed({seed})",
            "model = Model().to(dtype)",
            f"batches = [({inputs}, {target}) for _ in range({STEPS})]",
            *d.setup, "",
            "def step(x, target):", *indented(d.step), "",
            f"return step, batches, dict({watched})",
        ]),
    ]  # fmt: skip
    classes = twists.CLASSES if "twisted" in d.features else ""
    classes += more_twists.CLASSES if "twisted more" in d.features else ""
    classes += script_twists.CLASSES if "twisted by scripts" in d.features else ""
    return header + classes + "\n\n" + "\n".join(line.rstrip() for line in lines) + "\n"
