"""What a loop computes again and again is computed once before: loop-invariant code motion.

Normalising images by `(x - mean[c]) / sqrt(variance[c] + eps)` takes a root and a division an element, though they depend on
the channel alone. Such a part of a value becomes a loop of its own over the axes on which it depends. That loop is small,
is mostly put into a kernel with others of its kind, and costs nothing where it comes with the rows of a reduction.

Where neighbours in memory are few, as the channels of a group with channels last, what is the same for all of them is stored
for each. Then all operands go on along the next axis as along this one, and both become one that is long enough for vectors.

A scan or scatter along neighbours in memory handles one element at a time. What is costly of what it scans or stores is
computed by vectors before (and what is costly of what is made of the result, after: `fusion.py`).

On a GPU, a program computes what is the same for a row once, but what is the same for a column, as what belongs to a channel
that lies last, again in each of its many programs: 60 of 67 instructions an element of a batch norm in bfloat16. Only that
is moved there, out of loops that do not reduce. It mostly becomes part of the kernel that computes what it depends on.
"""

from __future__ import annotations

import math

import torch

from quickfuse.ir.expr import Expr, Index, Load, Op, Place, Previous, main_strides, walk
from quickfuse.ir.loop import Access, Buffer, Extern, Loop, Program, Store, StoreKind
from quickfuse.ir.reindex import IndexMap, reindex, replace_parts
from quickfuse.ir.target import OPERATION_COSTS, costs_on
from quickfuse.ir.values import TensorMeta, stride_in_order

from .index_space import one_by_one, short_run


def hoist(program: Program) -> None:
    """Move costly parts of loops that do not depend on all axes into loops before.

    What several loops of one shape have in common is moved once.
    """
    steps: list[Loop | Extern] = []
    known: dict[object, dict[int, tuple[Expr, Load]]] = {}
    for step in program.steps:
        if isinstance(step, Loop) and _is_large(step):
            run = short_run(step.shape, step.stores[0].value) if step.device.type == "cpu" else None
            steps += _Hoisting(step, len(steps), run, known.setdefault((step.shape, run), {})).run()
        steps.append(step)
    program.steps = steps


def _is_large(loop: Loop) -> bool:
    """Whether a launch more may be worth it."""
    if math.prod(loop.shape) >= costs_on(loop.device).least_hoisted_from:
        return True
    return any(one_by_one(loop.shape, store, loop.device) for store in loop.stores)


def _column_of(loop: Loop) -> int:
    """The axis of neighbours in memory of a loop that does not reduce, or else -1."""
    if any(store.kind is not StoreKind.ASSIGN for store in loop.stores):
        return -1
    strides = loop.stores[0].access.strides
    return next((k for k, size in enumerate(loop.shape) if size > 1 and strides[k] == 1), -1)


