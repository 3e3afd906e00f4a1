"""Results and inputs of a compiled call that a program changes through their `data`, between two graphs.

Autograd notices no such change: backward reads what it has saved as it is by then. A compiled backward has saved others,
and computes from them what eager has saved. So before the program gets hold of the `data`, the captured graph runs once
more, with autograd. It saves its inputs, which are the program's own, and results of its own: backward first copies to them
what those of the program hold by then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ..ir.data_writes import node_of_call
from ..ir.endings import OwnReference


def note_results(call: Any, made: Iterable[Any]) -> None:
    """Note on a call's node which tensors the program has got."""
    node = node_of_call(call, made)
    if node is not None:
        node.handed_out = [OwnReference(t) if isinstance(t, torch.Tensor) else None for t in made]


def follow(call: Any, node: Any, tensor: torch.Tensor) -> bool:
    """Run a call's graph once more, if backward may need what a tensor holds. Returns whether it has run."""
    results = [None if reference is None else reference() for reference in node.handed_out]
    inputs = [*node.strong, *[reference() for reference in node.weak]]
    is_input = _has_memory_of(tensor, inputs)
    if not is_input and not _has_memory_of(tensor, [results[k] for k in call.kept_results]):
        return False
    try:
        if node.shared is None:
            _ = node.saved_tensors  # raises where a backward has freed them, or they were changed
        elif not node.shared.sharing.left(node.shared.done):
            return False  # a backward has freed them
        # Gradients with a graph of their own take one run. It cannot be made later where the inputs are others by then.
        node.again = [_Again(call, node, results) for _ in range(1 + is_input)]
    except RuntimeError:
        return False  # so will backward
    return True


def _has_memory_of(tensor: torch.Tensor, others: Iterable[Any]) -> bool:
    address = tensor.untyped_storage().data_ptr()
    return any(other is not None and other.untyped_storage().data_ptr() == address for other in others)


class _Again:
    """A run of a call's graph in eager: its outputs, the inputs to take gradients by, and for outputs the `results` of the
    call in whose place they stand, with the count of their changes."""

    def __init__(self, call: Any, node: Any, results: Sequence[Any]) -> None:
        self.outputs, self.inputs = call.run_again(node, call.run, range(len(call.differentiable)))
        self.results = [
            None if result is None or output is result or result.is_inference() else (result.detach(), result._version)
            for output, result in zip(self.outputs, results, strict=True)
        ]

    def once_more(self, call: Any, node: Any) -> _Again:
        """Another run, for the same results."""
        made = _Again(call, node, [None] * len(self.results))
        made.results = self.results
        return made

    def update(self) -> None:
        """Let the outputs hold what the program's results hold, and be changed where those were."""
        for output, result in zip(self.outputs, self.results, strict=True):
            if result is not None:
                current, version = result
                output.data.copy_(current)
                if current._version != version:
                    torch._C._increment_version([output])


def gradients(call: Any, node: Any, asked: Sequence[int], given: Sequence[Any], retained: bool) -> list[Any]:
    """The gradients of a call by what `follow` has run."""
    runs: list[_Again] = node.again
    create_graph = torch.is_grad_enabled()
    if create_graph and len(runs) == 1:  # a backward through these gradients frees what they are computed from
        with contextlib.suppress(RuntimeError):
            runs.append(runs[0].once_more(call, node))
    again = runs.pop(0) if create_graph and len(runs) > 1 else runs[0]
    again.update()
    found: list[Any] = call.gradients_of(again.outputs, again.inputs, asked, given, create_graph, retained or create_graph)
    return found
