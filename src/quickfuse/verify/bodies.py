"""Reads kernels into nests. This is the one module of the verifier that knows what a `KernelBody` consists of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

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
    StoreKind,
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
        scalars = [scalar.name if scalar.value is None else scalar.value for scalar in call.scalars]
        return [_member(call, number, member, known[1], scalars) for number, member in enumerate(call.members)]


def _member(call: KernelCall, number: int, member: Member, phases: list[Phase], scalars: list[str | float]) -> Nest:
    _check_member(call, number, member)
    strides = [s or (0,) for s in member.strides]
    operands = [Operand(b, o, s) for b, o, s in zip(member.buffers, member.offsets, strides, strict=True)]
    return Nest(member.sizes or (1,), phases, operands, scalars, lambda statement: _describe(call, number, statement))


_COMBINING = (StoreKind.REDUCE, StoreKind.SCAN)


class _Reader:
    """The phases of a body: its passes, and at last what is stored once a row."""

    def __init__(self, body: KernelBody) -> None:
        self.body = body
        self.inner: Shape = tuple(body.inner)
        self.running: dict[int, int] = {}  # the instructions of scans

    def phases(self) -> list[Phase]:
        body = self.body
        if body.ordered:
            made = [self._in_order()]
        else:
            made = [self._pass(numbers, ()) for numbers in body.passes]
            made.append(self._pass(body.last, self.inner))
        for phase in made:
            phase.finish()
        return made

    def _pass(self, numbers: Iterable[int], once: Shape) -> Phase:
        phase = Phase(once)
        compiler = Compiler(phase, self._leaf)
        for k in numbers:
            store = self.body.stores[k]
            if store.kind is StoreKind.REDUCE:
                phase.reduces.append(Reduce(k, store.combine, compiler.compile(store.value), self.inner, k))
        self._assign(phase, compiler, numbers)
        return phase

    def _in_order(self) -> Phase:
        """Scans, each of which may use those before it, then stores, then scatters, for each element of the last axis."""
        phase, along = Phase(()), self.body.ndim - 1
        compiler = Compiler(phase, self._leaf)
        stores = list(enumerate(self.body.stores))
        for k, store in stores:
            if store.kind is StoreKind.SCAN:
                value = compiler.compile(store.value)
                self.running[k] = compiler.add(SCAN, (store.combine, along), (value,), store.value.dtype)
        self._assign(phase, compiler, [k for k, _ in stores])
        for k, store in stores:
            if store.offset is not None and store.inside is not None:
                offset, inside, value = map(compiler.compile, (store.offset, store.inside, store.value))
                phase.scatters.append(ScatterTo(store.slot, offset, inside, value, along, k))
        return phase

    def _assign(self, phase: Phase, compiler: Compiler, numbers: Iterable[int]) -> None:
        for k in numbers:
            store = self.body.stores[k]
            if store.kind in (StoreKind.ASSIGN, StoreKind.FLAG):
                to_flag = store.kind is StoreKind.FLAG
                phase.assigns.append(Assign(store.slot, compiler.compile(store.value), k, to_flag))

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

    stored = [store.slot for store in body.stores if store.kind not in _COMBINING]
    once = [slot for slot in stored if body.slots[slot].access != "flag"]
    demand(len(set(once)) == len(once), "a slot is stored to by two statements")
    written = {k for k, slot in enumerate(body.slots) if slot.access != "r"}
    demand(set(stored) == written, "its slots say otherwise what is stored to")
    for store in body.stores:
        demand(store.kind is not StoreKind.SCATTER or body.ordered, "scatters go along an axis in order")
        if store.kind not in _COMBINING:
            demand(store.value.dtype == body.slots[store.slot].dtype, f"s{store.slot} gets a value of another type")
        previous = {node.slot for node in walk(store.value) if isinstance(node, SlotPrevious)}
        demand(previous <= {store.slot}, f"what s{store.slot} held is taken from another slot")
    for node in walk(*body.roots):
        if isinstance(node, (SlotLoad, SlotPlace, SlotPrevious)):
            demand(node.dtype == body.slots[node.slot].dtype, f"s{node.slot} is loaded as another type")
        if isinstance(node, SlotLoad):
            demand(body.slots[node.slot].access in ("r", "rw"), f"s{node.slot} is loaded, which its slot does not say")
        if isinstance(node, Reduced):
            combined = node.reduction < len(body.stores) and body.stores[node.reduction].kind in _COMBINING
            demand(combined, f"there is no r{node.reduction}")
    for k, store in enumerate(body.stores):
        leaves = walk(store.value) if store.kind in _COMBINING else []
        used = [node.reduction for node in leaves if isinstance(node, Reduced)]
        demand(max(used, default=-1) < k, f"r{k} is made of itself, or of one that comes after")


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
        if slot.by_value and (buffer.meta.shape or slot.dtype not in (torch.float64, torch.int64)):
            raise ScheduleError("form", f"s{k} of member {number}: {buffer} is no number of the host to be passed by value"
                                f"\n  in {call.name}")  # fmt: skip
        if not slot.by_value and buffer.meta.device != call.device:
            raise ScheduleError("form", f"s{k} of member {number}: {buffer} is on {buffer.meta.device}, the kernel on "
                                f"{call.device}\n  in {call.name}")  # fmt: skip
        if (slot.access == "flag") != (buffer.kind == "flag"):
            raise ScheduleError("form", f"s{k} of member {number}: {buffer} is stored to as a flag, or not as one"
                                f"\n  in {call.name}")  # fmt: skip


# --- text ---


def _describe(call: KernelCall, number: int, statement: int) -> str:
    """A statement with the member's operands, and where it is."""
    member, store = call.members[number], call.body.stores[statement]
    place = f"{call.name}, member {number} of sizes {member.sizes}{_pass_text(call.body, statement)}"
    left = f"r{statement} {store.combine}="
    if store.slot >= 0:
        left = f"{_access(member, store.slot)}{'' if store.offset is None else '[.. in order]'} ="
    return f"{place}: {assignment_text(left, rewrite_leaves(store.value, _printer(call, member)))}"


def _pass_text(body: KernelBody, statement: int) -> str:
    if not body.inner or body.ordered:
        return ""
    return next((f", pass {n}" for n, numbers in enumerate(body.passes) if statement in numbers), ", once a row")


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
