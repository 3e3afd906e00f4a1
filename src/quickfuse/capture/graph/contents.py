"""What is in one-element tensors: numbers that capture can write down, so that a branch on one is a guard.

A tensor on the CPU that existed before the call holds a number that generated code can read before it runs anything:
`x.item()`. As long as the captured code left the tensor alone, or only added a number to it, `x.item()` later in the
program is arithmetic on that. It is worked out only where control flow asks for it: numbers that flow into kernels stay
in them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ...errors import Unsupported
from ...ir.guard import NumberExpr, float32
from ...ir.number_code import template_of
from ...ir.source import Source
from ...ir.tensor_checks import first_overlap
from ...ir.values import NumberMeta, TensorMeta
from ..inference.mutation import changed_tensors, name_of, returns_new_memory
from ..symbolic import Symbol, TensorProxy
from . import constant_tensors
from .builder import Builder

#: After so many changes in place a tensor's number is not followed any more: a loop that counts is better left rolled.
_MOST_CHANGES = 2

#: How a number is written that is stored in a tensor of some type.
_ROUNDED: dict[torch.dtype, str] = {torch.float32: "_float32({})", torch.float64: "float({})"}
#: How many bits whole numbers have, which begin again at the other end.
_WHOLE = {torch.int64: 64, torch.int32: 32}

_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "iadd": operator.add, "sub": operator.sub, "isub": operator.sub, "mul": operator.mul,
    "imul": operator.mul,
}  # fmt: skip
#: The same where the result is a new tensor, and what divides. Whole numbers alone have the last two.
_COMPUTING = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "truediv": operator.truediv, "div": operator.truediv,
    "mod": operator.mod, "remainder": operator.mod, "floordiv": operator.floordiv, "floor_divide": operator.floordiv,
}  # fmt: skip
_OF_WHOLE = (operator.mod, operator.floordiv)
#: How many of these in a row are followed, none from one turn of a loop to the next: it is better left rolled.
_MOST_COMPUTED = 4
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
#: Operators that give a view of a one-element tensor, which holds the same number at any time.
_SAME_NUMBER = frozenset("squeeze unsqueeze view reshape detach flatten".split())

#: Operators that give the number in a one-element tensor in a new tensor.
_OF_ALL = frozenset("min max amin amax clone".split())


class Known(NamedTuple):
    """A number: how to compute it before the graph runs, and its value now."""

    expr: Any
    hint: Any


class Change(NamedTuple):
    """A call that changed a tensor (the one at `member` of a list, or None). `target` is None for an unknown change."""

    clock: int
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    member: int | None


class Contents:
    """Follows the one-element tensors of one graph. `clock` counts the calls that changed a tensor."""

    def __init__(self, graph: Builder) -> None:
        self._graph = graph
        self.clock = 0
        self._changes: dict[torch.fx.Node, list[Change]] = {}
        self._compared: dict[torch.fx.Node, tuple[Any, Any, Any, int]] = {}
        self._computed: dict[torch.fx.Node, tuple[Any, Any, Any, int]] = {}
        self._computed_in: dict[torch.fx.Node, int] = {}
        #: How often a loop of the program came round.
        self.turns = 0
        self._depth = 0
        self._examples: dict[str, tuple[Source, Any]] = {}
        self._written: dict[torch.fx.Node, int] = {}
        self._read: dict[Source, int] = {}
        self._tensors: dict[Source, torch.Tensor] = {}
        self._asked = False

    # noting -----------------------------------------------------------------------------------------------------

    def note_call(
        self, node: torch.fx.Node, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[TensorProxy]:
        """A call was added to the graph. Returns the tensors that it changes."""
        changed = changed_tensors(target, args, kwargs)
        if changed:
            self.clock += 1
            listed = bool(args) and type(args[0]) in (list, tuple)
            if len(changed) > 1 and not listed:
                self._check_apart(changed)
            for position, tensor in enumerate(changed):
                self._note_change(tensor, Change(self.clock, target, args, kwargs, position if listed else None))
        elif not kwargs and len(args) == 2:
            name = plain_name(target)
            for functions, noted in ((_COMPARISONS, self._compared), (_COMPUTING, self._computed)):
                if name in functions:
                    noted[node] = (functions[name], *args, self.clock)
                    self._computed_in[node] = self.turns
        return changed

    def _check_apart(self, changed: list[TensorProxy]) -> None:
        """Which of two changes comes last where one tensor is in two places, only PyTorch knows: batch norm mixes them."""
        seen: set[torch.fx.Node] = set()
        for tensor in changed:
            found = {*seen_owners(self._graph.node_of(tensor))}
            if not seen.isdisjoint(found):
                raise Unsupported("an operator that changes one memory through two of its operands")
            seen |= found

    def note_unknown(self, tensor: TensorProxy) -> None:
        """A tensor gets a number that nothing before the graph tells."""
        self.clock += 1
        self._note_change(tensor, Change(self.clock, None, (), {}, None))

    def _note_change(self, tensor: TensorProxy, change: Change) -> None:
        node = self._graph.node_of(tensor)
        before = self._changes.get(node)
        if before and before[-1].clock == change.clock:  # a list with the tensor in it twice
            before[-1] = before[-1]._replace(target=None)
            return
        if tensor.source is not None and node.op == "placeholder":
            self._written.setdefault(node, self.clock)
            if tensor.meta.numel == 1:
                self._changes.setdefault(node, []).append(change)
            return
        found = seen_owners(node)
        for owner in found:  # through a view of it, or perhaps not at all
            noted = change if found == [node] else change._replace(target=None)
            self._changes.setdefault(owner, []).append(noted)
            if owner.op == "placeholder":
                self._written.setdefault(owner, self.clock)

    # numbers ----------------------------------------------------------------------------------------------------

    def of(self, value: Any) -> Known | None:
        """The number that a symbol or a one-element tensor stands for, None where only running the graph tells it."""
        if type(value) is TensorProxy:
            known = self._of_tensor(value, self.clock)
            constant = self.constant(value) if known is None and value.meta.numel == 1 else None
            return known if constant is None else Known(constant.item(), constant.item())
        if type(value) is not Symbol:
            return Known(value, value) if type(value) in (int, float, bool) else None
        if not value.from_tensor:
            return Known(value.expr, value.hint)
        if value.tensor is not None:
            return self._of_tensor(value.tensor, value.clock)
        if value.operation is None:
            return None
        function, operands = value.operation
        known = [self.of(operand) for operand in operands]
        return _computed(function, *known)

    def constant(self, tensor: TensorProxy, given: constant_tensors.Given | None = None) -> torch.Tensor | None:
        """What is in a tensor that is made of constants, and of what is `given`, alone, and that nothing was stored in
        since."""
        return None if tensor.node is None else self.constant_at(tensor.node, given)

    def constant_at(self, node: torch.fx.Node, given: constant_tensors.Given | None = None) -> torch.Tensor | None:
        """The same for the tensor that a node gives."""
        if node.graph is not self._graph.root or torch._C._is_any_autocast_enabled():
            return None
        return constant_tensors.value_of(node, self._changes.__contains__, given)

    def is_written(self, node: torch.fx.Node) -> bool:
        """Whether the captured code changed an input, or may have."""
        return node in self._written or node in self._changes

    def note_contents_read(self, source: Source, tensor: torch.Tensor) -> None:
        """Generated code reads what is in a tensor before the graph runs, where the program reads it now."""
        self._asked = True
        self._note_read(source, tensor, self.clock)

    def still_holds(self, symbol: Symbol) -> bool:
        """Whether the tensors that a number came out of, all made by the captured code, hold it when the graph ends."""
        if symbol.tensor is None:
            operands = symbol.operation[1] if symbol.operation is not None else ()
            return all(self.still_holds(o) for o in operands if type(o) is Symbol and o.from_tensor)
        if symbol.tensor.node is None:
            return False
        return not any(
            owner.op == "placeholder" or any(change.clock > symbol.clock for change in self._changes.get(owner, ()))
            for owner in seen_owners(symbol.tensor.node)
        )

    def _of_tensor(self, tensor: TensorProxy, at: int) -> Known | None:
        if tensor.meta.numel != 1:
            return None
        if tensor.node is None and tensor.source is not None and tensor.real is not None:
            self._note_read(tensor.source, tensor.real, at)
            return self._read_now(tensor.source, tensor.real)
        return None if tensor.node is None else self._of_node(tensor.node, at)

    def _of_node(self, node: torch.fx.Node, at: int) -> Known | None:
        if node.graph is not self._graph.root:
            return None
        changes = [change for change in self._changes.get(node, ()) if change.clock <= at]
        if len(changes) > _MOST_CHANGES:
            return None
        if node.op == "placeholder":
            self._note_read(*self.example(node), at)
        if changes:
            return self._after(changes[-1], node)
        if node.op == "placeholder":
            return self._read_now(*self.example(node))
        if node in self._compared:
            function, left, right, clock = self._compared[node]
            return None if self._changes.get(node) else self._comparison(function, left, right, clock)
        if node in self._computed:
            return self._arithmetic(node)
        name = plain_name(node.target)
        meta = node.meta.get("val")
        if not isinstance(meta, TensorMeta) or meta.numel != 1:
            return None
        if (name in _SAME_NUMBER or self._is_only_element(node, name)) and isinstance(node.args[0], torch.fx.Node):
            return self._of_node(node.args[0], at)
        if name in ("tensor", "scalar_tensor") and node.args and type(node.args[0]) in (int, float):
            return _stored(Known(node.args[0], node.args[0]), meta.dtype)
        return None

    def _is_only_element(self, node: torch.fx.Node, name: str) -> bool:
        """Whether a node takes the number out of a tensor that is never changed."""
        if name not in _OF_ALL or len(node.args) != 1 or node.kwargs or not isinstance(node.args[0], torch.fx.Node):
            return False
        return not any(self.is_written(owner) for owner in seen_owners(node.args[0]))

    def _note_read(self, source: Source, tensor: Any, at: int) -> None:
        """A tensor is read when `at` calls had changed tensors."""
        if at:
            self._read[source] = max(at, self._read.get(source, 0))
            self._tensors[source] = tensor

    def example(self, node: torch.fx.Node) -> tuple[Source, Any]:
        """Where an input of the graph comes from, and the tensor that is there in the captured call."""
        inputs, examples = self._graph.inputs, self._graph.examples
        for k in range(len(self._examples), len(inputs)):
            self._examples[inputs[k].name] = (inputs[k].source, examples[k])
        return self._examples[node.name]

    def _read_now(self, source: Source, tensor: Any) -> Known | None:
        """What a tensor held when the call began."""
        if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cpu":
            return None
        if tensor.numel() != 1 or tensor.dtype.is_complex:
            return None
        self._asked = True
        return Known(source.contents(), tensor.item())

    def _after(self, change: Change, node: torch.fx.Node) -> Known | None:
        """The number after a change, from the one before it."""
        meta = node.meta["val"]
        name = plain_name(change.target).removeprefix("_foreach_").strip("_") if change.target is not None else ""
        if name not in _ARITHMETIC and name not in ("fill", "copy", "zero"):
            return None
        if meta.dtype not in _ROUNDED and meta.dtype not in _WHOLE:
            return None
        if any(k != "alpha" or type(v) not in (int, float) or v != 1 for k, v in change.kwargs.items()):
            return None
        if name == "zero":
            return _stored(Known(0, 0), meta.dtype)
        if len(change.args) != 2:
            return None
        operand = change.args[1]
        if type(operand) in (list, tuple):
            operand = operand[change.member or 0]
        if type(operand) is TensorProxy:
            right = self._of_tensor(operand, change.clock - 1) if operand.meta.dtype is meta.dtype else None
        else:
            right = self.of(operand)
        right = _stored(right, meta.dtype)
        if name in ("fill", "copy"):
            return right
        function = _ARITHMETIC[name]
        left = self._of_node(node, change.clock - 1)
        return _stored(_computed(function, left, right), meta.dtype)

    def _arithmetic(self, node: torch.fx.Node) -> Known | None:
        """What an operator computes of two numbers: it takes both as numbers of the result's type, and rounds once."""
        function, left, right, at = self._computed[node]
        dtype = node.meta["val"].dtype
        if self._depth >= _MOST_COMPUTED or self._computed_in[node] != self.turns:
            return None
        if function in _OF_WHOLE and dtype not in _WHOLE:
            return None
        self._depth += 1
        try:
            operands = [
                _stored(self._of_tensor(v, at) if type(v) is TensorProxy else self.of(v), dtype) for v in (left, right)
            ]
        finally:
            self._depth -= 1

        def apply(function: Callable[..., Any], *operands: Known | None) -> Known | None:
            return _stored(_computed(function, *operands), dtype)

        if function is operator.truediv and type(left) is not TensorProxy:  # PyTorch multiplies by the reciprocal then
            return apply(operator.mul, apply(function, Known(1.0, 1.0), operands[1]), operands[0])
        return apply(function, *operands)

    def _comparison(self, function: Callable[[Any, Any], Any], left: Any, right: Any, at: int) -> Known | None:
        """A comparison of one-element tensors, or of one with a number that is rounded to the tensor's type first."""
        dtypes = {v.meta.dtype for v in (left, right) if type(v) is TensorProxy}
        if len(dtypes) != 1:
            return None
        (dtype,) = dtypes
        operands = []
        for value in (left, right):
            if type(value) is TensorProxy:
                operands.append(self._of_tensor(value, at))
                continue
            kind = value.kind if type(value) is Symbol else type(value)
            whole = dtype in _WHOLE and kind is int
            operands.append(self.of(value) if whole else _stored(self.of(value), dtype))
        return _computed(function, *operands)

    def written_inputs(self) -> list[str]:
        """The names of the graph's inputs that calls changed, or may have changed through what shares their memory."""
        return [node.name for node in self._written if node.op == "placeholder"]

    def written_examples(self) -> list[Any]:
        """The tensors that are there in the captured call."""
        return [self.example(node)[1] for node in self._written if node.op == "placeholder"]

    def has_written_inputs(self) -> bool:
        return bool(self.written_inputs())

    def take_written(self, graph: torch.fx.Graph) -> list[torch.fx.Node]:
        """The inputs of a nested graph that calls in it changed. They are forgotten here."""
        taken = [node for node in self._written if node.graph is graph]
        for node in taken:
            del self._written[node]
        return taken

    # the end ----------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """The graph is complete: say what the numbers rely on, and drop from the graph what only guards needed."""
        if not self._asked:
            return
        for node in reversed(self._graph.graph.nodes):
            number = node in self._compared or isinstance(node.meta.get("val"), NumberMeta)
            if number and not node.users and node.op in ("call_function", "call_method"):
                self._graph.graph.erase_node(node)
        if not self._read:
            return
        last = max(self._read.values())
        written = [self.example(node) for node, clock in self._written.items() if clock <= last]
        read = list(self._read)
        tensors = {id(self._tensors[source]): self._tensors[source] for source in read}
        everything = [*(tensors | {id(tensor): tensor for _, tensor in written}).values()]
        if first_overlap(everything, range(len(tensors)), range(len(tensors), len(everything))) is not None:
            raise Unsupported("a branch on a tensor's value that shares memory with another tensor")
        self._graph.outside.guard("apart", None, (tuple(read), tuple(source for source, _ in written)))


