"""Why a function was compiled again, in the user's terms.

A value that belongs to an optimizer or a scheduler is shown as its own `step` knows it, `L['self'].param_groups[0]['lr']`,
wherever the user keeps the optimizer: the path to it comes after that.
"""

from __future__ import annotations

import collections
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import torch

from ..ir.frame import FrameState
from ..ir.guard import Guard
from ..ir.iterating import ahead, read_by
from ..ir.reading import elements_in, numbers_in, plain_value
from ..ir.signatures import signature
from ..ir.source import Source
from ..ir.values import TensorMeta

#: Objects whose `step` is the unit that users think in.
_STEPPED = (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)

_NOT_FOUND = object()


@dataclass(frozen=True, slots=True)
class Failure:
    """A guard that failed, as it is shown: `function` is the one whose terms `text` is in."""

    text: str
    function: FunctionType


def report(function: FunctionType, shown: FunctionType, guards: list[Guard | None], args: Any, kwargs: Any) -> str:
    """The log entry for a call of `function`, which the user knows as `shown`, for which these guards failed.

    `args` are the call's arguments, or one list of suspended frames.
    """
    roots = _Roots(function, args, kwargs)
    failures = [_describe(guard, shown, roots) for guard in guards]
    functions = {failure.function for failure in failures}
    if len(functions) == 1:
        named = functions.pop()
        texts = [failure.text for failure in failures]
    else:
        named = shown
        texts = [_plain(guard, roots) for guard in guards]
    caller = "" if named is shown else f", called by {shown.__name__} in {_place(shown)}"
    if roots.frames is not None:
        caller += f", from {roots.frames[-1].location} on"
    head = f"Recompiling function {named.__name__} in {_place(named)}{caller}"
    return "\n".join([head, "    triggered by the following guard failure(s):", *(f"    - {text}" for text in texts)])


def limit_message(place: str, times: int, guards: list[Guard | None]) -> str:
    """What is said where a place in a program was compiled too often: `guards` are those that failed the last time."""
    if len(guards) < 1 or all(guard is None for guard in guards):
        return f"{place} was compiled {times} times, for tensors that differ. It now runs natively. {_OR_MORE}"
    named = [guard for guard in guards if guard is not None]
    often, _ = collections.Counter(map(_what, named)).most_common(1)[0]
    same = [guard for guard in named if _what(guard) == often]
    shown = f"{same[0]}  # {same[0].location}" if same[0].location else str(same[0])
    return (
        f"{place} was compiled {times} times; the guard that keeps failing is {shown}. It now runs natively. "
        f"{_advice(same)} {_OR_MORE}"
    )


_OR_MORE = "Or raise config.recompile_limit."

_ADVICE = {
    "requires_grad": "Call it with tensors that require gradients, or with tensors that do not.",
    "condition": "Pass the number as a tensor, and decide by torch.where.",
    "length": "Pass containers of one length, or their contents as one tensor.",
    "keys": "Pass dictionaries with the same keys in the same order.",
    "absent": "Pass dictionaries with the same keys in the same order.",
    "is": "Pass one and the same object: make it once, in front of the calls.",
    "type": "Pass values of one type.",
    "same": "Pass objects that are one, or that are different, at all calls alike.",
    "distinct": "Pass objects that are one, or that are different, at all calls alike.",
    "unique": "Pass objects that are one, or that are different, at all calls alike.",
    "state": "Set it once, instead of between calls.",
}


def _what(guard: Guard) -> tuple[str, str]:
    """What a guard is about, whatever it requires of it."""
    if guard.kind == "condition":
        return guard.kind, guard.value[0].template
    return guard.kind, str(guard.source)


def _advice(guards: list[Guard]) -> str:
    """What to do where guards on one thing keep failing."""
    guard = guards[0]
    if guard.kind == "tensor":
        metas = [g.value[1] for g in guards]
        if len({meta.shape for meta in metas}) > 1:
            return "Pass tensors of a few sizes, padded if need be."
        if len({meta.dtype for meta in metas}) > 1:
            return "Convert the tensor to one type first."
        return "Pass tensors of one layout: contiguous() makes it so."
    if guard.kind == "equal":
        number = type(guard.value) in (int, float, complex)
        return "Pass the number as a tensor." if number else "Pass one of a few values, or keep it out of compiled code."
    return _ADVICE.get(guard.kind, "Call it with what changes less.")


