"""Results of one call that are computed from each other, as autograd sees them.

The call's node computes all gradients at once. So that autograd finds the way from a result `y` to a result `t` that it is
computed from, `y` has a node of its own above the call's, with an edge to `t`. Where nobody looks at the gradients of `t`,
it passes on its gradient to the call's node, and none to `t`. Else it takes the gradients of `y` by `t`, and by the inputs
in other ways than through `t`: by the captured graph in eager, once more, in which the results begin anew. `t` gets the
first, the call's node adds the others to what it finds for the other results.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, cast

import torch
from torch.fx import Node

from .. import logs
from ..ir.arguments import map_leaves
from ..ir.endings import OwnReference
from ..ir.gradients import Dependence, Differentiated, end_here, takes_gradients
from ..ir.marks import keep_peer_out
from ..ir.modes import in_grad_mode
from ..ir.nodes import outputs_of
from .asked import LEADS_TO, asked_for, begins_at, edge_of, is_asked, is_visited
from .kept_results import Led, ending_at, led_through, led_to_results, living_results, tell_edges, telling_edges
from .several_results import HOOKS, SECOND_TIME, Hooks, watch_hooks

#: With more results that depend on others than this, none has a node of its own.
_MOST_NODES = 32

#: Nobody asks for its gradient: where autograd does not come to it, it computes gradients of certain tensors only.
_NOBODYS = torch.empty(0, device="cpu", requires_grad=True)


def links_of(made: Differentiated) -> Links | None:
    """How the results of a graph depend on each other; None if they do not, or if that is not followed."""
    dependence = made.dependence
    if dependence is None or sum(map(bool, dependence.behind.values())) > _MOST_NODES:
        return None
    return Links(made, dependence)


class Links:
    """How the results of a graph depend on each other: what its calls have in common."""

    def __init__(self, made: Differentiated, dependence: Dependence) -> None:
        self.graph = dependence.graph
        self.results = made.results
        self.differentiable = made.differentiable
        self.behind = dependence.behind
        self.parents = dependence.parents
        self.saving = dependence.saving
        self._numbers = {k: n for n, k in enumerate(self.differentiable)}
        #: The numbers of results that depend on others, after those, and with all such that they depend on.
        self.needs: dict[int, set[int]] = {}
        for number in self.behind:
            self._add(number)
        self.order = [number for number in self.needs if self.behind[number]]
        self.own = [self.differentiable[k] for k in self.order]
        #: The positions of results that others depend on, and after which nodes of the captured graph they are as they stay.
        self.targets = sorted(dependence.ends, key=lambda p: (len(self.results[p].path), p)) if self.order else []
        self.ends: dict[Node, list[int]] = {}
        for position in self.targets:
            self.ends.setdefault(dependence.ends[position], []).append(position)
        self.noted = False
        self.takes_gradients = any(map(takes_gradients, self.graph.nodes))

    def _add(self, number: int) -> set[int]:
        if number not in self.needs:
            needs = {number}
            for position in self.behind[number]:
                given = self.results[position]
                if not given.of_input and given.index in self._numbers:
                    needs |= self._add(self._numbers[given.index])
            self.needs[number] = needs
        return self.needs[number]

    def memory(self, position: int) -> tuple[bool, int]:
        """What is the same for views of one result."""
        return self.results[position].of_input, self.results[position].index

    def set_aside(self, node: Any, made: Sequence[Any]) -> list[Any]:
        """What the call's node has as its results: in place of those that have nodes of their own, tensors that share memory
        and the count of changes. `node` gets the others."""
        outputs = [*made]
        node.own = [made[k] for k in self.own]
        for k in self.own:
            outputs[k] = made[k].detach()
        return outputs

    def link(self, call: Any, tensors: list[Any], made: Sequence[Any], node: Any) -> tuple[list[Any], dict[int, Any]]:
        """The results, with nodes of their own above the call's, and those outputs of the captured graph that are views and
        that others depend on, by position."""
        outputs = [*made]
        views: dict[int, Any] = {}
        own = node.own
        node.own = None
        if self.order:
            state = _State(self, call, node)
            for number, mine in zip(self.order, own, strict=True):
                k = self.differentiable[number]
                operands = [self._output(position, call, tensors, outputs, views) for position in self.behind[number]]
                with telling_edges() if call.alone else nullcontext():
                    outputs[k] = _apply(state, number, [mine], outputs[k], *operands, _NOBODYS)
                state.results[number] = OwnReference(outputs[k])
                state.nodes[number] = weakref.ref(outputs[k].grad_fn)
            for position in self.targets:
                state.watch(position, self._output(position, call, tensors, outputs, views))
        for position in self.parents:
            self._output(position, call, tensors, outputs, views)
        return outputs, views

    def _output(self, position: int, call: Any, tensors: list[Any], outputs: list[Any], views: dict[int, Any]) -> Any:
        given = self.results[position]
        if not given.path:
            return outputs[given.index]
        if position not in views:
            parent = self.parents.get(position)
            if parent is None:
                views[position] = call.view(given, tensors, outputs)
            else:
                seen = self._output(parent, call, tensors, outputs, views)
                views[position] = given.seen_from(seen, len(self.results[parent].path))
        return views[position]

    def run(self, inputs: Sequence[Any], begin_anew: Callable[[int, Any], Any]) -> tuple[list[Any], dict[int, Any]]:
        """The outputs of the captured graph in eager, and what `begin_anew(position, tensor)` has made of those that others
        depend on, which stands in their place for all that follows."""
        given = iter(inputs)
        values: dict[Node, Any] = {}
        returned = outputs_of(self.graph)
        outputs: dict[int, Any] = {}
        begun: dict[int, Any] = {}
        for node in self.graph.nodes:
            if node.op == "output":
                break
            if node.op == "placeholder":
                values[node] = next(given)
            else:
                values[node] = _called(node, values)
            for position in self.ends.get(node, ()):
                old = values[returned[position]]
                outputs |= {k: old for k, other in enumerate(returned) if values.get(other) is old and k not in outputs}
                new = begun[position] = begin_anew(position, old)
                values = {key: _replaced(value, old, new) for key, value in values.items()}
        return [outputs[k] if k in outputs else values[node] for k, node in enumerate(returned)], begun


def _called(node: Node, values: dict[Node, Any]) -> Any:
    args, kwargs = map_leaves(lambda leaf: values[leaf] if type(leaf) is Node else leaf, (node.args, node.kwargs))
    if node.op == "call_method":
        return getattr(args[0], cast("str", node.target))(*args[1:], **kwargs)
    return cast("Callable[..., Any]", node.target)(*args, **kwargs)


def _replaced(value: Any, old: Any, new: Any) -> Any:
    """A value with a tensor in place of another one, and views of it in place of that one's."""
    if value is old:
        return new
    if isinstance(value, (tuple, list)):
        return type(value)([_replaced(v, old, new) for v in value])
    if isinstance(value, torch.Tensor) and value._base is old and value.dtype == old.dtype:
        return in_grad_mode(True, new.as_strided, value.shape, value.stride(), value.storage_offset())
    return value


