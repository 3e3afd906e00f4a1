"""Writing through views: the whole of which a view is a part, with that part replaced.

`parent` and `part` are nodes with their metadata; each entry adds nodes that compute the new parent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..errors import Unsupported
from ..ir.gradients import Step
from ..ir.values import TensorMeta

aten = torch.ops.aten

#: (emit, parent, its metadata, part, step) -> the node of the new parent. `emit(function, *args)` adds a node.
Inverse = Callable[[Callable[..., Any], Any, TensorMeta, Any, Step], Any]


def write_through(emit: Callable[..., Any], parent: Any, meta: TensorMeta, part: Any, step: Step) -> Any:
    """The parent after `part` was written to what `step` shows of it.

    Raises:
        Unsupported: for a view operator without an inverse here.
    """
    inverse = _INVERSES.get(step.function)
    if inverse is None:
        raise Unsupported(f"a change in place through {step.function}")
    return inverse(emit, parent, meta, part, step)


def _whole(emit: Any, parent: Any, meta: TensorMeta, part: Any, step: Step) -> Any:
    return part


def _conjugated(emit: Any, parent: Any, meta: TensorMeta, part: Any, step: Step) -> Any:
    return emit(aten._conj_physical.default, part)


def _negated(emit: Any, parent: Any, meta: TensorMeta, part: Any, step: Step) -> Any:
    return emit(aten.neg.default, part)


def _reshaped(emit: Any, parent: Any, meta: TensorMeta, part: Any, step: Step) -> Any:
    return emit(aten.copy.default, parent, emit(aten.reshape.default, part, list(meta.shape)))


def _transposed(emit: Any, parent: Any, meta: TensorMeta, part: Any, step: Step) -> Any:
    return emit(step.function, part, *step.args)


def _permuted(emit: Any, parent: Any, meta: TensorMeta, part: Any, step: Step) -> Any:
    order = [d % meta.ndim for d in step.args[0]]
    return emit(aten.permute.default, part, [order.index(d) for d in range(meta.ndim)])


def _sliced(emit: Any, parent: Any, meta: TensorMeta, part: Any, step: Step) -> Any:
    return emit(aten.slice_scatter.default, parent, part, *step.args, **dict(step.kwargs))


def _selected(emit: Any, parent: Any, meta: TensorMeta, part: Any, step: Step) -> Any:
    return emit(aten.select_scatter.default, parent, part, *step.args)


def _diagonal(emit: Any, parent: Any, meta: TensorMeta, part: Any, step: Step) -> Any:
    return emit(aten.diagonal_scatter.default, parent, part, *step.args, **dict(step.kwargs))


def _split(emit: Any, parent: Any, meta: TensorMeta, part: Any, step: Step) -> Any:
    size = step.args[0]
    dim = (step.args[1] if len(step.args) > 1 else dict(step.kwargs).get("dim", 0)) % meta.ndim
    assert step.index is not None
    start = sum(size[: step.index]) if isinstance(size, (list, tuple)) else size * step.index
    length = size[step.index] if isinstance(size, (list, tuple)) else size
    return emit(aten.slice_scatter.default, parent, part, dim, start, min(start + length, meta.shape[dim]))


def _strided(emit: Any, parent: Any, meta: TensorMeta, part: Any, step: Step) -> Any:
    return emit(aten.as_strided_scatter.default, parent, part, *step.args, **dict(step.kwargs))


def _unbound(emit: Any, parent: Any, meta: TensorMeta, part: Any, step: Step) -> Any:
    return emit(aten.select_scatter.default, parent, part, step.args[0] if step.args else 0, step.index)


def _from_real(emit: Any, parent: Any, meta: TensorMeta, part: Any, step: Step) -> Any:
    parts = [emit(aten.select.int, part, meta.ndim, k) for k in (0, 1)]
    return emit(aten.copy.default, parent, emit(aten.complex.default, *parts))


def _from_complex(emit: Any, parent: Any, meta: TensorMeta, part: Any, step: Step) -> Any:
    return emit(aten.copy.default, parent, emit(aten.view_as_real.default, part))


_INVERSES: dict[Any, Inverse] = {
    aten.detach.default: _whole, aten.alias.default: _whole, aten.lift_fresh.default: _whole,
    aten.view.default: _reshaped, aten._unsafe_view.default: _reshaped, aten._reshape_alias.default: _reshaped,
    aten.unsqueeze.default: _reshaped, aten.squeeze.default: _reshaped, aten.squeeze.dim: _reshaped,
    aten.squeeze.dims: _reshaped, aten.t.default: _transposed, aten.transpose.int: _transposed,
    aten.permute.default: _permuted, aten.slice.Tensor: _sliced, aten.select.int: _selected,
    aten.diagonal.default: _diagonal, aten.split.Tensor: _split, aten.split_with_sizes.default: _split,
    aten.unbind.int: _unbound, aten.as_strided.default: _strided,
    aten.view_as_real.default: _from_real, aten.view_as_complex.default: _from_complex,
    aten._conj.default: _conjugated, aten._neg_view.default: _negated,
}  # fmt: skip
