"""`python benchmarks/small_models.py [part of a name ...]`: small networks and functions, compiled, beside eager.

Programs whose kernels take next to no time, so that what a call costs the host is all there is: losses and `backward()`
outside of what is compiled, several compiled modules in one loop, inference of tiny models, loops that go on to a tolerance.
Each runs by turns with eager. Shown are microseconds of processor time of one thread for a turn of the program, the medians,
and the ratio. All is compiled, unless `--defaults` lets short calls be measured and left to Python
(`config.measure_short_calls`). `--profile` shows where the host's time goes.
"""

from __future__ import annotations

import argparse
import cProfile
import platform
import pstats
import statistics
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import quickfuse
from processor_time import interleaved

#: What wraps what a program compiles.
Wrap = Callable[[Any], Any]
Program = Callable[[Wrap], Callable[[], Any]]
PROGRAMS: dict[str, Program] = {}


def program(name: str) -> Callable[[Program], Program]:
    """Register a program: a function that is given what compiles, and returns one turn, which returns what is compared."""

    def register(made: Program) -> Program:
        PROGRAMS[name] = made
        return made

    return register


def mlp(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


# --- inference ---


@program("inference: a network under no_grad")
def inference(wrap: Wrap) -> Callable[[], Any]:
    model, x = wrap(mlp(10, 32, 1).eval()), torch.randn(16, 10)

    def turn() -> Any:
        with torch.no_grad():
            return model(x)

    return turn


@program("inference: a policy, one action at a time")
def policy(wrap: Wrap) -> Callable[[], Any]:
    model, x = mlp(4, 32, 32, 2), torch.randn(1, 4)

    @wrap
    def act(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(model(x), 1).argmax(1)

    return lambda: torch.no_grad()(act)(x)


@program("inference: forward with gradients, no backward")
def forward_alone(wrap: Wrap) -> Callable[[], Any]:
    model, x = wrap(mlp(10, 32, 1)), torch.randn(16, 10)
    return lambda: model(x).detach()


# --- training ---


def trained(model: nn.Module, call: Callable[[], torch.Tensor], optimizer: Any = torch.optim.SGD, wrap: Any = None) -> Any:
    """A turn of training; with `wrap`, the optimizer is compiled."""
    updates = optimizer(model.parameters(), lr=1e-4)
    step = updates.step if wrap is None else wrap(updates.step)

    def turn() -> Any:
        updates.zero_grad()
        loss = call()
        loss.backward()
        step()
        return loss.detach()

    return turn


@program("training: a network, loss outside")
def regression(wrap: Wrap) -> Callable[[], Any]:
    model, x, y = mlp(10, 32, 1), torch.randn(16, 10), torch.randn(16, 1)
    called = wrap(model)
    return trained(model, lambda: F.mse_loss(called(x), y))


@program("training: the same, with a compiled Adam")
def with_adam(wrap: Wrap) -> Callable[[], Any]:
    model, x, y = mlp(10, 32, 1), torch.randn(16, 10), torch.randn(16, 1)
    called = wrap(model)
    return trained(model, lambda: F.mse_loss(called(x), y), torch.optim.Adam, wrap)


@program("training: loss inside, backward outside")
def loss_inside(wrap: Wrap) -> Callable[[], Any]:
    model, x, y = mlp(10, 32, 1), torch.randn(16, 10), torch.randn(16, 1)
    called = wrap(lambda x, y: F.mse_loss(model(x), y))
    return trained(model, lambda: called(x, y))


@program("training: loss and logits inside")
def logits_too(wrap: Wrap) -> Callable[[], Any]:
    model, x, y = mlp(10, 32, 4), torch.randn(16, 10), torch.randint(4, (16,))

    @wrap
    def called(x: torch.Tensor, y: torch.Tensor) -> Any:
        logits = model(x)
        return F.cross_entropy(logits, y), logits

    return trained(model, lambda: called(x, y)[0])


@program("training: a deeper network, cross entropy outside")
def classifier(wrap: Wrap) -> Callable[[], Any]:
    model, x, y = mlp(16, 64, 64, 64, 4), torch.randn(32, 16), torch.randint(4, (32,))
    called = wrap(model)
    return trained(model, lambda: F.cross_entropy(called(x), y))


@program("training: convolutions and batch norms")
def images(wrap: Wrap) -> Callable[[], Any]:
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(8 * 4, 4),
    )  # fmt: skip
    x, y = torch.randn(4, 1, 10, 10), torch.randint(4, (4,))
    called = wrap(model)
    return trained(model, lambda: F.cross_entropy(called(x), y))


@program("training: a transformer's layer")
def transformer(wrap: Wrap) -> Callable[[], Any]:
    model = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    x, y = torch.randn(2, 6, 16), torch.randn(2, 6, 16)
    called = wrap(model)
    return trained(model, lambda: F.mse_loss(called(x), y))


@program("training: encoder, latent, decoder, three modules")
def three_modules(wrap: Wrap) -> Callable[[], Any]:
    encoder, middle, decoder = mlp(12, 16, 8), nn.Sequential(nn.LayerNorm(8), nn.Tanh()), mlp(8, 16, 12)
    x = torch.randn(16, 12)
    first, second, third = wrap(encoder), wrap(middle), wrap(decoder)
    return trained(nn.ModuleList([encoder, middle, decoder]), lambda: F.mse_loss(third(second(first(x))), x))


@program("training: actor and critic, two results")
def actor_critic(wrap: Wrap) -> Callable[[], Any]:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.actor, self.critic = mlp(4, 32), nn.Linear(32, 2), nn.Linear(32, 1)

        def forward(self, x: torch.Tensor) -> Any:
            h = torch.tanh(self.body(x))
            return self.actor(h), self.critic(h)

    model, x, a, r = Both(), torch.randn(16, 4), torch.randint(2, (16,)), torch.randn(16)
    called = wrap(model)

    def loss() -> torch.Tensor:
        logits, value = called(x)
        value = value.squeeze(1)
        chosen = F.log_softmax(logits, 1).gather(1, a[:, None]).squeeze(1)
        return F.mse_loss(value, r) - (chosen * (r - value).detach()).mean()

    return trained(model, loss)


@program("training: a recurrent cell, six steps in time")
def cell(wrap: Wrap) -> Callable[[], Any]:
    model, xs = nn.GRUCell(8, 16), torch.randn(6, 4, 8)
    called = wrap(model)

    def loss() -> torch.Tensor:
        h = torch.zeros(4, 16)
        for x in xs.unbind():
            h = called(x, h)
        return h.square().mean()

    return trained(model, loss)


@program("training: an LSTM's cell, six steps in time")
def lstm_cell(wrap: Wrap) -> Callable[[], Any]:
    model, xs = nn.LSTMCell(8, 16), torch.randn(6, 4, 8)
    called = wrap(model)

    def loss() -> torch.Tensor:
        state = torch.zeros(4, 16), torch.zeros(4, 16)
        for x in xs.unbind():
            state = called(x, state)
        return state[0].square().mean()

    return trained(model, loss)


@program("gradients: f(x).sum().backward()")
def of_an_input(wrap: Wrap) -> Callable[[], Any]:
    x = torch.randn(100, requires_grad=True)
    f = wrap(lambda x: torch.sin(x) * torch.exp(-x * x) + torch.tanh(x))

    def turn() -> Any:
        x.grad = None
        f(x).sum().backward()
        return x.grad

    return turn


@program("gradients: torch.autograd.grad of a small function")
def of_a_function(wrap: Wrap) -> Callable[[], Any]:
    x = torch.randn(100, requires_grad=True)
    f = wrap(lambda x: (torch.sin(x) * x).sum())
    return lambda: torch.autograd.grad(f(x), x)[0]


@program("gradients: Sinkhorn, twelve turns outside")
def sinkhorn(wrap: Wrap) -> Callable[[], Any]:
    points, others = torch.randn(12, 2, requires_grad=True), torch.randn(10, 2)

    @wrap
    def turned(cost: torch.Tensor, u: torch.Tensor, v: torch.Tensor) -> Any:
        u = -torch.logsumexp((v[None, :] - cost) / 0.5, 1) * 0.5
        v = -torch.logsumexp((u[:, None] - cost) / 0.5, 0) * 0.5
        return u, v

    def turn() -> Any:
        points.grad = None
        cost = (points[:, None] - others[None]).square().sum(2)
        u, v = torch.zeros(12), torch.zeros(10)
        for _ in range(12):
            u, v = turned(cost, u, v)
        (u.mean() + v.mean()).backward()
        return points.grad

    return turn


@program("gradients: Sinkhorn to a tolerance, inside")
def sinkhorn_inside(wrap: Wrap) -> Callable[[], Any]:
    points, others = torch.randn(12, 2, requires_grad=True), torch.randn(10, 2)

    @wrap
    def distance(points: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        cost = (points[:, None] - others[None]).square().sum(2)
        u, v = torch.zeros(12), torch.zeros(10)
        for _ in range(40):
            before = u
            u = -torch.logsumexp((v[None, :] - cost) / 0.5, 1) * 0.5
            v = -torch.logsumexp((u[:, None] - cost) / 0.5, 0) * 0.5
            if (u - before).abs().max().item() < 1e-2:
                break
        return u.mean() + v.mean()

    def turn() -> Any:
        points.grad = None
        distance(points, others).backward()
        return points.grad

    return turn


# --- loops to a tolerance ---


@program("loops: conjugate gradients to a tolerance")
def conjugate_gradients(wrap: Wrap) -> Callable[[], Any]:
    root = torch.randn(20, 20, dtype=torch.float64)
    a, b = root @ root.T + 5 * torch.eye(20, dtype=torch.float64), torch.randn(20, dtype=torch.float64)

    @wrap
    def solve(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        x = torch.zeros_like(b)
        r = b - a @ x
        p = r
        rs = r @ r
        for _ in range(100):
            ap = a @ p
            alpha = rs / (p @ ap)
            x = x + alpha * p
            r = r - alpha * ap
            new = r @ r
            if new.sqrt().item() < 1e-6:
                break
            p = r + (new / rs) * p
            rs = new
        return x

    return lambda: solve(a, b)


@program("loops: Anderson acceleration of a fixed point")
def anderson(wrap: Wrap) -> Callable[[], Any]:
    w, b = torch.randn(12, 12) * 0.15, torch.randn(4, 12)

    @wrap
    def solve(w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        z = torch.zeros_like(b)
        zs: list[torch.Tensor] = []
        fs: list[torch.Tensor] = []
        for _ in range(30):
            f = torch.tanh(z @ w + b)
            if (f - z).norm().item() < 1e-4:
                break
            zs, fs = [*zs, z][-3:], [*fs, f][-3:]
            g = torch.stack([(f_ - z_).flatten() for z_, f_ in zip(zs, fs, strict=True)])
            h = g @ g.T + 1e-6 * torch.eye(len(zs))
            alpha = torch.linalg.solve(h, torch.ones(len(zs)))
            alpha = alpha / alpha.sum()
            z = torch.stack([a * f_ for a, f_ in zip(alpha.unbind(), fs, strict=True)]).sum(0)
        return z

    return lambda: solve(w, b)


@program("loops: Newton's method to a tolerance")
def newton(wrap: Wrap) -> Callable[[], Any]:
    x0 = torch.rand(20) + 1

    @wrap
    def solve(x: torch.Tensor) -> torch.Tensor:
        while True:
            step = (x * x * x - 2 * x - 5) / (3 * x * x - 2)
            x = x - step
            if step.abs().max() < 1e-5:
                return x

    return lambda: solve(x0)


@program("loops: torch.optim.LBFGS")
def lbfgs(wrap: Wrap) -> Callable[[], Any]:
    target = torch.randn(10)
    first = torch.randn(10)
    x = torch.zeros(10, requires_grad=True)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = ((x - target) ** 2).sum() + 0.1 * (x**4).sum()
        loss.backward()
        return loss

    optimizer = torch.optim.LBFGS([x], max_iter=6)
    step = wrap(optimizer.step)

    def turn() -> Any:
        with torch.no_grad():
            x.copy_(first)
        optimizer.state.clear()
        step(closure)
        return x.detach().clone()

    return turn


# --- measuring ---


def made(name: str, wrap: Wrap) -> Callable[[], Any]:
    torch.manual_seed(0)
    return PROGRAMS[name](wrap)


def compared(name: str) -> tuple[float, float]:
    """Microseconds of eager and of compiled code."""
    quickfuse.reset()
    eager, ours = made(name, lambda f: f), made(name, quickfuse.compile)
    for _ in range(80):
        torch.testing.assert_close(ours(), eager(), rtol=1e-3, atol=1e-3)
    eagers, mine = interleaved([eager, ours])
    return statistics.median(eagers), statistics.median(mine)


def profile(name: str) -> None:
    ours = made(name, quickfuse.compile)
    for _ in range(80):
        ours()
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(1000):
        ours()
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(35)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--defaults", action="store_true", help="leave short calls to Python where that is faster")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    quickfuse.config.measure_short_calls = options.defaults
    chosen = [name for name in PROGRAMS if not options.names or any(part in name for part in options.names)]
    if options.profile:
        for name in chosen:
            print(name)
            profile(name)
        return
    versions = f"Python {platform.python_version()}, PyTorch {torch.__version__}, {platform.machine()}"
    print(f"{versions}, microseconds of processor time")
    print(f"{'':52}{'eager':>9}{'quickfuse':>11}{'ratio':>8}")
    ratios = []
    for name in chosen:
        eager, ours = compared(name)
        ratios.append(ours / eager)
        print(f"{name:52}{eager:9.1f}{ours:11.1f}{ours / eager:8.2f}", flush=True)
    print(f"{len(ratios)} programs: {statistics.geometric_mean(ratios):.2f} of eager's time, {max(ratios):.2f} at the most")


if __name__ == "__main__":
    main()
