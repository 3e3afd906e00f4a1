"""Whether a graph out of a file says the truth about its values: each operator is asked what it returns, without running."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Graph, Node

from ..differentiate.layouts import Out
from ..differentiate.shapes import spec_of
from ..differentiate.traced import Memory, make_traced
from ..errors import ExportFileError, Unsupported
from ..ir.values import NumberMeta, TensorMeta
from .numbers import COUNTS, NAMES, item, takes
from .operators import check_operands

#: An operator that returns a list may return one tensor for each element along an axis.
_LONGEST_LIST = 1 << 16


def check_types(graph: Graph) -> None:
    """Compare what a graph says of its nodes with what their operators say.

    Raises:
        ExportFileError: where they differ, or where an operator refuses its operands.
    """
    for node in graph.nodes:
        if node.op == "placeholder" and not isinstance(node.meta["val"], (TensorMeta, NumberMeta)):
            raise ExportFileError(f"the input {node.name:.60} is neither a tensor nor a number")
        if node.op != "call_function":
            continue
        if node.target is operator.getitem:
            found: Any = node.args[0].meta["val"][node.args[1]]  # type: ignore[union-attr, index]
        elif node.target in NAMES:
            found = _number(node)
        elif node.target is torch.tensor:
            found = _constant(node)
        else:
            found = _found(node)
        if not _same(found, node.meta["val"]):
            said = f"{node.name:.60} is {node.meta['val']!s:.80} in the file"
            raise ExportFileError(f"{said}, but {node.target} gives {found!s:.80}")


def _found(node: Node) -> Any:
    """What an operator returns."""
    target: Any = node.target
    returns = [str(result.type) for result in target._schema.returns]
    if "List[Tensor]" in returns and any(
        isinstance(n.meta["val"], TensorMeta) and max(n.meta["val"].shape, default=0) > _LONGEST_LIST
        for n in node.all_input_nodes
    ):
        raise ExportFileError(f"{node.name:.60} would be a list of too many tensors")
    problem = check_operands(target, node.args, node.kwargs)
    if problem:
        raise ExportFileError(f"{node.name:.60}: {target} {problem}")
    if target in _SHAPES:
        return _SHAPES[target](node)
    try:
        return _metas(spec_of(target, _stand_ins(tuple(node.args)), _stand_ins(dict(node.kwargs))))
    except ExportFileError:
        raise
    except Unsupported as error:
        raise ExportFileError(f"{node.name:.60}: {error.reason}") from None
    except Exception as error:
        raise ExportFileError(f"{node.name:.60}: {type(error).__name__}: {error!s:.200}") from None


def _attention(node: Node) -> Any:
    """The shape of what attention returns: PyTorch's own answer takes long."""
    operands: list[Any] = [n.meta["val"] if isinstance(n, Node) else None for n in node.args[:3]]
    if len(operands) < 3 or not all(isinstance(m, TensorMeta) and m.ndim >= 2 for m in operands):
        raise ExportFileError(f"{node.name:.60} is attention to something that is no tensor")
    said = node.meta["val"]
    shape = (*operands[0].shape[:-1], operands[2].shape[-1])
    return said if isinstance(said, TensorMeta) and said.shape == shape else operands[0]


def _said(node: Node) -> Any:
    """What the file says of recurrent layers: PyTorch would run all of one to answer."""
    said = node.meta["val"]
    if not isinstance(said, tuple) or not all(isinstance(m, TensorMeta) for m in said):
        raise ExportFileError(f"{node.name:.60} is a recurrent layer, which returns tensors")
    return said


_aten = torch.ops.aten
_SHAPES = {
    _aten.scaled_dot_product_attention.default: _attention,
    **dict.fromkeys((_aten.lstm.input, _aten.gru.input, _aten.rnn_tanh.input, _aten.rnn_relu.input), _said),
}


def _stand_ins(value: Any) -> Any:
    """Arguments with tensors without data in place of nodes."""
    if isinstance(value, Node):
        return _stand_in(value)
    if isinstance(value, (list, tuple)):
        parts = [_stand_ins(v) for v in value]
        return parts if isinstance(value, list) else tuple(parts)
    return {key: _stand_ins(v) for key, v in value.items()} if isinstance(value, dict) else value


def _stand_in(node: Node) -> Any:
    meta = node.meta["val"]
    if isinstance(meta, TensorMeta):
        plain = TensorMeta(meta.dtype, meta.shape, meta.stride, meta.device)
        return make_traced(plain, Memory(node, plain), (), node)
    if isinstance(meta, NumberMeta):
        return meta.kind(1)
    raise ExportFileError(f"{node.name:.60} is no tensor, and stands where a tensor is expected")


def _metas(spec: Any) -> Any:
    if type(spec) is Out:
        return spec.meta
    return tuple([_metas(s) for s in spec]) if isinstance(spec, (list, tuple)) else spec


def _same(found: Any, said: Any) -> bool:
    """Strides may differ: between devices and versions of PyTorch, and of operators that are composed of others."""
    if isinstance(found, TensorMeta) and isinstance(said, TensorMeta):
        return (found.dtype, found.shape) == (said.dtype, said.shape)
    if isinstance(found, NumberMeta) and isinstance(said, NumberMeta):
        return found.kind is said.kind
    if isinstance(found, tuple) and isinstance(said, tuple):
        return len(found) == len(said) and all(map(_same, found, said))
    return found is None and said is None


def _number(node: Node) -> Any:
    """Arithmetic on numbers, or the number in a tensor."""
    said = node.meta["val"]
    if not isinstance(said, NumberMeta):
        raise ExportFileError(f"{node.name:.60} is a number, and the file says {said!s:.80}")
    if node.target is item:
        operand = node.args[0] if len(node.args) == 1 else None
        meta = operand.meta["val"] if isinstance(operand, Node) else None
        if not isinstance(meta, TensorMeta) or meta.numel != 1 or node.kwargs:
            raise ExportFileError(f"{node.name:.60} takes a number out of something that is no tensor of one element")
        return said
    for operand in node.args:
        meta = operand.meta["val"] if isinstance(operand, Node) else NumberMeta(float)
        if not isinstance(meta, NumberMeta) or not isinstance(operand, (Node, int, float)):
            raise ExportFileError(f"{node.name:.60} is arithmetic on something that is no number")
    name = NAMES[node.target]  # type: ignore[index]
    if node.kwargs or not takes(name, len(node.args)):
        raise ExportFileError(f"{node.name:.60} is {name} of {len(node.args)} numbers, where {COUNTS[name]} are expected")
    return said


def _constant(node: Node) -> Any:
    """A small tensor of constants."""
    if len(node.args) != 1 or not {"dtype", "device"} >= {*node.kwargs} or list(node.all_input_nodes):
        raise ExportFileError(f"{node.name:.60} is a constant with other arguments than its elements, dtype and device")
    try:
        made = torch.tensor(node.args[0], **node.kwargs)  # type: ignore[arg-type]
    except Exception as error:
        raise ExportFileError(f"{node.name:.60}: {error!s:.200}") from None
    return TensorMeta(made.dtype, tuple(made.shape), made.stride(), made.device)
