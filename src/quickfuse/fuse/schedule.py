"""Horizontal fusion: loops with equal bodies become the members of one kernel call; calls in order of level."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quickfuse.ir.kernel import KernelCall, Schedule
from quickfuse.ir.loop import Extern, Program

from .canonical import Candidate, Canonicalizer
from .cutting import cut
from .hoisting import hoist
from .levels import analyse
from .merge import MergedLoop, merge
from .postponing import postpone

#: Unlike loops are only put into one kernel as long as it has no more than this many operands.
_MOST_OPERANDS = 32


def fuse(program: Program) -> Schedule:
    """Fuse and group the loops of a lowered program into kernel calls, in an order that respects all dependences.

    Loops with equal code and equal host scalars that do not depend on each other are one call, whatever their sizes.

    Raises:
        Unsupported: for loops that load from a buffer and store to it at another element.
    """
    cut_buffers = cut(program)
    hoist(program)
    dependences = analyse(program, cut_buffers)
    postpone(dependences)
    loops = merge(program, dependences)
    stored = [store.access.buffer for loop in loops for store in loop.stores]
    canonicalizer = Canonicalizer()
    running = [loop for loop in loops if any(loop.kept) and 0 not in loop.shape]
    groups = _group(map(canonicalizer.candidate, running))
    groups = _combine_single_loops(groups, canonicalizer)
    scalars = {scalar.name: scalar for scalar in program.host_scalars}
    steps: list[tuple[int, bool, int, KernelCall | Extern]] = []
    for members in groups:
        first = members[0]
        call = KernelCall(
            first.body, [c.member for c in members], [scalars[name] for name in first.scalars], first.loop.device
        )
        steps.append((first.loop.level, True, first.loop.units[0].index, call))
    steps += [(unit.level, False, unit.index, unit.extern) for unit in dependences.units if unit.extern is not None]
    steps.sort(key=lambda step: step[:3])
    temps = dict.fromkeys(buffer for buffer in stored if buffer.kind == "temp")
    return Schedule(program, _named([step for *_, step in steps]), list(temps))


def _group(candidates: Iterable[Candidate]) -> list[list[Candidate]]:
    groups: dict[tuple[Any, ...], list[Candidate]] = {}
    for candidate in candidates:
        loop = candidate.loop
        groups.setdefault((id(candidate.body), candidate.scalars, loop.level, loop.device), []).append(candidate)
    return list(groups.values())


def _combine_single_loops(groups: list[list[Candidate]], canonicalizer: Canonicalizer) -> list[list[Candidate]]:
    """Put loops that are alone in their groups, but have one index space, into one kernel: fewer launches."""
    alike: dict[tuple[Any, ...], list[Candidate]] = {}
    result = []
    for group in groups:
        if len(group) > 1:
            result.append(group)
            continue
        loop = group[0].loop
        form = (loop.shape, loop.reduced, loop.serial, group[0].collapsed.groups, group[0].collapsed.vector)
        key = (loop.level, loop.device, form)
        alike.setdefault(key, []).append(group[0])
    for candidates in alike.values():
        for chunk in _chunks(candidates):
            if len(chunk) == 1:
                result.append(chunk)
            else:
                result.append([canonicalizer.candidate(_combined([c.loop for c in chunk]))])
    return result


def _chunks(candidates: list[Candidate]) -> list[list[Candidate]]:
    chunks: list[list[Candidate]] = [[]]
    operands = 0
    for candidate in candidates:
        count = len(candidate.body.slots)
        if chunks[-1] and operands + count > _MOST_OPERANDS:
            chunks.append([])
            operands = 0
        chunks[-1].append(candidate)
        operands += count
    return chunks


def _combined(loops: list[MergedLoop]) -> MergedLoop:
    first = loops[0]
    units = [unit for loop in loops for unit in loop.units]
    kept = [k for loop in loops for k in loop.kept]
    return MergedLoop(first.shape, first.reduced, first.device, first.level, units, kept, first.serial)


def _named(steps: list[KernelCall | Extern]) -> list[KernelCall | Extern]:
    """Name kernels after what they compute, in the order of the steps."""
    for number, step in enumerate(step for step in steps if isinstance(step, KernelCall)):
        step.name = f"kernel{number}"
    return steps

