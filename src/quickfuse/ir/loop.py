"""A lowered program: loops over elements and calls of ATen operators.

Lowering writes every tensor as a function from an index tuple to a scalar expression. Views are arithmetic on the
index, so they cost nothing; a value is stored only where it must be.

    for i0, i1 in (1024, 1024):
        p[1024*i0 + i1] = sub(p[1024*i0 + i1], ...)

A reduction is a store that combines the values of all elements that it stores to one place:

    for i0, i1 in (1024, 1024):
        t[i0] sum= f64(x[1024*i0 + i1])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Self

import torch

from .arguments import leaves, map_leaves
from .expr import Expr, Load, Place, statements, walk
from .quick import value_class
from .values import TensorMeta


@dataclass(eq=False, slots=True)
class Buffer:
    """Memory that holds a tensor. Identity is what counts: two buffers never overlap (a guard sees to it).

    `kind`: "input" (the tensor at `position` among the graph's placeholders), "output" (allocated for each call and
    handed to the user), "temp" (allocated by us, dead after the call) or "flag" (see `Program.flag`).
    """

    name: str
    meta: TensorMeta
    kind: str
    position: int = -1

    def __str__(self) -> str:
        return self.name


class Handed(Buffer):
    """What one call of PyTorch hands to others, and no kernel reads: a tensor of dynamic sizes, or a list of such."""

    __slots__ = ()


@value_class(frozen=True, slots=True)
class Access:
    """An element of `buffer`: at `offset + sum(strides[k] * i_k)` elements from its first. One stride a loop axis.

    `loose`: it is only the place from which a computed offset counts, so the element may be any.
    """

    buffer: Buffer
    offset: int
    strides: tuple[int, ...]
    loose: bool = False

    def __str__(self) -> str:
        terms = [f"{'' if s == 1 else f'{s}*'}i{k}" for k, s in enumerate(self.strides) if s]
        if self.offset or not terms:
            terms.append(str(self.offset))
        return f"{self.buffer}[{' + '.join(terms)}]"


class StoreKind(Enum):
    """What happens to a value."""

    ASSIGN = "assign"  # it becomes the element at the current index
    REDUCE = "reduce"  # the values of a row are combined into one
    SCAN = "scan"  # it is combined with those before it along the axis that is gone through in order
    SCATTER = "scatter"  # it becomes the element `offset` elements further on, where `inside` holds
    FLAG = "flag"  # a bool is set where the value holds, and stays as it is elsewhere


class Stored:
    """What stores of programs and of kernels have in common: what is computed for an element."""

    __slots__ = ()
    value: Expr
    offset: Expr | None
    inside: Expr | None

    @property
    def roots(self) -> tuple[Expr, ...]:
        """All that is computed."""
        return tuple([root for root in (self.offset, self.inside, self.value) if root is not None])

    def rewritten(self, function: Callable[[Expr], Expr]) -> Self:
        """The store with `function(root)` in place of all that is computed."""
        offset, inside = (None if root is None else function(root) for root in (self.offset, self.inside))
        return replace(self, value=function(self.value), offset=offset, inside=inside)  # type: ignore[type-var]


@value_class(frozen=True, slots=True)
class Store(Stored):
    """Write `value` to an element, as `kind` says. `value.dtype` is the buffer's dtype.

    combine: how a reduction or scan combines values (add, mul, maximum, minimum, and, or). "sum" is "add" where a few values
        at a time may be added up in the type that they are converted from. A reduction combines those along the axes on
        which `access` does not move, in any order; what the buffer held before does not count.
    along: the axis whose elements a scan or scatter stores in order, one after the other. What other iterations of the loop
        scatter to is never the same element, unless only their indices on that axis differ.
    offset, inside: where a scatter stores to, from `access` on, and whether it does. It leaves the other elements of the
        buffer as stores before it have them, and its value may use what the element held: `Previous`.
    """

    access: Access
    value: Expr
    kind: StoreKind = StoreKind.ASSIGN
    combine: str = ""
    along: int = -1
    offset: Expr | None = None
    inside: Expr | None = None

    @property
    def in_order(self) -> bool:
        """Whether it goes along an axis in order."""
        return self.kind in (StoreKind.SCAN, StoreKind.SCATTER)

    @property
    def assignment(self) -> str:
        """What stands left of the value: `t[i0] =`, or `t[i0] sum=` for a reduction."""
        if self.kind is StoreKind.SCATTER:
            return f"{self.access}[{self.offset} if {self.inside}] ="
        order = f" along i{self.along}" if self.kind is StoreKind.SCAN else ""
        return f"{self.access} {'flag' if self.kind is StoreKind.FLAG else self.combine}{order}="

    def __str__(self) -> str:
        return f"{self.assignment} {self.value}"


def identity(combine: str, dtype: torch.dtype) -> bool | int | float:
    """The value that changes nothing when it is combined with others by `combine`: what a reduction begins with."""
    if combine in ("add", "sum", "or"):
        return 0
    if combine in ("mul", "and"):
        return 1
    assert combine in ("maximum", "minimum"), combine
    if dtype.is_floating_point:
        return float("-inf") if combine == "maximum" else float("inf")
    if dtype is torch.bool:
        return combine == "minimum"
    limits = torch.iinfo(dtype)
    return limits.min if combine == "maximum" else limits.max


@dataclass(eq=False, slots=True)
class Loop:
    """For every index in `shape`, evaluate all values, then do all stores. Iterations are independent.

    Every load reads what its buffer held before the program began (inputs), or what the loop that fills it left there
    (temporaries): so a loop that stores to an input comes after, or is, each loop that reads it.
    """

    shape: tuple[int, ...]
    stores: list[Store]
    device: torch.device

    @property
    def reads(self) -> dict[Buffer, None]:
        """The buffers that it reads, in order."""
        nodes = walk(*[root for store in self.stores for root in store.roots])
        return dict.fromkeys([node.access.buffer for node in nodes if isinstance(node, (Load, Place))])

    @property
    def writes(self) -> list[Buffer]:
        """The buffer of each store."""
        return [store.access.buffer for store in self.stores]

    def __str__(self) -> str:
        axes = ", ".join(f"i{k}" for k in range(len(self.shape)))
        head = f"for {axes} in {self.shape}:" if self.shape else "once:"
        lines = statements((s.assignment, s.value) for s in self.stores)
        return "\n".join([f"{head}  # {self.device}", *(f"    {line}" for line in lines)])


@dataclass(eq=False, slots=True)
class Extern:
    """A call of a PyTorch operator: `outputs` are bound to what `target(*args, **kwargs)` returns.

    Buffers and host scalar names (as `HostScalar`) may stand anywhere within `args` and `kwargs`. With
    `draws` it may draw random numbers: it runs after the call `after`, which may, too. With `may_fail` it may raise an
    exception: no input is stored to before. `is_new`: what it returns is in new memory, of which nobody else knows.
    """

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: list[Buffer]
    after: Extern | None = None
    draws: bool = False
    may_fail: bool = False
    is_new: bool = False

    @property
    def reads(self) -> dict[Buffer, None]:
        """The buffers that it reads, in order."""
        return dict.fromkeys(buffers_in((self.args, self.kwargs)))

    @property
    def writes(self) -> list[Buffer]:
        """The buffers that it makes."""
        return self.outputs

    @property
    def buffers(self) -> dict[Buffer, None]:
        """The buffers that it reads or writes, in order."""
        return dict.fromkeys([*self.reads, *self.outputs])

    def __str__(self) -> str:
        name = getattr(self.target, "__name__", str(self.target))
        return f"{', '.join(map(str, self.outputs))} = {name}{tuple(map(_text, self.args))}"


class Draw(Extern):
    """Reserves random numbers of a GPU's generator for kernels, on the host: `target(*args)` returns numbers (int64), each
    of which becomes the one element of an output on the CPU, that kernels take by value."""

    __slots__ = ()


def _text(argument: Any) -> str:
    return f"[{', '.join(map(_text, argument))}]" if isinstance(argument, list) else str(argument)


@dataclass(frozen=True, slots=True)
class HostScalar:
    """A number computed by the glue before any kernel runs: the Python statement `name = code`.

    `code` uses placeholders' names, earlier host scalars and the `math` module. `dtype` is float64, int64 or bool. `value`
    is the number itself where it is a constant, which has itself as a name and needs no statement.
    """

    name: str
    code: str
    dtype: torch.dtype
    value: float | None = None

    def __str__(self) -> str:
        return f"{self.name} = {self.code}"


class GeneratorInput(HostScalar):
    """A generator of random numbers that is an input: calls of PyTorch draw from it."""

    __slots__ = ()


@dataclass(eq=False, slots=True)
class Program:
    """A lowered graph. `inputs` has an entry for each placeholder: its buffer, or None for a number.

    `outputs` has an entry for each graph output: a buffer (an input buffer: that very tensor), a `HostScalar`,
    a `View`, a `Number` or a constant.
    `flag` is a bool that loops set where eager would raise an exception, say for an index out of range. Then nothing that
    the loops computed is used: the graph runs in eager mode. No input is stored to before. `versions` are the positions
    of new tensors that the graph changed in place before it returned them, and how often: PyTorch counts that. `chooses`:
    there are values that are different formulas on different parts of their index space. `optional`: the temporaries that
    may as well be computed by each loop that reads them. `parts`: those that are reductions of parts of rows, which are not
    cut once more.
    """

    inputs: list[Buffer | None] = field(default_factory=list)
    host_scalars: list[HostScalar] = field(default_factory=list)
    steps: list[Loop | Extern] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    flag: Buffer | None = None
    versions: list[tuple[int, int]] = field(default_factory=list)
    chooses: bool = False
    optional: set[Buffer] = field(default_factory=set)
    parts: set[Buffer] = field(default_factory=set)

    def __str__(self) -> str:
        head = [f"# {b} : {b.meta}" for b in self.inputs if b is not None]
        optional = sorted([buffer.name for buffer in self.optional if buffer.kind == "temp"])
        head += [f"# stored, or computed by each reader: {', '.join(optional)}"] if optional else []
        scalars = [str(s) for s in self.host_scalars]
        return "\n".join([*head, *scalars, *map(str, self.steps), f"return {', '.join(map(str, self.outputs))}"])


@dataclass(frozen=True, slots=True)
class View:
    """Part of a buffer, as an output of the graph or an argument of a call: `as_strided` with an offset from the buffer's
    first element."""

    buffer: Buffer
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @property
    def transposed(self) -> View:
        return View(self.buffer, self.shape[::-1], self.stride[::-1], self.offset)

    def __str__(self) -> str:
        return f"view({self.buffer}, {self.shape}, {self.stride}, {self.offset})"


class Number(View):
    """A graph output that is a Python number: the one element of an output buffer."""

    def __str__(self) -> str:
        return f"number({self.buffer})"


def memory_at(buffer: Buffer, shape: tuple[int, ...], stride: tuple[int, ...], offset: int) -> Buffer | View:
    """A part of a buffer, which is the buffer itself if it is all of it."""
    meta = buffer.meta
    return buffer if (meta.shape, meta.stride, 0) == (shape, stride, offset) else View(buffer, shape, stride, offset)


def as_view(memory: Buffer | View) -> View:
    """The same memory as a view, of all of it where it is a buffer."""
    return View(memory, memory.meta.shape, memory.meta.stride, 0) if isinstance(memory, Buffer) else memory


def with_buffers(arguments: Any, buffer_of: Callable[[Buffer], Buffer]) -> Any:
    """Arguments of a call with other buffers, also those of views."""

    def leaf(value: Any) -> Any:
        if isinstance(value, View):
            return replace(value, buffer=buffer_of(value.buffer))
        return buffer_of(value) if isinstance(value, Buffer) else value

    return map_leaves(leaf, arguments)


def views_in(value: Any) -> Iterator[View]:
    """What arguments of a call read, as views: the buffers among them, and the parts of buffers."""
    return map(as_view, _memory_in(value))


def buffers_in(value: Any) -> Iterator[Buffer]:
    """The buffers, and those of views, within arguments of a call."""
    for memory in _memory_in(value):
        yield memory if isinstance(memory, Buffer) else memory.buffer


def _memory_in(value: Any) -> Iterator[Buffer | View]:
    return (leaf for leaf in leaves(value) if isinstance(leaf, (Buffer, View)))
