"""What a joined forward returns, and how the captured graph's outputs are made of that.

Outputs that are views of inputs, or of each other, are no results of their own: eager makes them from what they are views
of, so that memory is shared and autograd knows about it, as in an eager run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Graph, Node

from ..errors import Unsupported
from ..ir.gradients import Dependence, Given
from ..ir.nodes import outputs_of
from ..ir.values import overlaps_itself
from .traced import TracedTensor, make_traced
from .writer import LAZY

_MANY = frozenset({
    torch.ops.aten.split.Tensor, torch.ops.aten.split_with_sizes.default, torch.ops.aten.unbind.int,
})  # fmt: skip
_WITHOUT_GRADIENTS = (torch._C._autograd.CreationMeta.NO_GRAD_MODE, torch._C._autograd.CreationMeta.INFERENCE_MODE)
_DETACH = torch.ops.aten.detach.default
_AS_REAL = torch.ops.aten.view_as_real.default


class OutputPlan:
    """`tensors` are the results of forward; `differentiable` those (by number) with gradients, `reached`, `clashing`,
    `latest_first` and `dependence` as in `Differentiated`. `numbers` are the nodes of numbers out of tensors, which forward
    returns after the tensors; `results` has an entry for each output of the captured graph."""

    def __init__(
        self, outputs: list[Any], number_node: Callable[[Any], Node | None], leaves: Collection[int] = ()
    ) -> None:
        """`outputs` are traced tensors and numbers: nodes, or what `number_node` finds a node for. `leaves` are those which
        are made inside and require gradients, by identity: for the others, they have none."""
        self._leaves = leaves
        self.tensors: list[TracedTensor] = []
        self.numbers: list[Node] = []
        self.results: list[Given] = []
        self._index: dict[int, int] = {}
        #: All of a memory of which there is no such output, by the memory.
        self._whole: dict[int, TracedTensor] = {}
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
        # Those with gradients come first. PyTorch loses, and misses then, what retains the gradient of a result that is
        # changed in place, unless it is the first result of its node.
        tensors = [(k, output) for k, output in enumerate(outputs) if type(output) is TracedTensor]
        ordered = sorted(tensors, key=lambda each: not each[1].requires_grad or id(each[1]) in leaves)
        given = {k: self._marked(output) for k, output in ordered}
        later = iter(range(len(self.tensors), len(self.tensors) + len(self.numbers)))
        self.results = [given[k] if k in given else Given(next(later), with_grad=False) for k in range(len(outputs))]
        self.differentiable = [k for k, t in enumerate(self.tensors) if t.requires_grad and id(t) not in leaves]
        self.reached: list[frozenset[int]] = []
        self.clashing: list[frozenset[int]] = []
        self.latest_first: list[int] = []
        self.dependence: Dependence | None = None
        self._outputs = outputs

    def _marked(self, output: TracedTensor) -> Given:
        """Where an output comes from. A leaf that is a view made without gradients is what it is a view of with such."""
        given = self._given(output)
        if id(output) not in self._leaves:
            return given
        return replace(given, with_grad=False, leaf=not is_view_of_others(output))

    def _given(self, output: TracedTensor) -> Given:
        memory = output.memory
        if is_mixed(output):
            raise Unsupported("an output that is a part of conjugated numbers")
        has_history = output.requires_grad and id(output) not in self._leaves
        began_anew = has_history and any(step.function is _DETACH for step in output.path)
        if memory.input is not None:
            if began_anew:
                raise Unsupported("a tensor in an input's memory, detached from it, that got gradients of its own")
            return Given(memory.input, output.path, True, _with_grad(output))
        group = {id(t): t for t in self._groups[id(memory)]}.values()
        of_others = id(output) in self._leaves and is_view_of_others(output)  # which tells that it requires gradients
        if len(group) > 1 or is_lazy(output) or of_others:
            base = next((t for t in group if not t.path and t.seen == memory.version), None)
            base = _hidden_base(output) if base is None else base
            if base is not None:
                if began_anew:
                    raise Unsupported("a tensor in another result's memory, detached from it, that got gradients of its own")
                if output is not base and output.requires_grad and not base.requires_grad:
                    raise Unsupported("a view with gradients of an output without")
                return Given(self._number(base), output.path, False, _with_grad(output))
            detached = _detached_base(group)
            if detached is not None:
                again = output.path[1:] or output.path  # a tensor that is detached once more is as detached as the first
                return Given(self._number(detached), () if output is detached else again, False, _with_grad(output))
            many = all(t.path and t.path[:-1] == output.path[:-1] and t.path[-1].function in _MANY for t in group)
            if of_others or not many:
                base = None if of_others or is_lazy(output) else self._base_of_all(group)
                if base is None:
                    raise Unsupported("outputs that are views of one hidden tensor")
                return Given(self._number(base), output.path, False, _with_grad(output))
        if output.requires_grad and output.path and overlaps_itself(output.shape, output.stride()):
            base = _hidden_base(output)  # autograd has no place for what is changed of one that is no view
            if base is not None:
                return Given(self._number(base), output.path, False, True)
        return Given(self._number(output))

    def _base_of_all(self, group: Collection[TracedTensor]) -> TracedTensor | None:
        """What outputs can be made of that share memory, where some were detached after the views that they are: the tensor
        that another one is a view of, or all of the memory."""
        base = next((base for t in group if (base := _hidden_base(t)) is not None), None)
        if base is not None or any(t.requires_grad or t.is_inference() for t in group):
            return base
        memory = next(iter(group)).memory
        if id(memory) not in self._whole:
            self._whole[id(memory)] = make_traced(memory.meta, memory, (), memory.node, memory.offset)
        return self._whole[id(memory)]

    def _number(self, tensor: TracedTensor) -> int:
        if id(tensor) not in self._index:
            self._index[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
        return self._index[id(tensor)]

    def find_paths(self, inputs: list[TracedTensor], source: Graph | None) -> None:
        """Find which of the inputs that need gradients each result has gradients to, and what results have in common. With
        `source`, the captured graph, also which results depend on each other."""
        count = len(self.differentiable)
        roots = [self.tensors[number].grad_fn for number in self.differentiable]
        self.latest_first = sorted(range(count), key=lambda k: -roots[k]._sequence_nr())  # type: ignore[union-attr]
        users: dict[Any, int] = {}  # which results (as bits) need a node of autograd's graph
        for k, root in enumerate(roots):
            users[root] = users.get(root, 0) | 1 << k
        clashing, reached = [0] * count, {id(t): 0 if t.is_leaf else -1 for t in inputs}
        saving: set[int] = set()
        for node in _in_order(roots):
            mine = users[node]
            if hasattr(node, "variable"):
                reached[id(node.variable)] = mine
            elif mine not in saving and _saves_tensors(node):
                saving.add(mine)
            for following, _ in node.next_functions:
                if following is not None:
                    users[following] = users.get(following, 0) | mine
        for mine in saving:
            clashing = [before | mine if mine >> k & 1 else before for k, before in enumerate(clashing)]
        self.clashing = [frozenset([j for j in range(count) if mine >> j & 1]) for mine in clashing]
        bits = [reached[id(t)] for t in inputs]
        self.reached = [frozenset([j for j, b in enumerate(bits) if b >> k & 1] or range(len(bits))) for k in range(count)]
        if source is not None:
            self._find_dependence(source)

    def _find_dependence(self, source: Graph) -> None:
        """Find which results depend on others, by the edges of autograd's graph: a node may have several results, which do
        not depend on each other."""
        outputs = self._outputs
        edges: dict[Any, int] = {}
        for position, (output, given) in enumerate(zip(outputs, self.results, strict=True)):
            known = type(output) is TracedTensor and output.grad_fn is not None
            if known and not (given.of_input and output.memory.version):
                edges.setdefault((output.grad_fn, output.output_nr), position)
        if len(edges) < 2:
            return
        views = [position for position in edges.values() if self.results[position].path]
        roots = [*[self.tensors[number] for number in self.differentiable], *[outputs[position] for position in views]]
        near: dict[Any, int] = {}  # which of these (as bits) lead to a node by other ways than through results
        for k, root in enumerate(roots):
            near[root.grad_fn] = near.get(root.grad_fn, 0) | 1 << k
        ordered = _in_order([root.grad_fn for root in roots])
        found: dict[int, int] = {}
        for node in ordered:
            if mine := near.get(node, 0):
                for edge in node.next_functions:
                    if (position := edges.get(edge)) is not None:
                        found[position] = found.get(position, 0) | mine
                    elif edge[0] is not None:
                        near[edge[0]] = near.get(edge[0], 0) | mine
        everything = range(len(self.differentiable))
        behind = {k: sorted(p for p, bits in found.items() if bits >> k & 1) for k in everything}
        parents = {
            p: q for k, p in enumerate(views, len(everything)) for q, bits in found.items()
            if bits >> k & 1 and self.results[q].path and self.results[p].begins_with(self.results[q])
        }  # fmt: skip
        if not parents and not any(behind.values()):
            return
        saving = 0
        for node in ordered:
            if near.get(node, 0) & ~saving and _saves_tensors(node):
                saving |= near[node]
        place = {node: k for k, node in enumerate(source.nodes)}
        captured = outputs_of(source)
        ends = {p: [captured[p], outputs[p].memory.changed_by or captured[p]] for p in found}
        self.dependence = Dependence(
            source, behind, parents, {p: max(nodes, key=place.__getitem__) for p, nodes in ends.items()},
            frozenset([k for k in everything if saving >> k & 1]),
        )  # fmt: skip


def _in_order(roots: list[Any]) -> list[Any]:
    """All nodes of autograd's graph that some lead to, these included, users first."""
    found: list[Any] = []
    seen: set[Any] = set()
    stack = [(root, False) for root in roots]
    while stack:
        node, done = stack.pop()
        if done:
            found.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(following, False) for following, _ in node.next_functions if following is not None]
    return found[::-1]


