"""Tensors of a graph that autograd knows as views of each other: they begin to require gradients together."""

from __future__ import annotations

from dataclasses import replace

from ..errors import Unsupported
from ..ir.values import TensorMeta
from .symbolic import TensorProxy


class ViewGroups:
    """The views that one graph makes."""

    def __init__(self) -> None:
        self._groups: dict[int, list[TensorProxy]] = {}

    def note_view(self, view: TensorProxy, base: TensorProxy) -> None:
        group = self._groups.setdefault(id(base), [base])
        group.append(view)
        self._groups[id(view)] = group

    def group(self, tensor: TensorProxy) -> list[TensorProxy]:
        """All views of the same tensor, itself among them."""
        return self._groups.get(id(tensor), [tensor])

    def change(self, tensor: TensorProxy, meta: TensorMeta, computed: bool) -> None:
        """Note that a tensor has other metadata from here on; `computed`: because of what was written to it.

        Raises:
            Unsupported: where other tensors change with it in ways that capture does not follow.
        """
        if meta.requires_grad != tensor.meta.requires_grad:
            group = self.group(tensor)
            if any(other.source is not None for other in group):
                raise Unsupported("a tensor from outside that begins or ends to require gradients")
            if not computed and len(group) > 1:
                raise Unsupported("changing whether a tensor with views requires gradients")
            for other in group:
                other.meta = replace(other.meta, requires_grad=meta.requires_grad)
            if tensor.node is not None and not computed:
                tensor.node.meta["leaf"] = meta.requires_grad
        tensor.meta = meta
