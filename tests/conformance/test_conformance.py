"""The default backend on one sample of every operator of PyTorch's database; `make conformance` runs all of them."""

from __future__ import annotations

import pytest
import torch

from operator_cases import OPERATORS, cases, run

_PARTS = 8

#: Operators whose first sample is captured and yet runs operator by operator, with the beginning of the reason.
OPERATOR_BY_OPERATOR: dict[str, str] = {
    "resize_": "resize_, which changes the shape",
    "resize_as_": "resize_as_, which changes the shape",
}


def _failures(names: list[str], dtype: torch.dtype) -> list[str]:
    found = []
    for name in names:
        if dtype not in OPERATORS[name].supported_dtypes("cpu"):
            continue
        for case in cases(name, dtype, 1, ("function",)):
            outcome = run(case, "quickfuse")
            found += [f"{case.label}: {error}\n    {case.source}" for error in outcome.errors]
            for reason in outcome.reasons:
                _, is_slow, why = reason.partition("runs operator by operator: ")
                if is_slow and not (name in OPERATOR_BY_OPERATOR and why.startswith(OPERATOR_BY_OPERATOR[name])):
                    found.append(f"{case.label}: operator by operator: {why}")
    return found


@pytest.mark.parametrize("part", range(_PARTS))
def test_every_operator(part: int) -> None:
    failures = _failures(list(OPERATORS)[part::_PARTS], torch.float32)
    assert not failures, "\n".join(failures[:10])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_other_types(dtype: torch.dtype) -> None:
    failures = _failures(list(OPERATORS)[3::10], dtype)
    assert not failures, "\n".join(failures[:10])
