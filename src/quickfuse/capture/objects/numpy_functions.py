"""Functions of NumPy's that captured code calls: of numbers, and of arrays that it made of constants, which run at once."""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable
from typing import Any

import numpy

from ...errors import Unsupported
from ...ir.warning_filters import raised, silenced
from ..interpreter import Args, Interpreter, Kwargs
from ..symbolic import HeldArray, Symbol, is_constant, type_of
from ..symbolic.made import ArrayMemory
from .containers import iterate
from .native_functions import Handler, adopt, plain_copy, pure
from .outside_arrays import called_before, is_from_outside

#: The most elements of an array that captured code makes and holds, and the types of its elements.
_LARGEST_ARRAY = 1 << 20
_TYPES = frozenset(map(numpy.dtype, "bool int8 int16 int32 int64 uint8 float16 float32 float64".split()))


def computed(i: Interpreter, function: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
    """What a function or method of NumPy's gives for constants and arrays that captured code made: arrays, or constants."""
    if is_from_outside(i, args, kwargs):
        return called_before(i, function, args, kwargs)
    given: list[HeldArray] = []
    plain_args = [_operand(i, value, given) for value in args]
    plain_kwargs = {name: _operand(i, value, given) for name, value in kwargs.items()}
    made = i.native(_without_warnings(function), *plain_args, **plain_kwargs)
    made_at = min((array.made_at for array in given), default=i.performed)
    return adopt(i, _held(function, made, given, made_at))


def _operand(i: Interpreter, value: Any, given: list[HeldArray]) -> Any:
    """An argument, with the arrays in it, of which a note is taken."""
    if type(value) is HeldArray:
        if value.memory.shared:
            raise Unsupported("an array of NumPy's whose memory a tensor has, too")
        given.append(value)
        return value.array
    if type(value) is Symbol and not value.from_tensor and i.outside.has_other_values(value):
        raise Unsupported("an array of NumPy's with a number that changes")
    if type_of(value) is collections.deque:  # which is to NumPy what a list is
        value = [*iterate(i, value)]
    if type(value) in (list, tuple):
        return type(value)([_operand(i, element, given) for element in value])
    if type(value) is slice:
        return slice(*[_operand(i, bound, given) for bound in (value.start, value.stop, value.step)])
    if isinstance(value, type) and (issubclass(value, numpy.generic) or value in (int, float, bool)):
        return value
    return value if isinstance(value, (numpy.dtype, numpy.generic)) else plain_copy(i, value)


def _without_warnings(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which ends the graph where NumPy warns, or where it would write to an array that it is given."""

    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            with numpy.errstate(divide="raise", over="raise", invalid="raise"), raised():
                return function(*args, **kwargs)
        except (FloatingPointError, Warning):
            raise Unsupported(f"numpy.{function.__name__} of numbers for which it may warn") from None
        except ValueError as error:
            if "read-only" in str(error):
                raise Unsupported(f"numpy.{function.__name__} that writes to an array") from None
            raise

    return run


def _held(function: Callable[..., Any], made: Any, given: list[HeldArray], made_at: int) -> Any:
    """What was computed, as captured code has it. A view has the memory of the array that it is a view of."""
    if type(made) in (list, tuple):
        return type(made)([_held(function, element, given, made_at) for element in made])
    if type(made) is not numpy.ndarray:
        if not is_constant(made):
            raise Unsupported(f"numpy.{function.__name__} that gives a {type(made).__name__}")
        return made
    if made.dtype not in _TYPES or made.size > _LARGEST_ARRAY:
        raise Unsupported(f"numpy.{function.__name__} of other things than a few numbers")
    same = next((array for array in given if array.array is made), None)
    if same is not None:
        return same
    made.flags.writeable = False
    memory = next((array.memory for array in given if numpy.may_share_memory(array.array, made)), None)
    return HeldArray(made, made_at, memory or ArrayMemory())


def rows_of(value: HeldArray) -> list[Any]:
    """The elements of an array that is iterated over: numbers, or views."""
    if value.memory.shared:
        raise Unsupported("iterating over an array of NumPy's whose memory a tensor has, too")
    return [_held(iter, row, [value], value.made_at) for row in value.array]


def _computes(function: Callable[..., Any]) -> Handler:
    return lambda i, *args, **kwargs: computed(i, function, args, kwargs)


def _of_numbers(name: str) -> Handler:
    """A function of NumPy's that gives a scalar for numbers, or a list or tuple of them, and does not warn of it."""
    function = getattr(numpy, name)
    compute = pure(function)

    def handler(i: Interpreter, *args: Any, **kwargs: Any) -> Any:
        if any(type(a) is HeldArray for a in args) or is_from_outside(i, args, kwargs):
            return computed(i, function, args, kwargs)
        if kwargs:
            return computed(i, function, args, kwargs)
        args = tuple([*iterate(i, a)] if type_of(a) is collections.deque else a for a in args)
        numbers = [i.outside.number_of_numpy(a) for a in args]
        kinds = {type_of(a) for a in numbers}
        known = all(kind in (float, int) or issubclass(kind, (numpy.floating, numpy.integer)) for kind in kinds)
        changing = any(type(a) is Symbol for a in numbers) and known
        if changing and (name in _OF_FLOATS or kinds != {int}):
            return i.graph.number(function, *numbers)
        with numpy.errstate(all="ignore"), silenced():  # such as of a list without elements: the program warns itself
            made = compute(i, *args)
        if not is_constant(made):
            raise Unsupported(f"numpy.{name} that gives a {type(made).__name__}")
        if not _is_finite(made):
            raise Unsupported(f"numpy.{name} of numbers for which it may warn")
        return made

    return handler


def _is_finite(made: Any) -> bool:
    """Whether something is numbers of which NumPy has not warned when it made them."""
    numbers = numpy.asarray(made)
    return numbers.dtype.kind in "biufc" and bool(numpy.isfinite(numbers).all())


def _scalar(cls: Any) -> Handler:
    """`numpy.float64(1.5)`: a constant."""
    compute = pure(cls)

    def handler(i: Interpreter, value: Any) -> Any:
        if type_of(value) not in (int, float, bool):
            raise Unsupported(f"making a {cls.__name__} of a {type_of(value).__name__}")
        with numpy.errstate(all="ignore"):
            return compute(i, value)

    return handler


#: Functions of NumPy's that shapes and factors are computed with.
_NUMPY = ("sqrt exp log log2 log10 power floor ceil abs sin cos tan tanh minimum maximum add subtract multiply divide prod "
          "sum mean max min cumprod isfinite isinf isnan sign mod expm1 log1p arctan square clip deg2rad rad2deg cosh sinh "
          "exp2 cbrt hypot").split()

#: Those that give a float for whole numbers, too.
_OF_FLOATS = frozenset("sqrt exp log log2 log10 sin cos tan tanh divide expm1 log1p arctan deg2rad rad2deg cosh sinh exp2 "
                       "cbrt hypot".split())  # fmt: skip

#: Functions that make arrays of numbers or of other arrays, and those that say something of one. (`numpy.asarray` and what
#: else may give the array itself that it is given does so here.)
_OF_ARRAYS = (
    "array eye identity linspace logspace geomspace arange zeros ones full hanning hamming blackman zeros_like ones_like "
    "full_like asarray ascontiguousarray tri tril triu outer kron diag append concatenate stack vstack hstack column_stack "
    "delete insert repeat tile roll flip transpose swapaxes moveaxis expand_dims squeeze reshape ravel atleast_1d "
    "atleast_2d meshgrid split array_split cumsum diff sort argsort argmax argmin argwhere nonzero flatnonzero unique where "
    "searchsorted digitize bincount round rint dot matmul cross trace diagonal all any count_nonzero isclose allclose "
    "array_equal logical_and logical_or logical_not equal not_equal less less_equal greater greater_equal floor_divide "
    "arctan2 arcsin arccos std var median percentile quantile average ptp"
).split()

#: Types of NumPy's scalars.
_SCALARS = "float64 float32 int64 int32".split()

#: Methods that arrays have, none of which changes one.
METHODS = frozenset(
    "astype copy reshape flatten ravel transpose squeeze swapaxes sum mean max min prod std var all any argsort argmax "
    "argmin cumsum cumprod round clip repeat dot nonzero item diagonal trace tolist".split()
)

#: Python's operators on arrays.
OPERATORS = frozenset({
    operator.add, operator.sub, operator.mul, operator.truediv, operator.pow, operator.floordiv, operator.mod,
    operator.matmul, operator.and_, operator.or_, operator.xor, operator.eq, operator.ne, operator.lt, operator.le,
    operator.gt, operator.ge,
})  # fmt: skip

HANDLERS: dict[Any, Handler] = {
    **{getattr(numpy, name): _computes(getattr(numpy, name)) for name in _OF_ARRAYS},
    **{getattr(numpy.linalg, name): _computes(getattr(numpy.linalg, name)) for name in ("norm", "inv", "det", "solve")},
    **{getattr(numpy, name): _of_numbers(name) for name in _NUMPY},
    **{getattr(numpy, name): _scalar(getattr(numpy, name)) for name in _SCALARS},
}
