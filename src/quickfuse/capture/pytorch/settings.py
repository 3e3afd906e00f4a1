"""Questions about how PyTorch is set, and which processes train together: guards hold the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

import torch

from ...errors import Unsupported
from ..interpreter import Interpreter
from ..symbolic import is_constant


def _setting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def answer(i: Interpreter, *args: Any) -> Any:
        asked = tuple([i.outside.concrete(a) for a in args])
        if not all(map(is_constant, asked)):
            raise Unsupported(f"{name} of what only the graph tells")
        question = f"{name}({', '.join(map(repr, asked))})"
        if i.graph.changed_settings.answers:
            return _changed(i, question)
        value = i.native(function, *asked)
        if not (is_constant(value) or type(value) is torch.dtype):
            raise Unsupported(f"{name}() answers with a {type(value).__name__}")
        i.outside.guard("state", None, (question, value))
        return value

    return answer


def _changed(i: Interpreter, question: str) -> Any:
    """The answer to a question after the captured code has changed some settings."""
    known = i.graph.changed_settings.answers
    for name in (question, _BY_OTHER_NAMES.get(question)):
        if name in known:
            return known[name]
    raise Unsupported(f"{question} after a change of settings")


_BY_OTHER_NAMES = {
    "torch._C._get_deterministic_algorithms()": "torch.are_deterministic_algorithms_enabled()",
    "torch._C._get_deterministic_algorithms_warn_only()": "torch.is_deterministic_algorithms_warn_only_enabled()",
}


def _settings() -> Iterator[tuple[Any, Callable[..., Any]]]:
    names = [*(f"torch.{name}" for name in _PUBLIC.split()), *(f"torch._C.{name}" for name in _PRIVATE.split())]
    for name in names:
        function = reduce(lambda place, part: getattr(place, part, None), name.split(".")[1:], torch)
        if function is not None:  # in this version, and with this build, of PyTorch
            yield function, _setting(name, function)


default_dtype = _setting("torch.get_default_dtype", torch.get_default_dtype)
_PUBLIC = (
    "get_num_threads get_num_interop_threads is_anomaly_enabled is_anomaly_check_nan_enabled "
    "cuda.device_count cuda.is_initialized utils.data.get_worker_info _nnpack_available"
)
#: What the attributes of `torch.backends` and Python functions come down to.
_PRIVATE = (
    "_get_deterministic_algorithms _get_deterministic_algorithms_warn_only _get_deterministic_fill_uninitialized_memory "
    "_get_float32_matmul_precision _get_fp32_precision_getter _get_cudnn_enabled _get_cudnn_benchmark "
    "_get_cudnn_deterministic _get_cudnn_allow_tf32 _get_cudnn_depthwise_kernel "
    "_cuda_get_cudnn_benchmark_limit _get_cublas_allow_tf32 "
    "_get_cublas_allow_fp16_reduced_precision_reduction _get_cublas_allow_bf16_reduced_precision_reduction "
    "_get_cublas_allow_fp16_accumulation _get_cpu_allow_fp16_reduced_precision_reduction _get_mkldnn_enabled "
    "_get_mkldnn_deterministic _get_onednn_allow_tf32 _get_nnpack_enabled _get_math_sdp_allow_fp16_bf16_reduction "
    "_get_miopen_immediate _get_cpu_capability _get_qengine _get_warnAlways"
)


def _of_processes(name: str) -> Callable[..., Any]:
    """A question about the processes that train together."""

    def handler(i: Interpreter, group: Any = None) -> Any:
        if group is not None:
            raise Unsupported(f"torch.distributed.{name} of a group")
        try:
            answer = getattr(torch.distributed, name)()
        except ValueError:  # without any
            raise Unsupported(f"torch.distributed.{name} of no group") from None
        i.outside.guard("state", None, (f"torch.distributed.{name}()", answer))
        return answer

    return handler


HANDLERS: dict[Any, Callable[..., Any]] = {
    torch.get_default_dtype: default_dtype,
    **dict(_settings()),
    **{
        getattr(torch.distributed, name): _of_processes(name)
        for name in ("is_initialized", "get_world_size", "get_rank")
        if hasattr(torch.distributed, name)
    },
}
