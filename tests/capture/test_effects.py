"""What captured code does to the user's objects is what eager Python does to them."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

import quickfuse
from differential import check

T = torch.Tensor
X = torch.arange(4.0)
BACKENDS = pytest.mark.parametrize("backend", ["eager", "quickfuse"])


class Holder:
    def __init__(self) -> None:
        self.count = 0
        self.items: list[Any] = [1, 2]
        self.table: dict[str, Any] = {"a": 1}
        self.tensor = torch.ones(4)


@BACKENDS
def test_lists_and_dictionaries(backend: str) -> None:
    def f(x: T, items: list[Any], table: dict[str, Any]) -> T:
        items.append(x + 1)
        items[0] = "first"
        table["new"] = items
        table.pop("old", None)
        return x

    compiled = check(f, (X, [1], {"old": 2}), (X, [1], {"old": 2}), (X, [1], {}), backend=backend)
    assert compiled.graph_count == 2


@BACKENDS
def test_attributes_and_counters(backend: str) -> None:
    def f(h: Holder, x: T) -> T:
        h.count += 1
        h.items.extend([x, h.count])
        h.table["b"] = h.count * 2
        h.tensor = h.tensor + x
        return h.tensor

    compiled = quickfuse.compile(f, backend=backend)
    mine, theirs = Holder(), Holder()
    for _ in range(3):
        mine.items, theirs.items = [1, 2], [1, 2]
        assert torch.equal(compiled(mine, X), f(theirs, X))
        assert mine.count == theirs.count and mine.table == theirs.table
        assert [str(v) for v in mine.items] == [str(v) for v in theirs.items]
    assert compiled.graph_count == 2, "the second call finds the key b in the table; the counter does not recompile"


@BACKENDS
def test_tensors_changed_in_place(backend: str) -> None:
    def f(x: T, y: T) -> T:
        x.add_(1)
        y.mul_(x)
        x += y
        return x

    check(f, (X, X + 1), (X * 2, X), backend=backend)


@BACKENDS
def test_returned_input_is_the_same_object(backend: str) -> None:
    def f(x: T, items: list[Any]) -> tuple[T, list[Any]]:
        x.add_(1)
        return x, items

    x, items = X.clone(), [1]
    compiled = quickfuse.compile(f, backend=backend)
    for _ in range(2):
        a, b = compiled(x, items)
        assert a is x and b is items


@BACKENDS
def test_shared_list_stays_one(backend: str) -> None:
    def f(x: T) -> dict[str, list[T]]:
        shared = [x + 1]
        return {"a": shared, "b": shared}

    compiled = quickfuse.compile(f, backend=backend)
    for _ in range(2):
        found = compiled(X)
        assert found["a"] is found["b"]


COUNTER = 0


def test_globals() -> None:
    def f(x: T) -> T:
        global COUNTER
        COUNTER = COUNTER + 1
        return x + COUNTER

    compiled = quickfuse.compile(f)
    start = COUNTER
    for k in range(1, 4):
        assert torch.equal(compiled(X), X + start + k)
        assert start + k == COUNTER
    assert compiled.graph_count == 1


def test_compiled_code_keeps_no_tensor_alive() -> None:
    def f(h: Holder) -> T:
        return h.tensor * 2

    compiled = quickfuse.compile(f)
    holder = Holder()
    compiled(holder)
    compiled(holder)
    watched = [weakref.ref(holder), weakref.ref(holder.tensor)]
    del holder
    gc.collect()
    assert [w() for w in watched] == [None, None]


class Sums(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))


class KeepsSums(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sums: Any = None


def test_a_module_in_place_of_none() -> None:
    """`nn.Module` takes the old value out of `__dict__`, and the new one is found past it."""

    def f(module: Any, x: T) -> T:
        module.sums = Sums()
        made = module.sums.total.add_(x) * 2
        module.sums.total += made
        return made + module.sums.total

    compiled = quickfuse.compile(f, fullgraph=True, options={"raise_internal_errors": True})
    for k in range(3):
        modules = [KeepsSums(), KeepsSums()]
        torch.testing.assert_close(compiled(modules[0], X + k), f(modules[1], X + k))
        torch.testing.assert_close(modules[0].sums.total, modules[1].sums.total)
    assert compiled.graph_count == 1 and not compiled.breaks
