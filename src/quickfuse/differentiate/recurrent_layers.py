"""Recurrent layers on GPUs, as the calls of cuDNN that eager makes, which autograd has formulas for.

PyTorch's operator looks at the addresses of weights before it calls cuDNN. In a trace there are none, so what it would call
is called here, and recorded as functions that find the weights' memory when they run (`ir.cudnn_rnn`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.fx import Node

from ..errors import Unsupported
from ..ir import cudnn_rnn as calls
from ..ir.cudnn_rnn import KINDS, Layer, cudnn_rnn, cudnn_rnn_backward
from ..ir.memo import Memo
from ..ir.values import TensorMeta, contiguous_stride
from .layouts import Out, Spec
from .traced import TracedTensor, traced_in

_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

#: What a call keeps for backward has a size that only cuDNN knows, so a call tells: results, and gradients of all operands.
_memo = Memo()  # of `tuple[Spec, Spec]`

aten = torch.ops.aten


def composed(target: Callable[..., Any], args: Sequence[Any]) -> Callable[..., Any] | None:
    """What to call in place of an operator that cuDNN runs as a whole; None for others."""
    kind = KINDS.get(target)
    if kind is None or len(args) != 9 or not isinstance(args[2], (list, tuple)):  # lengths of sequences come first else
        return None
    x, state, weights, _, layers, dropout, training, *_ = args
    if type(x) is not TracedTensor or x.meta.device.type != calls.DEVICE or not torch.backends.cudnn.enabled:
        return None
    tensors = [t for t in (x, *weights) if type(t) is TracedTensor]
    fits = all(t.meta.dtype in _TYPES and t.meta.device == x.meta.device for t in tensors) and x.ndim == 3
    draws = training and layers > 1 and not (type(dropout) is float and dropout == 0.0)
    # Without training there is no backward: eager says so when it is called.
    differentiated = torch.is_grad_enabled() and any(t.requires_grad for t in traced_in((x, state, weights)))
    if not fits or draws or (differentiated and not training) or 0 in x.shape:
        return None
    return partial(_call, kind)


def _call(
    kind: int, x: Any, state: Any, weights: Any, has_biases: bool, layers: int, dropout: float, training: bool,
    bidirectional: bool, batch_first: bool,
) -> Any:  # fmt: skip
    """What `torch.lstm` and its like do on a GPU. Autocast converts all operands to float16, whichever its own type is."""
    hidden, cell = state if kind == KINDS[torch.lstm] else (state, None)
    if torch.is_autocast_enabled(calls.DEVICE) and x.dtype is not torch.float64:
        x, hidden, cell = (t if t is None else t.to(torch.float16) for t in (x, hidden, cell))
        weights = [w.to(torch.float16) for w in weights]
    if any(t is not None and t.dtype is not x.dtype for t in (hidden, cell, *weights)):
        raise Unsupported("a recurrent layer whose operands have several types")
    size = hidden.shape[2] if cell is None else cell.shape[2]
    outputs = 0 if hidden.shape[2] == size else hidden.shape[2]
    count = (4 if has_biases else 2) + (outputs > 0)
    settings = Layer(kind, count, size, outputs, layers, batch_first, training, bidirectional, False).settings()
    with torch.autocast(calls.DEVICE, enabled=False):
        made = torch._cudnn_rnn(x, list(weights), count, None, hidden, cell, *settings, None)  # type: ignore[attr-defined]
    return made[:3] if cell is not None else made[:2]


def recorded_forward(
    x: Any, weights: Any, count: int, _: Any, hidden: Any, cell: Any, *settings: Any
) -> tuple[Any, tuple[Any, ...], Spec]:  # fmt: skip
    """The function to record in place of `_cudnn_rnn`, its arguments, and what it returns."""
    of = _layer(weights, count, settings)
    return cudnn_rnn, (x, list(weights), hidden, cell, *of), _specs(of, x, weights, hidden, cell)[0]


def recorded_backward(
    reserve_node: Node, outside: bool, x: Any, weights: Any, count: int, _: Any, hidden: Any, cell: Any, output: Any,
    *more: Any,
) -> tuple[Any, tuple[Any, ...], list[Any], Sequence[bool]]:  # fmt: skip
    """The same in place of `_cudnn_rnn_backward`, and which gradients it returns. cuDNN overwrites `reserve`: it may do so
    where the program itself calls backward, once."""
    *gradients_and_settings, reserve, mask = more
    gradients, settings = gradients_and_settings[:3], gradients_and_settings[3:]
    of = _layer(weights, count, settings)
    once = not outside and not reserve_node.users and reserve_node.target is not aten.clone.default
    arguments = (x, list(weights), hidden, cell, output, list(gradients), reserve, list(mask), once, *of)
    found = _specs(of, x, weights, hidden, cell)[1]
    wanted = [*mask[:3], *[mask[3]] * len(weights)]
    return cudnn_rnn_backward, arguments, [out for out, is_wanted in zip(found, wanted, strict=True) if is_wanted], wanted


def _layer(weights: Sequence[Any], count: int, settings: Sequence[Any]) -> Layer:
    kind, hidden, outputs, layers, batch_first, dropout, training, bidirectional, lengths, state = settings
    if dropout or lengths or state is not None:
        raise Unsupported("a recurrent layer with dropout, or of sequences of several lengths")
    converted = any(type(w) is TracedTensor and w.memory.input is None for w in weights)
    return Layer(kind, count, hidden, outputs, layers, batch_first, training, bidirectional, converted)


def _specs(of: Layer, x: Any, weights: Sequence[Any], hidden: Any, cell: Any) -> tuple[Spec, Spec]:
    operands = [x, *weights, hidden, *([] if cell is None else [cell])]
    key = (*[t.meta for t in operands], of)
    known = _memo.get(key)
    if known is None:
        find = _by_a_call if torch.cuda.is_available() else _without_a_gpu
        known = _memo[key] = find(of, x.meta, [w.meta for w in weights], hidden.meta, None if cell is None else cell.meta)
    return known  # type: ignore[no-any-return]


def _by_a_call(of: Layer, x: Any, weights: Sequence[Any], hidden: Any, cell: Any) -> tuple[Spec, Spec]:
    given = [_zeros(x), [_zeros(w) for w in weights], _zeros(hidden), None if cell is None else _zeros(cell)]
    layer = of._replace(converted=True)  # else PyTorch warns of weights that lie apart
    with torch.no_grad():
        results = cudnn_rnn(*given, *layer)
        if not of.training:
            return _spec(results), ()
        output, *_, reserve = results
        mask = (True, True, cell is not None, True)
        gradients = cudnn_rnn_backward(*given, output, [output, None, None], reserve, mask, True, *layer)
    of_gradients = [*_spec(gradients)]
    if cell is None:
        of_gradients.insert(2, None)
    return _spec(results), tuple(of_gradients)


def _zeros(meta: TensorMeta) -> torch.Tensor:
    return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=meta.device).zero_()


def _spec(results: Sequence[torch.Tensor]) -> Spec:
    return tuple([Out(TensorMeta(r.dtype, tuple(r.shape), r.stride(), r.device), int(r.storage_offset())) for r in results])


def _without_a_gpu(of: Layer, x: TensorMeta, weights: Sequence[Any], hidden: Any, cell: Any) -> tuple[Spec, Spec]:
    """What cuDNN would return, where graphs for a GPU are made without one; of what it keeps the size is not known."""
    width = (of.outputs or of.hidden) * (2 if of.bidirectional else 1)

    def made(shape: Sequence[int], swapped: bool = False) -> Out:
        stride = contiguous_stride(tuple(shape))
        if swapped:  # cuDNN wants the time first, and PyTorch shows it the other way
            batch, time, features = shape
            stride = (features, batch * features, 1)
        return Out(replace(x, shape=tuple(shape), stride=stride), 0)

    def like(meta: TensorMeta) -> Out:
        return made(meta.shape)

    reserve = Out(TensorMeta.dense(torch.uint8, (64,), x.device), 0)
    state = like(hidden)
    results = (made((*x.shape[:2], width), of.batch_first), state, made((0,)) if cell is None else like(cell), reserve)
    return results, (made(x.shape, of.batch_first), state, None if cell is None else like(cell), *map(like, weights))
