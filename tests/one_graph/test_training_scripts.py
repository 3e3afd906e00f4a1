"""What training scripts keep in the books from step to step: counters, texts, histories and seeds, which are others in each
call. Each program is one graph, compiled as often as stands beside it, with eager's results and state."""

from __future__ import annotations

import collections
import contextlib
import io
import json
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import quickfuse
from matrix.combinations import described
from seeding import seed_torch

CALLS = 8

#: A step of the call number k, with a batch and the names of its samples, and what is to be compared afterwards.
Program = Callable[[], tuple[Callable[[torch.Tensor, int, list[str]], Any], Any]]
PROGRAMS: list[tuple[Program, int]] = []


def compiled_times(times: int) -> Callable[[Program], Program]:
    def add(program: Program) -> Program:
        PROGRAMS.append((program, times))
        return program

    return add


@compiled_times(2)
def losses_by_step():
    history = {}

    def step(x, k, names):
        history[k] = x.sum().item()
        return x * 2

    return step, history


@compiled_times(2)
def losses_by_text():
    history = {}

    def step(x, k, names):
        history[f"step{k}"] = x.sum().item()
        history["last"] = k
        return x * 2

    return step, history


@compiled_times(2)
def losses_by_epoch_and_step():
    history = {}

    def step(x, k, names):
        history[k // 3, k % 3] = x.sum().item()
        history[k // 3, "last"] = k
        return x * 2

    return step, history


@compiled_times(1)
def counts_by_class():
    counts = {0: 0}

    def step(x, k, names):
        counts[int(x.argmax().item())] = x.max().item()
        return x * 2

    return step, counts


@compiled_times(3)
def scalars_of_a_writer():
    class Writer:
        def __init__(self):
            self.scalars = {}

        def add_scalar(self, tag, value, step):
            self.scalars.setdefault(tag, {})[step] = value

    writer = Writer()

    def step(x, k, names):
        writer.add_scalar("loss", x.sum().item(), k)
        return x * 2

    return step, writer.scalars


@compiled_times(2)
def losses_by_sample():
    table = {}

    def step(x, k, names):
        for name, row in zip(names, x):
            table[name] = row.sum().item()
        return x + 1

    return step, table


@compiled_times(1)
def rounded_losses():
    log = []

    def step(x, k, names):
        loss = x.sin().sum().item()
        log.append({"loss": round(loss, 3), "text": f"{round(loss, 2)} {round(loss / 3, 1):>6}"})
        print("loss", round(loss, 4), "%s %.1f" % (round(loss, 3), round(loss, 2)))
        return x * 2, round(loss, 0), isinstance(round(loss, 1), float)

    return step, log


@compiled_times(1)
def text_of_an_object():
    class Meter:
        def __init__(self):
            self.last = self.total = 0.0
            self.n = 0

        def update(self, value):
            self.last = value
            self.total += value
            self.n += 1

        @property
        def mean(self):
            return self.total / self.n

        def __str__(self):
            return f"{self.last:.3f} ({self.mean:.3f})"

        def __format__(self, spec):
            return format(self.mean, spec or ".1f")

    meter = Meter()

    def step(x, k, names):
        meter.update(x.sum().item())
        print("%s | %8s" % (meter, meter), "{} {:.4f} {m.mean:>9.2f} {m!s}".format(meter, meter, m=meter))
        return x * 2

    return step, vars(meter)


@compiled_times(2)
def templates_of_a_logger():
    lines = []

    def step(x, k, names):
        lines.append("step {step:03d}/{1} {loss:.3f} {0}".format(k, 9, step=k, loss=x.sum().item()))
        lines.append("%d: %.2f, %.1f%%" % (k, x.sum().item(), 100 * k))
        lines.append("{k} {k:.1f}".format(k=k))
        return x * 2

    return step, lines


@compiled_times(2)
def lines_of_json():
    lines = []

    def step(x, k, names):
        lines.append(json.dumps({"step": k, "loss": round(x.sum().item(), 3), "more": [k, None, "a"]}, sort_keys=True))
        return x * 2

    return step, lines


@compiled_times(2)
def names_of_files():
    def step(x, k, names):
        name = "model_" + str(k).zfill(4)
        return x * 2, os.path.join("runs", "a", f"{name}.pt"), name.upper(), name + ".txt", "/".join(["a", name])

    return step, None


@compiled_times(2)
def texts_of_a_batch():
    seen = []

    def step(x, k, names):
        for name in names:
            seen.append(name)
        print(f"{names[3]}, {names[4]}", names[5])
        seen.append(", ".join(names) + f" {names[0]:>12} {names[1]!r}" + "%s, %.3s" % (names[2], names[3]))
        return x * 2, names[0], {"names": names[1:]}

    return step, seen


@compiled_times(2)
def ends_of_a_history():
    losses = []

    def step(x, k, names):
        losses.append(x.sum().item())
        return x * len(losses), losses[-1], losses[0], f"{len(losses)} losses"

    return step, losses


@compiled_times(3)
def last_of_a_history():
    losses = [1.0, 2.0, 3.0]

    def step(x, k, names):
        losses.append(float(k))
        if len(losses) % 4 == 0:
            print(sum(losses[-3:]) / 3)
        if losses and losses[-1] < losses[-2]:
            x = x + 1
        return x * losses[-3]

    return step, losses


@compiled_times(1)
def seeds():
    def step(x, k, names):
        random.seed(k)
        np.random.seed(k + 1)
        torch.manual_seed(k + 2)
        return x + torch.rand(2) * random.random() * np.random.uniform()

    return step, None


@compiled_times(1)
def seeded_generators():
    given = torch.Generator()

    def step(x, k, names):
        given.manual_seed(k)
        own = torch.Generator().manual_seed(k + 3)
        order = torch.randperm(2, generator=own)
        return x[order] + torch.rand(2, generator=given) + torch.randn(2, generator=own)

    return step, None


class Output(NamedTuple):
    loss: Any
    logits: Any
    step: int = 0


@dataclass
class Result:
    loss: float
    output: Output
    text: str = ""


@compiled_times(2)
def results_of_classes():
    kept = []

    def step(x, k, names):
        output = Output(x.sum(), logits=x * 2, step=k)
        result = Result(output.loss.item(), output, f"step {k}")
        kept.append(result)
        return result

    return step, kept


@compiled_times(3)
def settings_in_turns():
    def step(x, k, names):
        match [("scale", 1.0 + k), "double", {"kind": "shift", "by": k}][k % 3]:
            case "double":
                return x * 2
            case ("scale", float(factor)):
                return x * factor
            case {"kind": "shift", "by": by}:
                return x + by

    return step, None


@compiled_times(3)
def checkpoints_by_steps():
    files = collections.deque()

    def step(x, k, names):
        if k % 3 == 0:
            files.append(f"step {k}")
        return x * 2

    return step, files


def _outcome(program: Program, compile_: Callable[[Any], Any]) -> tuple[Any, Any]:
    """What a program gives, prints and keeps, and draws in between; and the function that was called."""
    seed_torch(0)
    random.seed(0)
    np.random.seed(0)
    step, kept = program()
    called = compile_(step)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        given = []
        for k in range(CALLS):
            result = called(torch.arange(4.0).view(2, 2) + k / 8, k, [f"sample {k} {n}" for n in range(20)])
            given.append(described([result, torch.rand(1), random.random(), np.random.rand()]))
    return (given, printed.getvalue(), described(kept)), called


@pytest.mark.parametrize(("program", "times"), PROGRAMS, ids=[program.__name__ for program, _ in PROGRAMS])
def test_one_graph(program: Program, times: int) -> None:
    expected, _ = _outcome(program, lambda function: function)
    found, compiled = _outcome(program, lambda function: quickfuse.compile(function, backend="eager", fullgraph=True))
    assert found == expected
    assert compiled.graph_count == times
