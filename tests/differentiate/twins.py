"""A function and its compiled twin: outputs, gradients, buffers and random numbers compared."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

import quickfuse
from seeding import seed_torch


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    return quickfuse.compile(function, options={"raise_internal_errors": True}, **options)


def joined(twin: Any) -> bool:
    """Whether all graphs with operators have a forward and a backward graph of their own."""
    return not reasons(twin)


def reasons(twin: Any) -> list[str]:
    return [s.without_kernels for s in twin.specialisations if s.without_kernels]


def leaf(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32, grad: bool = True) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_(grad)


def tensors_in(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in tensors_in(v)]
    if isinstance(value, dict):
        return tensors_in(list(value.values()))
    return []


def gradients_of(result: Any, seed: int) -> None:
    """Run backward from all outputs that need gradients, weighted."""
    generator = torch.Generator().manual_seed(seed)
    outputs = [t for t in tensors_in(result) if t.requires_grad]
    if outputs:
        weights = [torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in outputs]
        torch.autograd.backward(outputs, weights)


def check(
    function: Callable[..., Any], *calls: tuple[Any, ...], fallback: bool = False, rtol: float | None = None,
    atol: float | None = None,
) -> Any:  # fmt: skip
    """Compare a function of tensors with its compiled twin: values, properties, gradients, changed inputs.

    The compiled one has to have graphs of its own for gradients, unless `fallback`.
    """
    twin = compiled(function)
    for number, args in enumerate(calls):
        mine, theirs = copy.deepcopy(args), copy.deepcopy(args)
        sides = []
        for run, inputs in ((function, theirs), (twin, mine)):
            seed_torch(number)
            result = run(*inputs)
            gradients_of(result, number)
            sides.append((result, inputs, torch.rand(1)))
        compare(sides[0], sides[1], rtol, atol)
    if not fallback:
        assert joined(twin), reasons(twin)
    return twin


def compare(expected: Any, found: Any, rtol: float | None = None, atol: float | None = None) -> None:
    ours, theirs = tensors_in(found), tensors_in(expected)
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert one.requires_grad == other.requires_grad and one.is_leaf == other.is_leaf
        assert one.dtype == other.dtype and one.stride() == other.stride()
        assert not one.is_leaf or (one._version > 0) == (other._version > 0)
        torch.testing.assert_close(one, other, rtol=rtol, atol=atol, equal_nan=True)
        if one.is_leaf:
            assert (one.grad is None) == (other.grad is None), (one.grad, other.grad)
            if one.grad is not None and other.grad is not None:
                torch.testing.assert_close(one.grad, other.grad, rtol=rtol, atol=atol, equal_nan=True)


def check_model(
    make: Callable[[], torch.nn.Module], *batches: tuple[Any, ...], loss: Callable[[Any], torch.Tensor] | None = None,
    fallback: bool = False, rtol: float = 1e-4, atol: float = 1e-5,
) -> Any:  # fmt: skip
    """Train two copies of a model for a few steps of SGD: losses, all gradients, parameters and buffers."""
    seed_torch(0)
    eager = make()
    mine = copy.deepcopy(eager)
    twin = compiled(type(mine).forward)
    first = torch.optim.SGD(eager.parameters(), lr=0.01)
    second = torch.optim.SGD(mine.parameters(), lr=0.01)
    for step, batch in enumerate(batches):
        losses = []
        for model, optimizer, run in ((eager, first, type(eager).forward), (mine, second, twin)):
            seed_torch(step)
            optimizer.zero_grad()
            outputs = tensors_in(run(model, *batch))
            value = loss(outputs[0]) if loss is not None else sum(t.square().mean() for t in outputs)
            value.backward()
            losses.append(value.detach())
        torch.testing.assert_close(losses[1], losses[0], rtol=rtol, atol=atol)
        for (name, one), (_, other) in zip(mine.named_parameters(), eager.named_parameters(), strict=True):
            assert (one.grad is None) == (other.grad is None), name
            if one.grad is not None:
                torch.testing.assert_close(one.grad, other.grad, rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}")
        first.step()
        second.step()
        for (name, one), (_, other) in zip(mine.named_buffers(), eager.named_buffers(), strict=True):
            torch.testing.assert_close(one, other, rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}")
    if not fallback:
        assert joined(twin), reasons(twin)
    return twin
