"""Kernel bodies as Triton source: readable Python that `launch.cuda` compiles, and that the interpreter can run.

A kernel handles all members of a call in one launch. Every kernel takes, in this order:

    rows      pointer to the row table: int64, `row_words` a member
    values    pointer to the value table: int64, `value_words` a member; float64 values as their bits
    blocks    pointer to int32 pairs, one a program: its member, and which block of that member it handles; or null, where
              the program's place in the grid says both: the block along x, the member along y
              (bodies without axes have `members`, the number of members as an int32, in its place)
              Where a call has one member, the words of its row (int64) and its numbers (float64 or int64) may stand in
              place of these three: what changes from call to call then needs no upload (`in_arguments`)
    a0 ..     the scalar arguments: float64, int64, or int8 for bool
    BLOCK     (constexpr) elements a program, a multiple of 16; for bodies without axes, members a program
    TAIL      (constexpr, not without axes) elements that a program handles at a time where accesses are narrow
    ALIGN     (constexpr, not without axes) whether there is code for accesses of 128 bits a thread, and which: `Access`
    INDEX     (constexpr, only with two axes or more) tl.int32 or tl.int64: the type of index arithmetic

A program of a body with axes handles up to BLOCK consecutive elements of one member, in row-major order. Where their
number and all addresses allow it, it handles them at once, by accesses of 128 bits a thread; otherwise TAIL
at a time, by narrow ones. Both branches call one function, `NAME_elements`, which has the computation. The kernel
decides for each program, so that one odd view does not slow the other members down. Without ALIGN there is one branch for
all programs: small work is not worth two copies of the code. Bodies with rows that are gone through have other constants:
see `triton_rows.py`.
"""

from __future__ import annotations

from quickfuse.emit.triton_builder import TritonBuilder
from quickfuse.emit.triton_ops import pointer_type, without_libdevice
from quickfuse.emit.triton_rows import row_functions
from quickfuse.emit.triton_text import (
    alignment_hints,
    dynamic_axes,
    function,
    in_memory,
    index_lines,
    is_aligned,
    member_lines,
    member_parameters,
    offset,
    scalars,
    value_lines,
    word_names,
    wrapped,
)
from quickfuse.errors import Unsupported
from quickfuse.ir.expr import short
from quickfuse.ir.kernel import Form, KernelBody


def emit(body: KernelBody, name: str, form: Form = Form.WHOLE, in_arguments: bool = False) -> str:
    """The source of a module that defines the `@triton.jit` function `name` for `body`. `form` says how rows are gone
    through, where there are any; with other bodies of several axes, `SPREAD` says that programs handle tiles.
    `in_arguments`: the kernel has one member, whose row and numbers are arguments.

    Raises `Unsupported` for a type or an operation that has no rule.
    """
    if body.device_type != "cuda":
        raise Unsupported(f"Triton code for the device type {body.device_type}")
    if body.tiled or (body.ndim > 1 and form is Form.SPREAD):
        functions = row_functions(body, name, form, in_arguments)
    elif body.ndim == 0:
        functions = _members(body, name, in_arguments)
    else:
        functions = _ragged(body, name, in_arguments)
    text = without_libdevice("\n\n\n".join("\n".join(function) for function in functions))
    return "\n".join([*_header(body, text), "", "", text, ""])


def _header(body: KernelBody, text: str) -> list[str]:
    slots = [
        f"# s{k}: {short(slot.dtype)} {slot.access}, "
        + ("a number for each member" if slot.by_value else f"strides {slot.strides}")
        for k, slot in enumerate(body.slots)
    ]
    numbers = [f"# a{k}: {short(dtype)}" for k, dtype in enumerate(body.scalars)]
    imports = ["import triton", "import triton.language as tl"]
    if "libdevice." in text:
        imports.append("from triton.language.extra import libdevice")
    if "qm." in text:
        imports += ["", "from quickfuse.emit import triton_math as qm"]
    return [*slots, *numbers, "", *imports]


# ---------------------------------------------------------------------------------------------------------------------
# One evaluation a member: a lane handles a member, so that a thousand step counters are a few programs


