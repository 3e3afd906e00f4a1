"""`functools.singledispatch`: which implementation a class gets, guarded by what is registered. And methods made by it."""

from __future__ import annotations

import abc
import functools
from types import CellType, CodeType, FunctionType, SimpleNamespace
from typing import Any

from ..errors import Unsupported
from .class_attributes import guard_order
from .interpreter import Interpreter, Then
from .symbolic import real_of, type_of


@functools.singledispatch
def _example(_: Any) -> None:
    """A function whose dispatcher shows what code dispatchers have."""


#: The code of `dispatch` in `functools.singledispatch`.
CODE: CodeType = _example.dispatch.__code__

_get: Any = vars(functools.singledispatchmethod)["__get__"]
#: The code by which a `functools.singledispatchmethod` gives an object's method, where it keeps that in a weak dictionary.
GET_CACHED: CodeType | None = _get.__code__ if "_method_cache" in _get.__code__.co_names else None


def call(i: Interpreter, dispatch: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`function.dispatch(cls)`, with guards on what is registered, abstract classes among it."""
    if len(args) != 1 or kwargs or not isinstance(args[0], type):
        raise Unsupported("singledispatch of these arguments")
    cells: dict[str, CellType] = dict(zip(dispatch.__code__.co_freevars, dispatch.__closure__ or (), strict=True))
    registry = cells["registry"].cell_contents
    source = i.outside.roots.constant(f"{dispatch.__qualname__}.registry", registry)
    i.outside.guard("keys", source, tuple(registry))
    if cells["cache_token"].cell_contents is not None:
        i.outside.guard("state", None, ("torch.functools.get_cache_token()", abc.get_cache_token()))
    guard_order(i, args[0])
    found = i.read(dispatch, *args)
    key = next((key for key, function in registry.items() if function is found), None)
    if key is None:
        raise Unsupported("singledispatch to a function that is not registered")
    return i.outside.wrap(found, source.item(key))


def method(i: Interpreter, get: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any], then: Then) -> None:
    """`singledispatchmethod.__get__`, past its cache: that tells nothing but what was asked for before."""
    if kwargs or len(args) not in (2, 3) or not type_of(args[1]).__weakrefoffset__:
        raise Unsupported("a method by singledispatch of what takes no weak references")
    if i.attribute_now(args[0], "_method_cache") is None:  # so it is once a method of such an object, or None, was asked for
        i.inline(get, args, kwargs, then)
        return
    asked = tuple([id(real_of(arg)) for arg in args])
    if asked not in i.dispatched:
        names = ("dispatcher", "func", "register", "__isabstractmethod__")
        uncached = SimpleNamespace(_method_cache=None, **{name: i.attribute_now(args[0], name) for name in names})
        i.dispatched[asked] = i.now(i.inline, get, (i.mark_created(uncached), *args[1:]), {}), (get, *args)
    then(i.dispatched[asked][0])
