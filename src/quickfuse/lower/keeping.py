"""Values that are stored although nobody needs them in memory: formulas made of them would read too many tensors.

The sum that runs through all layers of a model reads one tensor more after each. As a formula it would be read from its
beginning by each layer, in a kernel unlike those of all others.
"""

from __future__ import annotations

from quickfuse.ir.expr import Expr, Load, Op, Place
from quickfuse.ir.loop import Buffer

#: A value with several users is stored if it reads more tensors than the first, and any value if more than the second.
_MOST_READ_AGAIN, _MOST_READ = 3, 12

#: Where a value reads: in which buffers, from which offsets on.
_Places = frozenset[tuple[Buffer, int]]
_NOWHERE: _Places = frozenset()


class Reads:
    """What the values of one lowering read."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Expr, _Places]] = {}  # by the operation's id, with what keeps the id

    def are_too_many(self, value: Expr, size: int, users: int) -> bool:
        """Whether a value of `size` elements, which `users` nodes of the graph take, should be stored.

        Tensors that are much smaller than the value do not count: they stay in the cache. Nor do inputs, such as what an
        optimizer reads: formulas of layers are made of what other layers store.
        """
        if not isinstance(value, Op):
            return False
        most = _MOST_READ_AGAIN if users > 1 else _MOST_READ
        places = self._places(value)
        return len(places) > most and sum(2 * buffer.meta.numel >= size for buffer, _ in places) > most

    def _places(self, root: Op) -> _Places:
        known = self._known
        stack: list[Op] = [root]
        while stack:
            node = stack[-1]
            missing = [arg for arg in node.args if isinstance(arg, Op) and id(arg) not in known]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            if id(node) not in known:
                known[id(node)] = (node, _NOWHERE.union(*map(self._read_by, node.args)))
        return known[id(root)][1]

    def _read_by(self, argument: Expr) -> _Places:
        if isinstance(argument, Op):
            return self._known[id(argument)][1]
        if isinstance(argument, (Load, Place)):
            buffer = argument.access.buffer
            if buffer.meta.shape and buffer.kind != "input":
                return frozenset([(buffer, argument.access.offset)])
        return _NOWHERE
