"""Gradients: a captured graph -> a forward and a backward graph of ATen operators.

`tracing` records both as one graph, a `joint` one, `early_gradients` lets forward compute some gradients, `smaller_forms`
offers what large values can be computed from, `partition` chooses what forward keeps for backward, and `split` cuts the
graph.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch.fx import Graph

from .. import logs
from ..errors import Unsupported
from ..ir.gradients import Differentiated, Layouts, Variant
from ..ir.modes import Modes, modes_restored
from .early_gradients import compute_early
from .partition import partition, plan_like
from .recompute import memory_root
from .smaller_forms import offer_smaller_forms
from .split import build_backward, describe, split
from .tracing import trace

__all__ = ["describe", "differentiate"]


def differentiate(graph: Graph, whole: bool = False, changed: Collection[int] = ()) -> Differentiated:
    """The forward and backward graphs of a captured graph, whose outputs or changed inputs need gradients. With `whole`
    all of it is traced, also what comes after the last gradient. The inputs at the positions `changed` are changed after it.

    Raises:
        Unsupported: with the reason, where the gradients are left to eager.
    """
    grad_enabled, before = torch.is_grad_enabled(), Modes()
    with logs.stage("differentiate"):
        joint = trace(graph, grad_enabled, whole=whole)
        joint.changed_later = frozenset(changed)
        early = compute_early(joint)
        if not early:
            offer_smaller_forms(joint)
    with logs.stage("partition"):
        plan = partition(joint)
        made = split(joint, plan)

    def variant(absent: frozenset[int], moved: bool, layouts: Layouts) -> Variant:
        with modes_restored():
            before.restore()  # backward may run outside of the autocast in which the graph began
            other = trace(graph, grad_enabled, absent, whole, moved, layouts)
        offer_smaller_forms(other)
        backward, *_ = build_backward(other, plan_like(plan, joint, other))
        return Variant(backward, [node.meta["val"] for node in other.tangents])

    roots = set(map(memory_root, joint.saved))
    made.kept_operands = [k for k, node in enumerate(joint.inputs) if node in roots]
    kept = {(k, False) for k, node in enumerate(joint.outputs) if memory_root(node) in roots}
    kept |= {(k, True) for k in made.kept_operands}
    made.kept_results = [k for k, r in enumerate(made.results) if (r.index, r.of_input) in kept]
    made.variant = variant if made.differentiable and not early else _no_variant  # which holds no graph
    return made


def _no_variant(absent: frozenset[int], moved: bool, layouts: Layouts) -> Variant:
    """Where forward computes the gradients: there is one of a result, which is always there, or none."""
    raise Unsupported("a loss without a gradient, or parameters with other memory")
