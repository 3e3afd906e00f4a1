"""Objects that existed before the call."""

from __future__ import annotations

import sys
from typing import Any

from ...ir.source import Source


class Unread:
    """A variable or stack entry of a suspended frame that nothing read yet: its guards come with the first read."""

    __slots__ = ("source", "value")

    def __init__(self, value: Any, source: Source) -> None:
        self.value = value
        self.source = source


class ForeignScalar:
    """A number or text of a class of the user's that derives from int, float, complex, str or bytes, or a NumPy scalar.

    What its class leaves to the builtin one is done with the plain value: `Outside.concrete` gives that, with a guard, and
    `Outside.number` a symbol. `cls` is the builtin class.
    """

    __slots__ = ("cls", "real", "source")

    def __init__(self, real: Any, cls: type, source: Source) -> None:
        self.real = real
        self.cls = cls
        self.source = source


_BUILTIN = (int, float, complex, str, bytes)


def scalar_class(value: Any) -> type | None:
    """The builtin class of the number or text that an object holds, None for other objects."""
    found = next((cls for cls in _BUILTIN if isinstance(value, cls)), None)
    return numpy_class(value) if found is None else found


def is_numpy(value: Any) -> bool:
    """Whether an object is a NumPy scalar: arithmetic on it gives others."""
    return type(value).__module__ == "numpy" and isinstance(value, sys.modules["numpy"].generic)


def numpy_class(value: Any) -> type | None:
    """The class of Python's number that a NumPy scalar stands for."""
    if not is_numpy(value):
        return None
    numpy: Any = sys.modules["numpy"]
    if isinstance(value, (numpy.longdouble, numpy.complexfloating)):  # more precise; PyTorch drops imaginary parts
        return None
    kinds = ((numpy.bool_, bool), (numpy.integer, int), (numpy.floating, float))
    return next((cls for kind, cls in kinds if isinstance(value, kind)), None)
