"""Rules that are no formulas on elements: functions of whole tensors, with the parameters of PyTorch's.

    @rule("logsumexp")
    def logsumexp(ctx, meta: TensorMeta, input: Tensor, dim: int, keepdim: bool = False) -> Tensor: ...

Annotations say what a rule takes (`parameters.py`). It returns the node's value, or raises `NoRule` to leave the call to
PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from quickfuse.ir.expr import Expr, Scalar
from quickfuse.ir.values import TensorMeta

from . import ops
from .context import Context
from .parameters import Parameters, no_rule_if
from .promotion import SUPPORTED
from .rules import ALL_DEVICES
from .symbolic import Tensor

#: Parameters that may be numbers of the host.
_NUMBERS = frozenset({"eps", "momentum"})
#: Those that may be numbers out of tensors.
_OUT_OF_TENSORS = frozenset({"momentum"})

#: Name of a function of `torch` (and method of `torch.Tensor`) -> its rule.
RULES: dict[str, Rule] = {}
#: Function -> its rule, for functions in Python.
FUNCTION_RULES: dict[Any, Rule] = {}


class Rule:
    """A rule with its parameters. Operands of several devices are left to PyTorch."""

    def __init__(self, function: Callable[..., Any], parameters: Parameters) -> None:
        self.function = function
        self.parameters = parameters

    def __call__(self, ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any], meta: Any) -> Any:
        bound = self.parameters.bind(args, kwargs, meta)
        devices: set[torch.device] = set()
        for name, value in bound.items():
            no_rule_if(type(value) is Scalar and name not in _NUMBERS)
            if type(value) is Tensor:
                no_rule_if(value.is_number and name not in _OUT_OF_TENSORS)
                no_rule_if(value.meta.device.type not in ALL_DEVICES or value.dtype not in SUPPORTED)
            tensors = value if isinstance(value, (list, tuple)) else (value,)
            devices.update([t.meta.device for t in tensors if type(t) is Tensor])
        no_rule_if(len(devices) > 1)
        return self.parameters.call(self.function, bound, ctx, meta)


def rule(
    names: str, functions: Sequence[Any] = (), like: Rule | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function `(ctx, meta, *parameters)` for functions of `torch` and for others. `like`: a rule that has its
    parameters."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        made = Rule(function, like.parameters if like else Parameters(function))
        for name in names.split():
            RULES[name] = made
        for other in functions:
            FUNCTION_RULES[other] = made
        return function

    return register


def made(ctx: Context, meta: Any, value: Expr) -> Tensor:
    """A new tensor, which is a rule's only result."""
    no_rule_if(type(meta) is not TensorMeta)
    return ctx.fresh(meta, value)


def several(meta: Any, count: int) -> Sequence[Any]:
    """The metadata of `count` results."""
    no_rule_if(not isinstance(meta, (list, tuple)) or len(meta) != count)
    return meta


def optional(ctx: Context, meta: Any, value: Expr | None) -> Tensor | None:
    """A result that may not be wanted: then it has no metadata."""
    if meta is None or value is None:
        return None
    return made(ctx, meta, ops.via(value, meta.dtype))
