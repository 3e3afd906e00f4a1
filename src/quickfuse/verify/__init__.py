"""The verifier: whether a schedule does what its program says. It shares no code with what makes schedules.

Program and schedule are run on hashes in place of numbers, every element of every buffer: `program` as the docstrings of
`ir/loop.py` say, `schedule` as it would really run. Equal hashes mean that each load sees exactly the store that the program
says. In order: `loops` and `bodies` read loops and kernels into one form (`nest`), `execute` runs that, with `calls` for
PyTorch's operators, `picks` for computed offsets and `known` for what is computed from indices alone; `races` looks at what
runs at a time, and `placement` at buffers that share memory. `changes` finds out why a value is wrong.
"""

from __future__ import annotations

from quickfuse.ir.kernel import Schedule
from quickfuse.ir.loop import Program

from .placement import Place, check_placement
from .program import Expected, copied
from .schedule import Run
from .violation import KINDS, ScheduleError


def verify(program: Program, schedule: Schedule) -> None:
    """Check a schedule against the lowered program that it was made from.

    `program` must be as it was before a scheduler rewrote it: see `copied`. Each element is looked at, whatever the size: it
    takes some ten times as long as the program in eager mode, and 20 bytes for each element of memory.

    Raises:
        ScheduleError: naming the statements of both that do not agree.
    """
    Run(Expected(program), schedule).run()


__all__ = ["KINDS", "Place", "ScheduleError", "check_placement", "copied", "verify"]
