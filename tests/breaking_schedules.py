"""Breaks schedules: each function gives schedules that are wrong in one way, with a word on where.

Nothing here may give a schedule that is right by another way, as a swap of two kernels that have nothing to do with each
other would be. What knows of the fields of a `KernelBody` stands in the second part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from quickfuse.ir.expr import Const, Expr, Index, Op, walk
from quickfuse.ir.kernel import (
    KernelBody,
    KernelCall,
    KernelStore,
    Member,
    Reduced,
    RowLength,
    Schedule,
    SlotLoad,
    SlotPlace,
    StoreKind,
)  # fmt: skip
from quickfuse.ir.loop import Buffer, Extern, View, buffers_in
from quickfuse.ir.reindex import replace_parts, rewrite_leaves
from quickfuse.schedule.lifetimes import _Sharing

Broken = Iterator[tuple[str, Schedule]]
Step = KernelCall | Extern

BREAKS: dict[str, Callable[[Schedule], Broken]] = {}


def breaks(function: Callable[[Schedule], Broken]) -> Callable[[Schedule], Broken]:
    BREAKS[function.__name__] = function
    return function


def with_steps(schedule: Schedule, steps: list[Step]) -> Schedule:
    return Schedule(schedule.program, steps, list(schedule.temps))


def with_step(schedule: Schedule, number: int, *steps: Step) -> Schedule:
    """Other steps in place of one."""
    return with_steps(schedule, [*schedule.steps[:number], *steps, *schedule.steps[number + 1 :]])


def kernels(schedule: Schedule) -> Iterator[tuple[int, KernelCall]]:
    return ((k, step) for k, step in enumerate(schedule.steps) if isinstance(step, KernelCall))


def other(call: KernelCall, body: KernelBody | None = None, members: list[Member] | None = None) -> KernelCall:
    return replace(call, body=body or call.body, members=list(members or call.members))


def reads(step: Step) -> set[Buffer]:
    if isinstance(step, Extern):
        return set(buffers_in((step.args, step.kwargs)))
    loaded = {node.slot for node in walk(*step.body.roots) if isinstance(node, (SlotLoad, SlotPlace))}
    loaded |= {store.slot for store in step.body.stores if store.kind is StoreKind.SCATTER}
    return {member.buffers[slot] for member in step.members for slot in loaded}


def writes(step: Step) -> set[Buffer]:
    if isinstance(step, Extern):
        return set(step.outputs)
    written = [k for k, slot in enumerate(step.body.slots) if slot.access != "r"]
    return {member.buffers[slot] for member in step.members for slot in written}


# --- steps ---


@breaks
def a_step_before_what_it_reads(schedule: Schedule) -> Broken:
    steps = schedule.steps
    for late, step in enumerate(steps):
        for early in range(late):
            if any(buffer.kind != "input" for buffer in writes(steps[early]) & reads(step)):
                moved = [*steps[:early], step, *steps[early:late], *steps[late + 1 :]]
                yield f"step {late} before step {early}", with_steps(schedule, moved)
                break


@breaks
def two_steps_swapped(schedule: Schedule) -> Broken:
    steps = schedule.steps
    for k, (one, two) in enumerate(zip(steps, steps[1:], strict=False)):
        if any(buffer.kind != "input" for buffer in writes(one) & reads(two)):
            yield f"steps {k} and {k + 1}", with_steps(schedule, [*steps[:k], two, one, *steps[k + 2 :]])


@breaks
def a_buffer_updated_before_it_is_read(schedule: Schedule) -> Broken:
    """Inputs, and temporaries in whose memory a result is stored."""
    steps = schedule.steps
    for late, step in enumerate(steps):
        changed = {buffer for buffer in writes(step) if buffer.kind == "input" or buffer in reads(step)}
        for early in range(late):
            if changed & reads(steps[early]) and not any(writes(one) & reads(step) for one in steps[early:late]):
                moved = [*steps[:early], step, *steps[early:late], *steps[late + 1 :]]
                yield f"step {late} before step {early}", with_steps(schedule, moved)
                break


@breaks
def a_result_where_an_operand_is_still_needed(schedule: Schedule) -> Broken:
    """Of the same index, stored by one operand that is read and written, but something reads the old value later."""
    for k, call in kernels(schedule):
        used = [buffer for member in call.members for buffer in member.buffers]
        later = {buffer for step in schedule.steps[k + 1 :] for buffer in reads(step)}
        for store in call.body.stores:
            for operand in range(store.slot if store.kind is StoreKind.ASSIGN else 0):
                pairs = [(member.buffers[operand], member.buffers[store.slot]) for member in call.members]
                places = [(m.offsets[s], m.strides[s]) for m in call.members for s in (operand, store.slot)]
                alike = call.body.slots[operand] == replace(call.body.slots[store.slot], access="r")
                alike = alike and places[::2] == places[1::2] and not isinstance(store.value, SlotLoad)
                if not alike or any({old.kind, new.kind} != {"temp"} or old.meta != new.meta for old, new in pairs):
                    continue
                if all(old in later or used.count(old) > 1 for old, _ in pairs):
                    sharing = _Sharing(schedule.program, schedule.steps)
                    for pair in pairs:
                        sharing._merge(*pair)
                    sharing.changed[k] = ((operand, store.slot),)
                    steps = [sharing.renamed(n, step) for n, step in enumerate(schedule.steps)]
                    temps = list(dict.fromkeys([sharing.of(buffer) for buffer in schedule.temps]))
                    yield f"{call.name}, s{store.slot} in s{operand}", Schedule(schedule.program, steps, temps)


@breaks
def an_update_stored_elsewhere(schedule: Schedule) -> Broken:
    """A kernel reads what it is to update, and stores to a buffer of its own or to that of another step."""
    for k, call in kernels(schedule):
        body = call.body
        for slot in [n for n, s in enumerate(body.slots) if s.access == "rw"]:
            meta = call.members[0].buffers[slot].meta
            free = Buffer("elsewhere", meta, "temp")
            others = [b for b in schedule.temps if b.meta == meta and b not in call.buffers]
            for buffer in [free, *others] if len(call.members) == 1 else ():
                stores = tuple([replace(s, slot=len(body.slots)) if s.slot == slot else s for s in body.stores])
                read, written = (replace(body.slots[slot], access=access) for access in "rw")
                slots = (*body.slots[:slot], read, *body.slots[slot + 1 :], written)
                member = call.members[0]
                wrong = Member(
                    member.sizes, (*member.buffers, buffer), (*member.offsets, member.offsets[slot]),
                    (*member.strides, member.strides[slot]),
                )  # fmt: skip
                broken = with_step(schedule, k, other(call, _new_body(body, slots=slots, stores=stores), [wrong]))
                broken.temps.append(free)
                yield f"{call.name}, s{slot} in {buffer}", broken


@breaks
def a_step_dropped(schedule: Schedule) -> Broken:
    for k in range(len(schedule.steps)):
        yield f"step {k}", with_step(schedule, k)


@breaks
def a_step_twice(schedule: Schedule) -> Broken:
    for k, step in enumerate(schedule.steps):
        if isinstance(step, KernelCall) and all(buffer.kind == "flag" for buffer in writes(step)):
            continue  # to set a flag once more changes nothing
        yield f"step {k}", with_step(schedule, k, step, step)


@breaks
def a_live_buffer_used_again(schedule: Schedule) -> Broken:
    """What one step stores goes to a buffer that is still needed."""
    temps = [buffer for buffer in schedule.temps if buffer.meta.numel]
    for one in temps:
        for two in temps:
            if one is two or one.meta != two.meta:
                continue
            steps = [_with_buffer(step, two, one) for step in schedule.steps]
            using = [k for k, step in enumerate(steps) if one in step.buffers]
            if len(using) > 1:
                yield f"{one} for {two}", with_steps(schedule, steps)


def _with_buffer(step: Step, old: Buffer, new: Buffer) -> Step:
    if isinstance(step, Extern):
        return replace(step, args=_replaced(step.args, old, new), outputs=[new if b is old else b for b in step.outputs])
    members = [replace(m, buffers=tuple([new if b is old else b for b in m.buffers])) for m in step.members]
    return other(step, members=members)


def _replaced(value: Any, old: Buffer, new: Buffer) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_replaced(v, old, new) for v in value)
    if isinstance(value, View):
        return replace(value, buffer=new) if value.buffer is old else value
    return new if value is old else value


@breaks
def a_call_with_another_view(schedule: Schedule) -> Broken:
    for k, step in enumerate(schedule.steps):
        if isinstance(step, Extern):
            for number, argument in enumerate(step.args):
                view = _shifted(argument)
                if view is not None:
                    args = (*step.args[:number], view, *step.args[number + 1 :])
                    yield f"step {k}, argument {number}", with_step(schedule, k, replace(step, args=args))


def _shifted(argument: Any) -> View | None:
    if isinstance(argument, Buffer) and len(argument.meta.shape) == 2 and min(argument.meta.shape) > 1:
        meta = argument.meta
        return View(argument, meta.shape, (meta.stride[0], 0), 0)
    return replace(argument, offset=argument.offset + 1) if isinstance(argument, View) else None


@breaks
def a_temporary_without_memory(schedule: Schedule) -> Broken:
    for k in range(len(schedule.temps)):
        temps = [*schedule.temps[:k], *schedule.temps[k + 1 :]]
        yield str(schedule.temps[k]), Schedule(schedule.program, schedule.steps, temps)


# --- members ---


@breaks
def a_member_dropped(schedule: Schedule) -> Broken:
    for k, call in kernels(schedule):
        for m in range(len(call.members)):
            if len(call.members) > 1 and writes(replace(call, members=[call.members[m]])):
                members = [*call.members[:m], *call.members[m + 1 :]]
                yield f"{call.name}, member {m}", with_step(schedule, k, other(call, members=members))


@breaks
def a_member_twice(schedule: Schedule) -> Broken:
    for k, call in kernels(schedule):
        if any(buffer.kind != "flag" for buffer in writes(call)):
            yield call.name, with_step(schedule, k, other(call, members=[*call.members, call.members[-1]]))


def _with_member(schedule: Schedule, k: int, call: KernelCall, m: int, member: Member) -> Schedule:
    return with_step(schedule, k, other(call, members=[*call.members[:m], member, *call.members[m + 1 :]]))


@breaks
def an_access_shifted(schedule: Schedule) -> Broken:
    for k, call in kernels(schedule):
        for m, member in enumerate(call.members):
            for slot in range(len(member.offsets)):
                for by in (1, -1):
                    offsets = tuple([o + by * (s == slot) for s, o in enumerate(member.offsets)])
                    broken = _with_member(schedule, k, call, m, replace(member, offsets=offsets))
                    yield f"{call.name}, member {m}, s{slot} by {by}", broken


@breaks
def another_stride(schedule: Schedule) -> Broken:
    for k, call in kernels(schedule):
        for m, member in enumerate(call.members):
            for slot, strides in enumerate(member.strides):
                for axis, size in enumerate(member.sizes):
                    if size == 1:
                        continue
                    changed = tuple([s + (a == axis) for a, s in enumerate(strides)])
                    strided = tuple([changed if s == slot else old for s, old in enumerate(member.strides)])
                    broken = _with_member(schedule, k, call, m, replace(member, strides=strided))
                    yield f"{call.name}, member {m}, s{slot}, axis {axis}", broken
                    body = _of_unknown_strides(call.body, slot, axis)
                    known = {strides[axis] for strides in [one.strides[slot] for one in call.members]}
                    if len(known) == 1 and body is not None:
                        members = [*call.members[:m], replace(member, strides=strided), *call.members[m + 1 :]]
                        broken = with_step(schedule, k, other(call, body, members))
                        yield f"{call.name}, member {m}, s{slot}, axis {axis}, not said", broken


@breaks
def another_size(schedule: Schedule) -> Broken:
    for k, call in kernels(schedule):
        for m, member in enumerate(call.members):
            for axis, size in enumerate(member.sizes):
                for by in (1, -1):
                    if size + by > 0 and (by > 0 or any(b.kind != "flag" for b in writes(call))):
                        sizes = tuple([n + by * (a == axis) for a, n in enumerate(member.sizes)])
                        broken = _with_member(schedule, k, call, m, replace(member, sizes=sizes))
                        yield f"{call.name}, member {m}, axis {axis} by {by}", broken


@breaks
def two_operands_exchanged(schedule: Schedule) -> Broken:
    for k, call in kernels(schedule):
        for m, member in enumerate(call.members):
            for one in range(len(member.buffers)):
                for two in range(one):
                    places = [(member.buffers[s], member.offsets[s], member.strides[s]) for s in (one, two)]
                    if call.body.slots[one].dtype == call.body.slots[two].dtype and places[0] != places[1]:
                        broken = _with_member(schedule, k, call, m, _exchanged(member, one, two))
                        yield f"{call.name}, member {m}, s{two} and s{one}", broken


def _exchanged(member: Member, one: int, two: int) -> Member:
    order = [two if k == one else one if k == two else k for k in range(len(member.buffers))]
    return replace(
        member, buffers=tuple([member.buffers[k] for k in order]), offsets=tuple([member.offsets[k] for k in order]),
        strides=tuple([member.strides[k] for k in order]),
    )  # fmt: skip


@breaks
def scalars_exchanged(schedule: Schedule) -> Broken:
    for k, call in kernels(schedule):
        if len(call.scalars) > 1 and call.scalars[0].dtype == call.scalars[1].dtype:
            one, two, *rest = call.scalars
            yield call.name, with_step(schedule, k, replace(call, scalars=[two, one, *rest]))


# --- bodies ---


def _of_unknown_strides(body: KernelBody, slot: int, axis: int) -> KernelBody | None:
    """A body that does not say what a slot's stride is."""
    known = body.slots[slot].strides
    if known[axis] is None or body.slots[slot].by_value:
        return None
    strides = tuple([None if k == axis else s for k, s in enumerate(known)])
    slots = tuple([replace(s, strides=strides) if k == slot else s for k, s in enumerate(body.slots)])
    return _new_body(body, slots=slots)


