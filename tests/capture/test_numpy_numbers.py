"""Numbers and arrays of NumPy's that the program is given: what changes from call to call compiles nothing, and results are
of NumPy's classes where eager's are."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import quickfuse

T = torch.Tensor
CASES: list[tuple[Callable[..., Any], Callable[[int], Any], int]] = []


def case(given: Callable[[int], Any], graphs: int = 1) -> Callable[[Any], Any]:
    def note(function: Any) -> Any:
        CASES.append((function, given, graphs))
        return function

    return note


def rate(k: int) -> Any:
    return np.float64(0.25 + k / 8)


SCHEDULE = np.linspace(1, 0.1, 20)


@case(rate)
def arithmetic(x: T, s: Any) -> Any:
    return x * (1 - s) + s * 2 / (s + 1) - s**0.5, s * 2, abs(-s), s**2


@case(rate)
def beside_tensors(x: T, s: Any) -> Any:
    y = s * x + x**s + (s**x - s / (x + 2)) + torch.arange(4) * s + x.half() * s
    return y.clamp(max=s).add(x, alpha=s) + torch.full((4,), s), x.clone().fill_(s), x > s


@case(rate)
def of_python(x: T, s: Any) -> Any:
    y = x * float(s) + math.sqrt(s) + math.exp(-s) + s.item()
    return y, float(s * 2), max(s, 0.1), (s * 2).item(), math.sin(s)


@case(rate)
def classes(x: T, s: Any) -> Any:
    t = s * 2
    known = isinstance(t, float), isinstance(t, np.floating), type(t), type(t - 1), type(float(t)), type(math.sqrt(t))
    return x * t, known, type(t < 0), type(max(t, t + 1)), type(np.sqrt(t)), type(-t), type(not t)


@case(rate, 2)
def texts(x: T, s: Any) -> Any:
    return x * s, f"lr {s * 2:.3f}"


@case(rate, 2)
def a_template(x: T, s: Any) -> Any:
    return x * s, "lr %.2f" % s  # noqa: UP031


@case(rate, 2)
def compared(x: T, s: Any) -> Any:
    if s < 0.6 or s * 2 >= 20:
        x = x + 1
    return (x * s if s else x), s > 0.6, 0.1 <= s <= 9


@case(lambda k: 0.25 + k / 8)
def functions(x: T, s: Any) -> Any:
    y = x * np.sqrt(s) + np.exp(-s) * np.cos(np.pi * s) + np.log1p(s) - np.tanh(s) + np.abs(s - 1) + np.square(s)
    return y + np.clip(s, 0.3, 0.9) + np.minimum(s, 0.5) + np.maximum(0.5, s), np.sin(s), np.floor(s * 9)


@case(lambda k: k)
def of_steps(x: T, k: Any) -> Any:
    return x * (0.1 + 0.5 * (1 + np.cos(np.pi * k / 20))) * np.sqrt(k + 1), np.exp(k)


@case(lambda k: k)
def an_item(x: T, k: Any) -> Any:
    return (x * SCHEDULE[k] + (1 - SCHEDULE[k]) * x.cos() + SCHEDULE[-1]) * SCHEDULE[k + 1].item(), SCHEDULE[k] * 2


@case(lambda k: (np.arange(24.0).reshape(4, 6) / 7, k % 4))
def an_item_of_two(x: T, given: Any) -> Any:
    table, row = given
    return x * table[row, 2] + table[row][3] + table[1, row] * table.shape[0] + len(table)


@case(lambda k: (np.arange(5, dtype=np.float32) + k, np.arange(k, k + 5)))
def of_other_types(x: T, given: Any) -> Any:
    floats, whole = given
    return x * floats[1] + whole[2] - floats[0].item() + int(whole[0]), floats[1] > -1, whole[1] >= 0


@case(lambda k: np.random.RandomState(k).permutation(4)[:3])
def an_index(x: T, index: Any) -> Any:
    return x[index] * 2, torch.stack([x, x + 1])[:, index].sin()


@case(rate)
def beside_numbers_out_of_tensors(x: T, s: Any) -> Any:
    total = x[0].item()
    y = x * (s * total) + (total / s - s) * abs(s - total)
    return y, s * total, type(s + total), s > total, -(s * total), np.float64(2) * total, (s * total).item(), f"{s + total}"


@case(lambda k: (np.float32(0.3 + k / 8), np.int64(k + 1), np.float16(1 / (k + 3)), np.uint8(3 * k + 1)))
def of_all_classes(x: T, given: Any) -> Any:
    s, k, h, u = given
    y = x * (1 - s) + x.sin() * (s * 2 + 0.1) ** 2 - s / (x + 2) + x * 0.99**k + x * (k / 10) + h * 3 * x - (u + k) * x
    kept = s * k, -s, s + h, k // 2, k % 3 + 1, k**2, u + 1, abs(k - 20), u / k, s > 0.1, k - s, float(s * 3), int(k + u)
    return y, kept, [type(number) for number in kept], (s * 2).item(), torch.tensor(s * 2), np.sqrt(s + 1), np.exp(-k)


@case(lambda k: np.float32(0.9 - k / 8), 2)
def an_epsilon(x: T, s: Any) -> Any:
    eps = max(0.25, s * 0.9)
    return x * eps + math.sqrt(s + 1) * x, eps, min(s, np.float32(1)), type(eps)


@case(lambda k: np.int64(10 * k + 1))
def a_schedule(x: T, step: Any) -> Any:
    rate = 0.5 * (1 + math.cos(math.pi * (step - 1) / 100)) * min(1.0, (step + 1) / 200)
    return x * rate * (0.1 if step < 1000 else 0.01), rate


@case(lambda k: np.int64(k % 2), 2)
def whole_numbers(x: T, k: Any) -> Any:
    return x[k] * 2, x[: k + 1].sin(), x[-k - 1], [1, 2, 3][k], (5, 6)[k - 1 :]


@case(lambda k: np.random.RandomState(k).rand(4))
def tensors(x: T, a: Any) -> Any:
    y = x * torch.from_numpy(a) + torch.as_tensor(a, dtype=torch.float32) * torch.tensor(a)
    return y, torch.tensor(a).float() * 2, torch.from_numpy(a[1:3]) + 1, torch.tensor(a[0]) * 2, torch.tensor(a[1] * 2)


@case(lambda k: 2.0 + k % 2, 2)
def parameters(x: T, s: Any) -> Any:
    """What shapes an operator is a plain number, also where NumPy computed it."""
    bound = np.log(s)
    drawn = torch.empty(4).uniform_(bound, bound)  # nothing but the bound
    y = F.hardtanh(x, -bound, bound) + F.dropout(x, bound / 4, False)
    return y + drawn, x.repeat(int(np.ceil(bound)), 2), F.threshold(x, bound / 3, 0.5)


@case(lambda k: (np.arange(12.0).reshape(6, 2), k % 4))
def rows(x: T, given: Any) -> Any:
    a, k = given
    part = torch.from_numpy(a[k : k + 2])
    return x[:2] * part + torch.as_tensor(a[k]), torch.tensor(a[1:3, 1], dtype=torch.float32)


@pytest.mark.parametrize(("function", "given", "graphs"), CASES, ids=[c[0].__name__ for c in CASES])
def test_as_in_eager(function: Any, given: Any, graphs: int) -> None:
    compiled = quickfuse.compile(function, options={"raise_internal_errors": True})
    for k in range(8):
        x = torch.rand(4) + 0.1
        expected, found = function(x, given(k)), compiled(x, given(k))
        agree(found, expected)
    assert compiled.graph_count == graphs and not compiled.breaks


@pytest.mark.parametrize(
    "function",
    [
        lambda x, s: (x * 2, s / x.sum().item()),
        lambda x, s: (x * 2, x.sum().item() ** s),
        lambda x, s: (x * 2, s ** x.sum().item()),
        lambda x, s: (x * 2, x.sum().item() / s),
        lambda x, s: (x * 2, max(s, x.sum().item()), np.sqrt(s * x.sum().item())),
    ],
)
def test_numpy_warns_where_python_raises(function: Any) -> None:
    compiled = quickfuse.compile(function, options={"raise_internal_errors": True})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for total, s in ((2.0, 0.5), (0.0, 0.5), (-2.0, 0.5), (2.0, 0.0), (0.0, -1.0), (3.0, 0.5)):
            x = torch.tensor([total, 0.0])
            agree(compiled(x, np.float64(s)), function(x, np.float64(s)))


TESTS = [np.isnan, np.isfinite, np.isinf]
TEMPLATE = "%d %r"


def decided(test: Any) -> Any:
    def f(x: T, s: Any) -> Any:
        loss = (x * s).mean()
        number = loss.item()
        if test(number):
            return x - 1
        return x * 2 if not test(float(loss)) else x * 3

    return f


def decided_by_an_argument(test: Any) -> Any:
    return lambda x, s: x * s + 1 if test(s) or test(s * 2) else x * 2


def as_values(test: Any) -> Any:
    def f(x: T, s: Any) -> Any:
        loss, total = (x * s).mean().item(), (x * s).sum().item()
        found = test(loss), test(loss * 2 + total), test(s), test(s * 2), test(np.float64(2) * loss)
        return x * 2, found, [type(value) for value in found], isinstance(found[0], bool), bool(found[0]), f"{found[1]}"

    return f


def after_changes(test: Any) -> Any:
    def f(x: T, s: Any) -> Any:
        y = x * s
        total = y.sum().item()
        first, second, greater = test(total), test(total + 1), np.float64(1) > total
        y.fill_(1)
        return y, first, second, greater, test(y.sum().item())

    return f


def in_arithmetic(test: Any) -> Any:
    def f(x: T, s: Any) -> Any:
        found = test((x * s).sum().item())
        return x * 2 + float(found), int(found), not found, found == 0, found < 1, found / 2, found * 2.0

    return f


ONE_GRAPH = [decided, decided_by_an_argument, as_values, after_changes, in_arithmetic]


def with_whole_numbers(test: Any) -> Any:
    def f(x: T, s: Any) -> Any:
        larger = max(10**30, x.sum().item())
        found = test((x > 0).sum().item()), test(len(x)), test(s > 1), test(max(1, x.sum().item()))
        try:
            return x * 2, found, test(larger)
        except TypeError as error:
            return x * 2, found, str(error)

    return f


def refused_arithmetic(test: Any) -> Any:
    def f(x: T, s: Any) -> Any:
        found = test((x * s).sum().item())
        y, said = x * 2, []
        for way in (lambda b: -b, lambda b: b - b, lambda b: b + b, lambda b: b + 1, abs, lambda b: b * b, lambda b: ~b,
                    lambda b: f"{b:d}", repr, lambda b: TEMPLATE % (b, b), lambda b: b is True, lambda b: b is np.True_,
                    lambda b: b.item(), lambda b: [1, 2][b], lambda b: b & True, round):  # fmt: skip
            try:
                made = way(found)
                said.append((repr(made), type(made)))
            except (TypeError, ValueError) as error:
                said.append((str(error), type(error)))
        return y + 1, str(said)

    return f


def of_other_things(test: Any) -> Any:
    return lambda x, s: (x * 2, test([x.sum().item(), 1.0]), test(np.float32(s)), test(x.double().numpy()), test(True))


@pytest.mark.parametrize("test", TESTS, ids=lambda test: test.__name__)
@pytest.mark.parametrize(
    "program", [*ONE_GRAPH, with_whole_numbers, refused_arithmetic, of_other_things], ids=lambda program: program.__name__
)
def test_whether_numbers_are_finite(program: Any, test: Any) -> None:
    function = program(test)
    for cls in (float, np.float64, np.float32):
        compiled = quickfuse.compile(function, options={"raise_internal_errors": True})
        for value in (2.0, 3.0, math.nan, 2.0, math.inf, -math.inf, -0.0, 4.0):
            with warnings.catch_warnings(record=True):
                warnings.simplefilter("always")
                expected, found = function(torch.ones(3), cls(value)), compiled(torch.ones(3), cls(value))
            agree(found, expected)
            if value == 3.0 and program in ONE_GRAPH and cls is not np.float32:
                assert compiled.graph_count == 1 and not compiled.breaks


def test_what_numpys_numbers_give() -> None:
    def f(x: T, s: Any) -> Any:
        total, below = x.sum().item(), s > x.sum().item()
        known = type(math.isnan(s * total)), math.isnan(s + total), bool(below), type(bool(below)), type(not below)
        return x * 2, known, below, s > 0.5, (s > 0.5) is True, (s > 0.5) is np.True_, below is True, below is False

    compiled = quickfuse.compile(f, options={"raise_internal_errors": True})
    for value in (0.25, 3.0, 1.0, math.nan):
        agree(compiled(torch.ones(2), np.float64(value)), f(torch.ones(2), np.float64(value)))


def test_a_comparison_as_a_number() -> None:
    """A float32 is compared with a number that is rounded to its type."""

    def f(x: T, s: Any) -> Any:
        return x * float(s == 0.1) + int(s <= 0.1) * x, s == 0.1

    compiled = quickfuse.compile(f)
    for value in (0.1, 0.2, 0.1, 0.3, 0.1):
        agree(compiled(torch.ones(3), np.float32(value)), f(torch.ones(3), np.float32(value)))


def agree(found: Any, expected: Any) -> None:
    if isinstance(expected, (tuple, list)):
        assert type(found) is type(expected)
        for one, other in zip(found, expected, strict=True):
            agree(one, other)
    elif isinstance(expected, T):
        torch.testing.assert_close(found, expected, equal_nan=True)
    elif isinstance(expected, np.ndarray):
        assert type(found) is type(expected) and str(found) == str(expected)
    else:
        assert type(found) is type(expected) and (found == expected or found != found)


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan, 1e300, -0.0])
def test_numbers_of_which_numpy_warns(value: float) -> None:
    def f(x: T, s: Any) -> Any:
        return x * s, 1 / s, s**0.5, s**9, np.log(s), np.sqrt(s), s * 1e200 - s, max(s, 0.0), s == s, s > 0

    compiled = quickfuse.compile(f)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in (2.0, value, 3.0, value, value):
            agree(compiled(torch.ones(3), np.float64(number)), f(torch.ones(3), np.float64(number)))
    with np.errstate(all="raise"):
        try:
            expected = f(torch.ones(3), np.float64(value))
        except FloatingPointError as error:
            with pytest.raises(FloatingPointError, match=str(error)):
                compiled(torch.ones(3), np.float64(value))
        else:
            agree(compiled(torch.ones(3), np.float64(value)), expected)


@pytest.mark.parametrize(
    ("function", "values"),
    [
        (lambda x, s: (x * (s * s), s * s, s + 1.5), [np.float32(v) for v in (2, 3, 1e30, -0.0, 1e-30, math.nan, 2)]),
        (lambda x, s: (x * (s * 3), s * 3, s + s), [np.int8(v) for v in (2, 3, 100, -128, 42, 43, 0)]),
        (lambda x, s: (x * 2, -s, abs(s), s - 5), [np.int16(v) for v in (2, -3, -32768, 32767, 0)]),
        (lambda x, s: (x * 2, s - 3, 2 * s), [np.uint8(v) for v in (7, 3, 2, 200, 0)]),
        (lambda x, s: (x * 2, 7 // s, 7 % s, s // -2), [np.int64(v) for v in (7, -3, 0, 2**62, 2)]),
        (lambda x, s: (x * 2, s**2, 2**s, s**3.0, 0.5**s), [np.int64(v) for v in (7, 3, 2**40, -2, 0, 62, 63)]),
        (lambda x, s: (x * 2, 1 / s, s / 3), [np.float16(v) for v in (7, 0, 1e-7, 6e4, 3)]),
        (lambda x, s: (x * float(s == 0.1), s == 0.1, s < 1e39, s / 1e39), [np.float32(v) for v in (0.1, 0.2, 0.1)]),
        (lambda x, s: (x * 2, f"{s * 2} {s - s}", str(s)), [np.float32(v) for v in (0.1, -0.0, 0.0, -0.0, 0.3, 0.4, 0.5)]),
        (lambda x, s: (x[s + 1], x[: s + 1]), [np.int64(v) for v in (0, 1, 0, -1)]),
        (lambda x, s: (x * 2, s + 300), [np.int8(v) for v in (1, 2)]),
    ],
)
def test_numbers_that_are_unlike_those_of_python(function: Any, values: list[Any]) -> None:
    """They have bounds and less precision, and NumPy warns where Python does not: so it does here."""
    compiled = quickfuse.compile(function, options={"raise_internal_errors": True})
    for value in values + values:
        said = []
        for run in (function, compiled):
            with warnings.catch_warnings(record=True) as given:
                warnings.simplefilter("always")
                try:
                    outcome = run(torch.arange(3.0), value)
                except (OverflowError, ValueError) as error:
                    outcome = str(error)
            said.append((outcome, {str(warning.message) for warning in given}))
        agree(said[1][0], said[0][0])
        assert said[1][1] == said[0][1]


def test_numbers_of_other_classes_later() -> None:
    def f(x: T, s: Any) -> Any:
        return x * (s + 1), s * 2

    compiled = quickfuse.compile(f)
    for cls in (np.float32, float, np.float64, np.int64, int, np.float16, np.float32, np.uint8, np.longdouble, np.bool_):
        agree(compiled(torch.ones(3), cls(3)), f(torch.ones(3), cls(3)))


def test_an_item_of_float32_that_is_stored() -> None:
    """PyTorch takes a float64 for an element, and no other number of NumPy's."""

    def f(x: T, s: Any) -> T:
        y = x * s
        y[0] = s * 2
        return y

    compiled = quickfuse.compile(f)
    for cls in (np.float64, np.float32, np.int64):
        for k in range(3):
            try:
                expected = f(torch.ones(3), cls(k))
            except TypeError as error:
                with pytest.raises(TypeError, match=str(error)):
                    compiled(torch.ones(3), cls(k))
            else:
                agree(compiled(torch.ones(3), cls(k)), expected)


