"""`backward()` and `torch.autograd.grad` inside of the captured program: a node of the graph.

`backward()` is `torch.autograd.grad` for the leaves that the graph shows, and the adding to their `grad`, which are
operators like others. So a training step is one graph, and what it does to the user's objects is replayed at its end.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ...errors import Unsupported
from ...ir.gradients import GradientsOfResults, replacing_grad
from ...ir.values import is_dense
from ..inference.stand_ins import is_leaf
from ..interpreter import Interpreter
from ..symbolic import TENSOR_TYPES, TensorProxy
from . import gradient_hooks, tensor_attributes

#: Each time that a hook replaces a gradient, the graph takes gradients once more.
_MOST_REPLACED = 16
_NESTED = "backward() inside of a functional transform or checkpoint"


def backward(
    i: Interpreter, tensors: Any, grad_tensors: Any = None, retain_graph: Any = None, create_graph: Any = False,
    grad_variables: Any = None, inputs: Any = None,
) -> None:  # fmt: skip
    """`torch.autograd.backward`."""
    if grad_variables is not None:
        raise Unsupported("backward() with grad_variables")
    if i.graph.nested:
        raise Unsupported(_NESTED)
    outputs = _tensors(i, tensors)
    create = i.truth(create_graph)
    keep = create if retain_graph is None else i.truth(retain_graph)
    weights = _weights(i, outputs, grad_tensors)
    leaves = i.graph.history.leaves(
        i.graph.graph, outputs, keep, lambda application: application.operands_with_gradients(i),
        lambda: i.graph.shadow().leaves(i.graph, outputs, weights),
    )  # fmt: skip
    reached = leaves = [leaf for leaf in leaves if leaf.meta.requires_grad]  # others get none any more
    if inputs is not None:
        wanted = _tensors(i, inputs)
        if any(not is_leaf(tensor) for tensor in wanted):
            raise Unsupported("backward() to tensors that are no leaves")
        leaves = [leaf for leaf in leaves if any(leaf is tensor for tensor in wanted)]
    if not leaves:
        raise Unsupported("backward() that reaches no leaf")
    for leaf in leaves:
        _check_leaf(i, leaf)
    hooked = gradient_hooks.hooked_tensors(i, leaves)
    if hooked and not create:
        _keep_apart(i, leaves, reached)
        with i.called_through(2):
            _backward_with_hooks(i, outputs, weights, leaves, hooked, keep)
        return
    if create:
        if hooked:
            raise Unsupported("gradients with a graph of their own of tensors with hooks")
        with torch.enable_grad(), torch.inference_mode(False):  # for the warning that PyTorch gives once a process
            torch.zeros((), requires_grad=True).clone().backward(create_graph=True)
        options = {"create_graph": True, "retain_graph": retain_graph, "allow_unused": True}
        gradients = _gradients(i, outputs, leaves, grad_tensors, options)
    else:
        _keep_apart(i, leaves, reached)
        metas = tuple([replace(leaf.meta, requires_grad=False) for leaf in leaves])
        gradients = _call(i, outputs, leaves, weights, {"retain_graph": keep}, metas)
    grad_mode, i.graph.grad_enabled = i.graph.grad_enabled, create
    try:
        for leaf, gradient in zip(leaves, gradients, strict=True):
            if gradient is not None:
                _accumulate(i, leaf, gradient)
    finally:
        i.graph.grad_enabled = grad_mode


def _backward_with_hooks(
    i: Interpreter, outputs: list[TensorProxy], weights: list[Any], leaves: list[TensorProxy], hooked: list[TensorProxy],
    keep: bool,
) -> None:  # fmt: skip
    """The same with hooks, which are called in autograd's order, between the adding to one leaf and to another."""

    def ready(tensor: TensorProxy, gradient: TensorProxy) -> TensorProxy:
        made = gradient_hooks.called(i, tensor, gradient)
        if not any(tensor is leaf for leaf in leaves):
            return made
        _accumulate(i, tensor, made)
        gradient_hooks.called_after(i, tensor)
        return gradient

    watched = [*leaves, *[tensor for tensor in hooked if not any(tensor is leaf for leaf in leaves)]]
    order = _order(i, outputs, leaves, weights, watched)
    _in_order(i, outputs, weights, order, [], ready, {"allow_unused": True, "retain_graph": keep})


def _order(
    i: Interpreter, outputs: list[TensorProxy], wanted: list[TensorProxy], weights: list[Any], watched: list[TensorProxy]
) -> list[TensorProxy]:
    """The watched tensors that get gradients on the way from some tensors to the wanted ones, as autograd comes to them."""
    return [watched[k] for k in i.graph.shadow().order(i.graph, outputs, wanted, weights, watched)]


