"""Two values of a kind, and ways to change the first one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

#: (do, undo) of a change.
Change = tuple[Callable[[], Any], Callable[[], Any]]


@dataclass
class Values:
    """Two values of a kind; `changes` of the first one by name: "place", "class" or "delete"."""

    first: Any
    second: Any
    changes: dict[str, Change] = field(default_factory=dict)


KINDS: dict[str, Callable[[], Values]] = {}


def kind(function: Callable[[], Values]) -> Callable[[], Values]:
    """Register a factory under its name."""
    KINDS[function.__name__] = function
    return function


def plain(name: str, first: Callable[[], Any], second: Callable[[], Any]) -> None:
    KINDS[name] = lambda: Values(first(), second())


def setter(owner: Any, name: str, new: Any) -> Change:
    """Set an attribute, and set it back or take it away."""
    missing = object()
    old = vars(owner).get(name, missing) if isinstance(owner, type) else getattr(owner, name, missing)

    def undo() -> None:
        if old is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, old)

    return (lambda: setattr(owner, name, new)), undo


def deleter(owner: Any, name: str) -> Change:
    """Delete an attribute, and set it again."""
    old = vars(owner)[name] if isinstance(owner, type) else getattr(owner, name)
    return (lambda: delattr(owner, name)), (lambda: setattr(owner, name, old))
