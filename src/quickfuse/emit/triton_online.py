"""A maximum, and the sum of exponentials relative to it, in one pass over rows too long for registers.

The sum needs the maximum, so that softmax and its like would read such rows twice for both. But a sum relative to the
largest value so far becomes one relative to a larger value by a factor: Milakov and Gimelshein, "Online normalizer
calculation for softmax" (2018). So a pass that reduces to a maximum takes the sums of the next pass along, if that has
nothing else.
"""

from __future__ import annotations

import torch

from quickfuse.emit.plan import Plan
from quickfuse.emit.walker import Builder, Walker
from quickfuse.ir.kernel import Op, Reduced, StoreKind


def sums_along(plan: Plan) -> dict[int, int]:
    """The reductions (by number) that can be computed with a maximum in the pass before, and that maximum."""
    body, found = plan.body, dict[int, int]()
    for before, stores in zip(body.passes, body.passes[1:], strict=False):
        pairs = {k: maximum for k in stores if (maximum := _maximum_of(plan, k)) in before and maximum is not None}
        if len(pairs) == len(stores) and not any(k in found for k in before):
            found.update(pairs)
    return found


def _maximum_of(plan: Plan, k: int) -> int | None:
    """The maximum that store `k` reduces `exp(x - maximum)` relative to, if it does, and that is one of the same values."""
    store, nodes = plan.body.stores[k], plan.nodes
    if store.kind is not StoreKind.REDUCE or store.combine not in ("sum", "add"):
        return None
    exponential = nodes[plan.roots[k][-1]]
    if not (isinstance(exponential.expr, Op) and exponential.expr.name == "exp"):
        return None
    difference = nodes[exponential.args[0]]
    if not (isinstance(difference.expr, Op) and difference.expr.name == "sub"):
        return None
    value, subtracted = difference.args
    reduced = nodes[subtracted].expr
    if not isinstance(reduced, Reduced) or exponential.expr.dtype not in (torch.float32, torch.float64):
        return None
    maximum = plan.body.stores[reduced.reduction]
    same = plan.roots[reduced.reduction][-1] == value and maximum.value.dtype == exponential.expr.dtype
    is_maximum = maximum.kind is StoreKind.REDUCE and maximum.combine == "maximum"
    return reduced.reduction if is_maximum and same and store.value.dtype == exponential.expr.dtype else None


class OnlineWalker(Walker[str]):
    """Leaves out passes whose sums were computed in the pass before: `sums` are those, `totals` what they came to."""

    def __init__(self, plan: Plan, builder: Builder[str], sums: dict[int, int], totals: dict[int, str]) -> None:
        super().__init__(plan, builder)
        self._sums = sums
        self._totals = totals

    def _pass(self, stores: list[int]) -> None:
        if stores and all(k in self._sums for k in stores):
            self.results.update((k, self._totals[k]) for k in stores)
        else:
            super()._pass(stores)
