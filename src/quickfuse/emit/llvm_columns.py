"""Kernels with reductions whose vectors lie along the last axis that is not reduced, for sums over columns of a matrix.

    NAME.block   all passes over up to `WIDEST` columns

Every lane is a row of its own, in the sense of `ir/kernel.py`: accumulators are never combined across lanes. They are in
memory, so that a pass reads its operands in the order in which they lie there: element by element of a reduced axis, and
for each all columns of the block. A narrow strip of columns would leave accumulators in registers, and memory at a third of
its speed: processors foresee runs of memory, not pieces with gaps between them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from quickfuse.emit.llvm_access import Vectors, index_vector, inside, load_number, number_op, slot_of
from quickfuse.emit.llvm_math import Code, Module, value_type
from quickfuse.emit.llvm_ops import emit_op
from quickfuse.emit.llvm_rows import RowCode
from quickfuse.emit.llvm_values import Node, shared_number
from quickfuse.ir.expr import PICK
from quickfuse.ir.kernel import COLUMN_BLOCK, Index, KernelBody, Op, Pass, Reduced, RowLength, SlotLoad, SlotPlace

#: So many blocks of columns, at most, are gone through together. What is kept for each column has to stay in the cache.
BLOCKS_TOGETHER = 16
WIDEST = BLOCKS_TOGETHER * COLUMN_BLOCK
#: So many float32 values of a column are added up before they are added to its sum in float64.
_ADDED_IN_FLOAT32 = 8

#: Writes what is computed for a vector of columns, from an index on, with a mask if it is not a whole one.
_Step = Callable[[Code, str, str], None]


def column_function(body: KernelBody, name: str, module: Module) -> list[str]:
    """The lines of `NAME.block`: addresses of the slots at column 0, the table's row, the scalars, the index of each
    other axis that is not reduced, and the columns from %begin to %end."""
    return _Columns(body, name, module).function()


def _kept_as(element: str) -> str:
    """The type of a value in an array: vectors of bits would be packed."""
    return "i8" if element == "i1" else element


class _Columns(RowCode):
    """Values are single numbers in `uniform`, by node, where all columns share them. Of the others those that do not change
    within a row are kept in arrays as far as passes use them, and computed for each vector in `_value`."""

    def __init__(self, body: KernelBody, name: str, module: Module) -> None:
        super().__init__(body, name, module, body.rows_ndim - 1)
        self.pointers = [f"%s{k}" for k in range(len(body.slots))]
        #: Code that runs once, at the beginning.
        self.entry = Code(module)
        self.entry.lines = self.lines
        self.spreading = Code(module, self.lanes, self.entry)
        self.access = Vectors(body, self.axis, self.entry)
        self.uniform: dict[int, str] = {}
        #: Arrays of a value for each column, by node, and by reduction: accumulators and what is to be added to them.
        self.arrays: dict[int, str] = {}
        self.sums: dict[int, str] = {}
        self.parts: dict[int, str] = {}

    def function(self) -> list[str]:
        body = self.body
        slots = [f"ptr noalias {pointer}" for pointer in self.pointers]
        outer = [f"i64 %i{k}" for k in range(self.axis)]
        params = [*slots, "ptr noalias %row", "ptr noalias %scalars", *outer, "i64 %begin", "i64 %end"]
        self._enter()
        self.lines = self.once.lines = []
        for number, one_pass in enumerate(self.passes):
            self._keep(f"k{number}", one_pass)
            self._pass(f"p{number}", one_pass)
        if any(body.once_a_row(slot) for slot, _ in body.stores):
            self._over_columns("last", self._store_once_a_row)
        head = f"define internal void @{self.name}.block({', '.join(params)}) #0 {{"
        return [head, "entry:", *self.entry.lines, *self.lines, "  ret void", "}", ""]

    def _enter(self) -> None:
        """What is known from the beginning: sizes, strides, numbers that all columns share; and room for the others."""
        entry = self.entry
        self.load_sizes()
        self.load_strides()
        entry.lines += [
            "  %n = sub i64 %end, %begin",
            f"  %n.whole = and i64 %n, {-self.lanes}",
            "  %whole.end = add i64 %begin, %n.whole",
            "  %left = sub i64 %end, %whole.end",
            "  %before = sub i64 0, %begin",
        ]
        self.mask = inside(self.spreading, "%left")
        entry.lines += self.spreading.lines
        self.spreading.lines = []
        for number, node in enumerate(self.nodes):
            if not node.varying and not node.within:
                self.uniform[number] = self._number(entry, node, self.pointers, {})
        for k, reduction in enumerate(self.body.reductions):
            self.sums[k] = self._array(value_type(reduction.value.dtype))
            if self.narrow(k) >= 0:
                self.parts[k] = self._array("float")

    def _array(self, element: str) -> str:
        """Room for a value of each column; the address is that of column 0."""
        kind = _kept_as(element)
        memory = self.entry.let(f"alloca {kind}, i64 {WIDEST}, align 64")
        return self.entry.let(f"getelementptr {kind}, ptr {memory}, i64 %before", "array")

    # --- over columns ---

    def _over_columns(self, prefix: str, step: _Step) -> None:
        """A loop over the vectors of the block, with a masked one for the columns that are left."""
        code = Code(self.module, self.lanes, self.entry)
        code.spread = self.spreading.spread
        index = f"%{prefix}.c"
        step(code, index, "")
        whole, code.lines = code.lines, []
        step(code, "%whole.end", self.mask)
        self.lines += [
            f"  br label %{prefix}.before",
            f"{prefix}.before:",
            f"  %{prefix}.any = icmp slt i64 %begin, %whole.end",
            f"  br i1 %{prefix}.any, label %{prefix}.columns, label %{prefix}.rest",
            f"{prefix}.columns:",
            f"  {index} = phi i64 [ %begin, %{prefix}.before ], [ {index}.next, %{prefix}.columns ]",
            *whole,
            f"  {index}.next = add i64 {index}, {self.lanes}",
            f"  {index}.more = icmp slt i64 {index}.next, %whole.end",
            f"  br i1 {index}.more, label %{prefix}.columns, label %{prefix}.rest",
            f"{prefix}.rest:",
            f"  %{prefix}.some = icmp sgt i64 %left, 0",
            f"  br i1 %{prefix}.some, label %{prefix}.tail, label %{prefix}.end",
            f"{prefix}.tail:",
            *code.lines,
            f"  br label %{prefix}.end",
            f"{prefix}.end:",
        ]

    def _load(self, code: Code, array: str, element: str, index: str) -> str:
        kind = _kept_as(element)
        where = code.let(f"getelementptr {kind}, ptr {array}, i64 {index}")
        raw = code.let(f"load {code.type(kind)}, ptr {where}, align 1")
        return code.binary("icmp ne", "i8", raw, code.const("i8", 0)) if element == "i1" else raw

    def _store(self, code: Code, array: str, element: str, index: str, value: str) -> None:
        kind = _kept_as(element)
        value = code.convert("zext", "i1", value, "i8") if element == "i1" else value
        where = code.let(f"getelementptr {kind}, ptr {array}, i64 {index}")
        code.lines.append(f"  store {code.type(kind)} {value}, ptr {where}, align 1")

    # --- values ---

    def _number(self, code: Code, node: Node, pointers: list[str], indices: dict[int, str]) -> str:
        """A value that all columns share."""
        expr = node.expr
        if isinstance(expr, Op):
            return number_op(code, expr, [self.uniform[arg] for arg in node.args])
        if isinstance(expr, SlotPlace):
            return pointers[expr.slot]
        if isinstance(expr, SlotLoad):
            return load_number(code, expr.slot, expr.dtype, pointers[expr.slot])
        if isinstance(expr, Index):
            return indices.get(expr.axis, f"%i{expr.axis}")
        return self.row_length() if isinstance(expr, RowLength) else shared_number(code, expr)

    def _value(
        self, code: Code, number: int, pointers: list[str], index: str, mask: str, values: dict[int, str]
    ) -> str:  # fmt: skip
        """A value for a vector of columns; `values` are those that are computed already."""
        node = self.nodes[number]
        if not node.varying:
            return self._spread(code, number)
        if number not in values:
            expr = node.expr
            if number in self.arrays:
                values[number] = self._load(code, self.arrays[number], value_type(expr.dtype), index)
            elif isinstance(expr, Reduced):
                values[number] = self._load(code, self.sums[expr.reduction], value_type(expr.dtype), index)
            elif isinstance(expr, SlotLoad):
                values[number] = self.access.load(code, expr.slot, pointers[expr.slot], index, mask)
            elif isinstance(expr, Index):
                values[number] = index_vector(code, index)
            elif isinstance(expr, SlotPlace):
                values[number] = pointers[expr.slot]
            else:
                assert isinstance(expr, Op)
                if expr.name == PICK:
                    values[number] = self._pick(code, expr, node, pointers, index, mask, values)
                else:
                    args = [self._value(code, arg, pointers, index, mask, values) for arg in node.args]
                    values[number] = emit_op(code, expr, args)
        return values[number]

    def _spread(self, code: Code, number: int) -> str:
        """A number in all lanes. One that changes within a row is spread where it is used."""
        node, element = self.nodes[number], value_type(self.nodes[number].expr.dtype)
        return code.splat_here(self.uniform[number], element) if node.within else code.splat(self.uniform[number], element)

    def _pick(
        self, code: Code, op: Op, node: Node, pointers: list[str], index: str, mask: str, values: dict[int, str]
    ) -> str:  # fmt: skip
        _, offset, inside_ = node.args
        along = self.nodes[offset].varying
        by = self._value(code, offset, pointers, index, mask, values) if along else self.uniform[offset]
        lanes = self._value(code, inside_, pointers, index, mask, values)
        slot = slot_of(op)
        return self.access.pick(code, slot, pointers[slot], index, mask, by, lanes, along)

    # --- what is computed for each column once ---

    def _keep(self, prefix: str, one_pass: Pass) -> None:
        """Compute what a pass uses for each column, but for what is soon loaded from memory."""
        wanted: set[int] = set()
        used = self.needed(one_pass) | {self.store_roots[k] for k in one_pass.stores}
        used.update(self.narrow(k) if k in self.parts else self.reduction_roots[k] for k in one_pass.reductions)
        stack = [arg for number in used for arg in (*self.nodes[number].args, number) if not self.nodes[arg].within]
        while stack:
            number = stack.pop()
            node = self.nodes[number]
            if not node.varying or number in self.arrays or isinstance(node.expr, (Reduced, Index, SlotPlace)):
                continue
            if isinstance(node.expr, SlotLoad) and self.body.slots[node.expr.slot].strides[self.axis] == 1:
                continue
            if node.expr.dtype is torch.bool:  # vectors of bits are slow to store
                stack += node.args
                continue
            wanted.add(number)
        if not wanted:
            return
        arrays = {number: self._array(value_type(self.nodes[number].expr.dtype)) for number in sorted(wanted)}

        def keep(code: Code, index: str, mask: str) -> None:
            values: dict[int, str] = {}
            for number, array in arrays.items():
                value = self._value(code, number, self.pointers, index, mask, values)
                self._store(code, array, value_type(self.nodes[number].expr.dtype), index, value)

        self._over_columns(prefix, keep)
        self.arrays.update(arrays)

    def _store_once_a_row(self, code: Code, index: str, mask: str) -> None:
        values: dict[int, str] = {}
        stores = [(slot, root) for (slot, _), root in zip(self.body.stores, self.store_roots, strict=True)
                  if self.body.once_a_row(slot)]  # fmt: skip
        stored = [(slot, self._value(code, root, self.pointers, index, mask, values)) for slot, root in stores]
        for slot, value in stored:
            self.access.store(code, slot, value, self.pointers[slot], index, mask)

    # --- a pass ---

    def _pass(self, prefix: str, one_pass: Pass) -> None:
        body, last = self.body, self.body.ndim - 1
        parts = [k for k in one_pass.reductions if k in self.parts]

        def begin(code: Code, index: str, mask: str) -> None:
            for k in one_pass.reductions:
                reduction = body.reductions[k]
                element = value_type(reduction.value.dtype)
                self._store(code, self.sums[k], element, index, code.splat(self.identity(reduction), element))
            for k in parts:
                self._store(code, self.parts[k], "float", index, code.const("float", 0.0))

        def add_parts(code: Code, index: str, mask: str) -> None:
            for k in parts:
                value = code.convert("fpext", "float", self._load(code, self.parts[k], "float", index), "double")
                total = self.combined(code, body.reductions[k], value, self._load(code, self.sums[k], "double", index))
                self._store(code, self.sums[k], "double", index, total)
                self._store(code, self.parts[k], "float", index, code.const("float", 0.0))

        if one_pass.reductions:
            self._over_columns(f"{prefix}.begin", begin)
        outer = range(body.rows_ndim, last)
        indices, pointers = self.open_loops(prefix, outer, self.pointers)
        step = _ADDED_IN_FLOAT32 if parts else 1 << 62
        few, row = f"%{prefix}.few", f"%{prefix}.i{last}"
        self.lines += [
            f"  br label %{prefix}.start",
            f"{prefix}.start:",
            f"  br label %{prefix}.group",
            f"{prefix}.group:",
            f"  {few} = phi i64 [ 0, %{prefix}.start ], [ {few}.next, %{prefix}.group.end ]",
            f"  {few}.past = add i64 {few}, {step}",
            f"  {few}.late = icmp sgt i64 {few}.past, %size{last}",
            f"  {few}.next = select i1 {few}.late, i64 %size{last}, i64 {few}.past",
            f"  br label %{prefix}.row",
            f"{prefix}.row:",
            f"  {row} = phi i64 [ {few}, %{prefix}.group ], [ {row}.next, %{prefix}.row.end ]",
        ]
        self._row(f"{prefix}.v", one_pass, indices | {last: row}, pointers)
        self.lines += [
            f"  br label %{prefix}.row.end",
            f"{prefix}.row.end:",
            f"  {row}.next = add i64 {row}, 1",
            f"  {row}.more = icmp slt i64 {row}.next, {few}.next",
            f"  br i1 {row}.more, label %{prefix}.row, label %{prefix}.rows.end",
            f"{prefix}.rows.end:",
        ]
        if parts:
            self._over_columns(f"{prefix}.add", add_parts)
        self.lines += [
            f"  br label %{prefix}.group.end",
            f"{prefix}.group.end:",
            f"  {few}.more = icmp slt i64 {few}.next, %size{last}",
            f"  br i1 {few}.more, label %{prefix}.group, label %{prefix}.after",
            f"{prefix}.after:",
        ]
        self.close_loops(prefix, outer)

    def _row(self, prefix: str, one_pass: Pass, indices: dict[int, str], pointers: list[str]) -> None:
        """One element of the reduced axes, for all columns of the block."""
        numbers, body = Code(self.module), self.body
        numbers.lines = self.lines
        last = body.ndim - 1
        here = [self.pointer(numbers, slot, last, p, indices[last]) for slot, p in enumerate(pointers)]
        for number in sorted(self.needed(one_pass)):
            if not self.nodes[number].varying:
                self.uniform[number] = self._number(numbers, self.nodes[number], here, indices)

        def step(code: Code, index: str, mask: str) -> None:
            values: dict[int, str] = {}
            for k in one_pass.reductions:
                reduction = body.reductions[k]
                array, element, root = self.sums[k], value_type(reduction.value.dtype), self.reduction_roots[k]
                if k in self.parts:
                    array, element, root = self.parts[k], "float", self.narrow(k)
                value = self._value(code, root, here, index, mask, values)
                before = self._load(code, array, element, index)
                if k in self.parts:
                    total = code.binary("fadd", "float", value, before)
                else:
                    total = self.combined(code, reduction, before, value)  # of equal elements, the first one counts
                self._store(code, array, element, index, total)
            stored = [(k, self._value(code, self.store_roots[k], here, index, mask, values)) for k in one_pass.stores]
            for k, value in stored:
                self.access.store(code, body.stores[k][0], value, here[body.stores[k][0]], index, mask)

        self._over_columns(prefix, step)
