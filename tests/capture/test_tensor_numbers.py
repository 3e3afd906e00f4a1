"""Branches on the number in a one-element tensor: a guard where capture can follow the number, a break elsewhere.

The result is eager's for every value, and where a branch is a guard there is one specialisation for each outcome.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

import quickfuse
from differential import same
from quickfuse.capture.inference.mutation import changed_tensors, returns_new_memory
from quickfuse.capture.inference.number_operators import is_on_gpu
from quickfuse.capture.symbolic import Symbol, TensorProxy
from quickfuse.ir.values import TensorMeta

VALUES = [0.0, 1.0, 0.0, 2.5, -3.0, 1e30, math.nan, math.inf, 0.1]


def check(function: Callable[..., Any], calls: list[tuple[Any, ...]], **settings: Any) -> Any:
    """Results and changed arguments are eager's in every call."""
    compiled = quickfuse.compile(function, **{"fullgraph": True, "backend": "eager", **settings})
    for args in calls:
        eager = copy.deepcopy(args)
        expected, found = function(*eager), compiled(*args)
        torch.testing.assert_close((found, args), (expected, eager), rtol=0, atol=0, equal_nan=True)
    return compiled


def with_values(*values: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.tensor(value), torch.ones(3)) for value in values]


@pytest.mark.parametrize("backend", ["eager", "quickfuse"])
def test_outcomes_are_guards(backend: str) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return y * 5 if x.item() > 1 else y + 1

    assert check(f, with_values(*VALUES), backend=backend).graph_count == 2


