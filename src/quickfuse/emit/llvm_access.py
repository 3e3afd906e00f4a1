"""Where the operands of a CPU kernel are, and how vectors of them are loaded and stored.

A vector lies along one axis of the body. A slot whose stride there is known to be 1 is loaded as a vector, one with a
dynamic stride element by element (a gather), and one with stride 0 is a single number.
"""

from __future__ import annotations

import torch

from quickfuse.emit.llvm_math import MANGLED, Code, memory_type
from quickfuse.emit.llvm_ops import emit_op
from quickfuse.emit.llvm_view import BodyView
from quickfuse.ir.expr import PICK
from quickfuse.ir.kernel import Op, SlotPlace


def stride_word(body: BodyView, slot: int, axis: int) -> int:
    """The word of a row that holds a dynamic stride."""
    return body.slot_word(slot) + 1 + sum(s is None for s in body.slots[slot].strides[:axis])


def load_stride(body: BodyView, slot: int, axis: int, once: Code) -> str:
    word = once.let(f"getelementptr i64, ptr %row, i64 {stride_word(body, slot, axis)}")
    return once.let(f"load i64, ptr {word}", f"s{slot}.stride")


class Vectors:
    """Loads and stores of vectors along `axis`. Dynamic strides are computed in `once`, which is executed before."""

    def __init__(self, body: BodyView, axis: int, once: Code) -> None:
        self.body = body
        self.axis = axis
        self.once = once
        #: For slots with a dynamic stride: the stride, and the offsets of the lanes of a vector.
        self.strides: dict[int, tuple[str, str]] = {}

    def load(self, code: Code, slot: int, pointer: str, index: str, mask: str) -> str:
        """The vector of a slot at `index`, where `pointer` is at index 0. `mask` is empty for a whole vector."""
        dtype = self.body.slots[slot].dtype
        element, vector = memory_type(dtype), code.type(memory_type(dtype))
        if self.body.slots[slot].strides[self.axis] == -1 and not mask:
            return self._load_backwards(code, slot, pointer, index)
        where = self._address(code, slot, pointer, index)
        contiguous = self.body.slots[slot].strides[self.axis] == 1
        if contiguous and not mask:
            raw = code.let(f"load {vector}, ptr {where}, align {dtype.itemsize}", f"s{slot}")
        else:
            kind, pointers = ("load", "ptr") if contiguous else ("gather", code.type("ptr"))
            symbol = _masked(code, kind, element)
            code.module.declare(symbol, vector, [pointers, "i32", code.type("i1"), vector])
            operands = f"{pointers} {where}, i32 {dtype.itemsize}, {_mask(code, mask)}, {vector} zeroinitializer"
            raw = code.let(f"call {vector} @{symbol}({operands})", f"s{slot}")
        return from_memory(code, raw, dtype)

    def _load_backwards(self, code: Code, slot: int, pointer: str, index: str) -> str:
        dtype = self.body.slots[slot].dtype
        element, vector = memory_type(dtype), code.type(memory_type(dtype))
        last = code.let(f"sub i64 {1 - code.lanes}, {index}")
        where = code.let(f"getelementptr {element}, ptr {pointer}, i64 {last}", f"s{slot}.at")
        raw = code.let(f"load {vector}, ptr {where}, align {dtype.itemsize}", f"s{slot}")
        order = ", ".join(f"i32 {lane}" for lane in reversed(range(code.lanes)))
        turned = code.let(f"shufflevector {vector} {raw}, {vector} poison, <{code.lanes} x i32> <{order}>")
        return from_memory(code, turned, dtype)

    def pick(
        self, code: Code, slot: int, pointer: str, index: str, mask: str, offset: str, inside: str, along: bool
    ) -> str:  # fmt: skip
        """The elements that are `offset` behind the vector at `index`, 0 for lanes that are not `inside`.

        `offset` is a single number, or a vector where `along` says that it changes along the axis.
        """
        dtype = self.body.slots[slot].dtype
        element, vector = memory_type(dtype), code.type(memory_type(dtype))
        if mask:
            inside = code.binary("and", "i1", inside, mask)
        where, kind, pointers = self._picked(code, slot, pointer, index, offset, along)
        symbol = _masked(code, kind, element)
        code.module.declare(symbol, vector, [pointers, "i32", code.type("i1"), vector])
        operands = f"{pointers} {where}, i32 {dtype.itemsize}, {code.type('i1')} {inside}, {vector} zeroinitializer"
        return from_memory(code, code.let(f"call {vector} @{symbol}({operands})", f"s{slot}"), dtype)

    def put(
        self, code: Code, slot: int, value: str, pointer: str, index: str, mask: str, offset: str, inside: str, along: bool
    ) -> None:  # fmt: skip
        """Store to where `pick` loads from. The elements of a vector are distinct."""
        dtype = self.body.slots[slot].dtype
        element = memory_type(dtype)
        if mask:
            inside = code.binary("and", "i1", inside, mask)
        where, kind, pointers = self._picked(code, slot, pointer, index, offset, along)
        symbol = _masked(code, "store" if kind == "load" else "scatter", element)
        code.module.declare(symbol, "void", [code.type(element), pointers, "i32", code.type("i1")])
        stored = f"{code.type(element)} {to_memory(code, value, dtype)}"
        operands = f"{stored}, {pointers} {where}, i32 {dtype.itemsize}, {code.type('i1')} {inside}"
        code.lines.append(f"  call void @{symbol}({operands})")

    def _picked(
        self, code: Code, slot: int, pointer: str, index: str, offset: str, along: bool
    ) -> tuple[str, str, str]:  # fmt: skip
        """Where the elements of `pick` are, how they are loaded, and the type of the address or addresses."""
        element = memory_type(self.body.slots[slot].dtype)
        if self.body.slots[slot].strides[self.axis] == 1 and not along:
            here = code.let(f"getelementptr {element}, ptr {pointer}, i64 {offset}")
            return self._address(code, slot, here, index), "load", "ptr"
        where = self._lanes(code, slot, pointer, index)
        offsets = offset if along else code.splat_here(offset, "i64")
        where = code.let(f"getelementptr {element}, {self._kind(code, slot)} {where}, {code.type('i64')} {offsets}")
        return where, "gather", code.type("ptr")

    def _lanes(self, code: Code, slot: int, pointer: str, index: str) -> str:
        """Where each lane of the vector at `index` is; a single address for a slot that does not move."""
        stride = self.body.slots[slot].strides[self.axis]
        if stride == 0:
            return pointer
        if stride is None:
            return self._address(code, slot, pointer, index)
        element = memory_type(self.body.slots[slot].dtype)
        first = code.let(f"getelementptr {element}, ptr {pointer}, i64 {index}")
        return code.let(f"getelementptr {element}, ptr {first}, {code.type('i64')} {code.iota('i64')}")

    def _kind(self, code: Code, slot: int) -> str:
        return "ptr" if self.body.slots[slot].strides[self.axis] == 0 else code.type("ptr")

    def store(self, code: Code, slot: int, value: str, pointer: str, index: str, mask: str) -> None:
        dtype = self.body.slots[slot].dtype
        element = memory_type(dtype)
        stored = f"{code.type(element)} {to_memory(code, value, dtype)}"
        where = self._address(code, slot, pointer, index)
        contiguous = self.body.slots[slot].strides[self.axis] == 1
        if contiguous and not mask:
            code.lines.append(f"  store {stored}, ptr {where}, align {dtype.itemsize}")
            return
        kind, pointers = ("store", "ptr") if contiguous else ("scatter", code.type("ptr"))
        symbol = _masked(code, kind, element)
        code.module.declare(symbol, "void", [code.type(element), pointers, "i32", code.type("i1")])
        operands = f"{stored}, {pointers} {where}, i32 {dtype.itemsize}, {_mask(code, mask)}"
        code.lines.append(f"  call void @{symbol}({operands})")

    def _address(self, code: Code, slot: int, pointer: str, index: str) -> str:
        """Where the vector at `index` begins; for a dynamic stride, where each of its lanes is."""
        element = memory_type(self.body.slots[slot].dtype)
        if self.body.slots[slot].strides[self.axis] == 1:
            return code.let(f"getelementptr {element}, ptr {pointer}, i64 {index}", f"s{slot}.at")
        if slot not in self.strides:
            self.strides[slot] = self._stride(code, slot)
        stride, lane_offsets = self.strides[slot]
        offset = code.let(f"mul i64 {index}, {stride}")
        first = code.let(f"getelementptr {element}, ptr {pointer}, i64 {offset}")
        return code.let(f"getelementptr {element}, ptr {first}, {code.type('i64')} {lane_offsets}", f"s{slot}.at")

    def _stride(self, code: Code, slot: int) -> tuple[str, str]:
        """The slot's stride along the axis and its multiples for the lanes, both computed once."""
        once = self.once
        known = self.body.slots[slot].strides[self.axis]
        stride = str(known) if known is not None else load_stride(self.body, slot, self.axis, once)
        multiples = f"mul {code.type('i64')} {code.iota('i64')}, {code.splat(stride, 'i64')}"
        return stride, once.let(multiples, f"s{slot}.offsets")


