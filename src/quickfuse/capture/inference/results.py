"""What an operator does, as capture sees it: the metadata of its results, and what becomes of its operands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from ...errors import Unsupported
from ...ir.effects import NO_EFFECTS, Effects
from ...ir.quick import value_class
from ...ir.values import TensorMeta, numbered
from ..symbolic import TensorProxy


@dataclass(eq=False, slots=True)
class SameTensor:
    """In a result: the operator returned its tensor operand number `index` itself."""

    index: int


@dataclass(frozen=True, slots=True)
class View:
    """In a result: a new tensor on the memory of tensor operand number `index`; `tracked`: known to autograd as its view."""

    meta: TensorMeta
    index: int
    tracked: bool = True


@value_class(frozen=True, slots=True)
class LazyMeta(TensorMeta):
    """The metadata of a tensor whose elements PyTorch conjugates or negates when they are read: `x.conj()`."""

    conj: bool = False
    neg: bool = False

    def __str__(self) -> str:
        bits = [name for name, is_set in (("conj", self.conj), ("neg", self.neg)) if is_set]
        return f"{TensorMeta.__str__(self)} {' '.join(bits)}"


@dataclass(frozen=True, slots=True)
class Result:
    """What a call of an operator gives.

    structure: `TensorMeta`, `View`, `SameTensor`, plain values, and lists, tuples and named tuples of these.
    written: the numbers of the tensor operands whose contents the operator changes.
    unnoticed: those of them whose change PyTorch does not count (see `Tensor._version`).
    changed: the numbers of the operands that get other metadata, with that (`x.t_()`, `x.mul_(parameter)`).
    leaves: whether new tensors that require gradients are leaves of autograd's graph.
    """

    structure: Any
    written: tuple[int, ...] = ()
    changed: tuple[tuple[int, TensorMeta], ...] = ()
    leaves: bool = False
    unnoticed: tuple[int, ...] = ()

    @property
    def has_tensor(self) -> bool:
        return next(tensors_in(self.structure), None) is not None


class OperatorFailed(Exception):
    """The operator raises for these operands. The eager run will raise the same, with the user's traceback."""


def tensors_in(structure: Any) -> Iterator[Any]:
    """The leaves of a structure that stand for tensors."""
    if isinstance(structure, (TensorMeta, SameTensor, View)):
        yield structure
    elif isinstance(structure, (list, tuple)):
        for element in structure:
            yield from tensors_in(element)


def map_structure(function: Callable[[Any, int], Any], structure: list[Any] | tuple[Any, ...]) -> Any:
    """A list, tuple or named tuple of `function(element, its position)`."""
    elements = [function(element, k) for k, element in enumerate(structure)]
    kind = type(structure)
    if kind is list:
        return elements
    if hasattr(kind, "_make"):
        return kind._make(elements)
    return kind(elements)  # `torch.return_types` are made of one sequence, as tuples are


def map_tensors(function: Callable[[torch.Tensor], Any], returned: Any) -> Any:
    """What an operator returned, with `function(tensor)` in place of each tensor."""
    if isinstance(returned, torch.Tensor):
        return function(returned)
    if isinstance(returned, (list, tuple)) and type(returned) is not torch.Size:
        return map_structure(lambda element, _: map_tensors(function, element), returned)
    return returned


def meta_of(tensor: torch.Tensor, device: torch.device | None = None) -> TensorMeta:
    """The metadata of a strided tensor."""
    shape, stride = tuple(tensor.shape), tensor.stride()
    device = device or tensor.device
    if tensor.is_conj() or tensor.is_neg():
        return LazyMeta(tensor.dtype, shape, stride, device, tensor.requires_grad, tensor.is_conj(), tensor.is_neg())
    return TensorMeta(tensor.dtype, shape, stride, device, tensor.requires_grad)


def check_plain(tensor: torch.Tensor) -> None:
    """Refuse results that `TensorMeta` does not describe. Raises `Unsupported` for sparse, quantised and nested tensors, and
    for subclasses of `torch.Tensor`."""
    if type(tensor) is not torch.Tensor:
        raise Unsupported(f"a result of type {type(tensor).__name__}")
    if tensor.layout != torch.strided or tensor.is_nested:
        raise Unsupported(f"a result of layout {str(tensor.layout).removeprefix('torch.')}")
    if tensor.is_quantized:
        raise Unsupported("a quantised tensor")


def device_of(wanted: Any) -> torch.device:
    """The device that a tensor on the device `wanted` tells: accelerators are numbered. Raises `OperatorFailed` if there is
    no such device."""
    try:
        return numbered(torch.device(wanted))
    except Exception as error:
        raise OperatorFailed(f"{type(error).__name__}: {error}") from error


# --- results for the operands at hand ---


def meta_in(structure: Any, tensors: list[TensorProxy]) -> Any:
    """The metadata of a leaf of a result's structure; `tensors` are the call's operands."""
    if isinstance(structure, SameTensor):
        return tensors[structure.index].meta
    return structure.meta if isinstance(structure, View) else structure


def metas_in(structure: Any, tensors: list[TensorProxy]) -> Any:
    """The metadata of a result, as lists."""
    if isinstance(structure, (list, tuple)):
        return [metas_in(element, tensors) for element in structure]
    return meta_in(structure, tensors)


def effects_of(result: Result, tensors: list[TensorProxy], changed: list[TensorProxy]) -> Effects:
    """What later stages have to know of a call besides its results; `changed` are the tensors that it writes to."""
    structure = result.structure
    if type(structure) is TensorMeta and not (changed or result.changed):
        return NO_EFFECTS
    number = {id(tensor): k for k, tensor in reversed(list(enumerate(tensors)))}
    memory = tuple([None if isinstance(leaf, TensorMeta) else leaf.index for leaf in tensors_in(structure)])
    written = tuple(dict.fromkeys([number[id(tensor)] for tensor in changed]))
    reshaped = [(k, to) for k, to in result.changed if to != replace(tensors[k].meta, requires_grad=to.requires_grad)]
    noticed = set(result.written).difference(result.unnoticed)
    counted = tuple([k for k in written if k in noticed])
    return Effects(memory, written, tuple(reshaped), counted)


def follows_default_dtype(structure: Any, tensors: list[TensorProxy]) -> bool:
    """Whether an operator makes floating-point numbers of anything else: it makes them of PyTorch's default dtype."""
    if any(t.meta.dtype.is_floating_point or t.meta.dtype.is_complex for t in tensors):
        return False
    made = [meta_in(s, tensors).dtype for s in tensors_in(structure) if not isinstance(s, SameTensor)]
    return any(dtype.is_floating_point or dtype.is_complex for dtype in made)
