"""Recurrent layers on a GPU as calls of cuDNN, forward and backward: targets of graphs.

PyTorch's own operator for a layer looks at the addresses of its weights, which a trace does not have: cuDNN wants them in
one piece of memory, where `flatten_parameters()` has put those of a module. These functions find that memory when they are
called. Where it is none, weights are put together for the call, as PyTorch does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch


class Layer(NamedTuple):
    """What cuDNN is told of a layer beside its tensors."""

    kind: int  # see `KINDS`
    weights: int  # tensors in a layer and direction
    hidden: int
    outputs: int  # of a projection, or 0
    layers: int
    batch_first: bool
    training: bool
    bidirectional: bool
    #: Whether the weights were converted for the layer, as autocast does, which puts them together without a word.
    converted: bool

    def settings(self) -> tuple[Any, ...]:
        """The arguments after the state's, but for the last: without dropout, and for sequences of one length."""
        sizes = (self.kind, self.hidden, self.outputs, self.layers)
        return (*sizes, self.batch_first, 0.0, self.training, self.bidirectional, ())


_forward: Any = torch.ops.aten._cudnn_rnn.default
_backward: Any = torch.ops.aten._cudnn_rnn_backward.default
_flatten: Any = torch.ops.aten._cudnn_rnn_flatten_weight.default

#: Where layers are calls of cuDNN.
DEVICE = "cuda"

#: The operator of a layer -> cuDNN's number.
KINDS: dict[Any, int] = {torch.rnn_relu: 0, torch.rnn_tanh: 1, torch.lstm: 2, torch.gru: 3}


def cudnn_rnn(x: Any, weights: Sequence[Any], hidden: Any, cell: Any, *layer: Any) -> Sequence[Any]:
    """The output, the last hidden and cell states (the latter without elements where there is none), and what backward
    needs."""
    of = Layer(*layer)
    flat = _put_together(weights, of, x.shape[-1]) if of.converted else _flat(weights, of, x.shape[-1])
    # Without such memory PyTorch warns, as it does in eager.
    return _forward(x, weights, of.weights, flat, hidden, cell, *of.settings(), None)[:4]


def cudnn_rnn_backward(
    x: Any, weights: Sequence[Any], hidden: Any, cell: Any, output: Any, gradients: Sequence[Any], reserve: Any,
    mask: Sequence[bool], once: bool, *layer: Any,
) -> Sequence[Any]:  # fmt: skip
    """The gradients of the input, of both states, and of the weights: those that `mask` asks for, one after the other.
    `once`: nobody calls backward again with the same `reserve`, which cuDNN overwrites."""
    of = Layer(*layer)
    reserve = reserve if once else reserve.clone()
    flat = _flat(weights, of, x.shape[-1])
    flat = _put_together(weights, of, x.shape[-1]) if flat is None else flat
    before = (x, weights, of.weights, flat, hidden, cell, output, *gradients)
    *found, of_weights = _backward(*before, *of.settings(), None, reserve, mask)
    return [*[g for g, wanted in zip(found, mask, strict=False) if wanted], *(of_weights if mask[3] else ())]


def lie_together(module: torch.nn.RNNBase) -> bool:
    """Whether the weights of a module on a GPU lie where `flatten_parameters()` would put them."""
    weights = module._flat_weights
    if not weights or not all(isinstance(w, torch.Tensor) and w.device.type == DEVICE for w in weights):
        return False
    first: Any = weights[0]
    if any(w.dtype is not first.dtype or w.device != first.device for w in weights):  # type: ignore[union-attr]
        return False
    kind = KINDS[getattr(torch, module.mode.lower())]
    count = (4 if module.bias else 2) + (module.proj_size > 0)
    of = Layer(
        kind, count, module.hidden_size, module.proj_size, module.num_layers, module.batch_first, module.training,
        module.bidirectional, False,
    )  # fmt: skip
    return _flat(weights, of, module.input_size) is not None


def _flat(weights: Sequence[Any], of: Layer, inputs: int) -> Any:
    """The memory in which all weights lie where cuDNN looks for them; None where they do not."""
    first = weights[0]
    memory, size = first.untyped_storage(), first.element_size()
    places = _places_of(weights, of, inputs)
    count = sum(w.numel() for w in weights)
    begin = memory.data_ptr()
    if memory.nbytes() < count * size or any(
        w.data_ptr() != begin + place * size or not w.is_contiguous() for w, place in zip(weights, places, strict=True)
    ):
        return None
    return torch.empty(0, dtype=first.dtype, device=first.device).set_(memory, 0, (count,), (1,))  # type: ignore[call-overload]


def _put_together(weights: Sequence[Any], of: Layer, inputs: int) -> Any:
    """New memory with all weights, where cuDNN looks for them."""
    made = torch.empty(sum(w.numel() for w in weights), dtype=weights[0].dtype, device=weights[0].device)
    places = _places_of(weights, of, inputs)
    parts = [made[place : place + w.numel()].view(w.shape) for w, place in zip(weights, places, strict=True)]
    torch._foreach_copy_(parts, list(weights))
    return made


def _places_of(weights: Sequence[Any], of: Layer, inputs: int) -> tuple[int, ...]:
    return _places(tuple([tuple(w.shape) for w in weights]), of, inputs, weights[0].dtype, weights[0].device)


@cache
def _places(
    shapes: tuple[tuple[int, ...], ...], of: Layer, inputs: int, dtype: torch.dtype, device: torch.device
) -> tuple[int, ...]:
    """Where in one piece of memory cuDNN looks for each weight, in elements: PyTorch puts tensors of these shapes there."""
    made = [torch.empty(shape, dtype=dtype, device=device) for shape in shapes]
    _flatten(
        made, of.weights, inputs, of.kind, of.hidden, of.outputs, of.layers, of.batch_first, of.bidirectional
    )
    return tuple([int(weight.storage_offset()) for weight in made])


#: Both make new tensors, and draw no random numbers.
CALLS = frozenset({cudnn_rnn, cudnn_rnn_backward})