def load_number(code: Code, slot: int, dtype: torch.dtype, pointer: str) -> str:
    return from_memory(code, code.let(f"load {memory_type(dtype)}, ptr {pointer}", f"s{slot}"), dtype)


def slot_of(op: Op) -> int:
    """The slot that a pick loads from."""
    place = op.args[0]
    assert isinstance(place, SlotPlace)
    return place.slot


def pick_number(code: Code, op: Op, pointer: str, offset: str, inside: str) -> str:
    """The element that is `offset` behind `pointer` if `inside`, else 0. What is read in its stead is the table's row."""
    slot, dtype = slot_of(op), op.dtype
    element = memory_type(dtype)
    where = code.let(f"getelementptr {element}, ptr {pointer}, i64 {offset}")
    safe = code.let(f"select i1 {inside}, ptr {where}, ptr %row")
    raw = code.let(f"load {element}, ptr {safe}", f"s{slot}")
    return from_memory(code, code.let(f"select i1 {inside}, {element} {raw}, {element} {_zero(element)}"), dtype)


def number_op(code: Code, op: Op, args: list[str]) -> str:
    """An operation on numbers, one of which may be a pointer to load from."""
    return pick_number(code, op, *args) if op.name == PICK else emit_op(code, op, args)


def put_number(code: Code, slot: int, dtype: torch.dtype, value: str, pointer: str, offset: str, inside: str) -> None:
    """Store to the element that is `offset` behind `pointer` if `inside`."""
    element = memory_type(dtype)
    where = code.let(f"getelementptr {element}, ptr {pointer}, i64 {offset}")
    safe = code.let(f"select i1 {inside}, ptr {where}, ptr %nowhere")
    code.lines.append(f"  store {element} {to_memory(code, value, dtype)}, ptr {safe}")


