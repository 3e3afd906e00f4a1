"""Whole training steps that were wrong, or that did not end, each as small as it could be made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import quickfuse
from training.check import check
from training.execute import Program

Loss = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def check_step(
    make: Callable[[], nn.Module],
    inputs: Callable[[], torch.Tensor],
    loss: Loss,
    optimizer: Callable[..., torch.optim.Optimizer] | None = None,
    dtype: torch.dtype = torch.float64,
) -> None:
    """Compare two steps with eager: zero_grad, forward, loss, backward, and `optimizer` or `p.sub_(0.1 * p.grad)`."""

    def setup(dtype: torch.dtype) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
        torch.manual_seed(0)
        model = make().to(dtype)
        made = optimizer(model.parameters()) if optimizer is not None else None
        batch = inputs()
        batch = batch.to(dtype) if batch.is_floating_point() else batch

        def step(x: torch.Tensor) -> torch.Tensor:
            model.zero_grad()
            value = loss(model, x)
            value.backward()
            if made is not None:
                made.step()
            else:
                with torch.no_grad():
                    for p in model.parameters():
                        p.sub_(p.grad, alpha=0.1)
            return value.detach()

        return step, [(batch,), (batch,)], {"model": model} if made is None else {"model": model, "optimizer": made}

    finding = check(Program(setup, dtype)).finding
    assert finding is None, str(finding)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def mean_square(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).pow(2).mean() * 100


def next_token(model: nn.Module, i: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(i).flatten(0, 1), i.flatten())


# the order of updates and of what reads the old values ------------------------------------------------------------


class NormOfShifted(nn.Module):
    """A norm after a learned shift: the shift's gradient is summed over samples, the norm's over all tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.shift = nn.Parameter(torch.zeros(24, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.shift)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_norm_of_shifted(dtype: torch.dtype) -> None:
    """The weight was updated before the gradient of the shift had read it."""
    check_step(NormOfShifted, lambda: torch.randn(4, 24, 64), mean_square, dtype=dtype)


class GatedBlock(nn.Module):
    def __init__(self, d: int = 32) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(100, d), nn.Parameter(torch.randn(1, 24, d) * 0.02)
        self.norm = nn.RMSNorm(d)
        self.gate, self.up, self.down = (nn.Linear(*s, bias=False) for s in ((d, 2 * d), (d, 2 * d), (2 * d, d)))

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        x = self.tokens(i) + self.positions
        y = self.norm(x)
        return (x + self.down(F.silu(self.gate(y)) * self.up(y))) @ self.tokens.weight.T


class Encoder(nn.Module):
    def __init__(self, d: int = 32) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(100, d), nn.Linear(d, 100)
        kwargs: dict[str, Any] = {"dropout": 0.0, "batch_first": True}
        self.layers = nn.Sequential(*[nn.TransformerEncoderLayer(d, 4, 64, norm_first=k, **kwargs) for k in (True, False)])

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.tokens(i)))


class NormedCell(nn.Module):
    def __init__(self, d: int = 32) -> None:
        super().__init__()
        self.tokens, self.cell, self.norm, self.head = (
            nn.Embedding(100, d),
            nn.GRUCell(d, d),
            nn.LayerNorm(d),
            nn.Linear(d, 100),
        )

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        h, outs = torch.zeros(i.shape[0], 32), []
        for t in range(i.shape[1]):
            h = self.cell(self.tokens(i[:, t]), h)
            outs.append(self.norm(h))
        return self.head(torch.stack(outs, 1))


