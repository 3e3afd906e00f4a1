"""Partial functions from outside."""

from __future__ import annotations

import functools
from typing import Any

from ...ir.source import Source


def partial_of(outside: Any, value: functools.partial[Any], source: Source) -> Any:
    """One of what stands for the function and the arguments of a partial function at a source."""
    outside.guard("type", source, functools.partial)
    function = outside.wrap(value.func, source.attr("func"))
    args = outside.wrap(value.args, source.attr("args"))
    keywords = outside.wrap(value.keywords, source.attr("keywords"))
    given = {k: keywords.get(outside, k) for k in keywords.keys(outside)}
    made = functools.partial(function, *args, **given)
    state: Any = value.__reduce__()[2]
    if state[-1]:  # asked for __dict__, a partial function would make one, and be no longer merged into what wraps it
        made.__dict__.update(state[-1])
    outside.note_replacement(value, source, made)
    return made
