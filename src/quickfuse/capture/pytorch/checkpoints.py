"""`torch.utils.checkpoint`: a call is one node of the graph, which computes its function again in the backward pass."""

from __future__ import annotations

import dis
import functools
import operator
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils import checkpoint as torch_checkpoint

from ...bytecode.decoding import codes_in
from ...errors import Unsupported
from ...ir.values import TensorMeta
from ..inference.on_device import OnDevice, WithoutData
from ..interpreter import Interpreter
from ..objects.native_functions import adopt
from ..symbolic import TensorProxy, is_constant, real_of
from ..symbolic.frame import Frame
from .transforms import Captured, capture_function, named, same_slots, tree

_OPTIONS = ("determinism_check", "debug", "early_stop")


def checkpoint(
    i: Interpreter, function: Any, *args: Any, use_reentrant: Any = None, context_fn: Any = None, **kwargs: Any
) -> Any:
    """`torch.utils.checkpoint.checkpoint`. Where nothing needs gradients, it is a call of the function."""
    if use_reentrant is None:
        raise Unsupported("a warning: torch.utils.checkpoint without use_reentrant", "give use_reentrant=False")
    options: dict[str, Any] = {"use_reentrant": i.truth(use_reentrant)}
    has_contexts = context_fn is not None and context_fn is not torch_checkpoint.noop_context_fn
    if has_contexts and options["use_reentrant"]:
        raise Unsupported("a reentrant checkpoint with contexts, which raises")
    if "preserve_rng_state" in kwargs:
        options["preserve_rng_state"] = i.truth(kwargs.pop("preserve_rng_state"))
    for name in _OPTIONS:
        if name in kwargs:
            options[name] = i.outside.concrete(kwargs.pop(name))
    if kwargs and options["use_reentrant"]:
        raise Unsupported("a reentrant checkpoint with keyword arguments")
    if not i.graph.keeps_history:
        if has_contexts:  # which are made, but entered only where gradients are enabled
            if i.graph.grad_enabled:
                raise Unsupported("a checkpoint with contexts where nothing needs gradients")
            i.call_now(context_fn, ())
        return i.call_now(function, args, kwargs)
    if has_contexts:
        options["context_fn"] = _contexts(i, context_fn)
    args, kwargs = tree(i, args), tree(i, kwargs)
    if options["use_reentrant"] and not any(
        type(v) is TensorProxy and v.meta.requires_grad for v in pytree.tree_leaves(args)
    ):
        raise Unsupported("a reentrant checkpoint of tensors that do not require gradients, which warns")
    if _variables_change(i, function):
        raise Unsupported("a checkpoint of a function whose variables change before the backward pass")
    effects = i.outside.noted()
    leaves = pytree.tree_leaves((args, kwargs))
    metas = [v.meta if type(v) is TensorProxy else None for v in leaves]
    captured = capture_function(i, function, args, kwargs, metas, grad=True, transforms=False)
    if i.outside.has_changed(effects):
        raise Unsupported("a checkpoint of a function with side effects, which happen again in the backward pass")
    return _node(i, captured, args, kwargs, options)


def _contexts(i: Interpreter, function: Any) -> Any:
    """The function that makes the contexts of a checkpoint: it is called while the graph runs, as are its policies, which
    say what is kept for backward."""
    if i.outside.noted(gradients=False):
        raise Unsupported("a checkpoint with contexts after a change that they may see")
    return _as_is(i, function)


