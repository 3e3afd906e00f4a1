"""NumPy's functions of single numbers: `np.sqrt(self.width)`. What they give is worked out while the program is captured."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..errors import Unsupported
from .interpreter import Interpreter
from .plain import plain_copy
from .symbolic import ForeignObject


def call_ufunc(i: Interpreter, function: ForeignObject, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call of a ufunc of plain numbers, each of which is guarded.

    Raises:
        Unsupported: for other operands, and where NumPy might warn.
    """
    real = function.real
    what = f"numpy.{real.__name__}"
    if kwargs or real.nout != 1 or len(args) != real.nin or getattr(np, real.__name__, None) is not real:
        raise Unsupported(f"{what} with more than its operands")
    plain = [plain_copy(i, a, what) for a in args]
    if any(type(a) not in (int, float, bool) for a in plain):
        raise Unsupported(f"{what} of other things than numbers")
    i.outside.guard("is", function.source, real)
    with np.errstate(all="ignore"):
        result = i.native(real, *plain)
    if not isinstance(result, (np.number, np.bool_)) or not math.isfinite(result):
        raise Unsupported(f"{what} of numbers for which it may warn")
    return result
