"""From a kernel body to code, whatever it is written in: the walker goes over passes, loops and stores, and calls a builder.

    unit       one unit of work: a row, or what vectors lie across, a block of rows; or elements, where there are no rows
    pass       loops over the axes of a row, and over the vectors of a block
    values     each in the outermost loop in which it can be computed
    stores     what is assigned, reduced, scanned and scattered, in the innermost loop

A builder says how each of these is done on a target. It keeps what depends on where the code is that it writes: the current
index of each axis, whether a vector is masked, and where in memory the current element of each slot is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import torch

from quickfuse.emit.plan import Plan, Region
from quickfuse.ir.expr import PICK, Const, Expr
from quickfuse.ir.kernel import Op, Reduced, SlotLoad, SlotPlace, SlotPrevious, StoreKind
from quickfuse.ir.target import is_slow

V = TypeVar("V")


class Builder(Protocol[V]):
    """Writes code. A value `V` is a number or a vector, which a builder makes one of a number where that is needed.

    Reductions are named by the number of their store. What a target has no code for is `Unsupported`.
    """

    # loops

    def loop(
        self, axis: int, carried: Sequence[V], body: Callable[[Sequence[V]], Sequence[V]], flushed: Sequence[int]
    ) -> Sequence[V]:
        """Go along an axis, one index at a time, with values that are carried from one to the next; returns the last ones.
        The reductions of `flushed`, in memory, keep partial sums that have to be added up now and then."""

    def vectors(self, body: Callable[[], object], has_loop: bool = False) -> None:
        """Go along the axis of vectors: whole vectors, and a masked one for what is left; or where `body` has a loop, which
        is better there only once, masked ones only."""

    def reduce_vectors(
        self, reductions: Sequence[int], accumulators: Sequence[V], computed: Sequence[Expr], body: Callable[[], Sequence[V]]
    ) -> Sequence[V]:
        """Go along the axis of vectors, which is reduced, and combine what `body` returns with the accumulators. `computed`
        is what is computed there. Returns the new accumulators."""

    def condition(self, value: V, body: Callable[[], object]) -> None:
        """Run `body` if a number (a bool) holds."""

    def memoized(self, operands: Sequence[V], results: Sequence[Expr], body: Callable[[], Sequence[V]]) -> Sequence[V]:
        """What `body` returns for these operands, or returned for the member before if that had the same ones."""

    # values

    def leaf(self, expr: Expr) -> V:
        """A load, an index, a constant, a scalar argument, the length of a row, or a reduction in memory."""

    def operation(self, op: Op, args: Sequence[V]) -> V:
        """An operation of `SCALAR_OPS`."""

    def pick(self, slot: int, offset: V, inside: V) -> V:
        """The element `offset` after a slot's current one where `inside` holds, 0 elsewhere."""

    # stores

    def assign(self, slot: int, value: V) -> None:
        """Store to a slot's current element."""

    def scatter(self, slot: int, value: V, offset: V, inside: V) -> None:
        """Store to the element `offset` after a slot's current one where `inside` holds."""

    def scatter_added(self, slot: int, value: V, offset: V, inside: V) -> None:
        """Add to the element `offset` after a slot's current one where `inside` holds."""

    def set_flag(self, slot: int, value: V) -> None:
        """Set a slot where a value holds."""

    # reductions and scans

    def start(self, reduction: int) -> V:
        """An accumulator of nothing."""

    def combine(self, reduction: int, accumulator: V, value: V) -> V:
        """An accumulator with one more value in it."""

    def total(self, reduction: int, accumulator: V) -> V:
        """An accumulator, which may have a part in each lane, as one number."""

    # what is in memory for each row of a block

    def clear(self, reductions: Sequence[int]) -> None:
        """Begin with reductions whose accumulators are in memory."""

    def accumulate(self, reduction: int, value: V) -> None:
        """Combine a value with an accumulator in memory."""

    def remember(self, node: int, value: V) -> None:
        """Keep a value in memory."""

    def recall(self, node: int, dtype: torch.dtype) -> V:
        """A value that was kept in memory."""