class Experts(nn.Module):
    """Four experts, weighted by a softmax over all of them."""

    def __init__(self, d: int = 32) -> None:
        super().__init__()
        self.tokens, self.norm, self.router = nn.Embedding(100, d), nn.LayerNorm(d), nn.Linear(d, 4)
        self.experts, self.head = nn.ModuleList([nn.Linear(d, d) for _ in range(4)]), nn.Linear(d, 100)

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        x = self.tokens(i)
        y = self.norm(x)
        weights = self.router(y).softmax(-1)
        return self.head(x + sum(weights[..., k, None] * F.gelu(e(y)) for k, e in enumerate(self.experts)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("model", [GatedBlock, Encoder, NormedCell, Experts])
def test_norms_in_models(model: type[nn.Module], dtype: torch.dtype) -> None:
    """The weights of norms were updated too early."""
    time = 8 if model is NormedCell else 24
    check_step(model, lambda: torch.randint(100, (4, time)), next_token, sgd, dtype)


class Block(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = (s.view(b, t, 4, d // 4).transpose(1, 2) for s in self.qkv(self.first(x)).split(d, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Transformer(nn.Module):
    def __init__(self, vocabulary: int, d: int, tied: bool) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, d), nn.Embedding(32, d)
        self.blocks, self.norm = nn.Sequential(Block(d), Block(d)), nn.LayerNorm(d)
        self.head = nn.Linear(d, vocabulary, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.tokens(i) + self.positions(torch.arange(i.shape[1])))))


@pytest.mark.parametrize(("vocabulary", "d", "tied"), [(160, 64, True), (160, 64, False), (100, 32, True), (500, 128, True)])
def test_transformer(vocabulary: int, d: int, tied: bool) -> None:
    """Which weights of norms were wrong depended on the sizes."""
    check_step(
        lambda: Transformer(vocabulary, d, tied), lambda: torch.randint(vocabulary, (4, 24)), next_token, sgd, torch.float32
    )


# compilation that did not end ------------------------------------------------------------------------------------


class ResidualOfShifted(nn.Module):
    def __init__(self, d: int = 64) -> None:
        super().__init__()
        self.positions, self.norm, self.linear = nn.Parameter(torch.randn(1, 24, d)), nn.LayerNorm(d), nn.Linear(d, d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.positions
        return x + self.linear(self.norm(x))


def test_one_sample() -> None:
    """With a batch of one, the positions have the shape of the activations."""
    check_step(ResidualOfShifted, lambda: torch.randn(1, 24, 64), mean_square)


class OverChannels(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x.transpose(1, 2)).transpose(1, 2)


class Scale(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((d,), 0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gain


class NormedResidual(nn.Module):
    def __init__(self, norm: Callable[[], nn.Module], scale: bool, tied: bool) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(40, 64), nn.Linear(64, 40, bias=False)
        scales = [Scale(64), Scale(64)] if scale else []
        self.inner = nn.Sequential(norm(), nn.Linear(64, 64), nn.Softplus(), *scales)
        self.norm = nn.LayerNorm(64)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        x = self.tokens(i)
        return self.head(self.norm(x + self.inner(x)))


NORMS: dict[str, Callable[[], nn.Module]] = {
    "group": lambda: OverChannels(nn.GroupNorm(2, 64)),
    "batch": lambda: OverChannels(nn.BatchNorm1d(64)),
    "layer": lambda: nn.LayerNorm(64),
}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("norm", NORMS)
def test_norm_in_a_residual(norm: str, scale: bool, tied: bool) -> None:
    """Updates with momentum, of norms over one axis and over another."""
    check_step(
        lambda: NormedResidual(NORMS[norm], scale, tied),
        lambda: torch.randint(40, (2, 24)),
        next_token,
        momentum,
        torch.float32,
    )


# gradients that were lost, or led to the wrong places ------------------------------------------------------------


def test_gradient_through_what_is_outside_of_the_graph() -> None:
    """The norm ran between two graphs: the gradient of its weight flows through the second one's input."""

    def setup(dtype: torch.dtype) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.BatchNorm1d(4, momentum=None), nn.Linear(4, 3)).to(dtype)
        parameters = [*model.parameters()]

        def step(x: torch.Tensor) -> Any:
            return torch.autograd.grad(model(x).pow(2).sum(), parameters, allow_unused=True)

        return step, [(torch.randn(5, 4).to(dtype),)] * 2, {"model": model}

    finding = check(Program(setup)).finding
    assert finding is None, str(finding)


def test_gradient_of_what_is_outside_of_the_graph() -> None:
    """The loss itself was computed outside: the graph that begins with its gradient has no operator that uses it."""

    def setup(dtype: torch.dtype) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
        torch.manual_seed(0)
        model = nn.Linear(4, 3).to(dtype)
        parameters = [*model.parameters()]

        def step(x: torch.Tensor) -> Any:
            out = model(x)
            loss = F.kl_div(out.log_softmax(1), x[:, :3].softmax(1))  # which warns, and so ends the graph
            return [g * 2 for g in torch.autograd.grad(loss, parameters, allow_unused=True) if g is not None]

        return step, [(torch.randn(5, 4).to(dtype),)] * 2, {"model": model}

    finding = check(Program(setup)).finding
    assert finding is None, str(finding)


def test_leaf_that_becomes_a_result() -> None:
    """The same tensor as a leaf, and then as the result of another: a gradient may flow on from there."""

    def setup(dtype: torch.dtype) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
        torch.manual_seed(0)
        model = nn.Linear(4, 4).to(dtype)
        leaf = torch.randn(3, 4).to(dtype).requires_grad_()

        def step(x: torch.Tensor) -> Any:
            return torch.autograd.grad((x * model.weight[:3]).sum(), [model.weight], allow_unused=True)

        return step, [(leaf,), (model(leaf),)], {"model": model}

    finding = check(Program(setup)).finding
    assert finding is None, str(finding)


def test_batch_norm_in_a_step_that_accumulates() -> None:
    """Its running statistics were taken for leaves by the second backward."""

    def setup(dtype: torch.dtype) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2)).to(dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            for part in x.chunk(2):
                loss = model(part).pow(2).mean()
                (loss / 2).backward()
            optimizer.step()
            return loss.detach()

        return step, [(torch.randn(8, 4).to(dtype),)] * 2, {"model": model, "optimizer": optimizer}

    finding = check(Program(setup)).finding
    assert finding is None, str(finding)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.01),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "Adamax in lists": lambda p: torch.optim.Adamax(p, lr=0.01, foreach=True),
    "AMSGrad in lists": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, foreach=True),
    "rate in a tensor": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01)),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers_that_compute_with_numbers(optimizer: str) -> None:
    """What follows the last gradient needs no trace: the whole step ran operator by operator instead."""
    check_step(
        lambda: nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4)),
        lambda: torch.randn(4, 8), mean_square, OPTIMIZERS[optimizer],
    )  # fmt: skip


