"""Memory for the temporaries of a schedule on a GPU: one allocation for all that only kernels use.

To make a tensor takes as long as a launch. Where the arena lies where it lay in the last call, which is so as long as the
program allocates the same from call to call, no table changes either.
"""

from __future__ import annotations

import bisect
import heapq

import torch

from ..ir.kernel import KernelCall, Schedule
from ..ir.loop import Buffer, Extern, buffers_in

#: Addresses of temporaries are multiples of it, as the allocator's are.
_ALIGNMENT = 512
#: Larger temporaries have memory of their own, which is free for others as soon as they are done with.
_LARGEST = 4 << 20


class Arena:
    """Where temporaries lie in a block of `size` bytes on `device`: `offsets`, in bytes."""

    def __init__(self, schedule: Schedule) -> None:
        self.offsets: dict[Buffer, int] = {}
        self.size = 0
        self.device: torch.device | None = None
        #: Where the block was in the last call.
        self.base = 0
        wanted = _only_for_kernels(schedule)
        if len({buffer.meta.device for buffer in wanted}) == 1:
            self.device = wanted[0].meta.device
            self._place(schedule, set(wanted))

    def _place(self, schedule: Schedule, wanted: set[Buffer]) -> None:
        """Give each the lowest place that is free for as long as it is used."""
        used = [[b for b in step.buffers if b in wanted] for step in schedule.steps]
        last = {buffer: number for number, buffers in enumerate(used) for buffer in buffers}
        free: list[tuple[int, int]] = []  # (offset, size), in order, none adjacent
        ending: list[tuple[int, int, int]] = []  # (last use, offset, size)
        for number, buffers in enumerate(used):
            while ending and ending[0][0] < number:
                _, offset, size = heapq.heappop(ending)
                _release(free, offset, size)
            for buffer in buffers:
                if buffer not in self.offsets:
                    size = -(-max(buffer.meta.span_bytes, 1) // _ALIGNMENT) * _ALIGNMENT
                    offset = self.offsets[buffer] = self._take(free, size)
                    heapq.heappush(ending, (last[buffer], offset, size))

    def _take(self, free: list[tuple[int, int]], size: int) -> int:
        for k, (offset, room) in enumerate(free):
            if room >= size:
                free[k : k + 1] = [(offset + size, room - size)] if room > size else []
                return offset
        if free and sum(free[-1]) == self.size:
            offset = free.pop()[0]
        else:
            offset = self.size
        self.size = offset + size
        return offset

    def new(self) -> torch.Tensor:
        """A block for one call."""
        return torch.empty(self.size, dtype=torch.uint8, device=self.device)


def _release(free: list[tuple[int, int]], offset: int, size: int) -> None:
    """Add a place to the list of those that are free."""
    k = bisect.bisect(free, (offset, size))
    if k < len(free) and free[k][0] == offset + size:
        size += free.pop(k)[1]
    if k and sum(free[k - 1]) == offset:
        k -= 1
        offset, before = free.pop(k)
        size += before
    free.insert(k, (offset, size))


def _only_for_kernels(schedule: Schedule) -> list[Buffer]:
    """The temporaries on GPUs that no operator of PyTorch gets or makes, and that are no results."""
    others = set(buffers_in(schedule.program.outputs))
    for step in schedule.steps:
        if isinstance(step, Extern):
            others.update(step.buffers)
    made = [b for step in schedule.steps if isinstance(step, KernelCall) for b in step.buffers if b.kind == "temp"]
    return [
        b for b in dict.fromkeys(made) if b.meta.device.type == "cuda" and b not in others and b.meta.span_bytes <= _LARGEST
    ]