def test_a_negative_zero_in_a_text() -> None:
    compiled = quickfuse.compile(lambda x, s: (x * 2, f"{s * 2}"))
    assert [compiled(torch.ones(1), s)[1] for s in (0.0, -0.0, 0.0, -0.0)] == ["0.0", "-0.0", "0.0", "-0.0"]


def test_an_array_that_changes_in_place() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)
            self.table = np.ones(4)
            self.settings = {"scale": np.ones(2), "names": ["a", "b"]}

        def forward(self, x: T) -> Any:
            y = self.layer(x) * self.table[1] + torch.from_numpy(self.table).float() * self.settings["scale"][0]
            return y + torch.tensor(self.settings["scale"]).sum() + (1 if self.table[2] > 3 else 0)

    model = Model()
    compiled = quickfuse.compile(lambda x: model(x))
    for k in range(8):
        model.table[:] = k
        model.settings["scale"][0] = k / 2
        x = torch.randn(2, 4)
        torch.testing.assert_close(compiled(x), model(x))
    model.table, model.settings["scale"] = np.arange(4.0), np.full(2, 7.0)
    torch.testing.assert_close(compiled(x), model(x))
    assert compiled.graph_count == 2


def shared_after(t: T, a: Any) -> Any:
    y = t * a[0]
    t.add_(1)
    return y, a[0], t * a[1]


