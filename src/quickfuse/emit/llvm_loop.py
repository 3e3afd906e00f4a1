"""The innermost function of a CPU kernel, `NAME.loop`: the last axis of a member, from %begin to %end.

    once     values that do not change along the axis: scalar arguments, loads with stride 0, what follows from them
    vectors  whole vectors of elements
    tail     the elements that are left, as a vector with a mask

A kernel without axes is the first part only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quickfuse.emit.llvm_math import MANGLED, Code, Module, literal, memory_type, value_type
from quickfuse.emit.llvm_ops import convert, emit_op
from quickfuse.ir.expr import HALF_TYPES, Expr
from quickfuse.ir.kernel import ArgScalar, Const, Index, KernelBody, Op, SlotLoad, walk


def loop_function(body: KernelBody, name: str, module: Module) -> list[str]:
    """The lines of `NAME.loop`: addresses of the slots at index 0 of the axis, the row, the scalars, %begin and %end
    (if there is an axis), and the index of each outer axis."""
    return _Loop(body, name, module).function()


def stride_word(body: KernelBody, slot: int, axis: int) -> int:
    """The word of a row that holds a dynamic stride."""
    return body.slot_word(slot) + 1 + sum(s is None for s in body.slots[slot].strides[:axis])


#: Operations worth remembering a result of, and the integer types that hold the bits of remembered values.
_SLOW = frozenset("pow exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh erf erfc lgamma".split())
_BITS = {"float": "i32", "double": "i64"}
_MEMO_WORDS = 64


@dataclass(frozen=True, slots=True)
class _Node:
    """One distinct value of a body. `args` are indices of earlier nodes; `varying`: it changes along the last axis."""

    expr: Expr
    args: tuple[int, ...]
    varying: bool


def _number_values(body: KernelBody) -> tuple[list[_Node], list[int]]:
    """The distinct values of a body, arguments first, and the node of each store.

    Equal expressions get one node. They are told apart by their arguments' numbers: comparing the trees themselves
    could take exponential time.
    """
    nodes: list[_Node] = []
    by_key: dict[tuple[object, ...], int] = {}
    by_id: dict[int, int] = {}
    for _, value in body.stores:
        for expr in walk(value):
            args = tuple(by_id[id(arg)] for arg in expr.args) if isinstance(expr, Op) else ()
            label = expr.name if isinstance(expr, Op) else str(expr)
            number = by_key.setdefault((type(expr), label, args, expr.dtype), len(nodes))
            if number == len(nodes):
                nodes.append(_Node(expr, args, _varies(body, expr) or any(nodes[arg].varying for arg in args)))
            by_id[id(expr)] = number
    return nodes, [by_id[id(value)] for _, value in body.stores]


def _varies(body: KernelBody, leaf: Expr) -> bool:
    if isinstance(leaf, SlotLoad):
        return body.ndim > 0 and body.slots[leaf.slot].strides[-1] != 0
    return isinstance(leaf, Index) and leaf.axis == body.ndim - 1


class _Loop:
    def __init__(self, body: KernelBody, name: str, module: Module) -> None:
        self.body = body
        self.name = name
        self.nodes, self.roots = _number_values(body)
        self.once = Code(module)
        self.lanes = module.target.vector_bytes // self._widest()
        self.vectors = Code(module, self.lanes, self.once)
        #: The name of each value that is computed once, by node.
        self.uniform: dict[int, str] = {}
        #: For slots with a dynamic stride: the stride, and the offsets of the lanes of a vector.
        self.strides: dict[int, tuple[str, str]] = {}

    def _widest(self) -> int:
        """The size in bytes of the widest value that is computed or stored for each element."""
        stored = [self.body.slots[slot].dtype.itemsize for slot, _ in self.body.stores]
        return max([*stored, *(node.expr.dtype.itemsize for node in self.nodes if node.varying)], default=8)

    def function(self) -> list[str]:
        slots = [f"ptr noalias %s{k}" for k in range(len(self.body.slots))]
        bounds = ["i64 %begin", "i64 %end"] if self.body.ndim else ["ptr noalias %memo"]
        outer = [f"i64 %i{k}" for k in range(self.body.ndim - 1)]
        params = [*slots, "ptr noalias %row", "ptr noalias %scalars", *bounds, *outer]
        head = f"define internal void @{self.name}.loop({', '.join(params)}) #0 {{"
        if self._worth_remembering():
            return [head, *self._remembering(), "  ret void", "}", ""]
        self._compute_uniform()
        if not self.body.ndim:
            for (slot, _), root in zip(self.body.stores, self.roots, strict=True):
                self._store_number(slot, self.uniform[root])
            return [head, *self.once.lines, "  ret void", "}", ""]
        whole, tail = self._iteration("%i", ""), self._iteration("%whole.end", "%inside")
        return [head, *self._control_flow(whole, tail), "}", ""]

    def _control_flow(self, whole: list[str], tail: list[str]) -> list[str]:
        mask_type = f"<{self.lanes} x i32>"
        return [
            "entry:",
            "  %some = icmp slt i64 %begin, %end",
            "  br i1 %some, label %once, label %done",
            "once:",
            *self.once.lines,
            "  %n = sub i64 %end, %begin",
            f"  %whole = and i64 %n, {-self.lanes}",
            "  %whole.end = add i64 %begin, %whole",
            "  %any.whole = icmp ne i64 %whole, 0",
            "  br i1 %any.whole, label %vectors, label %rest",
            "vectors:",
            "  %i = phi i64 [ %begin, %once ], [ %i.next, %vectors ]",
            *whole,
            f"  %i.next = add i64 %i, {self.lanes}",
            "  %more = icmp slt i64 %i.next, %whole.end",
            "  br i1 %more, label %vectors, label %rest",
            "rest:",
            "  %any.left = icmp slt i64 %whole.end, %end",
            "  br i1 %any.left, label %tail, label %done",
            "tail:",
            "  %left = sub i64 %end, %whole.end",
            "  %left.low = trunc i64 %left to i32",
            f"  %left.one = insertelement {mask_type} poison, i32 %left.low, i64 0",
            f"  %left.all = shufflevector {mask_type} %left.one, {mask_type} poison, {mask_type} zeroinitializer",
            f"  %inside = icmp ult {mask_type} {self.vectors.iota('i32')}, %left.all",
            *tail,
            "  br label %done",
            "done:",
            "  ret void",
        ]

    # --- kernels without axes ---

    def _worth_remembering(self) -> bool:
        """Whether to keep what the member before computed: members with equal operands are common (step counters), and
        libm's functions are slow one by one."""
        values = [*self._loads(), *set(self.roots)]
        return (
            not self.body.ndim
            and any(isinstance(node.expr, Op) and node.expr.name in _SLOW for node in self.nodes)
            and all(value_type(self.nodes[v].expr.dtype) in _BITS for v in values)
            and len(values) < _MEMO_WORDS
        )

    def _loads(self) -> list[int]:
        return [number for number, node in enumerate(self.nodes) if isinstance(node.expr, SlotLoad)]

    def _remembering(self) -> list[str]:
        """Compute the stored values, or take them from %memo: a flag, the operands' bits, the stored values."""
        code = self.once
        loads, results = self._loads(), list(dict.fromkeys(self.roots))
        for number in loads:
            self.uniform[number] = self._number(self.nodes[number])
        code.lines += ["  %flag = load i64, ptr %memo", "  %filled = icmp eq i64 %flag, 1"]
        same, keep = "%filled", ["  store i64 1, ptr %memo"]
        for word, number in enumerate(loads, 1):
            kind = value_type(self.nodes[number].expr.dtype)
            bits = _BITS[kind]
            code.lines += [
                f"  %memo.{word} = getelementptr i64, ptr %memo, i64 {word}",
                f"  %bits.{word} = bitcast {kind} {self.uniform[number]} to {bits}",
                f"  %before.{word} = load {bits}, ptr %memo.{word}",
                f"  %equal.{word} = icmp eq {bits} %bits.{word}, %before.{word}",
                f"  %same.{word} = and i1 {same}, %equal.{word}",
            ]
            same = f"%same.{word}"
            keep.append(f"  store {bits} %bits.{word}, ptr %memo.{word}")
        code.lines += [f"  br i1 {same}, label %known, label %compute", "compute:"]
        for number, node in enumerate(self.nodes):
            if number not in self.uniform:
                self.uniform[number] = self._number(node)
        known, joined = ["known:"], ["joined:"]
        for word, number in enumerate(results, 1 + len(loads)):
            kind = value_type(self.nodes[number].expr.dtype)
            keep.append(f"  %memo.{word}.new = getelementptr i64, ptr %memo, i64 {word}")
            keep.append(f"  store {kind} {self.uniform[number]}, ptr %memo.{word}.new")
            known.append(f"  %memo.{word}.old = getelementptr i64, ptr %memo, i64 {word}")
            known.append(f"  %old.{word} = load {kind}, ptr %memo.{word}.old")
            joined.append(f"  %result.{word} = phi {kind} [ {self.uniform[number]}, %compute ], [ %old.{word}, %known ]")
            self.uniform[number] = f"%result.{word}"
        code.lines += [*keep, "  br label %joined", *known, "  br label %joined", *joined]
        for (slot, _), root in zip(self.body.stores, self.roots, strict=True):
            self._store_number(slot, self.uniform[root])
        return ["entry:", *code.lines]

    # --- values that are computed once ---

    def _compute_uniform(self) -> None:
        for number, node in enumerate(self.nodes):
            if not node.varying:
                self.uniform[number] = self._number(node)

    def _number(self, node: _Node) -> str:
        expr, code = node.expr, self.once
        if isinstance(expr, Op):
            return emit_op(code, expr, [self.uniform[arg] for arg in node.args])
        if isinstance(expr, SlotLoad):
            element = memory_type(expr.dtype)
            return _from_memory(code, code.let(f"load {element}, ptr %s{expr.slot}", f"s{expr.slot}"), expr.dtype)
        if isinstance(expr, ArgScalar):
            return self._scalar(expr)
        if isinstance(expr, Index):
            return f"%i{expr.axis}"
        assert isinstance(expr, Const), f"{expr!r} in a kernel body"
        if expr.dtype in HALF_TYPES:
            return convert(code, literal("float", expr.value), torch.float32, expr.dtype)
        return literal(value_type(expr.dtype), expr.value)

    def _scalar(self, expr: ArgScalar) -> str:
        """A scalar argument: a float64, an int64, or a bool as 0 or 1, in a word of its own."""
        word = self.once.let(f"getelementptr i64, ptr %scalars, i64 {expr.arg}", f"a{expr.arg}.at")
        if expr.dtype == torch.float64:
            return self.once.let(f"load double, ptr {word}", f"a{expr.arg}")
        integer = self.once.let(f"load i64, ptr {word}", f"a{expr.arg}")
        return convert(self.once, integer, torch.int64, expr.dtype)

    def _store_number(self, slot: int, value: str) -> None:
        dtype = self.body.slots[slot].dtype
        stored = _to_memory(self.once, value, dtype)
        self.once.lines.append(f"  store {memory_type(dtype)} {stored}, ptr %s{slot}")

    # --- values along the axis ---

    def _iteration(self, index: str, mask: str) -> list[str]:
        """One vector of elements from `index` on: loads, values, then stores. `mask` is empty for a whole vector."""
        code = self.vectors
        code.lines = []
        values: dict[int, str] = {}
        for number, node in enumerate(self.nodes):
            if not node.varying:
                continue
            if isinstance(node.expr, SlotLoad):
                values[number] = self._load(node.expr, index, mask)
            elif isinstance(node.expr, Op):
                values[number] = emit_op(code, node.expr, [self._lanes_of(arg, values) for arg in node.args])
            else:
                values[number] = self._index_vector(index)
        for (slot, _), root in zip(self.body.stores, self.roots, strict=True):
            self._store(slot, self._lanes_of(root, values), index, mask)
        return code.lines

    def _lanes_of(self, number: int, values: dict[int, str]) -> str:
        if number in values:
            return values[number]
        return self.vectors.splat(self.uniform[number], value_type(self.nodes[number].expr.dtype))

    def _index_vector(self, index: str) -> str:
        code = self.vectors
        vector = code.type("i64")
        one = code.let(f"insertelement {vector} poison, i64 {index}, i64 0")
        spread = code.let(f"shufflevector {vector} {one}, {vector} poison, {code.type('i32')} zeroinitializer")
        return code.binary("add", "i64", spread, code.iota("i64"), "index")

    def _load(self, expr: SlotLoad, index: str, mask: str) -> str:
        code, slot, element = self.vectors, self.body.slots[expr.slot], memory_type(expr.dtype)
        vector, align = code.type(element), expr.dtype.itemsize
        where = self._address(expr.slot, index)
        if slot.strides[-1] == 1 and not mask:
            raw = code.let(f"load {vector}, ptr {where}, align {align}", f"s{expr.slot}")
        else:
            kind, pointers = ("load", "ptr") if slot.strides[-1] == 1 else ("gather", code.type("ptr"))
            symbol = self._masked(kind, element)
            code.module.declare(symbol, vector, [pointers, "i32", code.type("i1"), vector])
            operands = f"{pointers} {where}, i32 {align}, {self._mask(mask)}, {vector} zeroinitializer"
            raw = code.let(f"call {vector} @{symbol}({operands})", f"s{expr.slot}")
        return _from_memory(code, raw, expr.dtype)

    def _store(self, slot: int, value: str, index: str, mask: str) -> None:
        code, dtype = self.vectors, self.body.slots[slot].dtype
        element = memory_type(dtype)
        stored = f"{code.type(element)} {_to_memory(code, value, dtype)}"
        where = self._address(slot, index)
        contiguous = self.body.slots[slot].strides[-1] == 1
        if contiguous and not mask:
            code.lines.append(f"  store {stored}, ptr {where}, align {dtype.itemsize}")
            return
        kind, pointers = ("store", "ptr") if contiguous else ("scatter", code.type("ptr"))
        symbol = self._masked(kind, element)
        code.module.declare(symbol, "void", [code.type(element), pointers, "i32", code.type("i1")])
        operands = f"{stored}, {pointers} {where}, i32 {dtype.itemsize}, {self._mask(mask)}"
        code.lines.append(f"  call void @{symbol}({operands})")

    def _address(self, slot: int, index: str) -> str:
        """Where the vector at `index` begins; for a dynamic stride, where each of its lanes is."""
        element = memory_type(self.body.slots[slot].dtype)
        if self.body.slots[slot].strides[-1] == 1:
            return self.vectors.let(f"getelementptr {element}, ptr %s{slot}, i64 {index}", f"s{slot}.at")
        if slot not in self.strides:
            self.strides[slot] = self._stride(slot)
        stride, lane_offsets = self.strides[slot]
        offset = self.vectors.let(f"mul i64 {index}, {stride}")
        first = self.vectors.let(f"getelementptr {element}, ptr %s{slot}, i64 {offset}")
        offsets = f"{self.vectors.type('i64')} {lane_offsets}"
        return self.vectors.let(f"getelementptr {element}, ptr {first}, {offsets}", f"s{slot}.at")

    def _stride(self, slot: int) -> tuple[str, str]:
        """The slot's stride along the axis and its multiples for the lanes, both computed once."""
        once, code = self.once, self.vectors
        word = once.let(f"getelementptr i64, ptr %row, i64 {stride_word(self.body, slot, self.body.ndim - 1)}")
        stride = once.let(f"load i64, ptr {word}", f"s{slot}.stride")
        multiples = f"mul {code.type('i64')} {code.iota('i64')}, {code.splat(stride, 'i64')}"
        return stride, once.let(multiples, f"s{slot}.offsets")

    def _masked(self, kind: str, element: str) -> str:
        pointers = "p0" if kind in ("load", "store") else f"v{self.lanes}p0"
        return f"llvm.masked.{kind}.v{self.lanes}{MANGLED.get(element, element)}.{pointers}"

    def _mask(self, mask: str) -> str:
        return f"{self.vectors.type('i1')} {mask or self.vectors.const('i1', True)}"


def _from_memory(code: Code, raw: str, dtype: torch.dtype) -> str:
    if dtype == torch.bool:
        return code.binary("icmp ne", "i8", raw, code.const("i8", 0))
    return code.convert("bitcast", "i16", raw, "half") if dtype == torch.float16 else raw


def _to_memory(code: Code, value: str, dtype: torch.dtype) -> str:
    if dtype == torch.bool:
        return code.convert("zext", "i1", value, "i8")
    return code.convert("bitcast", "half", value, "i16") if dtype == torch.float16 else value
