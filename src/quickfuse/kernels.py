"""From a graph to kernels that can be launched: the stages between capture or differentiation and the glue."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch.fx import Graph

from . import config, logs
from .differentiate.expand import expand
from .emit.sources import emit_cpu, emit_gpu
from .ir.kernel import Schedule
from .ir.launching import Launch
from .ir.values import TensorMeta
from .launch import bind
from .launch.tables import Placer
from .lower import lower
from .schedule import schedule as make_schedule
from .verify import Place, check_placement, copied, verify


def kernels_of(
    graph: Graph, picks: list[int], checked: list[TensorMeta], free: Collection[int] = ()
) -> tuple[Schedule, list[Launch], Placer]:
    """A graph's schedule, the launchers of its kernels, and what places addresses in their tables.

    `picks` are the positions of the graph's tensor inputs among the `checked` tensors; for `free` see `lower`.

    Raises:
        Unsupported: with the reason, where there are no kernels to be had.
        ScheduleError: where the schedule is wrong, and `config.verify` is set.
    """
    with logs.stage("lower"):
        program = lower(graph, free, expand)
    if logs.enabled("loops"):
        logs.emit("loops", str(program))
    asked = copied(program) if config.verify else None
    with logs.stage("schedule"):
        schedule = make_schedule(program)
    if asked is not None:
        with logs.stage("verify"):
            verify(asked, schedule)
    inputs: list[Any] = [buffer for buffer in program.inputs if buffer is not None]
    position = dict(zip(inputs, picks, strict=True))
    with logs.stage("kernels"):
        calls, placer = bind(schedule, position, checked, emit_cpu, emit_gpu)
    if asked is not None:
        check_placement(schedule, {buffer: Place("cells", offset) for buffer, offset in placer.resident.items()})
    return schedule, calls, placer
