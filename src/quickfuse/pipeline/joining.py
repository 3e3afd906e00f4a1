"""From a captured graph that needs gradients to a body: differentiate, compile both graphs, join them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import nullcontext, suppress
from functools import cache
from types import CodeType
from typing import Any

import torch
from torch.fx import Graph

from .. import config, logs
from ..bytecode.decoding import codes_in
from ..differentiate import describe, differentiate
from ..emit import glue as glue_source
from ..emit.body import joined_body, tensor_picks
from ..emit.epilogue import segment_recipes, sources_in
from ..emit.forward_backward import kernel_function, operator_function
from ..emit.identity import changes_of_inputs, changes_of_outputs, give_identity
from ..errors import Unsupported
from ..ir.garbage import collected_later
from ..ir.gradients import Differentiated, Given, Layouts, NothingToDifferentiate
from ..ir.loop import Buffer, View
from ..ir.meta_kernels import light_meta_kernels
from ..ir.modes import STAYING_MODES, autocast_devices
from ..ir.segment import Existing, Segment
from ..ir.source import Source
from ..ir.values import TensorMeta
from ..launch import tensor_check
from ..launch.around_autocast import AroundAutocast
from ..launch.compiled_graph import CompiledGraph
from ..launch.followed_call import FollowedCall
from ..launch.joined import JoinedCall
from ..signals import handlers_heard
from .kernels import Replay, begin_kernels, replayed
from .report import save_report


def joined(segment: Segment, checked: list[TensorMeta], run: Any) -> tuple[glue_source.Body, int]:
    """The body of a segment that needs gradients, and how many kernels its forward graph has. `run` is the graph in eager.

    Raises:
        NothingToDifferentiate: where no result has a gradient, so that the captured graph may be lowered as it is.
        Unsupported: with the reason, where gradients are left to eager.
    """
    made = _differentiated(segment)
    try:
        return _joined(segment, checked, run, made)
    except NothingToDifferentiate:
        raise
    except Unsupported:
        if not made.has_tail:
            raise
    return _joined(segment, checked, run, _differentiated(segment, whole=True))


def _differentiated(segment: Segment, whole: bool = False) -> Differentiated:
    """A segment's graphs of ATen operators. In inference mode, there is nothing to differentiate."""
    with torch.no_grad() if segment.inference else nullcontext():
        made = differentiate(segment.graph, whole)
    if segment.inference and made.differentiable:
        raise Unsupported("a result that requires gradients, made in inference mode")
    return made


def _joined(segment: Segment, checked: list[TensorMeta], run: Any, made: Differentiated) -> tuple[glue_source.Body, int]:
    if not segment.only_eager and not made.differentiable and not any(map(_needs_autograd, made.results)):
        raise NothingToDifferentiate("no output has a gradient")
    if logs.enabled("joint"):
        logs.emit("joint", describe(made))
    examples = [(e, i.meta) for e, i in zip(segment.examples, segment.inputs, strict=True) if isinstance(i.meta, TensorMeta)]
    keeps = [bool(e.is_leaf and meta.requires_grad) for e, meta in examples]
    is_number = [not isinstance(i.meta, TensorMeta) for i in segment.inputs]
    modes: list[Any] = [(n.target, n.args) for n in segment.graph.nodes if n.target in STAYING_MODES]
    classes = [i.cls for i in segment.inputs]
    replay = replay_of(segment) if segment.recorded else None
    call, placer, kernels = compile_forward_backward(
        made, tensor_picks(segment), checked, run, is_number, keeps, modes, classes, restarts=True,
        replay=replay, tuned=segment.tuned, followed=segment.pause is not None, alone=has_hooks_later(segment),
    )  # fmt: skip
    with logs.stage("glue"):
        changed = dict(changes_of_outputs(segment))
        call.changed = [(r.index, changed[k]) for k, r in enumerate(made.results) if k in changed and not r.of_input]
        if placer is not None:
            placer.count_changes(changes_of_inputs(segment))
            if placer.written:
                picks = tensor_picks(segment)
                call.noted_changes = {k: placer.changes[at] for k, at in enumerate(picks) if at in placer.changes}
        body = joined_body(segment, around_autocast(segment, call, call.natively), placer)
        if replay is not None and call.compiled_forward.replayed is not None:
            body.replayed = call.compiled_forward.replayed
        give_identity(segment, body)
    return body, kernels


def has_hooks_later(segment: Segment) -> bool:
    """Whether the rest of the program, as far as the suspended functions tell, registers hooks for tensors."""
    return segment.pause is not None and any(_registers_hooks(frame.code) for frame in segment.frames)


@cache
def _registers_hooks(code: CodeType) -> bool:
    return any(not {"register_hook", "retain_grad"}.isdisjoint(inner.co_names) for inner in codes_in(code))


