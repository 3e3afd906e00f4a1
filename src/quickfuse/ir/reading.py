"""How generated code reads the user's objects: what runs no code of their classes, inserts nothing, and logs nothing.

Plain syntax where that is so for the type that is guarded, the method of the builtin class otherwise: a class of the user's
may get methods later.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from itertools import repeat
from operator import is_
from types import FunctionType
from typing import Any

import numpy
import torch

#: The classes whose instances hold their elements themselves, the most derived ones first.
CONTAINERS: tuple[type, ...] = (collections.OrderedDict, dict, list, tuple, set, frozenset, collections.deque)

#: What stands for the value of a key that is not there: no guard holds of it.
MISSING = type("MISSING", (), {"__repr__": lambda self: "MISSING"})()

#: The flag of classes that may be changed: those that are not written in C.
HEAP_TYPE = 1 << 9

_ASK_NO_CLASS = (dict, collections.OrderedDict)


def native_method(kind: Any, name: str) -> Any:
    """The method of the builtin class to call in place of syntax; None where the syntax does the same."""
    if not isinstance(kind, type) or kind in CONTAINERS:
        return None
    if name == "__getattribute__":
        return object.__getattribute__ if _is_python(kind, name) else None
    if name == "__getitem__" and issubclass(kind, dict):
        return dict.get
    base = next((cls for cls in CONTAINERS if issubclass(kind, cls)), None)
    return getattr(base, name, None) if base is not None and kind.__flags__ & HEAP_TYPE else None


def reads_by_syntax(kind: Any, how: str) -> bool:
    """Whether `base[key]` ("item") or `base.key` ("attr") is how to read from an instance of this class."""
    if how == "attr":
        return native_method(kind, "__getattribute__") is None
    return how != "item" or kind in _ASK_NO_CLASS or native_method(kind, "__getitem__") is None


def _is_python(kind: type, name: str) -> bool:
    found = next((owner.__dict__[name] for owner in kind.__mro__ if name in owner.__dict__), None)
    return isinstance(found, FunctionType)


def array_of(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """What a function of NumPy's gives. Raises where NumPy would warn of numbers, or may warn that there are none."""
    if any(a.size == 0 if type(a) is numpy.ndarray else type(a) is list and not a for a in args):
        raise FloatingPointError("no elements")
    with numpy.errstate(divide="raise", over="raise", invalid="raise"):
        return function(*args, **kwargs)


def only_numbers(values: list[Any]) -> list[Any]:
    """A list of the user's. Raises a TypeError where it has other things than numbers."""
    if not {float, int, bool}.issuperset(map(type, values)):
        raise TypeError("a list of other things than numbers")
    return values


#: A tensor with more elements than this holds data, not sizes.
MOST_NUMBERS = 24
#: Types of the devices of tensors that guards look into.
READABLE = ("cpu", "cuda")


def numbers_in(tensor: Any) -> tuple[Any, ...]:
    """The numbers in a plain tensor of few elements, in the order of its indices; of anything else, none. See `elements_in`
    for a GPU."""
    if not isinstance(tensor, torch.Tensor) or tensor.device.type not in READABLE or tensor.numel() > MOST_NUMBERS:
        return ()
    try:
        with torch._C.DisableTorchFunctionSubclass():
            return tuple(tensor.detach().flatten().tolist())
    except Exception:  # within a functional transform, or of a class of its own
        return ()


#: A guard that looks at all elements of a larger tensor takes long.
MOST_ELEMENTS = 1 << 14
_WHOLE = (torch.bool, torch.int64, torch.int32)


def elements_in(tensor: Any) -> torch.Tensor:
    """A plain tensor of few whole numbers or truth values, whose elements a guard may look at. On a GPU it waits for them,
    as the program does where it asks.

    Raises:
        ValueError: for anything else.
    """
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.device.type not in READABLE:
        raise ValueError("not a plain tensor with elements")
    if tensor.dtype not in _WHOLE or tensor.numel() > MOST_ELEMENTS or tensor.layout is not torch.strided:
        raise ValueError("not a tensor of few whole numbers")
    return tensor  # type: ignore[no-any-return]


