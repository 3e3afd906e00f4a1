"""Python's arithmetic with numbers that change from call to call, or that only running the graph tells."""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy
from torch.fx import Graph, Node, map_arg

from ...errors import Unsupported
from ...ir.guard import NumberExpr
from ...ir.number_code import UFUNCS, template_of
from ...ir.number_operands import numbers_that_matter
from ...ir.values import NumberMeta
from ..inference import number_operators as rules
from ..inference.mutation import name_of
from ..inference.number_operators import is_on_gpu
from ..inference.results import OperatorFailed
from ..symbolic import Symbol
from ..symbolic.raising import raise_in_program
from .builder import Builder
from .failing import REASON as FAILING

#: How many operations one number may take, before it is worked out: at a break, or held by a guard if it comes from settings
#: alone. What is used twice counts twice.
LARGEST_EXPRESSION = 100

#: The classes of numbers -> what they are to Python.
_KINDS: dict[type, type] = {int: int, float: float, bool: bool, numpy.bool_: bool}
_KINDS |= {numpy.dtype(code).type: float if code in "efd" else int for code in "bBhHiIlLqQefd"}

_PLAIN = frozenset({int, float, bool})

#: Before version 2, the class of what NumPy computes depends on the values of Python's numbers.
_CLASS_DEPENDS_ON_VALUES = numpy.__version__.startswith(("0.", "1."))
_FLOAT64 = frozenset({numpy.float64, numpy.bool_})
_NARROW = frozenset({numpy.float16, numpy.float32})
#: The most that a whole number of NumPy's is raised to, as Python looks first whether the result fits.
_LARGEST_EXPONENT = 64
#: Kernels have no whole number as great as this one.
_BEYOND = 1 << 63

def arithmetic(graph: Builder, function: Callable[..., Any], *operands: Any) -> Any:
    """Python arithmetic with at least one symbolic operand. Raises `OperatorFailed` where the arithmetic raises: the
    captured code raises it too."""
    template = template_of(function, len(operands))
    if template is None:
        raise Unsupported(f"{name_of(function)} of a number from outside")
    from_tensor = any(type(o) is Symbol and o.from_tensor for o in operands)
    kinds = [o.cls if type(o) is Symbol else type(o) for o in operands]
    if from_tensor and function not in UFUNCS and _PLAIN.issuperset(kinds):
        return _of_tensors(graph, function, operands)
    classes = {cls for o in operands if (cls := _class_of_numpy(o)) is not None}
    of_numpy = function in UFUNCS or bool(classes)
    if not (classes <= _FLOAT64 or from_tensor):
        return _of_numpy_alone(graph, function, template, operands, classes)
    known = rules.OF_NUMPY_AND_TENSORS if from_tensor else rules.OF_NUMPY
    if of_numpy and not (function in known and classes <= _FLOAT64):
        return _of_values(graph, function, operands)
    plain = tuple([float(o) if type(o) is numpy.float64 else o for o in operands]) if of_numpy else operands
    if from_tensor and of_numpy:
        symbol = _of_tensors_and_numpy(graph, function, plain, classes)
        symbol.operation = (function, operands)  # the program sees NumPy's numbers
        return symbol
    if from_tensor:
        return _of_tensors(graph, function, operands)
    size = 1 + sum([o.size for o in operands if type(o) is Symbol])
    if size > LARGEST_EXPRESSION:
        symbols = [o for o in operands if type(o) is Symbol]
        if not all(rules.is_setting(o.expr) and o.hint == o.hint and not graph.outside.varies(o) for o in symbols):
            raise Unsupported("a number that takes a long calculation")
        operands = tuple([graph.outside.concrete(o) for o in operands])
    if function in rules.DIVISIONS and not classes:
        _check_divisor(graph, function, operands)
    kind, hint, expr = _computed(function, template, operands)
    if size > LARGEST_EXPRESSION:
        return hint
    if rules.kind_depends_on_values(function, operands):
        _guard_class(graph, hint, kind, expr)
    if type(hint) is not kind and kind is float:  # NumPy warns where Python raises
        if not math.isfinite(hint):
            raise Unsupported(f"{name_of(function)} of numbers for which NumPy may warn")
        graph.outside.require(NumberExpr("(-1e999 < {} < 1e999)", (expr,)), True)
    elif function not in rules.NEVER_RAISE:  # where it raises for other numbers, the user's handlers come into play
        graph.outside.require(NumberExpr("({} is not None)", (expr,)), True)
    symbol = Symbol(kind, hint, expr, operation=(function, plain))
    symbol.size = size
    return symbol


