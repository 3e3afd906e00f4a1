"""Calls of PyTorch's operators: a result's elements stand for the operator, its arguments, and all that it reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quickfuse.ir.loop import Buffer, Extern, HostScalar, View, as_view, views_in

from .hashing import as_half, factors, mixed, numbered, single, token
from .memory import Contents, Memory, Region
from .violation import ScheduleError, shortened

#: Where reads of a buffer go.
Source = Callable[[Buffer], Contents]


def region_of(view: View) -> Region:
    """The elements of a view."""
    strides = tuple([s if n > 1 else 0 for n, s in zip(view.shape, view.stride, strict=True)])
    return Region(view.offset, view.shape, strides)


def run_call(call: Extern, source: Source, memory: Memory, turn: int) -> list[tuple[Contents, Region]]:
    """Run a call, the `turn`-th of those that draw random numbers if it does. Returns what it has stored, and where.

    It reads from `source`, and stores to `memory`.

    Raises:
        ScheduleError: where it reads what nothing has stored, or what is outside of a buffer.
    """
    for view in views_in((call.args, call.kwargs)):
        _check(call, view, source)
    arguments = (_described(call.args, source), _described(call.kwargs, source))
    seed = token("call", id(call.target), arguments, turn if call.draws else -1)
    made = []
    for number, buffer in enumerate(call.outputs):
        contents = memory[buffer]
        region = region_of(as_view(buffer))
        if contents.size:
            if contents.stored:
                raise ScheduleError("twice", f"{buffer} is the result of a call once more\n  in {shortened(str(call))}")
            hashes = mixed(factors(2, "result", number), [numbered(buffer.meta.numel), single(seed)])
            hashes = as_half(hashes, buffer.meta.dtype)
            place = region.of(contents.hashes)
            hashes = hashes.reshape(region.shape or (1,))
            if place.shape != hashes.shape:  # elements that share memory
                hashes = hashes[tuple([slice(0, n) for n in place.shape])]
            contents.put(region, hashes, (None, None))
        made.append((contents, region))
    return made


def _check(call: Extern, view: View, source: Source) -> None:
    if 0 in view.shape:
        return
    region, contents = region_of(view), source(view.buffer)
    first, last = region.bounds
    if first < 0 or last >= contents.size:
        raise ScheduleError("bounds", f"elements {first} to {last} of {view.buffer} are read, which has {contents.size}"
                            f"\n  in {shortened(str(call))}")  # fmt: skip
    if not contents.holds_values(region):
        raise ScheduleError("unwritten", f"nothing has stored to all of {view}\n  in {shortened(str(call))}")


def _described(value: Any, source: Source) -> Any:
    """An argument, as values that have texts: for memory what stands for its contents."""
    if isinstance(value, (Buffer, View)):
        view = as_view(value)
        dtype = view.buffer.meta.dtype
        if 0 in view.shape:
            return "empty", view.shape, dtype
        return "memory", view.shape, dtype, source(view.buffer).digest_of(region_of(view))
    if isinstance(value, HostScalar):
        return "scalar", value.name
    if isinstance(value, (list, tuple)):
        return type(value).__name__, tuple([_described(v, source) for v in value])
    if isinstance(value, dict):
        return "dict", tuple([(key, _described(v, source)) for key, v in value.items()])
    if isinstance(value, slice):
        return "slice", tuple([_described(v, source) for v in (value.start, value.stop, value.step)])
    if isinstance(value, (bool, int, float, complex, str, type(None))):
        return type(value).__name__, repr(value)
    return "object", id(value)


