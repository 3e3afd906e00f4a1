"""Arguments of calls: values within lists, tuples, dictionaries and slices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """Arguments with `function(leaf)` in place of each leaf."""
    if isinstance(value, (list, tuple)):
        return type(value)([map_leaves(function, v) for v in value])
    if isinstance(value, dict):
        return {key: map_leaves(function, v) for key, v in value.items()}
    if type(value) is slice:
        return slice(*[map_leaves(function, v) for v in (value.start, value.stop, value.step)])
    return function(value)
