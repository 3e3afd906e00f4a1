"""Runs the phases of a `Nest` on hashes, some thousands of elements at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from quickfuse.ir.loop import Buffer

from .hashing import Array, combined, factors, is_half, mixed, of_numbers, single, spread, token
from .memory import Contents, Region, Shape
from .nest import (
    CONSTANT,
    COUNT,
    INDEX,
    LOAD,
    OPERATION,
    PICKED,
    PLACE,
    PREVIOUS,
    REDUCED,
    SCALAR,
    SCAN,
    SHARED,
    Assign,
    Instruction,
    Nest,
    Operation,
    Phase,
    ScatterTo,
    Value,
    constant,
)  # fmt: skip
from .picks import pick
from .violation import ScheduleError, shortened

#: So many elements are computed at a time: caches hold that, and the C library has such arrays at hand, which take ten times
#: as long if they are new pages of memory each.
_AT_A_TIME = 1 << 14


@dataclass(frozen=True, slots=True)
class Box:
    """The indices from `begin` on, within `shape`."""

    begin: Shape
    shape: Shape

    def of(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The part of an array over the whole index space, which has size 1 where it does not change."""
        if array.ndim < len(self.shape):
            return array
        index = [slice(0, 1) if whole == 1 else slice(b, b + n)
                 for whole, b, n in zip(array.shape, self.begin, self.shape, strict=True)]  # fmt: skip
        return array[tuple(index)]

    def positions(self, axis: int) -> npt.NDArray[np.int64]:
        """The indices of an axis."""
        indices = np.arange(self.begin[axis], self.begin[axis] + self.shape[axis], dtype=np.int64)
        return indices.reshape([-1 if k == axis else 1 for k in range(len(self.shape))])


