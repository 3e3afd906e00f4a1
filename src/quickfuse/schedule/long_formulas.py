"""Formulas that are too long for one kernel are cut: values on the way are stored, and what follows is in a later kernel.

A chain of pointwise operators is one formula, however long, and so is the sum of all gradients of an unrolled network's
weight. LLVM takes more than the time of each half to translate the whole, Triton far more, while one more store and load for
each thousand operations, or dozens of loads, costs next to nothing. A sum of many reductions, such as the gradient of that
network's bias, is a kernel with a loop for each of them.
"""

from __future__ import annotations

from quickfuse import logs
from quickfuse.ir.expr import Expr, Load, Op, Previous, walk
from quickfuse.ir.loop import Access, Buffer, Extern, Loop, Program, Store, StoreKind
from quickfuse.ir.reindex import with_arguments
from quickfuse.ir.target import costs_on
from quickfuse.ir.values import TensorMeta


def cut_long_formulas(program: Program) -> frozenset[Buffer]:
    """Store values on the way, where operations follow one after the other in more than `longest_formula` steps, or read
    more than `most_loads` elements. Returns the buffers whose readers are to be in later kernels."""
    cut: list[Buffer] = []
    steps: list[Loop | Extern] = []
    reduced: set[Buffer] = set()
    for step in program.steps:
        if isinstance(step, Loop):
            steps += _Cutting(step, cut, reduced).run()
            reduced.update([store.access.buffer for store in step.stores if store.kind is StoreKind.REDUCE])
        steps.append(step)
    if cut:
        program.steps = steps
        logs.emit("loops", f"formulas too long for one kernel: cut in {len(cut)} places")
    return frozenset(cut)


class _Cutting:
    """The formulas of one loop."""

    def __init__(self, loop: Loop, cut: list[Buffer], reduced: set[Buffer]) -> None:
        self.loop = loop
        self.cut, self.reduced = cut, reduced
        self.costs = costs_on(loop.device)
        self.before: list[Loop] = []
        #: What each node becomes, by its id; how many operations come one after the other since the last cut; and whether
        #: it may be cut.
        self.known: dict[int, tuple[Expr, int, bool]] = {}
        #: How many loads there are below a node since the last cut. What several nodes have below counts for one of them.
        self.loads: dict[int, int] = {}

    def run(self) -> list[Loop]:
        """Shorten the loop's formulas. Returns the loops that store values for it."""
        nodes = walk(*[root for store in self.loop.stores for root in store.roots])
        if len(nodes) <= self.costs.longest_formula and self._loads_in(nodes) <= self.costs.most_loads:
            return []
        for node in nodes:
            if isinstance(node, Op):
                self.known[id(node)] = self._operation(node)
            else:
                self.known[id(node)] = (node, 0, not isinstance(node, Previous))
                self.loads[id(node)] = self._loads_in([node])
        if self.before:
            self.loop.stores = [store.rewritten(lambda root: self.known[id(root)][0]) for store in self.loop.stores]
        return self.before

    def _loads_in(self, nodes: list[Expr]) -> int:
        loaded = [node.access.buffer for node in nodes if isinstance(node, Load)]
        return sum([self.costs.loads_of_reduction if buffer in self.reduced else 1 for buffer in loaded])

    def _operation(self, node: Op) -> tuple[Expr, int, bool]:
        args = [self.known[id(arg)] for arg in node.args]
        made = with_arguments(node, tuple([arg for arg, _, _ in args]))
        length, may_be_cut = 1 + max([length for _, length, _ in args]), all(free for _, _, free in args)
        loads = self.loads[id(node)] = sum(self.loads.pop(id(arg), 0) for arg in node.args)
        if not may_be_cut or (length < self.costs.longest_formula and loads < self.costs.most_loads):
            return made, length, may_be_cut
        self.loads[id(node)] = 1
        return self._stored(made), 0, True

    def _stored(self, value: Op) -> Load:
        shape = self.loop.shape
        meta = TensorMeta.dense(value.dtype, shape, self.loop.device)
        buffer = Buffer(f"long{len(self.cut)}", meta, "temp")
        access = Access(buffer, 0, meta.stride)
        self.cut.append(buffer)
        self.before.append(Loop(shape, [Store(access, value)], self.loop.device))
        return Load(access, value.dtype)
