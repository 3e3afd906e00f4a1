"""Lowers and schedules what is compiled for the CPU for a GPU, too, and runs that on the CPU: random programs test it so.

Within `shadowed(found)` each graph that gets kernels is lowered a second time, as if its tensors were on a GPU. The schedule
is verified, its kernels are written in Triton's language, and an interpreter runs it on random numbers beside the graph in
eager PyTorch. What fails or differs is noted in `found`, with the graph.
"""

from __future__ import annotations

import contextlib
import copy
import traceback
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Graph, GraphModule

from quickfuse.differentiate.expand import expand
from quickfuse.emit.triton import emit
from quickfuse.errors import Unsupported
from quickfuse.ir.kernel import KernelCall
from quickfuse.ir.loop import Extern
from quickfuse.ir.values import NumberMeta, TensorMeta
from quickfuse.lower import lower
from quickfuse.pipeline import joining, kernels
from schedule_interpreter import Interpreter, RunInEager, fused

GPU = torch.device("cuda", 0)


@contextlib.contextmanager
def shadowed(found: list[str]) -> Iterator[None]:
    made = kernels.begin_kernels

    def also_on_a_gpu(graph: Graph, picks: Any, checked: Any, free: Collection[int] = (), *args: Any, **kwargs: Any) -> Any:
        try:
            with torch.random.fork_rng(devices=[]):
                _check(graph, free)
        except Unsupported:
            pass
        except Exception:
            found.append(f"{graph}\n{traceback.format_exc()}")
        return made(graph, picks, checked, free, *args, **kwargs)

    for module in (joining, kernels):
        module.begin_kernels = also_on_a_gpu  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module in (joining, kernels):
            module.begin_kernels = made  # type: ignore[attr-defined]


class _OnCpu(Interpreter):
    def _plain(self, value: Any) -> Any:
        return torch.device("cpu") if value == GPU else super()._plain(value)

    def _call(self, step: Extern) -> None:
        made = step.target

        def laid_out(*args: Any, **kwargs: Any) -> Any:
            """An operator on the CPU may give other strides than one on a GPU."""
            results = made(*args, **kwargs)
            several = isinstance(results, (list, tuple))
            found = [_like(r, b.meta) for r, b in zip(results if several else [results], step.outputs, strict=True)]
            return found if several else found[0]

        super()._call(replace(step, target=laid_out) if step.outputs else step)


def _like(result: Any, meta: TensorMeta) -> Any:
    if not isinstance(result, torch.Tensor) or (meta.shape, meta.stride) == (tuple(result.shape), result.stride()):
        return result
    assert meta.shape == tuple(result.shape)
    return torch.empty_strided(meta.shape, meta.stride, dtype=result.dtype).copy_(result)


def _check(graph: Graph, free: Collection[int]) -> None:
    on_gpu = Graph()
    on_gpu.output(on_gpu.graph_copy(graph, {}))
    for node in on_gpu.nodes:
        if "val" in node.meta:
            node.meta["val"] = _moved(node.meta["val"])
    schedule = fused(lower(on_gpu, free, expand))
    for number, step in enumerate(schedule.steps):
        if isinstance(step, KernelCall):
            emit(step.body, f"kernel{number}")
    inputs = [_number(node.meta.get("val")) for node in graph.nodes if node.op == "placeholder"]
    names = [node.name for node in on_gpu.nodes if node.op == "placeholder"]
    mine = copy.deepcopy(inputs)
    with torch.no_grad():
        try:
            expected = GraphModule(torch.nn.Module(), graph).forward(*inputs)
        except Exception:
            return
        torch.manual_seed(0)
        try:
            made = _OnCpu(schedule, names)(*mine)
        except RunInEager:
            return
    if any(step.draws for step in schedule.steps if not isinstance(step, KernelCall)):
        return
    for k, (one, two) in enumerate(zip([*made, *mine], [*expected, *inputs], strict=True)):
        if isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor):
            assert one.dtype is two.dtype and one.shape == two.shape, f"result {k}"
            torch.testing.assert_close(one, two, rtol=2e-2, atol=2e-2, equal_nan=True, msg=lambda text, k=k: f"{k}: {text}")


def _moved(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(v) for v in value)
    return replace(value, device=GPU) if isinstance(value, TensorMeta) else value


def _number(value: Any) -> Any:
    if isinstance(value, NumberMeta):
        return 0.5 if value.kind is float else value.kind(2)
    if not isinstance(value, TensorMeta):
        return value
    made = torch.empty_strided(value.shape, value.stride, dtype=value.dtype)
    whole = not value.dtype.is_floating_point and not value.dtype.is_complex
    numbers = torch.randint(0, 3, value.shape) if whole else torch.randn(value.shape)
    if not value.is_expanded:
        made.copy_(numbers)
    return made
