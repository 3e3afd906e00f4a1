"""What is alike in a graph and does not depend on each other is lowered once."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import quickfuse
from quickfuse.capture import capture
from quickfuse.differentiate.expand import expand
from quickfuse.ir.kernel import KernelCall, Schedule
from quickfuse.ir.loop import Buffer
from quickfuse.ir.values import TensorMeta
from quickfuse.lower import lower, without_twins
from quickfuse.schedule import schedule as make_schedule
from quickfuse.schedule import with_twins

SHAPES = [(4, 5), (7,), (3, 2, 2)]


def parameters(count: int) -> list[torch.Tensor]:
    made = [torch.nn.Parameter(torch.randn(shape)) for _ in range(count) for shape in SHAPES]
    for parameter in made:
        parameter.grad = torch.randn_like(parameter)
    return made


def graph_of(function: Callable[..., Any], *args: Any) -> torch.fx.Graph:
    return capture(function, args, {}).graph  # type: ignore[arg-type]


def with_its_twins(graph: torch.fx.Graph) -> Schedule | None:
    """The schedule of a graph of which one part of a kind was lowered."""
    found = without_twins(graph)
    if found is None:
        return None
    schedule = make_schedule(lower(found.graph, expand=expand))
    return schedule if with_twins(schedule, found) else None


def described(schedule: Schedule) -> list[Any]:
    """The kernels, each with its members' tensors, in any order."""
    def name(buffer: Buffer) -> str:
        return buffer.name if buffer.kind == "input" else buffer.kind

    return [
        (step.body, step.scalars, sorted([*map(name, member.buffers)] for member in step.members))
        for step in schedule.steps if isinstance(step, KernelCall)
    ]  # fmt: skip


