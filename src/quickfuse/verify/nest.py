"""What a loop of a program and a member of a kernel have in common: phases of statements over an index space.

Both are read into this form, by modules of their own, and executed in the same way. Operands are numbered; which element of
which buffer one is, a `Nest` says. All values of an index are computed before anything of that index is stored.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from quickfuse.ir.expr import HALF_TYPES, PICK, Const, Expr, Op
from quickfuse.ir.loop import Buffer

from . import known
from .hashing import Array, as_half, factors, of_numbers, single, token
from .memory import Region, Shape

#: Kinds of instruction. `payload` is: an operation's `Operation`; an operand's number for picks, loads, places and previous
#: values; a constant's `Value`; a scalar's number; an axis; the axes whose sizes are multiplied; a reduction's number; how a
#: scan combines values, and its axis; the id of a value that an earlier loop has computed.
OPERATION, PICKED, LOAD, PLACE, PREVIOUS, CONSTANT, SCALAR, INDEX, COUNT, REDUCED, SCAN, SHARED = range(12)


class Value:
    """Hashes of values, and what is known of them as numbers: `numbers`, everywhere or `where`."""

    __slots__ = ("_hashes", "dtype", "numbers", "where")

    def __init__(self, dtype: torch.dtype, hashes: Array | None, numbers: Any = None, where: Any = None) -> None:
        self.dtype = dtype
        self._hashes = None if hashes is None else as_half(hashes, dtype)
        self.numbers = numbers
        self.where = where

    @property
    def hashes(self) -> Array:
        if self._hashes is None:
            self._hashes = as_half(of_numbers(self.numbers, self.dtype), self.dtype)
        return self._hashes

    @property
    def is_known(self) -> bool:
        return self.numbers is not None and self.where is None


class Operation:
    """An operation with the factors of its arguments, and what computes it on numbers that are known.

    `neutral`: the condition that leaves another one as it is, for `and` and `or` of conditions. `widens` numbers of 16 bits,
    or `rounds` to these.
    """

    __slots__ = ("dtype", "factors", "is_sum", "is_where", "neutral", "rounds", "rule", "widens")

    def __init__(self, name: str, dtype: torch.dtype, arguments: tuple[torch.dtype, ...]) -> None:
        self.dtype = dtype
        self.factors = factors(len(arguments), name, dtype)
        self.rule = known.rule_of(name, dtype, arguments)
        self.is_where = name == "where"
        self.is_sum = name == "add" and dtype.is_floating_point
        self.widens = name == "cast" and arguments[0] in HALF_TYPES and dtype in (torch.float32, torch.float64)
        self.rounds = name == "cast" and dtype in HALF_TYPES and arguments[0] in (torch.float32, torch.float64)
        self.neutral = name == "and" if name in ("and", "or") and dtype is torch.bool else None


@dataclass(slots=True)
class Instruction:
    """One step of computing the values of an index; its result has the instruction's number."""

    kind: int
    payload: Any
    arguments: tuple[int, ...]
    dtype: torch.dtype


@dataclass(slots=True)
class Reduce:
    """All values along `axes` combined into one."""

    number: int
    combine: str
    value: int
    axes: Shape
    statement: int


@dataclass(slots=True)
class Assign:
    """A store of a value to an operand, or, `to_flag`, of whether it holds anywhere."""

    operand: int
    value: int
    statement: int
    to_flag: bool = False


@dataclass(slots=True)
class ScatterTo:
    """A store to the element that is `offset` after an operand's, where `inside` holds, in the order of an axis."""

    operand: int
    offset: int
    inside: int
    value: int
    along: int
    statement: int


@dataclass(slots=True)
class Phase:
    """One way through an index space. `once` are the axes that it does not go along."""

    once: Shape
    instructions: list[Instruction] = field(default_factory=list)
    reduces: list[Reduce] = field(default_factory=list)
    assigns: list[Assign] = field(default_factory=list)
    scatters: list[ScatterTo] = field(default_factory=list)
    #: For each instruction, the last one that needs its result; and all results that are needed in the end.
    last_use: list[int] = field(default_factory=list)
    #: The operands whose element at each index is loaded.
    loaded: list[int] = field(default_factory=list)
    #: The results that loops which come after need, by the ids of their expressions.
    kept: dict[int, int] = field(default_factory=dict)

    def shape(self, shape: Shape) -> Shape:
        return tuple([1 if k in self.once else n for k, n in enumerate(shape)])

    @property
    def whole(self) -> set[int]:
        """The axes that values are computed along all at once."""
        return {i.payload[1] for i in self.instructions if i.kind == SCAN}

    def statement_of(self, instruction: int) -> int:
        """The first statement that needs the result of an instruction."""
        users = {instruction}
        for number, other in enumerate(self.instructions):
            if not users.isdisjoint(other.arguments):
                users.add(number)
        found: list[tuple[int, tuple[int, ...]]] = [(r.statement, (r.value,)) for r in self.reduces]
        found += [(a.statement, (a.value,)) for a in self.assigns]
        found += [(s.statement, (s.offset, s.inside, s.value)) for s in self.scatters]
        return next(statement for statement, roots in found if not users.isdisjoint(roots))

    def finish(self) -> None:
        """Note what is loaded, and when each result is needed for the last time."""
        self.loaded = list(dict.fromkeys([i.payload for i in self.instructions if i.kind == LOAD]))
        self.last_use = list(range(len(self.instructions)))
        for number, instruction in enumerate(self.instructions):
            for argument in instruction.arguments:
                self.last_use[argument] = number
        end = len(self.instructions)
        kept = [r.value for r in self.reduces] + [a.value for a in self.assigns] + list(self.kept.values())
        kept += [part for s in self.scatters for part in (s.offset, s.inside, s.value)]
        for number in kept:
            self.last_use[number] = end


