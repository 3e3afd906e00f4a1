"""Which values are stored, and which are computed again by all that reads them.

Lowering offers the values that several operators take, those after reductions, and long formulas, as temporaries that are
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
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch

from quickfuse.ir.cost_model import COSTS
from quickfuse.ir.expr import HALF_TYPES, PICK, Expr, Index, Load, Op, Place, walk
from quickfuse.ir.loop import Access, Buffer, Draw, Extern, Loop, Program, Store, StoreKind
from quickfuse.ir.reindex import rewrite_leaves
from quickfuse.ir.relayout import Layout, relayout
from quickfuse.ir.target import OPERATION_COSTS

from .index_space import Shape

#: After how many reductions, one after the other, and after how many calls of PyTorch something can be computed.
_Pass = tuple[int, int]
_FIRST: _Pass = (0, 0)
#: A sum of many reductions may read any number of large buffers: more than so many count no more.
_MOST_COUNTED = 64


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
    that it reads. What does not change along all axes is computed once for many elements, and does not count.

    `nodes`: those of the value, which is the last one. `formulas`: those of the values among its loads that are not stored.
    `reduced`: results of reductions. With `of_rows` it is computed from these alone, which kernels do once for each row.
    """

    def __init__(
        self, nodes: list[Expr], shape: Shape, formulas: Mapping[Buffer, _Formula], reduced: Collection[Buffer]
    ) -> None:
        self.size = math.prod(shape)
        self.large: dict[tuple[Buffer, int], None] = {}
        self.of_rows = True
        axes: dict[int, int] = {}
        costs: list[tuple[int, int, int]] = []
        for node in nodes:
            along = 0
            if isinstance(node, (Load, Place)):
                access = node.access
                along = sum(1 << k for k, stride in enumerate(access.strides) if stride and shape[k] > 1)
                formula = formulas.get(access.buffer)
                if formula is not None:
                    costs.append((along, formula.cost, formula.slowest))
                places = [(access.buffer, access.offset)] if formula is None else formula.large
                if large := [place for place in places if 2 * place[0].meta.numel >= self.size]:
                    self.large.update(dict.fromkeys(large[: max(_MOST_COUNTED - len(self.large), 0)]))
                    self.of_rows &= access.buffer in reduced if formula is None else formula.of_rows
            elif isinstance(node, Index):
                along = 1 << node.axis
            elif isinstance(node, Op):
                for arg in node.args:
                    along |= axes[id(arg)]
                cost = _cost_of(node)
                costs.append((along, cost, cost))
            axes[id(node)] = along
        self.of_rows &= bool(self.large)
        counted = [cost for cost in costs if cost[0] == axes[id(nodes[-1])]]
        self.cost = sum([cost for _, cost, _ in counted])
        self.slowest = max([slowest for _, _, slowest in counted], default=0)


def _cost_of(node: Op) -> int:
    """What an operation costs an element, in additions."""
    if node.name == PICK:
        return COSTS.computed_load
    simple = COSTS.of_half if node.dtype in HALF_TYPES else 2 if node.dtype is torch.float64 else 1
    return OPERATION_COSTS.get(node.name, simple)


