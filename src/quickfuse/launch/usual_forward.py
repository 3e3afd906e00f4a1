"""What a call's node of autograd notes in forward, as code of its own: see `usual_backward.py`.

    def usual(node, call, tensors, numbers):
        made = _function(tensors)
        node.call = call
        node.numbers = numbers
        node.strong = (tensors[0],)
        node.weak = [_reference(tensors[1]),]
        ...
        node.save_for_backward(tensors[0], made[1],)
        node.set_materialize_grads(False)
        return made[0],

It is what `run_forward` does in `autograd_nodes.py`, for a graph that neither changes an input nor draws random numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..ir.endings import OwnReference
from ..ir.generated import generated_function
from . import autograd_nodes as nodes


def usual_forward(call: Any) -> Any:
    """Forward, as a function of a node, the call, its tensors and numbers; None where there is more to be noted."""
    forward = call.compiled_forward
    if call.mutated or call.draws or call.read_before or forward.replayed is not None:
        return None
    numbers = "".join([f", numbers[{k}]" for k in range(len(call.number_index))])
    lines = [f"made = _function(tensors{numbers})"]
    if call.changed:
        lines.append("call.count_changes(made)")
    lines += ["node.call = call", "node.numbers = numbers", f"node.strong = ({_listed('tensors', call.strong)})"]
    if call.weak:
        lines.append(f"node.weak = [{', '.join([f'_reference(tensors[{k}])' for k in call.weak])}]")
    if call.held:
        lines.append(f"node.held = {{{', '.join([f'{k}: tensors[{k}]' for k in call.held])}}}")
    versions = ", ".join([f"tensors[{k}]._version" for k in range(len(call.inputs))])
    lines += [
        "try:",
        f"    node.versions = [{versions}]",
        "except RuntimeError:  # inference tensors count nothing",
        "    call.refuse_inference(tensors)",
        "    node.versions = _versions_of(tensors)",
    ]
    if call.in_memory:
        held = [f"(tensors[{k}].untyped_storage(), tensors[{k}].storage_offset())" for _, k, _ in call.in_memory]
        lines.append(f"node.memories = [{', '.join(held)}]")
    if call.links is not None:
        lines.append("made = call.links.set_aside(node, made)")
    lines.append(f"node.results = [{', '.join([f'_reference(made[{k}])' for k in call.latest_first])}]")
    if call.apart:
        lines.append("node.shared = _kept_apart(call, tensors, made)")
    else:
        saved = [f"{'tensors' if of_input else 'made'}[{k}], " for k, of_input in call.saved]
        lines.append(f"node.save_for_backward({''.join(saved)})")
    lines.append("node.set_materialize_grads(False)")
    if call.fixed:
        lines.append(f"node.mark_non_differentiable({_listed('made', call.fixed)})")
    lines.append(f"return {_listed('made', range(call.outputs))}")
    constants = {
        "_function": forward.function, "_reference": OwnReference, "_versions_of": nodes.versions_of,
        "_kept_apart": nodes.kept_apart,
    }  # fmt: skip
    source = "def usual(node, call, tensors, numbers):\n" + "".join([f"    {line}\n" for line in lines])
    return generated_function(source, "usual forward", constants, "usual")


def _listed(name: str, indices: Iterable[int]) -> str:
    """Some of a sequence's values, one after the other."""
    return "".join([f"{name}[{k}], " for k in indices])
