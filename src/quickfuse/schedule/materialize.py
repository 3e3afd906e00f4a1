"""Which values are stored: those whose readers would else compute them again for more than a store and their loads cost.

Lowering offers the values that several operators take, and long formulas, as temporaries that are `optional`. Here, each
of them is either stored, or put as a formula into all that reads it. What counts is memory traffic: a formula of three
tensors that is needed once more after a product of matrices is three loads in place of one. Passes of one kernel find what
they read in the cache, but for the first of them. Operations count if they are done again.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

import torch

from quickfuse.ir.cost_model import COSTS
from quickfuse.ir.expr import HALF_TYPES, Expr, Load, Op, Place, walk
from quickfuse.ir.loop import Access, Buffer, Extern, Loop, Program, Store, StoreKind, buffers_in
from quickfuse.ir.reindex import rewrite_leaves
from quickfuse.ir.relayout import Layout, relayout
from quickfuse.ir.target import OPERATION_COSTS

from .index_space import Shape

#: After how many reductions, one after the other, and after how many calls of PyTorch something can be computed.
_Pass = tuple[int, int]
_FIRST: _Pass = (0, 0)


def cost_of(node: Op) -> int:
    """What an operation costs an element, in additions."""
    simple = COSTS.of_half if node.dtype in HALF_TYPES else 2 if node.dtype is torch.float64 else 1
    return OPERATION_COSTS.get(node.name, simple)


@dataclass(eq=False, slots=True)
class _Readers:
    """What reads a value: in which passes, over which index spaces, which of its elements. `needs_memory`: it is stored.
    `several`: it is no formula, as several loops fill it, or loads at computed offsets read it.
    """

    found: dict[tuple[_Pass, Shape, Access], None]
    needs_memory: bool
    several: bool = False


class _Formula:
    """A value of `size` elements: what it costs for each, and the places in large buffers that it reads."""

    def __init__(self, value: Expr, size: int) -> None:
        nodes = walk(value)
        self.size = size
        self.cost = sum(cost_of(node) for node in nodes if isinstance(node, Op))
        places = [node.access for node in nodes if isinstance(node, (Load, Place))]
        self.large = {(place.buffer, place.offset) for place in places if 2 * place.buffer.meta.numel >= size}


def materialize(program: Program) -> None:
    """Store the optional temporaries of a program where that is less work, and put the formulas of others where they are
    read."""
    if program.optional:
        _Materializing(program).run()


class _Materializing:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.readers = {buffer: _Readers({}, buffer.kind != "temp") for buffer in program.optional}
        self.known: dict[Buffer, _Pass] = {}
        self.filled: set[Buffer] = set()
        #: The values that are not stored, and how they are read, by accesses and shapes.
        self.formulas: dict[Buffer, tuple[Shape, Store]] = {}
        #: Those that are, but by whose formulas the loops after so many calls need to load less.
        self.again: dict[Buffer, set[int]] = {}
        #: How many loops after so many calls load from a buffer.
        self.loading: Counter[tuple[int, Buffer]] = Counter()
        self.seen: dict[tuple[Access, Shape], Expr | None] = {}

    def run(self) -> None:
        """Decide about each value, and rewrite the program."""
        for step in self.program.steps:
            if isinstance(step, Extern):
                self._note_call(step)
            else:
                self._note_loop(step)
        steps: list[Loop | Extern] = []
        for step in self.program.steps:
            if isinstance(step, Loop):
                step.stores = [self._rewritten(store, step.shape) for store in step.stores] if self.formulas else step.stores
                if self._is_computed_again(step):
                    continue
            steps.append(step)
        self.program.steps = steps

    # --- who reads what, and when ---

    def _note_call(self, call: Extern) -> None:
        calls = 0
        for buffer in buffers_in((call.args, call.kwargs)):
            calls = max(calls, self.known.get(buffer, _FIRST)[1])
            if buffer in self.readers:
                self.readers[buffer].needs_memory = True
        self.known.update(dict.fromkeys(call.outputs, (0, calls + 1)))

    def _note_loop(self, loop: Loop) -> None:
        for store in loop.stores:
            loads = [node for node in walk(*store.roots) if isinstance(node, (Load, Place))]
            passes = [self.known.get(node.access.buffer, _FIRST) for node in loads]
            needs, calls = max([n for n, _ in passes], default=0), max([c for _, c in passes], default=0)
            self.loading.update({(calls, node.access.buffer) for node in loads})
            for node in loads:
                if (readers := self.readers.get(node.access.buffer)) is not None:
                    readers.found[(needs, calls), loop.shape, node.access] = None
                    readers.several |= isinstance(node, Place)
            buffer = store.access.buffer
            if buffer in self.readers:
                self.readers[buffer].several |= buffer in self.filled or store.kind is not StoreKind.ASSIGN
                self.filled.add(buffer)
            before = self.known.get(buffer, _FIRST)
            after = needs if store.kind is StoreKind.ASSIGN else needs + 1
            self.known[buffer] = (max(before[0], after), max(before[1], calls))

    # --- the decision ---

    def _is_computed_again(self, loop: Loop) -> bool:
        """Whether what a loop stores is computed by its readers instead."""
        store = loop.stores[0]
        buffer = store.access.buffer
        readers = self.readers.get(buffer)
        if readers is None or readers.several or not readers.found:
            return False
        value = _Formula(store.value, math.prod(loop.shape))
        stored = readers.needs_memory or self._is_worth_storing(value, self.known[buffer][1], readers)
        again = self._loading_anyway(value, buffer, readers) if stored else set()
        if stored and not again:
            return False
        self.formulas[buffer] = (loop.shape, store)
        if any(self._seen(access, shape) is None for _, shape, access in readers.found):
            del self.formulas[buffer]
            return False
        if stored:
            self.again[buffer] = again
        return not stored

    def _is_worth_storing(self, value: _Formula, calls: int, readers: _Readers) -> bool:
        if sum(buffer.kind != "input" for buffer, _ in value.large) > COSTS.most_read:
            return True
        kernels = {of_calls for (_, of_calls), _, _ in readers.found}
        passes = {(at, space) for at, space, _ in readers.found}
        later = len(kernels - {calls})
        cached = len(passes) - len(kernels)
        again = sum(math.prod(space) for _, space, _ in readers.found) - value.size
        loads = (len(value.large) - 1) * (later + cached / COSTS.cached_part)
        return value.cost * max(again, 0) / value.size + COSTS.memory_access * loads > COSTS.memory_access

    def _loading_anyway(self, value: _Formula, buffer: Buffer, readers: _Readers) -> set[int]:
        """After how many calls loops load all that a cheap value is computed from, whether it is stored or not."""
        if value.cost > COSTS.memory_access:
            return set()
        mine = self.known[buffer][1]
        return {
            calls for (_, calls), _, _ in readers.found
            if all(self.loading[calls, other] > (calls == mine) for other, _ in value.large)
        }  # fmt: skip

    # --- formulas in place of loads ---

    def _rewritten(self, store: Store, shape: Shape) -> Store:
        loaded = {node.access.buffer for node in walk(*store.roots) if isinstance(node, Load)}
        calls = max([self.known.get(buffer, _FIRST)[1] for buffer in loaded], default=0)
        formulas = {buffer for buffer in loaded & self.formulas.keys() if calls in self.again.get(buffer, (calls,))}
        if not formulas:
            return store

        def leaf(node: Expr) -> Expr:
            if not isinstance(node, Load) or node.access.buffer not in formulas:
                return node
            seen = self._seen(node.access, shape)
            assert seen is not None, "all that reads a value has been looked at"
            return seen

        offset, inside, value = (
            None if root is None else rewrite_leaves(root, leaf) for root in (store.offset, store.inside, store.value)
        )
        assert value is not None
        return replace(store, value=value, offset=offset, inside=inside)

    def _seen(self, access: Access, shape: Shape) -> Expr | None:
        """A value as a formula where an access loads it in a loop; None where that is no formula of the loop's index."""
        key = (access, shape)
        if key not in self.seen:
            space, store = self.formulas[access.buffer]
            if (shape, access) == (space, store.access):
                self.seen[key] = store.value
            else:
                base = Layout(space, store.access.strides, store.access.offset)
                self.seen[key] = relayout(store.value, base, Layout(shape, access.strides, access.offset))
        return self.seen[key]
