"""Emitted kernels with reductions: vectors along rows and across columns, on every vector unit, with threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from quickfuse.emit.llvm import emit
from quickfuse.emit.llvm_math import host_target
from quickfuse.ir.kernel import KernelCall
from quickfuse.ir.target import CPU, CpuTarget
from schedule_interpreter import Compiled, assert_same, compile_for_test
from trace_helper import copy_inputs

TARGETS = [
    CpuTarget(width, libmvec)
    for width in (16, 32, 64)
    for libmvec in (False, True)
    if width <= host_target().vector_bytes and libmvec <= host_target().libmvec
]
X = torch.Tensor
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sum": lambda x: x.sum(-1),
    "softmax": lambda x: x.softmax(-1),
    "softmax of columns": lambda x: x.softmax(0),
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "moments of columns": lambda x: torch.var_mean(x, 0),
    "maximum": lambda x: tuple(x.max(-1)),
    "minimum of columns": lambda x: tuple(x.min(0)),
    "any": lambda x: ((x > 2).any(-1), (x > -2).all(0)),
    "bf16": lambda x: x.bfloat16().sum(-1),
    "integers": lambda x: ((x * 10).long().sum(0), (x * 10).int().amax(1), (x * 5).long().prod(1)),
    "blocks": lambda x: x.view(x.shape[0], -1, 3).transpose(0, 1).sum((1, 2)),
}


def compare(function: Callable[..., Any], x: X, target: CpuTarget | None, threads: int) -> None:
    schedule, interpreter = compile_for_test(function, x)
    expected = interpreter(*copy_inputs([x]))
    compiled = Compiled(schedule, interpreter.names)
    compiled.target, compiled.threads = target, threads
    for actual, wanted in zip(compiled(*copy_inputs([x])), expected, strict=True):
        assert_same(actual, wanted, ulps=16)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: f"{8 * t.vector_bytes}{'+libmvec' * t.libmvec}")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_vector_unit(name: str, target: CpuTarget) -> None:
    for shape in ((3, 9), (70, 150), (CPU.column_block, 2 * CPU.column_block - 2)):
        compare(FUNCTIONS[name], torch.randn(shape), target, threads=1)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_threads_share_rows_and_blocks_of_columns(name: str) -> None:
    for shape in ((1, 3), (33, 129), (5, 300), (300, 6)):
        for threads in (2, 3):
            compare(FUNCTIONS[name], torch.randn(shape), None, threads)


def test_several_reduced_axes() -> None:
    x = torch.randn(6, 5, 4, 7)
    for function in (
        lambda x: x.sum((0, 2, 3)), lambda x: x.transpose(1, 3).amax((0, 2)), lambda x: x.sum((1, 3)),
        lambda x: x.mean((0, 1, 3), keepdim=True) - x, lambda x: x[:, ::2, :, 1::2].sum((1, 3)),
        lambda x: (x * torch.arange(7)).sum((1, 3)), lambda x: x.argmax(), lambda x: x.permute(3, 1, 0, 2).argmax(),
        lambda x: x + x.flatten(2).var(2)[:, :, None, None],
    ):  # fmt: skip
        compare(function, x, None, threads=2)


def test_a_pass_goes_through_several_vectors_at_a_time() -> None:
    (call,) = compile_for_test(lambda x: x.sum(-1), torch.randn(4, 100))[0].steps
    assert isinstance(call, KernelCall)
    ir = emit(call.body, "sum", CpuTarget(vector_bytes=32, libmvec=False))
    assert ir.count("fadd <8 x double>") >= 4 and "sum.unit" in ir and "phi <8 x double>" in ir


def test_exponentials_of_softmax_are_computed_once() -> None:
    (call,) = compile_for_test(lambda x: x.softmax(-1), torch.randn(4, 100).double())[0].steps
    assert isinstance(call, KernelCall)
    ir = emit(call.body, "softmax", CpuTarget(vector_bytes=32, libmvec=host_target().libmvec))
    calls = [line for line in ir.splitlines() if "call <4 x double>" in line and "exp(" in line]
    assert len(calls) == 2  # in whole vectors, and in the tail
