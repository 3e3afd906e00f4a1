"""Dropout in kernels on a GPU: results, masks, gradients and the generator's state are eager's, to the last bit."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn import functional as F

import quickfuse
from quickfuse.launch.random_stream import stream_of

pytestmark = pytest.mark.gpu
T = torch.Tensor
MODES = [None, "reduce-overhead"]


@pytest.fixture(autouse=True)
def _full_precision() -> Iterator[None]:
    with torch.backends.cudnn.flags(allow_tf32=False):
        yield


def compiled(function: Any, mode: str | None = None) -> Any:
    return quickfuse.compile(function, mode=mode, options={"raise_internal_errors": True})


def state() -> tuple[int, int]:
    generator = torch.cuda.default_generators[0]
    return generator.initial_seed(), generator.get_offset()


def assert_close(ours: Any, eager: Any, exact: bool) -> None:
    if exact:
        torch.testing.assert_close(ours, eager, rtol=0, atol=0)
    else:
        torch.testing.assert_close(ours, eager, rtol=2e-2 if ours[0].dtype is torch.bfloat16 else 1e-4, atol=1e-3)


def check(function: Callable[..., Any], *inputs: T, mode: str | None = None, exact: bool = True, calls: int = 4) -> Any:
    """Assert that a function does the same compiled, in several calls, with gradients if inputs require some."""
    fast = compiled(lambda *given: function(*given), mode)
    runs = []
    for run in (fast, function):
        torch.manual_seed(3)
        found = []
        for _ in range(calls):
            given = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
            results = run(*given)
            results = [*results] if isinstance(results, (list, tuple)) else [results]
            wanted = [x for x in given if x.requires_grad]
            gradients = []
            if wanted:
                ones = [torch.cos(torch.arange(r.numel(), device="cuda").view(r.shape)).to(r.dtype) for r in results]
                gradients = [*torch.autograd.grad(results, wanted, ones)]
            found.append(([r.detach().clone() for r in results] + gradients, state(), torch.rand(2, device="cuda")))
        runs.append(found)
    for (ours, my_state, my_next), (eager, its_state, its_next) in zip(*runs, strict=True):
        assert my_state == its_state
        assert torch.equal(my_next, its_next)
        assert_close(ours, eager, exact)
    return fast


def operators_of(run: Callable[[], T]) -> set[str]:
    """The operators of ATen that a call and its backward run, once both are compiled."""
    run().sum().backward()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run().sum().backward()
    return {event.name for event in profile.events()}


def test_draws_alike() -> None:
    assert stream_of(torch.device("cuda", 0)) is not None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_shapes(dtype: torch.dtype, mode: str | None) -> None:
    """All together: each kernel takes most of its time to compile."""
    shapes = [(1,), (7,), (1001,), (1002,), (1004,), (64, 1000), (33, 33), (70, 66), (1200, 1024), (1090, 2050)]
    xs = [torch.randn(shape, device="cuda").to(dtype).requires_grad_() for shape in shapes]
    fast = check(lambda *xs: [F.dropout(x * 2, 0.3) for x in xs], *xs, mode=mode)
    if mode is None:
        called = operators_of(lambda: fast(*xs)[5])
        assert not any("native_dropout" in name for name in called), called
    check(lambda *xs: [F.dropout(x, p) for x in xs for p in (0.1, 0.9)], *[x.detach() for x in xs], mode=mode)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_layouts(dtype: torch.dtype) -> None:
    x = torch.randn(64, 130, device="cuda").to(dtype)
    views = [
        lambda x: x.t(), lambda x: x[:, :64], lambda x: x[:, ::2], lambda x: x[:, 1:], lambda x: x[1:],
        lambda x: x.view(-1)[2:], lambda x: x.view(8, 8, 130).permute(1, 0, 2), lambda x: x[:1].expand(64, 130),
        lambda x: x[:63, :129].contiguous().t(),
        lambda x: x.view(2, 8, 4, 130).to(memory_format=torch.channels_last), lambda x: x.view(-1, 1), lambda x: x[0, 0],
    ]  # fmt: skip
    check(lambda x: [F.dropout(view(x), 0.3) * 3 for view in views], x)
    check(lambda x: [F.dropout(view(x * 2), 0.3) + 1 for view in views], x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_results_of_calls(dtype: torch.dtype) -> None:
    """PyTorch's kernels decide how these lie in memory."""
    x = torch.randn(4, 8, 10, 14, device="cuda").to(dtype)
    w = torch.randn(16, 8, 3, 3, device="cuda").to(dtype)
    for images in (x, x.to(memory_format=torch.channels_last)):
        check(lambda x, w: F.dropout(F.conv2d(x, w), 0.3).relu(), images, w, exact=False)
    y = torch.randn(4, 8, 7, 16, device="cuda").to(dtype)

    def function(y: T) -> tuple[T, ...]:
        z = F.scaled_dot_product_attention(y, y, y)
        values, places = y.sort(-1)
        return F.dropout(z, 0.3), F.dropout(z.transpose(1, 2), 0.2), F.dropout(y @ y.mT, 0.1), F.dropout(values, 0.1)

    check(function, y.requires_grad_(), exact=False)
    if dtype is torch.float32:
        lstm = nn.LSTM(14, 12, 2, batch_first=True).cuda()
        check(lambda x: F.dropout(lstm(x)[0], 0.3) + 1, x.view(4, 80, 14), exact=False)


