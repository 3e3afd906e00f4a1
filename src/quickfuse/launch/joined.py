"""A forward and a backward function as one operation of autograd.

`JoinedCall` is what generated code calls; each call is a node of autograd's graph, which keeps what backward needs by
`save_for_backward`: so that the checks, hooks and errors of PyTorch hold.

Backward comes in versions, by the outputs that have a gradient, each compiled when it is first needed. With grad mode on
(`create_graph=True`), the captured graph runs once more, in eager, and eager differentiates it. Where that is what happens
to nearly every call, the next ones run in eager at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

from .. import logs
from ..errors import InternalError, Unsupported
from ..ir.gradients import Differentiated, Given, Layouts, Refused, Unfit
from ..ir.modes import Modes, in_grad_mode, modes_restored, preserving_modes
from ..ir.random_state import RandomState, own_generators, set_states, states_of
from ..ir.segment import RunNatively
from ..ir.values import ObjectMeta, TensorMeta
from .autograd_nodes import HELD_BYTES, Paths, apply, apply_apart, edges_for, versions_of
from .compiled_graph import CompiledGraph
from .dependent_results import links_of
from .kept_results import Led, led_through, living_results
from .memories import moved
from .other_layouts import MOST
from .places import inputs_that_matter, picker, tensor_positions
from .rerun import WithContents, outside_batches, random_state_of_forward
from .several_results import Sharing
from .usual_backward import usual_backward
from .usual_forward import usual_forward
from .versions import take_back

#: After so many gradients that are differentiated themselves, with hardly a call that had none, so many calls run in eager.
_SECOND_ORDERS, _CALLS_IN_EAGER = 4, 100


@preserving_modes
def _set_modes(modes: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]]) -> None:
    for function, settings in modes:
        function(*settings)


class JoinedCall:
    """A captured graph that needs gradients, compiled."""

    #: Whether calls may run in eager that need not.
    may_be_left = True

    def __init__(
        self,
        made: Differentiated,
        forward: CompiledGraph,
        make_backward: Callable[[frozenset[int], bool, Layouts], CompiledGraph],
        run: Callable[..., Any],
        is_number: list[bool],
        keeps: list[bool],
        modes: list[tuple[Callable[..., Any], tuple[Any, ...]]],
        early: list[int],
        alone: bool = False,
    ) -> None:
        """`run` is the captured graph in eager, `is_number` says which of its inputs are numbers, or generators of random
        numbers, and `keeps` which of the tensors are to be held, not only referred to, by a call's node. `modes` are the
        calls by which the graph changes settings that stay changed when it ends. `early` are the tensors that forward
        changes before it is known that all its operators return what they should. `alone`: each result is to have a node
        of its own, as the program may have hooks for them."""
        self.compiled_forward = forward
        self.make_backward = make_backward
        self.backwards: dict[tuple[frozenset[int], bool, Layouts], CompiledGraph | str] = {}
        #: The layouts in which backward takes the gradients of differentiable outputs, by number.
        taken = [k for k in range(len(made.differentiable)) if k not in made.used_up]
        self.tangents = dict(zip(taken, made.tangents, strict=True))
        self.run = run
        self.modes = modes
        #: Forward for a node, where nothing is unusual.
        self.usual_forward: Callable[..., Any] | None = None
        #: Backward where nothing is unusual, by which gradients of outputs there are none of.
        self.usual: dict[tuple[bool, ...], Callable[..., Any]] = {}
        #: How often outputs of forward were changed in place, by their numbers, and how often it was noted of inputs that
        #: they are, before the call.
        self.changed: list[tuple[int, int]] = []
        self.noted_changes: dict[int, int] = {}
        self.unfit = False
        #: How many gradients were differentiated themselves of late, of how many calls, and how many calls run in eager now.
        self.second_orders = self.calls = self.left_to_eager = 0
        #: The graphs, "forward" or "backward", of which it was said that eager runs instead.
        self.noted: set[str] = set()
        self.early = early
        #: Whether all operators of forward have returned what they should.
        self.proven = False
        #: Whether backward has products that autocast around it would make others of.
        self.converts = any(map(_is_converted, made.backward.nodes))
        #: The settings that forward begins with, as guards say of autocast.
        self.modes_before = Modes()
        self.is_number = is_number
        self.strong = [k for k, keep in enumerate(keeps) if keep]
        self.weak = [k for k, keep in enumerate(keeps) if not keep]
        self.mutated = frozenset(made.mutated)
        self.tensor_index = tensor_positions(is_number)
        self.outputs = len(made.outputs)
        self.differentiable = made.differentiable
        self.sharing = Sharing(made.clashing, made.needed_by)
        #: The differentiable outputs, in the order in which their hooks are called.
        self.latest_first = [made.differentiable[k] for k in made.latest_first]
        #: Whether what is saved may be kept beside autograd: replayed graphs write to its memory again.
        self.keeps = forward.replayed is None
        self.paths = Paths(made, alone) if self.keeps else None
        self.alone = self.paths is not None and self.paths.alone
        self.links = links_of(made) if self.keeps else None
        #: The inputs, as indices of tensors, on which the gradients of each differentiable output depend.
        self.read_by = [{self.tensor_index[k] for k in ks if k in self.tensor_index} for ks in inputs_that_matter(made)]
        self.used_up = made.used_up
        tensors = {k: meta for k, meta in enumerate(made.outputs) if isinstance(meta, TensorMeta)}
        self.fixed = [k for k in tensors if k not in set(made.differentiable)]
        self.draws = made.draws
        self.devices = sorted({i.device.index or 0 for i in tensors.values() if i.device.type == "cuda"})
        self.wanted = [self.tensor_index[k] for k in made.wanted]
        #: The indices in `wanted` in the order in which a call's node has its edges.
        self.edges = edges_for(made.order)
        self.leading = [self.wanted[k] for k in self.edges]
        self.number_index = {k: n for n, k in enumerate([k for k, number in enumerate(is_number) if number])}
        self.numbers = [self.number_index[k] for k in made.numbers]
        placeholders = made.forward.find_nodes(op="placeholder")
        #: The generators of random numbers among what is no tensor.
        self.generators = [self.number_index[k] for k, n in enumerate(placeholders) if isinstance(n.meta["val"], ObjectMeta)]
        self.read_before = [self.tensor_index[k] for k in made.read_before]
        self.saved = [(self.tensor_index[s.index] if s.of_input else s.index, s.of_input) for s in made.saved]
        several = len(made.clashing)
        #: Whether what is saved is kept so that backward from some outputs leaves to others what is saved for them, and does
        #: not ask whether the program has changed an input or output that it does not read.
        self.apart = self.keeps and (
            any(len(one) < several for one in made.clashing)
            or any(
                len(needed) < several and (of_input or k < self.outputs)
                for (k, of_input), needed in zip(self.saved, made.needed_by, strict=True)
            )
        )
        self.inputs: list[TensorMeta] = [v for n in made.forward.find_nodes(op="placeholder")
                                         if isinstance(v := n.meta["val"], TensorMeta)]  # fmt: skip
        self.held = [k for k in self.weak if (k, True) not in self.saved and self.inputs[k].nbytes <= HELD_BYTES]
        #: Saved tensors of which backward reads the memory that they had in forward, which inputs they are, their layouts.
        self.in_memory = [(k, index, self.inputs[index]) for k in made.in_memory for index, _ in [self.saved[k]]]
        #: Inputs that backward reads, or computes its operands from again, here or in eager.
        kept = {k for k, of_input in self.saved if of_input} | {*self.weak} if made.differentiable else set()
        self.kept_inputs = sorted(kept | {self.tensor_index[k] for k in made.kept_inputs})
        self.pick_strong, self.pick_leading = picker(self.strong), picker(self.leading)
        self.pick_saved = picker([k if of_input else k + len(self.inputs) for k, of_input in self.saved])
        self.pick_differentiable, self.pick_edges = picker(self.differentiable), picker(self.edges)
        self.pick_numbers = picker(self.numbers)
        self.results = made.results
        self.plain = [r.index for r in made.results] == [*range(self.outputs)] and not any(
            r.of_input or r.path or r.leaf for r in made.results
        )
        #: Whether a call is one node for autograd, in all circumstances; whether it is no more than that from now on.
        self._has_one_node = bool(self.differentiable) and not (
            self.links or self.draws or self.alone or (self.paths is not None and self.paths.partial)
        )
        self.settled = False
        # Of the views of one, that with the fewest steps stands, the last: another may begin anew with it.
        own = sorted([(-len(r.path), k, r.index) for k, r in enumerate(made.results) if not r.of_input])
        self.result_of = {index: (k, steps < 0) for steps, k, index in own}

    def __call__(self, tensors: list[Any], numbers: tuple[Any, ...]) -> Any:
        """The outputs of the captured graph; `tensors` and `numbers` are its inputs, in order."""
        if self.unfit:
            return self.natively(tensors, numbers)
        if self.left_to_eager and torch.is_grad_enabled():
            self.left_to_eager -= 1
            return self._run_again(tensors, numbers, None)
        self.calls += 1
        random_state: RandomState | None = None
        if self.draws:
            random_state = states_of([*own_generators(self.devices), *[numbers[k] for k in self.generators]])
        before = None
        if not self.proven:
            before = [(tensors[k], tensors[k].detach().clone()) for k in self.early]
            self.modes_before = Modes()
        try:
            if self.settled and torch.is_grad_enabled():
                if self.usual_forward is None:
                    self.refuse_inference(tensors)
                return apply(self, tensors, numbers, None, *self.pick_leading(tensors))
            made, views = self._run_compiled(tensors, numbers, random_state)
            if not self.proven and self.differentiable:
                self.usual_forward = usual_forward(self)
            self.proven = True  # the shapes that operators return do not change from call to call
            self.settled = self._has_one_node and self.plain and not self.modes
        except Unfit as unfit:
            made = None
            if not isinstance(unfit, Refused):
                if before is None and self.early:
                    reason = "an operator returned another shape than before, after tensors were changed"
                    raise InternalError(reason) from None
                _put_back(before)
        except torch.OutOfMemoryError:
            if not before:
                raise
            _put_back(before)
            self.proven = True  # there is no room for copies
            return self(tensors, numbers)
        except RunNatively:
            take_back(self.noted_changes, tensors)
            raise
        if made is None:  # what eager raises has nothing to do with the exception above
            outputs = self._run_again(tensors, numbers, random_state)
            self.unfit = True  # eager raises nothing either: what was compiled is no good
            self.note_unfit("forward", Unfit())
            return outputs
        if self.modes:
            _set_modes(self.modes)
        return made if self.plain else self._assembled(tensors, made, views)

    def _run_again(self, tensors: list[Any], numbers: tuple[Any, ...], random_state: Any) -> Any:
        """The outputs in eager, from the random state as it was. If it raises, whoever runs the program from its beginning
        brings that back (see `ir.modes.drawing_again`)."""
        take_back(self.noted_changes, tensors)
        if random_state is not None:
            set_states(random_state)
        return self.natively(tensors, numbers)

    def _run_compiled(self, tensors: list[Any], numbers: tuple[Any, ...], random_state: Any) -> tuple[Any, dict[int, Any]]:
        """The outputs of forward, and of the captured graph's those views of them that are made already, by position."""
        self.refuse_inference(tensors)
        if not self.differentiable:
            return in_grad_mode(False, self._unrecorded, tensors, numbers), _NO_VIEWS
        if torch.is_grad_enabled():
            return self._recorded(tensors, numbers, random_state)
        # The graph begins without recording gradients, and turns it on itself.
        return in_grad_mode(True, self._recorded, tensors, numbers, random_state)  # type: ignore[no-any-return]

    def _unrecorded(self, tensors: list[Any], numbers: tuple[Any, ...]) -> Any:
        made = self.compiled_forward.function(tensors, *numbers)
        self.count_changes(made)
        return made

    def refuse_inference(self, tensors: list[Any]) -> None:
        """Leave inference tensors to eager, which refuses them where it would keep them."""
        for k in self.kept_inputs:
            if tensors[k].is_inference():
                raise RunNatively

    def _recorded(self, tensors: list[Any], numbers: tuple[Any, ...], random_state: Any) -> tuple[Any, dict[int, Any]]:
        """The same, with gradients."""
        apart = self.paths is not None and (self.alone or self.paths.partial)
        arrangement = self.paths.arrangement(tensors, self.wanted) if apart else None
        if arrangement is not None:
            made, node = apply_apart(self, arrangement, tensors, numbers, random_state)
        else:
            made = apply(self, tensors, numbers, random_state, *self.pick_leading(tensors))
            node = None
        if self.links is None:
            return made, _NO_VIEWS
        return self.links.link(self, tensors, made, made[self.differentiable[0]].grad_fn if node is None else node)

    def natively(self, tensors: list[Any], numbers: tuple[Any, ...]) -> Any:
        """The outputs of the captured graph in eager."""
        return self.run(*self._all_inputs(tensors, numbers))

    def _all_inputs(self, tensors: list[Any], numbers: tuple[Any, ...]) -> list[Any]:
        """The captured graph's inputs in order."""
        some, others = iter(tensors), iter(numbers)
        return [next(others if number else some) for number in self.is_number]

    def _assembled(self, tensors: list[Any], made: Sequence[Any], views: dict[int, Any]) -> list[Any]:
        return [views[k] if k in views else self.view(result, tensors, made) for k, result in enumerate(self.results)]

    def view(self, result: Given, tensors: list[Any], made: Sequence[Any]) -> Any:
        """An output of the captured graph: one of forward, or an input, or a view of such."""
        value = tensors[self.tensor_index[result.index]] if result.of_input else made[result.index]
        seen = result.seen_from(value) if result.path else value
        return seen.requires_grad_() if result.leaf else seen

    def count_changes(self, made: Sequence[Any]) -> None:
        """Let outputs tell how often they were changed, before autograd notes it for those that it keeps. Inference tensors
        count nothing."""
        if self.changed and not torch.is_inference_mode_enabled():
            _set_versions(tuple([made[k] for k, _ in self.changed]), tuple([times for _, times in self.changed]))

    def compiled_backward(self, absent: frozenset[int], elsewhere: bool, layouts: Layouts = ()) -> CompiledGraph | None:
        """Backward without gradients for the outputs `absent`; None where only eager can do it. `elsewhere`: for inputs that
        have other memory than in forward. `layouts` are those of gradients that have others than in `tangents`, as far as
        they matter: what is returned copies gradients that it takes in another one."""
        known = self.backwards.get((absent, elsewhere, layouts))
        if known is None:
            if layouts and sum(bool(others) for *_, others in self.backwards) >= MOST:
                return self.compiled_backward(absent, elsewhere)
            try:
                known = self.make_backward(absent, elsewhere, layouts)
                known.read = [k % len(self.saved) for k in known.used]
            except Unsupported as unsupported:
                known = unsupported.reason
            self.backwards[absent, elsewhere, layouts] = known
        if isinstance(known, str):
            return self.compiled_backward(absent, elsewhere) if layouts else None
        return known

    def note_usual(self, absent: frozenset[int], backward: CompiledGraph, found: Sequence[Any]) -> None:
        """Have code for the next calls of a backward graph that has run, and what it returned."""
        reaching = self.paths is None or not self.paths.partial or all(self.paths.reached)
        if not reaching or backward.check is None or backward.replayed is not None or any(g is None for g in found):
            return
        present = {k for number, k in enumerate(self.differentiable) if number not in absent}
        self.usual[tuple([k not in present for k in range(self.outputs)])] = usual_backward(self, absent, backward)

    def note_unfit(self, name: str, unfit: Unfit) -> None:
        """Say once that eager runs instead of what was compiled."""
        if not isinstance(unfit, Refused):
            self.note_eager(
                name, "an operator returned another shape, type or device than PyTorch says, or a number is too large"
            )

    def misses_autocast(self) -> bool:
        """Whether autocast, which is on in backward, would convert operands of products that forward took as they were."""
        if self.converts:
            self.note_eager("backward", "autocast around it, and not around the products of the call")
        return self.converts

    def note_eager(self, name: str, reason: str) -> None:
        if name not in self.noted:
            self.noted.add(name)
            logs.emit("graph_breaks", f"a {name} graph runs operator by operator: {reason}")

    # in eager ---------------------------------------------------------------------------------------------------

    def in_eager(self, node: Any, asked: Sequence[int], gradients: Sequence[Any], create_graph: bool) -> list[Any]:
        """The gradients, by running the captured graph once more, with autograd. `gradients` are those of the differentiable
        outputs with the numbers `asked`."""
        outputs, aliases = self.run_again(node, self.run, asked)
        found = self.gradients_of(outputs, aliases, asked, gradients, create_graph, create_graph)
        if not create_graph:
            return found
        self._note_second_order()
        operands = [t for t in (*[aliases[k] for k in self.wanted], *gradients) if t.requires_grad]
        return led_through(found, operands, self.paired(outputs, living_results(node, self)))

    def _note_second_order(self) -> None:
        self.second_orders += 1
        if self.second_orders == _SECOND_ORDERS:
            if self.calls <= _SECOND_ORDERS + 1 and self.may_be_left:
                self.left_to_eager = _CALLS_IN_EAGER
                self.note_eager("forward", "the gradients of nearly every call are differentiated, by a run in eager")
            self.second_orders = self.calls = 0

    def paired(self, outputs: list[Any], results: dict[int, Led]) -> list[tuple[Any, Led]]:
        """Outputs of a run in eager, with the program's results that they stand for. These are given by number."""
        return [(self.base_or_self(outputs, self.differentiable[k]), led) for k, led in results.items()]

    def gradients_of(
        self, outputs: list[Any], aliases: dict[int, Any], asked: Sequence[int], gradients: Sequence[Any],
        create_graph: bool, retained: bool,
    ) -> list[Any]:  # fmt: skip
        """The gradients, through the captured graph in eager, which has given `outputs`."""
        found = torch.autograd.grad(
            [self.base_or_self(outputs, self.differentiable[k]) for k in asked], [aliases[k] for k in self.wanted],
            [*gradients], create_graph=create_graph, retain_graph=retained, allow_unused=True,
        )  # fmt: skip
        return list(found)

    def run_again(self, node: Any, run: Callable[..., Any], asked: Iterable[int]) -> tuple[Any, dict[int, Any]]:
        """What `run` makes of a call's inputs as they were, in eager and with autograd, and the inputs that gradients are
        taken by, by index. Of the differentiable outputs, those of these numbers are `asked` for: inputs that do not matter
        to their gradients may have changed."""
        tensors = self.inputs_as_they_were(node, asked)
        elsewhere = moved(node.memories, self.in_memory, tensors) if node.memories else {}
        aliases: dict[int, Any] = {}
        with modes_restored(), torch.enable_grad(), random_state_of_forward(node.random_state):
            self.modes_before.restore_autocast()
            for index in self.wanted:  # another input may depend on it: only the way through the graph counts
                tensor = tensors[index]
                if not tensor.requires_grad:  # since the call, and what is found for it now, autograd leaves out
                    tensor = tensor.detach().requires_grad_()
                tensors[index] = aliases[index] = tensor.view_as(tensor)
            for index, tensor in enumerate(tensors):
                if tensor.requires_grad and index not in aliases:  # the graph may take gradients by it, unseen by its hooks
                    tensors[index] = tensor.detach().requires_grad_().view_as(tensor)
            for index, before in elsewhere.items():
                tensors[index] = WithContents.apply(tensors[index], before)
            for index in {self.tensor_index[k] for k in self.mutated}:
                contents = node.contents.get(index, tensors[index])
                if contents is None:
                    raise RuntimeError(
                        "these gradients have to be computed from the inputs of the compiled function, which has changed "
                        f"one of shape {list(tensors[index].shape)}. Call the function without compiling it"
                    )
                tensors[index] = WithContents.apply(tensors[index], contents)
            with outside_batches():
                return run(*self._all_inputs(tensors, node.numbers)), aliases

    def inputs_as_they_were(self, node: Any, asked: Iterable[int]) -> list[Any]:
        """A call's inputs. In place of those that are gone, where they do not matter, zeros.

        Raises:
            RuntimeError: where one is gone or was changed that matters to gradients of the outputs `asked` for.
        """
        tensors: list[Any] = [None] * (len(self.strong) + len(self.weak))
        for index, tensor in zip(self.strong, node.strong, strict=True):
            tensors[index] = tensor
        for index, reference in zip(self.weak, node.weak, strict=True):
            tensors[index] = reference()
        matter = self.inputs_for(asked)
        gone = [k for k, t in enumerate(tensors) if t is None]
        if not matter.isdisjoint(gone):
            raise RuntimeError(
                "these gradients have to be computed from the inputs of the compiled function, and one of them has been "
                "freed. Keep the inputs until backward() has run, or call the function without compiling it"
            )
        for k in gone:
            meta = self.inputs[k]
            tensors[k] = torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=meta.device)
            tensors[k].untyped_storage().fill_(0)
        matter -= {self.tensor_index[k] for k in self.mutated}
        for k, (tensor, before, now) in enumerate(zip(tensors, node.versions, versions_of(tensors), strict=True)):
            if k in matter and before != now:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: an "
                    f"input of the compiled function, of shape {list(tensor.shape)}"
                )
        return tensors

    def inputs_for(self, asked: Iterable[int]) -> set[int]:
        """The inputs on which the gradients of some differentiable outputs depend."""
        return set().union(*[self.read_by[number] for number in asked])

    def base_or_self(self, outputs: list[Any], index: int) -> Any:
        """What an output of the forward graph is in eager: one of the outputs, or what some of them are views of."""
        position, is_view = self.result_of[index]
        return outputs[position]._base if is_view else outputs[position]


