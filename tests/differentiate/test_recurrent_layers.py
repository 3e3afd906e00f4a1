"""Recurrent layers as calls of cuDNN, which the CPU plays here: it computes the same, keeps something for backward that it
overwrites there, and looks for weights in one piece of memory."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import Graph

import quickfuse
from quickfuse.capture.inference.metadata import result_of
from quickfuse.capture.symbolic import TensorProxy
from quickfuse.differentiate import recurrent_layers
from quickfuse.ir import cudnn_rnn
from quickfuse.ir.cudnn_rnn import KINDS
from quickfuse.ir.values import TensorMeta

OPERATORS = {kind: operator for operator, kind in KINDS.items()}


class Played:
    """cuDNN's functions, on the CPU."""

    def __init__(self) -> None:
        self.apart, self.calls = 0, []

    def operator(self, x, weights, count, hidden, cell, kind, size, outputs, layers, batch_first, dropout, train, both, *_):
        state = hidden if cell is None else (hidden, cell)
        return OPERATORS[kind](x, state, weights, count > 3, layers, dropout, train, both, batch_first)

    def forward(self, x, weights, count, flat, hidden, cell, *settings):
        self.calls.append("forward")
        self.apart += flat is None
        output, *states = self.operator(x, weights, count, hidden, cell, *settings)
        if settings[4]:  # the batch first: cuDNN has the time first in memory
            output = output.transpose(0, 1).contiguous().transpose(0, 1)
        states = [*states, x.new_empty(0)] if cell is None else states
        return (output, *states, torch.full((64,), 7, dtype=torch.uint8), x.new_empty(0))

    def backward(self, x, weights, count, flat, hidden, cell, output, *more):
        gradients, settings, (_, reserve, mask) = more[:3], more[3:-3], more[-3:]
        self.calls.append("backward")
        assert bool((reserve == 7).all()), "what backward needs was overwritten"
        reserve.zero_()
        assert flat.numel() == sum(w.numel() for w in weights)
        given = [t if t is None else t.detach().clone().requires_grad_() for t in (x, hidden, cell)]
        parameters = [w.detach().clone().requires_grad_() for w in weights]
        with torch.enable_grad():
            results = self.operator(given[0], parameters, count, given[1], given[2], *settings)
        pairs = [(r, g) for r, g in zip(results, gradients, strict=False) if g is not None]
        inputs = [t for t in (*given, *parameters) if t is not None]
        found = iter(torch.autograd.grad([r for r, _ in pairs], inputs, [g for _, g in pairs], allow_unused=True))
        of_given = [None if t is None else next(found) for t in given]
        if settings[4]:
            of_given[0] = of_given[0].transpose(0, 1).contiguous().transpose(0, 1)
        return (*[g if wanted else None for g, wanted in zip(of_given, mask, strict=False)], [*found] if mask[3] else [])

    def flatten(self, weights, *_):
        """All matrices, then all biases."""
        memory = torch.empty(sum(w.numel() for w in weights), dtype=weights[0].dtype)
        begin = 0
        for w in [*[w for w in weights if w.ndim == 2], *[w for w in weights if w.ndim == 1]]:
            w.set_(memory.untyped_storage(), begin, w.shape, w.stride())
            begin += w.numel()
        return memory


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    plays = Played()
    for name in ("forward", "backward", "flatten"):
        monkeypatch.setattr(cudnn_rnn, f"_{name}", getattr(plays, name))
    monkeypatch.setattr(cudnn_rnn, "DEVICE", "cpu")
    monkeypatch.setattr(recurrent_layers, "_by_a_call", recurrent_layers._without_a_gpu)
    cudnn_rnn._places.cache_clear()
    return plays


def flattened(layer: nn.RNNBase) -> nn.RNNBase:
    """As `flatten_parameters()` leaves a module's weights on a GPU."""
    weights = [w.detach().clone() for w in layer._flat_weights]
    Played().flatten(weights)
    for own, moved in zip(layer._flat_weights, weights, strict=True):
        moved.copy_(own.detach())
        own.data = moved
    return layer