def returned_beside_updates(model: nn.Module, x: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """Steps that return tensors which share memory with what is updated, or with each other."""
    weight = next(model.parameters())

    def step(make: Callable[[torch.Tensor], Any]) -> Callable[[], Any]:
        def run() -> Any:
            model.zero_grad()
            out = model(x)
            loss = out.pow(2).mean()
            early = weight.detach().t() if make is views_of_weights else None
            loss.backward()
            with torch.no_grad():
                for p in model.parameters():
                    p.sub_(p.grad, alpha=0.1)
            return early, make(out), loss.detach()

        return run

    def views_of_weights(out: torch.Tensor) -> Any:
        return weight.detach().flatten(), weight.grad

    def views_of_outputs(out: torch.Tensor) -> Any:
        part = out.detach() * 2
        return part, part[0], part.t()

    def changed_outputs(out: torch.Tensor) -> Any:
        part = out.detach()
        part.mul_(2)
        return part, out.detach() + 1

    def changed_gradients(out: torch.Tensor) -> Any:
        weight.grad.mul_(3)
        return weight.grad, weight.grad.t()

    makers = (views_of_weights, views_of_outputs, changed_outputs, changed_gradients)
    return {make.__name__: step(make) for make in makers}


@pytest.mark.parametrize("kind", ["views_of_weights", "views_of_outputs", "changed_outputs", "changed_gradients"])
def test_results_that_share_memory(kind: str) -> None:
    """What a step returns beside its updates is what eager returns, and shares memory with the same tensors."""

    def setup(dtype: torch.dtype) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
        torch.manual_seed(0)
        model, x = nn.Linear(4, 4).to(dtype), torch.randn(3, 4).to(dtype)
        run = returned_beside_updates(model, x)[kind]
        return run, [(), ()], {"model": model}

    finding = check(Program(setup)).finding
    assert finding is None, str(finding)
    runs = []
    for compiler in (lambda function: function, quickfuse.compile):
        model = nn.Linear(4, 4)
        results = leaves_of(compiler(returned_beside_updates(model, torch.ones(3, 4))[kind])())
        places = [t.untyped_storage().data_ptr() for t in (*results, *model.parameters(), model.weight.grad)]
        runs.append([places.index(place) for place in places])
    assert runs[0] == runs[1]


def leaves_of(value: Any) -> list[torch.Tensor]:
    if isinstance(value, tuple | list):
        return [leaf for element in value for leaf in leaves_of(element)]
    return [value] if isinstance(value, torch.Tensor) else []


def test_a_gradient_that_nobody_asked_for() -> None:
    """A convolution of one pixel, whose frozen weight PyTorch computes a gradient of all the same, in another shape."""

    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 16)
            self.conv = nn.Conv1d(16, 16, 1)
            self.conv.weight.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.conv(self.linear(x).transpose(1, 2)).float()

    check_step(Frozen, lambda: torch.randn(4, 8, 8), mean_square, sgd, torch.float32)


