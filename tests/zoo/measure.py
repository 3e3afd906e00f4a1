"""One model of the zoo: what quickfuse makes of it, beside eager."""

from __future__ import annotations

import contextlib
import copy
import math
import random
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy
import torch
from torch import nn
from torch.utils._pytree import tree_map

import quickfuse
from quickfuse import config
from zoo.compare import farthest, in_double, is_right, with_other_last_bits


@dataclass
class Case:
    """A small model with the arguments of a call."""

    model: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]

#: How often each way of use is called.
CALLS = 2


def measure(make: Callable[[], Case], save: Callable[[dict[str, Any]], None], backend: str = "quickfuse") -> None:
    """Compare a model in evaluation, training gradients and a whole training step; `save` gets what is known so far.

    `make` gives equal models each time it is called.
    """
    found: dict[str, Any] = {}
    for way, work in _WAYS.items():
        found[way] = _compared(make, work, backend)
        save(found)


def _is_right(
    make: Callable[[], Case], work: Any, eager: Wrapper, backend: str, made: list[torch.Tensor],
    wanted: list[torch.Tensor],
) -> bool:  # fmt: skip
    def run(*, compiled: bool = False, double: bool = False, rounded: int = 0) -> list[torch.Tensor]:
        def varied() -> Case:
            case = make()
            if double:
                case = Case(case.model.double(), in_double(case.args), in_double(case.kwargs))
            if rounded:
                with_other_last_bits(case.model, rounded)
            return case

        return _run(varied, work, (lambda f: quickfuse.compile(f, backend=backend)) if compiled else eager)[0]

    return len(made) == len(wanted) and is_right(made, wanted, run, calls=CALLS)


def _evaluation(case: Case, wrap: Wrapper) -> Iterator[Any]:
    case.model.eval()
    function = wrap(case.model)
    for _ in range(CALLS):
        with torch.no_grad():
            yield _tensors(function(*case.args, **case.kwargs))


def _gradients(case: Case, wrap: Wrapper) -> Iterator[Any]:
    case.model.train()
    function = wrap(case.model)
    for _ in range(CALLS):
        case.model.zero_grad()
        outputs = _tensors(function(*case.args, **case.kwargs))
        _loss(outputs).backward()
        yield [*outputs, *_changed(case.model)]


