"""Reads kernels into nests. This is the one module of the verifier that knows what a `KernelBody` consists of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from quickfuse.ir.expr import Expr, Index, Load, Place, Previous, Scalar, walk
from quickfuse.ir.kernel import (
    ArgScalar,
    KernelBody,
    KernelCall,
    Member,
    Reduced,
    RowLength,
    SlotLoad,
    SlotPlace,
    SlotPrevious,
)  # fmt: skip
from quickfuse.ir.loop import Access
from quickfuse.ir.reindex import rewrite_leaves

from .memory import Shape
from .nest import (
    COUNT,
    INDEX,
    LOAD,
    PLACE,
    PREVIOUS,
    REDUCED,
    SCALAR,
    SCAN,
    Assign,
    Compiler,
    Nest,
    Operand,
    Phase,
    Reduce,
    ScatterTo,
)  # fmt: skip
from .violation import ScheduleError, assignment_text


class Kernels:
    """Reads kernel calls. What members have in common is read once for each body."""

    def __init__(self) -> None:
        self._phases: dict[int, tuple[KernelBody, list[Phase]]] = {}

    def nests_of(self, call: KernelCall) -> list[Nest]:
        """The members of a call.

        Raises:
            ScheduleError: where the call contradicts itself.
        """
        body = call.body
        known = self._phases.get(id(body))
        if known is None:
            _check_body(body, call.name)
            known = self._phases[id(body)] = (body, _Reader(body).phases())
        if [scalar.dtype for scalar in call.scalars] != list(body.scalars):
            raise ScheduleError("form", f"the types of its scalars are others than its body's\n  in {call.name}")
        scalars = [scalar.name for scalar in call.scalars]
        return [_member(call, number, member, known[1], scalars) for number, member in enumerate(call.members)]


def _member(call: KernelCall, number: int, member: Member, phases: list[Phase], scalars: list[str]) -> Nest:
    _check_member(call, number, member)
    strides = [s or (0,) for s in member.strides]
    operands = [Operand(b, o, s) for b, o, s in zip(member.buffers, member.offsets, strides, strict=True)]
    return Nest(member.sizes or (1,), phases, operands, scalars, lambda statement: _describe(call, number, statement))


class _Reader:
    """The phases of a body: its passes, and at last what is stored once a row."""

    def __init__(self, body: KernelBody) -> None:
        self.body = body
        self.inner: Shape = tuple(range(body.rows_ndim, body.ndim)) if body.reduced else ()
        self.running: dict[int, int] = {}  # the instructions of scans

    def phases(self) -> list[Phase]:
        body = self.body
        if body.serial:
            made = [self._in_order()]
        elif body.reduced:
            made = [self._pass(one.reductions, one.stores, ()) for one in body.passes()]
            rows = [k for k, (slot, _) in enumerate(body.stores) if body.once_a_row(slot)]
            made.append(self._pass((), rows, self.inner))
        else:
            made = [self._pass(range(len(body.reductions)), (), ())] if body.reductions else []
            made.append(self._pass((), range(len(body.stores)), ()))
        for phase in made:
            phase.finish()
        return made

    def _pass(self, reductions: Iterable[int], stores: Iterable[int], once: Shape) -> Phase:
        phase = Phase(once)
        compiler = Compiler(phase, self._leaf)
        for k in reductions:
            reduction = self.body.reductions[k]
            phase.reduces.append(Reduce(k, reduction.combine, compiler.compile(reduction.value), self.inner, k))
        self._assign(phase, compiler, stores)
        return phase

    def _in_order(self) -> Phase:
        """Scans, each of which may use those before it, then stores, then scatters, for each element of the last axis."""
        phase, along = Phase(()), self.body.ndim - 1
        compiler = Compiler(phase, self._leaf)
        for k, reduction in enumerate(self.body.reductions):
            value = compiler.compile(reduction.value)
            self.running[k] = compiler.add(SCAN, (reduction.combine, along), (value,), reduction.value.dtype)
        self._assign(phase, compiler, range(len(self.body.stores)))
        for k, scatter in enumerate(self.body.scatters):
            offset, inside, value = map(compiler.compile, (scatter.offset, scatter.inside, scatter.value))
            statement = len(self.body.reductions) + len(self.body.stores) + k
            phase.scatters.append(ScatterTo(scatter.slot, offset, inside, value, along, statement))
        return phase

    def _assign(self, phase: Phase, compiler: Compiler, stores: Iterable[int]) -> None:
        for k in stores:
            slot, value = self.body.stores[k]
            to_flag = self.body.slots[slot].access == "flag"
            phase.assigns.append(Assign(slot, compiler.compile(value), len(self.body.reductions) + k, to_flag))

    def _leaf(self, node: Expr) -> tuple[int, Any] | int:
        if isinstance(node, SlotLoad):
            return LOAD, node.slot
        if isinstance(node, SlotPlace):
            return PLACE, node.slot
        if isinstance(node, SlotPrevious):
            return PREVIOUS, node.slot
        if isinstance(node, ArgScalar):
            return SCALAR, node.arg
        if isinstance(node, RowLength):
            return COUNT, self.inner
        if isinstance(node, Index):
            return INDEX, node.axis
        assert isinstance(node, Reduced), node
        if node.reduction in self.running:
            return self.running[node.reduction]
        return REDUCED, node.reduction


# --- what must hold of a call by itself ---


def _check_body(body: KernelBody, name: str) -> None:
    def demand(holds: bool, what: str) -> None:
        if not holds:
            raise ScheduleError("form", f"{what}\n  in {name}")

    stored = [slot for slot, _ in body.stores] + [scatter.slot for scatter in body.scatters]
    once = [slot for slot in stored if body.slots[slot].access != "flag"]
    demand(len(set(once)) == len(once), "a slot is stored to by two statements")
    written = {k for k, slot in enumerate(body.slots) if slot.access != "r"}
    demand(set(stored) == written, "its slots say otherwise what is stored to")
    demand(body.serial or not body.scatters, "scatters go along an axis in order")
    for slot, value in body.stores:
        demand(value.dtype == body.slots[slot].dtype, f"s{slot} gets a value of another type")
    for node in walk(*body.roots):
        if isinstance(node, (SlotLoad, SlotPlace, SlotPrevious)):
            demand(node.dtype == body.slots[node.slot].dtype, f"s{node.slot} is loaded as another type")
        if isinstance(node, SlotLoad):
            demand(body.slots[node.slot].access in ("r", "rw"), f"s{node.slot} is loaded, which its slot does not say")
        if isinstance(node, Reduced):
            demand(node.reduction < len(body.reductions), f"there is no r{node.reduction}")
    for k, reduction in enumerate(body.reductions):
        used = [node.reduction for node in walk(reduction.value) if isinstance(node, Reduced)]
        demand(max(used, default=-1) < k, f"r{k} is made of itself, or of one that comes after")
    for scatter in body.scatters:
        previous = [node.slot for node in walk(scatter.value) if isinstance(node, SlotPrevious)]
        demand(set(previous) <= {scatter.slot}, f"what s{scatter.slot} held is taken from another slot")


def _check_member(call: KernelCall, number: int, member: Member) -> None:
    body = call.body
    fits = len(body.slots) == len(member.buffers) == len(member.offsets) == len(member.strides)
    fits = fits and len(member.sizes) == body.ndim and all(len(s) == body.ndim for s in member.strides)
    if not fits or min(member.sizes, default=1) < 1:
        raise ScheduleError("form", f"member {number} does not fit the body\n  in {call.name}")
    for k, (slot, buffer, strides) in enumerate(zip(body.slots, member.buffers, member.strides, strict=True)):
        known = zip(member.sizes, slot.strides, strides, strict=True)
        if slot.dtype != buffer.meta.dtype or any(c is not None and c != s and n > 1 for n, c, s in known):
            raise ScheduleError("form", f"s{k} of member {number} is {buffer}, of type {buffer.meta.dtype} with strides "
                                f"{strides}, and not what the body says: {slot}\n  in {call.name}")  # fmt: skip
        if not slot.by_value and buffer.meta.device != call.device:
            raise ScheduleError("form", f"s{k} of member {number}: {buffer} is on {buffer.meta.device}, the kernel on "
                                f"{call.device}\n  in {call.name}")  # fmt: skip
        if (slot.access == "flag") != (buffer.kind == "flag"):
            raise ScheduleError("form", f"s{k} of member {number}: {buffer} is stored to as a flag, or not as one"
                                f"\n  in {call.name}")  # fmt: skip


# --- text ---


def _describe(call: KernelCall, number: int, statement: int) -> str:
    """A statement with the member's operands, and where it is."""
    body, member = call.body, call.members[number]
    place = f"{call.name}, member {number} of sizes {member.sizes}"
    if statement < len(body.reductions):
        reduction = body.reductions[statement]
        left, value = f"r{statement} {reduction.combine}=", reduction.value
    elif statement < len(body.reductions) + len(body.stores):
        slot, value = body.stores[statement - len(body.reductions)]
        left = f"{_access(member, slot)} ="
        place += _pass_text(body, statement - len(body.reductions))
    else:
        scatter = body.scatters[statement - len(body.reductions) - len(body.stores)]
        left, value = f"{_access(member, scatter.slot)}[.. in order] =", scatter.value
    return f"{place}: {assignment_text(left, rewrite_leaves(value, _printer(call, member)))}"


def _pass_text(body: KernelBody, store: int) -> str:
    if not body.reduced or body.serial:
        return ""
    return next((f", pass {n}" for n, one in enumerate(body.passes()) if store in one.stores), ", once a row")


def _printer(call: KernelCall, member: Member) -> Callable[[Expr], Expr]:
    def leaf(node: Expr) -> Expr:
        if isinstance(node, SlotLoad):
            return Load(_access(member, node.slot), node.dtype)
        if isinstance(node, SlotPlace):
            return Place(_access(member, node.slot), node.dtype)
        if isinstance(node, SlotPrevious):
            return Previous(member.buffers[node.slot], node.dtype)
        return Scalar(call.scalars[node.arg].name, node.dtype) if isinstance(node, ArgScalar) else node

    return leaf


def _access(member: Member, slot: int) -> Access:
    return Access(member.buffers[slot], member.offsets[slot], member.strides[slot])