class _State:
    """What the nodes of one call share. `node` is the call's own, or what stands for it (see `autograd_nodes`)."""

    def __init__(self, links: Links, call: Any, node: Any) -> None:
        self.links = links
        self.call = call
        self.node = node
        #: The results that others depend on: references to them, and where their hooks are found.
        self.watched: dict[int, tuple[Any, dict[int, Any], int]] = {}
        #: References to the results that have nodes of their own, and to these, by number.
        self.results: dict[int, Any] = {}
        self.nodes: dict[int, Any] = {}
        #: References to the nodes of results that others depend on, by position.
        self.nodes_of_watched: dict[int, Any] = {}
        #: The numbers of results whose nodes have run, where eager has freed what these saved.
        self.used: set[int] = set()
        #: For the backward that runs: whether somebody looks at gradients of results, which tensors' gradients are asked for
        #: if that is known, and the graph once more.
        self.looks: dict[int, bool] = {}
        self.asked: dict[int, Sequence[torch.Tensor]] = {}
        self.again: dict[int, tuple[list[Any], dict[int, Any], dict[int, Any], list[Any], list[int]]] = {}

    def watch(self, position: int, tensor: Any) -> None:
        """Note a result that others depend on, and where its hooks will be found: those may be called when it is gone."""
        if type(tensor.grad_fn) in LEADS_TO:
            hooks_of_results = tensor.grad_fn.__dict__.setdefault(HOOKS, {})
            self.nodes_of_watched[position] = weakref.ref(tensor.grad_fn)
            self.watched[position] = OwnReference(tensor), hooks_of_results, tensor.output_nr
            return
        hooks = tensor._backward_hooks
        if hooks is None:  # of a view, of which one of PyTorch's nodes knows nothing
            hooks = tensor._backward_hooks = Hooks()
            tensor.grad_fn._register_hook_dict(tensor)
        self.watched[position] = OwnReference(tensor), {0: hooks}, 0

    def somebody_looks(self, nobodys: Any) -> bool:
        """Whether somebody sees the gradients of results that others depend on, in the backward that runs."""
        task = _current_task()
        if task in self.looks:
            return self.looks[task]
        looks, living = False, []
        for reference, hooks, number in self.watched.values():
            tensor = reference()
            if tensor is not None:
                living.append(tensor)
            looks = looks or bool(hooks.get(number)) or (tensor is not None and tensor.retains_grad)
        asked = None
        if not is_visited(nobodys):
            asked = asked_for()
            visited = {edge_of(t) for t in living if t.grad_fn is not None and is_visited(t.grad_fn)}
            looks = looks or (bool(visited) and (asked is None or not visited.isdisjoint(map(edge_of, asked))))
        if looks or asked is not None or len(self.links.order) > 1:  # else nothing asks again
            self._at_the_end(task)
            self.looks[task] = looks
            if asked is not None:
                self.asked[task] = asked
        return looks

    def _at_the_end(self, task: int) -> None:
        """Forget what is for one backward when it has run."""

        def forget() -> None:
            self.looks.pop(task, None)
            self.asked.pop(task, None)
            self.again.pop(task, None)
            if self.node.added is not None:
                self.node.added.pop(task, None)

        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(forget)

    def frees(self, number: int) -> bool:
        """Whether eager would free in the backward that runs what nodes have saved on the way from a result to others."""
        if number not in self.links.saving or graph_is_retained():
            return False
        asked = self.asked.get(_current_task())
        if asked is None or not all(self._is_result(tensor) for tensor in asked):
            return True
        links = self.links
        behind = {links.memory(position) for other in links.needs[number] for position in links.behind[other]}
        living = [found[0]() for position, found in self.watched.items() if links.memory(position) in behind]
        return any(one is tensor for one in living for tensor in asked)

    def _is_result(self, tensor: torch.Tensor) -> bool:
        node: Any = tensor.grad_fn
        return node is not None and (node is self.node or getattr(node, "state", None) in (self, self.node))

    def gradients(self, number: int, gradient: Any) -> list[Any]:
        """The gradients of a result by the results after it. Those by the inputs, in other ways, are left to the call's
        node."""
        links, call, node = self.links, self.call, self.node
        task = _current_task()
        create_graph = torch.is_grad_enabled()
        if not links.noted:
            links.noted = True
            reason = "gradients of one result by another, or their hooks, are asked for"
            logs.emit("graph_breaks", f"gradients of results by each other are computed operator by operator: {reason}")
        if task not in self.again:
            leads_to = [_Begun.ITS_OWN]
            before: dict[int, Any] = {}

            def begin_anew(position: int, tensor: Any) -> Any:
                if links.takes_gradients and tensor.grad_fn is not None:
                    before[position] = tensor
                if not create_graph and not links.takes_gradients:
                    return tensor.detach().requires_grad_()
                current = self._as_the_program_has_it(position, tensor) if create_graph else tensor
                return in_grad_mode(True, _Begun.apply, tensor.detach(), tensor, current, leads_to)

            (outputs, begun), aliases = call.run_again(
                node, lambda *inputs: links.run(inputs, begin_anew), links.needs[number]
            )
            self.again[task] = outputs, begun, before, [aliases[k] for k in call.wanted], leads_to
        else:
            call.inputs_as_they_were(node, links.needs[number])
        outputs, begun, before, inputs, leads_to = self.again[task]
        behind = links.behind[number]
        leads_to[0] = _Begun.NOTHING
        # Gradients that the graph has taken lead to what an operator kept of a result, before that began anew.
        kept = [k for k in behind if k in before]
        wanted = [*[before[k] for k in kept], *[begun[k] for k in behind], *inputs]
        root = call.base_or_self(outputs, links.differentiable[number])
        with ending_at([one for one in before.values() if edge_of(one) != edge_of(root)]):
            found = torch.autograd.grad(
                [root], wanted, [gradient], retain_graph=True, create_graph=create_graph, allow_unused=True
            )
        by_what_is_kept = dict(zip(kept, found, strict=False))
        found = found[len(kept) :]
        if by_what_is_kept:
            found = _sums(found, [*[by_what_is_kept.get(k) for k in behind], *[None] * len(inputs)])
        leads_to[0] = _Begun.CURRENT
        if create_graph:
            operands = [t for t in (*begun.values(), *inputs, gradient) if t.requires_grad]
            found = led_through(found, operands, call.paired(outputs, self._living()))
        if node.added is None:
            node.added = {}
        node.added[task] = _sums(node.added.get(task), found[len(behind) :])
        return list(found[: len(behind)])

    def _living(self) -> dict[int, Led]:
        """The results of the call that the program still has, or whose hooks may still be called, by number."""
        found = living_results(self.node, self.call)
        for number, reference in self.nodes.items():
            if (node := reference()) is not None:
                for led in led_to_results(node, [self.results[number]]).values():
                    found[number] = led
        return found

    def _as_the_program_has_it(self, position: int, tensor: Any) -> Any:
        """A result that others depend on; if that is gone, what it was computed as once more."""
        reference, hooks, number = self.watched[position]
        current = reference()
        if current is None and hooks.get(number):
            node = self.nodes_of_watched[position]() if position in self.nodes_of_watched else None
            if node is not None and (led := led_to_results(node, ()).get(number)) is not None:
                return led.tensor
            # Nothing leads to it any more.
            return in_grad_mode(True, _Gone.apply, tensor, hooks[number])
        return tensor if current is None else current


