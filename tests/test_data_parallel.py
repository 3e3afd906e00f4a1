"""`DistributedDataParallel` in one process: what it does around the model's own forward is a step in Python each."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import quickfuse


@pytest.fixture
def one_process() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def step_of(model: nn.Module) -> Callable[..., torch.Tensor]:
    wrapped = DistributedDataParallel(model)
    sgd = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9)

    def step(x: torch.Tensor, syncs: bool) -> torch.Tensor:
        sgd.zero_grad()
        with contextlib.nullcontext() if syncs else wrapped.no_sync():
            loss = wrapped(x).square().mean()
            loss.backward()
        sgd.step()
        return loss.detach()

    return step


@pytest.mark.usefixtures("one_process")
def test_data_parallel_step() -> None:
    torch.manual_seed(0)
    eager_model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    model = copy.deepcopy(eager_model)
    eager, compiled = step_of(eager_model), quickfuse.compile(step_of(model))
    for k in range(6):
        x = torch.randn(5, 4)
        torch.testing.assert_close(compiled(x, k != 3), eager(x, k != 3))
    for name, expected in eager_model.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], expected)
    assert sum("DistributedDataParallel" in pause.reason for pause in compiled.breaks) == 2
    assert len(compiled.breaks) <= 6
