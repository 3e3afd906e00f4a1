"""Which guard a call does not meet: to explain why it is compiled again."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

import torch

from ..ir.guard import Guard
from ..ir.reading import lookup_all
from ..ir.segment import Segment
from ..ir.source import Source
from .glue import NATIVE, Helpers, signature_source
from .prologue import Prologue, guarded_types

#: So many guards are asked together.
_TOGETHER = 64

#: Where in a lot of guards one fails that a path cannot be followed for: at any place.
_ANYWHERE = -1


def first_failure(
    segment: Segment, like: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any], helpers: Helpers
) -> Guard | None:
    """The first guard of a segment that does not hold for a call or for suspended frames (`args`), None if all hold.

    They are asked by code of their own: slow, and only run to explain a recompilation. Guards that are asked together share
    paths to what they ask; where one of these cannot be followed, they are asked one by one.
    """
    return next(failures(segment, segment.guards, like, args, kwargs, helpers), None)


def failures(
    segment: Segment, guards: list[Guard], like: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any],
    helpers: Helpers,
) -> Iterator[Guard]:  # fmt: skip
    """Those of some guards of a segment that do not hold, in order: see `first_failure`."""
    types = guarded_types(segment.guards)
    for start in range(0, len(guards), _TOGETHER):
        some = guards[start : start + _TOGETHER]
        while some:
            failing = _failing(some, types, segment, like, args, kwargs, helpers)
            if failing is None:
                break
            if failing == _ANYWHERE:
                yield from (g for g in some if _failing([g], types, segment, like, args, kwargs, helpers) is not None)
                break
            yield some[failing]
            some = some[failing + 1 :]


def _failing(
    guards: list[Guard], types: dict[Source, type], segment: Segment, like: FunctionType, args: tuple[Any, ...],
    kwargs: dict[str, Any], helpers: Helpers,
) -> int | None:  # fmt: skip
    """The position of the first of some guards that does not hold, None if all hold."""
    prologue = Prologue(guards, [], types=types)
    try:
        for number, guard in enumerate(guards):
            prologue.lines.append(f"if {_condition_alone(prologue, guard)}: return {number}")
        signature = "(_frames)" if segment.resumes else signature_source(segment.code)
        source = f"def probe{signature}:\n" + "\n".join(f"    {line}" for line in [*prologue.lines, "return None"])
        namespace: dict[str, Any] = {
            "torch": torch, "math": math, "_lookup_all": lookup_all, **NATIVE,
            **{f"_{name}": function for name, function in helpers.items()},
            "_CELLS": dict(zip(like.__code__.co_freevars, like.__closure__ or (), strict=True)),
            **prologue.constants,
        }  # fmt: skip
        exec(_probe_code(source), namespace)
        probe: FunctionType = namespace["probe"]
        if not segment.resumes:
            probe.__defaults__, probe.__kwdefaults__ = like.__defaults__, like.__kwdefaults__
        with torch._C.DisableTorchFunctionSubclass():  # the user's classes are not to notice
            return probe(*args, **kwargs)  # type: ignore[no-any-return]
    except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError, RuntimeError, SystemError):
        return _ANYWHERE  # the last is what Python's own functions raise for an object of another class


@functools.lru_cache(maxsize=512)
def _probe_code(source: str) -> CodeType:
    """Specialisations of a function have many guards in common, and each recompilation looks at all of them once more."""
    return compile(source, "<quickfuse guard>", "exec", dont_inherit=True)


def _condition_alone(prologue: Prologue, guard: Guard) -> str:
    """The condition of one guard, also of those that are checked for many tensors together; of memory, in the usual case."""
    if guard.kind == "apart":
        return prologue._condition(Guard("unique", None, (*guard.value[0], *guard.value[1])))
    if guard.kind != "tensor" or guard.source is None:
        return prologue._condition(guard)
    cls, meta = guard.value
    name = prologue.name(guard.source)
    wanted = prologue.constant((cls, meta.dtype, meta.shape, meta.stride, meta.device), "meta")
    return f"(type({name}), {name}.dtype, tuple({name}.shape), {name}.stride(), {name}.device) != {wanted}"
