"""What tells the sizes of a call's tensors, so that a specialisation for them is looked up and not searched for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch

from ..ir.default_device import default_device
from ..ir.generated import generated_function
from ..ir.reading import lookup_all
from ..ir.segment import Segment
from ..ir.source import Source, steps_to
from .glue import MISS, NATIVE, Helpers, signature_source
from .prologue import Prologue, guarded_types

#: How a tensor is reached whose sizes are looked up: along what reads nothing but an object's own attributes and items. Not
#: from a constant: each specialisation holds its own, which tell nothing about a call.
_PLAIN = frozenset({"local", "slot", "global", "closure", "attr", "item"})
_CLASSES = (torch.Tensor, torch.nn.Parameter)


def shapes_held(segment: Segment) -> dict[str, tuple[Source, tuple[int, ...]]]:
    """The shapes that guards hold of tensors which are easy to reach, by the name of their place."""
    if segment.is_dynamic:
        return {}
    return {
        str(guard.source): (guard.source, guard.value[1].shape)
        for guard in segment.guards
        if guard.kind == "tensor" and guard.source is not None and guard.value[0] in _CLASSES and _is_plain(guard.source)
    }


def sizes_reader(
    segment: Segment, sources: Sequence[Source], like: FunctionType, helpers: Helpers
) -> Callable[..., Any]:
    """A function that is called as a specialisation of `segment` is, and gives the shapes of the tensors at some sources.

    It gives `MISS` where what is on the way to them is of other classes than there, or no plain tensor is there: no code of
    the user's may run.
    """
    bases = {step for source in sources for step in steps_to(source)[1:]}
    guards = [guard for guard in segment.guards if guard.kind in ("type", "is") and guard.source in bases]
    prologue = Prologue(guards, sources, types=guarded_types(segment.guards))
    prologue.write()
    names = [prologue.name(source) for source in sources]
    kinds = {guard.source: guard.value[0] for guard in segment.guards if guard.kind == "tensor"}
    checks = [
        f"if _type({name}) is not {prologue.constant(kinds[source])}: return _MISS"
        for name, source in zip(names, sources, strict=True)
    ]
    shapes = "".join(f"{name}.shape, " for name in names)
    modes = "_modes0()" if segment.device_around is None else "_default_device0() != _device0"
    lines = [
        "try:", f"    if {modes}: return _MISS", *(f"    {line}" for line in [*prologue.lines, *checks]),
        f"    return ({shapes})",
        "except (AttributeError, LookupError, TypeError, ValueError, RuntimeError) as _error0: return _missed(_error0)",
    ]  # fmt: skip
    signature = "(_frames)" if segment.resumes else signature_source(segment.code)
    source = "\n".join([f"def sizes{signature}:", *(f"    {line}" for line in lines)]) + "\n"
    namespace: dict[str, Any] = {
        "_MISS": MISS, "torch": torch, "math": math, "_lookup_all": lookup_all, **NATIVE,
        "_modes0": torch._C._len_torch_function_stack, "_default_device0": default_device,
        "_device0": segment.device_around, **{f"_{name}": function for name, function in helpers.items()},
        "_CELLS": dict(zip(like.__code__.co_freevars, like.__closure__ or (), strict=True)), **prologue.constants,
    }  # fmt: skip
    made = generated_function(source, like.__qualname__, namespace, "sizes")
    if not segment.resumes:
        made.__defaults__, made.__kwdefaults__, made.__qualname__ = like.__defaults__, like.__kwdefaults__, like.__qualname__
    return made


def _is_plain(source: Source) -> bool:
    at: Source | None = source
    while at is not None:
        if at.kind not in _PLAIN or (at.kind == "item" and type(at.key) not in (str, int)):
            return False
        at = at.base
    return True
