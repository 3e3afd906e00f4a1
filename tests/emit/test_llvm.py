"""The CPU code generator: what its kernels compute, against PyTorch's eager operators."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cpu_runner import Data, run, run_numbers
from expr_interpreter import Environment, evaluate, evaluate_body, op
from kernel_bodies import pointwise_body
from quickfuse.emit.llvm import emit
from quickfuse.emit.llvm_math import host_target
from quickfuse.errors import Unsupported
from quickfuse.ir.expr import HALF_TYPES, SCALAR_OPS, Const, Expr, Index, Op, cast
from quickfuse.ir.kernel import ArgScalar, KernelBody, Slot, SlotLoad
from quickfuse.ir.target import CpuTarget

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
U8, I8, I16, I32, I64, BOOL = torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool
U16, U32, U64 = torch.uint16, torch.uint32, torch.uint64
FLOATS = (F32, F64)
INTEGERS = (I8, I16, I32, I64, U8, U16, U32)

#: This machine's vector unit, narrower ones that it has as well, and the one without vector functions.
TARGETS = sorted(
    {CpuTarget(width, libmvec) for width in (16, 32, 64) for libmvec in (False, host_target().libmvec)},
    key=lambda t: (t.vector_bytes, t.libmvec),
)
TARGETS = [t for t in TARGETS if t.vector_bytes <= host_target().vector_bytes]


def describe(value: object) -> str | None:
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    return f"{8 * value.vector_bytes}{'+libmvec' * value.libmvec}" if isinstance(value, CpuTarget) else None


# ---------------------------------------------------------------------------------------------------------------------
# Comparing


def ulps(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """How many floating point numbers apart; 0 for two NaN and for zeros of either sign."""
    bits = {F16: I16, BF16: I16, F32: I32, F64: I64}[x.dtype]

    def rank(t: torch.Tensor) -> torch.Tensor:
        i = t.contiguous().view(bits)
        return torch.where(i < 0, torch.iinfo(bits).min - i, i).long()

    same = (x == y) | (x.isnan() & y.isnan())
    # Of integers, exact; of doubles, without overflow.
    near, far = (rank(x) - rank(y)).abs(), (rank(x).double() - rank(y).double()).abs()
    distance = torch.where(far < 1e6, near.double(), far)
    return torch.where(same, 0.0, torch.where(x.isnan() != y.isnan(), math.inf, distance))


def assert_close(got: torch.Tensor, want: torch.Tensor, max_ulps: float, *inputs: torch.Tensor) -> None:
    assert got.dtype == want.dtype and got.shape == want.shape
    if not got.numel():
        return
    if got.dtype.is_floating_point:
        distance = ulps(got, want)
        worst = int(distance.argmax())
        ok = bool((distance <= max_ulps).all())
    else:
        worst = int((got != want).int().argmax())
        ok = torch.equal(got, want)
    assert ok, f"got {got[worst]!r}, want {want[worst]!r} for {[t[worst].item() for t in inputs]}"


def elementwise(expr: Expr, *inputs: torch.Tensor, target: CpuTarget | None = None) -> torch.Tensor:
    """One expression over contiguous vectors: slots 0.. are the inputs."""
    out = torch.empty(len(inputs[0]), dtype=expr.dtype)
    slots = [Slot(t.dtype, (1,), "r") for t in inputs] + [Slot(expr.dtype, (1,), "w")]
    body = pointwise_body("cpu", 1, tuple(slots), (), ((len(inputs), expr),))
    run(body, [Data(tuple(out.shape), [*inputs, out])], target=target)
    return out


def one_by_one(expr: Expr, *inputs: torch.Tensor) -> torch.Tensor:
    """The same by the code for single numbers: a kernel without axes, with a member for each element."""
    out = torch.empty(len(inputs[0]), dtype=expr.dtype)
    slots = [Slot(t.dtype, (), "r") for t in inputs] + [Slot(expr.dtype, (), "w")]
    body = pointwise_body("cpu", 0, tuple(slots), (), ((len(inputs), expr),))
    run_numbers(body, [*inputs, out])
    return out


# ---------------------------------------------------------------------------------------------------------------------
# Every operation

EDGE_FLOATS = [
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 2.0, -2.0, 3.0, -3.0, 0.1, -0.1, 100.5, 1e6, -1e6, 12345.678,
    math.inf, -math.inf, math.nan, 1e-45, -1e-45, 1e-38, -1e-38, 1e-30, 3e38, -3e38, 87.0, -87.3, -104.0, math.pi, 1e-8,
]  # fmt: skip


def edge_values(dtype: torch.dtype) -> torch.Tensor:
    if dtype == BOOL:
        return torch.tensor([False, True])
    if dtype.is_floating_point:
        values = [torch.tensor(EDGE_FLOATS, dtype=F64)]
        noise = torch.Generator().manual_seed(1)
        values.append(torch.randn(40, dtype=F64, generator=noise))
        values.append(30 * torch.randn(24, dtype=F64, generator=noise))
        return torch.cat(values).to(dtype)
    info = torch.iinfo(dtype)
    values = [0, 1, 2, 3, 5, 7, 8, 31, 64, 100, info.max - 1, info.max, info.max // 2]
    if info.min < 0:
        values += [-1, -2, -3, -7, -8, -100, info.min, info.min + 1]
    return torch.tensor(values, dtype=dtype)


def operands(name: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """All combinations of edge values for the operands of an operation."""
    arity = SCALAR_OPS[name][0]
    values = edge_values(dtype)
    if arity == 1:
        return [values]
    if arity == 3:
        values = values[:21]
    picked = torch.cartesian_prod(*[torch.arange(len(values))] * arity).unbind(1)
    columns = [values[column] for column in picked]
    if name == "where":
        columns[0] = torch.arange(len(columns[0])) % 2 == 0
    return columns


FLOAT_ONLY = frozenset(
    "div sqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc "
    "lgamma floor ceil trunc round rsqrt atan2 hypot copysign nextafter".split()
)
BITS = frozenset({"and", "or", "xor", "not"})
INTEGER_ONLY = frozenset({"trunc_div", "shl", "shr"})
BOOL_TOO = BITS.union("add mul fma abs maximum minimum fmax fmin eq ne lt le gt ge where".split())


def has_rule(name: str, dtype: torch.dtype) -> bool:
    if dtype == BOOL:
        return name in BOOL_TOO
    return name not in (BITS | INTEGER_ONLY if dtype.is_floating_point else FLOAT_ONLY)


OPERATIONS = [name for name in SCALAR_OPS if name not in ("cast", "bitcast")]
TYPED_OPERATIONS = [(n, t) for n in OPERATIONS for t in (*FLOATS, *INTEGERS, BOOL) if has_rule(n, t)]
TYPED_OPERATIONS = [case for case in TYPED_OPERATIONS if case not in (("fma", F32), ("fma", F64))]  # has its own test
#: Functions of libm or libmvec: allowed distance from the correctly rounded result. All else is exact.
APPROXIMATE = dict.fromkeys(
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc pow "
    "atan2 hypot".split(),
    4,
) | {"lgamma": 6, "sqrt": 1, "rsqrt": 1}


def expected(expr: Op, inputs: list[torch.Tensor]) -> torch.Tensor:
    """Eager's result. For functions of float32: eager's in float64, as eager in float32 is a few ulp off itself."""
    precise = expr.dtype == F32 and (expr.name in APPROXIMATE or expr.name == "fmod")
    env = Environment(tuple(inputs[0].shape), [t.double() for t in inputs] if precise else inputs)
    result = evaluate(expr, env)
    return result.float() if precise else result


def case(name: str, dtype: torch.dtype) -> tuple[Op, list[torch.Tensor]]:
    inputs = operands(name, dtype)
    return op(name, *(SlotLoad(k, t.dtype) for k, t in enumerate(inputs))), inputs


@pytest.mark.parametrize(("name", "dtype"), TYPED_OPERATIONS, ids=describe)
def test_operation(name: str, dtype: torch.dtype) -> None:
    expr, inputs = case(name, dtype)
    want = expected(expr, inputs)
    tolerance = APPROXIMATE.get(name, 0) if dtype.is_floating_point else 0
    assert_close(elementwise(expr, *inputs), want, tolerance, *inputs)
    assert_close(one_by_one(expr, *inputs), want, tolerance, *inputs)


@pytest.mark.parametrize("dtype", FLOATS, ids=describe)
def test_fma_is_contracted_or_not(dtype: torch.dtype) -> None:
    expr, (x, y, z) = case("fma", dtype)
    apart = x * y + z
    fused = (x.double() * y.double() + z.double()).to(dtype)
    rounding = 3e-16 * ((x * y).abs() + z.abs())
    for got in (elementwise(expr, x, y, z), one_by_one(expr, x, y, z)):
        near_fused = ulps(got, fused) <= 1 if dtype == F32 else (got - apart).abs() <= rounding
        assert bool(((ulps(got, apart) == 0) | near_fused).all())


@pytest.mark.parametrize("target", TARGETS, ids=describe)
@pytest.mark.parametrize("dtype", FLOATS, ids=describe)
def test_math_on_other_vector_units(dtype: torch.dtype, target: CpuTarget) -> None:
    """All functions of one and two operands in one kernel, for each width of vectors."""
    x, y = operands("pow", dtype)
    names = [n for n in APPROXIMATE if SCALAR_OPS[n][0] < 3 and n != "lgamma"]
    outputs = [torch.empty_like(x) for _ in names]
    loads = SlotLoad(0, dtype), SlotLoad(1, dtype)
    exprs = [op(n, *loads[: SCALAR_OPS[n][0]]) for n in names]
    slots = (Slot(dtype, (1,), "r"),) * 2 + (Slot(dtype, (1,), "w"),) * len(names)
    body = pointwise_body("cpu", 1, slots, (), tuple((k + 2, e) for k, e in enumerate(exprs)))
    run(body, [Data(tuple(x.shape), [x, y, *outputs])], target=target)
    for name, expr, got in zip(names, exprs, outputs, strict=True):
        assert_close(got, expected(expr, [x, y]), APPROXIMATE[name], x, y)


@pytest.mark.parametrize(
    ("name", "dtype"), [(n, t) for n in OPERATIONS for t in (F32, I32, BOOL) if not has_rule(n, t)], ids=describe
)
def test_operations_without_a_rule_are_refused(name: str, dtype: torch.dtype) -> None:
    expr, inputs = case(name, dtype)
    with pytest.raises(Unsupported, match=name):
        elementwise(expr, *inputs)


@pytest.mark.parametrize("dtype", sorted(HALF_TYPES, key=str), ids=describe)
def test_arithmetic_in_16_bit_floats_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(Unsupported, match="add computed in"):
        elementwise(op("add", SlotLoad(0, dtype), SlotLoad(0, dtype)), torch.zeros(3, dtype=dtype))


@pytest.mark.parametrize("dtype", sorted(HALF_TYPES, key=str), ids=describe)
def test_where_moves_16_bit_floats(dtype: torch.dtype) -> None:
    x, y = torch.randn(37).to(dtype), torch.randn(37).to(dtype)
    expr = op("where", op("lt", cast(SlotLoad(0, dtype), F32), Const(0.0, F32)), SlotLoad(0, dtype), SlotLoad(1, dtype))
    assert torch.equal(elementwise(expr, x, y), torch.where(x < 0, x, y))


# ---------------------------------------------------------------------------------------------------------------------
# Conversions

ALL_TYPES = (BOOL, U8, U16, U32, U64, I8, I16, I32, I64, F16, BF16, F32, F64)


@pytest.mark.parametrize("target", ALL_TYPES, ids=describe)
@pytest.mark.parametrize("source", ALL_TYPES, ids=describe)
def test_cast(source: torch.dtype, target: torch.dtype) -> None:
    """As `Tensor.to`, out of range too."""
    x = edge_values(source)
    if source.is_floating_point:
        far = torch.tensor([127.5, 128, 255.9, 300, 65536, 2**31, 2**32, 3e9, 2.0**63, 1.5e19, 5e18], dtype=F64)
        x = torch.cat([x, far.to(source), -far.to(source)])
        if target == U32:  # eager itself depends on where an element stands
            x = x[(x > -(2.0**31)) & (x < 2.0**32)]
    expr = Op("cast", (SlotLoad(0, source),), target)
    want = x.to(target)
    got, single = elementwise(expr, x), one_by_one(expr, x)
    # Unsigned types wider than 8 bits are compared by their bits, as PyTorch compares few of them.
    bits = {U16: I16, U32: I32, U64: I64}.get(target, target)
    assert_close(got.view(bits), want.view(bits), 0, x)
    assert_close(single.view(bits), want.view(bits), 0, x)


def all_16_bit_patterns(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(-(2**15), 2**15, dtype=I32).to(I16).view(dtype)


@pytest.mark.parametrize("dtype", sorted(HALF_TYPES, key=str), ids=describe)
def test_widening_is_exact(dtype: torch.dtype) -> None:
    x = all_16_bit_patterns(dtype)
    assert_close(elementwise(cast(SlotLoad(0, dtype), F32), x), x.float(), 0, x)
    there_and_back = cast(cast(SlotLoad(0, dtype), F32), dtype)
    assert_close(elementwise(there_and_back, x), x, 0, x)


@pytest.mark.parametrize("target", TARGETS, ids=describe)
@pytest.mark.parametrize("dtype", sorted(HALF_TYPES, key=str), ids=describe)
def test_narrowing_rounds_to_even(dtype: torch.dtype, target: CpuTarget) -> None:
    """Around every 16-bit float: itself, halfway to the next one, and just beside that."""
    x = all_16_bit_patterns(dtype).float()
    above = torch.roll(x, -1)
    halfway = (x + above) / 2
    close = [torch.nextafter(halfway, torch.tensor(math.inf * s)) for s in (1, -1)]
    values = torch.cat([x, halfway, *close, edge_values(F32)])
    assert_close(elementwise(cast(SlotLoad(0, F32), dtype), values, target=target), values.to(dtype), 0, values)


@pytest.mark.parametrize(
    ("source", "target"), [(F32, I32), (I32, F32), (F64, I64), (I64, F64), (I16, BF16), (F16, I16)], ids=describe
)
def test_bitcast(source: torch.dtype, target: torch.dtype) -> None:
    x = torch.arange(-50, 51).to(source)
    expr = Op("bitcast", (SlotLoad(0, source),), target)
    bits = {8: I64, 4: I32, 2: I16}[target.itemsize]
    assert torch.equal(elementwise(expr, x).view(bits), x.view(bits))
    assert torch.equal(one_by_one(expr, x).view(bits), x.view(bits))


def test_any_nonzero_byte_is_true() -> None:
    x = torch.tensor([0, 1, 2, 128, 255] * 20, dtype=U8).view(BOOL)
    got = elementwise(cast(SlotLoad(0, BOOL), F32), x)
    assert got.tolist() == [0.0, 1.0, 1.0, 1.0, 1.0] * 20
    assert elementwise(SlotLoad(0, BOOL), x).view(U8).tolist() == [0, 1, 1, 1, 1] * 20


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        *itertools.product((0.1, -0.0, math.inf, -math.inf, math.nan, 1e300, 1e-40), (F16, BF16, F32, F64)),
        *itertools.product((-1, 0, 127, 2**31 - 1, -(2**31)), (I32, I64)),
        *((255, U8), (2**64 - 1, U64), (-128, I8), (True, BOOL), (False, BOOL)),
    ],
)
def test_constant(value: float, dtype: torch.dtype) -> None:
    got = elementwise(Const(value, dtype), torch.empty(21))
    want = torch.full((21,), value, dtype=F64 if dtype.is_floating_point else dtype).to(dtype)
    bits = {F16: I16, BF16: I16, F32: I32, F64: I64, U64: I64}.get(dtype, dtype)
    assert torch.equal(got.view(bits), want.view(bits)) or (got.isnan().all() and want.isnan().all())


# ---------------------------------------------------------------------------------------------------------------------
# Structure: strides, axes, members, threads


def stride_classes(tensors: list[torch.Tensor], sizes: tuple[int, ...]) -> list[tuple[int | None, ...]]:
    """The strictest classes that hold for tensors: 0 and 1 where a stride is that, else dynamic."""
    views = [t.expand(sizes) for t in tensors]
    return [tuple(s if s in (0, 1) else None for s in view.stride()) for view in views]


LAYOUTS = {
    "contiguous": ((5, 37), lambda: torch.randn(5, 37)),
    "transposed": ((5, 37), lambda: torch.randn(37, 5).t()),
    "every other": ((5, 37), lambda: torch.randn(10, 74)[::2, ::2]),
    "row": ((5, 37), lambda: torch.randn(1, 37)),
    "column": ((5, 37), lambda: torch.randn(5, 1)),
    "number": ((5, 37), lambda: torch.randn(1, 1)),
    "3d": ((3, 4, 19), lambda: torch.randn(3, 4, 19)),
    "3d permuted": ((3, 4, 19), lambda: torch.randn(19, 3, 4).permute(1, 2, 0)),
    "3d middle": ((3, 4, 19), lambda: torch.randn(1, 4, 1)),
    "3d matrix": ((3, 4, 19), lambda: torch.randn(4, 19)),
}
BY_RANK = [(a, b) for a, b in itertools.product(LAYOUTS, LAYOUTS) if len(LAYOUTS[a][0]) == len(LAYOUTS[b][0])]


@pytest.mark.parametrize(("first", "second"), BY_RANK)
def test_layouts(first: str, second: str) -> None:
    sizes, make = LAYOUTS[first]
    x, y = make(), LAYOUTS[second][1]()
    out = torch.empty(sizes)
    tensors = [x, y, out]
    read, also_read, written = stride_classes(tensors, sizes)
    slots = Slot(F32, read, "r"), Slot(F32, also_read, "r"), Slot(F32, written, "w")
    value = op("sub", SlotLoad(0, F32), SlotLoad(1, F32))
    run(pointwise_body("cpu", len(sizes), slots, (), ((2, value),)), [Data(sizes, tensors)])
    assert torch.equal(out, (x - y).expand(sizes))


@pytest.mark.parametrize("dtype", [F32, F64, BF16, U8, I64, BOOL], ids=describe)
@pytest.mark.parametrize("target", TARGETS, ids=describe)
def test_stores_to_strided_memory_leave_the_gaps_alone(dtype: torch.dtype, target: CpuTarget) -> None:
    memory = torch.zeros(9, 150).to(dtype)
    x = (torch.arange(9 * 50).view(9, 50) % 3 != 0).to(dtype)
    out = memory[:, ::3]
    slots = Slot(dtype, (None, 1), "r"), Slot(dtype, (None, None), "w")
    body = pointwise_body("cpu", 2, slots, (), ((1, SlotLoad(0, dtype)),))
    run(body, [Data((9, 50), [x, out])], target=target)
    want = torch.zeros(9, 150).to(dtype)
    want[:, ::3] = x
    assert torch.equal(memory, want)


@pytest.mark.parametrize("n", [*range(34), 63, 64, 65, 127, 129, 1000])
def test_tail(n: int) -> None:
    """Every remainder, with guards after the end."""
    memory = torch.full((n + 70,), 7.0)
    x = torch.randn(n)
    body = pointwise_body("cpu", 1, (Slot(F32, (1,), "r"), Slot(F32, (1,), "w")), (), ((1, op("neg", SlotLoad(0, F32))),))
    run(body, [Data((n,), [x, memory[:n]])])
    assert torch.equal(memory[:n], -x)
    assert bool((memory[n:] == 7).all())


def ragged(sizes: list[tuple[int, ...]]) -> tuple[KernelBody, list[Data], list[torch.Tensor]]:
    """x = x * a0 + (index sum), in place, for each member."""
    rank = len(sizes[0])
    value: Expr = op("mul", SlotLoad(0, F64), ArgScalar(0, F64))
    for axis in range(rank):
        value = op("add", value, cast(Index(axis), F64))
    strides = (None,) * (rank - 1) + (1,) * min(rank, 1)
    body = pointwise_body("cpu", rank, (Slot(F64, strides, "rw"),), (F64,), ((0, value),))
    members = [Data(size, [torch.randn(size, dtype=F64)]) for size in sizes]
    wanted = [evaluate(value, Environment(m.sizes, [m.tensors[0].clone()], [0.5])).clone() for m in members]
    return body, members, wanted


SIZES = {
    "0d": [()] * 7,
    "1d": [(0,), (3,), (0,), (1000,), (64,), (1,), (0,), (257,), (0,)],
    "1d many": [(k % 5,) for k in range(300)],
    "2d": [(3, 7), (0, 5), (5, 0), (1, 100), (40, 1), (17, 33)],
    "3d": [(2, 3, 4), (1, 1, 1), (0, 2, 2), (5, 4, 65), (2, 0, 3), (3, 1, 9)],
    "4d": [(2, 3, 4, 5), (1, 2, 1, 70), (3, 3, 3, 3)],
    "all empty": [(0,), (0,)],
}


@pytest.mark.parametrize("n_threads", [1, 2, 3])
@pytest.mark.parametrize("name", SIZES)
def test_members(name: str, n_threads: int) -> None:
    body, members, wanted = ragged(SIZES[name])
    run(body, members, [0.5], n_threads)
    for member, want in zip(members, wanted, strict=True):
        assert_close(member.tensors[0].flatten(), want.flatten(), 1)


def test_no_members() -> None:
    body, _, _ = ragged([(3,)])
    run(body, [], [0.5])


def test_loads_come_before_stores() -> None:
    x, y = torch.arange(100.0), -torch.arange(100.0)
    body = pointwise_body("cpu", 1, (Slot(F32, (1,), "rw"),) * 2, (), ((0, SlotLoad(1, F32)), (1, SlotLoad(0, F32))))
    run(body, [Data((100,), [x, y])])
    assert torch.equal(x, -torch.arange(100.0)) and torch.equal(y, torch.arange(100.0))


def test_scalar_arguments() -> None:
    out = torch.empty(20, dtype=F64)
    value = op("where", ArgScalar(2, BOOL), op("add", ArgScalar(0, F64), cast(ArgScalar(1, I64), F64)), Const(0.0, F64))
    body = pointwise_body("cpu", 1, (Slot(F64, (1,), "w"),), (F64, I64, BOOL), ((0, value),))
    run(body, [Data((20,), [out])], [0.25, -3, True])
    assert bool((out == -2.75).all())
    run(body, [Data((20,), [out])], [0.25, -3, False])
    assert bool((out == 0).all())


def test_numbers_are_python_numbers() -> None:
    """What is computed once a member is what Python computes on the host: libm's pow, and no contraction to FMA."""
    beta, steps = 0.999, torch.arange(1.0, 500.0, dtype=F64)
    power = op("pow", Const(beta, F64), SlotLoad(0, F64))
    fraction = op("sub", Const(1.0, F64), op("mul", power, Const(0.3, F64)))
    got = one_by_one(fraction, steps)
    assert got.tolist() == [1.0 - beta**t * 0.3 for t in steps.tolist()]
    # The same where the step is read once for a whole vector.
    out = torch.empty(40, dtype=F64)
    body = pointwise_body("cpu", 1, (Slot(F64, (0,), "r"), Slot(F64, (1,), "w")), (), ((1, fraction),))
    for step in (3.0, 77.0, 1234.0):
        run(body, [Data((40,), [torch.tensor([step], dtype=F64), out])])
        assert out.tolist() == [1.0 - beta**step * 0.3] * 40


