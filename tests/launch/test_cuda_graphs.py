"""`mode="reduce-overhead"` on a GPU: results, memory and random numbers are eager's, however long a result is kept."""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import quickfuse
from quickfuse import logs
from quickfuse.launch.replayed import GraphMemory

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _full_precision() -> Iterator[None]:
    with torch.backends.cudnn.flags(allow_tf32=False):
        yield


def compiled(function: Any) -> Any:
    return quickfuse.compile(function, mode="reduce-overhead", options={"raise_internal_errors": True})


def graphs() -> int:
    return logs.counts.get("cuda graphs", 0)


def model(width: int = 32, dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(dropout), nn.LayerNorm(2 * width), nn.Linear(2 * width, width)
    ).cuda()  # fmt: skip


def test_evaluation_is_one_replay() -> None:
    net = model().eval()
    fast, before = compiled(net), graphs()
    with torch.no_grad():
        for _ in range(6):
            x = torch.randn(8, 32, device="cuda")
            torch.testing.assert_close(fast(x), net(x))
    assert graphs() == before + 1


def test_results_that_are_kept() -> None:
    net = model().eval()
    fast = compiled(net)
    with torch.no_grad():
        xs = [torch.randn(8, 32, device="cuda") for _ in range(10)]
        kept = [fast(x) for x in xs]
        views = [fast(x)[2:, ::2] for x in xs]
    for x, out, view in zip(xs, kept, views, strict=True):
        torch.testing.assert_close(out, net(x))
        torch.testing.assert_close(view, net(x)[2:, ::2])


def test_models_in_turns_with_kept_results() -> None:
    first, second = model(32).eval(), model(64).eval()
    fast, other = compiled(first), compiled(second)
    kept = []
    with torch.no_grad():
        for _ in range(8):
            x, y = torch.randn(8, 32, device="cuda"), torch.randn(8, 64, device="cuda")
            kept += [(fast(x), first(x)), (other(y), second(y)), (fast(fast(x)), first(first(x)))]
    for ours, eager in kept:
        torch.testing.assert_close(ours, eager)


def training(net: nn.Module, opt: Any, wrap: Callable[..., Any]) -> Callable[..., Any]:
    @wrap
    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(net(x), y)

    def step(x: torch.Tensor, y: torch.Tensor, zero: bool = True) -> torch.Tensor:
        loss = loss_of(x, y)
        loss.backward()
        if zero:
            opt.step()
            opt.zero_grad()
        return loss

    return step


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_training_with_backward_outside(dropout: float) -> None:
    ours, eager = model(dropout=dropout), model(dropout=dropout)
    steps = []
    for net, wrap in ((ours, compiled), (eager, lambda f: f)):
        steps.append(training(net, torch.optim.SGD(net.parameters(), 0.1), wrap))
    for k in range(8):
        torch.manual_seed(k)
        x, y = torch.randn(16, 32, device="cuda"), torch.randn(16, 32, device="cuda")
        losses = []
        for step in steps:
            torch.manual_seed(100 + k)
            losses.append(step(x, y, zero=k not in (4, 5)))  # gradients of three steps are added up
            losses.append(torch.randn(3, device="cuda"))
        torch.testing.assert_close(losses[:2], losses[2:])
    for p, q in zip(ours.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)


def test_two_forwards_before_backward() -> None:
    net = model()
    fast = compiled(net)
    for _ in range(5):
        x, y = torch.randn(8, 32, device="cuda"), torch.randn(8, 32, device="cuda")
        (fast(x).square().sum() - fast(y).sin().sum()).backward()
        ours = [p.grad.clone() for p in net.parameters()]
        net.zero_grad()
        (net(x).square().sum() - net(y).sin().sum()).backward()
        torch.testing.assert_close(ours, [p.grad for p in net.parameters()], rtol=1e-4, atol=1e-4)
        net.zero_grad()


@pytest.mark.parametrize("make", [
    lambda ps: torch.optim.Adam(ps, 1e-2), lambda ps: torch.optim.AdamW(ps, 1e-2, amsgrad=True),
    lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9), lambda ps: torch.optim.Adam(ps, 1e-2, capturable=True),
])  # fmt: skip
def test_whole_steps(make: Any) -> None:
    nets = model(), model()
    steps, schedulers = [], []
    for net, wrap in zip(nets, (compiled, lambda f: f), strict=True):
        opt = make(net.parameters())
        schedulers.append(torch.optim.lr_scheduler.StepLR(opt, 2, 0.5))

        def step(x: torch.Tensor, y: torch.Tensor, net: nn.Module = net, opt: Any = opt) -> torch.Tensor:
            opt.zero_grad()
            loss = F.mse_loss(net(x), y)
            loss.backward()
            opt.step()
            return loss.detach()

        steps.append(wrap(step))
    before = graphs()
    for _ in range(9):
        x, y = torch.randn(16, 32, device="cuda"), torch.randn(16, 32, device="cuda")
        torch.testing.assert_close(*[step(x, y) for step in steps])
        for scheduler in schedulers:
            scheduler.step()
    for p, q in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-5)
    assert graphs() > before


def test_parameters_that_are_replaced() -> None:
    net = model().eval()
    fast = compiled(net)
    with torch.no_grad():
        for k in range(12):
            if k in (4, 8):
                net[0].weight = nn.Parameter(torch.randn_like(net[0].weight))
            if k == 6:
                net[0].weight.mul_(2)
            x = torch.randn(8, 32, device="cuda")
            torch.testing.assert_close(fast(x), net(x))


def test_buffers_that_the_model_changes() -> None:
    nets = [nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).cuda().train() for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    fast = compiled(nets[0])
    with torch.no_grad():
        for _ in range(6):
            x = torch.randn(16, 8, device="cuda")
            torch.testing.assert_close(fast(x), nets[1](x))
    torch.testing.assert_close(nets[0].state_dict(), nets[1].state_dict())


