"""Binary operators and comparisons on values of every kind, and identity."""

from __future__ import annotations

import collections
import functools
import operator
import types
from types import FunctionType
from typing import Any

import torch

from ...errors import Unsupported
from ..inference.mutation import IN_PLACE_OF, name_of
from ..interpreter import Interpreter, Then
from ..symbolic import real_of, type_of
from ..symbolic.containers import ShadowContainer, ShadowDict
from ..symbolic.graph_values import TENSOR_TYPES, DynamicTensor, Either, Symbol, TensorProxy
from ..symbolic.kinds import CODE_TYPES, VIEW_TYPES
from ..symbolic.made import ABSENT, BuiltinMethod
from ..symbolic.outside import ForeignScalar, ForeignTensor, FromOutside, is_constant, is_numpy
from ..symbolic.raising import Raised
from . import containers
from .class_attributes import lookup_class, python_method, special_method

_REFLECTED_COMPARISON = {"__lt__": "__gt__", "__le__": "__ge__", "__gt__": "__lt__", "__ge__": "__le__"}
#: Whose operators look at what is in both operands. Those of deques are their class's.
BUILTIN_CONTAINERS = (
    list, tuple, dict, set, frozenset, str, bytes, range, collections.OrderedDict, collections.defaultdict,
    *VIEW_TYPES,
)  # fmt: skip


#: Containers whose kind none of another kind equals, whatever is in them.
_ALIKE: dict[type, type] = {
    **{cls: cls for cls in (list, tuple, str, bytes, range)}, set: set, frozenset: set,
    **dict.fromkeys((dict, collections.OrderedDict, collections.defaultdict), dict),
}  # fmt: skip


def are_unlike(left: Any, right: Any) -> bool:
    """Whether two containers are of kinds that are never equal."""
    kinds = _ALIKE.get(type(left)), _ALIKE.get(type(right))
    return None not in kinds and kinds[0] is not kinds[1]


def binary_operator(i: Interpreter, function: Any, left: Any, right: Any, then: Then) -> None:
    """A binary operator or comparison, given to `then`. What a class of the user's says in Python comes first, then the kind
    of the operand that has the higher rank."""
    if type(left) is Either or type(right) is Either:
        i.kind_of(left if type(left) is Either else right).binary(i, function, left, right, then)
        return
    if _says_in_python(i, function, left, right):
        object_operator(i, function, left, right, then)
        return
    if _refuses_to_repeat(function, left, right):
        raise Unsupported(f"*= of a {type_of(left).__name__} and a {type_of(right).__name__}")
    kind, other = i.kind_of(left), i.kind_of(right)
    formats = type(left) in (str, bytes) and function in _MOD and type(right) in (Symbol, TensorProxy, ForeignScalar)
    try:
        (other if other.rank > kind.rank and not formats else kind).binary(i, function, left, right, then)
    except Raised as raised:
        if _may_say_otherwise(function, left, right, raised.exception):
            names = " and a ".join(type_of(v).__name__ for v in (left, right))
            raise Unsupported(f"{name_of(function)} of a {names}, which raises an exception") from None
        raise


_MOD = (operator.mod, operator.imod)


def _may_say_otherwise(function: Any, left: Any, right: Any, error: BaseException) -> bool:
    """Whether the message of the program's own exception may differ. What a stand-in holds is of the builtin class, which a
    message names, and an operator that works in place may have been asked as the one that does not."""
    if not isinstance(error, TypeError):
        return False
    if function in IN_PLACE_OF and str(error).startswith("unsupported operand type(s)"):
        return True
    return not all(type_of(v) in _NAMED for v in (left, right))


#: Classes whose stand-ins messages name as they do the real ones.
_NAMED = frozenset({list, tuple, dict, set, frozenset, str, bytes, int, float, bool, complex, type(None), *TENSOR_TYPES})


def constant_operator(i: Interpreter, function: Any, left: Any, right: Any, then: Then) -> None:
    """An operator of plain values, or of classes and what annotations are made of. For others, classes answer."""
    if (is_constant(left) and is_constant(right)) or (is_a_type(left) and is_a_type(right)):
        then(i.native(function, left, right))
    else:
        object_operator(i, function, left, right, then)


def _says_in_python(i: Interpreter, function: Any, left: Any, right: Any) -> bool:
    """Whether the class of an operand says in Python what an operator does, where the other one's is not asked first: of
    containers and scalars of the user's, of objects that derive from builtin classes, and of what captured code made beside
    tensors and numbers."""
    beside = type(left) in (TensorProxy, Symbol) or type(right) in (TensorProxy, Symbol)
    from_outside = isinstance(left, FromOutside) or isinstance(right, FromOutside)
    if not from_outside and not (beside and (i.is_created(left) or i.is_created(right))):
        return False
    names = [name for name in _methods_of(function) if name]
    return any(
        python_method(i, v, name) is not None
        for v in (left, right)
        if type(v) not in (TensorProxy, Symbol, ForeignTensor)
        for name in names
    )


