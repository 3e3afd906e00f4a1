"""Values that are different formulas on different parts of their index space: pads, concatenations, rolls.

Such a value is a choice by where the index is: `where(lt(i0, 3), this, that)`. On a part of the space where all indices
agree, there is no choice left.
"""

from __future__ import annotations

import math

import torch

from .expr import COMPARISONS, HALF_TYPES, PICK, Const, Expr, Index, Load, Op, Place, convert, pick, with_arguments

I64, BOOL = torch.int64, torch.bool

#: The least and the greatest value of an int64 expression; None where that is not known.
_Range = tuple[int, int] | None


def on_part(value: Expr, part: tuple[tuple[int, int], ...]) -> Expr:
    """A value without the choices whose outcome is the same on all of a part of its index space: the first index and the end
    on each axis."""
    return _Specialiser(part).value(value)


def simplified(value: Expr, shape: tuple[int, ...]) -> Expr:
    """A value without the choices whose outcome is the same everywhere in its index space."""
    return on_part(value, tuple([(0, size) for size in shape]))


def count_choices(value: Expr, known: dict[int, tuple[Expr, int]]) -> int:
    """About how many formulas a value chooses from. `known` keeps what was found, for values made of others."""
    if id(value) in known:
        return known[id(value)][1]
    stack = [value]
    while stack:
        node = stack[-1]
        args = node.args if isinstance(node, Op) else ()
        missing = [arg for arg in args if id(arg) not in known]
        if missing:
            stack.extend(missing)
            continue
        counts = [known[id(arg)][1] for arg in args]
        chooses = isinstance(node, Op) and node.name == "where" and _is_choice(node.args[0])
        known[id(node)] = (node, counts[1] + counts[2] if chooses else max(counts, default=1))
        stack.pop()
    return known[id(value)][1]


def _is_choice(condition: Expr) -> bool:
    while isinstance(condition, Op) and condition.name in ("and", "not"):
        condition = condition.args[0]
    return isinstance(condition, Op) and condition.name in COMPARISONS and linear(condition.args[0]) is not None


def linear(value: Expr) -> tuple[int, int, int] | None:
    """(axis, factor, constant) of `factor * index + constant`."""
    if isinstance(value, Index):
        return value.axis, 1, 0
    if not isinstance(value, Op) or len(value.args) != 2 or not isinstance(value.args[1], Const):
        return None
    inner = linear(value.args[0])
    if inner is None:
        return None
    number = int(value.args[1].value)  # beside an index, that is a whole number
    axis, factor, constant = inner
    if value.name == "add":
        return axis, factor, constant + number
    if value.name == "sub":
        return axis, factor, constant - number
    return (axis, factor * number, constant * number) if value.name == "mul" and number else None


# --- the value on one part ---


def _is_unsigned(value: Expr) -> bool:
    return type(value) is Const and (value.value != 0 or math.copysign(1.0, value.value) > 0)


def _is_sum_in(value: Expr, dtype: torch.dtype) -> bool:
    """Whether a value is a sum of numbers of a narrower type: it is then zero if it rounds to zero there."""

    def is_narrow(term: Expr) -> bool:
        converted = isinstance(term, Op) and term.name == "cast" and term.args[0].dtype is dtype
        return converted or (type(term) is Const and term.value == 0)

    return isinstance(value, Op) and value.name == "add" and all(map(is_narrow, value.args))


def _zero(dtype: torch.dtype) -> Expr:
    wide = torch.float32 if dtype in HALF_TYPES else dtype
    constant = Const(convert(0, wide), wide)
    return constant if wide is dtype else Op("cast", (constant,), dtype)


