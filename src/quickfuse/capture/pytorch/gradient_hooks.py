"""Hooks of tensors: registered by the captured code, called where it takes gradients, as autograd would call them.

A hook that is left where the graph ends would be called by Python: the graph ends in front of what registers it, unless
nothing can come by it any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from ...errors import Unsupported
from ...ir.gradients import GradientsOfResults, takes_gradients
from ...ir.nodes import last_node, nodes_after
from ...ir.sharing import memory_of, written_operands
from ..inference.stand_ins import is_leaf
from ..interpreter import Interpreter
from ..library.module_hooks import new_handle
from ..symbolic import TENSOR_TYPES, TensorProxy
from ..symbolic.hooks import ModuleGradients, TensorHooks, register_behind
from ..symbolic.raising import Raised, SuspendedInside
from . import left_hooks, tensor_attributes

_LEFT = "a hook of a tensor that is made inside and outlives the graph"


def register(i: Interpreter, tensor: TensorProxy, hook: Any, after: bool = False) -> Any:
    """`tensor.register_hook(hook)`; with `after` it is called after the gradient was added to the leaf's."""
    hooks = _begun(i, tensor)
    if after and not is_leaf(tensor):
        raise Unsupported("a hook for the gradient of a tensor that is not a leaf")
    table = hooks.after if after else hooks.before
    made_at = _made_at(i)
    number, handle = new_handle(i, [table], made_at)
    table[number] = hook
    hooks.registered[number] = made_at
    return handle


def _register_behind(i: Interpreter, tensor: TensorProxy, hook: Any) -> None:
    hooks = _begun(i, tensor)
    hooks.of_node.append(hook)
    hooks.registered[-2] = _made_at(i)


def _made_at(i: Interpreter) -> int:
    """How many instructions came before what registers a hook: one that stands for those of a module's call is in the middle
    of what Python does at once."""
    inside = bool(i.frames) and i.frames[-1].globals.get("__name__") == ModuleGradients.__module__
    return i.outside.classes_made[ModuleGradients] if inside else i.performed


def retain_grad(i: Interpreter, tensor: TensorProxy) -> None:
    """`tensor.retain_grad()` of what is no leaf."""
    hooks = _begun(i, tensor)
    if not hooks.retains:
        hooks.retains = True
        hooks.registered[-1] = i.performed


def _begun(i: Interpreter, tensor: TensorProxy) -> TensorHooks:
    """The hooks of a tensor that is to get one more. Raises `Unsupported` where Python is to see to it, also by raising an
    exception."""
    if i.graph.nested or torch.is_inference_mode_enabled() or tensor.cls not in TENSOR_TYPES:
        raise Unsupported("registering a hook inside of a functional transform, checkpoint or inference mode")
    i.outside.guard_requires_grad(tensor)
    if not tensor.meta.requires_grad or (tensor.source is not None and not is_leaf(tensor)):
        users = tensor.node is not None and tensor.node.users
        raise (GradientsOfResults if users and tensor.meta.requires_grad else Unsupported)(
            "registering a hook", "register it before the compiled function is called"
        )
    hooks = hooks_of(i, tensor)
    if hooks is None:
        hooks = i.tensor_hooks[id(tensor)] = TensorHooks(tensor, i.mark_created({}), i.mark_created({}))
    if not hooks.registered:
        hooks.last = last_node(i.graph.graph)
        hooks.watches = tensor.node is not None and bool(tensor.node.users)
    return hooks


def hooks_of(i: Interpreter, tensor: TensorProxy) -> TensorHooks | None:
    """The hooks of a tensor, those among them that were registered before the call; None: it has none. This is guarded."""
    known = i.tensor_hooks.get(id(tensor))
    if known is not None or tensor.source is None or tensor.real is None:
        return known
    tables = []
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        table, source = getattr(tensor.real, name) or {}, tensor.source.attr(name)
        if i.outside.keeps_changing(source):  # each hook has a number of its own
            raise Unsupported("gradients of a tensor whose hooks keep changing")
        i.outside.guard("keys", source, tuple(table))
        tables.append(i.mark_created({key: i.outside.wrap(hook, source.item(key)) for key, hook in table.items()}))
    retains = bool(tensor.real.retains_grad)
    if tensor.cls is not torch.nn.Parameter:  # which is a leaf
        i.outside.guard("is", tensor.source.attr("retains_grad"), retains)
    if not any(tables) and not retains:
        return None
    hooks = i.tensor_hooks[id(tensor)] = TensorHooks(tensor, *tables, retains=retains)
    return hooks