def _as_is(i: Interpreter, value: Any) -> Any:
    """What a value is in each call: an object from outside, or, of what is made inside, a constant or a function that uses
    no other variables than such.

    Raises:
        Unsupported: for another value.
    """
    source, kind = i.outside.source_of(value), type(value)
    if source is not None:
        i.outside.guard("is", source, real_of(value))
        return real_of(value)
    if kind is functools.partial:
        keywords = {name: _as_is(i, given) for name, given in value.keywords.items()}
        return functools.partial(_as_is(i, value.func), *[_as_is(i, given) for given in value.args], **keywords)
    if kind is list:  # which may be changed later
        return [_as_is(i, element) for element in list.__iter__(value)]
    if kind is FunctionType and i.is_created(value) and not _variables_change(i, value):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        kept = [*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        if all(_as_is(i, part) is part for part in kept):
            return value
    elif is_constant(value) or (kind is FunctionType and not i.is_created(value)):
        return value
    raise Unsupported("a checkpoint with contexts that depend on what is made inside")


def _selective_contexts(i: Interpreter, policy: Any, allow_cache_entry_mutation: Any = False) -> Any:
    """`create_selective_checkpoint_contexts`, where nobody enters what it makes."""
    if i.graph.grad_enabled:
        raise Unsupported("a call of torch.utils.checkpoint.create_selective_checkpoint_contexts")
    return (None, None)


def _variables_change(i: Interpreter, function: Any) -> bool:
    """Whether a variable that an inner function shares with the running functions may be assigned to again: the backward
    pass calls the function once more, and finds what is there then."""
    cells = getattr(function, "__closure__", None) or () if type(function) is FunctionType else ()
    shared = {id(cell) for cell in cells if i.is_created(cell)}
    for frame in i.frames if shared else ():
        for index, cell in enumerate(frame.locals):
            if id(cell) in shared and _is_assigned_later(frame, index, frame.names[index]):
                return True
    return False


def _is_assigned_later(frame: Frame, index: int, name: str) -> bool:
    instructions = frame.decoded.instructions
    position = frame.lasti
    for k, instruction in enumerate(instructions):
        if instruction.name == "JUMP_BACKWARD" and k > position:
            position = min(position, instruction.value)  # a loop: what is in front comes again
    later = instructions[position:]
    if any(o.name in _ASSIGN and o.arg == index for o in later):
        return True
    inner = [code for code in codes_in(frame.code) if name in code.co_freevars and code is not frame.code]
    named = [instruction for code in inner for instruction in dis.get_instructions(code) if instruction.argval == name]
    return any(instruction.opname in _ASSIGN for instruction in named)


#: What assigns to a variable that functions share, or deletes it.
_ASSIGN = ("STORE_DEREF", "DELETE_DEREF")


def _node(i: Interpreter, captured: Captured, args: Any, kwargs: Any, options: dict[str, Any]) -> Any:
    leaves, spec = pytree.tree_flatten((args, kwargs))
    function, graph = captured.function, captured.function.graph
    _check_new(captured, graph)
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    places = [v for v in leaves if type(v) is TensorProxy] + captured.brought_in
    written = [places[inputs.index(node)] for node in i.graph.contents.take_written(graph)]
    reached, followed = i.graph.history.inputs_reached(graph, captured.outputs)
    connected = [i.graph.node_of(v) for v, node in zip(places, inputs, strict=True) if node in reached]

    def call(flat: Any, brought_in: Any) -> Any:
        outer_args, outer_kwargs = pytree.tree_unflatten(list(flat), spec)
        called = _run_without_data(function.function(brought_in), (*flat, *brought_in))
        result = torch_checkpoint.checkpoint(called, *outer_args, **outer_kwargs, **options)
        return tuple(pytree.tree_leaves(result))

    structure = tuple([v.meta if type(v) is TensorProxy else v for v in same_slots(captured)])
    i.graph.only_pytorch = "a checkpoint"
    results = i.graph.call("call_function", named(call, "checkpoint"), (leaves, list(captured.brought_in)), {}, structure)
    for node in [v.node.args[0] for v in results if type(v) is TensorProxy]:
        node.meta["reaches"] = connected
        node.meta["reentrant"] = options["use_reentrant"]
        node.meta["not_followed"] = not followed
    for tensor in written:
        i.graph.note_written(results, tensor)
    return adopt(i, pytree.tree_unflatten(list(results), pytree.tree_structure(function.result)))


def _run_without_data(function: Callable[..., Any], given: Any) -> Callable[..., Any]:
    """A function of what stands for tensors makes tensors without data too, also when it runs again for gradients."""
    if not any(isinstance(t, torch.Tensor) and (t.is_meta or isinstance(t, OnDevice)) for t in given):
        return function

    def run(*args: Any, **kwargs: Any) -> Any:
        with WithoutData():
            return function(*args, **kwargs)

    return run


def _check_new(captured: Captured, graph: torch.fx.Graph) -> None:
    for output in captured.outputs:
        if type(output) is not TensorProxy:
            raise Unsupported("a checkpoint of a function that returns a number")
        if output.node.graph is not graph or _shares_memory_with_input(output.node):
            raise Unsupported("a checkpoint of a function that returns what it was given")


def _shares_memory_with_input(node: torch.fx.Node) -> bool:
    """Whether a result is an input of its graph, or a view of one."""
    while node.op != "placeholder":
        place = 0
        if node.target is operator.getitem and "effects" not in node.meta:  # of several results
            node, place = node.args  # type: ignore[assignment]
        effects = node.meta.get("effects")
        if effects is None:
            return True
        operand = effects.memory[place] if effects.memory else None
        if operand is None:
            return False
        operands: list[torch.fx.Node] = []
        torch.fx.map_arg((node.args, node.kwargs), operands.append)
        node = [o for o in operands if isinstance(o.meta.get("val"), TensorMeta)][operand]
    return True


HANDLERS: dict[Any, Callable[..., Any]] = {
    torch_checkpoint.checkpoint: checkpoint,
    torch_checkpoint.create_selective_checkpoint_contexts: _selective_contexts,
}
