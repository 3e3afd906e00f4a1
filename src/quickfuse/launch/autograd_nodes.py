"""What autograd sees of a call of a compiled graph: one node, `_Joined`, for all its results.

Where results do not depend on the same inputs, autograd would visit what computed an input also for results that have
nothing to do with it. That matters where the input is no leaf, or has hooks. Such a call gets several nodes: each `_Result`
collects gradients of results, and each `_Gate`, after all results that reach its inputs, gives them their gradients. The
first gate that runs computes all: autograd runs the node that was made last first, and gates are made before results. Only
with nodes that other threads made may a result come later: then what is saved is kept, and the next gate computes all again.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import groupby
from typing import Any

import torch

from ..ir.default_device import run_without
from ..ir.endings import OwnReference
from ..ir.gradients import Differentiated, Unfit
from ..ir.modes import in_grad_mode, outer_tracer
from .asked import is_asked, is_visited
from .dependent_results import added_up, graph_is_retained, without_transforms
from .followed_data import gradients as gradients_again
from .kept_results import tell_edges, telling_edges
from .memories import let_go, memories_of, moved
from .other_layouts import other_layouts
from .rerun import small_copy
from .several_results import SavedForResults, keep_hooks_from_nothing

#: Inputs of up to this size are held until backward has run, where backward itself does not need them: to differentiate
#: the gradients (`create_graph=True`) takes all inputs. Larger ones are not, as eager does not: logits can be most of the
#: memory.
HELD_BYTES = 1 << 26

#: How many arguments `_Joined.forward` has that are no inputs.
OTHER_ARGUMENTS = 4

#: With more nodes than this, a call is one node after all.
_MOST_NODES = 32


def run_forward(node: Any, call: Any, tensors: list[Any], numbers: tuple[Any, ...], random_state: Any) -> Any:
    """Run forward, and note on `node` what backward may need. What there is nothing of, its class says: `_NOTHING_YET`."""
    if random_state is not None:
        node.random_state = random_state
    if call.read_before:
        node.contents = {k: small_copy(tensors[k]) for k in call.read_before}
    made = call.compiled_forward.function(tensors, *numbers)
    call.count_changes(made)
    node.call = call
    node.numbers = numbers
    node.strong = call.pick_strong(tensors)
    if call.weak:
        node.weak = [OwnReference(tensors[k]) for k in call.weak]
    if call.held:
        node.held = {k: tensors[k] for k in call.held}
    node.versions = versions_of(tensors)
    if call.in_memory:
        node.memories = memories_of(tensors, call.in_memory)
    if call.links is not None:
        made = call.links.set_aside(node, made)
    return made


def kept_apart(call: Any, tensors: list[Any], made: Any) -> SavedForResults:
    """What is saved, beside autograd: a result, which will refer to the node, must not be referred to by it, but an alias
    counts its changes."""
    saved = [tensors[k] if of_input else made[k].detach() for k, of_input in call.saved]
    return SavedForResults(saved, call.sharing)


def _gradients(node: Any, given: Sequence[Any], retained: bool) -> Sequence[Any] | None:
    """The gradients of all wanted inputs, for those of the differentiable results; None where there are none. `retained`:
    what was saved is kept.

    Raises:
        RuntimeError: where what was saved is gone, or was changed.
    """
    call = node.call
    shared: SavedForResults | None = node.shared
    if call.used_up:
        for number, message in call.used_up.items():
            if given[number] is not None:
                raise RuntimeError(message)
    absent = frozenset([k for k, g in enumerate(given) if g is None]) if len(given) > 1 or given[0] is None else _NONE
    if absent:
        given = [g for g in given if g is not None]
        if not given:
            return None
    held = node.held
    tensors: Sequence[Any] = node.saved_tensors if shared is None else shared.take(absent)
    if node.again is not None:
        found = gradients_again(call, node, _present(call, absent), given, retained)
        if not (retained or _with_gradients()):
            free(node, absent)
        return found
    elsewhere = moved(node.memories, call.in_memory, tensors, saved=True) if node.memories else None
    if not (_with_gradients() or _are_watched(given) or (_autocasts() and call.misses_autocast())):
        has_moved = bool(elsewhere)  # which is emptied below
        layouts = other_layouts(_present(call, absent), given, call.tangents)
        backward = call.compiled_backward(absent, has_moved, layouts)
        if backward is not None:
            if shared is not None:
                shared.check(tensors, backward.read)
            if not retained:
                free(node, absent)
            if elsewhere:
                tensors = [*[elsewhere.pop(k, t) for k, t in enumerate(tensors)], *tensors]
            taken = [*backward.pick_used(tensors), *given]
            tensors = ()  # only the list has what was saved now
            try:
                found: Sequence[Any] = backward(taken, call.pick_numbers(node.numbers))
                if not (has_moved or backward.is_usual):
                    backward.is_usual = True
                    call.note_usual(absent, backward, found)
                return found
            except Unfit as unfit:
                call.note_unfit("backward", unfit)
    found = call.in_eager(node, _present(call, absent), given, _with_gradients())
    del held
    if shared is not None and not retained:
        free(node, absent)
    return found


def _present(call: Any, absent: frozenset[int]) -> list[int]:
    return [k for k in range(len(call.differentiable)) if k not in absent]


def after_unfit(node: Any, absent: frozenset[int], given: Sequence[Any], unfit: Unfit) -> tuple[Any, ...]:
    """What `backward` returns where a compiled one finds that values do not fit: its caller holds the inputs."""
    call = node.call
    call.note_unfit("backward", unfit)
    return _results(node, call.in_eager(node, _present(call, absent), given, False))


def free(node: Any, absent: frozenset[int]) -> None:
    """Free what backward from the results that are not in `absent` was the last to need. One that is refused, as something
    was changed, leaves all to others."""
    shared: SavedForResults | None = node.shared
    if shared is None:
        node.held = {}
        node.memories = ()
        node.again = None
        node.maybe_clear_saved_tensors()
    else:
        saved = shared.tensors
        results = shared.let_go(absent)
        if not results:
            node.held = {}
            node.memories = ()
            node.again = None
            return
        left = node.call.inputs_for(results)
        small = {k: t for (k, of_input), t in zip(node.call.saved, saved, strict=True)
                 if of_input and t is not None and t.nbytes <= HELD_BYTES}  # fmt: skip
        node.held = {k: tensor for k, tensor in (node.held | small).items() if k in left}  # also what is no longer saved
        if node.memories:
            node.memories = let_go(node.memories, node.call.in_memory, shared.tensors)


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Any, tensors: list[Any], numbers: tuple[Any, ...], random_state: Any, *wanted: Any) -> Any:
        if call.usual_forward is not None:
            return call.usual_forward(ctx, call, tensors, numbers)
        made = run_forward(ctx, call, tensors, numbers, random_state)
        ctx.results = [OwnReference(made[k]) for k in call.latest_first]
        if call.apart:
            ctx.shared = kept_apart(call, tensors, made)
        else:
            ctx.save_for_backward(*call.pick_saved([*tensors, *made]))
        ctx.set_materialize_grads(False)
        if call.fixed:
            ctx.mark_non_differentiable(*[made[k] for k in call.fixed])
        return tuple(made[: call.outputs])

    @staticmethod
    @run_without
    def backward(ctx: Any, *gradients: Any) -> Any:
        call = ctx.call
        if call.usual and ctx.again is None:
            usual = call.usual.get(tuple([gradient is None for gradient in gradients]))
            if usual is not None and (result := usual(ctx, gradients)) is not None:
                return result
        given = call.pick_differentiable(gradients)
        if call.paths is not None and call.paths.partial:
            given = [*given]
            call.paths.drop_unasked(given, ctx.next_functions)
        found = _gradients(ctx, given, graph_is_retained())
        if ctx.added is not None:
            found = added_up(ctx, found)
        if found is None:
            if ctx.shared is None and call.keeps and not graph_is_retained():
                _keep_saved(ctx)
            _keep_from_nothing(ctx, {*call.wanted})
            return (*_NOTHING, *[None] * len(call.wanted))
        return _results(ctx, found)


def _keep_saved(node: Any) -> None:
    """Keep what backward needs, although autograd lets go of it now: a graph after this one passed on no gradient, where it
    computes several results of which one is differentiated. In eager it would not have come here."""
    call = node.call
    try:
        tensors = node.saved_tensors
    except RuntimeError:
        return  # they are gone or were changed: the next backward says so
    saved = [t if of_input else t.detach() for t, (_, of_input) in zip(tensors, call.saved, strict=True)]
    node.shared = SavedForResults(saved, call.sharing)


def _results(node: Any, found: Sequence[Any]) -> tuple[Any, ...]:
    """What `backward` returns: the gradients of the wanted inputs, in the order of the node's edges."""
    call = node.call
    for gradient in found:
        if gradient is None:
            _keep_from_nothing(node, {call.wanted[k] for k, gradient in enumerate(found) if gradient is None})
            break
    return (*_NOTHING, *call.pick_edges(found))


