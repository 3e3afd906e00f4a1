"""All that a program can find out about its tensors, compared between eager and compiled: not their values alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

import quickfuse
from comparing import copy_argument, leaves, seed_all


def outcome(function: Callable[..., Any], arguments: list[Any]) -> Any:
    """What a call did, as text and tensors that compare equal if two calls did the same."""
    before = list(leaves(arguments))
    seed_all(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = function(*arguments)
        except Exception as error:
            return {"raised": (type(error).__name__, str(error).partition("\n\nWhile executing")[0])}
    after = list(leaves([result, *arguments]))
    return {
        "result": _shape_of(result),
        "tensors": [_description(t, [*before, *after[:k]]) for k, t in enumerate(after)],
        "warnings": [(w.category.__name__, str(w.message).partition("\n")[0]) for w in caught],
    }


def differences(function: Callable[..., Any], *arguments: Any, calls: int = 1, exactly: bool = True) -> list[str]:
    """How what a compiled function does is not what it does in eager, for copies of some arguments.

    Elements are compared bit by bit, or, where not `exactly`, up to rounding and with the signs of zeros.
    """
    compiled = quickfuse.compile(function)
    expected = outcome(function, [copy_argument(a) for a in arguments])
    found = []
    for _ in range(calls):
        ours = outcome(compiled, [copy_argument(a) for a in arguments])
        found += _compare(expected, ours, exactly)
    return found


def check(function: Callable[..., Any], *arguments: Any, calls: int = 2, exactly: bool = True) -> None:
    assert not (found := differences(function, *arguments, calls=calls, exactly=exactly)), "\n".join(found)


def _shape_of(value: Any) -> Any:
    """A result with its tensors left out."""
    if isinstance(value, torch.Tensor):
        return type(value).__name__
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [_shape_of(v) for v in value])
    return repr(value)


def _description(tensor: torch.Tensor, others: list[torch.Tensor]) -> dict[str, Any]:
    """What there is to know about a tensor; `others` are those before it."""
    found: dict[str, Any] = {
        "dtype": tensor.dtype, "shape": tuple(tensor.shape), "layout": tensor.layout, "requires_grad": tensor.requires_grad,
        "is leaf": tensor.is_leaf, "has grad_fn": tensor.grad_fn is not None,
        "same as": next((k for k, t in enumerate(others) if t is tensor), None),
        "inference": tensor.is_inference(), "conj": tensor.is_conj(), "neg": tensor.is_neg(),
    }  # fmt: skip
    if tensor.layout == torch.strided:
        base = tensor._base
        found |= {
            "strides": tensor.stride(), "offset": tensor.storage_offset(), "is view": tensor._is_view(),
            "base": None if base is None else next((k for k, t in enumerate(others) if t is base), "hidden"),
            "shares with": [k for k, t in enumerate(others) if _address(t) == _address(tensor) is not None],
            "values": tensor.detach().clone(),
        }  # fmt: skip
    if not tensor.is_inference():
        found["version"] = tensor._version
    found["grad"] = None if not tensor.is_leaf or tensor.grad is None else tensor.grad.clone()
    return found


def _address(tensor: torch.Tensor) -> int | None:
    return None if tensor.layout != torch.strided else tensor.untyped_storage()._cdata


def _compare(expected: Any, found: Any, exactly: bool) -> list[str]:
    if expected.keys() != found.keys() or "raised" in expected:
        return [] if expected == found else [f"eager: {str(expected)[:300]}, compiled: {str(found)[:300]}"]
    wrong = [f"{part}: {found[part]} where eager has {expected[part]}" for part in ("result", "warnings")
             if expected[part] != found[part]]  # fmt: skip
    for k, (theirs, ours) in enumerate(zip(expected["tensors"], found["tensors"], strict=False)):
        for name, value in theirs.items():
            other = ours.get(name)
            if isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor):
                if not are_equal(value, other, exactly):
                    wrong.append(f"tensor {k}: {name} {other} where eager has {value}")
            elif type(value) is not type(other) or value != other:
                wrong.append(f"tensor {k}: {name} is {other} where eager has {value}")
    return wrong


def are_equal(left: torch.Tensor, right: torch.Tensor, exactly: bool) -> bool:
    """Whether elements are the same. No numbers are all alike, and the signs of zeros are not."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    if left.is_complex():
        return are_equal(torch.view_as_real(left.resolve_conj()), torch.view_as_real(right.resolve_conj()), exactly)
    if not left.is_floating_point():
        return torch.equal(left, right)
    if exactly:
        same = left.eq(right) | (left.isnan() & right.isnan())
        return bool(same.all()) and _signs_of_zeros(left, right)
    try:
        torch.testing.assert_close(right, left, equal_nan=True)
    except AssertionError:
        return False
    return _signs_of_zeros(left, right)


def _signs_of_zeros(left: torch.Tensor, right: torch.Tensor) -> bool:
    zeros = (left == 0) & (right == 0)
    return torch.equal(left[zeros].signbit(), right[zeros].signbit())
