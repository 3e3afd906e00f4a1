"""Where the operands of a CPU kernel are, and how vectors and numbers of them are loaded and stored.

A slot whose stride along the axis of vectors is known to be 1 is loaded as a vector, one with a dynamic stride element by
element (a gather), and one with stride 0 is a single number.
"""

from __future__ import annotations

import torch

from quickfuse.emit.llvm_math import MANGLED, Code, memory_type
from quickfuse.ir.kernel import KernelBody


class Access:
    """Loads and stores of vectors along the axis of vectors. `code` writes vectors; what is computed once goes to its
    prologue.

    `pointer` is where a slot is at index 0 of that axis, `index` the first one of a vector; `mask` is empty for a whole one.
    """

    def __init__(self, body: KernelBody, code: Code) -> None:
        self.body = body
        self.code = code
        #: For slots with a dynamic stride along the axis: the stride, and the offsets of the lanes of a vector.
        self._offsets: dict[int, tuple[str, str]] = {}
        self._strides: dict[tuple[int, int], str] = {}

    def moves(self, slot: int) -> bool:
        return self.body.vector >= 0 and self.body.slots[slot].strides[self.body.vector] != 0

    def stride(self, slot: int, axis: int) -> str:
        """A stride, which is loaded once if it is dynamic."""
        known = self.body.slots[slot].strides[axis]
        if known is not None:
            return str(known)
        if (slot, axis) not in self._strides:
            once = self.code.prologue
            word = once.let(f"getelementptr i64, ptr %row, i64 {self.body.stride_word(slot, axis)}")
            self._strides[slot, axis] = once.let(f"load i64, ptr {word}", f"s{slot}.stride")
        return self._strides[slot, axis]

    def load(self, slot: int, pointer: str, index: str, mask: str) -> str:
        code, dtype = self.code, self.body.slots[slot].dtype
        stride = self.body.slots[slot].strides[self.body.vector]
        if stride == -1 and not mask:
            return self._load_backwards(slot, pointer, index)
        where = self._address(slot, pointer, index)
        if stride != 1 or mask:
            return self._masked_load(slot, where, stride == 1, mask or code.const("i1", True))
        vector = code.type(memory_type(dtype))
        return from_memory(code, code.let(f"load {vector}, ptr {where}, align {dtype.itemsize}", f"s{slot}"), dtype)

    def _load_backwards(self, slot: int, pointer: str, index: str) -> str:
        code, dtype = self.code, self.body.slots[slot].dtype
        element, vector = memory_type(dtype), code.type(memory_type(dtype))
        last = code.let(f"sub i64 {1 - code.lanes}, {index}")
        where = code.let(f"getelementptr {element}, ptr {pointer}, i64 {last}", f"s{slot}.at")
        raw = code.let(f"load {vector}, ptr {where}, align {dtype.itemsize}", f"s{slot}")
        order = ", ".join(f"i32 {lane}" for lane in reversed(range(code.lanes)))
        turned = code.let(f"shufflevector {vector} {raw}, {vector} poison, <{code.lanes} x i32> <{order}>")
        return from_memory(code, turned, dtype)

    def store(self, slot: int, value: str, pointer: str, index: str, mask: str) -> None:
        code, dtype = self.code, self.body.slots[slot].dtype
        contiguous = self.body.slots[slot].strides[self.body.vector] == 1
        where = self._address(slot, pointer, index)
        if not contiguous or mask:
            self._masked_store(slot, value, where, contiguous, mask or code.const("i1", True))
            return
        stored = to_memory(code, value, dtype)
        code.lines.append(f"  store {code.type(memory_type(dtype))} {stored}, ptr {where}, align {dtype.itemsize}")

    def pick(self, slot: int, pointer: str, index: str, offset: str, along: bool, inside: str) -> str:
        """The elements that are `offset` after the vector at `index`, 0 for lanes that are not `inside`.

        `offset` is a single number, or a vector where `along` says that it changes along the axis.
        """
        return self._masked_load(slot, *self._picked(slot, pointer, index, offset, along), inside)

    def put(self, slot: int, value: str, pointer: str, index: str, offset: str, along: bool, inside: str) -> None:
        """Store to where `pick` loads from. The elements of a vector are distinct."""
        self._masked_store(slot, value, *self._picked(slot, pointer, index, offset, along), inside)

    def _picked(self, slot: int, pointer: str, index: str, offset: str, along: bool) -> tuple[str, bool]:
        """Where the elements of `pick` are, and whether they lie next to each other: one address, or one for each lane."""
        code, element = self.code, memory_type(self.body.slots[slot].dtype)
        stride = self.body.slots[slot].strides[self.body.vector]
        if stride == 1 and not along:
            here = code.let(f"getelementptr {element}, ptr {pointer}, i64 {offset}")
            return self._address(slot, here, index), True
        where, kind = pointer, "ptr"
        if stride == 1:
            where = code.let(f"getelementptr {element}, ptr {pointer}, i64 {index}")
            where = code.let(f"getelementptr {element}, ptr {where}, {code.type('i64')} {code.iota('i64')}")
        elif stride != 0:
            where = self._address(slot, pointer, index)
        if stride != 0:
            kind = code.type("ptr")
        offsets = offset if along else code.splat_here(offset, "i64")
        return code.let(f"getelementptr {element}, {kind} {where}, {code.type('i64')} {offsets}"), False

    def _address(self, slot: int, pointer: str, index: str) -> str:
        """Where the vector at `index` begins; for a stride that is not 1, where each of its lanes is."""
        code, axis = self.code, self.body.vector
        element = memory_type(self.body.slots[slot].dtype)
        if self.body.slots[slot].strides[axis] == 1:
            return code.let(f"getelementptr {element}, ptr {pointer}, i64 {index}", f"s{slot}.at")
        if slot not in self._offsets:
            stride = self.stride(slot, axis)
            multiples = f"mul {code.type('i64')} {code.iota('i64')}, {code.splat(stride, 'i64')}"
            self._offsets[slot] = stride, code.prologue.let(multiples, f"s{slot}.offsets")
        stride, lane_offsets = self._offsets[slot]
        first = code.let(f"getelementptr {element}, ptr {pointer}, i64 {code.let(f'mul i64 {index}, {stride}')}")
        return code.let(f"getelementptr {element}, ptr {first}, {code.type('i64')} {lane_offsets}", f"s{slot}.at")

    def _masked_load(self, slot: int, where: str, contiguous: bool, mask: str) -> str:
        code, dtype = self.code, self.body.slots[slot].dtype
        vector, pointers = code.type(memory_type(dtype)), "ptr" if contiguous else code.type("ptr")
        symbol = self._symbol("load" if contiguous else "gather", memory_type(dtype))
        code.module.declare(symbol, vector, [pointers, "i32", code.type("i1"), vector])
        operands = f"{pointers} {where}, i32 {dtype.itemsize}, {code.type('i1')} {mask}, {vector} zeroinitializer"
        return from_memory(code, code.let(f"call {vector} @{symbol}({operands})", f"s{slot}"), dtype)

    def _masked_store(self, slot: int, value: str, where: str, contiguous: bool, mask: str) -> None:
        code, dtype = self.code, self.body.slots[slot].dtype
        vector, pointers = code.type(memory_type(dtype)), "ptr" if contiguous else code.type("ptr")
        symbol = self._symbol("store" if contiguous else "scatter", memory_type(dtype))
        code.module.declare(symbol, "void", [vector, pointers, "i32", code.type("i1")])
        stored = to_memory(code, value, dtype)
        operands = f"{vector} {stored}, {pointers} {where}, i32 {dtype.itemsize}, {code.type('i1')} {mask}"
        code.lines.append(f"  call void @{symbol}({operands})")

    def _symbol(self, kind: str, element: str) -> str:
        pointers = "p0" if kind in ("load", "store") else f"v{self.code.lanes}p0"
        return f"llvm.masked.{kind}.v{self.code.lanes}{MANGLED.get(element, element)}.{pointers}"


