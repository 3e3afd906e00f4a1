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


def _dtype(i: Interpreter, device: Any) -> torch.dtype:
    if ("dtype", _device(i, device)) not in i.graph.autocast.settings:
        i.outside.guard("state", None, (f"torch.get_autocast_dtype({device!r})", torch.get_autocast_dtype(device)))
    return i.graph.autocast.get("dtype", device)  # type: ignore[no-any-return]


def _is_cache_enabled(i: Interpreter) -> bool:
    if ("cache",) not in i.graph.autocast.settings:
        i.outside.guard("state", None, ("torch.is_autocast_cache_enabled()", torch.is_autocast_cache_enabled()))
    return i.graph.autocast.get("cache")  # type: ignore[no-any-return]


def _later(function: Callable[[], Any], result: Any) -> Callable[[Interpreter], Any]:
    """A call that the running graph makes before the next operator."""

    def handler(i: Interpreter) -> Any:
        i.graph.autocast.pending.append((function, ()))
        return result

    return handler


# inference mode -------------------------------------------------------------------------------------------------


def _enter_inference(i: Interpreter, mode: Any) -> None:
    if i.graph.nested:
        raise Unsupported("inference mode inside of a functional transform or checkpoint")
    i.graph.inference.enter(i.graph, i.truth(mode))


def _make_inference(i: Interpreter, mode: Any) -> Any:
    i.graph.inference.made_at = i.performed
    return i.call_now(library.InferenceMode, (mode,))


HANDLERS: dict[Any, Callable[..., Any]] = {
    # the segment's surroundings are guarded
    torch.is_autocast_enabled: lambda i, device="cuda": bool(i.graph.autocast.get("enabled", _device(i, device))),
    torch.get_autocast_dtype: _dtype,
    torch.is_autocast_cache_enabled: _is_cache_enabled,
    torch.set_autocast_enabled: lambda i, device, on: i.graph.autocast.set(i.truth(on), "enabled", _device(i, device)),
    torch.set_autocast_dtype: lambda i, device, dtype: i.graph.autocast.set(dtype, "dtype", _device(i, device)),
    torch.set_autocast_cache_enabled: lambda i, enabled: i.graph.autocast.set(i.truth(enabled), "cache"),
    torch.autocast_increment_nesting: _later(torch.autocast_increment_nesting, 1),
    # PyTorch empties the cache of converted weights if nothing is nested any more: the node does both
    torch.autocast_decrement_nesting: _later(leave_autocast, 1),
    torch.clear_autocast_cache: _later(torch.clear_autocast_cache, None),
    torch._C._is_any_autocast_enabled: lambda i: i.graph.autocast.is_active,
    torch.amp.is_autocast_available: lambda i, device: torch.amp.is_autocast_available(_device(i, device)),
    torch.cuda.amp.common.amp_definitely_not_available: lambda i: torch.cuda.amp.common.amp_definitely_not_available(),
    torch.cuda.is_bf16_supported: lambda i: torch.cuda.is_bf16_supported(),
    torch._C._is_torch_function_mode_enabled: lambda i: False,
    torch._C._InferenceMode: _make_inference,
    torch.is_inference_mode_enabled: lambda i: i.graph.inference.on,
    enter_inference: _enter_inference,
    leave_inference: lambda i: i.graph.inference.leave(i.graph),
}
