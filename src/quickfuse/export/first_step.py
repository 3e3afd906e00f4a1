"""State that an optimizer makes in its first step: an exported step is to be any step, the first and those after it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..ir.segment import Constant, Effect, Existing
from ..ir.source import Source
from .sources import Call, Unreachable


def make_state(call: Call, effects: Sequence[Effect]) -> bool:
    """Make the state that a captured step would have made, where a later step does the same with it as a first one without.

    Momentum that is zero is no momentum, as long as nothing dampens what is added to it. Most other optimizers begin with
    such state, and capture has made it already.
    """
    made = False
    for effect in effects:
        optimizer = optimizer_of(call, effect)
        if type(optimizer) is not torch.optim.SGD or not isinstance(effect.key, Constant):
            continue
        parameter = _parameter_of(call, effect)
        if effect.key.value != "momentum_buffer" or parameter is None:
            continue
        group = next(g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))
        if group["dampening"] == 0 and optimizer.state[parameter].get("momentum_buffer") is None:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter, requires_grad=False)
            made = True
    return made


def optimizer_of(call: Call, effect: Effect) -> torch.optim.Optimizer | None:
    """The optimizer whose state an effect sets an entry of."""
    state = _entry_of(effect)
    if state is None or state.base is None or state.key != "state":
        return None
    owner = state.base.base if state.base.key == "__dict__" else state.base
    try:
        found = None if owner is None else call.value_at(owner)
    except Unreachable:
        return None
    return found if isinstance(found, torch.optim.Optimizer) else None


def _entry_of(effect: Effect) -> Source | None:
    """The path of the dictionary that has an entry for each parameter, if an effect is about one of these."""
    source = effect.target.source if effect.kind == "setitem" and isinstance(effect.target, Existing) else None
    return source if source is None or source.key == "state" else source.base


def _parameter_of(call: Call, effect: Effect) -> torch.Tensor | None:
    """The parameter whose state an effect sets an entry of."""
    assert isinstance(effect.target, Existing)
    key = effect.target.source.key
    found = call.value_at(key) if isinstance(key, Source) else None
    return found if isinstance(found, torch.Tensor) else None