def _needs_autograd(result: Given) -> bool:
    """Whether a result needs gradients, though no operator computes it with any: an input, a view of one, or a new leaf."""
    return result.leaf or (result.with_grad and result.of_input)


def around_autocast(
    segment: Segment, compiled: Callable[..., Any], in_eager: Callable[..., Any], numbers_apart: bool = True
) -> Callable[..., Any]:
    """What was compiled for a segment, in eager where autocast around it goes on with copies of weights that have changed.

    Both are called with the list of the graph's inputs; `numbers_apart`: of those that are tensors, and with the others.
    """
    if not segment.in_autocast:
        return compiled
    devices = autocast_devices()
    inputs = [
        (example, given.meta) for example, given in zip(segment.examples, segment.inputs, strict=True)
        if isinstance(given.meta, TensorMeta) or not numbers_apart
    ]  # fmt: skip
    weights = [
        k for k, (example, meta) in enumerate(inputs)
        if isinstance(meta, TensorMeta) and meta.dtype is torch.float32 and meta.requires_grad and example.is_leaf
        and meta.device.type in devices
    ]  # fmt: skip
    return AroundAutocast(compiled, in_eager, weights, inputs[weights[0]][1].device) if weights else compiled


def replay_of(segment: Segment) -> Replay:
    """What is known about the tensors of a segment that is recorded."""
    tensors = [i for i in segment.inputs if isinstance(i.meta, TensorMeta)]
    return Replay(
        copied=[k for k, i in enumerate(tensors) if _is_argument(i.source) and not issubclass(i.cls, torch.nn.Parameter)],
        changed=[k for k, i in enumerate(tensors) if i.name in segment.mutated],
        regrades=bool(regraded(segment)),
    )


def regraded(segment: Segment) -> dict[Source, TensorMeta]:
    """The tensors whose gradients a segment replaces without using the old ones, by where these are."""
    tensors = {i.source: i.meta for i in segment.inputs if isinstance(i.meta, TensorMeta)}
    targets = [e.target for e in segment.effects if e.kind == "setattr" and e.key == "grad"]
    found = {t.source.attr("grad"): tensors[t.source] for t in targets if isinstance(t, Existing) and t.source in tensors}
    used = tensors.keys() | {source for recipe in segment_recipes(segment) for source in sources_in(recipe)} if found else ()
    return {source: meta for source, meta in found.items() if source not in used}


def _is_argument(source: Source) -> bool:
    """Whether it is an argument, or in a list, tuple or dictionary that is one."""
    while source.kind == "item" and source.base is not None:
        source = source.base
    return source.kind == "local"


def compile_forward_backward(
    made: Differentiated, picks: list[int], checked: list[TensorMeta], run: Any, is_number: list[bool], keeps: list[bool],
    modes: list[Any], classes: list[type], restarts: bool = False, replay: Replay | None = None, tuned: bool = False,
    followed: bool = False, alone: bool = False,
) -> tuple[JoinedCall, Any, int]:  # fmt: skip
    """A call of both graphs, what places the addresses of its inputs (if anything), and its forward's number of kernels.

    `picks` are the positions of the tensor inputs among the `checked` tensors, `classes` the inputs' classes. For the rest
    see `JoinedCall`. `restarts`: the whole call may run natively instead, as long as nothing has been changed. With
    `replay`, both are replayed as CUDA graphs. `tuned`: launch shapes are measured. `followed`: the program goes on in
    Python with the results. `alone`: it may have hooks for them.
    """
    ours = {s.index for s in made.saved if not s.of_input and s.index >= len(made.outputs)}
    only_kernels = made.has_tail or bool(made.mutated)
    restarts = bool(made.mutated) and restarts
    found, finish = _begin("forward", made.forward, picks, checked, only_kernels, ours, restarts, replay, tuned)
    lies = [None if s.of_input else found.get(s.index) for s in made.saved] * 2
    kept = [classes[s.index] if s.of_input else torch.Tensor for s in made.saved] * 2
    backward, used_up, variant = made.backward, made.used_up.keys(), made.variant  # and not the forward graph
    begun: list[Callable[[], CompiledGraph]] = []
    if made.differentiable and not tuned and _are_compiled_elsewhere(checked):
        with suppress(Exception):  # which is raised again when a backward is asked for
            begun.append(_begin_backward(backward, kept, lies, replay is not None, tuned))  # beside forward's kernels
    function, placer, kernels = finish()
    if placer is None:  # operators, whose results lie as in eager
        lies = [None] * len(lies)
        begun.clear()
    compiled_forward = CompiledGraph(function, None, tensor_check, placer, kernels, [])

    @collected_later()
    @light_meta_kernels()
    def make_backward(absent: frozenset[int], moved: bool, layouts: Layouts) -> CompiledGraph:
        with handlers_heard() as heard:
            try:
                if not (moved or layouts) and absent <= used_up:
                    if begun:
                        return begun.pop()()
                    return _begin_backward(backward, kept, lies, replay is not None, tuned)()
                assert variant is not None
                return _begin_backward(variant(absent, moved, layouts).backward, kept, lies, replay is not None, tuned)()
            except Exception as raised:
                heard.check()
                if config.raise_internal_errors or isinstance(raised, Unsupported):
                    raise
                error = raised
            logs.log.warning(
                "internal error while compiling a backward graph (%s: %s); eager computes the gradients. %s",
                type(error).__name__, error, save_report(run, error),
            )  # fmt: skip
            raise Unsupported(f"internal error: {type(error).__name__}: {error}") from error

    early = getattr(function, "changes_early", [])
    kind = FollowedCall if followed and made.differentiable else JoinedCall
    return kind(made, compiled_forward, make_backward, run, is_number, keeps, modes, early, alone), placer, kernels


