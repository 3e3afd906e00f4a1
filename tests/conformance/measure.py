"""One operator of PyTorch's database and one type: all samples run in eager mode and compiled, and compared."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

import quickfuse
from comparing import NOT_CLOSE, copy_argument, differences, is_as_accurate, leaves, outcome_of
from operator_cases import OPERATORS, Case, Outcome, breaks, cases, clear_states, run
from quickfuse.ir.kernel import KernelCall, Schedule
from quickfuse.ir.loop import Extern
from schedule_interpreter import schedules_made

#: How a case ran, from the best to the worst.
HOW = ("fused", "extern", "operator by operator", "break", "natively", "eager raises")
_OPERATOR_BY_OPERATOR = "runs operator by operator: "
_NATIVELY = "runs natively: "
_STAYS_A_CALL = "stays a call between graphs"
#: In all forms (as a method, in place, with numbers as arguments) run only so many samples: they differ in capture.
_SAMPLES_IN_ALL_FORMS = 2


@dataclass
class Record:
    """What became of an operator's samples: how many ran in which way, why, and what was not as in eager.

    `externs` are PyTorch's own operators that were called, with the number of cases.
    """

    operator: str
    dtype: str
    gradients: bool
    cases: int = 0
    how: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    externs: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    wrong_cases: int = 0
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return dict(vars(self))


def measure(
    operator: str, dtype: torch.dtype, gradients: bool, most_samples: int | None = None, device: str = "cpu"
) -> Record:
    """Run an operator's samples."""
    record = Record(operator, str(dtype).removeprefix("torch."), gradients)
    start = time.perf_counter()
    for case in _cases(operator, dtype, gradients, most_samples, device):
        quickfuse.reset()
        with schedules_made() as schedules:
            outcome = run_with_gradients(case) if gradients else run(case, "quickfuse")
        record.cases += 1
        record.how[_how(outcome, schedules)] += 1
        for reason in dict.fromkeys(outcome.reasons):
            if not outcome.eager_raises:
                record.reasons[_shortened(reason)] += 1
        for name in {_name(step) for schedule in schedules for step in schedule.steps if isinstance(step, Extern)}:
            record.externs[name] += 1
        if outcome.errors:
            record.wrong_cases += 1
            if len(record.wrong) < 5:
                record.wrong.append(f"{case.label}: {outcome.errors[0][:300]} | {case.source[:300]}")
    record.seconds = round(time.perf_counter() - start, 2)
    return record


def supported(operator: str, dtype: torch.dtype, gradients: bool, device: str = "cpu") -> bool:
    op = OPERATORS[operator]
    if gradients:
        return bool(op.supports_autograd) and dtype in op.supported_backward_dtypes(device)
    return dtype in op.supported_dtypes(device)


def _cases(operator: str, dtype: torch.dtype, gradients: bool, most: int | None, device: str) -> Iterator[Case]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        variant = "gradients" if gradients else "plain"
        yield from cases(operator, dtype, most or 1 << 30, ("function",), variant, device)
        if not gradients:
            forms = ("method", "in place", "numbers")
            yield from cases(
                operator, dtype, min(most or _SAMPLES_IN_ALL_FORMS, _SAMPLES_IN_ALL_FORMS), forms, variant, device
            )


# how a case ran -------------------------------------------------------------------------------------------------


def _how(outcome: Outcome, schedules: list[Schedule]) -> str:
    if outcome.eager_raises:
        return "eager raises"
    if any(_OPERATOR_BY_OPERATOR in reason for reason in outcome.reasons):
        return "operator by operator"
    if any(_STAYS_A_CALL not in reason for reason in outcome.reasons):
        return "break" if schedules else "natively"
    steps = [step for schedule in schedules for step in schedule.steps]
    return "fused" if all(isinstance(step, KernelCall) for step in steps) else "extern"


def _name(step: Extern) -> str:
    name = getattr(step.target, "__name__", None) or str(step.target)
    return name.removeprefix("aten::").partition(".")[0]


def _shortened(reason: str) -> str:
    for marker in (_OPERATOR_BY_OPERATOR, _NATIVELY):
        reason = reason.partition(marker)[2] or reason
    return reason.removeprefix("[graph_breaks] ")[:160]


# gradients ------------------------------------------------------------------------------------------------------


def run_with_gradients(case: Case) -> Outcome:
    """Compare results, and the gradients of all inputs for the same tangents."""
    outcome = Outcome()
    theirs = [copy_argument(a) for a in case.arguments]
    expected = outcome_of(_with_gradients(case.program), theirs)
    outcome.eager_raises = expected[0] == "raised"
    compiled: Any = quickfuse.compile(case.program, options={"raise_internal_errors": True})
    for _ in range(2):
        mine = [copy_argument(a) for a in case.arguments]
        with breaks(outcome.reasons):
            found = outcome_of(_with_gradients(compiled), mine)
        if expected[0] == "raised" or found[0] == "raised":
            if expected[:2] != found[:2]:
                outcome.errors.append(f"eager: {str(expected)[:200]}, compiled: {str(found)[:200]}")
            continue
        (results, gradients), (my_results, my_gradients) = expected[1], found[1]
        clear_states(case, results, my_results)
        wrong = list(differences(results, my_results, "result", case.has_values, None))
        # Which strides a gradient has is up to the formula: eager gives views of other gradients.
        wrong += differences(gradients, my_gradients, "gradient", True, None, with_strides=False)
        if wrong and all(NOT_CLOSE in error for error in wrong):
            program = _with_gradients(case.program)
            wrong = [] if is_as_accurate(program, case.arguments, expected[1], found[1], changes=False) else wrong
        outcome.errors += wrong
    return outcome


def _with_gradients(program: Callable[..., Any]) -> Callable[..., Any]:
    """A program that returns the results, without their history, and the gradients of its arguments."""

    def run_backward(*args: Any) -> Any:
        result = program(*args)
        outputs = [t for t in leaves(result) if t.requires_grad]
        detached = _detached(result)
        wanted = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
        if not outputs or not wanted:
            return detached, ()
        generator = torch.Generator().manual_seed(7)
        tangents = [_tangent(t, generator) for t in outputs]
        return detached, torch.autograd.grad(outputs, wanted, tangents, allow_unused=True)

    return run_backward


def _tangent(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    real = torch.rand(like.shape, generator=generator, dtype=torch.float64) + 0.5
    return (torch.complex(real, real) if like.is_complex() else real).to(like.device, like.dtype)


def _detached(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, (list, tuple)):
        return [_detached(element) for element in value]
    return value
