"""Random functions that mix gradients of gradients, also by results, with hooks of results, retained gradients, functions
with gradients of their own, breaks, and changes of results through `data`.

    python tests/differentiate/random_second_orders.py --count 200 --first 0 [--without-data]

compares each with eager, in float64. A seed is a program. Known to differ: changes through `data` after
gradients with a graph of their own were taken.
"""

from __future__ import annotations

import argparse
import linecache
import random
import sys
from pathlib import Path
from typing import Any

import torch

import quickfuse

sys.path.insert(0, str(Path(__file__).parents[1]))

from own_gradients import Exponential, Square

OPERATORS = [
    "{a} * {b}", "{a}.sin()", "{a}.sin() + {b}", "{a}.tanh() * {b}", "Square.apply({a})", "Exponential.apply({a}.sin())",
    "({a} * 0.5).exp()", "({a} + 1).sin_()", "{a}.cos() * 1.5",
]  # fmt: skip
HOOKS = [
    "lambda g: g.clamp(-0.5, 0.5)", "lambda g: g * 2", "lambda g: notes.append(g.detach().clone())", "lambda g: g * g.abs()",
    "lambda g: None", None,
]  # fmt: skip


def program(seed: int, data: bool = True) -> tuple[str, bool]:
    """The source of a function `f(v, w)`, and whether it takes gradients itself."""
    draw = random.Random(seed)
    lines: list[str] = []
    names, made, retained, gradients = ["v", "w"], [], [], []
    hooks = 0

    def tensor() -> str:
        return draw.choice(names[-4:] if draw.random() < 0.7 else names)

    def compute(name: str) -> None:
        lines.append(f"{name} = {draw.choice(OPERATORS).format(a=tensor(), b=tensor())}")
        names.append(name)
        made.append(name)

    compute("t")
    for k in range(draw.randint(3, 8)):
        chance = draw.random()
        if 0.5 <= chance < 0.62 and hooks < 2:
            hooks += 1
            result, hook = draw.choice(made), draw.choice(HOOKS)
            lines.append(f"{result}.retain_grad()" if hook is None else f"{result}.register_hook({hook})")
            retained += [result] if hook is None else []
        elif 0.62 <= chance < 0.74:
            lines.append("graph_break()")
        elif 0.74 <= chance < 0.84:
            end, start = draw.choice(made), draw.choice(names)
            asked = f"torch.autograd.grad({end}.sum(), {start}, create_graph=True, allow_unused=True)"
            lines += [f"(g{k},) = {asked}", f"g{k} = torch.zeros_like(v) if g{k} is None else g{k}"]
            names.append(f"g{k}")
            gradients.append(f"g{k}")
        elif 0.84 <= chance < 0.9 and data:
            lines.append(f"{draw.choice(made)}.data.mul_(1.1)")
        else:
            compute(f"t{k}")
    terms = [f"{t}.sum()" for t in draw.sample(made, min(2, len(made)))] + [f"{g}.square().sum()" for g in gradients]
    lines.append(f"y = {' + '.join(terms)}")
    if draw.random() < 0.3:
        lines.append("graph_break()")
    inside = draw.random() < 0.6
    if inside:
        lines += ["if y.requires_grad:", "    y.backward()"]
        lines += [f"notes.append(torch.zeros(()) if {t}.grad is None else {t}.grad.clone())" for t in retained]
    return "\n    ".join(["def f(v, w):", *lines, "return y"]), inside


def outcome(source: str, inside: bool, compiled: bool) -> Any:
    """What two calls of a program give: results, gradients, leaves, and what hooks saw; or the class of what they raise."""
    name = f"<random second orders {hash(source)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    notes: list[torch.Tensor] = []
    scope = {
        "torch": torch, "Square": Square, "Exponential": Exponential, "notes": notes, "graph_break": quickfuse.graph_break,
    }  # fmt: skip
    exec(compile(source, name, "exec"), scope)
    function: Any = quickfuse.compile(scope["f"]) if compiled else scope["f"]
    v, w = (torch.linspace(begin, 1.5, 5, dtype=torch.float64).requires_grad_() for begin in (-1, 0.5))
    found = []
    try:
        for _ in range(2):
            y = function(v, w)
            found.append(y.detach().clone())
            if not inside and y.requires_grad:
                y.backward()
    except RuntimeError:
        return RuntimeError
    return [*found, v.grad, w.grad, v.detach(), w.detach(), *notes]


def differs(seed: int, data: bool = True) -> str:
    """The program, if compiled it gives something else."""
    source, inside = program(seed, data)
    eager, ours = (outcome(source, inside, compiled) for compiled in (False, True))
    if type(eager) is not list or type(ours) is not list:
        return "" if eager is ours else source
    try:
        torch.testing.assert_close(ours, eager, rtol=1e-9, atol=1e-12)
    except AssertionError:
        return source
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--without-data", action="store_true")
    given = parser.parse_args()
    wrong = 0
    for seed in range(given.first, given.first + given.count):
        if source := differs(seed, not given.without_data):
            wrong += 1
            print(f"seed {seed}\n{source}\n", flush=True)
    print(f"{wrong} of {given.count} differ")


if __name__ == "__main__":
    main()
