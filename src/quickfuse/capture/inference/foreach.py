"""Operators on lists of tensors, such as `torch._foreach_add`: what they give for one element of each kind.

The thousand parameters of an optimizer mostly have a few shapes. Elements whose operands are described alike give results
that are described alike, so that the operator is asked about one of each kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..symbolic import TensorProxy, symbolic_leaves
from .mutation import name_of
from .results import Result, SameTensor, View

#: Shorter lists are asked about as they are.
_FEW = 8


class Alike:
    """`args`, `kwargs` and `tensors` of a call on lists, with one element of each kind in place of all that are alike."""

    def __init__(self, args: Any, kwargs: Any, tensors: list[TensorProxy], kinds: list[int]) -> None:
        """`kinds` has the number of its kind for each position in the lists."""
        self._kinds = kinds
        self._positions: list[list[int]] = [[] for _ in set(kinds)]
        for position, kind in enumerate(kinds):
            self._positions[kind].append(position)
        firsts = [positions[0] for positions in self._positions]
        self._numbers: dict[int, int] = {}
        for number, tensor in enumerate(tensors):
            self._numbers.setdefault(id(tensor), number)
        self._lists = [value for value in (*args, *kwargs.values()) if _is_long(value)]

        def shorter(value: Any) -> Any:
            return type(value)([value[at] for at in firsts]) if _is_long(value) else value

        self.args, self.kwargs = tuple(map(shorter, args)), {name: shorter(value) for name, value in kwargs.items()}
        self.tensors = [leaf for leaf in symbolic_leaves((self.args, self.kwargs)) if type(leaf) is TensorProxy]
        # For each of the tensors: the list that it is in, and its kind, or None for one that is an operand itself.
        places = {id(v[at]): (k, kind) for k, v in enumerate(self._lists) for kind, at in enumerate(firsts)}
        self._places = [places.get(id(tensor)) for tensor in self.tensors]

    def whole(self, result: Result) -> Result | None:
        """What the call on the whole lists gives, of what it gives for these; None where that cannot be told."""
        structure = result.structure
        if isinstance(structure, (list, tuple)) and structure:
            if len(structure) != len(self._positions) or isinstance(structure[0], (list, tuple)):
                return None
            structure = type(structure)([self._at(structure[kind], p) for p, kind in enumerate(self._kinds)])
        elif structure is not None and structure != () and structure != []:
            return None

        def numbers(tensor: int) -> list[int]:
            place = self._places[tensor]
            if place is None:
                return [self._numbers[id(self.tensors[tensor])]]
            return [self._number(tensor, position) for position in self._positions[place[1]]]

        def spread(tensors: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(sorted(n for tensor in tensors for n in numbers(tensor)))

        changed = tuple(sorted([(n, meta) for tensor, meta in result.changed for n in numbers(tensor)], key=lambda c: c[0]))
        return replace(
            result, structure=structure, written=spread(result.written), changed=changed, unnoticed=spread(result.unnoticed)
        )

    def _at(self, leaf: Any, position: int) -> Any:
        if type(leaf) is SameTensor:
            return SameTensor(self._number(leaf.index, position))
        return replace(leaf, index=self._number(leaf.index, position)) if type(leaf) is View else leaf

    def _number(self, tensor: int, position: int) -> int:
        """The number, among all tensors, of the one at this position that stands where one of the shorter lists does."""
        place = self._places[tensor]
        return self._numbers[id(self.tensors[tensor] if place is None else self._lists[place[0]][position])]


def _is_long(value: Any) -> bool:
    return type(value) in (list, tuple) and len(value) > _FEW


def alike_in(
    function: Callable[..., Any], args: Any, kwargs: Any, tensors: list[TensorProxy],
    describe: Callable[[Any, dict[int, int]], Any],
) -> Alike | None:  # fmt: skip
    """A call on lists of tensors in short; None where it is another one, or has few elements or none that are alike."""
    if not name_of(function).startswith("_foreach_") or not args or not _is_long(args[0]):
        return None
    lists = [value for value in (*args, *kwargs.values()) if _is_long(value)]
    inside = [element for value in lists for element in value]
    if any(len(value) != len(args[0]) for value in lists) or any(type(e) in (list, tuple) for e in inside):
        return None
    places: dict[int, int] = {}
    for value in lists:
        if any(type(e) is TensorProxy and places.setdefault(id(e), at) != at for at, e in enumerate(value)):
            return None  # a tensor that stands at two positions
    if any(id(value) in places for value in (*args, *kwargs.values())):
        return None
    kinds: dict[Any, int] = {}
    try:
        found = [kinds.setdefault(describe(elements, {}), len(kinds)) for elements in zip(*lists, strict=True)]
    except TypeError:  # no plain value
        return None
    return Alike(args, kwargs, tensors, found) if 2 * len(kinds) <= len(found) else None
