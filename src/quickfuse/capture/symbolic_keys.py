"""Membership and lookup by a number from outside: the outcome is guarded, or the number found is one from outside too."""

from __future__ import annotations

import collections
import math
from typing import Any

from ..ir.guard import NumberExpr
from ..ir.source import Source
from .interpreter import Interpreter
from .symbolic import ABSENT, ShadowContainer, ShadowDict, Symbol

#: Dictionaries that look a key up without adding it.
_PLAIN_DICTS = (dict, collections.OrderedDict, collections.Counter)
_WRITTEN_OUT = (list, tuple, set, frozenset)


def contains(i: Interpreter, container: Any, element: Any) -> Any:
    """`element in container`, `ABSENT` where the element's value has to be seen."""
    if type(element) is not Symbol or element.from_tensor:
        return ABSENT
    place = _unchanged(i, container)
    if place is not None:
        real, where = place
        if not all(type(v) in (int, float, bool, str, type(None)) for v in real):
            return ABSENT
    elif isinstance(container, range) or type(container) in _WRITTEN_OUT and all(map(_is_literal, container)):
        real = where = _as_literal(container)
    else:
        return ABSENT
    outcome = element.hint in real
    i.outside.require(NumberExpr("({} in {})", (element.expr, where)), outcome)
    return outcome


def item(i: Interpreter, base: Any, key: Any) -> Any:
    """`base[key]` where that is a number, `ABSENT` where the key's value has to be seen."""
    if type(key) is not Symbol or key.from_tensor:
        return ABSENT
    place = _unchanged(i, base)
    if place is None:
        return ABSENT
    real, source = place
    if not isinstance(real, _PLAIN_DICTS if isinstance(real, dict) else list):
        return ABSENT
    try:
        value = real[key.hint]
    except LookupError:
        return ABSENT
    if type(value) not in (int, float):
        return ABSENT
    return i.outside.wrap(value, source.item(i.outside.key_of(key)))


def _unchanged(i: Interpreter, container: Any) -> tuple[Any, Source] | None:
    """A container of the user's that captured code left as it is, and where it is found."""
    kind = type(container)
    if kind is ShadowDict and not container.changes and type(container.real) in _PLAIN_DICTS:
        return container.real, container.source
    if kind is ShadowContainer and not container.added and type(container.real) is container.cls:
        opened = container.items is not None
        if not opened or list(map(id, container.items)) == list(map(id, container.original)):
            return container.real, container.source
    return None


def _is_literal(value: Any) -> bool:
    return type(value) in (int, bool, str, type(None)) or (type(value) is float and math.isfinite(value))


def _as_literal(container: Any) -> Any:
    return container if isinstance(container, range) else tuple(container)
