"""Operators on lists are asked about one element of each kind: what that says of the whole lists is what PyTorch says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import quickfuse
from quickfuse.capture.inference import metadata
from quickfuse.capture.inference.foreach import Alike
from quickfuse.capture.inference.results import Result, SameTensor, map_structure

Tensors = list[torch.Tensor]

PROGRAMS: dict[str, Callable[[Tensors, Tensors], Any]] = {
    "one list": lambda a, b: torch._foreach_sqrt(a),
    "two": lambda a, b: torch._foreach_add(a, b, alpha=2),
    "the same twice": lambda a, b: torch._foreach_addcmul(a, b, b, 0.5),
    "itself": lambda a, b: torch._foreach_mul(a, a),
    "numbers": lambda a, b: torch._foreach_add(a, [0.5 * k for k in range(len(a))]),
    "numbers that are alike": lambda a, b: torch._foreach_addcdiv(a, b, a, [2.0 for _ in a]),
    "a tensor beside": lambda a, b: torch._foreach_mul(a, torch.tensor(2.0)),
    "norms": lambda a, b: torch._foreach_norm(a),
    "in place": lambda a, b: torch._foreach_add_([x.clone() for x in b], a),
    "in place of arguments": lambda a, b: (torch._foreach_lerp_(b, a, 0.3), b[0] + 1)[1],
    "copied": lambda a, b: (torch._foreach_copy_(b, a), b[-1] * 2)[1],
    "comparison": lambda a, b: torch._foreach_maximum(a, b),
    "views": lambda a, b: torch._foreach_neg([x.t() for x in a]),
    "shared memory": lambda a, b: torch._foreach_exp([a[0][:1] for _ in range(20)]),
}


def lists(seed: int, needs: bool) -> tuple[Tensors, Tensors]:
    shapes, generator = [(3, 3), (5, 2), (1, 4)], torch.Generator().manual_seed(seed)
    a = [torch.rand(shapes[k % 3], generator=generator).add_(0.1).requires_grad_(needs and k % 2 == 0) for k in range(24)]
    return a, [torch.rand(shapes[k % 3], generator=generator) for k in range(24)]


def plain(result: Result) -> Result:
    def leaf(value: Any, _: int) -> Any:
        return ("same", value.index) if isinstance(value, SameTensor) else value

    return replace(result, structure=map_structure(leaf, result.structure)) if result.structure else result


@pytest.mark.parametrize("needs", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_of_all_elements(name: str, needs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, compared = [], []
    in_short, whole = metadata.alike_in, Alike.whole

    def note(function: Any, args: Any, kwargs: Any, tensors: Any, describe: Any) -> Alike | None:
        found = in_short(function, args, kwargs, tensors, describe)
        if found is not None:
            asked.append((found, metadata._infer(function, args, kwargs, tensors, torch.is_grad_enabled())))
        return found

    def compare(alike: Alike, result: Result) -> Result | None:
        found = whole(alike, result)
        expected = next(e for one, e in asked if one is alike)
        if found is not None:
            assert plain(found) == plain(expected)
            compared.append(alike)
        return found

    monkeypatch.setattr(metadata, "alike_in", note)
    monkeypatch.setattr(Alike, "whole", compare)
    grad = needs and "place" not in name and name != "copied"
    program, compiled = PROGRAMS[name], quickfuse.compile(PROGRAMS[name])
    for seed in range(2):
        with torch.set_grad_enabled(grad):
            one, other = lists(seed, grad), lists(seed, grad)
            expected, found = program(*one), compiled(*other)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(other, one)
        assert [t._version for t in other[1]] == [t._version for t in one[1]]
    assert compared or name == "numbers"
