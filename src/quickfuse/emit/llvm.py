"""`emit`: a kernel body -> LLVM IR text for the CPU.

The module has one function a level, from the one that Python calls down to the loop over elements:

    NAME          all members; hands NAME.member to `quickfuse_run`, the launcher's driver, which splits the work units
                  over threads and walks over members
    NAME.member   units [begin, end) of one member: loads its addresses and sizes, walks over its outer axes
    NAME.loop     the last axis: vectors of elements, and a masked vector for what is left

A unit of work is an element (one axis), an iteration of all axes but the last (more axes), or a member (no axes).
"""

from __future__ import annotations

from collections.abc import Sequence

from quickfuse.emit.llvm_loop import loop_function, stride_word
from quickfuse.emit.llvm_math import Module, Target, host_target, memory_type
from quickfuse.errors import Unsupported
from quickfuse.ir.expr import short
from quickfuse.ir.kernel import KernelBody

#: A thread's share of a loop over elements is a multiple of this many, so that vectors are not cut in two.
SHARE_MULTIPLE = 64
#: The arguments of a kernel.
ARGUMENTS = "ptr %rows, ptr %starts, i64 %n_members, ptr %scalars, i64 %n_threads"


def emit(body: KernelBody, name: str, target: Target | None = None) -> str:
    """The LLVM IR of `void name(i64* rows, i64* starts, i64 n_members, i64* scalars, i64 n_threads)`.

    `rows` is the members' table (see `ir/kernel.py`), `starts` holds the n_members + 1 prefix sums of their work units,
    `scalars` one 64-bit word for each scalar argument. `void name_block(i64* block)` is the same function with its five
    arguments in memory, which costs Python less to call. `target` is this machine's vector unit unless given.
    """
    _check(body)
    module = Module(target or host_target())
    loop = loop_function(body, name, module)
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


def _check(body: KernelBody) -> None:
    if body.device_type != "cpu":
        raise Unsupported(f"CPU code for a kernel on {body.device_type}")
    if any(slot.by_value for slot in body.slots):
        raise Unsupported("operands by value in a CPU kernel")
    for slot, value in body.stores:
        if body.ndim and body.slots[slot].strides[-1] == 0:
            raise Unsupported("a store that does not move along the innermost axis")
        if value.dtype != body.slots[slot].dtype:
            raise Unsupported(f"a store of {value.dtype} to a buffer of {body.slots[slot].dtype}")


# --- the levels above the loop ---


def _entry(name: str, body: KernelBody) -> list[str]:
    share_multiple = SHARE_MULTIPLE if body.ndim == 1 else 1
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


def _member(name: str, body: KernelBody) -> list[str]:
    define = f"define internal void @{name}.member(ptr %row, ptr %scalars, i64 %begin, i64 %end, ptr %memo) #0 {{"
    head = [define, "entry:", *_row_loads(body)]
    if body.ndim < 2:
        bounds = ["i64 %begin", "i64 %end"] if body.ndim else ["ptr %memo"]
        return [*head, _call_loop(name, [f"%s{k}" for k in range(len(body.slots))], bounds), "  ret void", "}", ""]
    axes = range(body.ndim - 1)
    lines = [*head, *_first_index(axes), "  br label %iteration", "iteration:"]
    lines.append("  %u = phi i64 [ %begin, %entry ], [ %u.next, %iteration ]")
    lines += [f"  %i{k} = phi i64 [ %i{k}.first, %entry ], [ %i{k}.next, %iteration ]" for k in axes]
    pointers = []
    for k, slot in enumerate(body.slots):
        pointer = f"%s{k}"
        for axis in axes:
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
    bounds = ["i64 0", f"i64 %size{body.ndim - 1}", *(f"i64 %i{k}" for k in axes)]
    return [
        *lines,
        _call_loop(name, pointers, bounds),
        *_next_index(axes),
        "  %u.next = add i64 %u, 1",
        "  %more = icmp slt i64 %u.next, %end",
        "  br i1 %more, label %iteration, label %done",
        "done:",
        "  ret void",
        "}",
        "",
    ]


def _row_loads(body: KernelBody) -> list[str]:
    """Name the words of a row: sizes, then each slot's address and its dynamic strides (but for the last axis)."""
    lines = []

    def load(name: str, type_: str, word: int) -> None:
        lines.append(f"  {name}.at = getelementptr i64, ptr %row, i64 {word}")
        lines.append(f"  {name} = load {type_}, ptr {name}.at")

    if body.ndim > 1:
        for axis in range(body.ndim):
            load(f"%size{axis}", "i64", axis)
    for k, slot in enumerate(body.slots):
        load(f"%s{k}", "ptr", body.slot_word(k))
        for axis in range(body.ndim - 1):
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


def _next_index(axes: range) -> list[str]:
    """Add one to the outer indices, with carries from the last to the first."""
    lines, carry = [], "1"
    for axis in reversed(axes):
        lines += [
            f"  %i{axis}.sum = add i64 %i{axis}, {carry}",
            f"  %i{axis}.over = icmp eq i64 %i{axis}.sum, %size{axis}",
            f"  %i{axis}.next = select i1 %i{axis}.over, i64 0, i64 %i{axis}.sum",
            f"  %carry{axis} = zext i1 %i{axis}.over to i64",
        ]
        carry = f"%carry{axis}"
    return lines


def _call_loop(name: str, pointers: Sequence[str], indices: Sequence[str]) -> str:
    args = [*(f"ptr {pointer}" for pointer in pointers), "ptr %row", "ptr %scalars", *indices]
    return f"  call void @{name}.loop({', '.join(args)})"
