"""What a training loop keeps of its losses: arithmetic, means, orders and texts of numbers that only the graph tells, which
Python computes after it."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import quickfuse

T = torch.Tensor
TEMPLATES = ["%(loss).3f of %(n)d: %(acc)s %(name)s", "%(loss)5.1e%%", "%% %(acc).1f"]
LOST = "%(lost).3f"
ESCAPED = ["%%(loss)s", "%%%(loss).2f"]
Program = Callable[[T, Any], Any]


def losses(x: T) -> list[float]:
    return [(x[k] * k).sum().item() for k in range(3)]


def changed_after(x: T, kept: Any) -> Any:
    y = x * 2
    first = round(y.sum().item(), 1)
    y.add_(1)
    return first * 2, round(y.sum().item(), 1) - first, y


def kept_in_objects(x: T, kept: Any) -> Any:
    kept.loss = round(x.mean().item(), 2) + 1
    kept.history.append(np.mean(losses(x)))
    kept.best = max(round(x.max().item(), 2), round(x.min().item(), 2))
    return kept.loss, kept.history[-1]


def used_by_a_tensor(x: T, kept: Any) -> Any:
    scale = round(x.sum().item(), 2) * 2
    return x * scale, torch.tensor(scale)


def compared(x: T, kept: Any) -> Any:
    mean = np.mean(losses(x))
    return "up" if mean > 0 else "down", mean


def asked_by_type(x: T, kept: Any) -> Any:
    mean, rounded = np.mean(losses(x)), round(x.sum().item(), 1) / 2
    return type(mean), type(rounded), isinstance(mean, float), isinstance(rounded, int), float(mean), mean.item()


def as_a_key(x: T, kept: Any) -> Any:
    return {round(x.sum().item(), 2) + 1: "loss"}


def with_a_template(x: T, kept: Any) -> Any:
    logs = {"loss": x.sum().item(), "n": 3, "acc": round(x.mean().item(), 2) + 0.5, "name": "it's"}
    return [template % logs for template in TEMPLATES]


def escaped(x: T, kept: Any) -> Any:
    return [template % {"loss": x.sum().item()} for template in ESCAPED]


def without_a_key(x: T, kept: Any) -> Any:
    try:
        return LOST % {"loss": x.sum().item()}
    except KeyError as error:
        return str(error)


def in_containers(x: T, kept: Any) -> Any:
    logs = {"loss": x.sum().item(), "parts": losses(x), "pair": (1, x.mean().item())}
    return f"{logs}", str(logs["parts"]), repr(logs), f"{logs!r}", str(logs["pair"])


def in_a_try(x: T, kept: Any) -> Any:
    try:
        kept.history.append(x.sum().item())
        return round(x.sum().item(), 2) * 3
    finally:
        kept.loss = 1


def divided(x: T, kept: Any) -> Any:
    loss = round(x.sum().item(), 2)
    try:
        return loss / 4, loss // 2, loss % 3, 1 / loss, loss**2
    except ZeroDivisionError as error:
        return str(error)


def with_whole_numbers(x: T, kept: Any) -> Any:
    count = (x > 0).sum().item()
    loss = round(x.sum().item(), 2)
    return loss * count, loss - True, count + loss, np.mean([count, count + 1]), loss * 10**400 if kept is None else 0


def summed(x: T, kept: Any) -> Any:
    parts = [round(loss, 1) for loss in losses(x)]
    return sum(parts), sum(parts) / len(parts), -parts[0], abs(parts[1]), +parts[2], round(sum(parts), 1)


def of_several(x: T, kept: Any) -> Any:
    parts = losses(x)
    return [f(parts) for f in (np.mean, np.median, np.std, np.var, np.sum, np.max, np.min)], statistics.mean(parts)


def ordered(x: T, kept: Any) -> Any:
    parts = losses(x)
    return sorted(parts), sorted(parts, reverse=True)[0], sorted(parts)[1:], max(parts), min(*parts), sorted([3, 1, 2])


def averaged(x: T, kept: Any) -> Any:
    kept.count += 1
    kept.total += round(x.sum().item(), 2)
    kept.loss = kept.total / kept.count
    return f"{kept.loss:.2f}"


def scaled_means(x: T, kept: Any) -> Any:
    parts, limits = losses(x), [round(x.max().item(), 1), 2.0]
    mean, loss = np.mean(parts), x.sum().item()
    mean -= 0.5
    made = mean * 100, 100 * mean / 2, 1 - mean, mean * loss, mean * np.std(limits), mean % 3, mean // 3, -mean, mean * True
    return made, np.round(mean, 3), np.around(loss, 1), np.round(loss), np.average(parts), round(float(mean), 2)


def percent_of_one(x: T, kept: Any) -> Any:
    mean, rounded = np.mean(losses(x)), round(x.sum().item(), 2)
    return "%.3f" % mean, "%s!" % rounded, "%r" % mean, ("%6.1f%%" % (mean * 100)).strip()  # noqa: UP031


ONE_GRAPH = [
    changed_after, kept_in_objects, asked_by_type, with_a_template, in_containers, in_a_try, with_whole_numbers, summed,
    of_several, ordered, averaged, scaled_means, percent_of_one,
]  # fmt: skip
PROGRAMS = [*ONE_GRAPH, used_by_a_tensor, compared, as_a_key, escaped, without_a_key, divided]


def outcomes(program: Program, compile_: Callable[[Any], Any]) -> tuple[Any, list[str]]:
    called, found = compile_(program), []
    kept = SimpleNamespace(history=[], loss=0.0, total=0.0, count=0, best=None)
    for k in range(6):
        x = torch.randint(-9, 9, (4, 4), generator=torch.Generator().manual_seed(k)).float()
        if k == 4:
            x[1, 1] = math.inf
        if k == 5:
            x[1, 1] = math.nan
        with np.errstate(all="ignore"):
            found.append(repr((called(x, kept), kept)))
    return called, found


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_as_python(program: Program) -> None:
    _, expected = outcomes(program, lambda f: f)
    _, got = outcomes(program, quickfuse.compile)
    assert got == expected


@pytest.mark.parametrize("program", ONE_GRAPH, ids=lambda program: program.__name__)
def test_no_break(program: Program) -> None:
    compiled, _ = outcomes(program, quickfuse.compile)
    assert not compiled.breaks


def mean_of_both(x: T, kept: Any) -> Any:
    loss = x.sum().item()
    kept.append(loss)
    try:
        kept.append(np.mean([loss, -loss]))
    except (FloatingPointError, RuntimeWarning) as error:
        kept.append(str(error))
    return x * 2


def fmean_of_both(x: T, kept: Any) -> Any:
    loss = x.sum().item()
    kept.append(loss)
    try:
        kept.append(statistics.fmean([loss, -loss]))
    except ValueError as error:
        kept.append(str(error))
    return x * 2


@pytest.mark.parametrize("program", [mean_of_both, fmean_of_both], ids=lambda program: program.__name__)
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("raises", ["numpy", "filter"])
def test_handlers_see_what_numpy_raises(program: Program, first: bool, raises: str) -> None:
    compiled = quickfuse.compile(program)
    for strict in [first, not first, first]:
        expected: list[Any] = []
        got: list[Any] = []
        with np.errstate(all="raise" if strict and raises == "numpy" else "warn"), warnings.catch_warnings():
            warnings.simplefilter("error" if strict and raises == "filter" else "ignore", RuntimeWarning)
            program(torch.full((2,), math.inf), expected)
            compiled(torch.full((2,), math.inf), got)
        assert repr(got) == repr(expected)


def class_of_greatest(x: T, kept: Any) -> Any:
    loss = x.sum().item()
    return type(max(round(loss, 1), max(loss, 1))), x * 2


def test_a_number_that_may_be_whole() -> None:
    compiled = quickfuse.compile(class_of_greatest)
    for k in (-1.0, 4.0, -1.0):
        assert compiled(torch.tensor([k]), None)[0] is class_of_greatest(torch.tensor([k]), None)[0]
