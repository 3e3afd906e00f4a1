"""Where a chain of reductions is cut: a value is stored, so that what comes after need not compute it again.

Each pass of a kernel computes all that it needs from what is in memory. In `x = softmax(x) + x`, done a hundred times, every
`x` is needed by the next maximum, the next sum and the next `x`: as one kernel, each pass would begin at the first `x`, and
the work would grow with the square of the length. So reductions are gone through in order, with the cost of what their
passes compute again. Where that would be more than a store and a load cost, the values are stored that are still needed,
and all that reads them comes in a later kernel.

An operation is met once for each pass that computes it, and what that costs is limited: the time is linear.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

import torch

from quickfuse.ir.cost_model import COSTS
from quickfuse.ir.expr import Const, Expr, Index, Load, Op, Place, Previous, walk
from quickfuse.ir.loop import Access, Buffer, Extern, Loop, Program, Store, StoreKind, buffers_in
from quickfuse.ir.reindex import with_arguments
from quickfuse.ir.values import TensorMeta, contiguous_stride, stride_in_order

from .index_space import Shape, reduced_axes
from .materialize import cost_of


def cut(program: Program) -> frozenset[Buffer]:
    """Store values where chains of reductions are cut. Returns the buffers whose readers are to be in later kernels."""
    loops = [step for step in program.steps if isinstance(step, Loop)]
    if sum(_is_reduction(store) for loop in loops for store in loop.stores) < COSTS.least_chain:
        return frozenset()
    return _Cutting(program).run(loops)


def _is_reduction(store: Store) -> bool:
    return store.kind is StoreKind.REDUCE


@dataclass(eq=False, slots=True)
class _Value:
    """What an expression stands for. A load of what a loop of the same shape stores has that as its argument.

    `axes` are those along which it changes, as bits. `needs`: how many reductions must come before, one after the other, and
    `calls`: how many calls of PyTorch; both together stand for a pass. `needed_in` are the passes that need it, and
    `computed_in` those that did by now, both as bits. `waiting` counts the users that are not met yet. `number`: its place
    among the values, arguments first.
    """

    number: int
    node: Expr
    args: list[_Value]
    axes: int
    needs: int
    calls: int
    cost: int = 0
    users: list[_Value] = field(default_factory=list)
    needed_in: int = 0
    computed_in: int = 0
    waiting: int = 0
    met: bool = False
    stored: bool = False
    everywhere: _Everywhere | None = None

    @property
    def is_stored(self) -> bool:
        """Whether something stores it before all that reads it from now on."""
        return self.stored or (self.everywhere is not None and self.everywhere.contents is not None)

    def is_computed_after(self, calls: int) -> bool:
        """Whether a kernel after so many calls has to compute it. What was stored before the last of them is only loaded."""
        return bool(self.args) and (isinstance(self.node, Op) or self.calls >= calls)


@dataclass(eq=False, slots=True)
class _Everywhere:
    """A value in loops of all shapes of as many elements: long rows are reduced in parts, in loops of one more axis.

    `contents`: the first of its elements and the buffer, where they are stored one after the other.
    """

    number: int
    contents: Access | None = None


class _Cutting:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.spaces: dict[object, _Space] = {}
        #: After how many reductions, and how many calls, a buffer's contents are known.
        self.known: dict[Buffer, tuple[int, int]] = {}
        self.passes: dict[tuple[int, int], int] = {}  # the bit of each
        self.between: dict[int, int] = {}  # the bits of the passes that come after so many calls: those of one kernel
        self.writers: dict[Buffer, int] = {}
        self.buffers: set[Buffer] = set()
        self.everywhere: dict[object, _Everywhere] = {}

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
                read = [self.known[buffer] for buffer in buffers_in((step.args, step.kwargs)) if buffer in self.known]
                calls = max([calls for _, calls in read], default=0)
                self.known.update(dict.fromkeys(step.outputs, (0, calls + 1)))
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

    def bit(self, needs: int, calls: int) -> int:
        """The bit that stands for a pass."""
        bit = self.passes.setdefault((needs, calls), 1 << len(self.passes))
        self.between[calls] = self.between.get(calls, 0) | bit
        return bit


class _Space:
    """The values of the loops of one shape. Equal expressions are one value, as are those of the parts of long rows."""

    def __init__(self, cutting: _Cutting, shape: Shape, device: torch.device) -> None:
        self.cutting = cutting
        self.shape = shape
        self.device = device
        self.contiguous = contiguous_stride(shape)
        self.form = (math.prod(shape), device)
        self.all_axes = sum(1 << k for k, size in enumerate(shape) if size > 1)
        self.values: dict[int, _Value] = {}  # by the node's id
        self.distinct: dict[object, _Value] = {}  # by what they are made of, arguments first
        self.contents: dict[Access, _Value] = {}
        self.stores: dict[_Value, Store] = {}  # the plain ones
        self.done: dict[int, Store] = {}  # those that are in the new program, by id
        self.new: dict[_Value, Expr] = {}  # what operations have become

    # --- all loops, before the first decision ---

    def read(self, loop: Loop) -> None:
        """Note what a loop computes, and after how many reductions."""
        known = self.cutting.known
        for store in loop.stores:
            roots = [self._value(root) for root in store.roots]
            needs, calls = max([root.needs for root in roots]), max([root.calls for root in roots])
            for root in roots:
                root.waiting += 1
                root.needed_in |= self.cutting.bit(needs, calls)
            buffer = store.access.buffer
            is_plain = store.kind is StoreKind.ASSIGN
            before = known.get(buffer, (0, 0))
            known[buffer] = (max(before[0], needs if is_plain else needs + 1), max(before[1], calls))
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
        key = (node.name, node.dtype, *[arg.number for arg in args])
        value = self.distinct.get(key)
        if value is None:
            axes = 0
            for arg in args:
                axes |= arg.axes
            needs, calls = max([arg.needs for arg in args]), max([arg.calls for arg in args])
            value = _Value(len(self.distinct), node, args, axes, needs, calls, cost_of(node))
            self.distinct[key] = self._linked(value)
            known = [arg.everywhere for arg in args]
            if None not in known:
                self._note(value, (node.name, node.dtype, *[arg.number for arg in known if arg is not None]))
        return value

    def _note(self, value: _Value, key: tuple[object, ...]) -> None:
        everywhere = self.cutting.everywhere
        value.everywhere = everywhere.setdefault((*self.form, *key), _Everywhere(len(everywhere)))

    def _leaf(self, node: Expr) -> _Value:
        key = (type(node), repr(node.value), node.dtype) if isinstance(node, Const) else node  # 0.0 equals -0.0
        value = self.distinct.get(key)
        if value is None:
            args, axes, needs, calls = [], 0, 0, 0
            if isinstance(node, (Load, Place)):
                stored = self.contents.get(node.access)
                args = [] if stored is None else [stored]
                axes = self._axes_of(node.access)
                needs, calls = self.cutting.known.get(node.access.buffer, (0, 0))
            elif isinstance(node, Index):
                axes = 1 << node.axis
            value = self.distinct[key] = self._linked(_Value(len(self.distinct), node, args, axes, needs, calls))
            if isinstance(node, Load):
                access = node.access
                self._note(value, (access.buffer, access.offset, _runs(self.shape, access.strides)))
            elif not isinstance(node, (Place, Index, Previous)):
                self._note(value, (key,))
        return value

    def _linked(self, value: _Value) -> _Value:
        for arg in value.args:
            arg.users.append(value)
            arg.waiting += 1
        return value

    def _axes_of(self, access: Access) -> int:
        return sum(1 << k for k, stride in enumerate(access.strides) if stride and self.shape[k] > 1)

    def look_ahead(self) -> None:
        for value in reversed(self.distinct.values()):  # users come before what they use
            for arg in value.args:
                arg.needed_in |= value.needed_in

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
        if root.is_stored or not root.axes & reduced:
            return []
        live = self._computed(root, reduced)
        passes = self.cutting.between[root.calls]
        ahead = max([(value.needed_in & ~value.computed_in & passes).bit_count() for value in live], default=0)
        if not ahead:
            return []
        live.sort(key=lambda value: value.number)
        for value in live[::-1]:
            if _cost([value], reduced, root.calls, {other for other in live if other is not value})[0] <= COSTS.cheap:
                live.remove(value)
        cost, highest = _cost(live, reduced, root.calls)
        if highest >= COSTS.slow and ahead <= COSTS.passes_kept and len(live) == 1:
            return []
        enough = cost * min(ahead, COSTS.passes_ahead) > len(live) * COSTS.memory_access
        return live if enough and len(live) <= COSTS.most_stored else []

    def _computed(self, root: _Value, reduced: int) -> list[_Value]:
        """Note what the pass of a reduction computes for each element.

        Returns the values among these that something needs that is not met yet, if the pass computes something again:
        a conversion is nothing.
        """
        is_again = False
        live = []
        this = self.cutting.bit(root.needs, root.calls)
        others = self.cutting.between[root.calls] & ~this
        for value in _below([root], reduced, root.calls):
            if value.computed_in & others and isinstance(value.node, Op) and value.node.name != "cast":
                is_again = True
            value.computed_in |= this
            if value.waiting and value.axes == self.all_axes and value.is_computed_after(root.calls):
                live.append(value)
        return live if is_again else []

    def _stored(self, value: _Value) -> list[Loop]:
        """Have a value stored from now on. Returns the loop that does it, where none does by now."""
        value.stored = True
        node = value.node
        if isinstance(node, Load):
            self.cutting.buffers.add(node.access.buffer)
            return []
        store = self.stores.get(value) or self._to_temp(value)
        self.cutting.buffers.add(store.access.buffer)
        loops = [] if id(store) in self.done else [Loop(self.shape, [self._of_new_parts(store)], self.device)]
        self._forget_users(value)
        self.new[value] = Load(store.access, node.dtype)
        if value.everywhere is not None and store.access.strides == self.contiguous:
            value.everywhere.contents = store.access
        return loops

    def _to_temp(self, value: _Value) -> Store:
        """A store to a temporary, whose elements lie in the order of those that the value is computed from."""
        node = value.node
        along: Shape = ()
        for part in walk(self._new(value)):
            if isinstance(part, Load) and self._axes_of(part.access) == self.all_axes:
                along = part.access.strides
        order = sorted(range(len(self.shape)), key=lambda k: -abs(along[k]) if along else k)
        meta = TensorMeta(node.dtype, self.shape, stride_in_order(self.shape, order), self.device)
        buffer = Buffer(f"cut{len(self.cutting.buffers)}", meta, "temp")
        return Store(Access(buffer, 0, meta.stride), node)

    # --- expressions of what is stored by now ---

    def _of_new_parts(self, store: Store) -> Store:
        self.done[id(store)] = store
        offset, inside, new = (
            None if root is None else self._new(self.values[id(root)]) for root in (store.offset, store.inside, store.value)
        )
        assert new is not None
        return replace(store, value=new, offset=offset, inside=inside)

    def _new(self, root: _Value) -> Expr:
        new = self.new
        stack = [root]
        while stack:
            value = stack[-1]
            node = value.node
            if value in new or not isinstance(node, Op):
                stack.pop()
                continue
            if value.everywhere is not None and value.everywhere.contents is not None:
                stored = value.everywhere.contents
                new[value] = Load(Access(stored.buffer, stored.offset, self.contiguous), node.dtype)
                continue
            missing = [arg for arg in value.args if isinstance(arg.node, Op) and arg not in new]
            if missing:
                stack.extend(missing)
                continue
            new[value] = with_arguments(node, tuple([new.get(arg, arg.node) for arg in value.args]))
            stack.pop()
        return new.get(root, root.node)

    def _forget_users(self, value: _Value) -> None:
        """What used a value is another expression from now on, wherever it is needed again."""
        stack = list(value.users)
        while stack:
            user = stack.pop()
            if self.new.pop(user, None) is not None:
                stack += user.users


def _runs(shape: Shape, strides: Shape) -> tuple[int, ...]:
    """How an access moves, in a form that is the same where an axis is cut up into several: sizes and strides."""
    runs: list[int] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if runs and runs[-1] == stride * size:
            runs[-2:] = [runs[-2] * size, stride]
        else:
            runs += [size, stride]
    return tuple(runs)


def _below(
    roots: Collection[_Value], reduced: int, calls: int, others: Collection[_Value] = ()
) -> Iterator[_Value]:
    """What is computed for each element of rows to get some values from what is stored, and from some others."""
    seen = set(roots)
    stack = list(roots)
    while stack:
        value = stack.pop()
        yield value
        for arg in value.args if value.is_computed_after(calls) else ():
            if arg.axes & reduced and not arg.is_stored and arg not in others and arg not in seen:
                seen.add(arg)
                stack.append(arg)


def _cost(roots: Collection[_Value], reduced: int, calls: int, others: Collection[_Value] = ()) -> tuple[int, int]:
    """The cost of some values, and of the slowest operation in it."""
    costs = [value.cost for value in _below(roots, reduced, calls, others)]
    return sum(costs), max(costs, default=0)
