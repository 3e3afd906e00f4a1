"""Where temporaries live."""

from __future__ import annotations

from typing import Any

import torch

import quickfuse
from quickfuse.ir.loop import Buffer
from quickfuse.launch.tables import Placer
from schedule_interpreter import compile_for_test


def chain(x: torch.Tensor) -> Any:
    """Each sum needs all of the one before, and no other."""
    rows = x.sum(1, keepdim=True)
    for _ in range(6):
        columns = (x * rows.tanh()).sum(0)
        rows = (x * columns.tanh()).sum(1, keepdim=True)
    return rows + x


def test_small_temporaries_share_cells() -> None:
    schedule, _ = compile_for_test(chain, torch.randn(8, 12))
    placer = Placer(schedule, {}, [])
    resident = [b for b in schedule.temps if placer.is_resident(b)]
    assert len(resident) >= 6
    cells = {b: placer.cell_address(b) for b in resident}
    assert len(set(cells.values())) < len(resident)
    _assert_apart(schedule, cells)


def _assert_apart(schedule: Any, cells: dict[Buffer, int]) -> None:
    """No two that are in use at the same time overlap."""
    used: dict[Buffer, list[int]] = {}
    for number, step in enumerate(schedule.steps):
        for member in step.members:
            for buffer in member.buffers:
                if buffer in cells:
                    used.setdefault(buffer, []).append(number)
    for a in cells:
        for b in cells:
            if a is not b and used[a][0] <= used[b][-1] and used[b][0] <= used[a][-1]:
                assert cells[a] + a.meta.span_bytes <= cells[b] or cells[b] + b.meta.span_bytes <= cells[a]


def test_results_hold() -> None:
    x = torch.randn(8, 12)
    compiled = quickfuse.compile(chain)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), chain(x))


def test_large_and_returned_ones_are_tensors() -> None:
    schedule, _ = compile_for_test(lambda x: (x.sum(0), (x - x.sum(0)).sum(1)), torch.randn(300, 2000))
    placer = Placer(schedule, {}, [])
    outputs = {o for o in schedule.program.outputs if isinstance(o, Buffer)}
    assert not any(placer.is_resident(b) for b in outputs)
    assert all(b.meta.span_bytes <= 1 << 14 for b in schedule.temps if placer.is_resident(b))
