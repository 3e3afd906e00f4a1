"""Which number operands of a PyTorch function stay symbols since they have changed: see `ir.number_parameters`."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Mapping
from functools import cache
from types import FunctionType
from typing import Any

import torch

from ...ir.guard import NumberExpr
from ...ir.number_parameters import NUMBER_PARAMETERS
from ...ir.signatures import signature
from ..inference.mutation import name_of
from ..interpreter import Interpreter
from ..symbolic import Symbol

_FIELD = re.compile(r"{(\w+)}")


def changing(i: Interpreter, target: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> set[int]:
    """The identities of the symbols among a call's operands that stay symbols. `target` is a function, or the name of a
    method, whose tensor is not among `args`."""
    known = NUMBER_PARAMETERS.get(name)
    if known is None or not any(type(v) is Symbol for v in (*args, *kwargs.values())):
        return set()
    names, defaults = _parameters(target)
    given = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
    symbols = {n: v for n in known.names if type(v := given.get(n)) is Symbol and not v.from_tensor and v.kind is not bool}
    found = {n: v for n, v in symbols.items() if known.always or (v.kind is float and i.outside.has_other_values(v))}
    if not found:
        return set()
    guards = []
    for condition in known.conditions:
        fields = _FIELD.findall(condition)
        values = [given.get(field) for field in fields]
        if not any(field in found for field in fields):
            continue
        numbers = [v.hint if type(v) is Symbol else v for v in values]
        if any(type(n) not in (int, float) for n in numbers):
            return set()
        texts = dict(zip(fields, map(repr, numbers), strict=True))
        if not eval(condition.format(**texts), {"nan": math.nan, "inf": math.inf}):
            return set()
        operands = tuple([v.expr if type(v) is Symbol else v for v in values])
        guards.append(NumberExpr(f"({_FIELD.sub('{}', condition)})", operands))
    for guard in guards:
        i.outside.require(guard, True)
    return {id(v) for v in found.values()}


@cache
def _parameters(target: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The names of a function's parameters in order, and the defaults that are numbers."""
    if isinstance(target, FunctionType):
        parameters = signature(target).parameters
        empty = inspect.Parameter.empty
        return tuple(parameters), {n: p.default for n, p in parameters.items() if p.default is not empty}
    packet = getattr(torch.ops.aten, name_of(target), None)
    schemas = [getattr(packet, overload)._schema for overload in packet.overloads()] if packet is not None else []
    known = NUMBER_PARAMETERS[name_of(target).strip("_")].names
    for schema in schemas:
        if any(argument.name in known for argument in schema.arguments):
            arguments = schema.arguments[1 if isinstance(target, str) else 0 :]
            names = tuple([argument.name for argument in arguments if not argument.kwarg_only])
            return names, {a.name: a.default_value for a in arguments if a.default_value is not None}
    return (), {}
