"""From a captured segment to a callable: every stage after capture."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch.fx import Node

from .. import backends, logs
from ..drive.native import as_generator
from ..drive.tracebacks import traced
from ..emit import glue as glue_source
from ..emit.body import graph_body, joined_body, kernel_body, tensor_picks
from ..emit.forward_backward import kernel_function
from ..emit.identity import changes_of_inputs, changes_of_outputs, give_identity
from ..errors import Unsupported
from ..explain.graphs import readable
from ..ir.arguments import leaves
from ..ir.cost_model import COSTS
from ..ir.gradients import NothingToDifferentiate, UnsupportedAt
from ..ir.guard import Guard, float32
from ..ir.kernel import Schedule
from ..ir.launching import Launch
from ..ir.modes import STAYING_MODES, drawing_again, in_inference_mode, preserving_modes
from ..ir.nodes import is_fused_update, outputs_of
from ..ir.segment import NODE_ASKED, RunNatively, Segment
from ..ir.sharing import changed_as_another_type, takes_data
from ..ir.values import ObjectMeta, TensorMeta
from ..launch import Apart, ContentsReader, bulk_reads, labelled, load_ahead, same_tensors, tensor_check, unchanged
from ..lower.extern import name_of
from ..lower.schemas import draws_nothing
from .joining import around_autocast, joined, regraded, replay_of
from .kernels import kernels_of, replayed
from .shown_copies import show_copies
from .subgraphs import asked_inside, in_subgraphs

#: `torch.jit.trace` sees the operators that PyTorch runs, and none of ours.
_UNTRACED = Guard("state", None, ("torch._C._get_tracing_state()", None))


#: What a specialisation holds of the process's memory for each of its kernels, and for each node of its graph.
BYTES_OF_KERNEL, BYTES_OF_NODE = 50_000, 2_000

#: Numbers of uses, of all specialisations.
_uses = itertools.count(1)


class Specialisation:
    """One compiled version of a segment: valid while its guards hold. `without_kernels` says why it has none, if so.
    `shapes` are those that its guards hold, and `last_use` grows from use to use, where specialisations differ in sizes
    (see `sizes`)."""

    __slots__ = ("glue", "kernels", "last_use", "run", "segment", "shapes", "without_kernels")

    def __init__(
        self, segment: Segment, glue: glue_source.Glue, run: Callable[..., Any], kernels: int, without_kernels: str
    ) -> None:
        self.segment = segment
        self.glue = glue
        self.run = run
        self.kernels = kernels
        self.without_kernels = without_kernels
        self.note_use()
        self.shapes: dict[str, Any] | None = None

    @property
    def backwards(self) -> list[Any]:
        """What was compiled of a backward that the program called outside."""
        return [*getattr(self.glue.constants.get("_joined"), "backwards", {}).values()]

    @property
    def bytes_held(self) -> int:
        """About how much memory it takes, by what was measured: graphs, generated functions, tables."""
        kernels = self.kernels + sum(backward.kernels for backward in self.backwards)
        return BYTES_OF_KERNEL * kernels + BYTES_OF_NODE * len(self.segment.graph.nodes)

    def note_use(self) -> None:
        self.last_use = next(_uses)

    def first_run(self, *args: Any, **kwargs: Any) -> Any:
        """`run` after capture. If it fails, plain Python is to find optimizers as they were before capture made states."""
        prepared, self.segment.prepared = self.segment.prepared, []
        try:
            return self.run(*args, **kwargs)
        except RunNatively:
            for first in prepared:
                first.take_back()
            raise
        except glue_source.Interrupted as halt:
            halt.prepared = prepared
            raise

    def has_signature_of(self, function: FunctionType) -> bool:
        """Whether a function has the code and the default arguments that it had when this was made."""
        run: Any = self.run
        return (
            self.segment.code is function.__code__
            and run.__defaults__ is function.__defaults__
            and run.__kwdefaults__ is function.__kwdefaults__
        )


class FailsTooLate(Exception):
    """A graph that fails where the program goes on otherwise, which kernels find out before they change anything, has to run
    operator by operator."""


def get_ready(backend: backends.Backend) -> None:
    """Begin what a backend's first kernel has to wait for, before anything is captured."""
    if backend is backends.QUICKFUSE:
        load_ahead()


