"""Tensors that have other sizes in each call: what a mask selects, the boxes in a batch of images.

A graph for each size would soon be too many, and the function would run in plain Python, with all that has one size. So the
part that computes with such tensors, such as a loss, is left to Python alone: capture is told their names, and ends in front
of it (`capture.symbolic.ForeignTensor`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from types import CodeType

import torch
from torch.fx import Node

from ..drive import native
from ..errors import Unsupported
from ..explain.hints import says_other_sizes, says_size_depends_on_values, says_value_keeps_changing
from ..ir.frame import FrameState
from ..ir.guard import Guard
from ..ir.segment import Break, Segment
from ..ir.source import other_sizes, place_on_stack, root_of
from .points import VOLATILE_AFTER, VOLATILE_AFTER_BREAK, Point
from .sizes import held_by

#: An instruction: the code that it is of, and its position.
Place = tuple[CodeType, int]

#: What is left to Python has at most so many operators, as a loss has, where it was not values that said the sizes.
FEW_OPERATORS = 128


def made_before(point: Point, frame: FrameState, breaks: Sequence[Break], ends: Container[Place]) -> frozenset[str]:
    """Of what Python left on the stack of a frame after an instruction whose result has as many elements as values say: the
    names of the tensors that had several sizes. `ends` are where Python has performed several such instructions."""
    before, top = (frame.code, frame.position - 1), len(frame.stack) - 1
    reasons = [b.reason for b in breaks if before in b.trace and says_other_sizes(b.reason)]
    if not reasons and (frame.code, frame.position) not in ends:
        return frozenset()
    by_values = bool(reasons) and all(map(says_size_depends_on_values, reasons))
    found = _several(point, lambda guard: VOLATILE_AFTER_BREAK if by_values else 1)
    return frozenset(name for name, guard in found.items() if place_on_stack(guard.source, len(point.frames)) == top)


def end_of_expression(point: Point, frame: FrameState, names: frozenset[str]) -> int | None:
    """The instruction before which the stack of a frame holds none of these tensors any more; None where none is there."""
    guards = [guard for guard in point.failed_guards if guard is not None and other_sizes(guard.source) in names]
    held = [place_on_stack(guard.source, len(point.frames)) for guard in guards]
    least = min((place for place in held if place is not None), default=None)
    return None if least is None else native.end_of_use(frame.code, frame.position, least)


def left_to_python(
    point: Point, frame: FrameState | None, breaks: Sequence[Break], begin: Callable[..., Segment],
    volatile: frozenset[str], known: frozenset[str],
) -> frozenset[str]:  # fmt: skip
    """The names of tensors that had several sizes, where the part that needs them is worth leaving to Python: it has few
    operators, and half as many come before it, or values say such sizes in this function. `known` are those of elsewhere in
    the function."""

    def least(guard: Guard) -> int:
        on_stack = place_on_stack(guard.source, len(point.frames)) is not None
        likely = known and (on_stack or other_sizes(guard.source) in known)
        return 1 if likely else VOLATILE_AFTER

    found = _several(point, least)
    names = frozenset(found) - volatile - point.tried_sizes
    if not names:
        return frozenset()
    names |= _beside(point, [found[name] for name in names]) - volatile
    point.tried_sizes |= names
    general = _tried(begin, volatile | names)
    before = 0 if general is None else general.operators
    makes_such = frame is not None and any(
        code is frame.code for b in breaks if _may_make_other_sizes(b) for code, _ in b.trace
    )
    special = _tried(begin, volatile) if before or makes_such else None  # nothing else would be left
    if special is None:
        return frozenset()
    few = _depending_on(names, special)
    return names if few <= FEW_OPERATORS and (makes_such or few <= 2 * before) else frozenset()


def _may_make_other_sizes(pause: Break) -> bool:
    """Whether what follows a break may be a tensor of other sizes: `x[:n]`, where `n` keeps changing, is one."""
    return says_other_sizes(pause.reason) or says_value_keeps_changing(pause.reason)


def _tried(begin: Callable[..., Segment], volatile: frozenset[str]) -> Segment | None:
    """A segment that nothing is to come of; None where there is none."""
    try:
        segment = begin(volatile=volatile)
    except Unsupported:
        return None
    for first in segment.prepared:
        first.take_back()
    return segment


def _depending_on(names: frozenset[str], segment: Segment) -> int:
    """How many operators of a segment need some of its inputs, gradients and what is done with them left out."""
    inputs = {given.name for given in segment.inputs if other_sizes(given.source) in names}
    found: set[Node] = set()
    for node in segment.graph.nodes:
        if node.target is torch.autograd.grad:
            break
        if node.name in inputs or not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return len(found) - len(inputs)


def _several(point: Point, least: Callable[[Guard], int]) -> dict[str, Guard]:
    """The names of tensors that had `least(guard)` sizes, and a guard on each that failed."""
    sizes: dict[str, set[tuple[int, ...]]] = {}
    guards: dict[str, Guard] = {}
    for guard in point.failed_guards:
        if guard is not None and _may_be_other(guard):
            name = other_sizes(guard.source)
            guards[name] = guard
            sizes.setdefault(name, set()).add(guard.value[1].shape)
    if point.sizes is not None:  # and of those that no specialisation is for
        for key in point.sizes.seen():
            for place, shape in zip(point.sizes.names, key, strict=True):
                sizes.get(f"{place}.shape", set()).add(shape)
    return {name: guard for name, guard in guards.items() if len(sizes[name]) >= least(guard)}


def _beside(point: Point, guards: list[Guard]) -> frozenset[str]:
    """The names of tensors in the same variables as those of some guards, of which each specialisation has another size: the
    other targets in a list."""
    roots = {str(root_of(guard.source)) for guard in guards if guard.source is not None}
    sizes: dict[str, set[tuple[int, ...]]] = {}
    for specialisation in point.specialisations:
        for source, shape in held_by(specialisation).values():
            if str(root_of(source)) in roots:
                sizes.setdefault(other_sizes(source), set()).add(shape)
    least = max(len(point.specialisations), 2)
    return frozenset(name for name, shapes in sizes.items() if len(shapes) >= least)


def _may_be_other(guard: Guard) -> bool:
    """Whether a guard holds the sizes of a tensor that is no gradient or other part of a tensor."""
    source = guard.source
    if guard.kind != "tensor" or source is None:
        return False
    return source.kind in ("local", "slot", "item") or (source.kind, source.key) == ("attr", "__self__")


def of_variables(names: frozenset[str]) -> frozenset[str]:
    """Of some names, those of tensors in variables."""
    return frozenset(name for name in names if name.startswith("L["))
