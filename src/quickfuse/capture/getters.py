"""`operator.itemgetter`, `attrgetter` and `methodcaller`: native objects that know what they will be asked for."""

from __future__ import annotations

import functools
import operator
from typing import Any

from ..errors import Unsupported
from .interpreter import Interpreter
from .symbolic import FromOutside, type_of

KINDS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)


def parts(getter: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """(class, arguments, keyword arguments) of the call that makes an equal one."""
    maker, arguments = getter.__reduce__()
    if isinstance(maker, functools.partial):
        return maker.func, (*maker.args, *arguments), dict(maker.keywords)
    return maker, arguments, {}


def make(i: Interpreter, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return i.mark_created(i.native(cls, *[i.outside.concrete(a) for a in args], **kwargs))


def call(i: Interpreter, getter: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a getter. One of the user's is guarded to stay the same object: nothing else tells what is in it."""
    if len(args) != 1 or kwargs:
        raise Unsupported(f"a call of an {type_of(getter).__name__} with these arguments")
    if isinstance(getter, FromOutside):
        i.outside.guard("is", getter.source, getter.real)
        getter = getter.real
    _, wanted, named = parts(getter)
    if type(getter) is operator.methodcaller:
        return i.call_now(_attribute(i, args[0], wanted[0]), wanted[1:], named)
    one = _item if type(getter) is operator.itemgetter else _attribute
    found = [one(i, args[0], key) for key in wanted]
    return found[0] if len(found) == 1 else tuple(found)


def _item(i: Interpreter, value: Any, key: Any) -> Any:
    return i.call_now(operator.getitem, (value, key))


def _attribute(i: Interpreter, value: Any, path: str) -> Any:
    for name in path.split("."):
        value = i.attribute_now(value, name)
    return value
