"""`x[k] = value` and `x[k] += value` with a number in a tensor `k`: for PyTorch a change of a view, of which only running
tells where it lies. Here it is an assignment to the elements at an index of one element, which has a formula and
gradients."""

from __future__ import annotations

import operator
from typing import Any

import torch

from ...ir.sharing import base_of
from ...ir.source import is_element
from ..inference.mutation import is_in_place
from ..interpreter import Args, Interpreter, Kwargs
from ..objects.changing_parts import is_whole_number
from ..outside.guarding import expression
from ..symbolic import Symbol, TensorProxy, mapped


def with_changing_numbers(i: Interpreter, tensor: TensorProxy, key: Any) -> Any:
    """An index in which numbers of Python's that change from call to call are in tensors: PyTorch selects the same part."""
    if tensor.meta.device.type != "cpu" or i.graph.nested or i.graph.inference.entered_at or not i.outside.volatile:
        return key
    parts = key if type(key) is tuple else (key,)
    if not any(_changes(i, part) for part in parts) or any(type(part) in (list, TensorProxy) for part in parts):
        return key
    made = tuple([_in_tensor(i, part) if _changes(i, part) else part for part in parts])
    return made if type(key) is tuple else made[0]


def _in_tensor(i: Interpreter, number: Symbol) -> TensorProxy:
    """A tensor with a number, the same one wherever the number is an index: `x[k] += 1` reads and assigns one part."""
    code = expression(number.expr).code()  # type: ignore[arg-type]
    known = i.outside.index_tensors.get(code)
    if known is None:
        known = i.graph.call("call_function", torch.tensor, (number,), {"device": "cpu"})
        i.outside.index_tensors[code] = known
    return known


def _changes(i: Interpreter, part: Any) -> bool:
    """Whether a part of an index is a whole number, which had another value in an earlier call; not that of a loop with a
    break in each turn, to which Python may give the part."""
    if not is_whole_number(part) or i.outside.is_dynamic_size(part) or part.expr is None:
        return False
    if any(is_element(str(source)) for source in expression(part.expr).sources()):
        return False
    return i.outside.varies(part)


def assigned(i: Interpreter, tensor: Any, key: Any, value: Any) -> Any:
    """`tensor[key] = value`; NotImplemented where there are no such numbers, first in the index."""
    index = _of_one_element(i, key)
    if type(tensor) is not TensorProxy or index is None:
        return NotImplemented
    if type(value) is TensorProxy:
        own, node = i.graph.node_of(tensor), i.graph.node_of(value)
        nodes = mapped(lambda v: i.graph.node_of(v) if type(v) is TensorProxy else v, key)
        if _is_part(node) and node.args == (own, nodes):
            return None  # `x[k] += 1` assigns what it has changed in place
        if base_of(node) is base_of(own):
            return NotImplemented
        if value.meta.dtype != tensor.meta.dtype:
            value = i.graph.call("call_method", "to", (value, tensor.meta.dtype), {})
    return i.graph.call("call_function", operator.setitem, (tensor, index, value), {})


def changed(i: Interpreter, kind: str, target: Any, args: Args, kwargs: Kwargs) -> Any:
    """The result of an operator that changes `tensor[key]` in place: it changes a copy, which is assigned to that part.
    NotImplemented where it changes something else."""
    part = args[0] if args else None
    if type(part) is not TensorProxy or part.node is None or not _is_part(part.node) or not is_in_place(target):
        return NotImplemented
    views = any(user.meta.get("view_of", (None,))[0] is part.node for user in part.node.users)
    tensor, key = mapped(lambda v: _known(i, v), part.node.args)
    index = _of_one_element(i, key)
    if views or type(tensor) is not TensorProxy or index is None or part.attributes or id(part) in i.tensor_hooks:
        return NotImplemented
    copy = i.graph.call("call_function", operator.getitem, (tensor, index), {})
    copy = i.graph.call("call_function", operator.getitem, (copy, 0), {})
    i.graph.call(kind, target, (copy, *args[1:]), kwargs)
    i.graph.call("call_function", operator.setitem, (tensor, index, copy), {})
    seen = i.graph.call("call_function", operator.getitem, (tensor, key), {})
    i.graph.superseded |= {part.node: None, seen.node: None}
    part.node, part.meta = seen.node, seen.meta
    i.graph.history.note_tensor(part.node, part)
    return part


def _is_part(node: torch.fx.Node) -> bool:
    """Whether a node is `tensor[key]` with tensors in the key."""
    return node.target is operator.getitem and len(node.all_input_nodes) > 1


def _known(i: Interpreter, value: Any) -> Any:
    """The tensor that a node still stands for; None for one that was changed, or has got another node."""
    if not isinstance(value, torch.fx.Node):
        return value
    tensor = i.graph.history.tensor(value)
    return tensor if tensor is not None and tensor.node is value else None


def _of_one_element(i: Interpreter, key: Any) -> Any:
    """An index with tensors of one element in place of the numbers in tensors; None where these do not come first."""
    parts = list(key) if isinstance(key, tuple) else [key]
    numbers = [k for k, part in enumerate(parts) if type(part) is TensorProxy]
    if not numbers or not all(_is_whole_number(i, parts[k]) for k in numbers):
        return None
    before, behind = parts[: numbers[-1]], parts[numbers[-1] + 1 :]
    if not all(type(v) in (int, TensorProxy) for v in before) or not all(type(v) in (int, slice) for v in behind):
        return None
    for k in numbers:
        parts[k] = i.graph.call("call_method", "reshape", (parts[k], 1), {})
    return tuple(parts)


def _is_whole_number(i: Interpreter, part: TensorProxy) -> bool:
    """Whether a tensor holds a number that has not been changed in place."""
    dtype = part.meta.dtype
    is_number = not part.meta.ndim and not (dtype.is_floating_point or dtype.is_complex)
    return is_number and dtype not in (torch.bool, torch.uint8) and i.graph.node_of(part).name not in i.graph.mutated