def boxes(shape: Shape, whole: set[int], begin: Shape | None = None) -> Iterator[Box]:
    """Parts of an index space, none of which is large; axes that must stay `whole` are not cut."""
    begin = begin or (0,) * len(shape)
    count = math.prod(shape)
    axis = next((k for k, n in enumerate(shape) if n > 1 and k not in whole), None)
    if count <= _AT_A_TIME or axis is None:
        yield Box(begin, shape)
        return
    step = max(shape[axis] * _AT_A_TIME // count, 1)
    for start in range(0, shape[axis], step):
        part = (*shape[:axis], min(step, shape[axis] - start), *shape[axis + 1 :])
        at = (*begin[:axis], begin[axis] + start, *begin[axis + 1 :])
        yield from boxes(part, whole if part[axis] > 1 else {*whole, axis}, at)


class Execution:
    """One run of a nest. Loads read `source(buffer)`, and stores go to `target(buffer)`.

    `busy` tells which elements of a buffer the launch stores to, None where it stores to none: no computed offset may lead
    there. `stored` is called after all stores of a statement. `shared` are the values of earlier loops of the same shape.
    """

    def __init__(
        self, nest: Nest, source: Callable[[Buffer], Contents], target: Callable[[Buffer], Contents],
        busy: Callable[[Buffer], npt.NDArray[np.bool_] | None], stored: Callable[[Nest, Phase, Assign, Contents], None],
        shared: dict[int, Value] | None = None,
    ) -> None:  # fmt: skip
        self.nest = nest
        self.source = source
        self.target = target
        self.busy = busy
        self.stored = stored
        self.reduced: dict[int, Value] = {}
        self.shared = {} if shared is None else shared
        self._regions: list[Region] = []

    def run(self) -> None:
        for phase in self.nest.phases:
            self._run(phase)

    def fail(self, kind: str, phase: Phase, instruction: int, what: str) -> ScheduleError:
        """An error in what computes the result of an instruction."""
        return ScheduleError(kind, f"{what}\n  in {shortened(self.nest.describe(phase.statement_of(instruction)))}")

    # --- a phase ---

    def _run(self, phase: Phase) -> None:
        shape = phase.shape(self.nest.shape)
        self._regions = [operand.region(shape) for operand in self.nest.operands]
        self._check_loads(phase)
        self._check_stores(phase, shape)
        totals = {}
        for reduce in phase.reduces:
            rows = tuple([1 if k in reduce.axes else n for k, n in enumerate(shape)])
            totals[reduce.number] = np.zeros(rows, dtype=np.uint64)
        digests = [0] * len(phase.scatters)
        for box in boxes(shape, phase.whole):
            values = self._evaluate(phase, box)
            for reduce in phase.reduces:
                value = values[reduce.value]
                added = _sum(spread(value.hashes, reduce.combine, value.dtype), box.shape, reduce.axes)
                part = box.of(totals[reduce.number])
                part += added
            for number, scatter in enumerate(phase.scatters):
                digests[number] += self._scattered(scatter, box, values)
            self._keep(phase, shape, box, values)
            self._assign(phase, box, values)  # last: values may be views of what is in memory
        for reduce in phase.reduces:
            dtype = phase.instructions[reduce.value].dtype
            self.reduced[reduce.number] = Value(dtype, combined(totals[reduce.number], reduce.combine, dtype))
        for scatter, digest in zip(phase.scatters, digests, strict=True):
            self.target(self.nest.operands[scatter.operand].buffer).scatter(digest)
        for assign in phase.assigns:
            self.stored(self.nest, phase, assign, self.target(self.nest.operands[assign.operand].buffer))

    def _check_loads(self, phase: Phase) -> None:
        for number, instruction in enumerate(phase.instructions):
            if instruction.kind == REDUCED and instruction.payload not in self.reduced:
                raise self.fail("form", phase, number, f"r{instruction.payload} is used before it is complete")
            if instruction.kind != LOAD:
                continue
            operand = self.nest.operands[instruction.payload]
            if phase.once and any(s and n > 1 and k in phase.once
                   for k, (s, n) in enumerate(zip(operand.strides, self.nest.shape, strict=True))):  # fmt: skip
                raise self.fail("form", phase, number, f"{operand.buffer} changes within a row, but what is stored does not")
            region, contents = self._regions[instruction.payload], self.source(operand.buffer)
            first, last = region.bounds
            if first < 0 or last >= contents.size:
                raise self.fail("bounds", phase, number, f"elements {first} to {last} of {operand.buffer} are read, "
                                f"which has {contents.size}")  # fmt: skip
            if not contents.holds_values(region):
                raise self.fail("unwritten", phase, number, f"nothing has stored to all of {_text(operand.buffer, region)}")

    def _check_stores(self, phase: Phase, shape: Shape) -> None:
        for assign in phase.assigns:
            operand = self.nest.operands[assign.operand]
            region, contents = self._regions[assign.operand], self.target(operand.buffer)
            first, last = region.bounds
            if first < 0 or last >= contents.size:
                raise ScheduleError("bounds", f"elements {first} to {last} of {operand.buffer} are stored to, which has "
                                    f"{contents.size}\n  in {self._text(assign)}")  # fmt: skip
            if assign.to_flag:
                continue
            if not region.is_injective():
                raise ScheduleError("twice", f"several indices of {shape} mean one element of {operand.buffer}\n  in "
                                    f"{self._text(assign)}")  # fmt: skip
            in_place = any(assign.operand in one.loaded for one in self.nest.phases)  # which hashes tell from a second time
            if not in_place and contents.stored and bool(region.of(contents.written).any()):
                raise ScheduleError("twice", f"an element of {operand.buffer} is stored to once more\n  in "
                                    f"{self._text(assign)}")  # fmt: skip

    def _text(self, assign: Assign) -> str:
        return shortened(self.nest.describe(assign.statement))

    def _assign(self, phase: Phase, box: Box, values: list[Any]) -> None:
        several = len(phase.assigns) > 1
        made = []
        for assign in phase.assigns:
            value: Value = values[assign.value]
            hashes = value.hashes.copy() if several and phase.instructions[assign.value].kind == LOAD else value.hashes
            made.append((assign, value, hashes))
        for assign, value, hashes in made:
            operand = self.nest.operands[assign.operand]
            contents = self.target(operand.buffer)
            if assign.to_flag:
                contents.note_conditions(hashes, value.numbers if value.is_known else None)
            else:
                contents.put(self._regions[assign.operand].part(box.begin, box.shape), hashes, (value.numbers, value.where))

    def _keep(self, phase: Phase, shape: Shape, box: Box, values: list[Any]) -> None:
        """Keep what later loops need, put together out of the boxes."""
        for identity, number in phase.kept.items():
            value: Value = values[number]
            if box.shape == shape:
                self.shared[identity] = value
                continue
            whole = self.shared.get(identity)
            if whole is None:
                whole = self.shared[identity] = Value(value.dtype, np.empty(shape, np.uint64))
            box.of(whole.hashes)[...] = value.hashes
            if value.numbers is not None:
                if whole.numbers is None:
                    whole.numbers, whole.where = np.zeros(shape, value.numbers.dtype), np.zeros(shape, np.bool_)
                box.of(whole.numbers)[...] = value.numbers
                box.of(whole.where)[...] = True if value.where is None else value.where

    def _scattered(self, scatter: ScatterTo, box: Box, values: list[Any]) -> int:
        place = of_numbers(self._regions[scatter.operand].part(box.begin, box.shape).positions(), torch.int64)
        turn = of_numbers(box.positions(scatter.along), torch.int64)
        parts = [values[k].hashes for k in (scatter.offset, scatter.inside, scatter.value)]
        each = mixed(factors(5, "scatter"), [place, turn, *parts])
        each = spread(each, "scatter", torch.int64)
        return int(_sum(each, box.shape, tuple(range(len(box.shape)))).reshape(-1)[0])

    # --- values ---

    def _evaluate(self, phase: Phase, box: Box) -> list[Any]:
        values: list[Any] = [None] * len(phase.instructions)
        for number, instruction in enumerate(phase.instructions):
            arguments = [values[k] for k in instruction.arguments]
            kind = instruction.kind
            if kind == OPERATION:
                values[number] = operated(instruction.payload, arguments)
            elif kind == PICKED:
                values[number] = self._picked(phase, number, instruction, box, arguments)
            elif kind == SCAN:
                values[number] = _scanned(instruction, box, arguments[0])
            else:
                values[number] = self._leaf(instruction, box)
            for k in instruction.arguments:
                if phase.last_use[k] == number:
                    values[k] = None
        return values

    def _leaf(self, instruction: Instruction, box: Box) -> Any:
        kind, payload, dtype = instruction.kind, instruction.payload, instruction.dtype
        if kind == LOAD:
            operand = self.nest.operands[payload]
            return loaded(self.source(operand.buffer), self._regions[payload].part(box.begin, box.shape), dtype)
        if kind == CONSTANT:
            return payload
        if kind == SHARED:
            return part_of(self.shared[payload], box)
        if kind == INDEX:
            return Value(dtype, None, box.positions(payload))
        if kind == COUNT:
            return Value(dtype, None, np.array([math.prod(self.nest.shape[k] for k in payload)], dtype=np.int64))
        if kind == REDUCED:
            return Value(dtype, box.of(self.reduced[payload].hashes))
        if kind == SCALAR:
            scalar = self.nest.scalars[payload]
            if not isinstance(scalar, str):
                return constant(scalar, dtype)
            return Value(dtype, single(token("scalar", scalar, dtype)))
        if kind == PREVIOUS:
            return Value(dtype, single(token("previous", self.target(self.nest.operands[payload].buffer).name)))
        assert kind == PLACE
        return None

    def _picked(
        self, phase: Phase, number: int, instruction: Instruction, box: Box, arguments: list[Value]
    ) -> Value:
        operand = self.nest.operands[instruction.payload]
        places = self._regions[instruction.payload].part(box.begin, box.shape).positions()
        offset, inside = arguments
        found = pick(self.source(operand.buffer), places, offset, inside, self.busy(operand.buffer), instruction.dtype)
        if isinstance(found, Value):
            return found
        raise self.fail(*found[:1], phase, number, found[1])


def part_of(value: Value, box: Box) -> Value:
    """The part of a value over the whole index space."""
    if value.numbers is None:
        return Value(value.dtype, box.of(value.hashes))
    where = None if value.where is None else box.of(value.where)
    hashes = None if where is None else box.of(value.hashes)
    if where is not None and not where.any():
        return Value(value.dtype, hashes)
    return Value(value.dtype, hashes, box.of(value.numbers), None if where is None or where.all() else where)


def loaded(contents: Contents, region: Region, dtype: torch.dtype) -> Value:
    """The values of a region."""
    hashes = region.of(contents.hashes)
    if contents.known is None:
        return Value(dtype, hashes)
    numbers, where = region.of(contents.known[0]), region.of(contents.known[1])
    if not where.any():
        return Value(dtype, hashes)
    return Value(dtype, hashes, numbers, None if where.all() else where)


def operated(operation: Operation, arguments: list[Value]) -> Value:
    """The result of an operation: known where all arguments are."""
    if operation.is_where and arguments[0].numbers is not None:
        return _chosen(operation, *arguments)
    if operation.neutral is not None and any(argument.numbers is not None for argument in arguments):
        return _connected(operation, *arguments)
    dtype = operation.dtype
    if operation.rule is None or any(argument.numbers is None for argument in arguments):
        return Value(dtype, _mixed(operation, arguments))
    with np.errstate(all="ignore"):
        numbers = operation.rule(*[argument.numbers for argument in arguments])
    masks = [argument.where for argument in arguments if argument.where is not None]
    if not masks:
        return Value(dtype, None, numbers)
    where = masks[0]
    for mask in masks[1:]:
        where = where & mask
    return Value(dtype, np.where(where, of_numbers(numbers, dtype), _mixed(operation, arguments)), numbers, where)


def _mixed(operation: Operation, arguments: list[Value]) -> Array:
    """The hashes of what is not known as a number.

    A sum with a number, which may be its first or its last term, is marked where that is not -0.0: it is never -0.0 then,
    so that zero can be added to it without any change. Of numbers of 16 bits, which are marked, too, zero is taken for the
    same whatever its sign; as numbers of more bits they stay what they are.
    """
    if operation.widens:
        return arguments[0].hashes
    hashes = mixed(operation.factors, [argument.hashes for argument in arguments])
    if operation.rounds:
        exact = arguments[0].hashes
        return np.where(is_half(exact, [operation.dtype]), exact, hashes)
    if not operation.is_sum or all(argument.numbers is None for argument in arguments):
        return hashes
    for number, rest in (arguments, arguments[::-1]):
        if number.numbers is None:
            continue
        is_zero = number.numbers == 0
        unsigned = _is_known(number) & ~(is_zero & np.signbit(number.numbers))
        marked = mixed(operation.factors, [rest.hashes, number.hashes]) & ~_MARK | _MARKED
        stays = is_zero & ((rest.hashes & _MARK == _MARKED) | is_half(rest.hashes))
        hashes = np.where(unsigned, np.where(stays, rest.hashes, marked), hashes)
    return hashes


#: The bits that mark hashes of values that are never -0.0, and how.
_MARK, _MARKED = np.uint64(0xFFFF), np.uint64(0xA55A)


def _chosen(operation: Operation, condition: Value, one: Value, other: Value) -> Value:
    """`where` with a condition that is known, at least somewhere: the value that is chosen."""
    first = condition.numbers
    hashes = np.where(first, one.hashes, other.hashes)
    where = np.where(first, *map(_is_known, (one, other)))
    if condition.where is not None:
        unknown = mixed(operation.factors, [condition.hashes, one.hashes, other.hashes])
        hashes, where = np.where(condition.where, hashes, unknown), where & condition.where
    if not where.any():
        return Value(operation.dtype, hashes)
    numbers = [0 if v.numbers is None else v.numbers for v in (one, other)]
    kind = (one if one.numbers is not None else other).numbers.dtype
    return Value(operation.dtype, hashes, np.where(first, *numbers).astype(kind), None if where.all() else where)


def _connected(operation: Operation, one: Value, other: Value) -> Value:
    """`and` or `or` of conditions, at least one of which is known somewhere: that leaves the other one, or decides alone."""
    neutral = np.array([operation.neutral])
    numbers = [neutral if v.numbers is None else np.where(_is_known(v), v.numbers, neutral) for v in (one, other)]
    assert operation.rule is not None
    result = operation.rule(*numbers)
    decided = (result != neutral) | (_is_known(one) & _is_known(other))
    hashes = mixed(operation.factors, [one.hashes, other.hashes])
    for mine, rest in ((one, other), (other, one)):
        hashes = np.where(_is_known(mine), rest.hashes, hashes)
    if not decided.any():
        return Value(operation.dtype, hashes)
    hashes = np.where(decided, of_numbers(result, operation.dtype), hashes)
    return Value(operation.dtype, hashes, result, None if decided.all() else decided)


def _is_known(value: Value) -> npt.NDArray[np.bool_]:
    """Where a value is known as a number."""
    if value.numbers is None:
        return np.zeros((1,), np.bool_)
    return np.ones((1,), np.bool_) if value.where is None else value.where


def _scanned(instruction: Instruction, box: Box, value: Value) -> Value:
    combine, along = instruction.payload
    hashes = spread(value.hashes, combine, value.dtype)
    shape = [1] * len(box.shape) if hashes.ndim < len(box.shape) else list(hashes.shape)
    shape[along] = box.shape[along]
    totals = np.cumsum(np.broadcast_to(hashes, shape), axis=along, dtype=np.uint64)
    return Value(instruction.dtype, combined(totals, combine, instruction.dtype))


def _sum(hashes: Array, shape: Shape, axes: Shape) -> Array:
    """The sum over some axes of a shape to which hashes are broadcast; these axes have size 1 then."""
    if hashes.ndim < len(shape):
        hashes = hashes.reshape((1,) * len(shape))
    times = math.prod(shape[axis] for axis in axes if hashes.shape[axis] == 1)
    return hashes.sum(axis=axes, keepdims=True, dtype=np.uint64) * np.uint64(times)


def _text(buffer: Buffer, region: Region) -> str:
    first, last = region.bounds
    return f"{buffer}[{first}..{last}]"