def hooked_tensors(i: Interpreter, tensors: Iterable[TensorProxy]) -> list[TensorProxy]:
    """The tensors with hooks: those that the captured code registered some for, and others among `tensors`. Raises
    `Unsupported` where one was changed in place since then, which leaves its hooks with what it was."""
    for tensor in tensors:
        hooks_of(i, tensor)
    found = [h for h in i.tensor_hooks.values() if h.before or h.after or h.retains or h.of_node]
    for hooks in found:
        if hooks.registered and i.graph.history.writes_since(i.graph.graph, hooks.tensor, hooks.last):
            raise Unsupported("gradients of a tensor that was changed in place after a hook was registered for it")
    return [hooks.tensor for hooks in found]


def called(i: Interpreter, tensor: TensorProxy, gradient: TensorProxy) -> TensorProxy:
    """What the hooks of a tensor make of its gradient, which is kept if it retains that."""
    hooks = hooks_of(i, tensor)
    if hooks is None:
        return gradient
    for hook in [*hooks.before.values()]:
        gradient = _replaced(i, hook, gradient)
    if hooks.retains:
        before = tensor_attributes.gradient(i, tensor)
        kept = (
            i.graph.call("call_method", "clone", (gradient,), {"memory_format": torch.contiguous_format})
            if before is None else i.graph.call("call_method", "add", (before, gradient), {})
        )  # fmt: skip
        tensor_attributes.store(i, tensor, "grad", kept)
    for hook in hooks.of_node:
        gradient = _replaced(i, hook, gradient)
    return gradient


def _replaced(i: Interpreter, hook: Any, gradient: TensorProxy) -> TensorProxy:
    """What a hook makes of a gradient."""
    made = _call(i, hook, gradient)
    if made is None:
        return gradient
    if type(made) is not TensorProxy or made.cls not in TENSOR_TYPES or _kind(made) != _kind(gradient):
        raise Unsupported("a hook that returns something else than a gradient of the same kind")
    if memory_of(i.graph.node_of(made)).op == "placeholder":  # autograd may give a leaf this very memory as its gradient
        raise Unsupported("a hook that returns a tensor from outside, or a view of one")
    return made


def called_after(i: Interpreter, leaf: TensorProxy) -> None:
    """Call the hooks of a leaf whose gradient was added to."""
    hooks = hooks_of(i, leaf)
    for hook in [] if hooks is None else [*hooks.after.values()]:
        if _call(i, hook, leaf) is not None:
            raise Unsupported("a hook behind the adding of a gradient that returns something")


def _kind(tensor: TensorProxy) -> Any:
    return tensor.meta.shape, tensor.meta.dtype, tensor.meta.device


def _call(i: Interpreter, hook: Any, argument: TensorProxy) -> Any:
    """Call a hook. Raises `Unsupported` where it raises, or changes a gradient in place, which others may share."""
    last = last_node(i.graph.graph)
    try:
        made = i.call_now(hook, (argument,))
    except Raised as raised:
        raise Unsupported(f"a hook that raises {type(raised.exception).__name__}") from None
    for node in nodes_after(i.graph.graph, last):
        if any(map(_is_gradient, written_operands(node))):
            raise Unsupported("a hook that changes a gradient in place")
    return made


def _is_gradient(node: torch.fx.Node) -> bool:
    """Whether a tensor is what autograd hands on, or shares memory with that."""
    node = memory_of(node)
    return bool(node.args) and isinstance(node.args[0], torch.fx.Node) and takes_gradients(node.args[0])


def settle_left(i: Interpreter, results: list[Any], outlives: Callable[[Any], bool]) -> None:
    """Let the graph register the hooks that may be called later, where they depend on nothing that may change until then;
    `results` are the graph's, and `outlives` says whether something is handed out. Raises `SuspendedInside` where there are
    others: the segment is to end in front of what registers the first of them."""
    left = [hooks for hooks in i.tensor_hooks.values() if hooks.registered and not _is_over(i, hooks.tensor, results)]
    if left and not all(left_hooks.register(i, hooks, results, outlives) for hooks in left):
        first = min(left, key=lambda hooks: min(hooks.registered.values()))
        raise SuspendedInside(min(first.registered.values()), _LEFT, first.watches)


def _is_over(i: Interpreter, tensor: TensorProxy, results: Iterable[Any]) -> bool:
    """Whether no gradient can flow to a tensor made inside once the graph has ended."""
    if tensor.source is not None:
        return False
    if not is_leaf(tensor) and tensor.node in i.graph.history.freed:
        return True
    made = [result for result in results if type(result) is TensorProxy and result.source is None]
    return not i.graph.history.has_written_inputs() and not any(result.meta.requires_grad for result in made)


HANDLERS: dict[Any, Any] = {register_behind: _register_behind}
