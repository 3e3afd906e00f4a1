"""Kernels with reductions whose vectors lie along the last axis that is not reduced, for sums over columns of a matrix.

    NAME.columns   all passes over a block of `COLUMN_BLOCK` columns, a few vectors wide
    NAME.column    the same for one vector with a mask: the columns that are left

Every lane is a row of its own, in the sense of `ir/kernel.py`: accumulators are never combined across lanes.
"""

from __future__ import annotations

from quickfuse.emit.llvm_access import Vectors, index_vector, inside, load_number, number_op, slot_of
from quickfuse.emit.llvm_math import Code, Module, value_type
from quickfuse.emit.llvm_ops import emit_op
from quickfuse.emit.llvm_rows import RowCode
from quickfuse.emit.llvm_values import Node, shared_number, widened_sum
from quickfuse.ir.expr import PICK
from quickfuse.ir.kernel import COLUMN_BLOCK, Index, KernelBody, Op, Pass, Reduced, RowLength, SlotLoad, SlotPlace

#: In a pass with at most so many values rows are gone through several at a time, for the sake of its sums.
_ROWS_AT_A_TIME = {8: 4, 16: 2}


def column_functions(body: KernelBody, name: str, module: Module) -> list[str]:
    """The lines of `NAME.block`: addresses of the slots at column 0, the table's row, the scalars, the index of each
    other axis that is not reduced, and the columns from %begin to %end; and of what it calls."""
    whole = _Columns(body, name, module, masked=False)
    part = _Columns(body, name, module, masked=True)
    return [*whole.function(), *part.function(), *_block(body, name, whole.lanes)]


def _block(body: KernelBody, name: str, lanes: int) -> list[str]:
    slots = [f"ptr %s{k}" for k in range(len(body.slots))]
    outer = [f"i64 %i{k}" for k in range(body.rows_ndim - 1)]
    shared = ", ".join([*slots, "ptr %row", "ptr %scalars", *outer])
    return [
        f"define internal void @{name}.block({shared}, i64 %begin, i64 %end) #0 {{",
        "entry:",
        "  %n = sub i64 %end, %begin",
        f"  %whole = icmp eq i64 %n, {COLUMN_BLOCK}",
        "  br i1 %whole, label %all, label %vector",
        "all:",
        f"  call void @{name}.columns({shared}, i64 %begin, i64 {COLUMN_BLOCK})",
        "  ret void",
        "vector:",
        "  %c = phi i64 [ %begin, %entry ], [ %c.next, %vector ]",
        "  %left = sub i64 %end, %c",
        f"  call void @{name}.column({shared}, i64 %c, i64 %left)",
        f"  %c.next = add i64 %c, {lanes}",
        "  %more = icmp slt i64 %c.next, %end",
        "  br i1 %more, label %vector, label %done",
        "done:",
        "  ret void",
        "}",
        "",
    ]


