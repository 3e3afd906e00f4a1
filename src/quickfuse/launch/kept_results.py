"""Gradients of gradients that lead to results of a call.

In eager, what an operator has kept of its own result, as `exp` does, or of another's, is that very tensor: second
derivatives that flow to it are part of its gradient, are seen by its hooks, and go on from there. Here gradients of
gradients are those of the captured graph that has run once more, and the program has other tensors than that run. So where
they lead to results that the program still has, the gradients that a run gives have one node above it (`_Above`), with an
edge to each of these. In the run, what flows to that result ends there, and goes along the edge.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks

from ..ir.endings import OwnReference
from ..ir.gradients import end_here
from .several_results import HOOKS, SECOND_TIME


class Led(NamedTuple):
    """A tensor with the edge of a result in autograd's graph: the result, or (`lasts`) one without memory in its place.
    `watched`: the result has hooks or retains its gradient."""

    tensor: torch.Tensor
    watched: bool
    lasts: bool


def living_results(node: Any, call: Any) -> dict[int, Led]:
    """The differentiable results of a call that the program still has, or whose hooks may still be called, by number, but
    for those with nodes of their own above the call's. `node` is the call's own, or what stands for those of its results
    (see `autograd_nodes`)."""
    if isinstance(node, torch._C._FunctionBase):
        return {call.differentiable.index(k): led for k, led in led_to_results(node, node.results).items()}
    nodes = [one for reference in node.results if (one := reference()) is not None]
    return {one.numbers[k]: led for one in nodes for k, led in led_to_results(one, one.results).items()}


def led_to_results(node: Any, references: Iterable[Any]) -> dict[int, Led]:
    """Those of a node's results that are still there, and have not been changed in place since, or, where the node tells
    its edges, that have hooks. `references` are those to its results."""
    living = [t for reference in references if (t := reference()) is not None and t.grad_fn is node]
    found = {t.output_nr: _led_to(t) for t in living}
    if "tells_edges" in node.__dict__:
        hooked = {k for k, hooks in node.__dict__[HOOKS].items() if hooks}
        with suppress(RuntimeError):  # where a backward has freed them
            for k, edge in enumerate(node.saved_tensors):
                if k in hooked or k in found:
                    found[k] = Led(edge, k in hooked or found[k].watched, True)
    return found


def telling_edges() -> Any:
    """Within this, nodes that are made save the edges of their results, and nothing of what these hold: of its own result, a
    node has saved a tensor with the way to it, also once that is gone."""
    return saved_tensors_hooks(_kind_of, _of_kind) if _hooks_are_allowed() else nullcontext()


def tell_edges(node: Any, results: Sequence[torch.Tensor]) -> None:
    """Save the edges of a node's results, within `telling_edges`, and note their hooks when they get some."""
    if _hooks_are_allowed():
        node.save_for_backward(*results)
        node.tells_edges = True
        node.__dict__.setdefault(HOOKS, {})


def _kind_of(tensor: torch.Tensor) -> Any:
    return tensor.shape, tensor.dtype, tensor.device


def _of_kind(kind: Any) -> torch.Tensor:
    shape, dtype, device = kind
    return torch.zeros((), dtype=dtype, device=device).expand(shape)


def led_through(
    found: Sequence[Any], operands: Sequence[torch.Tensor], results: Sequence[tuple[torch.Tensor, Led]]
) -> list[Any]:
    """Gradients that a run of the captured graph gave, which lead to results of a call. `operands` are what the run began
    from that requires gradients; `results` are pairs of a result in that run and the program's own."""
    places = [k for k, g in enumerate(found) if g is not None and g.requires_grad]
    begun = {_edge(t): t for t in operands}
    ends = {_edge(mine): (mine, t) for mine, t in results if mine.grad_fn is not None}
    ends = {edge: pair for edge, pair in ends.items() if edge not in begun}
    if not places or not ends:
        return [*found]
    reached, apart = _reached([_edge(found[k]) for k in places], begun.keys() | ends.keys())
    if reached.isdisjoint(ends) or (apart and not any(led.watched for _, led in ends.values())):
        return [*found]
    led_to = [t for edge, t in begun.items() if edge in reached]
    own, theirs = zip(*[pair for edge, pair in ends.items() if edge in reached], strict=True)
    given = [led if led.lasts else OwnReference(led.tensor) for led in theirs]
    made = _Above.apply([found[k] for k in places], led_to, own, given, *led_to, *[led.tensor for led in theirs])
    outcome = [*found]
    for k, one in zip(places, made, strict=True):
        outcome[k] = one
    return outcome


