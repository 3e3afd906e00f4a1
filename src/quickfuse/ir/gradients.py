"""A captured graph that needs gradients, as two graphs: forward, and backward."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import starmap
from operator import call
from types import FunctionType
from typing import Any

import torch
from torch.fx import Graph, Node

from ..errors import Unsupported
from .values import NumberMeta, TensorMeta


def replacing_grad(
    outputs: Any, inputs: Any, replaced: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], **options: Any
) -> tuple[torch.Tensor | None, ...]:
    """`torch.autograd.grad(outputs, inputs, **options)`, where the `gradients` take the place of those that flow to the
    tensors `replaced`: what hooks have made of them. The graph calls these itself: hooks that some of the tensors have are
    not called."""
    aside = [hooks for tensor in (*inputs, *replaced) if (hooks := tensor._backward_hooks)]
    # In one call: a signal handler may raise between two, and the hooks that are not back by then would be lost.
    steps: list[Any] = [(OrderedDict.clear, hooks) for hooks in aside]
    steps += [(OrderedDict.__setitem__, hooks, key, hook) for hooks in aside for key, hook in hooks.items()]
    putting_back = starmap(call, steps)
    handles = []
    try:
        for hooks in aside:
            hooks.clear()
        for tensor, made in zip(replaced, gradients, strict=True):
            handles.append(tensor.register_hook(lambda _, made=made: made))  # type: ignore[misc]
        return torch.autograd.grad(outputs, inputs, **options)
    finally:
        deque(putting_back, 0)
        for handle in handles:  # on tensors that had no hooks
            handle.remove()


def registering(hook: Callable[..., Any]) -> FunctionType:
    """A function of a tensor, and of what a hook uses besides its gradient, that registers the hook."""

    def register_hook(tensor: torch.Tensor, brought_in: Any) -> None:
        tensor.register_hook(lambda gradient: None if _is_nothing(gradient) else hook(gradient, brought_in))

    register_hook.__dict__[_REGISTERS] = True
    return register_hook  # type: ignore[return-value]


def end_here() -> None:
    """Note that a node passes on nothing in the backward that runs, as gradients go another way than through the graph from
    there on: autograd calls hooks after it all the same."""
    task = torch._C._current_graph_task_id()
    if task not in _ending:
        _ending.add(task)
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(lambda: _ending.discard(task))


def _is_nothing(gradient: Any) -> bool:
    return gradient is None and torch._C._current_graph_task_id() in _ending


_ending: set[int] = set()

_REGISTERS = "__quickfuse_registers__"


def registers_hook(target: Any) -> bool:
    """Whether a node's target registers a hook."""
    return type(target) is FunctionType and _REGISTERS in target.__dict__


def takes_gradients(node: Node) -> bool:
    """Whether a node of a captured graph is `torch.autograd.grad`, of whose results some may be replaced on the way."""
    return node.target is torch.autograd.grad or node.target is replacing_grad


def has_own_gradients(node: Node) -> bool:
    """Whether a call is meant to stay one: of a `torch.autograd.Function`, a checkpoint, a transform of `torch.func`."""
    is_function = isinstance(node.target, FunctionType) and not (node.target.__module__ or "").startswith("torch")
    return is_function and not takes_gradients(node)


class UnsupportedAt(Unsupported):
    """Differentiation stops at one `node` of the captured graph."""

    def __init__(self, reason: str, node: Node) -> None:
        super().__init__(reason)
        self.node = node


class GradientsOfResults(Unsupported):
    """Python is to take gradients to what the graph has computed. To autograd, results of one graph's kernels do not depend
    on each other."""


class NodeAsked(Unsupported):
    """Python looks at the node of autograd that made a result of the graph, which has to run as PyTorch's operators."""


class NothingToDifferentiate(Unsupported):
    """Operands need gradients, and no result does: the graph may be compiled as if nothing did."""


class Unfit(Exception):
    """A compiled half cannot run for these values: a number is too large, an element is one that eager refuses, or an
    operator returned another shape or type than it says. Eager is to run instead."""


class Refused(Unfit):
    """The same, found out before any input was changed."""


