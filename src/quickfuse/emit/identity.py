"""What outputs are besides their elements: views, of what, and how often they were changed.

Kernels make plain tensors, and views of inputs by strides. Where eager's result is another kind of object, a statement more
makes it one: what is computed as a view of a temporary is to be a view, and what `detach` or `data` give is not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ..ir.loop import Buffer
from ..ir.modes import in_grad_mode
from ..ir.nodes import outputs_of
from ..ir.segment import Segment
from ..ir.sharing import base_of, changes, counter_of, memory_of, takes_data
from ..ir.values import TensorMeta
from .body import tensor_picks
from .glue import Body


def _positions(segment: Segment) -> dict[str, int]:
    """The position of each tensor input among the checked tensors, by its name."""
    tensors = [i.name for i in segment.inputs if isinstance(i.meta, TensorMeta)]
    return dict(zip(tensors, tensor_picks(segment), strict=True))


def changes_of_inputs(segment: Segment) -> dict[int, int]:
    """How often a segment's graph changes its inputs, by their positions among the checked tensors."""
    position = _positions(segment)
    found = {node.name: times for node, times in changes(segment.graph).items() if node.op == "placeholder"}
    return {position[name]: times for name, times in found.items() if name in position}


def changes_of_outputs(segment: Segment) -> list[tuple[int, int]]:
    """The outputs in memory of their own that were changed in place since they were made, by position, and how often. Those
    made in inference mode do not count it."""
    outputs = outputs_of(segment.graph)
    if not outputs or segment.inference or torch.is_inference_mode_enabled():
        return []
    times = changes(segment.graph)
    found = []
    for k, node in enumerate(outputs):
        counter = counter_of(node)
        if isinstance(node.meta.get("val"), TensorMeta) and counter.op != "placeholder" and not takes_data(counter):
            found.append((k, times[counter]))
    return [(k, count) for k, count in found if count]


def give_identity(segment: Segment, body: Body, made: list[Any] | None = None) -> None:
    """Add the statements that make the outputs the objects that eager gives. `made` tells what the kernels made of each,
    where that is known.

    Outputs that require gradients stay as autograd made them, but for views of inputs that were made without gradients: in
    eager these require gradients because what they are views of does.
    """
    outputs = outputs_of(segment.graph)
    if not outputs or segment.inference:
        return
    times = changes(segment.graph)
    inputs = _positions(segment)
    written: dict[Node, str] = {}
    names: set[str] = set()  # those of `written`
    for k, node in enumerate(outputs):
        meta = node.meta.get("val")
        if not isinstance(meta, TensorMeta) or body.outputs[k] in names:
            continue
        name, base = body.outputs[k], base_of(node)
        if node.meta.get("history", meta.requires_grad) or node.meta.get("leaf"):
            if made is not None and base is not node and base.op == "placeholder":
                body.constants["_view_of"] = _view_without_gradients
                body.lines.append(f"{name} = _view_of(_tensors[{inputs[base.name]}], {name})")
            continue
        plain = made is not None and isinstance(made[k], Buffer) and made[k].kind == "output"
        # A call that gives a view of what `detach` gave has made it of the input.
        plain = plain and memory_of(node).op != "placeholder"
        expression = _expression(name, node, base, plain, made is None, written)
        inside = node.meta.get("inference") and "view_of" not in node.meta
        if inside and not torch.is_inference_mode_enabled():
            body.constants["_made_in_inference"] = _made_in_inference
            expression = f"_made_in_inference({name})"
        if expression:
            body.lines.append(f"{name} = {expression}")
        if node is base:
            written[node] = name
            names.add(name)
        if takes_data(base) and node is base and times[base]:
            body.constants["_count_changes"] = _count_changes
            body.lines.append(f"_count_changes({name}, {times[base]})")


def _count_changes(data: torch.Tensor, times: int) -> None:
    """Let what `.data` gave tell how often it was changed; of an inference tensor that is one, too, and counts nothing."""
    if not data.is_inference():
        torch._C._autograd._unsafe_set_version_counter((data,), (times,))


def _made_in_inference(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that is an inference tensor, as a block of inference mode within a graph makes it."""
    if tensor.is_inference():
        return tensor
    with torch.inference_mode():
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _view_without_gradients(base: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A view of `base` that lies as `like` does, as `torch.no_grad()` makes it; what a call has made of `base` is one."""
    if like._base is (base if base._base is None else base._base):
        return like
    return in_grad_mode(False, base.as_strided, like.size(), like.stride(), like.storage_offset())  # type: ignore[no-any-return]


def _expression(name: str, node: Node, base: Node, plain: bool, unknown: bool, written: dict[Node, str]) -> str:
    """The object that eager has in place of the tensor `name`; an empty text where it is one already."""
    detached = "view_of" in base.meta
    if base.op == "placeholder" or (not detached and unknown):
        return ""
    if detached and not plain:
        if node is not base and base in written:
            return f"{written[base]}.as_strided({name}.size(), {name}.stride(), {name}.storage_offset())"
        own = f"{name}.data" if takes_data(base) else f"{name}.detach()"
        if _views_as_a_type(base):
            own = f"{name}.view({name}.dtype)"  # an inference tensor in inference mode, where other views are as the input
        return own if node is base else f"{own}[...]"
    if node is base:
        return "" if plain or detached else f"{name}.detach()"
    return f"{name}[...]" if plain else ""


def _views_as_a_type(node: Node) -> bool:
    """Whether a node is `x.view(dtype)`."""
    values = (*node.args[1:], *node.kwargs.values())
    return node.target in ("view", torch.Tensor.view) and len(values) == 1 and isinstance(values[0], torch.dtype)
