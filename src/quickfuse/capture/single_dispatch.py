"""`functools.singledispatch`: which implementation a class gets, guarded by what is registered."""

from __future__ import annotations

import abc
import functools
from types import CellType, CodeType, FunctionType
from typing import Any

from ..errors import Unsupported
from .class_attributes import guard_order
from .interpreter import Interpreter


@functools.singledispatch
def _example(_: Any) -> None:
    """A function whose dispatcher shows what code dispatchers have."""


#: The code of `dispatch` in `functools.singledispatch`.
CODE: CodeType = _example.dispatch.__code__


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
