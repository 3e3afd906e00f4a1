"""Kernel bodies as Triton source: readable Python that `launch.cuda` compiles, and that the interpreter can run.

A kernel handles all members of a call in one launch. Every kernel takes, in this order:

    rows      pointer to the row table: int64, `row_words` a member
    values    pointer to the value table: int64, `value_words` a member; float64 values as their bits
    blocks    pointer to int32 pairs, one a program: its member, and which block of that member it handles
              (bodies without axes have `members`, the number of members as an int32, in its place)
    a0 ..     the scalar arguments: float64, int64, or int8 for bool
    BLOCK     (constexpr) elements a program, a multiple of 16; for bodies without axes, members a program
    TAIL      (constexpr, not without axes) the number of threads of a program
    INDEX     (constexpr, only with two axes or more) tl.int32 or tl.int64: the type of index arithmetic

A program of a body with axes handles up to BLOCK consecutive elements of one member, in row-major order. Where their
number and all addresses are multiples of 16, it handles them at once, by accesses of 128 bits a thread; otherwise TAIL
at a time, one by each thread. Both branches call one function, `NAME_elements`, which has the computation. The kernel
decides for each program, so that one odd view does not slow the other members down.
"""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Callable, Sequence

import torch

from quickfuse.emit.plan import Plan
from quickfuse.emit.walker import Builder, Walker
from quickfuse.errors import Unsupported
from quickfuse.ir.expr import HALF_TYPES, Const, Expr, Index, Op, short
from quickfuse.ir.kernel import ArgScalar, KernelBody, Slot, SlotLoad, walk

#: What a dtype is in registers. Bools are stored as bytes.
TRITON_TYPES: dict[torch.dtype, str] = {
    torch.bool: "tl.int1",
    torch.uint8: "tl.uint8",
    torch.uint16: "tl.uint16",
    torch.uint32: "tl.uint32",
    torch.uint64: "tl.uint64",
    torch.int8: "tl.int8",
    torch.int16: "tl.int16",
    torch.int32: "tl.int32",
    torch.int64: "tl.int64",
    torch.float16: "tl.float16",
    torch.bfloat16: "tl.bfloat16",
    torch.float32: "tl.float32",
    torch.float64: "tl.float64",
}

#: name -> (source for floats, source for integers, source for bool); None: no such operation.
#: `libdevice` is NVIDIA's own math library, the one behind PyTorch's CUDA kernels; `qm` is `triton_math`.
#: Triton's `tl.exp`, `tl.sqrt` and `/` are approximations for float32, and so do not occur.
OPERATIONS: dict[str, tuple[str | None, str | None, str | None]] = {
    "add": ("{0} + {1}", "{0} + {1}", "{0} | {1}"),
    "sub": ("{0} - {1}", "{0} - {1}", None),
    "mul": ("libdevice.mul_rn({0}, {1})", "{0} * {1}", "{0} & {1}"),
    "div": ("qm.float_div({0}, {1})", None, None),
    "trunc_div": (None, "qm.trunc_div({0}, {1})", None),
    "floor_div": ("qm.float_floor_div({0}, {1})", "qm.int_floor_div({0}, {1})", None),
    "remainder": ("qm.float_remainder({0}, {1})", "qm.int_remainder({0}, {1})", None),
    "fmod": ("libdevice.fmod({0}, {1})", "qm.int_fmod({0}, {1})", None),
    "pow": ("libdevice.pow({0}, {1})", "qm.int_pow({0}, {1})", None),
    # Some versions of Triton write -x as 0 - x, which has the wrong sign for 0.
    "neg": ("{0} * -1.0", "-{0}", None),
    "abs": ("tl.abs({0})", "tl.abs({0})", "{0}"),
    "sign": ("qm.sign({0})", "qm.sign({0})", "{0}"),
    "fma": ("tl.fma({0}, {1}, {2})", "{0} * {1} + {2}", None),
    # NaN is the one value that differs from itself.
    "maximum": ("tl.where(({0} > {1}) | ({0} != {0}), {0}, {1})", "tl.where({0} > {1}, {0}, {1})", "{0} | {1}"),
    "minimum": ("tl.where(({0} < {1}) | ({0} != {0}), {0}, {1})", "tl.where({0} < {1}, {0}, {1})", "{0} & {1}"),
    "fmax": ("tl.where(({0} > {1}) | ({1} != {1}), {0}, {1})", "tl.where({0} > {1}, {0}, {1})", "{0} | {1}"),
    "fmin": ("tl.where(({0} < {1}) | ({1} != {1}), {0}, {1})", "tl.where({0} < {1}, {0}, {1})", "{0} & {1}"),
    "sqrt": ("qm.sqrt({0})", None, None),
    **{
        name: (f"libdevice.{name}({{0}})", None, None)
        for name in (
            "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
            "erf erfc lgamma rsqrt"
        ).split()
    },
    **{name: (f"libdevice.{name}({{0}})", "{0}", "{0}") for name in ("floor", "ceil", "trunc")},
    "round": ("libdevice.rint({0})", "{0}", "{0}"),
    **{name: (f"libdevice.{name}({{0}}, {{1}})", None, None) for name in ("atan2", "hypot", "copysign", "nextafter")},
    "eq": ("{0} == {1}", "{0} == {1}", "{0} == {1}"),
    "ne": ("{0} != {1}", "{0} != {1}", "{0} != {1}"),
    "lt": ("{0} < {1}", "{0} < {1}", "~{0} & {1}"),
    "le": ("{0} <= {1}", "{0} <= {1}", "~{0} | {1}"),
    "gt": ("{0} > {1}", "{0} > {1}", "{0} & ~{1}"),
    "ge": ("{0} >= {1}", "{0} >= {1}", "{0} | ~{1}"),
    "isnan": ("{0} != {0}", "{0} != {0}", "{0} != {0}"),
    "isinf": ('tl.abs({0}) == float("inf")', "{0} != {0}", "{0} != {0}"),
    "and": (None, "{0} & {1}", "{0} & {1}"),
    "or": (None, "{0} | {1}", "{0} | {1}"),
    "xor": (None, "{0} ^ {1}", "{0} ^ {1}"),
    "not": (None, "~{0}", "~{0}"),
    "shl": (None, "qm.shift_left({0}, {1})", None),
    "shr": (None, "qm.shift_right({0}, {1})", None),
    "where": ("tl.where({0}, {1}, {2})",) * 3,
}