def _place(function: FunctionType) -> str:
    return f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"


def _plain(guard: Guard | None, roots: _Roots) -> str:
    if guard is None:
        return "a tensor guard"
    notes = [guard.location] if guard.location else []
    value = roots.value(guard.source) if guard.kind == "tensor" and guard.source is not None else None
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        meta = TensorMeta(value.dtype, tuple(value.shape), value.stride(), value.device, value.requires_grad)
        notes.insert(0, f"now {meta}")
    return f"{guard}  # {', at '.join(notes)}" if notes else str(guard)


def _describe(guard: Guard | None, shown: FunctionType, roots: _Roots) -> Failure:
    """A guard in the terms of the optimizer's `step` that needed it, or in those of the compiled function."""
    owner = _owner(guard, roots) if guard is not None and guard.library_code is not None else None
    if guard is None or owner is None:
        return Failure(_plain(guard, roots), shown)
    source, step = owner
    path, before = str(source), source.label
    source.label = "L['self']"
    try:
        text = str(guard)
    finally:
        source.label = before
    if step is shown:
        return Failure(f"{text}  # {guard.location}", shown)
    return Failure(f"{text}  # self is {path}, at {guard.location}", step)


def _owner(guard: Guard, roots: _Roots) -> tuple[Source, FunctionType] | None:
    for source in _sources(guard):
        step: Source | None = source.base
        while step is not None:
            value = roots.value(step)
            if isinstance(value, _STEPPED):
                function = inspect.unwrap(type(value).step)
                return (step, function) if isinstance(function, FunctionType) else None
            step = step.base
    return None


def _sources(guard: Guard) -> Iterator[Source]:
    if guard.source is not None:
        yield guard.source
    elif guard.kind == "condition":
        yield from guard.value[0].sources()


def values_now(function: FunctionType, args: Any, kwargs: Any) -> Callable[[Source], Any]:
    """What tells the value at a source in this call."""
    roots = functools.cache(lambda: _Roots(function, args, kwargs))
    return lambda source: roots().value(source)


class _Roots:
    """Where sources begin in one call; finds the values that they lead to now."""

    def __init__(self, function: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.frames: list[FrameState] | None = None
        self._cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        self._locals: dict[str, Any] = {}
        if len(args) == 1 and isinstance(args[0], list) and args[0] and isinstance(args[0][0], FrameState):
            self.frames = args[0]
        else:
            bound = signature(function, follow_wrapped=False).bind(*args, **kwargs)
            bound.apply_defaults()
            self._locals = dict(bound.arguments)

    def value(self, source: Source) -> Any:
        try:
            return self._value(source)
        except Exception:  # what a log line looks at must not stop the program
            return _NOT_FOUND

    def _value(self, source: Source) -> Any:
        if source.kind == "local":
            return self._locals[source.key]
        if source.kind == "slot":
            assert self.frames is not None
            depth, place, index = source.key
            values = getattr(self.frames[depth], place)
            return values if place == "replacement" else values[index]
        if source.kind == "closure":
            return self._cells[source.key].cell_contents
        if source.kind == "global":
            return source.owner[source.key]
        if source.kind == "constant":
            return source.owner
        assert source.base is not None
        base = self._value(source.base)
        if source.kind == "referent":
            return base()
        if source.kind == "contents":
            return base.item()
        if source.kind == "elements":
            return elements_in(base)
        if source.kind == "numbers":
            return numbers_in(base)
        if source.kind == "plain":
            return plain_value(source.key, base)
        if source.kind == "keys":
            return [*base]
        if source.kind == "ahead":
            return ahead(base)
        if source.kind == "read_by":
            return read_by(base)
        if source.kind == "attr":
            plain = isinstance(base, (type, ModuleType))
            return getattr(base, source.key) if plain else object.__getattribute__(base, source.key)
        if isinstance(base, dict):  # of which some make an entry when they are asked
            return dict.get(base, self._value(source.key) if isinstance(source.key, Source) else source.key, _NOT_FOUND)
        return base[self._value(source.key) if isinstance(source.key, Source) else source.key]
