"""Python source of a forward or backward graph: a function of its tensors and numbers.

    def backward(_tensors, s):
        _b0 = _new7()  # float32[3, 4]
        ...
        return [_out0, _out1]

Where kernels cannot be had, the function calls PyTorch's operators one by one, and lets go of each tensor after its last
use.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch.fx import Graph

from ..ir.generated import generated_function, graph_module
from ..ir.gradients import Refused, Unfit
from ..ir.kernel import KernelCall, Schedule
from ..ir.launching import Launch, Placement
from ..ir.loop import Buffer, Draw, Extern, Number, View, buffers_in
from ..ir.nodes import copied_node
from ..ir.segment import RunNatively
from ..ir.values import TensorMeta
from .kernel_calls import KernelBodyWriter


class _FunctionWriter(KernelBodyWriter):
    """As for a captured graph, but that results which are inputs are these very objects, and that views of results are
    tensors of their own: autograd would refuse changes of views that were made inside a function.

    `consumes`: the list of tensors is for this call alone, and each is taken out of it after its last use."""

    consumes = False
    passed_on = "_Unfit"
    hides_views = True

    def returned(self) -> str:
        """The last statement."""
        return f"return [{', '.join(self.names)}]"

    def _taken_back(self) -> list[str]:
        """The caller noted it, and sees to it."""
        return []

    def _dying(self) -> dict[int, list[Buffer]]:
        dying = super()._dying()
        if self.consumes:
            returned = {*buffers_in(self.schedule.program.outputs)}
            last = {b: number for number, used in enumerate(self._used) for b in used if b.kind == "input"}
            for buffer, number in last.items():
                if buffer not in returned:
                    dying.setdefault(number, []).append(buffer)
        return dying

    def _release(self, buffers: Iterable[Buffer]) -> None:
        buffers = list(buffers)
        super()._release([buffer for buffer in buffers if buffer.kind != "input"])
        self.lines += [f"{self._variables[buffer]} = None" for buffer in buffers if buffer.kind == "input"]

    def _result(self, output: Any) -> str:
        if isinstance(output, Buffer) and output.kind == "input":
            return self._variables[output]
        if isinstance(output, View) and not isinstance(output, Number) and output.buffer.kind != "input":
            if self._is_all_that_is_left(output):
                return self._variables[output.buffer]
            return f"{self._view(output)}.detach()"
        return self._argument(output)

    def _is_all_that_is_left(self, view: View) -> bool:
        """Whether a view is all of a tensor that is not returned otherwise."""
        meta = view.buffer.meta
        whole = (view.shape, view.stride, view.offset) == (meta.shape, meta.stride, 0)
        outputs = self.schedule.program.outputs
        return whole and [*buffers_in(outputs)].count(view.buffer) == 1

    def _extern(self, step: Extern) -> None:
        start = len(self.lines)
        super()._extern(step)
        checks = [
            f"if {name} is None or {name}.shape != {buffer.meta.shape} or {name}.dtype is not {self._dtype(buffer)}"
            f"{_elsewhere(name, buffer)}: raise _Unfit"
            for buffer in step.outputs if buffer in self._read and (name := self._variables.get(buffer))
        ]  # fmt: skip
        self.lines[start + 1 : start + 1] = checks

    def _dtype(self, buffer: Buffer) -> str:
        name = f"_{str(buffer.meta.dtype).removeprefix('torch.')}"
        self.constants[name] = buffer.meta.dtype
        return name


def _elsewhere(name: str, buffer: Buffer) -> str:
    """A condition for a tensor that is not on the GPU where it should be: a kernel that reads it takes the process with it.
    Only tensors of one element are on the CPU by surprise."""
    return f" or not {name}.is_cuda" if buffer.meta.device.type == "cuda" and not buffer.meta.shape else ""


class _HostWriter(_FunctionWriter):
    """What runs on the CPU before a recorded graph: kernels on numbers, and what the graph's kernels get of them.

    The function returns the scalar arguments of all kernels on the GPU.
    """

    def _launch(self, step: KernelCall, index: int) -> None:
        if step.device.type == "cpu":
            super()._launch(step, index)
        elif self.calls[index].gathers:
            self.constants[f"_k{index}_gather"] = self.calls[index].gather
            self.lines.append(f"_k{index}_gather()")

    def _extern(self, step: Extern) -> None:
        """Operators are recorded."""
        if isinstance(step, Draw):
            self._draw(step)

    def _allocate(self, buffer: Buffer) -> None:
        if buffer.meta.device.type == "cpu":
            super()._allocate(buffer)

    def _open_streams(self) -> None:
        """Nothing is launched."""

    def _open_arena(self) -> None:
        """It is for the kernels that are recorded."""

    def _finish(self) -> None:
        """The outputs are the other part's."""

    def _forget_history(self) -> None:
        """No operator is called, which could record what it does."""

    def returned(self) -> str:
        on_gpu = [s for s in self.schedule.steps if isinstance(s, KernelCall) and s.device.type != "cpu"]
        scalars = [scalar.name for step in on_gpu for scalar in step.scalars]
        return f"return ({', '.join(scalars)}{',' if scalars else ''})"

    def _handle_failures(self) -> None:
        """Kernels do not fail."""


class _DeviceWriter(_FunctionWriter):
    """The rest: what is recorded, and runs as it is where it cannot be. Whoever calls it brings generators of random numbers
    back to where they were: that cannot be asked of them while they are recorded."""

    _random_states: ClassVar[list[tuple[str, str]]] = []  # type: ignore[assignment]

    def _launch(self, step: KernelCall, index: int) -> None:
        if step.device.type != "cpu":
            start = len(self.lines)
            super()._launch(step, index)
            self.lines[start:] = self.lines[-1:]  # numbers are gathered before

    def _draw(self, step: Draw) -> None:
        """The numbers are reserved before."""


