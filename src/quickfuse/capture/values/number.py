"""Numbers that compiled code receives or computes, scalars of classes of the user's and of NumPy's, and NumPy's arrays:
those that the captured code made of constants, and those from outside."""

from __future__ import annotations

import operator
from typing import Any, ClassVar

import numpy as np
import torch

from ...errors import Unsupported
from ...ir.guard import NumberExpr
from ...ir.segment import Call, Computed, Existing, Recipe
from ...ir.source import Source
from ..branches.assertions import UNUSUAL, holds, is_unknown
from ..effects import RecipeBook
from ..inference.mutation import IN_PLACE_OF, name_of
from ..interpreter import Interpreter
from ..library.late_values import late_arithmetic
from ..library.text import formed_by, joined, text_of
from ..objects import binary_operators, either
from ..objects.arrays import note_read
from ..objects.binary_operators import BUILTIN_CONTAINERS, UNLIKE_NUMBERS, is_a_type
from ..objects.changing_parts import index_expression
from ..objects.class_attributes import python_method
from ..objects.keys import as_index, check_conversions, is_of_own_class, plain_key
from ..objects.numpy_functions import METHODS, OPERATORS, computed, picked, rows, rows_of
from ..pytorch.operators import leaves_to_tensor
from ..revival import method_of
from ..symbolic import real_of, type_of
from ..symbolic.graph_values import Either, LateNumber, Symbol, TensorProxy
from ..symbolic.made import HeldArray, NativeHandler
from ..symbolic.outside import ForeignArray, ForeignObject, ForeignScalar, is_constant, is_numpy, numpy_class
from ..symbolic.raising import SuspendedInside, raise_in_program
from .kind import Kind, Then
from .object import Methods
from .outside import ForeignKind, OutsideKind


class NumberKind(Kind):
    """A `Symbol`: control flow that looks at it is a guard on the outcome."""

    asks_class = False
    rank = 3

    def attribute(self, i: Interpreter, base: Symbol, name: str, then: Then) -> None:
        if name == "item" and base.cls is not base.kind:
            then(NativeHandler(lambda i: i.graph.number(base.kind, base)))
        elif name == "__format__":
            then(NativeHandler(lambda i, spec: text_of(i, base, "format", i.outside.concrete(spec))))
        elif name in ("is_integer", "bit_length", "real", "__class__"):
            then(i.attribute_now(i.outside.concrete(base), name))
        else:
            super().attribute(i, base, name, then)

    def iterate(self, i: Interpreter, value: Symbol) -> Any:
        raise_in_program(TypeError(f"'{value.kind.__name__}' object is not iterable"))

    def truth(self, i: Interpreter, value: Symbol) -> bool:
        return i.truth_in_tensor(value) if value.from_tensor else i.outside.require_truth(value.expr, value.hint)

    def unary(self, i: Interpreter, function: Any, value: Symbol, then: Then) -> None:
        if function is operator.invert and value.kind is value.cls is int:
            then(i.graph.number(operator.sub, i.graph.number(operator.neg, value), 1))
        else:
            then(i.graph.number(function, value))

    def binary(self, i: Interpreter, function: Any, left: Any, right: Any, then: Then) -> None:
        if _has_operators(type(left)) or _has_operators(type(right)):
            binary_operators.object_operator(i, function, left, right, then)
        else:
            then(_number_operator(i, function, left, right))

    def key(self, i: Interpreter, value: Symbol) -> Any:
        return plain_key(i, value)

    def rebuild(self, book: RecipeBook, value: Symbol) -> Recipe:
        """By its path, by arithmetic on paths, or, if it comes out of a tensor, by `item()` on an output."""
        if not value.from_tensor:
            return Existing(value.expr) if isinstance(value.expr, Source) else Computed(value.expr)  # type: ignore[arg-type]
        graph = book.i.graph
        if graph.mutated and not graph.contents.still_holds(value):  # the tensor may hold another number by now
            return _of_class(value, book.output(value))
        if value.tensor is not None:
            return _of_class(value, Call(torch.Tensor.item, [book.recipe(book.without_gradient(value.tensor))]))
        assert value.operation is not None
        function, operands = value.operation
        return Call(function, [book.recipe(operand) for operand in operands])


