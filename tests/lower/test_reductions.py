"""Rules of reductions against eager, as programs and as emitted kernels: shapes, layouts, types, axes, special values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import quickfuse
from exact import check as check_exactly
from quickfuse.errors import Unsupported
from quickfuse.ir.kernel import KernelCall
from schedule_interpreter import Compiled, check, compile_for_test
from seeding import seed_torch

X = torch.Tensor
Function = Callable[..., Any]


def values(shape: tuple[int, ...], dtype: torch.dtype) -> X:
    seed_torch(0)
    x = torch.rand(shape) * 3 - 0.5  # few signs, so that sums do not cancel: eager rounds them, too
    if dtype is torch.bool:
        return x > 0.5
    return x.abs().to(dtype) if dtype is torch.uint8 else x.to(dtype)


def only_kernels(schedule: Any) -> list[KernelCall]:
    assert all(isinstance(step, KernelCall) for step in schedule.steps), str(schedule)
    return schedule.steps  # type: ignore[no-any-return]


#: Reductions of one axis, of several, and of all.
REDUCTIONS: dict[str, Function] = {
    "sum": lambda x, d, k: x.sum(d, keepdim=k),
    "mean": lambda x, d, k: x.mean(d, keepdim=k),
    "amax": lambda x, d, k: x.amax(d, keepdim=k),
    "amin": lambda x, d, k: torch.amin(x, d, keepdim=k),
    "var": lambda x, d, k: x.var(d, keepdim=k),
    "std": lambda x, d, k: x.std(d, correction=0, keepdim=k),
    "var_mean": lambda x, d, k: torch.var_mean(x, d, keepdim=k),
    "norm2": lambda x, d, k: torch.linalg.vector_norm(x, dim=d, keepdim=k),
    "norm1": lambda x, d, k: torch.linalg.vector_norm(x, 1, dim=d, keepdim=k),
    "norm_inf": lambda x, d, k: torch.linalg.vector_norm(x, math.inf, dim=d, keepdim=k),
    "logsumexp": lambda x, d, k: x.logsumexp(d, keepdim=k),
    "count_nonzero": lambda x, d, k: x.count_nonzero(d),
    "any": lambda x, d, k: (x > 1).any(d, keepdim=k),
    "all": lambda x, d, k: (x > -3).all(d, keepdim=k),
}
#: Reductions of one axis.
OF_AN_AXIS: dict[str, Function] = {
    "prod": lambda x, d, k: x.prod(d, keepdim=k),
    "max": lambda x, d, k: tuple(x.max(d, keepdim=k)),
    "min": lambda x, d, k: tuple(torch.min(x, dim=d, keepdim=k)),
    "argmax": lambda x, d, k: x.argmax(d, keepdim=k),
    "argmin": lambda x, d, k: x.argmin(d, keepdim=k),
    "softmax": lambda x, d, k: x.softmax(d),
    "log_softmax": lambda x, d, k: F.log_softmax(x, d),
}
LAYOUTS: dict[str, Callable[[X], X]] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.mT.contiguous().mT,
    "strided": lambda x: x.repeat(1, 2, 2)[:, ::2, ::2],
    "expanded": lambda x: x[:, :1].expand(x.shape),
    "channels": lambda x: x.permute(1, 2, 0).contiguous().permute(2, 0, 1),
}
AXES: list[Any] = [-1, 1, 0, (0, 2), (-1, 1), (0, 1), (0, 1, 2)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_axes_and_layouts(name: str, layout: str) -> None:
    x = LAYOUTS[layout](values((5, 18, 70), torch.float32))
    ulps = 64 if "norm" in name else 16  # eager adds up squares in float32
    for axes in AXES:
        schedule = check(lambda x, axes=axes: REDUCTIONS[name](x, axes, axes != 1), x, emitted=True, ulps=ulps)
        only_kernels(schedule)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OF_AN_AXIS)
def test_one_axis(name: str, layout: str) -> None:
    x = LAYOUTS[layout](values((5, 18, 70), torch.float32))
    for axis in (-1, 1, 0):
        schedule = check(lambda x, axis=axis: OF_AN_AXIS[name](x, axis, axis == 0), x, emitted=True, ulps=32)
        assert len(only_kernels(schedule)) == 1


@pytest.mark.parametrize("shape", [(1,), (3,), (16,), (17,), (64,), (300,), (1, 1), (7, 1), (1, 9), (33, 65), (2, 200, 3)])
@pytest.mark.parametrize("name", [*REDUCTIONS, *OF_AN_AXIS])
def test_sizes(name: str, shape: tuple[int, ...]) -> None:
    function = REDUCTIONS.get(name) or OF_AN_AXIS[name]
    if shape[-1] == 1 and name in ("var", "var_mean"):
        pytest.skip("no degrees of freedom")
    check(lambda x: function(x, -1, False), values(shape, torch.float32), emitted=True, ulps=32)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int8,
                                   torch.uint8, torch.bool], ids=str)  # fmt: skip
@pytest.mark.parametrize("name", [*REDUCTIONS, *OF_AN_AXIS])
def test_types(name: str, dtype: torch.dtype) -> None:
    function = REDUCTIONS.get(name) or OF_AN_AXIS[name]
    x = values((20, 70), dtype)
    for axis in (0, 1):
        try:
            function(x, axis, False)
        except (RuntimeError, IndexError):
            return
        check(lambda x, axis=axis: function(x, axis, False), x, emitted=True, ulps=32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.bool], ids=str)
def test_all_of_a_tensor(dtype: torch.dtype) -> None:
    functions: list[Function] = [
        lambda x: x.sum(), lambda x: x.prod(), lambda x: torch.max(x), lambda x: x.min(), lambda x: x.any(),
        lambda x: x.all(), lambda x: x.count_nonzero(), lambda x: x.sum(()), lambda x: x.amax(()), lambda x: x.sum((), True),
        lambda x: x.sum(dtype=torch.float64), lambda x: x.sum(dtype=torch.int64), lambda x: x.sum(0, dtype=torch.float32),
    ]  # fmt: skip
    if dtype is not torch.bool:
        functions += [lambda x: x.argmax(), lambda x: x.argmin(keepdim=True)]
    if dtype.is_floating_point:
        functions += [lambda x: x.mean(), lambda x: x.std(), lambda x: x.var(unbiased=False), lambda x: x.var(False),
                      lambda x: x.norm(), lambda x: torch.norm(x, 1), lambda x: x.norm(p=2, dim=0)]  # fmt: skip
    for function in functions:
        for x in (values((6, 11), dtype), values((), dtype)):
            if x.dim() == 0 and function(torch.ones(6, 11).to(dtype)).shape not in ((), (1, 1)):
                continue
            if torch.isnan(torch.as_tensor(function(x)).double()).any():
                continue  # a variance of one element
            only_kernels(check(function, x, emitted=True, ulps=16))


def test_special_values() -> None:
    nan, inf = math.nan, math.inf
    rows = torch.tensor([[1.0, nan, 3, -inf], [inf, 2, inf, 1], [-inf] * 4, [inf, -inf, 0, 1], [nan] * 4, [-0.0] * 4,
                         [0.0, -0.0, 3, 3]])  # fmt: skip
    wide = rows.repeat_interleave(10, 1)
    for function in (REDUCTIONS | OF_AN_AXIS).values():
        for x in (rows, wide):
            check(lambda x, f=function: f(x, 1, False), x, emitted=True, ulps=16)
            check(lambda x, f=function: f(x, 0, False), x.t(), emitted=True, ulps=16)


def test_empty() -> None:
    for function in (lambda x: x.sum(1), lambda x: x.mean(1), lambda x: x.prod(1), lambda x: x.any(1), lambda x: x.all(1),
                     lambda x: x.sum(0), lambda x: x.amax(0), lambda x: x.softmax(1), lambda x: x.norm(dim=1)):  # fmt: skip
        check(function, torch.zeros(3, 0) if function(torch.ones(3, 3)).dim() else torch.ones(0), emitted=True) \
            if not _refuses(function, torch.zeros(3, 0)) else None
        check(function, torch.zeros(0, 3), emitted=True) if not _refuses(function, torch.zeros(0, 3)) else None


def _refuses(function: Function, x: X) -> bool:
    try:
        function(x)
    except (RuntimeError, IndexError):
        return True
    return False


EMPTY: dict[str, Function] = {
    **{f"{name} of all": lambda x, name=name: getattr(x, name)() for name in "max min amax amin argmax argmin".split()},
    **{f"{name} of an axis": lambda x, name=name: getattr(x, name)(0) for name in "max min amax amin argmax argmin".split()},
    "amax of axes": lambda x: x.amax((0, -1)), "aminmax": lambda x: torch.aminmax(x), "median": lambda x: x.median(),
    "maximum norm": lambda x: torch.linalg.vector_norm(x, math.inf), "mode": lambda x: x.mode(0), "std": lambda x: x.std(),
    "sum": lambda x: x.sum(0), "prod": lambda x: x.prod(), "mean": lambda x: x.mean(), "any": lambda x: x.bool().any(0),
    "all": lambda x: x.bool().all(), "softmax": lambda x: x.softmax(0), "logsumexp": lambda x: x.logsumexp(0),
    "unused": lambda x: (x.max(0), x + 1)[1], "topk": lambda x: x.topk(1, 0), "cummax": lambda x: x.cummax(0),
}  # fmt: skip


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)], ids=str)
@pytest.mark.parametrize("name", EMPTY)
def test_tensors_without_elements(name: str, shape: tuple[int, ...], grad: bool) -> None:
    """Nothing is the largest of no elements: eager raises, also where nothing uses the result."""
    check_exactly(EMPTY[name], torch.empty(shape, requires_grad=grad))


@pytest.mark.parametrize("shape", [(1 << 20,), (1000003,), (1024, 300), (3, 100, 1000), (300000, 2), (70000, 5), (961, 512)])
def test_long_reductions_are_done_in_parts(shape: tuple[int, ...]) -> None:
    x = torch.rand(shape)
    for function in (lambda x: x.sum(), lambda x: x.amax(), lambda x: x.sum(0), lambda x: x.mean(-1)):
        check(function, x, emitted=True, ulps=32)


@pytest.mark.parametrize("offset", [0, 1000])
def test_errors_of_sums_are_no_larger_than_those_of_eager(offset: float) -> None:
    x = torch.rand(1 << 21) + offset

    def sums(x: X) -> tuple[X, X, X]:
        return x.sum(), x.view(2048, -1).sum(0), x.view(2048, -1).sum(1)

    schedule, interpreter = compile_for_test(sums, x)
    for found, eager, exact in zip(Compiled(schedule, interpreter.names)(x), sums(x), sums(x.double()), strict=True):
        error, known = ((t.double() / exact - 1).abs().max() for t in (found, eager))
        assert error <= max(known, torch.finfo(x.dtype).eps / 2)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("size", [3, 17, 1000])
def test_equal_elements_have_no_deviation(size: int, axis: int) -> None:
    """Nor has it a gradient then. A mean that is rounded would give it some of the size of one."""
    equal = torch.tensor([0.1, 0.3, 0.7, 1e6 + 0.1], dtype=torch.float64)[:, None].expand(4, size)
    x = equal.clone() if axis else equal.t().clone()

    def deviation(x: X) -> tuple[X, X]:
        x = x.detach().requires_grad_()
        made = x.std(axis)
        made.sum().backward()
        return made.detach(), x.grad

    for made, expected in zip(quickfuse.compile(deviation)(x), deviation(x), strict=True):
        assert torch.equal(made, expected) and not made.any()


def test_sums_in_float64_are_in_float64_altogether() -> None:
    x = torch.rand(3, 1000)
    check(lambda x: (x.sum(dtype=torch.float64), x.double().sum(1), x.t().sum(1, dtype=torch.float64)), x, emitted=True)


FORMS: list[Function] = [
    lambda x: torch.sum(x, (0,), True), lambda x: x.sum([0, 1]), lambda x: torch.mean(input=x, dim=0),
    lambda x: tuple(torch.max(input=x, dim=1)), lambda x: tuple(x.max(-1, True)), lambda x: x.std(0, True),
    lambda x: x.std(0, False, True), lambda x: x.var((0, 1), correction=2), lambda x: x.argmax(dim=None),
    lambda x: torch.softmax(x, dim=1, dtype=torch.float64), lambda x: F.softmax(x, -1, 3, torch.float64),
    lambda x: F.log_softmax(x, dim=0, dtype=torch.float64), lambda x: torch.nn.Softmax(0)(x), lambda x: x.norm(dim=1),
    lambda x: x.norm(2, 1), lambda x: torch.any(x > 2), lambda x: (x > 0).all(dim=(0, 1)), lambda x: x.amax(dim=()),
    lambda x: x.logsumexp((0, 1)), lambda x: torch.max(x, x.flip(0)), lambda x: x.max(torch.tensor(1.0)),
    lambda x: x.sum(axis=1, keepdims=True), lambda x: x.mean(1, dtype=torch.float64), lambda x: x.nansum(),
    lambda x: x.cumsum(0), lambda x: x.half().mean(0), lambda x: (x.half() * 20000).sum(0),
    lambda x: torch.linalg.norm(x, dim=1), lambda x: F.softmin(x, 0), lambda x: x.norm(3), lambda x: x.norm(-1.5, 1),
    lambda x: torch.linalg.vector_norm(x, 0.5, dim=0), lambda x: torch.linalg.vector_norm(x, -math.inf),
    lambda x: torch.special.logsumexp(x, 1), lambda x: x.median(), lambda x: torch.linalg.norm(x),
    lambda x: (x.half() * 20000).mean(0), lambda x: torch.zeros(3, 4).sum(1) + 1, lambda x: torch.ones(20, 30).mean(),
    lambda x: x.sum() * x, lambda x: x.sum(0) + x.sum(1, keepdim=True), lambda x: x.expand(3, *x.shape).sum(0),
]  # fmt: skip


@pytest.mark.parametrize("function", FORMS, ids=range(len(FORMS)))
def test_forms_of_calls(function: Function) -> None:
    check(function, values((20, 30), torch.float32), emitted=True, ulps=32)


def test_inputs_that_are_reduced_and_changed() -> None:
    def function(x: X, y: X) -> tuple[X, X]:
        y.copy_(x.sum(1))
        x.add_(y[:, None]).div_(x.norm())
        return x.amax(0), y

    check(function, values((20, 30), torch.float32), torch.zeros(20), emitted=True, ulps=32)
    check(function, values((30, 20), torch.float32).t(), torch.zeros(20), emitted=True, ulps=32)


@pytest.mark.parametrize("size", [3, 20, 100])
@pytest.mark.parametrize("name", ["amax", "amin", "prod", "sum"])
def test_inputs_that_are_overwritten_by_the_kernel_that_reduces_them(name: str, size: int) -> None:
    """The last elements of a row are loaded, and stored, under a mask."""

    def function(x: X, y: X) -> X:
        result = getattr(x, name)(**({"dim": 0} if name != "prod" else {}))
        x.copy_(y)
        return result

    check(function, values((size,), torch.float32), torch.full((size,), 1000.0), emitted=True, ulps=32)


def test_out_arguments_are_left_to_pytorch() -> None:
    with pytest.raises(Unsupported):
        compile_for_test(lambda x, y: torch.sum(x, 0, out=y), torch.randn(3, 4), torch.zeros(4))


def test_sums_of_one_term_are_no_loops() -> None:
    """The gradient of a loss of classes is zero but at the target; targets that are none count nothing."""
    x, target = torch.randn(5, 700).log_softmax(1), torch.tensor([3, -100, 0, 699, -100])

    def gradient(x: torch.Tensor, target: torch.Tensor, one: torch.Tensor, weight: torch.Tensor) -> Any:
        made = torch.ops.aten.nll_loss_backward(one, x, target, None, 1, -100, weight)
        return made.sum(1), made.bfloat16().float().sum(1), made.sum((0, 1))

    schedule = check(gradient, x, target, torch.tensor(1.0), torch.tensor(3.0))
    assert str(schedule).count("sum=") == 1, str(schedule)  # that of all elements

    def others(x: torch.Tensor, k: torch.Tensor, columns: torch.Tensor) -> Any:
        here = columns == k[:, None]
        return torch.where(here, x, 0.0).sum(1), torch.where(here & (x > 0), k[:, None] * 1.0, 0.0).sum(1)

    schedule = check(others, x, target, torch.arange(700), ulps=16)
    assert str(schedule).count("sum=") == 2
