"""Reads the loops of a program into nests."""

from __future__ import annotations

from typing import Any

from quickfuse.ir.expr import Count, Expr, Index, Load, Place, Previous, Scalar
from quickfuse.ir.loop import Access, Loop, Store, StoreKind

from .memory import Shape
from .nest import (
    CONSTANT,
    INDEX,
    LOAD,
    PLACE,
    PREVIOUS,
    REDUCED,
    SCALAR,
    SCAN,
    Assign,
    Compiler,
    Nest,
    Operand,
    Phase,
    Reduce,
    ScatterTo,
    Shared,
    constant,
)  # fmt: skip
from .violation import assignment_text


class Loops:
    """Reads loops, in order. Values that several loops of one shape compute are computed by the first."""

    def __init__(self) -> None:
        self._shared: dict[Shape, dict[int, Shared]] = {}
        self._turn = 0

    def read(self, loop: Loop) -> Nest:
        """A loop as one phase over its shape, with one more for each of its reductions, which stores the results."""
        self._turn += 1
        return _Reader(loop, self._shared.setdefault(loop.shape or (1,), {}), self._turn).nest

    def finish(self) -> dict[int, list[int]]:
        """Let phases keep what later ones need. Returns the ids of the values that are not needed after the n-th loop, which
        is of their shape."""
        last: dict[int, list[int]] = {}
        for values in self._shared.values():
            for identity, value in values.items():
                if value.last >= 0:
                    value.owner.kept[identity] = value.instruction
                    last.setdefault(value.last, []).append(identity)
        return last


class _Reader:
    def __init__(self, loop: Loop, shared: dict[int, Shared], turn: int) -> None:
        self.loop = loop
        self.shape = loop.shape or (1,)
        self.operands: list[Operand] = []
        self.numbers: dict[Access, int] = {}
        self.scalars: dict[str, int] = {}
        self.main = Phase(())
        self.compiler = Compiler(self.main, self._leaf, shared, turn)
        self.phases = [self.main]
        for number, store in enumerate(loop.stores):
            self._store(number, store)
        self.nest = Nest(self.shape, self.phases, self.operands, list(self.scalars), self._describe)

    def _describe(self, statement: int) -> str:
        store = self.loop.stores[statement]
        return f"for {self.loop.shape}: {assignment_text(store.assignment, store.value)}"

    def _store(self, number: int, store: Store) -> None:
        value = self.compiler.compile(store.value)
        operand = self._operand(store.access)
        if store.offset is not None and store.inside is not None:
            offset, inside = self.compiler.compile(store.offset), self.compiler.compile(store.inside)
            self.main.scatters.append(ScatterTo(operand, offset, inside, value, store.along, number))
        elif store.kind is StoreKind.SCAN:
            scanned = self.compiler.add(SCAN, (store.combine, store.along), (value,), store.value.dtype)
            self.main.assigns.append(Assign(operand, scanned, number))
        elif store.kind in (StoreKind.ASSIGN, StoreKind.FLAG):
            self.main.assigns.append(Assign(operand, value, number, to_flag=store.kind is StoreKind.FLAG))
        else:
            self._reduction(number, store, value, operand)

    def _reduction(self, number: int, store: Store, value: int, operand: int) -> None:
        axes = self._still_axes(store.access)
        self.main.reduces.append(Reduce(number, store.combine, value, axes, number))
        last = Phase(axes)
        result = Compiler(last, self._leaf).add(REDUCED, number, (), store.value.dtype)
        last.assigns.append(Assign(operand, result, number))
        self.phases.append(last)

    def _still_axes(self, access: Access) -> Shape:
        return tuple([k for k, (n, s) in enumerate(zip(self.loop.shape, access.strides, strict=True)) if n > 1 and not s])

    def _operand(self, access: Access) -> int:
        number = self.numbers.get(access)
        if number is None:
            number = self.numbers[access] = len(self.operands)
            self.operands.append(Operand(access.buffer, access.offset, access.strides or (0,), access.loose))
        return number

    def _leaf(self, node: Expr) -> tuple[int, Any]:
        if isinstance(node, Load):
            return LOAD, self._operand(node.access)
        if isinstance(node, Place):
            return PLACE, self._operand(node.access)
        if isinstance(node, Previous):
            return PREVIOUS, next(self._operand(s.access) for s in self.loop.stores if s.access.buffer is node.buffer)
        if isinstance(node, Scalar):
            return SCALAR, self.scalars.setdefault(node.name, len(self.scalars))
        if isinstance(node, Count):
            return CONSTANT, constant(node.value, node.dtype)
        assert isinstance(node, Index), node
        return INDEX, node.axis
