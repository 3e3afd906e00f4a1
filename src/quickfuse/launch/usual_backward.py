"""Backward where nothing is unusual, as code of its own.

A call's backward asks many questions whose answers hardly ever differ: whether gradients are to be differentiated, whether
an input has other memory now, whether something records operators. For small networks they take longer than the kernels. So
once a backward graph has run, they are written out for it, without loops and calls:

    def usual(node, gradients):
        if _with_gradients() or ...: return None
        s0, s1 = node.saved_tensors
        (m0, o0), = node.memories
        if s0.untyped_storage() is not m0 or s0.storage_offset() != o0: return None
        tensors = [s0, gradients[0]]
        with _lock:
            ...
            g0, g1 = _function(tensors)
        return None, None, None, None, g1, g0

Where one of the answers is another, it returns None, and `autograd_nodes` goes the whole way.
"""

from __future__ import annotations

from typing import Any

import torch

from ..ir.generated import generated_function
from ..ir.gradients import Unfit
from ..ir.modes import outer_tracer
from . import autograd_nodes as nodes
from .asked import is_visited
from .dependent_results import graph_is_retained


def usual_backward(call: Any, absent: frozenset[int], backward: Any) -> Any:
    """Backward without gradients for the differentiable outputs `absent`, as a function of a call's node and the gradients
    of all outputs: see above. `backward` is the compiled graph, which returns a gradient for each wanted input."""
    given = [f"gradients[{k}]" for number, k in enumerate(call.differentiable) if number not in absent]
    saved = [f"s{k}" for k in range(len(call.saved))]
    found = [f"g{k}" for k in range(len(call.wanted))]
    unusual = ["_with_gradients()", "_tracer() is not None", *[f"_is_batched({g})" for g in given]]
    unusual.append("(_autocasts() and node.call.misses_autocast())")
    if call.links is not None:
        unusual.append("node.added is not None")
    lines = [f"if {' or '.join(unusual)}: return None"]
    if call.apart:
        lines += ["shared = node.shared", "if shared.done: return None", f"{_targets(saved)} = shared.tensors"]
        for k in dict.fromkeys(backward.read):
            lines.append(f"if s{k}._version != shared.versions[{k}]: return None")
    else:
        lines.append("if node.shared is not None: return None")
        lines.append(f"{_targets(saved)} = node.saved_tensors")
    if call.in_memory:
        lines.append(f"{_targets([f'(m{k}, o{k})' for k in range(len(call.in_memory))])} = node.memories")
        for k, (number, *_) in enumerate(call.in_memory):
            moved = f"s{number}.untyped_storage() is not m{k} or s{number}.storage_offset() != o{k}"
            lines.append(f"if {moved}: return None")
    if call.paths is not None and call.paths.partial:  # some result may not lead to what is asked for
        places = [call.paths.places[min(call.paths.reached[k])] for k in range(len(call.differentiable)) if k not in absent]
        lines.append("edges = node.next_functions")
        lines += [f"if not _is_visited(edges[{k}][0]): return None" for k in dict.fromkeys(places)]
    numbers = "".join(f", node.numbers[{k}]" for k in call.numbers)
    lines += [
        f"tensors = [{', '.join([*[f's{k}' for k in backward.used], *given])}]",
        "with _lock:",
        "    if _state := _scan(tensors):",
        f"        if _state < 0 and not _bring_into_layout(tensors, {len(given)}): return None",
        "        _place(_check)",
        "    held = node.held",
        "    if not _graph_is_retained():",
    ]
    sharing = call.sharing
    if call.apart and not absent and not sharing.left(sharing.everything):  # nothing is left for others
        lines.append("        shared.done = _everything; shared.tensors = _gone; node.held = _nothing; node.memories = ()")
    elif call.apart:
        lines.append("        _free(node, _absent)")
    else:
        lines.append("        node.held = _nothing; node.memories = (); node.maybe_clear_saved_tensors()")
    if saved:
        lines.append(f"    {' = '.join(saved)} = None  # only the list has them now")
    given_now = f"[{', '.join(given)}]"
    lines += [
        "    try:",
        f"        {_targets(found)} = _function(tensors{numbers})",
        "    except _Unfit as unfit:",
        f"        return _after_unfit(node, _absent, {given_now}, unfit)",
        f"return {', '.join(['None'] * nodes.OTHER_ARGUMENTS + [f'g{k}' for k in call.edges])},",
    ]
    constants = {
        "_with_gradients": torch.is_grad_enabled, "_tracer": outer_tracer, "_is_batched": nodes.is_batched,
        "_autocasts": torch._C._is_any_autocast_enabled, "_lock": backward.lock, "_check": backward.check,
        "_scan": backward.check.scan, "_place": backward.placer.place, "_bring_into_layout": backward.bring_into_layout,
        "_is_visited": is_visited,
        "_graph_is_retained": graph_is_retained, "_free": nodes.free, "_absent": absent,
        "_everything": sharing.everything, "_gone": (None,) * len(saved), "_nothing": nodes.NOTHING_HELD,
        "_function": backward.function, "_Unfit": Unfit, "_after_unfit": nodes.after_unfit,
    }  # fmt: skip
    source = "def usual(node, gradients):\n" + "".join(f"    {line}\n" for line in lines)
    return generated_function(source, "usual backward", constants, "usual")


def _targets(names: list[str]) -> str:
    """The left side of an assignment of as many values."""
    return f"[{', '.join(names)}]"
