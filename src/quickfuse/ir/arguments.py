"""Arguments of calls: values within lists, tuples, dictionaries and slices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """Arguments with `function(leaf)` in place of each leaf. Lists and tuples become plain ones."""
    if isinstance(value, list):
        return [map_leaves(function, v) for v in value]
    if isinstance(value, tuple):
        return tuple([map_leaves(function, v) for v in value])
    if isinstance(value, dict):
        return {key: map_leaves(function, v) for key, v in value.items()}
    if type(value) is slice:
        return slice(*[map_leaves(function, v) for v in (value.start, value.stop, value.step)])
    return function(value)


def leaves(value: Any) -> Iterator[Any]:
    """The leaves of arguments, in order."""
    if isinstance(value, dict):
        value = value.values()
    elif type(value) is slice:
        value = (value.start, value.stop, value.step)
    elif not isinstance(value, (list, tuple)):
        yield value
        return
    for part in value:
        yield from leaves(part)
