"""What is in memory: for each element of each buffer the hash of the value that is there, and whether there is one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from quickfuse.ir.loop import Buffer

from .hashing import Array, as_half, factors, in_order, mixed, numbered, single, token
from .known import NUMPY, Numbers

Shape = tuple[int, ...]

#: Inputs of more elements are known by their name as a whole: to go through all of these takes long.
_LARGE = 1 << 22


@dataclass(slots=True)
class Region:
    """The elements at `offset + sum(strides[k] * i_k)` of a buffer, in elements from its first, for indices within `shape`.

    An axis along which it does not move has stride 0, whatever its size.
    """

    offset: int
    shape: Shape
    strides: Shape

    @property
    def bounds(self) -> tuple[int, int]:
        """The first and the last element."""
        first = last = self.offset
        for stride, size in zip(self.strides, self.shape, strict=True):
            if stride < 0:
                first += stride * (size - 1)
            else:
                last += stride * (size - 1)
        return first, last

    def part(self, begin: Shape, shape: Shape) -> Region:
        """The elements at the indices from `begin` on."""
        return Region(self.offset + sum(s * b for s, b in zip(self.strides, begin, strict=True)), shape, self.strides)

    def of(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The part of an array, which is a view of it, with size 1 where the region does not move."""
        size = array.itemsize
        shape = tuple([n if s else 1 for n, s in zip(self.shape, self.strides, strict=True)]) or (1,)
        strides = tuple([s * size for s in self.strides]) or (size,)
        return np.ndarray(shape, array.dtype, array, self.offset * size, strides)  # type: ignore[no-any-return,call-overload]

    def positions(self) -> npt.NDArray[np.int64]:
        """Where its elements are, to be broadcast to its shape."""
        total = np.full((1,) * max(len(self.shape), 1), self.offset, dtype=np.int64)
        for axis, (size, stride) in enumerate(zip(self.shape, self.strides, strict=True)):
            if stride and size > 1:
                steps = np.arange(size, dtype=np.int64) * stride
                total = total + steps.reshape(-1, *[1] * (len(self.shape) - axis - 1))
        return total

    def is_injective(self) -> bool:
        """Whether each index means another element."""
        reach = 0
        for stride, size in sorted([(abs(s), n) for s, n in zip(self.strides, self.shape, strict=True) if n > 1]):
            if stride <= reach:
                return np.unique(self.positions()).size == int(np.prod(self.shape))
            reach += stride * (size - 1)
        return True


class Contents:
    """What is in one buffer's memory, from its first element to its last.

    `written` says which elements something has stored to: what an input held before does not count. `known` are the
    numbers that are known there, and where they are.
    """

    def __init__(self, buffer: Buffer, name: int, before: Contents | None = None) -> None:
        """`before`: what it begins with, which is shared until something is stored."""
        self.buffer = buffer
        self.before = before
        self.name = name
        self.size = buffer.meta.span_bytes // buffer.meta.dtype.itemsize
        self.is_input = buffer.kind == "input"
        self.version = 0
        self.stored = 0
        self.scattered = False
        self.known: tuple[Numbers, npt.NDArray[np.bool_]] | None = None
        #: The conditions that set it, where it is a flag.
        self.conditions: set[int] = set()
        self._hashes: Array | None = None
        self._written: npt.NDArray[np.bool_] | None = None
        self._digest: tuple[int, int] = (-1, 0)

    @property
    def hashes(self) -> Array:
        if self._hashes is None and self.before is not None:
            return self.before.hashes
        if self._hashes is None:
            hashes = numbered(self.size, self.name) if self.is_input else np.zeros(self.size, dtype=np.uint64)
            self._hashes = as_half(hashes, self.buffer.meta.dtype)
        return self._hashes

    @property
    def written(self) -> npt.NDArray[np.bool_]:
        if self._written is None:
            self._written = np.zeros(self.size, dtype=np.bool_)
        return self._written

    def holds_values(self, region: Region) -> bool:
        """Whether all elements of a region have been stored to, or were there before."""
        if self.is_input or self.stored >= max(self.buffer.meta.numel, 1):
            return True
        return bool(self.stored) and bool(region.of(self.written).all())

    def is_changed(self, region: Region) -> bool:
        """Whether anything has stored to an element of a region."""
        return self.scattered or (bool(self.stored) and bool(region.of(self.written).any()))

    def put(self, region: Region, hashes: Array, known: tuple[Numbers | None, npt.NDArray[np.bool_] | None]) -> None:
        """Store hashes, and the numbers that are known, to a region."""
        if self._hashes is None and self.before is not None:
            self._hashes = self.before.hashes.copy()
        place = region.of(self.hashes)
        place[...] = hashes
        numbers, where = known
        if numbers is not None and self.buffer.meta.dtype in NUMPY:
            if self.known is None:
                self.known = (np.zeros(self.size, NUMPY[self.buffer.meta.dtype]), np.zeros(self.size, np.bool_))
            region.of(self.known[0])[...] = numbers
            region.of(self.known[1])[...] = True if where is None else where
        elif self.known is not None:
            region.of(self.known[1])[...] = False
        self.stored += place.size
        region.of(self.written)[...] = True
        self.version += 1

    def note_conditions(self, hashes: Array, numbers: Numbers | None) -> None:
        """Note that a flag is set where conditions hold, some of which may be known not to."""
        if numbers is not None:
            hashes = hashes[np.broadcast_to(numbers, hashes.shape)]
        self.conditions.update(np.unique(hashes).tolist())

    def scatter(self, digest: int) -> None:
        """Change all elements by what stands for all that a scatter does."""
        self._hashes = as_half(mixed(factors(2, "scattered"), [self.hashes, single(digest)]), self.buffer.meta.dtype)
        self.known = None
        self.scattered = True
        self.version += 1

    def digest(self) -> int:
        """What stands for all that is in the buffer."""
        if self.is_input and not self.version and self.size > _LARGE:
            return token("input", self.name)  # which a copy of it does not have
        if self._digest[0] != self.version:
            self._digest = (self.version, in_order(self.hashes))
        return self._digest[1]

    def digest_of(self, region: Region) -> int:
        """What stands for the elements of a region in the order of their indices."""
        if self.is_input and not self.is_changed(region):
            return token("part of an input", self.name, region.offset, region.shape, region.strides)
        return in_order(np.broadcast_to(region.of(self.hashes), region.shape or (1,)))


class Memory:
    """The contents of all buffers, made when they are asked for. `names` number the buffers, for all memories alike.

    Inputs hold what they do in the memory `before`, where there is one.
    """

    def __init__(self, names: dict[Buffer, int], before: Memory | None = None) -> None:
        self.names = names
        self.before = before
        self._contents: dict[Buffer, Contents] = {}

    def __getitem__(self, buffer: Buffer) -> Contents:
        contents = self._contents.get(buffer)
        if contents is None:
            name = self.names.setdefault(buffer, len(self.names))
            before = self.before[buffer] if self.before is not None and buffer.kind == "input" else None
            contents = self._contents[buffer] = Contents(buffer, name, before)
        return contents

    def __iter__(self) -> Iterator[Contents]:
        return iter(self._contents.values())

    def get(self, buffer: Buffer) -> Contents | None:
        return self._contents.get(buffer)

    def forget(self, buffer: Buffer) -> None:
        self._contents.pop(buffer, None)
