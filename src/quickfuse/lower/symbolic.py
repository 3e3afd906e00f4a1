"""What nodes of the graph stand for while lowering runs.

A node's value is one of: a `Tensor`; an `Expr` of kind `Scalar`, for a number that the host knows; a plain Python
constant; a tuple or list of these. A number that comes out of a tensor (`.item()`) is a 0-dim `Tensor` of rank `NUMBER`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from quickfuse.ir.expr import Expr, Load
from quickfuse.ir.loop import Access, Buffer
from quickfuse.ir.overlaps import apart
from quickfuse.ir.values import TensorMeta

from .promotion import DIMENSIONED, NUMBER, ZERO_DIM, Key


@dataclass(eq=False, slots=True)
class Storage:
    """A tensor's memory, which views of it share.

    `meta` is the layout of the tensor that it was made for, `value` what it holds at this point of the graph, as a
    function of that tensor's index. In-place operators replace `value`, `mutated` times so far; nothing is written before
    the graph ends. `pending` computes `value` on first use, for values that are expensive to form and may not be needed.
    `own` is a temporary that nothing else is in, if there is one: a copy's value may be a load of what it was copied from.
    """

    meta: TensorMeta
    value: Expr | None
    buffer: Buffer | None = None
    mutated: int = 0
    pending: Callable[[], Expr] | None = None
    own: Buffer | None = None

    def now(self) -> Expr:
        """What it holds, computed if nobody has asked before."""
        if self.value is None:
            assert self.pending is not None
            self.value = self.pending()
        return self.value


class Tensor:
    """A tensor: all of a storage, or a view into it.

    `whole` says that it has the storage's own layout. Only one of a storage's whole tensors is the object that the
    storage was made for (`is_base`); others are aliases, such as the result of `detach`.
    """

    __slots__ = ("is_base", "key", "meta", "offset", "seen", "stacked", "storage", "view_value", "whole")

    def __init__(
        self, storage: Storage, meta: TensorMeta, *, offset: int = 0, is_base: bool = True, rank: int | None = None
    ) -> None:
        self.become(storage, meta, offset, is_base=is_base)
        if rank is not None:
            self.key = (meta.dtype, rank)

    def become(self, storage: Storage, meta: TensorMeta, offset: int = 0, *, is_base: bool = True) -> None:
        """Be on another storage, or another view of it."""
        self.storage = storage
        self.meta = meta
        self.offset = offset
        self.is_base = is_base
        base = storage.meta
        self.whole = is_base or (offset == 0 and meta.shape == base.shape and meta.stride == base.stride)
        self.key: Key = (meta.dtype, DIMENSIONED if meta.shape else ZERO_DIM)
        # A view's value is derived from the storage's when it is read, and kept until that changes.
        self.seen: Expr | None = None
        self.view_value: Expr | None = None
        # What a stack of 0-dim tensors was made from.
        self.stacked: list[Tensor] | None = None

    @property
    def dtype(self) -> torch.dtype:
        return self.meta.dtype

    def members(self) -> list[Tensor] | None:
        """The 0-dim tensors that this is a stack of, as long as nothing has changed it."""
        return self.stacked if self.storage.value is None else None

    @property
    def is_number(self) -> bool:
        return self.key[1] == NUMBER


def whole_load(buffer: Buffer) -> Load:
    """All of a buffer, as a function of its index."""
    return Load(Access(buffer, 0, buffer.meta.stride), buffer.meta.dtype)


def may_overlap(one: Tensor, two: Tensor) -> bool:
    """Whether two tensors of one storage may have elements in common that are not in the same places."""
    first, second = ((t.offset, t.meta.shape, t.meta.stride) for t in (one, two))
    return not same_memory(one, two) and not apart(first, second)


def same_memory(one: Tensor, two: Tensor) -> bool:
    """Whether two tensors of one storage have the same elements in the same places."""
    a, b = one.meta, two.meta
    return (one.offset, a.shape, a.stride) == (two.offset, b.shape, b.stride)
