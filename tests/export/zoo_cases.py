"""Exported models beside what eager mode gives: written by a process that has the model's library, compared by one without.

A case is two files: the exported program, and the calls with their results, as tensors and plain values.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import quickfuse
from export.programs import tensors_in
from quickfuse.export import Exported

#: The largest distances from eager's results, in shares of the largest absolute value in a tensor, where they are not equal
#: bit for bit. Autograd adds up the gradients of several uses in an order that is not the same.
TOLERANCE = {"values": 1e-5, "parameters": 1e-5, "gradients": 1e-3, "buffers": 1e-5}
CALLS = {"evaluation": 1, "training": 2, "steps": 3}


class EagerFails(Exception):
    """A model that does not run in eager mode."""


def write_case(path: Path, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], mode: str) -> str:
    """Export a model in a mode to `path`, and put what eager mode gives beside it. Says how else than by a plain call of
    `export` that was.

    Raises:
        EagerFails: where the model does not run.
        errors.QuickfuseError: where it cannot be exported.
    """
    model.train(mode != "evaluation")
    try:
        found = run(copy.deepcopy(model), args, kwargs, CALLS[mode])
    except Exception as error:  # whatever a library raises
        raise EagerFails(f"{type(error).__name__}: {error}") from None
    exported, note = _exported(model, args, kwargs)
    if note:  # what a cache holds by now may be constants
        found = run(copy.deepcopy(model), args, kwargs, CALLS[mode])
    exported.save(path)
    torch.save({"args": args, "kwargs": kwargs, "calls": CALLS[mode], **found}, path.with_suffix(".pt"))
    return note


def _exported(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Exported, str]:
    """A model exported, if need be as the error of `export` says."""
    try:
        return quickfuse.export(model, args, kwargs), ""
    except quickfuse.errors.ExportError as error:
        if model.training or "is set" not in str(error):
            return _without_effects(model, args, kwargs)
    with torch.no_grad():
        model(*copy.deepcopy(args), **copy.deepcopy(kwargs))
    try:
        return quickfuse.export(model, args, kwargs), "after a call that fills its caches"
    except quickfuse.errors.ExportError:
        return _without_effects(model, args, kwargs)


def _without_effects(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Exported, str]:
    exported = quickfuse.export(model, args, kwargs, strict=False)
    left_out = [str(assumption) for assumption in exported.assumptions if str(assumption).startswith("left out")]
    return exported, f"strict=False: {'; '.join(left_out)}"


def run(module: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], calls: int) -> dict[str, Any]:
    """The values that calls of a module give, and its parameters, gradients and buffers after them. The state of an
    optimizer that it has as `optimizer` counts as buffers, as in an exported program."""
    assert isinstance(module, nn.Module)
    values: list[torch.Tensor] = []
    for call in range(calls):
        torch.manual_seed(call)
        results = tensors_in(module(*copy.deepcopy(args), **copy.deepcopy(kwargs)))
        values += [t.detach().clone() for t in results]
        losses = [t.float().square().mean() for t in results if t.requires_grad]
        if losses:
            sum(losses[1:], losses[0]).backward()
    parameters = dict(module.named_parameters(remove_duplicate=False))
    buffers, names = dict(module.named_buffers(remove_duplicate=False)), [*module.state_dict()]
    states = getattr(module, "optimizer", nn.Module())
    if isinstance(states, torch.optim.Optimizer):
        known = {f"optimizer.state.{n}.{key}": t for n, p in parameters.items() for key, t in states.state[p].items()}
        buffers, names = buffers | known, [*names, *known]
    return {
        "values": {str(k): value for k, value in enumerate(values)},
        "parameters": {name: p.detach() for name, p in parameters.items()},
        "gradients": {name: p.grad for name, p in parameters.items()},
        "buffers": buffers,
        "state": names,
    }


def compare_case(path: Path) -> dict[str, Any]:
    """What became of a case: `outcome` is "equal" (bit for bit), "close" or "wrong", `detail` names what is farthest off,
    and `distance` how far that is."""
    wanted = torch.load(path.with_suffix(".pt"), weights_only=True)
    found = run(quickfuse.load(path).module(), wanted["args"], wanted["kwargs"], wanted["calls"])
    if {*found["state"]} != {*wanted["state"]}:
        return {"outcome": "wrong", "detail": "the names in the state_dict are others"}
    farthest, detail, right = 0.0, "", True
    for kind, tolerance in TOLERANCE.items():
        ours, theirs = found[kind], wanted[kind]
        # Tensors that are constants of the original are buffers of the exported module.
        missing = [name for name in theirs if name not in ours]
        if missing or (kind == "values" and len(ours) != len(theirs)):
            return {"outcome": "wrong", "detail": f"{kind} are missing: {missing[:3]}"}
        for name, tensor in theirs.items():
            distance = distance_of(ours[name], tensor)
            right = right and distance <= tolerance
            if distance > farthest:
                farthest, detail = distance, f"{kind} {name}"
    outcome = "wrong" if not right else "close" if farthest else "equal"
    return {
        "outcome": outcome, "detail": detail, "distance": farthest, "values": len(wanted["values"]),
        "gradients": sum(g is not None for g in wanted["gradients"].values()), "buffers": len(wanted["buffers"]),
    }  # fmt: skip


def distance_of(ours: torch.Tensor | None, theirs: torch.Tensor | None) -> float:
    """The largest distance of two tensors, in shares of the largest absolute value; infinite where they are not alike."""
    if ours is None or theirs is None:
        return 0.0 if ours is theirs else float("inf")
    if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
        return float("inf")
    if torch.equal(ours, theirs) or not theirs.numel():
        return 0.0
    if not theirs.is_floating_point():
        return float("inf")
    one, two = ours.double(), theirs.double()
    if not torch.equal(one.isnan(), two.isnan()) or not torch.equal(one[one.isinf()], two[two.isinf()]):
        return float("inf")
    if not torch.equal(one.isinf(), two.isinf()):
        return float("inf")
    one, two = (torch.nan_to_num(t, 0.0, 0.0, 0.0) for t in (one, two))
    return float((one - two).abs().max() / two.abs().max().clamp(min=1e-6))