def _keep_from_nothing(node: Any, absent: set[int]) -> None:
    """Let the hooks of these inputs of a call, for which the backward that runs has found nothing, not be called."""
    call = node.call
    for index, tensor in (*zip(call.strong, node.strong, strict=True), *zip(call.weak, node.weak, strict=True)):
        if index in absent:
            keep_hooks_from_nothing(tensor if isinstance(tensor, torch.Tensor) else tensor())


class Paths:
    """Which inputs the results of a graph have gradients to."""

    def __init__(self, made: Differentiated, alone: bool) -> None:
        self.reached = made.reached
        self.order = made.order
        self.latest_first = made.latest_first
        everything = range(len(made.wanted))
        devices = {made.outputs[k].device for k in made.differentiable}  # type: ignore[union-attr]
        #: The inputs, as indices in `wanted`, that some results do not reach; none where several threads run backward.
        self.partial = [k for k in everything if not all(k in one for one in made.reached)] if len(devices) == 1 else []
        self.known: dict[tuple[int, ...], Arrangement | None] = {}
        #: Whether each result has a node of its own in any case.
        self.alone = alone and len(devices) == 1
        #: The place of each input among the edges of a single node.
        self.places = {k: place for place, k in enumerate(edges_for(made.order))}

    def arrangement(self, tensors: list[torch.Tensor], wanted: list[int]) -> Arrangement | None:
        """The nodes that a call needs; None if one will do. `wanted` are the indices of the tensors."""
        noticing = tuple([k for k in self.partial if self.alone or _would_notice(tensors[wanted[k]])])
        if noticing not in self.known:
            self.known[noticing] = self._arranged(noticing) if noticing or self.alone else None
        return self.known[noticing]

    def drop_unasked(self, given: list[Any], edges: Sequence[Any]) -> None:
        """Leave out gradients of results where no input that these reach is asked about: in eager, autograd would not come
        here. `edges` are those of the call's one node."""
        for number, gradient in enumerate(given):
            if gradient is not None and not any(is_visited(edges[self.places[k]][0]) for k in self.reached[number]):
                given[number] = None

    def _arranged(self, noticing: tuple[int, ...]) -> Arrangement | None:
        results = self.latest_first

        def reaching(k: int) -> frozenset[int]:
            return frozenset([j for j in results if k in self.reached[j] or k not in noticing])

        gates = [(found, [*ks]) for found, ks in groupby(self.order, reaching)]
        if len(gates) + len(results) > _MOST_NODES:  # then hooks may run in another order
            merged: dict[frozenset[int], list[int]] = {}
            for found, ks in gates:
                merged.setdefault(found, []).extend(ks)
            gates = [*merged.items()]
        gates.reverse()  # what is made last runs first
        together: dict[tuple[tuple[int, ...], int], list[int]] = {}
        for j in results:
            behind = tuple([n for n, (found, _) in enumerate(gates) if j in found])
            if not behind:
                return None
            together.setdefault((behind, j if self.alone else -1), []).append(j)
        if len(gates) + len(together) > _MOST_NODES:
            return None
        edges = [[ks[e] for e in edges_for([*range(len(ks))])] for _, ks in gates]
        return Arrangement(edges, [(numbers, ns) for (ns, _), numbers in reversed(together.items())])


