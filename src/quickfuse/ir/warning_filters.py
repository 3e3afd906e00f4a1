"""Running something of our own without its warnings, such that Python does not notice.

`warnings.catch_warnings` tells Python that there are other filters, upon which every module forgets which warnings it has
shown: a program whose warning is shown once a place would show it again. Here the filters are other ones for a while
without that. Where filters belong to a context, as in Python without the global lock, they cannot be set like this.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any


def silenced() -> contextlib.AbstractContextManager[None]:
    """A `with` block whose warnings nobody sees."""
    return _filtered("ignore")


def raised() -> contextlib.AbstractContextManager[None]:
    """A `with` block whose warnings are exceptions."""
    return _filtered("error")


def forget_shown() -> None:
    """What entering and leaving `warnings.catch_warnings` does: each module forgets which warnings it has shown."""
    with warnings.catch_warnings():
        pass


@contextlib.contextmanager
def recorded(*namespaces: dict[str, Any]) -> Iterator[list[warnings.WarningMessage]]:
    """A `with` block whose warnings get into a list, those too that modules with these globals have shown before."""
    caught: list[warnings.WarningMessage] = []

    def keep(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: str | None = None) -> None:
        caught.append(warnings.WarningMessage(message, category, filename, lineno, file, line))

    shown: list[tuple[dict[str, Any], Any]] = []
    show = warnings.showwarning
    try:
        for names in namespaces:
            if _SHOWN in names:
                shown.append((names, names.pop(_SHOWN)))
        with _filtered("always"):
            warnings.showwarning = keep
            yield caught
    finally:
        warnings.showwarning = show
        for names, registry in shown:
            names[_SHOWN] = registry


@contextlib.contextmanager
def _filtered(action: Any) -> Iterator[None]:
    """With one filter, which speaks of all warnings. None of these actions makes a module remember a warning."""
    if getattr(sys.flags, "context_aware_warnings", False):
        with warnings.catch_warnings():
            warnings.simplefilter(action)
            yield
        return
    filters = warnings.filters
    try:
        warnings.filters = [(action, None, Warning, None, 0)]
        yield
    finally:
        warnings.filters = filters


#: Where a module keeps what it has shown.
_SHOWN = "__warningregistry__"
