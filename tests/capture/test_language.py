"""Python as captured: each function gives what eager Python gives, in one graph."""

from __future__ import annotations

import collections
import contextlib
import functools
import math
from typing import Any

import pytest
import torch

from differential import check

T = torch.Tensor


class Point:
    def __init__(self, x: Any, y: Any) -> None:
        self.x = x
        self.y = y

    @property
    def total(self) -> Any:
        return self.x + self.y

    def scaled(self, factor: Any) -> Point:
        return Point(self.x * factor, self.y * factor)

    def __add__(self, other: Point) -> Point:
        return Point(self.x + other.x, self.y + other.y)

    def __call__(self, z: Any) -> Any:
        return self.x * z


class Scaled(Point):
    def scaled(self, factor: Any) -> Point:
        return super().scaled(2 * factor)


Pair = collections.namedtuple("Pair", "left right")


def loop_break_else(x: T, n: int) -> T:
    for k in range(10):
        if k == n:
            break
        x = x + k
    else:
        x = x * 100
    return x


def while_loop(x: T) -> T:
    k = 0
    while k < 3:
        x = x * 2
        k += 1
        if k == 2:
            continue
        x = x + 1
    return x


def comprehension(x: T) -> list[T]:
    return [x + k for k in range(5) if k % 2]


def nested_comprehension(x: T) -> dict[str, list[T]]:
    return {name: [x * k for k in range(2)] for name in ("a", "b")}


def generator_sum(x: T) -> T:
    return sum(x * k for k in range(4))


def generator_function(x: T) -> list[T]:
    def powers(n: int) -> Any:
        value = x
        for _ in range(n):
            yield value
            value = value * x

    return list(powers(3))


def yield_from(x: T) -> list[T]:
    def inner() -> Any:
        yield x
        yield x + 1

    def outer() -> Any:
        yield from inner()
        yield x + 2

    return [*outer()]


def closure_cell(x: T) -> T:
    total = 0

    def add(value: Any) -> None:
        nonlocal total
        total = total + value

    add(x)
    add(x * 2)
    return total


def star_arguments(x: T) -> T:
    def f(a: Any, *rest: Any, scale: Any = 1, **named: Any) -> Any:
        return (a + sum(rest)) * scale + named["bias"]

    return f(x, 1, 2, scale=3, bias=x)


def unpacking(x: T) -> tuple[Any, ...]:
    first, *middle, last = [x, x + 1, x + 2, x + 3]
    (a, b), c = (first, last), middle
    return a, b, c


def try_except(x: T) -> T:
    try:
        {}["missing"]
    except KeyError as error:
        return x + len(error.args)
    finally:
        x = x + 1
    return x


def raise_and_catch(x: T) -> T:
    def fail() -> None:
        raise ValueError("no")

    try:
        fail()
    except (TypeError, ValueError) as error:
        if str(error) == "no":
            x = x * 3
    else:
        x = x * 5
    return x


def finally_order(x: T) -> tuple[Any, ...]:
    log = []
    try:
        log.append(1)
        try:
            raise RuntimeError
        finally:
            log.append(2)
    except RuntimeError:
        log.append(3)
    return x + 1, log


@contextlib.contextmanager
def doubling(log: list[str]) -> Any:
    log.append("enter")
    yield 2
    log.append("exit")


def with_statement(x: T) -> tuple[T, list[str]]:
    log: list[str] = []
    with doubling(log) as factor:
        x = x * factor
    return x, log


def no_grad_block(x: T) -> tuple[T, bool]:
    with torch.no_grad():
        y = x * 2
        inside = torch.is_grad_enabled()
    return y, inside


def match_statement(x: T, command: Any) -> T:
    match command:
        case "double":
            return x * 2
        case _:
            return x


def dictionaries(x: T) -> dict[str, Any]:
    d = {"a": x}
    d["b"] = x + 1
    d.update(c=x + 2)
    del d["a"]
    d.setdefault("e", x)
    return {k: v for k, v in d.items() if k != "c"}


def objects(x: T) -> Any:
    p = Point(x, x + 1)
    q = Scaled(x, x)
    return (p + q.scaled(3)).total + p(2)


