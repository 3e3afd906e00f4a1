"""`emit`: a kernel body -> LLVM IR text for the CPU.

The module has one function a level, from the one that Python calls down to a unit of work:

    NAME          all members; hands NAME.member to `quickfuse_launch`, the launcher's driver, which splits the work units
                  over threads and walks over members
    NAME.member   units [begin, end) of one member: loads its addresses and sizes, walks over its parallel axes
    NAME.unit     one unit: a row of the last axis, all passes over a row that is reduced or gone through in order, or the
    same for
                  a block of rows that vectors lie across; written by the walker

What a unit of work is, `CpuTarget.units` says.
"""

from __future__ import annotations

from collections.abc import Sequence

from quickfuse.emit.llvm_builder import LLVMBuilder
from quickfuse.emit.llvm_flow import Flow
from quickfuse.emit.llvm_math import Module, host_target, memory_type
from quickfuse.emit.plan import Plan
from quickfuse.emit.walker import Walker
from quickfuse.errors import Unsupported
from quickfuse.ir.expr import short
from quickfuse.ir.kernel import KernelBody, StoreKind
from quickfuse.ir.target import CpuTarget


def emit(body: KernelBody, name: str, target: CpuTarget | None = None) -> str:
    """The LLVM IR of `void name(i64* arguments)`, which are 64-bit words: rows, starts, n_members, scalars, n_threads.

    `rows` is the address of the members' table (see `ir/kernel.py`), `starts` of the n_members + 1 prefix sums of their work
    units, `scalars` of one 64-bit word for each scalar argument. `target` is this machine unless given.
    """
    _check(body)
    module = Module(target or host_target())
    builder = LLVMBuilder(Plan(body), module)
    Walker(builder.plan, builder).unit()
    functions = [*_entry(name, body, module.target), *_Member(body, module).function(name)]
    functions += builder.function(f"@{name}.unit({', '.join(_unit_parameters(body))})")
    header = [
        f"; s{k}: {short(slot.dtype)} {slot.access}, strides {slot.strides}, at word {body.slot_word(k)} of a row"
        for k, slot in enumerate(body.slots)
    ]
    vector_bits = 8 * module.target.vector_bytes
    attributes = f'attributes #0 = {{ nounwind "prefer-vector-width"="{vector_bits}" }}'
    return "\n".join(
        [*header, "", *module.declarations.values(), "", *module.helpers.values(), "", *functions, attributes, ""]
    )


def _check(body: KernelBody) -> None:
    if body.device_type != "cpu":
        raise Unsupported(f"CPU code for a kernel on {body.device_type}")
    if any(slot.by_value for slot in body.slots):
        raise Unsupported("operands by value in a CPU kernel")
    if body.ordered and len(body.inner) != 1:
        raise Unsupported("several axes in order")
    for k, store in enumerate(body.stores):
        if store.kind is not StoreKind.ASSIGN:
            continue
        once = k in body.last and body.vector in body.inner
        if body.vector >= 0 and body.slots[store.slot].strides[body.vector] == 0 and not once:
            raise Unsupported("a store that does not move along the innermost axis")
        if store.value.dtype != body.slots[store.slot].dtype:
            raise Unsupported(f"a store of {store.value.dtype} to a buffer of {body.slots[store.slot].dtype}")


def _entry(name: str, body: KernelBody, target: CpuTarget) -> list[str]:
    share_multiple = target.share_multiple if body.ndim == 1 and not body.inner else 1
    return [
        "; member function, words a row, what a thread's share is a multiple of, the arguments of the kernel",
        "declare void @quickfuse_launch(ptr, i64, i64, ptr)",
        "",
        f"define void @{name}(ptr %arguments) #0 {{",
        f"  call void @quickfuse_launch(ptr @{name}.member, i64 {body.row_words}, i64 {share_multiple}, ptr %arguments)",
        "  ret void",
        "}",
        "",
    ]


def _unit_parameters(body: KernelBody) -> list[str]:
    """The addresses of the slots at the unit's first element, the member's row, the scalars, the index of each parallel
    axis; and where vectors lie along one of them, from where to where in its place, or for a body without axes the memo."""
    slots = [f"ptr noalias %s{k}" for k in range(len(body.slots))]
    outer = [f"i64 %i{axis}" for axis in body.parallel if axis != body.vector]
    bounds = ["i64 %begin", "i64 %end"] if body.vector in body.parallel else [] if body.axes else ["ptr noalias %memo"]
    return [*slots, "ptr noalias %row", "ptr noalias %scalars", *outer, *bounds]