def recorded_functions(
    name: str, graph: Graph, schedule: Schedule, calls: list[Launch], placer: Placement, restarts: bool = False
) -> tuple[Callable[..., Any], Callable[..., Any], list[int]]:
    """The two parts of a function whose schedule can be recorded (see `recordable`): what runs on the CPU, which returns the
    scalar arguments of the kernels on the GPU, and the rest; and the GPUs that random numbers are drawn on. For `restarts`
    see `kernel_function`."""
    inputs, numbers = _inputs(graph)
    names = [f"_out{k}" for k in range(len(schedule.program.outputs))]
    host = _HostWriter(schedule, calls, placer, inputs, names, "raise _Refused")
    device = _DeviceWriter(schedule, calls, placer, inputs, names, "raise _Refused", restarts)
    made = [
        _written(writer, f"{name}_{kind}", numbers, "raise _RunNatively")
        for writer, kind in ((host, "host"), (device, "device"))
    ]
    return made[0], made[1], device.drawing_devices


def kernel_function(
    name: str, graph: Graph, schedule: Schedule, calls: list[Launch], placer: Placement, restarts: bool = False,
    consumes: bool = False,
) -> Callable[..., Any]:  # fmt: skip
    """A function that launches kernels. Tables of addresses are the caller's business.

    `consumes`: it lets go of its tensors as it goes along, and takes them out of the list that it is given.
    `restarts`: it changes inputs, so that eager cannot run instead where the values do not fit. What finds that out comes
    before the changes, and the whole call runs natively.
    """
    inputs, numbers = _inputs(graph)
    names = [f"_out{k}" for k in range(len(schedule.program.outputs))]
    writer = _FunctionWriter(schedule, calls, placer, inputs, names, "raise _Refused", restarts)
    writer.consumes = consumes
    made = _written(writer, name, numbers, "raise _RunNatively" if restarts else "raise _Refused")
    made.__dict__.update(changes_early=_changed_before_a_call(schedule), restarts=restarts)
    return made


def _written(writer: _FunctionWriter, name: str, numbers: list[str], refuse: str) -> Callable[..., Any]:
    """The function that a writer writes; `refuse` is the statement where a number does not fit."""
    body = writer.write()
    lines = [line.replace("return _MISS", refuse) for line in body.numbers]
    lines += [*writer.statements, writer.returned()]
    exceptions = {"_Unfit": Unfit, "_Refused": Refused, "_RunNatively": RunNatively}
    return _function(name, numbers, lines, {**body.constants, **exceptions})


def _changed_before_a_call(schedule: Schedule) -> list[int]:
    """The inputs, by their positions among the tensors, that kernels store to before the last call of PyTorch, which may
    turn out to return another shape than it says."""
    tensors = [buffer for buffer in schedule.program.inputs if buffer is not None]
    position = {buffer: k for k, buffer in enumerate(tensors)}
    changed: dict[Buffer, None] = {}
    early = 0
    for step in schedule.steps:
        if isinstance(step, Extern):
            early = len(changed)
        else:
            changed.update(step.changed_inputs)
    return [position[buffer] for buffer in [*changed][:early]]


def _inputs(graph: Graph) -> tuple[list[str], list[str]]:
    """The expressions of a graph's placeholders, and the names of those that are no tensors."""
    given = [(node.name, isinstance(node.meta["val"], TensorMeta)) for node in graph.nodes if node.op == "placeholder"]
    position = itertools.count()
    inputs = [f"_tensors[{next(position)}]" if is_tensor else name for name, is_tensor in given]
    return inputs, [name for name, is_tensor in given if not is_tensor]


def operator_function(name: str, graph: Graph) -> Callable[..., Any]:
    """A function that calls the graph's operators one by one."""
    checked, made = Graph(), {}
    is_number = []
    for node in graph.nodes:
        made[node] = copied_node(checked, node, made.__getitem__)
        meta = node.meta.get("val")
        if node.op == "placeholder":
            is_number.append(not isinstance(meta, TensorMeta))
        if isinstance(meta, TensorMeta) and (node.op != "placeholder" or "lies" in node.meta):
            made[node] = checked.call_function(settle, (made[node], meta.shape, meta.stride, meta.dtype))
    module = graph_module(checked)  # its code lets go of each value after its last use

    def run(tensors: list[torch.Tensor], *numbers: Any) -> list[Any]:
        given, others = iter(tensors), iter(numbers)
        return [*module.forward(*[next(others if number else given) for number in is_number])]

    run.__name__ = name
    run.__dict__["source"] = module.code
    return run


def settle(tensor: torch.Tensor | None, shape: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    """What an operator returned, in the layout that later operators were made for.

    Raises:
        Unfit: where it is of another shape or type, so that what was compiled is wrong.
    """
    if tensor is None or tensor.shape != shape or tensor.dtype != dtype:
        raise Unfit
    if tensor.stride() == stride:
        return tensor
    return torch.empty_strided(shape, stride, dtype=dtype, device=tensor.device).copy_(tensor)


def _function(name: str, numbers: list[str], lines: list[str], constants: dict[str, Any]) -> Callable[..., Any]:
    source = f"def {name}({', '.join(['_tensors', *numbers])}):\n" + "".join(f"    {line}\n" for line in lines)
    made = generated_function(source, name, dict(constants), name)
    made.__dict__["source"] = source
    return made