# steps with calls that stay as they are ---------------------------------------------------------------------------


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad])
def test_fused_optimizer(optimizer: Any, autocast: bool) -> None:
    """PyTorch's fused kernel is one call in the step; the model before it and the average after it are compiled."""
    made: list[Any] = []

    def steps(compiler: Callable[..., Any]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3))
        updates = optimizer(model.parameters(), lr=0.01, fused=True)
        average = [p.detach().clone() for p in model.parameters()]

        def step(x: torch.Tensor) -> torch.Tensor:
            updates.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                loss = model(x).float().pow(2).mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            updates.step()
            with torch.no_grad():
                for a, p in zip(average, model.parameters(), strict=True):
                    a.lerp_(p, 0.1)
            return loss.detach()

        made.append(compiler(step))
        losses = [made[-1](torch.randn(4, 8)) for _ in range(3)]
        parameters = [*model.parameters()]
        return [*losses, *parameters, *average, *[p.grad for p in parameters if p.grad is not None]]

    expected = steps(lambda step: step)
    found = steps(lambda step: quickfuse.compile(step, fullgraph=True))
    torch.testing.assert_close(found, expected)
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
    assert all(s.kernels > 0 for s in made[1].specialisations)


def test_recurrent_layer_under_autocast() -> None:
    """The layer is a call between graphs, with the settings that hold there."""

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(8, 8, batch_first=True)
            self.head = nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.head(torch.tanh(self.lstm(x * 2)[0]) + x).float()

    def steps(compiler: Callable[..., Any]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = Recurrent()

        def step(x: torch.Tensor) -> torch.Tensor:
            model.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            with torch.no_grad():
                for p in model.parameters():
                    p.sub_(p.grad, alpha=0.1)
            return loss.detach()

        compiled = compiler(step)
        return [*[compiled(torch.randn(2, 5, 8)) for _ in range(2)], *model.parameters()]

    torch.testing.assert_close(steps(quickfuse.compile), steps(lambda step: step), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("allow_unused", [False, True])
def test_gradient_through_more_than_one_graph(allow_unused: bool) -> None:
    """A weight used before and after a layer that stays a call has gradients from both."""

    def setup(dtype: torch.dtype) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
        torch.manual_seed(0)
        lstm, weight = nn.LSTM(8, 8, batch_first=True).to(dtype), nn.Parameter(torch.randn(8, 8).to(dtype))

        def step(x: torch.Tensor) -> Any:
            loss = (lstm(torch.tanh(x @ weight) * 2)[0] @ weight).pow(2).mean()
            (gradient,) = torch.autograd.grad(loss, [weight], allow_unused=allow_unused)
            return loss.detach(), gradient * 2

        return step, [(torch.randn(2, 5, 8).to(dtype),)] * 2, {"lstm": lstm}

    finding = check(Program(setup, torch.float32)).finding
    assert finding is None or finding.kind == "native", str(finding)


@pytest.mark.parametrize("channels, weights_last", [((8, 8), False), ((3, 4), True), ((1, 4), False), ((8, 2), False)])
@pytest.mark.parametrize("convolution", [F.conv2d, F.conv_transpose2d, F.conv3d])
def test_layouts_of_gradients_of_convolutions(
    convolution: Callable[..., torch.Tensor], channels: tuple[int, int], weights_last: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Gradients taken inside of the graph are laid out as the library that computes them does it on the CPU."""
    axes = 3 if convolution is F.conv3d else 2
    channels_last = torch.channels_last_3d if axes == 3 else torch.channels_last
    shape = channels if convolution is F.conv_transpose2d else channels[::-1]

    def gradients(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
        loss = convolution(x.sin(), weight, bias, padding=1).pow(2).mean()
        return torch.autograd.grad(loss, (x, weight, bias))

    for kernel, dtype in ((1, torch.float32), (3, torch.float32), (3, torch.float64)):
        x = torch.randn(2, channels[0], *[6] * axes, dtype=dtype).to(memory_format=channels_last).requires_grad_()
        weight = torch.randn(*shape, *[kernel] * axes, dtype=dtype)
        weight = weight.to(memory_format=channels_last if weights_last else torch.contiguous_format).requires_grad_()
        bias = torch.randn(channels[1], dtype=dtype, requires_grad=True)
        wanted, found = gradients(x, weight, bias), quickfuse.compile(gradients)(x, weight, bias)
        torch.testing.assert_close(found, wanted)
        assert [t.stride() for t in found] == [t.stride() for t in wanted]
    assert not caplog.messages
