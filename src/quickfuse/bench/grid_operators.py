"""Single operators at the sizes of a GPU, as tasks of `grid`: `quickfuse bench operators --device cuda`.

Beside the time of a call stands the share of a copy's bandwidth that it reaches, if each byte of its operands is read once
and each byte of its results is written once. Where all tensors fit the GPU's cache, calls take turns on several sets.
"""

from __future__ import annotations

import itertools
import logging
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from quickfuse.bench.grid import Row, Task
from quickfuse.bench.grid_models import wrapper
from quickfuse.bench.steady import CopyBandwidth, Timed, interleave
from quickfuse.bench.variants import synchronizer

Tensors = tuple[torch.Tensor, ...]
Shape = tuple[int, ...]

VARIANTS = ("eager", "torch.compile", "quickfuse")

#: Fewer bytes than this may all be in the cache from the call before.
_CACHED = 256 << 20
_MOST_SETS = 8


@dataclass(frozen=True)
class Operator:
    """`operands(shape)` makes float32 operands on the CPU for `shapes` of any device. `forward` and `backward` are the bytes
    that must move, in units of the first operand, beyond which only small operands are read; 0: that is no measure of it.
    `backward` None: gradients are views, or not asked for.
    """

    function: Callable[..., torch.Tensor]
    operands: Callable[[Shape], Tensors]
    shapes: tuple[Shape, ...]
    forward: float
    backward: float | None = None
    random: bool = False


def _one(shape: Shape) -> Tensors:
    return (torch.randn(shape),)


def _two(shape: Shape) -> Tensors:
    return torch.randn(shape), torch.randn(shape)


def _with_weight(shape: Shape) -> Tensors:
    return torch.randn(shape), torch.randn(shape[-1])


def _with_weight_and_bias(shape: Shape) -> Tensors:
    return torch.randn(shape), torch.randn(shape[-1]), torch.randn(shape[-1])


def _scores(shape: Shape) -> Tensors:
    return torch.randn(shape), torch.randint(shape[1], shape[:1])


def _linear(shape: Shape) -> Tensors:
    rows, inputs, outputs = shape
    return torch.randn(rows, inputs), torch.randn(outputs, inputs) / math.sqrt(inputs), torch.randn(outputs)


def _table(shape: Shape) -> Tensors:
    """(tokens, entries, width): as many results as tokens."""
    tokens, entries, width = shape
    return torch.randn(entries, width), torch.randint(entries, (tokens,))


