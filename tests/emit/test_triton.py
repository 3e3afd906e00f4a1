"""The Triton code generator: meaning (by Triton's interpreter, on the CPU) and code quality (by compiling for GPUs)."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernel_bodies import pointwise_body
from quickfuse.emit.triton import emit
from quickfuse.emit.triton_ops import OPERATIONS
from quickfuse.errors import Unsupported
from quickfuse.ir.expr import HALF_TYPES, SCALAR_OPS, Const, Expr, Index, Op, cast
from quickfuse.ir.kernel import ArgScalar, KernelBody, Member, Slot, SlotLoad, row_template, walk
from quickfuse.launch.cuda_compile import LaunchShape, argument_types, compile_kernel
from quickfuse.launch.cuda_shapes import block_table
from triton_runner import Child

pytest.importorskip("triton")

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
U8, I8, I16, I32, I64, BOOL = torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool
COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge"}


def op(name: str, *args: Expr) -> Op:
    return Op(name, args, BOOL if name in COMPARISONS else args[-1].dtype)


# ---------------------------------------------------------------------------------------------------------------------
# A reference for expressions: PyTorch's own functions on the CPU

REFERENCE: dict[str, Callable[..., torch.Tensor]] = {
    **{name: getattr(torch, name) for name in SCALAR_OPS if hasattr(torch, name)},
    "add": lambda x, y: x | y if x.dtype == BOOL else x + y,
    "div": torch.true_divide,
    "trunc_div": lambda x, y: _by_integers(x, y, lambda a, b: abs(a) // abs(b) * (1 if a * b >= 0 else -1)),
    "fmod": lambda x, y: _by_integers(x, y, lambda a, b: abs(a) % abs(b) * (1 if a >= 0 else -1), torch.fmod),
    "fma": lambda x, y, z: (x.double() * y.double() + z.double()).to(x.dtype) if x.is_floating_point() else x * y + z,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "not": torch.bitwise_not,
    "shl": torch.bitwise_left_shift,
    "shr": torch.bitwise_right_shift,
}


def _by_integers(
    x: torch.Tensor,
    y: torch.Tensor,
    function: Callable[[int, int], int],
    for_floats: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
) -> torch.Tensor:
    """Integer division by Python's integers, wrapping: the most negative number by -1 crashes PyTorch on the CPU."""
    if x.is_floating_point():
        assert for_floats is not None
        return for_floats(x, y)
    results = [function(a, b) if b else 0 for a, b in zip(x.flatten().tolist(), y.flatten().tolist(), strict=True)]
    bits = 8 * x.itemsize
    low = torch.iinfo(x.dtype).min
    return torch.tensor([(r - low) % 2**bits + low for r in results], dtype=x.dtype).view(x.shape)


def evaluate(expr: Expr, leaf: Callable[[Expr], torch.Tensor]) -> torch.Tensor:
    values: dict[int, torch.Tensor] = {}
    for node in walk(expr):
        if not isinstance(node, Op):
            values[id(node)] = leaf(node)
            continue
        args = [values[id(arg)] for arg in node.args]
        if node.name == "cast":
            values[id(node)] = args[0].to(node.dtype)
        elif node.name == "bitcast":
            values[id(node)] = args[0].view(node.dtype)
        else:
            values[id(node)] = REFERENCE[node.name](*args)
    return values[id(expr)]


# ---------------------------------------------------------------------------------------------------------------------
# Running a body by the interpreter, and the same by the reference


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Child]:
    child = Child()
    yield child
    child.close()


@dataclass
class Operand:
    """The data of one slot of one member: `storage` is flat; the element at an index is `offset + index . strides`."""

    storage: torch.Tensor
    strides: tuple[int, ...] = (1,)
    offset: int = 0

    def view(self, sizes: tuple[int, ...]) -> torch.Tensor:
        return self.storage.as_strided(sizes, self.strides, self.offset)


