"""The innermost function of a CPU kernel, `NAME.loop`: the last axis of a member, from %begin to %end.

    once     values that do not change along the axis: scalar arguments, loads with stride 0, what follows from them
    vectors  whole vectors of elements
    tail     the elements that are left, as a vector with a mask

A kernel without axes is the first part only.
"""

from __future__ import annotations

from quickfuse.emit.llvm_access import Vectors, index_vector, load_number, number_op, set_flag, slot_of, store_number
from quickfuse.emit.llvm_math import Code, Module, value_type
from quickfuse.emit.llvm_ops import emit_op
from quickfuse.emit.llvm_values import Node, number_values, shared_number
from quickfuse.emit.llvm_view import BodyView
from quickfuse.ir.expr import PICK
from quickfuse.ir.kernel import Index, Op, SlotLoad, SlotPlace


def loop_function(body: BodyView, name: str, module: Module) -> list[str]:
    """The lines of `NAME.loop`: addresses of the slots at index 0 of the axis, the row, the scalars, %begin and %end
    (if there is an axis), and the index of each outer axis."""
    return _Loop(body, name, module).function()


#: Operations worth remembering a result of, and the integer types that hold the bits of remembered values.
_SLOW = frozenset("pow exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh erf erfc lgamma".split())
_BITS = {"float": "i32", "double": "i64"}
_MEMO_WORDS = 64


class _Loop:
    def __init__(self, body: BodyView, name: str, module: Module) -> None:
        self.body = body
        self.name = name
        self.nodes, self.roots = number_values(body, body.ndim - 1)
        self.once = Code(module)
        self.lanes = module.target.vector_bytes // self._widest()
        self.vectors = Code(module, self.lanes, self.once)
        #: The name of each value that is computed once, by node.
        self.uniform: dict[int, str] = {}
        self.access = Vectors(body, body.ndim - 1, self.once)
        #: The line that makes memory for what is not to be stored in a flag.
        self.nowhere = ""

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
        if self._has_flags():
            self.nowhere = "  %nowhere = alloca i8"
        self._compute_uniform()
        if not self.body.ndim:
            for (slot, _), root in zip(self.body.stores, self.roots, strict=True):
                self._store_number(slot, self.uniform[root])
            return [head, self.nowhere, *self.once.lines, "  ret void", "}", ""]
        whole, tail = self._iteration("%i", ""), self._iteration("%whole.end", "%inside")
        return [head, *self._control_flow(whole, tail), "}", ""]

    def _control_flow(self, whole: list[str], tail: list[str]) -> list[str]:
        mask_type = f"<{self.lanes} x i32>"
        return [
            "entry:",
            self.nowhere,
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
            and not self._has_flags()
            and not any(isinstance(node.expr, SlotPlace) for node in self.nodes)  # what they load has no place in %memo
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

    def _number(self, node: Node) -> str:
        expr, code = node.expr, self.once
        if isinstance(expr, Op):
            args = [self.uniform[arg] for arg in node.args]
            return number_op(code, expr, args)
        if isinstance(expr, SlotLoad):
            return load_number(code, expr.slot, expr.dtype, f"%s{expr.slot}")
        if isinstance(expr, SlotPlace):
            return f"%s{expr.slot}"
        if isinstance(expr, Index):
            return f"%i{expr.axis}"
        return shared_number(code, expr)

    def _has_flags(self) -> bool:
        return any(slot.access == "flag" for slot in self.body.slots)

    def _store_number(self, slot: int, value: str) -> None:
        if self.body.slots[slot].access == "flag":
            set_flag(self.once, value, f"%s{slot}")
            return
        store_number(self.once, value, self.body.slots[slot].dtype, f"%s{slot}")

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
                values[number] = self.access.load(code, node.expr.slot, f"%s{node.expr.slot}", index, mask)
            elif isinstance(node.expr, SlotPlace):
                values[number] = f"%s{node.expr.slot}"
            elif isinstance(node.expr, Op) and node.expr.name == PICK:
                place, offset, inside = node.args
                along = self.nodes[offset].varying
                numbers = [(values if n in values else self.uniform)[n] for n in (place, offset)]
                values[number] = self.access.pick(
                    code, slot_of(node.expr), numbers[0], index, mask, numbers[1], self._lanes_of(inside, values), along
                )
            elif isinstance(node.expr, Op):
                values[number] = emit_op(code, node.expr, [self._lanes_of(arg, values) for arg in node.args])
            else:
                values[number] = index_vector(code, index)
        for (slot, _), root in zip(self.body.stores, self.roots, strict=True):
            value = self._lanes_of(root, values)
            if self.body.slots[slot].access == "flag":
                inside = code.binary("and", "i1", value, mask) if mask else value
                set_flag(code, code.intrinsic_of_vector("reduce.or", "i1", inside), f"%s{slot}")
            else:
                self.access.store(code, slot, value, f"%s{slot}", index, mask)
        return code.lines

    def _lanes_of(self, number: int, values: dict[int, str]) -> str:
        if number in values:
            return values[number]
        return self.vectors.splat(self.uniform[number], value_type(self.nodes[number].expr.dtype))
