"""One pass over a stored expression: what it loads, and its code as a flat tuple that equal code shares.

Expressions are graphs with shared nodes, of which tuples or hashes of the nodes themselves would take exponential time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from quickfuse.errors import Unsupported
from quickfuse.ir.expr import Const, Count, Expr, Index, Load, Op, Place, Previous, Scalar, walk
from quickfuse.ir.loop import Access


@dataclass(eq=False, slots=True)
class Reading:
    """An expression without its buffers and host scalars, which are numbered by first use.

    code: the operations in the order in which they are met, arguments first; each names its arguments' numbers.
    accesses: the distinct loads. scalars: the host scalars' names and types. axes: those whose loop variable is a value.
    Places from which computed offsets count are among the loads, as loose ones.
    """

    code: tuple[Any, ...]
    accesses: list[Access]
    scalars: dict[str, torch.dtype]
    axes: tuple[int, ...]


def read(root: Expr, *others: Expr) -> Reading:
    """Read an expression, or several. Takes part in every compilation, for every parameter of a model: it is to be quick."""
    reader = _Reader()
    number, code, leaf = reader.number, reader.code, reader.leaf
    for node in walk(root, *others):
        if type(node) is Op:
            code.append((node.name, node.dtype, *[number[id(arg)] for arg in node.args]))
            number[id(node)] = len(number)
        else:
            leaf(node)
    code.append(number[id(root)])
    code += [number[id(other)] for other in others]
    return Reading(tuple(code), reader.accesses, reader.scalars, tuple(reader.axes))


class _Reader:
    __slots__ = ("accesses", "axes", "code", "number", "operands", "scalars")

    def __init__(self) -> None:
        self.code: list[Any] = []
        self.number: dict[int, int] = {}
        self.operands: dict[tuple[int, int, tuple[int, ...], bool], int] = {}
        self.accesses: list[Access] = []
        self.scalars: dict[str, torch.dtype] = {}
        self.axes: dict[int, None] = {}

    def leaf(self, node: Expr) -> None:
        """Number a leaf."""
        if type(node) is Load:
            self.code.append(("load", self.operand(node.access)))
        elif type(node) is Const:
            value = node.value
            # NaN equals nothing, and 0.0 equals -0.0.
            exact = value if value == value and value != 0 else repr(value)
            self.code.append(("const", node.dtype, type(value), exact))
        elif type(node) is Scalar:
            self.scalars.setdefault(node.name, node.dtype)
            self.code.append(("scalar", list(self.scalars).index(node.name)))
        elif type(node) is Count:
            self.code.append(("count", node.value))
        elif type(node) is Index:
            self.axes[node.axis] = None
            self.code.append(("index", node.axis))
        elif type(node) is Previous:
            self.code.append(("previous", node.dtype))
        elif type(node) is Place:
            access = node.access
            loose = Access(access.buffer, access.offset, access.strides, loose=True)
            self.code.append(("place", self.operand(loose)))
        else:
            raise Unsupported(f"an expression of kind {type(node).__name__}")
        self.number[id(node)] = len(self.number)

    def operand(self, access: Access) -> int:
        key = (id(access.buffer), access.offset, access.strides, access.loose)
        operand = self.operands.get(key)
        if operand is None:
            operand = self.operands[key] = len(self.accesses)
            self.accesses.append(access)
        return operand