#: A float32 power where there is one for each member. Eager's is right to 0.6 ulp, the one of the libdevice that Triton
#: brings to 3.5 ulp, which the `1 - beta ** step` of an optimizer magnifies; float64 costs nothing for so few.
_POWER_OF_ONCE = "libdevice.pow({0}.to(tl.float64), {1}.to(tl.float64)).to(tl.float32)"


def emit(body: KernelBody, name: str) -> str:
    """The source of a module that defines the `@triton.jit` function `name` for `body`.

    Raises `Unsupported` for a type or an operation that has no rule.
    """
    if body.device_type != "cuda":
        raise Unsupported(f"Triton code for the device type {body.device_type}")
    functions = _each_member(body, name) if body.ndim == 0 else _ragged(body, name)
    text = "\n\n\n".join("\n".join(function) for function in functions)
    return "\n".join([*_header(body, text), "", "", text, ""])


def _header(body: KernelBody, text: str) -> list[str]:
    slots = [
        f"# s{k}: {short(slot.dtype)} {slot.access}, "
        + ("a number for each member" if slot.by_value else f"strides {slot.strides}")
        for k, slot in enumerate(body.slots)
    ]
    scalars = [f"# a{k}: {short(dtype)}" for k, dtype in enumerate(body.scalars)]
    imports = ["import triton", "import triton.language as tl"]
    if "libdevice." in text:
        imports.append("from triton.language.extra import libdevice")
    if "qm." in text:
        imports += ["", "from quickfuse.emit import triton_math as qm"]
    return [*slots, *scalars, "", *imports]


# ---------------------------------------------------------------------------------------------------------------------
# Expressions


