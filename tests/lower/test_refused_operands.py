"""Operands that eager refuses when it runs: of other types or shapes, numbers beyond the range of a type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

import quickfuse
from differential import check

INFINITY, NO_NUMBER = float("inf"), float("nan")


@pytest.fixture(autouse=True)
def raise_internal_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quickfuse.config, "raise_internal_errors", True)


NUMBERS: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "full_like": torch.full_like,
    "full": lambda x, n: torch.full((300,), n, dtype=x.dtype),
    "fill_": lambda x, n: x.fill_(n),
    "masked_fill": lambda x, n: x.masked_fill(x > 1, n),
    "index_fill": lambda x, n: x.index_fill(0, torch.tensor([0]), n),
    "scatter": lambda x, n: x.scatter(0, torch.tensor([0]), n),
    "an element": lambda x, n: (x.__setitem__(0, n), x)[1],
    "elements by a mask": lambda x, n: (x.__setitem__(x > 1, n), x)[1],
    "tensor": lambda x, n: torch.tensor([n], dtype=x.dtype),
    "threshold": lambda x, n: functional.threshold(x, 1, n),
    "scalar_tensor": lambda x, n: torch.scalar_tensor(n, dtype=x.dtype),
    "add": lambda x, n: torch.add(x, x, alpha=n),
}


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float16])
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_beyond_a_types_range(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor([1, 2]).to(dtype)
    numbers = [2.0, 3.0, INFINITY, NO_NUMBER, 1e30, -1.0, 300.0, 2.0]
    function = NUMBERS[name]
    check(function, *[(x, n) for n in numbers])
    for n in numbers:
        check(lambda x, n=n: function(x, n), (x,))


ROWS = torch.tensor([0, 2])
TYPES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "index_put_": lambda x, y: x.index_put_((ROWS,), y),
    "index_put_ accumulating": lambda x, y: x.index_put_((ROWS,), y, accumulate=True),
    "setitem": lambda x, y: (x.__setitem__(ROWS, y), x)[1],
    "setitem by a slice": lambda x, y: (x.__setitem__(slice(1, 3), y), x)[1],
    "index_add": lambda x, y: x.index_add(0, ROWS, y),
    "index_copy": lambda x, y: x.index_copy(0, ROWS, y),
    "scatter": lambda x, y: x.scatter(0, ROWS, y),
    "scatter_add": lambda x, y: x.scatter_add(0, ROWS, y),
    "binary_cross_entropy": lambda x, y: functional.binary_cross_entropy(x[:2].sigmoid(), y),
    "batch_norm": lambda x, y: functional.batch_norm(x[None, :2], x[:2], x[1:] ** 2, y),
    "layer_norm": lambda x, y: functional.layer_norm(x[:2], (2,), y),
    "group_norm": lambda x, y: functional.group_norm(x[None, :2], 1, y),
    "group_norm without weights": lambda x, y: functional.group_norm(x[None, :2], 1, None, y),
    "huber_loss": lambda x, y: functional.huber_loss(y, x[:2]),
    "multilabel_soft_margin_loss": lambda x, y: functional.multilabel_soft_margin_loss(x[None, :2], y[None]),
    "adaptive_max_pool3d": lambda x, y: functional.adaptive_max_pool3d(y.expand(1, 2, 2, 2, 2), 1),
    "masked.cumsum": lambda x, y: torch.masked.cumsum(y, 0, dtype=y.dtype),
    "masked.var": lambda x, y: torch.masked.var(y, 0, mask=x[:2] > 0),
    "masked.argmax": lambda x, y: torch.masked.argmax(y, 0),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.float64, torch.float16, torch.bool])
@pytest.mark.parametrize("name", TYPES)
def test_operands_of_another_type(name: str, dtype: torch.dtype) -> None:
    check(TYPES[name], (torch.randn(3), torch.ones(2, dtype=dtype)))


SHAPES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "diagonal_scatter": torch.diagonal_scatter,
    "diagonal_scatter above": lambda x, y: x.diagonal_scatter(y, 1),
    "select_scatter": lambda x, y: x.select_scatter(y, 0, 0),
    "select_scatter of the second axis": lambda x, y: x.select_scatter(y, 1, -1),
    "select_scatter of none": lambda x, y: x.select_scatter(y, 0, 9),
    "slice_scatter": lambda x, y: x.slice_scatter(y, 0, 1, 3),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("shape", [(3, 4), (4,), (), (0, 4)], ids=str)
def test_scatters_of_other_shapes(shape: tuple[int, ...], name: str) -> None:
    for part in ((), (1,), (3,), (4,), (2, 3), (2, 4), (1, 1)):
        check(SHAPES[name], (torch.randn(shape), torch.ones(part)))


@pytest.mark.parametrize("function", [functional.softmin, functional.softmax, torch.logsumexp, torch.cumsum])
def test_axes_that_a_tensor_has_not(function: Callable[..., Any]) -> None:
    check(lambda x: function(x, 1), (torch.ones(()),), (torch.ones(3),), (torch.ones(2, 3),))


@pytest.mark.parametrize("value", [(1,), (1, 1), (1, 3), (3,), (1, 1, 1)], ids=str)
def test_assignment_leaves_leading_axes_of_length_one_away(value: tuple[int, ...]) -> None:
    def assign(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = x * 2
        z[1] = y
        x[0, :] = y
        x[2, 0] = y.sum()[None, None]
        return z

    check(assign, (torch.randn(3, 3), torch.ones(value)))


def test_bools_of_numpy_are_floats_in_arithmetic() -> None:
    np = pytest.importorskip("numpy")
    for function in (torch.Tensor.__add__, torch.mul, lambda x, n: x**n, lambda x, n: x if n else -x):
        check(function, *[(torch.tensor([-1, 3]), np.bool_(value)) for value in (True, False, True)])


LISTS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "a number": lambda x, y: torch._foreach_add_([x, y], -2.5),
    "a tensor of one element": lambda x, y: torch._foreach_add_([x, y], torch.tensor(1.5)),
    "a wider tensor of one element": lambda x, y: torch._foreach_add([x, y], torch.tensor(1.5, dtype=torch.float64))[0] + 1,
    "a complex one": lambda x, y: torch._foreach_mul([x, y], torch.tensor(2j))[0] + 1,
    "quotients": lambda x, y: torch._foreach_div_([x, y], 2),
    "roots": lambda x, y: torch._foreach_sqrt_([x, y]),
    "lists": lambda x, y: torch._foreach_mul_([x], [y + 0.5]),
    "copies": lambda x, y: torch._foreach_copy_([x], [y + 0.5]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bool])
@pytest.mark.parametrize("name", LISTS)
def test_lists_of_another_type(name: str, dtype: torch.dtype) -> None:
    x, y = torch.tensor([1, 0, 3]).to(dtype), torch.tensor([4, 1, 0]).to(dtype)
    check(lambda x, y: (LISTS[name](x, y), x, y)[0], (x, y), (x + y, y))


def test_types_without_a_common_one() -> None:
    x = torch.ones(3, dtype=torch.uint16)
    check(lambda x, y: torch.kron(x, y), (x, torch.ones(3, dtype=torch.bool)), (torch.ones(3), torch.ones(3)))
    check(lambda x: x.type_as(3), (x,))


@pytest.mark.parametrize("value", [-5, -1.0, 255, 256])
def test_numbers_around_a_tensor_of_bytes(value: float) -> None:
    check(lambda x: functional.pad(x, (1, 1), value=value), (torch.ones(2, dtype=torch.uint8),))


@pytest.mark.parametrize(
    "put",
    [
        lambda x, y: x.select_scatter(y, -1, -1), lambda x, y: torch.select_scatter(x, src=y, dim=0, index=1),
        lambda x, y: x.slice_scatter(y[None], 0, 0, 1), lambda x, y: torch.slice_scatter(x, y[None], end=1),
        lambda x, y: torch.diagonal_scatter(x, y[:, 0], 1, dim1=1, dim2=2)[:, :, 0],
    ],
)  # fmt: skip
@pytest.mark.parametrize("grad", [False, True])
def test_parts_of_another_shape(put: Callable[..., torch.Tensor], grad: bool) -> None:
    """Also where nothing uses the result."""
    shapes = [(4, 4), (5, 5), (1, 1)]
    for used in (True, False):
        function = put if used else lambda x, y: (put(x, y), y * 2)[1]
        for shape in shapes:
            check(function, (torch.randn(4, 4, 4), torch.randn(shape, requires_grad=grad)))
