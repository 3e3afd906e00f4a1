"""Hooks of tensors: registered by the captured code, called where it takes gradients, as autograd would call them.

A hook that is left where the graph ends would be called by Python. One that is sure to do the same then is registered by a
call in the graph, and the trace for gradients goes through it. In front of what registers another one the graph ends, unless
nothing can come by it any more.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import BuiltinFunctionType, CellType, FunctionType, ModuleType
from typing import Any

import torch

from ...bytecode.decoding import codes_in
from ...errors import Unsupported
from ...ir.gradients import GradientsOfResults, registering, takes_gradients
from ...ir.nodes import last_node, nodes_after
from ...ir.sharing import base_of, memory_of, written_operands
from ..inference.stand_ins import is_leaf
from ..interpreter import Interpreter
from ..library.module_hooks import new_handle
from ..symbolic import TENSOR_TYPES, TensorProxy, is_constant
from ..symbolic.hooks import ModuleGradients, TensorHooks, register_behind
from ..symbolic.kinds import is_trusted_module
from ..symbolic.raising import Raised, SuspendedInside
from . import tensor_attributes
from .transforms import CapturedFunction, capture_function

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
            raise Unsupported("a hook after the adding of a gradient that returns something")


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
    if left and not all(_register_left(i, hooks, results, outlives) for hooks in left):
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


# hooks for a backward outside -----------------------------------------------------------------------------------------


_PLAIN_GLOBALS = (ModuleType, FunctionType, BuiltinFunctionType, type)


def _register_left(i: Interpreter, hooks: TensorHooks, results: list[Any], outlives: Callable[[Any], bool]) -> bool:
    """Let the graph register the hooks of a tensor; False where they have to be Python's."""
    tensor = hooks.tensor
    tensors = [result for result in results if type(result) is TensorProxy]
    bases = {base_of(i.graph.node_of(result)) for result in tensors}
    if hooks.retains or hooks.after or hooks.of_node or i.graph.gradient_calls:
        return False
    if tensor.source is not None or is_leaf(tensor):
        return False
    node = i.graph.node_of(tensor)
    if base_of(node) in bases or i.graph.history.writes_since(i.graph.graph, tensor, hooks.last):
        return False
    if not all(_is_closed(i, hook, outlives) for hook in hooks.before.values()):
        return False
    for hook in hooks.before.values():
        noted, guards = i.outside.noted(), len(i.outside.guards)
        metas: list[Any] = [replace(tensor.meta, requires_grad=False)]
        try:
            captured = capture_function(i, hook, (tensor,), {}, metas, grad=False, transforms=False)
        except (Unsupported, Raised):
            return False
        new = i.outside.guards[guards:]
        changes = i.outside.has_changed(noted) or i.graph.contents.take_written(captured.function.graph)
        if changes or not all(source.base is None or source.kind == "attr" for guard in new for source in guard.sources()):
            return False
        if not all(type(v) is TensorProxy and v.source is None for v in captured.brought_in) or len(captured.outputs) > 1:
            return False
        made = captured.outputs[0].meta if captured.outputs else None
        meta = tensor.meta
        if made is not None and (made.shape, made.dtype, made.device) != (meta.shape, meta.dtype, meta.device):
            return False
        if made is None and captured.function.result is not None:
            return False
        plain = _plain(i, hook, captured.brought_in)
        if plain is None:
            return False
        call = registering(functools.partial(_call_left, captured.function, plain))
        i.graph.dynamic_call("call_function", call, (tensor, list(captured.brought_in)), {}, None)
    return True


def _call_left(captured: CapturedFunction, plain: Callable[[Any], Any], gradient: Any, brought_in: Any) -> Any:
    """Call a hook. Autograd gives it None where nothing needs the gradient, of one of several results, say."""
    return (plain if gradient is None else captured.function)(brought_in)(gradient)


def _plain(i: Interpreter, hook: FunctionType, brought_in: list[Any]) -> Callable[[Any], Any] | None:
    """What makes the hook itself of what it uses of the graph; None where it uses more than the graph was found to need."""
    cells: list[tuple[int | None, Any]] = []
    for cell in hook.__closure__ or ():
        value = i.outside.contents(cell.cell_contents)
        place = next((k for k, other in enumerate(brought_in) if other is value), None)
        if place is None and type(value) is TensorProxy:
            return None
        cells.append((place, value))

    def made(given: Any) -> FunctionType:
        closure = tuple([CellType(value if place is None else given[place]) for place, value in cells])
        return FunctionType(hook.__code__, hook.__globals__, hook.__name__, hook.__defaults__, closure)

    return made


def _is_closed(i: Interpreter, hook: Any, outlives: Callable[[Any], bool]) -> bool:
    """Whether a hook uses nothing but what nobody can change: constants, tensors made inside that are not handed out, and
    functions of modules."""
    if type(hook) is not FunctionType or hook.__kwdefaults__ or not all(map(is_constant, hook.__defaults__ or ())):
        return False
    if not i.is_created(hook):
        return not hook.__closure__ and _uses_plain_globals(hook)
    for cell in hook.__closure__ or ():
        value = i.outside.contents(cell.cell_contents) if i.is_created(cell) else None
        is_tensor = type(value) is TensorProxy and value.source is None and value.cls in TENSOR_TYPES
        if outlives(cell) or outlives(value) or not (is_tensor or (value is not None and is_constant(value))):
            return False
    return _uses_plain_globals(hook)


def _uses_plain_globals(hook: FunctionType) -> bool:
    builtins = hook.__builtins__ if isinstance(hook.__builtins__, dict) else vars(hook.__builtins__)
    instructions = [instruction for code in codes_in(hook.__code__) for instruction in dis.get_instructions(code)]
    if any(instruction.opname in ("STORE_GLOBAL", "STORE_DEREF", "DELETE_DEREF") for instruction in instructions):
        return False
    for name in [k.argval for k in instructions if k.opname in ("LOAD_GLOBAL", "LOAD_NAME")]:
        value = hook.__globals__.get(name, builtins.get(name))
        if not isinstance(value, _PLAIN_GLOBALS):
            return False
        if type(value) is FunctionType and not is_trusted_module(value.__module__):
            return False
        if isinstance(value, ModuleType) and value.__name__.partition(".")[0] not in ("torch", "math"):
            return False
    return True


HANDLERS: dict[Any, Any] = {register_behind: _register_behind}
