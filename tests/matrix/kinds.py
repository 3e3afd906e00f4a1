"""All kinds of Python values that can reach tensor code, by name."""

from __future__ import annotations

from . import callable_kinds, library_kinds, nested_kinds, object_kinds, plain_kinds, subclass_kinds
from .values import KINDS, Change, Values

__all__ = [
    "KINDS", "Change", "Values", "callable_kinds", "library_kinds", "nested_kinds", "object_kinds", "plain_kinds",
    "subclass_kinds",
]  # fmt: skip
