"""Index spaces cut into parts: a value that chooses by where the index is becomes a loop for each of its formulas.

The space is cut where outcomes of comparisons change, and each part has a loop of its own, in which no choice is left. So a
concatenation is stored part by part, together with what is computed from it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import torch

from quickfuse.ir.choices import linear, on_part
from quickfuse.ir.cost_model import COSTS
from quickfuse.ir.expr import COMPARISONS, Const, Expr, Load, Op, walk
from quickfuse.ir.loop import Extern, Loop, Program, Store, StoreKind
from quickfuse.ir.reindex import IndexMap, reindex

from .index_space import Shape

_BEFORE = frozenset({"lt", "ge"})  # outcomes that change at the other operand, not after it


def cut_into_parts(program: Program) -> None:
    """Give each part of a plain store's index space a loop of its own, but for parts of inputs that keep their values."""
    if not program.chooses:
        return
    steps: list[Loop | Extern] = []
    for step in program.steps:
        if isinstance(step, Loop) and len(step.stores) == 1 and step.stores[0].kind is StoreKind.ASSIGN:
            steps += _parts(step, step.stores[0])
        else:
            steps.append(step)
    program.steps = steps


def _parts(loop: Loop, store: Store) -> Iterator[Loop]:
    shape, access = loop.shape, store.access
    cuts = _cuts(store.value, shape)
    if not any(cuts) or math.prod(len(c) + 1 for c in cuts) > COSTS.most_parts_of_space:
        yield loop
        return
    spans = [list(itertools.pairwise([0, *sorted(c), size])) for c, size in zip(cuts, shape, strict=True)]
    for part in itertools.product(*spans):
        moved = IndexMap.along(range(len(shape)), len(shape), tuple([first for first, _ in part]))
        target, value = moved.access(access), on_part(store.value, part)
        value = reindex(value, moved) if any(moved.constants) else value
        if access.buffer.kind != "input" or not isinstance(value, Load) or value.access != target:
            sizes = tuple([end - first for first, end in part])
            yield Loop(sizes, [replace(store, access=target, value=value)], loop.device)


def _cuts(value: Expr, shape: Shape) -> list[set[int]]:
    """For each axis, the indices at which the outcome of a comparison differs from the one before."""
    cuts: list[set[int]] = [set() for _ in shape]
    for node in walk(value):
        if not isinstance(node, Op) or node.name not in COMPARISONS or node.args[0].dtype is not torch.int64:
            continue
        index, limit = node.args
        found_in = linear(index)
        if found_in is None or not isinstance(limit, Const):
            continue
        axis, factor, constant = found_in
        bound = int(limit.value) - constant
        if node.name in ("eq", "ne"):
            found = [bound // factor, bound // factor + 1] if bound % factor == 0 else []
        else:
            # The outcome of `factor * i < bound` changes at the first i that is not below, or at the first that is.
            before = bound if node.name in _BEFORE else bound + 1
            found = [-(-before // factor) if factor > 0 else (-before) // -factor + 1]
        cuts[axis].update(at for at in found if 0 < at < shape[axis])
    return cuts
