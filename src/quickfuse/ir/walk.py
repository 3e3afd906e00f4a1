"""A walk through the user's objects, as data: the steps that lead from a few roots to everything that guards look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

#: Values that hold nothing of the user's, and that are compared by what is in them.
PLAIN_VALUES = (int, float, complex, str, bytes, torch.dtype, torch.device)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a walk. `kind`: "root" (number `key` of the roots), "dict" (the `__dict__` of an instance), "attr"
    (attribute `key` of an instance), "item" (of a dictionary, list or tuple), "lookup" (in a dictionary; the key is the
    value of step `key`), "class" (`key` itself, which is one) or "member" (what a class itself has under the name `key`).
    `base` is the number of an earlier step. `opened`: facts about the container are relied on; `ordered`: also about the
    order of its keys. `typed`: its type is relied on.
    """

    kind: str
    base: int
    key: Any
    opened: bool = False
    ordered: bool = False
    typed: bool = False


def is_plain_attribute(kind: type, name: str) -> bool:
    """Whether reading an attribute of an instance of this class gives what is in its dictionary, or in a class."""
    if kind.__getattribute__ is not object.__getattribute__:  # type: ignore[comparison-overlap]
        return False
    found = next((owner.__dict__[name] for owner in kind.__mro__ if name in owner.__dict__), None)
    return found is None or type(found) in (*PLAIN_VALUES, bool)


@dataclass(frozen=True, slots=True)
class Holder:
    """What keeps a checked tensor alive while nothing changes. `kind`: "walk" (result `number` of a walk), "caller" (tensor
    `number` of those that the caller has), or "grad" (it is the gradient of checked tensor `number`)."""

    kind: str
    number: int


#: The word of what is known about the tensors of a check (`launch.same_tensors`) that says that gradients are at other
#: addresses, which nobody has made use of yet.
MOVED = 13
