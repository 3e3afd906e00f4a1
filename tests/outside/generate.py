"""Random programs around compiled functions: a seed is a program, written out as Python source, in the form of `lives`.

What is compiled has several results. Between its calls and backward these are changed, hooked, kept, let go of, given to
other compiled functions, and differentiated in many ways.
"""

from __future__ import annotations

import random

from lives.generate import Program
from outside import functions, scripts
from training.draft import Draft, indented

HEADER = '''"""Outside {seed}: {features}"""

import gc
import weakref

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from outside.prelude import *

'''
#: How an input is made of random numbers, and of `leaf`.
KINDS = {
    "leaf": "nn.Parameter({})", "plain": "{}", "computed": "torch.tanh(leaf * {})", "view": "{}.requires_grad_().t()",
    "same": "x1", "spread": "{}.repeat(2, 2)[::2, ::2].requires_grad_()", "row": "{}[:1].requires_grad_().expand(3, 3)",
}  # fmt: skip
WEIGHTS = {
    "x1": {"leaf": 4, "computed": 4, "plain": 3, "view": 2, "spread": 0.5, "row": 0.3},
    "x2": {"leaf": 4, "plain": 4, "computed": 4, "same": 2, "row": 0.3},
    "w1": {"leaf": 6, "computed": 2},
    "w2": {"leaf": 6, "plain": 2, "view": 1.5},
}


def program(seed: int) -> Program:
    d = Draft(random.Random(seed))
    dtype = d.weighted({"float64": 8, "float32": 1, "bfloat16": 0.3})
    compiled: list[functions.Compiled] = []
    for k in range(d.weighted({1: 5, 2: 3, 3: 1})):
        compiled.append(functions.draw(d, f"f{k}", compiled))
    setup = [
        f"torch.manual_seed({seed})",
        f"dtype = torch.{dtype}",
        "torch.set_default_dtype(dtype)",
        "leaf = nn.Parameter(torch.randn(3, 3))",
    ]
    for name, kinds in WEIGHTS.items():
        kind = d.weighted(kinds)
        d.uses(f"{name} {kind}")
        setup.append(f"{name} = {KINDS[kind].format('torch.randn(3, 3)')}")
    setup += ["buf, gain = torch.zeros(2), {'k': 0.5, 'calls': 0}",
              "layer = nn.Linear(3, 3)", "outs, notes, handles = [], {}, []", *[line for c in compiled for line in c.lines]]
    setup += ["trained = [p for p in (leaf, x1, x2, w1, w2) if p.is_leaf and p.requires_grad]",
              "trained = [*{id(p): p for p in trained}.values()]",
              "optimizers = [torch.optim.SGD(trained, 0.1, momentum=0.5), torch.optim.Adam([leaf], 0.01)]"]  # fmt: skip
    modules = {c.module for c in compiled if c.module}
    watched = ["leaf", "x1", "x2", "w1", "w2", "buf", "gain", "layer", "outs", "notes", *sorted(modules)]
    setup.append(f"seen.watch(lambda: dict({', '.join(f'{name}={name}' for name in watched)}))")
    lines = scripts.draw(d, compiled)
    text = "\n".join(["def life(compile, seen, reset):", *indented([*setup, *lines])]) + "\n"
    return Program(
        seed, HEADER.format(seed=seed, features=", ".join(sorted(d.features))) + "\n" + text, frozenset(d.features)
    )
