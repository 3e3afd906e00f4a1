"""Attention with dropout on a GPU returns the state of the random number generator on the CPU, where backward reads it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import quickfuse
from operator_cases import breaks
from quickfuse import logs
from quickfuse.differentiate.drawing import draws_random_numbers, leave_out_states
from quickfuse.differentiate.shapes import spec_of
from quickfuse.differentiate.traced import Memory, make_traced
from quickfuse.emit.recordable import why_not_recorded
from quickfuse.ir.gradients import Unfit
from quickfuse.ir.kernel import Schedule
from quickfuse.ir.loop import Buffer, Extern, Program
from quickfuse.ir.random_state import results_on_cpu, uses_random_state
from quickfuse.ir.values import TensorMeta, contiguous_stride
from quickfuse.launch.compiled_graph import laid_out

aten = torch.ops.aten
_CUDA = torch.device("cuda", 0)


def _on_gpu(*shape: int) -> Any:
    meta = TensorMeta(torch.float32, shape, contiguous_stride(shape), _CUDA)
    return make_traced(meta, Memory(None, meta), (), None)  # type: ignore[arg-type]


def test_which_results() -> None:
    efficient, whole = aten._efficient_attention_forward, aten._scaled_dot_product_efficient_attention
    assert results_on_cpu(efficient) == results_on_cpu(efficient.default) == results_on_cpu(whole.default) == (2, 3)
    assert results_on_cpu(torch.relu) == ()
    assert uses_random_state(efficient) and uses_random_state(aten._efficient_attention_backward.default)


def test_gradients_draw_nothing() -> None:
    """They are told what was drawn, although PyTorch says of some that they draw."""
    graph = torch.fx.Graph()
    operands = [graph.placeholder(name) for name in ("grad", "q", "k", "v", "out", "sums", "seed", "offset")]
    seeded = aten._scaled_dot_product_efficient_attention_backward.default
    gradients = graph.call_function(seeded, (*operands[:4], None, *operands[4:], 0.5, [True] * 4))
    attention = graph.call_function(aten._scaled_dot_product_efficient_attention.default, (*operands[1:4], None, True, 0.5))
    assert draws_random_numbers(attention) and not draws_random_numbers(gradients)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_gradients_of_what_drew_nothing_take_no_state(dropout: float) -> None:
    """So that forward hands none on from one CUDA graph to another."""
    graph = torch.fx.Graph()
    operands = [graph.placeholder(name) for name in ("grad", "q", "k", "v", "out", "sums", "seed", "offset")]
    backward = aten._scaled_dot_product_efficient_attention_backward.default
    args = (*operands[:4], None, *operands[4:], dropout, [True] * 4)
    gradients = graph.call_function(backward, args, {"scale": 0.5})
    graph.output(gradients)
    leave_out_states(graph)
    if dropout:
        assert gradients.target is backward and gradients.args == args
        return
    cpu = torch.device("cpu")
    metas = {name: TensorMeta(torch.float32, (3,), (1,), _CUDA) for name in ("grad", "q", "k", "v", "out", "sums")}
    metas |= {name: TensorMeta(torch.int64, (), (), cpu) for name in ("seed", "offset")}
    buffers = {node: Buffer(node.name, metas[node.name], "input") for node in operands}
    given = tuple([buffers.get(a, a) if isinstance(a, torch.fx.Node) else a for a in gradients.args])
    step = Extern(gradients.target, given, {}, [Buffer("result", metas["q"], "temp")])
    assert not {buffers[operands[6]], buffers[operands[7]]} & {*step.buffers}
    assert why_not_recorded(Schedule(Program(outputs=step.outputs), [step])) is None
    called = []
    gradients.target.function = lambda *args, **settings: called.append((args, settings))
    tensors = {node: torch.ones(3) for node in operands}
    gradients.target(*[tensors.get(a, a) if isinstance(a, torch.fx.Node) else a for a in gradients.args], **gradients.kwargs)
    gradients.target.function = backward
    ((seed, offset), settings), = [(args[7:9], settings) for args, settings in called]
    assert seed.shape == offset.shape == () and seed.dtype is torch.int64 and settings == {"scale": 0.5}


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_trace(dropout: float) -> None:
    q, k = _on_gpu(2, 3, 16, 8), _on_gpu(2, 3, 24, 8)
    found = spec_of(aten._scaled_dot_product_efficient_attention.default, (q, k, k, None, True, dropout), {})
    devices = [out.meta.device.type for out in found]
    assert devices == ["cuda", "cuda", "cpu", "cpu"]


def test_saved_tensors_stay_on_their_device() -> None:
    with pytest.raises(Unfit):
        laid_out(torch.zeros(()), TensorMeta(torch.float32, (), (), torch.device("meta")))


def test_recording() -> None:
    """While a graph is recorded the state is on the GPU: what nothing else reads may be recorded."""

    def buffer(name: str, device: torch.device, *shape: int, kind: str = "temp") -> Buffer:
        return Buffer(name, TensorMeta(torch.float32, shape, contiguous_stride(shape), device), kind)

    cpu = torch.device("cpu")
    q, out, sums, grad = (buffer(name, _CUDA, 2, 3, 16, 8) for name in ("q", "out", "sums", "grad"))
    seed, offset = buffer("seed", cpu), buffer("offset", cpu)
    attend, attend_back = (
        aten._scaled_dot_product_efficient_attention.default, aten._scaled_dot_product_efficient_attention_backward.default
    )  # fmt: skip
    forward = Extern(attend, (q, q, q, None, True, 0.5), {}, [out, sums, seed, offset])
    backward = Extern(attend_back, (out, q, q, q, None, out, sums, seed, offset, 0.5, [True] * 4), {}, [grad])
    steps: list[Any] = [forward, backward]
    assert why_not_recorded(Schedule(Program(outputs=[grad]), steps)) is None
    assert why_not_recorded(Schedule(Program(outputs=[grad, seed]), steps))
    assert why_not_recorded(Schedule(Program(outputs=[grad]), [backward]))
    read = Extern(aten.neg.default, (seed,), {}, [buffer("read", cpu)])
    assert why_not_recorded(Schedule(Program(outputs=[grad]), [*steps, read]))


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("direct", [False, True])
def test_backward_outside(direct: bool, dropout: float, mode: str) -> None:
    q = torch.randn(2, 3, 16, 8, device="cuda", requires_grad=True)
    k = torch.randn(2, 3, 24, 8, device="cuda", requires_grad=True)

    def attend(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        if not direct:
            return F.scaled_dot_product_attention(q, k, k, dropout_p=dropout)
        operands = [t.transpose(1, 2) for t in (q, k, k)]
        result = aten._efficient_attention_forward(*operands, None, None, None, None, None, dropout, 0, True)[0]
        return result.transpose(1, 2)

    compiled = quickfuse.compile(attend, mode=mode, options={"raise_internal_errors": True})
    runs: list[Any] = []
    reasons: list[str] = []
    before = logs.counts.get("cuda graphs", 0)
    for function in (attend, compiled):
        torch.cuda.manual_seed(3)
        with breaks(reasons):
            for _ in range(4):
                q.grad = k.grad = None
                out = function(q, k)
                out.square().sum().backward()
        runs.append([out.detach(), q.grad, k.grad])
    assert not any("operator by operator" in reason for reason in reasons)
    if mode == "reduce-overhead" and not dropout:
        assert logs.counts["cuda graphs"] == before + 2 and not any("no CUDA graph" in reason for reason in reasons)
    torch.testing.assert_close(runs[1], runs[0])


def test_a_generator_of_the_program_gives_no_number_to_the_compiler() -> None:
    """What gradients there are is found out by running the graph without data: a generator must not draw for that."""

    def step(w, x, generator):
        y = x * w + torch.randn(x.shape, generator=generator)
        (gradient,) = torch.autograd.grad(y.square().sum(), [w])
        return y.detach(), gradient

    seen = []
    for run in (step, quickfuse.compile(step)):
        generator = torch.Generator().manual_seed(5)
        w, x = torch.ones(3, requires_grad=True), torch.ones(4, 3)
        seen.append([[run(w, x, generator) for _ in range(3)], generator.get_state()])
    torch.testing.assert_close(seen[1], seen[0])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_graph_that_fails_draws_nothing(device: str) -> None:
    """The program runs from its beginning then, and draws for itself."""

    def step(x, w):
        dropped, y = F.dropout(w, 0.3), x.clone()
        for row in y:
            row.mul_(0.5)  # which eager refuses
        return dropped + 1, y

    seen = []
    for run in (step, quickfuse.compile(step)):
        torch.manual_seed(3)
        x, w = (torch.randn(3, 3, device=device, requires_grad=needed) for needed in (True, False))
        drawn = []
        for _ in range(3):
            with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
                run(x, w)
            drawn.append(torch.rand(2, device=device).tolist())
        seen.append(drawn)
    assert seen[0] == seen[1]


@pytest.mark.gpu
def test_a_program_records_a_graph_of_its_own_around_it() -> None:
    """Generators cannot be asked for their states then, and PyTorch gives the graph other numbers in each replay."""
    layer = torch.nn.Linear(8, 8, device="cuda")

    def step(x):
        return F.dropout(layer(x), 0.5).square().sum()

    seen = []
    for run in (step, quickfuse.compile(step)):
        torch.cuda.manual_seed(3)
        x = torch.ones(4, 8, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                layer.zero_grad()
                run(x).backward()
        torch.cuda.current_stream().wait_stream(side)
        layer.zero_grad()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = run(x)
            loss.backward()
        found = []
        for _ in range(3):
            graph.replay()
            found.append([loss.clone(), layer.weight.grad.clone()])
        seen.append([*found, torch.rand(2, device="cuda")])
    assert not torch.equal(seen[1][0][0], seen[1][1][0])
    torch.testing.assert_close(seen[1], seen[0])