def _of_class(number: Symbol, plain: Recipe) -> Recipe:
    """What makes a number out of a tensor that the graph gives as one of Python's: one of NumPy's, if it is that."""
    return plain if number.cls is number.kind else Call(number.cls, [plain])


class LateNumberKind(Kind):
    """A `LateNumber`: arithmetic that never fails gives another one, and what looks at it ends the graph."""

    asks_class = False
    rank = 7

    def attribute(self, i: Interpreter, base: LateNumber, name: str, then: Then) -> None:
        if name == "item" and base.cls is not float:
            then(NativeHandler(lambda i: LateNumber(float, (base,))))
        elif name == "__format__":
            then(NativeHandler(lambda i, spec: text_of(i, base, "format", i.outside.concrete(spec))))
        else:
            super().attribute(i, base, name, then)

    def unary(self, i: Interpreter, function: Any, value: LateNumber, then: Then) -> None:
        if function is operator.invert:
            super().unary(i, function, value, then)
        then(LateNumber(function, (value,), value.cls))

    def binary(self, i: Interpreter, function: Any, left: Any, right: Any, then: Then) -> None:
        plain = IN_PLACE_OF.get(function, function)
        made: Any = late_arithmetic(i, plain, left, right)
        if made is None and type(left) is str and plain is operator.mod:
            made = formed_by(i, left, right)
        if made is None:
            super().binary(i, function, left, right, then)
        then(made)

    def rebuild(self, book: RecipeBook, value: LateNumber) -> Recipe:
        return Call(value.function, [book.recipe(argument) for argument in value.args])


class EitherKind(Kind):
    """An `Either`: arithmetic is done with both, and what else is done with it ends the graph in front of what made it."""

    asks_class = False
    rank = 9

    def _refuse(self, i: Interpreter, value: Either, *operands: Any) -> Any:
        raise value.left()

    attribute = item = set_item = iterate = length = truth = key = _refuse  # type: ignore[assignment]

    def unary(self, i: Interpreter, function: Any, value: Either, then: Then) -> None:
        then(either.unary(i, function, value))

    def binary(self, i: Interpreter, function: Any, left: Any, right: Any, then: Then) -> None:
        then(either.binary(i, function, left, right))

    def rebuild(self, book: RecipeBook, value: Either) -> Recipe:
        raise value.left()


class ScalarKind(OutsideKind):
    """A `ForeignScalar`: what its class leaves to the builtin one is done with the plain value."""

    rank = 7
    methods: ClassVar[Methods] = {**OutsideKind.methods, "item": lambda i, value: i.outside.number(value)}  # of NumPy's

    def item(self, i: Interpreter, base: ForeignScalar, key: Any, then: Then) -> None:
        then(i.native(operator.getitem, i.outside.concrete(base), as_index(i, key)))

    def contains(self, i: Interpreter, container: ForeignScalar, element: Any) -> bool:
        return bool(i.native(operator.contains, i.outside.concrete(container), i.outside.concrete(element)))

    def iterate(self, i: Interpreter, value: ForeignScalar) -> Any:
        return i.iterator(i.outside.concrete(value))

    def length(self, i: Interpreter, value: ForeignScalar) -> int | None:
        return len(i.outside.concrete(value)) if value.cls in (str, bytes) else None

    def native_truth(self, i: Interpreter, value: ForeignScalar) -> bool:
        return i.truth(i.outside.number(value))

    def unary(self, i: Interpreter, function: Any, value: ForeignScalar, then: Then) -> None:
        number = i.outside.number_of_numpy(value)
        number = i.outside.concrete(value) if number is value and is_numpy(value.real) else number
        if number is value:
            super().unary(i, function, value, then)
        else:
            i.kind_of(number).unary(i, function, number, then)

    def binary(self, i: Interpreter, function: Any, left: Any, right: Any, then: Then) -> None:
        if IN_PLACE_OF.get(function, function) is operator.add and type_of(left) is type_of(right) is str:
            then(joined(i, [left, right]))
        elif any(map(is_of_own_class, (left, right))) and any(is_numpy(real_of(v)) for v in (left, right)):
            then(_beside_numpy(i, function, left, right))
        else:
            binary_operators.binary_operator(i, function, *_plain_operands(i, function, left, right), then)

    def key(self, i: Interpreter, value: ForeignScalar) -> Any:
        if any(python_method(i, value, name) is not None for name in ("__hash__", "__eq__")):
            raise Unsupported(f"hashing a {type_of(value).__name__}")
        return i.outside.concrete(value)


