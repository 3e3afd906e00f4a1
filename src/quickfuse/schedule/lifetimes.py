"""Less memory at a time: steps that free more than they take run early, and kernels store where an operand ends.

Both look at whole steps, after loops were grouped into launches. What needs the same rank may still be in any order: all
gradients of a bias that are added up are freed by one small kernel, before another one makes the gradient of an embedding.

A kernel that reads each element of a temporary for the last time, and stores a result of the same shape at the same index,
may store it there: the memory of an activation is that of the convolution's result. So both become one buffer.
"""

from __future__ import annotations

import bisect
from collections import Counter
from dataclasses import replace
from typing import Any

from quickfuse.ir.cost_model import COSTS
from quickfuse.ir.expr import Expr, Op, walk
from quickfuse.ir.kernel import KernelBody, KernelCall, Member, SlotLoad, SlotPlace, SlotPrevious
from quickfuse.ir.loop import Buffer, Extern, Program, StoreKind, buffers_in, with_buffers
from quickfuse.ir.products import storing_form
from quickfuse.ir.target import is_slow

_Step = KernelCall | Extern


def _written(step: _Step) -> set[Buffer]:
    if isinstance(step, Extern):
        return set(step.outputs)
    slots = [k for k, slot in enumerate(step.body.slots) if slot.access != "r"]
    return {member.buffers[k] for member in step.members for k in slots}


# --- the order of steps ---


def free_early(program: Program, steps: list[_Step]) -> list[_Step]:
    """The steps with those that free memory as early as they can be; all else stays as it is."""
    before, after = _neighbours(steps)
    returned = set(buffers_in(program.outputs))
    used = [list(step.buffers) for step in steps]
    users: dict[Buffer, list[int]] = {}
    for k, buffers in enumerate(used):
        for buffer in buffers:
            users.setdefault(buffer, []).append(k)
    left = Counter({buffer: len(all_users) for buffer, all_users in users.items()})
    waiting = [len(steps_before) for steps_before in before]
    done = [False] * len(steps)

    def freed(k: int) -> int:
        """How many bytes less there are in use after a step, if it is the next one."""
        total = 0
        for buffer in used[k]:
            if buffer.kind in ("temp", "output"):
                ends = left[buffer] == 1 and buffer not in returned
                total += buffer.meta.span_bytes * (ends - (left[buffer] == len(users[buffer])))
        return total

    order: list[_Step] = []
    for k in range(len(steps)):
        ready = [k]
        while ready:
            one = ready.pop()
            if done[one] or waiting[one] or (one != k and freed(one) < COSTS.large_bytes):
                continue
            done[one] = True
            order.append(steps[one])
            found = set(after[one])
            for buffer in used[one]:
                left[buffer] -= 1
                if left[buffer] == 1:
                    found.update(users[buffer])
            for other in after[one]:
                waiting[other] -= 1
            ready += sorted(found, reverse=True)
    return order


def _neighbours(steps: list[_Step]) -> tuple[list[set[int]], list[set[int]]]:
    """The steps that must come before each, and those that must come after it: they touch the same buffer, and one of them
    stores to it, or they may fail or draw random numbers."""
    before: list[set[int]] = []
    writers: dict[Buffer, list[int]] = {}
    readers: dict[Buffer, list[int]] = {}
    uncertain: list[int] = []
    drawn: list[int] = []
    for k, step in enumerate(steps):
        written = _written(step)
        found: set[int] = set()
        for buffer in step.buffers:
            found.update(writers.get(buffer, ()))
            (writers if buffer in written else readers).setdefault(buffer, []).append(k)
            if buffer in written:
                found.update(readers.get(buffer, ()))
        if isinstance(step, Extern):
            if step.draws or step.after is not None:
                found.update(drawn)
                drawn.append(k)
            may_fail = step.may_fail
        else:
            may_fail = any(slot.access == "flag" for slot in step.body.slots)
            if step.changed_inputs:
                found.update(uncertain)
        if may_fail:
            uncertain.append(k)
        before.append(found - {k})
    after: list[set[int]] = [set() for _ in steps]
    for k, steps_before in enumerate(before):
        for other in steps_before:
            after[other].add(k)
    return before, after


# --- results in the memory of operands ---


def store_in_place(program: Program, steps: list[_Step], temps: list[Buffer]) -> tuple[list[_Step], list[Buffer]]:
    """The steps and temporaries, with results in the memory of operands that end there."""
    shared = _Sharing(program, steps)
    for k, step in enumerate(steps):
        if isinstance(step, KernelCall) and step.device.type == "cpu":  # on a GPU launches are tried out several times
            shared.share(k, step)
    if not shared.memory:
        return steps, temps
    steps = [shared.renamed(k, step) for k, step in enumerate(steps)]
    return steps, list(dict.fromkeys([shared.of(buffer) for buffer in temps]))


