"""Functions that are written into kernels: right to about one unit in the last place, for every width of vectors."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import pytest
import torch

from cpu_runner import Data, run
from kernel_bodies import pointwise_body
from quickfuse.emit.llvm import emit
from quickfuse.emit.llvm_functions import FUNCTIONS
from quickfuse.emit.llvm_math import host_target
from quickfuse.ir.expr import Op
from quickfuse.ir.kernel import KernelBody, Slot, SlotLoad
from quickfuse.ir.target import CpuTarget

F32 = torch.float32
REFERENCES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"exp": torch.exp, "erf": torch.erf}
TARGETS = [CpuTarget(size, libmvec) for size in (32, 64) if size <= host_target().vector_bytes for libmvec in (True, False)]


def body(name: str) -> KernelBody:
    slots = (Slot(F32, (1,), "r"), Slot(F32, (1,), "w"))
    return pointwise_body("cpu", 1, slots, (), ((1, Op(name, (SlotLoad(0, F32),), F32)),))


def applied(name: str, x: torch.Tensor, target: CpuTarget) -> torch.Tensor:
    result = torch.empty_like(x)
    run(body(name), [Data((len(x),), [x, result])], target=target)
    return result


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors(name: str, target: CpuTarget) -> None:
    for low, high in ((-104.0, 89.0), (-88.0, -86.0), (-5.0, 5.0), (-1.0, 1.0), (-1e-3, 1e-3)):
        x = torch.linspace(low, high, 100_003)
        exact = REFERENCES[name](x.double())
        rounded = exact.float()
        finite = torch.isfinite(rounded)
        found = applied(name, x, target)
        assert torch.equal(found[~finite], rounded[~finite])
        unit = (torch.nextafter(rounded.abs(), torch.tensor(math.inf)) - rounded.abs()).double()
        assert ((found.double() - exact).abs()[finite] / unit[finite]).max() < 1.3


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values(name: str, target: CpuTarget) -> None:
    x = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-40, -1e-40, 1e38, -1e38, 88.8, -150.0])
    found, expected = applied(name, x, target), REFERENCES[name](x)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-45, equal_nan=True)
    assert torch.equal(torch.signbit(found[1:]), torch.signbit(expected[1:]))


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_what_vanishes_is_not_computed(target: CpuTarget) -> None:
    """An underflow takes a processor a hundred times as long as any other result. Its flag says whether there was one."""
    libm, underflow = ctypes.CDLL("libm.so.6"), 0x10
    x = torch.tensor([-math.inf, -1e30, -150.0, -104.5, -80.0, 0.0, 1.0]).repeat(11)
    result = torch.empty_like(x)
    data = [Data((len(x),), [x, result])]
    run(body("exp"), data, target=target)
    libm.feclearexcept(underflow)
    run(body("exp"), data, target=target)
    assert not libm.fetestexcept(underflow)
    assert torch.equal(result == 0, x < -104)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_without_fused_multiplication_libm_is_called(name: str) -> None:
    assert f"{name}f" in emit(body(name), "kernel", CpuTarget(16, False))
