"""The metadata of what operators on single elements return, and a few others: by a run, where that takes no time.

What PyTorch itself knows of these operators without data is written in Python, and slow for the first time (`plain_shapes`).
Large tensors of one shape without gaps have results like themselves, of a type that a run on single elements shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ..ir.values import TensorMeta, broadcast_shape
from .layouts import Out, Spec
from .traced import TracedTensor, map_traced

#: Other operators with one new tensor for a result.
_OTHERS = frozenset(
    f"aten::{name}" for name in "norm linalg_vector_norm amax amin any all prod argmax argmin".split()
)
#: Operators whose results are like their first operand, as those of operators on elements are.
_LIKE_FIRST = frozenset(f"aten::{name}" for name in "masked_fill floor_divide fill tril triu cumsum cumprod".split())
#: Operators on elements that are told how to lay out their results.
_COPIES = frozenset({"aten::clone", "aten::_to_copy", "aten::copy"})
#: Larger results are not computed to find out what they look like.
_LARGEST = 1 << 16


def pointwise_spec(function: Any, args: Any, kwargs: Any, tensors: list[TracedTensor]) -> Spec:
    """What `function(*args, **kwargs)` returns, `NotImplemented` where that has to be found in another way."""
    pointwise = torch.Tag.pointwise in function.tags and torch.Tag.nondeterministic_seeded not in function.tags
    pointwise = pointwise or function._schema.name in _LIKE_FIRST
    if not pointwise and function._schema.name not in _OTHERS:
        return NotImplemented
    if function._schema.name in _COPIES or not tensors or any(t.meta.device.type != "cpu" for t in tensors):
        return NotImplemented
    if any(True for a in (*args, *kwargs.values()) if type(a) in (list, tuple) for t in a if type(t) is TracedTensor):
        return NotImplemented
    first, shape = tensors[0].meta, broadcast_shape(*[t.meta.shape for t in tensors])
    if shape is None:
        return NotImplemented
    try:
        if math.prod(shape) <= _LARGEST and all(t.meta.span_bytes <= 8 * _LARGEST for t in tensors):
            made = _run(function, args, kwargs, lambda meta: torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype))
            return Out(TensorMeta(made.dtype, tuple(made.shape), made.stride(), made.device), 0)
        if pointwise and all(t.meta.is_contiguous and t.meta.shape == first.shape for t in tensors):
            made = _run(function, args, kwargs, lambda meta: torch.empty((1,) * meta.ndim, dtype=meta.dtype))
            return Out(TensorMeta(made.dtype, first.shape, first.stride, made.device), 0)
        if pointwise and all(t.meta.is_contiguous and t.meta.numel for t in tensors):
            made = _run(function, args, kwargs, lambda meta: torch.empty([min(n, 2) for n in meta.shape], dtype=meta.dtype))
            if made.is_contiguous():
                return Out(TensorMeta.dense(made.dtype, shape, made.device), 0)
    except Exception:  # the usual way finds the words for it
        return NotImplemented
    return NotImplemented


def _run(function: Any, args: Any, kwargs: Any, make: Callable[[TensorMeta], torch.Tensor]) -> torch.Tensor:
    def ones(tensor: TracedTensor) -> torch.Tensor:
        return make(tensor.meta).fill_(1)

    made = function(*map_traced(ones, args), **map_traced(ones, kwargs))
    if type(made) is not torch.Tensor:
        raise TypeError("several results")
    return made
