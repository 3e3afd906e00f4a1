"""Texts with numbers in them that only the running graph tells, or that keep changing: formed after the graph, if at all."""

from __future__ import annotations

import contextlib
import enum
import io
import logging
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

import quickfuse

SILENT = logging.getLogger("quickfuse.tests.silent")
SILENT.setLevel(logging.CRITICAL)
CALLS = 8


def printed(i: int, x: Any) -> Any:
    y = x * 2
    print(f"step {i}: {y.sum().item():.3f} {x.sum().item()!r:>12}", "and", y.max().item(), sep="|", end="!\n")
    return y + 1


def printed_as_a_bar(i: int, x: Any) -> Any:
    total = 0.0
    for k in range(3):
        total += (x * k).sum().item()
        print(f"\r{k}/3 of {i} {total:.2f}", end="", file=sys.stdout)
    print()
    print(file=sys.stdout)
    return x + 1


def printed_between(i: int, x: Any) -> Any:
    for k in range(3):
        x = x + k
        print(f"{k} {x.sum().item()}")
    print("%d of %s, %.2f" % (x.long().sum().item(), "all", x.mean().item()), flush=True)  # noqa: UP031
    return x


class Named:
    size = 3

    def __repr__(self) -> str:
        return f"Named({self.size})"


NAMED = Named()


def constants(i: int, x: Any) -> Any:
    print("shape", x.shape, x.dtype, [1, 2.5, None], {"a": (3, True)}, NAMED, sep=" | ", flush=True)
    x = x * 2
    print(f"sum {x.sum().item()}", NAMED, torch.float32, Named.__name__)
    return x + 1


def silent(i: int, x: Any) -> Any:
    SILENT.info(f"sum {x.sum().item()} in step {i}")
    SILENT.debug("sum %s", x.sum().item())
    return x * 2


def returned(i: int, x: Any) -> Any:
    number, whole = x.sum().item(), x.long().max().item()
    text = "%.3f and %s" % (number, "z")  # noqa: UP031
    text += "!"
    other = [f"{number:6.2f}|{3}|{whole}", "n" + f"{number:.1f}" + "m", str(whole), f"{whole:>5}", f"{number:e}"]
    return x + 1, text, other, {"a": f"{f'{whole}':>8}"}, isinstance(text, str), f"{(x > 3).any().item()}", text is None


def kept(i: int, x: Any) -> Any:
    KEPT.append(f"{x.sum().item():.1f}")
    return x * 2


KEPT: list[str] = []


def of_tensors(i: int, x: Any) -> Any:
    total, most = x.sum(), x.max()
    print(f"total {total:.3f}", "most {:>8.2f}, {}".format(most, total), "%.2f" % total, "%6.1f|%g" % (most, x[:1]))  # noqa: UP031, UP032
    text = f"{total} {most.long():d} {total.item().__format__('.1f')} {format(most, '.4e')}"
    total += 1
    return total + x, text, f"{total:.1f}"


def of_trained_tensors(i: int, x: Any) -> Any:
    w = (x * 1).requires_grad_()
    loss = (w * w).sum()
    loss.backward()
    print(f"loss {loss:.2f}, gradient {w.grad.norm():.2f}")
    return loss.detach(), f"{loss:.3f}"


# what ends a graph is right all the same


def looked_at(i: int, x: Any) -> Any:
    text = f"{x.sum().item():.1f}"
    return (x * 2 if text.startswith("1") else x * 3), len(text), text + "?", text in {"12.0"}


def refused(i: int, x: Any) -> Any:
    try:
        return x, f"{x.sum().item():d}"
    except ValueError as error:
        return x, str(error)


def tensors_refused(i: int, x: Any) -> Any:
    texts = []
    for form in ("{:.1f}".format, "{:d}".format, "%.1f".__mod__, "%d".__mod__, lambda t: f"{t:.1f}", lambda t: "%s" % t):  # noqa: UP031
        for tensor in (x, x[:1], x[0], x.long()[0], x[0] / 0):
            try:
                texts.append(form(tensor))
            except (TypeError, ValueError, OverflowError) as error:
                texts.append(str(error))
    return x, texts


