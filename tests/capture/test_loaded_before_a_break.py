"""What is on the stack at a break needs no guard, unless it is looked at before: loads of one variable are told apart."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

import pytest
import torch

import quickfuse

T = torch.Tensor


def decided(x: T) -> bool:
    if x.sum() > 0:  # a break, where the result alone would be none
        return True
    return x.numel() == 0


def same(value: Any) -> Any:
    return value


def both(*values: Any) -> tuple[Any, ...]:
    return values


def its_class(x: T, item: Any) -> Any:
    y = x + 1 if isinstance(item, tuple) else x + 2
    return both(item, decided(x)), y


def its_class_by_another_name(x: T, item: Any) -> Any:
    other = item
    y = x + 1 if isinstance(item, tuple) else x + 2
    return both(other, decided(x)), y


def its_class_and_what_a_function_gives(x: T, item: Any) -> Any:
    y = x + 1 if type(item) is tuple else x + 2
    return both(same(item), decided(x)), y


def in_a_pattern(x: T, item: Any) -> Any:
    match item:
        case tuple() if decided(x):
            return x + 1
        case str() if decided(x):
            return x + 2
        case (1, _):
            return x + 3
    return x + 4


def while_named(x: T, item: Any) -> Any:
    return both((other := item), decided(x)), isinstance(other, tuple), x + len(item)


def in_a_text(x: T, item: Any) -> Any:
    return f"{item}{decided(x)}", x + 1


def or_another(x: T, item: Any) -> Any:
    return both(item or "none", decided(x)), x + 1


def compared(x: T, item: Any) -> Any:
    y = x + 1 if both(item) < both((2, 0)) else x + 2
    return both(item, decided(x)), y


def in_a_chain(x: T, item: Any) -> Any:
    return (0, 0) <= item < (decided(x), 2), x + 1


def a_heap(x: T, item: Any) -> Any:
    kept = [(1.5, 1), (2.0, 2)]
    if kept[0] < item:
        x = x + 1
    return heapq.heapreplace(kept, item if decided(x) else (0.0, 1)), kept, x + 1


def only_handed_on(x: T, item: Any) -> Any:
    return both(item, decided(x)), x + 1


TUPLES = [(2, 1), (1, 2), (0, 0), (3, 1), (0, 5), (1, 1), (7, 7)]
TEXTS = ["ab", "", "b", "c", "d", "e", "f"]
PROGRAMS = [
    its_class, its_class_by_another_name, its_class_and_what_a_function_gives, in_a_pattern, while_named, in_a_text,
    or_another, only_handed_on,
]  # fmt: skip


@pytest.mark.parametrize(
    ("program", "items"),
    [
        *((program, items) for program in PROGRAMS for items in (TUPLES, TEXTS, [*TUPLES[:3], *TEXTS[:3]])),
        *((program, TUPLES) for program in (compared, in_a_chain, a_heap)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_as_in_eager(program: Callable[[T, Any], Any], items: list[Any]) -> None:
    compiled = quickfuse.compile(program, options={"raise_internal_errors": True})
    for k, item in enumerate(items * 2):
        x = torch.full((2,), 1.0 if k % 3 else -1.0)
        assert repr(compiled(x, item)) == repr(program(x, item))
    assert not any("Unread" in known.reason for known in compiled.breaks)


def test_what_is_only_handed_on_has_no_guard() -> None:
    compiled = quickfuse.compile(only_handed_on)
    for item in ("a", "z"):
        compiled(torch.ones(2), item)
    graphs = compiled.graph_count
    for item in TEXTS:
        compiled(torch.ones(2), item)
    assert compiled.graph_count == graphs
