"""Right schedules are accepted, and what compiling does with a wrong one."""

from __future__ import annotations

import logging
import runpy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import quickfuse
from quickfuse.differentiate.expand import expand
from quickfuse.ir.kernel import KernelCall, Schedule
from quickfuse.ir.loop import Program
from quickfuse.launch.tables import Placer
from quickfuse.lower import lower
from quickfuse.pipeline import kernels
from quickfuse.schedule import schedule as make_schedule
from quickfuse.verify import ScheduleError, copied, verify
from trace_helper import copy_inputs, trace

X = torch.Tensor


def made(function: Callable[..., Any], *inputs: Any) -> tuple[Program, Schedule]:
    """A function's lowered program, as it was before it was scheduled, and its schedule."""
    program = lower(trace(function, *copy_inputs(inputs)).graph, expand=expand)
    asked = copied(program)
    return asked, make_schedule(program)


RIGHT: dict[str, tuple[Callable[..., Any], tuple[X, ...]]] = {
    "elements": (lambda x, y: (x.sin() + y).exp(), (torch.randn(3, 4), torch.randn(4))),
    "no elements": (lambda x: x.exp(), (torch.randn(0, 4),)),
    "one number": (lambda x: x.exp() * 2, (torch.randn(()),)),
    "softmax": (lambda x: torch.softmax(x, 1), (torch.randn(20, 70),)),
    "softmax of columns": (lambda x: torch.softmax(x, 0), (torch.randn(70, 20),)),
    "layer norm": (lambda x: F.layer_norm(x, (70,)), (torch.randn(20, 70),)),
    "batch norm": (lambda x: F.batch_norm(x, None, None, training=True), (torch.randn(4, 3, 5, 5),)),
    "all of a tensor": (lambda x: (x.sum(), x.amax(), x.mean() - x), (torch.randn(300, 200),)),
    "a scan": (lambda x: x.cumsum(1).exp() + 1, (torch.randn(20, 70),)),
    "a scan of columns": (lambda x: x.cummax(0), (torch.randn(20, 70),)),
    "a concatenation": (lambda x, y: torch.cat([x, y @ y, x * 2], 1).relu(), (torch.randn(20, 3), torch.randn(20, 20))),
    "picks": (lambda x: F.interpolate(x[None, None], scale_factor=2) + 1, (torch.randn(20, 30),)),
    "computed offsets": (lambda x, k: x[k] * 2, (torch.randn(20, 3), torch.tensor([1, 5, 2]))),
    "a scatter": (lambda x, k: x.index_add(0, k, x[:3]), (torch.randn(20, 3), torch.tensor([1, 5, 2]))),
    "a scatter in place": (lambda x, k: x.index_copy_(0, k, x[:3] + 1), (torch.randn(20, 3), torch.tensor([1, 5, 2]))),
    "a rotation": (lambda x: x.roll(3, 0).flip(1), (torch.randn(20, 30),)),
    "in place": (lambda x, y: (x.mul_(y), y.add_(x), None)[2], (torch.randn(20, 30), torch.randn(20, 30))),
    "parts in place": (lambda x: (x[2:5].mul_(2), x[:, 3].zero_(), x + 1)[2], (torch.randn(20, 30),)),
    "a product": (lambda x, y: torch.softmax(x @ y + 1, 1).t(), (torch.randn(20, 30), torch.randn(30, 5))),
    "16 bits": (lambda x: torch.softmax(x * 2, 1), (torch.randn(20, 70).bfloat16(),)),
    "many elements": (lambda x: torch.softmax(x, 0) * x.sum(1, keepdim=True), (torch.randn(600, 300),)),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_schedules_are_accepted(name: str) -> None:
    function, inputs = RIGHT[name]
    verify(*made(function, *inputs))


def _swapped(program: Program) -> Schedule:
    schedule = make_schedule(program)
    schedule.steps.reverse()
    return schedule


def step(x: X) -> X:
    return (torch.softmax(x, 1).sum(0) @ x.t()).exp()


def test_a_wrong_schedule_is_an_error_in_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "make_schedule", _swapped)
    with pytest.raises(quickfuse.errors.InternalError, match="nothing has stored to all of") as raised:
        quickfuse.compile(step)(torch.randn(20, 70))
    assert isinstance(raised.value.__cause__, ScheduleError) and raised.value.__cause__.kind == "unwritten"


def test_users_get_the_right_result_and_one_message(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kernels, "make_schedule", _swapped)
    monkeypatch.setattr(quickfuse.config, "raise_internal_errors", False)
    compiled, x = quickfuse.compile(step), torch.randn(20, 70)
    with caplog.at_level(logging.WARNING, "quickfuse"):
        for _ in range(3):
            torch.testing.assert_close(compiled(x), step(x))
    (record,) = caplog.records
    assert "ScheduleError" in record.getMessage() and "exp(" in record.getMessage()


def test_what_is_wrong_is_told_with_both_statements() -> None:
    program, schedule = made(lambda x: torch.softmax(x, 1) + 1, torch.randn(20, 70))
    call = schedule.steps[0]
    assert isinstance(call, KernelCall)
    verify(program, schedule)
    call.members[0].offsets, call.members[0].strides = (0, 70 * 19), ((70, 1), (-70, 1))
    with pytest.raises(ScheduleError) as raised:
        verify(program, schedule)
    assert raised.value.kind == "value"
    text = str(raised.value)
    assert "[70*i0 + i1] = add(t3[70*i0 + i1], 1.0:f32)" in text
    assert "[-70*i0 + i1 + 1330] = add(div(exp(" in text and "kernel0, member 0" in text


def test_it_is_off_for_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quickfuse.config, "verify", False)
    monkeypatch.setattr(kernels, "verify", None)
    quickfuse.compile(step)(torch.randn(20, 70))


@pytest.mark.parametrize(("text", "on"), [("1", True), ("0", False), ("", False)])
def test_the_environment_turns_it_on(text: str, on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUICKFUSE_VERIFY", text)
    assert runpy.run_path(quickfuse.config.__file__)["verify"] is on


def test_memory_of_small_temporaries_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that live as long as the compiled function share memory."""
    monkeypatch.setattr(Placer, "resident", property(lambda placer: dict.fromkeys(placer._cells, 0)))
    with pytest.raises(quickfuse.errors.InternalError, match="lie in the same bytes"):
        quickfuse.compile(lambda x: torch.softmax(torch.softmax(x, 1), 0) + x.sum(1))(torch.randn(40, 40))


def test_what_has_overwritten_an_input_is_told() -> None:
    def function(x: X, y: X) -> tuple[X, X]:
        results = (x @ y).exp(), x.t().sum(1)
        x.mul_(2)
        return results

    program, schedule = made(function, torch.randn(6, 6), torch.randn(6, 6))
    changing = next(step for step in schedule.steps if isinstance(step, KernelCall) and "mul" in str(step.body))
    schedule.steps = [changing, *(step for step in schedule.steps if step is not changing)]
    with pytest.raises(ScheduleError, match=r"which reads a0 after kernel\d.*a0\[i0\] = mul\(a0\[i0\], 2.0:f32\)"):
        verify(program, schedule)
