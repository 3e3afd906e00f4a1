"""Calls inside of a `torch.autocast` block that the program entered before them.

PyTorch converts a weight once in such a block and goes on with that copy until the outermost block ends, also where the
weight was changed meanwhile. Compiled code converts weights in each call, which gives the same as long as they are as they
were at the block's first call. Where they are not, eager runs; and so does a block's first call until a block has ended
in which they stayed as they were, so that eager has the copies that it would have.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import logs
from ..ir.modes import in_grad_mode

_sentinels = threading.local()


def _copy_of_sentinel(device: torch.device) -> Any:
    """A node of autograd that is the same one as long as PyTorch keeps its converted copies: that which converts a tensor
    without elements. None where it keeps none."""
    known: dict[torch.device, torch.Tensor] = _sentinels.__dict__.setdefault("tensors", {})
    if device not in known:
        with torch.inference_mode(False):
            known[device] = torch.zeros(0, 0, device=device).requires_grad_()
    node = in_grad_mode(True, torch.mm, known[device], known[device]).grad_fn
    return None if node is None else node.next_functions[0][0]


class AroundAutocast:
    """A compiled graph, or the same in eager where that goes on with other copies of weights.

    `weights` are those tensors of the graph's inputs of which autocast keeps converted copies.
    """

    def __init__(
        self, compiled: Callable[..., Any], in_eager: Callable[..., Any], weights: list[int], device: torch.device
    ) -> None:  # fmt: skip
        self.compiled = compiled
        self.in_eager = in_eager
        self.weights = weights
        self.device = device
        #: The sentinel's copy in the last block, and how often the weights had been changed at its first call.
        self.copy: Any = None
        self.versions: list[int] = []
        #: Whether a block has ended without changes of weights, and whether there was one with changes.
        self.unchanged = False
        self.changed = False

    def __call__(self, tensors: Sequence[Any], *numbers: Any) -> Any:
        return (self.compiled if self._converts_alike(tensors) else self.in_eager)(tensors, *numbers)

    def _converts_alike(self, tensors: Sequence[Any]) -> bool:
        if not torch.is_autocast_cache_enabled() or torch.is_inference_mode_enabled():
            return True  # eager converts in each call, too
        if self.changed:
            return False
        copy, versions = _copy_of_sentinel(self.device), [tensors[k]._version for k in self.weights]
        if copy is not self.copy:
            self.unchanged |= self.copy is not None
            self.copy, self.versions = copy, versions
            return self.unchanged
        if versions == self.versions:
            return True
        self.changed = True
        logs.emit("graph_breaks", "a graph runs operator by operator: weights change within the autocast block around its "
                  "calls, and autocast goes on with converted copies of the old ones")  # fmt: skip
        return False
