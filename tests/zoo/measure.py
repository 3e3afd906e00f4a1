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

import numpy
import torch
from torch import nn

import quickfuse
from quickfuse import config

#: The largest distance between results, in shares of eager's norm. Kernels add up in another order than eager does.
TOLERANCE = 2e-3
#: The largest distance in double precision, in shares of the largest norm among the results.
TOLERANCE_IN_DOUBLE = 1e-9
#: Or this many times the distance of what eager gives for weights with other last bits, up to MOST_IN_DOUBLE.
AS_FAR_AS_ROUNDING = 16
MOST_IN_DOUBLE = 1e-2
#: What is farther than this from eager's result, in shares of the largest norm, is no rounding error in any precision.
MUCH = 0.2
#: An absolute distance for each element that is none.
NOTHING = 1e-5


@dataclass
class Case:
    """A small model with the arguments of a call."""

    model: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


def measure(make: Callable[[], Case], save: Callable[[dict[str, Any]], None]) -> None:
    """Compare a model in evaluation, training gradients and a whole training step; `save` gets what is known so far.

    `make` gives equal models each time it is called.
    """
    found: dict[str, Any] = {}
    for way, work in _WAYS.items():
        found[way] = _compared(make, work)
        save(found)


Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


def _evaluation(case: Case, wrap: Wrapper) -> Iterator[Any]:
    case.model.eval()
    function = wrap(case.model)
    for _ in range(2):
        with torch.no_grad():
            yield _tensors(function(*case.args, **case.kwargs))


def _gradients(case: Case, wrap: Wrapper) -> Iterator[Any]:
    case.model.train()
    function = wrap(case.model)
    for _ in range(2):
        case.model.zero_grad()
        outputs = _tensors(function(*case.args, **case.kwargs))
        _loss(outputs).backward()
        yield [*outputs, *[p.grad for p in case.model.parameters() if p.grad is not None]]


