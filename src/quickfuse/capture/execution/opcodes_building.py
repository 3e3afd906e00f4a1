"""Bytecode instructions that build containers, strings and slices, match them against patterns, and take them apart."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

from ...bytecode.stack_effects import goes_into
from ...errors import Unsupported
from ...ir.frame import NULL
from ..interpreter import Interpreter
from ..library import builtin_calls
from ..library.text import is_changing_number, joined, printable, text_of
from ..objects import containers
from ..objects.class_attributes import python_method
from ..objects.iterators import ObjectIterator
from ..objects.keys import hashable
from ..symbolic import FormedText, ShadowContainer, Symbol, Unread, type_of
from ..symbolic.frame import Frame, GeneratorValue
from ..symbolic.raising import raise_in_program


def _take(f: Frame, count: int) -> list[Any]:
    """The uppermost values of the stack, which has them no more."""
    if not count:
        return []
    values = f.stack[-count:]
    del f.stack[-count:]
    return values


def op_BUILD_MAP(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    values = _take(f, 2 * arg)
    pairs = [(hashable(i, k), v) for k, v in zip(values[::2], values[1::2], strict=True)]
    f.stack.append(i.mark_created(i.native(dict, pairs)))


def op_MATCH_KEYS(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    keys, subject = f.stack[-1], f.stack[-2]
    if not containers.is_dict(subject):
        raise Unsupported(f"matching a {type_of(subject).__name__} as a mapping")
    get = i.attribute_now(subject, "get")
    values = [i.call_now(get, (key, NULL)) for key in keys]
    f.stack.append(None if any(v is NULL for v in values) else tuple(values))


def op_FORMAT_VALUE(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    spec = i.outside.concrete(f.stack.pop()) if arg & 0x04 else ""
    convert = (None, "str", "repr", "ascii")[arg & 0x03]
    operand = f.stack.pop()
    if type(operand) is Symbol and not convert:  # other parts of the string may keep changing
        later = goes_into(f.code, f.lasti)[0] == "BUILD_STRING" or _is_printed(f)
        f.stack.append(text_of(i, operand, "format", spec, later))
        return
    if convert:
        f.stack.append(text_of(i, _converted(i, operand, convert), "format", spec))
    else:
        f.stack.append(text_of(i, operand, "format", spec))


def _is_printed(f: Frame) -> bool:
    """Whether what this instruction gives is an argument of `print`."""
    name, count, above = goes_into(f.code, f.lasti)
    before = count - above - 1  # arguments
    return name == "CALL" and before >= 0 and any(called is print for called in f.stack[: len(f.stack) - before][-2:])


def _converted(i: Interpreter, value: Any, how: str) -> Any:
    """What `!s`, `!r` and `!a` make of a value."""
    if how == "ascii" and type(value) is not FormedText and not is_changing_number(i, value):
        return str(i.native(ascii, printable(i, value)))
    return text_of(i, value, how)


def op_LIST_APPEND(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    element = f.stack.pop()
    if type(f.stack[-arg]) is list:  # in every turn of a comprehension
        f.stack[-arg].append(element)
    else:
        _add(i, f.stack[-arg], "append", element)


def op_LIST_EXTEND(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    elements = f.stack.pop()
    if containers.is_no_iterable(elements):
        raise_in_program(TypeError(f"Value after * must be an iterable, not {type_of(elements).__name__}"))
    _add(i, f.stack[-arg], "extend", elements)


def _add(i: Interpreter, target: Any, method: str, operand: Any) -> None:
    """Add to a list or set that is being built."""
    cls = target.cls if type(target) is ShadowContainer else type(target)
    i.kind_of(target).method(i, getattr(cls, method), target, (operand,), {})


def op_DICT_UPDATE(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    elements = containers.as_plain_dict(i, f.stack.pop())
    target = f.stack[-arg]
    for key, element in elements.items():
        containers.set_item(i, target, key, element)


def op_DICT_MERGE(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    merged = containers.as_plain_dict(i, f.stack.pop())
    target = f.stack[-arg]
    if not all(type(key) is str for key in merged):
        raise Unsupported("a call with a keyword that is no string")
    for key, element in merged.items():
        if containers.contains(i, target, key):
            raise Unsupported(f"a call that is given the keyword {key} twice")
        containers.set_item(i, target, key, element)  # perhaps in a dictionary that was made before a break


def _unpackable(i: Interpreter, value: Any) -> Any:
    kind = type_of(value)
    if value is None or kind in (int, float, bool):
        raise_in_program(TypeError(f"cannot unpack non-iterable {kind.__name__} object"))
    return containers.iterate(i, value)


def op_UNPACK_SEQUENCE(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    top = f.stack.pop()
    if type(top) is Unread:
        if type(top.value) is tuple and len(top.value) == arg:
            i.outside.guard("type", top.source, tuple)
            i.outside.guard("length", top.source, arg)
            f.stack.extend(reversed(_unread_elements(i, f, top)))
            return
        top = i.outside.read(top)
    if type(top) is GeneratorValue or hasattr(type(top), "__next__"):  # which may not end: one more is asked for
        elements = list(itertools.islice(containers.native_iterator(i, top), arg + 1))
    else:
        elements = _unpackable(i, top)
    if len(elements) != arg:
        problem = "too many" if len(elements) > arg else "not enough"
        says_both = len(elements) < arg or (sys.version_info >= (3, 14) and type_of(top) in (list, tuple, dict))
        detail = f"expected {arg}, got {len(elements)}" if says_both else f"expected {arg}"
        raise_in_program(ValueError(f"{problem} values to unpack ({detail})"))
    f.stack.extend(reversed(elements))


def _unread_elements(i: Interpreter, f: Frame, top: Unread) -> list[Any]:
    """The elements of a tuple: those that the next instructions put into variables are not looked at."""
    elements = [Unread(value, top.source.item(k)) for k, value in enumerate(top.value)]
    following = [instruction.name for instruction in f.decoded.instructions[f.position : f.position + len(elements)]]
    unread = next((k for k, name in enumerate(following) if name != "STORE_FAST"), len(elements))
    if unread < len(elements) and following[unread] == "UNPACK_SEQUENCE":
        unread += 1
    return elements[:unread] + [i.outside.read(element) for element in elements[unread:]]


def _unpacked_with_rest(i: Interpreter, top: Any, before: int) -> Any:
    """The elements for `first, *rest = top`. Python makes a list of what an iterator still has after the first ones, and for
    that calls the `__iter__` of one of the program's own, which may begin anew there."""
    if not i.kind_of(top).asks_class or python_method(i, top, "__iter__") is None:
        return _unpackable(i, top)
    iterator = containers.native_iterator(i, top)
    first = list(itertools.islice(iterator, before))
    if len(first) < before:
        return first
    return [*first, *containers.listed(i, iterator.parts[0] if type(iterator) is ObjectIterator else iterator)]


