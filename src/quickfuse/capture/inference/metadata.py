"""Shapes, dtypes and aliasing of an operator's results.

Elementwise operators have rules of their own (`elementwise`), so have the most common others whose rules in PyTorch are
slow at first use (`shape_rules`). The rest run on stand-ins without data (`stand_ins`). Results are remembered by the
operands' descriptions: the thousandth parameter of one shape costs a dictionary lookup.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, WrapperDescriptorType
from typing import Any

import torch

from ...errors import Unsupported
from ...ir.memo import Memo
from ...ir.modes import AUTOCAST_DEVICES
from ...ir.random_state import results_on_cpu
from ..symbolic import Symbol, TensorProxy
from .elementwise import is_elementwise
from .foreach import alike_in
from .mutation import is_in_place, name_of, returns_nothing
from .out_arguments import check_out, laid_out_as_new, try_on_one_element, without_out
from .probes import probe, run_elementwise, run_empty
from .results import LazyMeta, Result, device_of
from .shape_rules import shape_rule
from .stand_ins import is_leaf, outside_inference_mode, run_without_data

#: The functions that the rules here know by name. Custom operators may have any name.
_NATIVE = (BuiltinFunctionType, FunctionType, MethodDescriptorType, WrapperDescriptorType)

_OVERLOADS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)

_memo = Memo()  # of `Result`


def result_of(function: Callable[..., Any], args: Any, kwargs: Any, tensors: list[TensorProxy], grad: bool) -> Result:
    """What `function(*args, **kwargs)` returns and does. `tensors` are the tensor operands in order of appearance. Raises
    `OperatorFailed` where the operator raises, and `Unsupported` where the result depends on the tensors' contents."""
    alike = alike_in(function, args, kwargs, tensors, _describe)
    if alike is not None:
        whole = alike.whole(result_of(function, alike.args, alike.kwargs, alike.tensors, grad))
        if whole is not None:
            return whole
    first: dict[int, int] = {}
    key = (function, _describe(args, first), _describe(kwargs, first), grad, torch.get_default_dtype(), autocast_key())
    try:
        known = _memo.get(key)
    except (TypeError, ValueError) as error:
        raise Unsupported(f"an operand of {name_of(function)} is not a plain value: {error}") from error
    if known is None:
        with outside_inference_mode():
            known = _infer(function, args, kwargs, tensors, grad)
            if kwargs.get("out") is not None:
                known = laid_out_as_new(known, function, args, kwargs, tensors, grad, result_of)
                check_out(function, args, kwargs, tensors, known, result_of)
        _check_answer(function, known)
        _memo[key] = known
    return known


def _check_answer(function: Callable[..., Any], result: Result) -> None:
    """Refuse answers in Python that say something about the stand-ins, not about the operands."""
    if result.structure is None or result.structure == () or result.has_tensor:
        return
    if not isinstance(function, _NATIVE) or name_of(function).strip("_") not in _ANSWERS:
        raise Unsupported(f"{name_of(function)}() answers with a {type(result.structure).__name__}")


def _infer(function: Callable[..., Any], args: Any, kwargs: Any, tensors: list[TensorProxy], grad: bool) -> Result:
    name = name_of(function)
    if name.startswith(_QUANTISED):
        raise Unsupported("a quantised tensor")
    if torch._C._is_any_autocast_enabled() and not (name.startswith("_foreach_") or is_in_place(function)):
        return _infer_with_autocast(function, args, kwargs, tensors, grad)
    is_known = isinstance(function, _NATIVE) and not any(isinstance(t.meta, LazyMeta) for t in tensors)
    if kwargs.get("out") is not None and is_elementwise(function, without_out(kwargs)):
        try_on_one_element(function, args, kwargs)
    if is_known:
        rule = shape_rule(function)
        if rule is not None:
            result = rule(args, kwargs, tensors, grad)
            if result is not None:
                return result
    device = result_device(tensors, args, kwargs)
    if is_known and name.startswith("_fused_") and returns_nothing(function):  # they have no form without data
        if device.type == "cpu":
            probe(function, args, kwargs, tensors, grad, device)  # for its exception, where types do not fit
        return Result(())
    if is_known and tensors and is_elementwise(function, kwargs):
        return run_elementwise(function, args, kwargs, tensors, grad, device)
    result = None
    if is_known and tensors and all(0 in t.meta.shape for t in tensors) and kwargs.get("generator") is None:
        result = run_empty(function, args, kwargs, tensors, grad, device)
    result = result or probe(function, args, kwargs, tensors, grad, device)
    result = result or run_without_data(function, args, kwargs, tensors, grad, device)
    if device.type != "cpu" and (on_cpu := results_on_cpu(function)):
        there = torch.device("cpu")
        found = [replace(m, device=there) if k in on_cpu else m for k, m in enumerate(result.structure)]
        result = replace(result, structure=type(result.structure)(found))
    if isinstance(function, _OVERLOADS) and _has_side_effects(function):
        everything = tuple(range(len(tensors)))
        return replace(result, written=everything, unnoticed=tuple([k for k in everything if k not in result.written]))
    return result


