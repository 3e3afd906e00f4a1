"""Gradients of gradients that lead through results with hooks.

In eager, what an operator has saved of its own result, or of another's, is that very tensor: second derivatives that flow
to it are added to its gradient before its hooks see that. Here gradients of gradients are those of the captured graph that
has run once more, whose results nobody has hooked. So the gradients that such a run gives have one node above it (`_Above`),
with an edge to each hooked result. In the run, what flows to that result ends there, and goes along the edge.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from .dependent_results import graph_is_retained
from .several_results import HOOKED


def hooked_results(node: Any, call: Any) -> dict[int, torch.Tensor]:
    """The differentiable results of a call that are still there and have hooks or retain their gradient, by number. `node`
    is the call's own, or what stands for those of its results (see `autograd_nodes`). Of a single result only hooks are
    known."""
    if isinstance(node, torch._C._FunctionBase):
        found = [(call.differentiable.index(t.output_nr), t) for t in _results(node)]
    else:
        nodes = [one for reference in node.results if (one := reference()) is not None]
        found = [(one.numbers[t.output_nr], t) for one in nodes for t in _results(one)]
    return {number: t for number, t in found if t._backward_hooks or t.retains_grad}


def _results(node: Any) -> list[torch.Tensor]:
    """What a node refers to of its results."""
    references = [*getattr(node, "results", ()), *node.__dict__.get(HOOKED, {}).values()]
    return [t for reference in references if (t := reference()) is not None and t.grad_fn is node]


def led_through(
    found: Sequence[Any], outputs: Sequence[Any], operands: Sequence[Any], hooked: dict[int, torch.Tensor]
) -> list[Any]:
    """Gradients that a run of the captured graph gave, which lead to hooked results. `outputs` are the same results in that
    run, and `operands` what the run began from that requires gradients."""
    places = [k for k, g in enumerate(found) if g is not None and g.requires_grad]
    pairs = [(mine, t) for mine, t in zip(outputs, hooked.values(), strict=True) if mine.grad_fn is not None]
    if not places or not pairs:
        return [*found]
    own, theirs = zip(*pairs, strict=True)
    made = _Above.apply([found[k] for k in places], own, operands, *operands, *theirs)
    results = [*found]
    for k, one in zip(places, made, strict=True):
        results[k] = one
    return results


class _Above(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, found: list[Any], own: Sequence[Any], operands: Sequence[Any], *_: Any) -> Any:
        ctx.run = found, own, operands
        ctx.set_materialize_grads(False)
        return tuple([one.detach() for one in found])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        found, own, operands = ctx.run
        given = [(one, gradient) for one, gradient in zip(found, gradients, strict=True) if gradient is not None]
        if not given:
            return (None,) * (3 + len(own) + len(operands))
        create_graph = torch.is_grad_enabled()
        with _ending_at(own):
            theirs = torch.autograd.grad(
                [one for one, _ in given], [*operands, *own], [gradient for _, gradient in given], allow_unused=True,
                create_graph=create_graph, retain_graph=create_graph or graph_is_retained(),
            )  # fmt: skip
        return (None, None, None, *theirs)


@contextmanager
def _ending_at(results: Sequence[Any]) -> Iterator[None]:
    """Let no gradient flow on from results."""
    ends: dict[Any, set[int]] = {}
    for result in results:
        ends.setdefault(result.grad_fn, set()).add(result.output_nr)

    def ending(places: set[int]) -> Any:
        return lambda gradients: tuple([None if k in places else g for k, g in enumerate(gradients)])

    handles = [node.register_prehook(ending(places)) for node, places in ends.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