def shared_and_changed(t: T, a: Any) -> Any:
    u = torch.from_numpy(a)
    u.add_(1)
    v = torch.from_numpy(a)
    return t * 2 + u, v, u is v, torch.tensor(a)


def made_twice(t: T, a: Any) -> Any:
    u, v = torch.tensor(a), torch.tensor(a)
    u.add_(t)
    return u, v, torch.from_numpy(a) is torch.from_numpy(a), torch.from_numpy(a).data_ptr() == a.ctypes.data


def set_inside(t: T, a: Any) -> Any:
    y = t * a[0]
    a[0] = 5
    return y + a[0], torch.from_numpy(a) + t


@pytest.mark.parametrize("function", [shared_after, shared_and_changed, made_twice, set_inside])
def test_one_memory(function: Any) -> None:
    compiled = quickfuse.compile(function)
    for k in range(6):
        runs = []
        for run in (function, compiled):
            a = np.arange(4.0) + k
            t = torch.from_numpy(a) if k in (1, 2, 4) else torch.arange(4.0, dtype=torch.float64)
            runs.append((run(t, a), t.clone(), a.copy()))
        agree(runs[1][0], runs[0][0])
        agree(runs[1][1:2], runs[0][1:2])
        np.testing.assert_array_equal(runs[1][2], runs[0][2])


