"""Eager PyTorch with other rounding errors: each operator's result is off by up to one unit in the last place, at random.

This is Monte Carlo arithmetic. What it does to the results of a program is what no test of them can see: any right
implementation rounds in other places, and adds up in another order.

Of what is infinite or no number, PyTorch's vectorised kernels make something else than those for single elements (`gelu`
of infinity, the gradient of `hardtanh` where there is no number), and how many elements are vectorised depends on the
processor. Here all of these are taken one by one.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

#: Operators whose results are elements of their operands, which no implementation rounds. Where the gradient of a maximum
#: goes is found out by comparing it with the elements: had it been rounded apart from them, it would go nowhere.
_CHOOSING = frozenset(
    "amax amin aminmax max min maximum minimum median nanmedian mode kthvalue sort topk cummax cummin gather".split()
)
#: The same, as options of `scatter_reduce` and its like.
_REDUCTIONS = frozenset(("amax", "amin", "max", "min"))

#: Operators that read their operands in an order of their own, also where they write to memory that one of them has: what
#: comes of that nobody knows.
_IN_ANY_ORDER = frozenset(
    "matmul mm bmm mv addmm addmv baddbmm native_batch_norm _native_batch_norm_legit _batch_norm_impl_index".split()
)

#: More elements of a tensor than these are not computed one by one.
_MOST_UNUSUAL = 200


class RandomRounding(TorchDispatchMode):
    """Within this context all operators round at random, as drawn with a seed. PyTorch's own generator is left alone."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed
        self._generator = torch.Generator()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        sizes = [(tensor, tensor.numel()) for tensor in _written(func, args, kwargs or {})]
        try:
            result = func(*args, **(kwargs or {}))
        except Exception:
            self._fill_what_grew(sizes)
            raise
        if func._schema.name.removeprefix("aten::") in _IN_ANY_ORDER and _overlap(func, args, kwargs or {}):
            for tensor in _computed(func, args, kwargs or {}, result):
                tensor.fill_(math.nan if self._seed % 2 else 1e30)
            return result
        if isinstance(result, torch.Tensor) and _is_pointwise(func):
            _take_one_by_one(func, args, kwargs or {}, result)
        for tensor in _computed(func, args, kwargs or {}, result):
            self._round(tensor)
        return result

    def _fill_what_grew(self, sizes: list[tuple[torch.Tensor, int]]) -> None:
        """An operator that raises may have given its `out=` another shape before: nobody knows what is in that memory."""
        for tensor, size in sizes:
            needed = tensor.untyped_storage().nbytes() // tensor.element_size()
            if size < tensor.numel() <= needed - tensor.storage_offset() and tensor.is_contiguous():
                tensor.fill_((math.nan if self._seed % 2 else 1e30) if tensor.is_floating_point() else self._seed % 2)

    def _round(self, tensor: torch.Tensor) -> None:
        """Move each element by up to one unit in its last place; in lower precision, by one or by none. What is computed
        twice is rounded alike: programs ask whether numbers are equal."""
        flat = torch.empty(tensor.numel(), dtype=tensor.dtype)  # of one element, what is contiguous may have any stride
        contents = flat.copy_(tensor.detach().reshape(-1)).view(torch.uint8).numpy().tobytes()
        self._generator.manual_seed(zlib.crc32(contents, self._seed))
        noise = 2 * torch.rand(tensor.shape, generator=self._generator, dtype=torch.float64, device="cpu") - 1
        tensor.copy_(tensor.double() * (1 + torch.finfo(tensor.dtype).eps * noise.to(tensor.device)))


@cache
def _is_pointwise(func: Any) -> bool:
    """Whether an operator, or that of which it is the gradient, makes a new tensor element by element."""
    name = func._schema.name.removeprefix("aten::").removesuffix("_backward")
    forward = getattr(getattr(torch.ops.aten, name, None), "default", None)
    pointwise = torch.Tag.pointwise in (*func.tags, *getattr(forward, "tags", ()))
    return pointwise and func._schema.returns[0].alias_info is None


def _take_one_by_one(func: Any, args: Any, kwargs: dict[str, Any], result: torch.Tensor) -> None:
    """Compute those elements again that are made of infinite numbers, or of none."""
    operands = [value for value in args if isinstance(value, torch.Tensor)]
    same = [value for value in operands if value.shape == result.shape]
    if not result.is_floating_point() or len(same) < len(operands):
        return
    unusual = ~torch.stack([value.isfinite() for value in same]).all(0) if same else torch.zeros(())
    for place in unusual.nonzero().tolist()[:_MOST_UNUSUAL]:
        here = tuple([slice(k, k + 1) for k in place])
        result[here] = func(*[value[here] if isinstance(value, torch.Tensor) else value for value in args], **kwargs)


def _computed(func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> Iterator[torch.Tensor]:
    """The tensors that an operator gave new contents: those that it returns, and operands that it writes to. No views, of
    which the schemas of operators that are made of others say nothing. In inference mode these come in one piece."""
    schema = func._schema
    how = [value for value in (*args, *kwargs.values()) if isinstance(value, str)]
    if schema.name.removeprefix("aten::") in _CHOOSING or not _REDUCTIONS.isdisjoint(how):
        return
    results = (result,) if len(schema.returns) == 1 else result or ()
    found: list[torch.Tensor] = []
    memories = {_memory(operand) for operand in _tensors([*args, *kwargs.values()])}
    for returned, value in zip(schema.returns, results, strict=True):
        if returned.alias_info is None:
            found += [tensor for tensor in _tensors(value) if _memory(tensor) not in memories]
    found += _written(func, args, kwargs)
    seen: set[int] = set()
    for tensor in found:
        rounded = tensor.is_floating_point() or (tensor.is_complex() and not tensor.is_conj())
        rounded = rounded and not tensor._is_zerotensor()
        if id(tensor) not in seen and rounded and tensor.layout is torch.strided and tensor.numel():
            seen.add(id(tensor))
            yield torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _written(func: Any, args: Any, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The operands that an operator writes to."""
    arguments = func._schema.arguments
    given = [*zip(arguments, args, strict=False), *((a, kwargs.get(a.name)) for a in arguments)]
    return [t for a, value in given if a.alias_info is not None and a.alias_info.is_write for t in _tensors(value)]


def _overlap(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether an operator writes to memory that another of its operands has."""
    memories = [_memory(operand) for operand in _tensors([*args, *kwargs.values()])]
    return any(memories.count(_memory(tensor)) > 1 for tensor in _written(func, args, kwargs))


def _memory(tensor: torch.Tensor) -> Any:
    has_memory = tensor.layout is torch.strided and not tensor._is_zerotensor()
    return tensor.untyped_storage().data_ptr() if has_memory else id(tensor)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for element in value:
            yield from _tensors(element)
