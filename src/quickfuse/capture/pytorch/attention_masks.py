"""The masks of `torch.nn.attention.bias`, whose class says in Python what attention does with them, and asks first which
kernels would take the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.backends.cuda import SDPAParams

from ...errors import Unsupported
from ..interpreter import Interpreter
from ..symbolic import TensorProxy


class _Params:
    """What stands for `SDPAParams`, the arguments of a call of attention, in captured code."""

    def __init__(self, *given: Any) -> None:
        self.given = given


def _make(i: Interpreter, *given: Any) -> Any:
    i.outside.classes_made.setdefault(_Params, i.performed)
    return i.mark_created(_Params(*given))


def _takes(i: Interpreter, params: Any, debug: Any = False) -> bool:
    """Whether a kernel for GPUs takes the call."""
    query = params.given[0] if type(params) is _Params else None
    if type(query) is not TensorProxy or query.meta.device.type != "cpu" or i.truth(debug):
        raise Unsupported("the question which kernels take a call of attention on a GPU")
    return False


HANDLERS: dict[Any, Callable[..., Any]] = {
    SDPAParams: _make,
    torch._C._can_use_flash_attention: _takes,
    torch._C._can_use_mem_efficient_attention: _takes,
}
