"""From loops to kernel bodies: code without sizes and buffers, so that equal code is found by one comparison.

A loop is read once, in a fixed order, into a flat signature: operations numbered as they are met, operands numbered by
first use. Loops with the same signature have the same body, which is built only for the first of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quickfuse.errors import Unsupported
from quickfuse.ir.expr import Const, Expr, Index, Load, Op, Scalar
from quickfuse.ir.kernel import ArgScalar, KernelBody, Member, Slot, SlotLoad
from quickfuse.ir.loop import Access, Buffer

from .collapse import Collapsed, collapse
from .merge import MergedLoop


@dataclass(eq=False, slots=True)
class Candidate:
    """A loop with its body, its operands, and the names of its host scalars."""

    loop: MergedLoop
    body: KernelBody
    member: Member
    scalars: tuple[str, ...]
    collapsed: Collapsed


class Canonicalizer:
    """Makes bodies, one for each signature."""

    def __init__(self) -> None:
        self._bodies: dict[tuple[Any, ...], KernelBody] = {}

    def candidate(self, loop: MergedLoop) -> Candidate:
        """The body and member of a loop.

        Raises:
            Unsupported: where a buffer is stored to and loaded from at another element.
        """
        reader = _Reader(loop)
        collapsed = collapse(
            loop.shape, tuple([a.strides for a in reader.accesses]), reader.stored[0], tuple(sorted(reader.axes))
        )
        slots = reader.slots(collapsed)
        key = (loop.device.type, len(collapsed.sizes), slots, reader.signature(collapsed))
        body = self._bodies.get(key)
        if body is None:
            body = self._bodies[key] = reader.body(collapsed, slots)
        member = Member(
            collapsed.sizes,
            tuple([a.buffer for a in reader.accesses]),
            tuple([a.offset for a in reader.accesses]),
            collapsed.strides,
        )
        return Candidate(loop, body, member, tuple(reader.scalars), collapsed)


class _Reader:
    """One pass over a loop's expressions.

    nodes: each distinct node, arguments first. code: the same, as numbers, flat.
    accesses: the operands by first use, stored ones included; stored: the operand of each store.
    scalars: names of host scalars, by first use, with their types. axes: those whose loop variable is a value.
    """

    def __init__(self, loop: MergedLoop) -> None:
        self.loop = loop
        self.nodes: list[Expr] = []
        self.code: list[Any] = []
        self.accesses: list[Access] = []
        self.scalars: dict[str, Any] = {}
        self.axes: set[int] = set()
        self._operand: dict[tuple[Buffer, int, tuple[int, ...]], int] = {}
        self._number: dict[int, int] = {}
        self.values = [self._read(store.value) for store in loop.stores]
        self.loaded = len(self.accesses)
        self.stored = [self._operand_of(store.access) for store in loop.stores]
        self._check()

    def _read(self, root: Expr) -> int:
        """The number of an expression's root, after numbering all below it."""
        number, inlined = self._number, self.loop.inlined
        stack = [root]
        while stack:
            node = stack[-1]
            if id(node) in number:
                stack.pop()
                continue
            if type(node) is Op:
                waiting = len(stack)
                for arg in node.args:
                    if id(arg) not in number:
                        stack.append(arg)
                if len(stack) > waiting:
                    continue
                self.code += (node.name, node.dtype)
                self.code += [number[id(arg)] for arg in node.args]
            elif type(node) is Load:
                value = inlined.get(node.access.buffer)
                if value is not None:
                    if id(value) not in number:
                        stack.append(value)
                        continue
                    number[id(node)] = number[id(value)]
                    continue
                self.code += ("load", self._operand_of(node.access))
            else:
                self._read_leaf(node)
            number[id(node)] = len(self.nodes)
            self.nodes.append(node)
            stack.pop()
        return number[id(root)]

    def _read_leaf(self, node: Expr) -> None:
        if type(node) is Const:
            self.code += ("const", node.dtype, type(node.value), repr(node.value))
        elif type(node) is Scalar:
            self.scalars.setdefault(node.name, node.dtype)
            self.code += ("scalar", list(self.scalars).index(node.name))
        elif type(node) is Index:
            self.axes.add(node.axis)
            self.code += ("index", node.axis)
        else:
            raise Unsupported(f"an expression of kind {type(node).__name__}")

    def _operand_of(self, access: Access) -> int:
        key = (access.buffer, access.offset, access.strides)
        known = self._operand.get(key)
        if known is None:
            known = self._operand[key] = len(self.accesses)
            self.accesses.append(access)
        return known

    def _check(self) -> None:
        if len(self._operand) == len({buffer for buffer, _, _ in self._operand}):
            return
        stored = {self.accesses[k].buffer for k in self.stored}
        for buffer in stored:
            if sum(key[0] is buffer for key in self._operand) > 1:
                raise Unsupported(f"a loop that stores to {buffer} and loads other elements of it")

    def signature(self, collapsed: Collapsed) -> tuple[Any, ...]:
        axes = tuple([collapsed.axis(k) for k in sorted(self.axes)])
        return (*self.code, *self.values, *self.stored, *axes, *self.scalars.values())

    def slots(self, collapsed: Collapsed) -> tuple[Slot, ...]:
        device = self.loop.device
        stored = set(self.stored)
        slots = []
        for k, (access, strides) in enumerate(zip(self.accesses, collapsed.strides, strict=True)):
            mode = "r" if k not in stored else "rw" if k < self.loaded else "w"
            meta = access.buffer.meta
            slots.append(_slot(meta.dtype, strides, mode, meta.device != device))
        return tuple(slots)

    def body(self, collapsed: Collapsed, slots: tuple[Slot, ...]) -> KernelBody:
        names = list(self.scalars)
        made: list[Expr] = []
        for node in self.nodes:
            if isinstance(node, Op):
                made.append(Op(node.name, tuple([made[self._number[id(a)]] for a in node.args]), node.dtype))
            elif isinstance(node, Load):
                slot = self._operand_of(node.access)
                made.append(SlotLoad(slot, node.dtype))
            elif isinstance(node, Scalar):
                made.append(ArgScalar(names.index(node.name), node.dtype))
            elif isinstance(node, Index):
                axis = collapsed.axis(node.axis)
                made.append(Const(0, node.dtype) if axis is None else Index(axis))
            else:
                made.append(node)
        stores = tuple([(slot, made[value]) for slot, value in zip(self.stored, self.values, strict=True)])
        return KernelBody(
            self.loop.device.type, len(collapsed.sizes), slots, tuple(self.scalars.values()), stores
        )


_slots: dict[tuple[Any, ...], Slot] = {}


def _slot(dtype: Any, strides: tuple[int, ...], mode: str, by_value: bool) -> Slot:
    """The slot of an operand with these strides; slots are shared, as there are few kinds."""
    classes = tuple([s if s in (0, 1) else None for s in strides])
    key = (dtype, classes, mode, by_value)
    known = _slots.get(key)
    if known is None:
        known = _slots[key] = Slot(dtype, classes, mode, by_value)
    return known