@pytest.mark.parametrize(
    "array",
    [
        np.arange(4.0)[::-1], np.arange(4.0).astype(">f8"), np.arange(4, dtype=np.uint16), np.arange(4, dtype=np.float16),
        np.array(3.0), np.array([1, 2, 3, 0], dtype=np.int32), np.array([True, False, True, True]), np.array(["a", "b"]),
        np.array([1, "b"], dtype=object), np.arange(4.0).view(np.matrix), np.ma.array([1.0, 2.0, 3.0, 4.0]),
        np.arange(4) + 1j, np.broadcast_to(np.float64(2), (4,)), np.zeros(0), np.arange(4, dtype=np.uint8),
    ],
    ids=lambda a: f"{type(a).__name__} {a.dtype} {a.shape}",
)  # fmt: skip
@pytest.mark.parametrize(
    "function",
    [
        lambda x, a: x * a[1], lambda x, a: x[a], lambda x, a: torch.from_numpy(a) * 2, lambda x, a: torch.tensor(a) + x,
        lambda x, a: torch.as_tensor(a), lambda x, a: x * a[9], lambda x, a: x * a[-1] + a[0], lambda x, a: (x, len(a)),
        lambda x, a: x * a[True], lambda x, a: x + a[1:].shape[0], lambda x, a: x * a[1, 0],
    ],
)  # fmt: skip
def test_arrays_of_all_kinds(function: Any, array: Any) -> None:
    compiled = quickfuse.compile(function)
    for given in (array, array, np.arange(4.0), array):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                expected = function(torch.ones(4), given)
            except Exception as error:
                with pytest.raises(type(error)):
                    compiled(torch.ones(4), given)
                continue
            agree(compiled(torch.ones(4), given), expected)


