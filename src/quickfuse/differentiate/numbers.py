"""Numbers that change from call to call, in a trace that can only see one value of each.

A trace runs with a *mark* in place of each number: a value that occurs nowhere else, so that it is recognised wherever it
turns up among the arguments of recorded operators. Tracing twice, with other marks, finds the numbers that PyTorch has
computed from marks on the way: they differ between the two traces and are no marks.
"""

from __future__ import annotations

import math
from typing import Any

from torch.fx import Graph, Node

from ..errors import Unsupported
from ..ir.values import NumberMeta

#: Functions whose number operands may be marks: they compute alike for all values. (A power has formulas of its own for
#: some exponents, a dropout for some probabilities.)
_ARITHMETIC = frozenset(
    "add sub mul div truediv true_divide multiply divide subtract rsub radd rmul rtruediv iadd isub imul itruediv addcmul "
    "addcdiv addmm addmv addr baddbmm addbmm __radd __rmul __rsub __rtruediv __add __sub __mul __truediv full_like new_full "
    "fill".split()
)
#: The same for functions that are not differentiated.
_ARITHMETIC_ONCE = frozenset("lerp pow ipow rpow __pow __rpow clamp clamp_min clamp_max maximum minimum".split())


class Marks:
    """The marks of one trace. `seed` makes them differ between traces."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._count = 0
        self.nodes: dict[Any, Node] = {}
        self.values: dict[Node, Any] = {}

    def number(self, node: Node, kind: type) -> Any:
        """The mark for a number that is an input.

        Raises:
            Unsupported: for a bool, which has no value to spare.
        """
        self._count += 1
        if kind is float:
            value: Any = 0.8147236863931789 + 0.0091337585613902 * self._count + 0.000731 * self._seed
        elif kind is int:
            value = 15485863 + 104729 * self._count + 1299709 * self._seed
        else:
            raise Unsupported("a truth value that changes")
        return self.note(node, value)

    def is_known(self, value: Any) -> bool:
        """Whether a node computes this number already: the other trace will tell whether that is an accident."""
        return (type(value), value) in self.nodes

    def note(self, node: Node, value: Any) -> Any:
        """Remember the mark of a number's node."""
        if type(value) not in (int, float) or self.is_known(value) or _is_usual(value):
            raise Unsupported("numbers that cannot be told apart")
        self.nodes[type(value), value] = node
        self.values[node] = value
        return value

    def node_of(self, value: Any) -> Node | None:
        return self.nodes.get((type(value), value))


def _is_usual(value: Any) -> bool:
    """Whether a program may well have this number as a constant."""
    return abs(value) < 1000 if type(value) is int else not math.isfinite(value) or value == int(value)


def check_use(node: Node, differentiated: bool) -> None:
    """See to it that an operator on tensors which takes a number that changes is plain arithmetic; `differentiated`: the
    formulas of gradients see the number, too."""
    name = str(getattr(node.target, "__name__", node.target)).removeprefix("_foreach_").rstrip("_")
    if name in _ARITHMETIC or (not differentiated and name in _ARITHMETIC_ONCE):
        return
    for operand in node.all_input_nodes:
        if isinstance(operand.meta.get("val"), NumberMeta):
            raise Unsupported(f"a number that changes in {getattr(node.target, '__name__', node.target)}")


def check_same(first: Graph, second: Graph) -> None:
    """Compare two traces of one graph with different marks.

    Raises:
        Unsupported: where a constant differs: PyTorch computed it from a number that changes.
    """
    if len(first.nodes) != len(second.nodes):
        raise Unsupported("operators that depend on a number's value")
    position: dict[Node, int] = {}
    for k, (one, other) in enumerate(zip(first.nodes, second.nodes, strict=True)):
        position[one] = position[other] = k
        if one.target != other.target and one.op != "placeholder":
            raise Unsupported("operators that depend on a number's value")
        if not _same((one.args, tuple(one.kwargs.values())), (other.args, tuple(other.kwargs.values())), position):
            raise Unsupported(f"a number that PyTorch computes from one that changes, in {one.target}")


def _same(one: Any, other: Any, position: dict[Node, int]) -> bool:
    if isinstance(one, Node):
        return isinstance(other, Node) and position[one] == position[other]
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(_same(a, b, position) for a, b in zip(one, other, strict=True))
    return type(one) is type(other) and (one == other or one != one)
