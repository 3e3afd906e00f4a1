"""Calls whose keywords come from a dictionary, where a break is between making it and the call."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import quickfuse

T = torch.Tensor
NAMES = ["a", "b", "c"]


class Pool:
    def __init__(self, **parts: Any) -> None:
        self.__dict__.update(parts)


def part(x: T, k: Any) -> T:
    y = x * 2
    if y.sum() > 0:
        return y + len(k)
    return y - 1


def of_one(x: T) -> Any:
    return sorted(vars(Pool(**{k: part(x, k) for k in ("a",)})).items())


def of_several(x: T) -> Any:
    return [*vars(Pool(**{k: part(x, k) for k in NAMES})).items()]


def beside_another(x: T) -> Any:
    return [*vars(Pool(c=part(x, "c"), **{k: part(x, k) for k in ("a",)}, b=x)).items()]


def of_two(x: T) -> Any:
    given = {"z": x + 1}
    return [*vars(Pool(**given, **{k: part(x, k) for k in ("a",)}, y=x)).items()], given


def twice(x: T) -> Any:
    try:
        return Pool(a=part(x, "c"), **{k: part(x, k) for k in ("a",)}).a
    except TypeError as error:
        return str(error)


def twice_of_two(x: T) -> Any:
    given = {"a": x + 1}
    try:
        return Pool(**given, **{k: part(x, k) for k in ("a",)}).a
    except TypeError as error:
        return str(error)


PROGRAMS = [of_one, of_several, beside_another, of_two, twice, twice_of_two]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_as_in_eager(program: Any) -> None:
    compiled = quickfuse.compile(program, options={"raise_internal_errors": True})
    for sign in (1, -1, 1, 1):
        assert repr(compiled(torch.full((2,), float(sign)))) == repr(program(torch.full((2,), float(sign))))
    reasons = {known.reason for known in compiled.breaks}
    assert program in (of_several, twice, twice_of_two) or reasons == {"a branch on a tensor's value"}
    assert ("keeps changing" in str(reasons)) == (program is of_several)
    assert ("keyword twice" in str(reasons)) <= program.__name__.startswith("twice")
