"""What a joined forward returns, and how the captured graph's outputs are made of that.

Outputs that are views of inputs, or of each other, are no results of their own: eager makes them from what they are views
of, so that memory is shared and autograd knows about it, as in an eager run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from ..errors import Unsupported
from ..ir.gradients import Given
from .recorder import LAZY
from .traced import TracedTensor

_MANY = frozenset({
    torch.ops.aten.split.Tensor, torch.ops.aten.split_with_sizes.default, torch.ops.aten.unbind.int,
})  # fmt: skip
_WITHOUT_GRADIENTS = (torch._C._autograd.CreationMeta.NO_GRAD_MODE, torch._C._autograd.CreationMeta.INFERENCE_MODE)
_AS_REAL = torch.ops.aten.view_as_real.default


class OutputPlan:
    """`tensors` are the results of forward; `differentiable` those (by number) with gradients, and `groups` has a number for
    each of these: those of different groups have no node of autograd's graph in common. `numbers` are the nodes of numbers
    out of tensors, which forward returns after the tensors; `results` has an entry for each output of the captured graph."""

    def __init__(self, outputs: list[Any], number_node: Callable[[Any], Node | None]) -> None:
        """`outputs` are traced tensors and numbers: nodes, or what `number_node` finds a node for."""
        self.tensors: list[TracedTensor] = []
        self.numbers: list[Node] = []
        self.results: list[Given] = []
        self._index: dict[int, int] = {}
        groups: dict[int, list[TracedTensor]] = {}
        for output in outputs:
            if type(output) is TracedTensor:
                groups.setdefault(id(output.memory), []).append(output)
                continue
            number = output if isinstance(output, Node) else number_node(output)
            if number is None:
                raise Unsupported("an output that is neither a tensor nor a number of its own")
            self.numbers.append(number)
        self._groups = groups
        given = [self._given(output) if type(output) is TracedTensor else None for output in outputs]
        later = iter(range(len(self.tensors), len(self.tensors) + len(self.numbers)))
        self.results = [g if g is not None else Given(next(later), with_grad=False) for g in given]
        self.differentiable = [k for k, t in enumerate(self.tensors) if t.requires_grad]
        self.groups: list[int] = []

    def _given(self, output: TracedTensor) -> Given:
        memory = output.memory
        if is_mixed(output):
            raise Unsupported("an output that is a part of conjugated numbers")
        if memory.input is not None:
            return Given(memory.input, output.path, True, _with_grad(output))
        group = {id(t): t for t in self._groups[id(memory)]}.values()
        if len(group) > 1 or is_lazy(output):
            base = next((t for t in group if not t.path and t.seen == memory.version), None)
            base = _hidden_base(output) if base is None else base
            if base is not None:
                if output is not base and output.requires_grad and not base.requires_grad:
                    raise Unsupported("a view with gradients of an output without")
                return Given(self._number(base), output.path, False, _with_grad(output))
            if not all(t.path and t.path[:-1] == output.path[:-1] and t.path[-1].function in _MANY for t in group):
                raise Unsupported("outputs that are views of one hidden tensor")
        return Given(self._number(output))

    def _number(self, tensor: TracedTensor) -> int:
        if id(tensor) not in self._index:
            self._index[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
        return self._index[id(tensor)]

    def find_groups(self) -> None:
        """Find what has nothing in common but inputs: backward from one of them leaves to the others what they need."""
        groups = [*range(len(self.differentiable))]
        owner: dict[Any, int] = {}
        for mine, number in enumerate(self.differentiable):
            waiting = [self.tensors[number].grad_fn]
            while waiting:
                node = waiting.pop()
                if node is None or hasattr(node, "variable"):  # an input
                    continue
                if node not in owner:
                    owner[node] = mine
                    waiting += [f for f, _ in node.next_functions]
                elif groups[owner[node]] != groups[mine]:
                    other = groups[owner[node]]
                    groups = [groups[mine] if group == other else group for group in groups]
        self.groups = groups


def _with_grad(output: TracedTensor) -> bool:
    """Whether a view is made with gradients: of what needs none too, as PyTorch refuses to change in place with gradients
    what was made without."""
    base = output._base
    if output.requires_grad or base is None or base.requires_grad:
        return output.requires_grad
    return torch._C._autograd._get_creation_meta(output) not in _WITHOUT_GRADIENTS


def is_lazy(tensor: TracedTensor) -> bool:
    """Whether eager conjugates or negates a tensor's elements when it reads them."""
    return bool(tensor.path) and any(sum(step.function is function for step in tensor.path) % 2 for function in LAZY)


def is_mixed(tensor: TracedTensor) -> bool:
    """Whether a tensor shows the parts of conjugated complex numbers: eager gets there in another way."""
    functions = [step.function for step in tensor.path]
    return _AS_REAL in functions and any(f in LAZY for f in functions[: functions.index(_AS_REAL)])


def _hidden_base(output: TracedTensor) -> TracedTensor | None:
    """The tensor that an output is a view of, which is no output itself."""
    base = output._base
    known = type(base) is TracedTensor and not base.path and base.memory is output.memory
    return base if known and base.requires_grad == output.requires_grad else None
