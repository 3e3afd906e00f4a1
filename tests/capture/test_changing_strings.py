"""Strings that are others in each call, such as the characters that a model generates: handing them on compiles nothing
again, and what looks at them is eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

import quickfuse
from whole_programs import difference

WORDS = ["".join(["w", str(k), "x" * (k % 3)]) for k in range(14)]  # new objects, no literals
BY_NUMBER = dict(enumerate(WORDS))


class Entry(NamedTuple):
    name: str
    value: Any


class Log:
    def __init__(self) -> None:
        self.last = ""
        self.seen: list[Any] = []


def appended(x, name, log):
    log.seen.append(name)
    return x * 2


def in_new_containers(x, name, log):
    return {"name": name, "both": (name, [name]), "y": x * 2, "entry": Entry(name, x + 1)}


def kept_as_attribute(x, name, log):
    log.last = name
    return x.sin()


def through_calls(x, name, log):
    def inner(value, *, label=None, **others):
        return value * 2, label, others

    return inner(x, label=name, other=name)


def looked_up_by_number(x, name, log):
    i = int(x.abs().argmax())
    log.seen.append(BY_NUMBER[i])
    return x * 2


def generated(x, name, log):
    words = []
    for _ in range(5):
        x = torch.roll(x, 1) * 1.01
        words.append(BY_NUMBER[x.argmax().item()])
    return x, words


HANDED_ON = [appended, in_new_containers, kept_as_attribute, through_calls, looked_up_by_number, generated]


def compared(x, name, log):
    return x * 2 if name == "w3" else x + 1


def identical(x, name, log):
    log.seen.append(name)
    y = x * 2
    return y, log.seen[0] is name, log.seen[-1] is name, name is not None, log.last is name


def as_key(x, name, log):
    table = {"w1": 1.0, "w4xx": 2.0}
    table[name] = 3.0
    return x * table.get("w1"), table


def in_a_list(x, name, log):
    return x + 1, name in ["w0", "w3"], [name, "w5"].index("w5")


def text_of(x, name, log):
    return x * 2, f"{name:>6}", name.upper(), len(name), name + "!", name[0], [*name], bool(name)


def partly_made_text(x, name, log):
    y = x * 2
    log.seen.append(f"{name}: {y.sum().item():.3f} of {x.sum().item():.3f}")
    return y, f"{name}{str(y[0].item())[:4]}", " ".join(["{}", name]).format(name)


@quickfuse.disable
def outside(k):
    return str(float(k))


def from_a_break(x, name, log):
    parts = [f"{name}-{outside(k)}" for k in range(2)]
    return x + 1, "/".join(parts), parts


def joined(x, name, log):
    log.seen.append(name)
    return x * 2, ",".join(log.seen), sorted([name, "w5"]), {name, "w5"} == {name}


def of_a_class(x, name, log):
    return x * 2, isinstance(name, str), type(name) is str, callable(name), hash(name) == hash(name)


LOOKED_AT = [compared, identical, as_key, in_a_list, text_of, partly_made_text, from_a_break, joined, of_a_class]


def turns(run: Callable[..., Any], count: int, words: list[Any] = WORDS) -> list[Any]:
    torch.manual_seed(0)
    log, out = Log(), []
    for k in range(count):
        out.append((run(torch.randn(14), words[k % 14], log), list(log.seen), log.last))
    return out


@pytest.mark.parametrize("function", [*HANDED_ON, *LOOKED_AT])
def test_same_as_eager(function):
    compiled = quickfuse.compile(function, options={"raise_internal_errors": True})
    assert difference(turns(function, 20), turns(compiled, 20)) is None


def of_bytes(x, name, log):
    return x * 2, isinstance(name, bytes), type(name) is bytes, name is log, len(name), name[:1], name == b"w0", [name]


@pytest.mark.parametrize("function", [appended, in_new_containers, kept_as_attribute, through_calls, identical, of_bytes])
def test_bytes(function):
    """Checkpoints and messages: what `pickle.dumps` and the like give."""
    words = [word.encode() for word in WORDS]
    compiled = quickfuse.compile(function, options={"raise_internal_errors": True})
    assert difference(turns(function, 20, words), turns(compiled, 20, words)) is None
    if function in HANDED_ON:
        assert compiled.graph_count <= 5


@pytest.mark.parametrize("function", HANDED_ON)
def test_settles(function):
    quickfuse.config.measure_short_calls, before = False, quickfuse.config.measure_short_calls
    try:
        compiled = quickfuse.compile(function)
        turns(compiled, 10)
        points = [compiled.entry, *compiled.points.values()]
        made = [len(point.specialisations) for point in points]
        turns(compiled, 20)
        assert [len(point.specialisations) for point in points] == made
        assert max(made) <= 3
    finally:
        quickfuse.config.measure_short_calls = before


def test_texts_in_a_list_behind_a_break(monkeypatch):
    """The names of the samples of a batch, of which each call has others."""
    monkeypatch.setattr(quickfuse.config, "measure_short_calls", False)

    def step(x, names, seen):
        quickfuse.graph_break()
        for name, row in zip(names, x, strict=True):
            seen.append((name, row.sum().item()))
        return x * 2, names[0], "/".join(names)

    results = []
    for run in (step, compiled := quickfuse.compile(step)):
        seen: list[Any] = []
        results.append([run(torch.ones(9, 2) * k, [f"{k} {n}" for n in range(9)], seen) for k in range(6)] + seen)
    assert difference(*results) is None
    assert compiled.graph_count <= 3


def test_guards_name_the_line_behind_a_break():
    @torch.no_grad()
    def decode(x):
        quickfuse.graph_break()
        return x * len(BY_NUMBER[x.argmax().item()])

    compiled = quickfuse.compile(decode)
    for k in range(3):
        compiled(torch.eye(14)[k])
    guards = [g for point in compiled.points.values() for s in point.specialisations for g in s.segment.guards]
    assert all("_contextlib" not in guard.location for guard in guards if guard.kind == "equal")


def test_ranges_settle_too(monkeypatch):
    monkeypatch.setattr(quickfuse.config, "measure_short_calls", False)

    @quickfuse.disable
    def chosen(k):
        return range(k % 5 + 2)

    def looked_into(x, k):
        r = chosen(k)
        y = x * 2
        return y, r, len(r), r[0], r.stop, 3 in r, [*r], r == range(4), bool(r), r is r, sum(r), r[1:], str(r)

    def gone_through(x, k):
        for i in chosen(k):
            x = x + i
        return x

    for function in (looked_into, gone_through):
        compiled = quickfuse.compile(function, options={"raise_internal_errors": True})
        made = []
        for _ in range(2):
            for k in range(12):
                assert difference(function(torch.ones(2), k), compiled(torch.ones(2), k)) is None
            made.append(sum(len(point.specialisations) for point in (compiled.entry, *compiled.points.values())))
        assert made[0] == made[1]
