"""Values on the symbolic stack.

Most are the real Python objects: constants, functions, containers made by the captured code. The classes here stand for
what is known only when the compiled code runs, or belongs to the user and must not be touched during capture.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..errors import Unsupported
from ..ir.guard import NumberExpr
from ..ir.source import Source
from ..ir.values import TensorMeta
from .frame import GeneratorValue


class TensorProxy:
    """A tensor of the graph. `source` and `real` are set for tensors that existed before the call."""

    __slots__ = ("attributes", "cls", "meta", "name", "node", "real", "source")

    def __init__(
        self,
        meta: TensorMeta,
        node: torch.fx.Node | None = None,
        *,
        source: Source | None = None,
        real: torch.Tensor | None = None,
        cls: type = torch.Tensor,
    ) -> None:
        self.meta = meta
        self.node = node
        self.source = source
        self.real = real
        self.cls = cls
        self.attributes: dict[str, Any] = {}

    def __bool__(self) -> bool:
        raise Unsupported("a branch on a tensor's value", "torch.where keeps both sides on the device")

    def __repr__(self) -> str:
        return f"TensorProxy({self.source or self.node}: {self.meta})"


class Symbol:
    """A Python number that compiled code receives or computes. `hint` is its value in the captured call.

    `expr` is its meaning in terms of the user's program (a `Source` or `NumberExpr`), None if it `from_tensor`: then it
    has no hint either, and steers control flow only where `contents` knows better. `tensor` is the one that it was read
    from, when `clock` calls had changed a tensor.
    """

    __slots__ = ("clock", "expr", "from_tensor", "hint", "kind", "node", "operation", "size", "tensor")

    def __init__(
        self,
        kind: type,
        hint: Any,
        expr: Source | NumberExpr | None,
        *,
        operation: tuple[Callable[..., Any], tuple[Any, ...]] | None = None,
        node: torch.fx.Node | None = None,
        from_tensor: bool = False,
        tensor: TensorProxy | None = None,
    ) -> None:
        self.tensor = tensor
        self.size = 1
        self.clock = 0
        self.kind = kind
        self.hint = hint
        self.expr = expr
        self.operation = operation
        self.node = node
        self.from_tensor = from_tensor

    def _no(self, *_: Any) -> Any:
        raise Unsupported(f"native code looked at the symbolic {self.kind.__name__} {self.expr}")

    __bool__ = __index__ = __int__ = __float__ = __len__ = __iter__ = _no
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = _no  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Symbol({self.expr or self.node}: {self.kind.__name__})"


class _Missing:
    """Marks an entry of a `ShadowDict` that was not looked at yet, or that was deleted."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


LAZY = _Missing("LAZY")
DELETED = _Missing("DELETED")
ABSENT = _Missing("ABSENT")


class ShadowDict:
    """A dictionary that belongs to the user, as the captured code sees it: the real one is not touched.

    `entries` has every key of the real dictionary in order, with `LAZY` in place of values that nobody read; keys that
    are tensors are the real tensors. `changes` lists the keys that the captured code set or deleted, in order, and
    `removed` those that were deleted, perhaps to be set again, at the end.
    """

    __slots__ = ("changes", "entries", "real", "removed", "source")

    def __init__(self, real: dict[Any, Any], source: Source) -> None:
        self.real = real
        self.source = source
        self.entries: dict[Any, Any] = dict.fromkeys(real, LAZY)
        self.changes: dict[Any, None] = {}
        self.removed: dict[Any, None] = {}


class ShadowContainer:
    """A list, set or deque that belongs to the user, as the captured code sees it: the real one is not touched.

    `items` is a container of the same kind that holds stand-ins and is changed in place; None until something looks at
    the contents. Adding at the end needs no look: `added` has what was added before that.
    """

    __slots__ = ("added", "items", "original", "real", "source")

    def __init__(self, real: Any, source: Source) -> None:
        self.real = real
        self.source = source
        self.items: Any = None
        self.added: list[Any] = []
        self.original: list[Any] = []


class Unread:
    """A variable or stack entry of a suspended frame that nothing read yet: its guards come with the first read."""

    __slots__ = ("source", "value")

    def __init__(self, value: Any, source: Source) -> None:
        self.value = value
        self.source = source


class TensorMethod:
    """`x.name` for a tensor of the graph, not yet called."""

    __slots__ = ("name", "proxy")

    def __init__(self, proxy: TensorProxy, name: str) -> None:
        self.proxy = proxy
        self.name = name


class ContainerMethod:
    """`c.name` for a `ShadowDict` or `ShadowContainer`, not yet called."""

    __slots__ = ("name", "shadow")

    def __init__(self, shadow: ShadowDict | ShadowContainer, name: str) -> None:
        self.shadow = shadow
        self.name = name


class SuperProxy:
    """`super()` inside an inlined method."""

    __slots__ = ("cls", "instance")

    def __init__(self, cls: type, instance: Any) -> None:
        self.cls = cls
        self.instance = instance


class NativeHandler:
    """A callable made by capture itself: `run(interpreter, *args, **kwargs)`. `made_by`, if it has a counterpart in the
    program: the function that makes it, its first argument, and the others by name."""

    __slots__ = ("made_by", "run")

    def __init__(self, run: Callable[..., Any], made_by: tuple[Any, Any, dict[str, Any]] | None = None) -> None:
        self.run = run
        self.made_by = made_by


#: The classes of tensors that need no thought.
TENSOR_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})

#: Immutable types whose instances are plain constants: comparing values tells all there is to know.
PLAIN_TYPES: frozenset[type] = frozenset(
    {
        int, float, bool, str, bytes, complex, type(None), type(Ellipsis), type(NotImplemented), slice, range,
        torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, torch.finfo, torch.iinfo,
    }
)  # fmt: skip


def is_constant(value: Any) -> bool:
    """Whether a value is fixed when captured: plain, or a tuple or frozenset of constants."""
    kind = type(value)
    if kind is tuple or kind is frozenset:
        return all(is_constant(v) for v in value)
    if kind is slice:
        return is_constant(value.start) and is_constant(value.stop) and is_constant(value.step)
    return kind in PLAIN_TYPES or isinstance(value, enum.Enum)


def contains_symbolic(value: Any) -> bool:
    """Whether a tensor or symbol stands in `value` or in the containers in it."""
    return next(symbolic_leaves(value), None) is not None


def symbolic_leaves(value: Any) -> Iterator[Any]:
    """The tensors and symbols in `value` and in the lists, tuples and dictionaries in it."""
    kind = type(value)
    if kind in (TensorProxy, Symbol, ShadowContainer, ShadowDict):
        yield value
    elif kind in (list, tuple, set, frozenset) or isinstance(value, tuple):
        for element in value:
            yield from symbolic_leaves(element)
    elif kind is dict:
        for element in value.values():
            yield from symbolic_leaves(element)
    elif kind is slice:
        yield from symbolic_leaves((value.start, value.stop, value.step))


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
    elif kind is dict:
        for element in arguments.values():
            yield from tensors_among(element)


def type_of(value: Any) -> type:
    """`type(value)` of the value that a stand-in stands for."""
    kind = type(value)
    if kind is TensorProxy:
        return value.cls  # type: ignore[no-any-return]
    if kind is Symbol:
        return value.kind  # type: ignore[no-any-return]
    if kind is ShadowDict or kind is ShadowContainer:
        return type(value.real)
    if kind is GeneratorValue:
        return type(x for x in ())
    if kind is TensorMethod:
        return type([].append)
    return kind