def _new_body(body: KernelBody, **fields: Any) -> KernelBody:
    return replace(body, **fields)


def _with_store(body: KernelBody, number: int, *stores: KernelStore) -> KernelBody:
    """A body with other stores in place of one."""
    return _new_body(body, stores=(*body.stores[:number], *stores, *body.stores[number + 1 :]))


def _stores(body: KernelBody, *kinds: StoreKind) -> list[tuple[int, KernelStore]]:
    return [(k, store) for k, store in enumerate(body.stores) if store.kind in kinds]


_COMBINING = (StoreKind.REDUCE, StoreKind.SCAN)
_ASSIGNING = (StoreKind.ASSIGN, StoreKind.FLAG)


def _rewritten(body: KernelBody, change: Callable[[Expr], Expr]) -> KernelBody:
    """A body with other values."""

    def changed(store: KernelStore) -> KernelStore:
        offset, inside = (None if root is None else change(root) for root in (store.offset, store.inside))
        return replace(store, value=change(store.value), offset=offset, inside=inside)

    return _new_body(body, stores=tuple([changed(store) for store in body.stores]))


def _with_node(body: KernelBody, old: Expr, new: Expr) -> KernelBody:
    if isinstance(old, Op):
        return _rewritten(body, lambda root: new if root is old else replace_parts(root, {id(old): new}))
    return _rewritten(body, lambda root: rewrite_leaves(root, lambda leaf: new if leaf is old else leaf))