class Arrangement:
    """The nodes of a call: `gates` have the indices in `wanted` that each leads to, in the order of their edges; `results`
    the differentiable results, by number, of each node of these, and the gates after it."""

    def __init__(self, gates: list[list[int]], results: list[tuple[list[int], tuple[int, ...]]]) -> None:
        self.gates = gates
        self.results = results


def _would_notice(tensor: torch.Tensor) -> bool:
    """Whether somebody sees that autograd comes to a tensor without a gradient: what computed it, or hooks."""
    return not tensor.is_leaf or bool(tensor._backward_hooks) or bool(getattr(tensor, "_post_accumulate_grad_hooks", None))


def _joined_leads_to(node: Any, output: int) -> Any:
    """What a result of `_Joined` leads to."""
    paths = node.call.paths
    if paths is None:
        return node.next_functions
    number = node.call.differentiable.index(output)
    return [node.next_functions[paths.places[k]] for k in paths.reached[number]]


def _result_leads_to(node: Any, output: int) -> Any:
    """The same of `_Result`."""
    edges: dict[int, Any] = {}
    for gate, _ in node.next_functions:
        edges.update(zip(gate.mine, gate.next_functions, strict=True))
    return [edges[k] for k in node.state.call.paths.reached[node.numbers[output]]]