def added_up(node: Any, found: Sequence[Any] | None) -> Sequence[Any] | None:
    """The gradients of inputs with those that results' own nodes have found in this backward."""
    added = node.added.get(torch._C._current_graph_task_id())
    return found if added is None else _sums(found, added)


def _sums(some: Sequence[Any] | None, others: Sequence[Any]) -> list[Any]:
    if some is None:
        return [*others]
    return [b if a is None else a if b is None else a + b for a, b in zip(some, others, strict=True)]


class _Dependent(torch.autograd.Function):
    """The node of a result that depends on others."""

    @staticmethod
    def forward(ctx: Any, state: _State, number: int, mine: list[Any], *operands: Any) -> Any:
        ctx.state = state
        ctx.number = number
        ctx.set_materialize_grads(False)
        if state.call.alone:
            tell_edges(ctx, mine)
        return mine[0]

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        state, number = ctx.state, ctx.number
        behind = len(state.links.behind[number])
        if gradient is None:
            return (None,) * (behind + 5)
        if state.used and not state.used.isdisjoint(state.links.needs[number]):
            raise RuntimeError(SECOND_TIME)
        looks = state.somebody_looks(ctx.next_functions[-1][0])
        # What gradients of gradients lead through may be asked for only after this; not where `data` is followed, see there.
        looks = looks or (torch.is_grad_enabled() and state.node.again is None)
        if state.frees(number):
            state.used.add(number)
        if not looks:
            return (None, None, None, gradient, *[None] * (behind + 1))
        return (None, None, None, None, *state.gradients(number, gradient), None)


