"""Texts that functions and methods make of numbers which only the graph tells, or which keep changing: after the graph."""

from __future__ import annotations

import functools
import itertools
import json
import os.path
import string
from collections.abc import Callable
from typing import Any

from ...errors import Unsupported
from ..interpreter import Args, Interpreter, Kwargs
from ..objects.native_functions import plain_copy, pure
from ..symbolic import FormedText, NativeHandler, Symbol
from .text import example_of, joined, late_parts, text_of

#: Methods of texts that give a text for any text.
_METHODS = frozenset(
    "capitalize casefold center expandtabs ljust lower lstrip removeprefix removesuffix replace rjust rstrip strip swapcase "
    "title upper zfill".split()
)


def formed(i: Interpreter, function: Callable[..., str], args: Args, kwargs: Kwargs) -> FormedText | None:
    """`function(*args, **kwargs)` as a text that is formed later; None where nothing in the arguments needs that, or the
    function refuses such arguments."""
    if all(late_parts(i, value) is None for value in args):
        return None
    found = [late_parts(i, value, all_numbers=True) for value in args]
    given = [plain_copy(i, value) if part is None else part for value, part in zip(args, found, strict=True)]
    named = {name: plain_copy(i, value) for name, value in kwargs.items()}
    try:
        if type(function(*map(example_of, given), **named)) is not str:
            return None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return None
    return FormedText(functools.partial(function, **named) if named else function, *given)


def _later(function: Callable[..., str]) -> Callable[..., Any]:
    """The handler of a function that gives a text for any numbers and texts."""
    compute = pure(function)

    def handler(i: Interpreter, *args: Any, **kwargs: Any) -> Any:
        made = None if kwargs.keys() & _MAY_REFUSE else formed(i, function, args, kwargs)
        return compute(i, *args, **kwargs) if made is None else made

    return handler


#: Options of `json.dumps` that call other functions, or refuse some numbers.
_MAY_REFUSE = frozenset({"allow_nan", "cls", "default"})


def method(i: Interpreter, base: FormedText, name: str) -> NativeHandler:
    """A method of a text that is formed later. Raises `Unsupported` where the text has to be known."""
    if name not in _METHODS:
        raise Unsupported(f"the attribute {name} of a str")
    function = getattr(str, name)

    def call(i: Interpreter, *args: Any, **kwargs: Any) -> Any:
        made = formed(i, function, (base, *args), kwargs)
        if made is None:
            raise Unsupported(f"the method {name} of a str")
        return made

    return NativeHandler(call)


def by_template(i: Interpreter, template: str, args: Args, kwargs: Kwargs) -> Any:
    """`template.format(*args, **kwargs)` as an f-string with the same fields; None where one is irregular, so that Python is
    to say what is wrong with it."""
    given: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
    try:
        fields = [*string.Formatter().parse(template)]
    except ValueError:
        return None
    firsts = [name.split(".")[0] for _, name, _, _ in fields if name is not None]
    counter = None if any(first.isdecimal() for first in firsts) else itertools.count()
    parts: list[Any] = []
    for literal, name, spec, conversion in fields:
        parts.append(literal)
        if name is None:
            continue
        first, *attributes = name.split(".")
        key: Any = int(first) if first.isdecimal() else first or (counter and next(counter))
        regular = "[" not in name and "{" not in (spec or "") and (conversion or "s") in _CONVERSIONS
        if key not in given or not regular or not all(attributes):
            return None
        value = given[key]
        for attribute in attributes:
            value = i.attribute_now(value, attribute)
        if conversion:
            value = text_of(i, value, _CONVERSIONS[conversion])
        parts.append(text_of(i, value, "format", spec or "", later=type(value) is Symbol))  # if another part is
    return joined(i, parts)


#: The conversions of `%` and of `format` that write an object as its class says.
_CONVERSIONS = {"s": "str", "r": "repr"}


HANDLERS: dict[Any, Callable[..., Any]] = {function: _later(function) for function in (json.dumps, os.path.join)}
