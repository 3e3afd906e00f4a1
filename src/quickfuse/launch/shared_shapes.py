"""One launch shape for as many calls of a kernel as it is good for: each shape of a body is compiled for itself.

`cuda_shapes.choose` finds the best tile for a call alone. A model calls the same body with many sizes, and most of these
tiles would do for other calls as well: a small call does not notice its tile at all, and of tiles with as many elements a
narrower one covers longer rows just as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from quickfuse.ir.kernel import Access, Form, KernelBody, KernelCall, Member
from quickfuse.ir.target import CUDA

from .cuda_compile import LaunchShape
from .cuda_shapes import choose, covered_elements, has_full_tiles, longest_row, program_count

#: The shapes of each body that this process has compiled kernels for.
_compiled: dict[KernelBody, list[LaunchShape]] = {}


def shared_shapes(calls: Sequence[KernelCall], multiprocessors: int) -> list[LaunchShape]:
    """The launch shape of each call. Those of equal bodies differ where one of them would be slow with another's."""
    own = [_own(call, multiprocessors) for call in calls]
    found = list(own)
    by_body: dict[KernelBody, list[int]] = {}
    for k, call in enumerate(calls):
        by_body.setdefault(call.body, []).append(k)
    for body, numbers in by_body.items():
        known = _compiled.setdefault(body, [])
        left = numbers
        for shape in known:
            left = _taken(calls, own, found, left, shape, multiprocessors)
        while left:
            candidates = list(dict.fromkeys(own[k] for k in left))
            fitting = [sum(_fits(calls[k], shape, own[k], multiprocessors) for k in left) for shape in candidates]
            shape = candidates[fitting.index(max(fitting))]
            known.append(shape)
            left = _taken(calls, own, found, left, shape, multiprocessors)
    return found


def _own(call: KernelCall, multiprocessors: int) -> LaunchShape:
    """The best shape for a call alone. Code for wide accesses is there twice, which small calls are not worth."""
    shape = choose(call.body, call.members, multiprocessors)
    small = call.body.ndim > 0 and bytes_moved(call.body, call.members) < CUDA.bytes_for_wide_accesses
    return replace(shape, access=Access.NARROW) if small else shape


def _taken(
    calls: Sequence[KernelCall], own: list[LaunchShape], found: list[LaunchShape], left: list[int], shape: LaunchShape,
    multiprocessors: int,
) -> list[int]:  # fmt: skip
    """Give a shape to the calls `left` that it fits, and return the others."""
    fits = [k for k in left if _fits(calls[k], shape, own[k], multiprocessors)]
    for k in fits:
        found[k] = shape
    return [k for k in left if k not in set(fits)]


def _fits(call: KernelCall, shape: LaunchShape, own: LaunchShape, multiprocessors: int) -> bool:
    """Whether a call may be launched with a shape that was chosen for another one."""
    body, members = call.body, call.members
    if shape == own:
        return True
    if bool(shape.columns) != bool(own.columns) or not _may_access(call, shape, own):
        return False
    if shape.form is not own.form and not (_may_loop(body, own) and shape.form is Form.LOOPED):
        return False
    if shape.columns and shape.form is Form.WHOLE and shape.columns < longest_row(body, members):
        return False
    if body.ndim == 0:
        return False
    covers, least = covered_elements(body, members, shape), covered_elements(body, members, own)
    if bytes_moved(body, members) <= CUDA.bytes_of_small_call:
        return covers <= CUDA.most_idle_of_small_call * least or covers <= CUDA.tile * multiprocessors
    programs = program_count(body, members, shape)
    busy = programs >= min(program_count(body, members, own), CUDA.programs_of_shared_shape * multiprocessors)
    return busy and 8 * covers <= 9 * least


def _may_access(call: KernelCall, shape: LaunchShape, own: LaunchShape) -> bool:
    """Whether a call's accesses are as wide with a shape that was chosen for another one."""
    if own.access is Access.FULL:  # masks cost less than another kernel
        full = shape.access is Access.FULL and has_full_tiles(call.body, call.members, shape.columns)
        return full or shape.access is Access.WIDE
    return own.access in (Access.NARROW, shape.access)


def _may_loop(body: KernelBody, own: LaunchShape) -> bool:
    """Whether a loop over tiles reads no more than a tile with whole rows."""
    return own.form is Form.WHOLE and bool(own.columns) and len(body.passes) == 1


def bytes_moved(body: KernelBody, members: Sequence[Member]) -> int:
    """The bytes that a call moves, about: of operands that have all its elements."""
    moving = [slot for slot in body.slots if not slot.by_value and all(stride != 0 for stride in slot.strides)]
    return sum(slot.dtype.itemsize * len(slot.access) for slot in moving) * sum(member.numel for member in members)