@functools.cache
def _methods_of(function: Any) -> tuple[str, str, str]:
    """The names of the methods that an operator asks for: the one that works in place, if there is one, that of the left
    operand, and that of the right one."""
    in_place = f"__{name_of(function).strip('_')}__" if function in IN_PLACE_OF else ""
    name = f"__{name_of(IN_PLACE_OF.get(function, function)).strip('_')}__"
    return in_place, name, _REFLECTED_COMPARISON.get(name, name) if function in COMPARISONS else f"__r{name[2:]}"


#: Plain values that no operator of a class of the user's can come from.
_NUMBERS = (int, float, bool, complex)


def is_a_type(value: Any) -> bool:
    """A class, or what annotations are made of: `list[int]`, `int | None`, None."""
    return value is None or isinstance(value, (type, types.GenericAlias, types.UnionType))


#: What is no number's equal.
UNLIKE_NUMBERS = (*BUILTIN_CONTAINERS, *CODE_TYPES, slice, collections.deque)


COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)


def compare_sequences(i: Interpreter, function: Any, left: Any, right: Any) -> Any:
    """Comparison of two lists or tuples: by the first elements that differ, then by length. It asks no method of theirs."""
    builtin: Any = tuple if isinstance(left, tuple) else list
    length, elements = builtin.__len__, builtin.__iter__
    sizes = length(left), length(right)
    if function in (operator.eq, operator.ne) and sizes[0] != sizes[1]:
        return function is operator.ne
    for first, second in zip(elements(left), elements(right), strict=False):
        same = containers.equal(i, first, second)
        if (length(left), length(right)) != sizes:
            raise Unsupported("a list that a comparison of its elements changes")
        if not same:
            if function in (operator.eq, operator.ne):
                return function is operator.ne
            return i.now(i.binary, function, first, second)
    return function(*sizes)


#: Operators of tensors that give NotImplemented for what is no tensor and no number.
_OF_TENSORS = frozenset("__add__ __sub__ __mul__ __truediv__ __matmul__ __lt__ __le__ __gt__ __ge__".split())


def _is_tensor_without(receiver: Any, method: str, operand: Any) -> bool:
    """Whether a tensor's own operator leaves it to the other operand."""
    if type(receiver) is not TensorProxy or receiver.cls not in TENSOR_TYPES or method not in _OF_TENSORS:
        return False
    kind = type_of(operand)
    return not issubclass(kind, (int, float, complex, torch.Tensor)) and not hasattr(kind, "__torch_function__")


def object_operator(i: Interpreter, function: Any, left: Any, right: Any, then: Then) -> None:
    """Operator methods of Python classes, by the language's rules of precedence."""
    in_place, direct, reflected = _methods_of(function)
    attempts = [(left, direct, right), (right, reflected, left)]
    left_type, right_type = type_of(left), type_of(right)
    compares = function in COMPARISONS
    if right_type is left_type:
        del attempts[1 + compares :]
    elif left_type in right_type.__mro__:  # the right operand is asked first, at least if its class says something else
        own = special_method(i, right, reflected)
        if compares or (own is not ABSENT and own is not special_method(i, left, reflected)):
            attempts.reverse()
    if in_place:
        attempts.insert(0, (left, in_place, right))
    for receiver, method, operand in attempts:
        result = _asked(i, function, receiver, method, operand)
        if result is not NotImplemented:
            then(result)
            return
    if function not in (operator.eq, operator.ne):
        raise Unsupported(f"{name_of(function)} of a {left_type.__name__} and a {right_type.__name__}")
    then(is_same(i, left, right) ^ (function is operator.ne))


def _refuses_to_repeat(function: Any, left: Any, right: Any) -> bool:
    """Whether CPython refuses `left *= right` where `left * right` repeats `right`: it takes `left` for a sequence, as any
    object of a class that Python code made."""
    if function is not operator.imul:
        return False
    cls = type_of(left)
    repeats = hasattr(cls, "__imul__") or issubclass(cls, _SEQUENCES)
    return bool(cls.__flags__ & _MADE_BY_PYTHON) and not repeats and issubclass(type_of(right), _SEQUENCES)


_SEQUENCES = (list, tuple, str, bytes, bytearray, collections.deque)
#: `Py_TPFLAGS_HEAPTYPE`.
_MADE_BY_PYTHON = 1 << 9


