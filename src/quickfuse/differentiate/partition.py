"""What forward keeps for backward: a minimum cut through the joint graph.

Each value that backward needs and forward can compute is either kept, which costs its bytes, or computed again from
others, where the operators are cheap. The set of kept values that costs least is a minimum cut between what only forward
can compute and what backward uses.

Eager's own choice is one of the cuts, so that memory is never more than eager's. Two rules make errors the same as well:
an input, or an output that the user gets, is kept itself only if eager keeps it (then autograd notices when it is changed
before backward, as in eager); otherwise a copy of it is kept, which costs its bytes. Of several results, one is not
computed back from an input that eager keeps for another one alone: its gradients do not mind that this one is changed.

What is cheap alone is not so in a chain: each state of a recurrent network could be computed from the first one. So a value
that takes more than a few slow operators to compute again is kept, if it is needed.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any

import torch
from torch.fx import Node

from ..errors import Unsupported
from ..ir.cost_model import COSTS
from ..ir.nodes import is_view
from ..ir.target import costs_on
from ..ir.values import TensorMeta
from . import recompute
from .cut import ENDLESS, Network
from .joint import Joint
from .recompute import Recipe, is_cheap, is_slow, memory_root, recipe_of, size_of, tensors_before, users_of

aten = torch.ops.aten

#: Bytes count before the number of tensors.
_SCALE = 1 << 16


@dataclass(eq=False)
class Plan:
    """`kept` values are saved, in order; those in `copied` as copies. `recipes` are other ways to a value."""

    kept: list[Node] = field(default_factory=list)
    copied: set[Node] = field(default_factory=set)
    recipes: dict[Node, Recipe] = field(default_factory=dict)
    bytes: int = 0


def needs_tangents(joint: Joint) -> set[Node]:
    """The nodes that depend on the gradients of outputs."""
    found = set(joint.tangents)
    for node in joint.graph.nodes:
        if node not in found and any(operand in found for operand in node.all_input_nodes):
            found.add(node)
    return found


def partition(joint: Joint) -> Plan:
    """Choose what to keep."""
    return _Partition(joint).choose()


def plan_like(plan: Plan, joint: Joint, variant: Joint) -> Plan:
    """The same choice for the joint graph of other gradients: both begin with the same forward nodes.

    Raises:
        Unsupported: where they do not, as a setting has changed since.
    """
    counterpart = dict(zip(joint.graph.nodes, variant.graph.nodes, strict=False))
    if any(n not in counterpart or not _alike(n, counterpart[n]) for n in plan.kept):
        raise Unsupported("operators that record other ones in backward than in forward")
    elements = _elements(variant)
    calls = [n for n in variant.graph.nodes if n.op == "call_function" and not n.meta.get("backward")]
    recipes = {n: recipe for n in calls if (recipe := recipe_of(n, elements)) is not None}
    return Plan([counterpart[n] for n in plan.kept], {counterpart[n] for n in plan.copied}, recipes)


def _alike(node: Node, other: Node) -> bool:
    ours, theirs = node.meta.get("val"), other.meta.get("val")
    if isinstance(ours, TensorMeta) is not isinstance(theirs, TensorMeta):
        return False
    same = not isinstance(ours, TensorMeta) or (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)  # type: ignore[union-attr]
    return same and (node.op, node.target) == (other.op, other.target)


def _elements(joint: Joint) -> dict[Any, Node]:
    """The nodes that take a result out of several, by the call and the index."""
    return {(n.args[0], n.args[1]): n for n in joint.graph.nodes if n.target is operator.getitem}


def _ends_of_chains(joint: Joint) -> set[Node]:
    """The forward values for which more slow operators than allowed come together, given the ends before them."""
    slow: dict[Node, frozenset[Node]] = {}
    ends: set[Node] = set()
    nothing: frozenset[Node] = frozenset()
    for node in joint.graph.nodes:
        is_part = node.target is operator.getitem
        if node.op == "placeholder" or node.meta.get("backward") or not (is_part or is_cheap(node.target)):
            continue
        before = [slow[operand] for operand in node.all_input_nodes if operand in slow]
        found = nothing.union(*before, (node,) if is_slow(node.target) else ())
        if len(found) > COSTS.most_slow_again and not is_part and not is_view(node.target):
            ends.add(node)
        elif found:
            slow[node] = found
    return ends


#: Comparisons that one rounding more or less decides: the gradient of a maximum goes where the maximum was.
_EXACT = frozenset({aten.eq.Tensor, aten.ne.Tensor})


def _compared_exactly(joint: Joint) -> set[Node]:
    """The forward values on which comparisons for equality depend: they must not be computed again by another formula."""
    waiting = [operand for node in joint.graph.nodes if node.target in _EXACT for operand in node.all_input_nodes]
    found: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            call = node.args[0] if node.target is operator.getitem else node
            if is_cheap(call.target):  # type: ignore[union-attr]
                waiting += tensors_before(node)
    return found


def _results_needing(joint: Joint, late: set[Node], live: set[Node]) -> dict[Node, int]:
    """The differentiated outputs, as bits, for whose gradients each value may be needed."""
    found = {tangent: 1 << k for k, tangent in enumerate(joint.tangents)}
    for node in joint.graph.nodes:
        if node in live and node.op != "placeholder":
            found[node] = reduce(or_, [found.get(operand, 0) for operand in tensors_before(node)], 0)
    for node in reversed(joint.graph.nodes):
        if node not in late:
            found[node] = reduce(or_, [found.get(user, 0) for user in users_of(node)], 0)
    return found


class _Partition:
    def __init__(self, joint: Joint) -> None:
        self.joint = joint
        self.inputs = set(joint.inputs)
        self.written = {joint.inputs[position] for position in (*joint.written, *joint.changed_later)}
        self.late = needs_tangents(joint)
        self.elements = _elements(joint)
        self.outputs = set(joint.traced_outputs)
        self.visible = {memory_root(n) for n in self.outputs}
        self.plan = Plan()
        saved_roots = {memory_root(n) for n in joint.saved}
        self.kept_in_eager = joint.saved | {n for n in saved_roots if n.op == "placeholder"}
        self.ends = _ends_of_chains(joint) | self._ends_of_sums()
        self.exact = _compared_exactly(joint)
        self.needing = _results_needing(joint, self.late, self._live_late()) if len(joint.tangents) > 1 else {}
        self.reading = self._read_in_eager() if self.needing else {}

    def _read_in_eager(self) -> dict[Node, int]:
        """The differentiated outputs, as bits, for whose gradients eager has saved each memory: where a node of backward
        takes what autograd hands it. The others are those for which it would be computed again."""
        found: dict[Node, int] = {}
        for node in self.joint.graph.nodes:
            if node.meta.get("backward") and (mine := self.needing.get(node, 0)):
                for operand in node.all_input_nodes:
                    if not operand.meta.get("backward"):
                        root = memory_root(operand)
                        found[root] = found.get(root, 0) | mine
        return found

    def _is_of_others(self, operands: Iterable[Node], node: Node) -> bool:
        """Whether `node`, which may be kept, is needed for other outputs than those for which eager keeps an operand that
        the user has."""
        if not self.needing or self._cost(node) >= ENDLESS:
            return False
        for root in map(memory_root, operands):
            seen = root in self.inputs or root in self.visible
            if seen and not self._must_copy(root) and self.needing[node] & ~self.reading.get(root, 0):
                return True
        return False

    def _ends_of_sums(self) -> set[Node]:
        """The values that end chains of large ones each of which backward uses, on devices where memory counts.

        Of a sum that runs through all layers, only its terms could be kept, which may be smaller: but then all sums are in
        memory where backward begins, since each is computed from the one before.
        """
        level: dict[Node, int] = {}
        ends: set[Node] = set()
        for node in self.joint.graph.nodes:
            meta = node.meta.get("val")
            if node.op == "placeholder" or node in self.late or node.meta.get("backward") or not is_cheap(node.target):
                continue
            if not isinstance(meta, TensorMeta):
                continue
            costs = costs_on(meta.device)
            found = max([level.get(operand, 0) for operand in node.all_input_nodes], default=0)
            if meta.nbytes >= COSTS.large_bytes and not is_view(node.target):
                found += any(user in self.late for user in users_of(node))
            if costs.most_again_in_row and found > costs.most_again_in_row:
                ends.add(node)
                found = 0
            level[node] = found
        return ends

    def choose(self) -> Plan:
        needed = self._needed()
        network = Network()
        ways: dict[Node, tuple[int, int]] = {}
        for node in needed:
            ways[node] = (network.node(), network.node())
        for node in needed:
            before, behind = ways[node]
            network.edge(before, behind, self._cost(node))
            operands = self._operands(node)
            if operands is None:
                network.edge(0, before, ENDLESS)
            else:
                for operand in operands:
                    network.edge(ways[operand][1], before, ENDLESS)
        for node in self._used_late(needed):
            network.edge(ways[node][1], 1, ENDLESS)
        side = network.before_sink()
        kept = [n for n in needed if ways[n][1] in side and ways[n][0] not in side]
        position = {n: k for k, n in enumerate(self.joint.graph.nodes)}
        self.plan.kept = sorted(kept, key=position.__getitem__)
        self.plan.copied = {n for n in kept if self._must_copy(n)}
        self.plan.bytes = sum(size_of(n) for n in kept if n not in self.inputs or n in self.plan.copied)
        return self.plan

    def _needed(self) -> list[Node]:
        """The values that backward might need: what its nodes use that does not depend on gradients, and before that."""
        wanted: dict[Node, None] = {}
        waiting = [g for g in self.joint.gradients if g is not None]
        seen = set(waiting)
        while waiting:
            node = waiting.pop()
            before = self._operands(node) if node not in self.late else list(tensors_before(node))
            if node not in self.late:
                wanted[node] = None
            for operand in before or ():
                if operand not in seen:
                    seen.add(operand)
                    waiting.append(operand)
        return list(wanted)

    def _used_late(self, needed: list[Node]) -> list[Node]:
        """Those that nodes of backward use directly, or that are gradients themselves."""
        gradients = {g for g in self.joint.gradients if g is not None}
        live = self._live_late()
        return [n for n in needed if n in gradients or any(user in live for user in users_of(n))]

    def _live_late(self) -> set[Node]:
        live: set[Node] = set()
        waiting = [g for g in self.joint.gradients if g is not None and g in self.late]
        while waiting:
            node = waiting.pop()
            if node not in live:
                live.add(node)
                waiting += [o for o in node.all_input_nodes if o in self.late]
        return live

    def _operands(self, node: Node) -> list[Node] | None:
        """What a value can be computed again from, None if that is not to be."""
        if node.op == "placeholder" or node in self.ends or recompute.ONLY_KEPT in node.meta:
            return None
        recipe = self.plan.recipes.get(node) or recipe_of(node, self.elements)
        if recipe is not None and (node.meta["backward"] or node in self.exact or self._is_of_others(recipe.operands, node)):
            recipe = None
        if recipe is not None:
            self.plan.recipes[node] = recipe
            return list(recipe.operands)
        if self._is_of_others(tensors_before(node), node):
            return None
        if node.target is operator.getitem:
            call: Node = node.args[0]  # type: ignore[assignment]
            return [call] if is_cheap(call.target) or call.meta["backward"] else None
        if node in self.exact and is_slow(node.target):
            return None  # vectors of another width may give another last bit
        if is_cheap(node.target) or node.meta["backward"]:
            return list(tensors_before(node))
        return None

    def _cost(self, node: Node) -> int:
        meta = node.meta["val"]
        if not isinstance(meta, TensorMeta) or is_view(node.target) or node.meta.get("backward"):
            return ENDLESS
        if node.target is operator.getitem and is_view(node.args[0].target):  # type: ignore[union-attr]
            return ENDLESS
        if node in self.inputs and not self._must_copy(node):
            return 1
        # What is made of a row and its sum takes one more pass over the row where it is stored.
        size = size_of(node) + (size_of(node) // COSTS.cached_part if recompute.SMALLER in node.meta else 0)
        return size * _SCALE + 1

    def _must_copy(self, node: Node) -> bool:
        if node in self.inputs:
            return node not in self.kept_in_eager or node in self.written
        return node in self.visible and not (node in self.outputs and node in self.kept_in_eager)