def _bodies(schedule: Schedule, change: Callable[[KernelBody], Iterator[tuple[str, KernelBody]]]) -> Broken:
    for k, call in kernels(schedule):
        for what, body in change(call.body):
            yield f"{call.name}, {what}", with_step(schedule, k, other(call, body))


@breaks
def a_store_dropped(schedule: Schedule) -> Broken:
    def change(body: KernelBody) -> Iterator[tuple[str, KernelBody]]:
        for k, store in _stores(body, *_ASSIGNING):
            access = "r" if store.kind is StoreKind.ASSIGN else "flag"
            slots = tuple([replace(s, access=access) if n == store.slot else s for n, s in enumerate(body.slots)])
            yield f"store {k}", _new_body(_with_store(body, k), slots=slots)
            yield f"store {k}, but for its slot", _with_store(body, k)
        for k, _ in _stores(body, StoreKind.SCATTER):
            yield f"scatter {k}", _with_store(body, k)

    return _bodies(schedule, change)


@breaks
def a_store_twice(schedule: Schedule) -> Broken:
    def change(body: KernelBody) -> Iterator[tuple[str, KernelBody]]:
        for k, store in _stores(body, StoreKind.ASSIGN):
            yield f"store {k}", _with_store(body, k, store, store)

    return _bodies(schedule, change)