class _Specialiser:
    """Rewrites a value for a part of its index space, with choices decided where all indices of the part agree."""

    def __init__(self, part: tuple[tuple[int, int], ...]) -> None:
        self.part = part
        self.done: dict[int, Expr] = {}
        self.ranges: dict[int, _Range] = {}
        #: By its id, a value that is never -0.0.
        self.unsigned: dict[int, Expr] = {}

    def value(self, root: Expr) -> Expr:
        done = self.done
        stack = [root]
        while stack:
            node = stack[-1]
            if id(node) in done:
                stack.pop()
                continue
            if not isinstance(node, Op):
                done[id(node)] = node
            elif (needed := self._needed(node)) is not None:
                stack.extend(needed)
                continue
            else:
                done[id(node)] = self._made(node)
            stack.pop()
        return done[id(root)]

    def _needed(self, node: Op) -> list[Expr] | None:
        """The arguments that have to be rewritten first; what is not chosen never is."""
        args: tuple[Expr, ...] = node.args
        decides = 0 if node.name == "where" else 2 if node.name == PICK else None
        if decides is not None:
            condition = self.done.get(id(args[decides]))
            if condition is None:
                return [args[decides]]
            if isinstance(condition, Const):
                if node.name == PICK:
                    args = args if condition.value else ()
                else:
                    args = (args[1] if condition.value else args[2],)
        return [arg for arg in args if id(arg) not in self.done] or None

    def _made(self, node: Op) -> Expr:
        done = self.done
        if node.name == "where" and isinstance(condition := done[id(node.args[0])], Const):
            return done[id(node.args[1] if condition.value else node.args[2])]
        if node.name == PICK and isinstance(inside := done[id(node.args[2])], Const):
            if not inside.value:
                return _zero(node.dtype)
            place, offset = done[id(node.args[0])], done[id(node.args[1])]
            if isinstance(offset, Const) and offset.value == 0:
                assert isinstance(place, Place)
                return Load(place.access, node.dtype)
            return pick(place, offset, inside)
        args = tuple([done[id(arg)] for arg in node.args])
        if node.dtype is BOOL and (decided := self._decided(node.name, args)) is not None:
            return decided
        if node.dtype.is_floating_point:
            if node.name == "add":
                return self._sum(node, args)
            if node.name == "cast" and args[0].dtype.is_floating_point:
                return self._converted(node, args[0])
        return with_arguments(node, args)

    def _converted(self, node: Op, value: Expr) -> Expr:
        """A number of another type: zeros of padded terms are constants in each, and what is rounded to 16 bits between two
        sums is not rounded again where the second one adds nothing."""
        before = value.args[0] if isinstance(value, Op) and value.name == "cast" else None
        if before is not None and node.dtype in HALF_TYPES and before.dtype is node.dtype and value.dtype not in HALF_TYPES:
            return before
        if type(before) is Const and before.value == 0 and node.dtype not in HALF_TYPES:
            return Const(convert(before.value, node.dtype), node.dtype)
        made = with_arguments(node, (value,))
        if id(value) in self.unsigned and (node.dtype.itemsize > value.dtype.itemsize or _is_sum_in(value, node.dtype)):
            self.unsigned[id(made)] = made
        return made

    def _sum(self, node: Op, args: tuple[Expr, ...]) -> Expr:
        """A sum without the zeros that its padded terms have here: `x + 0.0` is `x`, unless that is -0.0, which no sum is
        with a number that is not."""
        if type(args[0]) is Const:  # equal parts of a sum become equal formulas, wherever their zeros were
            args = args[::-1]
        term, number = args
        if not _is_unsigned(number):
            return with_arguments(node, args)
        if number.value == 0 and (id(term) in self.unsigned or _is_unsigned(term)):  # type: ignore[attr-defined]
            return term
        made = with_arguments(node, args)
        self.unsigned[id(made)] = made
        return made

    def _decided(self, name: str, args: tuple[Expr, ...]) -> Expr | None:
        if name in ("and", "or"):
            for one, other in (args, args[::-1]):
                if isinstance(one, Const):
                    return other if bool(one.value) == (name == "and") else one
        elif name == "not" and isinstance(args[0], Const):
            return Const(not args[0].value, BOOL)
        elif name in COMPARISONS and args[0].dtype is I64:
            outcome = _compare(name, self._range(args[0]), self._range(args[1]))
            return None if outcome is None else Const(outcome, BOOL)
        return None

    def _range(self, value: Expr) -> _Range:
        if isinstance(value, Const):
            return (int(value.value), int(value.value))
        if isinstance(value, Index):
            first, end = self.part[value.axis]
            return (first, end - 1)
        if not isinstance(value, Op) or value.name not in ("add", "sub", "mul"):
            return None
        if id(value) not in self.ranges:
            one, two = map(self._range, value.args)
            self.ranges[id(value)] = None if one is None or two is None else _combined(value.name, one, two)
        return self.ranges[id(value)]


def _combined(name: str, one: tuple[int, int], two: tuple[int, int]) -> _Range:
    if name == "add":
        ends = [one[0] + two[0], one[1] + two[1]]
    elif name == "sub":
        ends = [one[0] - two[1], one[1] - two[0]]
    else:
        ends = [a * b for a in one for b in two]
    low, high = min(ends), max(ends)
    return (low, high) if low > -(1 << 62) and high < 1 << 62 else None


def _compare(name: str, one: _Range, two: _Range) -> bool | None:
    """The outcome of a comparison of values in ranges, where it is the same for all."""
    if one is None or two is None:
        return None
    if name in ("gt", "le"):
        outcome = _compare("lt", two, one)
        return outcome if outcome is None or name == "gt" else not outcome
    if name in ("lt", "ge"):
        outcome = True if one[1] < two[0] else False if one[0] >= two[1] else None
        return outcome if outcome is None or name == "lt" else not outcome
    if one[1] < two[0] or two[1] < one[0]:
        return name == "ne"
    return name == "eq" if one[0] == one[1] == two[0] == two[1] else None
