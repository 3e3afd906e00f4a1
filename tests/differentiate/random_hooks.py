"""Random functions that register hooks, make leaves and take gradients, inside and outside, as Python text from a seed.

    python tests/differentiate/random_hooks.py --first 0 --count 1000

runs so many of them, each four times, compiled and not, and prints those that differ.
"""

from __future__ import annotations

import argparse
import functools
import math
import random
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import quickfuse

T = torch.Tensor
_CHANGED = "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace operation"

_UNARY = [
    "torch.tanh({0})", "{0}.sin()", "{0} * 1.5", "torch.sigmoid({0})", "({0} + 1).relu()", "{0}.t().contiguous().t()",
    "{0}.view_as({0})", "{0}.clone()", "{0}.softmax(1)", "{0}.mean(1, keepdim=True) + {0}", "{0} * x", "{0}.square()",
    "Swish.apply({0})", "Doubled.apply({0})", "checkpoint(torch.sin, {0}, use_reentrant=False)",
    "torch.linalg.qr({0} + 2 * torch.eye(4).double())[1]", "{0}[:, [1, 0, 3, 2]]",
]  # fmt: skip
_BINARY = ["{0} + {1}", "{0} * {1}", "{0} - {1}.cos()", "torch.maximum({0}, {1})", "{0} @ {1}.t() @ {1} * 0.3"]
_WEIGHTS = ["{0} @ m.w0", "{0} * m.w1", "{0} + m.w2", "m.layer({0})", "torch.addmm(m.w2, {0}, m.w0)", "m.unit({0})"]
_HOOKS = [
    "lambda g: g * 0.5", "lambda g: None", "lambda g: g.clamp(-0.02, 0.02)", "lambda g: log.append(g.detach().clone())",
    "lambda g: log.append(('{0}', g.sum()))", "lambda g: store.__setitem__('{0}', g.norm().item())", "lambda g: g * scale",
    "lambda g: -scale * g", "lambda g: g + x.mean()", "lambda g: torch.zeros_like(g)", "lambda g: g * store['calls']",
    "lambda g: g / (g.norm() + 1e-3)", "lambda g: log.append(m.w0.grad is None)", "lambda g: log.append(len(log)) or g * 2",
    "halve", "note", "Keep(log)", "functools.partial(times, k=3)",
]  # fmt: skip
_AFTER = [
    "update", "lambda p: log.append(p.grad.sum())", "lambda p: p.grad.mul_(0.5) is None or None",
    "lambda p: log.append((p.shape, p.grad.norm()))",
]  # fmt: skip
_PRELUDE = """
def halve(g):
    return g / 2

def note(g):
    log.append(g.abs().max())

def times(g, k):
    return g * k

def update(p):
    with torch.no_grad():
        p.sub_(p.grad, alpha=0.05)
    p.grad = None

class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * (s + x * s * (1 - s))

class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * 2

class Keep:
    def __init__(self, log):
        self.log = log
    def __call__(self, g):
        self.log.append(g.mean())
"""


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.w0, self.w1, self.w2 = (nn.Parameter(torch.randn(4, 4, dtype=torch.float64) * 0.5) for _ in range(3))
        self.layer = nn.Linear(4, 4).double()
        self.unit = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).double()


def program(seed: int) -> tuple[str, str]:
    """The text of a function `step(x, k)`, and of what is done before its first call."""
    return _Writer(random.Random(seed)).written()