def returned_object(x: T) -> Point:
    return Point(x + 1, [x, x])


def functools_use(x: T) -> T:
    add = functools.partial(torch.add, alpha=2)
    return functools.reduce(lambda a, b: add(a, b), [x, x + 1, x + 2])


def named_tuple(x: T) -> Pair:
    p = Pair(x, right=x + 1) if False else Pair._make([x, x + 1])
    return Pair(*[p.right, p.left]) if False else p


def strings(x: T) -> tuple[T, str]:
    name = f"{'ab'.upper()}-{3:03d}"
    return x + len(name), "/".join([name, "z"])


def mathematics(x: T, s: float) -> T:
    return x * math.sqrt(4.0) + max(s, 1.0) - abs(-s)


def lambdas_and_sorted(x: T) -> list[Any]:
    return [x + k for k in sorted([3, 1, 2], key=lambda v: -v)]


def shape_arithmetic(x: T) -> T:
    rows, columns = x.shape
    return x.reshape(columns * rows) + x.size(0) + len(x) + x.ndim


def isinstance_checks(x: T) -> T:
    if isinstance(x, torch.Tensor) and not isinstance(3, str) and hasattr(x, "shape") and type(x) is torch.Tensor:
        return x + 1
    return x


def recursion(x: T) -> T:
    def power(n: int) -> T:
        return x if n == 1 else x * power(n - 1)

    return power(4)


def walrus_and_conditional(x: T) -> T:
    return (y + 1) if (y := x * 2).ndim == 2 else x


def zip_enumerate(x: T) -> T:
    for k, (a, b) in enumerate(zip([1, 2], (3, 4), strict=True), start=1):
        x = x + k * a * b
    return x


def iterate_tensor(x: T) -> list[T]:
    return [row + 1 for row in x]


def all_any(x: T) -> T:
    return x + 1 if all(k < 5 for k in range(3)) and any(k == 2 for k in [1, 2]) else x


X = torch.arange(6.0).reshape(2, 3)

SIMPLE = [
    while_loop, comprehension, nested_comprehension, generator_sum, generator_function, yield_from, closure_cell,
    star_arguments, unpacking, try_except, raise_and_catch, finally_order, with_statement, no_grad_block, dictionaries,
    objects, returned_object, functools_use, strings, lambdas_and_sorted, shape_arithmetic, isinstance_checks, recursion,
    walrus_and_conditional, zip_enumerate, iterate_tensor, all_any,
]  # fmt: skip


@pytest.mark.parametrize("function", SIMPLE, ids=lambda f: f.__name__)
@pytest.mark.parametrize("backend", ["eager", "quickfuse"])
def test_language(function: Any, backend: str) -> None:
    compiled = check(function, (X,), (X + 1,), (X.double(),), backend=backend)
    assert compiled.graph_count == 2, "one specialisation for each dtype, all captured"


@pytest.mark.parametrize("backend", ["eager", "quickfuse"])
def test_arguments_steer(backend: str) -> None:
    assert check(loop_break_else, (X, 3), (X, 3), (X, 20), backend=backend).graph_count == 2
    check(match_statement, (X, "double"), (X, "other"), backend=backend)
    assert check(mathematics, (X, 2.0), (X, 3.0), (X, 2.5), backend=backend).graph_count == 1


def test_exceptions_reach_the_user_unchanged() -> None:
    def fails(x: T) -> T:
        if x.shape[0] == 2:
            raise LookupError("two rows")
        return x

    check(fails, (X,), (X.t(),), (X,))

    def bad_shapes(x: T, y: T) -> T:
        return x + y

    check(bad_shapes, (X, torch.ones(4)))


def test_wrong_arguments_raise_type_error() -> None:
    def f(x: T, *, k: int = 1) -> T:
        return x * k

    check(f, (X,), (X, 2), ())


def test_breaks_run_natively() -> None:
    def branch(x: T) -> T:
        if x.sum() > 0:
            return x + 1
        return x - 1

    check(branch, (X,), (-X,))

    def numpy_round_trip(x: T) -> T:
        return torch.from_numpy(x.numpy() * 2) + 1

    check(numpy_round_trip, (X,))