class _Hoisting:
    def __init__(
        self, loop: Loop, number: int, short_run: tuple[int, int] | None, known: dict[int, tuple[Expr, Load]]
    ) -> None:
        self.loop, self.short_run = loop, short_run
        self.limits = costs_on(loop.device)
        self.column = _column_of(loop) if loop.device.type != "cpu" else None
        self.one_by_one = any(one_by_one(loop.shape, store, loop.device) for store in loop.stores)
        self.known = known  # what was moved out of loops of this shape, by id
        self.prefix = f"hoisted{number}"
        self.made: list[Loop] = []
        self.axes: dict[int, frozenset[int] | None] = {}  # None: cannot be moved
        self.costs: dict[int, int] = {}
        self.loading: set[int] = set()  # what is computed from memory

    def run(self) -> list[Loop]:
        roots = [root for store in self.loop.stores for root in store.roots]
        nodes = walk(*roots)
        for node in nodes:
            self._measure(node)
        moved: dict[int, Expr] = {}
        for node in self._to_move(roots, nodes):
            if id(node) not in self.known:
                self.known[id(node)] = (node, self._moved(node))
            moved[id(node)] = self.known[id(node)][1]
        if moved:
            self.loop.stores = [store.rewritten(lambda value: replace_parts(value, moved)) for store in self.loop.stores]
        return self.made

    def _measure(self, node: Expr) -> None:
        axes: frozenset[int] | None = frozenset()
        cost = 0
        if isinstance(node, (Load, Place)):
            shape = self.loop.shape
            axes = frozenset(k for k, s in enumerate(node.access.strides) if s and shape[k] > 1)
            self.loading.add(id(node))
        elif isinstance(node, Index):
            axes = frozenset((node.axis,))
        elif isinstance(node, Previous):
            axes = None
        elif isinstance(node, Op):
            parts = [self.axes[id(arg)] for arg in node.args]
            axes = None if None in parts else frozenset().union(*[part for part in parts if part is not None])
            own = OPERATION_COSTS.get(node.name, 1 if node.dtype is torch.float64 else 0)
            cost = own + sum(self.costs[id(arg)] for arg in node.args)
            if any(id(arg) in self.loading for arg in node.args):
                self.loading.add(id(node))
        self.axes[id(node)], self.costs[id(node)] = axes, cost

    def _is_worth_it(self, node: Expr) -> bool:
        axes = self.axes[id(node)]
        if not axes:  # kernels compute what is one number once, of themselves
            return False
        if self.one_by_one and self.costs[id(node)] >= self.limits.most_one_by_one:
            only_widens = isinstance(node, Op) and node.name == "cast" and node.dtype.itemsize > node.args[0].dtype.itemsize
            return not only_widens
        if self.column is not None and (self.column not in axes or id(node) not in self.loading):
            return False
        if self.costs[id(node)] < self.limits.least_hoisted_cost and not self._keeps_axes_apart(axes):
            return False
        count = math.prod(self.loop.shape[k] for k in self._stored_along(axes))
        return count * self.limits.least_hoisted_repeats <= math.prod(self.loop.shape)

    def _keeps_axes_apart(self, axes: frozenset[int]) -> bool:
        """Whether a value is the same for few neighbours in memory, and another one for the next ones."""
        return self.short_run is not None and self.short_run[0] not in axes and self.short_run[1] in axes

    def _stored_along(self, axes: frozenset[int]) -> list[int]:
        """The axes along which a value is stored that depends on some."""
        return sorted({*axes, self.short_run[0]} if self.short_run and self._keeps_axes_apart(axes) else axes)

    def _to_move(self, roots: list[Expr], nodes: list[Expr]) -> list[Expr]:
        """The parts that are worth it, without those that are only needed for others of them."""
        needed = {id(root) for root in roots}
        found = []
        for node in reversed(nodes):  # users come before what they use
            if id(node) in needed and isinstance(node, (Op, Load)):
                if self._is_worth_it(node):
                    found.append(node)
                elif isinstance(node, Op):
                    needed.update(map(id, node.args))
        return found[::-1]

    def _moved(self, node: Expr) -> Load:
        """A load of what a new loop stores."""
        axes = self._stored_along(self.axes[id(node)] or frozenset())
        shape = tuple([self.loop.shape[k] for k in axes])
        meta = TensorMeta.dense(node.dtype, shape, self.loop.device)
        if self.one_by_one:  # as most of what it is computed from lies
            lies = main_strides(len(self.loop.shape), node)
            stride = stride_in_order(shape, sorted(range(len(axes)), key=lambda k: -abs(lies[axes[k]])))
            meta = TensorMeta(node.dtype, shape, stride, self.loop.device)
        buffer = Buffer(f"{self.prefix}_{len(self.made)}", meta, "temp")
        ndim = len(self.loop.shape)
        inner = IndexMap.along([axes.index(k) if k in axes else None for k in range(ndim)], len(axes))
        self.made.append(Loop(shape, [Store(Access(buffer, 0, meta.stride), reindex(node, inner))], self.loop.device))
        strides = dict(zip(axes, meta.stride, strict=True))
        return Load(Access(buffer, 0, tuple([strides.get(k, 0) for k in range(ndim)])), node.dtype)