class _Writer:
    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.lines: list[str] = []
        self.tensors = ["x"]
        self.hooked: list[str] = []
        self.retained: list[str] = []
        self.leaves: list[str] = []
        self.handles: list[str] = []
        self.count = 0

    def chance(self, share: float) -> bool:
        return self.draw.random() < share

    def new(self) -> str:
        self.count += 1
        return f"h{self.count}"

    def add(self, line: str) -> None:
        self.lines.append(line)

    def written(self) -> tuple[str, str]:
        self.add("store['calls'] += 1")
        self.add(f"scale = {self.draw.choice(['0.5', '2'])}" if self.chance(0.7) else "scale = 0.1 * store['calls']")
        if self.chance(0.6):
            self.add("m.zero_grad()")
        for _ in range(self.draw.randint(3, 8)):
            self.draw.choice([self.operator, self.operator, self.operator, self.hook, self.leaf, self.rare])()
        self.operator()
        self.hook()
        loss = self.loss()
        returned = self.gradients(loss)
        for handle in self.handles:
            if self.chance(0.6):
                self.add(f"{handle}.remove()")
        # After a break, what retains its gradient gets one also where the way to the inputs asked for passes it by.
        some = "inputs=" in "".join(self.lines[-8:]) or "autograd.grad" in "".join(self.lines[-8:])
        returned += [f"{name}.grad" for name in ([] if some else self.retained) + self.leaves]
        returned += [name for name in self.leaves if self.chance(0.3)]
        self.add(f"return [{', '.join(returned)}]")
        body = "".join(f"    {line}\n" for line in self.lines)
        return f"def step(x, k):\n{body}", self.before()

    def before(self) -> str:
        lines = []
        if self.chance(0.25):
            hook = self.draw.choice([h for h in _HOOKS if "scale" not in h and "x" not in h])
            lines.append(f"m.w1.register_hook({hook.format('before')})")
        if self.chance(0.15):
            lines.append(f"m.w0.register_post_accumulate_grad_hook({self.draw.choice(_AFTER)})")
        if self.chance(0.2):
            hook = self.draw.choice([
                "lambda module, given, got: log.append(got[0].sum())", "lambda module, given, got: (given[0] * 0.5,)",
                "lambda module, given, got: log.append((given[0] is None, got[0].norm()))",
            ])  # fmt: skip
            lines.append(f"m.unit[1].register_full_backward_hook({hook})")
        if self.chance(0.1):
            lines.append("m.unit[1].register_full_backward_pre_hook(lambda module, got: (got[0] * 2,))")
        return "\n".join(lines)

    def some(self) -> str:
        return self.draw.choice(self.tensors[-4:])

    def operator(self) -> None:
        kind = self.draw.choice([_UNARY, _BINARY, _WEIGHTS])
        name = self.new()
        self.add(f"{name} = {self.draw.choice(kind).format(self.some(), self.some())}")
        self.tensors.append(name)

    def of_hook(self, name: str) -> str:
        return self.draw.choice(_HOOKS).format(name)

    def hook(self) -> None:
        names = [name for name in self.tensors if name != "x"]
        if not names:
            return
        name = self.draw.choice(names)
        if self.chance(0.2):
            name = self.draw.choice(["m.w0", "m.w1", "m.layer.bias"])
            handle = f"handle{len(self.handles)}"
            if self.chance(0.3):
                self.add(f"{handle} = {name}.register_post_accumulate_grad_hook({self.draw.choice(_AFTER)})")
            else:
                self.add(f"{handle} = {name}.register_hook({self.of_hook(name)})")
            self.handles.append(handle)
            if self.chance(0.8):  # others are left, and more of them in each call
                self.handles.pop()
                self.finally_removed.append(handle)
            return
        self.add(f"if {name}.requires_grad:")
        if self.chance(0.3):
            self.add(f"    {name}.retain_grad()")
            if name not in self.retained:
                self.retained.append(name)
        elif self.chance(0.3):
            handle = f"handle{len(self.handles)}"
            self.add(f"    {handle} = {name}.register_hook({self.of_hook(name)})")
            if self.chance(0.5):
                self.add(f"    {handle}.remove()")
        else:
            self.add(f"    {name}.register_hook({self.of_hook(name)})")

    @property
    def finally_removed(self) -> list[str]:
        return self.__dict__.setdefault("_removed", [])

    def leaf(self) -> None:
        name = self.new()
        self.add(self.draw.choice([
            "{0} = torch.zeros_like(x, requires_grad=True)", "{0} = (x * 2).detach().requires_grad_()",
            "{0} = x.clone().requires_grad_()", "{0} = m.w0.detach().clone().requires_grad_()",
            "{0} = x.detach().requires_grad_()",
        ]).format(name))  # fmt: skip
        self.leaves.append(name)
        self.tensors.append(name)
        self.operator()

    def rare(self) -> None:
        name, of = self.new(), self.some()
        self.add(self.draw.choice([
            "{0} = {1} * 1; {0}[k] *= 0.5", "{0} = {1} * 1; {0}[k] = {1}.sum(0)", "{0} = {1} * {1}[k]",
            "{0} = {1} + 0; {0}.mul_(2)", "{0} = {1} * 1; quickfuse.graph_break()", "{0} = {1}.t().t()",
            "{0} = {1} * 1; {0}[{0} > 0] *= 0.5", "{0} = {1} * 1; {0}[x > 0] = {0}[x > 0].exp()",
            "{0} = {1} * {1}[x > 0].sum()", "{0} = {1} * 1; {0}[:2] = {1}[2:]",
            "{0} = {1} * 2; log.append({1}.detach().sum())",
        ]).format(name, of))  # fmt: skip
        self.tensors.append(name)

    def loss(self) -> str:
        terms = [f"{name}.sum()" for name in self.tensors[-3:] if name != "x"] + ["(m.w0 * m.w1).sum()"]
        self.add(f"loss = {' + '.join(terms)}")
        if self.chance(0.15):
            self.add("loss.register_hook(lambda g: g * 3)")
        return "loss"

    def gradients(self, loss: str) -> list[str]:
        kind = self.draw.randrange(10)
        removed = [f"{handle}.remove()" for handle in self.finally_removed]
        returned = [f"{loss}.detach()"]
        if kind < 5:
            self.add(f"{loss}.backward()")
        elif kind == 5:
            self.add(f"{loss}.backward(retain_graph=True)")
            self.add(f"{loss}.backward()")
        elif kind == 6:
            wanted = [*self.draw.sample(["m.w0", "m.w1", "m.w2"], 2), *self.leaves[:1]]
            self.add(f"got = torch.autograd.grad({loss}, [{', '.join(wanted)}], allow_unused=True)")
            returned.append("got")
        elif kind == 7:
            self.add(f"{loss}.backward(inputs=[m.w0, m.w1])")
        elif kind == 8:
            self.add(f"got = torch.autograd.grad({loss}, [m.w0], retain_graph=True)")
            self.add(f"{loss}.backward()")
            returned.append("got")
        else:
            returned = [loss]
        self.lines += removed
        return returned


