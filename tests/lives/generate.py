"""Random training programs in which something changes between calls: a seed is a program, written out as Python source.

The program is a function `life(compile, seen)`. It compiles what it wants to by `compile`, and puts calls and events each
into a `with seen(...)`, which notes what they raised and what they left behind.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from lives import around, events, models, pauses, scenarios
from lives.life import Life
from training.draft import Draft, indented

HEADER = '''"""Life {seed}: {features}"""

import asyncio
import collections
import contextlib
import copy
import dataclasses
import functools
import gc
import io
import os
import warnings

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.checkpoint import checkpoint

from lives.prelude import *

dtype = torch.float64
DEVICE = "cpu"
noted, last_seen = [], {{}}


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x

    def right_inverse(self, x):
        return x / 2


class Adapter(nn.Module):
    """A layer of low rank beside a linear one."""

    def __init__(self, base):
        super().__init__()
        self.base, self.scale, self.active, self.merged = base, 0.5, True, False
        self.down = nn.Parameter(0.1 * torch.ones_like(base.weight[:2]))
        self.up = nn.Parameter(torch.full_like(base.weight[:, :2], 0.1))

    @property
    def change(self):
        return self.scale * (self.up @ self.down)

    def merge(self):
        if not self.merged:
            self.base.weight.data += self.change.detach()
            self.merged = True

    def unmerge(self):
        if self.merged:
            self.base.weight.data -= self.change.detach()
            self.merged = False

    def forward(self, x):
        out = self.base(x)
        if self.active and not self.merged:
            out = out + F.linear(F.linear(x, self.down), self.up) * self.scale
        return out


class Scaled(torch.autograd.Function):
    """Gradients that are not the function's own, and a context with more than tensors."""

    @staticmethod
    def forward(ctx, x, factor, how):
        ctx.save_for_backward(x)
        ctx.factor, ctx.how = factor, how
        return x * factor if how["sign"] == 1 else -x * factor

    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
        if ctx.how.get("clip"):
            grad = grad.clamp(-ctx.how["clip"], ctx.how["clip"])
        return grad * ctx.factor * ctx.how["sign"] + 0.01 * x, None, None

'''


@dataclass(frozen=True)
class Program:
    seed: int
    source: str
    features: frozenset[str]


def program(seed: int, turns: int | None = None) -> Program:
    """The program of a seed; `turns` are the calls after the first ones, most of them after an event, or 6 to 12."""
    rng = random.Random(seed)
    d = Draft(rng)
    model = models.draw(d, rng)
    twisting = random.Random(f"twists {seed}")
    if twisting.random() < 0.3:
        models.twist(model, twisting)
    life = Life(d, model)
    arguments = "n=4, t=5" if model.lengths else "n=4"
    life.setup += [f"def batch({arguments}):", *indented(model.batch)]
    scenarios.draw(life)
    lines = [*_call(*around.plain(life))]
    if d.chance(0.8):
        lines += _call(*around.plain(life))
    for _ in range(rng.randint(6, 12) if turns is None else turns):
        lines += _turn(life)
    d.features |= model.features
    interrupted = d.chance(0.4)
    if interrupted:
        d.uses("interrupted")
    source = _render(seed, life, lines)
    return Program(seed, pauses.interrupted(source, rng) if interrupted else source, frozenset(d.features))


def _turn(life: Life) -> list[str]:
    """An event or none, and a call, which may be made in other surroundings and with another batch."""
    d, lines = life.d, []
    if d.chance(0.1):
        return _steady(life)
    for _ in range(d.weighted({0: 1, 1: 5, 2: 1.5})):
        lines += _event(life)
    if d.chance(0.03) and life.functions:
        lines += ["with seen('compiled again'):", *indented(events.compiled_again(d, life))]
    drawn = around.other(life) if d.chance(0.3) else around.plain(life)
    lines += _call(*drawn)
    if d.chance(0.25):
        lines += _call(*drawn)
    return lines


def _steady(life: Life) -> list[str]:
    """The same call four times, and in between what must not make quickfuse compile anything."""
    name, lines = around.plain(life)
    return [*_call(name, lines) * 3, *_event(life, quiet=True), *_call(name, lines)]


def _event(life: Life, quiet: bool = False) -> list[str]:
    event, changed = events.draw(life, quiet)
    life.d.uses(event.name)
    return [f"with seen({event.name!r}{', quiet=True' * event.quiet}):", *indented(changed)]


def _call(name: str, lines: list[str]) -> list[str]:
    return [f"with seen({name!r}, call=True):", *indented(lines)]


def _render(seed: int, life: Life, lines: list[str]) -> str:
    watched = ", ".join(f"{name}={name}" for name in [*life.watched, "kept", "notes", "noted", "last_seen"])
    body = [f"torch.manual_seed({seed})", "kept, saved, notes, hooks = {}, {}, [], []", *life.setup,
            f"seen.watch(lambda: dict({watched}))", *lines]  # fmt: skip
    text = "\n".join([*life.model.lines, "", "", "def life(compile, seen, reset):", *indented(body)])
    features = ", ".join(sorted(life.d.features))
    return HEADER.format(seed=seed, features=features) + "\n" + "\n".join(line.rstrip() for line in text.split("\n")) + "\n"