def _check_divisor(graph: Builder, function: Callable[..., Any], operands: tuple[Any, ...]) -> None:
    """Raise what a division by zero raises, for the program's handlers. A guard holds that it is by zero."""
    values = [o.hint if type(o) is Symbol else o for o in operands]
    if values[1] or not all(type(value) in (bool, int, float) for value in values):
        return
    try:
        function(*values)
    except ZeroDivisionError as error:
        if type(operands[1]) is Symbol:
            graph.outside.require(NumberExpr("({} == 0)", (operands[1].expr,)), True)
        raise_in_program(ZeroDivisionError(*error.args))


def _computed(function: Callable[..., Any], template: str, operands: tuple[Any, ...]) -> tuple[type, Any, NumberExpr]:
    """What numbers give: its class to Python, its value now, and how generated code computes it."""
    try:
        with numpy.errstate(all="ignore"):
            hint = function(*(o.hint if type(o) is Symbol else o for o in operands))
    except Exception as error:
        raise OperatorFailed(f"{type(error).__name__}: {error}") from error
    kind = _KINDS.get(type(hint))
    if kind is None:
        raise Unsupported(f"{name_of(function)} of numbers gives a {type(hint).__name__}")
    return kind, hint, NumberExpr(template, tuple(o.expr if type(o) is Symbol else o for o in operands))


def _guard_class(graph: Builder, hint: Any, kind: type, expr: NumberExpr) -> None:
    name = type(hint).__name__ if type(hint) is kind else f"_np.{type(hint).__name__}"
    graph.outside.require(NumberExpr(f"({{}}.__class__ is {name})", (expr,)), True)


def _of_tensors(graph: Builder, function: Callable[..., Any], operands: tuple[Any, ...]) -> Symbol:
    """Arithmetic with a number that only running the graph tells. Lowering sees to it that Python's exceptions are
    raised, unless it is PyTorch's own code that computes: that knows what it divides by. Python's whole numbers have no
    bounds: those that do not fit are computed in Python."""
    kind = rules.kind_from_tensor(function, operands)
    if any(type(o) is int and not -_BEYOND <= o < _BEYOND for o in operands):
        raise Unsupported(f"{name_of(function)} of a tensor's number and a whole one of more than 64 bits")
    if kind is int:
        for condition in rules.needed_of_whole_numbers(function, operands):
            graph.outside.require(condition, True)
    never_raises = not rules.may_overflow(function, kind) and (function in rules.NEVER_RAISE or graph.program.in_library())
    if not never_raises:
        if graph.mutated and graph.in_try() and graph.contents.has_written_inputs():
            raise Unsupported(FAILING)
        for expr in rules.needed_of_operands(function, operands):
            graph.outside.require(expr, True)
        never_raises = not rules.may_raise(function, operands) and not rules.may_overflow(function, kind)
        if not never_raises and graph.may_break and is_on_gpu(operands):
            # No kernel there can tell, but the program can: it waits for the number anyway.
            never_raises = rules.may_divide_by_zero(function, operands) and graph.program.fails_unless(
                _of_tensors(graph, operator.ne, (operands[1], 0))
            )
            if not never_raises:
                raise Unsupported(f"{name_of(function)} of a number on a GPU, for which Python may raise an exception")
    symbol = Symbol(kind, None, None, operation=(function, operands), from_tensor=True)
    symbol.may_be_int = rules.may_be_int(function, operands, kind)
    graph.node_of(symbol).meta["never_raises"] = never_raises
    return symbol


def _of_tensors_and_numpy(
    graph: Builder, function: Callable[..., Any], operands: tuple[Any, ...], classes: set[type]
) -> Symbol:
    """Arithmetic of a number that only running the graph tells with one of NumPy's: NumPy warns where Python raises, and its
    bools are no whole numbers."""
    divisor = operands[-1] if function is operator.truediv else None
    may_warn = function is operator.pow or (type(divisor) is Symbol and divisor.from_tensor)
    if may_warn and not graph.program.in_library():
        raise Unsupported(f"{name_of(function)} of numbers for which NumPy may warn")
    try:
        symbol = _of_tensors(graph, function, operands)
    except OperatorFailed as error:
        raise Unsupported(f"{name_of(function)} of numbers for which NumPy may warn") from error
    if symbol.kind is int and numpy.bool_ in classes and function is not int:
        raise Unsupported(f"{name_of(function)} of a bool of NumPy's")
    if symbol.kind is bool and function in rules.NUMBER_COMPARISONS:
        symbol.cls = numpy.bool_
    elif symbol.kind is float and function in rules.FLOAT_ARITHMETIC:
        symbol.cls = numpy.float64
    return symbol


