"""Hashes in place of numbers: 64 bits that stand for a value and for all that it was computed from.

Equal hashes mean equal values, except by a chance of about 2**-60. A value's hash is a sum of its arguments' hashes, each
but the last times an odd number that stands for the operation and the argument's position, and then a shift, so that nothing
but the same operation on the same arguments gives the same. What is combined in any order is a sum.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[np.uint64]
_SHIFT = np.uint64(32)
_BITS = (1 << 64) - 1
#: How many elements have random factors of their own. Runs of so many have another one together.
_RUN = 1 << 16


@functools.lru_cache(maxsize=1 << 16)
def token(*parts: object) -> int:
    """An odd number that stands for some values, told apart by their texts."""
    text = "\0".join(map(repr, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") | 1


@functools.lru_cache(maxsize=1 << 14)
def factors(count: int, *parts: object) -> tuple[np.uint64, ...]:
    """The factors of an operation's arguments."""
    return tuple([np.uint64(token(k, *parts)) for k in range(count)])


def mixed(factors: Sequence[np.uint64], hashes: Sequence[Array]) -> Array:
    """The hashes of what is computed from some arguments, which are broadcast."""
    total = hashes[0] * factors[0]
    last = len(hashes) - 1
    for k in range(1, len(hashes)):
        term = hashes[k] if k == last else hashes[k] * factors[k]  # the last one is told apart by having no factor
        if term.shape == total.shape:
            total += term
        else:
            total = total + term
    total ^= total >> _SHIFT
    return total


#: The bits that mark numbers of 16 bits, whatever type holds them, and how: rounding them to that type gives them back.
_HALF = np.uint64(0xFFFF << 32)
_MARKS = {torch.bfloat16: np.uint64(0x5AC3 << 32), torch.float16: np.uint64(0x3CA5 << 32)}


def as_half(hashes: Array, dtype: torch.dtype) -> Array:
    """The hashes of values of a type, marked where that has 16 bits."""
    return hashes & ~_HALF | _MARKS[dtype] if dtype in _MARKS else hashes


def is_half(hashes: Array, dtypes: Iterable[torch.dtype] = tuple(_MARKS)) -> npt.NDArray[np.bool_]:
    """Which hashes are marked as those of one of some types of 16 bits."""
    bits = hashes & _HALF
    return np.logical_or.reduce([bits == _MARKS[dtype] for dtype in dtypes])


def single(number: int) -> Array:
    """One hash, to be broadcast."""
    return np.array([number & _BITS], dtype=np.uint64)


def of_numbers(numbers: npt.NDArray[np.generic], dtype: torch.dtype) -> Array:
    """The hashes of numbers that are known, by their bits."""
    if numbers.dtype == np.bool_:
        bits = numbers.astype(np.uint64)
    elif numbers.dtype.itemsize == 8:
        bits = np.ascontiguousarray(numbers).view(np.uint64)
    elif numbers.dtype.kind == "f":
        bits = np.ascontiguousarray(numbers).view(np.uint32).astype(np.uint64)
    else:
        bits = numbers.astype(np.int64).view(np.uint64)
    first, second = factors(2, "number", dtype)
    total = (bits + first) * second
    total ^= total >> _SHIFT
    return total


@functools.cache
def _weights() -> Array:
    return np.random.default_rng(0x9E3779B97F4A7C15).integers(0, _BITS, _RUN, dtype=np.uint64, endpoint=True) | np.uint64(1)


def numbered(count: int, *parts: object) -> Array:
    """Hashes of the elements 0, 1, .. of something."""
    made = np.empty(count, dtype=np.uint64)
    for number, start in enumerate(range(0, count, _RUN)):
        run = made[start : start + _RUN]
        first, second = factors(2, "element", number, *parts)
        np.add(_weights()[: len(run)], first, out=run)
        run *= second
        run ^= run >> _SHIFT
    return made


def in_order(hashes: Array) -> int:
    """What stands for all elements in the order of their indices."""
    flat = np.ascontiguousarray(hashes).reshape(-1)
    total = token("all", hashes.shape)
    for number, start in enumerate(range(0, flat.size, _RUN)):
        run = flat[start : start + _RUN] * _weights()[: min(_RUN, flat.size - start)]
        run ^= run >> _SHIFT
        total += int(run.sum()) * token("run", number)
    return total & _BITS


@functools.cache
def _combination(combine: str, dtype: torch.dtype) -> tuple[np.uint64, np.uint64]:
    """A factor that stands for a way of combining values, and its inverse."""
    factor = token("combined", combine, dtype)
    return np.uint64(factor), np.uint64(pow(factor, -1, 1 << 64))


def spread(hashes: Array, combine: str, dtype: torch.dtype) -> Array:
    """Hashes as they are added up where values are combined in any order, or in the order of a scan."""
    total = hashes * _combination(combine, dtype)[0]
    total ^= total >> _SHIFT
    return total


def combined(totals: Array, combine: str, dtype: torch.dtype) -> Array:
    """The hashes of what values are combined to, whose spread hashes add up to `totals`.

    That undoes `spread`: one value by itself is what it is, and what parts are combined to may be combined once more.
    """
    return (totals ^ (totals >> _SHIFT)) * _combination(combine, dtype)[1]
