"""What lets go of an object of the user's: its end comes at its time, and weak references tell of it."""

from __future__ import annotations

import collections
import threading
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import quickfuse

SEEN: list[Any] = []


class Telling:
    """An object that tells of its end."""

    def __del__(self) -> None:
        SEEN.append("end")


class Plain:
    pass


def dictionary(d):
    d["a"] = None


def popped(d):
    d.pop("a")


def cleared(d):
    d.clear()


def merged(d):
    d.update(a=2)


def element(l):
    l[0] = 1


def elements(l):
    l[:] = []


def removed(l):
    del l[0]


def of_a_queue(q):
    q.append(3)


def attribute(o):
    o.a = 1


def deleted(o):
    del o.a


def by_dictionary(o):
    o.__dict__["a"] = 2


def variable(put):
    put(2)


def closure() -> Any:
    value: Any = Telling()

    def put(new):
        nonlocal value
        value = new

    return put


GIVEN: dict[Any, Any] = {
    **dict.fromkeys([dictionary, popped, cleared, merged], lambda: {"a": Telling()}),
    **dict.fromkeys([element, elements, removed], lambda: [Telling(), 2]),
    of_a_queue: lambda: collections.deque([Telling(), 2], maxlen=2),
    **dict.fromkeys([attribute, deleted, by_dictionary], lambda: SimpleNamespace(a=Telling())),
    variable: closure,
}


@pytest.mark.parametrize("change", GIVEN, ids=lambda change: change.__name__)
def test_the_end_comes_at_its_time(change: Any) -> None:
    def function(x, given):
        change(given)
        SEEN.append("after")
        return x * 2

    compiled = quickfuse.compile(function)
    for _ in range(3):
        for called in (function, compiled):
            SEEN.clear()
            given = GIVEN[change]()
            called(torch.ones(2), given)
            assert SEEN == ["end", "after"]


def referred(d, l, o):
    reference = weakref.ref(d["a"])
    d["a"] = None
    return reference() is None


def taken_out(d, l, o):
    reference = weakref.ref(l[0])
    l.pop(0)
    return reference() is None


def replaced(d, l, o):
    o.a = 3
    return o.reference() is None


def kept(d, l, o):
    held = o.a
    o.a = 3
    before = o.reference() is held
    del held
    return before, o.reference() is None


def in_a_weak_dictionary(d, l, o):
    o.a = 3
    return len(o.values), o.values.get("k") is None


def nothing_let_go(d, l, o):
    o.b = 4
    l.append(2)
    return o.reference() is o.a, len(o.values)


@pytest.mark.parametrize("ask", [referred, taken_out, replaced, kept, in_a_weak_dictionary, nothing_let_go])
def test_weak_references(ask: Any) -> None:
    def function(x, *given):
        return x * 2, ask(*given)

    compiled = quickfuse.compile(function)
    for _ in range(3):
        found = []
        for called in (function, compiled):
            o = Plain()
            o.a, o.b = Plain(), 1
            o.reference, o.values = weakref.ref(o.a), weakref.WeakValueDictionary(k=o.a)
            found.append(called(torch.ones(2), {"a": Plain()}, [Plain()], o)[1])
        assert found[1] == found[0]
    assert ask is not nothing_let_go or not compiled.breaks


def both_ways(o):
    o.__dict__["b"] = 1
    o.a = 2
    o.__dict__["c"] = 3


def attribute_first(o):
    o.a = 2
    o.__dict__["b"] = 1
    o.c = 3


def deleted_and_set(o):
    o.__dict__["b"] = 1
    o.a = 2
    del o.b
    o.b = 3
    o.__dict__.update(q=1, a=5)
    o.r = 1


@pytest.mark.parametrize("cls", [Plain, threading.local])
@pytest.mark.parametrize("change", [both_ways, attribute_first, deleted_and_set])
def test_the_order_of_attributes_that_are_set_in_two_ways(change: Any, cls: Any) -> None:
    def function(x, o):
        change(o)
        return x * 2

    compiled = quickfuse.compile(function)
    for _ in range(2):
        found = []
        for called in (function, compiled):
            o = cls()
            called(torch.ones(2), o)
            found.append([*vars(o).items()])
        assert found[1] == found[0]


class Computing:
    __slots__ = ("slot",)

    @property
    def computed(self):
        raise AttributeError("none")

    def __getattr__(self, name):
        raise AttributeError(name)


@pytest.mark.parametrize("name", ["slot", "computed", "other"])
def test_exceptions_know_what_was_asked(name: str) -> None:
    space: dict[str, Any] = {}
    exec(f"""
def function(x, o):
    try:
        o.{name}
    except AttributeError as error:
        return x * 2, error.name, error.obj is o
""", space)
    compiled = quickfuse.compile(space["function"])
    for _ in range(2):
        o = Computing()
        assert compiled(torch.ones(2), o)[1:] == space["function"](torch.ones(2), o)[1:]


def test_results_that_others_are_computed_from() -> None:
    """Compiled code refers to them weakly, which nobody sees: letting go of them is no break."""
    weight = torch.randn(2, 2, requires_grad=True)

    def steps(x):
        for _ in range(3):
            first = (x @ weight).tanh()
            second = first @ weight
            if (second - first).abs().max().item() < 9:
                x = x + first * second
        return x

    compiled = quickfuse.compile(steps, backend="quickfuse")
    for _ in range(3):
        x = torch.randn(3, 2)
        torch.testing.assert_close(compiled(x), steps(x))
    assert not [pause.reason for pause in compiled.breaks if "letting go" in pause.reason]
