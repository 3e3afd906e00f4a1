"""Kernels that go along an axis in order: scans and scatters, in `NAME.row` or `NAME.block`.

A row is gone through number by number, with the running values of its scans in registers. Where neighbours in memory
belong to different rows, `NAME.block` does so for a vector of them at a time. Rows, which threads share, never store to
the same element.
"""

from __future__ import annotations

from quickfuse.emit.llvm_access import (
    Vectors,
    index_vector,
    inside,
    load_number,
    load_stride,
    number_op,
    pick_number,
    put_number,
    slot_of,
    store_number,
)  # fmt: skip
from quickfuse.emit.llvm_math import Code, Module, literal, memory_type, value_type
from quickfuse.emit.llvm_ops import emit_op
from quickfuse.emit.llvm_values import Node, number_values, shared_number
from quickfuse.errors import Unsupported
from quickfuse.ir.expr import PICK
from quickfuse.ir.kernel import Index, KernelBody, Op, Reduced, Scatter, SlotLoad, SlotPlace, SlotPrevious
from quickfuse.ir.loop import identity


def serial_function(body: KernelBody, name: str, module: Module) -> list[str]:
    """The lines of `NAME.row` or, with columns, `NAME.block`, with the arguments of those of kernels with reductions."""
    if body.reduced != 1:
        raise Unsupported("several axes in order")
    return _Serial(body, name, module).function()


