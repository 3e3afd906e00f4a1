"""From an operator of ATen, as in `torch.ops.aten.sum.dim_IntList`, to what lowers it.

Graphs of gradients consist of these. Most are operators that users call, too, under the same name and with the same
parameters: their rules are found by name, once the arguments are in the order of the operator's schema and what is left at
its default is left out. The few that exist in ATen only, such as the formulas of gradients, have rules under ATen's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from quickfuse.ir.values import TensorMeta

from . import ops
from .calls import RULES
from .context import Context
from .creation import CONVERSIONS, on_device
from .rules import EVALUATORS, NoRule, no_rule_if
from .symbolic import Tensor
from .targets import FUNCTIONS, METHODS, Handler, new_tensor
from .views import view

#: Operators whose results share their operand's memory although their schemas do not say so.
_UNDECLARED_VIEWS = frozenset({"_unsafe_view", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk"})
#: ATen's name -> the function that users call, where the names differ.
_FUNCTIONS = {"linalg_vector_norm": torch.linalg.vector_norm}


def native_handler(function: Any) -> Handler | None:
    """What lowers a call of one of the functions behind `torch.nn.functional`, whose operator in ATen has its name."""
    name = getattr(function, "__name__", "")
    if getattr(torch._C._nn, name, None) is not function:
        return None
    packet = getattr(torch.ops.aten, name, None)
    return None if packet is None else overload_handler(packet)


@cache
def overload_handler(target: OpOverload | OpOverloadPacket) -> Handler | None:
    """What lowers a call of `target`; None where only PyTorch's operator itself can.

    `torch.ops.aten.gelu_backward`, without the name of an overload, is the one that there is but for `out` variants.
    """
    if isinstance(target, OpOverloadPacket):
        overloads = [getattr(target, name) for name in target.overloads()]
        calls = [o for o in overloads if not any(argument.is_out for argument in o._schema.arguments)]
        return overload_handler(calls[0]) if len(calls) == 1 else None
    name = target._schema.name.partition("::")[2]
    if target.namespace != "aten" or any(argument.is_out for argument in target._schema.arguments):
        return None
    handlers = _handlers(target, name)
    if not handlers:
        return None
    arguments = _Arguments(target)

    def handle(ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any], meta: Any) -> Any:
        args, kwargs = arguments.normalised(args, kwargs)
        for handler in handlers:
            try:
                return handler(ctx, args, kwargs, meta)
            except NoRule:
                pass
        raise NoRule

    return handle


def _handlers(target: OpOverload, name: str) -> list[Handler]:
    """All that may lower calls of an operator, the best first."""
    schema = target._schema
    own = _OWN.get(name) or _OWN.get(f"{name}.{schema.overload_name}")
    if own is not None:
        return [own]
    if name in CONVERSIONS:
        return [METHODS[name]]
    if any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments):
        found = [METHODS.get(name), FUNCTIONS.get(getattr(torch, name, None))]
    elif name in _UNDECLARED_VIEWS or any(r.alias_info is not None for r in schema.returns):
        return [lambda ctx, args, kwargs, meta: view(ctx, target, args, kwargs, meta)]
    else:
        evaluate = EVALUATORS.get(name)
        by_name = [getattr(torch, name, None), getattr(torch._C._nn, name, None), _FUNCTIONS.get(name)]
        found = [RULES.get(name), None if evaluate is None else new_tensor(evaluate), *(map(FUNCTIONS.get, by_name))]
        if schema.arguments and schema.arguments[0].name == "self":  # `x.where(condition, y)` is another order
            found.append(METHODS.get(name))
    return list(dict.fromkeys(handler for handler in found if handler is not None))


class _Arguments:
    """Arguments of an operator as its rules expect them: by position where the schema allows it, without defaults."""

    def __init__(self, target: OpOverload) -> None:
        by_position = [a for a in target._schema.arguments if not a.kwarg_only]
        self.names = [a.name for a in by_position]
        self.defaults = [a.default_value if a.has_default_value() else _REQUIRED for a in by_position]
        self.options = {a.name: a.default_value for a in target._schema.arguments if a.kwarg_only}

    def normalised(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        bound = list(args)
        for name, default in zip(self.names[len(args) :], self.defaults[len(args) :], strict=True):
            value = kwargs.get(name, default)
            no_rule_if(value is _REQUIRED)
            bound.append(value)
        while bound and _is_default(bound[-1], self.defaults[len(bound) - 1]):
            bound.pop()
        options = {
            name: value for name, value in kwargs.items()
            if name in self.options and not _is_default(value, self.options[name])
        }  # fmt: skip
        return bound, options


_REQUIRED = object()


def _is_default(value: Any, default: Any) -> bool:
    if value is None or default is None or type(value) is not type(default):
        return value is default
    return type(value) is not Tensor and bool(value == default)


# --- operators with forms of their own ---


def _to_copy(ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any], meta: Any) -> Tensor:
    no_rule_if(type(meta) is not TensorMeta)
    moved = on_device(ctx, args[0], meta.device)
    return ctx.fresh(meta, ops.via(ctx.read_as(moved, meta.shape, meta.device), meta.dtype))


def _rearranged(name: str, arrange: Callable[[Sequence[Any]], Sequence[Any]]) -> Handler:
    """The rule `name`, whose operator has other parameters."""
    return lambda ctx, args, kwargs, meta: RULES[name](ctx, arrange(args), kwargs, meta)


#: By the name of an operator, or of one overload of it.
_OWN: dict[str, Handler] = {
    "_to_copy": _to_copy,
    "_native_batch_norm_legit.no_stats": _rearranged("native_batch_norm", lambda a: (*a[:3], None, None, *a[3:])),
    "_native_batch_norm_legit_no_training": _rearranged("native_batch_norm", lambda a: (*a[:5], False, *a[5:])),
}