class TritonBuilder(Builder[str]):
    """The statements that compute a block of values and store them, with one name for each distinct value.

    `address` gives the address of a slot's elements, and the mask for loads of them, if they need one.
    """

    def __init__(self, body: KernelBody, address: Callable[[int], tuple[str, str]]) -> None:
        self.body = body
        self.address = address
        self._loads: dict[int, str] = {}
        self._lines: list[str] = []
        self._named: dict[str, str] = {}
        self._count: Counter[str] = Counter()
        Walker(Plan(body), self).unit()

    @property
    def lines(self) -> list[str]:
        return [*(line for _, line in sorted(self._loads.items())), *self._lines]

    def vectors(self, body: Callable[[], object], has_loop: bool = False) -> None:
        body()  # a block has all axes in it

    def leaf(self, expr: Expr) -> str:
        if isinstance(expr, SlotLoad):
            if not self.body.slots[expr.slot].by_value:
                loaded = f"tl.load({', '.join(filter(None, self.address(expr.slot)))})"
                self._loads[expr.slot] = f"s{expr.slot} = {_from_memory(loaded, expr.dtype)}"
            return f"s{expr.slot}"
        if isinstance(expr, ArgScalar):
            # A bool argument arrives as a byte.
            return self._name(f"a{expr.arg} != 0", "b") if expr.dtype == torch.bool else f"a{expr.arg}"
        if isinstance(expr, Index):
            return self._name(f"index{expr.axis}.to(tl.int64)", "i")
        if isinstance(expr, Const):
            return self._name(_constant(expr), "c")
        raise Unsupported(f"Triton code for {type(expr).__name__}")

    def operation(self, op: Op, args: Sequence[str]) -> str:
        if op.name == "cast":
            code = _cast(args[0], op.args[0].dtype, op.dtype)
        elif op.name == "bitcast":
            code = _bitcast(args[0], op.args[0].dtype, op.dtype)
        elif self.body.ndim == 0 and op.name == "pow" and op.dtype == torch.float32:
            code = _POWER_OF_ONCE.format(*args)
        else:
            code = _template(op).format(*args)
        return code if code.isidentifier() else self._name(code, "t")

    def assign(self, slot: int, value: str) -> None:
        # Where all lanes store to one element, the member has only that one: the mask selects its lane.
        address, mask = self.address(slot)
        address = address if mask else f"{address} + lane * 0"
        self._lines.append(f"tl.store({address}, {_to_memory(value, self.body.slots[slot].dtype)}, mask)")

    def _name(self, code: str, letter: str) -> str:
        # Equal statements have equal values: each is written once, however often the expression occurs.
        if code not in self._named:
            self._named[code] = f"{letter}{self._count[letter]}"
            self._count[letter] += 1
            self._lines.append(f"{self._named[code]} = {code}")
        return self._named[code]


def _template(node: Op) -> str:
    # The operands have one type, but for the condition of a choice.
    dtype = node.args[-1].dtype
    if dtype in HALF_TYPES and node.name != "where":
        raise Unsupported(f"the operation {node.name} on {short(dtype)}, which is stored but not computed in")
    triton_type(dtype)
    column = 2 if dtype == torch.bool else 0 if dtype.is_floating_point else 1
    template = OPERATIONS.get(node.name, (None, None, None))[column]
    if template is None:
        raise Unsupported(f"the operation {node.name} on {short(dtype)} on a GPU")
    return template


def _constant(node: Const) -> str:
    """A typed constant: Triton would give a bare literal a type of its own choice."""
    if node.dtype in HALF_TYPES:
        return f"{_constant(Const(node.value, torch.float32))}.to({triton_type(node.dtype)})"
    literal: object = node.value
    if node.dtype.is_floating_point:
        number = float(node.value)
        if number == 0 and math.copysign(1, number) < 0:
            # Some versions of Triton take every zero for a positive one.
            return f"tl.full((), 0.0, {triton_type(node.dtype)}) * -1.0"
        literal = repr(number) if math.isfinite(number) else f'float("{number}")'
    elif node.dtype == torch.bool:
        literal = bool(node.value)
    return f"tl.full((), {literal}, {triton_type(node.dtype)})"


def _cast(x: str, source: torch.dtype, target: torch.dtype) -> str:
    """A C conversion, by way of the types through which PyTorch goes."""
    if source == target:
        return x
    if target == torch.bool:
        return f"{_cast(x, source, torch.float32) if source in HALF_TYPES else x} != 0"
    steps = [target]
    if target in HALF_TYPES or source in HALF_TYPES:
        steps.insert(0, torch.float32)
    if source.is_floating_point and target in (torch.int8, torch.int16):
        steps.insert(-1, torch.int32)
    if source.is_floating_point and target in (torch.uint8, torch.uint16, torch.uint32):
        steps.insert(-1, torch.int64)
    for step in steps:
        if step != source:
            x = f"{x}.to({triton_type(step)})"
            source = step
    return x


def _bitcast(x: str, source: torch.dtype, target: torch.dtype) -> str:
    if torch.bool in (source, target) or source.itemsize != target.itemsize:
        raise Unsupported(f"the bits of {short(source)} as {short(target)}")
    return f"{x}.to({triton_type(target)}, bitcast=True)"


