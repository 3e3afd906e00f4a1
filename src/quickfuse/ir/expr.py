"""Scalar expressions: what a loop computes for one element.

An expression is an immutable tree of a few kinds of node. Its `dtype` is the type of its value; conversions are explicit
`cast` operations. Arithmetic happens in float32, float64, the integers and bool only: bfloat16 and float16 operands are
cast to float32, and every result that eager PyTorch would have stored in 16 bits is cast back, which rounds it as eager
does. `SCALAR_OPS` is the one table of operations; each code generator has a rule for each entry.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..errors import Unsupported
from .memo import Memo
from .quick import value_class

if TYPE_CHECKING:
    from .loop import Access, Buffer

#: Functions of C on one float that take long.
FLOAT_FUNCTIONS = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc lgamma"
).split()

#: name -> (number of arguments, meaning). x, y: both of one type unless stated; result of the same type unless stated.
SCALAR_OPS: dict[str, tuple[int, str]] = {
    # conversions (the target is the node's dtype)
    "cast": (1, "C conversion; float to bool is x != 0; float to int truncates; int wraps; to 16 bits rounds to even"),
    "bitcast": (1, "the same bits as another type of the same width"),
    # arithmetic
    "add": (2, "x + y (bool: or)"),
    "sub": (2, "x - y"),
    "mul": (2, "x * y (bool: and)"),
    "div": (2, "x / y, floats only, IEEE"),
    "trunc_div": (2, "integers: C division; 0 where y == 0"),
    "fmod": (2, "sign of x, as C fmod; integers: 0 where y == 0"),
    "pow": (2, "floats: C pow; integers: exponentiation by squaring, wrapping"),
    "neg": (1, "-x"),
    "abs": (1, "|x|"),
    "fma": (3, "x * y + z, rounded once where the hardware can; operators that eager fuses so say it, no other is"),
    "maximum": (2, "NaN if either is NaN; on CPUs x if both are equal, such as 0.0 and -0.0"),
    "minimum": (2, "NaN if either is NaN; on CPUs x if both are equal"),
    "fmax": (2, "the other one if one is NaN"),
    "fmin": (2, "the other one if one is NaN"),
    # float functions
    **{name: (1, f"C {name}") for name in (*FLOAT_FUNCTIONS, "sqrt", "floor", "ceil", "trunc")},
    "round": (1, "to nearest, halves to even"),
    "rsqrt": (1, "1 / sqrt(x)"),
    "atan2": (2, "C atan2"),
    "hypot": (2, "C hypot"),
    "copysign": (2, "C copysign"),
    "nextafter": (2, "C nextafter"),
    # comparisons, giving bool
    "eq": (2, "x == y"),
    "ne": (2, "x != y"),
    "lt": (2, "x < y"),
    "le": (2, "x <= y"),
    "gt": (2, "x > y"),
    "ge": (2, "x >= y"),
    # bits and logic (bool or integers)
    "and": (2, "x & y"),
    "or": (2, "x | y"),
    "xor": (2, "x ^ y"),
    "not": (1, "bitwise not; logical not on bool"),
    "shl": (2, "x << y; 0 where y is out of range"),
    "shr": (2, "arithmetic x >> y; sign fill where y is out of range"),
    # choice: the first argument is a bool
    "where": (3, "y if x else z"),
}


def _operator(name: str) -> Any:
    return lambda x, y: binary(name, x, y)


def _reflected(name: str) -> Any:
    return lambda y, x: binary(name, x, y)


class Expr:
    """Base of the kinds of node: `Load`, `Place`, `Previous`, `Const`, `Scalar`, `Index`, `Count` and `Op`.

    Formulas are written with Python's operators, where a number is a constant of the other operand's type. `==` compares
    nodes: see `lower.ops.eq`.
    """

    __slots__ = ()
    dtype: torch.dtype

    __add__, __sub__, __mul__, __truediv__ = map(_operator, ("add", "sub", "mul", "div"))
    __radd__, __rsub__, __rmul__, __rtruediv__ = map(_reflected, ("add", "sub", "mul", "div"))
    __and__, __or__, __xor__ = map(_operator, ("and", "or", "xor"))
    __lt__, __ge__ = map(_operator, ("lt", "ge"))

    def __le__(self, other: Expr | float) -> Op:
        return binary("le", *_without_bound(self, other))

    def __gt__(self, other: Expr | float) -> Op:
        return binary("gt", *_without_bound(self, other))

    def __neg__(self) -> Op:
        return Op("neg", (self,), self.dtype)

    def __invert__(self) -> Op:
        return Op("not", (self,), self.dtype)


#: Operations whose result is a bool, whatever they compare.
COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})


def binary(name: str, x: Expr | float, y: Expr | float) -> Op:
    """An operation on two operands of one type, of which one may be a number."""
    if not isinstance(y, Expr):
        assert isinstance(x, Expr)
        y = const(y, x.dtype)
    elif not isinstance(x, Expr):
        x = const(x, y.dtype)
    return Op(name, (x, y), torch.bool if name in COMPARISONS else x.dtype)


def _without_bound(x: Expr, y: Expr | float) -> tuple[Expr, Expr | float]:
    """`z` for `maximum(z, y)`, which is as often above `y` as `z` is, also where that is no number: what the gradient of
    an activation asks for that is computed again."""
    if type(x) is Op and x.name == "maximum":
        y = y if isinstance(y, Expr) else const(y, x.dtype)
        return (x.args[0] if type(y) is Const and x.args[1] == y and y.value == y.value else x), y
    return x, y


@value_class(frozen=True, slots=True)
class Load(Expr):
    """One element of a buffer, from before the program wrote to it."""

    access: Access
    dtype: torch.dtype

    def __str__(self) -> str:
        return str(self.access)


@value_class(frozen=True, slots=True)
class Place(Expr):
    """Where an element of a buffer is; the first argument of a `pick`. `dtype` is the element's."""

    access: Access
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"&{self.access}"