def load_number(code: Code, slot: int, dtype: torch.dtype, pointer: str) -> str:
    return from_memory(code, code.let(f"load {memory_type(dtype)}, ptr {pointer}", f"s{slot}"), dtype)


def store_number(code: Code, value: str, dtype: torch.dtype, pointer: str) -> None:
    code.lines.append(f"  store {memory_type(dtype)} {to_memory(code, value, dtype)}, ptr {pointer}")


def pick_number(code: Code, slot: int, dtype: torch.dtype, pointer: str, offset: str, inside: str) -> str:
    """The element that is `offset` after `pointer` if `inside`, else 0. What is read in its stead is the table's row."""
    element = memory_type(dtype)
    where = code.let(f"getelementptr {element}, ptr {pointer}, i64 {offset}")
    safe = code.let(f"select i1 {inside}, ptr {where}, ptr %row")
    raw = code.let(f"load {element}, ptr {safe}", f"s{slot}")
    zero = "0" if element.startswith("i") else "0.0"
    return from_memory(code, code.let(f"select i1 {inside}, {element} {raw}, {element} {zero}"), dtype)


def put_number(code: Code, dtype: torch.dtype, value: str, pointer: str, offset: str, inside: str, nowhere: str) -> None:
    """Store to the element that is `offset` after `pointer` if `inside`."""
    where = code.let(f"getelementptr {memory_type(dtype)}, ptr {pointer}, i64 {offset}")
    store_number(code, value, dtype, code.let(f"select i1 {inside}, ptr {where}, ptr {nowhere}"))


def from_memory(code: Code, raw: str, dtype: torch.dtype) -> str:
    if dtype == torch.bool:
        return code.binary("icmp ne", "i8", raw, code.const("i8", 0))
    return code.convert("bitcast", "i16", raw, "half") if dtype == torch.float16 else raw


def to_memory(code: Code, value: str, dtype: torch.dtype) -> str:
    if dtype == torch.bool:
        return code.convert("zext", "i1", value, "i8")
    return code.convert("bitcast", "half", value, "i16") if dtype == torch.float16 else value