#: Where the classes of stand-ins are.
_STAND_INS = Symbol.__module__.rpartition(".")[0]


_WITHOUT_OPERATORS = frozenset({Symbol, int, float, bool})


def _has_operators(kind: type) -> bool:
    """Whether a class is the user's, or Python, so that it may say what operators do."""
    if kind in _WITHOUT_OPERATORS:
        return False
    if issubclass(kind, ForeignObject):
        return True
    is_python = bool(kind.__flags__ & (1 << 9)) and not kind.__module__.startswith(_STAND_INS)
    return is_python and not issubclass(kind, (int, float, complex, str, torch.Tensor))


def _number_operator(i: Interpreter, function: Any, left: Any, right: Any) -> Any:
    function = IN_PLACE_OF.get(function, function)
    for operand in (left, right):
        if type(operand) not in (Symbol, int, float, bool) and numpy_class(operand) is None:
            if function in (operator.eq, operator.ne) and _is_unlike(operand, right if operand is left else left):
                return function is operator.ne  # whatever the number is
            left, right = i.outside.concrete(left), i.outside.concrete(right)
            if is_constant(left) and is_constant(right):
                return i.native(function, left, right)
            if function in (operator.eq, operator.ne) and (is_a_type(operand) or isinstance(operand, UNLIKE_NUMBERS)):
                return function is operator.ne
            if isinstance(operand, BUILTIN_CONTAINERS):
                return i.mark_created(i.native(function, left, right))
            raise Unsupported(f"{name_of(function)} of a number and a {type(operand).__name__}")
    if function is operator.pow and type(left) is Symbol and left.from_tensor and not i.in_library():
        _expect_root(i, left, right)
    return i.graph.number(function, left, right)


def _is_unlike(operand: Any, number: Any) -> bool:
    """Whether something is no number, to one of Python's: one of NumPy's may warn where it is compared with a text."""
    plain = type(number) is Symbol and number.cls is number.kind
    return plain and (operand is None or type(operand) is str)


def _expect_root(i: Interpreter, base: Symbol, exponent: Any) -> None:
    """Powers of a tensor's number are expected to be real numbers: of another one the program goes on in Python. Raises
    `Unsupported` where that is not possible."""
    if (exponent.kind is not float) if type(exponent) is Symbol else float(exponent).is_integer():
        return
    allowed = operator.ge if type(exponent) is float and exponent > 0 else operator.gt
    real = i.graph.number(allowed, base, 0)
    if UNUSUAL in i.outside.volatile or not is_unknown(i, real) or not holds(i, real, True):
        raise Unsupported("a power of a tensor's number, which may be complex")
    i.graph.expects = True


def _beside_numpy(i: Interpreter, function: Any, left: Any, right: Any) -> Any:
    """An operator of a number of a class of the user's and one of NumPy's, to which it is no plain number."""
    for value in (left, right):
        check_conversions(i, value)
        if not is_constant(i.outside.concrete(value)):
            raise Unsupported(f"an operator of a {type_of(left).__name__} and a {type_of(right).__name__}")
    return i.native(function, real_of(left), real_of(right))


_ARRAYS = (HeldArray, ForeignArray)


def _plain_operands(i: Interpreter, function: Any, left: Any, right: Any) -> tuple[Any, Any]:
    """Scalars of classes of the user's as the numbers and texts that they are; NumPy's as they are, beside numbers."""
    tensor = type(left) is TensorProxy or type(right) is TensorProxy
    if tensor and type(left) is ForeignScalar and not leaves_to_tensor(function, left.real, right):
        raise Unsupported(f"an operator of a {type(left.real).__name__} and a tensor")
    numpy = not tensor and any(type(v) is ForeignScalar and is_numpy(v.real) for v in (left, right))
    if type(left) in _ARRAYS or type(right) in _ARRAYS:
        check_conversions(i, left)
        check_conversions(i, right)
    if numpy and all(_is_number(v) for v in (left, right)):
        return i.outside.number_of_numpy(left), i.outside.number_of_numpy(right)
    plain = i.outside.concrete if numpy else i.outside.number
    return plain(left), plain(right)


