"""Formulas that are too long for one kernel are cut: values on the way are stored, and what follows is in a later kernel.

A chain of pointwise operators is one formula, however long. LLVM takes more than the time of each half to translate the
whole, while one more store and load for each thousand operations costs next to nothing. A sum of many reductions, such as
the gradient of a bias in a network that goes through time, is a kernel with a loop for each of them, and for Triton each
operand takes long: both are cut the sooner.
"""

from __future__ import annotations

from quickfuse import logs
from quickfuse.ir.expr import Expr, Load, Op, Previous, walk, with_arguments
from quickfuse.ir.loop import Access, Buffer, Extern, Loop, Program, Store, StoreKind
from quickfuse.ir.target import costs_on
from quickfuse.ir.values import TensorMeta


def cut_long_formulas(program: Program) -> frozenset[Buffer]:
    """Store values on the way, where operations follow one after the other in more than `longest_formula` steps, what they
    read counted. Returns the buffers whose readers are to be in later kernels."""
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
        #: What the loads below a node count since the last cut. Those below several nodes count for one of them.
        self.weights: dict[int, int] = {}

    def run(self) -> list[Loop]:
        """Shorten the loop's formulas. Returns the loops that store values for it."""
        if self._are_short():
            return []
        nodes = walk(*[root for store in self.loop.stores for root in store.roots])
        if len(nodes) + sum(map(self._weight, nodes)) <= self.costs.longest_formula:
            return []
        for node in nodes:
            if isinstance(node, Op):
                self.known[id(node)] = self._operation(node)
            else:
                self.known[id(node)] = (node, 0, not isinstance(node, Previous))
                self.weights[id(node)] = self._weight(node)
        if self.before:
            self.loop.stores = [store.rewritten(lambda root: self.known[id(root)][0]) for store in self.loop.stores]
        return self.before

    def _are_short(self) -> bool:
        """Whether the formulas are short, even if nodes that several others take are counted for each of them."""
        nodes: list[Expr] = [root for store in self.loop.stores for root in store.roots]
        length, limit = 0, self.costs.longest_formula
        for node in nodes:  # which grows meanwhile
            if type(node) is Op:
                nodes += node.args
            else:
                length += self._weight(node)
            if length + len(nodes) > limit:
                return False
        return True

    def _weight(self, node: Expr) -> int:
        if not isinstance(node, Load):
            return 0
        return self.costs.of_reduction if node.access.buffer in self.reduced else self.costs.of_load

    def _operation(self, node: Op) -> tuple[Expr, int, bool]:
        args = [self.known[id(arg)] for arg in node.args]
        made = with_arguments(node, tuple([arg for arg, _, _ in args]))
        length, may_be_cut = 1 + max([length for _, length, _ in args]), all(free for _, _, free in args)
        weight = self.weights[id(node)] = sum(self.weights.pop(id(arg), 0) for arg in node.args)
        if length + weight < self.costs.longest_formula or not may_be_cut:
            return made, length, may_be_cut
        self.weights[id(node)] = self.costs.of_load
        return self._stored(made), 0, True

    def _stored(self, value: Op) -> Load:
        shape = self.loop.shape
        meta = TensorMeta.dense(value.dtype, shape, self.loop.device)
        buffer = Buffer(f"long{len(self.cut)}", meta, "temp")
        access = Access(buffer, 0, meta.stride)
        self.cut.append(buffer)
        self.before.append(Loop(shape, [Store(access, value)], self.loop.device))
        return Load(access, value.dtype)