def triton_type(dtype: torch.dtype) -> str:
    """The name of a type in registers."""
    if dtype not in TRITON_TYPES:
        raise Unsupported(f"{short(dtype)} in a GPU kernel")
    return TRITON_TYPES[dtype]


def _pointer_type(dtype: torch.dtype) -> str:
    return f"tl.pointer_type({'tl.int8' if dtype == torch.bool else triton_type(dtype)})"


def _from_memory(loaded: str, dtype: torch.dtype) -> str:
    return f"{loaded} != 0" if dtype == torch.bool else loaded


def _to_memory(value: str, dtype: torch.dtype) -> str:
    return f"{value}.to(tl.int8)" if dtype == torch.bool else value


# ---------------------------------------------------------------------------------------------------------------------
# What both forms of kernel share


def _in_memory(body: KernelBody) -> list[tuple[int, Slot]]:
    return [(k, slot) for k, slot in enumerate(body.slots) if not slot.by_value]


def _value_lines(body: KernelBody, mask: str = "") -> list[str]:
    """Statements that fetch the numbers that are passed by value, for `member`."""
    lines = []
    for k, slot in enumerate(body.slots):
        if slot.by_value:
            word = f"tl.load(values + member * {body.value_words} + {body.value_word(k)}{mask})"
            lines.append(f"s{k} = {word}" + (".to(tl.float64, bitcast=True)" if slot.dtype == torch.float64 else ""))
    return lines


def _function(name: str, parameters: list[str], lines: list[str]) -> list[str]:
    return ["@triton.jit", *_wrapped(f"def {name}({', '.join(parameters)}):"), *(f"    {line}" for line in lines)]


def _wrapped(line: str) -> list[str]:
    """A line that has brackets, broken where it is long; a parameter stays with its annotation."""
    lines = textwrap.wrap(line.replace(": ", ":~"), 112, subsequent_indent=" " * 8, break_long_words=False)
    return [part.replace(":~", ": ") for part in lines]


def _scalars(body: KernelBody) -> list[str]:
    return [f"a{k}" for k in range(len(body.scalars))]


# ---------------------------------------------------------------------------------------------------------------------
# One evaluation a member: a lane handles a member, so that a thousand step counters are a few programs


def _each_member(body: KernelBody, name: str) -> list[list[str]]:
    pointers = [(k, body.slot_word(k), _pointer_type(slot.dtype)) for k, slot in _in_memory(body)]
    lines = [
        "member = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)",
        "mask = member < members",
        f"row = rows + member * {body.row_words}",
        *(f"p{k} = tl.load(row + {word}, mask, 0).to({pointer_type})" for k, word, pointer_type in pointers),
        *_value_lines(body, ", mask"),
    ]
    lines += TritonBuilder(body, lambda slot: (f"p{slot}", "mask")).lines
    return [_function(name, ["rows", "values", "members", *_scalars(body), "BLOCK: tl.constexpr"], lines)]


# ---------------------------------------------------------------------------------------------------------------------
# One axis or more: a program handles a block of one member's elements


def _ragged(body: KernelBody, name: str) -> list[list[str]]:
    words = _words(body)
    numbers = [f"s{k}" for k, slot in enumerate(body.slots) if slot.by_value]
    index = ["INDEX"] if body.ndim > 1 else []
    passed = [*list(words.values())[1:], *numbers, *_scalars(body)]
    parameters = [*passed, "start", "left", *(f"{x}: tl.constexpr" for x in ("ALIGNED", "COUNT", *index))]

    def call(indent: str, *rest: str) -> list[str]:
        return [indent + line for line in _wrapped(f"{name}_elements({', '.join([*passed, *rest, *index])})")]

    kernel = [
        "program = tl.program_id(0)",
        "member = tl.load(blocks + 2 * program).to(tl.int64)",
        "start = tl.load(blocks + 2 * program + 1).to(tl.int64) * BLOCK",
        f"row = rows + member * {body.row_words}",
        *(f"{word_name} = tl.load(row + {word})" for word, word_name in words.items()),
        *_value_lines(body),
        f"left = tl.minimum({' * '.join(list(words.values())[: body.ndim])} - start, BLOCK)",
        f"if ({' | '.join(['left', *(words[word] for word in _aligned_words(body))])}) % 16 == 0:",
        *call("    ", "start", "left", "True", "BLOCK"),
        "else:",
        "    for done in range(0, left.to(tl.int32), TAIL):",
        *call("        ", "start + done", "left - done", "False", "TAIL"),
    ]
    constexprs = [f"{x}: tl.constexpr" for x in ("BLOCK", "TAIL", *index)]
    return [
        _function(f"{name}_elements", parameters, _elements(body)),
        _function(name, ["rows", "values", "blocks", *_scalars(body), *constexprs], kernel),
    ]