def test_a_training_step() -> None:
    def run(compile: Callable[[Any], Any]) -> list[Any]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        inputs, targets = torch.randn(40, 4), torch.randint(0, 2, (40,))
        order = np.random.RandomState(0)

        def step(chosen: Any, it: int) -> Any:
            for group in optimizer.param_groups:
                group["lr"] = SCHEDULE[it] * 0.1
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs[chosen]), targets[chosen]) * (1 - SCHEDULE[it] / 2)
            loss.backward()
            optimizer.step()
            return loss.detach(), optimizer.param_groups[0]["lr"]

        called = compile(step)
        results = [called(order.permutation(40)[:8], it) for it in range(12)]
        if called is not step:
            assert called.graph_count <= 2 and not called.breaks
        return [results, [p.detach() for p in model.parameters()]]

    expected, found = run(lambda f: f), run(quickfuse.compile)
    for one, other in zip(found[0], expected[0], strict=True):
        agree(one, other)
    torch.testing.assert_close(found[1], expected[1])


def test_several_steps_in_one_call() -> None:
    """Items are read before the graph, and no guard lets a tensor that the graph changes be the array's memory."""

    def run(compile: Callable[[Any], Any], table: Any, weight: T) -> Any:
        model = torch.nn.Linear(4, 1)
        torch.nn.init.ones_(model.weight), torch.nn.init.zeros_(model.bias)
        optimizer = torch.optim.SGD([*model.parameters(), weight], lr=0.1)
        scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)  # which wraps the optimizer's step
        rows = torch.arange(24.0).reshape(6, 4) / 10

        def steps(order: Any) -> Any:
            for k in range(3):
                optimizer.param_groups[0]["lr"] = table[k] * 0.01
                loss = (model(rows[order[k : k + 2]]) * weight.sum() * (1 - table[k + 1])).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            return loss.detach()

        called = compile(steps)
        assert scheduler.optimizer is optimizer
        results = [called(np.random.RandomState(k).permutation(6)) for k in range(5)]
        return called, [results, *[p.detach() for p in model.parameters()], weight.detach().clone(), table.copy()]

    def given(shares: bool) -> tuple[Any, T]:
        table = np.linspace(0.1, 0.5, 6)
        weight = torch.from_numpy(table) if shares else torch.from_numpy(table.copy())
        return table, weight.requires_grad_()

    for shares in (False, True):
        expected = run(lambda f: f, *given(shares))[1]
        called, found = run(quickfuse.compile, *given(shares))
        torch.testing.assert_close(found[:-1], expected[:-1])
        np.testing.assert_allclose(found[-1], expected[-1], atol=1e-6)  # the network has 32 bits
        assert shares or (called.graph_count <= 2 and not called.breaks)