def _saves_tensors(node: Any) -> bool:
    """Whether backward frees something that a node of autograd's graph has saved, and so cannot come there twice."""
    names = _SAVED_BY.get(type(node))
    if names is None:
        names = _SAVED_BY[type(node)] = [name for name in dir(node) if name.startswith("_saved_")]
    try:
        saved = [getattr(node, name) for name in names]
    except (RuntimeError, Unsupported):  # it was changed since
        return True
    return any(isinstance(t, torch.Tensor) for value in saved for t in (value if isinstance(value, tuple) else [value]))


#: The attributes with what nodes of a class save.
_SAVED_BY: dict[type, list[str]] = {}


def _detached_base(group: Collection[TracedTensor]) -> TracedTensor | None:
    """What all of these can be made of that were detached from one tensor which is no output: the first of them, or what it
    is a view of."""
    if any(t.requires_grad or not t.path or t.path[0].function is not _DETACH for t in group):
        return None
    first = min(group, key=lambda t: len(t.path))
    base = first if len(first.path) == 1 else first._base
    known = type(base) is TracedTensor and base.path == first.path[:1] and base.memory is first.memory
    return base if known and base.seen == base.memory.version else None


def _with_grad(output: TracedTensor) -> bool:
    """Whether a view is made with gradients: of what needs none too, as PyTorch refuses to change in place with gradients
    what was made without."""
    base = output._base
    if output.requires_grad or base is None or base.requires_grad:
        return output.requires_grad
    return torch._C._autograd._get_creation_meta(output) not in _WITHOUT_GRADIENTS


def is_view_of_others(leaf: TracedTensor) -> bool:
    """Whether a leaf of autograd's graph that is made inside requires gradients because what it is a view of does."""
    return leaf._base is not None and leaf._base.requires_grad


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
