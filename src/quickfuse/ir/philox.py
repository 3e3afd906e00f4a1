"""How PyTorch's dropout on a GPU draws random numbers: which word of the generator's stream is for which element.

The stream is Philox-4x32-10: ten rounds make four words of 32 bits of a key, which is the seed, and of a counter, which has
the number of a thread, and how many times four words it has drawn. The threads of PyTorch's kernel go through the elements
together, a vector for each at a time. The generator's offset says how many words were drawn before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

_BLOCK = 256
_WORD = 0xFFFFFFFF
#: Vectors have so many bytes at most.
_VECTOR_BYTES = 16

#: `reserve(advance, numbers)`: what a call runs for a dropout. It moves the generator of the device on by `advance`, and
#: returns the seed, the offset as it was, and the numbers. It is given the tensor, if there is one, that must begin at a
#: multiple of 16 bytes.
Reserve = Callable[[int, tuple[int, ...]], Callable[..., tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class Stream:
    """Random numbers of a GPU: how many threads of PyTorch's kernels draw there at most, and what reserves numbers."""

    most_threads: int
    reserve: Reserve

    def threads(self, count: int) -> int:
        """How many threads draw for so many elements."""
        return min(-(-count // _BLOCK) * _BLOCK, self.most_threads)

    def advance(self, count: int) -> int:
        """How far the generator's offset moves for so many elements."""
        return 4 * ((count - 1) // (4 * self.threads(count)) + 1)


def vector_width(count: int, offset: int, dtype: torch.dtype) -> int:
    """How many elements each thread of PyTorch's kernel handles at a time, of a tensor without gaps that begins `offset`
    elements after an address that is a multiple of 16 bytes."""
    width = _VECTOR_BYTES // dtype.itemsize
    while count % width or offset % width:
        width //= 2
    return width


def words(seed: int, offset: int, element: torch.Tensor, threads: int, width: int) -> torch.Tensor:
    """The word of the stream for each of some elements, as an int64: what kernels compute by `triton_math.random_number`.

    `element` counts the elements as they lie in memory, or for vectors of one element in the order of their indices.
    """
    place = element // width
    thread, turn = place % threads, place // threads
    word = turn if width == 1 else 4 * max(width // 4, 1) * turn + element % width
    return _philox(seed, offset // 4 + word // 4, thread).gather(-1, (word % 4)[..., None])[..., 0]


def _philox(seed: int, counter: torch.Tensor, thread: torch.Tensor) -> torch.Tensor:
    """The four words for each counter and thread. Products of int64 wrap around as those of unsigned numbers do."""
    c0, c1, c2, c3 = counter & _WORD, (counter >> 32) & _WORD, thread & _WORD, thread >> 32
    k0, k1 = seed & _WORD, (seed >> 32) & _WORD
    for _ in range(10):
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = ((b >> 32) & _WORD) ^ c1 ^ k0, b & _WORD, ((a >> 32) & _WORD) ^ c3 ^ k1, a & _WORD
        k0, k1 = (k0 + 0x9E3779B9) & _WORD, (k1 + 0xBB67AE85) & _WORD
    return torch.stack([c0, c1, c2, c3], -1)


def uniform(word: torch.Tensor) -> torch.Tensor:
    """A word as a float32 above 0, and no more than 1."""
    return word.to(torch.float64).to(torch.float32) * 2.0**-32 + 2.0**-33


@functools.cache
def operation_of(width: int) -> str:
    """The name of the operation on (seed, offset, element, threads) that gives `uniform(words(...))`."""
    return f"uniform{width}"


#: The widths of vectors by the names of these operations.
WIDTHS = {operation_of(width): width for width in (1, 2, 4, 8)}