def specialise(segment: Segment, function: FunctionType, backend: backends.Backend) -> Specialisation:
    """Compile a segment of a call of `function`.

    Raises:
        FailsTooLate: where it has to be captured again, without `recovers`.
    """
    if logs.enabled("guards"):
        logs.emit("guards", "\n".join(f"{g}  # {g.location}" if g.location else str(g) for g in segment.guards))
    if logs.enabled("graph"):
        logs.emit("graph", readable(segment.graph))
    with logs.stage("glue"):
        if not glue_source.tensor_order(segment):  # whose check says so
            segment.guards.append(_UNTRACED)
        checked = [meta for _, meta in _expected(segment)]
    if any(meta.device.type != "cpu" for meta in checked):  # kernels for a GPU may add up in any order
        setting = ("torch.are_deterministic_algorithms_enabled()", torch.are_deterministic_algorithms_enabled())
        segment.guards.append(Guard("state", None, setting))
    body, kernels, without = _body(segment, checked, backend)
    if body.by_operator and segment.fails_after_changes:
        raise FailsTooLate
    if segment.labels:
        body.lines[:] = ["with _labelled():", *(f"    {line}" for line in body.lines or ["pass"])]
        body.constants["_labelled"] = partial(labelled, segment.labels)
    segment.examples = []  # the user's tensors
    old = regraded(segment)
    if body.replayed is None:  # what fails ends before the program sets the others
        first = {tensor.attr("grad") for tensor in segment.regraded_first}
        old = {source: meta for source, meta in old.items() if source in first}
    if body.replayed is not None or sum(meta.nbytes for meta in old.values()) >= COSTS.large_bytes:
        body.released = frozenset(old)
    with logs.stage("glue"):
        glue, run = glued(segment, body, function)
    logs.emit("segments", glue.source)
    return Specialisation(segment, glue, run, kernels, without)


def glued(
    segment: Segment, body: glue_source.Body, function: FunctionType
) -> tuple[glue_source.Glue, Callable[..., Any]]:
    """The generated function of a segment of a call of `function`, around the part that computes."""
    grads = {g.source: g.value for g in segment.guards if g.kind == "requires_grad"}
    order = glue_source.tensor_order(segment)
    check = tensor_check(_expected(segment), [grads.get(s) for s in order], alone=True) if order else None
    if body.replayed is not None:
        body.replayed.check = check
    glue = glue_source.Glue(segment, body, check, helpers(), _identifier(function))
    return glue, glue.function(function)


def _expected(segment: Segment) -> list[Any]:
    """The type and metadata of each tensor that is checked."""
    expected = {g.source: g.value for g in segment.guards if g.kind == "tensor"}
    return [expected[source] for source in glue_source.tensor_order(segment)]


def helpers() -> glue_source.Helpers:
    """Functions that generated glue calls."""
    return {
        **bulk_reads.functions(), "generator": as_generator, "traced": traced, "float32": float32,
        "contents_reader": ContentsReader, "apart_check": Apart, **unchanged.helpers(), **same_tensors.helpers(),
    }  # fmt: skip


def _body(segment: Segment, checked: list[TensorMeta], backend: backends.Backend) -> tuple[glue_source.Body, int, str]:
    """The computing part, how many kernels it has, and why it has none where it could have some."""
    stays = any(node.target in STAYING_MODES for node in segment.graph.nodes) if segment.changes_modes else False
    if not segment.operators and not outputs_of(segment.graph) and not stays:
        return glue_source.Body([], [], {}), 0, ""
    if backend is backends.QUICKFUSE:
        return _kernels(segment, checked)
    return graph_body(segment, _restoring(segment, backend.compile(segment))), 0, ""


def _kernels(segment: Segment, checked: list[TensorMeta]) -> tuple[glue_source.Body, int, str]:
    """Kernels for the graph, or the graph itself where there are none to be had."""
    reason = _why_not_kernels(segment)
    run = _restoring(segment, segment.run)
    if reason is None:
        try:
            return *_compiled(segment, checked, run), ""
        except Unsupported as unsupported:
            reason = unsupported.reason
    logs.emit("graph_breaks", f"the graph at {segment.code.co_filename}:{segment.code.co_firstlineno} runs operator by "
              f"operator: {reason}")  # fmt: skip
    return graph_body(segment, run), 0, reason


def _compiled(segment: Segment, checked: list[TensorMeta], run: Callable[..., Any]) -> tuple[glue_source.Body, int]:
    fused = next((node for node in segment.graph.nodes if is_fused_update(node)), None)
    if fused is not None:
        return _in_subgraphs(segment, f"{fused.target.__name__}, a fused kernel of PyTorch's own")
    show_copies(segment.graph)
    if changed_as_another_type(segment.graph.nodes):
        return _in_subgraphs(segment, "memory that is seen as two types")
    if asked_inside(segment):
        return _in_subgraphs(segment, "gradients of its results to each other")
    if segment.needs_grad or segment.only_eager:
        try:
            body, kernels = joined(segment, checked, run)
            return _in_inference_mode(segment, body), kernels
        except NothingToDifferentiate:
            pass
        except UnsupportedAt as unsupported:
            segment.in_parts = True
            return _in_subgraphs(segment, unsupported.reason)
    return _lowered(segment, checked)


