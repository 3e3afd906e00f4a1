"""Tensors that are made without contents: PyTorch fills their memory where it is asked for deterministic algorithms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import exact
import quickfuse

MAKERS: dict[str, Callable[..., Any]] = {
    "empty": lambda x: torch.empty(3, dtype=x.dtype), "new_empty": lambda x: x.new_empty(2, 3),
    "empty_like": lambda x: torch.empty_like(x),
    "empty_strided": lambda x: torch.empty_strided((2, 3), (1, 2), dtype=x.dtype),
    "new_empty_strided": lambda x: x.new_empty_strided((2,), (1,)), "a sum": lambda x: (torch.empty_like(x) + x).isnan(),
    "empty_permuted": lambda x: torch.empty_permuted((2, 3), (1, 0), dtype=x.dtype),
    "filled in part": lambda x: torch.empty(4, dtype=x.dtype).index_fill_(0, torch.tensor([1]), 1),
}  # fmt: skip


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32,
                                   torch.uint8, torch.int8, torch.bool, torch.complex64], ids=str)  # fmt: skip
@pytest.mark.parametrize("name", MAKERS)
def test_memory_is_filled(name: str, dtype: torch.dtype) -> None:
    if name == "filled in part" or dtype.is_complex:
        found = exact.differences(MAKERS[name], torch.ones(2, 3).to(dtype))
        assert not [line for line in found if "version" not in line]
    else:
        exact.check(MAKERS[name], torch.ones(2, 3).to(dtype))


@pytest.mark.usefixtures("deterministic")
def test_with_gradients() -> None:
    exact.check(lambda x: (torch.empty(2), x * 2), torch.ones(2, requires_grad=True))


def test_the_setting_is_guarded() -> None:
    compiled = quickfuse.compile(lambda x: torch.empty(3).isnan().all() & (x > 0).all())
    x = torch.ones(3)
    found = []
    try:
        for algorithms, filling in ((False, True), (True, True), (True, False), (False, True), (True, True)):
            torch.use_deterministic_algorithms(algorithms)
            torch.utils.deterministic.fill_uninitialized_memory = filling
            found.append(compiled(x).item())
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = True
    assert found == [False, True, False, False, True]
    assert compiled.graph_count == 3


@pytest.mark.parametrize("bounds", [(-0.0, -9.0, -4.0), (0.0, 3.0), (0, -5, -2), (-0.0, 3.0, 1.5), (1.0, -1.0, -0.5)])
def test_ranges_begin_with_a_zero_of_eagers_sign(bounds: tuple[float, ...]) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, None):
        exact.check(lambda dtype=dtype: torch.arange(*bounds, dtype=dtype))


@pytest.mark.parametrize("needs", [False, True])
def test_asarray_copies_where_it_is_asked_to(needs: bool) -> None:
    x = torch.ones(3, requires_grad=needs)
    exact.check(lambda x: torch.asarray(x, copy=True, requires_grad=needs), x)
    exact.check(lambda x: torch.asarray(obj=x[1:] * 2, copy=True, requires_grad=needs).add_(1), x)
    exact.check(lambda x: torch.asarray(obj=x, dtype=torch.float64, requires_grad=needs), x)
    exact.check(lambda x: torch.asarray(obj=x, requires_grad=needs), x)
