"""Loads at computed offsets: exact where the offset follows from loop variables, and from all of the buffer elsewhere."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from .hashing import Array, factors, mixed, of_numbers, single
from .memory import Contents
from .nest import Value, constant

_Mask = npt.NDArray[np.bool_]


def pick(
    contents: Contents, places: npt.NDArray[np.int64], offset: Value, inside: Value, busy: _Mask | None, dtype: torch.dtype
) -> Value | tuple[str, str]:
    """The value that is `offset` elements after `places` where `inside` holds, else zero; or the kind of an error and what
    is wrong. `busy` are the elements that are stored to meanwhile."""
    known = _known_where(offset, inside)
    if busy is not None and (known is None or not known.all()):
        return "race", f"any element of {contents.buffer} may be read, to which the same launch stores"
    if known is None:
        return Value(dtype, _anywhere(contents, places, offset, inside))
    is_read, at = np.broadcast_arrays(inside.numbers & known, places + offset.numbers)
    wrong = is_read & ((at < 0) | (at >= contents.size))
    if wrong.any():
        return "bounds", f"element {int(at[wrong][0])} of {contents.buffer} is read, which has {contents.size}"
    at = np.where(is_read, at, 0)
    if busy is not None and busy[at[is_read]].any():
        return "race", f"elements of {contents.buffer} are read, to which the same launch stores"
    if not contents.is_input and not contents.written[at[is_read]].all():
        return "unwritten", f"nothing has stored to elements of {contents.buffer} that are read"
    exact = _gathered(contents, at, is_read, dtype)
    if known.all():
        return exact
    hashes = np.where(known, exact.hashes, _anywhere(contents, places, offset, inside))
    if exact.numbers is None:
        return Value(dtype, hashes)
    return Value(dtype, hashes, exact.numbers, known if exact.where is None else known & exact.where)


def _known_where(offset: Value, inside: Value) -> _Mask | None:
    """Where an element is known that is read, or that none is; None where it is nowhere."""
    if offset.numbers is None or inside.numbers is None:
        return None
    where = np.ones((1,), np.bool_)
    for value in (offset, inside):
        if value.where is not None:
            where = where & value.where
    return where


def _gathered(contents: Contents, at: npt.NDArray[np.int64], is_read: _Mask, dtype: torch.dtype) -> Value:
    """The elements at known positions; zeros where none is read."""
    zero = constant(0, dtype)
    if not contents.size:
        return zero
    hashes = contents.hashes[at]
    everywhere = bool(is_read.all())
    if not everywhere:
        hashes = np.where(is_read, hashes, zero.hashes)
    if zero.numbers is None or (everywhere and contents.known is None):
        return Value(dtype, hashes)
    numbers, where = np.zeros_like(zero.numbers), ~is_read
    if contents.known is not None:
        numbers = np.where(is_read, contents.known[0][at], zero.numbers)
        where = where | contents.known[1][at]
    if not where.any():
        return Value(dtype, hashes)
    return Value(dtype, hashes, np.broadcast_to(numbers, hashes.shape), None if where.all() else where)


def _anywhere(contents: Contents, places: npt.NDArray[np.int64], offset: Value, inside: Value) -> Array:
    """What stands for an element that only the data tell."""
    arguments = [of_numbers(places, torch.int64), offset.hashes, inside.hashes, single(contents.digest())]
    by_data = mixed(factors(4, "picked"), arguments)
    if offset.numbers is None or not contents.size:
        return by_data
    at, _ = np.broadcast_arrays(places + offset.numbers, inside.hashes)
    within = (at >= 0) & (at < contents.size)
    element = np.where(within, contents.hashes[np.where(within, at, 0)], np.uint64(0))
    by_place = mixed(factors(2, "picked if"), [element, inside.hashes])
    return by_place if offset.where is None else np.where(offset.where, by_place, by_data)
