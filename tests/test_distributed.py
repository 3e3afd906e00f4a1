"""What `torch.distributed` wraps around modules and optimizers, in a group of one process: compiled outside of it, inside of
it, and as a whole step, they train as in eager."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

import quickfuse

pytestmark = [
    pytest.mark.skipif(not dist.is_available(), reason="PyTorch without torch.distributed"),
    pytest.mark.filterwarnings("ignore"),
]
Wrap = Callable[[nn.Module], nn.Module]


@pytest.fixture(autouse=True, scope="module")
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def made() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Linear(16, 4)).double()


def ddp(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


def fsdp(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    return fully_shard(model)  # type: ignore[return-value]


def older_fsdp(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))


def whole(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).clone()


def trained(wrap: Wrap, compiled: str, accumulated: bool = False) -> tuple[list[float], list[torch.Tensor]]:
    """The losses of five steps, and what the model holds then."""
    model = made()
    inner = quickfuse.compile(model) if compiled == "inside" else model
    net = wrap(inner)
    net = quickfuse.compile(net) if compiled == "outside" else net
    optimizer = torch.optim.AdamW(net.parameters(), 0.01)

    def step(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(net(x), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    run: Any = quickfuse.compile(step) if compiled == "step" else step
    torch.manual_seed(1)
    losses = []
    for _ in range(5):
        if accumulated:
            with net.no_sync():
                cross_entropy(net(torch.randn(6, 8).double()), torch.randint(4, (6,))).backward()
        losses.append(run(torch.randn(6, 8).double(), torch.randint(4, (6,))).item())
    return losses, [whole(tensor) for tensor in [*model.parameters(), *model.buffers()]]


@pytest.mark.parametrize("wrap, compiled", [
    *((wrap, where) for wrap in (ddp, older_fsdp) for where in ("outside", "inside", "step")),
    *((fsdp, where) for where in ("outside", "step")),  # it takes the layers of the model itself
])  # fmt: skip
def test_wrapped_modules(wrap: Wrap, compiled: str) -> None:
    torch.testing.assert_close(trained(wrap, compiled), trained(wrap, ""))


def test_gradients_that_are_not_synchronised() -> None:
    torch.testing.assert_close(trained(ddp, "inside", accumulated=True), trained(ddp, "", accumulated=True))


def test_what_a_wrapper_does_around_its_module_is_one_step_each() -> None:
    """Between them the module is compiled, in a step that synchronises in some calls."""

    def step_of(model: nn.Module) -> Callable[..., torch.Tensor]:
        net = ddp(model)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

        def step(x: torch.Tensor, syncs: bool) -> torch.Tensor:
            optimizer.zero_grad()
            with contextlib.nullcontext() if syncs else net.no_sync():
                loss = net(x).square().mean()
                loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    model, eager_model = made(), made()
    eager, compiled = step_of(eager_model), quickfuse.compile(step_of(model))
    for k in range(6):
        x = torch.randn(5, 8).double()
        torch.testing.assert_close(compiled(x, k != 3), eager(x, k != 3))
    torch.testing.assert_close(model.state_dict(), eager_model.state_dict())
    assert sum("DistributedDataParallel" in pause.reason for pause in compiled.breaks) == 2
    assert len(compiled.breaks) <= 6


def test_sharded_optimizer() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def run(compiler: Callable[[Any], Any]) -> list[float]:
        model = made()
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)

        @compiler
        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        torch.manual_seed(1)
        return [step(torch.randn(3, 8).double()).item() for _ in range(4)]

    torch.testing.assert_close(run(quickfuse.compile), run(lambda f: f))


def test_collectives() -> None:
    def gathered(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        dist.all_reduce(y)
        z = y + 1
        found = [torch.zeros_like(z)]
        dist.all_gather(found, z)
        return found[0] * 3, y

    x = torch.randn(4)
    torch.testing.assert_close(quickfuse.compile(gathered)(x), gathered(x))


def test_distributed_tensors() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (1,))
    w = distribute_tensor(torch.randn(4, 4), mesh, [Shard(0)])
    x = distribute_tensor(torch.randn(3, 4), mesh, [Replicate()])

    def layer(x: Any, w: Any) -> Any:
        return (x @ w.t()).relu() * 2

    made = quickfuse.compile(layer)(x, w)
    assert type(made) is type(x) and torch.equal(made.full_tensor(), layer(x, w).full_tensor())