LAYERS: dict[str, Callable[[], nn.RNNBase]] = {
    "lstm": lambda: nn.LSTM(3, 4),
    "lstm, batch first, two layers": lambda: nn.LSTM(3, 4, 2, batch_first=True),
    "lstm, both directions, no bias": lambda: nn.LSTM(3, 4, bidirectional=True, bias=False),
    "lstm, projected": lambda: nn.LSTM(3, 4, proj_size=2),
    "gru": lambda: nn.GRU(3, 4, 2),
    "gru, both directions, batch first": lambda: nn.GRU(3, 4, bidirectional=True, batch_first=True),
    "tanh": lambda: nn.RNN(3, 4),
    "relu": lambda: nn.RNN(3, 4, nonlinearity="relu"),
}


class Reader(nn.Module):
    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.lead, self.layer = nn.Linear(3, 3), layer
        outputs = (layer.proj_size or layer.hidden_size) * (2 if layer.bidirectional else 1)
        self.head = nn.Linear(outputs, 2)

    def forward(self, x: torch.Tensor) -> Any:
        output, state = self.layer(torch.tanh(self.lead(x)))
        last = state if isinstance(state, torch.Tensor) else state[0] + state[1].mean()
        return torch.sigmoid(self.head(output)), last.sum()


def readers(layer: Callable[[], nn.RNNBase]) -> list[Reader]:
    torch.manual_seed(0)
    first = Reader(layer())
    second = copy.deepcopy(first)
    flattened(second.layer)
    return [first, second]


def trained(
    model: Reader, batches: list[torch.Tensor], whole: bool, compiler: Callable[[Any], Any], autocast: bool = False
) -> list[torch.Tensor]:
    """The losses of some steps, and the parameters after them."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, enabled=autocast):
            output, last = model(x)
            return (output - 0.3).pow(2).sum() + 0.1 * last

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = compiler(step if whole else loss_of)
    found = []
    for x in batches:
        if whole:
            found.append(run(x).clone())
            continue
        optimizer.zero_grad()
        loss = run(x)
        loss.backward()
        optimizer.step()
        found.append(loss.detach().clone())
    return [*found, *[p.detach() for p in model.parameters()]]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("whole", [False, True], ids=["backward outside", "whole step"])
def test_gradients(name: str, whole: bool, played: Played) -> None:
    first, second = readers(LAYERS[name])
    batches = [torch.randn(5, 2, 3) for _ in range(3)]

    expected = trained(first, batches, whole, lambda f: f)
    found = trained(second, batches, whole, lambda f: quickfuse.compile(f, fullgraph=True))
    assert played.calls == ["forward", "backward"] * len(batches)
    for a, b in zip(expected, found, strict=True):
        torch.testing.assert_close(b, a)


@pytest.mark.parametrize("training", [True, False])
def test_weights_without_gradients(training: bool, played: Played) -> None:
    """The gradient of a state alone. Without training cuDNN has none: there, the layer is not such a call."""
    layer = flattened(nn.LSTM(3, 4)).train(training).requires_grad_(False)
    x = torch.randn(5, 2, 3)

    def last_of(state: torch.Tensor) -> torch.Tensor:
        return layer(x, (state, state * 2))[0].sin().sum()

    compiled = quickfuse.compile(last_of, fullgraph=True)
    gradients = []
    for run in (last_of, compiled):
        state = torch.ones(1, 2, 4, requires_grad=True)
        run(state).backward()
        gradients.append(state.grad)
    torch.testing.assert_close(*gradients)
    assert played.calls == (["forward", "backward"] if training else [])
    assert not training or not any(s.without_kernels for s in compiled.specialisations)


def test_once_and_again(played: Played) -> None:
    """What backward needs is overwritten, unless it is asked for once more."""
    first, second = readers(LAYERS["lstm"])
    compiled = quickfuse.compile(second, fullgraph=True)
    x = torch.randn(5, 2, 3)
    for run in (first, compiled):
        output, _ = run(x)
        output.sum().backward(retain_graph=True)
        output.sum().backward()
        output, last = run(x)
        (output.sum() + last).backward()
    for p, q in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad)
    assert played.apart == 0


class Flattening(Reader):
    def forward(self, x: torch.Tensor) -> Any:
        self.layer.flatten_parameters()
        return super().forward(x)


def test_flattened_again(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that lie together stay where they are; others are put together by Python, in a break."""
    model = Flattening(nn.LSTM(3, 4))
    x = torch.randn(5, 2, 3)
    wanted = model(x)[0].detach()
    flattened(model.layer)
    places = [w.data_ptr() for w in model.layer._flat_weights]
    torch.testing.assert_close(quickfuse.compile(model, fullgraph=True)(x)[0].detach(), wanted)
    assert [w.data_ptr() for w in model.layer._flat_weights] == places and cudnn_rnn.lie_together(model.layer)
    assert not cudnn_rnn.lie_together(nn.GRU(3, 4, bidirectional=True))


