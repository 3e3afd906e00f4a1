"""What is not worth compiling: where a program goes on after a break, up to the next one.

A compiled part of the program costs its guards and the objects that it hands back. Where it would be a few instructions,
views alone, or another part for each turn of a loop, Python is as fast and ready at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch.fx import Node

from ..bytecode.decoding import decode
from ..drive import native
from ..drive.loops import loop_around, loop_end
from ..explain.hints import says_size_depends_on_values, says_value_keeps_changing
from ..ir.frame import FrameState
from ..ir.guard import Guard
from ..ir.segment import Break, Segment
from ..ir.source import place_on_stack
from ..ir.values import TensorMeta

#: A segment that computes nothing and ends after so few instructions is not worth running: they are performed one by one.
FEWEST_INSTRUCTIONS = 6

#: What so few operators make, each of so few bytes, is not worth a graph of its own.
FEW_OPERATORS, SMALL_BYTES = 5, 2**16

#: Operators that give elements of their operand and compute nothing.
_VIEWS = frozenset(
    "view squeeze unsqueeze getitem __getitem__ select narrow unbind split chunk transpose permute t detach expand "
    "item".split()
)


def is_too_short(segment: Segment) -> bool:
    """Whether a segment between two breaks computes nothing, in a few instructions."""
    between = segment.resumes and segment.pause is not None
    return between and segment.performed <= FEWEST_INSTRUCTIONS and all(map(_is_view, _calls(segment)))


def positions_up_to_break(segment: Segment) -> range:
    """The instructions of a segment that `is_too_short`, and the one that breaks: a segment that begins at any of them is
    too short as well. None of them, where they are not all there is between its two ends."""
    code, begin = segment.began[-1]
    frame = segment.frames[-1]
    same = len(segment.frames) == len(segment.began) and frame.code is code
    straight = same and frame.position - begin == segment.performed
    return range(begin, frame.position + 1 if straight else begin)


def end_of_views(segment: Segment) -> int | None:
    """For a segment between two breaks of one function that gives nothing but views: an instruction that is sure to follow,
    up to which Python may go on. None for others."""
    if not segment.resumes or segment.pause is None or len(segment.frames) != len(segment.began):
        return None
    code, begin = segment.began[-1]
    end = segment.frames[-1].position
    if segment.frames[-1].code is not code or segment.performed > end - begin:  # through other functions, or around a loop
        return None
    names = ["", *(instruction.name for instruction in decode(code).instructions[begin : end + 1])]
    if any(_may_jump(name, before) for before, name in zip(names, names[1:], strict=False)):
        return None
    if not segment.operators or not all(map(_is_view, _calls(segment))):
        return None
    return next((at for at in range(end + 1, begin, -1) if native.may_stop_at(code, at)), None)


def loop_of_other_sizes(
    frames: Sequence[FrameState], failed: Sequence[Guard | None], breaks: Sequence[Break]
) -> int | None:
    """For frames after a break in a loop: the end of the loop, if what the operator there returned has as many elements as
    values say, and others than where segments were compiled. `failed` are the guards of those that do not hold."""
    frame, tensors = frames[-1], [guard.source for guard in failed if guard is not None and guard.kind == "tensor"]
    last = len(frame.stack) - 1
    if not any(place_on_stack(source, len(frames)) == last for source in tensors):
        return None
    place = frame.code, frame.position - 1
    if not any(b.trace and b.trace[-1] == place and says_size_depends_on_values(b.reason) for b in breaks):
        return None
    return loop_end(frame)


def loop_of_few_operators(segment: Segment, others: Iterable[Segment]) -> int | None:
    """For a segment within one turn of a loop, which ends because something keeps changing: the end of the loop, if neither
    it nor any of the `others` that begin in the loop does much. A few operators on small tensors would be cut in as many
    parts as there are uses of what changes."""
    if segment.pause is None or not segment.resumes or not says_value_keeps_changing(segment.pause.reason):
        return None
    (code, begin), last = segment.began[-1], segment.frames[-1]
    loop = loop_around(code, begin)
    if loop is None or last.code is not code or len(segment.frames) != len(segment.began):
        return None
    if loop_around(code, last.position) is not loop:
        return None
    inside = (s for s in others if any(c is code and at in loop.members for c, at in s.began))
    return loop.end if all(map(_does_little, [segment, *inside])) else None


def _does_little(segment: Segment) -> bool:
    values = [value for node in _calls(segment) for value in results_of(node.meta.get("val"))]
    return segment.operators <= FEW_OPERATORS and all(meta.nbytes <= SMALL_BYTES for meta in values)


def results_of(value: Any) -> list[TensorMeta]:
    """The tensors that a node gives."""
    values = value if isinstance(value, (list, tuple)) else [value]
    return [meta for meta in values if isinstance(meta, TensorMeta)]


def _may_jump(name: str, before: str) -> bool:
    """Whether control may go elsewhere than to the next instruction; loops are entered."""
    return "JUMP" in name or "RETURN" in name or (name in ("FOR_ITER", "SEND") and before != "GET_ITER")


def _calls(segment: Segment) -> list[Node]:
    return [node for node in segment.graph.nodes if node.op.startswith("call")]


def _is_view(node: Node) -> bool:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name in _VIEWS and len(node.all_input_nodes) == 1