def _is_converted(node: Node) -> bool:
    """Whether autocast would convert what a product of a backward graph takes."""
    if not isinstance(node.target, OpOverload) or node.target._overloadpacket not in _PRODUCTS:
        return False
    return any(isinstance(v := n.meta.get("val"), TensorMeta) and v.dtype is torch.float32 for n in node.all_input_nodes)


class Subgraph:
    """A joined call within a larger graph, which verifies its operands itself. What does not fit runs in eager."""

    def __init__(self, call: JoinedCall, check: Any, placer: Any) -> None:
        self.call = call
        self.check = check
        self.placer = placer if placer is not None and placer.is_needed else None
        self.lock = threading.RLock()
        if call.compiled_forward.replayed is not None:
            call.compiled_forward.replayed.check = check
        if self.placer is not None and self.placer.written:
            call.noted_changes = self.placer.changes

    def __call__(self, values: tuple[Any, ...]) -> Any:
        """The outputs for these operands: tensors and numbers."""
        call = self.call
        tensors = [value for value, number in zip(values, call.is_number, strict=True) if not number]
        numbers = tuple([value for value, number in zip(values, call.is_number, strict=True) if number])
        with self.lock:
            if self.check is not None:
                state = self.check.scan(tensors)
                if state < 0:
                    return call.run(*values)
                placer = self.placer
                if placer is not None:
                    if state:
                        placer.place(self.check)
                    if placer.written and (placer.overlapping or placer.note_changes(tensors)):
                        return call.run(*values)
            return call(tensors, numbers)


def _put_back(before: list[tuple[Any, Any]] | None) -> None:
    """Give tensors the contents again that they had."""
    for tensor, contents in before or ():
        with torch.autograd._unsafe_preserve_version_counter(tensor):
            tensor.detach().copy_(contents)


_aten = torch.ops.aten
_PRODUCTS = frozenset({
    _aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm, _aten.addbmm, _aten.mv, _aten.addmv, _aten.convolution,
})  # fmt: skip
_NO_VIEWS: dict[int, Any] = {}
_set_versions = torch._C._autograd._unsafe_set_version_counter
