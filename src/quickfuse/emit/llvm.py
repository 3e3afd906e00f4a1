"""`emit`: a kernel body -> LLVM IR text for the CPU.

The module has one function a level, from the one that Python calls down to the loop over elements:

    NAME          all members; hands NAME.member to `quickfuse_run`, the launcher's driver, which splits the work units
                  over threads and walks over members
    NAME.member   units [begin, end) of one member: loads its addresses and sizes, walks over its outer axes
    NAME.loop     the last axis: vectors of elements, and a masked vector for what is left; with reductions
    NAME.row      the reduced axes (`llvm_rows.py`), or
    NAME.block    the reduced axes for some blocks of columns (`llvm_columns.py`)

The last two are in `llvm_serial.py` for what goes along an axis in order: scans and scatters.

What a unit of work is, `KernelBody.units` says.
"""

from __future__ import annotations

from collections.abc import Sequence

from quickfuse.emit.llvm_access import stride_word
from quickfuse.emit.llvm_columns import BLOCKS_TOGETHER, column_function
from quickfuse.emit.llvm_loop import loop_function
from quickfuse.emit.llvm_math import Module, host_target, memory_type
from quickfuse.emit.llvm_rows import row_function
from quickfuse.emit.llvm_serial import serial_function
from quickfuse.emit.llvm_view import BodyView
from quickfuse.errors import Unsupported
from quickfuse.ir.expr import short
from quickfuse.ir.kernel import KernelBody
from quickfuse.ir.target import CpuTarget

#: A thread's share of a loop over elements is a multiple of this many, so that vectors are not cut in two.
SHARE_MULTIPLE = 64
#: The arguments of a kernel.
ARGUMENTS = "ptr %rows, ptr %starts, i64 %n_members, ptr %scalars, i64 %n_threads"


def emit(kernel: KernelBody, name: str, target: CpuTarget | None = None) -> str:
    """The LLVM IR of `void name(i64* rows, i64* starts, i64 n_members, i64* scalars, i64 n_threads)`.

    `rows` is the members' table (see `ir/kernel.py`), `starts` holds the n_members + 1 prefix sums of their work units,
    `scalars` one 64-bit word for each scalar argument. `void name_block(i64* block)` is the same function with its five
    arguments in memory, which costs Python less to call. `target` is this machine's vector unit unless given.
    """
    body = BodyView(kernel)
    _check(body)
    module = Module(target or host_target())
    if not body.reduced:
        loop = loop_function(body, name, module)
    elif body.serial:
        loop = serial_function(body, name, module)
    elif body.columns:
        loop = column_function(body, name, module)
    else:
        loop = row_function(body, name, module)
    functions = [*_entry(name, body), *_member(name, body), *loop]
    header = [
        f"; s{k}: {short(slot.dtype)} {slot.access}, strides {slot.strides}, at word {body.slot_word(k)} of a row"
        for k, slot in enumerate(body.slots)
    ]
    vector_bits = 8 * module.target.vector_bytes
    attributes = f'attributes #0 = {{ nounwind "prefer-vector-width"="{vector_bits}" }}'
    return "\n".join(
        [*header, "", *module.declarations.values(), "", *module.helpers.values(), "", *functions, attributes, ""]
    )


def _check(body: BodyView) -> None:
    if body.device_type != "cpu":
        raise Unsupported(f"CPU code for a kernel on {body.device_type}")
    if any(slot.by_value for slot in body.slots):
        raise Unsupported("operands by value in a CPU kernel")
    for slot, value in body.stores:
        if body.slots[slot].access == "flag" or (body.serial and not body.columns):
            continue
        axis = body.rows_ndim - 1 if body.columns else body.ndim - 1
        if body.ndim and body.slots[slot].strides[axis] == 0 and (body.columns or not body.once_a_row(slot)):
            raise Unsupported("a store that does not move along the innermost axis")
        if value.dtype != body.slots[slot].dtype:
            raise Unsupported(f"a store of {value.dtype} to a buffer of {body.slots[slot].dtype}")


# --- the levels above the loop ---


def _entry(name: str, body: BodyView) -> list[str]:
    share_multiple = SHARE_MULTIPLE if body.ndim == 1 and not body.reduced else 1
    constants = f"ptr @{name}.member, i64 {body.row_words}, i64 {share_multiple}"
    return [
        "; member function, words a row, what a thread's share is a multiple of, then the arguments of the kernel",
        "declare void @quickfuse_run(ptr, i64, i64, ptr, ptr, i64, ptr, i64)",
        "",
        f"define void @{name}({ARGUMENTS}) #0 {{",
        f"  call void @quickfuse_run({constants}, {ARGUMENTS})",
        "  ret void",
        "}",
        "",
        f"define void @{name}_block(ptr %block) #0 {{  ; the same, with its arguments in memory",
        "  %starts.at = getelementptr i64, ptr %block, i64 1",
        "  %n_members.at = getelementptr i64, ptr %block, i64 2",
        "  %scalars.at = getelementptr i64, ptr %block, i64 3",
        "  %n_threads.at = getelementptr i64, ptr %block, i64 4",
        "  %rows = load ptr, ptr %block",
        "  %starts = load ptr, ptr %starts.at",
        "  %n_members = load i64, ptr %n_members.at",
        "  %scalars = load ptr, ptr %scalars.at",
        "  %n_threads = load i64, ptr %n_threads.at",
        f"  tail call void @{name}({ARGUMENTS})",
        "  ret void",
        "}",
        "",
    ]


