"""Subclasses of `torch.Tensor` that leave PyTorch's functions as they are.

Results of operators on them are of the subclass, by `torch.Tensor.__torch_function__`; the graph calls PyTorch with the real
tensors, so that PyTorch makes them. Classes with a `__torch_function__` or `__torch_dispatch__` of their own are left to
Python.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from ..errors import Unsupported
from .results import View
from .values import ABSENT, TENSOR_TYPES, TensorProxy

if TYPE_CHECKING:
    from .interpreter import Interpreter


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
    if cls in TENSOR_TYPES or _special_names(cls) - _HARMLESS != {"__torch_function__"}:
        return False
    raw = own_member(cls, "__torch_function__")[1]
    return isinstance(raw, classmethod) and isinstance(raw.__func__, FunctionType)


def _special_names(cls: type) -> set[str]:
    """The special names that a subclass of `torch.Tensor` of the user's defines, {""} for other classes."""
    if not issubclass(cls, torch.Tensor) or type(cls) is not type(torch.Tensor) or issubclass(cls, torch.nn.Parameter):
        return {""}
    if cls.__module__.partition(".")[0] == "torch":
        return {""}
    own = cls.__mro__[: cls.__mro__.index(torch.Tensor)]
    return {name for base in own for name in vars(base) if name.startswith("__") and name.endswith("__")}


def class_of_results(tensors: list[TensorProxy]) -> type | None:
    """The class that `torch.Tensor.__torch_function__` gives new tensors, None for plain ones."""
    classes = list(dict.fromkeys(t.cls for t in tensors if t.cls not in TENSOR_TYPES))
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


def as_subclass(i: Interpreter, proxy: TensorProxy, cls: Any) -> TensorProxy:
    """`tensor.as_subclass(cls)`: a view of the same memory, of another class."""
    if cls is not torch.Tensor and not (isinstance(cls, type) and (is_plain_subclass(cls) or is_function_class(cls))):
        raise Unsupported(f"a tensor of type {getattr(cls, '__qualname__', cls)}")
    made: TensorProxy = i.graph.call("call_function", _converter(cls), (proxy,), {}, View(proxy.meta, 0))
    made.cls = cls
    i.outside.function_classes |= is_function_class(cls)
    i.graph.only_pytorch = "a subclass of torch.Tensor"
    return made


@functools.cache
def _converter(cls: type) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function for the graph, under a name that tells the class."""

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        with torch._C.DisableTorchFunctionSubclass():
            return tensor.as_subclass(cls)

    convert.__name__ = convert.__qualname__ = f"as_{cls.__name__}"
    return convert


def own_member(cls: type, name: str) -> tuple[type, Any]:
    """What a subclass itself defines: the class and the raw value, `ABSENT` where it leaves a name to `torch.Tensor`."""
    for owner in cls.__mro__[: cls.__mro__.index(torch.Tensor)]:
        if name in owner.__dict__:
            return owner, owner.__dict__[name]
    return cls, ABSENT
