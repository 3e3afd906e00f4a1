"""Operators called in another way than the user calls them: so that they make new tensors and change none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from quickfuse.ir.arguments import map_leaves

#: A place in nested lists and tuples: the index in each of them, from the outermost on.
Path = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Slot:
    """In the arguments of a call: its argument number `index`, or the Python number in that tensor."""

    index: int
    is_number: bool = False


@dataclass(eq=False, slots=True)
class Adapted:
    """A call whose tensors and numbers come one after the other, and fill the slots of `args` and `kwargs`.

    `written` are the tensors that the operator changes: it gets copies, or memory without contents of those in `filled`,
    whose contents it does not read. Returned are the tensors at the places `new` of what the operator returns, whatever
    stands at its other places (gradients that nobody asked for), and then the copies. Of an operator that returns one Python
    number, a 0-dim tensor is returned.
    """

    function: Callable[..., Any]
    args: Any
    kwargs: Any
    numbers: tuple[int, ...]
    written: tuple[int, ...]
    filled: frozenset[int]
    new: tuple[Path, ...]

    @property
    def __name__(self) -> str:
        return str(getattr(self.function, "__name__", self.function))

    def __call__(self, *values: Any) -> Any:
        operands = list(values)
        for k in self.numbers:
            operands[k] = operands[k].item()
        for k in self.written:
            operands[k] = (like if k in self.filled else copied)(operands[k])

        def filled(leaf: Any) -> Any:
            return operands[leaf.index] if type(leaf) is Slot else leaf

        args, kwargs = map_leaves(filled, (self.args, self.kwargs))
        returned = self.function(*args, **kwargs)
        outputs = [operands[k] for k in self.written]
        if self.new:
            outputs = [element_at(returned, path) for path in self.new] + outputs
        return outputs if len(outputs) != 1 else outputs[0]


class OnlyResult:
    """An operator that returns a list of one tensor, which is returned itself."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.__name__ = str(getattr(function, "__name__", function))
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        (result,) = self.function(*args, **kwargs)
        return result


def like(tensor: torch.Tensor) -> torch.Tensor:
    """Memory with the very strides of a tensor: in their order random numbers are drawn."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the very strides of a tensor."""
    return like(tensor).copy_(tensor)


def with_part(
    whole: torch.Tensor, part: torch.Tensor, shape: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> torch.Tensor:
    """A copy of `whole` with a part of it, given as for `as_strided`, replaced by `part`."""
    result = copied(whole)
    result.as_strided(shape, stride, offset).copy_(part)
    return result


def element_at(value: Any, path: Path) -> Any:
    """What stands at a place in nested lists and tuples."""
    for index in path:
        value = value[index]
    return value
