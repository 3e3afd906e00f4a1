"""How arithmetic on numbers of the user's program is written in generated code."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy

from .guard import added

#: Python operators on numbers: function -> template of the expression.
_OPERATORS: dict[Callable[..., Any], str] = {
    operator.add: "({} + {})", operator.sub: "({} - {})", operator.mul: "({} * {})", operator.truediv: "({} / {})",
    operator.floordiv: "({} // {})", operator.mod: "({} % {})", operator.pow: "({} ** {})", operator.neg: "(-{})",
    operator.pos: "(+{})", operator.abs: "abs({})", abs: "abs({})", float: "float({})", int: "int({})",
    operator.lt: "({} < {})", operator.le: "({} <= {})", operator.gt: "({} > {})", operator.ge: "({} >= {})",
    operator.eq: "({} == {})", operator.ne: "({} != {})", operator.not_: "(not {})",
    operator.and_: "({} & {})", operator.or_: "({} | {})", operator.xor: "({} ^ {})",
    operator.lshift: "({} << {})", operator.rshift: "({} >> {})", max: "max({}, {})", min: "min({}, {})",
}  # fmt: skip

#: Functions of numbers that are written as calls, with as many arguments as they get.
CALLED: dict[Callable[..., Any], str] = {
    round: "round",
    **{
        getattr(math, name): f"math.{name}"
        for name in (
            "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh degrees erf erfc exp exp2 expm1 fabs floor "
            "fmod gamma hypot isfinite isinf isnan ldexp lgamma log log10 log1p log2 pow radians remainder sin sinh sqrt "
            "tan tanh trunc"
        ).split()
    },
}

#: Functions of NumPy's of numbers, which give a `float64`, or a bool of NumPy's.
UFUNCS: dict[Callable[..., Any], str] = {
    getattr(numpy, name): f"_np.{name}"
    for name in (
        "sqrt exp expm1 log log2 log10 log1p floor ceil abs sin cos tan tanh arctan minimum maximum add subtract multiply "
        "divide power square clip sign deg2rad rad2deg cosh sinh exp2 cbrt hypot isnan isfinite isinf"
    ).split()
}


@functools.lru_cache(maxsize=1024)
def template_of(function: Callable[..., Any], count: int) -> str | None:
    """How `function` of `count` numbers is written, with `{}` for each; None for functions that are not written so."""
    called = "_added" if function is added else CALLED.get(function) or UFUNCS.get(function)
    if called is not None:
        return f"{called}({', '.join(['{}'] * count)})"
    template = _OPERATORS.get(function)
    return template if template is not None and template.count("{}") == count else None
