"""What the captured code did to the program, for compiled code to do it afterwards."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from ...errors import Unsupported
from ...ir.reading import MISSING
from ...ir.segment import Call, Recipe
from ...ir.source import Source
from ..symbolic import DELETED, Assigned, FromOutside, TensorProxy, instance_dict
from .guarding import Guarding


class CachedCall(NamedTuple):
    """A call of a `functools.lru_cache`, `wrapper`, for what is under `key` there: `called(*args)`. `result` is what it
    gives where it fills the cache, `MISSING` otherwise."""

    wrapper: Any
    key: Any
    called: Any
    args: tuple[Any, ...]
    result: Any = MISSING


@dataclass(eq=False, slots=True)
class LockState:
    """What the captured code did with a lock, which `lock` stands for: `held`: how often it has taken and not released it;
    `was_held`: it took it, and released it; `from_beginning`: it was held from before the segment on, `released`: until it
    was released."""

    lock: FromOutside
    held: int = 0
    was_held: bool = False
    from_beginning: bool = False
    released: bool = False


@dataclass(eq=False, slots=True)
class Advanced:
    """An iterator of the user's that the captured code advances. `held` are the iterators and the containers that may
    change, which it reads, with their sources, `elements` those that it gave, or MISSING: new tuples are to live as long as
    what stands for them."""

    stand_in: FromOutside
    ahead: Any
    held: list[tuple[Any, Source]]
    elements: list[Any] = field(default_factory=list)

    @property
    def taken(self) -> int:
        """How many elements were asked for."""
        return len(self.elements)

    def iterators(self) -> list[tuple[Any, Source]]:
        """The iterator and those that it reads, with their sources."""
        inner = [(part, source) for part, source in self.held if hasattr(type(part), "__next__")]
        return [(self.stand_in.real, self.stand_in.source), *inner]


class Changes(Guarding):
    """The changes so far; those of containers are in their stand-ins."""

    def __init__(self, program: Any, volatile: frozenset[str]) -> None:
        super().__init__(program, volatile)
        #: The attributes that the captured code has set or deleted, in order: the object's stand-in, and the name.
        self.changed_attributes: list[tuple[FromOutside | TensorProxy, str]] = []
        #: Where in that list each stand-in is, by identity.
        self.changes_of: dict[int, list[int]] = {}
        #: The tensors whose gradients it has set before any operator, as `zero_grad()` at the beginning does.
        self.regraded_first: set[Source] = set()
        #: The globals and cells that it has assigned or deleted.
        self.variables: list[Assigned] = []
        #: Functions, classes and modules that PyTorch and the standard library find by their names, by namespace and name:
        #: for as long as the captured code assigns no variable, they are the same the next time.
        self.library_code: dict[tuple[int, str], Any] = {}
        #: The names of attributes that it gave to classes that did not have them.
        self.new_in_classes: set[str] = set()
        #: Calls through caches, to be made afterwards: see `cached_functions`.
        self.cached_calls: list[CachedCall] = []
        #: Calls that draw random numbers: the tensor that each number is put into, and what makes the call's recipe.
        self.draws: list[tuple[torch.Tensor | None, Callable[[Callable[[Any], Recipe]], Call]]] = []
        #: The iterators that it has advanced, by identity.
        self.iterators: dict[int, Advanced] = {}
        #: What it did with locks, by their identity.
        self.locks: dict[int, LockState] = {}
        #: The generators that it has iterated over, by identity.
        self.generators: dict[int, Any] = {}
        #: What it set context variables to and did not undo, the oldest first.
        self.tokens: list[ContextToken] = []
        #: What it printed, in order: a call of `print`, and the texts.
        self.printed: list[tuple[Callable[..., None], list[Any]]] = []
        #: What `warnings.catch_warnings` the captured code is in.
        self.filters: list[FilterScope] = []

    def noted(self, *, gradients: bool = True) -> list[Any]:
        """All changes of the user's objects so far, those of tensors' gradients among them or not: see `has_changed`."""
        noted: list[Any] = []
        for owner, name, value in self.attribute_changes():
            if gradients or name != "grad" or type(owner) is not TensorProxy:
                noted += (owner, name, value)
        for variable in self.variables:
            noted += (variable.place, variable.name, variable.value)
        for scope in self.filters:
            noted += (scope, *scope.calls)
        for container in self.containers:
            if container.items is None:
                noted += container.added
            elif container.is_changed:
                noted += (container, *container.items)
        for table in self.dictionaries:
            noted += [part for key in table.changes for part in (table, table.entries.get(key, DELETED))]
            noted += [table] * len(table.removed)
            noted += [part for entry in table.late for part in (table, *entry)]
        advanced = [element for known in self.iterators.values() for element in known.elements]
        for lock in self.locks.values():
            noted += (lock, lock.held, lock.was_held, lock.from_beginning, lock.released)
        return [*noted, *self.tokens, *self.draws, *self.printed, *advanced]

    def has_changed(self, before: list[Any]) -> bool:
        """Whether the captured code changed anything since `before` was noted. Looking at a container changes nothing."""
        now = self.noted()
        return len(now) != len(before) or any(new is not old for new, old in zip(now, before, strict=True))

    def assigned(self, place: Any, name: str = "") -> Assigned | None:
        """What the captured code did to a variable, None if it left it alone: see `Assigned`."""
        return None if not self.variables else next((v for v in self.variables if v.place is place and v.name == name), None)

    def library_name(self, namespace: dict[str, Any], name: str) -> Any:
        """What `wrap_library_code` has noted of a name, as long as no variable was assigned; else None."""
        return None if self.variables else self.library_code.get((id(namespace), name))

    def assign(self, place: Any, name: str, value: Any) -> None:
        """Note that the captured code assigned a variable, or deleted it."""
        known = self.assigned(place, name)
        if name and any(shadow.real is place for shadow in self.dictionaries):
            raise Unsupported("an assignment to a global whose dictionary is in use")
        if known is None:
            self.variables.append(Assigned(place, name, value))
        else:
            known.value = value

    def is_changed(self, container: Any) -> bool:
        """Whether the captured code has changed a container of the user's, which may be an object's `__dict__`."""
        tables = [instance_dict(owner.real) for owner, _ in self.changed_attributes]
        tables += [variable.place for variable in self.variables]
        changed = (shadow.real for shadow in (*self.containers, *self.dictionaries) if shadow.is_changed)
        return any(table is container for table in (*tables, *changed))

    def set_attribute(self, owner: FromOutside | TensorProxy, name: str, value: Any) -> None:
        """Note that the captured code set an attribute of an object of the user's, or deleted it (`DELETED`)."""
        if owner.attributes.get(name, DELETED) is DELETED:  # one that is set again comes last
            self.changes_of.setdefault(id(owner), []).append(len(self.changed_attributes))
            self.changed_attributes.append((owner, name))
        owner.attributes[name] = value

    def attribute_changes(self, of: Any = None) -> Iterator[tuple[FromOutside | TensorProxy, str, Any]]:
        """The attributes that were set or deleted, perhaps those of one object, in order: `DELETED` before another value
        for one that was set again."""
        changes = self.changed_attributes
        if of is not None:
            changes = [changes[at] for at in self.changes_of.get(id(of), ())]
        last = {(id(owner), name): at for at, (owner, name) in enumerate(changes)}
        for at, (owner, name) in enumerate(changes):
            yield owner, name, owner.attributes[name] if last[id(owner), name] == at else DELETED


@dataclass(eq=False, slots=True)
class ContextToken:
    """What `variable.set(value)` gives in captured code."""

    variable: contextvars.ContextVar[Any]
    value: Any


@dataclass(eq=False, slots=True)
class FilterScope:
    """What is between entering `warnings.catch_warnings` and leaving it: the filters, and the calls that added some."""

    manager: Any
    filters: list[Any]
    calls: list[tuple[Callable[..., None], tuple[Any, ...]]] = field(default_factory=list)
