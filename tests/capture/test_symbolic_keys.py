"""Numbers from outside as keys, as elements looked for, and in functions of the standard library: no recompilation for a
new value, one specialisation for each way that the program goes."""

from __future__ import annotations

import bisect
import collections
import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import quickfuse
from optim.step_twins import difference

X = torch.arange(1.0, 4.0)


def check(function: Callable[..., Any], calls: list[tuple[Any, ...]], most: int, **settings: Any) -> Any:
    """Results are eager's in every call, with at most `most` graphs."""
    compiled = quickfuse.compile(function, **{"fullgraph": True, "backend": "eager", **settings})
    for args in calls:
        eager = copy.deepcopy(args)
        try:
            expected = function(*eager)
        except Exception as error:
            with pytest.raises(type(error), match=None):
                compiled(*args)
            continue
        assert not (found := difference((compiled(*args), args), (expected, eager))), found
    assert compiled.graph_count <= most, compiled.graph_count
    return compiled


CONTAINERS: dict[str, Callable[[int, Any], bool]] = {
    "a tuple": lambda k, c: k in (1, 5, 7.0),
    "a list": lambda k, c: k in [1, 5, 7],
    "a set": lambda k, c: k in {1, 5, 7},
    "a range": lambda k, c: k in range(1, 9, 3),
    "a list made here": lambda k, c: k in [n * 2 for n in range(4)],
    "none of these": lambda k, c: k not in (1, 5, 7),
    "the user's": lambda k, c: k in c,
}


@pytest.mark.parametrize("container", CONTAINERS)
def test_membership(container: str) -> None:
    def f(x: torch.Tensor, k: int, c: Any) -> torch.Tensor:
        return x * 2 if CONTAINERS[container](k, c) else x + 1

    check(f, [(X, k, [1, 5, 7]) for k in range(10)], most=2)


@pytest.mark.parametrize("made", [list, set, tuple, collections.Counter, dict.fromkeys, collections.deque])
def test_membership_in_what_the_user_has(made: Callable[[list[int]], Any]) -> None:
    def f(x: torch.Tensor, k: int, c: Any) -> torch.Tensor:
        return x * 2 if k in c else x + 1

    calls = [(X, k, made([1, 5, 7])) for k in range(10)] + [(X, k, made([2, 5, 9])) for k in range(10)]
    most = {list: 2, collections.Counter: 2, dict.fromkeys: 2}.get(made, 40)
    check(f, calls, most=most, fullgraph=False)


def test_membership_after_a_change() -> None:
    def f(x: torch.Tensor, k: int, c: list[int], d: dict[int, int]) -> torch.Tensor:
        c.append(4)
        d[k + 1] = 3
        return x * 2 if k in c and 3 in d else x + 1

    check(f, [(X, k, [1, 2], {1: 1, 9: 2}) for k in (4, 2, 3, 9)], most=9, fullgraph=False)


@pytest.mark.parametrize("kind", ["list", "dictionary", "counter"])
def test_lookup(kind: str) -> None:
    table: Any = {"list": [0.5, 1.5, 2.5], "dictionary": {0: 0.5, 1: 1.5, 2: 2.5}, "counter": collections.Counter([0, 1, 1])}

    def f(x: torch.Tensor, k: int, rates: Any) -> torch.Tensor:
        return x * rates[k % 3] + k

    check(f, [(X, k, table[kind]) for k in range(7)], most=1)


def test_lookup_that_fails_or_finds_something_else() -> None:
    def f(x: torch.Tensor, k: int, rates: Any) -> Any:
        found = rates[k]
        return x * 2 if found is None else x * found

    for table in ([0.5, 2, None, True], {0: 0.5, 1: 2, 2: None, 3: True}):
        check(f, [(X, k, table) for k in (0, 1, 2, 3, 0, -1, 7, 1)], most=8, fullgraph=False)


def test_lookup_after_a_change() -> None:
    def f(x: torch.Tensor, k: int, rates: Any) -> torch.Tensor:
        rates[k] = 7.0
        return x * rates[k] + rates[0]

    check(f, [(X, k, [1.0, 2.0, 3.0]) for k in (0, 1, 2, 1)], most=3, fullgraph=False)
    check(f, [(X, k, {0: 1.0, 1: 2.0, 2: 3.0}) for k in (0, 1, 2, 1)], most=3, fullgraph=False)


def test_default_dictionary_gets_its_entry() -> None:
    def f(x: torch.Tensor, k: int, counts: Any) -> torch.Tensor:
        return x * counts[k]

    check(f, [(X, k, collections.defaultdict(int, {1: 2})) for k in (1, 2, 1)], most=3, fullgraph=False)


@pytest.mark.parametrize("function", [bisect.bisect_left, bisect.bisect_right, bisect.bisect])
def test_bisect(function: Callable[..., int]) -> None:
    def f(x: torch.Tensor, k: float, milestones: list[float]) -> torch.Tensor:
        return x * (1 + function(milestones, k))

    check(f, [(X, k / 2, [1.0, 2.5, 4.0]) for k in range(12)], most=4)
    check(lambda x, k, m: x * function(m, k, 1, 3, key=lambda v: -v), [(X, k, [9, -1, -2, -3]) for k in range(5)], most=3)


NAMES = "acos asin atan ceil cos cosh degrees erf exp expm1 fabs floor lgamma log log10 log1p log2 sin sqrt tan trunc"


@pytest.mark.parametrize("backend", ["eager", "quickfuse"])
@pytest.mark.parametrize("name", NAMES.split())
def test_math(name: str, backend: str) -> None:
    function = getattr(math, name)

    def f(x: torch.Tensor, k: float) -> Any:
        y = function(k)
        return x * y, y

    check(f, [(X, k) for k in (0.5, 0.25, 0.75, 1.0)], most=1, backend=backend)


def test_math_of_two_numbers() -> None:
    def f(x: torch.Tensor, k: float, n: int) -> Any:
        return x * math.pow(k, n), math.atan2(k, n), math.log(k + 1, 2), round(k, 1), round(k), math.copysign(n, -k)

    check(f, [(X, k, n) for k in (0.26, 1.5, 2.5) for n in (1, 2)], most=1)


def test_math_that_raises() -> None:
    def f(x: torch.Tensor, k: float) -> Any:
        try:
            return x * math.sqrt(k)
        except ValueError as error:
            return x + 1, str(error)

    check(f, [(X, k) for k in (4.0, -1.0, 9.0, -4.0)], most=4, fullgraph=False)
    check(lambda x, k: x * math.log(k), [(X, k) for k in (4.0, 0.0, 9.0)], most=4, fullgraph=False)


def test_a_user_function_by_an_arguments_name() -> None:
    """Generated code calls `math`: an argument of that name must not come in between."""
    check(lambda x, math: x * math + torch.tensor(2.0), [(X, 2.0), (X, 3.0)], most=1)

    def f(x: torch.Tensor, math: float) -> Any:
        return x * sine(math)

    sine = math.sin
    check(f, [(X, 2.0), (X, 3.0)], most=2, fullgraph=False)


def test_extremes_with_keys() -> None:
    def f(x: torch.Tensor, a: float, b: float) -> Any:
        return x * max([a, b, 2.0], key=lambda v: -v), min(a, b, key=abs)

    check(f, [(X, a, b) for a in (1.0, -3.0) for b in (2.0, 0.5)], most=4)