def refused_later(i: int, x: Any) -> Any:
    try:
        return x, "%d" % (x / 0).sum().item()  # noqa: UP031
    except (ValueError, OverflowError) as error:
        return x, str(error)


def before_an_exception(i: int, x: Any) -> Any:
    print(f"sum {x.sum().item()}")
    if i == 5:
        raise ValueError("five")
    return x + 1


def run(function: Callable[..., Any], i: int, x: Any) -> Any:
    KEPT.clear()
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            result = function(i, x)
        except ValueError as error:
            result = (x, str(error))
    first, *others = result if isinstance(result, tuple) else (result,)
    return first, others, out.getvalue(), [*KEPT]


def with_counters(i: int, x: Any) -> Any:
    """Numbers that the call is given stay numbers where the text waits for the graph anyway."""
    rate, last, total = 0.5 / (i + 1), i % 2 == 1, x.sum().item()
    print("step", i, f"of {CALLS}", rate, last, f"{i + 1:03d}/{CALLS} {rate:.2e} {last} {total:.1f}")
    print("%d/%d: %s %.3f" % (i, CALLS, last, total), "{0} {1:>5} {0}".format(i, total))  # noqa: UP031, UP032
    return x * 2, f"{i}: {total}"


LAYERS = {f"layer{k}": k + 1.0 for k in range(CALLS)} | {f"{k}": k + 0.5 for k in range(CALLS)}


def with_names(i: int, x: Any) -> Any:
    """What looks at a text in the middle of another one gets it at once."""
    total = x.sum().item()
    name = f"layer{i % 2}"
    text = f"{i % 2} {LAYERS[name]} {LAYERS[f'{i % 2}']} {total:{i % 2 + 4}.1f}"
    text += f"{i % 2} {'even' if i % 2 == 0 else f'{i % 2} odd'} {total}"
    return x * LAYERS[name], text, f"{i % 2}" in LAYERS, f"{f'{i % 2}':>4}|{total}", f"{i % 2}{i % 2}"


def joined(i: int, x: Any) -> Any:
    losses = {"first": x.sum(), "second": x.max() / 10}
    text = " ".join(f"{name}: {loss.item():.3f}" for name, loss in losses.items())
    print(f"step {i}", text, f"{i}", f"{losses['second']:.2%}", "".join([text]), ", ".join(["a", f"{x.min().item():.1%}"]))
    print(f"step {i}/{CALLS}", end="; ")
    print(max(f"{i}", "0"), len(f"{i}"), "-" * (1 + len(f"{i}{i}")))  # what looks at a text gets it at once
    return x * 2, text


class Meter:
    """What programs keep their averages in."""

    def __init__(self, value: float, count: int) -> None:
        self.value, self.count = value, count

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.count})"


def of_objects(i: int, x: Any) -> Any:
    meter = Meter(x.sum().item(), i)
    print(f"[{i}] {meter}", meter)
    return x * 2, f"{meter!s:>20}|", str(meter) + "."


IN_ONE_GRAPH = [
    of_objects, with_counters, printed_as_a_bar, printed_between, returned, kept, constants, of_tensors, of_trained_tensors,
]  # fmt: skip
PROGRAMS = [
    *IN_ONE_GRAPH, joined, with_names, printed, silent, looked_at, refused, tensors_refused, refused_later,
    before_an_exception,
]  # fmt: skip


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda f: f.__name__)
def test_texts(function: Callable[..., Any]) -> None:
    compiled = quickfuse.compile(function)
    for i in range(CALLS):
        x = torch.arange(6.0) + i  # whose sums are exact
        expected, found = run(function, i, x), run(compiled, i, x)
        assert torch.equal(expected[0], found[0])
        assert expected[1:] == found[1:]
    if function in IN_ONE_GRAPH:
        assert (compiled.graph_count, compiled.breaks) == (1, [])


