"""Questions about the processes that train together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...errors import Unsupported
from ..interpreter import Interpreter


def _of_processes(name: str) -> Callable[..., Any]:
    """A question about the processes that train together, whose answer a guard holds."""

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
    getattr(torch.distributed, name): _of_processes(name)
    for name in ("is_initialized", "get_world_size", "get_rank")
    if hasattr(torch.distributed, name)
}