class _Serial:
    """Values by node are names: of vectors where there are columns and the value changes along them, else of numbers."""

    def __init__(self, body: KernelBody, name: str, module: Module) -> None:
        self.body = body
        self.name = name
        self.module = module
        self.last = body.ndim - 1
        self.axis = body.rows_ndim - 1 if body.columns else self.last
        self.nodes, roots = number_values(body, self.axis)
        count = len(body.reductions)
        self.reduction_roots = roots[:count]
        self.store_roots = roots[count : count + len(body.stores)]
        rest = roots[count + len(body.stores) :]
        #: For each scatter the nodes of its offset, of where it stores, and of its value.
        self.scattered = [tuple(rest[3 * k : 3 * k + 3]) for k in range(len(body.scatters))]
        self.lanes = module.target.vector_bytes // self._widest() if body.columns else 1
        self.once = Code(module)  # before all loops
        self.outer = Code(module, self.lanes, self.once)  # once a vector of columns
        self.inner = Code(module, self.lanes, self.once)  # for each element
        self.numbers = Code(module) if body.columns else self.inner  # for each element, before its vectors
        self.access = Vectors(body, self.axis, self.once)
        self.values: dict[int, str] = {}
        #: Where each slot's first element is, and its current one; the first of a vector's columns, and which are in it.
        self.first: list[str] = []
        self.here: list[str] = []
        self.column, self.mask = "%c", ""
        #: The condition of the only scatter, where a branch on it is taken before its vectors.
        self.decided: int | None = None
        self.running: dict[int, str] = {}

    def _widest(self) -> int:
        stored = [slot.dtype.itemsize for slot in self.body.slots if slot.access != "r"]
        return max([4, *stored, *(node.expr.dtype.itemsize for node in self.nodes if node.varying)])

    def _is_vector(self, number: int) -> bool:
        return self.body.columns and self.nodes[number].varying

    def function(self) -> list[str]:
        body = self.body
        slots = [f"ptr noalias %s{k}" for k in range(len(body.slots))]
        outer = [f"i64 %i{k}" for k in range(body.rows_ndim - body.columns)]
        bounds = ["i64 %begin", "i64 %end"] if body.columns else []
        params = ", ".join([*slots, "ptr noalias %row", "ptr noalias %scalars", *outer, *bounds])
        kind = "block" if body.columns else "row"
        self._numbers()
        if not body.columns:
            elements = self._rows()
        elif body.reductions:
            elements = self._running_columns()
        else:
            elements = self._scattered_columns()
        head = [
            f"define internal void @{self.name}.{kind}({params}) #0 {{",
            "entry:",
            "  %nowhere = alloca i64",
            f"  %size.at = getelementptr i64, ptr %row, i64 {self.last}",
            "  %size = load i64, ptr %size.at",
            *self.once.lines,
        ]
        return [*head, *elements, "  ret void", "}", ""]

    # --- loops ---

    def _rows(self) -> list[str]:
        self._stores()
        return _loop("i", "elements", "0", "%size", 1, self._phis(), self.numbers.lines)

    def _running_columns(self) -> list[str]:
        """A vector of rows after the other, so that running values stay in registers."""
        left = ["  %left = sub i64 %end, %c"]
        self.mask = inside(self.outer, "%left")
        self._vectors()
        elements = _loop("i", "elements", "0", "%size", 1, self._phis(), [*self.numbers.lines, *self.inner.lines])
        return _loop("c", "columns", "%begin", "%end", self.lanes, [*left, *self.outer.lines], elements)

    def _scattered_columns(self) -> list[str]:
        """An element of all rows after the other, so that long runs of memory are gone through.

        Where they are all stored or none, one branch decides, and vectors need no masks.
        """
        (_, within, _), *others = self.scattered
        if not others and not self.body.stores and not self._is_vector(within):
            self.decided = within
        self._vectors()
        whole = _loop("c", "columns", "%begin", "%whole.end", self.lanes, [], [*self.outer.lines, *self.inner.lines])
        self.outer.lines, self.inner.lines = [], []
        self.column = "%whole.end"
        self.mask = inside(self.outer, "%left")
        self._vectors()
        self.once.lines += [
            "  %all = sub i64 %end, %begin",
            f"  %whole = and i64 %all, {-self.lanes}",
            "  %whole.end = add i64 %begin, %whole",
            "  %any.whole = icmp slt i64 %begin, %whole.end",
            "  %left = sub i64 %end, %whole.end",
            "  %any.left = icmp sgt i64 %left, 0",
        ]
        decide = [] if self.decided is None else [
            f"  br i1 {self.values[self.decided]}, label %stored, label %tail.after",
            "stored:",
        ]  # fmt: skip
        columns = [
            *self.numbers.lines,
            *decide,
            "  br i1 %any.whole, label %columns.before, label %columns.after",
            *whole[1:],
            "  br i1 %any.left, label %tail, label %tail.after",
            "tail:",
            *self.outer.lines,
            *self.inner.lines,
            "  br label %tail.after",
            "tail.after:",
        ]
        return _loop("i", "elements", "0", "%size", 1, [], columns)

    def _phis(self) -> list[str]:
        return [
            f"  %acc{k} = phi {self._type(k)} [ {self._start(k)}, %elements.before ], [ {running}, %elements.end ]"
            for k, running in sorted(self.running.items())
        ]

    def _type(self, reduction: int) -> str:
        return self.inner.type(value_type(self.body.reductions[reduction].value.dtype))

    def _start(self, reduction: int) -> str:
        of = self.body.reductions[reduction]
        element = value_type(of.value.dtype)
        number = literal(element, identity(of.combine, of.value.dtype))
        return number if self.lanes == 1 and not self.body.columns else _constant(element, number, self.lanes)

    # --- values ---

    def _numbers(self) -> None:
        """All values that are single numbers, except running ones, and where the current element of each slot is."""
        for slot, operand in enumerate(self.body.slots):
            stride = operand.strides[self.last]
            here = load_stride(self.body, slot, self.last, self.once) if stride is None else str(stride)
            self.first.append(f"%s{slot}")
            self.here.append(self._moved(slot, here))
        for number, node in enumerate(self.nodes):
            if not self._is_vector(number):
                code, pointers = (self.numbers, self.here) if node.within else (self.once, self.first)
                self.values[number] = self._value(code, code, number, node, pointers)

    def _vectors(self) -> None:
        """All values that are vectors, and the stores."""
        for number, node in enumerate(self.nodes):
            if self._is_vector(number):
                code, pointers = (self.inner, self.here) if node.within else (self.outer, self.first)
                self.values[number] = self._value(code, self.numbers, number, node, pointers)
        self._stores()

    def _stores(self) -> None:
        for k in range(len(self.body.reductions)):
            self._advance(k)
        for (slot, _), root in zip(self.body.stores, self.store_roots, strict=True):
            dtype = self.body.slots[slot].dtype
            if self.body.columns:
                value = self._lanes_of(self.inner, root)
                self.access.store(self.inner, slot, value, self.here[slot], self.column, self.mask)
            else:
                store_number(self.numbers, self.values[root], dtype, self.here[slot])
        for scatter, roots in zip(self.body.scatters, self.scattered, strict=True):
            self._scatter(scatter, roots, self.here[scatter.slot])

    def _moved(self, slot: int, stride: str) -> str:
        if stride == "0":
            return f"%s{slot}"
        index = "%i" if stride == "1" else self.numbers.let(f"mul i64 %i, {stride}")
        element = memory_type(self.body.slots[slot].dtype)
        return self.numbers.let(f"getelementptr {element}, ptr %s{slot}, i64 {index}")

    def _value(self, vectors: Code, numbers: Code, number: int, node: Node, pointers: list[str]) -> str:
        expr, values = node.expr, self.values
        if isinstance(expr, Reduced):
            return self._advance(expr.reduction)
        if isinstance(expr, SlotPrevious):
            return self._previous(expr, pointers[expr.slot])
        if isinstance(expr, SlotPlace):
            return pointers[expr.slot]
        if not self._is_vector(number):
            if isinstance(expr, Op):
                args = [values[arg] for arg in node.args]
                return number_op(numbers, expr, args)
            if isinstance(expr, SlotLoad):
                return load_number(numbers, expr.slot, expr.dtype, pointers[expr.slot])
            if isinstance(expr, Index):
                return "%i" if expr.axis == self.last else f"%i{expr.axis}"
            return shared_number(numbers, expr)
        if isinstance(expr, SlotLoad):
            return self.access.load(vectors, expr.slot, pointers[expr.slot], self.column, self.mask)
        if isinstance(expr, Index):
            return index_vector(vectors, self.column)
        assert isinstance(expr, Op)
        if expr.name == PICK:
            _, offset, within = node.args
            slot, along = slot_of(expr), self._is_vector(offset)
            lanes = self._lanes_of(vectors, within)
            return self.access.pick(vectors, slot, pointers[slot], self.column, self.mask, values[offset], lanes, along)
        return emit_op(vectors, expr, [self._lanes_of(vectors, arg) for arg in node.args])

    def _lanes_of(self, code: Code, number: int) -> str:
        """A value as a vector, if there are columns."""
        if not self.body.columns or self._is_vector(number):
            return self.values[number]
        if number == self.decided:
            return code.const("i1", True)
        return code.splat_here(self.values[number], value_type(self.nodes[number].expr.dtype))

    def _advance(self, k: int) -> str:
        """The running value of a scan at the current element."""
        if k not in self.running:
            of = self.body.reductions[k]
            value = self._lanes_of(self.inner, self.reduction_roots[k])
            combine = Op(of.operation, (of.value, of.value), of.value.dtype)
            self.running[k] = emit_op(self.inner, combine, [value, f"%acc{k}"])  # of equal elements, the last one counts
        return self.running[k]

    # --- scatters ---

    def _previous(self, expr: SlotPrevious, pointer: str) -> str:
        which = next(k for k, scatter in enumerate(self.body.scatters) if scatter.slot == expr.slot)
        offset, within, _ = self.scattered[which]
        if not self.body.columns:
            place = Op(PICK, (SlotPlace(expr.slot, expr.dtype),), expr.dtype)
            return pick_number(self.numbers, place, pointer, self.values[offset], self.values[within])
        lanes, along = self._lanes_of(self.inner, within), self._is_vector(offset)
        return self.access.pick(self.inner, expr.slot, pointer, self.column, self.mask, self.values[offset], lanes, along)

    def _scatter(self, scatter: Scatter, roots: tuple[int, ...], pointer: str) -> None:
        offset, within, value = roots
        if not self.body.columns:
            dtype, values = self.body.slots[scatter.slot].dtype, self.values
            put_number(self.numbers, scatter.slot, dtype, values[value], pointer, values[offset], values[within])
            return
        code, along = self.inner, self._is_vector(offset)
        lanes, stored = self._lanes_of(code, within), self._lanes_of(code, value)
        self.access.put(code, scatter.slot, stored, pointer, self.column, self.mask, self.values[offset], lanes, along)


def _loop(index: str, label: str, begin: str, end: str, step: int, first: list[str], rest: list[str]) -> list[str]:
    """A loop that runs at least once. `first` begins with what the loop carries along."""
    return [
        f"  br label %{label}.before",
        f"{label}.before:",
        f"  br label %{label}",
        f"{label}:",
        f"  %{index} = phi i64 [ {begin}, %{label}.before ], [ %{index}.next, %{label}.end ]",
        *first,
        *rest,
        f"  br label %{label}.end",
        f"{label}.end:",
        f"  %{index}.next = add i64 %{index}, {step}",
        f"  %{index}.more = icmp slt i64 %{index}.next, {end}",
        f"  br i1 %{index}.more, label %{label}, label %{label}.after",
        f"{label}.after:",
    ]


def _constant(element: str, number: str, lanes: int) -> str:
    return "<" + ", ".join([f"{element} {number}"] * lanes) + ">"
