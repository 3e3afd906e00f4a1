"""Tensors without data that remember the graph node that computes them.

A `TracedTensor` has the class of dispatch keys of a real tensor on its device, so that PyTorch takes the same decisions
as in eager, and no memory. Autograd works on it as on any tensor: that is how PyTorch's own formulas give the backward
graph.

In eager, tensors share memory and are changed in place. The recorded graph has neither: each piece of memory (`Memory`)
has a node for what it holds now, and a view is that node seen through a chain of view operators (`Step`). Writing to a
tensor gives its memory a new node; views of it find theirs anew when they are next read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from ..ir.gradients import Step
from ..ir.values import TensorMeta


@dataclass(eq=False, slots=True)
class Memory:
    """What one tensor's memory holds: `node` is a tensor of layout `meta`, which begins at `offset`; `input` the position of
    the input it is.

    `version` counts changes, `changes` those that PyTorch knows of: batch normalisation changes its running statistics
    behind autograd's back. `seen_lazily`: forward has a view of it that eager conjugates or negates when it is read.
    `changed_by` is the last node of the captured graph that gave it another history. `zeros`: in eager it is no memory at
    all, but zeros that PyTorch knows to be such, whose product with an infinity is zero too. `part_of`: the tensor whose
    memory it really is, where autograd is told otherwise, as by `_unsafe_view`: what is written here is written there, too.
    """

    node: Node
    meta: TensorMeta
    input: int | None = None
    version: int = 0
    changes: int = 0
    seen_lazily: bool = False
    offset: int = 0
    changed_by: Node | None = None
    zeros: bool = False
    part_of: TracedTensor | None = None


class TracedTensor(torch.Tensor):
    """A tensor in a trace: `memory` seen through the views of `path`; `known` is its node at memory version `seen`."""

    memory: Memory
    path: tuple[Step, ...]
    known: Node
    seen: int
    meta: TensorMeta

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise RuntimeError(f"{function} was called on a traced tensor outside of its trace")


def make_traced(
    meta: TensorMeta, memory: Memory, path: tuple[Step, ...], known: Node, offset: int = 0, requires_grad: bool = False,
    base: TracedTensor | None = None,
) -> TracedTensor:  # fmt: skip
    """A traced tensor; the one place where they are made. A view is an inference tensor where its `base` is one."""
    if base is not None and base.is_inference() != torch.is_inference_mode_enabled():
        with torch.inference_mode(base.is_inference()):
            return make_traced(meta, memory, path, known, offset, requires_grad)
    made: TracedTensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
        TracedTensor, meta.shape, strides=meta.stride, storage_offset=offset, dtype=meta.dtype, device=meta.device,
        requires_grad=requires_grad,
    )  # fmt: skip
    made.memory = memory
    made.path = path
    made.known = known
    made.seen = memory.version
    made.meta = meta
    return made


def cut_from_history(path: tuple[Step, ...]) -> tuple[Step, ...]:
    """What is left of a view's steps for one by strides of the whole memory: that autograd does not get through them."""
    if any(step.function is torch.ops.aten.detach.default for step in path):
        return (Step(torch.ops.aten.detach.default),)
    return () if all(step.with_grad for step in path) else (Step(torch.ops.aten.alias.default, with_grad=False),)


# --- arguments with traced tensors in them ---


def traced_in(value: Any) -> Iterator[TracedTensor]:
    """The traced tensors within arguments."""
    kind = type(value)
    if kind is TracedTensor:
        yield value
    elif kind is list or kind is tuple:
        for element in value:
            yield from traced_in(element)
    elif kind is dict:
        yield from traced_in(list(value.values()))


def map_traced(function: Callable[[TracedTensor], Any], value: Any) -> Any:
    """Arguments with `function(tensor)` in place of each traced tensor."""
    kind = type(value)
    if kind is TracedTensor:
        return function(value)
    if kind is list or kind is tuple:
        return kind([map_traced(function, v) for v in value])
    if kind is dict:
        return {k: map_traced(function, v) for k, v in value.items()}
    return value


def key_of(value: Any) -> Any:
    """Arguments as a key, with the metadata of traced tensors. It can be hashed if all others are plain values."""
    kind = type(value)
    if kind is TracedTensor:
        return value.meta
    if kind is list or kind is tuple:
        return (kind, *[key_of(v) for v in value])
    if kind is dict:
        return tuple([(k, key_of(v)) for k, v in value.items()])
    if kind is float:
        return (float, value.hex())  # 0.0 equals -0.0
    return (kind, value)


def is_leaf(tensor: TracedTensor) -> bool:
    """Whether autograd's graph begins with a tensor. Of a view that was made without gradients PyTorch does not say so once
    its memory has changed: such a leaf was noted where it was made."""
    try:
        return tensor.is_leaf
    except RuntimeError:
        return False
