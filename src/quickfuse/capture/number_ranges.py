"""Numbers that operators convert to a tensor's type: eager raises where one is beyond the range of that type."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ..errors import Unsupported
from ..ir.guard import NumberExpr
from .symbolic import Symbol, symbolic_leaves

#: Operators that convert numbers to the type of their result, or of the tensor that they change -> where in their arguments
#: these numbers are: the position, and the name.
_CONVERTED: dict[str, tuple[tuple[int, str], ...]] = {
    "fill": ((1, "value"),), "full": ((1, "fill_value"),), "full_like": ((1, "fill_value"),),
    "new_full": ((2, "fill_value"),), "fill_diagonal": ((1, "fill_value"),), "setitem": ((2, ""),),
    "masked_fill": ((2, "value"),), "index_fill": ((3, "value"),), "scatter": ((3, "value"), (3, "src")),
    "pad": ((3, "value"),), "constant_pad_nd": ((2, "value"),), "tensor": ((0, "data"),), "addcmul": ((3, "value"),),
    "clamp": ((1, "min"), (2, "max")), "clip": ((1, "min"), (2, "max")), "clamp_min": ((1, "min"),),
    "clamp_max": ((1, "max"),), "pow": ((0, "input"), (1, "exponent")), "where": ((1, "input"), (2, "other")),
}  # fmt: skip
_ALPHA = ((-1, "alpha"),)


def converted_numbers(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The numbers and symbols among an operator's arguments that it converts. `name` has no underscores around it."""
    name = name.removeprefix("foreach_")
    places = _CONVERTED.get(name, ()) + (_ALPHA if "alpha" in kwargs else ())
    given = [args[k] if 0 <= k < len(args) else kwargs.get(keyword) for k, keyword in places]
    return [number for value in given for number in _numbers(value)]


def _numbers(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for element in value:
            yield from _numbers(element)
    elif type(value) in (int, float, Symbol):
        yield value
    else:
        yield from (v for v in symbolic_leaves(value) if type(v) is Symbol)


def range_guards(numbers: Iterable[Any], dtypes: Iterable[torch.dtype]) -> Iterator[NumberExpr]:
    """The conditions under which the symbols among some numbers fit some types.

    Raises:
        Unsupported: where a number does not, so that the operator raises.
    """
    for number in numbers:
        for dtype in dtypes:
            if dtype is torch.bool:
                continue
            is_symbol = type(number) is Symbol
            value, kind = (number.hint, number.kind) if is_symbol else (number, type(number))
            if kind is bool or (is_symbol and number.from_tensor):
                continue
            if not _fits(value, kind, dtype):
                raise Unsupported(f"a number beyond the range of {dtype}")
            if is_symbol:
                lowest, largest = _limits(kind, dtype)
                also = " or {0} - {0} != 0" if _is_inexact(dtype) and kind is float else ""  # infinity, or no number
                yield NumberExpr(f"({{1}} <= {{0}} <= {{2}}{also})", (number.expr, lowest, largest))


def _fits(value: Any, kind: type, dtype: torch.dtype) -> bool:
    lowest, largest = _limits(kind, dtype)
    return bool(lowest <= value <= largest or (kind is float and _is_inexact(dtype) and value - value != 0))


def _limits(kind: type, dtype: torch.dtype) -> tuple[Any, Any]:
    real = dtype.to_real()
    if real.is_floating_point:
        return -torch.finfo(real).max, torch.finfo(real).max
    limits = torch.iinfo(real)
    wraps = not limits.min and kind is int  # -1 becomes 255, as in C++
    return -limits.max if wraps else limits.min, limits.max


def _is_inexact(dtype: torch.dtype) -> bool:
    return dtype.to_real().is_floating_point