def _infer_with_autocast(function: Any, args: Any, kwargs: Any, tensors: list[TensorProxy], grad: bool) -> Result:
    """The rules of this package know nothing of autocast: PyTorch is asked."""
    device = result_device(tensors, args, kwargs)
    plain = tensors and not any(0 in t.meta.shape or isinstance(t.meta, LazyMeta) for t in tensors)
    if plain and isinstance(function, _NATIVE) and device.type in ("cpu", "cuda") and is_elementwise(function, kwargs):
        return run_elementwise(function, args, kwargs, tensors, grad, device, device if device.type == "cpu" else None)
    result = probe(function, args, kwargs, tensors, grad, device)
    return result or run_without_data(function, args, kwargs, tensors, grad, device)


def autocast_key() -> Any:
    """What autocast does to operators at the moment."""
    if not torch._C._is_any_autocast_enabled():
        return None
    return tuple([(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in AUTOCAST_DEVICES])


@functools.cache
def _has_side_effects(function: Any) -> bool:
    """Whether an operator's schemas say that it changes an operand."""
    whole = isinstance(function, torch._ops.OpOverload)
    overloads = [function] if whole else [getattr(function, name) for name in function.overloads()]
    return any(overload._schema.is_mutable for overload in overloads)


#: Beginnings of names: PyTorch's rules without data make plain tensors of what these return.
_QUANTISED = ("quantize", "dequantize", "int_repr", "q_")

#: Operators whose answers in Python follow from the metadata of their operands.
_ANSWERS = frozenset(
    "dim ndimension size numel nelement stride is_contiguous element_size is_floating_point is_complex is_signed "
    "is_same_size is_conj is_neg is_zerotensor get_device is_pinned type result_type can_cast promote_types "
    "broadcast_shapes eq ne is_storage is_distributed has_names dim_order get_default_dtype".split()
)


def _describe(value: Any, first: dict[int, int]) -> Any:
    kind = type(value)
    if kind is TensorProxy:
        leaf = value.meta.requires_grad and is_leaf(value)
        return (value.meta, leaf, first.setdefault(id(value), len(first)))
    if kind is Symbol:
        return (Symbol, value.kind)
    if kind is list or kind is tuple:
        return (kind, tuple([_describe(v, first) for v in value]))
    if kind is dict:
        return tuple([(k, _describe(v, first)) for k, v in value.items()])
    if kind is slice:
        return (slice, _describe((value.start, value.stop, value.step), first))
    if kind is float:
        return (float, value.hex())  # 0.0 and -0.0 are equal, and not the same
    return (kind, value)


def result_device(tensors: list[TensorProxy], args: Any = (), kwargs: Any = None) -> torch.device:
    """The device an operator computes on: that of the operands, where 0-dim CPU tensors follow the others, and so do those
    without elements, which stand for weights that are not there. Raises `Unsupported` for operands on several devices, which
    eager refuses or copies."""
    named = (kwargs or {}).get("device")
    wanted = named if named is not None else next((a for a in args if type(a) is torch.device), None)
    if wanted is not None:
        return device_of(wanted)
    devices = {t.meta.device for t in tensors}
    if len(devices) > 1:
        apart = [t for t in tensors if t.meta.device.type != "cpu" or (t.meta.ndim and t.meta.numel)]
        devices = {t.meta.device for t in apart} or devices
    if len(devices) > 1:
        raise Unsupported(f"operands on several devices: {', '.join(sorted(map(str, devices)))}")
    return next(iter(devices), torch.get_default_device())