def _dropout_add_norm(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(functional.dropout(x, 0.1) + y, x.shape[-1:], weight)


def _two_with_weight(shape: Shape) -> Tensors:
    return *_two(shape), torch.randn(shape[-1])


_ROWS: tuple[Shape, ...] = ((512, 1024), (4096, 4096), (16384, 4096))
_CUBES: tuple[Shape, ...] = ((32, 64, 256), (64, 256, 1024), (128, 512, 1024))
_IMAGES: tuple[Shape, ...] = ((8, 64, 32, 32), (32, 256, 56, 56), (64, 256, 64, 64))

OPERATORS: dict[str, Operator] = {
    "softmax": Operator(lambda x: torch.softmax(x, -1), _one, _ROWS, 2, 3),
    "layer norm": Operator(lambda x, w, b: functional.layer_norm(x, x.shape[-1:], w, b), _with_weight_and_bias, _ROWS, 2, 3),
    "RMS norm": Operator(lambda x, w: functional.rms_norm(x, x.shape[-1:], w), _with_weight, _ROWS, 2, 3),
    "cross entropy": Operator(functional.cross_entropy, _scores, ((512, 1024), (4096, 4096), (4096, 50257)), 1, 2),
    "linear and GELU": Operator(
        lambda x, w, b: functional.gelu(functional.linear(x, w, b)), _linear,
        ((512, 512, 2048), (4096, 1024, 4096), (16384, 768, 3072)), 0, 0,
    ),
    "sum over axis 0": Operator(lambda x: x.sum(0), _one, (*_ROWS, *_CUBES), 1, 1),
    "sum over axis 1": Operator(lambda x: x.sum(1), _one, (*_ROWS, *_CUBES), 1, 1),
    "sum over axis 2": Operator(lambda x: x.sum(2), _one, _CUBES, 1, 1),
    "sum of a product over all axes": Operator(lambda x: (x * x).sum(), _one, _ROWS, 1, 2),
    "transpose": Operator(lambda x: x.t().contiguous(), _one, _ROWS, 2),
    "add of a transpose": Operator(lambda x, y: x + y.t(), _two, ((1024, 1024), (4096, 4096), (8192, 8192)), 3),
    "to channels last": Operator(lambda x: x.contiguous(memory_format=torch.channels_last), _one, _IMAGES, 2),
    "cat": Operator(lambda x, y: torch.cat([x, y], 1), _two, _ROWS, 4),
    "embedding": Operator(
        lambda w, i: functional.embedding(i, w), _table, ((4096, 1024, 256), (16384, 50257, 768), (65536, 50257, 768)), 0, 0
    ),
    "dropout-add-norm": Operator(_dropout_add_norm, _two_with_weight, _ROWS, 3, 5, random=True),
}  # fmt: skip


def tasks(
    names: Sequence[str], dtypes: Sequence[str], variants: Sequence[str], device: str, seconds: float, smaller: int = 1
) -> list[Task]:
    """A task for each operator and dtype. `smaller`: divides all sizes but the least ones."""
    return [
        {"suite": "operators", "operator": name, "dtype": dtype, "variants": list(variants), "device": device,
         "seconds": seconds, "smaller": smaller}
        for name in names
        for dtype in dtypes
    ]  # fmt: skip


def measure(task: Task) -> Iterator[Row]:
    """In a process of its own: an operator at all sizes, forward, and forward with backward."""
    torch._logging.set_logs(all=logging.ERROR)  # type: ignore[attr-defined]
    operator, device = OPERATORS[task["operator"]], task["device"]
    passes = (False,) if operator.backward is None else (False, True)
    cases = [_Case(task, shape, backward) for shape in operator.shapes for backward in passes]
    for case in cases:
        case.compile()
    yield {}
    bandwidth = CopyBandwidth(device)
    bandwidth.turn()
    copy = bandwidth.rounds[0]
    del bandwidth
    rows = [case.time(task["seconds"], copy) for case in cases]
    yield {"copy_gb_per_s": copy, "rows": rows}


class _Case:
    """An operator at a size, in one direction."""

    def __init__(self, task: Task, shape: Shape, backward: bool) -> None:
        self.operator = OPERATORS[task["operator"]]
        self.shape = tuple(max(4, size // task["smaller"]) for size in shape)
        self.backward = backward
        self.dtype, self.device = getattr(torch, task["dtype"]), task["device"]
        self.synchronize = synchronizer(self.device)
        self.variants: dict[str, Callable[..., Any]] = {}
        self.failed: dict[str, str] = {}
        self.difference: dict[str, float] = {}
        self.names = task["variants"]

    def compile(self) -> None:
        """Make each variant and call it, beside eager."""
        operands = self.operands()
        expected: Tensors | None = None
        for name in ("eager", *(name for name in self.names if name != "eager")):
            try:
                fn = self.call_of(name)
                torch.manual_seed(0)
                found = _tensors(fn(*operands))
                fn(*operands)
            except Exception as error:  # a peer may fail in any way: that is a result too
                self.failed[name] = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
                continue
            self.variants[name] = fn
            if expected is None:
                expected = found
            elif not (self.operator.random and name.startswith("torch")):
                self.difference[name] = max(_difference(a, b) for a, b in zip(found, expected, strict=True))

    def call_of(self, variant: str) -> Callable[..., Any]:
        options: dict[str, Any] = {"dynamic": False} if variant == "torch.compile" else {}
        compiled = torch.compile(self.operator.function, **options) if options else wrapper(variant)(self.operator.function)
        if not self.backward:
            return compiled

        def call(*operands: torch.Tensor) -> Any:
            result = compiled(*operands)
            return torch.autograd.grad(result, [x for x in operands if x.requires_grad], result.detach())

        return call

    def operands(self) -> Tensors:
        return tuple(
            x.to(self.device, self.dtype).requires_grad_(self.backward) if x.is_floating_point() else x.to(self.device)
            for x in self.operator.operands(self.shape)
        )

    def time(self, seconds: float, copy: float) -> Row:
        first = self.operands()
        units = self.operator.forward + (self.operator.backward or 0 if self.backward else 0)
        moved = int(units * first[0].nbytes)
        held = sum(x.nbytes for x in first)
        sets = [first, *(self.operands() for _ in range(min(_MOST_SETS, -(-_CACHED // held)) - 1))]
        wanted = {name: fn for name, fn in self.variants.items() if name in self.names}
        timed = {name: Timed(_taking_turns(fn, sets), (), self.synchronize) for name, fn in wanted.items()}
        for one in timed.values():
            one.warm_up()
        interleave(timed, seconds)
        us = {name: statistics.median(one.rounds) for name, one in timed.items()}
        share = {name: round(moved / time / 1e3 / copy, 4) for name, time in us.items()} if moved else {}
        return {
            "shape": self.shape, "backward": self.backward, "moved": moved, "us": us, "share": share,
            "difference": self.difference, "failed": self.failed,
        }  # fmt: skip


def _taking_turns(fn: Callable[..., Any], sets: list[Tensors]) -> Callable[[], Any]:
    following = itertools.cycle(sets).__next__
    return lambda: fn(*following())


def _tensors(result: Any) -> Tensors:
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)


def _difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The norm of the difference over the norm of what is expected."""
    wide = expected.detach().double()
    return float((found.detach().double() - wide).norm() / wide.norm().clamp_min(1e-30))


# --- what came out ---


def _all(rows: Sequence[Row]) -> Iterator[tuple[str, str, Row]]:
    for row in rows:
        for one in row.get("rows", []):
            yield row["task"]["operator"], row["task"]["dtype"], one


def table(rows: Sequence[Row]) -> list[str]:
    """A line for each operator, dtype, size and direction: microseconds a call and shares of a copy's bandwidth."""
    headings = "".join(variant.rjust(15) for variant in VARIANTS)
    lines = [f"{'us a call, share of a copy':<64}{headings}   x eager, torch.compile"]
    for one in _all(rows):
        cells = "".join(_cell(one[2], variant).rjust(15) for variant in VARIANTS)
        lines.append(f"{_name(*one):<64}{cells}   {_shown_speed(one[2], 'eager')} {_shown_speed(one[2], 'torch.compile')}")
    return lines


def _cell(row: Row, variant: str) -> str:
    if variant not in row["us"]:
        return "failed" if variant in row["failed"] else "-"
    share = f" {row['share'][variant]:4.0%}" if row["share"] else ""
    return f"{row['us'][variant]:.1f}{share}"


def _speed(row: Row, peer: str) -> float | None:
    us = row["us"]
    return us[peer] / us["quickfuse"] if peer in us and "quickfuse" in us else None


def _shown_speed(row: Row, peer: str) -> str:
    speed = _speed(row, peer)
    return "-" if speed is None else f"{speed:.2f}"


def summary(rows: Sequence[Row]) -> list[str]:
    """Geometric means, what is slower, what stays below 90% of a copy above 64 MB, and what is wrong."""
    lines = []
    for peer in ("torch.compile", "eager"):
        speeds = {_name(*one): speed for one in _all(rows) if (speed := _speed(one[2], peer)) is not None}
        if speeds:
            in_order = sorted(speeds, key=speeds.__getitem__)
            slower = "; ".join(f"{name} {speeds[name]:.2f}" for name in in_order if speeds[name] < 0.95) or "none"
            mean = statistics.geometric_mean(speeds.values())
            lines.append(f"quickfuse is {mean:.2f} times as fast as {peer} ({len(speeds)}); slower: {slower}")
    shares = {_name(*one): one[2]["share"].get("quickfuse", 1.0) for one in _all(rows) if one[2]["moved"] > 64e6}
    low = [f"{name} {share:.0%}" for name, share in sorted(shares.items(), key=lambda item: item[1]) if share < 0.9]
    lines.append(f"below 90% of a copy above 64 MB ({len(low)} of {len(shares)}): {'; '.join(low) or 'none'}")
    for one in _all(rows):
        most = 1e-4 if one[1] == "float32" else 3e-2
        lines += [f"wrong? {_name(*one)}, {v}: {d:.2g}" for v, d in one[2]["difference"].items() if not d <= most]
        lines += [f"{_name(*one)}, {variant}: {why}" for variant, why in one[2]["failed"].items()]
    whole = [row for row in rows if "failed" in row]
    return [*lines, *(f"{row['task']['operator']} {row['task']['dtype']}: {row['failed']}" for row in whole)]


def _name(operator: str, dtype: str, row: Row) -> str:
    return f"{operator}{', backward' if row['backward'] else ''} {dtype} {'x'.join(map(str, row['shape']))}"


def shown(task: Task, row: Row) -> str:
    """What came out of a task, in a line for each size."""
    head = f"{task['operator']} {task['dtype']}"
    if "failed" in row:
        return f"{head} failed: {row['failed']}"
    lines = []
    for one in row["rows"]:
        cells = "  ".join(f"{variant} {_cell(one, variant)}" for variant in VARIANTS)
        lines.append(f"{_name(task['operator'], task['dtype'], one):<60} {cells}")
    return "\n".join(lines)