def test_inputs_that_begin_anywhere() -> None:
    base = torch.randn(5000, device="cuda")
    fast = compiled(lambda x: F.dropout(x, 0.3) + 1)
    for shift in (0, 1, 2, 4, 3, 0):
        x = base[shift : shift + 4096]
        made = []
        for run in (fast, lambda x: F.dropout(x, 0.3) + 1):
            torch.manual_seed(4)
            made.append((run(x), state()))
        assert torch.equal(made[0][0], made[1][0]) and made[0][1] == made[1][1]


def test_numbers_that_change() -> None:
    x = torch.randn(1000, device="cuda")
    fast = compiled(lambda x, p: F.dropout(x, p) * 2)
    for p in (0.1, 0.3, 0.25, 0.77, 0.0, 1.0, 1e-9, 0.5):
        for run in (fast, lambda x, p: F.dropout(x, p) * 2):
            torch.manual_seed(4)
            x_, before = run(x, p), state()
            if run is fast:
                kept = x_, before
        assert torch.equal(kept[0], x_) and kept[1] == before


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_norms(dtype: torch.dtype, mode: str | None) -> None:
    x, y = (torch.randn(300, 768, device="cuda").to(dtype).requires_grad_() for _ in range(2))
    w = torch.randn(768, device="cuda").to(dtype).requires_grad_()
    check(lambda x, y, w: F.layer_norm(F.dropout(x, 0.1) + y, (768,), w), x, y, w, mode=mode, exact=False)
    long = torch.randn(4, 20002, device="cuda").to(dtype).requires_grad_()
    check(lambda x: F.softmax(F.dropout(x, 0.1), -1), long, mode=mode, exact=False)
    check(lambda x, y: F.dropout(F.dropout(x, 0.1) + y, 0.2).view(-1, 8, 96).transpose(1, 2) * 2, x, y, mode=mode)


@pytest.mark.parametrize("mode", MODES)
def test_between_other_draws(mode: str | None) -> None:
    x = torch.randn(64, 100, device="cuda")
    check(lambda x: F.dropout(x, 0.5) + torch.rand_like(x), x, mode=mode)
    check(lambda x: F.dropout(F.dropout(x, 0.5) * torch.rand_like(x), 0.1) + torch.randn_like(x), x, mode=mode)
    check(lambda x: torch.rand_like(x) + F.dropout(x, 0.5), x, mode=mode)
    check(lambda x: F.dropout(F.dropout2d(x.view(8, 8, 10, 10), 0.5), 0.1), x, mode=mode)
    check(lambda x: F.dropout(x, 0.5, inplace=False) + F.alpha_dropout(x, 0.5, True) + F.dropout(x, 0.1), x, mode=mode)