class _Sharing:
    """Which buffers lie in the same memory: `memory` has the buffer that stands for both."""

    def __init__(self, program: Program, steps: list[_Step]) -> None:
        self.memory: dict[Buffer, Buffer] = {}
        self.last: dict[Buffer, int] = {}
        self.fixed = set(buffers_in(program.outputs))
        self.writers: Counter[Buffer] = Counter()
        for k, step in enumerate(steps):
            self.last.update(dict.fromkeys(step.buffers, k))
            self.writers.update(_written(step))
            if isinstance(step, Extern) and not _may_be_renamed(step):
                self.fixed.update(step.buffers)
        #: For a step, the slots of operands and of the results that lie where these are.
        self.changed: dict[int, tuple[tuple[int, int], ...]] = {}
        self._bodies: dict[Any, KernelBody] = {}

    def of(self, buffer: Buffer) -> Buffer:
        return self.memory.get(buffer, buffer)

    def share(self, k: int, call: KernelCall) -> None:
        """Let results of step k lie where its operands do, if all members can have it so."""
        body = call.body
        used = Counter([buffer for member in call.members for buffer in member.buffers])
        passes = body.passes  # none where all is stored once a row
        pairs: list[tuple[int, int]] = []
        # Between passes a value may be kept where the result will be, if it is slow to compute.
        slow = len(passes) > 1 and any(isinstance(node, Op) and is_slow(node.name) for node in walk(*body.roots))
        for store in passes[-1] if passes and not slow else ():
            result = body.stores[store].slot
            if body.stores[store].kind is not StoreKind.ASSIGN or body.slots[result].access != "w":
                continue
            for operand in range(result):
                slot = body.slots[operand]
                if slot != replace(body.slots[result], access="r") or any(operand in pair for pair in pairs):
                    continue
                if all(self._ends_here(k, member, operand, result, used) for member in call.members):
                    pairs.append((operand, result))
                    break
        placed = {n.slot for n in walk(*body.roots) if isinstance(n, (SlotPlace, SlotPrevious))} if pairs else set()
        pairs = [pair for pair in pairs if pair[0] not in placed]
        for member in call.members if pairs else ():
            for operand, result in pairs:
                self._merge(member.buffers[operand], member.buffers[result])
        if pairs:
            self.changed[k] = tuple(pairs)

    def _ends_here(self, k: int, member: Member, operand: int, result: int, used: Counter[Buffer]) -> bool:
        """Whether a member's result may lie where an operand does that nothing needs afterwards. What several steps store
        to, such as the result of a scatter, stays apart: the verifier knows it as one buffer of the program."""
        old, new = member.buffers[operand], member.buffers[result]
        if max(used[old], used[new], self.writers[old], self.writers[new]) > 1 or {old.kind, new.kind} != {"temp"}:
            return False
        if old in self.fixed or new in self.fixed or new.meta.span_bytes < COSTS.large_bytes:
            return False
        at = [(member.offsets[slot], member.strides[slot]) for slot in (operand, result)]
        metas = [replace(buffer.meta, requires_grad=False) for buffer in (old, new)]
        return at[0] == at[1] and metas[0] == metas[1] and self.last[self.of(old)] == k

    def _merge(self, old: Buffer, new: Buffer) -> None:
        both = self.memory.get(old)
        if both is None:
            both = self.memory[old] = Buffer(old.name, old.meta, "temp")
        self.memory[new] = both
        self.last[both] = self.last[new]

    # --- rewriting ---

    def renamed(self, k: int, step: _Step) -> _Step:
        """A step that knows both buffers as one."""
        if not any(buffer in self.memory for buffer in step.buffers):
            return step
        if isinstance(step, Extern):
            args, kwargs = with_buffers((step.args, step.kwargs), self.of)
            return replace(step, args=args, kwargs=kwargs, outputs=[self.of(buffer) for buffer in step.outputs])
        pairs = self.changed.get(k, ())
        gone = {result for _, result in pairs}
        kept = [slot for slot in range(len(step.body.slots)) if slot not in gone]
        members = [
            Member(
                member.sizes, tuple([self.of(member.buffers[slot]) for slot in kept]),
                tuple([member.offsets[slot] for slot in kept]), tuple([member.strides[slot] for slot in kept]),
            ) for member in step.members
        ]  # fmt: skip
        body = self._bodies.setdefault((id(step.body), pairs), _in_place(step.body, dict(pairs))) if pairs else step.body
        return replace(step, body=body, members=members)


def _may_be_renamed(call: Extern) -> bool:
    """Whether the results of a call lie in memory of their own, and nobody asks whether it is the same call."""
    return (call.is_new or storing_form(call) is not None) and not (call.draws or call.may_fail or call.after)


def _in_place(body: KernelBody, results: dict[int, int]) -> KernelBody:
    """A body that stores some results, by the slots of operands, where these are."""
    gone = sorted(results.values())
    operands = {result: operand for operand, result in results.items()}
    number = {slot: slot - bisect.bisect(gone, slot) for slot in range(len(body.slots))}
    number.update({result: number[operand] for result, operand in operands.items()})

    def leaf(node: Expr) -> Expr:
        return replace(node, slot=number[node.slot]) if isinstance(node, (SlotLoad, SlotPlace, SlotPrevious)) else node

    slots = [replace(s, access="rw") if k in results else s for k, s in enumerate(body.slots) if k not in operands]
    made = body.with_leaves(leaf, slots=tuple(slots))
    return replace(made, stores=tuple([replace(store, slot=number.get(store.slot, -1)) for store in made.stores]))
