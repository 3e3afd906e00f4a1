"""Calls: what each kind of callable does when captured code calls it."""

from __future__ import annotations

import collections
import functools
import operator
import types
import weakref
from collections.abc import Callable
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    WrapperDescriptorType,
)
from typing import TYPE_CHECKING, Any

import torch

from ..errors import Unsupported
from ..ir.marks import CAPTURED_AS, kept_from_peer, others_marked
from . import attributes, builtin_calls, containers, getters, library, torch_calls, transforms
from .attributes import PeerModule
from .class_attributes import guard_class_attribute, lookup_class
from .construction import construct, make
from .frame import Frame
from .inlining import is_left_to_python
from .kinds import CODE_TYPES, VIEW_TYPES, is_trusted_module
from .module_calls import call_object
from .mutation import name_of
from .native_methods import call_method
from .tensor_subclasses import own_member
from .user_marks import call_marked, user_mark
from .values import (
    ABSENT,
    ContainerMethod,
    NativeHandler,
    ShadowContainer,
    ShadowDict,
    Symbol,
    TensorMethod,
    TensorProxy,
    contains_symbolic,
    is_constant,
    type_of,
)

if TYPE_CHECKING:
    from .interpreter import Interpreter

#: From Python 3.14 on.
_PLACEHOLDER = getattr(functools, "Placeholder", object())
_TYPE_CALL = type.__dict__["__call__"]

Then = Callable[[Any], None]


def call(i: Interpreter, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], then: Then) -> None:
    """Call `function`; `then` gets the result, at once or when an inlined frame returns."""
    kind = type(function)
    if kind is MethodType:
        _call_method(i, function, args, kwargs, then)
        return
    handler = _handler_of(function)
    if handler is not None:
        then(_handle(i, handler, function, args, kwargs))
    elif (equivalent := _equivalent_of(function)) is not None:
        call(i, equivalent, args, kwargs, then)
    elif kind in getters.KINDS:
        then(getters.call(i, function, args, kwargs))
    elif kind is TensorMethod:
        then(torch_calls.call_tensor_method(i, function.proxy, function.name, args, kwargs))
    elif kind is ContainerMethod:
        then(containers.call_container_method(i, function.shadow, function.name, args, kwargs))
    elif torch_calls.is_operator(function):
        then(torch_calls.call_operator(i, function, args, kwargs))
    elif kind is FunctionType:
        _call_function(i, function, args, kwargs, then)
    elif kind is functools.partial:
        if any(argument is _PLACEHOLDER for argument in function.args):
            raise Unsupported("a functools.partial with placeholders")
        call(i, function.func, (*function.args, *args), {**function.keywords, **kwargs}, then)
    elif isinstance(function, type):
        construct(i, function, args, kwargs, then)
    elif kind is NativeHandler:
        then(function.run(i, *args, **kwargs))
    elif kind is weakref.ref:
        then(_referent(i, function))
    elif kind is PeerModule:
        then(_call_peer(i, function.name))
    elif kind in (MethodDescriptorType, WrapperDescriptorType) and args:
        then(_call_descriptor(i, function, args, kwargs))
    elif kind is BuiltinFunctionType:
        mark = others_marked().get(function)
        then(call_marked(i, mark, function, args, kwargs) if mark else _call_builtin(i, function, args, kwargs))
    else:
        stands_for = getattr(kind, CAPTURED_AS, None)
        if stands_for is not None:
            attributes.load(i, function, stands_for, lambda original: call(i, original, args, kwargs, then))
            return
        call_object(i, function, args, kwargs, then)