def outcomes(text: str, before: str, compiled: bool) -> tuple[list[Any], Any]:
    """What four calls give and leave behind."""
    log: list[Any] = []
    store: dict[str, Any] = {"calls": 0}
    m = Model()
    scope: dict[str, Any] = {"torch": torch, "quickfuse": quickfuse, "functools": functools}
    scope |= {"m": m, "log": log, "store": store, "checkpoint": checkpoint}
    exec(_PRELUDE + before + "\n" + text, scope)
    step = quickfuse.compile(scope["step"]) if compiled else scope["step"]
    found: list[Any] = []
    torch.manual_seed(1)
    for _ in range(4):
        x, k = torch.randn(4, 4, dtype=torch.float64), torch.randint(-4, 4, ())
        log.clear()
        try:
            made: Any = step(x, k)
            for result in made:
                if isinstance(result, torch.Tensor) and result.requires_grad and result.grad_fn is not None:
                    result.backward()
            made = [(facts(r), r.grad if isinstance(r, torch.Tensor) and r.is_leaf else None) for r in made]
        except Exception as error:
            made = f"{type(error).__name__}: {error}"
        grads = [None if p.grad is None else p.grad.clone() for p in m.parameters()]
        found.append((made, [*log], dict(store), grads, [p.detach().clone() for p in m.parameters()]))
    return found, step


def facts(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone(), value.requires_grad, value.is_leaf
    return tuple(facts(v) for v in value) if isinstance(value, tuple) else value


def same(left: Any, right: Any) -> bool:
    """Whether two outcomes are equal, but for rounding."""
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return left.shape == right.shape and torch.allclose(left, right, rtol=1e-8, atol=1e-10, equal_nan=True)
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=1e-8, abs_tol=1e-10) or (left != left and right != right)
    return bool(left == right)


def difference(seed: int) -> str:
    """What differs for a seed, an empty text if nothing does."""
    text, before = program(seed)
    expected, _ = outcomes(text, before, compiled=False)
    got, _ = outcomes(text, before, compiled=True)
    for call, (theirs, ours) in enumerate(zip(expected, got, strict=True)):
      # Eager names the tensor that was changed, and has given some gradients and called some hooks before it comes to that.

        if all(isinstance(made, str) and _CHANGED in made for made in (theirs[0], ours[0])):
            break
        for what, a, b in zip(("results", "log", "store", "gradients", "parameters"), theirs, ours, strict=True):
            if not same(a, b):
                return f"seed {seed}, call {call}: other {what}\n{before}\n{text}\n{a}\n{b}"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    given = parser.parse_args()
    differ = 0
    for seed in range(given.first, given.first + given.count):
        try:
            text = difference(seed)
        except Exception:
            text = f"seed {seed}\n{program(seed)}\n{traceback.format_exc()}"
        if text:
            differ += 1
            print(text, flush=True)
    print(f"{differ} of {given.count} programs differ")
    sys.exit(bool(differ))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()
