"""`x[mask] = x[mask] * 2` and `x[mask] *= 2`: what a mask selects, operators on its elements, and the assignment to the same
places. All of it is computed for all places, and the mask chooses in the end.

Where something else is done with it, the graph ends in front of the selection. Where it outlives the graph, the elements are
taken when that has run.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn

import torch

from ...ir.nodes import nodes_after
from ...ir.sharing import base_of, written_operands
from ..inference.elementwise import DRAWN, is_elementwise
from ..inference.mutation import giving_another, is_in_place, name_of
from ..inference.stand_ins import DATA_DEPENDENT
from ..interpreter import Args, Interpreter, Kwargs
from ..symbolic import TENSOR_TYPES, Selection, Symbol, TensorProxy

REASON, HINT = DATA_DEPENDENT["getitem"]


def selected(i: Interpreter, tensor: Any, key: Any) -> Any:
    """`tensor[key]`; NotImplemented where that is not what one mask selects."""
    plain = type(tensor) is TensorProxy and type(key) is TensorProxy and {tensor.cls, key.cls} <= TENSOR_TYPES
    if not plain or key.meta.dtype is not torch.bool or i.graph.nested or torch.is_inference_mode_enabled():
        return NotImplemented
    meta = tensor.meta
    if not key.meta.ndim or meta.shape[: key.meta.ndim] != key.meta.shape or meta.device != key.meta.device:
        return NotImplemented
    if meta.dtype.is_complex:
        return NotImplemented
    harmless = meta.dtype is torch.bool or 1
    values = i.graph.call("call_function", torch.where, (_spread(i, key, tensor), tensor, harmless), {})
    return i.mark_created(Selection(values, key, i.moment()))


def assigned(i: Interpreter, tensor: TensorProxy, key: Any, selection: Selection) -> None:
    """`tensor[key] = selection`."""
    meta, values = tensor.meta, selection.values
    same = type(key) is TensorProxy and _is_same(i, key, selection.mask)
    if not same or (values.meta.dtype, values.meta.shape) != (meta.dtype, meta.shape):
        refuse(selection)
    made = i.graph.call("call_function", torch.where, (_spread(i, key, tensor), values, tensor), {})
    i.graph.call("call_method", "copy_", (tensor, made), {})


def called(i: Interpreter, kind: str, function: Any, name: str, args: Args, kwargs: Kwargs) -> Any:
    """An operator on the elements of selections by one mask, and numbers; in place, it changes the first of them."""
    selections = [v for v in (*args, *kwargs.values()) if type(v) is Selection]
    first = selections[0]
    in_place = is_in_place(function if kind == "call_function" else name)
    if not is_of_elements(name) or (in_place and args[0] is not first) or not all(map(_is_operand, args)) or not all(
        map(_is_operand, kwargs.values())
    ) or not all(_is_same(i, s.mask, first.mask) for s in selections):  # fmt: skip
        refuse(first)
    target = giving_another(kind, function if kind == "call_function" else name)
    values = [v.values if type(v) is Selection else v for v in args]
    options = {key: v.values if type(v) is Selection else v for key, v in kwargs.items()}
    made = i.graph.call(kind, target, tuple(values), options)
    if type(made) is not TensorProxy or made.meta.shape != first.values.meta.shape:
        refuse(first)
    if not in_place:
        return i.mark_created(Selection(made, first.mask, first.made_at))
    if made.meta.dtype != first.values.meta.dtype:
        refuse(first)
    first.values = made
    return first


def refuse(selection: Selection) -> NoReturn:
    """The elements themselves are needed: the segment is to end in front of the selection."""
    raise selection.made_at.suspended(REASON, HINT)


def check_unchanged(i: Interpreter, selection: Selection) -> None:
    """Require that a mask is what it was."""
    if not _is_same(i, selection.mask, selection.mask):
        refuse(selection)


def _is_same(i: Interpreter, one: TensorProxy, other: TensorProxy) -> bool:
    """Whether two masks are computed in the same way, of what has not been changed since."""
    nodes = [i.graph.node_of(mask) for mask in (one, other)]
    operands = _operands_if_same(*nodes)
    if operands is None:
        return False
    bases = {base_of(node) for node in operands}
    since = nodes_after(i.graph.graph, nodes[1])
    return not any(base_of(operand) in bases for node in since for operand in written_operands(node))


def _operands_if_same(one: torch.fx.Node, other: torch.fx.Node) -> list[torch.fx.Node] | None:
    """What both nodes are computed from, themselves among that, if they compute the same; None if not."""
    if one is other:
        return [one]
    if one.op == "placeholder" or (one.op, one.target, one.kwargs) != (other.op, other.target, other.kwargs):
        return None
    if len(one.args) != len(other.args) or name_of(one.target) in DRAWN:
        return None
    found = [one, other]
    for mine, theirs in zip(one.args, other.args, strict=True):
        if isinstance(mine, torch.fx.Node) and isinstance(theirs, torch.fx.Node):
            behind = _operands_if_same(mine, theirs)
            if behind is None:
                return None
            found += behind
        elif type(mine) is not type(theirs) or mine != theirs:
            return None
    return found


def is_of_elements(name: str) -> bool:
    """Whether an operator of this name computes each element from the same ones of its operands."""
    named: Any = SimpleNamespace(__name__=name)
    return is_elementwise(named, {}) and name not in DRAWN and name not in ("copy_", "fill_", "zero_", "where")


def _is_operand(value: Any) -> bool:
    """Whether a value goes with all elements: a tensor of several elements goes with those that are selected."""
    if type(value) is TensorProxy:
        return value.meta.ndim == 0 and value.cls in TENSOR_TYPES
    return type(value) in (Selection, Symbol, int, float, bool)


def _spread(i: Interpreter, mask: TensorProxy, tensor: TensorProxy) -> TensorProxy:
    """A mask with axes of one element for those that it says nothing about."""
    more = tensor.meta.ndim - mask.meta.ndim
    return i.graph.call("call_method", "reshape", (mask, (*mask.meta.shape, *[1] * more)), {}) if more else mask  # type: ignore