def test_inputs_changed_in_place() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y.sum())
        return x * 2

    fast = compiled(f)
    ours, eager = torch.zeros(5, device="cuda"), torch.zeros(5, device="cuda")
    for _ in range(6):
        y = torch.randn(7, device="cuda")
        torch.testing.assert_close(fast(ours, y), f(eager, y))
        torch.testing.assert_close(ours, eager)
    for _ in range(6):  # another one each time
        ours = torch.randn(5, device="cuda")
        eager, y = ours.clone(), torch.randn(7, device="cuda")
        torch.testing.assert_close(fast(ours, y), f(eager, y))
        torch.testing.assert_close(ours, eager)


def test_random_numbers_advance_as_in_eager() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.5) + torch.rand_like(x)

    fast = compiled(f)
    x = torch.ones(1000, device="cuda")
    torch.manual_seed(0)
    ours = [fast(x) for _ in range(5)] + [torch.rand(3, device="cuda")]
    torch.manual_seed(0)
    eager = [f(x) for _ in range(5)] + [torch.rand(3, device="cuda")]
    torch.testing.assert_close(ours, eager)


@pytest.mark.parametrize("function", [
    lambda x: x[x > 0].sum() + x, lambda x: x + x.nonzero().shape[0], lambda x: x * x.sum().item(),
    lambda x: torch.linalg.inv(x.reshape(4, 4) + 9 * torch.eye(4, device="cuda")) @ x.reshape(4, 4),
    lambda x: x.cpu() * 2, lambda x: torch.unique(x),
])  # fmt: skip
def test_what_cannot_be_recorded_runs(function: Any) -> None:
    fast = compiled(function)
    for _ in range(5):
        x = torch.randn(16, device="cuda")
        torch.testing.assert_close(fast(x), function(x))
    torch.testing.assert_close(torch.rand(3, device="cuda").shape, torch.Size([3]))  # the generator is not left recording


def test_a_recording_that_is_refused_leaves_the_others() -> None:
    """PyTorch takes no more memory from their pool then: results that are kept move, and the graphs are recorded again."""
    net = model().eval()
    fast, refused = compiled(net), compiled(lambda x: torch.linalg.inv(x + 99 * torch.eye(32, device="cuda")) @ x)
    with torch.no_grad():
        xs = [torch.randn(32, 32, device="cuda") for _ in range(12)]
        kept = []
        for k, x in enumerate(xs):
            kept.append(fast(x))
            if k > 3:
                refused(x)
    for x, out in zip(xs, kept, strict=True):
        torch.testing.assert_close(out, net(x))


def test_breaks_between_graphs() -> None:
    seen = []

    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x @ x)
        seen.append(str(y.sum().item() > 0))
        print(end="")
        return torch.softmax(y @ y, 1)

    fast = quickfuse.compile(f, mode="reduce-overhead")
    for _ in range(6):
        x = torch.randn(32, 32, device="cuda")
        torch.testing.assert_close(fast(x), f(x))


def test_two_threads_and_streams() -> None:
    net = model().eval()
    fast = compiled(net)
    failures: list[BaseException] = []

    def work(own_stream: bool) -> None:
        try:
            stream = torch.cuda.Stream() if own_stream else torch.cuda.current_stream()
            with torch.cuda.stream(stream), torch.no_grad():
                for _ in range(20):
                    x = torch.randn(8, 32, device="cuda")
                    out = [fast(x), fast(x + 1)]
                    torch.testing.assert_close(out, [net(x), net(x + 1)])
        except BaseException as error:
            failures.append(error)

    for own_stream in (False, True):
        threads = [threading.Thread(target=work, args=(own_stream,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def test_an_exception_between_calls_loses_nothing() -> None:
    net = model().eval()
    fast = compiled(net)
    with torch.no_grad():
        for k in range(6):
            x = torch.randn(8, 32, device="cuda")
            if k == 3:
                with pytest.raises(RuntimeError):
                    fast(torch.randn(8, 31, device="cuda"))
            torch.testing.assert_close(fast(x), net(x))


def test_memory_is_given_back() -> None:
    gc.collect()
    held = GraphMemory.held, GraphMemory.recordings
    net = model(512).eval()
    fast = compiled(net)
    with torch.no_grad():
        for _ in range(4):
            fast(torch.randn(512, 512, device="cuda"))
    assert GraphMemory.recordings == held[1] + 1
    del fast
    quickfuse.reset()
    gc.collect()
    assert (GraphMemory.held, GraphMemory.recordings) == held


def test_autocast_and_grad_scaler() -> None:
    nets = [model(64), model(64)]
    nets[1].load_state_dict(copy.deepcopy(nets[0].state_dict()))
    steps = []
    for net, wrap in zip(nets, (compiled, lambda f: f), strict=True):
        opt = torch.optim.SGD(net.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**8)

        def forward(x: torch.Tensor, y: torch.Tensor, net: nn.Module = net) -> torch.Tensor:
            with torch.autocast("cuda", torch.float16):
                return F.mse_loss(net(x).float(), y)

        fast = wrap(forward)

        def step(x: Any, y: Any, fast: Any = fast, opt: Any = opt, scaler: Any = scaler) -> torch.Tensor:
            opt.zero_grad()
            loss = fast(x, y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            return loss.detach()

        steps.append(step)
    for _ in range(6):
        x, y = torch.randn(16, 64, device="cuda"), torch.randn(16, 64, device="cuda")
        torch.testing.assert_close(*[step(x, y) for step in steps], rtol=2e-3, atol=2e-3)