def _asked(i: Interpreter, function: Any, receiver: Any, method: str, operand: Any) -> Any:
    """What an operator's method of one operand gives, NotImplemented where its class leaves it to the other one."""
    if type_of(receiver) in _NUMBERS or _is_tensor_without(receiver, method, operand):  # which know nothing of objects
        return NotImplemented
    found = special_method(i, receiver, method)
    if isinstance(found, FunctionType):
        return i.call_now(found, (receiver, operand))
    if method == "__ne__" and found is object.__ne__:
        return unequal_objects(i, receiver, operand)
    if found is None:
        raise Unsupported(f"{method} of a {type_of(receiver).__name__}, which is None")
    if found is ABSENT or found is lookup_class(object, method)[1]:
        return NotImplemented
    if type(receiver) in (ShadowDict, ShadowContainer):
        return i.kind_of(receiver).method(i, getattr(receiver.cls, method), receiver, (operand,), {})
    if isinstance(receiver, (list, tuple, dict, set, str)) and not _is_derived(receiver, operand, function):
        return NotImplemented
    if isinstance(receiver, tuple) and isinstance(operand, tuple) and function in COMPARISONS:
        in_order = method == _methods_of(function)[1]
        return compare_sequences(i, function, *((receiver, operand) if in_order else (operand, receiver)))
    raise Unsupported(f"{name_of(function)} of a {type_of(receiver).__name__}")


def equal_objects(i: Interpreter, value: Any, other: Any) -> Any:
    """`object.__eq__`."""
    return True if is_same(i, value, other) else NotImplemented


def unequal_objects(i: Interpreter, value: Any, other: Any) -> Any:
    """`object.__ne__`, which inverts what `__eq__` says."""
    equal = special_method(i, value, "__eq__")
    said = isinstance(equal, FunctionType)
    found = i.call_now(equal, (value, other)) if said else equal_objects(i, value, other)
    return found if found is NotImplemented else not i.truth(found)


def _is_derived(receiver: Any, operand: Any, function: Any) -> bool:
    """Whether a builtin class's operator does something with an operand: not with an object of another kind. Comparisons
    are among one kind of container."""
    kinds: tuple[type, ...] = (list, tuple, dict, set, frozenset, str, bytes, int, float)
    if function in COMPARISONS and isinstance(receiver, (list, tuple, dict, str)):
        kinds = tuple([kind for kind in kinds if isinstance(receiver, kind)])
    return any(isinstance(receiver, kind) and issubclass(type_of(operand), kinds) for kind in kinds)


def is_same(i: Interpreter, left: Any, right: Any) -> bool:
    """`left is right`, guarded where both come from outside and could become the same."""
    if type(left) is Symbol or type(right) is Symbol:
        other = right if type(left) is Symbol else left
        if type(other) not in (Symbol, int, float, bool) and not is_numpy(real_of(other)):
            return False
        kinds = [type_of(v) for v in (left, right)]  # a bool of NumPy's is none of Python's
        if kinds.count(bool) == 1:
            return False
        if kinds == [bool, bool] and type(left) is not type(right):  # there is one object of each truth value
            return i.truth(left) is i.truth(right)
        raise Unsupported("the identity of a number")
    cls = type_of(left)
    if cls is type_of(right) and cls in (str, bytes) and not (type(left) is type(right) is cls):
        raise Unsupported("the identity of a string that keeps changing")
    read = [_is_native_method(v) and i.outside.source_of(v) is not None for v in (left, right)]
    if any(read) and type_of(left) is type_of(right):
        raise Unsupported("the identity of a method of a builtin class")
    left, right = map(i.outside.itself, (left, right))
    if type(left) is type(right) is FunctionType and (i.outside.is_by_code(left) or i.outside.is_by_code(right)):
        if left.__code__ is not right.__code__:
            return False  # and each is guarded to have its code
        raise Unsupported("the identity of a function that may be made anew")
    if left is right:
        return True
    if any(left is made or right is made for made in i.references) and type_of(left) is type_of(right):
        raise Unsupported("the identity of a weak reference, which an object may have already")
    if DynamicTensor in (type(left), type(right)) and type_of(left) is type_of(right):
        raise Unsupported("the identity of a tensor of dynamic sizes")
    i.outside.told_apart |= type(left) is type(right) is TensorProxy
    first, second = i.outside.source_of(left), i.outside.source_of(right)
    if first is not None and second is not None and type_of(left) is type_of(right):
        i.outside.guard("distinct", first, second)
    return False


def _is_native_method(value: Any) -> bool:
    """Whether a value is a method of a builtin class that is bound to an object, which is made anew when it is read."""
    if isinstance(value, types.BuiltinFunctionType):
        return not isinstance(value.__self__, (type, types.ModuleType, type(None)))
    return type(value) is BuiltinMethod