def test_truth_of_a_tensor() -> None:
    check(lambda x, y: y * 5 if x else y + 1, with_values(*VALUES, True, False, 3, 0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bound", [0.1, 1, 2.5])
def test_comparisons_round_as_tensors_do(dtype: torch.dtype, bound: float) -> None:
    """`tensor(0.1) == 0.1` is True, although 0.1 is another number in float32."""

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if x == bound:
            return y * 5
        return y * 3 if bound < x else y * 4

    calls = [(torch.tensor(value, dtype=dtype), torch.ones(3)) for value in VALUES]
    check(f, calls, fullgraph=dtype in (torch.float32, torch.float64))


def test_comparison_with_a_number_from_outside() -> None:
    def f(x: torch.Tensor, y: torch.Tensor, bound: float) -> torch.Tensor:
        return y * 5 if x >= bound else y + 1

    calls = [(torch.tensor(a), torch.ones(3), b) for a in (0.1, 0.3, 2.0) for b in (0.1, 0.2, 0.3)]
    assert check(f, calls).graph_count == 2


def test_integers() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return y * 5 if x == 0 else y + 1

    assert check(f, with_values(0, 1, 2, 0)).graph_count == 2
    check(lambda x, y: y * 5 if x > 0.5 else y + 1, with_values(0, 1, 2, 0), fullgraph=False)


CHANGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "iadd": lambda x: x.__iadd__(1),
    "add_": lambda x: x.add_(0.1),
    "sub_": lambda x: x.sub_(1.5),
    "mul_": lambda x: x.mul_(3),
    "fill_": lambda x: x.fill_(0.1),
    "zero_": lambda x: x.zero_(),
    "foreach": lambda x: torch._foreach_add_([x], torch.tensor(1.0), alpha=1.0),
    "foreach of a list": lambda x: torch._foreach_mul_([x], [0.5]),
    "copy_": lambda x: x.copy_(torch.tensor(0.7)),
    "twice": lambda x: (x.add_(1), x.mul_(0.1)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_after_a_change(change: str) -> None:
    """The number is the rounded one that the tensor holds."""

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        CHANGES[change](x)
        value = x.item()
        if value == 0.1 or value > 0.30000000001:
            return y * value
        return y + 1

    check(f, with_values(0.0, 0.1, 0.2, 0.3, 1e9, 2.0**24, -1.0))


UNFOLLOWED: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "add with alpha": lambda x, y: x.add_(1, alpha=2),
    "sin": lambda x, y: x.sin_(),
    "a sum": lambda x, y: x.add_(y.sum()),
    "through a view": lambda x, y: x.view(1).add_(1),
    "through data": lambda x, y: x.data.add_(1),
    "by index": lambda x, y: x.view(1).__setitem__(0, 5.0),
    "out": lambda x, y: torch.add(x, 1, out=x),
    "many times": lambda x, y: [x.add_(1) for _ in range(5)],
    "twice in a list": lambda x, y: torch._foreach_add_([x, x], 1),
    "inplace": lambda x, y: torch.nn.functional.relu(x, inplace=True),
}


@pytest.mark.parametrize("change", UNFOLLOWED)
def test_after_a_change_that_is_not_followed(change: str) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        UNFOLLOWED[change](x, y)
        return y * 5 if x.item() > 1 else y + 1

    check(f, with_values(0.0, 1.0, 2.0, -3.0), fullgraph=False)


def test_a_view_sees_changes_of_its_base() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        view = x.view(1)
        x.add_(1)
        first = view.item() > 1
        view.mul_(2)
        return y * 5 if first else (y + 1 if x.item() > 1 else y - 1)

    check(f, with_values(0.0, 0.6, 2.0), fullgraph=False)


def test_order_of_reading_and_changing() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        before = x.item()
        x.add_(1)
        after = x.item()
        if before > 0.5:
            y = y * 5
        return y + 3 if after > 1.7 else y + 4

    check(f, with_values(0.0, 0.6, 0.8, 2.0))


def test_tensors_that_share_memory() -> None:
    """A change through one argument is seen through another one that shares its memory, now or only in a later call."""

    def f(x: torch.Tensor, other: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        other.add_(1)
        return y * 5 if x.item() > 1 else y + 1

    for first in (False, True):
        compiled = quickfuse.compile(f, backend="eager")
        for shared in (first, not first, first, not first):
            x, y = torch.tensor(0.5), torch.ones(3)
            other = x.view(1) if shared else torch.tensor([0.5])
            assert compiled(x, other, y)[0] == (5 if shared else 2)
            assert x.item() == (1.5 if shared else 0.5)


def test_arithmetic_on_such_numbers() -> None:
    def f(x: torch.Tensor, y: torch.Tensor, beta: float) -> torch.Tensor:
        x += 1
        step = x.item()
        rest = 1 - beta**step
        return y * rest if max(rest, 0.2) / step > 0.15 else y / rest

    calls = [(torch.tensor(float(k)), torch.ones(3), 0.9) for k in range(30)]
    assert check(f, calls).graph_count <= 3


def test_arithmetic_that_raises() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return y * 5 if 1 / x.item() > 1 else y + 1

    compiled = quickfuse.compile(f, backend="eager")
    for value in (0.5, 2.0):
        assert torch.equal(compiled(torch.tensor(value), torch.ones(3)), f(torch.tensor(value), torch.ones(3)))
    with pytest.raises(ZeroDivisionError):
        compiled(torch.tensor(0.0), torch.ones(3))


def test_min_of_a_tensor_and_a_number() -> None:
    def f(rate: torch.Tensor, y: torch.Tensor, bound: float) -> Any:
        smallest = min(rate, bound)
        return y * smallest, max(bound, rate)

    check(f, [(torch.tensor(a), torch.ones(3), b) for a in (0.1, 0.5) for b in (0.1, 0.3, 0.7)])


def test_many_tensors() -> None:
    """A condition on each of many tensors is one statement, and holds for tensors that do not agree."""

    def f(steps: list[torch.Tensor], y: torch.Tensor) -> torch.Tensor:
        for step in steps:
            step += 1
            y = y + 1 if step.item() > 5 else y - 1
        return y

    def steps(*values: float) -> tuple[list[torch.Tensor], torch.Tensor]:
        return [torch.tensor(v) for v in values], torch.zeros(2)

    compiled = check(f, [steps(*[0.0] * 20), steps(*map(float, range(20))), steps(*[7.0] * 20), steps(*[1.0] * 20)])
    assert compiled.graph_count == 3
    sources = [specialisation.glue.source for specialisation in compiled.specialisations]
    assert sorted(source.count("> 5") for source in sources) == [1, 1, 2], "the mixed ones need two"


def test_addresses_move_after_a_failed_guard() -> None:
    """A guard that fails after the tensors were checked must not hide from the kernels that they moved."""

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return y * 5 if x.item() > 1 else y * 3

    compiled = quickfuse.compile(f, fullgraph=True)
    kept = []
    for value in (0.0, 2.0, 0.0, 2.0, 2.0, 0.0, 0.0, 2.0):
        x, y = torch.tensor(value), torch.randn(3)
        kept.append((x, y))
        assert torch.equal(compiled(x, y), f(x, y))
        assert torch.equal(compiled(x, y), f(x, y))
    assert compiled.graph_count == 2


def test_unused_numbers_leave_the_graph() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return y * 5 if x.item() + 1 > 1 else y + 1

    compiled = check(f, with_values(3.0))
    (specialisation,) = compiled.specialisations
    targets = [node.target for node in specialisation.segment.graph.nodes if node.op.startswith("call")]
    assert len(targets) == 1, targets


def proxy() -> TensorProxy:
    return TensorProxy(None)  # type: ignore[arg-type]


def test_changed_operands_follow_from_schemas() -> None:
    a, b, c, d = ([proxy()] for _ in range(4))
    assert changed_tensors(torch._fused_sgd_, (a, b, c), {"lr": 0.1}) == a + b + c
    assert changed_tensors(torch._fused_adagrad_, (a, b, c, d), {}) == a + b + c + d
    assert changed_tensors(torch.add, (a[0], b[0]), {}) == []
    assert changed_tensors(torch.add, (a[0], b[0]), {"out": c[0]}) == c
    assert changed_tensors("addcmul_", (a[0], b[0], c[0]), {}) == a
    assert changed_tensors(torch.nn.functional.relu, (a[0],), {"inplace": True}) == a
    assert changed_tensors(torch.nn.functional.relu, (a[0],), {}) == []
    assert changed_tensors(torch.nn.functional.batch_norm, (a[0], b[0], c[0]), {"training": True}) == b + c


def test_new_memory() -> None:
    assert all(map(returns_new_memory, (torch.add, torch.tensor, torch._foreach_sqrt, "mm", "mul")))
    assert not any(map(returns_new_memory, ("view", "detach", "squeeze", "t", "unbind", torch.Tensor.expand, "reshape")))


def test_numbers_on_a_gpu_are_told_apart() -> None:
    """No kernel there tells that Python refuses an operation, so that the graph ends in front of it."""
    elsewhere, here = (TensorProxy(TensorMeta(torch.float32, (), (), torch.device(d))) for d in ("cuda:0", "cpu"))
    far, near = (Symbol(float, None, None, from_tensor=True, tensor=tensor) for tensor in (elsewhere, here))
    assert is_on_gpu((1.0, far)) and not is_on_gpu((near, 2, 1.0))
    assert is_on_gpu((Symbol(float, None, None, operation=(operator.add, (1.0, far)), from_tensor=True), 2))


def test_the_only_element() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if x.view(1).min() > -1 and x.view(1).clone().max() < 1:
            return y * 5
        return y + 1

    assert check(f, with_values(*VALUES)).graph_count == 3


def test_the_only_element_before_a_change() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        before, copied = x.view(1).min(), x.clone()
        x.add_(1)
        copied.sub_(1)
        return y * 5 if before > 0.5 else y * 2 if copied > 1 else y + 1

    check(f, with_values(0.0, 1.0, 2.5, -0.25, 0.7), fullgraph=False)


@pytest.mark.parametrize("backend", ["eager", "quickfuse"])
def test_whole_numbers(backend: str) -> None:
    """What counts right answers, also where 64 bits do not hold the sum."""

    def f(answers: torch.Tensor, start: Any) -> Any:
        right, seen = start, 0
        for k in range(3):
            right += (answers == k).sum().item()
            seen += answers.numel()
        return right, right / seen, -right, 3 * right, abs(right - 4), max(right, 2), int(right)

    starts = (0, 2, True, 2**61, 2**62 - 1, 2**63 - 2, -(2**63), 2**80)
    check(f, [(torch.tensor([0, 2, 5, 1]), start) for start in starts], fullgraph=False, backend=backend)
    large = [torch.tensor(v) for v in ([3, 4], [2**40, -(2**40)], [2**62, 1], [-(2**63), 0], [-(2**63), 2**63 - 1])]
    check(lambda x: (x[0].item() * x[1].item() - x[0].item(), -x[0].item()), [(x,) for x in large], backend=backend)


@pytest.mark.parametrize("backend", ["eager", "quickfuse"])
@pytest.mark.parametrize("exponent", [0.5, -0.5, 1 / 3])
def test_powers(backend: str, exponent: float) -> None:
    """Roots of numbers that only the graph tells, as of sums of squares: complex ones of negative numbers."""
    compiled = quickfuse.compile(lambda x: (x.sum().item() ** exponent + 1, x * 2), backend=backend)
    compiled(torch.ones(1))
    assert compiled.graph_count == 1 and not compiled.breaks
    for value in (4.0, 1e300, math.inf, math.nan, -4.0, -math.inf, *([0.0] if exponent > 0 else [])):
        x = torch.tensor([value], dtype=torch.float64)
        found, expected = compiled(x)[0], value**exponent + 1
        assert type(found) is type(expected)
        assert found == pytest.approx(expected, nan_ok=True)
    assert compiled.graph_count <= 3  # after three numbers that have no real root, it is a break
    if exponent < 0:
        with pytest.raises(ZeroDivisionError, match="negative power"):
            compiled(torch.zeros(1, dtype=torch.float64))


@pytest.mark.parametrize("backend", ["eager", "quickfuse"])
def test_numbers_that_may_be_ints(backend: str) -> None:
    """`max(1, x)` is an int or a float, which decides the types of what is computed from it and of whole numbers."""

    def of_floats(x: torch.Tensor) -> Any:
        n = x.sum().item()
        numbers = [max(1, n) + 1, float(min(1, n)), -max(1, n), f"{max(1, n)}"]
        return x * max(1, n), x / min(3, n + 1.5), x.long() * (max(1, n) / 2), numbers, [*map(repr, numbers)]

    def of_whole_numbers(x: torch.Tensor) -> Any:
        n = max(1, x.sum().item())
        return x.long() * n, torch.arange(3) - n * 2, torch.full((2,), n), torch.tensor(min(n, 2.5)), x.long() * float(n)

    def asked(x: torch.Tensor) -> Any:
        n = min(1, x.sum().item())
        return x * 2 if isinstance(n, int) else x * 3, type(n), isinstance(n, float)

    calls = [(torch.tensor(values),) for values in ([0.0, 3.0], [-1.0, 0.5], [2.5, 0.25], [0.25])]
    for function in (of_floats, of_whole_numbers, asked):
        compiled = quickfuse.compile(function, backend=backend)
        for args in calls:
            expected, found = function(*args), compiled(*args)
            assert same(expected, found), f"eager gives {expected}, compiled gives {found}"
        assert bool(compiled.breaks) is (function is not of_floats)