def test_weights_that_lie_apart(played: Played) -> None:
    """They are put together for each call."""
    torch.manual_seed(0)
    first = Reader(nn.LSTM(3, 4, 2))
    second = copy.deepcopy(first)
    compiled = quickfuse.compile(second, fullgraph=True)
    x = torch.randn(5, 2, 3)
    for run in (first, compiled):
        output, last = run(x)
        (output.sum() + last).backward()
    for p, q in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad)
    del played.calls[:]
    compiled(x)[0].sum().backward()
    assert played.apart == 2 and played.calls == ["forward", "backward"]


@pytest.mark.gpu
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("whole", [False, True], ids=["backward outside", "whole step"])
@pytest.mark.parametrize("name", LAYERS)
def test_on_a_gpu(name: str, whole: bool, dtype: torch.dtype, mode: str | None) -> None:
    """float16: by autocast."""
    torch.manual_seed(0)
    first = Reader(LAYERS[name]()).cuda()
    second = copy.deepcopy(first)
    if dtype is torch.float64:
        first, second = first.double(), second.double()
    batches = [
        torch.randn(5, 2, 3, device="cuda", dtype=torch.float64 if dtype is torch.float64 else torch.float32)
        for _ in range(6)
    ]
    for layer in (first.layer, second.layer):
        layer.flatten_parameters()
    expected = trained(first, batches, whole, lambda f: f, dtype is torch.float16)
    found = trained(
        second, batches, whole, lambda f: quickfuse.compile(f, fullgraph=True, mode=mode), dtype is torch.float16
    )
    tolerance = {torch.float16: 2e-3, torch.float32: 1e-5, torch.float64: 1e-10}[dtype]
    for a, b in zip(expected, found, strict=True):
        torch.testing.assert_close(b, a, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_types_under_autocast(dtype: torch.dtype) -> None:
    """Autocast for a GPU converts all but double precision to float16, whichever its own type is."""
    device = torch.device("cuda", 0)

    def proxy(*shape: int, of: torch.dtype = torch.float32) -> TensorProxy:
        wide = torch.float64 if dtype is torch.float64 else of
        return TensorProxy(TensorMeta.dense(wide, shape, device), Graph().placeholder("x"))

    x, state = proxy(2, 5, 3, of=dtype), proxy(1, 2, 4, of=dtype)
    weights = [proxy(16, 3), proxy(16, 4), proxy(16), proxy(16)]
    before = torch.is_autocast_enabled("cuda")
    torch.set_autocast_enabled("cuda", True)
    try:
        args = (x, [state, state], weights, True, 1, 0.0, True, False, True)
        result = result_of(torch.lstm, args, {}, [x, state, state, *weights], True)
    finally:
        torch.set_autocast_enabled("cuda", before)
    wanted = torch.float64 if dtype is torch.float64 else torch.float16
    assert [(m.dtype, m.shape) for m in result.structure] == [(wanted, (2, 5, 4)), *[(wanted, (1, 2, 4))] * 2]


@pytest.mark.gpu
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_evaluation_on_a_gpu(name: str, autocast: bool, mode: str | None) -> None:
    torch.manual_seed(0)
    model = Reader(LAYERS[name]()).cuda().eval()

    def outputs(x: torch.Tensor) -> Any:
        with torch.autocast("cuda", enabled=autocast):
            return model(x)

    compiled = quickfuse.compile(outputs, fullgraph=True, mode=mode)
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(5, 2, 3, device="cuda")
            tolerance = 2e-3 if autocast else 1e-5
            for found, wanted in zip(compiled(x), outputs(x), strict=True):
                torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)
                assert found.dtype is wanted.dtype