def _of_numpy_alone(
    graph: Builder, function: Callable[..., Any], template: str, operands: tuple[Any, ...],
    classes: set[type],
) -> Any:  # fmt: skip
    """Arithmetic with numbers of NumPy's that are not like Python's: float32 rounds, and int64 has bounds. NumPy computes
    it before the graph runs, so that the result is an input. Guards hold that NumPy warns of nothing."""
    size = 1 + sum([o.size for o in operands if type(o) is Symbol])
    if function not in rules.OF_ALL_NUMPY or numpy.bool_ in classes or size > LARGEST_EXPRESSION:
        return _of_values(graph, function, operands)
    values = [o.hint if type(o) is Symbol else o for o in operands]
    kind, hint, expr = _computed(function, template, operands)
    may_warn = f"{name_of(function)} of numbers for which NumPy may warn"
    for cls in classes & _NARROW:  # to which Python's numbers are converted
        largest = float(numpy.finfo(cls).max)
        for operand, value in zip(operands, values, strict=True):
            if type(value) not in (int, float):
                continue
            if not -largest <= value <= largest:
                raise Unsupported(may_warn)
            if type(operand) is Symbol:
                graph.outside.require(NumberExpr("({1} <= {0} <= {2})", (operand.expr, -largest, largest)), True)
    if kind is int and type(hint) is not int and function not in (max, min):
        exponent = operands[1] if function is operator.pow else 0
        if function in UFUNCS or type(exponent) is not int or not 0 <= exponent <= _LARGEST_EXPONENT:
            return _of_values(graph, function, operands)
        limits = numpy.iinfo(type(hint))
        try:
            fits = limits.min <= function(*[int(v) for v in values]) <= limits.max
        except ZeroDivisionError:
            fits = False
        if not fits:
            raise Unsupported(may_warn)
        exact = NumberExpr(template, tuple([_exact(o) for o in operands]))
        condition = NumberExpr("({1} <= {0} <= {2} and {3} is not None)", (exact, int(limits.min), int(limits.max), expr))
        graph.outside.require(condition, True)
    elif kind is float and type(hint) is not float:
        if not math.isfinite(hint):
            raise Unsupported(may_warn)
        graph.outside.require(NumberExpr("(-1e999 < {} < 1e999)", (expr,)), True)
    elif function not in rules.NEVER_RAISE:
        graph.outside.require(NumberExpr("({} is not None)", (expr,)), True)
    if _CLASS_DEPENDS_ON_VALUES or rules.kind_depends_on_values(function, operands):
        _guard_class(graph, hint, kind, expr)
    symbol = Symbol(kind, hint, expr)
    symbol.size = size
    return symbol


def _exact(operand: Any) -> Any:
    """A whole number of NumPy's as one of Python's, which has no bounds."""
    if type(operand) is Symbol:
        return operand.expr if operand.cls is operand.kind else NumberExpr("int({})", (operand.expr,))
    return int(operand)


def _of_values(graph: Builder, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
    """The result for numbers that guards hold."""
    values = [graph.outside.concrete(operand) for operand in operands]
    try:
        with numpy.errstate(over="raise", divide="raise", invalid="raise"):
            return function(*values)
    except FloatingPointError as error:
        raise Unsupported(f"{name_of(function)} of numbers for which NumPy may warn") from error
    except (ArithmeticError, TypeError, ValueError) as error:
        raise OperatorFailed(f"{type(error).__name__}: {error}") from error


def _class_of_numpy(value: Any) -> type | None:
    """The class of a number of NumPy's, None for other values."""
    if type(value) is Symbol:
        return value.cls if value.cls is not value.kind else None
    return type(value) if isinstance(value, numpy.generic) else None


def hold_numbers(graph: Graph, symbols: Mapping[Node, Symbol], concrete: Callable[[Symbol], Any]) -> None:
    """Put values, which `concrete` guards, in place of numbers that a trace for gradients would refuse, such as the indices
    in `x[[0, 2]]`. What comes out of a tensor or keeps changing stays: that graph runs operator by operator."""
    for node in graph.nodes:
        if node.op not in ("call_function", "call_method") or isinstance(node.meta["val"], NumberMeta):
            continue
        differentiated = any(getattr(operand.meta["val"], "requires_grad", False) for operand in node.all_input_nodes)
        held = {}
        for number in numbers_that_matter(node, differentiated):
            symbol = symbols.get(number)
            if symbol is not None and not symbol.from_tensor:
                with contextlib.suppress(Unsupported):
                    held[number] = concrete(symbol)
        if held:
            node.args, node.kwargs = map_arg((node.args, node.kwargs), lambda n, held=held: held.get(n, n))  # type: ignore[misc]


def arguments_of_power(
    graph: Builder, number: Symbol, condition: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a power that needs gradients, with a guard: the gradient has other formulas for other numbers."""
    if number.hint > 0 or (number.hint != 0 and "!=" in condition):
        graph.outside.require(NumberExpr(condition, (number.expr,)), True)
        return args, kwargs
    value = graph.outside.concrete(number)
    args = tuple([value if a is number else a for a in args])
    return args, {name: value if a is number else a for name, a in kwargs.items()}