def _members(body: KernelBody, name: str, in_arguments: bool) -> list[list[str]]:
    if in_arguments:
        parameters, word = member_parameters(body, True), "(w{} + 0 * member)"
        lines = ["member = tl.arange(0, BLOCK).to(tl.int64)", "mask = member < 1"]
    else:
        parameters, word = ["rows", "values", "members", *scalars(body)], "tl.load(row + {}, mask, 0)"
        lines = [
            "member = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)",
            "mask = member < members",
            f"row = rows + member * {body.row_words}",
            *value_lines(body, ", mask"),
        ]
    lines += [f"p{k} = {word.format(body.slot_word(k))}.to({pointer_type(slot.dtype)})" for k, slot in in_memory(body)]
    lines += TritonBuilder(body, lambda slot: (f"p{slot}", "mask")).lines
    return [function(name, [*parameters, "BLOCK: tl.constexpr"], lines)]


# ---------------------------------------------------------------------------------------------------------------------
# One axis or more: a program handles a block of one member's elements


def _ragged(body: KernelBody, name: str, in_arguments: bool) -> list[list[str]]:
    words = word_names(body)
    numbers = [f"s{k}" for k, slot in enumerate(body.slots) if slot.by_value]
    index = ["INDEX"] if body.ndim > 1 else []
    passed = [*list(words.values())[1:], *numbers, *scalars(body)]
    parameters = [*passed, "start", "left", *(f"{x}: tl.constexpr" for x in ("ALIGNED", "COUNT", *index))]

    def call(indent: str, *rest: str) -> list[str]:
        return [indent + line for line in wrapped(f"{name}_elements({', '.join([*passed, *rest, *index])})")]

    kernel = [
        *member_lines(body, in_arguments),
        "start = block.to(tl.int64) * BLOCK",
        f"left = tl.minimum({' * '.join(list(words.values())[: body.ndim])} - start, BLOCK)",
        "if ALIGN:",
        f"    if {is_aligned(body, _aligned_words(body), 'left')}:",
        *call("        ", "start", "left", "True", "BLOCK"),
        "    else:",
        "        for done in range(0, left.to(tl.int32), TAIL):",
        *call("            ", "start + done", "left - done", "False", "TAIL"),
        "else:",
        *call("    ", "start", "left", "False", "BLOCK"),
    ]
    constexprs = [f"{x}: tl.constexpr" for x in ("BLOCK", "TAIL", "ALIGN", *index)]
    return [
        function(f"{name}_elements", parameters, _elements(body)),
        function(name, [*member_parameters(body, in_arguments), *constexprs], kernel),
    ]


def _aligned_words(body: KernelBody) -> list[int]:
    """The words of a row that must be multiples of something for wide accesses: the addresses of slots that are contiguous
    along the innermost axis, their strides along the others, and the innermost size."""
    words = []
    for k, slot in in_memory(body):
        if slot.strides[-1] == 1:
            words += [body.slot_word(k), *(body.stride_word(k, axis) for axis in dynamic_axes(slot))]
    return [body.ndim - 1, *words] if words and body.ndim > 1 else words


def _elements(body: KernelBody) -> list[str]:
    """The statements of the function that handles `left` elements from `start`: index, loads, computation, stores.

    Triton keeps a hint on the operation that makes the value. Here that is always a cast within this function, of which
    each branch has a copy of its own, so that nothing is promised in the other one.
    """
    lines = [f"p{k} = p{k}.to({pointer_type(slot.dtype)})" for k, slot in in_memory(body)]
    strides = [f"p{k}_stride{axis}" for k, slot in in_memory(body) for axis in dynamic_axes(slot)]
    if body.ndim > 1:
        lines += [f"{x} = {x}.to(INDEX)" for x in [*(f"n{axis}" for axis in range(1, body.ndim)), *strides]]
    lines += [
        "left = left.to(tl.int32)",
        "if ALIGNED:",
        f"    left = tl.multiple_of(left, {body.elements_of_128_bits})",
        *(f"    {line}" for line in alignment_hints(body, _aligned_words(body))),
        "lane = tl.arange(0, COUNT)",
        "mask = lane < left",
        *index_lines("(start.to(INDEX) + lane)" if body.ndim > 1 else "start + lane", range(body.ndim)),
    ]

    def address(slot: int) -> tuple[str, str]:
        # For what is contiguous the sum with the pointer comes first: a thread then adds a small constant to one address.
        moved = "start + lane" if body.slots[slot].strides == (1,) else offset(body, slot, range(body.ndim))
        return (f"p{slot} + {moved}", "mask") if moved else (f"p{slot}", "")

    return [*lines, *TritonBuilder(body, address).lines]