# ---------------------------------------------------------------------------------------------------------------------
# Code


def test_equal_values_are_computed_once() -> None:
    """A chain of squares of sums, each written twice, is a tree of 2**60 nodes and a graph of 60."""
    value: Expr = SlotLoad(0, F32)
    for _ in range(60):
        value = op("add", value, value)
    slots = (Slot(F32, (1,), "r"), Slot(F32, (1,), "w"))
    ir = emit(pointwise_body("cpu", 1, slots, (), ((1, value),)), "kernel")
    assert ir.count(" = fadd") == 2 * 60  # whole vectors and the tail

    def product() -> Expr:
        return op("mul", SlotLoad(0, F32), SlotLoad(0, F32))

    ir = emit(pointwise_body("cpu", 1, slots, (), ((1, op("add", product(), product())),)), "kernel")
    assert ir.count(" = fmul") == 2


def test_constants_are_told_apart_by_sign_and_type() -> None:
    body = pointwise_body("cpu", 1, (Slot(F32, (1,), "w"),) * 2, (), ((0, Const(0.0, F32)), (1, Const(-0.0, F32))))
    x, y = torch.empty(5), torch.empty(5)
    run(body, [Data((5,), [x, y])])
    assert not x.signbit().any() and y.signbit().all()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (pointwise_body("cuda", 1, (Slot(F32, (1,), "w"),), (), ((0, Const(0.0, F32)),)), "on cuda"),
        (pointwise_body("cpu", 1, (Slot(F32, (0,), "w"),), (), ((0, Const(0.0, F32)),)), "innermost"),
        (pointwise_body("cpu", 1, (Slot(F32, (1,), "w"),), (), ((0, Const(0, I32)),)), "a store of torch.int32"),
        (pointwise_body("cpu", 0, (Slot(F64, (), "r", by_value=True),), (), ()), "by value"),
        (
            pointwise_body(
                "cpu", 1, (Slot(torch.complex64, (1,), "rw"),), (), ((0, op("neg", SlotLoad(0, torch.complex64))),)
            ),
            "complex64",
        ),
    ],
)
def test_what_has_no_rule_is_refused(body: KernelBody, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        emit(body, "kernel")


# ---------------------------------------------------------------------------------------------------------------------
# Random bodies, bit for bit
#
# Only operations that both sides must round in the same way: no functions of libm, and no float products, which may be
# contracted with a sum.

COMPUTED = (F32, F64, I8, I16, I32, I64, U8, BOOL)
STORED = (*COMPUTED, BF16, F16)
EXACT_FLOAT = "add sub div neg abs maximum minimum floor ceil trunc round where".split()
EXACT_INTEGER = (
    "add sub mul trunc_div fmod pow neg abs maximum minimum fmax fmin and or xor not shl shr "
    "where"
).split()
EXACT_BOOL = "add mul and or xor not where".split()
TESTS = "eq ne lt le gt ge".split()


@st.composite
def expressions(draw: st.DrawFn, dtype: torch.dtype, leaves: list[Expr], depth: int) -> Expr:
    if dtype in HALF_TYPES:
        return cast(draw(expressions(F32, leaves, depth)), dtype)
    if depth == 0 or draw(st.integers(0, 5)) == 0:
        if draw(st.integers(0, 4)) == 0:
            if dtype == BOOL:
                return Const(draw(st.booleans()), BOOL)
            values = [0.0, 1.0, -2.5, 0.1] if dtype.is_floating_point else [0, 1, 3, 7]
            return Const(draw(st.sampled_from(values)), dtype)
        leaf = draw(st.sampled_from(leaves))
        return cast(leaf if leaf.dtype not in HALF_TYPES else cast(leaf, F32), dtype)
    if dtype == BOOL and draw(st.booleans()):
        name, operand = draw(st.sampled_from(TESTS)), draw(st.sampled_from(COMPUTED))
    else:
        exact = EXACT_FLOAT if dtype.is_floating_point else EXACT_BOOL if dtype == BOOL else EXACT_INTEGER
        name, operand = draw(st.sampled_from(exact)), dtype
    if name == "abs" and dtype == U8:
        name = "not"
    arity = SCALAR_OPS[name][0]
    types = [BOOL, operand, operand] if name == "where" else [operand] * arity
    value = op(name, *(draw(expressions(t, leaves, depth - 1)) for t in types))
    if dtype == F32 and name in ("maximum", "minimum"):  # of two zeros either is right
        return op("add", value, Const(0.0, F32))
    return value


@st.composite
def strided(draw: st.DrawFn, sizes: tuple[int, ...], slot: Slot) -> torch.Tensor:
    """A tensor with a slot's stride classes and numbers of all kinds in it. A class of 1 is the innermost axis here."""
    step, classes, dtype = draw(st.integers(1, 3)), slot.strides, slot.dtype
    steps = [{0: 0, 1: 1, None: step}[known] for known in classes]
    shape = [size * step if step else 1 for size, step in zip(sizes, steps, strict=True)]
    seed = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    edges = edge_values(dtype)
    tensor = edges[torch.randint(len(edges), shape, generator=seed)]
    return tensor[tuple(slice(None, None, step or 1) for step in steps)]


@st.composite
def bodies(draw: st.DrawFn) -> tuple[KernelBody, list[Data]]:
    rank = draw(st.integers(0, 3))
    outer = [st.sampled_from([0, None])] * max(rank - 1, 0)
    readable = [*outer, *[st.sampled_from([0, 1, 1, None])] * min(rank, 1)]
    writable = [*[st.just(None)] * max(rank - 1, 0), *[st.sampled_from([1, 1, None])] * min(rank, 1)]
    dtypes = st.sampled_from(STORED)
    read = [Slot(draw(dtypes), draw(st.tuples(*readable)), "r") for _ in range(draw(st.integers(1, 3)))]
    written = [Slot(draw(dtypes), draw(st.tuples(*writable)), "rw") for _ in range(draw(st.integers(1, 3)))]
    slots = (*read, *written)
    leaves: list[Expr] = [SlotLoad(k, s.dtype) for k, s in enumerate(slots)]
    leaves += [ArgScalar(0, F64), ArgScalar(1, I64), ArgScalar(2, BOOL), *map(Index, range(rank))]
    stores = tuple(
        (k, draw(expressions(slots[k].dtype, leaves, draw(st.integers(0, 4))))) for k in range(len(read), len(slots))
    )
    body = pointwise_body("cpu", rank, slots, (F64, I64, BOOL), stores)
    lengths = [*[st.integers(0, 4)] * max(rank - 1, 0), *[st.integers(0, 40)] * min(rank, 1)]
    members = []
    for _ in range(draw(st.integers(1, 3))):
        sizes = draw(st.tuples(*lengths))
        members.append(Data(sizes, [draw(strided(sizes, slot)) for slot in slots]))
    return body, members


@given(kernel=bodies(), n_threads=st.integers(1, 2), target=st.sampled_from(TARGETS))
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_bodies(kernel: tuple[KernelBody, list[Data]], n_threads: int, target: CpuTarget) -> None:
    body, members = kernel
    scalars = [-1.75, 3, True]
    wanted = [evaluate_body(body, Environment(m.sizes, [t.clone() for t in m.tensors], scalars)) for m in members]
    run(body, members, scalars, n_threads, target)
    for member, results in zip(members, wanted, strict=True):
        for slot, want in results.items():
            assert_close(member.tensors[slot].flatten(), want.flatten(), 0)
