"""Branches on a tensor's value of which one side only raises end no graph; where it is taken, the exception is eager's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

import quickfuse
from quickfuse.capture.branches import assertions
from quickfuse.capture.branches.assertions import only_raises
from quickfuse.capture.graph import arithmetic
from seeding import seed_torch

T = torch.Tensor
GOOD, BAD = torch.ones(3), -torch.ones(3)


def outcome(function: Callable[..., Any], *args: Any) -> tuple[Any, list[Any]]:
    """What a call returns or raises, and what its arguments hold then."""
    args = tuple(a.detach().clone().requires_grad_(a.requires_grad) for a in args)
    seed_torch(0)
    try:
        result = function(*args)
    except Exception as error:
        return (type(error), str(error).splitlines()[:1]), [a.tolist() for a in args]
    return result.tolist(), [a.tolist() for a in args]


def check(function: Callable[..., Any], good: tuple[T, ...], bad: tuple[T, ...], graphs: int = 1) -> None:
    for backend in ("quickfuse", "eager"):
        compiled = quickfuse.compile(function, backend=backend)
        for args in (good, bad, good):
            (made, left), (wanted, left_by_eager) = outcome(compiled, *args), outcome(function, *args)
            assert str(left) == str(left_by_eager)  # NaN, too
            if isinstance(wanted, tuple):
                assert made == wanted
            else:
                torch.testing.assert_close(made, wanted)
        assert compiled.graph_count == graphs
    first = quickfuse.compile(function)  # the first call fails
    assert str(outcome(first, *bad)) == str(outcome(function, *bad))


def asserts(x: T) -> T:
    y = (x * 2).exp()
    assert (x > 0).all(), f"not positive: {x.sum()}"
    return y


def raises(x: T) -> T:
    y = x.tanh()
    if not (y > 0).all():
        raise ValueError(f"not positive: {y}")
    return y.sum()


def compares_a_number(x: T) -> T:
    n = x.max().item()
    if n < 0:
        raise IndexError(n)
    return x * n


def compares_two_numbers(x: T) -> T:
    if x.min().item() > x.max().item() or x.min().item() < -0.1:
        raise AssertionError
    return x * 2


def uses_a_number_after_a_change(x: T) -> T:
    y = x * 2
    n = y.max().item()
    if n < 0:
        raise ValueError(n)
    y.add_(1)
    return y * n if n is not None else y


def changes_afterwards(x: T) -> T:
    y = x + 1
    if y.sum() < 1:
        raise KeyError("small")
    x.mul_(2)
    return y * x


def asks_asynchronously(x: T) -> T:
    torch._assert_async((x > 0).all())
    return x * 2


def checks(x: T) -> T:
    torch._check_tensor_all(x > 0, lambda: "positive, please")
    return x * 2


def asks_in_a_function(x: T) -> T:
    def is_fine(valid: T) -> bool:
        return bool(valid.all())

    if not is_fine(x > 0):
        raise ValueError(f"not positive: {x.sum()}")
    return x * 2


def negates_in_a_function(x: T) -> T:
    def is_wrong(valid: T) -> bool:
        return not valid.all()

    if is_wrong(x > 0):
        raise ValueError(f"not positive: {x.sum()}")
    return x * 2


def asks_whether_any_element_is_there(x: T) -> T:
    fine = bool((x > 0).sum())
    y = x * 2
    if not fine:
        raise ValueError(f"not positive: {x.sum()}")
    return y


def of_a_distribution(x: T) -> T:
    return torch.distributions.Normal(x.new_zeros(()), x, validate_args=True).log_prob(x + 1).sum()


@pytest.mark.parametrize(
    "function",
    [
        asserts, raises, compares_a_number, compares_two_numbers, uses_a_number_after_a_change,
        changes_afterwards, asks_asynchronously, checks, asks_in_a_function, negates_in_a_function,
        asks_whether_any_element_is_there, of_a_distribution,
    ],  # fmt: skip
    ids=lambda f: f.__name__,
)
def test_one_graph(function: Callable[..., Any]) -> None:
    check(function, (GOOD,), (BAD,))


def test_gradients() -> None:
    def function(x: T, w: T) -> T:
        y = (x * w).tanh()
        if not torch.isfinite(y).all():
            raise FloatingPointError("nan")
        return y.sum()

    w = torch.ones(3, requires_grad=True)
    check(function, (GOOD, w), (GOOD * torch.nan, w))
    compiled = quickfuse.compile(function)
    compiled(GOOD, w).backward()
    torch.testing.assert_close(w.grad, 1 - torch.tanh(GOOD) ** 2)


def test_gradients_past_a_number() -> None:
    def function(x: T, w: T) -> T:
        if x.max().item() > 1.5:
            raise ValueError
        return (x * w).tanh().sum()

    w = torch.ones(3, requires_grad=True)
    check(function, (GOOD, w), (GOOD * 2, w))
    compiled = quickfuse.compile(function)
    compiled(GOOD, w).backward()
    assert not any(s.without_kernels for s in compiled.specialisations)


def test_a_whole_step_that_fails_changes_nothing() -> None:
    def step(x: T, w: T) -> T:
        w.grad = None
        loss = (x * w).tanh().sum()
        if loss.isnan():
            raise FloatingPointError("nan")
        loss.backward()
        with torch.no_grad():
            w.sub_(w.grad)
        return loss.detach()

    check(step, (GOOD, torch.ones(3, requires_grad=True)), (GOOD * torch.nan, torch.ones(3, requires_grad=True)))


def test_after_a_change_in_place() -> None:
    """The graph could not run again."""

    def function(x: T) -> T:
        x.add_(1)
        if x.sum() < 1:
            raise ValueError(x)
        return x.mul_(2)

    compiled = quickfuse.compile(function)
    for args in ((GOOD,), (BAD,), (GOOD,)):
        assert outcome(compiled, *args) == outcome(function, *args)


def test_a_handler_in_the_program() -> None:
    def function(x: T) -> T:
        try:
            if x.sum() < 0:
                raise ValueError
            return x * 2
        except ValueError:
            return x * 3

    compiled = quickfuse.compile(function)
    for args in ((GOOD,), (BAD,), (GOOD,)):
        assert outcome(compiled, *args) == outcome(function, *args)


def test_a_handler_of_a_caller() -> None:
    def inner(x: T) -> T:
        if x.sum() < 0:
            raise ValueError
        return x * 2

    def function(x: T) -> T:
        try:
            return inner(x) + 1
        except ValueError:
            return x * 3

    compiled = quickfuse.compile(function)
    for args in ((GOOD,), (BAD,), (GOOD,)):
        assert outcome(compiled, *args) == outcome(function, *args)
    assert compiled.graph_count == 1


_noted: list[int] = []


def test_effects_before_it_happen_once() -> None:
    def function(x: T) -> T:
        _noted.append(1)
        if x.sum() < 0:
            raise ValueError
        _noted.append(2)
        return x + 1

    compiled = quickfuse.compile(function)
    for args in ((GOOD,), (BAD,), (GOOD,)):
        _noted.clear()
        wanted = outcome(function, *args)
        noted = [*_noted]
        _noted.clear()
        assert outcome(compiled, *args) == wanted
        assert _noted == noted


def test_what_only_raises() -> None:
    def returns(x: T) -> T:
        if x.sum() > 0:
            return x
        raise ValueError

    def loops(x: T) -> T:
        while x.sum() > 0:
            x = x - 1
        return x

    assert quickfuse.compile(returns)(GOOD).equal(GOOD)
    assert quickfuse.compile(loops)(GOOD).equal(loops(GOOD))
    starts = range(len(loops.__code__.co_code) // 4)
    assert not any(only_raises(loops.__code__, position) for position in starts)


def test_gradients_that_are_checked_within_a_step() -> None:
    """The optimizer must not have moved anything where the check fails."""

    def run(wrap: Callable[[Any], Any]) -> tuple[list[Any], list[T], Any]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

        def step(x: T) -> T:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
            optimizer.step()
            return loss.detach()

        function = wrap(step)
        results = []
        for k, scale in enumerate([1, torch.nan, 1, torch.nan]):
            x = torch.randn(5, 4, generator=torch.Generator().manual_seed(k)) * scale
            try:
                results.append(function(x))
            except RuntimeError as error:
                results.append(str(error))
        return results, [p.detach() for p in model.parameters()], function

    (made, parameters, compiled), (wanted, expected, _) = run(quickfuse.compile), run(lambda step: step)
    assert [r for r in made if isinstance(r, str)] == [r for r in wanted if isinstance(r, str)] != []
    torch.testing.assert_close([r for r in made if not isinstance(r, str)], [r for r in wanted if not isinstance(r, str)])
    torch.testing.assert_close(parameters, expected)
    assert not compiled.breaks


def test_a_gradient_of_a_gradient() -> None:
    def function(x: T, w: T) -> T:
        (slope,) = torch.autograd.grad((x * w).sin().sum(), w, create_graph=True)
        if not slope.isfinite().all():
            raise ValueError
        return slope.square().sum()

    w = torch.ones(3, requires_grad=True)
    check(function, (GOOD, w), (GOOD * torch.nan, w))
    quickfuse.compile(function)(GOOD, w).backward()
    torch.testing.assert_close(w.grad, -2 * GOOD.cos() * GOOD.sin())


def test_random_numbers_before_it() -> None:
    """What was drawn for the graph that failed is drawn again."""

    def function(x: T) -> T:
        y = torch.nn.functional.dropout(x, 0.5)
        if x.sum() < 0:
            raise ValueError(y)
        return y

    compiled = quickfuse.compile(function)
    for args in ((GOOD,), (BAD,), (GOOD,)):
        assert outcome(compiled, *args) == outcome(function, *args)


def goes_on_after_try(x: T) -> T:
    y = x * 2 if x.sum() > 0 else x
    try:
        raise ValueError
    except ValueError:
        pass
    return y


def goes_on_after_with(x: T) -> T:
    with contextlib.suppress(ValueError):
        if x.sum() > 0:
            raise ValueError
        x = x * 3
    return x


def stops_if_positive(x: T) -> T:
    if x.sum() > 0:
        raise ValueError
    return x * 3


def goes_on_after_call(x: T) -> T:
    with contextlib.suppress(ValueError):
        x = stops_if_positive(x)
    return x + 1


@pytest.mark.parametrize("function", [goes_on_after_try, goes_on_after_with, goes_on_after_call])
def test_what_is_handled_goes_on(function: Callable[[T], T]) -> None:
    compiled = quickfuse.compile(function)
    for x in (GOOD, BAD, GOOD, BAD):
        torch.testing.assert_close(compiled(x), function(x))


def refuse(what: str, value: Any = None) -> None:
    if value is not None:
        raise ValueError(f"{what}: {value}")
    raise ValueError(what)


def calls_what_raises(x: T) -> T:
    y = x * 2
    if (x < 0).any():
        refuse("negative", x.sum().item())
    return y + 1


def asserts_false(x: T) -> T:
    for k, row in enumerate(torch.stack([x, x + 1])):
        if (row < 0).any():
            first = torch.where(row < 0)[0][0]
            torch._assert(False, f"negative in {k}: {row[first].tolist()}")
    return x * 2


class Checked(torch.nn.Module):
    def forward(self, x: T) -> T:
        if not (x > 0).all():
            torch._assert(False, "not positive")
        else:
            x = x + 1
        return x * 2


@pytest.mark.parametrize("function", [calls_what_raises, asserts_false, Checked().forward])
def test_calls_that_only_raise(function: Callable[..., Any]) -> None:
    check(function, (GOOD,), (BAD,))


def test_a_function_that_no_longer_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """Branches to it are breaks then."""
    compiled = quickfuse.compile(calls_what_raises)
    for _ in range(2):
        assert outcome(compiled, GOOD) == outcome(calls_what_raises, GOOD)
    monkeypatch.setitem(globals(), "refuse", lambda what, value: None)
    for args in ((BAD,), (GOOD,), (BAD,), (BAD,), (BAD,), (GOOD,)):
        assert outcome(compiled, *args) == outcome(calls_what_raises, *args)
    assert compiled.breaks


def raises_at_the_end(x: T) -> T:
    return refuse(x) if x.sum() > 5 else x


def handles(x: T) -> T:
    if x.sum() < 0:
        try:
            torch._assert(False, "no")
        except AssertionError:
            x = x + 1
    return x * 2


def hands_on(x: T) -> T:
    if x.sum() < 0:
        x = x * len([refuse, torch._assert, False])
    return x * 2


@pytest.mark.parametrize("function", [handles, hands_on, raises_at_the_end])
def test_calls_that_do_not_end_a_function(function: Callable[..., Any]) -> None:
    compiled = quickfuse.compile(function)
    for args in ((GOOD,), (BAD,), (GOOD * 4,), (GOOD,), (BAD,)):
        assert outcome(compiled, *args) == outcome(function, *args)


def divided_by_others(x: torch.Tensor, n: int) -> torch.Tensor:
    return x * (x[0].item() / n) + x[1].item() // 0.5 + (x[2] * 2).item() % len(x)


def divided_by_each_other(x: torch.Tensor, n: int) -> torch.Tensor:
    ratio = x[0].item() / (x[1].item() * n)
    y = x * ratio
    return y + x[2].item() // x[1].item()


@pytest.mark.parametrize("program", [divided_by_others, divided_by_each_other])
@pytest.mark.parametrize("waits", [True, False])
def test_divisions_where_no_kernel_tells_that_python_raises(program: Any, waits: bool, monkeypatch: Any) -> None:
    """As on a GPU: the graph waits for the number, and fails where it is zero. Graphs that wait for nothing end there."""
    for module in (arithmetic, assertions):
        monkeypatch.setattr(module, "is_on_gpu", lambda operands: True)
    compiled = quickfuse.compile(program)
    if not waits:
        compiled._no_waiting = frozenset({assertions.WAITING})

    def outcome(function: Any, *args: Any) -> Any:
        try:
            return function(*args)
        except ZeroDivisionError as error:
            return str(error)

    calls = [([3.0, 2.0, 5.5], 2), ([1.0, 4.0, -2.5], 3), ([1.0, 0.0, 1.0], 2), ([2.0, 7.0, 1.0], 0), ([2.0, 7.0, 1.0], 5)]
    for row, n in calls:
        found, wanted = (outcome(function, torch.tensor(row), n) for function in (compiled, program))
        assert found == wanted if isinstance(wanted, str) else torch.allclose(found, wanted)
    reasons = [found.reason for found in compiled.breaks if "GPU" in found.reason]
    assert bool(reasons) == (program is divided_by_each_other and not waits)


def test_divisions_by_zero_are_handled() -> None:
    """Averages that begin with nothing, as in optimizers without a schedule."""

    def f(x: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
        weight = state["rate"] * 2
        state["sum"] += weight
        try:
            part = weight / state["sum"]
        except ZeroDivisionError:
            part = 0
        try:
            rest = state["count"] % int(weight)
        except ZeroDivisionError as error:
            rest = len(str(error))
        return x * part + rest

    compiled = quickfuse.compile(f, fullgraph=True)
    states: list[dict[str, Any]] = [{"rate": 0, "sum": 0.0, "count": 5} for _ in range(2)]
    for rate in (0, 0, 1, 2, 3):
        for state in states:
            state["rate"] = rate
        torch.testing.assert_close(compiled(torch.ones(2), states[0]), f(torch.ones(2), states[1]))
        assert states[0] == states[1]
    assert compiled.graph_count == 2 and not compiled.breaks


def test_a_division_by_zero_that_is_not_handled() -> None:
    compiled = quickfuse.compile(lambda x, n: x * (3 / n))
    for n in (0, 1, 2.0, 0.0, 0, -0.0, 4):
        if n:
            torch.testing.assert_close(compiled(torch.ones(2), n), torch.ones(2) * (3 / n))
        else:
            with pytest.raises(ZeroDivisionError, match="division"):
                compiled(torch.ones(2), n)
