"""Kernels with reductions whose vectors lie along the last reduced axis: `NAME.row`, all passes over one row.

    entry      values that do not change within a row, as far as they need no reduction
    pass       for each pass: loops over the reduced axes, the last one in vectors, with accumulators of one vector each;
               then the accumulators' lanes are combined, and the values that follow from the results computed
    last       what is stored once a row

Several vectors at a time, with accumulators of their own, keep additions from waiting for each other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from quickfuse.emit.llvm_access import (
    Vectors,
    index_vector,
    inside,
    load_number,
    load_stride,
    number_op,
    slot_of,
    store_number,
)  # fmt: skip
from quickfuse.emit.llvm_math import Code, Module, literal, memory_type, value_type
from quickfuse.emit.llvm_ops import LIBM, emit_op, is_call
from quickfuse.emit.llvm_values import Node, number_values, shared_number, widened_sum
from quickfuse.emit.llvm_view import BodyView, Pass
from quickfuse.ir.expr import PICK, Expr
from quickfuse.ir.kernel import Index, Op, Reduced, RowLength, SlotLoad, SlotPlace
from quickfuse.ir.kernel import KernelStore as Reduction
from quickfuse.ir.loop import identity

#: A pass with reductions and at most this many values goes through this many vectors at a time.
_UNROLL = {12: 4, 30: 2}


def row_function(body: BodyView, name: str, module: Module) -> list[str]:
    """The lines of `NAME.row`: addresses of the slots at the row's first element, the table's row, the scalars, and the
    index of each axis that is not reduced."""
    return _Rows(body, name, module).function()


class RowCode:
    """What code for rows and for columns have in common: values by node, and loops over reduced axes.

    `lines` is the function's text so far. `once` appends to it; `outside` holds the values that are computed outside of
    the loops over reduced axes, by node.
    """

    def __init__(self, body: BodyView, name: str, module: Module, axis: int) -> None:
        self.body = body
        self.name = name
        self.axis = axis
        self.module = module
        self.passes = body.passes()
        self.nodes, roots = number_values(body, axis)
        self.reduction_roots = roots[: len(body.reductions)]
        self.store_roots = roots[len(body.reductions) :]
        self.lanes = module.target.vector_bytes // self._widest()
        #: Not for columns: a block of them is far apart in memory, and computing again is quicker.
        self.kept = {} if body.columns else self._kept_for_later()
        self.lines: list[str] = []
        self.once = Code(module)
        self.once.lines = self.lines
        self.strides: dict[tuple[int, int], str] = {}

    def _widest(self) -> int:
        """The size in bytes of the widest value that is computed or stored for each element.

        What an accumulator is converted to does not count: a vector of it may take several registers.
        """
        accumulated = {root for root in self.reduction_roots if _is_cast(self.nodes[root].expr)}
        computed = [node.expr.dtype.itemsize for k, node in enumerate(self.nodes)
                    if node.varying and node.within and k not in accumulated]  # fmt: skip
        stored = [self.body.slots[s].dtype.itemsize for s, _ in self.body.stores if not self.body.once_a_row(s)]
        return max([4, *computed, *stored])

    def _kept_for_later(self) -> dict[int, tuple[int, int]]:
        """Values that are slow to compute and used in several passes, kept in memory that a later pass stores to anyway:
        node -> (slot, the pass that computes it). Softmax keeps its exponentials where their quotients will be."""
        loaded = {node.expr.slot for node in self.nodes if isinstance(node.expr, SlotLoad)}
        slow: list[bool] = []
        for node in self.nodes:
            slow.append(node.varying and node.within and (_is_slow(node) or any(slow[arg] for arg in node.args)))
        uses = [self.nodes_of(one_pass) for one_pass in self.passes]
        kept: dict[int, tuple[int, int]] = {}
        for last, one_pass in enumerate(self.passes):
            for store in one_pass.stores:
                slot = self.body.stores[store][0]
                candidates = [
                    number for number in uses[last]
                    if slow[number] and number not in kept and any(number in earlier for earlier in uses[:last])
                    and self.nodes[number].expr.dtype == self.body.slots[slot].dtype
                    and not any(number in later for later in uses[last + 1 :])
                ]  # fmt: skip
                if slot not in loaded and candidates:
                    best = max(candidates, key=lambda number: (self._saved(number, uses, kept), number))
                    kept[best] = (slot, next(k for k, use in enumerate(uses) if best in use))
        return kept

    def _saved(self, number: int, uses: list[set[int]], kept: Collection[int]) -> int:
        """How many slow operations are not done again where a value is kept from the first pass on that computes it."""
        passes = [one_pass for one_pass, use in zip(self.passes, uses, strict=True) if number in use][1:]
        without, with_it = (
            sum(_is_slow(self.nodes[k]) for one_pass in passes for k in self.nodes_of(one_pass, leaves))
            for leaves in (kept, {number, *kept})
        )
        return without - with_it

    def needed(self, one_pass: Pass) -> set[int]:
        """The nodes that a pass computes for each element, or loads where they are kept."""
        number = self.passes.index(one_pass)
        return self.nodes_of(one_pass, {node for node, (_, first) in self.kept.items() if first < number})

    def nodes_of(self, one_pass: Pass, leaves: Collection[int] = ()) -> set[int]:
        roots = [self.reduction_roots[k] for k in one_pass.reductions] + [self.store_roots[k] for k in one_pass.stores]
        wanted: set[int] = set()
        stack = [root for root in roots if self.nodes[root].within]
        while stack:
            number = stack.pop()
            if number not in wanted:
                wanted.add(number)
                if number not in leaves:
                    stack += [arg for arg in self.nodes[number].args if self.nodes[arg].within]
        return wanted

    def load_strides(self) -> None:
        """All dynamic strides along reduced axes that loops over scalars use."""
        for slot, operand in enumerate(self.body.slots):
            for axis in range(self.body.rows_ndim, self.body.ndim):
                if operand.strides[axis] is None and axis != self.axis:
                    self.strides[slot, axis] = load_stride(self.body, slot, axis, self.once)

    def pointer(self, code: Code, slot: int, axis: int, pointer: str, index: str) -> str:
        """`pointer` moved along an axis."""
        stride = self.body.slots[slot].strides[axis]
        if stride == 0:
            return pointer
        if stride is None:
            index = code.let(f"mul i64 {index}, {self.strides[slot, axis]}")
        return code.let(f"getelementptr {memory_type(self.body.slots[slot].dtype)}, ptr {pointer}, i64 {index}")

    def combined(self, code: Code, reduction: Reduction, value: str, accumulated: str) -> str:
        """The new element comes first, so that the accumulator waits for as little as possible."""
        dtype = reduction.value.dtype
        return emit_op(code, Op(reduction.operation, (reduction.value, reduction.value), dtype), [value, accumulated])

    def narrow(self, k: int) -> int:
        """The node of the float32 values that reduction `k` adds up in float64; -1 for other reductions.

        A few at a time are added up in float32 before they are converted, which would take longer than the additions.
        Eager's sums are in float32 altogether.
        """
        root = self.nodes[self.reduction_roots[k]]
        if self.body.reductions[k].combine != "sum" or not root.varying or not _is_cast(root.expr):
            return -1
        assert isinstance(root.expr, Op)
        types = (root.expr.args[0].dtype, root.expr.dtype)
        return root.args[0] if types == (torch.float32, torch.float64) else -1

    def identity(self, reduction: Reduction) -> str:
        dtype = reduction.value.dtype
        return literal(value_type(dtype), identity(reduction.combine, dtype))

    def row_length(self) -> str:
        """The number of elements of a row."""
        length = f"%size{self.body.rows_ndim}"
        for axis in range(self.body.rows_ndim + 1, self.body.ndim):
            length = self.once.let(f"mul i64 {length}, %size{axis}", "n")
        return length

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")

    def open_loops(self, prefix: str, axes: Sequence[int], pointers: list[str]) -> tuple[dict[int, str], list[str]]:
        """Begin a loop over each of `axes`. Returns their indices, and the pointers in the innermost."""
        indices = {}
        for axis in axes:
            index = f"%{prefix}.i{axis}"
            indices[axis] = index
            self.lines += [
                f"  br label %{prefix}.a{axis}.before",
                f"{prefix}.a{axis}.before:",
                f"  br label %{prefix}.a{axis}",
                f"{prefix}.a{axis}:",
                f"  {index} = phi i64 [ 0, %{prefix}.a{axis}.before ], [ {index}.next, %{prefix}.a{axis}.after ]",
            ]
            pointers = [self.pointer(self.once, slot, axis, p, index) for slot, p in enumerate(pointers)]
        return indices, pointers

    def close_loops(self, prefix: str, axes: Sequence[int]) -> None:
        for axis in reversed(axes):
            index = f"%{prefix}.i{axis}"
            self.lines += [
                f"  br label %{prefix}.a{axis}.after",
                f"{prefix}.a{axis}.after:",
                f"  {index}.next = add i64 {index}, 1",
                f"  {index}.more = icmp slt i64 {index}.next, %size{axis}",
                f"  br i1 {index}.more, label %{prefix}.a{axis}, label %{prefix}.a{axis}.end",
                f"{prefix}.a{axis}.end:",
            ]

    def load_sizes(self) -> None:
        for axis in range(self.body.rows_ndim, self.body.ndim):
            self.lines.append(f"  %size{axis}.at = getelementptr i64, ptr %row, i64 {axis}")
            self.lines.append(f"  %size{axis} = load i64, ptr %size{axis}.at")


def _is_slow(node: Node) -> bool:
    return isinstance(node.expr, Op) and node.expr.name in LIBM


def _is_cast(expr: Expr) -> bool:
    return isinstance(expr, Op) and expr.name == "cast"


class _Rows(RowCode):
    def __init__(self, body: BodyView, name: str, module: Module) -> None:
        super().__init__(body, name, module, body.ndim - 1)
        #: The name of each value that does not change within a row, and of each reduction's result.
        self.outside: dict[int, str] = {}
        self.results: dict[int, str] = {}

    def function(self) -> list[str]:
        slots = [f"ptr noalias %s{k}" for k in range(len(self.body.slots))]
        outer = [f"i64 %i{k}" for k in range(self.body.rows_ndim)]
        params = [*slots, "ptr noalias %row", "ptr noalias %scalars", *outer]
        self.label("entry")
        self.load_sizes()
        self.load_strides()
        for k, reduction in enumerate(self.body.reductions):
            self.lines.append(f"  %sum{k} = alloca {self._vector_type(reduction)}")
        for number, one_pass in enumerate(self.passes):
            self._compute_outside()
            self._pass(f"p{number}", one_pass)
            for k in one_pass.reductions:
                self.results[k] = self._across_lanes(k)
        self._compute_outside()
        for (slot, _), root in zip(self.body.stores, self.store_roots, strict=True):
            if self.body.once_a_row(slot):
                store_number(self.once, self.outside[root], self.body.slots[slot].dtype, f"%s{slot}")
        head = f"define internal void @{self.name}.row({', '.join(params)}) #0 {{"
        return [head, *self.lines, "  ret void", "}", ""]

    def _vector_type(self, reduction: Reduction) -> str:
        return f"<{self.lanes} x {value_type(reduction.value.dtype)}>"

    # --- once a row ---

    def _compute_outside(self) -> None:
        """All values that do not change within a row and can be computed by now."""
        for number, node in enumerate(self.nodes):
            if number in self.outside or node.within:
                continue
            if isinstance(node.expr, Reduced):
                if node.expr.reduction in self.results:
                    self.outside[number] = self.results[node.expr.reduction]
            elif all(arg in self.outside for arg in node.args):
                self.outside[number] = self._number(self.once, node, self.outside)

    def _number(self, code: Code, node: Node, values: dict[int, str]) -> str:
        expr = node.expr
        if isinstance(expr, Op):
            args = [values[arg] for arg in node.args]
            return number_op(code, expr, args)
        if isinstance(expr, SlotLoad):
            return load_number(code, expr.slot, expr.dtype, f"%s{expr.slot}")
        if isinstance(expr, SlotPlace):
            return f"%s{expr.slot}"
        if isinstance(expr, RowLength):
            return self.row_length()
        return f"%i{expr.axis}" if isinstance(expr, Index) else shared_number(code, expr)

    def _across_lanes(self, k: int) -> str:
        """The accumulator of a reduction as one number."""
        reduction = self.body.reductions[k]
        code = Code(self.module, self.lanes, self.once)
        code.lines = self.lines
        vector, element = self._vector_type(reduction), value_type(reduction.value.dtype)
        value = code.let(f"load {vector}, ptr %sum{k}")
        half = self.lanes // 2
        while half:
            lanes = ", ".join(f"i32 {(lane + half) % self.lanes}" for lane in range(self.lanes))
            other = code.let(f"shufflevector {vector} {value}, {vector} poison, <{self.lanes} x i32> <{lanes}>")
            value = self.combined(code, reduction, value, other)
            half //= 2
        return self.once.let(f"extractelement {vector} {value}, i64 0", f"r{k}") if element else value

    # --- a pass ---

    def _pass(self, prefix: str, one_pass: Pass) -> None:
        for k in one_pass.reductions:
            reduction = self.body.reductions[k]
            spread = Code(self.module, self.lanes, self.once)
            start = spread.splat(self.identity(reduction), value_type(reduction.value.dtype))
            self.lines.append(f"  store {self._vector_type(reduction)} {start}, ptr %sum{k}")
        outer = range(self.body.rows_ndim, self.body.ndim - 1)
        pointers = [f"%s{k}" for k in range(len(self.body.slots))]
        indices, pointers = self.open_loops(prefix, outer, pointers)
        _InnerLoop(self, prefix, one_pass, indices, pointers).write()
        self.close_loops(prefix, outer)


@dataclass(frozen=True, slots=True)
class _State:
    """Where a part of the innermost loop begins: at an index, after a block of code, with accumulators."""

    begin: str
    label: str
    sums: list[str]


class _InnerLoop:
    """The last axis of a row in one pass: blocks of several vectors, vectors, and a vector with a mask."""

    def __init__(
        self, rows: _Rows, prefix: str, one_pass: Pass, indices: dict[int, str], pointers: list[str]
    ) -> None:
        self.rows = rows
        self.prefix = prefix
        self.one_pass = one_pass
        self.pointers = pointers
        self.wanted = rows.needed(one_pass)
        self.before = Code(rows.module)
        self.code = Code(rows.module, rows.lanes, self.before)
        self.access = Vectors(rows.body, rows.axis, self.before)
        self.narrow = {k: rows.narrow(k) for k in one_pass.reductions if rows.narrow(k) >= 0}
        self.numbers = dict(rows.outside)
        for number in sorted(self.wanted):
            node = rows.nodes[number]
            if not node.varying:
                self.numbers[number] = self._unvarying(node, indices)

    def _unvarying(self, node: Node, indices: dict[int, str]) -> str:
        """A value that changes along other reduced axes only."""
        expr = node.expr
        if isinstance(expr, SlotLoad):
            return load_number(self.before, expr.slot, expr.dtype, self.pointers[expr.slot])
        if isinstance(expr, SlotPlace):
            return self.pointers[expr.slot]
        if isinstance(expr, Index):
            return indices[expr.axis]
        assert isinstance(expr, Op)
        args = [self.numbers[arg] for arg in node.args]
        return number_op(self.before, expr, args)

    def write(self) -> None:
        """Parts that each begin at an index and with accumulators, and end with others."""
        rows, prefix = self.rows, self.prefix
        reductions = [(k, rows.body.reductions[k]) for k in self.one_pass.reductions]
        types = [self.code.type(value_type(reduction.value.dtype)) for _, reduction in reductions]
        starts = [f"%{prefix}.start{k}" for k, _ in reductions]
        state = _State("0", f"{prefix}.begin", starts)
        text: list[str] = []
        unroll = self._unroll() if reductions else 1
        if unroll > 1:
            state = self._vectors("block", unroll, reductions, types, state, text)
        state = self._vectors("vector", 1, reductions, types, state, text)
        text += self._tail(f"%size{rows.axis}", state.begin, state.sums, reductions)
        loads = [f"  {start} = load {type_}, ptr %sum{k}"
                 for (k, _), type_, start in zip(reductions, types, starts, strict=True)]  # fmt: skip
        rows.lines += [f"  br label %{prefix}.begin", f"{prefix}.begin:", *self.before.lines, *loads, *text]

    def _vectors(
        self, part: str, copies: int, reductions: list[tuple[int, Reduction]], types: list[str], state: _State,
        text: list[str],
    ) -> _State:  # fmt: skip
        """A loop over `copies` vectors at a time, each with its accumulators. A loop that is not entered leaves what it
        began with, hence the `phi`s after it."""
        rows, code, name = self.rows, self.code, f"{self.prefix}.{part}"
        index, size, step = f"%{name}.i", f"%size{rows.axis}", rows.lanes * copies
        sums = [[f"%{name}.sum{k}.{c}" for c in range(1 if k in self.narrow else copies)] for k, _ in reductions]
        code.lines = []
        ends = [list(row) for row in sums]
        together: dict[int, list[str]] = {k: [] for k in self.narrow}
        for c in range(copies):
            at = index if c == 0 else code.let(f"add i64 {index}, {c * rows.lanes}")
            values = self._element(at, "")
            for row, (k, reduction) in zip(ends, reductions, strict=True):
                if k in self.narrow:
                    together[k].append(self._lanes_of(self.narrow[k], values))
                else:
                    row[c] = rows.combined(code, reduction, self._lanes_of(rows.reduction_roots[k], values), row[c])
        for row, (k, reduction) in zip(ends, reductions, strict=True):
            if k in self.narrow:
                row[0] = rows.combined(code, reduction, widened_sum(code, together[k]), row[0])
        body, code.lines = code.lines, []
        totals = [self._together(row, r) for row, (_, r) in zip(ends, reductions, strict=True)]
        phis, joins = [], []
        for (k, reduction), type_, start, row, ended, total in zip(
            reductions, types, state.sums, sums, ends, totals, strict=True
        ):
            neutral = code.const(value_type(reduction.value.dtype), _identity(reduction))
            for c in range(len(row)):
                phis.append(f"  {row[c]} = phi {type_} [ {start if c == 0 else neutral}, %{state.label} ], "
                            f"[ {ended[c]}, %{name} ]")  # fmt: skip
            joins.append(f"  %{name}.left{k} = phi {type_} [ {start}, %{state.label} ], [ {total}, %{name}.after ]")
        text += [
            f"  %{name}.end = and i64 {size}, {-step}",
            f"  %{name}.any = icmp slt i64 {state.begin}, %{name}.end",
            f"  br i1 %{name}.any, label %{name}, label %{name}.done",
            f"{name}:",
            f"  {index} = phi i64 [ {state.begin}, %{state.label} ], [ {index}.next, %{name} ]",
            *phis,
            *body,
            f"  {index}.next = add i64 {index}, {step}",
            f"  {index}.more = icmp slt i64 {index}.next, %{name}.end",
            f"  br i1 {index}.more, label %{name}, label %{name}.after",
            f"{name}.after:",
            *code.lines,
            f"  br label %{name}.done",
            f"{name}.done:",
            *joins,
        ]
        return _State(f"%{name}.end", f"{name}.done", [f"%{name}.left{k}" for k, _ in reductions])

    def _unroll(self) -> int:
        exprs = [self.rows.nodes[number].expr for number in self.wanted]
        if any(isinstance(expr, Op) and is_call(expr, self.rows.module.target) for expr in exprs):
            return 1
        return next((unroll for count, unroll in _UNROLL.items() if len(exprs) <= count), 1)

    def _together(self, accumulators: list[str], reduction: Reduction) -> str:
        total, *others = accumulators
        for other in others:
            total = self.rows.combined(self.code, reduction, other, total)
        return total

    def _tail(self, size: str, begin: str, sums: list[str], reductions: list[tuple[int, Reduction]]) -> list[str]:
        """The elements that are left. Lanes without an element leave the accumulators as they are."""
        code, rows, name = self.code, self.rows, f"{self.prefix}.tail"
        code.lines = [f"  %{name}.n = sub i64 {size}, {begin}"]
        mask = inside(code, f"%{name}.n")
        values = self._element(begin, mask)
        stores = []
        for total, (k, reduction) in zip(sums, reductions, strict=True):
            value = self._lanes_of(rows.reduction_roots[k], values)
            element = value_type(reduction.value.dtype)
            value = code.select(mask, element, value, code.const(element, _identity(reduction)))
            stores.append((k, code.type(element), rows.combined(code, reduction, value, total), total))
        joined = [f"  %{name}.sum{k} = phi {type_} [ {old}, %{name}.before ], [ {new}, %{name} ]"
                  for k, type_, new, old in stores]  # fmt: skip
        return [
            f"  br label %{name}.before",
            f"{name}.before:",
            f"  %{name}.any = icmp slt i64 {begin}, {size}",
            f"  br i1 %{name}.any, label %{name}, label %{name}.done",
            f"{name}:",
            *code.lines,
            f"  br label %{name}.done",
            f"{name}.done:",
            *joined,
            *(f"  store {type_} %{name}.sum{k}, ptr %sum{k}" for k, type_, _, _ in stores),
        ]

    def _element(self, index: str, mask: str) -> dict[int, str]:
        """One vector: loads, values, stores. Returns the values by node."""
        rows, code = self.rows, self.code
        values: dict[int, str] = {}
        for number in sorted(self.wanted):
            node = rows.nodes[number]
            if not node.varying:
                continue
            kept, first = rows.kept.get(number, (-1, -1))
            if isinstance(node.expr, SlotLoad) or (kept >= 0 and rows.passes[first] is not self.one_pass):
                slot = node.expr.slot if isinstance(node.expr, SlotLoad) else kept
                values[number] = self.access.load(code, slot, self.pointers[slot], index, mask)
            elif isinstance(node.expr, SlotPlace):
                values[number] = self.pointers[node.expr.slot]
            elif isinstance(node.expr, Op) and node.expr.name == PICK:
                values[number] = self._pick(node, values, index, mask)
            elif isinstance(node.expr, Op):
                values[number] = emit_op(code, node.expr, [self._lanes_of(arg, values) for arg in node.args])
                if kept >= 0:
                    self.access.store(code, kept, values[number], self.pointers[kept], index, mask)
            else:
                values[number] = index_vector(code, index)
        for k in self.one_pass.stores:
            slot = rows.body.stores[k][0]
            value = self._lanes_of(rows.store_roots[k], values)
            self.access.store(code, slot, value, self.pointers[slot], index, mask)
        return values

    def _pick(self, node: Node, values: dict[int, str], index: str, mask: str) -> str:
        """Through the slot's own pointer: what `numbers` has for the place may be a row's first element."""
        _, offset, inside_ = node.args
        along = self.rows.nodes[offset].varying
        slot, by = slot_of(node.expr), (values if along else self.numbers)[offset]  # type: ignore[arg-type]
        lanes = self._lanes_of(inside_, values)
        return self.access.pick(self.code, slot, self.pointers[slot], index, mask, by, lanes, along)

    def _lanes_of(self, number: int, values: dict[int, str]) -> str:
        if number in values:
            return values[number]
        return self.code.splat(self.numbers[number], value_type(self.rows.nodes[number].expr.dtype))


def _identity(reduction: Reduction) -> bool | int | float:
    return identity(reduction.combine, reduction.value.dtype)
