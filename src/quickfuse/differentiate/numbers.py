"""Numbers that change from call to call, in a trace that can only see one value of each.

A trace runs with a *mark* in place of each number: a value that occurs nowhere else, so that it is recognised wherever it
turns up among the arguments of recorded operators. Tracing twice, with other marks, finds the numbers that PyTorch has
computed from marks on the way: they differ between the two traces and are no marks. Those that are one minus a mark, or
another simple function of it, become numbers of the graph.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from torch.fx import Graph, Node

from ..errors import Unsupported
from ..ir.guard import float32
from ..ir.number_operands import numbers_that_matter, takes_any_number
from ..ir.values import NumberMeta

#: What formulas of gradients compute from a number: the function, and its operands in front of the number.
_DERIVED: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (operator.sub, (1,)), (operator.neg, ()), (operator.mul, (1.0,)), (operator.add, (-1.0,)), (operator.truediv, (1.0,)),
    (math.sqrt, ()), (math.log, ()),
]  # fmt: skip


class Marks:
    """The marks of one trace. `seed` makes them differ between traces."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._count = 0
        self.nodes: dict[Any, Node] = {}
        self.values: dict[Node, Any] = {}

    def number(self, node: Node, kind: type, of: tuple[Any, ...] = ()) -> Any:
        """The mark for a float or int that is an input, or computed from inputs with the marks `of`: one that 32 bits hold,
        so that it stays the same where PyTorch converts it to a tensor's type. A bool has none: it has no value to spare."""
        self._count += 1
        if kind is float:
            value: Any = float32(0.8147236863931789 + 0.0091337585613902 * self._count + 0.000731 * self._seed)
        else:
            value = 64 * (242731 + 1637 * self._count + 20309 * self._seed)
        if of and node.target is operator.neg and self.node_of(of[0]) is not None and self.node_of(-of[0]) is None:
            value = -of[0]  # other marks are positive; PyTorch may ask whether it is below another number
        self.nodes[type(value), value] = node
        self.values[node] = value
        return value

    def node_of(self, value: Any) -> Node | None:
        return self.nodes.get((type(value), value))


def number_in(graph: Graph, tensor: Node, used_by: Node | None, marks: Marks) -> Any:
    """The number in a tensor that is an operand in place of one, as in `x.add_(y, alpha=rate)`, as an operator's operand in
    `graph`; `used_by` is the captured node."""
    if used_by is None or not takes_any_number(used_by, True):
        target = None if used_by is None else used_by.target
        raise Unsupported(f"a tensor in place of a number in {getattr(target, '__name__', target)}")
    kind = float if tensor.meta["val"].dtype.is_floating_point else int
    made = graph.create_node("call_method", "item", (tensor,), {})
    made.meta.update(val=NumberMeta(kind, True), trace=used_by.meta.get("trace", ()))
    return marks.number(made, kind)


def check_use(node: Node, differentiated: bool) -> None:
    """See to it that an operator on tensors which takes a number that changes is plain arithmetic; `differentiated`: the
    formulas of gradients see the number, too."""
    for operand in numbers_that_matter(node, differentiated):
        kind = "truth value" if operand.meta["val"].kind is bool else "number"
        raise Unsupported(f"a {kind} that changes in {getattr(node.target, '__name__', node.target)}")


def reconcile(first: Graph, marks: Marks, second: Graph, other_marks: Marks) -> None:
    """Compare two traces of one graph with different marks, and put numbers computed from marks into the first.

    Raises:
        Unsupported: where PyTorch computed a constant from a number that changes in a way that is not known here.
    """
    _Comparison(first, marks, other_marks).run(second)


class _Comparison:
    def __init__(self, first: Graph, marks: Marks, other_marks: Marks) -> None:
        if len(marks.values) != len(other_marks.values):  # a known number, by accident, in one of the traces
            raise Unsupported("numbers that cannot be told apart")
        self.first = first
        self.marks = [(node, a, b) for (node, a), b in zip(marks.values.items(), other_marks.values.values(), strict=True)]
        self.position: dict[Node, int] = {}
        self.derived: dict[tuple[Node, int], Node] = {}

    def run(self, second: Graph) -> None:
        ours, theirs = list(self.first.nodes), list(second.nodes)
        if len(ours) != len(theirs):
            raise Unsupported("operators that depend on a number's value")
        for k, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            self.position[one] = self.position[other] = k
            if one.target != other.target and one.op != "placeholder":
                raise Unsupported("operators that depend on a number's value")
            args = self._merged(one.args, other.args, one)
            kwargs = self._merged(one.kwargs, other.kwargs, one)
            if args is not one.args or kwargs is not one.kwargs:
                one.args, one.kwargs = args, kwargs

    def _merged(self, one: Any, other: Any, user: Node) -> Any:
        """An argument of the first graph, `one` itself where the second has the same."""
        if isinstance(one, Node):
            same = isinstance(other, Node) and self.position[one] == self.position[other]
        elif isinstance(one, (list, tuple)) and len(one) == len(other):
            parts = [self._merged(a, b, user) for a, b in zip(one, other, strict=True)]
            return one if all(a is b for a, b in zip(one, parts, strict=True)) else type(one)(parts)
        elif isinstance(one, dict):
            named = {k: self._merged(v, other.get(k), user) for k, v in one.items()}
            return one if all(named[k] is v for k, v in one.items()) and one.keys() == other.keys() else named
        else:
            same = type(one) is type(other) and (one == other or one != one)
        if same:
            return one
        found = self._derived(one, other, user) if type(one) is float and type(other) is float else None
        if found is None:
            raise Unsupported(f"a number that PyTorch computes from one that changes, in {user.target}")
        return found

    def _derived(self, one: float, other: float, user: Node) -> Node | None:
        """The node of a number that has these values in the two traces."""
        for node, a, b in self.marks:
            for k, (function, before) in enumerate(_DERIVED):
                if type(value := function(*before, a)) is float and value == one and function(*before, b) == other:
                    if (node, k) not in self.derived:
                        with self.first.inserting_before(user):
                            made = self.first.call_function(function, (*before, node))
                        made.meta.update(user.meta)
                        made.meta["val"] = NumberMeta(float)
                        self.derived[node, k] = made
                    return self.derived[node, k]
            if (made := self._times_a_constant(node, (a, b), (one, other), user)) is not None:
                return made
        return None

    def _times_a_constant(self, node: Node, marks: tuple[Any, Any], values: tuple[float, float], user: Node) -> Node | None:
        """The node of a whole multiple of a number, or of what it is divided by a whole number: a share of each class."""
        ratio = values[0] / marks[0]
        if not 1e-6 < abs(ratio) < 1e6:
            return None
        function, constant = (operator.mul, round(ratio)) if abs(ratio) > 1 else (operator.truediv, round(1 / ratio))
        if any(function(mark, float(constant)) != value for mark, value in zip(marks, values, strict=True)):
            return None
        with self.first.inserting_before(user):
            made = self.first.call_function(function, (node, float(constant)))
        made.meta.update(user.meta)
        made.meta["val"] = NumberMeta(float)
        return made