def _is_number(value: Any) -> bool:
    """Whether something is a number of Python's or NumPy's, and a real one."""
    return type_of(value) in (int, float, bool) or numpy_class(real_of(value)) is not None or type(value) is Symbol


class NumpyKind(Kind):
    """What arrays of NumPy's have in common: methods and operators that change nothing."""

    def attribute(self, i: Interpreter, base: HeldArray | ForeignArray, name: str, then: Then) -> None:
        if name in METHODS:
            method = getattr(np.ndarray, name)
            made_by = (method_of, base, {"name": name})
            then(NativeHandler(lambda i, *args, **kwargs: computed(i, method, (base, *args), kwargs), made_by))
        elif name == "T":
            then(computed(i, np.transpose, (base,), {}))
        else:
            super().attribute(i, base, name, then)

    def binary(self, i: Interpreter, function: Any, left: Any, right: Any, then: Then) -> None:
        if function not in OPERATORS or not all(type(v) in _ARRAYS or _is_number(v) for v in (left, right)):
            raise Unsupported(f"{function.__name__} of an array of NumPy's")
        then(computed(i, function, (left, right), {}))

    def unary(self, i: Interpreter, function: Any, value: HeldArray | ForeignArray, then: Then) -> None:
        then(computed(i, function, (value,), {}))


class ArrayKind(NumpyKind):
    """What is read of such an array is a constant. What would change it, or see its memory, ends the graph."""

    asks_class = False
    rank = 4  # of two of the same rank, the left one answers: neither knows the other

    def attribute(self, i: Interpreter, base: HeldArray, name: str, then: Then) -> None:
        if name in ("shape", "ndim", "size"):
            then(getattr(base.array, name))
        else:
            super().attribute(i, base, name, then)

    def iterate(self, i: Interpreter, value: HeldArray) -> Any:
        return iter(rows_of(value))

    def length(self, i: Interpreter, value: HeldArray) -> int | None:
        return len(value.array) if value.array.ndim else None

    def item(self, i: Interpreter, base: HeldArray, key: Any, then: Then) -> None:
        then(computed(i, operator.getitem, (base, key), {}))

    def rebuild(self, book: Any, value: HeldArray) -> Any:
        raise SuspendedInside(value.made_at, "an array of NumPy's that is made inside and outlives the graph")


class ForeignArrayKind(NumpyKind, ForeignKind):
    """An array of NumPy's from outside: its items are numbers from outside, and guards hold nothing of what is in it."""

    rank = 8

    def item(self, i: Interpreter, base: ForeignArray, key: Any, then: Then) -> None:
        if type(key) in (ForeignArray, HeldArray):
            then(picked(i, base, key))
            return
        index, expr = index_expression(i, key)
        value = i.native(np.ndarray.__getitem__, base.real, index)
        if type(value) is not np.ndarray and base.real.dtype.kind not in "fiub":
            raise Unsupported("an item of an array of other things than numbers")
        if type(value) is not np.ndarray:
            note_read(i, base)
        then(i.outside.wrap(value, base.source.item(i.outside.key_of_expr(expr) if isinstance(expr, NumberExpr) else expr)))

    def length(self, i: Interpreter, value: ForeignArray) -> int | None:
        shape = value.real.shape
        i.outside.guard("equal", value.source.attr("shape"), shape)
        return shape[0] if shape else None

    def attribute(self, i: Interpreter, base: ForeignArray, name: str, then: Then) -> None:
        if name in ("shape", "ndim", "size"):
            then(i.outside.wrap(getattr(base.real, name), base.source.attr(name)))
        else:
            super().attribute(i, base, name, then)

    def iterate(self, i: Interpreter, value: ForeignArray) -> Any:
        return iter(rows(i, value))
