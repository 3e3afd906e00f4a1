"""`out=`: what an operator's result is written to, perhaps of another type than the result has by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ...errors import Unsupported
from ...ir.values import TensorMeta
from ...ir.warning_filters import silenced
from ..symbolic import TensorProxy, tensors_among
from .elementwise import DRAWN, is_elementwise
from .mutation import name_of
from .results import OperatorFailed, Result, meta_in, tensors_in
from .stand_ins import StandIns


def without_out(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name != "out"}


def try_on_one_element(function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> None:
    """Refuse a type of `out` that an elementwise operator does not have, or does not convert its result to. Some do, and the
    `meta` device does not tell which: it is tried with one element."""
    if type(kwargs["out"]) is not TensorProxy:
        return
    stand_ins = StandIns(lambda meta: torch.ones((1,) * len(meta.shape), dtype=meta.dtype), torch.device("cpu"))
    options = {name: value for name, value in kwargs.items() if name != "generator"}
    random_state = torch.get_rng_state()
    try:
        with torch.no_grad(), silenced():  # of a warning of its length, which is no one's
            function(*stand_ins.of(args), **stand_ins.of(options))
    except Exception as error:
        raise Unsupported(f"an `out` argument of another type: {error}") from error
    finally:
        torch.set_rng_state(random_state)


def laid_out_as_new(
    found: Result, function: Callable[..., Any], args: Any, kwargs: dict[str, Any], tensors: list[TensorProxy], grad: bool,
    result_of: Callable[..., Result],
) -> Result:  # fmt: skip
    """What was found of a call that resizes its `out`. An elementwise operator gives it the strides of a new result, which
    the `meta` device forgets."""
    rest = without_out(kwargs)
    if len(found.changed) != 1 or not is_elementwise(function, rest):
        return found
    ((index, meta),) = found.changed
    made = result_of(function, args, rest, [t for t in tensors if t is not kwargs["out"]], grad).structure
    if type(made) is not TensorMeta or made.shape != meta.shape:
        return found
    return replace(found, changed=((index, replace(meta, stride=made.stride)),))


def check_out(
    function: Callable[..., Any], args: Any, kwargs: dict[str, Any], tensors: list[TensorProxy], found: Result,
    result_of: Callable[..., Result],
) -> None:  # fmt: skip
    """Look at what was found of a call with `out`. Raises `Unsupported` where it warns, where PyTorch does not count the
    change, or where the type of `out` may not be left to a conversion of the result."""
    if any(tensors[k].meta.numel and m.numel for k, m in found.changed):
        raise Unsupported("a warning: an `out` argument is resized", "give `out` the shape of the result")
    outs = [*tensors_among(kwargs["out"])]
    if name_of(function) in DRAWN or not is_elementwise(function, without_out(kwargs)):
        _check_conversion(function, args, kwargs, outs, result_of)
    written = {id(tensors[k]) for k in found.written}
    if any(out.meta.numel and id(out) not in written for out in outs):
        raise Unsupported(f"an `out` argument of {name_of(function)}, whose change PyTorch does not count")


def _check_conversion(
    function: Callable[..., Any], args: Any, kwargs: dict[str, Any], outs: list[TensorProxy],
    result_of: Callable[..., Result],
) -> None:  # fmt: skip
    """A graph with gradients computes a result and converts it. Some operators refuse that, or compute in the type of
    `out`."""
    others, rest = [*tensors_among(args), *tensors_among(without_out(kwargs))], without_out(kwargs)
    if not others:  # makes a tensor: its type is that of `out`
        return
    try:
        alone = result_of(function, args, rest, others, False)
    except (OperatorFailed, Unsupported):
        return
    types = [meta_in(leaf, others).dtype for leaf in tensors_in(alone.structure)]
    wanted = [out.meta.dtype for out in outs]
    if len(types) == len(wanted) and types != wanted:
        raise Unsupported(f"an `out` argument of another type than the result of {name_of(function)}")