@dataclass
class Case:
    """A body with data: `members` are sizes and an operand (or a number, for a slot by value) for each slot."""

    body: KernelBody
    members: list[tuple[tuple[int, ...], list[Operand | float]]]
    scalars: Sequence[float] = ()
    block: int = 64
    index: str = "int32"

    def run(self, interpreter: Child, aligned: bool = True) -> list[list[torch.Tensor]]:
        """The slots' storages after the kernel, for each member. `aligned`: with code for wide accesses."""
        body, rows, addresses, buffers = self.body, [], [], []
        values = np.zeros((len(self.members), body.value_words), dtype=np.int64)
        for m, (sizes, operands) in enumerate(self.members):
            strides = tuple(o.strides if isinstance(o, Operand) else () for o in operands)
            rows.append(row_template(body, Member(sizes, (), (), strides)))
            for k, operand in enumerate(operands):
                if isinstance(operand, Operand):
                    addresses.append((m, body.slot_word(k), len(buffers), operand.offset * operand.storage.itemsize))
                    buffers.append(operand.storage.view(U8).numpy().copy())
                else:
                    word = values[m, body.value_word(k) :][:1]
                    word.view(np.float64 if body.slots[k].dtype == F64 else np.int64)[0] = operand
        sizes = [math.prod(sizes) for sizes, _ in self.members]
        blocks = block_table(sizes, self.block)
        out = interpreter.run(
            source=emit(body, "kernel"),
            name="kernel",
            buffers=buffers,
            rows=np.array(rows, dtype=np.int64).reshape(len(rows), body.row_words),
            addresses=addresses,
            values=values,
            work=blocks if body.ndim else len(self.members),
            grid=(len(blocks) if body.ndim else -(-len(self.members) // self.block),),
            scalars=list(zip([t for n, t in argument_types(body).items() if n[0] == "a"], self.scalars, strict=True)),
            constants={
                "BLOCK": self.block,
                **({"TAIL": min(self.block, 32), "ALIGN": aligned} if body.ndim else {}),
                **({"INDEX": self.index} if body.ndim > 1 else {}),
            },
        )
        flat = iter(out)
        return [
            [torch.from_numpy(next(flat)).view(o.storage.dtype) for o in operands if isinstance(o, Operand)]
            for _, operands in self.members
        ]

    def expect(self) -> list[list[torch.Tensor]]:
        """What `run` should return, by the reference."""
        results = []
        for sizes, operands in self.members:
            after = [Operand(o.storage.clone(), o.strides, o.offset) if isinstance(o, Operand) else o for o in operands]

            def leaf(node: Expr, sizes: tuple[int, ...] = sizes, operands: list[Operand | float] = operands):
                if isinstance(node, SlotLoad):
                    operand = operands[node.slot]
                    data = operand.view(sizes) if isinstance(operand, Operand) else torch.tensor(operand)
                    return data.to(node.dtype).expand(sizes).contiguous()
                if isinstance(node, ArgScalar):
                    return torch.tensor(self.scalars[node.arg], dtype=node.dtype).expand(sizes).contiguous()
                if isinstance(node, Index):
                    shape = [1] * len(sizes)
                    shape[node.axis] = -1
                    return torch.arange(sizes[node.axis]).view(shape).expand(sizes).contiguous()
                assert isinstance(node, Const)
                return torch.full(sizes, node.value, dtype=node.dtype)

            for slot, value in [(store.slot, store.value) for store in self.body.stores]:
                target = after[slot]
                assert isinstance(target, Operand)
                target.view(sizes).copy_(evaluate(value, leaf))
            results.append([o.storage for o in after if isinstance(o, Operand)])
        return results

    def check(self, interpreter: Child, ulps: float = 4, signed_zeros: bool = True, atol: float = 0) -> None:
        expected = self.expect()
        for aligned in (True, False) if self.body.ndim else (True,):
            for got, want in zip(self.run(interpreter, aligned), expected, strict=True):
                for a, b in zip(got, want, strict=True):
                    assert_close(a, b, ulps, signed_zeros, atol)


def assert_close(got: torch.Tensor, want: torch.Tensor, ulps: float, signed_zeros: bool, atol: float) -> None:
    if not want.is_floating_point():
        assert torch.equal(got, want), f"{got} is not {want}"
        return
    info = torch.finfo(want.dtype)
    torch.testing.assert_close(got, want, rtol=ulps * info.eps, atol=atol + ulps * info.tiny, equal_nan=True)
    zeros = (got == 0) & (want == 0) & signed_zeros
    assert torch.equal(got.signbit() & zeros, want.signbit() & zeros), "a zero has the wrong sign"


def flat(dtype: torch.dtype, access: str = "r") -> Slot:
    return Slot(dtype, (1,), access)


def elementwise(name: str, dtypes: Sequence[torch.dtype], result: torch.dtype) -> KernelBody:
    """`result = name(s0, s1, ..)` over one axis."""
    slots = [*(flat(dtype) for dtype in dtypes), flat(result, "w")]
    value = Op(name, tuple(SlotLoad(k, dtype) for k, dtype in enumerate(dtypes)), result)
    return pointwise_body("cuda", 1, tuple(slots), (), ((len(dtypes), value),))


# ---------------------------------------------------------------------------------------------------------------------
# Operations

FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, -0.25, 2.0, 3.0, -7.5, 1e-3, 100.25, -1e5, math.inf, -math.inf, math.nan]
INTEGERS = [0, 1, -1, 2, -3, 7, -8, 63, 100, 127, -128]
#: Where PyTorch's CPU functions are no reference: domains that only one of both covers.
DOMAINS: dict[str, Callable[[float], bool]] = {
    "lgamma": lambda x: x > 0,
    "fma": lambda x: x != 1e-3,  # the product of others is exact in float64
    "sin": lambda x: abs(x) < 1e4,
    "cos": lambda x: abs(x) < 1e4,
    "tan": lambda x: abs(x) < 1e4,
}


def samples(name: str, dtype: torch.dtype, count: int) -> list[torch.Tensor]:
    """All combinations of interesting values for `count` arguments."""
    if dtype == BOOL:
        values: list[float] = [False, True]
    elif dtype.is_floating_point:
        values = [x for x in FLOATS if DOMAINS.get(name, lambda _: True)(x)]
    else:
        values = [x for x in INTEGERS if torch.iinfo(dtype).min <= x <= torch.iinfo(dtype).max]
        values += [torch.iinfo(dtype).min, torch.iinfo(dtype).max]
    pairs = list(itertools.product(values, repeat=count))
    return [torch.tensor([pair[k] for pair in pairs], dtype=dtype) for k in range(count)]


def operation_cases() -> list[tuple[str, torch.dtype]]:
    cases = []
    for name, columns in OPERATIONS.items():
        for dtypes, template in zip(([F32, F64], [I32, I64, I8, U8], [BOOL]), columns, strict=True):
            cases += [(name, dtype) for dtype in dtypes if template is not None]
    return [(name, dtype) for name, dtype in cases if name != "where"]


def test_every_operation_has_a_rule() -> None:
    assert set(OPERATIONS) | {"cast", "bitcast"} == set(SCALAR_OPS)


@pytest.mark.parametrize("dtype", [F32, F64, I32, I64, I8, U8, BOOL], ids=str)
def test_operations(interpreter: Child, dtype: torch.dtype) -> None:
    for name in [name for name, kind in operation_cases() if kind == dtype]:
        if (name in ("neg", "abs") and dtype == U8) or (name == "abs" and dtype == BOOL):
            continue
        if name in ("floor", "ceil", "trunc", "round") and dtype == BOOL:
            continue
        data = samples(name, dtype, SCALAR_OPS[name][0])
        result = BOOL if name in COMPARISONS else dtype
        body = elementwise(name, [dtype] * len(data), result)
        out = torch.zeros(len(data[0]), dtype=result)
        case = Case(body, [((len(out),), [*map(Operand, data), Operand(out)])])
        try:
            case.check(interpreter, signed_zeros=name not in ("maximum", "minimum", "fmax", "fmin"))
        except Exception as error:
            raise AssertionError(f"{name} of {dtype}: {error}") from error


def test_choice(interpreter: Child) -> None:
    condition = torch.tensor([True, False, True])
    x, y = torch.tensor([1.0, math.nan, -0.0]), torch.tensor([4.0, 5.0, 6.0])
    body = elementwise("where", [BOOL, F32, F32], F32)
    Case(body, [((3,), [*map(Operand, (condition, x, y, torch.zeros(3)))])]).check(interpreter, 0)


@pytest.mark.parametrize("source", [BOOL, U8, I8, I16, I32, I64, F16, BF16, F32, F64], ids=str)
def test_conversions(interpreter: Child, source: torch.dtype) -> None:
    for target in (BOOL, U8, I8, I16, I32, I64, F16, BF16, F32, F64):
        if source.is_floating_point:
            # Out of the target's range, C says nothing.
            bound = 3e4 if target.is_floating_point or target in (I16, I32, I64) else 100
            data = torch.tensor([0.0, -0.0, 0.75, 1.0, 1.00390625, 3.5, 99.9, 1 / 3, bound]).double()
            if target not in (U8, BOOL):
                data = torch.cat([data, -data])
            if target.is_floating_point:
                data = torch.cat([data, torch.tensor([math.inf, -math.inf, math.nan, 1e-40, 65519.0, 65520.0])])
        else:
            data = samples("cast", source, 1)[0]
        data = data.to(source)
        body = elementwise("cast", [source], target)
        out = torch.zeros(len(data), dtype=target)
        Case(body, [((len(data),), [Operand(data), Operand(out)])]).check(interpreter, 0)


def test_bits(interpreter: Child) -> None:
    data = torch.tensor(FLOATS)
    body = elementwise("bitcast", [F32], I32)
    Case(body, [((len(data),), [Operand(data), Operand(torch.zeros(len(data), dtype=I32))])]).check(interpreter)


def test_constants(interpreter: Child) -> None:
    values = [Const(x, dtype) for x in (math.pi, math.inf, -math.inf, math.nan, -0.0, 1e-300) for dtype in (F64, F32)]
    values += [Const(x, I64) for x in (-(2**63), 2**63 - 1, 2**40)] + [Const(True, BOOL), Const(-5, I8)]
    values += [Const(0.1, BF16), Const(0.1, F16)]
    slots = tuple(flat(value.dtype, "w") for value in values)
    body = pointwise_body("cuda", 1, slots, (), tuple(enumerate(values)))
    Case(body, [((3,), [Operand(torch.zeros(3, dtype=value.dtype)) for value in values])]).check(interpreter, 0)


# ---------------------------------------------------------------------------------------------------------------------
# Loops: members, axes, strides, masks, scalars


def adam_body(dtype: torch.dtype = F32) -> KernelBody:
    """param, grad, exp_avg, exp_avg_sq; step size and bias correction of each member; lr, beta1, beta2, eps of all."""
    p, g, m, v = (cast(SlotLoad(k, dtype), F32) for k in range(4))
    step_size, correction = cast(SlotLoad(4, F64), F32), cast(SlotLoad(5, F64), F32)
    decay, beta1, beta2, eps = (cast(ArgScalar(k, F64), F32) for k in range(4))
    one = Const(1.0, F32)
    p = op("mul", p, op("sub", one, decay))
    m = op("fma", op("sub", g, m), op("sub", one, beta1), m)
    v = op("fma", op("mul", g, g), op("sub", one, beta2), op("mul", v, beta2))
    p = op("sub", p, op("div", op("mul", m, step_size), op("add", op("div", op("sqrt", v), correction), eps)))
    numbers = (Slot(F64, (), "r", by_value=True),) * 2
    slots = (flat(dtype, "rw"), flat(dtype), flat(dtype, "rw"), flat(dtype, "rw"), *numbers)
    return pointwise_body("cuda", 1, slots, (F64,) * 4, tuple((k, cast(x, dtype)) for k, x in ((0, p), (2, m), (3, v))))


@pytest.mark.parametrize("dtype", [F32, BF16, F64], ids=str)
def test_grouped_optimizer_step(interpreter: Child, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    members = []
    for size, offset in ((200, 0), (64, 0), (1, 0), (130, 3), (0, 0), (128, 1)):
        data = [torch.rand(size + offset, dtype=F64).to(dtype) for _ in range(4)]
        operands = [Operand(x, (1,), offset) for x in data]
        members.append(((size,), [*operands, 0.01 * (size + 1), 0.9]))
    body = adam_body(dtype)
    scalars = (0.01, 0.9, 0.99, 1e-8)
    # The computation is in float32 for every type, on values of about 1.
    Case(body, members, scalars).check(interpreter, 1, atol=1e-6)


def test_one_evaluation_a_member(interpreter: Child) -> None:
    count = 70
    value = op("add", SlotLoad(0, F32), cast(op("mul", SlotLoad(1, I64), ArgScalar(0, I64)), F32))
    slots = (Slot(F32, (), "rw"), Slot(I64, (), "r", by_value=True), Slot(BOOL, (), "w"))
    body = pointwise_body("cuda", 0, slots, (I64,), ((0, value), (2, op("gt", value, Const(100.0, F32)))))
    members = [
        ((), [Operand(torch.tensor([k + 0.5]), ()), k, Operand(torch.tensor([False]), ())]) for k in range(count)
    ]
    Case(body, members, (3,), block=32).check(interpreter, 0)


@pytest.mark.parametrize("index", ["int32", "int64"])
def test_axes_and_strides(interpreter: Child, index: str) -> None:
    torch.manual_seed(1)
    x, row, column, transposed = (SlotLoad(k, F32) for k in range(4))
    position = cast(op("add", op("mul", Index(0), Const(1000, I64)), Index(1)), F32)
    value = op("add", op("add", op("mul", x, row), op("mul", column, transposed)), position)
    slots = (
        Slot(F32, (None, 1), "rw"),
        Slot(F32, (0, 1), "r"),
        Slot(F32, (None, 0), "r"),
        Slot(F32, (1, None), "r"),
        Slot(BOOL, (None, None), "w"),
    )
    body = pointwise_body("cuda", 2, slots, (BOOL,), ((0, value), (4, op("and", ArgScalar(0, BOOL), op("gt", x, row)))))
    members = []
    # Sizes divisible by 16 take the branch with wide accesses where data is aligned; the last has an unaligned address.
    for rows, columns, offset in ((8, 32, 0), (5, 7, 0), (1, 1, 0), (4, 48, 0), (8, 32, 1)):
        pitch = columns if columns % 16 == 0 else columns + 3
        members.append(
            (
                (rows, columns),
                [
                    Operand(torch.rand(rows * pitch + offset), (pitch, 1), offset),
                    Operand(torch.rand(columns), (0, 1)),
                    Operand(torch.rand(rows * 2), (2, 0)),
                    Operand(torch.rand(rows * columns), (1, rows)),
                    Operand(torch.zeros(2 * rows * columns, dtype=BOOL), (2 * columns, 2)),
                ],
            )
        )
    Case(body, members, (True,), index=index).check(interpreter)


def test_three_axes(interpreter: Child) -> None:
    x = SlotLoad(0, I32)
    position = cast(op("add", op("mul", Index(0), Const(100, I64)), op("sub", Index(1), Index(2))), I32)
    slots = (Slot(I32, (None, None, None), "r"), Slot(I32, (None, None, 1), "w"))
    body = pointwise_body("cuda", 3, slots, (), ((1, op("add", x, position)),))
    data, out = torch.arange(3 * 5 * 7, dtype=I32), torch.zeros(3 * 5 * 7, dtype=I32)
    Case(body, [((3, 5, 7), [Operand(data, (1, 3, 15)), Operand(out, (35, 7, 1))])], block=16).check(interpreter)


def test_one_axis_with_strides_and_single_elements(interpreter: Child) -> None:
    value = op("mul", SlotLoad(0, F32), op("add", SlotLoad(1, F32), cast(Index(0), F32)))
    body = pointwise_body("cuda", 1, (Slot(F32, (None,), "rw"), Slot(F32, (0,), "r")), (), ((0, value),))
    members = [((n,), [Operand(torch.rand(3 * n), (3,)), Operand(torch.rand(1), (0,))]) for n in (100, 1, 64)]
    Case(body, members).check(interpreter)


def test_stores_wait_for_all_loads(interpreter: Child) -> None:
    x, y = SlotLoad(0, F32), SlotLoad(1, F32)
    body = pointwise_body("cuda", 1, (flat(F32, "rw"), flat(F32, "rw")), (), ((0, y), (1, x)))
    Case(body, [((70,), [Operand(torch.rand(70)), Operand(torch.rand(70))])]).check(interpreter, 0)


def test_fill_of_single_element_members(interpreter: Child) -> None:
    body = pointwise_body("cuda", 1, (Slot(F32, (0,), "w"),), (F64,), ((0, cast(ArgScalar(0, F64), F32)),))
    Case(body, [((1,), [Operand(torch.zeros(1), (0,))])] * 2, (2.5,)).check(interpreter, 0)


# ---------------------------------------------------------------------------------------------------------------------
# Random bodies

_UNARY = ["neg", "abs", "floor", "tanh", "sqrt", "sin"]
_BINARY = ["add", "sub", "mul", "div", "maximum", "minimum", "fmax", "fmin", "fmod", "hypot"]


@st.composite
def float_expressions(draw: st.DrawFn, depth: int = 4) -> Expr:
    kind = draw(
        st.sampled_from(["slot", "scalar", "constant", "index"] if depth == 0 else ["op"] * 4 + ["slot", "cast"])
    )
    if kind == "slot":
        slot = draw(st.integers(0, 2))
        return cast(SlotLoad(slot, (F32, F64, I32)[slot]), F32)
    if kind == "scalar":
        return cast(ArgScalar(0, F64), F32)
    if kind == "constant":
        return Const(draw(st.floats(-8, 8, width=16)), F32)
    if kind == "index":
        return cast(Index(0), F32)
    below = float_expressions(depth=depth - 1)
    if kind == "cast":
        middle = draw(st.sampled_from([F64, BF16, F16]))
        return cast(cast(draw(below), middle), F32)
    if draw(st.booleans()):
        return op(draw(st.sampled_from(_UNARY)), draw(below))
    if draw(st.integers(0, 5)) == 0:
        condition = op(draw(st.sampled_from(["lt", "eq", "ge"])), draw(below), draw(below))
        return op("where", condition, draw(below), draw(below))
    return op(draw(st.sampled_from(_BINARY)), draw(below), draw(below))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    value=float_expressions(),
    sizes=st.lists(st.integers(0, 80), min_size=1, max_size=3),
    seed=st.integers(0, 2**31),
    scalar=st.floats(-2, 2),
)
def test_random_bodies(interpreter: Child, value: Expr, sizes: list[int], seed: int, scalar: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    slots = (flat(F32, "rw"), flat(F64), flat(I32))
    body = pointwise_body("cuda", 1, slots, (F64,), ((0, value),))
    members = []
    for size in sizes:
        data = torch.randint(-32, 32, (3, size), generator=generator)
        members.append(((size,), [Operand((row / 8).to(dtype) if dtype != I32 else row.to(I32))
                                  for row, dtype in zip(data, (F32, F64, I32), strict=True)]))  # fmt: skip
    case = Case(body, members, (scalar,), block=32)
    for got, want in zip(case.run(interpreter), case.expect(), strict=True):
        # NumPy and PyTorch may differ by rounding, which cancellation and steps enlarge: most elements must agree.
        agree = torch.isclose(got[0], want[0], rtol=1e-4, atol=1e-4, equal_nan=True)
        assert agree.float().mean() >= 0.9 or agree.numel() == 0


# ---------------------------------------------------------------------------------------------------------------------
# Machine code, compiled without a GPU


def accesses(body: KernelBody, capability: int = 90, block: int = 1024) -> list[str]:
    """The global memory instructions of the compiled kernel."""
    compiled = compile_kernel(emit(body, "kernel"), body, "kernel", capability=capability, shape=LaunchShape(block, 4))
    assert compiled.cubin.startswith(b"\x7fELF")
    return re.findall(r"(?:ld|st)\.global\S*", compiled.ptx)


@pytest.mark.parametrize("capability", [75, 80, 90])
def test_aligned_blocks_use_wide_accesses(capability: int) -> None:
    found = accesses(adam_body(), capability)
    # 1024 elements by 128 threads: two times four elements a thread, of four operands read and three written.
    assert found.count("ld.global.v4.b32") == 8
    assert found.count("st.global.v4.b32") == 6
    # The other branch has one element a thread.
    assert found.count("st.global.b32") == 3


def test_16_bit_operands_use_wide_accesses() -> None:
    found = accesses(adam_body(BF16))
    assert found.count("ld.global.v4.b32") == 4
    assert found.count("st.global.v4.b32") == 3


def test_rows_and_broadcasts_use_wide_accesses() -> None:
    value = op("add", SlotLoad(0, F32), op("mul", SlotLoad(1, F32), SlotLoad(2, F32)))
    slots = (Slot(F32, (None, 1), "rw"), Slot(F32, (0, 1), "r"), Slot(F32, (None, 0), "r"))
    found = accesses(pointwise_body("cuda", 2, slots, (), ((0, value),)))
    assert found.count("ld.global.v4.b32") == 4
    assert found.count("st.global.v4.b32") == 2


@pytest.mark.parametrize("dtype", [F32, F64, I32, I8, U8, BOOL], ids=str)
def test_all_operations_compile(dtype: torch.dtype) -> None:
    values = []
    for name in [name for name, kind in operation_cases() if kind == dtype]:
        values.append(op(name, *(SlotLoad(k, dtype) for k in range(SCALAR_OPS[name][0]))))
    outputs = [flat(value.dtype, "w") for value in values]
    body = pointwise_body("cuda", 1, (flat(dtype),) * 3 + tuple(outputs), (), tuple(enumerate(values, start=3)))
    compiled = compile_kernel(emit(body, "kernel"), body, "kernel", capability=90, shape=LaunchShape(128, 4))
    # Denormals are kept, but for the first guesses that libdevice refines.
    assert not re.findall(r"\b(?:add|sub|mul|div|fma|sqrt)\.\S*ftz", compiled.ptx)


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_division_and_square_root_are_rounded_to_nearest(dtype: torch.dtype) -> None:
    value = op("div", op("sqrt", SlotLoad(0, dtype)), SlotLoad(1, dtype))
    body = pointwise_body("cuda", 1, (flat(dtype, "rw"), flat(dtype)), (), ((0, value),))
    ptx = compile_kernel(emit(body, "k"), body, "k", capability=90, shape=LaunchShape(256, 2)).ptx
    suffix = "f32" if dtype == F32 else "f64"
    assert f"div.rn.{suffix}" in ptx and f"sqrt.rn.{suffix}" in ptx
    assert "approx" not in ptx and "div.full" not in ptx


def test_products_and_sums_are_not_contracted_unless_asked() -> None:
    x, y = SlotLoad(0, F32), SlotLoad(1, F32)
    separate = pointwise_body("cuda", 1, (flat(F32, "rw"), flat(F32)), (), ((0, op("add", op("mul", x, y), x)),))
    fused = pointwise_body("cuda", 1, (flat(F32, "rw"), flat(F32)), (), ((0, op("fma", x, y, x)),))
    for body, expected in ((separate, False), (fused, True)):
        ptx = compile_kernel(emit(body, "k"), body, "k", capability=90, shape=LaunchShape(256, 2)).ptx
        assert ("fma.rn.f32" in ptx) == expected


def test_conversions_compile() -> None:
    types = (BOOL, U8, I16, I64, F16, BF16, F32, F64)
    slots = [flat(dtype) for dtype in types]
    stores = []
    for source, target in itertools.product(range(len(types)), types):
        if types[source] != target:
            stores.append((len(slots), cast(SlotLoad(source, types[source]), target)))
            slots.append(flat(target, "w"))
    body = pointwise_body("cuda", 1, tuple(slots), (), tuple(stores))
    accesses(body, block=128)


def test_kernels_of_every_rank_compile() -> None:
    for ndim in (0, 2, 3):
        slot = Slot(F32, (None,) * max(ndim - 1, 0) + (1,) * min(ndim, 1), "rw")
        number = Slot(I64, (), "r", by_value=True)
        index = [cast(Index(axis), F32) for axis in range(ndim)]
        value = op("add", SlotLoad(0, F32), cast(SlotLoad(1, I64), F32))
        for x in index:
            value = op("add", value, x)
        value = op("where", ArgScalar(0, BOOL), value, cast(ArgScalar(1, I64), F32))
        body = pointwise_body("cuda", ndim, (slot, number), (BOOL, I64), ((0, value),))
        for wide in (False, True):
            compile_kernel(emit(body, "k"), body, "k", capability=90, shape=LaunchShape(256, 2), wide_index=wide)


# ---------------------------------------------------------------------------------------------------------------------
# What is refused, and how it reads


@pytest.mark.parametrize(
    "body",
    [
        elementwise("add", [torch.complex64] * 2, torch.complex64),
        elementwise("add", [BF16, BF16], BF16),
        elementwise("sub", [BOOL, BOOL], BOOL),
        elementwise("bitcast", [F32], I64),
        pointwise_body("cpu", 1, (flat(F32, "w"),), (), ((0, Const(0.0, F32)),)),
    ],
    ids=["complex", "half arithmetic", "bool difference", "bits of another width", "device"],
)
def test_unsupported(body: KernelBody) -> None:
    with pytest.raises(Unsupported):
        emit(body, "kernel")


def test_source_is_readable_python() -> None:
    source = emit(adam_body(), "adam")
    compile(source, "adam.py", "exec")
    assert "# s4: f64 r, a number for each member" in source
    # The gradient is used several times and its conversion, like every other value, is written once.
    assert source.count(" = s1 - s2\n") == 1
    assert max(map(len, source.splitlines())) < 200


def test_equal_values_are_computed_once() -> None:
    half = cast(SlotLoad(0, BF16), F32)
    value = cast(op("add", op("mul", half, half), op("mul", cast(SlotLoad(0, BF16), F32), half)), BF16)
    source = emit(pointwise_body("cuda", 1, (flat(BF16, "rw"),), (), ((0, value),)), "kernel")
    assert source.count("s0.to(tl.float32)") == 1
    assert len(re.findall(r"t\d+ = t\d+ \* t\d+", source)) == 1


def test_half_types_are_never_computed_in() -> None:
    assert {F16, BF16} == HALF_TYPES


@pytest.mark.parametrize("dtype", [F32, F64])
def test_libdevice_is_linked_where_a_function_of_it_is_called(dtype: torch.dtype) -> None:
    """Products are rounded with and without it."""
    x, y = SlotLoad(0, dtype), SlotLoad(1, dtype)
    product = op("add", op("mul", x, y), x)
    for value, linked in ((product, False), (op("add", product, op("exp", x)), True), (op("sqrt", product), False)):
        body = pointwise_body("cuda", 1, (flat(dtype, "rw"), flat(dtype)), (), ((0, value),))
        source = emit(body, "k")
        assert ("libdevice" in source) == linked
        ptx = compile_kernel(source, body, "k", capability=90, shape=LaunchShape(256, 2)).ptx
        bits = 8 * dtype.itemsize
        assert f"mul.rn.f{bits}" in ptx and (linked or "fma" not in ptx)