def _are_compiled_elsewhere(checked: list[TensorMeta]) -> bool:
    """Whether other processes compile the kernels, while this one may prepare others."""
    return any(meta.device.type != "cpu" for meta in checked)


def _begin(
    name: str, graph: Graph, picks: list[int], checked: list[TensorMeta], only_kernels: bool = False,
    free: Collection[int] = (), restarts: bool = False, replay: Replay | None = None, tuned: bool = False,
) -> tuple[dict[int, TensorMeta], Callable[[], tuple[Any, Any, int]]]:  # fmt: skip
    """Begin to compile a graph. Returns how the outputs at the positions `free` will lie in memory, where they do not lie as
    in eager, and what finishes: it returns a function of the graph's tensors and numbers, what places the addresses of its
    inputs (None where operators are called one by one, whose results lie as in eager), and its number of kernels.

    Operators are not called one by one, if `only_kernels`: nothing would see to it that changed inputs do not overlap.
    """

    def by_operators(unsupported: Unsupported) -> tuple[Any, Any, int]:
        if only_kernels:
            raise unsupported
        logs.emit("graph_breaks", f"a {name} graph runs operator by operator: {unsupported.reason}")
        return operator_function(name, graph), None, 0

    try:
        begun = begin_kernels(graph, picks, checked, free, replay is not None, tuned)
    except Unsupported as unsupported:
        made = by_operators(unsupported)
        return {}, lambda: made
    schedule = begun.schedule
    lies = {k: lying for k in free if (lying := lying_of(schedule.program.outputs[k])) is not None}

    def finish() -> tuple[Any, Any, int]:
        try:
            calls, placer = begun.finish()
            with logs.stage("glue"):
                function = kernel_function(name, graph, schedule, calls, placer, restarts, consumes=name == "backward")
                if replay is not None and schedule.recorded:
                    function = replayed(graph, function, schedule, calls, placer, picks, len(checked), replay)
        except Unsupported as unsupported:
            return by_operators(unsupported)
        return function, placer, len(calls)

    return lies, finish


def lying_of(output: Any) -> TensorMeta | None:
    """How a saved tensor lies in memory; None where nothing can be said of it."""
    if isinstance(output, Buffer):
        return output.meta
    if isinstance(output, View) and output.buffer.kind == "output":
        return TensorMeta(output.buffer.meta.dtype, output.shape, output.stride, output.buffer.meta.device)
    return None


def _begin_backward(
    graph: Graph, kept: list[type], lies: list[TensorMeta | None], recorded: bool, tuned: bool
) -> Callable[[], CompiledGraph]:
    """Begin to compile backward, and return what finishes it. Its first tensors have the classes `kept`: what is saved of a
    parameter is the parameter itself.

    `lies` tells how these tensors lie in memory; None: as in eager.
    """
    for node in [*graph.nodes]:
        saved = node.meta.get("saved") if node.op == "placeholder" else None
        if saved is not None and not node.users:  # gradients of some results alone do not need all of it, which may be freed
            graph.erase_node(node)
        elif saved is not None:
            node.meta["lies"] = lies[saved] or node.meta["val"]
    placeholders = [n for n in graph.nodes if n.op == "placeholder" and isinstance(n.meta["val"], TensorMeta)]
    metas = [n.meta.get("lies", n.meta["val"]) for n in placeholders]
    positions = [*range(len(metas))]
    used = [n.meta["saved"] for n in placeholders if "saved" in n.meta]
    replay = Replay(copied=positions[len(used) :], consumes=True) if recorded else None
    _, finish = _begin("backward", graph, positions, metas, replay=replay, tuned=tuned)

    def finished() -> CompiledGraph:
        function, placer, kernels = finish()
        classes = [*[kept[k] for k in used], *[torch.Tensor] * (len(metas) - len(used))]
        check = tensor_check([*zip(classes, metas, strict=True)]) if metas and placer is not None else None
        return CompiledGraph(function, check, tensor_check, placer, kernels, metas, used)

    return finished