def _words(body: KernelBody) -> dict[int, str]:
    """The name of each word of a row: sizes n0 .., addresses p0 .., dynamic strides p0_stride0 .."""
    names = {axis: f"n{axis}" for axis in range(body.ndim)}
    for k, slot in _in_memory(body):
        names[body.slot_word(k)] = f"p{k}"
        for axis in _dynamic_axes(slot):
            names[_stride_word(body, k, axis)] = f"p{k}_stride{axis}"
    return names


def _dynamic_axes(slot: Slot) -> list[int]:
    return [axis for axis, stride in enumerate(slot.strides) if stride is None]


def _stride_word(body: KernelBody, k: int, axis: int) -> int:
    return body.slot_word(k) + 1 + _dynamic_axes(body.slots[k]).index(axis)


def _is_vector(slot: Slot) -> bool:
    """Whether neighbours along the innermost axis are neighbours in memory, so that a thread can load several."""
    return slot.strides[-1] == 1


def _aligned_words(body: KernelBody) -> list[int]:
    """The words of a row that must be divisible by 16 for wide accesses: the addresses of slots that are contiguous
    along the innermost axis, their strides along the others, and the innermost size."""
    words = []
    for k, slot in _in_memory(body):
        if _is_vector(slot):
            words += [body.slot_word(k), *(_stride_word(body, k, axis) for axis in _dynamic_axes(slot))]
    return [body.ndim - 1, *words] if words and body.ndim > 1 else words


def _elements(body: KernelBody) -> list[str]:
    """The statements of the function that handles `left` elements from `start`: index, loads, computation, stores.

    Triton keeps a hint on the operation that makes the value. Here that is always a cast within this function, of which
    each branch has a copy of its own, so that nothing is promised in the other one.
    """
    lines = [f"p{k} = p{k}.to({_pointer_type(slot.dtype)})" for k, slot in _in_memory(body)]
    strides = [f"p{k}_stride{axis}" for k, slot in _in_memory(body) for axis in _dynamic_axes(slot)]
    if body.ndim > 1:
        lines += [f"{x} = {x}.to(INDEX)" for x in [*(f"n{axis}" for axis in range(1, body.ndim)), *strides]]
    names = _words(body)
    lines += [
        "left = left.to(tl.int32)",
        "if ALIGNED:",
        *(f"    {x} = tl.multiple_of({x}, 16)" for x in ["left", *(names[word] for word in _aligned_words(body))]),
        "lane = tl.arange(0, COUNT)",
        "mask = lane < left",
        *_index_lines(body),
    ]

    def address(slot: int) -> tuple[str, str]:
        offset = _offset(slot, body.slots[slot])
        return (f"p{slot} + {offset}", "mask") if offset else (f"p{slot}", "")

    return [*lines, *TritonBuilder(body, address).lines]


def _uses_index(body: KernelBody) -> bool:
    return any(isinstance(node, Index) for node in walk(*body.roots)) or any(
        None in slot.strides for slot in body.slots if not slot.by_value
    )


def _index_lines(body: KernelBody) -> list[str]:
    """Statements that turn the position within the member into an index for each axis, the last one fastest."""
    if body.ndim == 1:
        return ["index0 = start + lane"] if _uses_index(body) else []
    lines = []
    rest = "start.to(INDEX) + lane"
    for axis in range(body.ndim - 1, 0, -1):
        lines += [f"rest{axis} = {rest}", f"index{axis} = rest{axis} % n{axis}"]
        rest = f"rest{axis} // n{axis}"
    return [*lines, f"index0 = {rest}"]


def _offset(k: int, slot: Slot) -> str:
    """The distance of an element from the slot's address, in elements; empty where it is 0 for all."""
    if slot.strides == (1,):
        # The sum with the pointer comes first: a thread then adds a small constant to one address.
        return "start + lane"
    terms = []
    for axis, stride in enumerate(slot.strides):
        if stride is None:
            terms.append(f"index{axis} * p{k}_stride{axis}")
        elif stride == 1:
            terms.append(f"index{axis}")
    return " + ".join(terms)
