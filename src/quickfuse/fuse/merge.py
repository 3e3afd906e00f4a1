"""Vertical fusion: units of one level and index space that belong together become one loop.

Units must stay together where one uses what another one stores, and should where they load the same elements. Units
that have nothing in common are left apart: equal ones, such as the parameters of a model, become the members of one
grouped kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quickfuse.ir.loop import Buffer, Program, Store, buffers_in

from .rows import Shape, keeps_threads_busy
from .units import Dependences, Unit, agree, find, union

#: Units are only put together for the sake of common loads as long as a loop has no more than this many stores.
_MOST_STORES = 32
#: How many units that load the same elements, but cannot be put together, others are put to.
_MOST_APART = 4


@dataclass(eq=False, slots=True)
class MergedLoop:
    """The units of one loop. A value that one unit stores and another one loads is used where it is computed.

    `kept[k]` says whether unit k's store is done; of others only the value is used. `reduced` are the axes that the
    loop's reductions reduce, if it has any, or the one that is gone through in order, if `serial`.
    """

    shape: Shape
    reduced: Shape
    device: torch.device
    level: int
    units: list[Unit]
    kept: list[bool]
    serial: bool = False

    @property
    def stores(self) -> list[Store]:
        """The stores that are done."""
        return [unit.store for unit, kept in zip(self.units, self.kept, strict=True) if kept and unit.store is not None]


def merge(program: Program, dependences: Dependences) -> list[MergedLoop]:
    """The loops of a program in the order of their first stores, without stores that nobody reads."""
    units = [unit for unit in dependences.units if unit.store is not None]
    _join_common_loads(units)
    components: dict[Unit, list[Unit]] = {}
    for unit in units:
        components.setdefault(find(unit), []).append(unit)
    needed = _needed(program, dependences)
    return [_loop(component, needed) for component in components.values()]


def _join_common_loads(units: list[Unit]) -> None:
    sizes: dict[Unit, int] = {}
    for unit in units:
        root = find(unit)
        sizes[root] = sizes.get(root, 0) + 1
    loading: dict[tuple[object, ...], list[Unit]] = {}
    for unit in units:
        for access in unit.loads:
            if not any(access.strides):
                continue  # a number that all elements share says nothing about belonging together
            others = loading.setdefault((id(access.buffer), access.offset, access.strides), [])
            if not any(_join(other, unit, sizes) for other in others) and len(others) < _MOST_APART:
                others.append(unit)


def _join(other: Unit, unit: Unit, sizes: dict[Unit, int]) -> bool:
    """Put two units that load the same elements together, if that can be. Whether they are together then."""
    if (other.level, other.shape, other.device) != (unit.level, unit.shape, unit.device):
        return False
    one, two = find(other), find(unit)
    if one is two:
        return True
    if sizes[one] + sizes[two] > _MOST_STORES or not _may_share(one, two):
        return False
    sizes[union(one, two)] = sizes[one] + sizes[two]
    return True


def _may_share(one: Unit, two: Unit) -> bool:
    """Whether units of one shape may be in one kernel for the sake of common loads."""
    if (one.reduced, one.serial) == (two.reduced, two.serial):
        return True
    if one.serial or two.serial or not agree([one, two]):
        return False
    return keeps_threads_busy(one.shape, one.reduced or two.reduced or ())


def _needed(program: Program, dependences: Dependences) -> set[Buffer]:
    """Buffers whose contents are read outside the loop that fills them."""
    needed = set(buffers_in(program.outputs))
    for edge in dependences.edges:
        writer = edge.before
        if writer.store is None or writer.changes_input or not edge.flows:
            continue
        if edge.after.extern is not None or find(edge.after) is not find(writer):
            needed.add(writer.store.access.buffer)
    return needed


def _loop(component: list[Unit], needed: set[Buffer]) -> MergedLoop:
    first = find(component[0])
    assert first.device is not None
    kept = {}
    for unit in component:
        assert unit.store is not None
        buffer = unit.store.access.buffer
        kept[unit] = buffer.kind != "temp" or buffer in needed
    units = _used(component, kept)
    kept_ones = [kept[u] for u in units]
    return MergedLoop(first.shape, first.reduced or (), first.device, first.level, units, kept_ones, first.serial)


def _used(component: list[Unit], kept: dict[Unit, bool]) -> list[Unit]:
    """The units whose stores are done, or whose values others of these use."""
    wanted: set[Buffer] = set()
    used = []
    for unit in reversed(component):
        assert unit.store is not None
        if kept[unit] or unit.store.access.buffer in wanted:
            used.append(unit)
            wanted.update(access.buffer for access in unit.loads)
    return used[::-1]
