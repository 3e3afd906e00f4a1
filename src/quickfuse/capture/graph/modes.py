"""Autocast, the choice of attention's kernels, and inference mode in the captured program.

`torch.autocast`: what PyTorch's own context managers, which are Python and captured as such, come down to.

The captured program has an autocast state of its own. Nodes bring the running graph to it, in the program's order and
only in front of an operator; what no operator came after is done when the segment ends. Results are found out with
PyTorch's settings as the program has them at that place, so that their types are what autocast makes of them.

`torch.inference_mode`: the tensors that operators make inside of it know nothing of autograd. Where all operators of a graph
are inside, the graph runs inside as a whole; otherwise nodes switch. Kernels give plain tensors: where no gradients are
needed, results that were made inside are made such tensors at the end, and otherwise there may be none.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import Node

from ...errors import Unsupported
from ...ir.modes import ATTENTION, AUTOCAST_DEVICES, enter_inference, leave_inference
from ...ir.sharing import base_of, counter_of
from ...ir.values import TensorMeta
from ..symbolic.raising import SuspendedInside
from .builder import Builder


class Autocast:
    """The autocast state of the captured program: `settings` has what differs from the process's own."""

    def __init__(self) -> None:
        self.settings: dict[tuple[Any, ...], Any] = {}
        #: Calls that bring PyTorch to this state, for which no node was made yet.
        self.pending: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        #: Whether an operator ran while some device was set to autocast, and whether one was when the segment began.
        self.was_active = False
        self.began_active = torch._C._is_any_autocast_enabled()
        self._around = self._any_enabled()
        #: Whether the captured program said which kernels of attention are allowed.
        self.chose_attention = False

    def get(self, *question: Any) -> Any:
        """A setting: ("enabled", device), ("dtype", device), ("cache",) or (one of `ATTENTION`,)."""
        return self.settings[question] if question in self.settings else _SETTINGS[question[0]][0](*question[1:])

    def set(self, value: Any, *question: Any) -> None:
        self.settings[question] = value
        self.chose_attention |= question[0] in ATTENTION
        self.pending.append((_SETTINGS[question[0]][1], (*question[1:], value)))

    def all_settings(self) -> list[Any]:
        """What `get` answers, for all questions."""
        devices = [(name, device) for name in ("enabled", "dtype") for device in AUTOCAST_DEVICES]
        return [self.get(*question) for question in [*devices, ("cache",), *[(name,) for name in ATTENTION]]]

    @property
    def is_active(self) -> bool:
        return self._any_enabled() if self.settings else self._around

    def _any_enabled(self) -> bool:
        return any(self.get("enabled", device) for device in AUTOCAST_DEVICES)

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """PyTorch's own state is that of the captured program meanwhile."""
        before = {question: _SETTINGS[question[0]][0](*question[1:]) for question in self.settings}
        try:
            for question, value in self.settings.items():
                _SETTINGS[question[0]][1](*question[1:], value)
            yield
        finally:
            for question, value in before.items():
                _SETTINGS[question[0]][1](*question[1:], value)
            if self.settings and not torch._C._is_any_autocast_enabled():
                torch.clear_autocast_cache()

    def sync(self, graph: Builder) -> None:
        """Make nodes of what is pending: an operator comes next. Where autocast is off, and was all along, it runs as
        without them."""
        if not (self.is_active or self.was_active or self.began_active or self.chose_attention):
            return
        for function, arguments in self.pending:
            graph.mode_node(function, arguments)
        self.pending.clear()
        self.was_active |= self.is_active


#: What tells each setting, and what sets it.
_SETTINGS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "enabled": (torch.is_autocast_enabled, torch.set_autocast_enabled),
    "dtype": (torch.get_autocast_dtype, torch.set_autocast_dtype),
    "cache": (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    **ATTENTION,
}


def guard_surroundings(guard: Callable[..., None]) -> None:
    """A segment that begins where autocast is on holds for the same settings."""
    if not torch._C._is_any_autocast_enabled():
        return
    for device in AUTOCAST_DEVICES:
        guard("state", None, (f"torch.is_autocast_enabled({device!r})", torch.is_autocast_enabled(device)))
        guard("state", None, (f"torch.get_autocast_dtype({device!r})", torch.get_autocast_dtype(device)))
    guard("state", None, ("torch.is_autocast_cache_enabled()", torch.is_autocast_cache_enabled()))
    if not any(torch.is_autocast_enabled(device) for device in AUTOCAST_DEVICES):
        raise Unsupported("autocast for another device than the CPU or a CUDA GPU")


class ChangedSettings:
    """Settings of the process that the captured program has changed."""

    def __init__(self) -> None:
        #: What questions about them are answered with, by their names in Python.
        self.answers: dict[str, Any] = {}
        #: The changes after which no operator came.
        self.pending: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        #: Whether an operator came after one.
        self.in_graph = False

    def sync(self, graph: Builder) -> None:
        """Make nodes of what is pending: an operator comes next."""
        for function, arguments in self.pending:
            graph.mode_node(function, arguments)
            self.in_graph = True
        self.pending.clear()


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
        #: The inputs that results are views of, where all runs in inference mode: none requires gradients.
        self.viewed: list[Node] = []
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

    def check_left(self, graph: Builder, halts: bool) -> None:
        """A segment does not end inside, where its graph could not go on; `halts`: its graph has run that far already."""
        if self.entered_at and not (halts and graph.grad_enabled is not self.on):
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

    def finish(self, graph: Builder, outputs: Sequence[Node]) -> bool:
        """The graph is complete. Returns whether it is to run in inference mode as a whole."""
        self._flush(graph)
        if self._at_start:
            if False in self._operators:
                graph.only_pytorch = "a result made in inference mode"
            return False
        if True not in self._operators:
            return False
        if False in self._operators:
            if not graph.differentiable and _may_be_marked(graph, outputs):
                return False
            if any(map(_was_made_inside, outputs)):
                graph.only_pytorch = "a result made in inference mode"
            elif not graph.only_pytorch:
                graph.only_pytorch = "inference mode for a part of it"
            return False
        seen = [node for node in outputs if node.op != "placeholder" and counter_of(node).op == "placeholder"]
        viewed = dict.fromkeys(map(base_of, seen))
        if any(node.op != "placeholder" or getattr(node.meta["val"], "requires_grad", True) for node in viewed):
            graph.only_pytorch = "a view made in inference mode"  # which autograd takes for a leaf
            return False
        self.viewed = [*viewed]
        for node in list(graph.graph.nodes):
            if node.target in (enter_inference, leave_inference):
                graph.graph.erase_node(node)
        return True


def _was_made_inside(node: Node) -> bool:
    """Whether a tensor may have been made in inference mode, or be a view of one that was."""
    while True:
        if node.meta.get("inference"):
            return True
        if "view_of" in node.meta:
            node = node.meta["view_of"][0]
        elif node.target is operator.getitem and isinstance(node.args[0], Node):
            node = node.args[0]
        else:
            return False


def _may_be_marked(graph: Builder, outputs: Sequence[Node]) -> bool:
    """Whether it is enough to make inference tensors of those results of a graph that were made in inference mode: nothing
    that was made there is changed in place, or has a view among the results."""
    for node in graph.root.nodes:
        effects = node.meta.get("effects")
        if effects is not None and effects.written:
            return False
    tensors = [node for node in outputs if isinstance(node.meta.get("val"), TensorMeta)]
    made_inside = [node for node in tensors if _was_made_inside(node)]
    bases = [base_of(node) for node in tensors]
    return all("view_of" not in node.meta and bases.count(node) == 1 for node in made_inside)