def _handle(i: Interpreter, handler: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return handler(i, *args, **kwargs)
    except TypeError as error:
        if error.__traceback__ is not None and error.__traceback__.tb_next is None:
            raise Unsupported(f"a call of {name_of(function)} with these arguments") from None
        raise


def _call_descriptor(i: Interpreter, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A method of a built-in type, called as `list.append(instance, value)`."""
    instance = args[0]
    if function is _TYPE_CALL and isinstance(instance, type):
        return i.now(make, i, instance, args[1:], kwargs)
    if type(instance) in (ShadowContainer, ShadowDict):
        return containers.call_container_method(i, instance, function.__name__, args[1:], kwargs)
    if type(instance) is TensorProxy:
        return torch_calls.call_tensor_method(i, instance, function.__name__, args[1:], kwargs)
    return call_method(i, function, instance, args[1:], kwargs)


def _handler_of(function: Any) -> Callable[..., Any] | None:
    try:
        return builtin_calls.HANDLERS.get(function) or torch_calls.HANDLERS.get(function)
    except TypeError:
        return None


def _equivalent_of(function: Any) -> Any:
    """The Python function that stands in for a native one, if there is one."""
    try:
        return library.EQUIVALENTS.get(function)
    except TypeError:
        return None


def _call_method(i: Interpreter, method: MethodType, args: tuple[Any, ...], kwargs: dict[str, Any], then: Then) -> None:
    function, instance = method.__func__, method.__self__
    if type(instance) is TensorProxy and own_member(instance.cls, function.__name__)[1] is not function:
        call(i, TensorMethod(instance, function.__name__), args, kwargs, then)
    else:
        call(i, function, (instance, *args), kwargs, then)


def _call_function(
    i: Interpreter, function: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any], then: Then
) -> None:
    mark = user_mark(function)
    if mark is not None:
        then(call_marked(i, mark, function, args, kwargs))
        return
    if (made := transforms.made_outside(i, function)) is not None:
        then(made.run(i, *args, **kwargs))
        return
    if (function.__module__ or "").startswith(("torch._dynamo", "torch._inductor")):
        then(_call_peer(i, f"{function.__module__}.{function.__name__}"))
        return
    if function.__code__ is _KEPT_OUT and is_trusted_module(function.__module__):
        call(i, function.__wrapped__, args, kwargs, then)  # type: ignore[attr-defined]
        return
    if (kept := kept_from_peer(function)) is not None:
        call(i, _without_peer(function, kept), args, kwargs, then)
        return
    if is_left_to_python(function):
        raise Unsupported(f"a call of {function.__module__}.{function.__qualname__}")
    if i.outside.source_of(function) is None and id(function) not in i.created:
        i.outside._remember(function, i.outside.roots.constant(function.__qualname__, function))
    torch_calls.prepare_step(i, function, args)
    i.inline(function, args, kwargs, then)


def _referent(i: Interpreter, reference: weakref.ref[Any]) -> Any:
    source = i.outside.source_of(reference)
    if source is None:
        raise Unsupported("a weak reference made by the captured code")
    return i.outside.wrap(reference(), source.referent())


#: The code of the wrapper that PyTorch puts around functions that its own compiler is to leave alone.
_KEPT_OUT: CodeType | None = next(
    (c for c in torch._disable_dynamo.__code__.co_consts if isinstance(c, CodeType) and c.co_name == "inner"), None
)


def _without_peer(function: FunctionType, kept: Any) -> Any:
    """The function behind a wrapper of PyTorch's own compiler. The user's wish not to compile one is honoured; PyTorch
    wraps its own (once its compiler is imported) for the sake of that compiler."""
    if not is_trusted_module(function.__module__):
        raise Unsupported(f"{function.__qualname__}, which torch.compiler.disable keeps out of graphs")
    return kept


def _call_peer(i: Interpreter, name: str) -> Any:
    """A call of PyTorch's own compiler. Inside PyTorch these are hints to it; in user code they ask for a break."""
    if name.endswith(".is_compiling"):
        return torch_calls.is_compiling(i)
    if name.endswith("graph_break") and i.frames[-1].is_library:
        return None
    raise Unsupported(f"a call of {name}")


def _call_builtin(i: Interpreter, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    owner = function.__self__
    if isinstance(owner, type):  # a class method in C
        unbound = lookup_class(owner, function.__name__)[1]
        handler = _handler_of(unbound) if type(unbound) is ClassMethodDescriptorType else None
        if handler is not None:
            return _handle(i, handler, unbound, (owner, *args), kwargs)
    elif owner is not None and type(owner).__name__ != "module":
        unbound = getattr(type(owner), function.__name__, None)
        if unbound is None:
            raise Unsupported(f"the native function {name_of(function)}")
        return call_method(i, unbound, owner, args, kwargs)
    if function in builtin_calls.PURE:
        args = tuple(i.outside.concrete(a) for a in args)
        if contains_symbolic(args) or contains_symbolic(kwargs):
            raise Unsupported(f"{name_of(function)} on tensors")
        if all(is_constant(a) or isinstance(a, type) or not i.outside.is_outside(a) for a in args):
            return i.native(function, *args, **kwargs)
    raise Unsupported(f"the native function {getattr(function, '__module__', '')}.{name_of(function)}")


# operators ------------------------------------------------------------------------------------------------------

_IN_PLACE_OF = {
    operator.iadd: operator.add, operator.iand: operator.and_, operator.ifloordiv: operator.floordiv,
    operator.ilshift: operator.lshift, operator.imatmul: operator.matmul, operator.imul: operator.mul,
    operator.imod: operator.mod, operator.ior: operator.or_, operator.ipow: operator.pow,
    operator.irshift: operator.rshift, operator.isub: operator.sub, operator.itruediv: operator.truediv,
    operator.ixor: operator.xor,
}  # fmt: skip

_REFLECTED_COMPARISON = {"__lt__": "__gt__", "__le__": "__ge__", "__gt__": "__lt__", "__ge__": "__le__"}
_NATIVE_OPERANDS = (
    list, tuple, dict, set, frozenset, str, bytes, range, collections.OrderedDict, collections.defaultdict,
    *VIEW_TYPES,
)  # fmt: skip


def binary_operator(i: Interpreter, function: Any, left: Any, right: Any, then: Then) -> None:
    """A binary operator or comparison, given to `then`."""
    left_kind, right_kind = type(left), type(right)
    if left_kind is ShadowContainer or right_kind is ShadowContainer:
        if function is operator.iadd and left_kind is ShadowContainer and type(left.real) is list:
            containers.call_container_method(i, left, "extend", (right,), {})
            then(left)
            return
        _binary_on_contents(i, function, left, right, then)
        return
    if left_kind is ShadowDict or right_kind is ShadowDict:
        left, right = (containers.as_plain_dict(i, v) if type(v) is ShadowDict else v for v in (left, right))
        if function in _IN_PLACE_OF:
            raise Unsupported("a dictionary changed in place by an operator")
        binary_operator(i, function, left, right, then)
        return
    if left_kind is TensorProxy or right_kind is TensorProxy:
        if left_kind is not TensorProxy:  # nothing to change in place
            function = _IN_PLACE_OF.get(function, function)
        then(torch_calls.tensor_operator(i, function, left, right))
        return
    if left_kind is Symbol or right_kind is Symbol:
        if _has_operators(left_kind) or _has_operators(right_kind):
            _object_operator(i, function, left, right, then)
        else:
            then(_number_operator(i, function, left, right))
        return
    if (is_constant(left) and is_constant(right)) or (_is_a_type(left) and _is_a_type(right)) or (
        function in (operator.eq, operator.ne) and isinstance(left, CODE_TYPES) and isinstance(right, CODE_TYPES)
    ):
        then(i.native(function, left, right))
        return
    if torch.Size in (left_kind, right_kind) and function in _COMPARISONS:  # sizes compare like the tuples that they are
        left, right = (tuple(v) if type(v) is torch.Size else v for v in (left, right))
        left_kind, right_kind = type(left), type(right)
    repeats = function in (operator.mul, operator.imul) and (left_kind in (int, bool) or right_kind in (int, bool))
    if (left_kind in _NATIVE_OPERANDS or repeats) and (right_kind in _NATIVE_OPERANDS or repeats):
        then(_container_operator(i, function, left, right))
        return
    _object_operator(i, function, left, right, then)


#: Plain values that no operator of a class of the user's can come from.
_NUMBERS = (int, float, bool, complex)


def _has_operators(kind: type) -> bool:
    """Whether a class is Python, so that it may say what operators do."""
    is_python = bool(kind.__flags__ & (1 << 9)) and kind not in _STAND_INS
    return is_python and not issubclass(kind, (*_NUMBERS, str, torch.Tensor))


_STAND_INS = (Symbol, TensorProxy, ShadowContainer, ShadowDict)


def _is_a_type(value: Any) -> bool:
    """A class, or what annotations are made of: `list[int]`, `int | None`, None."""
    return value is None or isinstance(value, (type, types.GenericAlias, types.UnionType))


def _binary_on_contents(i: Interpreter, function: Any, left: Any, right: Any, then: Then) -> None:
    """An operator on lists, sets or deques of the user's."""
    if function in _IN_PLACE_OF and type(left) is ShadowContainer:
        contents = i.outside.contents(left)
        if not isinstance(contents, set) or contains_symbolic(right := i.outside.contents(right)):
            raise Unsupported(f"{name_of(function)} of a {type(contents).__name__} of the user's")
        i.native(function, contents, right)
        then(left)
        return
    binary_operator(i, function, i.outside.contents(left), i.outside.contents(right), then)


def _number_operator(i: Interpreter, function: Any, left: Any, right: Any) -> Any:
    function = _IN_PLACE_OF.get(function, function)
    for operand in (left, right):
        if type(operand) not in (Symbol, int, float, bool):
            left, right = i.outside.concrete(left), i.outside.concrete(right)
            if is_constant(left) and is_constant(right):
                return i.native(function, left, right)
            if function in (operator.eq, operator.ne):
                return function is operator.ne
            if isinstance(operand, _NATIVE_OPERANDS):
                return i.mark_created(i.native(function, left, right))
            raise Unsupported(f"{name_of(function)} of a number and a {type(operand).__name__}")
    return i.graph.number(function, left, right)


def _container_operator(i: Interpreter, function: Any, left: Any, right: Any) -> Any:
    if function in (operator.add, operator.iadd, operator.mul, operator.imul):
        if function is operator.iadd and type(left) is list:
            left.extend(right)
            return left
        result = i.native(_IN_PLACE_OF.get(function, function), left, right)
        return i.mark_created(result) if type(result) is list else result
    if isinstance(left, dict) and isinstance(right, dict) and function in (operator.or_, operator.ior):
        if function is operator.or_:
            return i.mark_created(i.native(function, left, right))
        i.native(operator.ior, left, right)
        return left
    if isinstance(left, (list, tuple)) and type(left) is type(right) and function in _COMPARISONS:
        return _compare_sequences(i, function, left, right)
    if isinstance(left, dict) and isinstance(right, dict) and function in (operator.eq, operator.ne):
        ordered = isinstance(left, collections.OrderedDict) and isinstance(right, collections.OrderedDict)
        same_keys = list(left) == list(right) if ordered else left.keys() == right.keys()
        same = same_keys and all(containers.equal(i, left[k], right[k]) for k in left)
        return same ^ (function is operator.ne)
    if contains_symbolic(left) or contains_symbolic(right):
        raise Unsupported(f"{name_of(function)} of containers of tensors or numbers")
    result = i.native(function, left, right)
    return i.mark_created(result) if isinstance(result, (set, dict, list)) and result is not left else result


_COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)


def _compare_sequences(i: Interpreter, function: Any, left: Any, right: Any) -> Any:
    """Comparison of two lists or tuples: by the first elements that differ, then by length."""
    if function in (operator.eq, operator.ne) and len(left) != len(right):
        return function is operator.ne
    for first, second in zip(left, right, strict=False):
        if not containers.equal(i, first, second):
            if function in (operator.eq, operator.ne):
                return function is operator.ne
            return i.now(binary_operator, i, function, first, second)
    return function(len(left), len(right))


def _object_operator(i: Interpreter, function: Any, left: Any, right: Any, then: Then) -> None:
    """Operator methods of Python classes, by the language's rules of precedence."""
    name = f"__{name_of(function).strip('_')}__"
    attempts: list[tuple[Any, str, Any]] = []
    if function in _IN_PLACE_OF:
        attempts.append((left, name, right))
        name = f"__{name_of(_IN_PLACE_OF[function]).strip('_')}__"
    reflected = _REFLECTED_COMPARISON.get(name, name if name in ("__eq__", "__ne__") else f"__r{name[2:]}")
    direct, swapped = (left, name, right), (right, reflected, left)
    left_type, right_type = type_of(left), type_of(right)
    derived = right_type is not left_type and issubclass(right_type, left_type)
    attempts += [swapped, direct] if derived else [direct, swapped]
    for receiver, method, operand in attempts:
        kind = type_of(receiver)
        if kind in _NUMBERS:  # which know nothing of objects
            continue
        found = lookup_class(kind, method)[1]
        if not isinstance(found, FunctionType):
            if method == "__ne__" and found is object.__ne__:  # which inverts what `__eq__` says
                equal = lookup_class(type(receiver), "__eq__")[1]
                if isinstance(equal, FunctionType):
                    result = i.call_now(equal, (receiver, operand))
                    if result is not NotImplemented:
                        then(not i.truth(result))
                        return
                continue
            if found is ABSENT or found is lookup_class(object, method)[1]:
                continue
            raise Unsupported(f"{name_of(function)} of a {type(receiver).__name__}")
        result = i.call_now(found, (receiver, operand))
        if result is not NotImplemented:
            then(result)
            return
    if function in (operator.eq, operator.ne):
        then(is_same(i, left, right) ^ (function is operator.ne))
        return
    raise Unsupported(f"{name_of(function)} of a {type(left).__name__} and a {type(right).__name__}")


def is_same(i: Interpreter, left: Any, right: Any) -> bool:
    """`left is right`, guarded where both come from outside and could become the same."""
    if type(left) is Symbol or type(right) is Symbol:
        other = right if type(left) is Symbol else left
        if type(other) not in (Symbol, int, float, bool):
            return False
        if (type(left) is Symbol and left.kind is bool) != (type(right) is Symbol and right.kind is bool) or bool in (
            type(left), type(right)
        ):  # fmt: skip
            return _is_same_truth(i, left, right)
        raise Unsupported("the identity of a number")
    left, right = i.outside.contents(left), i.outside.contents(right)
    if left is right:
        return True
    first, second = i.outside.source_of(left), i.outside.source_of(right)
    if first is not None and second is not None and type(left) is type(right):
        i.outside.guard("distinct", first, second)
    return False


def _is_same_truth(i: Interpreter, left: Any, right: Any) -> bool:
    """Identity where one side is True or False: there is one object of each."""
    kinds = [v.kind if type(v) is Symbol else type(v) for v in (left, right)]
    return kinds == [bool, bool] and i.truth(left) is i.truth(right)


# context managers -----------------------------------------------------------------------------------------------


def enter_context(i: Interpreter, f: Frame, manager: Any) -> None:
    """BEFORE_WITH: push what leaves the context, then what entering gives."""
    kind = type(manager)
    methods = []
    for name in ("__enter__", "__exit__"):
        owner, method = lookup_class(kind, name)
        if not isinstance(method, FunctionType):
            raise Unsupported(f"the context manager {kind.__name__}")
        guard_class_attribute(i, kind.__mro__, owner, name, method)
        methods.append(method)
    f.stack.append(MethodType(methods[1], manager))
    call(i, methods[0], (manager,), {}, f.stack.append)
