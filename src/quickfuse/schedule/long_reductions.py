"""Reductions of many elements to few rows are done in two stages, as whole rows would leave threads idle.

The first stage reduces each part of a row, the second one combines the parts. An axis is cut into parts of equal length;
what is left at its end is one part more.

So are reductions of rows of which only a few elements lie together in memory, as those of groups of channels in images with
channels last: each channel is a part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from quickfuse.ir.cost_model import CostModel
from quickfuse.ir.expr import Expr, Load, main_strides
from quickfuse.ir.loop import Access, Buffer, Extern, Loop, Program, Store, StoreKind
from quickfuse.ir.reindex import IndexMap, reindex
from quickfuse.ir.target import costs_on
from quickfuse.ir.values import TensorMeta

from .index_space import Shape, reduced_axes, short_run


def split_long_reductions(program: Program) -> None:
    """Give each long reduction of a program two stages, where its rows are too few."""
    steps: list[Loop | Extern] = []
    for step in program.steps:
        whole = isinstance(step, Extern) or step.stores[0].access.buffer in program.parts
        split = None if whole else _split(step)  # type: ignore[arg-type]
        steps += [step] if split is None else _stages(step, split)  # type: ignore[arg-type]
    program.steps = steps


@dataclass(frozen=True, slots=True)
class _Split:
    """How the `reduced` axes are cut: each index of the axes `whole` is a part of its own, and `axis` is cut into so many
    parts of equal length, the rest of it aside."""

    reduced: Shape
    whole: Sequence[int]
    axis: int
    parts: int


def _split(loop: Loop) -> _Split | None:
    """How a loop's reduction is cut; None where whole rows are as good."""
    shape, store, costs = loop.shape, loop.stores[0], costs_on(loop.device)
    if store.kind is not StoreKind.REDUCE or math.prod(shape) < costs.least_hoisted_from:
        return None
    reduced = reduced_axes(shape, store) or ()
    run = short_run(shape, store.value) if loop.device.type == "cpu" else None
    if run is not None and run[0] in reduced and run[1] not in reduced:
        others = math.prod(shape[k] for k in reduced) // shape[run[0]]
        return _Split(reduced, (), run[0], shape[run[0]]) if others >= costs.least_repeats else None
    if math.prod(shape) < costs.long_reduction:
        return None
    strides = main_strides(len(shape), store.value)
    moving = [k for k, size in enumerate(shape) if size > 1]
    rows = math.prod(shape[k] for k in moving if k not in reduced)
    inner = min(moving, key=lambda k: abs(strides[k]) or math.inf)
    units = rows if inner in reduced else -(-rows // costs.columns_a_row)
    if not reduced or units >= costs.few_rows:
        return None
    whole, axis = _axes_to_cut(shape, sorted(reduced, key=lambda k: -abs(strides[k])), costs)
    if axis is None:
        return None
    times = math.prod(shape[k] for k in whole)
    most = max(min(costs.most_parts, math.prod(shape) // costs.least_part), costs.least_parts)
    most = min(most, -(-costs.most_units // max(units, 1))) if costs.most_units else most
    divisor = max(d for d in range(1, max(most // times, 1) + 1) if shape[axis] % d == 0)
    return _Split(reduced, whole, axis, divisor if divisor * times >= costs.least_parts else costs.parts // times)


def _axes_to_cut(shape: Shape, axes: Sequence[int], costs: CostModel) -> tuple[Sequence[int], int | None]:
    """The outermost axes, each of whose indices is a part of its own, and the axis inside of them that is cut up.

    So each part is as much in one place as can be: parts that lie all over the memory get in each other's way in caches.
    """
    count = 1
    for number, axis in enumerate(axes):
        if count * shape[axis] >= costs.parts:
            return axes[:number], axis
        count *= shape[axis]
    return (), None


def _stages(loop: Loop, split: _Split) -> list[Loop]:
    """The loops that reduce the parts, and the one that combines them."""
    shape, store, axis, ndim = loop.shape, loop.stores[0], split.axis, len(loop.shape)
    length, rest = divmod(shape[axis], split.parts)
    few = [1 if k in split.reduced and k not in split.whole else size for k, size in enumerate(shape)]
    few[axis] = split.parts + (rest > 0)
    meta = TensorMeta.dense(store.value.dtype, tuple(few), loop.device)
    strides = tuple([0 if size == 1 else stride for size, stride in zip(few, meta.stride, strict=True)])
    parts = Access(Buffer(f"{store.access.buffer.name}_parts", meta, "temp"), 0, strides)

    of_equal = IndexMap.cut(ndim, axis, length)
    own = replace(parts, strides=(*strides[: axis + 1], 0, *strides[axis + 1 :]))
    made = [_reduction(loop, (*shape[:axis], split.parts, length, *shape[axis + 1 :]), own, reindex(store.value, of_equal))]
    if rest:
        at_end = IndexMap.along(range(ndim), ndim, tuple([shape[k] - rest if k == axis else 0 for k in range(ndim)]))
        last = Access(parts.buffer, split.parts * strides[axis], (*strides[:axis], 0, *strides[axis + 1 :]))
        made.append(_reduction(loop, (*shape[:axis], rest, *shape[axis + 1 :]), last, reindex(store.value, at_end)))
    return [*made, _reduction(loop, tuple(few), store.access, Load(parts, store.value.dtype))]


def _reduction(loop: Loop, shape: Shape, access: Access, value: Expr) -> Loop:
    store: Store = replace(loop.stores[0], access=access, value=value)
    if not reduced_axes(shape, store):  # a part of one element
        store = replace(store, kind=StoreKind.ASSIGN, combine="")
    return Loop(shape, [store], loop.device)
