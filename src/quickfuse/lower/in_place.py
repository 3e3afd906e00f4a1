"""Scatters to an input where it is: no copy of a cache to store a few rows of it.

Lowering lets a scatter store to a copy of its operand. If that is an input which gets the copy's contents in the end, and
nothing else reads the copy, then the scatter can store to the input itself, once all others have read it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from quickfuse.ir.expr import Expr, Load, Previous
from quickfuse.ir.loop import Buffer, Loop, Program, Store, StoreKind, buffers_in
from quickfuse.ir.reindex import rewrite_leaves


def scatter_in_place(program: Program) -> None:
    """Rewrite the scatters of a program whose target's contents go back to where they came from."""
    writers: dict[Buffer, list[Loop]] = {}
    for step in program.steps:
        if isinstance(step, Loop):
            for buffer in step.writes:
                writers.setdefault(buffer, []).append(step)
    copies = [(step, copy) for step in program.steps if isinstance(step, Loop) and (copy := _copied(step, writers))]
    if not copies:
        return
    reads = Counter(buffer for step in program.steps for buffer in step.reads)
    reads.update(buffers_in(program.outputs))
    for step, copy in copies:
        target = step.stores[0].access.buffer
        fill, *scatters = writers[copy]
        if reads[copy] == 1 and not any(target in loop.reads for loop in scatters):
            gone = {id(fill), id(step)}
            program.steps = [other for other in program.steps if id(other) not in gone]
            for loop in scatters:
                loop.stores = [_moved(store, copy, target) for store in loop.stores]


def _copied(step: Loop, writers: dict[Buffer, list[Loop]]) -> Buffer | None:
    """The scatters' target that an input gets the contents of, if it had the input's contents before."""
    (store, *others) = step.stores
    target, value = store.access.buffer, store.value
    if others or target.kind != "input" or not isinstance(value, Load) or value.access.buffer.kind != "temp":
        return None
    copy = value.access.buffer
    fill, *scatters = writers.get(copy, [step])
    layout = (step.shape, store.access.strides)
    same = (copy.meta.shape, copy.meta.stride) == layout and (target.meta.shape, target.meta.stride) == layout
    if not same or not scatters or any(s.kind is not StoreKind.SCATTER for loop in scatters for s in loop.stores):
        return None
    filled = fill.stores[0].value
    is_own = isinstance(filled, Load) and filled.access == store.access and len(fill.stores) == 1
    return copy if is_own and len(writers[target]) == 1 else None


def _moved(store: Store, copy: Buffer, target: Buffer) -> Store:
    def leaf(node: Expr) -> Expr:
        return Previous(target, node.dtype) if isinstance(node, Previous) and node.buffer is copy else node

    return replace(store, access=replace(store.access, buffer=target), value=rewrite_leaves(store.value, leaf))