@breaks
def values_exchanged(schedule: Schedule) -> Broken:
    def change(body: KernelBody) -> Iterator[tuple[str, KernelBody]]:
        stores = _stores(body, *_ASSIGNING)
        for (k, one), (n, two) in zip(stores, stores[1:], strict=False):
            x, y = one.value, two.value
            if x is not y and x.dtype == y.dtype:
                wrong = _with_store(_with_store(body, k, replace(one, value=y)), n, replace(two, value=x))
                yield f"stores {k} and {n}", wrong

    return _bodies(schedule, change)


_NOT_COMMUTATIVE = frozenset("sub div pow lt le gt ge fma where trunc_div fmod atan2 copysign".split())


@breaks
def arguments_exchanged(schedule: Schedule) -> Broken:
    def change(body: KernelBody) -> Iterator[tuple[str, KernelBody]]:
        for node in walk(*body.roots):
            if isinstance(node, Op) and node.name in _NOT_COMMUTATIVE and node.args[-1] is not node.args[-2]:
                swapped = Op(node.name, (*node.args[:-2], node.args[-1], node.args[-2]), node.dtype)
                yield node.name, _with_node(body, node, swapped)

    return _bodies(schedule, change)


@breaks
def another_operation(schedule: Schedule) -> Broken:
    others = {"add": "mul", "mul": "add", "sub": "add", "div": "mul", "exp": "sin", "sqrt": "rsqrt", "maximum": "minimum"}

    def change(body: KernelBody) -> Iterator[tuple[str, KernelBody]]:
        for node in walk(*body.roots):
            if isinstance(node, Op) and node.name in others:
                yield node.name, _with_node(body, node, Op(others[node.name], node.args, node.dtype))
            if isinstance(node, Op) and node.name == "neg":
                yield node.name, _with_node(body, node, node.args[0])

    return _bodies(schedule, change)


