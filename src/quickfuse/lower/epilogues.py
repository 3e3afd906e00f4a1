"""Activations that the libraries compute as they store a product or a convolution: epilogues.

A loop that only takes the activation of a product, which nobody else reads, reads and writes it once more: for 8192 x 3072
elements of bfloat16, the first linear layer of a transformer's block, 28 of 88 us on an H200. cuBLAS adds the ReLU for
nothing, bit for bit as the loop computes it, and the GELU by tanh for 7 us. That has an error of 5e-6, as the library's tanh
has fewer bits; eager's own of 16 bits is as large, as it rounds what GELU is taken of. In single precision the loop stays.

Of 16 bits, cuDNN computes convolution, bias and ReLU in little more time than the convolution, and rounds once, where eager
rounds before the bias and after: 64 to 256 channels of 56 x 56 pixels, 32 images, take 29 us for 45. In single precision it
takes as long as a kernel after it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import torch

from quickfuse.ir.convolution import ActivatedConvolution
from quickfuse.ir.expr import Const, Expr, Load, Op, walk
from quickfuse.ir.loop import Access, Buffer, Extern, Loop, Program, Store, StoreKind, View, as_view, buffers_in, memory_at
from quickfuse.ir.products import ActivatedProduct, SmallProduct
from quickfuse.ir.reindex import IndexMap, reindex
from quickfuse.ir.target import costs_on
from quickfuse.ir.values import TensorMeta

from . import ops
from .activations import gelu
from .promotion import COMPUTE
from .small_products import factors_of, memory_of
from .step_order import StepReads
from .symbolic import whole_load

_HALF = frozenset({torch.bfloat16, torch.float16})


def join_activations(program: Program) -> None:
    """Have calls compute the activation of their result, where a loop does nothing else and nothing else reads it."""
    joined = {step.outputs[0]: forms for step in program.steps if isinstance(step, Extern) and (forms := _forms(step))}
    images = {step.outputs[0]: step for step in program.steps if isinstance(step, Extern) and _is_convolution(step)}
    if not joined and not images:
        return
    reads, uses = StepReads(), dict.fromkeys([*joined, *images], 0)
    for buffer in [b for step in program.steps for b in reads.of(step)] + list(buffers_in(program.outputs)):
        if buffer in uses:
            uses[buffer] += 1
    made: dict[Buffer, list[Loop | Extern]] = {}
    steps: list[Loop | Extern] = []
    for step in program.steps:
        calls = None
        if isinstance(step, Loop):
            calls = _activated(step, joined) or _activated_convolution(step, images)
        if calls is None or uses[calls.replaced] != 1:
            steps.append(step)
        else:
            made[calls.replaced] = calls.steps
            program.optional.discard(calls.steps[-1].writes[0])
    program.steps = [new for step in steps for new in (made.get(step.writes[0], [step]) if step.writes else [step])]


@dataclass(frozen=True)
class _Calls:
    """What takes the place of the call whose result is `replaced`, and of the loop that reads it."""

    replaced: Buffer
    steps: list[Loop | Extern]


def _forms(call: Extern) -> dict[str, Any]:
    """For each activation that the library knows, this call with it."""
    if type(call.target) is SmallProduct:
        return {} if call.target.activated else {"relu": replace(call, target=replace(call.target, activated=True))}
    if call.kwargs or call.draws or call.after or len(call.outputs) != 1:
        return {}
    meta = call.outputs[0].meta
    if meta.device.type != "cuda" or not meta.is_contiguous:
        return {}
    left, right, bias = factors_of(call)
    if left is None or right is None or not isinstance(bias, (Buffer, View)) or len(left.shape) != 2:
        return {}
    row = as_view(bias)
    if not _fits(meta, left, right, row):
        return {}
    places = [memory_of(view) for view in (row, left, right)]
    known = ("relu", "gelu") if meta.dtype in _HALF else ("relu",)
    return {name: replace(call, target=ActivatedProduct(meta.shape, name), args=tuple(places)) for name in known}


def _fits(meta: TensorMeta, left: View, right: View, row: View) -> bool:
    """Whether cuBLAS is called in the way that has epilogues. PyTorch takes another one for a single row or column."""
    (rows, depth), columns = left.shape, right.shape[1]
    if min(rows, columns, depth) < 2 or (row.shape, row.stride) != ((columns,), (1,)):
        return False
    if any(view.buffer.meta.dtype is not meta.dtype for view in (left, right, row)):
        return False
    if meta.dtype is not torch.float32:
        return meta.dtype in _HALF
    # Large products of single precision take longer with their bias where they are deep: see `biases.py`.
    return columns >= depth or meta.nbytes < costs_on(meta.device).least_product_without_bias


def _activated(loop: Loop, joined: dict[Buffer, dict[str, Extern]]) -> _Calls | None:
    """The call that computes what a loop does, if that is the activation of a call's result."""
    found = _whole(loop, joined)
    if found is None:
        return None
    result, load, value = found
    wide = ops.via(load, COMPUTE[result.meta.dtype])
    for name, call in joined[load.access.buffer].items():
        if value == ops.via(_FORMULAS[name](wide), result.meta.dtype):
            return _Calls(load.access.buffer, [replace(call, outputs=[result])])
    return None


