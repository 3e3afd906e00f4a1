"""Callables that are made by capture itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class SuperProxy:
    """`super()` inside an inlined method."""

    __slots__ = ("cls", "instance")

    def __init__(self, cls: type, instance: Any) -> None:
        self.cls = cls
        self.instance = instance


class NativeHandler:
    """A callable made by capture itself: `run(interpreter, *args, **kwargs)`. `made_by`, if it has a counterpart in the
    program: the function that makes it, its first argument, and the others by name."""

    __slots__ = ("made_by", "run")

    def __init__(self, run: Callable[..., Any], made_by: tuple[Any, Any, dict[str, Any]] | None = None) -> None:
        self.run = run
        self.made_by = made_by
