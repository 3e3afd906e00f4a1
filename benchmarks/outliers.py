"""`python benchmarks/outliers.py [--count N] [--seed S] [--singles]`: random programs at real sizes, and which are slow.

Each seed is a function of a few statements of `drawn_statements.txt`, elementwise work and a loss: alone, with gradients,
or as a training step; `--singles` takes each statement once, with elementwise work around it. Its time is compared with
eager's by turns, in processor time of one thread, and with torch.compile's where it is above nine tenths of eager's. Shown
are programs that are slower, need more memory at a time, or take more than five seconds for their first call. Programs that
are left to Python because that is faster (`config.measure_short_calls`) would not be: here all are compiled.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

import quickfuse
from processor_time import seconds
from quickfuse.bench.models import _growth

STATEMENTS = Path(__file__).parent / "drawn_statements.txt"
ACTIVATIONS = (
    "F.relu(x)", "F.gelu(x)", "F.gelu(x, approximate='tanh')", "F.silu(x)", "F.mish(x)", "F.softplus(x)", "torch.tanh(x)",
    "torch.sigmoid(x)", "F.elu(x)", "F.leaky_relu(x, 0.1)", "F.hardswish(x)", "torch.sin(x)", "x.clamp(-1.5, 1.5)",
    "torch.erf(x)", "torch.log1p(x.abs())", "torch.exp(-x.abs())", "x.abs().sqrt()", "x.pow(3)", "torch.atan(x)", "x**2",
    "torch.where(x > 0, x, 0.1 * x)",
)  # fmt: skip
OF_TWO = (
    "x + y", "x * y", "x - 0.5 * y", "torch.maximum(x, y)", "x / (1 + y.abs())", "torch.lerp(x, y, 0.3)",
    "torch.addcmul(x, x, y, value=0.5)", "torch.logaddexp(x, y)", "torch.where(y > 0, x, y)", "torch.atan2(x, y)",
    "torch.hypot(x, y)",
)  # fmt: skip
SHAPES = {"rows": "n, w", "tokens": "n, t, w", "images": "n, w, t, t"}
SIZES: dict[str, dict[str, tuple[int, ...]]] = {
    "rows": {"n": (8, 32, 64, 128, 256, 512), "w": (64, 128, 256, 512, 1024)},
    "tokens": {"n": (4, 8, 16), "t": (32, 64, 128, 256), "w": (64, 128, 256)},
    "images": {"n": (4, 8, 16), "t": (16, 32, 64), "w": (8, 16, 32, 64)},
}
MOST_ELEMENTS = 1 << 20
OPTIMIZERS: tuple[Callable[..., torch.optim.Optimizer], ...] = (torch.optim.Adam, torch.optim.SGD, torch.optim.RMSprop)
ROUNDS, TURN = 7, 0.02
PEER_ABOVE, SLOW, LONG_FIRST = 0.9, 1.0, 5.0


# --- drawing ---


def statements() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    kind = ""
    for line in STATEMENTS.read_text().splitlines():
        if line.startswith("["):
            kind = line.strip("[]")
        elif line.startswith(" "):
            found[kind][-1] += " " + line.strip()
        elif line and not line.startswith("#"):
            found.setdefault(kind, []).append(line)
    return found


@dataclass
class Draft:
    """A program while it is drawn: what its activations are, and its lines, parameters and inputs."""

    kind: str
    sizes: dict[str, int]
    mode: str
    lines: list[str] = field(default_factory=list)
    parameters: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        shape = eval(f"({SHAPES[self.kind]})", {}, self.sizes)
        self.given = [f"torch.randn({shape})"] * 2

    def add(self, statement: str) -> None:
        text, _, kind = statement.partition(" -> ")
        self.lines += [line.strip() for line in re.sub(r"\{[^{}]*\}", self._filled, text).split("|")]
        if kind:
            self._become(kind, "flatten(0, 1)" in text)

    def _filled(self, found: re.Match[str]) -> str:
        text = found[0][1:-1]
        if text.startswith("p:"):
            sizes = eval(f"({text[2:]},)", {}, self.sizes)
            spread = (sizes[-1] if len(sizes) == 2 else max(torch.Size(sizes[1:]).numel(), 1)) ** -0.5
            self.parameters.append(f"torch.randn({sizes}) * {spread:.4f}" + (" + 1" if len(sizes) == 1 else ""))
            return f"p{len(self.parameters) - 1}"
        if text.startswith("i:"):
            sized = re.sub(r"\b([nwt])\b", lambda m: str(self.sizes[m[1]]), text[2:])
            self.inputs.append(re.sub(r"\b(rand|randn|randint|randperm)\(", r"torch.\1(", sized))
            return f"i{len(self.inputs) - 1}"
        return str(eval(text, {}, self.sizes))

    def _become(self, kind: str, flat: bool) -> None:
        n, w, t = self.sizes["n"], self.sizes["w"], self.sizes.get("t", 1)
        self.sizes = {"n": min(512, n * t) if flat else n, "w": w}
        if kind == "tokens":
            self.sizes["t"] = min(256, t * t)
        self.kind = kind
        self.lines.append("y = x.flip(0)")

    def source(self) -> str:
        names = [*(f"p{k}" for k in range(len(self.parameters))), *(f"i{k}" for k in range(len(self.inputs)))]
        made = ",\n        ".join([*self.given, *self.parameters, *self.inputs])
        body = "\n    ".join([*self.lines, "return x"])
        return (
            f"def f({', '.join(['x', 'y', *names])}):\n    {body}\n\n"
            f"def arguments():\n    torch.manual_seed(0)\n    return [\n        {made},\n    ]\n"
        )


def drawn(seed: int, known: dict[str, list[str]]) -> Draft:
    rng = random.Random(seed)
    kind = rng.choice(["rows", "rows", "tokens", "tokens", "images"])
    sizes = {name: rng.choice(values) for name, values in SIZES[kind].items()}
    while torch.Size(eval(f"({SHAPES[kind]})", {}, sizes)).numel() > MOST_ELEMENTS:
        sizes["n"] = max(1, sizes["n"] // 2)
    draft = Draft(kind, sizes, rng.choice(["forward", "forward", "backward", "backward", "step"]))
    for _ in range(rng.choice([2, 3, 4, 6, 8])):
        chance = rng.random()
        if chance < 0.5:
            value = rng.choice(ACTIVATIONS if chance < 0.35 else OF_TWO)
            draft.lines.append(f"x = {value}" if chance < 0.25 or chance > 0.35 else f"x = x + {value}")
        else:
            draft.add(rng.choice(known[draft.kind]))
    if draft.mode == "step" or rng.random() < 0.4:
        if draft.kind != "rows":
            draft.add("x = x.mean((2, 3)) -> rows" if draft.kind == "images" else "x = x.flatten(0, 1)[:512] -> rows")
        draft.add(f"x = {rng.choice(known['losses'])}")
    return draft


def singles(known: dict[str, list[str]]) -> list[Draft]:
    """Each statement with elementwise work around it, forward and with gradients."""
    found = []
    for kind, texts in known.items():
        sizes = {name: values[len(values) // 2] for name, values in SIZES.get(kind, SIZES["rows"]).items()}
        for text in texts:
            for mode in ("forward", "backward"):
                draft = Draft("rows" if kind == "losses" else kind, dict(sizes), mode, ["x = x * 1.1 + y"])
                draft.add(f"x = {text}" if kind == "losses" else text)
                draft.lines += [] if kind == "losses" else ["x = x * x.sigmoid()"]
                found.append(draft)
    return found


# --- measuring ---


def variant(draft: Draft, wrap: Callable[[Any], Any]) -> Callable[[], Any]:
    """What is called and timed."""
    namespace: dict[str, Any] = {"torch": torch, "F": F}
    exec(draft.source(), namespace)
    function, args = namespace["f"], namespace["arguments"]()
    if draft.mode == "forward":
        compiled = wrap(function)
        return lambda: torch.no_grad()(compiled)(*args)
    leaves = [a.requires_grad_() for a in args[: 2 + len(draft.parameters)]]
    if draft.mode == "backward":
        compiled, upstream = wrap(function), torch.ones_like(function(*args).detach())
        return lambda: torch.autograd.grad(compiled(*args), leaves, upstream, allow_unused=True)
    optimizer = OPTIMIZERS[len(draft.lines) % len(OPTIMIZERS)](leaves, lr=1e-5)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = function(*args)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return wrap(step)  # type: ignore[no-any-return]


def interleaved(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Microseconds a call, the median of turns."""
    times = {}
    for name, call in calls.items():
        seconds(call, 3)
        times[name] = max(1, round(TURN / max(seconds(call, 2), 1e-6)))
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            call()
            found[name].append(1e6 * seconds(call, times[name]))
    return {name: statistics.median(values) for name, values in found.items()}