def _soonest(passes: set[_Pass]) -> set[_Pass]:
    """The first of some passes: no more of them count."""
    if len(passes) <= COSTS.passes_ahead + 1:
        return passes
    return set(sorted(passes, key=lambda one: one[::-1])[: COSTS.passes_ahead + 1])


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
        self.measured: dict[Buffer, _Formula] = {}
        self.seen: dict[tuple[Access, Shape], Expr | None] = {}
        #: Those that are, but by whose formulas the loops after so many calls need to load less.
        self.again: dict[Buffer, set[int]] = {}
        #: How many loops after so many calls load from a buffer.
        self.loading: Counter[tuple[int, Buffer]] = Counter()
        #: The one large buffer that a value is computed from. Most of what reads the value will load that in its place.
        self.origin: dict[Buffer, Buffer] = {}
        self.cut: set[Buffer] = set()
        #: The nodes of each store's expressions, by its id, and what it loads.
        self.nodes: dict[int, list[Expr]] = {}
        self.loads: dict[int, list[Load | Place]] = {}

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
                is_optional = step.stores[0].access.buffer in self.readers
                value = self._measured(step.stores[0], step.shape) if is_optional else None
                step.stores = [self._rewritten(store, step.shape) for store in step.stores] if self.formulas else step.stores
                if value is not None and self._is_computed_again(step, value):
                    continue
            steps.append(step)
        self.program.steps = steps
        return frozenset(self.cut)

    # --- who reads what, and when ---

    def _note_call(self, call: Extern) -> None:
        if isinstance(call, Draw):  # which costs nothing, and reads inputs alone
            return
        calls = 0
        for buffer in call.reads:
            calls = max(calls, self.known.get(buffer, _FIRST)[1])
            if buffer in self.readers:
                self.readers[buffer].needs_memory = True
        self.known.update(dict.fromkeys(call.outputs, (0, calls + 1)))

    def _note_loop(self, loop: Loop) -> None:
        for store in loop.stores:
            nodes = self.nodes[id(store)] = walk(*store.roots)
            loads = self.loads[id(store)] = [node for node in nodes if isinstance(node, (Load, Place))]
            passes = [self.known.get(node.access.buffer, _FIRST) for node in loads]
            needs, calls = max([n for n, _ in passes], default=0), max([c for _, c in passes], default=0)
            loaded = {node.access.buffer for node in loads}
            self.loading.update({(calls, read) for buffer in loaded for read in {buffer, self.origin.get(buffer, buffer)}})
            for node in loads:
                if (readers := self.readers.get(node.access.buffer)) is not None:
                    readers.found[(needs, calls), loop.shape, node.access] = None
                    readers.needed_in.add((needs, calls))
                    readers.several |= isinstance(node, Place)
            buffer = store.access.buffer
            if buffer in self.readers:
                self.readers[buffer].several |= buffer in self.filled or store.kind is not StoreKind.ASSIGN
                self.filled.add(buffer)
                size = math.prod(loop.shape)
                large = {self.origin.get(read, read) for read in loaded if 2 * read.meta.numel >= size}
                if len(large) == 1:
                    (self.origin[buffer],) = large
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
                for node in self.loads[id(store)] if users is not None else ():
                    if (readers := self.readers.get(node.access.buffer)) is not None:
                        readers.needed_in = _soonest(readers.needed_in | users.needed_in)

    # --- the decision ---

    def _measured(self, store: Store, shape: Shape) -> _Formula:
        nodes = self.nodes[id(store)] if len(store.roots) == 1 else walk(store.value)
        formulas = {buffer: self.measured[buffer] for buffer in self._not_loaded(store)}
        return _Formula(nodes, shape, formulas, self.reduced)

    def _is_computed_again(self, loop: Loop, value: _Formula) -> bool:
        """Whether what a loop stores is computed by its readers instead."""
        store = loop.stores[0]
        buffer = store.access.buffer
        readers = self.readers[buffer]
        if not readers.found:
            return False
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
        self.measured[buffer] = value
        if stored:
            self.again[buffer] = again
        return not stored

    def _is_worth_cutting(self, value: _Formula, own: _Pass, readers: _Readers) -> bool:
        """Whether later passes of the same kernel would compute too much again. What a single pass reads is a part of what
        that computes."""
        if len({at for at, _, _ in readers.found}) < 2 or value.of_rows:
            return False
        ahead = len({at for at in readers.needed_in if at[1] == own[1]}) - 1
        if value.slowest >= COSTS.slow and ahead <= COSTS.passes_kept:
            return False
        return value.cost * min(ahead, COSTS.passes_ahead) > COSTS.memory_access

    def _is_worth_storing(self, value: _Formula, calls: int, readers: _Readers) -> bool:
        """Whether a store and loads are less than the loads and operations of all that would compute it again."""
        if value.of_rows:
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

    def _loading_anyway(self, value: _Formula, buffer: Buffer, readers: _Readers) -> set[int]:
        """After how many more calls loops load all that a cheap value is computed from, whether it is stored or not."""
        if value.cost > COSTS.memory_access:
            return set()
        mine = self.known[buffer][1]
        return {
            calls for (_, calls), _, _ in readers.found
            if calls > mine and all(self.loading[calls, other] for other, _ in value.large)
        }  # fmt: skip

    # --- formulas in place of loads ---

    def _not_loaded(self, store: Store) -> set[Buffer]:
        """The values that a store computes from their formulas."""
        loaded = {node.access.buffer for node in self.loads[id(store)]}
        if self.formulas.keys().isdisjoint(loaded):
            return set()
        calls = max([self.known.get(buffer, _FIRST)[1] for buffer in loaded], default=0)
        return {buffer for buffer in loaded & self.formulas.keys() if calls in self.again.get(buffer, (calls,))}

    def _rewritten(self, store: Store, shape: Shape) -> Store:
        formulas = self._not_loaded(store)
        if not formulas:
            return store

        def leaf(node: Expr) -> Expr:
            if not isinstance(node, Load) or node.access.buffer not in formulas:
                return node
            seen = self._seen(node.access, shape)
            assert seen is not None, "all that reads a value has been looked at"
            return seen

        return store.rewritten(lambda root: rewrite_leaves(root, leaf))

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