@dataclass(slots=True)
class Operand:
    """Where the element at index 0 is, and the steps along the axes. `loose`: it may lie anywhere (see `ir.loop.Access`)."""

    buffer: Buffer
    offset: int
    strides: Shape
    loose: bool = False

    def region(self, shape: Shape) -> Region:
        """The elements at the indices within a shape."""
        return Region(self.offset, shape, tuple([s if n > 1 else 0 for s, n in zip(self.strides, shape, strict=True)]))


@dataclass(slots=True)
class Nest:
    """Phases over a shape. `scalars` are the names of the host's numbers, or constants; `describe` gives the text of a
    statement."""

    shape: Shape
    phases: list[Phase]
    operands: Sequence[Operand]
    scalars: Sequence[str | float]
    describe: Callable[[int], str]


#: Values that take no more operations than this are computed again in another loop.
_FEW = 8


@dataclass(slots=True)
class Shared:
    """A value that loops of one shape compute: the first of them, `owner`, keeps it for those that come after."""

    owner: Phase
    instruction: int
    operations: int
    #: The last loop that needs it, by its number; -1 if only its owner does.
    last: int = -1


class Compiler:
    """Makes the instructions of a phase out of expressions.

    `leaf` gives the kind and payload of a leaf, or the number of its result. `shared` has the operations of earlier loops of
    the same shape by their ids; this loop is the `turn`-th.
    """

    def __init__(
        self, phase: Phase, leaf: Callable[[Expr], tuple[int, Any] | int], shared: dict[int, Shared] | None = None,
        turn: int = 0,
    ) -> None:  # fmt: skip
        self.phase = phase
        self.leaf = leaf
        self.shared = {} if shared is None else shared
        self.turn = turn
        self._numbers: dict[int, int] = {}
        self._leaves: dict[Any, int] = {}
        self._costs: list[int] = []

    def compile(self, root: Expr) -> int:
        """The number of the instruction that computes an expression."""
        numbers = self._numbers
        stack = [root]
        while stack:
            node = stack[-1]
            if id(node) in numbers:
                stack.pop()
            elif not isinstance(node, Op):
                numbers[id(node)] = self._leaf(node)
                stack.pop()
            elif self._is_kept(node):
                numbers[id(node)] = self.add(SHARED, id(node), (), node.dtype)
                stack.pop()
            elif missing := [arg for arg in node.args if id(arg) not in numbers]:
                stack += missing
            else:
                numbers[id(node)] = self._operation(node)
                stack.pop()
        return numbers[id(root)]

    def _is_kept(self, node: Op) -> bool:
        """Whether an earlier loop keeps a value for this one."""
        found = self.shared.get(id(node))
        if found is None or found.owner is self.phase or found.operations <= _FEW:
            return False
        found.last = self.turn
        return True

    def _operation(self, node: Op) -> int:
        arguments = tuple([self._numbers[id(arg)] for arg in node.args])
        if node.name == PICK:
            place = self.phase.instructions[arguments[0]]
            number = self.add(PICKED, place.payload, arguments[1:], node.dtype)
        else:
            operation = operation_of(node.name, node.dtype, tuple([arg.dtype for arg in node.args]))
            number = self.add(OPERATION, operation, arguments, node.dtype)
        cost = min(1 + sum([self._costs[k] for k in arguments]), 1 << 20)
        self._costs[number] = cost
        self.shared.setdefault(id(node), Shared(self.phase, number, cost))
        return number

    def _leaf(self, node: Expr) -> int:
        if isinstance(node, Const):
            return self.add(CONSTANT, constant(node.value, node.dtype), (), node.dtype)
        found = self.leaf(node)
        if isinstance(found, int):
            return found
        number = self._leaves.get(found)
        if number is None:
            number = self._leaves[found] = self.add(*found, (), node.dtype)
        return number

    def add(self, kind: int, payload: Any, arguments: tuple[int, ...], dtype: torch.dtype) -> int:
        self.phase.instructions.append(Instruction(kind, payload, arguments, dtype))
        self._costs.append(0)
        return len(self.phase.instructions) - 1


@functools.lru_cache(maxsize=1 << 12)
def operation_of(name: str, dtype: torch.dtype, arguments: tuple[torch.dtype, ...]) -> Operation:
    """The operation of a name, with the types of its result and its arguments."""
    return Operation(name, dtype, arguments)


def constant(value: bool | int | float, dtype: torch.dtype) -> Value:
    """A constant, by its value: 0.0 is not -0.0."""
    return _constant(repr(value), value, dtype)


@functools.lru_cache(maxsize=1 << 10)
def _constant(text: str, value: bool | int | float, dtype: torch.dtype) -> Value:
    numbers = known.constant(value, dtype)
    return Value(dtype, single(token("constant", dtype, value)) if numbers is None else None, numbers)