class Walker(Generic[V]):
    """Writes one unit of work of a kernel."""

    def __init__(self, plan: Plan, builder: Builder[V]) -> None:
        self.plan = plan
        self.body = plan.body
        self.builder = builder
        #: What was computed where the code is: values by node, results of reductions; and of scans the values before the
        #: current element and with it.
        self.values: dict[int, V] = {}
        self.results: dict[int, V] = {}
        self.before: Sequence[V] = []
        self.running: list[V] = []
        self.remembered: set[int] = set()
        self.one_pass = 0

    def unit(self) -> None:
        body = self.body
        if self._worth_memoizing():
            self._memoize()
            return
        for self.one_pass, stores in enumerate(body.passes):
            self._pass(stores)
        if body.last:
            region = self.plan.region(self.plan.nest(body.last), self.plan.roots_of(body.last), self.remembered)
            self._descend(body.last, region, 0, [])

    # --- passes ---

    def _pass(self, stores: list[int]) -> None:
        plan, builder = self.plan, self.builder
        nest, roots = plan.nest(stores), plan.roots_of(stores)
        reductions = self._of_kind(StoreKind.REDUCE, stores)
        leaves = self.remembered | plan.leaves(self.one_pass)
        region = plan.region(nest, roots, leaves)
        across = self.body.vector in self.body.parallel and len(nest) > 1 and nest[-1] == self.body.vector
        if across:
            invariants = plan.invariants(region, roots, leaves)
            if invariants:
                self._hoist(invariants, leaves)
                region = plan.region(nest, roots, leaves | self.remembered)
        if across and reductions:
            builder.vectors(functools.partial(builder.clear, reductions))
        if across or not reductions:
            self._descend(stores, region, 0, [])
            return
        ends = self._descend(stores, region, 0, [builder.start(k) for k in reductions])
        self.results.update((k, builder.total(k, end)) for k, end in zip(reductions, ends, strict=True))

    def _hoist(self, nodes: list[int], leaves: set[int]) -> None:
        region = self.plan.region((self.body.vector,), nodes, leaves)
        self._evaluate(region.levels[0])

        def remember() -> None:
            self._evaluate(region.levels[1])
            for node in nodes:
                self.builder.remember(node, self.values[node])
            self._forget(region.levels[1])

        self.builder.vectors(remember)
        self.remembered.update(nodes)

    def _of_kind(self, kind: StoreKind, stores: Sequence[int]) -> list[int]:
        return [k for k in stores if self.body.stores[k].kind is kind]

    # --- loops ---

    def _descend(self, stores: list[int], region: Region, depth: int, carried: Sequence[V]) -> Sequence[V]:
        """Compute what is to be computed at this depth, and go into the next loop; in the innermost one, do the stores.

        Returns what is carried to the next iteration of the loop that this is in.
        """
        body, builder, nest = self.body, self.builder, region.nest
        self._evaluate(region.levels[depth])
        ends: Sequence[V] = []
        if depth == len(nest):
            ends = self._store(stores)
        elif nest[depth] == body.vector and body.vector in body.inner:
            computed = [self.plan.nodes[k].expr for level in region.levels for k in level if self.plan.within(k)]
            reductions = self._of_kind(StoreKind.REDUCE, stores)
            within = functools.partial(self._descend, stores, region, depth + 1, [])
            ends = builder.reduce_vectors(reductions, carried, computed, within)
        elif nest[depth] == body.vector:
            self._vectors(stores, region, depth)
        else:
            scans = self._of_kind(StoreKind.SCAN, stores)
            starts = [builder.start(k) for k in scans] if scans else carried
            last = depth == len(nest) - 2 and nest[-1] == body.vector and body.vector in body.parallel
            flushed = self._of_kind(StoreKind.REDUCE, stores) if last else []

            def inside(now: Sequence[V]) -> Sequence[V]:
                self.before, self.running = now, []
                return self._descend(stores, region, depth + 1, now)

            ends = builder.loop(nest[depth], starts, inside, flushed)
        if depth:
            self._forget(region.levels[depth])
        return ends

    def _vectors(self, stores: list[int], region: Region, depth: int) -> None:
        """Vectors of rows or of elements. Where one number decides whether a scatter stores all of them or none, a branch
        does, and vectors need no masks."""

        def vectors() -> None:
            has_loop = depth + 1 < len(region.nest)
            self.builder.vectors(functools.partial(self._descend, stores, region, depth + 1, []), has_loop)

        inside = self.plan.roots[stores[0]][1] if self._of_kind(StoreKind.SCATTER, stores) == stores else -1
        if len(stores) != 1 or inside not in self.values:
            vectors()
            return
        decided = self.values[inside]
        self.values[inside] = self.builder.leaf(Const(True, torch.bool))
        self.builder.condition(decided, vectors)
        self.values[inside] = decided

    # --- values ---

    def _evaluate(self, nodes: Sequence[int]) -> None:
        for number in nodes:
            if number not in self.values and not isinstance(self.plan.nodes[number].expr, SlotPlace):
                self.values[number] = self._value(number)

    def _forget(self, nodes: Sequence[int]) -> None:
        """What was computed in a loop is not known after it."""
        for number in nodes:
            self.values.pop(number, None)

    def _value(self, number: int) -> V:
        node, builder = self.plan.nodes[number], self.builder
        expr = node.expr
        if number in self.remembered:
            return builder.recall(number, expr.dtype)
        if isinstance(expr, Reduced) and self.body.ordered:
            return self._advanced(expr.reduction)
        if isinstance(expr, Reduced) and expr.reduction in self.results:
            return self.results[expr.reduction]
        if isinstance(expr, SlotPrevious):
            store = next(k for k in self._of_kind(StoreKind.SCATTER, range(len(self.body.stores)))
                         if self.body.stores[k].slot == expr.slot)  # fmt: skip
            offset, inside, _ = self.plan.roots[store]
            return builder.pick(expr.slot, self.values[offset], self.values[inside])
        if not isinstance(expr, Op):
            return builder.leaf(expr)
        slot, first = self.plan.kept.get(number, (-1, self.one_pass))
        if first < self.one_pass:
            return builder.leaf(SlotLoad(slot, expr.dtype))
        if expr.name == PICK:
            place = expr.args[0]
            assert isinstance(place, SlotPlace)
            value = builder.pick(place.slot, self.values[node.args[1]], self.values[node.args[2]])
        else:
            value = builder.operation(expr, [self.values[arg] for arg in node.args])
        if slot >= 0:
            builder.assign(slot, value)
        return value

    def _advanced(self, scan: int) -> V:
        """The running value of a scan at the current element."""
        while len(self.running) <= scan:
            k = len(self.running)
            value = self.values[self.plan.roots[k][0]]
            self.running.append(self.builder.combine(k, self.before[k], value))
        return self.running[scan]

    # --- stores ---

    def _store(self, numbers: list[int]) -> Sequence[V]:
        """Do the stores, with all values known. Returns the running values of scans, or what is to be reduced."""
        ends = []
        for k in numbers:
            store, (*rest, root) = self.body.stores[k], self.plan.roots[k]
            if store.kind is StoreKind.SCAN:
                ends.append(self._advanced(k))
            elif store.kind is StoreKind.REDUCE and self.body.across:
                self.builder.accumulate(k, self.values[root])
            elif store.kind is StoreKind.REDUCE:
                ends.append(self.values[root])
            elif store.kind is StoreKind.SCATTER:
                scatter = self.builder.scatter_added if k in self.plan.added else self.builder.scatter
                scatter(store.slot, self.values[root], self.values[rest[0]], self.values[rest[1]])
            elif store.kind is StoreKind.FLAG:
                self.builder.set_flag(store.slot, self.values[root])
            else:
                self.builder.assign(store.slot, self.values[root])
        return ends

    # --- kernels without axes ---

    def _worth_memoizing(self) -> bool:
        """Whether to keep what the member before computed: members with equal operands are common (step counters), and some
        functions are slow one by one."""
        exprs = [node.expr for node in self.plan.nodes]
        return (
            not self.body.axes
            and all(store.kind is StoreKind.ASSIGN for store in self.body.stores)
            and not any(isinstance(expr, SlotPlace) for expr in exprs)  # what they load is not remembered
            and any(isinstance(expr, Op) and is_slow(expr.name) for expr in exprs)
        )

    def _memoize(self) -> None:
        nodes, (stores,) = self.plan.nodes, self.body.passes
        loads = [number for number, node in enumerate(nodes) if isinstance(node.expr, SlotLoad)]
        results = list(dict.fromkeys(self.plan.roots_of(stores)))
        self._evaluate(loads)

        def compute() -> list[V]:
            self._evaluate(range(len(nodes)))
            return [self.values[number] for number in results]

        ends = self.builder.memoized([self.values[k] for k in loads], [nodes[k].expr for k in results], compute)
        self.values = dict(zip(results, ends, strict=True))
        self._store(stores)
