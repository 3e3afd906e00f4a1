"""Tensors of the graph, and their methods before they are called."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ...errors import Unsupported
from ...ir.source import Source
from ...ir.values import TensorMeta


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


class TensorMethod:
    """`x.name` for a tensor of the graph, not yet called."""

    __slots__ = ("name", "proxy")

    def __init__(self, proxy: TensorProxy, name: str) -> None:
        self.proxy = proxy
        self.name = name


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
    elif kind is dict:
        for element in arguments.values():
            yield from tensors_among(element)