OPTIMIZERS: list[tuple[type[torch.optim.Optimizer], dict[str, Any]]] = [
    (torch.optim.Adam, {}), (torch.optim.Adam, {"amsgrad": True, "weight_decay": 0.1}), (torch.optim.AdamW, {}),
    (torch.optim.NAdam, {}), (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    (torch.optim.RMSprop, {"centered": True}), (torch.optim.Adagrad, {}), (torch.optim.Rprop, {}),
]  # fmt: skip


def on_gpu(value: Any) -> Any:
    """Metadata of tensors on a GPU, but of those without axes, as the counters of steps are."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(on_gpu, value))
    moves = isinstance(value, TensorMeta) and value.shape
    return replace(value, device=torch.device("cuda", 0)) if moves else value


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize(("kind", "options"), OPTIMIZERS)
def test_the_schedule_is_that_of_the_whole_graph(
    kind: type[torch.optim.Optimizer], options: dict[str, Any], foreach: bool, device: str
) -> None:
    optimizer = kind(parameters(10), foreach=foreach, **options)
    optimizer.step()
    graph = graph_of(kind.step, optimizer)
    for node in graph.nodes if device == "cuda" else ():
        node.meta["val"] = on_gpu(node.meta.get("val"))
    mine = with_its_twins(graph)
    assert mine is not None
    assert described(mine) == described(make_schedule(lower(graph, expand=expand)))


def test_what_is_lowered_does_not_grow_with_the_number_of_parameters() -> None:
    found = [without_twins(graph_of(torch.optim.Adam.step, torch.optim.Adam(parameters(n)))) for n in (10, 30)]
    assert found[0] is not None and found[1] is not None
    assert len(found[0].graph.nodes) == len(found[1].graph.nodes)
    assert [len(part.twins) for part in found[0].parts] == [8, 8, 8, 0, 0, 0]
    assert found[1].left_out == 84


def test_results_of_twins_are_new_tensors() -> None:
    tensors = [torch.randn(shape) for _ in range(10) for shape in SHAPES]
    compiled = quickfuse.compile(lambda tensors: [x for t in tensors for x in (t, t * 2, t.add_(1))])
    for _ in range(2):
        expected = [x for t in tensors for x in (t + 1, t * 2, t + 1)]
        made = compiled(tensors)
        assert [id(made[k]) for k in (0, 2, -3)] == [id(tensors[0]), id(tensors[0]), id(tensors[-1])]
        assert len({id(x) for x in made}) == 60
        for one, two in zip(made, expected, strict=True):
            torch.testing.assert_close(one, two)


def test_groups_of_other_rates_are_other_parts() -> None:
    groups = [{"params": parameters(10), "lr": rate} for rate in (0.1, 0.2)]
    found = without_twins(graph_of(torch.optim.Adam.step, torch.optim.Adam(groups)))  # type: ignore[arg-type]
    assert found is not None and len(found.parts) == 12


def _one_counter(tensors: list[torch.Tensor]) -> None:
    counter = torch.zeros(())
    for tensor in tensors:
        counter.add_(1)
        tensor.mul_(counter)


def _each_after_the_one_before(tensors: list[torch.Tensor]) -> None:
    for before, tensor in zip(tensors, tensors[1:], strict=False):
        tensor.add_(before.sum())


def _into_one(tensors: list[torch.Tensor]) -> None:
    for tensor in tensors[1:]:
        tensors[0].view(-1)[:1].add_(tensor.sum())


def _of_one_that_changes(tensors: list[torch.Tensor]) -> None:
    first = tensors[0].view(-1)
    for tensor in tensors[1:]:
        tensor.add_(first[0])
    first.zero_()


def _with_random_numbers(tensors: list[torch.Tensor]) -> None:
    for tensor in tensors:
        tensor.add_(torch.rand_like(tensor))


def _with_other_numbers(tensors: list[torch.Tensor]) -> None:
    for k, tensor in enumerate(tensors):
        tensor.mul_(k)


def _with_one_true(tensors: list[torch.Tensor]) -> None:
    for k, tensor in enumerate(tensors):
        tensor.add_(True if k % 2 else 1.0 if k % 3 else -0.0)


def _of_a_list(tensors: list[torch.Tensor]) -> None:
    norms = torch._foreach_norm(tensors)
    torch._foreach_div_(tensors, torch.stack(norms).sum())


def _of_one_that_nothing_changes(tensors: list[torch.Tensor]) -> None:
    scale = tensors[0].view(-1)[:1].clone().sum()
    for tensor in tensors[1:]:
        tensor.mul_(scale)


def _by_index(tensors: list[torch.Tensor]) -> None:
    for tensor in tensors:
        tensor.index_fill_(0, torch.tensor([0]), 2.0)


@pytest.mark.parametrize("function", [
    _one_counter, _each_after_the_one_before, _into_one, _of_one_that_changes, _with_random_numbers, _with_other_numbers,
    _with_one_true, _of_a_list, _of_one_that_nothing_changes, _by_index,
])  # fmt: skip
def test_what_depends_on_each_other(function: Callable[[list[torch.Tensor]], None]) -> None:
    mine = [torch.randn(shape) for _ in range(10) for shape in SHAPES]
    theirs = [tensor.clone() for tensor in mine]
    compiled = quickfuse.compile(function)
    for _ in range(2):
        torch.manual_seed(0)
        compiled(mine)
        torch.manual_seed(0)
        function(theirs)
        for one, two in zip(mine, theirs, strict=True):
            torch.testing.assert_close(one, two)


STATEMENTS = (
    "a[i].mul_(0.5)", "b[i].add_(a[i], alpha=0.5)", "c[i].copy_(a[i] * shared)", "a[i].add_(b[i] * rate)",
    "t = a[i] + 1; a[i].add_(t.sqrt().nan_to_num())", "a[i].lerp_(b[i], 0.5)", "b[i].view(-1).add_(1)", "a[i].mul_(-0.0)",
    "a[i].add_(float(b[i].sum()))", "t = a[i].clone(); a[i].copy_(b[i]); b[i].copy_(t)", "c[i] += constant",
    "a[i].t_().t_()", "made.append(a[i] * 2)", "made.append(b[i])", "made.append(b[i] + shared); a[i].add_(made[-1])",
    "rate2 = rate * 2 + 1; b[i].mul_(rate2)", "constant2 = torch.ones(()); a[i].add_(constant2)", "a[i][0].add_(c[i][0])",
)
LISTS = (
    "torch._foreach_add_(a, b)", "torch._foreach_mul_(a, [0.5] * len(a))", "made += torch._foreach_add(a, b)",
    "made += torch._foreach_sqrt(torch._foreach_abs(a))", "for x, y in zip(c, torch._foreach_mul(a, 2)): x.add_(y)",
    "torch._foreach_lerp_(a, b, rate / 8)", "torch._foreach_add_(b, 1)", "torch._foreach_copy_(c, a)",
    "torch._foreach_addcmul_(a, b, c, 0.5)", "torch._foreach_sqrt_(torch._foreach_abs(c))",
    "torch._foreach_add_(a, [x.sum() for x in b])",
)  # fmt: skip
#: What connects members, or tells some apart.
LINKS = (
    "a[3].add_(a[2])", "shared.add_(a[0])", "torch._foreach_add_(a, shared)", "constant.add_(1)", "a[5].mul_(2)",
    "b[0].copy_(shared)", "for i in range(5): a[i].add_(c[i])", "torch._foreach_add_(a[1:], a[:-1])",
    "torch._foreach_add_([shared, *a[1:]], a)", "with torch.no_grad(): a[1].add_(1)", "torch._foreach_mul_(a + b, 0.5)",
    "torch._foreach_add_([a[0]] * 3, b[:3])", "constant = constant * 2", "c = c[::-1]", "a, b = b, a",
)


def random_function(seed: int) -> str:
    draw = random.Random(seed)
    lines = ["constant, made = torch.ones(()), []"]
    for _ in range(draw.randint(3, 7)):
        kind = draw.random()
        if kind < 0.5:
            lines.append("\n        ".join(["for i in range(len(a)):", *draw.sample(STATEMENTS, draw.randint(1, 3))]))
        else:
            lines.append(draw.choice(LISTS if kind < 0.85 else LINKS))
    return "def function(a, b, c, shared, rate):\n    " + "\n    ".join([*lines, "return made"]) + "\n"


@pytest.mark.parametrize("seed", range(30))
def test_random_functions(seed: int) -> None:
    source = random_function(seed)
    namespace: dict[str, Any] = {"torch": torch}
    exec(compile(source, f"<twins {seed}>", "exec"), namespace)
    torch.manual_seed(seed)
    shapes = [(4, 4), (4, 4), (2, 2)] if seed % 2 else [(4, 4)]
    mine = [[torch.rand(shapes[k % len(shapes)]) for k in range(9)] for _ in range(3)]
    shared = torch.rand(4, 4) if len(shapes) == 1 else torch.rand(())
    theirs = [[tensor.clone() for tensor in tensors] for tensors in mine]
    theirs_shared = shared.clone()
    compiled = quickfuse.compile(namespace["function"])
    for rate in (0.5, 0.25, 0.75):
        try:
            expected = namespace["function"](*theirs, theirs_shared, rate)
        except RuntimeError:
            return
        made = compiled(*mine, shared, rate)
        for one, two in zip([*sum(mine, made), shared], [*sum(theirs, expected), theirs_shared], strict=True):
            torch.testing.assert_close(one, two, msg=lambda text: f"{source}\n{text}")
