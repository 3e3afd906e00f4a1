"""Units, one for each store or call, and what links them: shared kernels, and edges in the order of their runs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from quickfuse.ir.loop import Access, Buffer, Extern, Store
from quickfuse.ir.reindex import IndexMap, reindex

from .reading import Reading, read
from .rows import Shape, embedding, reduced_axes


@dataclass(eq=False, slots=True)
class Unit:
    """A store with the shape of its loop and what is known of its value, or a call of PyTorch and what it reads.

    `parent` links units that are joined, and their root's `reduced` are the axes that their kernel reduces, if it does; if
    `serial`, it goes along the only one in order.
    `floor` is the least level that the unit is to have: what is stored earlier would only take memory.
    `native` is what a unit was before it was moved to the index space of a kernel with reductions.
    """

    index: int
    shape: tuple[int, ...]
    device: torch.device | None
    store: Store | None = None
    reading: Reading | None = None
    extern: Extern | None = None
    reads: list[Buffer] = field(default_factory=list)
    level: int = 0
    floor: int = 0
    parent: Unit | None = None
    reduced: Shape | None = None
    serial: bool = False
    native: tuple[Shape, Store, Reading] | None = None

    @property
    def loads(self) -> list[Access]:
        return self.reading.accesses if self.reading is not None else []

    @property
    def changes_input(self) -> bool:
        return self.store is not None and self.store.access.buffer.kind == "input"

    def begin(self) -> None:
        """Forget all decisions."""
        self.restore()
        self.level, self.parent = 0, None
        self.reduced = None if self.store is None else reduced_axes(self.shape, self.store)
        self.serial = self.store is not None and self.store.along >= 0

    def move(self, index_map: IndexMap, space: Shape) -> None:
        """Become the same unit over the indices of `space`."""
        assert self.store is not None and self.reading is not None and self.native is None
        self.native = (self.shape, self.store, self.reading)
        access, value = index_map.access(self.store.access), reindex(self.store.value, index_map)
        store = replace(self.store, access=access, value=value)
        self.shape, self.store, self.reading = space, store, read(store.value)

    def restore(self) -> None:
        if self.native is not None:
            self.shape, self.store, self.reading = self.native
            self.native = None


def find(unit: Unit) -> Unit:
    """The unit that stands for all that are joined to this one."""
    root = unit
    while root.parent is not None:
        root = root.parent
    while unit.parent is not None:
        unit.parent, unit = root, unit.parent
    return root


def union(one: Unit, two: Unit) -> Unit:
    one, two = find(one), find(two)
    if one is two:
        return one
    if two.index < one.index:
        one, two = two, one
    two.parent = one
    one.reduced = one.reduced if two.reduced is None else two.reduced
    one.serial = one.serial or two.serial
    return one


def agree(units: list[Unit]) -> bool:
    """Whether units may be in one kernel, as far as its index space goes."""
    roots = {id(root): root for root in map(find, units)}
    spaces = {(root.shape, root.device) for root in roots.values()}
    return len(spaces) <= 1 and len({(r.reduced, r.serial) for r in roots.values() if r.reduced is not None}) <= 1


@dataclass(eq=False, slots=True)
class Edge:
    """`before` runs before `after`, or in the same kernel where `joined`.

    `flows`: `after` reads what `before` stores. If not, `before` reads what `after` overwrites.
    """

    before: Unit
    after: Unit
    joined: bool
    flows: bool = True


@dataclass(eq=False, slots=True)
class Dependences:
    """The units of a program in order, and the edges between them."""

    units: list[Unit]
    edges: list[Edge]


@dataclass(eq=False, slots=True)
class Meeting:
    """A unit that must come before another one, and the elements by which they meet; None with a call of PyTorch."""

    before: Unit
    mine: Access | None = None
    theirs: Access | None = None
    flows: bool = True


def least_level(before: Unit, *, joined: bool) -> int:
    """The level from which on a unit may come after `before`. Calls come first in their level."""
    return before.level if joined or before.extern is not None else before.level + 1


def way_into(unit: Unit, roots: list[Unit]) -> IndexMap | None:
    """How a unit of another shape may be in the index space of units with reductions."""
    reduced = next((root.reduced for root in roots if root.reduced and not root.serial), None)
    if unit.shape == roots[0].shape or unit.reduced is not None or reduced is None:
        return None
    return embedding(unit.shape, roots[0].shape, reduced)