class _Begun(torch.autograd.Function):
    """A result that begins anew. What it leads to changes: while the graph runs once more, what it is computed from, as the
    graph may take gradients itself; while gradients of results are taken, nothing; and then, for the gradients of these,
    `current`, the result that the program has."""

    ITS_OWN, NOTHING, CURRENT = range(3)

    @staticmethod
    def forward(ctx: Any, contents: Any, own: Any, current: Any, leads_to: list[int]) -> Any:
        ctx.leads_to = leads_to
        ctx.set_materialize_grads(False)
        return contents.view_as(contents).detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        end_here()
        found: list[Any] = [None] * 4
        if ctx.leads_to[0] != _Begun.NOTHING:
            found[1 if ctx.leads_to[0] == _Begun.ITS_OWN else 2] = gradients[0]
        return tuple(found)


class _Gone(torch.autograd.Function):
    """A result that is gone. Its `hooks` may have been removed."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, hooks: Any) -> Any:
        ctx.hooks = hooks
        ctx.set_materialize_grads(False)
        return tensor.view_as(tensor).detach()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        if gradient is None or not ctx.hooks:
            return gradient, None
        raise RuntimeError(
            "these gradients of gradients lead through a result of the compiled function that has hooks and has been freed. "
            "Keep it until backward() has run, or call the function without compiling it"
        )


_current_task = torch._C._current_graph_task_id
graph_is_retained = torch._C._autograd._get_current_graph_task_keep_graph


def without_transforms(function: type[torch.autograd.Function], leads_to: Callable[[Any, int], Any] | None = None) -> Any:
    """`function.apply`, without what it does for transforms of torch.func: guards see to it that none is active. `leads_to`
    is for the hooks of results, see `LEADS_TO` and `watch_hooks`: autograd calls those of what a backward begins from in any
    case."""
    keep_peer_out(function.backward)
    # Autograd calls a node's `apply`, which would look whether it is `backward` or `vjp` that the class has.
    function._backward_cls.apply = function.backward  # type: ignore[attr-defined]
    watch_hooks(function, leads_to and (lambda node, k: is_asked(node, k) or begins_at(node, k)))
    if leads_to is not None:
        LEADS_TO[function._backward_cls] = leads_to  # type: ignore[attr-defined]
    return torch._C._FunctionBase.__dict__["apply"].__get__(None, function)


_apply = without_transforms(_Dependent, lambda node, output: node.next_functions[:-1])