def counted(i: int, x: Any) -> Any:
    print(f"step {i}/{CALLS}", f"{i}", sep="; ")
    print(", ".join(["a", f"{x.min().item():.1%}", "b"]), f"{x.max():.2%}")
    return x * 2


def test_counter_that_is_only_printed() -> None:
    compiled = quickfuse.compile(counted, fullgraph=True)
    for i in range(5):
        assert run(compiled, i, torch.arange(6.0))[2] == run(counted, i, torch.arange(6.0))[2]
    assert compiled.graph_count == 1


@pytest.mark.parametrize("function", [printed, silent], ids=lambda f: f.__name__)
def test_step_counter(function: Callable[..., Any]) -> None:
    """A whole number in a text that nobody sees is held by a guard a few times; then it is known to change."""
    compiled = quickfuse.compile(function)
    for i in range(20):
        run(compiled, i, torch.arange(6.0))
    assert compiled.breaks == [] and compiled.graph_count <= 5


def test_fullgraph() -> None:
    compiled = quickfuse.compile(printed_between, fullgraph=True)
    assert run(compiled, 0, torch.arange(6.0))[2] == run(printed_between, 0, torch.arange(6.0))[2]


class Text(str):
    def __str__(self) -> str:
        return "another"


class Number(float):
    def __repr__(self) -> str:
        return "a number"


class Pair(NamedTuple):
    a: int

    def __repr__(self) -> str:
        return f"pair {self.a}"


class Formats:
    def __format__(self, spec: str) -> str:
        return f"<{spec}>"


class Kind(enum.IntEnum):
    A = 1


@pytest.mark.parametrize(
    "value", [NAMED, Meter(1.0, 2), Text("abc"), Number(2.5), Pair(1), Formats(), Kind.A], ids=lambda v: type(v).__name__
)
def test_specifications(value: Any) -> None:
    """What `object` refuses to format, and what builtin classes format whatever their subclasses say."""

    def f(x: Any) -> Any:
        texts = []
        for spec in ("", ">10", ".1f", "d"):
            for form in (format, lambda v, s: f"{v:{s}}", lambda v, s: f"{v!s:{s}}", lambda v, s: f"{v!r:{s}}"):
                try:
                    texts.append(form(value, spec))
                except (TypeError, ValueError) as error:
                    texts.append(f"{type(error).__name__}: {error}")
        return x * 2, texts

    assert quickfuse.compile(f)(torch.ones(2))[1] == f(torch.ones(2))[1]


def test_specifications_that_keep_changing() -> None:
    """After a break, a format that is made of texts that are others each time."""
    noted: list[str] = []

    def f(x: torch.Tensor) -> list[str]:
        for width, digits in (("8", "1"), ("9", "2"), ("10", "3"), ("11", "4"), ("x", "1"), ("12", "2")):
            x = x + 1
            noted.append(x.sum().item().hex())
            print(end="")
            for value in (2.5, Number(1.5), "text"):
                try:
                    noted.append(f"{value:{width}.{digits}f}")
                    noted.append(f"{value!s:{width}}")
                except ValueError as error:
                    noted.append(str(error))
        return noted

    wanted = [*f(torch.ones(2))]
    del noted[:]
    assert quickfuse.compile(f)(torch.ones(2)) == wanted


def test_another_file() -> None:
    class Kept(list[str]):
        write, flush = list.append, lambda self: None

    def step(x: Any, file: Any) -> Any:
        print(f"sum {x.sum().item()}", "and", 3, file=file)
        return x * 2

    compiled = quickfuse.compile(step)
    files: list[Any] = [io.StringIO(), io.StringIO(), Kept(), io.StringIO()]
    for file in files:
        compiled(torch.ones(2), file)
    assert ["".join(f) if type(f) is Kept else f.getvalue() for f in files] == ["sum 2.0 and 3\n"] * 4
    assert len(compiled.breaks) == 1
    files[3].close()
    with pytest.raises(ValueError, match="closed file"):
        compiled(torch.ones(2), files[3])
