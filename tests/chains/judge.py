"""Compares a chain of operators that was compiled with its twin in eager PyTorch, after each call."""

from __future__ import annotations

import torch

from lives.check import TOO_LATE, Comparison, Report
from lives.check import check as check_life
from lives.execute import Record, Seen, execute


def judge(report: Report, source: str, expected: list[Record], found: list[Record]) -> None:
    if list(map(_warnings, expected)) != list(map(_warnings, found)):
        expected = execute(source)  # PyTorch gives some warnings once in a process, which was in the first run
    comparison = Comparison(source, expected, report, units=32, further=16)
    for at, (e, f) in enumerate(zip(expected, found, strict=True)):
        if TOO_LATE in e.error and (TOO_LATE in f.error or not f.error):
            return  # what was compiled computes it again, or has computed all before it gives any
        if e.error and not f.error and ("len(results)" in e.state or "Found dtype" in e.error):
            return  # eager has no gradient of an operator in this form
        e.error, f_error = e.error.partition(":")[0], f.error
        if "InternalError" not in f.error:
            f.error = f.error.partition(":")[0]
        for record in (e, f):
            _widen(record)
            _take_gradients_apart(record)
        if differences := [*comparison.differences(at, e, f)]:
            f.error = f_error
            report.note(at, e, f, differences)
            return


def _warnings(record: Record) -> dict[str, object]:
    return {name: value for name, value in record.state.items() if name.startswith(("texts", "len(texts)"))}


def _take_gradients_apart(record: Record) -> None:
    """Eager's gradients of tensors that were joined may lie in one memory, beside each other, where nothing that is done to
    one is seen in another. Those of compiled code have memory of their own."""
    for name, seen in record.state.items():
        if name.endswith(".grad") and isinstance(seen, Seen) and str(seen.facts[-1]).endswith(".grad"):
            seen.facts = (*seen.facts[:-2], 0, name)


def _widen(record: Record) -> None:
    """PyTorch compares no complex numbers of 32 bits."""
    for seen in record.state.values():
        if isinstance(seen, Seen) and seen.values.dtype is torch.complex32:
            seen.values = seen.values.to(torch.complex64)


def check(source: str, plain: bool = False, defaults: bool = False, mode: str | None = None) -> Report:
    return check_life(source, plain, defaults, mode, judge)
