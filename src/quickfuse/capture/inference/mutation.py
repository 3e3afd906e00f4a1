"""Which operands an operator changes, and which operators return memory of their own.

PyTorch's schemas say it. Where an operator has none, its name does: a trailing underscore means that the first operand
is changed.
"""

from __future__ import annotations

import operator
from functools import cache
from types import FunctionType
from typing import Any

import torch

from ...ir.signatures import signature
from ..symbolic import TensorProxy, tensors_among
from .elementwise import is_elementwise

#: Operators that change their first operand -> the same ones that do not, in the order of bytecode.
IN_PLACE_OF = {
    getattr(operator, f"i{name.strip('_')}"): getattr(operator, name)
    for name in "add and_ floordiv lshift matmul mul mod or_ pow rshift sub truediv xor".split()
}

#: Parameters of functions in `torch.nn.functional` that are changed, and the option that says so.
_CHANGED_BY_OPTION = {"running_mean": "training", "running_var": "training", "weight": "max_norm", "input": "inplace"}

#: Functions that make a tensor, although PyTorch composes some of others.
_MAKERS = frozenset("tensor zeros ones full empty arange stack cat rand randn clone".split())


def is_in_place(target: Any) -> bool:
    """PyTorch's naming rule for functions, methods and operators."""
    if getattr(target, "__module__", None) == "_operator":  # `and_` and `or_` end like that for another reason
        return target in IN_PLACE_OF or target is operator.setitem
    name = target if isinstance(target, str) else name_of(target)
    if name.startswith("__i") and name.endswith("__"):
        return name not in ("__invert__", "__index__", "__int__")
    return name.endswith("_") and not name.endswith("__")


def giving_another(kind: str, target: Any) -> Any:
    """The operator that gives another tensor where one changes its first operand; other ones as they are."""
    if kind == "call_function":
        return IN_PLACE_OF.get(target, target)
    if not is_in_place(target):
        return target
    return f"__{target[3:]}" if target.startswith("__") else target.rstrip("_")


def changed_tensors(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[TensorProxy]:
    """The tensors that a call changes."""
    changed = list(tensors_among(kwargs["out"])) if kwargs.get("out") is not None else []
    positions, names, options = _written(target)
    for position in positions:
        if position < len(args):
            changed += tensors_among(args[position])
    for name in names:
        if name in kwargs:
            changed += tensors_among(kwargs[name])
    if options:
        bound = signature(target).bind(*args, **kwargs)
        bound.apply_defaults()
        for name in options:
            if bound.arguments[_CHANGED_BY_OPTION[name]]:
                changed += tensors_among(bound.arguments[name])
    return changed


@cache
def _written(target: Any) -> tuple[tuple[int, ...], tuple[str, ...], tuple[str, ...]]:
    """Positions and names of the arguments that `target` changes, and of those that it may change by an option."""
    if isinstance(target, FunctionType):
        parameters = signature(target).parameters
        options = tuple(n for n, option in _CHANGED_BY_OPTION.items() if n in parameters and option in parameters)
        return ((0,) if is_in_place(target) else ()), (), options
    positions: dict[int, None] = {}
    names: dict[str, None] = {}
    for overload in _overloads(target if isinstance(target, str) else name_of(target)):
        if not _is_registered(overload):
            continue
        for position, argument in enumerate(overload._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write and not argument.is_out:
                names[argument.name] = None
                if not argument.kwarg_only:
                    positions[position] = None
    if is_in_place(target):
        positions[0] = None
    return tuple(positions), tuple(names), ()


@cache
def returns_new_memory(target: Any) -> bool:
    """Whether the results of an operator surely share no memory with its operands, but for operands that it returns."""
    function = getattr(torch.Tensor, target, None) if isinstance(target, str) else target
    name = name_of(function)
    if function is None:
        return False
    if is_elementwise(function, {}) or name in _MAKERS or name.startswith("_foreach_"):
        return True
    overloads = [o for o in _overloads(name) if not _is_out_variant(o)]
    composed = torch._C.DispatchKey.CompositeImplicitAutograd
    return bool(overloads) and not any(
        any(result.alias_info is not None for result in o._schema.returns)
        or (_is_registered(o) and o.has_kernel_for_dispatch_key(composed))
        for o in overloads
    )


def _is_registered(overload: Any) -> bool:
    """Whether tensors are ever passed to an overload: TorchScript alone knows some, such as the one that sorts lists."""
    try:
        overload.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
    except RuntimeError:
        return False
    return True


def returns_nothing(target: Any) -> bool:
    """Whether an operator returns no value, by all its schemas."""
    overloads = [o for o in _overloads(name_of(target)) if not _is_out_variant(o)]
    return bool(overloads) and not any(o._schema.returns for o in overloads)


def _is_out_variant(overload: Any) -> bool:
    return any(argument.is_out for argument in overload._schema.arguments)


def name_of(target: Any) -> str:
    return str(getattr(target, "__name__", target))


def _overloads(name: str) -> list[Any]:
    packet = getattr(torch.ops.aten, name, None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return []
    return [getattr(packet, overload) for overload in packet.overloads()]
