"""Calls about autocast and inference mode: what PyTorch's own context managers, which are Python, come down to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..errors import Unsupported
from ..ir.modes import AUTOCAST_DEVICES, enter_inference, leave_autocast, leave_inference
from . import library
from .interpreter import Interpreter

# autocast -------------------------------------------------------------------------------------------------------


def _device(i: Interpreter, device: Any) -> str:
    if device not in AUTOCAST_DEVICES:
        raise Unsupported(f"autocast for the device {device}")
    return str(device)


def _is_enabled(i: Interpreter, device: Any = "cuda") -> bool:
    return bool(i.graph.autocast.get("enabled", _device(i, device)))  # the segment's surroundings are guarded


def _dtype(i: Interpreter, device: Any) -> torch.dtype:
    if ("dtype", _device(i, device)) not in i.graph.autocast.settings:
        i.outside.guard("state", None, (f"torch.get_autocast_dtype({device!r})", torch.get_autocast_dtype(device)))
    return i.graph.autocast.get("dtype", device)  # type: ignore[no-any-return]


def _is_cache_enabled(i: Interpreter) -> bool:
    if ("cache",) not in i.graph.autocast.settings:
        i.outside.guard("state", None, ("torch.is_autocast_cache_enabled()", torch.is_autocast_cache_enabled()))
    return i.graph.autocast.get("cache")  # type: ignore[no-any-return]


def _enable(i: Interpreter, device: Any, enabled: Any) -> None:
    i.graph.autocast.set(i.truth(enabled), "enabled", _device(i, device))


def _set_dtype(i: Interpreter, device: Any, dtype: Any) -> None:
    i.graph.autocast.set(dtype, "dtype", _device(i, device))


def _enable_cache(i: Interpreter, enabled: Any) -> None:
    i.graph.autocast.set(i.truth(enabled), "cache")


def _enter(i: Interpreter) -> int:
    i.graph.autocast.pending.append((torch.autocast_increment_nesting, ()))
    return 1


def _leave(i: Interpreter) -> int:
    """PyTorch empties the cache of converted weights if nothing is nested any more: the node does both."""
    i.graph.autocast.pending.append((leave_autocast, ()))
    return 1


def _clear_cache(i: Interpreter) -> None:
    i.graph.autocast.pending.append((torch.clear_autocast_cache, ()))


def _is_any_enabled(i: Interpreter) -> bool:
    return i.graph.autocast.is_active


def _is_available(i: Interpreter, device: Any) -> bool:
    return torch.amp.is_autocast_available(_device(i, device))


# inference mode -------------------------------------------------------------------------------------------------


def _enter_inference(i: Interpreter, mode: Any) -> None:
    if i.graph.nested:
        raise Unsupported("inference mode inside of a functional transform or checkpoint")
    i.graph.inference.enter(i.graph, i.truth(mode))


def _make_inference(i: Interpreter, mode: Any) -> Any:
    i.graph.inference.made_at = i.performed
    return i.call_now(library.InferenceMode, (mode,))


HANDLERS: dict[Any, Callable[..., Any]] = {
    torch.is_autocast_enabled: _is_enabled,
    torch.get_autocast_dtype: _dtype,
    torch.is_autocast_cache_enabled: _is_cache_enabled,
    torch.set_autocast_enabled: _enable,
    torch.set_autocast_dtype: _set_dtype,
    torch.set_autocast_cache_enabled: _enable_cache,
    torch.autocast_increment_nesting: _enter,
    torch.autocast_decrement_nesting: _leave,
    torch.clear_autocast_cache: _clear_cache,
    torch._C._is_any_autocast_enabled: _is_any_enabled,
    torch.amp.is_autocast_available: _is_available,
    torch.cuda.amp.common.amp_definitely_not_available: lambda i: torch.cuda.amp.common.amp_definitely_not_available(),
    torch.cuda.is_bf16_supported: lambda i: torch.cuda.is_bf16_supported(),
    torch._C._is_torch_function_mode_enabled: lambda i: False,
    torch._C._InferenceMode: _make_inference,
    torch.is_inference_mode_enabled: lambda i: i.graph.inference.on,
    enter_inference: _enter_inference,
    leave_inference: lambda i: i.graph.inference.leave(i.graph),
}