def _has_several_results(node: Any) -> bool:
    """Whether a node is of a function of the program's that has several results: its backward, which may be other than
    linear, has to see all their gradients at once."""
    is_own = isinstance(node, torch._C._FunctionBase) and not isinstance(node, _Above)
    return is_own and len(node._input_metadata) > 1


def _edge(tensor: torch.Tensor) -> tuple[Any, int]:
    edge = get_gradient_edge(tensor)
    return edge.node, edge.output_nr


def _reached(begin: Sequence[tuple[Any, int]], ends: Any) -> tuple[set[tuple[Any, int]], bool]:
    """The ends that autograd's graph leads to, not through other ends, and whether a function with several results is on
    the way."""
    reached: set[tuple[Any, int]] = set()
    seen: set[Any] = set()
    waiting = [*begin]
    while waiting:
        edge = waiting.pop()
        node = edge[0]
        if edge in ends:
            reached.add(edge)
        elif node is not None and node not in seen:
            seen.add(node)
            waiting += node.next_functions
    return reached, any(map(_has_several_results, seen))


def _led_to(tensor: torch.Tensor) -> Led:
    return Led(tensor, bool(tensor._backward_hooks) or tensor.retains_grad, False)


class _Above(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, found: list[Any], operands: Sequence[Any], own: Sequence[Any], theirs: Sequence[Any], *_: Any
    ) -> Any:
        ctx.run = found, operands, own, theirs
        ctx.set_materialize_grads(False)
        return tuple([one.detach() for one in found])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if ctx.run is None:
            raise RuntimeError(SECOND_TIME)
        found, operands, own, theirs = ctx.run
        given = [(one, gradient) for one, gradient in zip(found, gradients, strict=True) if gradient is not None]
        if not given:
            return (None,) * (4 + len(operands) + len(own))
        create_graph = torch.is_grad_enabled()
        if not (create_graph or _graph_is_retained()) and len(given) == len(found):
            ctx.run = None
        # What flows to one of the ends may lead to another one, but goes there along the edges. The run is freed with the
        # last node above it: each needs what all have in common.
        with ending_at([*operands, *own]):
            second = torch.autograd.grad(
                [one for one, _ in given], [*operands, *own], [gradient for _, gradient in given], allow_unused=True,
                create_graph=create_graph, retain_graph=True,
            )  # fmt: skip
        if create_graph:
            pairs = zip(own, theirs, strict=True)
            now = [(mine, one if isinstance(one, Led) else one()) for mine, one in pairs]
            known = [(mine, one) for mine, one in now if isinstance(one, Led) or (one is not None and one.requires_grad)]
            results = [(mine, one if isinstance(one, Led) else _led_to(one)) for mine, one in known]
            others = [gradient for _, gradient in given if gradient.requires_grad]
            second = led_through(second, [*operands, *others], results)
        return (None, None, None, None, *second)


@contextmanager
def ending_at(tensors: Iterable[Any]) -> Iterator[None]:
    """Let no gradient flow on from tensors."""
    ends: dict[Any, set[int]] = {}
    for tensor in tensors:
        if tensor.grad_fn is not None:
            ends.setdefault(tensor.grad_fn, set()).add(tensor.output_nr)

    def ending(places: set[int]) -> Any:
        def without(gradients: Sequence[Any]) -> Any:
            end_here()
            return tuple([None if k in places else g for k, g in enumerate(gradients)])

        return without

    handles = [node.register_prehook(ending(places)) for node, places in ends.items()]
    # A function of the program's may take nothing for zeros, and make something of these.
    handles += [
        node.register_hook(lambda given, _: (None,) * len(given))
        for node in ends
        if isinstance(node, torch._C._FunctionBase) and len(node._input_metadata) == 1
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


_hooks_are_allowed = torch._C._autograd._saved_tensors_hooks_is_enabled  # type: ignore[attr-defined]
_graph_is_retained = torch._C._autograd._get_current_graph_task_keep_graph
