"""Going on where an operator failed in the middle of a graph that had changed tensors of the user's before.

Such a graph cannot begin again. But it ran operator by operator, so what it had computed is in the variables of its
generated code, and the operator that failed tells how far the program had come. Capture runs once more, up to there: that
gives the effects so far, and the frames in which Python performs the instruction again that failed, with the user's own
exception handlers and traceback.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType, FunctionType, MethodType
from typing import Any

import torch
from torch.fx import GraphModule, Node

from .. import config, errors, logs
from ..drive.unwind import unwind
from ..emit.body import graph_body
from ..emit.glue import Interrupted, put_back
from ..errors import Unsupported
from ..ir.default_device import run_without
from ..ir.frame import FrameState, Suspension
from ..ir.gradients import takes_gradients
from ..ir.modes import MODE_CHANGES, enter_inference, leave_inference
from ..ir.nodes import outputs_of
from ..ir.segment import RunNatively, Segment
from ..ir.sharing import effects_in, written_operands
from ..signals import handlers_heard
from .lost_values import LostValues
from .report import save_report
from .specialise import glued

#: Settings that are as they were once a graph has failed, and that the captured frames bring about again.
_LEFT = frozenset({torch._C._set_grad_enabled, enter_inference, leave_inference})
_SETTINGS = MODE_CHANGES - _LEFT


def suspended(
    halt: Interrupted, capture_until: Callable[[int], Segment], function: FunctionType | None, args: Any, kwargs: Any
) -> Suspension:
    """The program in front of the instruction that failed, with what came before done.

    `capture_until(n)` captures the call again, up to the instruction number n; `function` was called with `args`
    and `kwargs`.

    Raises:
        Exception: what the operator raised, where the program cannot go on.
    """
    error = halt.error
    with handlers_heard():
        try:
            result = _suspended(halt, capture_until, function, args, kwargs)
        except (Unsupported, RunNatively):
            result = None  # the operator's own exception says more
        except Exception as ours:
            if config.raise_internal_errors:
                raise errors.InternalError(f"{type(ours).__name__}: {ours}") from ours
            logs.log.warning(
                "internal error while going on after an operator that failed (%s: %s); its exception is raised. %s",
                type(ours).__name__, ours, save_report(function, ours),
            )  # fmt: skip
            result = None
    if type(result) is Suspension and result:
        return result
    if result is None and args and isinstance(args[0], list):
        _leave_blocks(args[0], error)
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context


def _leave_blocks(frames: list[Any], error: Exception) -> None:
    """Leave the blocks of PyTorch's settings, such as `torch.no_grad()`, that were open where the graph began: they are in
    force again, and no frame is left that would see to them."""
    for frame in reversed(frames):
        for value in reversed(frame.stack if isinstance(frame, FrameState) else ()):
            leave = value if type(value) is MethodType and value.__name__ == "__exit__" else None
            if leave is not None and type(leave.__self__).__module__.startswith("torch."):
                leave(type(error), error, None)


def _suspended(halt: Interrupted, capture_until: Any, function: Any, args: Any, kwargs: Any) -> Any:
    place = _place(halt)
    if place is None:
        return None
    failed, values = place
    for first in halt.prepared:
        if first.reached > failed.meta["performed"]:
            first.take_back()
    segment = run_without(capture_until)(failed.meta["performed"])
    if not _is_what_ran(segment, halt.segment, failed):
        return None
    if halt.drawn:
        put_back(halt.drawn)  # what was drawn for later is not drawn yet
    else:
        segment.draws.clear()  # they came before the graph that was interrupted
    _note_condition(failed, values)
    outputs = outputs_of(segment.graph)
    inputs = [node.name for node in segment.graph.nodes if node.op == "placeholder"]

    def run_again(*given: Any) -> list[Any]:
        return LostValues(segment.graph, values | dict(zip(inputs, given, strict=True))).compute(outputs)

    _, run = glued(segment, graph_body(segment, run_again), function)
    result = run(*args, **kwargs)
    if type(result) is Suspension and (takes_gradients(failed) or _changes_inference_tensors(failed, values)):
        _raise_there(result, halt.error)
    return result


def _raise_there(frames: Suspension, error: Exception) -> None:
    """Go to the handler of what an operator raised, if any: no frame is left otherwise.

    It is for what cannot be done twice, as it has done something by then. Of gradients, autograd has let go of what it needs
    for them, and has called hooks.
    """
    step = error.__traceback__
    while step is not None and not isinstance(step.tb_frame.f_locals.get("self"), GraphModule):
        step = step.tb_next
    error.__traceback__ = None if step is None else step.tb_next
    frames[-1].position += 1
    unwind(frames, error)


def _changes_inference_tensors(failed: Node, values: dict[str, Any]) -> bool:
    """Whether an operator changes tensors in place that were made in inference mode: they change first and refuse then."""
    changed = [values.get(operand.name) for operand in written_operands(failed)]
    return any(isinstance(value, torch.Tensor) and value.is_inference() for value in changed)


def _place(halt: Interrupted) -> tuple[Node, dict[str, Any]] | None:
    """The operator that failed, and the values of the graph's nodes at that time, of which some may be in a part of it."""
    failed, values = None, {}
    step = halt.error.__traceback__
    while step is not None:
        frame, line = step.tb_frame, step.tb_lineno
        module = frame.f_locals.get("self")
        if isinstance(module, GraphModule) and frame.f_code is type(module).forward.__code__:
            inner, known = _in_graph(halt.segment, module, frame, line)
            failed = inner or failed
            values |= known
        step = step.tb_next
    return None if failed is None else (failed, values)