def _in_order(
    i: Interpreter, outputs: list[TensorProxy], weights: list[Any], order: list[TensorProxy], wanted: list[TensorProxy],
    ready: Callable[[TensorProxy, TensorProxy], TensorProxy], options: dict[str, Any],
) -> list[Any]:  # fmt: skip
    """The gradients of the `wanted` tensors. Those of the tensors in `order` go through `ready` one after the other, and
    what that returns takes their place: where it is another one, gradients are taken once more, for what comes after."""
    shadow = i.graph.shadow()
    replaced: list[tuple[TensorProxy, TensorProxy]] = []
    node = None
    while True:
        asked = [*{id(tensor): tensor for tensor in (*order, *wanted)}.values()]
        if not asked:
            break
        structure, places = shadow.gradients(i.graph, outputs, asked, weights, options, replaced)
        results = _call(i, outputs, asked, weights, {**options, "retain_graph": True}, structure, replaced)
        found = {id(t): None if place is None else results[place] for t, place in zip(asked, places, strict=True)}
        node = next(r.node.args[0] for r in results if type(r) is TensorProxy)
        before, i.graph.grad_enabled = i.graph.grad_enabled, False
        try:
            while order:
                tensor = order.pop(0)
                gradient = found[id(tensor)]
                if gradient is None:
                    raise Unsupported("a hook of a tensor without a gradient")
                made = ready(tensor, gradient)
                if made is not gradient:
                    replaced.append((tensor, made))
                    break
            else:
                break
        finally:
            i.graph.grad_enabled = before
        if len(replaced) > _MOST_REPLACED:
            raise Unsupported("many tensors whose hooks replace gradients")
    if node is not None and not options.get("retain_graph"):
        node.kwargs = {name: value for name, value in node.kwargs.items() if name != "retain_graph"}
    return [found[id(tensor)] for tensor in wanted]


def _accumulate(i: Interpreter, leaf: TensorProxy, gradient: TensorProxy) -> None:
    """Add a gradient to `leaf.grad`, as autograd does: in place, unless it creates a graph, or as a new tensor laid out like
    the leaf."""
    before = tensor_attributes.gradient(i, leaf)
    if before is not None and not i.graph.grad_enabled:
        i.graph.call("call_method", "add_", (before, gradient), {})
        return
    if before is not None:
        fresh = i.graph.call("call_function", operator.add, (before, gradient), {})
    elif leaf.meta.is_contiguous or not is_dense(leaf.meta.shape, leaf.meta.stride):
        fresh = i.graph.call("call_method", "clone", (gradient,), {"memory_format": torch.contiguous_format})
    else:
        fresh = i.graph.call("call_function", torch.empty_like, (leaf,), {"requires_grad": False})
        i.graph.call("call_method", "copy_", (fresh, gradient), {})
    tensor_attributes.store(i, leaf, "grad", fresh)


def grad(
    i: Interpreter, outputs: Any, inputs: Any, grad_outputs: Any = None, retain_graph: Any = None,
    create_graph: Any = False, only_inputs: Any = True, allow_unused: Any = None, is_grads_batched: Any = False,
    materialize_grads: Any = False,
) -> Any:  # fmt: skip
    """`torch.autograd.grad`."""
    names = list(inputs) if type(inputs) is dict else None
    wanted = _tensors(i, inputs)
    options = {
        "retain_graph": retain_graph, "create_graph": create_graph, "allow_unused": allow_unused,
        "materialize_grads": materialize_grads,
    }  # fmt: skip
    try:
        if i.graph.nested:
            raise Unsupported(_NESTED)
        if not i.truth(only_inputs) or i.truth(is_grads_batched):
            raise Unsupported("torch.autograd.grad with these options")
        results = _gradients(i, _tensors(i, outputs), wanted, grad_outputs, options)
    except Unsupported as unsupported:
        if all(tensor.source is not None or is_leaf(tensor) for tensor in wanted):
            raise
        raise GradientsOfResults(unsupported.reason, unsupported.hint) from unsupported
    return results if names is None else i.mark_created(dict(zip(names, results, strict=True)))


def _gradients(
    i: Interpreter, ends: list[TensorProxy], wanted: list[TensorProxy], grad_outputs: Any, given: dict[str, Any]
) -> tuple[Any, ...]:
    weights = _weights(i, ends, grad_outputs)
    options: dict[str, Any] = {}
    for name, value in given.items():
        if value is not None and (name != "create_graph" or i.truth(value)):
            options[name] = i.truth(value)
    for tensor in wanted:
        if tensor.source is not None:
            i.outside.guard_requires_grad(tensor)
            _check_leaf(i, tensor)
    hooked = gradient_hooks.hooked_tensors(i, wanted)
    if any(i.tensor_hooks[id(tensor)].of_node for tensor in hooked if any(tensor is one for one in wanted)):
        raise Unsupported("gradients of a result of a module with hooks")  # autograd may not come to the node
    _keep_apart(i, wanted, _check_ends(i, ends, wanted))
    if hooked:
        if options.get("create_graph"):
            raise Unsupported("gradients with a graph of their own of tensors with hooks")
        order = _order(i, ends, wanted, weights, hooked)
        with i.called_through(2):
            made = _in_order(i, ends, weights, order, wanted, functools.partial(gradient_hooks.called, i), options)
        if not options.get("retain_graph"):
            i.graph.history.note_taken(i.graph.graph, ends, wanted)
        return tuple(made)
    structure, places = i.graph.shadow().gradients(i.graph, ends, wanted, weights, options)
    found = _call(i, ends, wanted, weights, options, structure)
    if not options.get("retain_graph") and not options.get("create_graph"):
        i.graph.history.note_taken(i.graph.graph, ends, wanted)
    return tuple([None if place is None else found[place] for place in places])


