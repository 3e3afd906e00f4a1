"""Calls: what each kind of callable does when captured code calls it."""

from __future__ import annotations

import functools
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
from typing import Any

import torch

from ..errors import Unsupported
from ..ir.marks import CAPTURED_AS, kept_from_peer, others_marked
from . import (
    builtin_calls,
    getters,
    library,
    lru_caches,
    native_methods,
    single_dispatch,
    torch_calls,
    transforms,
)
from .attributes import PeerModule
from .class_attributes import guard_class_attribute, lookup_class
from .construction import construct, make
from .frame import Frame
from .inlining import is_left_to_python
from .interpreter import Interpreter
from .kinds import CODE_TYPES, is_trusted_module
from .module_calls import call_object
from .mutation import name_of
from .native_methods import call_method
from .raising import call_handler
from .symbolic import (
    ContainerMethod,
    ForeignObject,
    NativeHandler,
    ShadowContainer,
    ShadowDict,
    TensorMethod,
    TensorProxy,
    contains_symbolic,
    is_constant,
    type_of,
)
from .tensor_subclasses import own_member
from .text import AROUND_REPR
from .user_marks import call_marked, user_mark

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
    if kind is ForeignObject:
        _call_foreign(i, function, args, kwargs, then)
        return
    handler = _handler_of(function)
    if handler is not None:
        then(call_handler(i, handler, name_of(function), args, kwargs))
    elif (equivalent := _equivalent_of(function)) is not None:
        i.call(equivalent, args, kwargs, then)
    elif kind in getters.KINDS:
        then(getters.call(i, function, args, kwargs))
    elif kind is TensorMethod:
        then(torch_calls.call_tensor_method(i, function.proxy, function.name, args, kwargs))
    elif kind is ContainerMethod:
        then(native_methods.call_container_method(i, function.shadow, function.name, args, kwargs))
    elif torch_calls.is_operator(function):
        then(torch_calls.call_operator(i, function, args, kwargs))
    elif kind is FunctionType:
        _call_function(i, function, args, kwargs, then)
    elif kind is functools.partial:
        if any(argument is _PLACEHOLDER for argument in function.args):
            raise Unsupported("a functools.partial with placeholders")
        i.call(function.func, (*function.args, *args), {**function.keywords, **kwargs}, then)
    elif isinstance(function, type):
        construct(i, function, args, kwargs, then)
    elif kind is NativeHandler:
        then(function.run(i, *args, **kwargs))
    elif kind is PeerModule:
        then(_call_peer(i, function.name))
    elif kind in (MethodDescriptorType, WrapperDescriptorType) and args:
        then(_call_descriptor(i, function, args, kwargs))
    elif isinstance(function, BuiltinFunctionType):
        mark = others_marked().get(function)
        then(call_marked(i, mark, function, args, kwargs) if mark else _call_builtin(i, function, args, kwargs))
    else:
        call_object(i, function, args, kwargs, then)


def _call_descriptor(i: Interpreter, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A method of a built-in type, called as `list.append(instance, value)`."""
    instance = args[0]
    if function is _TYPE_CALL and isinstance(instance, type):
        return i.now(make, i, instance, args[1:], kwargs)
    if type(instance) in (ShadowContainer, ShadowDict):
        return native_methods.call_container_method(i, instance, function.__name__, args[1:], kwargs)
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
    users = type(function) is FunctionType and not is_trusted_module(function.__module__)
    if type(instance) is TensorProxy and not users and own_member(instance.cls, function.__name__)[1] is not function:
        i.call(TensorMethod(instance, function.__name__), args, kwargs, then)
    else:
        i.call(function, (instance, *args), kwargs, then)


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
    if function.__code__ is single_dispatch.CODE:
        then(single_dispatch.call(i, function, args, kwargs))
        return
    if function.__code__ is AROUND_REPR:
        i.call(function.__wrapped__, args, kwargs, then)  # type: ignore[attr-defined]
        return
    if function.__code__ is _KEPT_OUT and is_trusted_module(function.__module__):
        i.call(function.__wrapped__, args, kwargs, then)  # type: ignore[attr-defined]
        return
    if (kept := kept_from_peer(function)) is not None:
        i.call(_without_peer(function, kept), args, kwargs, then)
        return
    if is_left_to_python(function):
        raise Unsupported(f"a call of {function.__module__}.{function.__qualname__}")
    torch_calls.prepare_step(i, function, args)
    i.inline(function, args, kwargs, then)


def _call_foreign(
    i: Interpreter, function: ForeignObject, args: tuple[Any, ...], kwargs: dict[str, Any], then: Then
) -> None:
    """A call of an object of the user's. What native code does with one depends on which it is."""
    real = function.real
    kind = type(real)
    if kind in getters.KINDS:
        then(getters.call(i, function, args, kwargs))
    elif kind is lru_caches.KIND:
        then(lru_caches.call(i, function, args, kwargs))
    elif kind is weakref.ref:
        then(i.outside.wrap(real(), function.source.referent()))
    elif torch_calls.is_operator(real) or _handler_of(real) is not None or _equivalent_of(real) is not None:
        i.outside.guard("is", function.source, real)
        i.call(real, args, kwargs, then)
    elif (stands_for := getattr(kind, CAPTURED_AS, None)) is not None:
        i.attribute(function, stands_for, lambda original: i.call(original, args, kwargs, then))
    else:
        call_object(i, function, args, kwargs, then)


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
            return call_handler(i, handler, name_of(unbound), (owner, *args), kwargs)
    elif owner is not None and type(owner).__name__ != "module":
        unbound = getattr(type(owner), function.__name__, None)
        if unbound is None:
            raise Unsupported(f"the native function {name_of(function)}")
        return call_method(i, unbound, owner, args, kwargs)
    if function in builtin_calls.PURE:
        args = tuple(i.outside.concrete(a) for a in args)
        if contains_symbolic(args) or contains_symbolic(kwargs):
            raise Unsupported(f"{name_of(function)} on tensors")
        if all(is_constant(a) or isinstance(a, CODE_TYPES) for a in args):
            return i.native(function, *args, **kwargs)
    raise Unsupported(f"the native function {getattr(function, '__module__', '')}.{name_of(function)}")


# context managers -----------------------------------------------------------------------------------------------


def enter_context(i: Interpreter, f: Frame, manager: Any) -> None:
    """BEFORE_WITH: push what leaves the context, then what entering gives."""
    kind = type_of(manager)
    methods = []
    for name in ("__enter__", "__exit__"):
        owner, method = lookup_class(kind, name)
        if not isinstance(method, FunctionType):
            raise Unsupported(f"the context manager {kind.__name__}")
        guard_class_attribute(i, kind.__mro__, owner, name, method)
        methods.append(method)
    f.stack.append(MethodType(methods[1], manager))
    i.call(methods[0], (manager,), {}, f.stack.append)
