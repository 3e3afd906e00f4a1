"""Operators whose results share their operand's memory: transposes, slices, reshapes.

None has a rule. The operator itself runs on a tensor without data (PyTorch's `meta` device) that has the operand's
layout, and the layout of its result is what the view is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from quickfuse.errors import Unsupported
from quickfuse.ir.arguments import map_leaves
from quickfuse.ir.expr import Scalar
from quickfuse.ir.values import TensorMeta

from ..ir.memo import Memo
from .context import Context
from .layout import Shape
from .rules import no_rule_if
from .symbolic import Storage, Tensor

#: Functions and methods of `torch` that return views, always or where strides allow it.
VIEW_NAMES = frozenset(
    "t transpose swapaxes swapdims permute movedim moveaxis adjoint "
    "view view_as reshape reshape_as expand expand_as broadcast_to unsqueeze squeeze flatten unflatten ravel "
    "select narrow diagonal unfold as_strided detach alias chunk split tensor_split hsplit vsplit dsplit unbind "
    "split_with_sizes split_sections positive real atleast_1d atleast_2d atleast_3d".split()
)

#: Attributes that are views, as in `getattr(x, "T")`.
VIEW_ATTRIBUTES = frozenset({"T", "mT", "H", "mH", "data", "real"})

#: What a view is of its operand: itself (None), or a layout: shape, strides, offset, and whether it is a view at all.
_Description = tuple[Shape, Shape, int, bool] | None

_memo = Memo()  # of `list[_Description] | _Description`


def view(
    ctx: Context, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], meta: Any
) -> Any:
    """`function(*args, **kwargs)`, a view (or several) of its first argument or a copy where there is no such view.

    Raises:
        Unsupported: where the result depends on tensors' contents or on the host's numbers.
    """
    tensor = args[0] if args else kwargs["input"]
    no_rule_if(type(tensor) is not Tensor)
    described = _describe(function, args, kwargs, tensor)
    if isinstance(described, list):
        return [_make(ctx, tensor, d, m) for d, m in zip(described, meta, strict=True)]
    return _make(ctx, tensor, described, meta)


def view_of(
    tensor: Tensor, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], meta: TensorMeta
) -> Tensor:
    """`function(*args, **kwargs)`, a view of `tensor`, which is one of the arguments.

    Raises:
        Unsupported: where PyTorch does not make such a view of tensors without data.
    """
    described = _run(function, args, kwargs, tensor)
    if described is not None and (not described[3] or described[:2] != (meta.shape, meta.stride)):
        raise Unsupported("a view of another layout than was captured")
    return _seen(tensor, described, meta)


def _seen(tensor: Tensor, described: _Description, meta: TensorMeta) -> Tensor:
    """A view of a tensor's memory; with what `meta` says besides of a tensor that is no plain one."""
    if described is None:
        return tensor
    shape, stride, offset, _ = described
    layout = TensorMeta(meta.dtype, shape, stride, tensor.meta.device) if type(meta) is TensorMeta else meta
    return Tensor(tensor.storage, layout, offset=offset, is_base=False)


def _make(ctx: Context, tensor: Tensor, described: _Description, meta: TensorMeta) -> Tensor:
    if described is None:
        return tensor
    if described[0] != meta.shape or meta.dtype != tensor.dtype:
        raise Unsupported("a view of another shape or type than was captured")
    no_rule_if(lazy_bits(meta) != lazy_bits(tensor.meta))
    seen = _seen(tensor, described, meta)
    if not described[3]:  # `reshape` of a layout that has no such view: a contiguous copy, of which the result is a view
        copied = Storage(TensorMeta.dense(meta.dtype, tensor.meta.shape, meta.device), ctx.read(tensor))
        seen.become(copied, seen.meta, is_base=False)
    return seen


def lazy_bits(meta: TensorMeta) -> tuple[bool, bool]:
    """Whether PyTorch conjugates or negates a tensor's elements when it reads them."""
    return getattr(meta, "conj", False), getattr(meta, "neg", False)


def _describe(function: Callable[..., Any], args: Any, kwargs: Any, tensor: Tensor) -> Any:
    base = tensor.storage.meta
    key = (function, base.shape, base.stride, tensor.offset, _freeze(args), _freeze(kwargs))
    if key not in _memo:
        _memo[key] = _run(function, args, kwargs, tensor)
    return _memo[key]


def _run(function: Callable[..., Any], args: Any, kwargs: Any, tensor: Tensor) -> Any:
    operands: dict[int, torch.Tensor] = {}

    def plain(value: Any) -> Any:
        if type(value) is Tensor:
            if id(value) not in operands:
                operands[id(value)] = _without_data(value)
            return operands[id(value)]
        if type(value) is Scalar:
            raise Unsupported("a view at an index or of a size that is a symbol")
        return value

    given, options = map_leaves(plain, (tuple(args), dict(kwargs)))
    with torch.no_grad():
        try:
            result = function(*given, **options)
        except (NotImplementedError, RuntimeError, IndexError, TypeError) as error:
            raise Unsupported(f"a view that cannot be taken without data ({error})") from error
    source = operands[id(tensor)]
    if isinstance(result, (list, tuple)):
        return [_description(r, source) for r in result]
    return _description(result, source)


def _without_data(tensor: Tensor) -> torch.Tensor:
    base = torch.empty_strided(tensor.storage.meta.shape, tensor.storage.meta.stride, dtype=tensor.dtype, device="meta")
    return base.as_strided(tensor.meta.shape, tensor.meta.stride, tensor.offset)


def _description(result: torch.Tensor, source: torch.Tensor) -> _Description:
    if result is source:
        return None
    shares = result.untyped_storage()._cdata == source.untyped_storage()._cdata
    return tuple(result.shape), result.stride(), int(result.storage_offset()), shares


def _freeze(value: Any) -> Any:
    kind = type(value)
    if kind is Tensor:
        return (kind, value.meta.shape, value.meta.stride)
    if isinstance(value, Mapping):
        return tuple((name, _freeze(v)) for name, v in value.items())
    if isinstance(value, (list, tuple)):
        return (kind, *map(_freeze, value))
    if kind is slice:
        return (kind, _freeze(value.start), _freeze(value.stop), _freeze(value.step))
    return (kind, value)


# --- indexing ---


def is_basic_index(index: Any) -> bool:
    """Whether indexing with `index` gives a view: integers, slices, None and Ellipsis."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(type(p) in (int, slice, type(None), type(Ellipsis)) for p in parts)


def getitem(ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any], meta: Any) -> Any:
    """`x[index]`: an element of a tuple, or a view of a tensor."""
    container, index = args
    if isinstance(container, (list, tuple)):
        return container[index]
    if not isinstance(container, Tensor):
        raise Unsupported("indexing something that is neither a tensor nor a tuple")
    if type(index) is int and (members := container.members()) is not None:
        return members[index]
    no_rule_if(not is_basic_index(index))
    return view(ctx, operator.getitem, args, {}, meta)


def element_view(tensor: Tensor, index: Any) -> Tensor:
    """`tensor[index]` for a basic index, where no node of the graph says what its shape is."""
    return part_of(tensor, operator.getitem, index)


def part_of(tensor: Tensor, function: Callable[..., Any], *args: Any) -> Tensor:
    """`function(tensor, *args)`, a view, where no node of the graph says what its shape is."""
    plain = TensorMeta(tensor.dtype, (), (), tensor.meta.device)
    return _seen(tensor, _describe(function, (tensor, *args), {}, tensor), plain)
