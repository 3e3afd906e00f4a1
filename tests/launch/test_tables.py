"""Where temporaries live."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch

import quickfuse
from quickfuse.ir.loop import Buffer
from quickfuse.launch.cuda import CudaKernelCall
from quickfuse.launch.gpu_call import _UploadedTable
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


def test_a_kernel_on_a_gpu_is_told_of_each_change_of_addresses() -> None:
    """Its words are copied there: what is written without telling it is not seen."""
    schedule, _ = compile_for_test(lambda x: x.sin() + 1, torch.randn(300))
    (call,) = schedule.launched
    (source,) = (b for b in call.buffers if b.kind == "input")
    placer = Placer(schedule, {source: 0}, [source.meta])
    told: list[int] = []
    kernel = SimpleNamespace(rows=np.zeros((1, call.body.row_words), dtype=np.int64))
    table = _UploadedTable(call, cast(CudaKernelCall, kernel), placer)
    word = call.body.slot_word(call.members[0].buffers.index(source))
    kernel.rows_changed = lambda: told.append(int(kernel.rows[0, word]))
    placer.tables.append(table)
    for address in (4096, 8192):
        placer.place(SimpleNamespace(addresses=np.array([address], dtype=np.int64), unplaced=[1]))
    assert told == [4096, 8192]