def plain_name(target: Any) -> str:
    """The name of a function or method, without the underscores of Python's special methods."""
    name = target if isinstance(target, str) else name_of(target)
    return name[2:-2] if name.startswith("__") and name.endswith("__") else name


def _computed(function: Callable[..., Any], *operands: Known | None) -> Known | None:
    """What a function makes of numbers; None where there is no expression for it, or one of them is not known."""
    template = template_of(function, len(operands))
    return None if template is None else _applied(function, template, [*operands])


def _applied(function: Callable[..., Any], template: str, operands: list[Known | None]) -> Known | None:
    known = [operand for operand in operands if operand is not None]
    if len(known) < len(operands):
        return None
    try:
        hint = function(*(k.hint for k in known))
    except (ArithmeticError, ValueError, TypeError):  # the program itself is to raise this, where it comes to it
        return None
    if type(hint) not in (int, float, bool):
        return None
    if all(not isinstance(k.expr, (Source, NumberExpr)) for k in known):
        return Known(hint, hint)
    return Known(NumberExpr(template, tuple(k.expr for k in known)), hint)


def _stored(known: Known | None, dtype: torch.dtype) -> Known | None:
    """A number as a tensor of some type holds it."""
    if known is not None and dtype in _WHOLE and type(known.hint) is int:
        half = 1 << _WHOLE[dtype] - 1
        for function, number in ((operator.add, half), (operator.mod, 2 * half), (operator.sub, half)):
            known = _computed(function, known, Known(number, number))
        return known
    if known is None or dtype not in _ROUNDED:
        return None
    return _applied(float32 if dtype is torch.float32 else float, _ROUNDED[dtype], [known])