class _Call:
    """What the nodes of one call share: `results` are its nodes of results. `collected` are the gradients of results in each
    backward that runs, and the places of the nodes that it has come to; `found` are the gradients of inputs."""

    call: Any
    shared: Any
    held: Any
    added: Any
    again: Any

    def __init__(self) -> None:
        self.results: list[Any] = []
        self.collected: dict[int, tuple[list[Any], set[int]]] = {}
        self.found: dict[int, Sequence[Any] | None] = {}

    def collect(self, node: Any, gradients: Sequence[Any]) -> None:
        task = torch._C._current_graph_task_id()
        if task not in self.collected:
            self.collected[task] = [None] * len(self.call.differentiable), set()
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(lambda: self._forget(task))
        given, seen = self.collected[task]
        seen.add(node.place)
        for k, gradient in enumerate(gradients):
            if gradient is not None and is_asked(node, k):
                given[node.numbers[k]] = gradient
        self.found.pop(task, None)

    def gradients(self) -> Sequence[Any] | None:
        """The gradients of all wanted inputs in the backward that runs."""
        task = torch._C._current_graph_task_id()
        if task not in self.found:
            given, seen = self.collected[task]
            others = [node for place, me in enumerate(self.results) if place not in seen and (node := me()) is not None]
            complete = not any(map(torch._C._will_engine_execute_node, others))
            found = _gradients(self, given, not complete or graph_is_retained())
            self.found[task] = found if self.added is None else added_up(self, found)
            if complete:
                given.clear()
        return self.found[task]

    def _forget(self, task: int) -> None:
        self.collected.pop(task, None)
        self.found.pop(task, None)


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, state: _Call, mine: list[int], device: Any, *wanted: Any) -> Any:
        ctx.state = state
        ctx.mine = mine
        ctx.set_materialize_grads(False)
        return torch.empty(0, device=device)

    @staticmethod
    @run_without
    def backward(ctx: Any, *gradients: Any) -> Any:
        state, mine = ctx.state, ctx.mine
        found = state.gradients()
        given = [None if found is None else found[k] for k in mine]
        if absent := {state.call.wanted[k] for k, gradient in zip(mine, given, strict=True) if gradient is None}:
            _keep_from_nothing(state, absent)
        return (None, None, None, *given)


