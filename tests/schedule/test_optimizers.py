"""Steps of `torch.optim` optimizers, lowered, fused and interpreted, against eager; and how many kernels they become."""

from __future__ import annotations

import contextlib
import gc
import importlib
import time
from typing import Any

import pytest
import torch
from torch.fx import GraphModule

from quickfuse.differentiate.expand import expand
from quickfuse.ir.kernel import KernelCall, Schedule
from quickfuse.lower import lower
from quickfuse.schedule import schedule as make_schedule
from schedule_interpreter import Interpreter, assert_same, fused
from trace_helper import Recorder, as_if_compiling, copy_of

SHAPES = [(4, 5), (7,), (3, 2, 2), (1,), (1, 6), (64,)]


def make(kind: type[torch.optim.Optimizer], dtype: torch.dtype, count: int = 1, **options: Any) -> torch.optim.Optimizer:
    """An optimizer after its first step, with gradients for the next."""
    parameters = [torch.randn(shape).to(dtype).requires_grad_() for shape in SHAPES * count]
    optimizer = kind(parameters, **options)
    for _ in range(2):
        for p in parameters:
            p.grad = torch.randn_like(p)
        optimizer.step()
    return optimizer


def tensors_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    states = [v for p in parameters for v in optimizer.state[p].values() if isinstance(v, torch.Tensor)]
    rates = [group["lr"] for group in optimizer.param_groups if isinstance(group["lr"], torch.Tensor)]
    gradients = [p.grad for p in parameters if p.grad is not None]
    return [*parameters, *gradients, *states, *rates]


def captured_step(optimizer: torch.optim.Optimizer, compiling: bool) -> tuple[GraphModule, list[torch.Tensor]]:
    """The graph of a step, which is done, and the tensors that it reads and changes."""
    recorder = Recorder()
    tensors = tensors_of(optimizer)
    for k, tensor in enumerate(tensors):
        recorder.placeholder(f"x{k}", tensor)
    with torch.no_grad(), recorder, as_if_compiling() if compiling else contextlib.nullcontext():
        _step(optimizer)
    for node in recorder.graph.nodes:
        node.meta["never_raises"] = True  # as capture says of PyTorch's own code
    recorder.graph.output(())
    return GraphModule(torch.nn.Module(), recorder.graph), tensors


def _step(optimizer: torch.optim.Optimizer) -> None:
    """The step without the wrappers that count it and switch gradients."""
    step = type(optimizer).step
    while hasattr(step, "__wrapped__"):
        step = step.__wrapped__
    step(optimizer)


def check_step(optimizer: torch.optim.Optimizer, compiling: bool) -> Schedule:
    before = [copy_of(t.detach()) for t in tensors_of(optimizer)]
    gm, after = captured_step(optimizer, compiling)
    schedule = fused(lower(gm.graph, expand=expand))
    Interpreter(schedule, [n.name for n in gm.graph.nodes if n.op == "placeholder"])(*before)
    for actual, expected in zip(before, after, strict=True):
        assert_same(actual, expected.detach(), ulps=8)
    return schedule


def calls(schedule: Schedule) -> list[int]:
    """The number of members of each kernel call."""
    assert all(isinstance(step, KernelCall) for step in schedule.steps)
    return [len(step.members) for step in schedule.steps if isinstance(step, KernelCall)]


ADAM: list[dict[str, Any]] = [
    {}, {"weight_decay": 0.1}, {"amsgrad": True}, {"maximize": True}, {"capturable": True},
    {"weight_decay": 0.1, "maximize": True}, {"amsgrad": True, "capturable": True},
]  # fmt: skip
SGD: list[dict[str, Any]] = [
    {}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, {"momentum": 0.9, "dampening": 0.3},
    {"maximize": True, "weight_decay": 0.1},
]  # fmt: skip
OTHERS: list[tuple[type[torch.optim.Optimizer], dict[str, Any]]] = [
    (torch.optim.Adagrad, {}), (torch.optim.Adagrad, {"lr_decay": 0.1, "weight_decay": 0.1}),
    (torch.optim.Adamax, {}), (torch.optim.Adadelta, {}), (torch.optim.Adadelta, {"weight_decay": 0.1}),
    (torch.optim.RMSprop, {}), (torch.optim.RMSprop, {"centered": True, "momentum": 0.9}),
    (torch.optim.NAdam, {}), (torch.optim.Rprop, {}),
]  # fmt: skip


@pytest.fixture(autouse=True)
def any_device_is_capturable(monkeypatch: pytest.MonkeyPatch) -> None:
    """`capturable=True` is refused on the CPU, although its graphs are the same everywhere."""
    supported = lambda *args, **kwargs: ["cpu"]  # noqa: E731
    for name in ("adam", "adamax", "nadam", "rmsprop", "rprop", "adadelta"):
        module = importlib.import_module(f"torch.optim.{name}")
        monkeypatch.setattr(module, "_get_capturable_supported_devices", supported)