#: The strides of gradients that have their axes in another order than the results, by the numbers of these.
Layouts = tuple[tuple[int, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class Step:
    """A view operator: `function(tensor, *args, **kwargs)`, or entry `index` of the list that it returns, with gradients or
    (`with_grad`) without, as under `torch.no_grad()`."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()
    index: int | None = None
    with_grad: bool = True

    def __call__(self, tensor: Any) -> Any:
        made = self.function(tensor, *self.args, **dict(self.kwargs))
        return made if self.index is None else made[self.index]


@dataclass(frozen=True, slots=True)
class Given:
    """Where an output of the captured graph comes from: an output of the forward graph, or an input (`of_input`), seen
    through view operators that eager is to perform. `with_grad`: it has gradients, or may get some by a change in place.
    `leaf`: it begins to require gradients."""

    index: int
    path: tuple[Step, ...] = ()
    of_input: bool = False
    with_grad: bool = True
    leaf: bool = False

    def begins_with(self, other: Given) -> bool:
        """Whether the other one is on the way to this one."""
        same = (self.index, self.of_input) == (other.index, other.of_input)
        return same and len(other.path) < len(self.path) and self.path[: len(other.path)] == other.path

    def seen_from(self, tensor: Any, begin: int = 0) -> Any:
        """This output, as a view of what it is one of by the steps from `begin` on."""
        before = enabled = torch.is_grad_enabled()
        try:
            for step in self.path[begin:]:
                if step.with_grad is not enabled:
                    enabled = step.with_grad
                    torch._C._set_grad_enabled(enabled)
                tensor = step(tensor)
        finally:
            torch._C._set_grad_enabled(before)
        return tensor


@dataclass(frozen=True, slots=True)
class Saved:
    """A tensor that forward keeps for backward: the input or the output of the forward graph with this index."""

    index: int
    of_input: bool


@dataclass(eq=False, slots=True)
class Dependence:
    """Which results are computed from others. `graph` is the captured graph.

    `behind` has, for each differentiable output by its number, the outputs of the captured graph, by position, that it is
    computed from by a way that leads through no other. `parents` are the outputs that others are views of, where they are
    views themselves. `ends` has the node of the captured graph from which on each of all these is no more changed. `saving`
    are the numbers of those for which eager saves tensors on the way to others.
    """

    graph: Graph
    behind: dict[int, list[int]]
    parents: dict[int, int]
    ends: dict[int, Node]
    saving: frozenset[int]


@dataclass(eq=False, slots=True)
class Differentiated:
    """Two graphs of ATen operators, without views of inputs as outputs and without changes in place but at the end.

    `forward` has the captured graph's placeholders. It returns `outputs` for the user, numbers out of tensors last, and then
    what is saved only; its last nodes copy new contents into inputs that the graph changes. `differentiable` are the outputs
    (by number) that have gradients. For each of these, by number among them, `reached` has the indices in `wanted` that it
    has gradients to, and `clashing` those with which it cannot be differentiated one after the other, as they have a node
    in common in eager that saves tensors; `latest_first` are all these numbers in the order in which autograd visits what
    computed them in eager, where nothing else decides. `needed_by` has those that need each saved tensor.

    `backward` has placeholders for the saved tensors, for the numbers (by the positions `numbers` of the captured inputs)
    and for the gradients of the differentiable outputs, of layout `tangents`. It returns the gradients of `wanted`, the
    inputs that need one, None for those without; `order` are indices in `wanted`, in the order in which eager has the
    gradients.

    `results` tell the outputs of the captured graph. `draws` says that forward draws random numbers. `saved_bytes` and
    `eager_bytes` count the memory that backward keeps alive, here and in eager, inputs not counted. `variant` makes the
    backward graph for given differentiable outputs (by their number among these) without a gradient, and, with `moved`, for
    inputs that may have got other memory since forward: then it has placeholders for the inputs as backward finds them, too,
    with numbers after those of all saved tensors; and for gradients of outputs in other `Layouts`.
    `backward` takes no gradient for outputs in `used_up`, whose gradients the graph has taken itself: it has the message of
    what backward raises for them. `in_memory` are the saved tensors of which backward reads the memory that they had in
    forward, whatever the program has set as their `data` since.
    `mutated` are the inputs that the graph changes, `read_before` those of them on whose old contents gradients depend.
    `kept_inputs` are inputs without gradients that eager saves for backward, that of the graph itself among others;
    `kept_operands` are all inputs, and `kept_results` all outputs of the captured graph, of which eager saves something.
    `dependence` says which results are computed from others, None if none is, or if it is not to be followed.
    `has_tail`: forward ends with operators as they were captured, which change tensors in place.
    """

    forward: Graph
    backward: Graph
    outputs: list[TensorMeta | NumberMeta]
    differentiable: list[int]
    reached: list[frozenset[int]]
    clashing: list[frozenset[int]]
    saved: list[Saved]
    needed_by: list[frozenset[int]]
    numbers: list[int]
    tangents: list[TensorMeta]
    wanted: list[int]
    results: list[Given]
    mutated: list[int] = field(default_factory=list)
    draws: bool = False
    saved_bytes: int = 0
    eager_bytes: int = 0
    variant: Callable[[frozenset[int], bool, Layouts], Variant] | None = None
    used_up: dict[int, str] = field(default_factory=dict)
    has_tail: bool = False
    order: list[int] = field(default_factory=list)
    read_before: list[int] = field(default_factory=list)
    kept_inputs: list[int] = field(default_factory=list)
    kept_operands: list[int] = field(default_factory=list)
    kept_results: list[int] = field(default_factory=list)
    latest_first: list[int] = field(default_factory=list)
    dependence: Dependence | None = None
    in_memory: list[int] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Variant:
    """A backward graph for the case that some differentiable outputs have no gradient. See `Differentiated`."""

    backward: Graph
    tangents: list[TensorMeta]
