"""Lists, sets, deques and tuples of the user's that captured code looks into. `outside` is the `reading.Outside`."""

from __future__ import annotations

import collections
from typing import Any

from ...errors import Unsupported
from ..symbolic.containers import ShadowContainer
from ..symbolic.kinds import CODE_TYPES
from ..symbolic.outside import ForeignObject, is_constant

LARGEST_CONTAINER = 100_000


def open_container(outside: Any, shadow: ShadowContainer) -> Any:
    """See `Outside.open`."""
    value, source, cls = shadow.real, shadow.source, shadow.cls
    size = cls.__len__(value)
    if size > LARGEST_CONTAINER:
        raise Unsupported(f"a {type(value).__name__} of {size} elements ({source})")
    if outside.keeps_changing(source):
        raise Unsupported(f"looking into a {type(value).__name__} that keeps changing")
    elements = list(cls.__iter__(value))
    if cls in (set, frozenset):
        _open_set(outside, shadow, elements)
    else:
        outside.guard("length", source, size)
        shadow.original = [outside.wrap(v, source.item(k)) for k, v in enumerate(elements)]
        if cls is collections.deque:
            shadow.items = collections.deque(shadow.original, value.maxlen)
        else:
            shadow.items = cls(shadow.original)
        if shadow.added:
            shadow.items.extend(shadow.added)
    outside.mark_made(shadow.items, shadow)
    return shadow.items


def _open_set(outside: Any, shadow: ShadowContainer, elements: list[Any]) -> None:
    """Look into a set: what stands for it gets its elements. The guard holds the order too: it depends on what was in the
    set before."""
    if not all(is_constant(v) for v in elements):
        _open_set_of_objects(outside, shadow, elements)
        return
    copied = shadow.cls(shadow.real)  # which keeps an order that the elements may not give
    made = (copied, shadow.cls(elements))
    orders = elements, list(copied)  # of the set, and of its copies
    shadow.items = next((m for m in made if (list(m), list(shadow.cls(m))) == orders), None)
    if shadow.items is None:
        raise Unsupported("a set whose order comes from what was in it before")
    outside.guard("keys", shadow.source, tuple(elements))
    shadow.original = elements
    shadow.items |= set(map(outside.concrete, shadow.added))


def _open_set_of_objects(outside: Any, shadow: ShadowContainer, elements: list[Any]) -> None:
    """Each object is read by its place in the order: that comes of where objects lie."""
    outside.guard("length", shadow.source, len(elements))
    for place, element in enumerate(elements):
        known = outside.concrete(outside.wrap(element, shadow.source.keys().item(place)))
        if type(known) is ForeignObject and known.is_hashed_by_identity:
            outside.hashed[known.source] = None
        elif not (is_constant(known) or (isinstance(known, CODE_TYPES) and type(type(known)) is type)):
            raise Unsupported("looking into a set of objects")
        shadow.original.append(known)
    shadow.items = shadow.cls(shadow.original)
    shadow.unordered = list(map(id, shadow.items)) != list(map(id, shadow.original))
    shadow.items |= set(map(outside.concrete, shadow.added))