def test_seeds_between_calls() -> None:
    x = torch.randn(1000, device="cuda")

    def function(x: T) -> T:
        return F.dropout(x, 0.3) * 2

    for mode in MODES:
        runs = []
        for run in (compiled(function, mode), function):
            found = []
            for k in range(6):
                torch.manual_seed((1 << 63) + k if k % 2 else k)
                found += [run(x), run(x), torch.rand(1, device="cuda")]
                with torch.random.fork_rng(devices=[0]):
                    found.append(run(x))
                kept = torch.cuda.get_rng_state()
                found.append(run(x))
                torch.cuda.set_rng_state(kept)
                found.append(run(x))
            runs.append(found)
        torch.testing.assert_close(runs[0], runs[1], rtol=0, atol=0)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant: bool) -> None:
    def inner(x: T) -> T:
        return F.dropout((x * 2).sin(), 0.3) * x

    def function(x: T) -> T:
        return F.dropout(torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=reentrant) * 3, 0.2)

    def around(x: T) -> T:
        return torch.utils.checkpoint.checkpoint(fast, x, use_reentrant=reentrant)

    fast = compiled(inner)
    for ours, eager in ((compiled(function), function), (around, inner)):
        for seed in range(3):
            runs = []
            for run in (ours, eager):
                x = torch.linspace(-1, 1, 3300, device="cuda").view(33, 100).requires_grad_()
                torch.manual_seed(seed)
                out = run(x)
                out.square().sum().backward()
                runs.append((out.detach(), x.grad, torch.tensor(state())))
            torch.testing.assert_close(runs[0], runs[1])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("autocast", [False, True])
def test_encoder_layer(autocast: bool, mode: str | None) -> None:
    torch.manual_seed(0)
    nets = [nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True).cuda()]
    nets.append(copy.deepcopy(nets[0]))
    optimizers = [torch.optim.SGD(net.parameters(), 0.05) for net in nets]

    def loss_of(net: nn.Module, x: T) -> T:
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            return net(x).float().square().mean()

    runs = [compiled(loss_of, mode), loss_of]
    for k in range(5):
        x = torch.randn(6, 20, 64, device="cuda")
        found = []
        for net, optimizer, run in zip(nets, optimizers, runs, strict=True):
            torch.manual_seed(k)
            loss = run(net, x)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append((loss.detach(), state()))
        assert found[0][1] == found[1][1]
        torch.testing.assert_close(found[0][0], found[1][0], rtol=2e-2 if autocast else 1e-4, atol=1e-4)
    for one, two in zip(*(net.parameters() for net in nets), strict=True):
        torch.testing.assert_close(one, two, rtol=2e-2, atol=1e-2 if autocast else 1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_whole_steps(mode: str | None) -> None:
    torch.manual_seed(0)
    layers = nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.2), nn.LayerNorm(64), nn.Linear(64, 32), nn.Dropout(0.1)
    nets = [nn.Sequential(*layers).cuda()]
    nets.append(copy.deepcopy(nets[0]))
    steps = []
    for net, wrap in zip(nets, (lambda f: compiled(f, mode), lambda f: f), strict=True):
        optimizer = torch.optim.AdamW(net.parameters(), 1e-3)

        def step(x: T, net: nn.Module = net, optimizer: Any = optimizer) -> T:
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        steps.append(wrap(step))
    for k in range(6):
        x = torch.randn(50, 32, device="cuda")
        found = []
        for step in steps:
            torch.manual_seed(k)
            found.append((step(x), state()))
        assert found[0][1] == found[1][1]
        torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-4, atol=1e-5)
    for one, two in zip(*(net.parameters() for net in nets), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4)


def test_a_call_that_fails_behind() -> None:
    """The program goes on in plain Python, which draws the same numbers."""
    def function(x: T, a: T) -> T:
        return F.dropout(x, 0.3) + torch.linalg.cholesky(a)[0, 0]

    x, a = torch.randn(1000, device="cuda"), torch.eye(4, device="cuda")
    states = []
    for run in (compiled(function), function):
        torch.manual_seed(5)
        run(x, a)
        with pytest.raises(torch.linalg.LinAlgError):
            run(x, -a)
        states.append((state(), run(x, a)))
    assert states[0][0] == states[1][0] and torch.equal(states[0][1], states[1][1])


def test_a_graph_that_the_program_records() -> None:
    """The program's own CUDA graph draws other numbers in each replay."""
    def function(x: T) -> T:
        return F.dropout(x, 0.5) + 1

    x = torch.ones(1000, device="cuda")
    fast = compiled(function)
    fast(x)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        fast(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = fast(x)
    torch.manual_seed(5)
    replays = []
    for _ in range(3):
        graph.replay()
        replays.append(made.clone())
    torch.manual_seed(5)
    for replay in replays:
        assert torch.equal(replay, function(x))
