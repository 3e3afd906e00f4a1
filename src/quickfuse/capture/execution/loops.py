"""Loops that capture should not go through turn by turn, seen where they come round: those that do nothing for tensors, and
those whose turns make the graph too large."""

from __future__ import annotations

from ...errors import Unsupported
from ...ir.trace import location_of
from ..interpreter import Interpreter
from ..symbolic.frame import Frame, Turns

#: How many instructions a loop of the user's may take without touching a tensor before it is left to CPython.
LONGEST_PLAIN_LOOP = 4_000

#: How many operators a graph may have before the training steps of a loop get a graph each, and how many steps these are at
#: least.
LARGEST_TRAINING_LOOP, FEWEST_STEPS = 2_000, 4

#: The same for the turns of other loops that no gradients flow through. A model's layers are fewer.
LARGEST_LOOP, FEWEST_TURNS = 10_000, 64

#: The same for turns of so few operators. What calling a graph costs is more than their kernels then: recurrent cells over
#: 512 steps, 40 operators each, took 0.30 s a call with a graph for each step and 0.12 s in one graph, their first calls 21
#: and 7 s (one core of a Xeon); on an H100 166 and 41 ms.
LARGEST_LOOP_OF_SMALL_TURNS, SMALL_TURN = 50_000, 100


class LeftLoop(Unsupported):
    """Capture should have stopped after `stop_at` instructions. `loop_end` is set where the loop around that place is to run
    natively: the instruction after it."""

    def __init__(self, reason: str, stop_at: int, loop_end: int | None = None) -> None:
        super().__init__(reason)
        self.stop_at = stop_at
        self.loop_end = loop_end


def note_turn(i: Interpreter, frame: Frame, head: int) -> None:
    """A loop comes round, to the instruction `head`. Raises `LeftLoop` if it did nothing for tensors for a long time, or the
    graph is too large for another turn."""
    graph = i.graph
    graph.contents.turns += not frame.is_library
    performed = i.performed + 1
    progress = graph.operators + i.outside.tensors_read
    turns = frame.loops.get(head)
    if turns is None:
        frame.loops[head] = Turns(performed, graph.operators, graph.gradient_calls, performed, progress, frame.lasti)
        return
    turns.count += 1
    turns.last = max(turns.last, frame.lasti)
    if turns.progress != progress:
        turns.idle_since, turns.progress = performed, progress
    elif performed - turns.idle_since > LONGEST_PLAIN_LOOP:
        start = frame.decoded.instructions[head]
        end = start.value if start.name == "FOR_ITER" else frame.lasti + 1
        raise LeftLoop("a long loop without tensors", turns.idle_since, end)
    if graph.may_break and graph.operators > LARGEST_TRAINING_LOOP:
        _end_turns(i)


def _end_turns(i: Interpreter) -> None:
    """End the graph after the first turn of the outermost loop that makes it too large, if there is one."""
    graph = i.graph
    for depth, frame in enumerate(frame for frame in i.frames if not frame.is_library):
        for head, turns in frame.loops.items():
            if not head <= frame.position <= turns.last:
                continue  # a loop that is over
            trains = graph.gradient_calls - turns.gradient_calls >= turns.count
            apart = trains or not (graph.grad_enabled and graph.differentiable)
            small = graph.operators - turns.operators < SMALL_TURN * turns.count
            largest = LARGEST_TRAINING_LOOP if trains else LARGEST_LOOP_OF_SMALL_TURNS if small else LARGEST_LOOP
            fewest = FEWEST_STEPS if trains else FEWEST_TURNS
            if apart and turns.count >= fewest and graph.operators > largest:
                what = "training steps" if trains else "turns"
                left = LeftLoop(f"a loop of many {what}, which get a graph each", turns.first)
                left.trace = (*i.trace()[:depth], (frame.code, head))
                left.location = location_of(left.trace)
                raise left
