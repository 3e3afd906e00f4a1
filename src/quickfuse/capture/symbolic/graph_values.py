"""Tensors of the graph, and numbers that compiled code receives or computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ...ir.guard import NumberExpr
from ...ir.source import Source
from ...ir.values import TensorMeta
from .outside import ForeignTensor
from .raising import Moment, SuspendedInside, TensorOfOtherSizes, refusing


class TensorProxy:
    """A tensor of the graph. `source` and `real` are set for tensors that existed before the call. `data` is what shares its
    memory since `tensor.data = value`, None as long as it has memory of its own."""

    __slots__ = ("__weakref__", "attributes", "cls", "data", "meta", "name", "node", "real", "source")

    def __init__(
        self, meta: TensorMeta, node: torch.fx.Node | None = None, *, source: Source | None = None,
        real: torch.Tensor | None = None, cls: type = torch.Tensor,
    ) -> None:  # fmt: skip
        self.meta = meta
        self.node = node
        self.source = source
        self.real = real
        self.cls = cls
        self.attributes: dict[str, Any] = {}
        self.data: TensorProxy | None = None

    __bool__ = refusing("a branch on a tensor's value", "torch.where keeps both sides on the device")
    __index__ = __int__ = __float__ = __complex__ = __len__ = __iter__ = refusing("a tensor's value as a number")

    def __repr__(self) -> str:
        return f"TensorProxy({self.source or self.node}: {self.meta})"


@dataclass(eq=False, repr=False, slots=True, weakref_slot=True)
class DynamicTensor:
    """A tensor of the graph some of whose `sizes` are symbols: they are others in each call. `meta` is what it was like in
    the captured call. `source` is set for tensors that existed before the call. `shared`: it is, or has, a view. `shares`:
    its memory may be that of a tensor which the graph computes, and is not known as such. `looked_at`: the graph sees to it
    that the sizes are these."""

    meta: TensorMeta
    sizes: tuple[Any, ...]
    node: torch.fx.Node
    source: Source | None
    shares: bool = False
    shared: bool = False
    looked_at: bool = False

    __bool__ = __len__ = __iter__ = __eq__ = __ne__ = __hash__ = refusing("native code looked at a tensor of dynamic sizes")

    def __repr__(self) -> str:
        return f"DynamicTensor({self.source or self.node}: {self.meta})"


@dataclass(eq=False, repr=False, slots=True, weakref_slot=True)
class Selection:
    """What a mask selects of a tensor, `x[mask]`, as long as only operators on elements use it: how many elements that are,
    nobody knows. `values` are those of all places, with something harmless at others than these."""

    values: TensorProxy
    mask: TensorProxy
    made_at: Moment

    __bool__ = __len__ = __iter__ = __eq__ = __ne__ = __hash__ = refusing("native code looked at what a mask selects")


@dataclass(eq=False, slots=True)
class Either:
    """The first of `both` where the graph finds `condition` true, else the second: numbers, or tensors of one number. See
    `objects.either`."""

    condition: TensorProxy
    first: Any
    second: Any
    made_at: Moment

    @property
    def both(self) -> tuple[Any, Any]:
        return self.first, self.second

    def with_both(self, first: Any, second: Any) -> Either:
        return Either(self.condition, first, second, self.made_at)

    def left(self) -> SuspendedInside:
        """Which of them it is matters: the segment is to end in front of the call that gave it."""
        return self.made_at.suspended("a branch on a tensor's value")

    __bool__ = __len__ = __iter__ = __eq__ = __ne__ = __hash__ = refusing("native code looked at one of two numbers")


class FormedText:
    """A text that is formed after the graph ran, if at all, since there are numbers in it: `function(*args)`. The arguments
    are constants, numbers, other such texts, and tuples and lists of these."""

    __slots__ = ("args", "function")

    def __init__(self, function: Callable[..., str], *args: Any) -> None:
        self.function = function
        self.args = args

    __bool__ = __len__ = __iter__ = __eq__ = __ne__ = __hash__ = __str__ = __format__ = refusing(
        "native code looked at a text with numbers in it that keep changing"
    )


@dataclass(eq=False, repr=False, slots=True)
class LateNumber:
    """A float that Python computes after the graph, of numbers that only the graph tells: `function(*args)`, such as
    `round(loss, 3)`, which raises an exception for none. The arguments are numbers, other such ones, constants, and lists of
    these. `cls` is `float`, or NumPy's class."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    cls: type = float
    kind: ClassVar[type] = float

    __bool__ = __float__ = __int__ = __eq__ = __ne__ = __hash__ = __format__ = refusing(
        "native code looked at a number that is computed after the graph"
    )


class DynamicSize(tuple[Any, ...]):
    """A `torch.Size` with symbols in it."""


#: The classes of tensors that need no thought.
TENSOR_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})


def tensors_among(arguments: Any) -> Iterator[TensorProxy]:
    """The tensors among arguments of an operator, in lists, tuples and dictionaries."""
    kind = type(arguments)
    if kind is TensorProxy:
        yield arguments
    elif kind is list or kind is tuple:
        for element in arguments:
            if type(element) is TensorProxy:
                yield element
            else:
                yield from tensors_among(element)
    elif kind is ForeignTensor:
        raise TensorOfOtherSizes
    elif kind is dict:
        for element in arguments.values():
            yield from tensors_among(element)


def mapped(function: Callable[[Any], Any], arguments: Any) -> Any:
    """Arguments of an operator, with `function(leaf)` for each leaf of the lists, tuples, dicts and slices in them."""
    kind = type(arguments)
    if kind is list or kind is tuple:
        return kind([
            function(element) if type(element) is TensorProxy else mapped(function, element) for element in arguments
        ])  # fmt: skip
    if kind is dict:
        return {key: mapped(function, element) for key, element in arguments.items()}
    if kind is slice:
        return slice(*(mapped(function, bound) for bound in (arguments.start, arguments.stop, arguments.step)))
    return function(arguments)


class Symbol:
    """A Python number that compiled code receives or computes. `hint` is its value in the captured call, and `cls` its
    class: `kind`, or that of a NumPy scalar, which `expr` gives then, where nodes of the graph give the plain number.

    `expr` is its meaning in terms of the user's program (a `Source` or `NumberExpr`), None if it `from_tensor`: then it
    has no hint either, and steers control flow only where `contents` knows better. `tensor` is the one that it was read
    from, when `clock` calls had changed a tensor. `may_be_int`: only running the graph tells whether Python has an int or a
    float, as of `max(1, x.item())`.
    """

    __slots__ = (
        "clock", "cls", "expr", "from_tensor", "hint", "kind", "may_be_int", "node", "operation", "size", "tensor",
    )  # fmt: skip

    def __init__(
        self, kind: type, hint: Any, expr: Source | NumberExpr | None, *,
        operation: tuple[Callable[..., Any], tuple[Any, ...]] | None = None, node: torch.fx.Node | None = None,
        from_tensor: bool = False, tensor: TensorProxy | None = None,
    ) -> None:  # fmt: skip
        self.tensor = tensor
        self.size = 1
        self.clock = 0
        self.kind = kind
        self.cls = kind if hint is None else type(hint)
        self.hint = hint
        self.expr = expr
        self.operation = operation
        self.node = node
        self.from_tensor = from_tensor
        self.may_be_int = False

    __bool__ = __index__ = __int__ = __float__ = __len__ = __iter__ = _refuse = refusing(
        "native code looked at the symbolic {0.kind.__name__} {0.expr}"
    )
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = _refuse

    def __repr__(self) -> str:
        return f"Symbol({self.expr or self.node}: {self.kind.__name__})"