def shared_tensor(array: Any) -> torch.Tensor | None:
    """A tensor in the memory of an array of NumPy's; None where PyTorch refuses to make one, or warns of it."""
    if type(array) is not numpy.ndarray or not array.flags.writeable:
        return None
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError):  # a type that PyTorch has not, or negative strides
        return None


def part_of(tensor: Any, index: Any) -> torch.Tensor | None:
    """The view of a plain tensor without gradients at an index made of numbers; None where there is none, as that raises."""
    if type(tensor) is not torch.Tensor or tensor.requires_grad:
        return None
    with torch._C.DisableTorchFunctionSubclass():
        try:
            return tensor[index]  # type: ignore[no-any-return]
        except (IndexError, TypeError, ValueError):
            return None


def copied_tensor(array: Any) -> torch.Tensor | None:
    """A tensor of what is in an array of NumPy's, as `torch.tensor` makes one; None where it is no such array."""
    if type(array) is not numpy.ndarray or array.dtype.kind not in "fiub":
        return None
    try:
        return torch.tensor(array)
    except (TypeError, ValueError):
        return None


def entry(dictionary: dict[Any, Any], key: Any) -> Any:
    """What a dictionary has at a key, without what its class does where it has nothing: `dict.__getitem__` asks that.

    Raises:
        KeyError: where it has nothing.
    """
    found = dict.get(dictionary, key, MISSING)
    if found is MISSING:
        raise KeyError(key)
    return found


def is_set(descriptor: Any, instance: Any) -> bool:
    """Whether a slot has a value."""
    try:
        descriptor.__get__(instance)
    except AttributeError:
        return False
    return True


def plain_value(cls: type, value: Any) -> Any:
    """The number or text that an instance of a subclass of a builtin class holds, or a NumPy scalar.

    Raises:
        TypeError: where it is something else.
    """
    return _PLAIN[cls](value) if isinstance(value, cls) else cls(value)


#: What gives the number or text in an object, without asking its class.
_PLAIN: dict[type, Any] = {
    int: int.__int__, float: float.__float__, str: str.__str__, complex: complex.__pos__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
}  # fmt: skip


def may_be_same(tensor: Any, constant: torch.Tensor, part: Any) -> bool:
    """Whether a part of a plain tensor, at a plain index, has the shape of a constant on the same device."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.device.type not in READABLE:
        return False
    if tensor.layout is not torch.strided:
        return False
    indices = part if isinstance(part, tuple) else (part,)
    if not all(index is ... or isinstance(index, slice) for index in indices) or len(indices) > tensor.ndim:
        return False
    return tensor.device == constant.device and tensor[part].shape == constant.shape


def same_elements(tensor: Any, constant: torch.Tensor, part: Any) -> bool:
    """Whether a guard finds the elements of a constant in a part of a tensor."""
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        return may_be_same(tensor, constant, part) and bool((tensor[part] == constant).all())


# what is asked of many objects at once -----------------------------------------------------------------------------


def lookup_all(table: dict[Any, Any], keys: list[Any], same_objects: Callable[..., bool]) -> list[Any]:
    """`[table.get(k) for k in keys]`, without hashing where `keys` are all of the table's keys in its order."""
    if len(table) == len(keys) and same_objects([*table], keys):
        return [*table.values()]
    return [table.get(k) for k in keys]


def any_has(tables: list[dict[Any, Any]], keys: tuple[str, ...]) -> bool:
    """Whether one of the keys is in one of the dictionaries."""
    return any(key in table for table in tables for key in keys)


def all_are(values: list[Any], wanted: Any) -> bool:
    """Whether all values are one object."""
    return all(map(is_, values, repeat(wanted)))
