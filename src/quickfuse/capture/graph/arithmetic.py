"""Python's arithmetic with numbers that change from call to call, or that only running the graph tells."""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable
from typing import Any, Protocol

import numpy
import torch

from ...errors import Unsupported
from ...ir.guard import NumberExpr
from ..inference.mutation import name_of
from ..inference.number_operators import (
    FLOAT_ARITHMETIC,
    NEVER_RAISE,
    OF_NUMPY,
    OF_NUMPY_AND_TENSORS,
    UFUNCS,
    is_on_gpu,
    is_setting,
    kind_depends_on_values,
    kind_from_tensor,
    may_divide_by_zero,
    may_overflow,
    may_raise,
    needed_of_operands,
    needed_of_whole_numbers,
    template_of,
)
from ..inference.results import OperatorFailed
from ..symbolic import Symbol
from .contents import Contents
from .failing import REASON as FAILING

#: How many operations one number may take, before it is worked out: at a break, or held by a guard if it comes from settings
#: alone. What is used twice counts twice.
LARGEST_EXPRESSION = 100

#: The classes of numbers -> what they are to Python.
_KINDS: dict[type, type] = {int: int, float: float, bool: bool, numpy.float64: float, numpy.bool_: bool}

Guarding = Callable[[str, Any, Any], None]


class Calculating(Protocol):
    """What arithmetic sees of the graph: see `GraphBuilder`."""

    contents: Contents
    mutated: set[str]
    fails_unless: Callable[[Symbol], bool]
    may_break: bool
    concrete: Callable[[Any], Any]
    in_try: Callable[[], bool]
    in_library: Callable[[], bool]

    def node_of(self, value: Symbol) -> torch.fx.Node: ...


def arithmetic(graph: Calculating, guard: Guarding, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
    """Python arithmetic with at least one symbolic operand.

    Raises:
        OperatorFailed: where the arithmetic raises: the captured code raises it too.
    """
    template = template_of(function, len(operands))
    if template is None:
        raise Unsupported(f"{name_of(function)} of a number from outside")
    from_tensor = any(type(o) is Symbol and o.from_tensor for o in operands)
    of_numpy = function in UFUNCS or any(_is_float64(o) for o in operands)
    if of_numpy and function not in (OF_NUMPY_AND_TENSORS if from_tensor else OF_NUMPY):
        try:
            return function(*map(graph.concrete, operands))
        except (ArithmeticError, TypeError, ValueError) as error:
            raise OperatorFailed(f"{type(error).__name__}: {error}") from error
    plain = tuple([float(o) if type(o) is numpy.float64 else o for o in operands]) if of_numpy else operands
    if from_tensor and of_numpy:
        symbol = _of_tensors_and_numpy(graph, guard, function, plain)
        symbol.operation = (function, operands)  # the program sees NumPy's numbers
        return symbol
    if from_tensor:
        return _of_tensors(graph, guard, function, operands)
    size = 1 + sum([o.size for o in operands if type(o) is Symbol])
    if size > LARGEST_EXPRESSION:
        if not all(is_setting(o.expr) and o.hint == o.hint for o in operands if type(o) is Symbol):
            raise Unsupported("a number that takes a long calculation")
        operands = tuple([graph.concrete(o) for o in operands])
    try:
        with numpy.errstate(all="ignore") if of_numpy else contextlib.nullcontext():
            hint = function(*(o.hint if type(o) is Symbol else o for o in operands))
    except Exception as error:
        raise OperatorFailed(f"{type(error).__name__}: {error}") from error
    kind = _KINDS.get(type(hint))
    if kind is None:
        raise Unsupported(f"{name_of(function)} of numbers gives a {type(hint).__name__}")
    if size > LARGEST_EXPRESSION:
        return hint
    expr = NumberExpr(template, tuple(o.expr if type(o) is Symbol else o for o in operands))
    if kind_depends_on_values(function, operands):
        name = type(hint).__name__ if type(hint) is kind else f"_np.{type(hint).__name__}"
        guard("condition", None, (NumberExpr(f"({{}}.__class__ is {name})", (expr,)), True))
    if type(hint) is not kind and kind is float:  # NumPy warns where Python raises
        if not math.isfinite(hint):
            raise Unsupported(f"{name_of(function)} of numbers for which NumPy may warn")
        guard("condition", None, (NumberExpr("(-1e999 < {} < 1e999)", (expr,)), True))
    elif function not in NEVER_RAISE:  # where it raises for other numbers, the user's handlers come into play
        guard("condition", None, (NumberExpr("({} is not None)", (expr,)), True))
    symbol = Symbol(kind, hint, expr, operation=(function, plain))
    symbol.size = size
    return symbol


def _of_tensors(graph: Calculating, guard: Guarding, function: Callable[..., Any], operands: tuple[Any, ...]) -> Symbol:
    """Arithmetic with a number that only running the graph tells. Lowering sees to it that Python's exceptions are
    raised, unless it is PyTorch's own code that computes: that knows what it divides by. Python's whole numbers have no
    bounds: those that do not fit are computed in Python."""
    kind = kind_from_tensor(function, operands)
    if kind is int:
        for condition in needed_of_whole_numbers(function, operands):
            guard("condition", None, (condition, True))
    never_raises = not may_overflow(function, kind) and (function in NEVER_RAISE or graph.in_library())
    if not never_raises:
        if graph.mutated and graph.in_try() and graph.contents.has_written_inputs():
            raise Unsupported(FAILING)
        for expr in needed_of_operands(function, operands):
            guard("condition", None, (expr, True))
        never_raises = not may_raise(function, operands) and not may_overflow(function, kind)
        if not never_raises and graph.may_break and is_on_gpu(operands):
            # No kernel there can tell, but the program can: it waits for the number anyway.
            never_raises = may_divide_by_zero(function, operands) and graph.fails_unless(
                _of_tensors(graph, guard, operator.ne, (operands[1], 0))
            )
            if not never_raises:
                raise Unsupported(f"{name_of(function)} of a number on a GPU, for which Python may raise an exception")
    symbol = Symbol(kind, None, None, operation=(function, operands), from_tensor=True)
    graph.node_of(symbol).meta["never_raises"] = never_raises
    return symbol


def _of_tensors_and_numpy(
    graph: Calculating, guard: Guarding, function: Callable[..., Any], operands: tuple[Any, ...]
) -> Symbol:
    """Arithmetic of a number that only running the graph tells with one of NumPy's: NumPy warns where Python raises."""
    divisor = operands[-1] if function is operator.truediv else None
    may_warn = function is operator.pow or (type(divisor) is Symbol and divisor.from_tensor)
    if may_warn and not graph.in_library():
        raise Unsupported(f"{name_of(function)} of numbers for which NumPy may warn")
    try:
        symbol = _of_tensors(graph, guard, function, operands)
    except OperatorFailed as error:
        raise Unsupported(f"{name_of(function)} of numbers for which NumPy may warn") from error
    if symbol.kind is bool and function is not operator.not_:
        symbol.cls = numpy.bool_
    elif symbol.kind is float and function in FLOAT_ARITHMETIC:
        symbol.cls = numpy.float64
    return symbol


def _is_float64(value: Any) -> bool:
    """Whether a number is of NumPy's."""
    return type(value) is numpy.float64 or (type(value) is Symbol and value.cls is not value.kind)