def _in_subgraphs(segment: Segment, reason: str) -> tuple[glue_source.Body, int]:
    """Graphs and calls between them; `reason` is why there is not one graph."""
    def restoring(run: Callable[..., Any]) -> Callable[..., Any]:
        found, eager = _restoring(segment, run), _restoring(segment, segment.run)
        parts = around_autocast(segment, lambda inputs: found(*inputs), lambda inputs: eager(*inputs), numbers_apart=False)
        return (lambda *inputs: parts(inputs)) if segment.in_autocast else found

    try:
        return in_subgraphs(segment, restoring)
    except Unsupported as other:
        raise Unsupported(f"{reason} (in parts: {other.reason})") from None


def _restoring(segment: Segment, run: Callable[..., Any]) -> Callable[..., Any]:
    run = in_inference_mode(run) if segment.inference else run
    if any(map(_may_draw, segment.graph.nodes)):
        generators = [k for k, given in enumerate(segment.inputs) if isinstance(given.meta, ObjectMeta)]
        run = drawing_again(run, _versions_of(segment), generators, _devices(segment))
    return preserving_modes(run) if segment.changes_modes else run


def _devices(segment: Segment) -> list[int]:
    """The GPUs that a captured graph has tensors on."""
    metas = [meta for node in segment.graph.nodes for meta in leaves(node.meta.get("val")) if isinstance(meta, TensorMeta)]
    return sorted({meta.device.index or 0 for meta in metas if meta.device.type == "cuda"})


def _may_draw(node: Node) -> bool:
    """Whether a node of a captured graph may draw random numbers."""
    return node.op in ("call_function", "call_method") and not draws_nothing(node.target, name_of(node.target))


def _versions_of(segment: Segment) -> Callable[[tuple[Any, ...]], Any]:
    """What tells how often those inputs of the graph were changed that it changes."""
    if any(takes_data(node) for node in segment.graph.nodes):
        return partial(glue_source.unknown_versions, picks=[])  # it goes on where it failed
    changed = [k for k, i in enumerate(segment.inputs) if i.name in segment.mutated and isinstance(i.meta, TensorMeta)]
    return lambda inputs: glue_source.versions(inputs, changed)


#: What a graph may depend on that tracing it does not show (see `Segment.only_eager`).
_ONLY_PYTORCH = frozenset({
    "a subclass of torch.Tensor", "autocast around it", "a result made in inference mode", "a view made in inference mode",
    NODE_ASKED, "a setting of PyTorch's that it changes", "an operator that gives a number",
})  # fmt: skip


def _why_not_kernels(segment: Segment) -> str | None:
    if segment.only_eager in _ONLY_PYTORCH:
        return segment.only_eager
    for graph_input in segment.inputs:
        meta = graph_input.meta
        if isinstance(meta, TensorMeta) and graph_input.name in segment.mutated and meta.is_expanded:
            return f"{graph_input.source} overlaps itself and is changed in place"
    for node in segment.graph.nodes:
        value = node.meta.get("val")
        for meta in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(meta, TensorMeta) and meta.device.type not in ("cpu", "cuda"):
                return f"no code generator for the device {meta.device}"
    return None


def _lowered(segment: Segment, checked: list[TensorMeta]) -> tuple[glue_source.Body, int]:
    picks = tensor_picks(segment)
    schedule, calls, placer = kernels_of(
        segment.graph, picks, checked, recorded=segment.recorded, tuned=segment.tuned
    )
    with logs.stage("glue"):
        return _launching(segment, checked, picks, schedule, calls, placer), len(calls)


def _launching(
    segment: Segment, checked: list[TensorMeta], picks: list[int], schedule: Schedule, calls: list[Launch], placer: Any
) -> glue_source.Body:
    schedule.program.versions = changes_of_outputs(segment)
    placer.count_changes(changes_of_inputs(segment))
    if schedule.recorded:
        whole = kernel_function("graph", segment.graph, schedule, calls, placer, segment.changes_inputs)
        replay = replace(replay_of(segment), detach=True)
        replayer = replayed(segment.graph, whole, schedule, calls, placer, picks, len(checked), replay)
        body = joined_body(segment, lambda tensors, numbers: replayer(tensors, *numbers), placer)
        body.replayed = replayer
    else:
        body = kernel_body(segment, schedule, calls, placer)
    give_identity(segment, body, schedule.program.outputs)
    return _in_inference_mode(segment, body)


def _in_inference_mode(segment: Segment, body: glue_source.Body) -> glue_source.Body:
    """The body of a segment, in inference mode where all of the segment is."""
    if segment.inference and body.lines:
        body.lines[:] = ["with _inference_mode():", *(f"    {line}" for line in body.lines)]
        body.constants["_inference_mode"] = torch.inference_mode
    return body


def _identifier(function: FunctionType) -> str:
    name = function.__name__
    return name if name.isidentifier() else "compiled"