def _check_ends(i: Interpreter, outputs: list[TensorProxy], wanted: list[TensorProxy]) -> list[TensorProxy]:
    """See to it that no gradient flows out of the graph, and from there to the tensors that it is wanted for. Returns the
    leaves from outside that gradients flow to."""
    from_outside = [tensor for tensor in wanted if tensor.source is not None]
    reached = i.graph.history.ends(i.graph.graph, outputs) if from_outside else []
    if len(from_outside) == 1 and {id(end) for end in reached} <= {id(tensor) for tensor in wanted}:
        return []
    for end in reached:
        if not is_leaf(end):
            raise Unsupported(
                "gradients through what was computed outside of the graph",
                "call torch.autograd.grad where the whole computation is in one graph, or outside of the compiled function",
            )
        if end.source is not None and end.cls is not torch.nn.Parameter:
            i.outside.guard("is", end.source.attr("is_leaf"), True)
    return [end for end in reached if end.meta.requires_grad]


def _call(
    i: Interpreter, outputs: list[TensorProxy], inputs: list[TensorProxy], weights: list[Any], options: dict[str, Any],
    structure: Any, replaced: list[tuple[TensorProxy, TensorProxy]] | None = None,
) -> Any:  # fmt: skip
    kwargs = dict(options)
    if any(weight is not None for weight in weights):
        kwargs["grad_outputs"] = weights
    if "retain_graph" in kwargs and not kwargs["retain_graph"]:
        del kwargs["retain_graph"]
    i.graph.only_pytorch = "gradients inside the compiled function"
    i.graph.gradient_calls += 1
    if replaced is not None:
        operands = (outputs, inputs, [tensor for tensor, _ in replaced], [made for _, made in replaced])
        return i.graph.call("call_function", replacing_grad, operands, kwargs, structure)
    return i.graph.call("call_function", torch.autograd.grad, (outputs, inputs), kwargs, structure)


def _tensors(i: Interpreter, value: Any) -> list[TensorProxy]:
    """A tensor or several."""
    value = i.outside.contents(value)
    if type(value) is TensorProxy:
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    if not isinstance(value, Sequence):
        value = i.call_now(list, (value,))
    tensors = [i.outside.contents(v) for v in value]
    if not tensors or any(type(v) is not TensorProxy for v in tensors):
        raise Unsupported("gradients of other things than tensors")
    return tensors


def _weights(i: Interpreter, outputs: list[TensorProxy], given: Any) -> list[TensorProxy | None]:
    """The gradients of the outputs that the program gives. Raises `Unsupported` where PyTorch raises: it will do so in the
    program."""
    if given is None:
        weights: list[Any] = [None] * len(outputs)
    elif type(given) is TensorProxy:
        weights = [given]
    else:
        weights = [i.outside.contents(v) for v in i.outside.contents(given)]
    if len(weights) != len(outputs) or any(w is not None and type(w) is not TensorProxy for w in weights):
        raise Unsupported("gradients that do not fit the outputs")
    for output, weight in zip(outputs, weights, strict=True):
        i.outside.guard_requires_grad(output)
        if not output.meta.requires_grad:
            raise Unsupported("backward() from a tensor that does not require gradients")
        if weight is None and output.meta.numel != 1:
            raise Unsupported("backward() from a tensor of several elements")
        if weight is not None and weight.meta.shape != output.meta.shape:
            raise Unsupported("a gradient of another shape than the output's")
    return weights


def _keep_apart(i: Interpreter, wanted: Iterable[TensorProxy], reached: Iterable[TensorProxy]) -> None:
    """See to it that no two of these are one tensor in another call, such as weights that are tied later: its gradient would
    be the sum of theirs. Nor is one of these one of the others that gradients flow to."""
    known, others = ({id(t): t for t in ts if t.source is not None and t.real is not None} for ts in (wanted, reached))
    i.outside.guard_apart([*known.values()], [t for key, t in others.items() if key not in known])


def _check_leaf(i: Interpreter, tensor: TensorProxy) -> None:
    """Require a plain tensor, which is as much of a leaf in other calls."""
    if tensor.cls not in TENSOR_TYPES:
        raise Unsupported("gradients of a subclass of torch.Tensor")
    if tensor.source is not None and tensor.real is not None and tensor.cls is not torch.nn.Parameter:
        i.outside.guard("is", tensor.source.attr("is_leaf"), is_leaf(tensor))
