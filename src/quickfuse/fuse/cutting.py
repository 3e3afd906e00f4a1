"""Where a chain of reductions is cut: a value is stored, so that what comes after need not compute it again.

Each pass of a kernel computes all that it needs from what is in memory. In `x = softmax(x) + x`, done a hundred times, every
`x` is needed by the next maximum, the next sum and the next `x`: as one kernel, each pass would begin at the first `x`, and
the work would grow with the square of the length. So reductions are gone through in order, with the cost of what their
passes compute again. Where that would be more than a store and a load cost, the values are stored that are still needed,
and all that reads them comes in a later kernel.

An operation is met once for each pass that computes it, and what that costs is limited: the time is linear.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from quickfuse.ir.expr import HALF_TYPES, Expr, Index, Load, Op, Place, walk
from quickfuse.ir.loop import FLAG, Access, Buffer, Extern, Loop, Program, Store, buffers_in
from quickfuse.ir.reindex import with_arguments
from quickfuse.ir.values import TensorMeta

from .hoisting import COSTS
from .rows import Shape, reduced_axes

#: So many simple operations an element may be done again before a value is stored instead, which costs a launch, a pass
#: through memory and a load.
_MOST_AGAIN = 64
#: At most so many values are stored at one point.
_MOST_STORED = 8
#: So many of the passes that are still to come count: after these there may be a better point.
_PASSES_AHEAD = 3
#: A value that costs no more than this is computed from others that are stored.
_CHEAP = 4
#: What rounding to 16 bits costs.
_OF_HALF = 4
#: Programs with fewer reductions have no chains.
_FEW = 3


def cut(program: Program) -> frozenset[Buffer]:
    """Store values where chains of reductions are cut. Returns the buffers whose readers are to be in later kernels."""
    loops = [step for step in program.steps if isinstance(step, Loop)]
    if sum(_is_reduction(store) for loop in loops for store in loop.stores) < _FEW:
        return frozenset()
    return _Cutting(program).run(loops)


def _cost(node: Op) -> int:
    simple = _OF_HALF if node.dtype in HALF_TYPES else 2 if node.dtype is torch.float64 else 1
    return COSTS.get(node.name, simple)


def _is_reduction(store: Store) -> bool:
    return store.along < 0 and store.combine not in (None, FLAG)


@dataclass(eq=False, slots=True)
class _Value:
    """What an expression stands for. A load of what a loop of the same shape stores has that as its argument.

    `axes` are those along which it changes, as bits. `needs`: how many reductions must come before, one after the other;
    `last`: the most of them that come before something that needs it. `waiting` counts the users that are not met yet.
    `passes` counts the passes that have computed it by now, of which the latest comes after `latest` reductions. `number`: its
    place among the values, arguments first.
    """

    number: int
    node: Expr
    args: list[_Value]
    axes: int
    needs: int
    cost: int = 0
    users: list[_Value] = field(default_factory=list)
    last: int = 0
    waiting: int = 0
    met: bool = False
    stored: bool = False
    passes: int = 0
    latest: int = -1


class _Cutting:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.spaces: dict[object, _Space] = {}
        #: After how many reductions a buffer's contents are known.
        self.known: dict[Buffer, int] = {}
        self.writers: dict[Buffer, int] = {}
        self.buffers: set[Buffer] = set()

    def run(self, loops: list[Loop]) -> frozenset[Buffer]:
        for loop in loops:
            for store in loop.stores:
                self.writers[store.access.buffer] = self.writers.get(store.access.buffer, 0) + 1
            if (loop.shape, loop.device) not in self.spaces:
                self.spaces[loop.shape, loop.device] = _Space(self, loop.shape, loop.device)
        for step in self.program.steps:
            if isinstance(step, Loop):
                self.spaces[step.shape, step.device].read(step)
            else:
                read = [self.known.get(buffer, 0) for buffer in buffers_in((step.args, step.kwargs))]
                self.known.update(dict.fromkeys(step.outputs, max(read, default=0) + 1))
        for space in self.spaces.values():
            space.look_ahead()
        steps: list[Loop | Extern] = []
        for step in self.program.steps:
            if isinstance(step, Loop):
                steps += self.spaces[step.shape, step.device].rewritten(step)
            else:
                steps.append(step)
        self.program.steps = steps
        return frozenset(self.buffers)


class _Space:
    """The values of the loops of one shape, which share the nodes of their expressions."""

    def __init__(self, cutting: _Cutting, shape: Shape, device: torch.device) -> None:
        self.cutting = cutting
        self.shape = shape
        self.device = device
        self.all_axes = sum(1 << k for k, size in enumerate(shape) if size > 1)
        self.values: dict[int, _Value] = {}  # by the node's id, arguments first
        self.contents: dict[Access, _Value] = {}
        self.stores: dict[_Value, Store] = {}  # the plain ones
        self.done: dict[int, Store] = {}  # those that are in the new program, by id
        self.new: dict[int, Expr] = {}  # what an operation has become, by its id

    # --- all loops, before the first decision ---

    def read(self, loop: Loop) -> None:
        """Note what a loop computes, and after how many reductions."""
        known = self.cutting.known
        for store in loop.stores:
            roots = [self._value(root) for root in store.roots]
            needs = max([root.needs for root in roots])
            for root in roots:
                root.waiting += 1
                root.last = max(root.last, needs)
            buffer = store.access.buffer
            is_plain = store.combine is None and store.along < 0
            known[buffer] = max(known.get(buffer, 0), needs if is_plain else needs + 1)
            moves = self._axes_of(store.access) == self.all_axes
            if is_plain and moves and buffer.kind != "input" and self.cutting.writers[buffer] == 1:
                self.contents[store.access] = roots[0]
                self.stores.setdefault(roots[0], store)

    def _value(self, root: Expr) -> _Value:
        values = self.values
        stack = [root]
        while stack:
            node = stack[-1]
            if id(node) in values:
                stack.pop()
                continue
            missing = [arg for arg in node.args if id(arg) not in values] if isinstance(node, Op) else ()
            if missing:
                stack.extend(missing)
                continue
            values[id(node)] = self._operation(node) if isinstance(node, Op) else self._leaf(node)
            stack.pop()
        return values[id(root)]

    def _operation(self, node: Op) -> _Value:
        args = [self.values[id(arg)] for arg in node.args]
        axes = 0
        for arg in args:
            axes |= arg.axes
        return self._linked(_Value(len(self.values), node, args, axes, max([arg.needs for arg in args]), _cost(node)))

    def _leaf(self, node: Expr) -> _Value:
        if isinstance(node, (Load, Place)):
            stored = self.contents.get(node.access)
            needs = self.cutting.known.get(node.access.buffer, 0)
            args = [] if stored is None else [stored]
            return self._linked(_Value(len(self.values), node, args, self._axes_of(node.access), needs))
        return _Value(len(self.values), node, [], 1 << node.axis if isinstance(node, Index) else 0, 0)

    def _linked(self, value: _Value) -> _Value:
        for arg in value.args:
            arg.users.append(value)
            arg.waiting += 1
        return value

    def _axes_of(self, access: Access) -> int:
        return sum(1 << k for k, stride in enumerate(access.strides) if stride and self.shape[k] > 1)

    def look_ahead(self) -> None:
        for value in reversed(self.values.values()):  # users come before what they use
            for arg in value.args:
                arg.last = max(arg.last, value.last)

    # --- the loops once more, in order ---

    def rewritten(self, loop: Loop) -> list[Loop]:
        """A loop that loads what is stored by now, after those that store something before it."""
        steps: list[Loop] = []
        stores = []
        for store in loop.stores:
            roots = [self.values[id(root)] for root in store.roots]
            self._meet(roots)
            if id(store) in self.done:
                continue
            if _is_reduction(store):
                reduced = sum(1 << k for k in reduced_axes(self.shape, store) or ())
                for value in self._to_store(roots[0], reduced):
                    steps += self._stored(value)
            stores.append(self._of_new_parts(store))
        loop.stores = stores
        return [*steps, loop] if stores else steps

    def _meet(self, roots: list[_Value]) -> None:
        for root in roots:
            root.waiting -= 1
        stack = list(roots)
        while stack:
            value = stack.pop()
            if not value.met:
                value.met = True
                stack += value.args
                for arg in value.args:
                    arg.waiting -= 1

    def _to_store(self, root: _Value, reduced: int) -> list[_Value]:
        """The values to be stored before a reduction along some axes, arguments first: mostly none."""
        if root.stored or not root.axes & reduced:
            return []
        again, once, live = self._computed(root, reduced)
        if not again or not live:
            return []
        ahead = min(max([value.last for value in live]) - root.needs, _PASSES_AHEAD)
        cost = again + once * ahead
        if cost <= _MOST_AGAIN:
            return []
        live.sort(key=lambda value: value.number)
        for value in live[::-1]:
            if _cost_from(value, {other for other in live if other is not value}, reduced) <= _CHEAP:
                live.remove(value)
        return live if cost > len(live) * _MOST_AGAIN and len(live) <= _MOST_STORED else []

    def _computed(self, root: _Value, reduced: int) -> tuple[int, int, list[_Value]]:
        """Note what the pass of a reduction computes for each element.

        Returns the cost of all that was computed again up to now, the cost of this pass, and the values that something
        needs that is not met yet.
        """
        again = once = 0
        live = []
        seen = {root}
        stack = [root]
        while stack:
            value = stack.pop()
            if value.latest != root.needs:
                value.passes, value.latest = value.passes + 1, root.needs
            once += value.cost
            again += value.cost * (value.passes - 1)
            if value.waiting and value.args and value.axes == self.all_axes:
                live.append(value)
            for arg in value.args:
                if arg.axes & reduced and not arg.stored and arg not in seen:
                    seen.add(arg)
                    stack.append(arg)
        return again, once, live

    def _stored(self, value: _Value) -> list[Loop]:
        """Have a value stored from now on. Returns the loop that does it, where none does by now."""
        value.stored = True
        node = value.node
        if isinstance(node, Load):
            self.cutting.buffers.add(node.access.buffer)
            return []
        store = self.stores.get(value) or self._to_temp(node)
        self.cutting.buffers.add(store.access.buffer)
        loops = [] if id(store) in self.done else [Loop(self.shape, [self._of_new_parts(store)], self.device)]
        self._forget_users(value)
        self.new[id(node)] = Load(store.access, node.dtype)
        return loops

    def _to_temp(self, node: Expr) -> Store:
        """A store to a temporary, whose elements lie in the order of those that the value is computed from."""
        along: Shape = ()
        for part in walk(self._new(node)):
            if isinstance(part, Load) and self._axes_of(part.access) == self.all_axes:
                along = part.access.strides
        order = sorted(range(len(self.shape)), key=lambda k: -abs(along[k]) if along else k)
        strides, count = [0] * len(self.shape), 1
        for axis in reversed(order):
            strides[axis], count = count, count * self.shape[axis]
        meta = TensorMeta(node.dtype, self.shape, tuple(strides), self.device)
        buffer = Buffer(f"cut{len(self.cutting.buffers)}", meta, "temp")
        return Store(Access(buffer, 0, meta.stride), node)

    # --- expressions of what is stored by now ---

    def _of_new_parts(self, store: Store) -> Store:
        self.done[id(store)] = store
        offset, inside = (None if e is None else self._new(e) for e in (store.offset, store.inside))
        return replace(store, value=self._new(store.value), offset=offset, inside=inside)

    def _new(self, root: Expr) -> Expr:
        new = self.new
        stack = [root]
        while stack:
            node = stack[-1]
            if id(node) in new or not isinstance(node, Op):
                stack.pop()
                continue
            missing = [arg for arg in node.args if isinstance(arg, Op) and id(arg) not in new]
            if missing:
                stack.extend(missing)
                continue
            new[id(node)] = with_arguments(node, tuple([new.get(id(arg), arg) for arg in node.args]))
            stack.pop()
        return new.get(id(root), root)

    def _forget_users(self, value: _Value) -> None:
        """What used a value is another expression from now on, wherever it is needed again."""
        stack = list(value.users)
        while stack:
            user = stack.pop()
            if self.new.pop(id(user.node), None) is not None:
                stack += user.users


def _cost_from(value: _Value, others: set[_Value], reduced: int) -> int:
    """What a value costs that is computed from some others, as far as that is little."""
    total = 0
    seen = {value}
    stack = [value]
    while stack and total <= _CHEAP:
        part = stack.pop()
        total += part.cost
        for arg in part.args:
            if arg.axes & reduced and not arg.stored and arg not in others and arg not in seen:
                seen.add(arg)
                stack.append(arg)
    return total
