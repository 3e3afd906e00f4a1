"""Eager against compiled: results, types, exceptions and everything the function changed."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from typing import Any

import torch

import quickfuse


def same(left: Any, right: Any, **tolerance: Any) -> bool:
    """Whether two results are equal in type, structure and values."""
    if isinstance(left, torch.Tensor):
        return (
            type(left) is type(right)
            and left.dtype == right.dtype
            and left.shape == right.shape
            and left.stride() == right.stride()
            and left.requires_grad == right.requires_grad
            and torch.allclose(left.detach(), right.detach(), equal_nan=True, **tolerance)
        )
    if type(left) is not type(right):
        return False
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(same(a, b, **tolerance) for a, b in zip(left, right, strict=True))
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[k], right[k], **tolerance) for k in left)
    if hasattr(left, "__dict__") and not isinstance(left, (type, types.FunctionType)):
        return same(vars(left), vars(right), **tolerance)
    return bool(left == right) or (left != left and right != right)


def outcome(function: Callable[..., Any], args: Any) -> tuple[Any, ...]:
    """("returned", value) or ("raised", type, text)."""
    try:
        return "returned", function(*args)
    except Exception as error:
        return "raised", type(error), str(error)


def check(function: Callable[..., Any], *calls: tuple[Any, ...], backend: str = "quickfuse", **tolerance: Any) -> Any:
    """Run `function` natively and compiled on copies of each call's arguments; returns the compiled function."""
    compiled = quickfuse.compile(function, backend=backend)
    for args in calls:
        mine, theirs = copy.deepcopy(args), copy.deepcopy(args)
        expected, found = outcome(function, theirs), outcome(compiled, mine)
        assert same(expected, found, **tolerance), f"eager gives {expected}, compiled gives {found}"
        assert same(theirs, mine, **tolerance), f"eager left {theirs}, compiled left {mine}"
    return compiled
