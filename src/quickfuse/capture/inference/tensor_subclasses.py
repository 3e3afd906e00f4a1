"""Subclasses of `torch.Tensor` that leave PyTorch's functions as they are.

Results of operators on them are of the subclass, by `torch.Tensor.__torch_function__`; the graph calls PyTorch with the real
tensors, so that PyTorch makes them. Classes with a `__torch_function__` or `__torch_dispatch__` of their own are left to
Python.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

import torch

from ...errors import Unsupported
from ..symbolic import ABSENT, TensorProxy

#: Special names that may stand in such a class. Others say what operators and attributes do.
_HARMLESS = frozenset(
    "__module__ __qualname__ __doc__ __dict__ __weakref__ __annotations__ __slots__ __init__ __new__ __orig_bases__ "
    "__parameters__ __firstlineno__ __static_attributes__".split()
)


def is_plain_subclass(cls: type) -> bool:
    """Whether a class is a subclass of `torch.Tensor` that changes nothing about operators."""
    return _special_names(cls) <= _HARMLESS


@functools.cache
def is_function_class(cls: type) -> bool:
    """Whether a class says in Python what operators do, by `__torch_function__` alone."""
    own = _special_names(cls) - _HARMLESS - {"__repr__"}
    if issubclass(cls, torch.nn.Parameter) or own != {"__torch_function__"}:
        return False
    raw = own_member(cls, "__torch_function__")[1]
    return isinstance(raw, classmethod) and isinstance(raw.__func__, FunctionType)


def _special_names(cls: type) -> set[str]:
    """The special names that a subclass of `torch.Tensor` of the user's, or the masks of PyTorch's attention, define, {""}
    for other classes."""
    native = torch.nn.Parameter if issubclass(cls, torch.nn.Parameter) else torch.Tensor
    if not issubclass(cls, native) or type(cls) is not type(native):
        return {""}
    if cls.__module__.partition(".")[0] == "torch" and cls.__module__ != "torch.nn.attention.bias":
        return {""}
    own = cls.__mro__[: cls.__mro__.index(native)]
    return {name for base in own for name in vars(base) if name.startswith("__") and name.endswith("__")}


def class_of_results(of_operands: Iterable[type]) -> type | None:
    """The class that `torch.Tensor.__torch_function__` gives new tensors, None for plain ones."""
    classes = [cls for cls in of_operands if cls is not torch.Tensor and not issubclass(cls, torch.nn.Parameter)]
    if not classes:
        return None
    derived = next((c for c in classes if all(issubclass(c, other) for other in classes)), None)
    if derived is None:
        raise Unsupported("an operator on tensors of several classes")
    return derived


def give_class(value: Any, cls: type, operands: list[TensorProxy]) -> None:
    """New tensors among the results of an operator are of a class."""
    if type(value) is TensorProxy:
        if not any(value is operand for operand in operands):
            value.cls = cls
    elif isinstance(value, (list, tuple)):
        for element in value:
            give_class(element, cls, operands)


def own_member(cls: type, name: str) -> tuple[type, Any]:
    """What a subclass itself defines: the class and the raw value, `ABSENT` where it leaves a name to `torch.Tensor`."""
    for owner in cls.__mro__[: cls.__mro__.index(torch.Tensor)]:
        if name in owner.__dict__:
            return owner, owner.__dict__[name]
    return cls, ABSENT


@functools.cache
def without_torch_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """An operator for the graph that asks no class."""

    def plain(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **kwargs)

    plain.__name__ = plain.__qualname__ = str(getattr(function, "__name__", "operator"))
    return plain
