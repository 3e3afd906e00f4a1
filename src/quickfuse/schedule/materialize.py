"""Which values are stored, and which are computed again by all that reads them.

Lowering offers the values that several operators take, those behind reductions, and long formulas, as temporaries that are
`optional`. Each of them is either stored here, or put as a formula into all that reads it. What counts is memory traffic: a
formula of three tensors that is needed once more after a product of matrices is three loads in place of one. Passes of one
kernel find what they read in the cache, but for the first of them. Operations count if they are done again.

A pass computes all that it needs from what is in memory when its kernel begins. In `x = softmax(x) + x`, done a hundred
times, every `x` is needed by the next maximum, the next sum and the next `x`: as one kernel, each pass would begin at the
first `x`, and the work would grow with the square of the length. Where passes would compute more again than a store and a
load cost, a value is stored, and all that reads it comes in a later kernel: the chain is cut.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace

import torch

from quickfuse.ir.cost_model import COSTS
from quickfuse.ir.expr import HALF_TYPES, PICK, Expr, Index, Load, Op, Place, walk
from quickfuse.ir.loop import Access, Buffer, Extern, Loop, Program, Store, StoreKind, buffers_in
from quickfuse.ir.reindex import rewrite_leaves
from quickfuse.ir.relayout import Layout, relayout
from quickfuse.ir.target import OPERATION_COSTS

from .index_space import Shape

#: After how many reductions, one after the other, and after how many calls of PyTorch something can be computed.
_Pass = tuple[int, int]
_FIRST: _Pass = (0, 0)


@dataclass(eq=False, slots=True)
class _Readers:
    """What reads a value: in which passes, over which index spaces, which of its elements.

    `needed_in`: also the passes that need it for what they compute again. `needs_memory`: it is stored in any case.
    `several`: it is no formula, as several loops fill it, or loads at computed offsets read it.
    """

    needs_memory: bool
    several: bool = False
    found: dict[tuple[_Pass, Shape, Access], None] = field(default_factory=dict)
    needed_in: set[_Pass] = field(default_factory=set)


class _Formula:
    """A value: what it costs for each of its `size` elements, the slowest operation in it, and the places in large buffers
    that it reads. What does not change along all axes is computed once for many elements, and does not count."""

    def __init__(self, value: Expr, shape: Shape) -> None:
        self.size = math.prod(shape)
        self.large: set[tuple[Buffer, int]] = set()
        axes: dict[int, int] = {}
        costs: list[tuple[int, int]] = []
        for node in walk(value):
            axes[id(node)] = 0
            if isinstance(node, (Load, Place)):
                access = node.access
                axes[id(node)] = sum(1 << k for k, stride in enumerate(access.strides) if stride and shape[k] > 1)
                if 2 * access.buffer.meta.numel >= self.size:
                    self.large.add((access.buffer, access.offset))
            elif isinstance(node, Index):
                axes[id(node)] = 1 << node.axis
            elif isinstance(node, Op):
                for arg in node.args:
                    axes[id(node)] |= axes[id(arg)]
                costs.append((axes[id(node)], _cost_of(node)))
        counted = [cost for along, cost in costs if along == axes[id(value)]]
        self.cost = sum(counted)
        self.slowest = max(counted, default=0)


def _cost_of(node: Op) -> int:
    """What an operation costs an element, in additions."""
    if node.name == PICK:
        return COSTS.computed_load
    simple = COSTS.of_half if node.dtype in HALF_TYPES else 2 if node.dtype is torch.float64 else 1
    return OPERATION_COSTS.get(node.name, simple)


def materialize(program: Program) -> frozenset[Buffer]:
    """Store the optional temporaries of a program where that is less work, and put the formulas of others where they are
    read. Returns the buffers whose readers are to be in later kernels."""
    return _Materializing(program).run() if program.optional else frozenset()


class _Materializing:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.readers = {buffer: _Readers(buffer.kind != "temp") for buffer in program.optional}
        self.known: dict[Buffer, _Pass] = {}
        self.filled: set[Buffer] = set()
        self.reduced: set[Buffer] = set()
        #: The values that are not stored, and how they are read, by accesses and shapes.
        self.formulas: dict[Buffer, tuple[Shape, Store]] = {}
        self.seen: dict[tuple[Access, Shape], Expr | None] = {}
        #: Those that are, but by whose formulas the loops after so many calls need to load less.
        self.again: dict[Buffer, set[int]] = {}
        #: How many loops after so many calls load from a buffer.
        self.loading: Counter[tuple[int, Buffer]] = Counter()
        self.cut: set[Buffer] = set()

    def run(self) -> frozenset[Buffer]:
        """Decide about each value, and rewrite the program."""
        for step in self.program.steps:
            if isinstance(step, Extern):
                self._note_call(step)
            else:
                self._note_loop(step)
        self._look_ahead()
        steps: list[Loop | Extern] = []
        for step in self.program.steps:
            if isinstance(step, Loop):
                step.stores = [self._rewritten(store, step.shape) for store in step.stores] if self.formulas else step.stores
                if self._is_computed_again(step):
                    continue
            steps.append(step)
        self.program.steps = steps
        return frozenset(self.cut)

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
                    readers.needed_in.add((needs, calls))
                    readers.several |= isinstance(node, Place)
            buffer = store.access.buffer
            if buffer in self.readers:
                self.readers[buffer].several |= buffer in self.filled or store.kind is not StoreKind.ASSIGN
                self.filled.add(buffer)
            if store.kind is StoreKind.REDUCE:
                self.reduced.add(buffer)
            before = self.known.get(buffer, _FIRST)
            after = needs if store.kind is StoreKind.ASSIGN else needs + 1
            self.known[buffer] = (max(before[0], after), max(before[1], calls))

    def _look_ahead(self) -> None:
        """What a value needs is needed by all that needs the value."""
        for step in reversed(self.program.steps):
            for store in step.stores if isinstance(step, Loop) else ():
                users = self.readers.get(store.access.buffer)
                for node in walk(*store.roots) if users is not None else ():
                    if isinstance(node, Load) and (readers := self.readers.get(node.access.buffer)) is not None:
                        readers.needed_in |= users.needed_in

    # --- the decision ---

    def _is_computed_again(self, loop: Loop) -> bool:
        """Whether what a loop stores is computed by its readers instead."""
        store = loop.stores[0]
        buffer = store.access.buffer
        readers = self.readers.get(buffer)
        if readers is None or not readers.found:
            return False
        value = _Formula(store.value, loop.shape)
        if self._is_worth_cutting(value, self.known[buffer], readers):
            self.cut.add(buffer)
            return False
        if readers.several:
            return False
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

    def _is_worth_cutting(self, value: _Formula, own: _Pass, readers: _Readers) -> bool:
        """Whether later passes of the same kernel would compute too much again. What a single pass reads is a part of what
        that computes."""
        if len({at for at, _, _ in readers.found}) < 2 or self._is_of_rows(value):
            return False
        ahead = len({at for at in readers.needed_in if at[1] == own[1]}) - 1
        if value.slowest >= COSTS.slow and ahead <= COSTS.passes_kept:
            return False
        return value.cost * min(ahead, COSTS.passes_ahead) > COSTS.memory_access

    def _is_worth_storing(self, value: _Formula, calls: int, readers: _Readers) -> bool:
        """Whether a store and loads are less than the loads and operations of all that would compute it again."""
        if self._is_of_rows(value):
            return False
        if sum(buffer.kind != "input" for buffer, _ in value.large) > COSTS.most_read:
            return True
        kernels = {of_calls for (_, of_calls), _, _ in readers.found}
        passes = {(at, space) for at, space, _ in readers.found}
        later = len(kernels - {calls})
        cached = len(passes) - len(kernels)
        again = sum(math.prod(space) for _, space, _ in readers.found) - value.size
        loads = (len(value.large) - 1) * (later + cached / COSTS.cached_part)
        return value.cost * max(again, 0) / value.size + COSTS.memory_access * loads > COSTS.memory_access

    def _is_of_rows(self, value: _Formula) -> bool:
        """Whether a value is computed from results of reductions alone: kernels do that once for each row."""
        return bool(value.large) and all(buffer in self.reduced for buffer, _ in value.large)

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
