"""`torch.bincount(x, minlength=n)`: n counts, if all numbers are less than n, as they are wherever n says how many kinds of
things there are. That is expected of them. A graph of which it turns out not to hold runs again in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..branches.assertions import UNUSUAL, holds, is_unknown
from ..interpreter import Interpreter
from ..symbolic.graph_values import TENSOR_TYPES, TensorProxy
from .operators import call_operator

_WHOLE = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})


def _bincount(i: Interpreter, input: Any, weights: Any = None, minlength: Any = 0) -> Any:
    length = i.outside.concrete(minlength)
    counts = _expected(i, input, weights, length) if _is_plain(i, input, weights, length) else None
    return call_operator(i, torch.bincount, (input, weights, length), {}) if counts is None else counts


def _is_plain(i: Interpreter, input: Any, weights: Any, length: Any) -> bool:
    if type(input) is not TensorProxy or type(length) is not int or length <= 0 or UNUSUAL in i.outside.volatile:
        return False
    fits = input.cls in TENSOR_TYPES and input.meta.dtype in _WHOLE and len(input.meta.shape) == 1
    fits = fits and type(input.meta.numel) is int and input.meta.numel > 0
    if not fits or weights is None:
        return fits
    plain = type(weights) is TensorProxy and weights.cls in TENSOR_TYPES and not weights.meta.requires_grad
    kinds = weights.meta.dtype in (torch.float32, torch.float64) if plain else False
    return kinds and weights.meta.device.type == "cpu" and weights.meta.shape == input.meta.shape


def _expected(i: Interpreter, input: TensorProxy, weights: TensorProxy | None, length: int) -> TensorProxy | None:
    """The counts, where it may be left to the graph whether the numbers are what is expected."""

    def method(name: str, *operands: Any) -> Any:
        return i.graph.call("call_method", name, operands, {})

    places = input if input.meta.dtype is torch.int64 else method("long", input)
    within = method("all", method("logical_and", method("ge", places, 0), method("lt", places, length)))
    if not is_unknown(i, within) or not holds(i, within, True):
        return None
    i.graph.expects = True
    options = {"dtype": torch.int64 if weights is None else weights.meta.dtype, "device": input.meta.device}
    made = i.graph.call("call_function", torch.zeros, (length,), options)
    added = i.graph.call("call_function", torch.ones_like, (places,), {}) if weights is None else weights
    return method("index_add", made, 0, places, added)  # type: ignore[no-any-return]


HANDLERS: dict[Any, Callable[..., Any]] = {torch.bincount: _bincount}
