"""Products with a large result that only loops and other products read, row by row: computed in chunks of rows.

The output layer of a language model makes a score for each word of the vocabulary, for each place in the text. The loss
reads them, and its gradient has as many elements, of which two more products are made: that of the layer's input, row by
row, and that of its weight, a sum over all rows. Chunk by chunk, neither the scores nor their gradient are ever in memory as
a whole:

    for each chunk:
        scores = x[chunk] @ w.T
        loss, gradient = ...
        gradient_x[chunk] = gradient @ w
        gradient_w += gradient.T @ x[chunk]
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field, replace

import torch

from quickfuse.errors import Unsupported
from quickfuse.ir.expr import Const, Expr, Load, Op, Place, conjuncts, walk
from quickfuse.ir.loop import Access, Buffer, Extern, Loop, Program, Store, StoreKind, View, as_view
from quickfuse.ir.reindex import IndexMap, reindex, rewrite_accesses
from quickfuse.ir.target import costs_on
from quickfuse.ir.values import TensorMeta

from .batches import ADDMM, MM
from .parameters import NoRule, no_rule_if
from .step_order import StepReads, in_order
from .symbolic import whole_load

_Step = Loop | Extern


def chunk_products(program: Program) -> None:
    """Rewrite the products of a program that are better computed in chunks."""
    for step in list(program.steps):
        if isinstance(step, Extern) and _is_product(step) and _is_large(step.outputs[0].meta):
            try:
                program.steps = _Chunks(program, step).steps()
            except (NoRule, Unsupported):
                continue


def _is_product(step: Extern) -> bool:
    return (step.target in MM or step.target in ADDMM) and not step.kwargs and len(step.outputs) == 1 and not step.draws


def _is_large(meta: TensorMeta) -> bool:
    least = costs_on(meta.device).least_chunked
    return bool(least) and meta.nbytes >= least and meta.ndim == 2 and meta.is_contiguous


@dataclass
class _Part:
    """One chunk: the number of it, and the buffers that hold its part of larger ones."""

    number: int
    buffers: dict[Buffer, Buffer] = field(default_factory=dict)


class _Chunks:
    """The chunks of a product, and of all steps that read its result or what loops make of it in the same size."""

    def __init__(self, program: Program, product: Extern) -> None:
        self.program = program
        self.product = product
        self.rows = product.outputs[0].meta.shape[0]
        self.reads = StepReads()
        self.large = {product.outputs[0]}
        self.group = self._group()
        self.calls = [step for step in self.group if isinstance(step, Extern) and step is not product]
        self.axes = {id(step): self._row_axis(step, self.large) for step in self.group if isinstance(step, Loop)}
        no_rule_if(not self.calls or any(buffer.kind != "temp" for buffer in self.large))
        self.count = self._count()
        #: Loops that have something for each row of all chunks, and what combines it afterwards.
        self.after: list[_Step] = []
        self.steps_of_chunk = [self._separated(step) if isinstance(step, Loop) else step for step in self.group]
        self.small = self._small()
        self.made: list[_Step] = []
        #: What is put together after all chunks, by the buffers that have it in the end: and sums over rows so far.
        self.parts: dict[Buffer, list[Buffer]] = {}
        self.sums: dict[Buffer, Buffer] = {}
        #: The parts of values that the schedule may as well not store.
        self.optional: set[Buffer] = set()

    def _group(self) -> list[_Step]:
        least = self.product.outputs[0].meta.numel // 4
        known = 0
        while known != len(self.large):
            known = len(self.large)
            group = [step for step in self.program.steps if not self.large.isdisjoint((*self.reads.of(step), *step.writes))]
            for step in group:
                if isinstance(step, Loop):
                    self.large.update(buffer for buffer in step.writes if buffer.meta.numel >= least)
        return group

    def _count(self) -> int:
        """How many chunks: as few as are small enough, or as many as there can be."""
        meta = self.product.outputs[0].meta
        sizes = [self.rows, *(step.shape[self.axes[id(step)]] for step in self.group if isinstance(step, Loop))]
        costs = costs_on(meta.device)
        counts = [count for count in range(2, costs.most_chunks + 1) if not any(size % count for size in sizes)]
        no_rule_if(not counts)
        return next((count for count in counts if meta.nbytes <= count * costs.chunk), counts[-1])

    # --- loops: where their rows are ---

    def _row_axis(self, loop: Loop, buffers: Collection[Buffer]) -> int:
        """The axis whose indices are parts of the rows of some buffers, the same rows of each."""
        no_rule_if(len(loop.stores) != 1 or loop.stores[0].kind not in (StoreKind.ASSIGN, StoreKind.REDUCE))
        store = loop.stores[0]
        ranges = _picked(store.value)
        axes = set()
        nodes = [node for node in walk(store.value) if isinstance(node, (Load, Place))]
        for access, reach in [(store.access, 0), *((node.access, ranges.get(id(node), 0)) for node in nodes)]:
            meta = access.buffer.meta
            if access.buffer not in buffers:
                continue
            no_rule_if(meta.span_bytes != meta.nbytes)
            sizes = list(zip(loop.shape, access.strides, strict=True))
            found = [k for k, (n, s) in enumerate(sizes) if n > 1 and n * s == meta.numel]
            no_rule_if(len(found) != 1)
            axes.add(found[0])
            inside = [(n - 1) * s for k, (n, s) in enumerate(sizes) if k != found[0]]
            no_rule_if(access.offset < 0 or min(inside, default=0) < 0)
            no_rule_if(access.offset + sum(inside) + reach >= access.strides[found[0]])
        no_rule_if(len(axes) != 1)
        return axes.pop()

    # --- the steps of all chunks ---

    def steps(self) -> list[_Step]:
        """All steps of the program, in order.

        Raises:
            Unsupported: where a chunk needs what only all chunks together give.
        """
        last: Extern | None = None
        for number in range(self.count):
            part = _Part(number, {buffer: self._part_of(buffer, number) for buffer in (*self.large, *self.small)})
            for step in self.steps_of_chunk:
                if isinstance(step, Loop):
                    self.made.append(self._loop(step, part))
                else:
                    last = self._call(step, part, last)
            self.optional.update(part.buffers[buffer] for buffer in self.program.optional & part.buffers.keys())
            for buffer in self.small:
                self.parts.setdefault(buffer, []).append(part.buffers[buffer])
        for buffer, parts in self.parts.items():
            if buffer.kind != "temp" or self._is_read_later(buffer):
                # A loop that reads all of them could be where they are computed, and large buffers would wait for it.
                self.made.append(Extern(torch.cat, (parts,), {}, [buffer]))
        group = {id(step) for step in self.group}
        left = [step for step in self.program.steps if id(step) not in group]
        ordered = in_order([*left, *self.made, *self.after], StepReads())
        self.program.optional.update(self.optional)
        return ordered

    def _part_of(self, buffer: Buffer, number: int) -> Buffer:
        meta = buffer.meta
        if meta.is_contiguous and meta.shape[0] % self.count == 0:
            shape = (meta.shape[0] // self.count, *meta.shape[1:])
        elif buffer.kind == "temp":
            shape = (meta.numel // self.count,)
        else:
            raise NoRule
        small = TensorMeta.dense(meta.dtype, shape, meta.device)
        return Buffer(f"{buffer.name}_{number}", small, "temp")

    def _separated(self, loop: Loop) -> Loop:
        """A loop that has its result for each row; what combines those of all rows comes after all chunks."""
        store, axis = loop.stores[0], self.axes[id(loop)]
        if store.access.strides[axis]:
            return loop
        no_rule_if(store.kind is not StoreKind.REDUCE or math.prod(loop.shape) > self.rows)
        meta = TensorMeta.dense(store.value.dtype, loop.shape, loop.device)
        each = whole_load(Buffer(f"{store.access.buffer.name}_rows", meta, "temp"))
        self.after.append(Loop(loop.shape, [replace(store, value=each)], loop.device))
        separate = Loop(loop.shape, [Store(each.access, store.value)], loop.device)
        self.axes[id(separate)] = axis
        return separate

    def _small(self) -> list[Buffer]:
        """The buffers with something for each row that loops of a chunk store: a chunk has its own, so that nothing that
        reads a part of a large buffer waits for the other chunks."""
        loops = [step for step in self.steps_of_chunk if isinstance(step, Loop)]
        stored = [store.access.buffer for loop in loops for store in loop.stores]
        found = dict.fromkeys(buffer for buffer in stored if buffer not in self.large)
        for loop in loops:
            no_rule_if(self._row_axis(loop, {*self.large, *found}) != self.axes[id(loop)])
        return list(found)

    def _is_read_later(self, buffer: Buffer) -> bool:
        group = {id(step) for step in self.group}
        others = [step for step in self.program.steps if id(step) not in group] + self.after
        return buffer not in self.small or any(buffer in self.reads.of(step) for step in others)

    def _loop(self, loop: Loop, part: _Part) -> Loop:
        axis, ndim = self.axes[id(loop)], len(loop.shape)
        length = loop.shape[axis] // self.count
        constants = tuple([part.number * length if k == axis else 0 for k in range(ndim)])
        index_map = IndexMap.along(range(ndim), ndim, constants)
        store = loop.stores[0]

        def own(access: Access) -> Access:
            buffer = part.buffers.get(access.buffer)
            if buffer is None:
                return access
            return replace(access, buffer=buffer, offset=access.offset - part.number * buffer.meta.numel)

        value = rewrite_accesses(reindex(store.value, index_map), own)
        shape = tuple([length if k == axis else size for k, size in enumerate(loop.shape)])
        return Loop(shape, [replace(store, access=own(index_map.access(store.access)), value=value)], loop.device)

    # --- products ---

    def _call(self, step: Extern, part: _Part, last: Extern | None) -> Extern:
        """The product for a chunk, after all of the chunk before."""
        no_rule_if(not _is_product(step))
        bias, left, right = (None, *step.args) if step.target in MM else step.args
        left, right = as_view(left), as_view(right)
        if step is self.product:
            made = self._product(step, bias, self._rows_of(left, part, 0), right, part.buffers[step.outputs[0]])
        elif left.buffer in self.large and right.buffer not in self.large and left.shape[0] == self.rows:
            made = self._by_rows(step, bias, self._rows_of(left, part, 0), right, part)
        else:
            made = self._summed(step, bias, self._rows_of(left, part, 1), self._rows_of(right, part, 0), part)
        made.after = last
        return made

    def _rows_of(self, view: View, part: _Part, axis: int) -> View:
        """The rows of a chunk, which are the indices of an axis of a matrix."""
        no_rule_if(view.shape[axis] != self.rows)
        rows = self.rows // self.count
        shape = tuple([rows if k == axis else size for k, size in enumerate(view.shape)])
        offset = view.offset + part.number * rows * view.stride[axis]
        buffer = part.buffers.get(view.buffer)
        if buffer is None:
            return View(view.buffer, shape, view.stride, offset)
        no_rule_if(view.stride[axis] * self.rows != view.buffer.meta.numel or view.offset)
        return View(buffer, shape, view.stride, 0)

    def _product(self, step: Extern, bias: Buffer | View | None, left: View, right: View, result: Buffer) -> Extern:
        target, first = (torch.mm, ()) if bias is None else (torch.addmm, (bias,))
        made = Extern(target, (*first, left, right), {}, [result], may_fail=step.may_fail)
        self.made.append(made)
        return made

    def _by_rows(self, step: Extern, bias: Buffer | View | None, left: View, right: View, part: _Part) -> Extern:
        """Rows of the result."""
        whole = step.outputs[0]
        no_rule_if(whole.meta.shape[0] != self.rows or (bias is not None and len(as_view(bias).shape) != 1))
        shape = (self.rows // self.count, *whole.meta.shape[1:])
        meta = TensorMeta.dense(whole.meta.dtype, shape, whole.meta.device)
        result = Buffer(f"{whole.name}_{part.number}", meta, "temp")
        made = self._product(step, bias, left, right, result)
        self.parts.setdefault(whole, []).append(result)
        return made

    def _summed(self, step: Extern, bias: Buffer | View | None, left: View, right: View, part: _Part) -> Extern:
        """A sum over the rows of all chunks so far."""
        whole = step.outputs[0]
        result = whole if part.number == self.count - 1 else Buffer(f"{whole.name}_{part.number}", whole.meta, "temp")
        made = self._product(step, self.sums.get(whole, bias), left, right, result)
        self.sums[whole] = result
        return made


def _picked(value: Expr) -> dict[int, int]:
    """For the places that picks load from how far away the element may be, by the ids of the places.

    Raises:
        NoRule: where that is not known.
    """
    found: dict[int, int] = {}
    for node in walk(value):
        if isinstance(node, Op) and any(isinstance(arg, Place) for arg in node.args):
            place, by, _ = node.args
            found[id(place)] = max(found.get(id(place), 0), _largest(by))
    return found


def _largest(value: Expr) -> int:
    """The largest value of an index that is chosen from a range that begins with zero."""
    if isinstance(value, Const):
        return int(value.value)
    if isinstance(value, Op) and value.name == "where" and isinstance(value.args[2], Const) and value.args[2].value == 0:
        parts = [part for part in conjuncts(value.args[0]) if isinstance(part, Op)]
        pairs = [node.args for node in parts if node.name == "lt" and node.args[0] == value.args[1]]
        limits = [limit.value - 1 for _, limit in pairs if isinstance(limit, Const)]
        if limits and all(node.name in ("lt", "ge") for node in parts):
            return int(min(limits))
    raise NoRule
