"""`torch.inference_mode`: the tensors that operators make inside of it know nothing of autograd.

Where all operators of a graph are inside, the graph runs inside as a whole; otherwise nodes switch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..errors import Unsupported
from ..ir.modes import enter_inference, leave_inference
from .builder import Builder


class Inference:
    """Whether the captured program is in inference mode, and how it got there."""

    def __init__(self) -> None:
        self.on = self._at_start = torch.is_inference_mode_enabled()
        #: How many instructions came before the making of the last context, and of those that are active.
        self.made_at = 0
        self.entered_at: list[int] = []
        self._before: list[tuple[bool, bool]] = []
        self._pending: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self._operators: set[bool] = set()
        #: The grad modes of the running graph around the blocks that it is in: leaving one brings its own back.
        self._emitted: list[bool] = []

    def enter(self, graph: Builder, mode: bool) -> None:
        self._before.append((self.on, graph.grad_enabled))
        self.entered_at.append(self.made_at)
        self.on, graph.grad_enabled = mode, not mode
        self._pending.append((enter_inference, (mode,)))

    def leave(self, graph: Builder) -> None:
        if not self._before:
            raise Unsupported("leaving an inference mode that began outside")
        self.on, graph.grad_enabled = self._before.pop()
        self.entered_at.pop()
        if self._pending and self._pending[-1][0] is enter_inference:
            self._pending.pop()
        else:
            self._pending.append((leave_inference, ()))

    def check_left(self) -> None:
        """A segment cannot end inside: what leads out again is an object of PyTorch's that only a native call makes."""
        if self.entered_at:
            raise SuspendedInside(self.entered_at[0])

    def sync(self, graph: Builder) -> None:
        """Make nodes of what is pending: an operator comes next."""
        self._flush(graph)
        self._operators.add(self.on)

    def _flush(self, graph: Builder) -> None:
        for function, arguments in self._pending:
            graph.mode_node(function, arguments)
            if function is enter_inference:
                self._emitted.append(graph.emitted_grad)
                graph.emitted_grad = not arguments[0]
            else:
                graph.emitted_grad = self._emitted.pop()
        self._pending.clear()

    def finish(self, graph: Builder) -> bool:
        """The graph is complete. Returns whether it is to run in inference mode as a whole."""
        self._flush(graph)
        if self._at_start or True not in self._operators:
            return False
        if False in self._operators:
            graph.only_pytorch = "inference mode for a part of it"
            return False
        for node in list(graph.graph.nodes):
            if node.target in (enter_inference, leave_inference):
                graph.graph.erase_node(node)
        return True


class SuspendedInside(Unsupported):
    """The segment would end where it must not, such as in inference mode: it is to end after `stop_at` instructions, before
    that began."""

    def __init__(self, stop_at: int, reason: str = "a break in inference mode") -> None:
        super().__init__(reason)
        self.stop_at = stop_at