def _is_new(node: torch.fx.Node) -> bool:
    """Whether the results of a call were seen to have memory of their own."""
    effects = node.meta.get("effects")
    return effects is not None and all(operand is None for operand in effects.memory)


def owners(node: torch.fx.Node, is_new: Callable[[torch.fx.Node], bool] | None = None) -> list[torch.fx.Node]:
    """The nodes whose results may share memory with that of `node`, itself among them."""
    found: dict[torch.fx.Node, None] = {}
    seen: set[torch.fx.Node] = set()
    stack = [node]
    while stack:
        at = stack.pop()
        if at in seen:
            continue
        seen.add(at)
        maker = at
        if at.target is operator.getitem and isinstance(at.args[0].meta.get("val"), (list, tuple)):  # type: ignore[union-attr]
            maker = at.args[0]  # type: ignore[assignment]
        found[at] = None
        if at.op != "placeholder" and not (returns_new_memory(maker.target) or (is_new is not None and is_new(maker))):
            stack += [n for n in maker.all_input_nodes if not isinstance(n.meta.get("val"), NumberMeta)]
    return list(found)


def seen_owners(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The same, where a call whose results were seen to have memory of their own shares none: `F.pad`, say, of which the
    schema does not tell."""
    return owners(node, _is_new)


def may_be_wanted(graph: Builder, tensor: TensorProxy) -> bool:
    """Whether something that autograd may yet take gradients of was computed from what is in a tensor."""
    history = graph.history
    open_calls = history.open_calls()
    if not open_calls:
        return False
    if history.wanted is None or history.wanted[0] != open_calls:
        history.wanted = (open_calls, _computed_from(graph.graph, open_calls))
    return tensor.node in history.wanted[1]


def _computed_from(graph: torch.fx.Graph, calls: set[torch.fx.Node]) -> set[torch.fx.Node]:
    """What the operands of some calls were computed from, by what was written to them among that."""
    found = set(calls)
    for node in reversed(graph.nodes):
        effects = node.meta.get("effects")
        writes = effects is not None and effects.written
        if node in found or (writes and any(not found.isdisjoint(owners(operand)) for operand in node.all_input_nodes)):
            found.update(node.all_input_nodes)
            for operand in node.all_input_nodes if node in calls or writes else ():
                found.update(owners(operand))
    return found
