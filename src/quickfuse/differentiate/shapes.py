"""The metadata of an ATen operator's results, without running it.

Convolutions and normalisations have rules (`layouts`), and so have the most frequent operators, since PyTorch's way takes
long (`plain_shapes`), and all that go by element (`pointwise_shapes`). Other operators run on the `meta` device, or, where
PyTorch has no such kernel or one that does not tell the truth, on real tensors full of zeros. All is remembered by operator
and operands' metadata. What is found out is checked against the real results when the graphs run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from .. import config
from ..errors import InternalError, Unsupported
from ..ir.memo import Memo
from ..ir.random_state import results_on_cpu
from ..ir.values import TensorMeta, numbered
from . import plain_shapes
from .layouts import RULES, Out, Spec
from .pointwise_shapes import pointwise_spec
from .traced import TracedTensor, key_of, map_traced, traced_in

_META = torch.device("meta")


_memo = Memo()  # of `Spec`


def spec_of(function: Any, args: Any, kwargs: Any) -> Spec:
    """What `function(*args, **kwargs)` returns, for traced tensors.

    Raises:
        Unsupported: where that depends on the contents, or cannot be found out.
    """
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": numbered(torch.device(kwargs["device"]))}
    if kwargs.get("generator") is not None:
        kwargs = {**kwargs, "generator": None}
    key = (function, key_of(args), key_of(kwargs), torch.get_default_dtype())
    try:
        known = _memo.get(key, _memo)
    except TypeError as error:
        raise Unsupported(f"an operand of {function} that is no plain value: {error}") from error
    if known is _memo:
        with torch._C._DisableTorchDispatch():  # a recorder would take what is tried here for operators of the program
            known = _memo[key] = _infer(function, args, kwargs)
    return known


#: Operators whose results on tensors without data have other shapes than those with data.
_OF_ANOTHER_SHAPE = frozenset({"aten::_embedding_bag", "aten::_embedding_bag_forward_only"})
#: The same for strides, in some cases.
_OF_OTHER_STRIDES = frozenset({"aten::_fft_r2c", "aten::_fft_c2r", "aten::linalg_eig"})

#: LAPACK counts from 1 in the integers that these get, and believes zeros as well.
_NOT_ON_ZEROS = frozenset({"aten::lu_unpack", "aten::linalg_lu_solve", "aten::linalg_ldl_solve"})

#: Operators are not run on real tensors of more bytes.
_LARGEST_RUN = 1 << 26
#: The same, where a run saves time.
_LARGEST_FOR_TIME = 1 << 20


def _by_rule(rule: Callable[..., Spec], function: Any, args: Any, kwargs: Any) -> Spec:
    try:
        return rule(*args, **kwargs)
    except Unsupported:
        raise
    except Exception as error:  # the general way is slower, and right
        if config.raise_internal_errors:
            raise InternalError(f"the rule for what {function} returns: {type(error).__name__}: {error}") from error
        return NotImplemented


def _infer(function: Any, args: Any, kwargs: Any) -> Spec:
    for rule in (RULES.get(function), plain_shapes.RULES.get(function)):
        if rule is not None and (found := _by_rule(rule, function, args, kwargs)) is not NotImplemented:
            return found
    tensors = list(traced_in((args, kwargs)))
    if (found := pointwise_spec(function, args, kwargs, tensors)) is not NotImplemented:
        return found
    device = _result_device(tensors, kwargs)
    if device.type != "cpu" and (on_cpu := results_on_cpu(function)):
        found = _without_running(function, args, kwargs, tensors, device)
        return tuple([_on_cpu(out) if k in on_cpu else out for k, out in enumerate(found)])
    return _without_running(function, args, kwargs, tensors, device)


def _on_cpu(out: Out) -> Out:
    return replace(out, meta=replace(out.meta, device=torch.device("cpu")))


def _without_running(function: Any, args: Any, kwargs: Any, tensors: list[TracedTensor], device: torch.device) -> Spec:
    """What PyTorch says of tensors without data, or else of tensors full of zeros."""
    name = function._schema.name
    if name in _OF_ANOTHER_SHAPE or (name in _OF_OTHER_STRIDES and _may_run(tensors)):
        return _on_zeros(function, args, kwargs, tensors, "only a run tells what it returns")
    if _is_slow(function) and _may_run(tensors, _LARGEST_FOR_TIME) and kwargs.get("device") is None:
        with contextlib.suppress(Unsupported):
            return _on_zeros(function, args, kwargs, tensors, "")
    try:
        return _on_meta(function, args, kwargs, device)
    except Unsupported:
        raise
    except NotImplementedError as error:
        return _on_zeros(function, args, kwargs, tensors, str(error))
    except Exception as error:
        raise Unsupported(f"what {function} returns is not known before it runs: {error}") from error


def _is_slow(function: Any) -> bool:
    """Whether PyTorch's rule for tensors without data is written in Python: the first such imports half of its compiler."""
    return torch._C.DispatchKey.Meta in function.py_kernels