@value_class(frozen=True, slots=True)
class Previous(Expr):
    """What the element held that is stored to, in the value of a scatter."""

    buffer: Buffer
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"previous({self.buffer})"


@value_class(frozen=True, slots=True)
class Const(Expr):
    """A number known at compile time. NaN and infinities are allowed."""

    value: bool | int | float
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.value!r}:{short(self.dtype)}"


@value_class(frozen=True, slots=True)
class Scalar(Expr):
    """A number that the host knows at call time, by name. `dtype` is float64, int64 or bool."""

    name: str
    dtype: torch.dtype

    def __str__(self) -> str:
        return self.name


@value_class(frozen=True, slots=True)
class Index(Expr):
    """The loop variable of an axis, an int64."""

    axis: int
    dtype: torch.dtype = torch.int64

    def __str__(self) -> str:
        return f"i{self.axis}"


@value_class(frozen=True, slots=True)
class Count(Expr):
    """How many elements a row has that is reduced, an int64. Not a constant, since kernels do not contain sizes."""

    value: int
    dtype: torch.dtype = torch.int64

    def __str__(self) -> str:
        return str(self.value)


@value_class(frozen=True, slots=True)
class Op(Expr):
    """An operation of `SCALAR_OPS` on expressions, a `pick`, or a random number (`philox.operation_of`)."""

    name: str
    args: tuple[Expr, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        if self.name == "cast":
            return f"{short(self.dtype)}({self.args[0]})"
        return f"{self.name}({', '.join(map(str, self.args))})"


_constants = Memo()  # of `Expr`


def const(value: bool | int | float, *dtypes: torch.dtype) -> Expr:
    """A number converted through each type in turn, as PyTorch rounds it.

    Constants are shared, as converting one costs microseconds. There are none of 16-bit types, which are stored only:
    these are conversions of a float32.
    """
    # 0.0 == -0.0, and 1 == 1.0 == True, although they convert differently.
    key = (value, type(value), dtypes, math.copysign(1.0, value) if value == 0 else 0)
    known: Expr | None = _constants.get(key)
    if known is None:
        check_computed(dtypes[-1])
        for dtype in dtypes:
            value = convert(value, dtype)
        last = dtypes[-1]
        known = Op("cast", (Const(value, torch.float32),), last) if last in HALF_TYPES else Const(value, last)
        _constants[key] = known
    return known


#: Floats of eight bits, which PyTorch converts.
FLOATS_OF_A_BYTE = frozenset({
    torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
})  # fmt: skip


def is_computed(dtype: torch.dtype) -> bool:
    """Loops can copy complex numbers and floats of eight bits, but not compute them."""
    return not (dtype.is_complex or dtype in FLOATS_OF_A_BYTE)


def check_computed(dtype: torch.dtype) -> None:
    if not is_computed(dtype):
        raise Unsupported(f"tensors of type {dtype}")


def cast(x: Expr, dtype: torch.dtype) -> Expr:
    """`x` as `dtype`; `x` itself where it has that type already."""
    if x.dtype == dtype:
        return x
    if isinstance(x, Const):
        return Const(convert(x.value, dtype), dtype) if dtype not in HALF_TYPES else Op("cast", (x,), dtype)
    return Op("cast", (x,), dtype)


def pick(place: Expr, offset: Expr, inside: Expr) -> Op:
    """The element that is `offset` elements (an int64) after `place` where `inside` (a bool) holds, and 0 elsewhere.

    No memory is read where `inside` does not hold. So this loads at computed indices, and from what is smaller than the
    index space.
    """
    return Op(PICK, (place, offset, inside), place.dtype)


#: The name of the operation that `pick` makes, which is in no table: it needs to know of operands in memory.
PICK = "pick"

#: 16-bit floats, which are stored but never computed in.
HALF_TYPES = frozenset({torch.bfloat16, torch.float16})


def convert(value: bool | int | float, dtype: torch.dtype) -> bool | int | float:
    """A Python number as an element of `dtype`, rounded and wrapped as PyTorch does."""
    exact = torch.float64 if isinstance(value, float) else None  # not the default type, which would round it first
    converted: bool | int | float = torch.tensor(value, dtype=exact, device="cpu").to(dtype).item()
    return converted


def short(dtype: torch.dtype) -> str:
    """`f32`, `bf16`, `i64`, `u8`, `bool`: the names used in printed programs."""
    name = str(dtype).removeprefix("torch.")
    if name.startswith("bfloat"):
        return "bf" + name[6:]
    for long, letter in (("uint", "u"), ("int", "i"), ("float", "f"), ("complex", "c")):
        if name.startswith(long):
            return letter + name[len(long) :]
    return name


def conjuncts(condition: Expr) -> list[Expr]:
    """The conditions that must all hold for `condition` to hold: what it joins by `and`."""
    found, left = [], [condition]
    while left:
        part = left.pop()
        if isinstance(part, Op) and part.name == "and" and part.dtype is torch.bool:
            left.extend(part.args)
        else:
            found.append(part)
    return found


def walk(*exprs: Expr) -> list[Expr]:
    """The distinct nodes of some expressions, arguments before their users."""
    done: dict[int, Expr] = {}
    stack = list(reversed(exprs))
    while stack:
        node = stack.pop()
        if id(node) in done:
            continue
        if type(node) is Op:
            for arg in node.args:
                if id(arg) not in done:
                    if type(arg) is Op:
                        stack += (node, arg)
                        break
                    done[id(arg)] = arg
            else:
                done[id(node)] = node
        else:
            done[id(node)] = node
    return list(done.values())


def rewritten(
    exprs: Sequence[Expr], leaf: Callable[[Expr], Expr], operation: Callable[[Op, tuple[Expr, ...]], Expr] | None = None
) -> dict[int, Expr]:
    """What becomes of each node, by its id, where `leaf` replaces each leaf, and `operation` makes a value of each operation
    and its new arguments.

    Shared nodes stay shared; depth is no limit.
    """
    operation = operation or with_arguments
    done: dict[int, Expr] = {}
    for node in walk(*exprs):
        if type(node) is Op:
            done[id(node)] = operation(node, tuple([done[id(arg)] for arg in node.args]))
        else:
            done[id(node)] = leaf(node)
    return done


def with_arguments(node: Op, args: tuple[Expr, ...]) -> Op:
    """The operation on these arguments: the node itself where they are its own."""
    same = all(new is old for new, old in zip(args, node.args, strict=True))
    return node if same else Op(node.name, args, node.dtype)


def main_strides(ndim: int, *values: Expr) -> tuple[int, ...]:
    """The strides of the load that moves along the most axes."""
    loads = [node.access.strides for node in walk(*values) if isinstance(node, Load)]
    return max(loads, key=lambda strides: sum(s != 0 for s in strides), default=(0,) * ndim)


def statements(stores: Iterable[tuple[str, Expr]]) -> list[str]:
    """Stores as text, with a name for each operation that is used more than once.

    Each store is what stands left of its value, with the sign of the assignment, and the value.
    """
    stores = list(stores)
    nodes = walk(*(value for _, value in stores))
    used = [arg for node in nodes if isinstance(node, Op) for arg in node.args] + [value for _, value in stores]
    uses = Counter(map(id, used))
    lines: list[str] = []
    text: dict[int, str] = {}
    for node in nodes:
        if not isinstance(node, Op):
            text[id(node)] = str(node)
            continue
        name = short(node.dtype) if node.name == "cast" else node.name
        text[id(node)] = f"{name}({', '.join(text[id(arg)] for arg in node.args)})"
        if uses[id(node)] > 1:
            lines.append(f"v{len(lines)} = {text[id(node)]}")
            text[id(node)] = f"v{len(lines) - 1}"
    return [*lines, *(f"{target} {text[id(value)]}" for target, value in stores)]
