"""Functions of NumPy's that captured code calls. On numbers, and arrays that it made of constants, they run at once.

On arrays and lists of numbers from outside, generated code calls them before the graph runs. What they give is from outside
as well, with the expression of the call as its path: a number is a symbol, an array may be read, become a tensor or be
returned.
"""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable
from typing import Any

import numpy

from ...errors import Unsupported
from ...ir.guard import NumberExpr
from ...ir.reading import HEAP_TYPE, array_of
from ...ir.source import Source
from ...ir.warning_filters import raised
from ..interpreter import Args, Interpreter, Kwargs
from ..symbolic import ForeignArray, ForeignScalar, HeldArray, ShadowContainer, Symbol, is_constant, is_numpy, type_of
from ..symbolic.made import ArrayMemory
from .arrays import note_read
from .containers import iterate
from .native_functions import Handler, adopt, plain_copy, pure

# of what is from outside ----------------------------------------------------------------------------------------------

#: The types of what generated code writes down as it is.
_WRITTEN = (int, float, bool, str, type(None))
#: What NumPy makes an array of one axis of, where there are numbers in it.
_SEQUENCES = (list, collections.deque)
#: Elements of arrays: whole numbers, floats and bools.
_NUMBERS = "fiub"


def is_from_outside(i: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """Whether there is an array from outside among the arguments, or a list or deque with numbers that may change."""
    return any(type(a) is ForeignArray or _changes(i, a) for a in (*args, *kwargs.values()))


def _changes(i: Interpreter, value: Any) -> bool:
    elements = _elements(value)
    numbers = (float, int, bool, Symbol)
    if not elements or not all(type(e) in numbers for e in elements) or any(_is_late(e) for e in elements):
        return False
    return any(type(e) is float or (type(e) is Symbol and e.kind is float) for e in elements) and (
        type(value) is ShadowContainer or any(type(e) is Symbol for e in elements)
    )


def _is_late(element: Any) -> bool:
    return type(element) is Symbol and (element.from_tensor or element.cls is not element.kind)


def _elements(value: Any) -> Any:
    """What is in a list or tuple, without a look that needs a guard."""
    if type(value) is ShadowContainer:
        plain = value.items is None and type(value.real) in _SEQUENCES
        return [*value.real, *value.added] if plain else value.items if type(value.items) in _SEQUENCES else ()
    return value if type(value) in (*_SEQUENCES, tuple) else ()


def called_before(i: Interpreter, function: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
    """What a function without side effects gives, in each call before the graph runs. Where NumPy warns, the program does it
    itself."""
    if function is numpy.cross:  # which is deprecated for some shapes
        raise Unsupported("numpy.cross of arrays from outside")
    reals, exprs = zip(*[_operand_before(i, a) for a in args], strict=True)
    named = {name: _operand_before(i, value) for name, value in kwargs.items()}
    if "ddof" in kwargs:  # of so many elements or fewer NumPy warns
        for array in (a for a in args if type(a) is ForeignArray):
            i.outside.guard("equal", array.source.attr("shape"), array.real.shape)
    given = {name: real for name, (real, _) in named.items()}
    try:  # first on what cannot be written to
        array_of(function, *map(_read_only, reals), **{name: _read_only(real) for name, real in given.items()})
        found = array_of(function, *reals, **given)
    except FloatingPointError:
        raise Unsupported(f"numpy.{function.__name__} of numbers for which it may warn") from None
    except Exception as error:
        raise Unsupported(f"numpy.{function.__name__} that raises {type(error).__name__}") from None
    if type(found) is numpy.ndarray and found.dtype.kind not in _NUMBERS:
        raise Unsupported(f"an array of {found.dtype} from numpy.{function.__name__}")
    if not isinstance(found, (numpy.ndarray, numpy.number, numpy.bool_, float, int, list)):
        raise Unsupported(f"numpy.{function.__name__} that gives a {type(found).__name__}")
    holes = ", ".join(["{}"] * len(exprs) + [f"{name}={{}}" for name in named])
    operands = (*exprs, *(expr for _, expr in named.values()))
    expr = i.outside.key_of_expr(NumberExpr(f"_array_of({{}}, {holes})", (_as_constant(i, function), *operands)))
    base = next(expr.sources())
    return i.outside.wrap(found, base.computed(expr))


def _operand_before(i: Interpreter, value: Any) -> tuple[Any, Any]:
    """An argument in the captured call, and as generated code writes it."""
    kind = type(value)
    if kind is ForeignArray:
        if type(value.real) is not numpy.ndarray or value.real.dtype.kind not in _NUMBERS:
            raise Unsupported("arithmetic of an array of other things than numbers")
        note_read(i, value)
        i.outside.guard("equal", value.source.attr("dtype"), value.real.dtype)
        return value.real, value.source
    if kind is HeldArray:
        if value.memory.shared:
            raise Unsupported("an array of NumPy's whose memory a tensor has, too")
        return value.array, _as_constant(i, value.array)
    if kind is Symbol and not value.from_tensor:
        return value.hint, value.expr
    if kind is ForeignScalar and is_numpy(value.real):
        return value.real, value.source
    if kind is ShadowContainer and value.items is None:
        parts = [_operand_before(i, element) for element in value.added]
        i.outside.guard("type", value.source, type(value.real))
        holes = ", ".join(["*_only_numbers({})", *["{}"] * len(parts)])
        return [*value.real, *(real for real, _ in parts)], NumberExpr(f"[{holes}]", (value.source, *(e for _, e in parts)))
    if kind in (*_SEQUENCES, tuple) or kind is ShadowContainer:
        parts = [_operand_before(i, element) for element in _elements(value)]
        holes = ", ".join(["{}"] * len(parts))
        made = NumberExpr(f"({holes},)" if kind is tuple and parts else f"[{holes}]", tuple(e for _, e in parts))
        return (tuple if kind is tuple and parts else list)(real for real, _ in parts), made
    if kind is slice:
        bounds = [_operand_before(i, bound) for bound in (value.start, value.stop, value.step)]
        return slice(*[real for real, _ in bounds]), NumberExpr("_slice({}, {}, {})", tuple(e for _, e in bounds))
    if kind in _WRITTEN:
        return value, value
    if is_constant(value) or isinstance(value, numpy.dtype) or (isinstance(value, type) and not value.__flags__ & HEAP_TYPE):
        return value, _as_constant(i, value)
    raise Unsupported(f"a function of NumPy's of a {kind.__name__}")


def _read_only(value: Any) -> Any:
    if type(value) is not numpy.ndarray:
        return value
    view = value.view()
    view.flags.writeable = False
    return view


def _as_constant(i: Interpreter, value: Any) -> Source:
    label = getattr(value, "__name__", None) or repr(value)
    return i.outside.roots.constant(label, value)


def rows(i: Interpreter, array: ForeignArray) -> list[Any]:
    """What iterating over an array gives."""
    count = i.kind_of(array).length(i, array)
    if count is None:
        raise Unsupported("iterating over an array of NumPy's without an axis")
    return [i.now(i.item, array, k) for k in range(count)]


def picked(i: Interpreter, array: ForeignArray, key: Any) -> Any:
    """`array[key]` with other arrays as indices."""
    return called_before(i, operator.getitem, (array, key), {})


# of constants ---------------------------------------------------------------------------------------------------------


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
    """A function of NumPy's that gives a number for numbers: where these change, as a number that does."""
    function = getattr(numpy, name)

    def handler(i: Interpreter, *args: Any, **kwargs: Any) -> Any:
        numbers = [i.outside.number_of_numpy(a) for a in args]
        kinds = {type_of(a) for a in numbers}
        known = all(kind in (float, int) or issubclass(kind, (numpy.floating, numpy.integer)) for kind in kinds)
        if any(type(a) is Symbol for a in numbers) and known and not kwargs and (name in _OF_FLOATS or kinds != {int}):
            return i.graph.number(function, *numbers)
        held = [i.outside.concrete(n) if type(n) is Symbol else given for n, given in zip(numbers, args, strict=True)]
        return computed(i, function, tuple(held), kwargs)

    return handler


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
    "arctan2 arcsin arccos std var median percentile quantile average ptp around"
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
