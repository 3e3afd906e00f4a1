"""PyTorch's operators that take Python functions: `torch.cond` and its like. Graphs have no form of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..errors import Unsupported
from .interpreter import Interpreter

_HINTS = {
    "cond": "compute both sides and choose with torch.where(condition, this, that), or decide by a number or flag",
    "while_loop": "loop a number of times that Python knows, and keep the results of further steps out with torch.where",
    "scan": "write it as a Python loop over the elements: it becomes one graph, or use torch.cumsum and its like",
    "associative_scan": "write it as a Python loop over the elements, or use torch.cumsum and its like",
    "map": "use torch.vmap, or a Python loop over the elements",
}


def _refusal(name: str, hint: str) -> Callable[..., Any]:
    def refuse(i: Interpreter, *args: Any, **kwargs: Any) -> Any:
        raise Unsupported(f"{name}, whose functions would be graphs of their own, which graphs here have no form of", hint)

    return refuse


def _handlers() -> dict[Any, Callable[..., Any]]:
    operators: Any = torch._higher_order_ops
    found: dict[Any, Callable[..., Any]] = {}
    for name, hint in _HINTS.items():
        public = f"torch.{name}" if hasattr(torch, name) else f"torch._higher_order_ops.{name}"
        found[getattr(operators, name, getattr(torch, name, None))] = _refusal(public, hint)
    return {function: handler for function, handler in found.items() if callable(function)}


HANDLERS = _handlers()
