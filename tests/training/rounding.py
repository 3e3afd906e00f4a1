"""Eager PyTorch with other rounding errors: each operator's result is off by up to one unit in the last place, at random.

This is Monte Carlo arithmetic. What it does to the results of a program is what no test of them can see: any right
implementation rounds in other places, and adds up in another order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

#: Operators whose results are elements of their operands, which no implementation rounds. Where the gradient of a maximum
#: goes is found out by comparing it with the elements: had it been rounded apart from them, it would go nowhere.
_CHOOSING = frozenset(
    "amax amin aminmax max min maximum minimum median nanmedian mode kthvalue sort topk cummax cummin".split()
)


class RandomRounding(TorchDispatchMode):
    """Within this context all operators round at random, as drawn with a seed. PyTorch's own generator is left alone."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in _computed(func, args, kwargs or {}, result):
            self._round(tensor)
        return result

    def _round(self, tensor: torch.Tensor) -> None:
        """Move each element by up to one unit in its last place; in lower precision, by one or by none."""
        noise = 2 * torch.rand(tensor.shape, generator=self._generator, dtype=torch.float64, device="cpu") - 1
        tensor.copy_(tensor.double() * (1 + torch.finfo(tensor.dtype).eps * noise.to(tensor.device)))


def _computed(func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> Iterator[torch.Tensor]:
    """The tensors that an operator gave new contents: those that it returns, and operands that it writes to. No views."""
    schema = func._schema
    if schema.name.removeprefix("aten::") in _CHOOSING:
        return
    results = (result,) if len(schema.returns) == 1 else result or ()
    found: list[torch.Tensor] = []
    for returned, value in zip(schema.returns, results, strict=True):
        if returned.alias_info is None:
            found += _tensors(value)
    given = [*zip(schema.arguments, args, strict=False), *((a, kwargs.get(a.name)) for a in schema.arguments)]
    for argument, value in given:
        if argument.alias_info is not None and argument.alias_info.is_write:
            found += _tensors(value)
    seen: set[int] = set()
    for tensor in found:
        if id(tensor) not in seen and tensor.is_floating_point() and tensor.layout is torch.strided and tensor.numel():
            seen.add(id(tensor))
            yield tensor


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for element in value:
            yield from _tensors(element)
