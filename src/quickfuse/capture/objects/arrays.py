"""Arrays of NumPy's from outside as tensors: in their memory, or copies of them that are made before the graph."""

from __future__ import annotations

from typing import Any

import torch

from ...errors import Unsupported
from ...ir.reading import copied_tensor, shared_tensor
from ..interpreter import Interpreter
from ..symbolic import ForeignArray


def in_memory_of(i: Interpreter, array: ForeignArray) -> Any:
    """A new tensor object in the memory of an array, as `torch.from_numpy` gives."""
    _check(i, array)
    if array.tensor is None:
        tensor = shared_tensor(array.real)
        if tensor is None:
            raise Unsupported("a tensor in the memory of an array that PyTorch refuses or warns of")
        array.tensor = i.outside.wrap(tensor, array.source.shared())
    return i.graph.call("call_method", "detach", (array.tensor,), {})


def copy_of(i: Interpreter, array: ForeignArray) -> Any:
    """A tensor with memory of its own of what is in an array."""
    _check(i, array)
    if i.graph.mutated:
        raise Unsupported("a copy of an array behind a change in place of a tensor, which may be its memory")
    tensor = copied_tensor(array.real)
    if tensor is None:
        raise Unsupported(f"a tensor of an array of {array.real.dtype}")
    array.copies += 1
    return i.outside.wrap(tensor, array.source.copied(array.copies))


def _check(i: Interpreter, array: ForeignArray) -> None:
    if i.graph.nested or torch.get_default_device().type != "cpu":
        raise Unsupported("an array of NumPy's as a tensor on another device, or inside of a functional transform")
    i.outside.guard("state", None, ("torch.get_default_device()", torch.get_default_device()))
