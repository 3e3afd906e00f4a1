"""Random pointwise programs, eager against compiled: dtypes, shapes, strides, values, exceptions and what is changed."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings

import quickfuse
from quickfuse import config

T = torch.Tensor
F = torch.nn.functional

DTYPES = [
    torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8,
    torch.bool,
]  # fmt: skip

#: Relative tolerance of the result after a program; a narrow intermediate value rounds differently once at most.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}

UNARY: list[Callable[..., Any]] = [
    torch.abs, torch.neg, torch.sign, torch.ceil, torch.floor, torch.trunc, torch.sqrt, torch.exp, torch.sin, torch.cos,
    torch.tanh, torch.sigmoid, torch.square, torch.reciprocal, torch.isnan, torch.isfinite, torch.logical_not,
    torch.relu, F.silu, F.leaky_relu, torch.bitwise_not, torch.signbit,
    lambda x: x.float(), lambda x: x.double(), lambda x: x.half(), lambda x: x.to(torch.bfloat16), lambda x: x.bool(),
    lambda x: x.clone(), lambda x: torch.ones_like(x), lambda x: x.clamp(-2, 2), lambda x: x.log1p(),
]  # fmt: skip

BINARY: list[Callable[..., Any]] = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.and_,
    operator.or_, operator.xor, operator.lt, operator.ge, operator.eq, operator.ne, torch.maximum, torch.minimum,
    torch.atan2, torch.copysign, torch.logical_and, torch.logical_xor, torch.fmod, torch.fmax,
    lambda x, y: torch.where(x > 0, x, y), lambda x, y: torch.add(x, y, alpha=2), lambda x, y: x.masked_fill(y > 0, 1),
    lambda x, y: torch.addcmul(x, y, y), lambda x, y: torch.lerp(x, y, 0.25),
]  # fmt: skip

IN_PLACE: list[Callable[..., Any]] = [
    lambda x, y: x.add_(y), lambda x, y: x.mul_(y), lambda x, y: x.sub_(y), lambda x, y: x.copy_(y),
    lambda x, y: x.clamp_(-1, 1), lambda x, y: x.neg_(), lambda x, y: x.fill_(1), lambda x, y: x.zero_(),
    lambda x, y: x.div_(y), lambda x, y: x.masked_fill_(y > 0, 0),
]  # fmt: skip

SCALARS: list[Any] = [0, 1, 2, 3, -1, 0.5, -1.5, 2.0, True, 0.0]

VIEWS: list[Callable[..., Any]] = [
    lambda x: x.unsqueeze(0), lambda x: x.transpose(0, -1) if x.ndim else x, lambda x: x[..., :1] if x.ndim else x,
    lambda x: x[None], lambda x: x.flatten(), lambda x: x.expand(2, *x.shape), lambda x: x.detach(),
]  # fmt: skip

Step = tuple[str, int, int, int]


def make_program(steps: list[Step]) -> Callable[..., Any]:
    """A function of tensors and two numbers: each step appends a value, and takes operands by index from the last."""

    def program(tensors: list[T], first: Any, second: Any) -> tuple[Any, ...]:
        values = list(tensors)
        for kind, which, left, right in steps:
            x, y = values[-1 - left % len(values)], values[-1 - right % len(values)]
            if kind == "unary":
                values.append(UNARY[which % len(UNARY)](x))
            elif kind == "binary":
                values.append(BINARY[which % len(BINARY)](x, y))
            elif kind == "scalar":
                values.append(BINARY[which % 13](x, (first, second, 2, -0.5)[right % 4]))
            elif kind == "reflected":
                values.append(BINARY[which % 6]((first, second, 3, 1.5)[right % 4], x))
            elif kind == "view":
                values.append(VIEWS[which % len(VIEWS)](x))
            else:
                IN_PLACE[which % len(IN_PLACE)](x, y)
        return tuple(values[len(tensors) :])

    return program


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["unary", "binary", "binary", "scalar", "reflected", "view", "in place"]),
        st.integers(0, 60), st.integers(0, 5), st.integers(0, 5),
    ),
    min_size=10, max_size=20,
)  # fmt: skip


@st.composite
def tensors(draw: st.DrawFn) -> list[T]:
    """One to four tensors whose shapes mostly broadcast, of all kinds of layout."""
    shape = draw(st.lists(st.sampled_from([0, 1, 2, 3, 5]), max_size=3))
    return [_tensor(draw, shape) for _ in range(draw(st.integers(1, 4)))]


def _tensor(draw: st.DrawFn, shape: list[int]) -> T:
    missing = draw(st.integers(0, len(shape))) if draw(st.booleans()) else 0
    own = [draw(st.sampled_from([n, n, n, 1])) for n in shape[missing:]]
    dtype = draw(st.sampled_from(DTYPES))
    layout = draw(st.sampled_from(["contiguous", "contiguous", "transposed", "sliced", "expanded", "offset"]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 16)))

    def values(*sizes: int) -> T:
        made = torch.randn(sizes, generator=generator) * 3
        return (made.abs() if dtype is torch.uint8 else made).to(dtype)

    if layout == "transposed" and len(own) > 1:
        return values(*own[::-1]).permute(*range(len(own))[::-1])
    if layout == "sliced" and own:
        return values(*own[:-1], 2 * own[-1])[..., ::2]
    if layout == "expanded" and own:
        return values(*own[:-1], 1).expand(own)
    if layout == "offset" and own:
        return values(own[0] + 1, *own[1:])[1:]
    return values(*own)


def copy_layout(tensor: T) -> T:
    """A copy with the same strides, expanded ones included."""
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    size = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
    made.as_strided((size,), (1,)).copy_(tensor.as_strided((size,), (1,)))
    return made


def outcome(function: Callable[..., Any], *args: Any) -> tuple[Any, Any]:
    try:
        return function(*args), None
    except Exception as error:
        return None, type(error)


def strides_that_count(tensor: T) -> list[int]:
    """The strides that tell where elements are: not those of axes of one element, nor of tensors without elements."""
    return [s for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1 and tensor.numel()]


def assert_same(found: T, expected: T) -> None:
    assert isinstance(found, torch.Tensor) == isinstance(expected, torch.Tensor)
    if not isinstance(expected, torch.Tensor):
        assert found == expected
        return
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert strides_that_count(found) == strides_that_count(expected)
    tolerance = TOLERANCE.get(expected.dtype, 0.0)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.fixture(autouse=True)
def raise_internal_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "raise_internal_errors", True)


@settings(max_examples=150, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS, inputs=tensors(), numbers=st.lists(st.sampled_from(SCALARS), min_size=4, max_size=4))
def test_random_programs(steps: list[Step], inputs: list[T], numbers: list[Any]) -> None:
    steps = runnable(steps, inputs, numbers)
    program = make_program(steps)
    compiled = quickfuse.compile(program)
    for first, second in (numbers[:2], numbers[:2], numbers[2:]):
        theirs, mine = [copy_layout(t) for t in inputs], [copy_layout(t) for t in inputs]
        expected, error = outcome(program, theirs, first, second)
        found, found_error = outcome(compiled, mine, first, second)
        assert found_error is error
        for a, b in zip([*(found or ()), *mine], [*(expected or ()), *theirs], strict=True):
            assert_same(a, b)


def runnable(steps: list[Step], inputs: list[T], numbers: list[Any]) -> list[Step]:
    """The steps but those that raise at once, of which most random programs would have one; the last may raise."""
    kept: list[Step] = []
    for step in steps:
        attempt = [*kept, step]
        if outcome(make_program(attempt), [copy_layout(t) for t in inputs], *numbers[:2])[1] is None:
            kept = attempt
    return kept if steps[0][2] else [*kept, steps[-1]]
