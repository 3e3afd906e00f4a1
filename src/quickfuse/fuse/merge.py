"""Vertical fusion: units of one level and index space that belong together become one loop.

Units must stay together where one uses what another one stores, and should where they load the same elements. Units
that have nothing in common are left apart: equal ones, such as the parameters of a model, become the members of one
grouped kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quickfuse.ir.loop import Buffer, Program, Store, View

from .units import Dependences, Unit

#: Units are only put together for the sake of common loads as long as a loop has no more than this many stores.
_MOST_STORES = 32


@dataclass(eq=False, slots=True)
class MergedLoop:
    """The units of one loop. A value that one unit stores and another one loads is used where it is computed.

    `kept[k]` says whether unit k's store is done; of others only the value is used.
    """

    shape: tuple[int, ...]
    device: torch.device
    level: int
    units: list[Unit]
    kept: list[bool]

    @property
    def stores(self) -> list[Store]:
        """The stores that are done."""
        return [unit.store for unit, kept in zip(self.units, self.kept, strict=True) if kept and unit.store is not None]


def merge(program: Program, dependences: Dependences) -> list[MergedLoop]:
    """The loops of a program in the order of their first stores, without stores that nobody reads."""
    units = [unit for unit in dependences.units if unit.store is not None]
    for edge in dependences.edges:
        if edge.joined and edge.before.level == edge.after.level:
            _union(edge.before, edge.after)
    _join_common_loads(units)
    components: dict[Unit, list[Unit]] = {}
    for unit in units:
        components.setdefault(_find(unit), []).append(unit)
    needed = _needed(program, dependences)
    return [_loop(component, needed) for component in components.values()]


def _join_common_loads(units: list[Unit]) -> None:
    sizes: dict[Unit, int] = {}
    for unit in units:
        root = _find(unit)
        sizes[root] = sizes.get(root, 0) + 1
    first: dict[tuple[object, ...], Unit] = {}
    for unit in units:
        for access in unit.loads:
            if not any(access.strides):
                continue  # a number that all elements share says nothing about belonging together
            other = first.setdefault((id(access.buffer), access.offset, access.strides), unit)
            if other is unit or (other.level, other.shape, other.device) != (unit.level, unit.shape, unit.device):
                continue
            one, two = _find(other), _find(unit)
            if one is not two and sizes[one] + sizes[two] <= _MOST_STORES:
                sizes[_union(one, two)] = sizes[one] + sizes[two]


def _find(unit: Unit) -> Unit:
    root = unit
    while root.parent is not None:
        root = root.parent
    while unit.parent is not None:
        unit.parent, unit = root, unit.parent
    return root


def _union(one: Unit, two: Unit) -> Unit:
    one, two = _find(one), _find(two)
    if one is two:
        return one
    if two.index < one.index:
        one, two = two, one
    two.parent = one
    return one


def _needed(program: Program, dependences: Dependences) -> set[Buffer]:
    """Buffers whose contents are read outside the loop that fills them."""
    needed = {value.buffer if isinstance(value, View) else value for value in program.outputs
              if isinstance(value, (Buffer, View))}  # fmt: skip
    for edge in dependences.edges:
        writer = edge.before
        if writer.store is None or writer.changes_input:
            continue
        if edge.after.extern is not None or _find(edge.after) is not _find(writer):
            needed.add(writer.store.access.buffer)
    return needed


def _loop(component: list[Unit], needed: set[Buffer]) -> MergedLoop:
    first = component[0]
    assert first.device is not None
    kept = []
    for unit in component:
        assert unit.store is not None
        buffer = unit.store.access.buffer
        kept.append(buffer.kind != "temp" or buffer in needed)
    return MergedLoop(first.shape, first.device, first.level, component, kept)