def _member(name: str, body: BodyView) -> list[str]:
    """Goes through the axes that units of work count, and calls what does one unit; for one axis without reductions,
    where an element is a unit, for all units at once."""
    define = f"define internal void @{name}.member(ptr %row, ptr %scalars, i64 %begin, i64 %end, ptr %memo) #0 {{"
    axes = range(body.rows_ndim if body.reduced else body.ndim - 1)
    head = [define, "entry:", *_row_loads(body, axes)]
    if not axes:
        bounds = [] if body.reduced else ["i64 %begin", "i64 %end"] if body.ndim else ["ptr %memo"]
        return [*head, _call(name, body, [f"%s{k}" for k in range(len(body.slots))], bounds), "  ret void", "}", ""]
    lines = [*head, *_first_index(axes), "  br label %iteration", "iteration:"]
    lines.append("  %u = phi i64 [ %begin, %entry ], [ %u.next, %iteration ]")
    lines += [f"  %i{k} = phi i64 [ %i{k}.first, %entry ], [ %i{k}.next, %iteration ]" for k in axes]
    moved = axes[:-1] if body.columns else axes
    pointers = []
    for k, slot in enumerate(body.slots):
        pointer = f"%s{k}"
        for axis in moved:
            stride = slot.strides[axis]
            if stride == 0:
                continue
            offset = f"%i{axis}"
            if stride is None:
                offset = f"%s{k}.offset{axis}"
                lines.append(f"  {offset} = mul i64 %i{axis}, %s{k}.stride{axis}")
            lines.append(f"  %s{k}.at{axis} = getelementptr {memory_type(slot.dtype)}, ptr {pointer}, i64 {offset}")
            pointer = f"%s{k}.at{axis}"
        pointers.append(pointer)
    bounds = [f"i64 %i{k}" for k in moved]
    units = "1"
    if body.columns:
        if not body.serial:
            units = "%blocks"
            lines += _blocks_together(axes[-1])
        lines += _column_bounds(axes[-1], body.column_block, units)
        bounds += ["i64 %c.begin", "i64 %c.end"]
    elif not body.reduced:
        bounds = ["i64 0", f"i64 %size{body.ndim - 1}", *bounds]
    return [
        *lines,
        _call(name, body, pointers, bounds),
        *_next_index(axes, units),
        f"  %u.next = add i64 %u, {units}",
        "  %more = icmp slt i64 %u.next, %end",
        "  br i1 %more, label %iteration, label %done",
        "done:",
        "  ret void",
        "}",
        "",
    ]


def _blocks_together(axis: int) -> list[str]:
    """How many blocks from %i{axis} on are gone through together."""
    return [
        f"  %blocks.row = sub i64 %size{axis}, %i{axis}",
        "  %blocks.left = sub i64 %end, %u",
        *_least("%blocks.few", "%blocks.row", "%blocks.left"),
        *_least("%blocks", "%blocks.few", str(BLOCKS_TOGETHER)),
    ]


def _least(name: str, one: str, two: str) -> list[str]:
    return [f"  {name}.first = icmp slt i64 {one}, {two}", f"  {name} = select i1 {name}.first, i64 {one}, i64 {two}"]


def _column_bounds(axis: int, block: int, units: str) -> list[str]:
    """The columns of so many blocks from %i{axis} on."""
    return [
        f"  %c.begin = mul i64 %i{axis}, {block}",
        f"  %c.many = mul i64 {units}, {block}",
        "  %c.next = add i64 %c.begin, %c.many",
        *_least("%c.end", "%c.next", "%columns"),
    ]


def _row_loads(body: BodyView, axes: range) -> list[str]:
    """Name the words of a row: sizes, then each slot's address and its dynamic strides along `axes`.

    The size of the last axis of columns is a number of blocks.
    """
    lines = []

    def load(name: str, type_: str, word: int) -> None:
        lines.append(f"  {name}.at = getelementptr i64, ptr %row, i64 {word}")
        lines.append(f"  {name} = load {type_}, ptr {name}.at")

    for axis in axes if body.reduced else range(body.ndim) if axes else ():
        load("%columns" if body.columns and axis == axes[-1] else f"%size{axis}", "i64", axis)
    if body.columns:
        lines.append(f"  %columns.up = add i64 %columns, {body.column_block - 1}")
        lines.append(f"  %size{axes[-1]} = udiv i64 %columns.up, {body.column_block}")
    for k, slot in enumerate(body.slots):
        load(f"%s{k}", "ptr", body.slot_word(k))
        for axis in axes:
            if slot.strides[axis] is None:
                load(f"%s{k}.stride{axis}", "i64", stride_word(body, k, axis))
    return lines


def _first_index(axes: range) -> list[str]:
    """The outer indices of unit %begin."""
    lines, rest = [], "%begin"
    for axis in reversed(axes):
        lines.append(f"  %i{axis}.first = urem i64 {rest}, %size{axis}")
        lines.append(f"  %units{axis} = udiv i64 {rest}, %size{axis}")
        rest = f"%units{axis}"
    return lines


def _next_index(axes: range, units: str) -> list[str]:
    """Move the outer indices by so many units, with carries from the last to the first."""
    lines, carry = [], units
    for axis in reversed(axes):
        lines += [
            f"  %i{axis}.sum = add i64 %i{axis}, {carry}",
            f"  %i{axis}.over = icmp eq i64 %i{axis}.sum, %size{axis}",
            f"  %i{axis}.next = select i1 %i{axis}.over, i64 0, i64 %i{axis}.sum",
            f"  %carry{axis} = zext i1 %i{axis}.over to i64",
        ]
        carry = f"%carry{axis}"
    return lines


def _call(name: str, body: BodyView, pointers: Sequence[str], indices: Sequence[str]) -> str:
    function = "loop" if not body.reduced else "block" if body.columns else "row"
    args = [*(f"ptr {pointer}" for pointer in pointers), "ptr %row", "ptr %scalars", *indices]
    return f"  call void @{name}.{function}({', '.join(args)})"
