"""The two parts of a function that is recorded as a CUDA graph: what runs on the CPU, and the rest. No GPU is needed."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

from quickfuse.capture import capture
from quickfuse.differentiate.expand import expand
from quickfuse.emit.forward_backward import kernel_function, recorded_functions
from quickfuse.emit.recordable import draws_in_turn, launches, why_not_recorded
from quickfuse.ir.kernel import KernelCall, Schedule
from quickfuse.ir.loop import Buffer, Extern, HostScalar, Program
from quickfuse.ir.philox import Stream
from quickfuse.ir.values import TensorMeta
from quickfuse.launch.tables import Placer
from quickfuse.lower import lower
from quickfuse.schedule import schedule as make_schedule

CUDA = torch.device("cuda", 0)


class Reserve:
    """What reserves random numbers, for nobody."""

    device = 0

    def __init__(self, advance: int, numbers: tuple[int, ...]) -> None:
        self.__name__ = f"reserve {advance}"


def scheduled(function: Any, *args: Any) -> tuple[Any, Schedule]:
    """The graph and schedule of a function whose tensors are on a GPU."""
    graph = capture(function, args, {}).graph
    for node in graph.nodes:
        meta = node.meta.get("val")
        if isinstance(meta, TensorMeta):
            node.meta["val"] = replace(meta, device=CUDA)
    return graph, make_schedule(lower(graph, (), expand, lambda device: Stream(1 << 18, Reserve)))


def sources(graph: Any, schedule: Schedule, restarts: bool = False) -> tuple[str, str, str]:
    """The source of both parts, and of all in one function."""
    kernels = [step for step in schedule.steps if isinstance(step, KernelCall)]
    calls: Any = [
        SimpleNamespace(
            device_type="cuda", gathers=False, gather=None, launch=None, current_stream=None, rows_changed=None, words={},
            words_of=lambda buffer: [],
        )
        for _ in kernels
    ]
    inputs = [buffer for buffer in schedule.program.inputs if buffer is not None]
    position = {buffer: k for k, buffer in enumerate(inputs)}
    placer = Placer(schedule, position, [buffer.meta for buffer in inputs])
    host, device, _ = recorded_functions("graph", graph, schedule, calls, placer, restarts)
    whole = kernel_function("graph", graph, schedule, calls, placer, restarts)
    return vars(host)["source"], vars(device)["source"], vars(whole)["source"]


def test_launches_of_a_graph() -> None:
    """Few are not worth a CUDA graph: kernels count one each, and calls of PyTorch two."""
    assert launches(scheduled(lambda x: torch.tanh(x) * 2, torch.randn(8))[1]) == 1
    assert launches(scheduled(lambda x: (torch.mm(x, x) * 2, x.sum()), torch.randn(8, 8))[1]) == 4


def test_scalars_are_the_host_s_and_kernels_the_device_s() -> None:
    graph, schedule = scheduled(lambda x, rate: torch.tanh(x) * (1 - rate), torch.randn(8), 0.25)
    assert why_not_recorded(schedule) is None
    host, device, _ = sources(graph, schedule)
    assert host.startswith("def graph_host(_tensors, rate):") and "_k0(" not in host
    assert "sub = 1 - rate" in host and host.rstrip().endswith("return (sub,)")
    assert "_k0(_stream0, sub)" in device and device.rstrip().endswith("return [_out0]")


def test_without_scalars_the_host_does_nothing() -> None:
    graph, schedule = scheduled(lambda x: torch.relu(x @ x), torch.randn(8, 8))
    host, device, _ = sources(graph, schedule)
    assert host.split() == ["def", "graph_host(_tensors):", "return", "()"]
    assert "_k0(_stream0)" in device


def test_operators_on_parameters_leave_the_host_without_work() -> None:
    layer = torch.nn.Linear(8, 8)
    graph, schedule = scheduled(lambda x: torch.relu(torch.mm(x, layer.weight) + layer.bias), torch.randn(8, 8))
    host, device, _ = sources(graph, schedule)
    assert host.split() == ["def", "graph_host(_tensors):", "return", "()"]
    assert "_set_grad_mode(False)" in device


def test_random_numbers_of_kernels_are_reserved_by_the_host() -> None:
    graph, schedule = scheduled(lambda x: torch.dropout(x, 0.5, True) * 2, torch.randn(8, 8))
    assert why_not_recorded(schedule) is None and not draws_in_turn(schedule.program)
    host, device, whole = sources(graph, schedule)
    assert re.search(r"(_cell\d+)\[0\], (_cell\d+)\[0\] = _f\d+\(_tensors\[0\]\)", host)
    assert "_cell" not in device and "_k0(_stream0)" in device
    # Where something fails, plain Python draws from where the generator was.
    assert whole.index("_began0 = _offset0()") < whole.index("try:") < whole.index("_cell")
    assert whole.index("except _Exception as _error1:") < whole.index("_move0(_began0)")


def test_calls_that_draw_before_kernels() -> None:
    """What they draw in a graph would come after what is reserved before it."""
    def drawing(x: torch.Tensor) -> Any:
        return torch.rand_like(x) * torch.dropout(x, 0.5, True)

    def drawing_last(x: torch.Tensor) -> Any:
        return torch.dropout(x, 0.5, True) * torch.rand_like(x)

    assert draws_in_turn(scheduled(drawing, torch.randn(8, 8))[1].program)
    assert not draws_in_turn(scheduled(drawing_last, torch.randn(8, 8))[1].program)


def test_why_schedules_are_not_recorded() -> None:
    there = Buffer("a", TensorMeta(torch.float32, (8,), (1,), CUDA), "temp")
    here = Buffer("b", TensorMeta(torch.float32, (8,), (1,), torch.device("cpu")), "temp")
    number = HostScalar("n", "1", torch.int64)

    def reason(*steps: Extern) -> str | None:
        return why_not_recorded(Schedule(Program(), [*steps]))

    assert reason() == reason(Extern(torch.relu, (here,), {}, [here])) == ""
    assert reason(Extern(torch.relu, (there,), {}, [there])) is None
    assert "works on the CPU" in str(reason(Extern(torch.relu, (there,), {}, [here])))
    assert "gets a number" in str(reason(Extern(torch.mul, (there, [number]), {}, [there])))
    assert "depends on what is in" in str(reason(Extern(torch.ops.aten.nonzero.default, (there,), {}, [there])))


def test_a_part_that_fails_before_changes_runs_natively() -> None:
    """So that the program's own exception comes, with its effects until then."""

    def change(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return torch.linalg.inv(y)

    graph, schedule = scheduled(change, torch.randn(4, 4), torch.randn(4, 4))
    _, device, whole = sources(graph, schedule, restarts=True)
    for source in (device, whole):
        assert source.index("_changed = False") < source.index("try:") < source.index("raise _RunNatively from _error1")
    _, device, _ = sources(graph, schedule)
    assert "_RunNatively" not in device