def measured(draft: Draft, peer: bool) -> dict[str, Any]:
    eager, ours = variant(draft, lambda f: f), variant(draft, quickfuse.compile)
    torch.manual_seed(0)
    wanted = eager()
    torch.manual_seed(0)
    begun = time.process_time()
    found = ours()
    row: dict[str, Any] = {"first": time.process_time() - begun}
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-2, equal_nan=True)
    del wanted, found
    calls = {"eager": eager, "quickfuse": ours}
    row |= interleaved(calls)
    row["peaks"] = {name: max(_growth(call), default=0) for name, call in calls.items()}
    if peer and row["quickfuse"] > PEER_ABOVE * row["eager"]:
        torch._dynamo.reset()
        row |= interleaved({**calls, "torch.compile": variant(draft, torch.compile)})
    return row


def remarks(row: dict[str, Any]) -> list[str]:
    found = [f"{row['quickfuse'] / row[name]:.2f} of {name}'s time ({row[name]:.0f} us)"
             for name in ("eager", "torch.compile") if name in row and row["quickfuse"] > SLOW * row[name]]  # fmt: skip
    ours, eagers = row["peaks"]["quickfuse"], row["peaks"]["eager"]
    found += [f"{ours / max(eagers, 1):.2f} of eager's memory ({eagers} bytes)"] if ours > 1.02 * eagers + 4096 else []
    return found + ([f"{row['first']:.1f} s for the first call"] if row["first"] > LONG_FIRST else [])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--singles", action="store_true")
    parser.add_argument("--no-peer", action="store_true", help="without torch.compile, which takes up to a minute a program")
    parser.add_argument("--json", type=Path, help="where to write a line for each program")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    quickfuse.config.measure_short_calls = False
    known = statements()
    chosen = range(options.seed, options.seed + options.count)
    drafts = {f"single {k}": d for k, d in enumerate(singles(known))} if options.singles else {
        f"seed {seed}": drawn(seed, known) for seed in chosen
    }  # fmt: skip
    ratios = []
    for name, draft in drafts.items():
        try:
            row = measured(draft, not options.no_peer)
        except Exception as error:  # also what eager refuses
            print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0][:150]}\n{draft.source()}", flush=True)
            continue
        ratios.append(row["quickfuse"] / row["eager"])
        if options.json:
            with options.json.open("a") as file:
                file.write(json.dumps({"name": name, "mode": draft.mode, "source": draft.source(), **row}) + "\n")
        if found := remarks(row):
            print(f"{name}, {draft.mode}: {'; '.join(found)}\n{draft.source()}", flush=True)
    if ratios:
        mean = statistics.geometric_mean(ratios)
        print(f"{len(ratios)} programs: {mean:.2f} of eager's time, {max(ratios):.2f} at the most")


if __name__ == "__main__":
    sys.exit(main())
