"""From a graph to kernels that can be launched: the stages between capture or differentiation and the glue."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from torch.fx import Graph

from .. import config, logs
from ..differentiate.expand import expand
from ..emit.forward_backward import recorded_functions
from ..emit.recordable import draws_in_turn, launches, why_not_recorded
from ..emit.sources import emit_cpu, emit_gpu
from ..errors import Unsupported
from ..ir.kernel import Schedule
from ..ir.launching import Launch
from ..ir.loop import Program
from ..ir.values import TensorMeta
from ..launch import begin_to_bind, recorder
from ..launch.random_stream import stream_of
from ..launch.replayed import Parts, Replayed
from ..launch.tables import Placer
from ..lower import lower, without_twins
from ..schedule import schedule as make_schedule
from ..schedule import with_twins
from ..verify import Place, check_placement, copied, verify


@dataclass(frozen=True, slots=True)
class Begun:
    """A graph's schedule, whose kernels for a GPU are being compiled by other processes. `finish` waits for them, and
    returns the launchers of all kernels and what places addresses in their tables."""

    schedule: Schedule
    finish: Callable[[], tuple[list[Launch], Placer]]


def kernels_of(
    graph: Graph, picks: list[int], checked: list[TensorMeta], recorded: bool = False, tuned: bool = False,
) -> tuple[Schedule, list[Launch], Placer]:  # fmt: skip
    """A graph's schedule, the launchers of its kernels, and what places addresses in their tables; see `begin_kernels`."""
    begun = begin_kernels(graph, picks, checked, recorded=recorded, tuned=tuned, may_have_twins=True)
    return begun.schedule, *begun.finish()


def begin_kernels(
    graph: Graph, picks: list[int], checked: list[TensorMeta], free: Collection[int] = (), recorded: bool = False,
    tuned: bool = False, may_have_twins: bool = False,
) -> Begun:  # fmt: skip
    """Schedule a graph, and begin to compile its kernels.

    `picks` are the positions of the graph's tensor inputs among the `checked` tensors; for `free` see `lower`. `recorded`:
    for a CUDA graph, if the schedule fits into one, and else with a logged reason; `schedule.recorded` tells. `tuned`: for
    launch shapes that are measured.

    Raises:
        Unsupported: with the reason, where there are no kernels to be had.
        ScheduleError: where the schedule is wrong, and `config.verify` is set.
    """
    scheduled = _scheduled_with_twins(graph) if may_have_twins else None
    asked, schedule = scheduled or _scheduled(graph, free, recorded)
    verified = config.verify
    if verified:
        with logs.stage("verify"):
            verify(asked, schedule)
    inputs: list[Any] = [buffer for buffer in schedule.program.inputs if buffer is not None]
    position = dict(zip(inputs, picks, strict=True))
    with logs.stage("kernels"):
        if recorded and launches(schedule) >= config.cuda_graph_launches:
            reason = why_not_recorded(schedule)
            schedule.recorded = reason is None
            if reason:
                logs.log.warning("no CUDA graph: %s", reason)
        bind = begin_to_bind(schedule, position, checked, emit_cpu, emit_gpu, schedule.recorded, tuned)

    def finish() -> tuple[list[Launch], Placer]:
        with logs.stage("kernels"):
            calls, placer = bind()
        if verified:
            places = {buffer: Place("cells", offset) for buffer, offset in placer.resident.items()}
            places |= {buffer: Place("arena", o, size=placer.arena.size) for buffer, o in placer.arena.offsets.items()}
            check_placement(schedule, places)
        return calls, placer

    return Begun(schedule, finish)


def _scheduled(graph: Graph, free: Collection[int], recorded: bool) -> tuple[Program, Schedule]:
    """A lowered graph, as the verifier needs it if it is to look, and its schedule."""
    with logs.stage("lower"):
        program = lower(graph, free, expand, stream_of)
        if recorded and draws_in_turn(program):  # a graph draws after what is reserved for kernels before it
            program = lower(graph, free, expand)
    if logs.enabled("loops"):
        logs.emit("loops", str(program))
    asked = copied(program) if config.verify else program
    with logs.stage("schedule"):
        return asked, make_schedule(program)


def _scheduled_with_twins(graph: Graph) -> tuple[Program, Schedule] | None:
    """The same for a graph of which parts do the same with other tensors, so that one of a kind is enough to lower and to
    schedule; None where there are none, or where the kernels of one cannot be those of the others, too."""
    with logs.stage("lower"):
        found = without_twins(graph)
        if found is None:
            return None
        try:
            program = lower(found.graph, (), expand, stream_of)
        except Unsupported:  # the whole graph says why
            return None
    if logs.enabled("loops"):
        logs.emit("loops", f"{program}\n# and the same {found.left_out} times more, with other tensors")
    with logs.stage("schedule"):
        schedule = make_schedule(program)
        asked = lower(graph, (), expand, stream_of) if config.verify else None
        return (asked or program, schedule) if with_twins(schedule, found, asked) else None


@dataclass(frozen=True, slots=True)
class Replay:
    """What is known about the tensors of a function that may be replayed as a CUDA graph.

    `copied` are the positions of those that are other ones in each call, and `changed` of those that the graph changes.
    `regrades`: gradients of some, which the graph does not read, are forgotten before it, and replaced after it. `detach`:
    results that are inputs are new objects. `consumes`: the list of tensors is to be emptied.
    """

    copied: Collection[int] = ()
    changed: Collection[int] = ()
    regrades: bool = False
    detach: bool = False
    consumes: bool = False


def replayed(
    graph: Graph, whole: Callable[..., Any], schedule: Schedule, calls: list[Launch], placer: Placer, picks: list[int],
    checked: int, replay: Replay,
) -> Callable[..., Any]:  # fmt: skip
    """A function of kernels, `whole`, whose schedule is recorded, replayed as a CUDA graph."""
    name = whole.__name__
    changed = [k in replay.changed or at in placer.written for k, at in enumerate(picks)]

    def place(addresses: Any) -> None:
        for table in placer.tables:
            table.place(addresses)

    restarts = whole.__dict__["restarts"]
    parts = Parts(whole, *recorded_functions(name, graph, schedule, calls, placer, restarts))
    made = Replayed(
        name, parts, recorder(schedule, calls), place, picks, checked, [k in replay.copied for k in range(len(picks))],
        changed, detach=replay.detach, consumes=replay.consumes, regrades=replay.regrades,
    )  # fmt: skip
    made.__dict__.update(vars(whole))
    made.host_needs_tensors = "_tensors[" in made.parts.host.__dict__["source"]
    return made