def _zero(element: str) -> str:
    return "0" if element.startswith("i") else "0.0"


def set_flag(code: Code, condition: str, pointer: str) -> None:
    """Other threads may set the flag as well: it is written only by who sets it."""
    where = code.let(f"select i1 {condition}, ptr {pointer}, ptr %nowhere")
    code.lines.append(f"  store i8 1, ptr {where}")


def store_number(code: Code, value: str, dtype: torch.dtype, pointer: str) -> None:
    code.lines.append(f"  store {memory_type(dtype)} {to_memory(code, value, dtype)}, ptr {pointer}")


def index_vector(code: Code, index: str) -> str:
    """`index`, `index` + 1, ..."""
    vector = code.type("i64")
    one = code.let(f"insertelement {vector} poison, i64 {index}, i64 0")
    spread = code.let(f"shufflevector {vector} {one}, {vector} poison, {code.type('i32')} zeroinitializer")
    return code.binary("add", "i64", spread, code.iota("i64"), "index")


def inside(code: Code, left: str) -> str:
    """The mask of the first `left` lanes."""
    mask_type = code.type("i32")
    low = code.let(f"trunc i64 {left} to i32", "left")
    one = code.let(f"insertelement {mask_type} poison, i32 {low}, i64 0")
    all_ = code.let(f"shufflevector {mask_type} {one}, {mask_type} poison, {mask_type} zeroinitializer")
    return code.let(f"icmp ult {mask_type} {code.iota('i32')}, {all_}", "inside")


def _masked(code: Code, kind: str, element: str) -> str:
    pointers = "p0" if kind in ("load", "store") else f"v{code.lanes}p0"
    return f"llvm.masked.{kind}.v{code.lanes}{MANGLED.get(element, element)}.{pointers}"


def _mask(code: Code, mask: str) -> str:
    return f"{code.type('i1')} {mask or code.const('i1', True)}"


def from_memory(code: Code, raw: str, dtype: torch.dtype) -> str:
    if dtype == torch.bool:
        return code.binary("icmp ne", "i8", raw, code.const("i8", 0))
    return code.convert("bitcast", "i16", raw, "half") if dtype == torch.float16 else raw


def to_memory(code: Code, value: str, dtype: torch.dtype) -> str:
    if dtype == torch.bool:
        return code.convert("zext", "i1", value, "i8")
    return code.convert("bitcast", "half", value, "i16") if dtype == torch.float16 else value
