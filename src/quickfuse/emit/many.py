"""What generated prologues ask of many objects at once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from operator import is_
from typing import Any


def lookup_all(table: dict[Any, Any], keys: list[Any], same_objects: Callable[..., bool]) -> list[Any]:
    """`[table.get(k) for k in keys]`, without hashing where `keys` are all of the table's keys in its order."""
    if len(table) == len(keys) and same_objects([*table], keys):
        return [*table.values()]
    return [table.get(k) for k in keys]


def any_has(tables: list[dict[Any, Any]], keys: tuple[str, ...]) -> bool:
    """Whether one of the keys is in one of the dictionaries."""
    return any(key in table for table in tables for key in keys)


def all_are(values: list[Any], wanted: Any) -> bool:
    """Whether all values are one object."""
    return all(map(is_, values, repeat(wanted)))
