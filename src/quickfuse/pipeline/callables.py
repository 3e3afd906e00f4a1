"""The Python functions behind the callables that users compile, and what makes an object look like a function."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import CodeType, FunctionType, MethodType
from typing import Any, cast

from ..ir.marks import CAPTURED_AS, compiled_by_peer, kept_from_peer, mark_of


def why_never(function: FunctionType | None) -> str | None:
    """Why a function is never captured, if so."""
    if function is None:
        return "a callable without Python code"
    mark = mark_of(function)
    if mark is not None and mark.kind == "disabled":
        return "quickfuse.disable" + (f" ({mark.note})" if mark.note else "")
    return "torch.compiler.disable" if kept_from_peer(function) is not None else None


def plain_function(function: Callable[..., Any]) -> tuple[FunctionType | None, tuple[Any, ...]]:
    """The Python function behind a callable, and the arguments that are bound to it already.

    PyTorch's compiler, once it is imported, wraps functions of PyTorch for its own sake: we go through these wrappers.
    """
    if (original := compiled_by_peer(function)) is not None:
        return plain_function(original)
    if isinstance(function, FunctionType):
        kept = kept_from_peer(function)
        own = kept is not None and (function.__module__ or "").partition(".")[0] == "torch"
        return plain_function(kept) if own else (function, ())
    if getattr(type(function), CAPTURED_AS, "") == "function":  # a `Compiled`
        return plain_function(function.function)  # type: ignore[attr-defined]
    if isinstance(function, MethodType):
        inner, bound = plain_function(function.__func__)
        return (None, ()) if inner is None else (inner, (*bound, function.__self__))
    if isinstance(function, functools.partial) or isinstance(_call_method(function), FunctionType):
        return _called, (function,)
    return None, ()


def _call_method(function: Any) -> Any:
    return next((vars(cls)["__call__"] for cls in type(function).__mro__ if "__call__" in vars(cls)), None)


def _call(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """What is captured of a callable that is no function itself, and calls one."""
    return function(*args, **kwargs)


_called = cast("FunctionType", _call)


class LikeFunction:
    """An object that stands for `function`."""

    __slots__ = ()

    function: Callable[..., Any]
    __call__: Callable[..., Any]

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As an attribute of a class it is what `function` is there."""
        return MethodType(self, instance) if instance is not None and self.becomes_method else self

    @property
    def becomes_method(self) -> bool:
        """Whether it is a method where an instance finds it in its class, as functions are: not so bound methods, nor what
        has no `__get__`."""
        function = self.function
        if isinstance(function, LikeFunction):
            return function.becomes_method
        if isinstance(function, functools.partial):  # 3.13's has a `__get__` that only warns of that
            return sys.version_info >= (3, 14)
        return not isinstance(function, MethodType) and hasattr(type(function), "__get__")

    # `inspect` takes an object with these for a function, and finds out that one is a coroutine or generator function.

    @property
    def __code__(self) -> CodeType:
        return self.function.__code__

    @property
    def __defaults__(self) -> Any:
        return self.function.__defaults__  # type: ignore[attr-defined]

    @property
    def __kwdefaults__(self) -> Any:
        return self.function.__kwdefaults__  # type: ignore[attr-defined]

    # A compiled bound method has what a bound method has: PyTorch's schedulers wrap `opt.step` by way of these.

    @property
    def __self__(self) -> Any:
        return self.function.__self__  # type: ignore[attr-defined]

    @property
    def __func__(self) -> UnboundCompiled:
        self.function.__func__  # type: ignore[attr-defined]  # noqa: B018 - only methods have it
        return UnboundCompiled(self)

    @functools.cached_property
    def of_other_objects(self) -> Callable[..., Any]:
        """The function of a compiled method, compiled in the same way."""
        return type(self)(self.function.__func__, self.settings)  # type: ignore[call-arg, attr-defined]

    def __prepare_scriptable__(self) -> Callable[..., Any]:
        """What `torch.jit.script` compiles."""
        return self.function


class UnboundCompiled:
    """The function of a method that was compiled: bound to the method's object again, it is the compiled method, and to
    another object, a method of the compiled function.

    The plain function in its place would run uncompiled, and nobody would notice.
    """

    __slots__ = ("__dict__", "method")  # a weak reference to what is made anew each time would be dead at once

    def __init__(self, method: Any) -> None:
        self.method = method
        functools.update_wrapper(self, method.function.__func__)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        method = self.method
        return method if instance is method.__self__ else MethodType(method.of_other_objects, instance)

    def __call__(self, instance: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self.__get__(instance)(*args, **kwargs)