class _Columns(RowCode):
    """Values by node are lists: a name for each vector of the block, or a single one where all columns share it."""

    def __init__(self, body: KernelBody, name: str, module: Module, *, masked: bool) -> None:
        super().__init__(body, name, module, body.rows_ndim - 1)
        self.masked = masked
        self.width = 1 if masked else COLUMN_BLOCK // self.lanes
        self.vectors = Code(module, self.lanes, self.once)
        self.vectors.lines = self.lines
        self.access = Vectors(body, self.axis, self.once)
        self.outside: dict[int, list[str]] = {}
        self.results: dict[int, list[str]] = {}
        self.mask = ""
        self.columns: list[str] = []

    def function(self) -> list[str]:
        slots = [f"ptr noalias %s{k}" for k in range(len(self.body.slots))]
        outer = [f"i64 %i{k}" for k in range(self.axis)]
        params = [*slots, "ptr noalias %row", "ptr noalias %scalars", *outer, "i64 %c", "i64 %left"]
        self._entry()
        for number, one_pass in enumerate(self.passes):
            self._compute_outside()
            self._pass(f"p{number}", one_pass)
            for k in one_pass.reductions:
                self.results[k] = [self.vectors.let(f"load {self._vector_type(k)}, ptr %sum{k}.{w}", f"r{k}")
                                   for w in range(self.width)]  # fmt: skip
        self._compute_outside()
        for (slot, _), root in zip(self.body.stores, self.store_roots, strict=True):
            if self.body.once_a_row(slot):
                for w in range(self.width):
                    value = self._lanes_of(self.vectors, root, w, self.outside)
                    self.access.store(self.vectors, slot, value, f"%s{slot}", self.columns[w], self.mask)
        kind = "column" if self.masked else "columns"
        head = f"define internal void @{self.name}.{kind}({', '.join(params)}) #0 {{"
        return [head, *self.lines, "  ret void", "}", ""]

    def _entry(self) -> None:
        self.label("entry")
        self.load_sizes()
        self.load_strides()
        self.columns = ["%c"] + [self.once.let(f"add i64 %c, {w * self.lanes}") for w in range(1, self.width)]
        if self.masked:
            self.mask = inside(self.vectors, "%left")
        for k in range(len(self.body.reductions)):
            self.lines += [f"  %sum{k}.{w} = alloca {self._vector_type(k)}" for w in range(self.width)]

    def _vector_type(self, k: int) -> str:
        return f"<{self.lanes} x {value_type(self.body.reductions[k].value.dtype)}>"

    def _lanes_of(self, code: Code, number: int, w: int, values: dict[int, list[str]]) -> str:
        """A value as a vector. One that changes from row to row of a pass is spread where it is used."""
        node = self.nodes[number]
        names = values[number]
        if node.varying:
            return names[w]
        element = value_type(node.expr.dtype)
        if not node.within:
            return code.splat(names[0], element)
        vector = code.type(element)
        one = code.let(f"insertelement {vector} poison, {element} {names[0]}, i64 0")
        return code.let(f"shufflevector {vector} {one}, {vector} poison, <{self.lanes} x i32> zeroinitializer", "all")

    # --- outside of the loops over reduced axes ---

    def _compute_outside(self) -> None:
        for number, node in enumerate(self.nodes):
            if number in self.outside or node.within:
                continue
            if isinstance(node.expr, Reduced):
                if node.expr.reduction in self.results:
                    self.outside[number] = self.results[node.expr.reduction]
            elif all(arg in self.outside for arg in node.args):
                pointers = [f"%s{k}" for k in range(len(self.body.slots))]
                self.outside[number] = self._value(self.vectors, self.once, node, pointers, {}, self.outside)

    def _value(
        self, vectors: Code, numbers: Code, node: Node, pointers: list[str], indices: dict[int, str],
        values: dict[int, list[str]],
    ) -> list[str]:  # fmt: skip
        expr = node.expr
        if not node.varying:
            if isinstance(expr, Op):
                args = [values[arg][0] for arg in node.args]
                return [number_op(numbers, expr, args)]
            if isinstance(expr, SlotPlace):
                return [pointers[expr.slot]]
            if isinstance(expr, SlotLoad):
                return [load_number(numbers, expr.slot, expr.dtype, pointers[expr.slot])]
            if isinstance(expr, Index):
                return [indices.get(expr.axis, f"%i{expr.axis}")]
            return [self.row_length() if isinstance(expr, RowLength) else shared_number(numbers, expr)]
        if isinstance(expr, SlotLoad):
            return [self.access.load(vectors, expr.slot, pointers[expr.slot], c, self.mask) for c in self.columns]
        if isinstance(expr, Index):
            return [index_vector(vectors, c) for c in self.columns]
        if isinstance(expr, SlotPlace):
            return [pointers[expr.slot]] * self.width
        assert isinstance(expr, Op)
        if expr.name == PICK:
            return [self._pick(vectors, expr, node, w, pointers, values) for w in range(self.width)]
        return [emit_op(vectors, expr, [self._lanes_of(vectors, arg, w, values) for arg in node.args])
                for w in range(self.width)]  # fmt: skip

    def _pick(
        self, code: Code, op: Op, node: Node, w: int, pointers: list[str], values: dict[int, list[str]]
    ) -> str:  # fmt: skip
        _, offset, inside_ = node.args
        along = self.nodes[offset].varying
        by = values[offset][w if along else 0]
        lanes = self._lanes_of(code, inside_, w, values)
        slot = slot_of(op)
        return self.access.pick(code, slot, pointers[slot], self.columns[w], self.mask, by, lanes, along)

    # --- a pass ---

    def _pass(self, prefix: str, one_pass: Pass) -> None:
        body = self.body
        reductions = [(k, body.reductions[k]) for k in one_pass.reductions]
        for k, reduction in reductions:
            start = self.vectors.splat(self.identity(reduction), value_type(reduction.value.dtype))
            self.lines += [f"  store {self._vector_type(k)} {start}, ptr %sum{k}.{w}" for w in range(self.width)]
        outer = range(body.rows_ndim, body.ndim - 1)
        pointers = [f"%s{k}" for k in range(len(body.slots))]
        indices, pointers = self.open_loops(prefix, outer, pointers)
        begin, copies = "0", self._rows_at_a_time(one_pass)
        if copies > 1:
            begin = self._inner_loop(f"{prefix}.few", copies, begin, one_pass, indices, pointers)
        self._inner_loop(prefix, 1, begin, one_pass, indices, pointers)
        self.close_loops(prefix, outer)

    def _rows_at_a_time(self, one_pass: Pass) -> int:
        """Several where that makes sums cheaper, and is not too much code."""
        if self.masked or not any(self.narrow(k) >= 0 for k in one_pass.reductions):
            return 1
        count = len(self.needed(one_pass))
        return next((copies for most, copies in _ROWS_AT_A_TIME.items() if count <= most), 1)

    def _inner_loop(
        self, prefix: str, copies: int, begin: str, one_pass: Pass, indices: dict[int, str], pointers: list[str]
    ) -> str:
        """The last reduced axis from `begin` on, `copies` rows of the block at a time. Constants are spread before it.

        Returns the index at which it ends. Accumulators are in memory before and after.
        """
        last, index = self.body.ndim - 1, f"%{prefix}.i"
        before, numbers = Code(self.module), Code(self.module)
        code = Code(self.module, self.lanes, before)
        code.lines = numbers.lines
        strides, self.access.strides, self.access.once = self.access.strides, {}, before
        rows = []
        for c in range(copies):
            at = index if c == 0 else numbers.let(f"add i64 {index}, {c}")
            rows.append(self._row(code, numbers, one_pass, indices | {last: at}, pointers))
        loads, phis, stores = [], [], []
        for k in one_pass.reductions:
            type_ = self._vector_type(k)
            for w in range(self.width):
                name = f"%{prefix}.sum{k}.{w}"
                total = self._accumulated(code, k, w, rows, name)
                loads.append(f"  {name}.start = load {type_}, ptr %sum{k}.{w}")
                phis.append(f"  {name} = phi {type_} [ {name}.start, %{prefix}.start ], [ {total}, %{prefix}.rows ]")
                stores.append(f"  store {type_} {total}, ptr %sum{k}.{w}")
        self.access.strides, self.access.once = strides, self.once
        self.lines += [
            f"  br label %{prefix}.before",
            f"{prefix}.before:",
            *before.lines,
            f"  %{prefix}.last = and i64 %size{last}, {-copies}",
            f"  %{prefix}.any = icmp slt i64 {begin}, %{prefix}.last",
            f"  br i1 %{prefix}.any, label %{prefix}.start, label %{prefix}.end",
            f"{prefix}.start:",
            *loads,
            f"  br label %{prefix}.rows",
            f"{prefix}.rows:",
            f"  {index} = phi i64 [ {begin}, %{prefix}.start ], [ {index}.next, %{prefix}.rows ]",
            *phis,
            *numbers.lines,
            f"  {index}.next = add i64 {index}, {copies}",
            f"  {index}.more = icmp slt i64 {index}.next, %{prefix}.last",
            f"  br i1 {index}.more, label %{prefix}.rows, label %{prefix}.after",
            f"{prefix}.after:",
            *stores,
            f"  br label %{prefix}.end",
            f"{prefix}.end:",
        ]
        return f"%{prefix}.last"

    def _row(
        self, code: Code, numbers: Code, one_pass: Pass, indices: dict[int, str], pointers: list[str]
    ) -> dict[int, list[str]]:
        """One row of the block: loads, values, stores. Returns the values by node."""
        last = self.body.ndim - 1
        here = [self.pointer(numbers, slot, last, p, indices[last]) for slot, p in enumerate(pointers)]
        values = dict(self.outside)
        for number in sorted(self.needed(one_pass)):
            values[number] = self._value(code, numbers, self.nodes[number], here, indices, values)
        for k in one_pass.stores:
            slot = self.body.stores[k][0]
            for w, column in enumerate(self.columns):
                value = self._lanes_of(code, self.store_roots[k], w, values)
                self.access.store(code, slot, value, here[slot], column, self.mask)
        return values

    def _accumulated(self, code: Code, k: int, w: int, rows: list[dict[int, list[str]]], name: str) -> str:
        """An accumulator with a few rows' values added."""
        reduction, narrow = self.body.reductions[k], self.narrow(k)
        if len(rows) > 1 and narrow >= 0:
            few = [self._lanes_of(code, narrow, w, values) for values in rows]
            return self.combined(code, reduction, widened_sum(code, few), name)
        for values in rows:
            name = self.combined(code, reduction, self._lanes_of(code, self.reduction_roots[k], w, values), name)
        return name
