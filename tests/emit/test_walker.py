"""The order of loops that the walker goes through, and what builders write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from quickfuse.emit.llvm import emit
from quickfuse.emit.plan import Plan
from quickfuse.emit.triton import emit as emit_triton
from quickfuse.errors import Unsupported
from quickfuse.ir.kernel import Axis, KernelBody, KernelCall, StoreKind
from quickfuse.ir.target import CPU, CpuTarget
from schedule_interpreter import compile_for_test

X = torch.randn(70, 80)
INDEX = torch.arange(70) % 7


def body_of(function: Callable[..., Any]) -> KernelBody:
    """The body of the last kernel of a function of a matrix and row numbers."""
    calls = [step for step in compile_for_test(function, X, INDEX)[0].steps if isinstance(step, KernelCall)]
    return calls[-1].body


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[int, ...], str]] = {
    "elements": (lambda x, i: x.t() + 1, (0,), "assign"),
    "rows": (lambda x, i: x.sum(1), (1,), "reduce assign"),
    "columns": (lambda x, i: x.sum(0), (1, 0), "reduce assign"),
    "scan of rows": (lambda x, i: x.cumsum(1), (1,), "scan assign"),
    "scan of columns": (lambda x, i: x.cumsum(0), (0, 1), "scan assign"),
    "scatter": (lambda x, i: x.index_add(0, i, x), (1, 0), "scatter"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_innermost_loop_is_that_along_memory(name: str) -> None:
    """But running values of scans stay in registers."""
    function, nest, kinds = FUNCTIONS[name]
    body = body_of(function)
    assert Plan(body).nest(body.passes[-1]) == nest
    assert [store.kind for store in body.stores] == [StoreKind(kind) for kind in kinds.split()]


def test_what_is_assigned_once_a_row_comes_after_all_passes() -> None:
    body = body_of(lambda x, i: torch.var_mean(x, 1))
    assert len(body.passes) == 2 and [body.stores[k].kind for k in body.last] == [StoreKind.ASSIGN] * 2
    assert body.axes == (Axis.PARALLEL, Axis.REDUCE) and body.vector == 1


def test_units_of_work() -> None:
    columns, scatter = (body_of(FUNCTIONS[name][0]) for name in ("columns", "scatter"))
    assert CPU.units(columns, (4 * CPU.column_block + 1, 9)) == 5
    assert CPU.units(scatter, (4 * CPU.scatter_block, 9)) == 4
    assert CPU.units(body_of(FUNCTIONS["rows"][0]), (4, 9)) == 4
    assert CPU.units(body_of(FUNCTIONS["elements"][0]), (36,)) == 36


def test_a_target_decides_how_many_vectors_there_are_at_a_time() -> None:
    body = body_of(lambda x, i: x.amax(1))
    phis = [emit(body, "kernel", CpuTarget(32, unroll=unroll)).count("phi <8 x float>") for unroll in ((), ((99, 8),))]
    assert phis[1] > phis[0] + 4


@pytest.mark.parametrize("name", ["elements", "rows", "scan of rows", "scatter"])
def test_both_builders_write_every_kind_of_store(name: str) -> None:
    body = body_of(FUNCTIONS[name][0])
    written = emit_triton(replace(body, device_type="cuda"), "kernel")
    assert "define" in emit(body, "kernel", CPU) and ("tl.store" in written or "tl.atomic_add" in written)


def test_what_a_builder_does_not_write_is_unsupported() -> None:
    """Sums of columns are scheduled in another way for a GPU."""
    with pytest.raises(Unsupported, match="accumulate, which RowsBuilder does not write"):
        emit_triton(replace(body_of(FUNCTIONS["columns"][0]), device_type="cuda"), "kernel")
