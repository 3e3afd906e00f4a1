"""Calls of operators that PyTorch composes of others and that have no rule: lowered as what they are composed of.

What that is, somebody else has to say (`Expand`), since lowering runs no operators. It is worth it where most of the parts
become loops.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload
from torch.fx import Graph

from quickfuse.ir.arguments import leaves, map_leaves
from quickfuse.ir.expr import HALF_TYPES, Scalar
from quickfuse.ir.nodes import is_view, outputs_of
from quickfuse.ir.values import TensorMeta

from .aten import overload_handler
from .compositions import COMPOSITIONS
from .extern import name_of
from .formulas import FORMULAS
from .schemas import is_composed
from .symbolic import Tensor

#: `(function, args, kwargs)` with a `TensorMeta` in place of each tensor -> a graph with a placeholder for each of them,
#: which returns the tensors that the call does; None where there is none.
Expand = Callable[[Callable[..., Any], Any, Any], Graph | None]

#: Operators that are best left to PyTorch in one piece.
_WHOLE = frozenset(
    "matmul linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d scaled_dot_product_attention "
    "multi_head_attention_forward lstm gru rnn_tanh rnn_relu ctc_loss embedding_bag dropout alpha_dropout feature_dropout "
    "feature_alpha_dropout dropout2d dropout3d rrelu histogramdd cdist tensor".split()
)


class Expansion(NamedTuple):
    """A call as a graph: `operands` are what its placeholders stand for."""

    graph: Graph
    operands: list[Tensor]


def expansion(
    expand: Expand, kind: str, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], meta: Any
) -> Expansion | None:
    """What to lower in place of a call that makes new tensors; None where the call had better be one."""
    called = getattr(torch.Tensor, target, None) if kind == "call_method" else target
    function = _composition(called)
    if function is None or type(meta) not in (TensorMeta, list, tuple):
        return None
    operands = [leaf for leaf in leaves((args, kwargs)) if type(leaf) in (Tensor, Scalar)]
    if not operands or not all(_is_plain(t) for t in operands):
        return None
    if name_of(called) in FORMULAS and any(t.dtype.is_complex for t in operands):
        return None  # formulas are those of real numbers, and complex ones are calls in any case
    graph = expand(function, *map_leaves(_described, (tuple(args), dict(kwargs))))
    if graph is None or not _is_worth_it(graph) or not _gives(graph, meta):
        return None
    return Expansion(graph, operands)


@cache
def _composition(function: Any) -> Callable[..., Any] | None:
    """What to take apart in place of a call of `function`, which is best left alone if that is None."""
    name = name_of(function)
    known = COMPOSITIONS.get(name) or (FORMULAS.get(name) if isinstance(function, OpOverload) else None)
    arguments = function._schema.arguments if isinstance(function, OpOverload) else ()
    if known is not None and not any(argument.is_out for argument in arguments):
        return known
    if name in _WHOLE or isinstance(function, OpOverload):
        return None
    if isinstance(function, FunctionType):
        return function if (function.__module__ or "").startswith("torch.") else None
    return function if is_composed(name) or name in FORMULAS else None


def _is_plain(value: Any) -> bool:
    return type(value) is Tensor and not value.is_number and type(value.meta) is TensorMeta


def _described(value: Any) -> Any:
    if type(value) is not Tensor:
        return value
    meta = value.meta
    return TensorMeta(meta.dtype, meta.shape, meta.stride, meta.device)


def _is_worth_it(graph: Graph) -> bool:
    """Whether at least as many parts become loops as stay calls."""
    loops = calls = 0
    for node in graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem or is_view(node.target):
            continue
        if isinstance(node.target, OpOverload) and overload_handler(node.target) is None and not _composition(node.target):
            calls += 1
        else:
            loops += 1
    return loops >= calls


def _gives(graph: Graph, meta: Any) -> bool:
    """Whether a graph returns tensors as capture has seen them, but for how they lie in memory. They may be of a wider type:
    then they are rounded at the end."""
    made, wanted = outputs_of(graph), [meta] if isinstance(meta, TensorMeta) else [m for m in meta if m is not None]
    return len(wanted) == len(made) and all(
        isinstance(two, TensorMeta) and (one.shape, one.device) == (two.shape, two.device)
        and (two.dtype is one.dtype or (one.dtype in HALF_TYPES and two.dtype is torch.float32))
        for one, two in zip(wanted, [node.meta["val"] for node in made], strict=True)
    )  # fmt: skip
