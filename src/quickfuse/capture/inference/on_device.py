"""Tensors without data that PyTorch takes for tensors on a device.

Autocast converts the operands of an operator by the device that they are on, and leaves tensors on `meta` alone; attention
picks its kernel by the device. There operators run on these instead: autocast, autograd and operators that are made of
others see the device, the kernels those of `meta`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map

from ...errors import Unsupported
from ...ir.modes import DispatchMode
from ...ir.values import TensorMeta

_META = torch.device("meta")
#: Types of devices on which tensors may be made as they are.
_PLAIN = ("cpu", "meta")


class OnDevice(torch.Tensor):
    """A tensor without data. `inner` is the one on `meta` that stands for its memory."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor, device: torch.device) -> OnDevice:
        made: OnDevice = torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            layout=inner.layout, device=device, requires_grad=False,
        )  # fmt: skip
        made.inner = inner
        torch._C._set_conj(made, inner.is_conj())
        torch._C._set_neg(made, inner.is_neg())
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        devices: list[torch.device] = []
        wrappers: dict[int, OnDevice] = {}

        def unwrap(value: Any) -> Any:
            if isinstance(value, OnDevice):
                devices.append(value.device)
                wrappers[id(value.inner)] = value
                return value.inner
            if isinstance(value, torch.Tensor) and value.device != _META:  # a number of PyTorch's own
                return value.to(_META) if value.ndim else value
            return value

        inner_args, inner_kwargs = tree_map(unwrap, args), tree_map(unwrap, kwargs or {})
        device = inner_kwargs.get("device") or next((d for d in devices if d.type != "cpu"), None) or devices[0]
        if inner_kwargs.get("device") is not None:
            inner_kwargs["device"] = _META
        returned = func(*inner_args, **inner_kwargs)
        if any(_layout_of(wrapper) != _layout_of(wrapper.inner) for wrapper in wrappers.values()):
            raise Unsupported(f"{func} with autocast active")  # whose results nothing here follows

        def wrap(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            known = wrappers.get(id(value))
            return OnDevice(value, device) if known is None else known

        return tree_map(wrap, returned)


class Dispatching(DispatchMode):
    """Calls operators on such tensors. Without a mode the first one would import `torch.distributed.tensor`, whose class
    PyTorch compares that of each operand with: three seconds. What an operator makes of nothing on a device has no data
    either."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        device = (kwargs or {}).get("device")
        placed = any(issubclass(cls, OnDevice) for cls in types) or (device is not None and device.type not in _PLAIN)
        return OnDevice.__torch_dispatch__(func, types, args, kwargs) if placed else func(*args, **(kwargs or {}))


class WithoutData(DispatchMode):
    """Makes tensors on `meta` in place of new ones on other devices, such as those that a transformed function makes."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if any(issubclass(cls, OnDevice) for cls in types):
            return func(*args, **kwargs)
        if func is torch.ops.aten.lift_fresh.default:  # of what `torch.tensor()` makes of numbers
            return args[0] if args[0].device == _META else args[0].to(_META)
        if kwargs.get("device") is not None or (not types and any(a.name == "device" for a in func._schema.arguments)):
            kwargs["device"] = _META
        return func(*args, **kwargs)


def _layout_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.storage_offset()


def on_device(meta: TensorMeta) -> torch.Tensor:
    """A tensor with this metadata, but for `requires_grad`."""
    return OnDevice(torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=_META), meta.device)


def memory_of(tensor: torch.Tensor) -> int:
    """What is equal for tensors that share memory."""
    inner = tensor.inner if isinstance(tensor, OnDevice) else tensor
    return inner.untyped_storage()._cdata
