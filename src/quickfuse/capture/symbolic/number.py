"""Numbers that compiled code receives or computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...errors import Unsupported
from ...ir.guard import NumberExpr
from ...ir.source import Source
from .tensor import TensorProxy


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
