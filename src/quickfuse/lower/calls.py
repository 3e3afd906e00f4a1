"""Rules that are no formulas on elements: functions of whole tensors, registered with the names of their parameters.

    @rule("logsumexp", "input dim keepdim=False")
    def logsumexp(ctx, meta, input, dim, keepdim): ...

A rule returns the node's value, or raises `NoRule` to leave the call to PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from quickfuse.ir.expr import Expr, Scalar
from quickfuse.ir.values import TensorMeta

from . import ops
from .context import Context
from .promotion import SUPPORTED
from .rules import ALL_DEVICES, NoRule
from .symbolic import Tensor

_REQUIRED = object()
#: Other names of parameters, as PyTorch takes them from NumPy.
_ALIASES = {"self": "input", "axis": "dim", "keepdims": "keepdim", "x": "input"}

#: Parameters that may be numbers of the host.
_NUMBERS = frozenset({"eps", "momentum"})
#: Those that may be numbers out of tensors.
_OUT_OF_TENSORS = frozenset({"momentum"})

#: Name of a function of `torch` (and method of `torch.Tensor`) -> its rule.
RULES: dict[str, Rule] = {}
#: Function -> its rule, for functions in Python.
FUNCTION_RULES: dict[Any, Rule] = {}


class Rule:
    """A rule with its parameters. Operands on other devices than `devices` are left to PyTorch."""

    def __init__(self, function: Callable[..., Any], signature: str, devices: frozenset[str]) -> None:
        self.function = function
        self.devices = devices
        self.signature = signature
        *others, last = signature.split()
        self.rest = last[1:] if last.startswith("*") else None  # the parameter that takes all further arguments
        self.defaults = dict(map(_parameter, [*others, self.rest or last]))

    def __call__(self, ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any], meta: Any) -> Any:
        names = list(self.defaults)
        if self.rest is not None:
            args = [*args[: len(names) - 1], args[len(names) - 1 :]]
        if len(args) > len(names):
            raise NoRule
        bound = {**self.defaults, **dict(zip(names, args, strict=False))}
        for name, value in kwargs.items():
            name = _ALIASES.get(name, name) if name not in self.defaults else name
            if name not in self.defaults:
                raise NoRule
            bound[name] = value
        if any(type(value) is Scalar and name not in _NUMBERS for name, value in bound.items()):
            raise NoRule
        devices = set()
        for name, value in bound.items():
            if value is _REQUIRED:
                raise NoRule
            if type(value) is Tensor and (value.is_number and name not in _OUT_OF_TENSORS or not self._takes(value.meta)):
                raise NoRule
            tensors = value if isinstance(value, (list, tuple)) else (value,)
            devices.update([t.meta.device for t in tensors if type(t) is Tensor])
        if len(devices) > 1:
            raise NoRule
        return self.function(ctx, meta, **bound)

    def _takes(self, meta: TensorMeta) -> bool:
        return meta.device.type in self.devices and meta.dtype in SUPPORTED


def _parameter(text: str) -> tuple[str, Any]:
    name, _, default = text.partition("=")
    return name, eval(default, {"torch": torch}) if default else _REQUIRED


def rule(
    names: str, signature: str, functions: Sequence[Any] = (), devices: frozenset[str] = ALL_DEVICES
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function `(ctx, meta, *parameters)` for functions of `torch` and for others."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        made = Rule(function, signature, devices)
        for name in names.split():
            RULES[name] = made
        for other in functions:
            FUNCTION_RULES[other] = made
        return function

    return register


def made(ctx: Context, meta: Any, value: Expr) -> Tensor:
    """A new tensor, which is a rule's only result."""
    if type(meta) is not TensorMeta:
        raise NoRule
    return ctx.fresh(meta, value)


def several(meta: Any, count: int) -> Sequence[Any]:
    """The metadata of `count` results."""
    if not isinstance(meta, (list, tuple)) or len(meta) != count:
        raise NoRule
    return meta


def optional(ctx: Context, meta: Any, value: Expr | None) -> Tensor | None:
    """A result that may not be wanted: then it has no metadata."""
    if meta is None or value is None:
        return None
    return made(ctx, meta, ops.via(value, meta.dtype))
