"""PyTorch's kernels for tensors without data, without its compiler and SymPy."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: Operators of which PyTorch's rule for tensors without data is a Python function, most of which use others.
_KERNELS = """
import sys, types, torch
from quickfuse.ir.meta_kernels import light_meta_kernels
import torch.nn.functional as F

def run():
    x = torch.empty(4, 3, 8, 8, device="meta", memory_format=torch.channels_last)
    row, index = torch.empty(6, 8, device="meta"), torch.empty(6, dtype=torch.long, device="meta")
    return [
        torch.empty_like(x), x.amax(1), x.mean(), x.div(x, rounding_mode="floor"), torch.rsub(x, 2), x.var(1), x.std(),
        F.max_pool2d(x, 2, return_indices=True), row.norm(dim=1), row.roll(1, 0), row.tril(), row.prod(1), row.argmax(1),
        row.masked_fill(row > 0, 0.0), row[index[:2]], row.repeat(2, 1), F.pad(x, (1, 1, 1, 1), mode="reflect"),
        row.cumprod(0), F.binary_cross_entropy_with_logits(row, row), F.smooth_l1_loss(row, row),
        F.scaled_dot_product_attention(x, x, x),
        torch.ops.aten.native_dropout_backward(row, row > 0, 2.0), torch.ops.aten.native_batch_norm_backward(
            x, x, None, None, None, row[:3, 0], row[:3, 0], True, 1e-5, [True, False, False]),
        torch.ops.aten.slice_scatter(row, row[:2], 0, 0, 2), row.clone().copy_(row), torch.randn(3, 4, device="meta"),
    ]

def layouts(found):
    return [layouts(f) if isinstance(f, (tuple, list)) else f is not None and (f.shape, f.stride(), f.dtype) for f in found]
"""


def _run(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", _KERNELS + program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("forked_interpreters")
def test_they_import_nothing_large_and_answer_the_same() -> None:
    _run("""
with light_meta_kernels():
    light = layouts(run())
found = [name for name in ("torch._dynamo", "sympy", "torch.fx.experimental.symbolic_shapes") if name in sys.modules]
assert not found, found
assert layouts(run()) == light
assert "torch._dynamo" not in sys.modules and "sympy" in sys.modules
""")


@pytest.mark.usefixtures("forked_interpreters")
def test_who_asks_for_the_real_modules_gets_them() -> None:
    """Meanwhile and afterwards: names that were imported from the stand-in answer for symbols, too."""
    _run("""
with light_meta_kernels():
    from torch.fx.experimental.symbolic_shapes import guard_or_false, sym_eq
    run()
    assert "sympy" not in sys.modules and sym_eq((1, 2), [1, 2]) and not sym_eq((1,), (1, 2))
    from torch.fx.experimental.symbolic_shapes import ShapeEnv
assert "sympy" in sys.modules
import torch.fx.experimental.symbolic_shapes as real
assert ShapeEnv is real.ShapeEnv and guard_or_false is not real.guard_or_false
from torch.fx.experimental.proxy_tensor import make_fx
seen = []
def size(x):
    seen.append(guard_or_false(x.shape[0] == 4) and sym_eq(x.shape[0], 4))
    return x * 2
make_fx(size, tracing_mode="symbolic")(torch.ones(4, 5))
make_fx(size, tracing_mode="symbolic")(torch.ones(6, 5))
assert list(map(bool, seen)) == [True, False], seen
try:
    guard_or_false(None)
except AssertionError:
    pass
else:
    raise SystemExit("the real function raises")
with light_meta_kernels():
    assert sys.modules["torch.fx.experimental.symbolic_shapes"] is real
""")


@pytest.mark.usefixtures("forked_interpreters")
def test_the_compiler_still_leaves_these_kernels_alone() -> None:
    _run("""
with light_meta_kernels():
    run()
def inside(function):
    return {cell.cell_contents for cell in function.__closure__ or () if isinstance(cell.cell_contents, types.FunctionType)}

divisions = [torch._refs.true_divide]
for function in divisions:
    divisions += inside(function)
[kernel] = [f for f in divisions if hasattr(f, "__dynamo_disable")]
kept = kernel.__dynamo_disable
import torch._dynamo
run()
assert kernel.__dynamo_disable is not kept
def f(x):
    return torch._refs.true_divide(x, 2) + 1
x = torch.ones(3)
assert torch.compile(f, backend="eager")(x).equal(f(x))
""")