def _step(case: Case, wrap: Wrapper) -> Iterator[Any]:
    case.model.train()
    wanted = [p for p in case.model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(wanted, lr=1e-3)

    paths = _paths(case.model(*case.args, **case.kwargs))[:_IN_LOSS]
    torch.manual_seed(2)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        outputs = case.model(*case.args, **case.kwargs)
        loss = torch.zeros(())
        for path in paths:
            value = outputs
            for key in path:
                value = value[key]
            loss = loss + _wide(value).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    function = wrap(step)
    for _ in range(2):
        yield [function().detach(), *[p.detach().clone() for p in wanted]]


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


def _compared(make: Callable[[], Case], work: Any) -> dict[str, Any]:
    """What became of a model: `outcome` is right, wrong, error or "eager fails", `detail` says more."""
    try:
        wanted, _ = _run(make, work, lambda function: function)
    except Exception as error:
        return {"outcome": "eager fails", "detail": _short(error)}
    held: list[Any] = []

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        held.append(quickfuse.compile(function))
        return held[0]  # type: ignore[no-any-return]

    graphs: list[int] = []
    try:
        with _internal_errors() as internal:
            made, seconds = _run(make, work, wrap, lambda: graphs.append(_compiled_of(held[0]).graph_count))
    except Exception as error:
        return {"outcome": "error", "detail": _short(error), "traceback": traceback.format_exc()[-3000:]}
    compiled = _compiled_of(held[0])
    distance = _farthest(made, wanted)
    right = distance <= TOLERANCE or (_may_be_rounding(make, work, made, wanted) and _is_equal_in_double(make, work))
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


def _may_be_rounding(
    make: Callable[[], Case], work: Any, made: list[torch.Tensor], wanted: list[torch.Tensor]
) -> bool:
    """Whether results are not much farther from eager's than eager's own with other last bits of the weights."""
    distance = _share_of_largest(made, wanted)
    if MUCH <= distance < math.inf:
        rounded, _ = _run(lambda: _with_other_last_bits(make()), work, lambda function: function)
        return distance <= AS_FAR_AS_ROUNDING * _share_of_largest(rounded, wanted)
    return distance < MUCH


def _is_equal_in_double(make: Callable[[], Case], work: Any) -> bool:
    """Whether quickfuse gives what eager gives in double precision. Some models make much of the last bit of 32: gradients
    that are exactly zero, such as those of biases before a batch norm, consist of rounding errors alone."""
    try:
        wanted, _ = _run(lambda: _in_double(make()), work, lambda function: function)
        made, _ = _run(lambda: _in_double(make()), work, quickfuse.compile)
        distance = _share_of_largest(made, wanted)
        if TOLERANCE_IN_DOUBLE < distance < MOST_IN_DOUBLE:  # batch norms of a few elements multiply each error, for example
            rounded, _ = _run(lambda: _with_other_last_bits(_in_double(make())), work, lambda function: function)
            return distance <= AS_FAR_AS_ROUNDING * _share_of_largest(rounded, wanted)
    except Exception:
        return False
    return distance <= TOLERANCE_IN_DOUBLE


def _with_other_last_bits(case: Case) -> Case:
    """A model whose weights are rounded otherwise."""
    random_numbers = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in case.model.parameters():
            if parameter.is_floating_point():
                signs = torch.randint(3, parameter.shape, generator=random_numbers).to(parameter.dtype) - 1
                parameter.mul_(1 + signs * torch.finfo(parameter.dtype).eps)
    return case


def _share_of_largest(made: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """The largest distance between two results, in shares of the largest norm of all results."""
    if any(_distance(a, b) == math.inf for a, b in zip(made, wanted, strict=True)):
        return math.inf
    pairs = [[torch.nan_to_num(t.double(), 0, 0, 0) for t in pair] for pair in zip(made, wanted, strict=True)]
    largest = max([theirs.norm().item() for _, theirs in pairs], default=0.0)
    return max([(ours - theirs).norm().item() for ours, theirs in pairs], default=0.0) / max(largest, 1e-12)


def _in_double(case: Case) -> Case:
    def convert(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value.double()
        if isinstance(value, dict):
            return {key: convert(part) for key, part in value.items()}
        return type(value)(map(convert, value)) if type(value) in (list, tuple) else value

    return Case(case.model.double(), convert(case.args), convert(case.kwargs))


def _farthest(made: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    return max((_distance(a, b) for a, b in zip(made, wanted, strict=True)), default=0.0)


def _compiled_of(function: Any) -> Any:
    """The compiled function of a compiled function or module."""
    return getattr(function, "_compiled", function)


def _run(
    make: Callable[[], Case], work: Any, wrap: Wrapper, after: Callable[[], None] = lambda: None
) -> tuple[list[torch.Tensor], list[float]]:
    """All tensors that a way of use gives, and the processor seconds of its two calls; `after` is called behind each."""
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
    return sum([_wide(t).square().mean() for t in tensors if t.requires_grad and t.numel()], torch.zeros(()))


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """In 32 bits at least."""
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def _distance(made: torch.Tensor, wanted: torch.Tensor) -> float:
    """How far a result is from eager's, in shares of its norm; infinite for another shape, type, or place of NaN."""
    if made.shape != wanted.shape or made.dtype != wanted.dtype:
        return math.inf
    ours, theirs = made.double(), wanted.double()
    if not torch.equal(torch.isfinite(ours), torch.isfinite(theirs)):
        return math.inf
    difference = torch.nan_to_num(ours, 0, 0, 0) - torch.nan_to_num(theirs, 0, 0, 0)
    norm = torch.nan_to_num(theirs, 0, 0, 0).norm().item()
    allowance = NOTHING * math.sqrt(max(1, made.numel()))
    return max(0.0, difference.norm().item() - allowance) / max(norm, 1e-12) if difference.any() else 0.0


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]


def _place(location: str) -> str:
    """A location without the folders of this machine."""
    _, separator, rest = location.rpartition("site-packages/")
    return rest if separator else location.rpartition("/")[2]


def equal_cases(make: Callable[[], Case]) -> Callable[[], Case]:
    """A function that gives equal models with equal arguments each time."""
    torch.manual_seed(0)
    original = make()

    def again() -> Case:
        try:
            return copy.deepcopy(original)
        except Exception:  # some models cannot be copied
            torch.manual_seed(0)
            return make()

    return again
