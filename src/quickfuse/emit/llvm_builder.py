"""The builder of LLVM IR for CPUs: what the walker asks for, with explicit vectors, in one function for a unit of work.

Sums in registers have an accumulator of one vector each, or several, so that additions do not wait for each other. Where
vectors lie across rows each lane is a row of its own, and accumulators are in memory, so that a pass reads its operands in
the order in which they lie there: for each element of a row, all rows of the block. A narrow strip of rows would leave
accumulators in registers, and memory at a third of its speed: processors foresee runs of memory, not parts with gaps
between them.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from quickfuse.emit.llvm_access import Access, load_number, pick_number, put_number, store_number
from quickfuse.emit.llvm_flow import Carried, Flow, Scope
from quickfuse.emit.llvm_math import Code, Module, literal, memory_type, value_type
from quickfuse.emit.llvm_ops import convert, emit_op, is_call
from quickfuse.emit.plan import Plan
from quickfuse.ir.expr import HALF_TYPES, Expr
from quickfuse.ir.kernel import ArgScalar, Const, Index, Op, Reduced, RowLength, SlotLoad, StoreKind
from quickfuse.ir.loop import identity

#: The integer types that hold the bits of values that are remembered.
_BITS = {"float": "i32", "double": "i64"}


@dataclass(slots=True, eq=False)
class Value:
    """The name of a number or of a vector, its LLVM type or that of a lane, and where it was computed."""

    name: str
    element: str
    is_vector: bool
    scope: Scope


class LLVMBuilder(Flow):
    """Writes the function of a unit of work, whose parameters `llvm.py` describes."""

    def __init__(self, plan: Plan, module: Module) -> None:
        self.plan = plan
        self.body = plan.body
        self.lanes = plan.lanes(module.target.vector_bytes)
        self.vectors_code = Code(module, self.lanes)
        super().__init__(module)
        self.vectors_code.prologue = self.entry
        self.access = Access(self.body, self.vectors_code)
        #: Where the current element of each slot is, but for the axis of vectors; the index of each other axis; and of
        #: vectors the first one, and which of their lanes count.
        self.pointers = [f"%s{k}" for k in range(len(self.body.slots))]
        self.indices = {axis: f"%i{axis}" for axis in self.body.parallel}
        self.index, self.mask, self._tail_mask = "", "", ""
        #: Memory for a value of each row of a block: of nodes, of reductions, and of their partial sums in float32.
        self._columns: dict[int, str] = {}
        self._sums: dict[int, str] = {}
        self._parts: dict[int, str] = {}
        self._known: dict[str, str] = {}
        if any(isinstance(node.expr, Op) and is_call(node.expr, module.target) for node in self.plan.nodes):
            self.attributes = '"stackrealign"'  # what is stored around calls does not cross the ends of cache lines

    def _enter(self, scope: Scope) -> None:
        super()._enter(scope)
        self.vectors_code.lines = scope.lines

    @contextlib.contextmanager
    def _written_to(self, lines: list[str]) -> Iterator[None]:
        here = self.numbers.lines
        self.numbers.lines = self.vectors_code.lines = lines
        yield
        self.numbers.lines = self.vectors_code.lines = here

    def _once(self, instruction: str) -> str:
        """The result of an instruction at the beginning of the function, where it is executed only once."""
        if instruction not in self._known:
            self._known[instruction] = self.entry.let(instruction)
        return self._known[instruction]

    def _size(self, axis: int) -> str:
        word = self._once(f"getelementptr i64, ptr %row, i64 {axis}")
        return self._once(f"load i64, ptr {word}")

    def _nowhere(self) -> str:
        """Where those store to that are not to store."""
        return self._once("alloca [2 x i64]")

    # --- values ---

    def _number(self, name: str, dtype: torch.dtype) -> Value:
        return Value(name, value_type(dtype), False, self.scope)

    def _vector(self, name: str, dtype: torch.dtype) -> Value:
        return Value(name, value_type(dtype), True, self.scope)

    def lanes_of(self, value: Value) -> str:
        """A value as a vector. A number is spread where it was computed, which is done once."""
        if value.is_vector or self.lanes == 1:
            return value.name
        if not value.name.startswith("%"):
            return self.vectors_code.splat(value.name, value.element)
        key = (value.name, value.element)
        if key not in value.scope.spread:
            with self._written_to(value.scope.lines):
                value.scope.spread[key] = self.vectors_code.splat_here(value.name, value.element)
        return value.scope.spread[key]

    def leaf(self, expr: Expr) -> Value:
        if isinstance(expr, SlotLoad):
            pointer = self.pointers[expr.slot]
            if self.access.moves(expr.slot):
                return self._vector(self.access.load(expr.slot, pointer, self.index, self.mask), expr.dtype)
            return self._number(load_number(self.numbers, expr.slot, expr.dtype, pointer), expr.dtype)
        if isinstance(expr, Reduced):
            return self._vector(self._load(self._sums[expr.reduction], value_type(expr.dtype)), expr.dtype)
        if isinstance(expr, Index) and expr.axis == self.body.vector:
            code = self.vectors_code
            return self._vector(code.binary("add", "i64", code.splat_here(self.index, "i64"), code.iota("i64")), expr.dtype)
        return self._number(self._shared_number(expr), expr.dtype)

    def _shared_number(self, expr: Expr) -> str:
        """An index, or a number that is the same for a whole unit: a scalar argument is a float64, an int64, or a bool as 0
        or 1, in a word of its own."""
        code = self.numbers
        if isinstance(expr, Index):
            return self.indices[expr.axis]
        if isinstance(expr, RowLength):
            length, *others = [self._size(axis) for axis in self.body.inner]
            for other in others:
                length = self._once(f"mul i64 {length}, {other}")
            return length
        if isinstance(expr, ArgScalar):
            word = code.let(f"getelementptr i64, ptr %scalars, i64 {expr.arg}", f"a{expr.arg}.at")
            if expr.dtype == torch.float64:
                return code.let(f"load double, ptr {word}", f"a{expr.arg}")
            return convert(code, code.let(f"load i64, ptr {word}", f"a{expr.arg}"), torch.int64, expr.dtype)
        assert isinstance(expr, Const), f"{expr!r} in a kernel body"
        if expr.dtype in HALF_TYPES:
            return convert(code, literal("float", expr.value), torch.float32, expr.dtype)
        return literal(value_type(expr.dtype), expr.value)

    def operation(self, op: Op, args: Sequence[Value]) -> Value:
        if any(arg.is_vector for arg in args):
            return self._vector(emit_op(self.vectors_code, op, [self.lanes_of(arg) for arg in args]), op.dtype)
        return self._number(emit_op(self.numbers, op, [arg.name for arg in args]), op.dtype)

    def pick(self, slot: int, offset: Value, inside: Value) -> Value:
        dtype, pointer = self.body.slots[slot].dtype, self.pointers[slot]
        if not (self.access.moves(slot) or offset.is_vector or inside.is_vector):
            return self._number(pick_number(self.numbers, slot, dtype, pointer, offset.name, inside.name), dtype)
        lanes = self._masked(inside)
        return self._vector(self.access.pick(slot, pointer, self.index, offset.name, offset.is_vector, lanes), dtype)

    def _masked(self, inside: Value) -> str:
        lanes = self.lanes_of(inside)
        return self.vectors_code.binary("and", "i1", lanes, self.mask) if self.mask else lanes

    # --- stores ---

    def assign(self, slot: int, value: Value) -> None:
        if self.index:
            self.access.store(slot, self.lanes_of(value), self.pointers[slot], self.index, self.mask)
        else:
            store_number(self.numbers, value.name, self.body.slots[slot].dtype, self.pointers[slot])

    def scatter(self, slot: int, value: Value, offset: Value, inside: Value) -> None:
        pointer = self.pointers[slot]
        if self.index:
            lanes, stored = self._masked(inside), self.lanes_of(value)
            self.access.put(slot, stored, pointer, self.index, offset.name, offset.is_vector, lanes)
        else:
            dtype = self.body.slots[slot].dtype
            put_number(self.numbers, dtype, value.name, pointer, offset.name, inside.name, self._nowhere())

    def set_flag(self, slot: int, value: Value) -> None:
        """Other threads may set the flag as well: it is written only by who sets it."""
        condition = value.name
        if self.index:
            condition = self.vectors_code.intrinsic_of_vector("reduce.or", "i1", self._masked(value))
        where = self.numbers.let(f"select i1 {condition}, ptr {self.pointers[slot]}, ptr {self._nowhere()}")
        self.numbers.lines.append(f"  store i8 1, ptr {where}")

    # --- loops ---

    def _carried(self, values: Sequence[Value]) -> list[Carried]:
        return [((self.vectors_code if v.is_vector else self.numbers).type(v.element), v.name) for v in values]

    def _named(self, names: Sequence[str], like: Sequence[Value]) -> list[Value]:
        return [Value(name, v.element, v.is_vector, self.scope) for name, v in zip(names, like, strict=True)]

    def loop(
        self, axis: int, carried: Sequence[Value], body: Callable[[Sequence[Value]], Sequence[Value]], flushed: Sequence[int]
    ) -> Sequence[Value]:
        parts = [k for k in flushed if k in self._parts]
        size, few = self._size(axis), self.module.target.added_in_float32

        def step(index: str, names: Sequence[str]) -> list[str]:
            pointers, self.indices[axis] = self.pointers, index
            self.pointers = [self._moved(slot, axis, pointer, index) for slot, pointer in enumerate(pointers)]
            ends = body(self._named(names, carried))
            self.pointers = pointers
            return [end.name for end in ends]

        def group(first: str, _: Sequence[str]) -> list[str]:
            past = self.least(self.numbers, self.numbers.let(f"add i64 {first}, {few}"), size)
            self.repeat("row", first, past, "1", [], step)
            self.vectors(functools.partial(self._add_parts, parts))
            return []

        if parts:
            self.repeat("group", "0", size, str(few), [], group)
            return []
        return self._named(self.repeat("along", "0", size, "1", self._carried(carried), step), carried)

    def _moved(self, slot: int, axis: int, pointer: str, index: str) -> str:
        """A slot's pointer moved along an axis."""
        stride = self.access.stride(slot, axis)
        if stride == "0":
            return pointer
        offset = index if stride == "1" else self.numbers.let(f"mul i64 {index}, {stride}")
        return self.numbers.let(f"getelementptr {memory_type(self.body.slots[slot].dtype)}, ptr {pointer}, i64 {offset}")

    def vectors(self, body: Callable[[], object], has_loop: bool = False) -> None:
        begin, end, lanes = "%begin", "%end", str(self.lanes)

        def step(index: str, _: Sequence[str]) -> list[str]:
            self._at(index, self._mask_of(index, end) if has_loop else "", body)
            return []

        def tail() -> list[str]:
            self._at(past, self._tail_mask or self._mask_of(past, end), body)
            return []

        if has_loop:
            self.repeat("vectors", begin, end, lanes, [], step)
            return
        count = self._once(f"sub i64 {end}, {begin}")
        past = self._once(f"add i64 {begin}, {self._once(f'and i64 {count}, -{lanes}')}")
        if self.body.across:  # this loop is within others
            with self._written_to(self.entry.lines):
                self._tail_mask = self._tail_mask or self._mask_of(past, end)
        any_whole, any_left = (self._once(f"icmp slt i64 {one}, {two}") for one, two in ((begin, past), (past, end)))
        self.when(any_whole, [], lambda: self.repeat("vectors", begin, past, lanes, [], step))
        self.when(any_left, [], tail)

    def _at(self, index: str, mask: str, body: Callable[[], object]) -> object:
        self.index, self.mask = index, mask
        result = body()
        self.index, self.mask = "", ""
        return result

    def _mask_of(self, index: str, end: str) -> str:
        """The mask of the lanes before `end`."""
        code = self.vectors_code
        low = self.numbers.let(f"trunc i64 {self.numbers.let(f'sub i64 {end}, {index}')} to i32", "left")
        return code.let(f"icmp ult {code.type('i32')} {code.iota('i32')}, {code.splat_here(low, 'i32')}", "inside")

    def condition(self, value: Value, body: Callable[[], object]) -> None:
        def run() -> list[str]:
            body()
            return []

        self.when(value.name, [], run)

    def memoized(
        self, operands: Sequence[Value], results: Sequence[Expr], body: Callable[[], Sequence[Value]]
    ) -> list[Value]:
        """%memo holds a flag, the operands' bits, and the results."""
        kinds = [*(v.element for v in operands), *(value_type(expr.dtype) for expr in results)]
        if not _BITS.keys() >= set(kinds) or len(kinds) >= self.module.target.memo_words:
            return list(body())
        code = self.numbers
        places = ["%memo", *(code.let(f"getelementptr i64, ptr %memo, i64 {k + 1}") for k in range(len(kinds)))]
        bits = [code.let(f"bitcast {v.element} {v.name} to {_BITS[v.element]}") for v in operands]
        new = code.let(f"icmp ne i64 {code.let('load i64, ptr %memo')}, 1")
        for place, kind, bit in zip(places[1:], kinds, bits, strict=False):
            before = code.let(f"load {_BITS[kind]}, ptr {place}")
            new = code.let(f"or i1 {new}, {code.let(f'icmp ne {_BITS[kind]} {bit}, {before}')}")
        stored = list(zip(kinds, places[1:], strict=True))[len(operands) :]
        known = [(kind, code.let(f"load {kind}, ptr {place}")) for kind, place in stored]

        def compute() -> list[str]:
            values = body()
            self.scope.lines.append("  store i64 1, ptr %memo")
            for place, kind, bit in zip(places[1:], kinds, bits, strict=False):
                self.scope.lines.append(f"  store {_BITS[kind]} {bit}, ptr {place}")
            for (kind, place), value in zip(stored, values, strict=True):
                self.scope.lines.append(f"  store {kind} {value.name}, ptr {place}")
            return [v.name for v in values]

        names = self.when(new, known, compute)
        return [self._number(name, expr.dtype) for name, expr in zip(names, results, strict=True)]

    # --- reductions and scans ---

    def start(self, reduction: int) -> Value:
        store = self.body.stores[reduction]
        dtype = store.value.dtype
        neutral = literal(value_type(dtype), identity(store.combine, dtype))
        if self.body.vector < 0:
            return self._number(neutral, dtype)
        return self._vector(self.vectors_code.splat(neutral, value_type(dtype)), dtype)

    def combine(self, reduction: int, accumulator: Value, value: Value) -> Value:
        """Of equal elements, such as zeros of different signs, the first operand counts: for scans the last element, as in
        eager, and for sums over rows, which vectors lie across, the first one."""
        store = self.body.stores[reduction]
        op = Op(store.operation, (store.value, store.value), store.value.dtype)
        first_counts = store.kind is StoreKind.REDUCE and self.body.across
        return self.operation(op, [accumulator, value] if first_counts else [value, accumulator])

    def total(self, reduction: int, accumulator: Value) -> Value:
        code, dtype = self.vectors_code, self.body.stores[reduction].value.dtype
        vector, half = code.type(value_type(dtype)), self.lanes // 2
        while half:
            order = ", ".join(f"i32 {(lane + half) % self.lanes}" for lane in range(self.lanes))
            turned = f"shufflevector {vector} {accumulator.name}, {vector} poison, <{self.lanes} x i32> <{order}>"
            accumulator = self.combine(reduction, self._vector(code.let(turned), dtype), accumulator)
            half //= 2
        if self.lanes == 1:
            return accumulator
        return self._number(code.let(f"extractelement {vector} {accumulator.name}, i64 0", f"r{reduction}"), dtype)

    def reduce_vectors(
        self, reductions: Sequence[int], accumulators: Sequence[Value], computed: Sequence[Expr],
        body: Callable[[], Sequence[Value]],
    ) -> Sequence[Value]:  # fmt: skip
        """Several vectors at a time, then one, then a masked one; each part begins where the one before ended."""
        target, size, begin = self.module.target, self._size(self.body.vector), "0"
        copies = target.unrolled(len(computed) + len(self.plan.widened.intersection(reductions))) if reductions else 1
        if any(isinstance(expr, Op) and is_call(expr, target) for expr in computed):
            copies = 1
        for count in (copies, 1) if copies > 1 else (1,):
            end = self._once(f"and i64 {size}, {-count * self.lanes}")
            now, starts = accumulators, self._carried(accumulators)

            def several(begin: str = begin, end: str = end, count: int = count, now: Sequence[Value] = now) -> list[str]:
                return self._several(reductions, now, begin, end, count, body)

            accumulators = self._named(self.when(self._once(f"icmp slt i64 {begin}, {end}"), starts, several), now)
            begin = end

        def tail() -> list[str]:
            mask = self._mask_of(begin, size)
            values = self._at(begin, mask, body)
            assert isinstance(values, list)
            return [self._masked_combine(k, total, value, mask).name
                    for k, total, value in zip(reductions, accumulators, values, strict=True)]  # fmt: skip

        ends = self.when(self._once(f"icmp slt i64 {begin}, {size}"), self._carried(accumulators), tail)
        return self._named(ends, accumulators)

    def _several(
        self, reductions: Sequence[int], starts: Sequence[Value], begin: str, end: str, count: int,
        body: Callable[[], Sequence[Value]],
    ) -> list[str]:  # fmt: skip
        """A loop over `count` vectors at a time, each with its accumulators, which are combined after it."""
        rows = [[start, *[self.start(k)] * (0 if k in self.plan.widened else count - 1)]
                for k, start in zip(reductions, starts, strict=True)]  # fmt: skip
        flat = [value for row in rows for value in row]

        def step(index: str, names: Sequence[str]) -> list[str]:
            now = iter(self._named(names, flat))
            sums = [[next(now) for _ in row] for row in rows]
            together: list[list[Value]] = [[] for _ in rows]
            for c in range(count):
                at = index if c == 0 else self.numbers.let(f"add i64 {index}, {c * self.lanes}")
                values = self._at(at, "", body)
                assert isinstance(values, list)
                for k, row, few, value in zip(reductions, sums, together, values, strict=True):
                    few.append(value)
                    if k not in self.plan.widened:
                        row[c] = self.combine(k, row[c], value)
            for k, row, few in zip(reductions, sums, together, strict=True):
                if k in self.plan.widened:
                    row[0] = self.combine(k, row[0], self._widened(self._sum(few)))
            return [value.name for row in sums for value in row]

        names = self.repeat("vectors", begin, end, str(count * self.lanes), self._carried(flat), step)
        ends, totals = iter(self._named(names, flat)), []
        for k, row in zip(reductions, rows, strict=True):
            total, *others = [next(ends) for _ in row]
            for other in others:
                total = self.combine(k, total, other)
            totals.append(total.name)
        return totals

    def _sum(self, values: list[Value]) -> Value:
        """The sum of a few vectors of float32, in pairs."""
        code = self.vectors_code
        while len(values) > 1:
            pairs = [self._vector(code.binary("fadd", "float", x.name, y.name), torch.float32)
                     for x, y in zip(values[::2], values[1::2], strict=False)]  # fmt: skip
            values = pairs + values[len(values) - len(values) % 2 :]
        return values[0]

    def _widened(self, value: Value) -> Value:
        return self._vector(self.vectors_code.convert("fpext", "float", value.name, "double"), torch.float64)

    def _masked_combine(self, k: int, total: Value, value: Value, mask: str) -> Value:
        """Lanes without an element leave the accumulator as it is.

        They are chosen from what is combined already: LLVM (22) makes one instruction of a masked load and a choice by the
        same mask, and forgets that it comes before a store to the same memory.
        """
        value = self._widened(value) if k in self.plan.widened else value
        combined = self.combine(k, total, value)
        chosen = self.vectors_code.select(mask, total.element, self.lanes_of(combined), self.lanes_of(total))
        return Value(chosen, total.element, True, self.scope)

    # --- values in memory, one for each row of a block ---

    def _array(self, element: str) -> str:
        """Room for a value of each row of a unit; the address is that of the row with index 0. Bools are bytes."""
        kind, target = "i8" if element == "i1" else element, self.module.target
        memory = self.entry.let(f"alloca {kind}, i64 {target.block(self.body) * target.together(self.body)}, align 64")
        return self.entry.let(f"getelementptr {kind}, ptr {memory}, i64 {self._once('sub i64 0, %begin')}", "array")

    def _load(self, array: str, element: str) -> str:
        code, kind = self.vectors_code, "i8" if element == "i1" else element
        where = code.let(f"getelementptr {kind}, ptr {array}, i64 {self.index}")
        raw = code.let(f"load {code.type(kind)}, ptr {where}, align 1")
        return code.binary("icmp ne", "i8", raw, code.const("i8", 0)) if element == "i1" else raw

    def _store(self, array: str, element: str, value: str) -> None:
        code, kind = self.vectors_code, "i8" if element == "i1" else element
        value = code.convert("zext", "i1", value, "i8") if element == "i1" else value
        where = code.let(f"getelementptr {kind}, ptr {array}, i64 {self.index}")
        code.lines.append(f"  store {code.type(kind)} {value}, ptr {where}, align 1")

    def remember(self, node: int, value: Value) -> None:
        self._columns[node] = self._columns.get(node) or self._array(value.element)
        self._store(self._columns[node], value.element, self.lanes_of(value))

    def recall(self, node: int, dtype: torch.dtype) -> Value:
        return self._vector(self._load(self._columns[node], value_type(dtype)), dtype)

    def clear(self, reductions: Sequence[int]) -> None:
        for k in reductions:
            start = self.start(k)
            self._sums[k] = self._sums.get(k) or self._array(start.element)
            self._store(self._sums[k], start.element, start.name)
            if k in self.plan.widened:
                self._parts[k] = self._parts.get(k) or self._array("float")
                self._store(self._parts[k], "float", self.vectors_code.const("float", 0.0))

    def accumulate(self, reduction: int, value: Value) -> None:
        if reduction in self._parts:
            part = self._load(self._parts[reduction], "float")
            total = self.vectors_code.binary("fadd", "float", self.lanes_of(value), part)
            self._store(self._parts[reduction], "float", total)
        else:
            self._add_to_sum(reduction, value)

    def _add_to_sum(self, reduction: int, value: Value) -> None:
        dtype = self.body.stores[reduction].value.dtype
        before = self._vector(self._load(self._sums[reduction], value_type(dtype)), dtype)
        self._store(self._sums[reduction], before.element, self.combine(reduction, before, value).name)

    def _add_parts(self, reductions: Sequence[int]) -> None:
        """Add partial sums, and begin with the next ones."""
        for k in reductions:
            part = self._vector(self._load(self._parts[k], "float"), torch.float32)
            self._add_to_sum(k, self._widened(part))
            self._store(self._parts[k], "float", self.vectors_code.const("float", 0.0))
