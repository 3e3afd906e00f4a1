"""Memory that a CUDA graph frees for a moment and needs again, from an allocator that joins free blocks."""

from __future__ import annotations

from typing import Any

import pytest

from quickfuse.launch.recording import allocate_at

MB = 1 << 20


class Allocator:
    """The smallest free block that is large enough gives its beginning, as in PyTorch's caching allocator."""

    def __init__(self, *free: tuple[int, int]) -> None:
        self.free = list(free)
        self.taken = 0

    def __call__(self, nbytes: int) -> Any:
        nbytes = -(-nbytes // 512) * 512
        fitting = [block for block in self.free if block[1] >= nbytes]
        start, size = min(fitting, key=lambda block: block[1]) if fitting else (1 << 40, nbytes)
        if fitting:
            self.free.remove((start, size))
            self.free.append((start + nbytes, size - nbytes))
        return Block(self, start, nbytes)

    def give_back(self, start: int, nbytes: int) -> None:
        for other in list(self.free):
            if other[0] + other[1] == start:
                start, nbytes = other[0], nbytes + other[1]
                self.free.remove(other)
            elif start + nbytes == other[0]:
                nbytes += other[1]
                self.free.remove(other)
        self.free.append((start, nbytes))


class Block:
    def __init__(self, allocator: Allocator, start: int, nbytes: int) -> None:
        self.allocator, self.start, self.nbytes = allocator, start, nbytes

    def data_ptr(self) -> int:
        return self.start

    def __del__(self) -> None:
        self.allocator.give_back(self.start, self.nbytes)


@pytest.mark.parametrize("address", [0, 512, 40 * 512, MB, 2 * MB - 1024])
@pytest.mark.parametrize("others", [[], [(8 * MB, 1024)], [(8 * MB, 512), (9 * MB, 4096)]], ids=len)
def test_small(address: int, others: list[tuple[int, int]]) -> None:
    allocator = Allocator((0, 2 * MB), *others)
    found = allocate_at(address, 640, allocator)
    assert found is not None and found.data_ptr() == address
    del found
    assert sum(size for _, size in allocator.free) == 2 * MB + sum(size for _, size in others)


def test_large() -> None:
    allocator = Allocator((0, 20 * MB))
    found = allocate_at(6 * MB, 5 * MB, allocator)
    assert found is not None and found.data_ptr() == 6 * MB


def test_beside_small_blocks() -> None:
    """The smallest blocks lie before the address, and are not joined with its block."""
    small = [(k * 2048, 1024) for k in range(20)]
    allocator = Allocator(*small, (MB + 1536, MB), (8 * MB, MB), (10 * MB, 2 * MB))
    found = allocate_at(MB + 1536, 320, allocator)
    assert found is not None and found.data_ptr() == MB + 1536
    del found
    assert sorted(allocator.free) == sorted([*small, (MB + 1536, MB), (8 * MB, MB), (10 * MB, 2 * MB)])


def test_not_to_be_had() -> None:
    allocator = Allocator((0, 2 * MB))
    assert allocate_at(1 << 35, 640, allocator) is None
    assert allocator.free == [(0, 2 * MB)]