def _step(case: Case, wrap: Wrapper) -> Iterator[Any]:
    case.model.train()
    wanted = [p for p in case.model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(wanted, lr=1e-3)

    paths = _paths(case.model(*case.args, **case.kwargs))[:_IN_LOSS]
    torch.manual_seed(2)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        outputs = case.model(*case.args, **case.kwargs)
        loss = torch.zeros((), device=wanted[0].device)
        for path in paths:
            value = outputs
            for key in path:
                value = value[key]
            loss = loss + _part_of_loss(value)
        loss.backward()
        optimizer.step()
        return loss

    function = wrap(step)
    for _ in range(CALLS):
        yield [function().detach(), *[p.detach() for p in wanted], *_changed(case.model)]


def _changed(model: nn.Module) -> list[torch.Tensor]:
    """What a training step changes beside the parameters: their gradients, and buffers such as running means."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return [*gradients, *[b for b in model.buffers() if b.is_floating_point()]]


_WAYS = {"eval": _evaluation, "gradients": _gradients, "step": _step}

#: How many of a model's results a step's loss is made of.
_IN_LOSS = 3


def _paths(structure: Any) -> list[tuple[Any, ...]]:
    """The keys and indices that lead to results with gradients."""
    if isinstance(structure, torch.Tensor):
        return [()] if structure.requires_grad and structure.numel() else []
    parts: Any = structure.items() if isinstance(structure, dict) else ()
    if isinstance(structure, (list, tuple)):
        parts = enumerate(structure)
    return [(key, *path) for key, part in parts for path in _paths(part)]


def _compared(make: Callable[[], Case], work: Any, backend: str = "quickfuse") -> dict[str, Any]:
    """What became of a model: `outcome` is right, wrong, error or "eager fails", `detail` says more.

    Some libraries do other things when they are compiled, which they ask PyTorch. Then eager that is told so is the judge.
    """
    found = _compared_with(make, work, lambda function: function, backend)
    if found["outcome"] in ("wrong", "error"):
        again = _compared_with(make, work, _told_that_it_is_compiled, backend)
        if again["outcome"] in ("right", "eager fails"):
            return again | {"detail": f"as eager that is told that it is compiled. {again['detail']}".rstrip()}
    return found


def _told_that_it_is_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    def told(*args: Any, **kwargs: Any) -> Any:
        with mock.patch("torch.compiler.is_compiling", lambda: True):
            return function(*args, **kwargs)

    return told


def _compared_with(make: Callable[[], Case], work: Any, eager: Wrapper, backend: str) -> dict[str, Any]:
    try:
        wanted, _ = _run(make, work, eager)
    except Exception as error:
        return {"outcome": "eager fails", "detail": _short(error)}
    held: list[Any] = []

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        held.append(quickfuse.compile(function, backend=backend))
        return held[0]  # type: ignore[no-any-return]

    graphs: list[int] = []
    try:
        with _internal_errors() as internal:
            made, seconds = _run(make, work, wrap, lambda: graphs.append(_compiled_of(held[0]).graph_count))
    except Exception as error:
        return {"outcome": "error", "detail": _short(error), "traceback": traceback.format_exc()[-3000:]}
    compiled = _compiled_of(held[0])
    right = _is_right(make, work, eager, backend, made, wanted)
    distance = farthest(made, wanted)
    return {
        "outcome": "internal error" if internal else "right" if right else "wrong",
        "detail": "; ".join(internal) if internal else "" if right else f"distance {distance:.2g}",
        "distance": distance,
        "graphs": graphs[0],
        "graphs_later": compiled.graph_count - graphs[0],
        "operators": sum(s.segment.operators for s in compiled.specialisations),
        "kernels": sum(s.kernels for s in compiled.specialisations),
        "without_kernels": sorted({s.without_kernels for s in compiled.specialisations if s.without_kernels}),
        "breaks": [{"reason": b.reason, "location": _place(b.location)} for b in compiled.breaks],
        "native": compiled.native_reason or "",
        "first_s": round(seconds[0], 2),
        "second_s": round(seconds[1], 3),
    }


def _compiled_of(function: Any) -> Any:
    """The compiled function of a compiled function or module."""
    return getattr(function, "_compiled", function)


def _run(
    make: Callable[[], Case], work: Any, wrap: Wrapper, after: Callable[[], None] = lambda: None
) -> tuple[list[torch.Tensor], list[float]]:
    """All tensors that a way of use gives, and the processor seconds of its two calls; `after` is called after each."""
    case = make()
    random.seed(1)
    numpy.random.seed(1)  # some models draw what they mask from here
    torch.manual_seed(1)
    results: list[torch.Tensor] = []
    seconds = []
    calls = work(case, wrap)
    start = time.process_time()
    for outputs in calls:
        seconds.append(time.process_time() - start)
        results += [t.detach().clone() for t in outputs]
        after()
        start = time.process_time()
    return results, seconds


@contextlib.contextmanager
def _internal_errors() -> Iterator[list[str]]:
    """What the compiler reports about itself."""
    from quickfuse import logs

    seen: list[str] = []

    class Handler(logs.logging.Handler):
        def emit(self, record: Any) -> None:
            text = record.getMessage()
            if "internal error" in text:
                seen.append(text[:1500])

    handler = Handler()
    logs.log.addHandler(handler)
    before = config.raise_internal_errors
    config.raise_internal_errors = False
    try:
        yield seen
    finally:
        logs.log.removeHandler(handler)
        config.raise_internal_errors = before


def peer_graphs(make: Callable[[], Case], way: str) -> int | str:
    """How many graphs torch.compile makes at the first call in a way of use; what it raises, if it does."""
    graphs: list[Any] = []
    counts: list[int] = []

    def backend(module: torch.fx.GraphModule, example_inputs: Any) -> Any:
        graphs.append(module)
        return module.forward

    try:
        torch._dynamo.reset()
        _run(make, _WAYS[way], lambda function: torch.compile(function, backend=backend), lambda: counts.append(len(graphs)))
    except Exception as error:
        return _short(error)
    return counts[0]


def _tensors(structure: Any) -> list[torch.Tensor]:
    """The floating-point tensors in what a model returned."""
    found: list[torch.Tensor] = []
    seen: set[int] = set()

    def visit(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            if value.is_floating_point():
                found.append(value)
        elif isinstance(value, dict):
            for part in value.values():
                visit(part)
        elif isinstance(value, (list, tuple)):
            for part in value:
                visit(part)
        elif hasattr(value, "__dataclass_fields__") and id(value) not in seen:
            seen.add(id(value))
            for name in value.__dataclass_fields__:
                visit(getattr(value, name))

    visit(structure)
    return found


def _loss(tensors: list[torch.Tensor]) -> torch.Tensor:
    return sum([_part_of_loss(t) for t in tensors if t.requires_grad and t.numel()], torch.zeros(()))


def _part_of_loss(tensor: torch.Tensor) -> torch.Tensor:
    """A sum with weights that differ, for which the gradient of no layer is zero: that of the squares is, up to rounding,
    below a normalization."""
    wide = _wide(tensor)
    weights = torch.arange(tensor.numel(), dtype=wide.dtype, device=wide.device).cos().view(tensor.shape)
    return (wide * weights).sum() / math.sqrt(tensor.numel())


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """In 32 bits at least."""
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]


def _place(location: str) -> str:
    """A location without the folders of this machine."""
    _, separator, rest = location.rpartition("site-packages/")
    return rest if separator else location.rpartition("/")[2]


def equal_cases(make: Callable[[], Case], device: str = "cpu") -> Callable[[], Case]:
    """A function that gives equal models with equal arguments each time, on a device."""

    def placed() -> Case:
        torch.manual_seed(0)
        case = make()
        args, kwargs = tree_map(lambda v: v.to(device) if isinstance(v, torch.Tensor) else v, (case.args, case.kwargs))
        return Case(case.model.to(device), args, kwargs)

    original = placed()

    def again() -> Case:
        try:
            return copy.deepcopy(original)
        except Exception:  # some models cannot be copied
            return placed()

    return again
