"""Helpers: an exported program beside the original, in values, gradients and buffers."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn

import quickfuse
from quickfuse.export import Exported


def through_file(exported: Exported, folder: Path) -> Exported:
    """The program as it comes back from a file."""
    exported.save(folder / "program.qfx")
    return quickfuse.load(folder / "program.qfx")


def tensors_in(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for v in value for t in tensors_in(v)] if isinstance(value, (list, tuple)) else []


def check_like_eager(module: nn.Module, exported: Exported, args: tuple[Any, ...], calls: int = 2) -> None:
    """The exported program and the original agree in values, gradients of parameters, and buffers: values and buffers bit
    for bit."""
    original, ours = copy.deepcopy(module), exported.module()
    for _ in range(calls):
        results = []
        for one in (original, ours):
            torch.manual_seed(7)
            results.append(tensors_in(one(*copy.deepcopy(args))))
            losses = [t.float().square().mean() for t in results[-1] if t.requires_grad]
            if losses:
                sum(losses[1:], losses[0]).backward()
        wanted, got = results
        assert len(wanted) == len(got)
        for a, b in zip(wanted, got, strict=True):
            torch.testing.assert_close(b, a, rtol=0, atol=0, equal_nan=True)
    found = dict(ours.named_parameters(remove_duplicate=False))
    for name, parameter in original.named_parameters(remove_duplicate=False):
        assert (found[name].grad is None) == (parameter.grad is None), name
        if parameter.grad is not None:
            # Autograd adds up the gradients of several uses in an order that is not the same.
            torch.testing.assert_close(found[name].grad, parameter.grad, rtol=1e-4, atol=1e-6)
    buffers = dict(ours.named_buffers(remove_duplicate=False))
    for name, buffer in original.named_buffers(remove_duplicate=False):
        torch.testing.assert_close(buffers[name], buffer, rtol=0, atol=0)
    assert {*original.state_dict()} == {*ours.state_dict()}
