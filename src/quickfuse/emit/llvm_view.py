"""A kernel body as the generators for loops, rows, columns and serial axes read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quickfuse.ir.kernel import KernelBody, StoreKind
from quickfuse.ir.target import CPU


@dataclass(frozen=True)
class Pass:
    """The reductions (by number) and stores (by position among the body's) that happen in a pass."""

    reductions: tuple[int, ...]
    stores: tuple[int, ...]


class BodyView:
    """Stores by kind; all else is the body's own."""

    def __init__(self, body: KernelBody) -> None:
        self.body = body
        self.reductions = [s for s in body.stores if s.kind in (StoreKind.REDUCE, StoreKind.SCAN)]
        self.stores = [(s.slot, s.value) for s in body.stores if s.kind in (StoreKind.ASSIGN, StoreKind.FLAG)]
        self.scatters = [s for s in body.stores if s.kind is StoreKind.SCATTER]
        self.columns, self.serial, self.reduced = body.across, body.ordered, len(body.inner)
        self.rows_ndim = len(body.parallel)
        self.column_block = CPU.block(body)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.body, name)

    def passes(self) -> list[Pass]:
        count = len(self.reductions)
        return [Pass(tuple([k for k in one if k < count]), tuple([k - count for k in one if k >= count]))
                for one in self.body.passes]  # fmt: skip