def _in_graph(segment: Segment, module: GraphModule, frame: FrameType, line: int) -> tuple[Node | None, dict[str, Any]]:
    running = [*module.graph.nodes]
    captured = _captured_nodes([*segment.graph.nodes], running)
    failed = captured.get(running[module._lineno_map[line - module._prologue_start]])
    values = {
        own.name: frame.f_locals[node.name]
        for node, own in captured.items()
        if frame.f_locals.get(node.name) is not None  # generated code lets go of what no operator needs any more
    }
    return failed, values


def _captured_nodes(captured: list[Node], running: list[Node]) -> dict[Node, Node]:
    """Of which captured nodes those of the graph that ran have the values; empty where a backend has changed the graph."""
    if any("captured" in node.meta for node in running):  # subgraphs, with calls between them
        by_name = {node.name: node for node in captured}
        return {node: by_name[node.meta["captured"]] for node in running if "captured" in node.meta}
    if [(n.op, n.target) for n in captured if n.op != "placeholder"] != [
        (n.op, n.target) for n in running if n.op != "placeholder"
    ]:
        return {}
    return dict(zip(running, captured, strict=True))


def _note_condition(failed: Node, values: dict[str, Any]) -> None:
    """Note the value of a condition that only what stands for a `raise` statement needed: it is known from there."""
    asked: Any = failed.args[0] if failed.target is torch._assert_async else None
    if isinstance(asked, Node) and asked.target == "logical_not" and asked.name in values:
        operand: Any = asked.args[0]
        values.setdefault(operand.name, values[asked.name].logical_not())


def _is_item(node: Node) -> bool:
    return node.op == "call_method" and node.target == "item"


def _is_what_ran(prefix: Segment, whole: Segment, failed: Node) -> bool:
    """Whether a segment is what ran before an operator failed. After it, nothing may have been changed."""
    if not prefix.frames:
        return False
    begun = {node.name: node for node in whole.graph.nodes}
    ran = {name: node for name, node in begun.items() if node.op != "placeholder" and node < failed}
    for node in prefix.graph.nodes:
        if node.op == "output" or node.target in _LEFT:
            continue
        known = begun.get(node.name)
        if known is None and _is_item(node):  # of a condition, which the whole graph asks without reading it
            continue
        if known is None or known.op != node.op or not _alike(known.target, node.target) or node.target in _SETTINGS:
            return False
        if node.op != "placeholder" and ran.pop(node.name, None) is None:
            return False
    return not any(_changes(node) for node in ran.values())


def _alike(target: Any, other: Any) -> bool:
    """Whether two nodes call the same. Capture makes some functions anew: those for `torch.autograd.Function`s."""
    if isinstance(target, FunctionType) and isinstance(other, FunctionType) and target.__name__ == other.__name__:
        return target.__code__ is other.__code__
    return bool(target == other)


def _changes(node: Node) -> bool:
    effects = effects_in(node)
    return node.target in _SETTINGS or bool(effects.written or effects.reshaped)

