"""Launches: loops with equal bodies become the members of one kernel call (horizontal fusion)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quickfuse.ir.cost_model import COSTS
from quickfuse.ir.kernel import KernelCall, Schedule
from quickfuse.ir.loop import Extern, Program

from .canonical import Candidate, Canonicalizer
from .dependence import Node
from .fused_loops import FusedLoop, fused_loops
from .lifetimes import free_early, store_in_place
from .shared_kernels import share_kernels


def group_into_launches(program: Program, nodes: list[Node]) -> Schedule:
    """The kernel calls and calls of PyTorch for the fusion groups of a program, in the order of their ranks.

    Loops with equal code and equal host scalars that do not depend on each other are one call, whatever their sizes.
    """
    loops = fused_loops(program, nodes)
    stored = [store.access.buffer for loop in loops for store in loop.stores]
    canonicalizer = Canonicalizer()
    running = [loop for loop in loops if any(loop.kept) and 0 not in loop.shape]
    groups = _group(map(canonicalizer.candidate, running))
    groups = _combine_single_loops(groups, canonicalizer)
    scalars = {scalar.name: scalar for scalar in program.host_scalars}
    steps: list[tuple[int, bool, int, KernelCall | Extern]] = []
    for members in groups:
        first, given = members[0], [scalars[name] for name in members[0].scalars]
        call = KernelCall(first.body, [c.member for c in members], given, first.loop.device)
        steps.append((first.loop.rank, True, first.loop.nodes[0].index, call))
    for node in nodes:
        if node.call is not None and node.group is not None:
            steps.append((node.group.rank, False, node.index, node.call))
    steps.sort(key=lambda step: step[:3])
    share_kernels([step for *_, step in steps if isinstance(step, KernelCall)])
    temps = dict.fromkeys(buffer for buffer in stored if buffer.kind == "temp")
    ordered = free_early(program, [step for *_, step in steps])
    for number, call in enumerate(step for step in ordered if isinstance(step, KernelCall)):
        call.name = f"kernel{number}"
    return Schedule(program, *store_in_place(program, ordered, list(temps)))


def _group(candidates: Iterable[Candidate]) -> list[list[Candidate]]:
    groups: dict[tuple[Any, ...], list[Candidate]] = {}
    for candidate in candidates:
        loop = candidate.loop
        groups.setdefault((id(candidate.body), candidate.scalars, loop.rank, loop.device), []).append(candidate)
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
        form = (loop.shape, loop.reduced, loop.ordered, group[0].collapsed.groups, group[0].collapsed.vector)
        alike.setdefault((loop.rank, loop.device, form), []).append(group[0])
    for candidates in alike.values():
        for chunk in _chunks(candidates):
            combined = chunk if len(chunk) == 1 else [canonicalizer.candidate(_combined([c.loop for c in chunk]))]
            result.append(combined)
    return result


def _chunks(candidates: list[Candidate]) -> list[list[Candidate]]:
    chunks: list[list[Candidate]] = [[]]
    operands = 0
    for candidate in candidates:
        count = len(candidate.body.slots)
        if chunks[-1] and operands + count > COSTS.most_operands:
            chunks.append([])
            operands = 0
        chunks[-1].append(candidate)
        operands += count
    return chunks


def _combined(loops: list[FusedLoop]) -> FusedLoop:
    first = loops[0]
    nodes = [node for loop in loops for node in loop.nodes]
    kept = [k for loop in loops for k in loop.kept]
    return FusedLoop(first.shape, first.reduced, first.device, first.rank, nodes, kept, first.ordered)

