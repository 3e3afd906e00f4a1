"""Memory that overlaps, starts at odd addresses, or is laid out unusually: results are eager's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import quickfuse
from seeding import seed_torch

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def compare(make_parameters: Any, gradients: Any, steps: int = 4, **options: Any) -> Any:
    """Step two optimizers over parameters made twice in the same way; returns the compiled step."""
    seed_torch(3)
    theirs = make_parameters()
    seed_torch(3)
    mine = make_parameters()
    eager = torch.optim.AdamW(theirs, lr=0.1, **options)
    optimizer = torch.optim.AdamW(mine, lr=0.1, **options)
    compiled = quickfuse.compile(lambda: optimizer.step())
    for step in range(steps):
        for parameters in (theirs, mine):
            seed_torch(step)
            gradients(parameters)
        eager.step()
        compiled()
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    return compiled


def fresh(parameters: Any) -> None:
    for p in parameters:
        p.grad = torch.randn(p.shape, device="cpu").to(p.device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("offset", [1, 3, 5])
def test_odd_offsets(offset: int, device: str) -> None:
    def make() -> list[torch.nn.Parameter]:
        storage = torch.randn(200).to(device)
        return [
            torch.nn.Parameter(storage[offset : offset + 33]),
            torch.nn.Parameter(storage[100 + offset : 164 + offset].view(8, 8)),
        ]

    assert compare(make, fresh).specialisations[0].kernels == 2


@pytest.mark.parametrize("device", DEVICES)
def test_two_parameters_share_memory(device: str) -> None:
    def make() -> list[torch.nn.Parameter]:
        storage = torch.randn(64).to(device)
        return [torch.nn.Parameter(storage[:40]), torch.nn.Parameter(storage[20:])]

    # One parameter after the other: a list operator of eager's updates overlapping ones in no particular order.
    compare(make, fresh, foreach=False)


def test_gradient_is_the_parameter() -> None:
    def gradients(parameters: Any) -> None:
        for p in parameters:
            p.grad = p.detach()

    compare(lambda: [torch.nn.Parameter(torch.randn(16)) for _ in range(3)], gradients)


def test_overlap_that_begins_later() -> None:
    def gradients(parameters: Any) -> None:
        aliased = torch.initial_seed() >= 2
        for p in parameters:
            p.grad = p.detach() if aliased else torch.randn(p.shape)

    compiled = compare(lambda: [torch.nn.Parameter(torch.randn(16)) for _ in range(3)], gradients)
    assert compiled.graph_count == 1


def test_expanded_gradient() -> None:
    def gradients(parameters: Any) -> None:
        for p in parameters:
            p.grad = torch.randn(()).expand(p.shape)

    compare(lambda: [torch.nn.Parameter(torch.randn(4, 4)) for _ in range(2)], gradients)


@pytest.mark.parametrize("device", DEVICES)
def test_layouts(device: str) -> None:
    def make() -> list[torch.nn.Parameter]:
        image = torch.randn(2, 3, 4, 5).to(device).to(memory_format=torch.channels_last)
        return [
            torch.nn.Parameter(torch.randn(6, 4).to(device).t()), torch.nn.Parameter(image),
            torch.nn.Parameter(torch.randn(8, 8).to(device)[::2, ::2]),
        ]  # fmt: skip

    def gradients(parameters: Any) -> None:
        for p in parameters:
            p.grad = torch.randn(p.shape).to(p.device)

    compare(make, gradients)


def test_empty_and_scalar_parameters() -> None:
    compare(lambda: [torch.nn.Parameter(torch.randn(s)) for s in ((0,), (), (3, 0), (2,))], fresh)


def test_parameter_data_replaced_between_steps() -> None:
    def gradients(parameters: Any) -> None:
        for p in parameters:
            p.data = p.data.clone()
            p.grad = torch.randn(p.shape)

    assert compare(lambda: [torch.nn.Parameter(torch.randn(9)) for _ in range(2)], gradients).graph_count == 1


def test_layout_replaced_at_the_same_address() -> None:
    compiled = quickfuse.compile(lambda x: x * torch.arange(6.0).view(2, 3))
    x = torch.randn(2, 3)
    assert torch.equal(compiled(x), x * torch.arange(6.0).view(2, 3))
    y = torch.randn(3, 2)
    y.data = y.data.t()
    compiled(y)
    y.data = y.data.t().contiguous().view(2, 3)
    assert torch.equal(compiled(y), y * torch.arange(6.0).view(2, 3))
