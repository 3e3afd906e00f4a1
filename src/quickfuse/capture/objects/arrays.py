"""Arrays of NumPy's as tensors: those from outside in their memory, or copied before the graph, those made inside as
constants."""

from __future__ import annotations

from typing import Any

import torch

from ...errors import Unsupported
from ...ir.reading import copied_tensor, shared_tensor
from ...ir.tensor_checks import first_overlap
from ..interpreter import Interpreter
from ..symbolic import ForeignArray, HeldArray


def tensor_of(i: Interpreter, array: ForeignArray | HeldArray, shares: bool) -> Any:
    """A tensor of what is in an array; `shares`: in the array's memory."""
    if type(array) is HeldArray:
        return _of_constants(i, array, shares)
    return in_memory_of(i, array) if shares else copy_of(i, array)


def _of_constants(i: Interpreter, held: HeldArray, shares: bool) -> Any:
    """A tensor of what is in an array that captured code made of constants: a copy of a constant. Where it has the array's
    memory, nothing else is to see that any more."""
    if held.memory.shared:
        raise Unsupported("a tensor of an array of NumPy's that is seen otherwise, too")
    _check(i)
    copied = held.array.copy(order="K")
    if copied.strides != held.array.strides:
        raise Unsupported("a tensor of an array of NumPy's that has gaps, or is turned around")
    held.memory.shared = shares
    with torch.inference_mode(False):
        constant = torch.from_numpy(copied)
    proxy = i.outside.wrap(constant, i.outside.roots.constant("array", constant))
    return i.graph.call("call_method", "clone", (proxy,), {})


def in_memory_of(i: Interpreter, array: ForeignArray) -> Any:
    """A new tensor object in the memory of an array, as `torch.from_numpy` gives."""
    _check(i)
    return i.graph.call("call_method", "detach", (_shared(i, array),), {})


def _shared(i: Interpreter, array: ForeignArray) -> Any:
    if array.tensor is None:
        tensor = shared_tensor(array.real)
        if tensor is None:
            raise Unsupported("a tensor in the memory of an array that PyTorch refuses or warns of")
        array.tensor = i.outside.wrap(tensor, array.source.shared())
    return array.tensor


def note_read(i: Interpreter, array: ForeignArray) -> None:
    """What is in an array is read before the graph, where the program reads it now: no tensor that was changed so far may be
    its memory."""
    contents = i.graph.contents
    if not contents.has_written_inputs():
        return
    tensor = _shared(i, array)
    known = contents.written_examples()
    if first_overlap([tensor.real, *known], range(1), range(1, len(known) + 1)) is not None:
        raise Unsupported("what is in an array of NumPy's after a change in place of a tensor in its memory")
    contents.note_contents_read(array.source.shared(), tensor.real)


def copy_of(i: Interpreter, array: ForeignArray) -> Any:
    """A tensor with memory of its own of what is in an array."""
    _check(i)
    note_read(i, array)
    tensor = copied_tensor(array.real)
    if tensor is None:
        raise Unsupported(f"a tensor of an array of {array.real.dtype}")
    array.copies += 1
    return i.outside.wrap(tensor, array.source.copied(array.copies))


def _check(i: Interpreter) -> None:
    if i.graph.nested or torch.get_default_device().type != "cpu":
        raise Unsupported("an array of NumPy's as a tensor on another device, or inside of a functional transform")
    i.outside.guard("state", None, ("torch.get_default_device()", torch.get_default_device()))