class _Member(Flow):
    """Goes through the axes that units of work count, and calls what does one unit; for one axis that is not reduced, where
    an element is a unit, for all units at once."""

    def __init__(self, body: KernelBody, module: Module) -> None:
        super().__init__(module)
        self.body = body
        #: The axes that units count. Of those that vectors lie across the last one counts blocks of rows.
        self.axes = [*body.parallel] if body.inner else [*range(body.ndim - 1)]
        self.moved = [axis for axis in self.axes if axis != body.vector]

    def function(self, name: str) -> list[str]:  # type: ignore[override]
        slots = range(len(self.body.slots))
        self.pointers = [self.load_word(self.entry, self.body.slot_word(k), "ptr", f"s{k}") for k in slots]
        sizes = [self.load_word(self.entry, axis, name=f"size{axis}") for axis in range(self.body.ndim)]
        self.strides = {(k, axis): self.load_word(self.entry, self.body.stride_word(k, axis), name=f"s{k}.stride")
                        for k in slots for axis in self.moved if self.body.slots[k].strides[axis] is None}  # fmt: skip
        if not self.axes:
            bounds = [] if self.body.inner else ["%begin", "%end"] if self.body.axes else ["%memo"]
            self._call(name, self.pointers, bounds)
        else:
            self._units(name, sizes)
        return super().function(f"@{name}.member(ptr %row, ptr %scalars, i64 %begin, i64 %end, ptr %memo)")

    def _units(self, name: str, sizes: list[str]) -> None:
        entry, target, body = self.entry, self.module.target, self.body
        counts = list(sizes)
        block = target.block(body)
        if body.across:
            up = entry.let(f"add i64 {sizes[body.vector]}, {block - 1}")
            counts[body.vector] = entry.let(f"udiv i64 {up}, {block}")
        starts, rest = [], "%begin"
        for axis in reversed(self.axes):
            starts.append(("i64", entry.let(f"urem i64 {rest}, {counts[axis]}", f"i{axis}")))
            rest = entry.let(f"udiv i64 {rest}, {counts[axis]}")
        step = "%units" if body.across else "1"

        def unit(u: str, indices: list[str]) -> list[str]:
            """Do the units from u on, and move the indices by as many, with carries from the last to the first."""
            index = dict(zip(reversed(self.axes), indices, strict=True))
            bounds = ["0", sizes[-1]] if not body.inner else []
            if body.across:
                bounds = self._columns(u, index[body.vector], counts[body.vector], sizes[body.vector], block)
            self._call(name, self._moved_pointers(index), [*(index[axis] for axis in self.moved), *bounds])
            carry, ends = step, []
            for axis in reversed(self.axes):
                total = self.numbers.let(f"add i64 {index[axis]}, {carry}")
                over = self.numbers.let(f"icmp eq i64 {total}, {counts[axis]}")
                ends.append(self.numbers.let(f"select i1 {over}, i64 0, i64 {total}", f"i{axis}"))
                carry = self.numbers.let(f"zext i1 {over} to i64")
            return ends

        self.repeat("unit", "%begin", "%end", step, starts, unit)

    def _columns(self, u: str, index: str, count: str, size: str, block: int) -> list[str]:
        """From where to where the blocks lie that are gone through together from unit u on: %units of them."""
        code = self.numbers
        left = self.least(code, code.let(f"sub i64 {count}, {index}"), code.let(f"sub i64 %end, {u}"))
        together = self.least(code, left, str(self.module.target.together(self.body)))
        code.lines.append(f"  %units = add i64 {together}, 0")
        begin = code.let(f"mul i64 {index}, {block}")
        past = code.let(f"add i64 {begin}, {code.let(f'mul i64 %units, {block}')}")
        return [begin, self.least(code, past, size)]

    def _moved_pointers(self, index: dict[int, str]) -> list[str]:
        pointers = []
        for k, (slot, pointer) in enumerate(zip(self.body.slots, self.pointers, strict=True)):
            for axis in self.moved:
                if slot.strides[axis] != 0:
                    offset = index[axis]
                    if slot.strides[axis] is None:
                        offset = self.numbers.let(f"mul i64 {offset}, {self.strides[k, axis]}")
                    pointer = self.numbers.let(f"getelementptr {memory_type(slot.dtype)}, ptr {pointer}, i64 {offset}")
            pointers.append(pointer)
        return pointers

    def _call(self, name: str, pointers: list[str], rest: Sequence[str]) -> None:
        words = [f"{'ptr' if word == '%memo' else 'i64'} {word}" for word in rest]
        args = [*(f"ptr {pointer}" for pointer in pointers), "ptr %row", "ptr %scalars", *words]
        self.scope.lines.append(f"  call void @{name}.unit({', '.join(args)})")