@breaks
def another_constant(schedule: Schedule) -> Broken:
    def change(body: KernelBody) -> Iterator[tuple[str, KernelBody]]:
        for node in walk(*body.roots):
            if isinstance(node, Const) and node.dtype.is_floating_point:
                yield str(node), _with_node(body, node, Const(float(node.value) + 1, node.dtype))
                if node.value == 0:
                    yield str(node), _with_node(body, node, Const(-0.0, node.dtype))
            elif isinstance(node, RowLength):
                yield str(node), _with_node(body, node, Const(1 << 40, node.dtype))

    return _bodies(schedule, change)


@breaks
def another_index(schedule: Schedule) -> Broken:
    def change(body: KernelBody) -> Iterator[tuple[str, KernelBody]]:
        for node in walk(*body.roots):
            if isinstance(node, Index):
                yield str(node), _with_node(body, node, Op("add", (node, Const(1, torch.int64)), torch.int64))

    return _bodies(schedule, change)


@breaks
def loads_exchanged(schedule: Schedule) -> Broken:
    def change(body: KernelBody) -> Iterator[tuple[str, KernelBody]]:
        nodes = [node for node in walk(*body.roots) if isinstance(node, SlotLoad)]
        for one in nodes:
            for two in nodes:
                if one.slot != two.slot and one.dtype == two.dtype:
                    yield f"{two} for {one}", _with_node(body, one, two)

    return _bodies(schedule, change)


@breaks
def another_combination(schedule: Schedule) -> Broken:
    def change(body: KernelBody) -> Iterator[tuple[str, KernelBody]]:
        for k, store in _stores(body, *_COMBINING):
            yield f"r{k}", _with_store(body, k, replace(store, combine="maximum" if store.combine != "maximum" else "add"))

    return _bodies(schedule, change)


@breaks
def another_reduction(schedule: Schedule) -> Broken:
    def change(body: KernelBody) -> Iterator[tuple[str, KernelBody]]:
        for node in walk(*body.roots):
            if isinstance(node, Reduced):
                for k, store in _stores(body, *_COMBINING):
                    if k != node.reduction and store.value.dtype == node.dtype:
                        yield f"r{k} for {node}", _with_node(body, node, Reduced(k, node.dtype))

    return _bodies(schedule, change)


@breaks
def a_scatter_elsewhere(schedule: Schedule) -> Broken:
    def change(body: KernelBody) -> Iterator[tuple[str, KernelBody]]:
        for k, scatter in _stores(body, StoreKind.SCATTER):
            assert scatter.offset is not None
            offset = Op("add", (scatter.offset, Const(1, torch.int64)), torch.int64)
            yield "offset", _with_store(body, k, replace(scatter, offset=offset))
            yield "inside", _with_store(body, k, replace(scatter, inside=Const(True, torch.bool)))

    return _bodies(schedule, change)


def passes_of(body: KernelBody) -> list[list[int]]:
    """A body's passes as they are."""
    found: list[list[int]] = _PASSES(body)
    return found


def merged_passes(body: KernelBody) -> list[list[int]]:
    """All passes as one."""
    return [[k for numbers in passes_of(body) for k in numbers]]


def stores_in_the_first_pass(body: KernelBody) -> list[list[int]]:
    passes = passes_of(body)
    stores = [k for numbers in passes for k in numbers if body.stores[k].kind not in _COMBINING]
    combining = [[k for k in numbers if k not in stores] for numbers in passes]
    return [[*numbers, *(stores if n == 0 else ())] for n, numbers in enumerate(combining)]


_PASSES = KernelBody.__dict__["passes"].func