class _Result(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, state: _Call, numbers: list[int], made: Any, *gates: Any) -> Any:
        ctx.state = state
        ctx.numbers = numbers
        ctx.place = len(state.results)
        state.results.append(weakref.ref(ctx))
        ctx.nothing = (None,) * (3 + len(gates))
        ctx.set_materialize_grads(False)
        results = [made[state.call.differentiable[k]] for k in numbers]
        ctx.results = [OwnReference(result) for result in results]
        if state.call.alone:
            tell_edges(ctx, results)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.state.collect(ctx, gradients)
        return ctx.nothing


def _run_apart(state: _Call, call: Any, tensors: list[Any], numbers: tuple[Any, ...], random_state: Any) -> Any:
    made = run_forward(state, call, tensors, numbers, random_state)
    state.shared = kept_apart(call, tensors, made)
    return made


def apply_apart(call: Any, arrangement: Arrangement, tensors: list[Any], numbers: tuple[Any, ...], random_state: Any) -> Any:
    """The outputs of forward, with several nodes, and what these share."""
    state = _Call()
    made = in_grad_mode(False, _run_apart, state, call, tensors, numbers, random_state)
    wanted = [tensors[k] for k in call.wanted]
    device = made[call.differentiable[0]].device
    gates = [_apply_gate(state, mine, device, *[wanted[k] for k in mine]) for mine in arrangement.gates]
    outputs = [*made[: call.outputs]]
    with telling_edges() if call.alone else nullcontext():
        for ks, behind in arrangement.results:
            for k, output in zip(ks, _apply_result(state, ks, made, *[gates[n] for n in behind]), strict=True):
                outputs[call.differentiable[k]] = output
    return tuple(outputs), state


def _are_watched(gradients: Sequence[torch.Tensor]) -> bool:
    """Whether gradients are computed for something that has to see PyTorch's operators: for several at once, with
    `torch.autograd.grad(..., is_grads_batched=True)`, or while another tool records them."""
    return outer_tracer() is not None or True in map(is_batched, gradients)


def edges_for(order: list[int]) -> list[int]:
    """In which order a node has to have its edges, for autograd to go on in the order `order`.

    Autograd keeps the nodes that are ready in a binary heap. Those that add gradients to leaves are all equal there, so that
    the heap takes them out in a fixed order: that of `std::pop_heap`, which moves the larger child, or else the right one,
    into the place that is free, and the last element into the place that is free in the end.
    """
    heap = list(range(len(order)))
    edges = [0] * len(order)
    for node in order:
        edges[heap[0]] = node
        last = heap.pop()
        free, size = 0, len(heap)
        while 2 * free + 2 < size:
            heap[free] = heap[2 * free + 2]
            free = 2 * free + 2
        if 2 * free + 1 < size:
            heap[free] = heap[2 * free + 1]
            free = 2 * free + 1
        if heap:
            heap[free] = last
    return edges


#: The gradients of `forward`'s first arguments, which are no tensors.
_NOTHING = (None,) * OTHER_ARGUMENTS
#: What autograd's classes of nodes have as long as a call's node has none of its own.
_NOTHING_YET: dict[str, Any] = {
    "random_state": None, "contents": {}, "weak": (), "held": {}, "shared": None, "added": None, "memories": (),
    "handed_out": (), "again": None,
}  # fmt: skip
NOTHING_HELD: dict[int, Any] = {}
_NONE: frozenset[int] = frozenset()
is_batched = torch._C._functorch.is_legacy_batchedtensor
_with_gradients = torch.is_grad_enabled
_version = operator.attrgetter("_version")
_autocasts = torch._C._is_any_autocast_enabled


for _kind in (_Joined._backward_cls, _Call):  # type: ignore[attr-defined]
    for _name, _value in _NOTHING_YET.items():
        setattr(_kind, _name, _value)

apply = without_transforms(_Joined, _joined_leads_to)
_apply_gate = without_transforms(_Gate)
_apply_result = without_transforms(_Result, _result_leads_to)


def versions_of(tensors: list[Any]) -> list[int]:
    """How often tensors were changed. Inference tensors do not count it."""
    try:
        return [*map(_version, tensors)]
    except RuntimeError:
        return [0 if t.is_inference() else t._version for t in tensors]