def op_UNPACK_EX(i: Interpreter, f: Frame, arg: int, value: Any) -> None:
    before, after = arg & 0xFF, arg >> 8
    elements = _unpacked_with_rest(i, f.stack.pop(), before)
    if len(elements) < before + after:
        raise_in_program(
            ValueError(f"not enough values to unpack (expected at least {before + after}, got {len(elements)})")
        )
    stop = len(elements) - after
    f.stack.extend(reversed(elements[stop:]))
    f.stack.append(i.mark_created(list(elements[before:stop])))
    f.stack.extend(reversed(elements[:before]))


#: Instructions that do one thing with values which they take off the stack: how many, and what.
TAKING: dict[str, tuple[int, Callable[..., Any]]] = {
    "SET_ADD": (1, lambda i, f, arg, value, element: _add(i, f.stack[-arg], "add", element)),
    "SET_UPDATE": (1, lambda i, f, arg, value, elements: _add(i, f.stack[-arg], "update", elements)),
    "MAP_ADD": (2, lambda i, f, arg, value, key, element: containers.set_item(i, f.stack[-arg], key, element)),
}

#: Instructions that do no more than to put a value on the stack: what it is.
PUSHED: dict[str, Callable[[Interpreter, Frame, int, Any], Any]] = {
    "BUILD_TUPLE": lambda i, f, arg, value: tuple(_take(f, arg)),
    "BUILD_LIST": lambda i, f, arg, value: i.mark_created(_take(f, arg)),
    "BUILD_SET": lambda i, f, arg, value: i.mark_created(
        i.native(set, [hashable(i, v) for v in _take(f, arg)])
    ),
    "BUILD_CONST_KEY_MAP": lambda i, f, arg, value: i.mark_created(dict(zip(f.stack.pop(), _take(f, arg), strict=True))),
    "BUILD_STRING": lambda i, f, arg, value: joined(i, _take(f, arg), later=_is_printed(f)),
    "LIST_TO_TUPLE": lambda i, f, arg, value: tuple(i.outside.contents(f.stack.pop())),
    "BUILD_SLICE": lambda i, f, arg, value: slice(*_take(f, arg)),
    "CONVERT_VALUE": lambda i, f, arg, value: _converted(i, f.stack.pop(), ("str", "repr", "ascii")[arg - 1]),
    "MATCH_CLASS": lambda i, f, arg, value: builtin_calls.match_class(i, arg, *_take(f, 3)),
    "GET_LEN": lambda i, f, arg, value: i.length(f.stack[-1]),
    "MATCH_SEQUENCE": lambda i, f, arg, value: bool(type_of(f.stack[-1]).__flags__ & (1 << 5)),
    "MATCH_MAPPING": lambda i, f, arg, value: bool(type_of(f.stack[-1]).__flags__ & (1 << 6)),
}
