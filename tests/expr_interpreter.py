"""A reference for scalar expressions: each operation of `SCALAR_OPS` by PyTorch's own functions, on whole tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from cpu_runner import Strided
from quickfuse.ir.expr import PICK, SCALAR_OPS, Const, Expr, Index, Op
from quickfuse.ir.kernel import ArgScalar, KernelBody, Reduced, RowLength, SlotLoad, SlotPlace, SlotPrevious, StoreKind, walk
from quickfuse.ir.philox import WIDTHS, uniform, words

#: Operations whose result is a bool, whatever their operands are.
COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
#: PyTorch stores these and converts them, but computes little in them: the reference computes in int64 and wraps.
WIDE_UNSIGNED = frozenset({torch.uint16, torch.uint32})


def op(name: str, *args: Expr) -> Op:
    """An operation with the result type that `SCALAR_OPS` gives it."""
    assert name in SCALAR_OPS and name not in ("cast", "bitcast")
    return Op(name, args, torch.bool if name in COMPARISONS else args[-1].dtype)


@dataclass
class Environment:
    """What the leaves of an expression stand for: a view of shape `shape` for each slot, a number for each scalar, and
    for each reduction its results, of size 1 on reduced axes."""

    shape: tuple[int, ...]
    slots: Sequence[torch.Tensor | Strided]
    scalars: Sequence[float] = ()
    reduced: list[torch.Tensor] = field(default_factory=list)
    row_length: int = 0
    #: The first index of the last axis, and what scatters find in memory.
    begin: int = 0
    previous: dict[int, torch.Tensor] = field(default_factory=dict)

    def leaf(self, node: Expr) -> torch.Tensor:
        if isinstance(node, SlotLoad):
            view = self.slots[node.slot]
            if isinstance(view, torch.Tensor):
                return view.expand(self.shape)
            return view.elements(view.places(self.shape), torch.ones(self.shape, dtype=torch.bool))
        if isinstance(node, SlotPrevious):
            return self.previous[node.slot]
        if isinstance(node, SlotPlace):
            return self.operand(node.slot).places(self.shape)
        if isinstance(node, RowLength):
            return torch.tensor(self.row_length).expand(self.shape)
        if isinstance(node, Reduced):
            return self.reduced[node.reduction].expand(self.shape)
        if isinstance(node, ArgScalar):
            return torch.tensor(self.scalars[node.arg], dtype=node.dtype).expand(self.shape)
        if isinstance(node, Index):
            ones = [1] * (len(self.shape) - node.axis - 1)
            first = self.begin if node.axis == len(self.shape) - 1 else 0
            return (torch.arange(self.shape[node.axis]) + first).view(-1, *ones).expand(self.shape)
        assert isinstance(node, Const)
        exact = torch.float64 if isinstance(node.value, float) else None
        return torch.tensor(node.value, dtype=exact).to(node.dtype).expand(self.shape)


    def operand(self, slot: int) -> Strided:
        view = self.slots[slot]
        if isinstance(view, Strided):
            return view
        return Strided(view.as_strided((), (), 0), view.storage_offset(), self.shape, view.expand(self.shape).stride())


def evaluate(expr: Expr, env: Environment) -> torch.Tensor:
    """The values of an expression over the whole index space."""
    values: dict[int, torch.Tensor] = {}
    for node in walk(expr):
        if isinstance(node, Op) and node.name == PICK:
            place = node.args[0]
            assert isinstance(place, SlotPlace)
            places, offsets, inside = [values[id(arg)] for arg in node.args]
            values[id(node)] = env.operand(place.slot).elements(places + offsets, inside)
        elif isinstance(node, Op):
            values[id(node)] = _apply(node, [values[id(arg)] for arg in node.args])
        else:
            values[id(node)] = env.leaf(node)
    return values[id(expr)]


def run_serial(body: KernelBody, env: Environment) -> None:
    """Store what a kernel that goes along its last axis in order stores, for one index of that axis after the other."""
    running: list[torch.Tensor] = []
    operands = [env.operand(k) for k in range(len(body.slots))]
    shape = (*env.shape[:-1], 1)
    for i in range(env.shape[-1]):
        here = [Strided(o.memory, o.offset + i * o.strides[-1], shape, o.strides) for o in operands]
        now = Environment(shape, here, env.scalars, begin=i)
        everywhere = torch.ones(shape, dtype=torch.bool)
        scans = [store for store in body.stores if store.kind is StoreKind.SCAN]
        for k, reduction in enumerate(scans):
            value = evaluate(reduction.value, now)
            if i:
                value = REDUCE[reduction.combine](torch.cat([running[k], value], -1), -1)
            running[k:] = [value, *running[k + 1 :]]
            now.reduced = running[: k + 1]
        stored = []
        for store in body.stores[len(scans) :]:
            target, inside, places = here[store.slot], everywhere, here[store.slot].places(shape)
            if store.offset is not None and store.inside is not None:
                inside, places = evaluate(store.inside, now), places + evaluate(store.offset, now)
                now.previous[store.slot] = target.elements(places, inside)
            stored.append((target, places, inside, evaluate(store.value, now)))
        for target, places, inside, value in stored:
            every = target.memory.as_strided((target.memory.untyped_storage().nbytes() // target.memory.itemsize,), (1,), 0)
            assert len(set(places[inside].tolist())) == int(inside.sum()), "two rows store to one element"
            every[places[inside]] = value[inside]


def evaluate_body(body: KernelBody, env: Environment) -> dict[int, torch.Tensor]:
    """What a kernel leaves in the slots that it writes."""
    if body.ordered:
        run_serial(body, env)
        return {}
    axes = list(body.inner)
    env.row_length = math.prod(env.shape[axis] for axis in axes)
    stored: dict[int, torch.Tensor] = {}
    for store in body.stores:
        value = evaluate(store.value, env)
        if store.kind is StoreKind.REDUCE:
            for axis in axes:
                value = REDUCE[store.combine](value, axis)
            env.reduced.append(value)
        elif store.kind is StoreKind.FLAG:
            stored[store.slot] = stored.get(store.slot, torch.tensor(False)) | value.any()
        else:
            stored[store.slot] = value.clone()
    for slot in filter(body.once_a_row, stored):
        for axis in axes:
            stored[slot] = stored[slot].narrow(axis, 0, 1)
    return stored


REDUCE: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "add": lambda x, axis: x.sum(axis, keepdim=True, dtype=x.dtype),
    "sum": lambda x, axis: x.sum(axis, keepdim=True, dtype=x.dtype),
    "mul": lambda x, axis: x.prod(axis, keepdim=True, dtype=x.dtype),
    "maximum": lambda x, axis: x.amax(axis, keepdim=True),
    "minimum": lambda x, axis: x.amin(axis, keepdim=True),
    "or": lambda x, axis: x.any(axis, keepdim=True),
    "and": lambda x, axis: x.all(axis, keepdim=True),
}


def _apply(node: Op, args: list[torch.Tensor]) -> torch.Tensor:
    if node.name == "cast":
        return args[0].to(node.dtype)
    if node.name == "bitcast":
        return args[0].contiguous().view(node.dtype)
    if node.name in WIDTHS:
        seed, offset, element, threads = args
        of_all = [int(number.flatten()[0]) for number in (seed, offset, threads)]
        return uniform(words(of_all[0], of_all[1], element.long(), of_all[2], WIDTHS[node.name]))
    if args[-1].dtype in WIDE_UNSIGNED:
        bits = torch.iinfo(args[-1].dtype).bits
        wide = [arg.to(torch.int64) if arg.dtype in WIDE_UNSIGNED else arg for arg in args]
        in_range = wide[-1] < bits
        result = REFERENCE[node.name](*wide)
        if node.name in ("shl", "shr"):
            result = torch.where(in_range, result, 0)
        return result.to(node.dtype)
    return REFERENCE[node.name](*args)


def _divide(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Integer division without PyTorch's exceptions: 0 where y is 0, and the least number by -1 wraps."""
    by_zero = y == 0
    by_minus = (y == -1) & torch.tensor(y.dtype.is_signed)
    quotient = torch.div(x, torch.where(by_zero | by_minus, torch.ones_like(y), y), rounding_mode="trunc")
    return torch.where(by_zero, torch.zeros_like(x), torch.where(by_minus, torch.zeros_like(x) - x, quotient))


def _remainder(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.where(y == 0, torch.zeros_like(x), x - _divide(x, y) * y)


def _fma(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return (x.double() * y.double() + z.double()).to(x.dtype) if x.dtype == torch.float32 else x * y + z


REFERENCE: dict[str, Callable[..., torch.Tensor]] = {
    **{name: getattr(torch, name) for name in SCALAR_OPS if hasattr(torch, name)},
    "add": lambda x, y: x | y if x.dtype == torch.bool else x + y,
    "mul": lambda x, y: x & y if x.dtype == torch.bool else x * y,
    "div": torch.true_divide,
    "trunc_div": lambda x, y: _divide(x, y),
    "fmod": lambda x, y: torch.fmod(x, y) if x.is_floating_point() else _remainder(x, y),
    "abs": lambda x: x if x.dtype == torch.bool else torch.abs(x),
    "fma": _fma,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "not": torch.bitwise_not,
    "shl": torch.bitwise_left_shift,
    "shr": torch.bitwise_right_shift,
}
