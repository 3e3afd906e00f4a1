"""What each call of an exported program is checked for, in the user's terms. Nothing has been changed when a check fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.fx import Graph
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from ..ir.modes import AUTOCAST_DEVICES
from ..ir.tensor_checks import is_plain, same_order
from ..ir.values import TensorMeta
from .nesting import article
from .program import Check, Program
from .recording import DETACHING, makes_tensors

GRAD_MODE = "torch.is_grad_enabled()"
AUTOCAST = "autocast"

#: Settings that a program may have been specialised on, and that each call looks at again.
SETTINGS: dict[str, Callable[[], Any]] = {
    GRAD_MODE: torch.is_grad_enabled, AUTOCAST: torch._C._is_any_autocast_enabled,
    "torch.get_default_dtype()": torch.get_default_dtype,
    **{f"torch.is_autocast_enabled({d!r})": partial(torch.is_autocast_enabled, d) for d in AUTOCAST_DEVICES},
    **{f"torch.get_autocast_dtype({d!r})": partial(torch.get_autocast_dtype, d) for d in AUTOCAST_DEVICES},
}  # fmt: skip
_IN = "in the exported program, got"


# what is around the call ----------------------------------------------------------------------------------------


class Surroundings:
    """What is around each call of a program: settings, modes, forward-mode differentiation."""

    def __init__(self, program: Program) -> None:
        self._settings = [(name, SETTINGS[name], value) for name, value in program.settings.items()]
        self._makes_tensors = makes_tensors(program.graph)
        self._keeps_from_gradients = _keeps_from_gradients(program.graph)

    def failure(self) -> str:
        """Why a call does not fit here; "" where it does."""
        for name, get, wanted in self._settings:
            found = get()
            if found != wanted:
                return f"{name} is {wanted} {_IN} {found}"
        if self._keeps_from_gradients and forward_ad._current_level >= 0:
            return "the exported program keeps tensors from gradients, which forward-mode differentiation would follow"
        return self._failure_of_modes() if torch._C._len_torch_function_stack() else ""

    def _failure_of_modes(self) -> str:
        for mode in _get_current_function_mode_stack():
            if type(mode) is not DeviceContext:
                return f"a {type(mode).__name__} is active, of which the exported program's operators know nothing"
            if self._makes_tensors and torch.get_default_device() != torch.device("cpu"):
                return f"torch.get_default_device() is cpu {_IN} {torch.get_default_device()}"
        return ""


def _keeps_from_gradients(graph: Graph) -> bool:
    """Whether something in a program is kept from autograd, which forward-mode differentiation may not know."""
    return any(node.target in DETACHING for node in graph.nodes)


# tensors --------------------------------------------------------------------------------------------------------


def failure_of_argument(check: Check, leaves: Sequence[Any], paths: Sequence[str]) -> str:
    """Why a check of a call's arguments fails; "" where it does not."""
    if check.kind in ("any", "state_requires_grad"):
        return ""
    value, path = leaves[paths.index(check.path)], check.path
    if check.kind == "tensor":
        return failure_of_tensor(check.value, path, value)
    if check.kind == "number":
        if type(value) is not check.value:
            return f"{path} is of type {check.value.__name__} {_IN} {article(value)}"
    elif check.kind == "equal":
        if type(value) is not type(check.value) or value != check.value:
            return f"{path} is {check.value!r} {_IN} {article(value)}"
    elif check.kind == "same":
        if value is not leaves[paths.index(check.value)]:
            return f"{path} is the same object as {check.value} in the exported program, got two objects"
    elif value.requires_grad != check.value:
        return f"{path}.requires_grad is {check.value} {_IN} {value.requires_grad}"
    return ""


def failure_of_tensor(meta: TensorMeta, path: str, value: Any) -> str:
    """Why a tensor is not what a program takes, but for its `requires_grad`; "" where it is."""
    if not isinstance(value, torch.Tensor):
        return f"{path} is a Tensor {_IN} {article(value)}"
    if value.dtype != meta.dtype:
        return f"{path}.dtype is {meta.dtype} {_IN} {value.dtype}"
    if value.device != meta.device:
        return f"{path}.device is {meta.device} {_IN} {value.device}"
    shape = tuple(value.shape)
    if shape != meta.shape:
        if len(shape) != len(meta.shape):
            return f"{path}.ndim is {len(meta.shape)} {_IN} {len(shape)}"
        axis = next(k for k, (size, wanted) in enumerate(zip(shape, meta.shape, strict=True)) if size != wanted)
        return f"{path}.shape[{axis}] is {meta.shape[axis]} {_IN} {shape[axis]}"
    if not is_plain(value):
        other = "" if type(value) in (torch.Tensor, torch.nn.Parameter) else f", a {type(value).__qualname__}"
        return f"{path} is a plain strided tensor in the exported program, got one that is not{other}"
    stride = value.stride()
    if stride != meta.stride and not same_order(shape, stride, meta.stride):
        hint = f": pass {path}.contiguous()" if meta.is_contiguous else ""
        return f"{path}.stride() is {meta.stride} {_IN} {stride}{hint}"
    return ""
