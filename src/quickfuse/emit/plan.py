"""What a kernel computes and where: the distinct values of a body, and for each pass the loops and what is computed in
each."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import torch

from quickfuse.ir.expr import Expr
from quickfuse.ir.kernel import Index, KernelBody, Op, Reduced, SlotLoad, SlotPlace, SlotPrevious, StoreKind, walk
from quickfuse.ir.target import is_slow


@dataclass(frozen=True, slots=True)
class Node:
    """One distinct value of a body. `args` are numbers of earlier nodes.

    `axes`: along which axes it changes, of those that loops of a unit of work go along, as bits.
    """

    expr: Expr
    args: tuple[int, ...]
    axes: int


@dataclass(frozen=True, slots=True)
class Region:
    """Loops over axes, the outermost first, and the nodes that are computed in as many of them as is their place in
    `levels`."""

    nest: tuple[int, ...]
    levels: list[list[int]]


class Plan:
    """The values of a body and where they are computed.

    `roots[k]` are the nodes of store k: its value; for scatters its offset, where it is done, and its value.
    `widened` are the sums whose float32 values are added up in float64: their root is the value before the conversion. A few
    at a time are added up in float32 before they are converted, which would take longer than the additions. Eager's sums are
    in float32 altogether.
    `kept` are values that are used in several passes and slow to compute, in memory that a later pass stores to anyway, or
    stored themselves: node -> (slot, the pass that computes it). Softmax keeps its exponentials where their quotients will
    be, and a norm of a sum that is stored loads the sum in all passes but the first.
    """

    #: Whether float32 values are added up a few at a time, and values kept in memory between passes: see above.
    widens = keeps = True

    def __init__(self, body: KernelBody) -> None:
        self.body = body
        self.nodes: list[Node] = []
        self._inner = sum(1 << axis for axis in body.inner)
        self._vector = 1 << body.vector if body.vector >= 0 else 0
        numbers = self._number_values()
        self.roots = [tuple([numbers[id(root)] for root in store.roots]) for store in body.stores]
        self.widened: set[int] = set()
        for k, (store, (*_, root)) in enumerate(zip(body.stores, self.roots, strict=True)):
            summed = store.kind is StoreKind.REDUCE and store.combine == "sum" and self.widens
            if summed and self.varies(root) and self._is_cast(root):
                (before,) = self.nodes[root].args
                if (self.nodes[before].expr.dtype, store.value.dtype) == (torch.float32, torch.float64):
                    self.widened.add(k)
                    self.roots[k] = (before,)
        #: Not across rows: a block of them is far apart in memory, and computing again is quicker.
        self.kept = self._kept_for_later() if self.keeps and not (body.across or body.ordered) else {}
        #: The scatters whose values are added to what is there, in any order: their root is what is added.
        self.added: set[int] = set()

    def _number_values(self) -> dict[int, int]:
        """Equal expressions get one node. They are told apart by their arguments' numbers: comparing the trees themselves
        could take exponential time."""
        by_key: dict[tuple[object, ...], int] = {}
        by_id: dict[int, int] = {}
        for expr in walk(*self.body.roots):
            args = tuple([by_id[id(arg)] for arg in expr.args]) if isinstance(expr, Op) else ()
            label = expr.name if isinstance(expr, Op) else str(expr)
            number = by_key.setdefault((type(expr), label, args, expr.dtype), len(self.nodes))
            if number == len(self.nodes):
                axes = self._axes(expr)
                for arg in args:
                    axes |= self.nodes[arg].axes
                self.nodes.append(Node(expr, args, axes))
            by_id[id(expr)] = number
        return by_id

    def _axes(self, leaf: Expr) -> int:
        found = 0
        if isinstance(leaf, (SlotLoad, SlotPlace)):
            strides = self.body.slots[leaf.slot].strides
            found = sum(1 << axis for axis, stride in enumerate(strides) if stride != 0)
        elif isinstance(leaf, (Reduced, SlotPrevious)):
            found = (self._vector if self.body.across else 0) | (self._inner if self.body.ordered else 0)
        elif isinstance(leaf, Index):
            found = 1 << leaf.axis
        return found & (self._inner | self._vector)

    def varies(self, node: int) -> bool:
        """Whether a value changes along the axis that vectors lie along."""
        return bool(self.nodes[node].axes & self._vector)

    def within(self, node: int) -> bool:
        """Whether a value changes within a row."""
        return bool(self.nodes[node].axes & self._inner)

    def _is_cast(self, node: int) -> bool:
        expr = self.nodes[node].expr
        return isinstance(expr, Op) and expr.name == "cast"

    def lanes(self, vector_bytes: int) -> int:
        """How many elements a vector has: as many of the widest type that is computed or stored for each element as fit.

        What an accumulator is converted to does not count: a vector of it may take several registers.
        """
        body = self.body
        if body.vector < 0:
            return 1
        accumulated = {root for k, store in enumerate(body.stores) for root in self.roots[k]
                       if store.kind is StoreKind.REDUCE and k not in self.widened and self._is_cast(root)}  # fmt: skip
        needed = self.closure(self.roots_of(k for k in range(len(body.stores)) if k not in body.last))
        once = bool(body.inner) and not body.ordered  # what does not change within a row is computed once there
        counted = [k for k in needed - accumulated if self.varies(k) and (self.within(k) or not once)]
        widths = [self.nodes[k].expr.dtype.itemsize for k in counted]
        stored = [store.slot for k, store in enumerate(body.stores) if store.slot >= 0 and k not in body.last]
        widths += [body.slots[slot].dtype.itemsize for slot in stored]
        return vector_bytes // max([4 if body.inner else 1, *widths])

    def closure(self, roots: Iterable[int], leaves: Collection[int] = ()) -> set[int]:
        """All values that some values use, themselves among them; but not what `leaves` use."""
        found: set[int] = set()
        stack = list(roots)
        while stack:
            number = stack.pop()
            if number not in found:
                found.add(number)
                if number not in leaves:
                    stack += self.nodes[number].args
        return found

    # --- regions ---

    def roots_of(self, stores: Iterable[int]) -> list[int]:
        return [root for k in stores for root in self.roots[k]]

    def nest(self, stores: Sequence[int]) -> tuple[int, ...]:
        """The axes that the loops of some stores go along, the outermost first.

        Where vectors lie across rows, the last loop is that over a block of rows, so that memory is gone through in the
        order in which it lies there; but running values of scans should stay in registers.
        """
        body = self.body
        across = (body.vector,) if body.vector in body.parallel else ()
        if stores == body.last:
            return across
        scans = any(body.stores[k].kind is StoreKind.SCAN for k in stores)
        return (*across, *body.inner) if scans else (*body.inner, *across)

    def region(self, nest: tuple[int, ...], roots: Iterable[int], leaves: Collection[int] = ()) -> Region:
        """Where in a nest of loops each value is computed that some values use: in the outermost loop that it can be."""
        levels: list[list[int]] = [[] for _ in range(len(nest) + 1)]
        for number in sorted(self.closure(roots, leaves)):
            axes = self.nodes[number].axes
            levels[max([k + 1 for k, axis in enumerate(nest) if axes >> axis & 1], default=0)].append(number)
        return Region(nest, levels)

    def invariants(self, region: Region, roots: Sequence[int], leaves: Collection[int]) -> list[int]:
        """The values that change along the vectors but not within a row, which are better computed once for a block of rows
        than in each of its elements; but for what is as soon loaded from memory."""
        found: set[int] = set()
        within = [number for level in region.levels for number in level if self.within(number)]
        stack = [arg for number in (*within, *roots) for arg in (*self.nodes[number].args, number) if not self.within(arg)]
        while stack:
            number = stack.pop()
            expr = self.nodes[number].expr
            if not self.varies(number) or number in leaves or isinstance(expr, (Reduced, Index, SlotPlace)):
                continue
            if isinstance(expr, SlotLoad) and self.body.slots[expr.slot].strides[self.body.vector] == 1:
                continue
            if expr.dtype is torch.bool:  # vectors of bits are slow to store
                stack += self.nodes[number].args
                continue
            found.add(number)
        return sorted(found)

    # --- values kept from pass to pass ---

    def leaves(self, one_pass: int) -> set[int]:
        """The values that earlier passes have kept."""
        return {node for node, (_, first) in self.kept.items() if first < one_pass}

    def _kept_for_later(self) -> dict[int, tuple[int, int]]:
        body = self.body
        if len(body.passes) < 2:
            return {}
        loaded = {node.expr.slot for node in self.nodes if isinstance(node.expr, SlotLoad)}
        slow: list[bool] = []
        for number, node in enumerate(self.nodes):
            changes = self.varies(number) and self.within(number)
            slow.append(changes and (self._is_slow(number) or any(slow[arg] for arg in node.args)))
        uses = [self.closure(self.roots_of(stores)) for stores in body.passes]
        kept = {}
        for one_pass, stores in enumerate(body.passes):
            for k in stores:
                store, root = body.stores[k], self.roots[k][-1]
                is_free = store.kind is StoreKind.ASSIGN and store.slot not in loaded
                if is_free and any(root in use for use in uses[one_pass + 1 :]) and self._takes_more_than_a_load(root):
                    kept.setdefault(root, (store.slot, next(n for n, use in enumerate(uses) if root in use)))
        taken = {slot for slot, _ in kept.values()}
        for last, stores in enumerate(body.passes):
            for slot in [body.stores[k].slot for k in stores if body.stores[k].kind is StoreKind.ASSIGN]:
                candidates = [
                    number for number in uses[last]
                    if slow[number] and number not in kept and any(number in earlier for earlier in uses[:last])
                    and self.nodes[number].expr.dtype == body.slots[slot].dtype
                    and not any(number in later for later in uses[last + 1 :])
                ]  # fmt: skip
                if slot not in loaded and slot not in taken and candidates:
                    best = max(candidates, key=lambda number: (self._saved(number, uses, kept), number))
                    kept[best] = (slot, next(k for k, use in enumerate(uses) if best in use))
        return kept

    def _takes_more_than_a_load(self, number: int) -> bool:
        """Whether a value within a row is computed from several elements of it, or by a slow operation."""
        below = self.closure([number])
        loads = [k for k in below if isinstance(self.nodes[k].expr, (SlotLoad, SlotPlace)) and self.within(k)]
        return self.varies(number) and self.within(number) and (len(loads) > 1 or any(map(self._is_slow, below)))

    def _is_slow(self, number: int) -> bool:
        expr = self.nodes[number].expr
        return isinstance(expr, Op) and is_slow(expr.name)

    def _saved(self, number: int, uses: list[set[int]], kept: Collection[int]) -> int:
        """How many slow operations are not done again where a value is kept from the first pass on that computes it."""
        again = [self.roots_of(stores) for stores, use in zip(self.body.passes, uses, strict=True) if number in use][1:]
        without, with_it = (
            sum(self._is_slow(k) for roots in again for k in self.closure(roots, leaves))
            for leaves in (kept, {number, *kept})
        )
        return without - with_it