@pytest.mark.parametrize("compiling", [False, True], ids=["item", "tensor"])
@pytest.mark.parametrize("foreach", [False, True], ids=["single", "foreach"])
@pytest.mark.parametrize("options", ADAM, ids=str)
def test_adam(options: dict[str, Any], foreach: bool, compiling: bool) -> None:
    optimizer = make(torch.optim.Adam, torch.float32, foreach=foreach, **options)
    schedule = check_step(optimizer, compiling)
    assert calls(schedule) == [len(SHAPES), len(SHAPES)], str(schedule)


@pytest.mark.parametrize("foreach", [False, True], ids=["single", "foreach"])
@pytest.mark.parametrize("options", SGD, ids=str)
def test_sgd(options: dict[str, Any], foreach: bool) -> None:
    optimizer = make(torch.optim.SGD, torch.float32, foreach=foreach, lr=0.1, **options)
    assert calls(check_step(optimizer, False)) == [len(SHAPES)]


@pytest.mark.parametrize("compiling", [False, True], ids=["item", "tensor"])
@pytest.mark.parametrize("foreach", [False, True], ids=["single", "foreach"])
@pytest.mark.parametrize("kind,options", OTHERS, ids=str)
def test_other_optimizers(
    kind: type[torch.optim.Optimizer], options: dict[str, Any], foreach: bool, compiling: bool
) -> None:
    if kind is torch.optim.Adamax and foreach and compiling:
        pytest.skip("an error in eager")
    optimizer = make(kind, torch.float32, foreach=foreach, **options)
    assert len(calls(check_step(optimizer, compiling))) <= 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("foreach", [False, True], ids=["single", "foreach"])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop])
def test_types(kind: type[torch.optim.Optimizer], foreach: bool, dtype: torch.dtype) -> None:
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    optimizer = make(kind, dtype, foreach=foreach, lr=0.01, **options)
    assert len(calls(check_step(optimizer, False))) <= 2


@pytest.mark.parametrize("foreach", [False, True], ids=["single", "foreach"])
def test_a_tensor_for_the_learning_rate(foreach: bool) -> None:
    optimizer = make(torch.optim.Adam, torch.float32, lr=torch.tensor(0.01), capturable=foreach, foreach=foreach)
    schedule = check_step(optimizer, True)
    assert calls(schedule) == [len(SHAPES), len(SHAPES)], str(schedule)


@pytest.mark.parametrize("foreach", [False, True], ids=["single", "foreach"])
def test_mixed_types_and_groups(foreach: bool) -> None:
    """One kernel call for each type, and for each group whose numbers differ."""
    parameters = [torch.randn(4, 4, dtype=t) for t in (torch.float32, torch.bfloat16) for _ in range(3)]
    groups = [{"params": parameters[:4]}, {"params": parameters[4:], "lr": 0.5}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9, foreach=foreach)
    for _ in range(2):
        for p in parameters:
            p.grad = torch.randn_like(p)
        optimizer.step()
    assert calls(check_step(optimizer, False)) == [3, 1, 2]


def test_layouts() -> None:
    """Transposed and channels-last parameters are as flat as contiguous ones; a sliced one is not."""
    dense = [torch.randn(4, 6), torch.randn(6, 4).t(), torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)]
    optimizer = torch.optim.Adam([p.requires_grad_() for p in dense], foreach=False)
    for _ in range(2):
        for p in dense:
            p.grad = torch.randn_like(p)
        optimizer.step()
    assert calls(check_step(optimizer, False)) == [3, 3]
    base = torch.randn(6, 8)
    sliced = [base[:, :5], torch.randn(3, 3)]
    for p in sliced:
        p.grad = torch.randn_like(p)
    assert calls(check_step(torch.optim.SGD(sliced, lr=0.1), False)) == [1, 1]


def test_the_first_step() -> None:
    """States that the step makes are outputs of nobody, so they only live inside it."""
    parameters = [torch.randn(4, 4) for _ in range(3)]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=False)
    for p in parameters:
        p.grad = torch.randn_like(p)
    assert calls(check_step(optimizer, False)) == [3]


@pytest.mark.parametrize("compiling", [False, True], ids=["item", "tensor"])
@pytest.mark.parametrize("foreach", [False, True], ids=["single", "foreach"])
def test_compile_time_of_a_thousand_parameters(foreach: bool, compiling: bool) -> None:
    """Printed, not asserted: see it with `pytest -s`. What grows with the number of parameters has to be quick."""
    parameters = [torch.randn(2, 3).requires_grad_() for _ in range(1000)]
    optimizer = torch.optim.Adam(parameters, foreach=foreach)
    for p in parameters:
        p.grad = torch.randn_like(p)
    optimizer.step()
    gm, _ = captured_step(optimizer, compiling)
    gc.collect()
    gc.disable()  # as `collected_later` does
    try:
        start = time.process_time()
        program = lower(gm.graph, expand=expand)
        lowered = time.process_time()
        schedule = make_schedule(program)
        scheduled = time.process_time()
    finally:
        gc.enable()
    print(f"\n{len(gm.graph.nodes)} nodes: lowered in {lowered - start:.3f} s, scheduled in {scheduled - lowered:.3f} s")
    assert calls(schedule) == [1000, 1000]