def _whole(loop: Loop, calls: Collection[Buffer]) -> tuple[Buffer, Load, Expr] | None:
    """The buffer that a loop stores, the load of a call's result, which lies as that, and the value."""
    store = loop.stores[0]
    result, meta = store.access.buffer, store.access.buffer.meta
    if len(loop.stores) != 1 or store.kind is not StoreKind.ASSIGN or result.kind not in ("temp", "output"):
        return None
    loads = {node for node in walk(store.value) if isinstance(node, Load) and node.access.buffer in calls}
    if len(loads) != 1 or store.access != whole_load(result).access or loop.shape != meta.shape:
        return None
    (load,) = loads
    made = load.access.buffer.meta
    same = (meta.shape, meta.stride, meta.dtype) == (made.shape, made.stride, made.dtype)
    return (result, load, store.value) if same and load == whole_load(load.access.buffer) else None


def _relu(x: Expr) -> Expr:
    return ops.maximum(x, 0)


_FORMULAS = {"relu": _relu, "gelu": lambda x: gelu.compute(x, "tanh")}


# --- convolutions ---

def _is_convolution(call: Extern) -> bool:
    """Whether cuDNN may compute a convolution and its ReLU in one kernel. Nobody tells it to choose a deterministic one."""
    if call.target is not torch.convolution or len(call.args) != 9 or call.args[2] is not None:
        return False
    meta, (transposed, _, groups) = call.outputs[0].meta, call.args[6:]
    if meta.device.type != "cuda" or meta.dtype not in _HALF or transposed or groups != 1:
        return False
    return not (torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled())


def _activated_convolution(loop: Loop, images: dict[Buffer, Extern]) -> _Calls | None:
    """The convolution that computes what a loop does, if that adds a bias to a convolution's result and takes the ReLU."""
    found = _whole(loop, images)
    if found is None:
        return None
    result, load, value = found
    dtype = result.meta.dtype
    compute = COMPUTE[dtype]
    added = next((node for node in walk(value) if isinstance(node, Op) and node.name == "add"), None)
    if added is None or added.args[0] != ops.via(load, compute):
        return None
    biased = ops.via(ops.via(added, dtype), compute)
    bias = _of_channels(added.args[1])
    if bias is None or value != ops.via(_relu(biased), dtype):
        return None
    call = images[load.access.buffer]
    meta = TensorMeta.dense(dtype, (result.meta.shape[1],), result.meta.device)
    row: Buffer | View = Buffer(f"{result.name}_bias", meta, "temp")
    before: list[Loop | Extern] = []
    inner = bias.args[0] if isinstance(bias, Op) else bias
    if isinstance(inner, Load) and inner.dtype is dtype and inner.access.strides == (1,):
        row = memory_at(inner.access.buffer, meta.shape, (1,), inner.access.offset)
    else:
        before = [Loop(meta.shape, [Store(Access(row, 0, (1,)), ops.via(bias, dtype))], meta.device)]
    made = replace(call, target=ActivatedConvolution(*call.args[3:6]), args=(*call.args[:2], row), outputs=[result])
    return _Calls(load.access.buffer, [*before, made])


def _of_channels(bias: Expr) -> Expr | None:
    """What is added to an image, as a function of the channel. What is read of inputs is there before the convolution."""
    loads = [node for node in walk(bias) if isinstance(node, Load)]
    nodes = all(isinstance(node, (Load, Const)) or (isinstance(node, Op) and node.name == "cast") for node in walk(bias))
    if not nodes or not loads or any(load.access.buffer.kind != "input" or any(load.access.strides[::2]) for load in loads):
        return None
    if any(load.access.strides[3] for load in loads):
        return None
    return reindex(bias, IndexMap((0,) * 4, ((0,), (1,), (0,), (0,)), 1))