def _on_zeros(function: Any, args: Any, kwargs: Any, tensors: list[TracedTensor], reason: str) -> Spec:
    """What an operator returns for real tensors full of zeros, unless it is another thing for integers that are one."""
    unknown = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output, torch.Tag.nondeterministic_seeded)
    if function._schema.name in _NOT_ON_ZEROS or not _may_run(tensors) or any(tag in function.tags for tag in unknown):
        raise Unsupported(f"what {function} returns is not known before it runs: {reason}")

    def filled(value: int) -> Callable[[TracedTensor], torch.Tensor]:
        def make(tensor: TracedTensor) -> torch.Tensor:
            meta = tensor.meta
            made = torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype)
            return made.fill_(0 if meta.dtype.is_floating_point or meta.dtype.is_complex else value)

        return make

    try:
        found = _run(function, args, kwargs, filled(0))
    except Exception as error:
        raise Unsupported(f"what {function} returns is not known before it runs: {error}") from error
    if function._schema.name.endswith("_backward"):
        return found  # these trust what forward has checked: lengths of one that do not add up write beyond their result
    with contextlib.suppress(RuntimeError, IndexError, ValueError):  # one may be no value that the operator takes
        if _run(function, args, kwargs, filled(1)) != found:
            raise Unsupported(f"the shape of what {function} returns depends on its operands' contents")
    return found


def _may_run(tensors: list[TracedTensor], largest: int = _LARGEST_RUN) -> bool:
    on_cpu = all(t.meta.device.type == "cpu" for t in tensors)
    return on_cpu and sum(t.meta.span_bytes for t in tensors) <= largest


def _run(function: Any, args: Any, kwargs: Any, make: Callable[[TracedTensor], torch.Tensor]) -> Spec:
    with torch.no_grad():
        returned = function(*map_traced(make, args), **map_traced(make, kwargs))
    if isinstance(returned, (bool, int, float)):
        raise Unsupported(f"{function} returns a number that depends on its operands' contents")
    return _spec(returned, torch.device("cpu"))


def map_spec(function: Callable[..., Any], spec: Spec) -> Any:
    """`function(out, its position)` for each tensor of a spec."""
    if type(spec) is Out:
        return function(spec, None)
    if isinstance(spec, (list, tuple)):
        return type(spec)([function(s, k) if type(s) is Out else s for k, s in enumerate(spec)])
    return spec


def _result_device(tensors: list[TracedTensor], kwargs: Any) -> torch.device:
    if kwargs.get("device") is not None:
        device: torch.device = kwargs["device"]
        return device
    devices = {t.meta.device for t in tensors}
    if len(devices) > 1:
        devices = {t.meta.device for t in tensors if t.meta.shape or t.meta.device.type != "cpu"} or devices
    if len(devices) > 1:
        raise Unsupported("operands on several devices")
    return next(iter(devices), torch.device("cpu"))


def _on_meta(function: Any, args: Any, kwargs: Any, device: torch.device) -> Spec:
    made: dict[TensorMeta, torch.Tensor] = {}

    def without_data(tensor: TracedTensor) -> torch.Tensor:
        meta = tensor.meta
        if meta not in made:
            made[meta] = torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=_META)
        return made[meta]

    options = map_traced(without_data, kwargs)
    if "device" in options:
        options["device"] = _META
    return _spec(function(*map_traced(without_data, args), **options), device)


def _spec(returned: Any, device: torch.device) -> Spec:
    if isinstance(returned, torch.Tensor):
        if returned.layout is not torch.strided or returned.is_conj() or returned.is_neg():
            raise Unsupported("a result that is no plain tensor")
        shape, stride = tuple(returned.shape), returned.stride()
        if not all(type(n) is int for n in (*shape, *stride)):
            raise Unsupported("a shape that depends on contents")
        meta = TensorMeta(returned.dtype, shape, stride, device)
        return Out(meta, int(returned.storage_offset()))
    if isinstance(returned, (list, tuple)):
        return tuple([_spec(r, device) for r in returned])
    if returned is None or type(returned) in (int, float, bool):
        return returned
    raise Unsupported(f"a result of type {type(returned).__name__}")
