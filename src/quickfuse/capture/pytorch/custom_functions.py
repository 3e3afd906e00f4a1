"""Calls of `torch.autograd.Function`: inlined where nothing needs gradients, one node of the graph where something does.

The node calls the user's class, so that its `backward` is the user's. What its `forward` gives is found out by capturing
it and throwing the nodes away. Where `backward` can be captured too, the nodes of both are kept, to be differentiated with
what is around the call: they take its place where gradients are traced. `forward` runs without gradients there, and
`backward` for the gradients of its results, as autograd has it.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Sequence
from dataclasses import replace
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

from ... import logs
from ...errors import Unsupported
from ...ir.modes import MODE_CHANGES
from ...ir.nodes import copied_node, last_node, new_input, nodes_after
from ...ir.own_gradients import OwnGradients, note_own_gradients
from ...ir.values import TensorMeta
from ..graph.contents import seen_owners
from ..interpreter import Interpreter
from ..objects.class_attributes import lookup_class
from ..symbolic import Symbol, TensorProxy, is_constant, is_numpy, real_of
from ..symbolic.raising import CapturedAgain, Raised

_DEFAULT_SETUP = torch.autograd.Function.setup_context


class InlinedContext:
    """What `forward` gets as `ctx` while it is captured."""

    def __init__(self) -> None:
        self.saved: tuple[Any, ...] = ()
        self.dirty: tuple[Any, ...] = ()
        self.not_differentiable: tuple[Any, ...] = ()
        self.needs_input_grad: tuple[bool, ...] = ()
        #: Whether `backward` gets zeros where a result has no gradient.
        self.gives_zeros = True

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        return self.saved

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        pass

    def mark_dirty(self, *tensors: Any) -> None:
        self.dirty = tensors

    def mark_non_differentiable(self, *tensors: Any) -> None:
        self.not_differentiable = tensors

    def set_materialize_grads(self, value: Any) -> None:
        self.gives_zeros = value is True


def apply(i: Interpreter, cls: Any, *args: Any, **kwargs: Any) -> Any:
    """`cls.apply(*args)` for a user's `torch.autograd.Function`."""
    forward = _static(cls, "forward")
    if not isinstance(forward, (FunctionType, MethodType)) or kwargs or cls.generate_vmap_rule:
        raise Unsupported(f"{cls.__qualname__}.apply")
    transformed = any(nested.transforms for nested in i.graph.nested)
    if transformed and cls.vmap is not torch.autograd.Function.vmap:
        raise Unsupported(f"{cls.__qualname__}.apply inside of a functional transform")
    tensors = [a for a in args if type(a) is TensorProxy]
    needed = transformed or (i.graph.grad_enabled and any(t.meta.requires_grad for t in tensors))
    if needed and not i.graph.keeps_history:  # what it returns requires gradients, and what is computed of that does not
        raise Unsupported(f"{cls.__qualname__}.apply in inference mode with gradients")
    operators, mutated = i.graph.operators, set(i.graph.mutated)
    i.graph.sync_modes()  # changes of settings before the call are not taken out again with its operators
    last, modes = last_node(i.graph.graph), _ModesBefore(i)
    effects = i.outside.noted()
    context = i.mark_created(InlinedContext())
    context.needs_input_grad = tuple(type(a) is TensorProxy and (transformed or a.meta.requires_grad) for a in args)
    grad_enabled, i.graph.grad_enabled = i.graph.grad_enabled, False
    try:
        result = _run_forward(i, cls, forward, context, args)
    finally:
        i.graph.grad_enabled = grad_enabled
    outputs = result if isinstance(result, tuple) else (result,)
    if not all(any(output is tensor for output in outputs) for tensor in context.dirty):
        raise Unsupported(f"{cls.__qualname__}.apply, which does not return what it marks as changed")
    if not needed:
        _check_inlined(i, cls, tensors, outputs)
        return result
    if i.outside.has_changed(effects) or context.dirty or changes_others(i, last, mutated):
        raise Unsupported(f"{cls.__qualname__}.apply, which has side effects")
    plain = tuple([_operand(i, cls, a) for a in args])
    if not all(type(o) is TensorProxy for o in outputs):
        raise Unsupported(f"{cls.__qualname__}.apply, which returns other things than tensors")
    differentiable = [o.meta.dtype.is_floating_point and o not in context.not_differentiable for o in outputs]
    pairs = zip(outputs, differentiable, strict=True)
    metas = [replace(o.meta, requires_grad=needs and not transformed) for o, needs in pairs]
    found = None if transformed else _own_gradients(i, cls, context, plain, outputs, last)
    _take_out(i, last, modes)
    i.graph.operators, i.graph.mutated = operators, mutated
    structure = tuple(metas) if isinstance(result, tuple) else metas[0]
    passed = tuple([operand for operand in plain if type(operand) is not Same])
    caller = _caller(cls, plain)
    if found is not None:
        note_own_gradients(caller, found)
    result = i.graph.call("call_function", caller, passed, {}, structure)
    made = result if isinstance(result, tuple) else (result,)
    if isinstance(result, tuple):  # what `forward` returns twice is one tensor
        result = made = tuple([made[next(k for k, other in enumerate(outputs) if other is o)] for o in outputs])
    application = Application(cls, context, plain, made, found)
    nodes = [output.node for output in made]
    for node in nodes + ([nodes[0].args[0]] if isinstance(result, tuple) else []):
        node.meta["own_gradients"] = True
        i.graph.history.applications[node] = application
    if transformed:
        application.operands_with_gradients(i)  # which refuses side effects
    return result


def _check_inlined(i: Interpreter, cls: Any, tensors: list[TensorProxy], outputs: tuple[Any, ...]) -> None:
    """Require that nothing needs gradients, so that the operators of `forward` are all that a call is."""
    i.note_autograd_asked(None)  # where tensors need gradients, they are the class's own
    if i.graph.grad_enabled:
        for tensor in tensors:
            i.outside.guard_requires_grad(tensor)
    if any(output is t for output in outputs for t in tensors):
        raise Unsupported(f"{cls.__qualname__}.apply, which returns what it was given")


#: The code of backward passes that cannot be captured.
_called: weakref.WeakSet[CodeType] = weakref.WeakSet()


def _own_gradients(
    i: Interpreter, cls: Any, context: InlinedContext, operands: tuple[Any, ...], outputs: tuple[Any, ...], last: Any
) -> OwnGradients | None:
    """What the call computes, as nodes; None where it has to be called.

    Raises:
        CapturedAgain: where that was only found out by capturing `backward`.
    """
    backward = _static(cls, "backward")
    if not isinstance(backward, (FunctionType, MethodType)) or backward.__code__ in _called:
        return None
    if i.graph.nested or i.graph.autocast.is_active or i.graph.autocast.began_active:
        return None  # under autocast, `backward` runs with it or without
    if not context.gives_zeros or len({*map(id, outputs)}) < len(outputs):
        return None
    grad_enabled, i.graph.grad_enabled = i.graph.grad_enabled, False
    try:
        objects = [k for k, operand in enumerate(operands) if type(operand) is Same]
        return captured_backward(i, backward, context, operands, objects, outputs, last)
    except (Unsupported, Raised) as reason:
        logs.log.info("the backward pass of %s is called: %s", cls.__qualname__, reason)
    finally:
        i.graph.grad_enabled = grad_enabled
    _called.add(backward.__code__)
    raise CapturedAgain


class Application:
    """A call of a custom function that is a node of the graph."""

    def __init__(
        self, cls: Any, context: InlinedContext, args: tuple[Any, ...], outputs: tuple[TensorProxy, ...],
        own: OwnGradients | None,
    ) -> None:  # fmt: skip
        self.cls = cls
        self.context = context
        self.args = args
        self.outputs = outputs
        self.own = own
        self._operands: list[torch.fx.Node] | None = None

    def operands_with_gradients(self, i: Interpreter) -> list[torch.fx.Node]:
        """The operands that `backward` gives gradients to: if it was not yet, it is captured, and its nodes are thrown
        away."""
        if self._operands is None and self.own is not None:
            passed = [a for a in self.args if type(a) in (TensorProxy, Symbol)]
            pairs = zip(passed, self.own.given, strict=True)
            self._operands = [i.graph.node_of(a) for a, given in pairs if type(a) is TensorProxy and given is not None]
        if self._operands is None:
            self._operands = self._find(i)
        return self._operands

    def _find(self, i: Interpreter) -> list[torch.fx.Node]:
        backward = _static(self.cls, "backward")
        if not isinstance(backward, (FunctionType, MethodType)):
            raise Unsupported(f"the backward pass of {self.cls.__qualname__}")
        graph = i.graph
        graph.sync_modes()  # as before the call of `forward`
        last, modes = last_node(graph.graph), _ModesBefore(i)
        before = graph.operators, set(graph.mutated), i.outside.noted(), graph.grad_enabled
        graph.grad_enabled = False
        try:
            gradients = tuple([graph.call("call_function", torch.zeros_like, (output,), {}) for output in self.outputs])
            found = i.call_now(backward, (self.context, *gradients))
        finally:
            graph.grad_enabled = before[3]
        if i.outside.has_changed(before[2]) or changes_others(i, last, before[1]):
            raise Unsupported(f"the backward pass of {self.cls.__qualname__}, which has side effects")
        _take_out(i, last, modes)
        graph.operators, graph.mutated = before[:2]
        found = found if isinstance(found, tuple) else (found,)
        if len(found) < len(self.args):
            raise Unsupported(f"the backward pass of {self.cls.__qualname__}, which gives too few gradients")
        pairs = zip(self.args, found, strict=False)
        return [graph.node_of(a) for a, gradient in pairs if type(a) is TensorProxy and gradient is not None]


def _static(cls: Any, name: str) -> Any:
    """A static method that a class defines, or one of the class."""
    found = lookup_class(cls, name)[1]
    if isinstance(found, classmethod) and isinstance(found.__func__, FunctionType):
        return MethodType(found.__func__, cls)
    return found.__func__ if isinstance(found, staticmethod) else found


class _ModesBefore:
    """PyTorch's settings where a capture begins whose nodes are taken out again.

    With them go the calls that changed settings; those that still wait for an operator would change them once more. So both
    are as they were before, which is right where the settings are.
    """

    def __init__(self, i: Interpreter) -> None:
        self._grad = i.graph.emitted_grad
        self._pending = [*i.graph.autocast.pending]
        self._settings = i.graph.autocast.all_settings()

    def take_back(self, i: Interpreter) -> None:
        if i.graph.autocast.all_settings() != self._settings:
            raise Unsupported("a torch.autograd.Function that leaves other autocast settings")
        i.graph.emitted_grad = self._grad
        i.graph.autocast.pending = self._pending


def _take_out(i: Interpreter, last: Any, modes: _ModesBefore) -> None:
    """Take the operators after a node out of the graph. Placeholders stay; numbers are computed anew where used."""
    modes.take_back(i)
    for node in [*nodes_after(i.graph.graph, last)]:
        if node.op != "placeholder":
            number = i.graph.numbers.pop(node, None)
            if number is not None and not number.from_tensor:
                number.node = None
            i.graph.graph.erase_node(node)


class Same(NamedTuple):
    """An object of the user's that a call gets each time, or a number of NumPy's."""

    value: Any


def _is_of_numpy(value: Any) -> bool:
    """Whether an operand is a number that has changed, of a class of NumPy's: the graph gives the plain number."""
    return type(value) is Symbol and value.cls is not value.kind


def _caller(cls: Any, operands: tuple[Any, ...]) -> FunctionType:
    """A function that applies a class, under a name that tells which: what the graph shows. It takes the operands that are
    no objects."""

    def call(*args: Any) -> Any:
        given = iter(args)
        return cls.apply(*[o.value if type(o) is Same else o(next(given)) if o else next(given) for o in template])

    template: list[Any] = [o if type(o) is Same else o.cls if _is_of_numpy(o) else None for o in operands]
    call.__name__ = call.__qualname__ = f"{cls.__name__}_apply"
    if cls.__module__.partition(".")[0] != "torch":  # of PyTorch's modules, torch.fx writes code that looks for it there
        call.__module__ = cls.__module__
    return call


def _run_forward(i: Interpreter, cls: Any, forward: Any, context: InlinedContext, args: tuple[Any, ...]) -> Any:
    setup = _static(cls, "setup_context")
    if setup is _DEFAULT_SETUP or not isinstance(setup, (FunctionType, MethodType)):
        return i.call_now(forward, (context, *args))
    result = i.call_now(forward, args)
    i.call_now(setup, (context, args, result))
    return result


def _operand(i: Interpreter, cls: Any, value: Any) -> Any:
    """An operand of the node: a tensor, a number that has changed, another plain value, or an object from outside that is as
    it was before the call."""
    value = i.outside.number_of_numpy(value)
    if type(value) is Symbol and not value.from_tensor and value.kind in (int, float) and i.outside.has_other_values(value):
        return value
    if type(value) is TensorProxy or type(value) is Symbol or is_constant(value):
        held = i.outside.concrete(value)
        return Same(held) if is_numpy(held) else held
    source = i.outside.source_of(value)
    if source is None or i.outside.noted(gradients=False):
        raise Unsupported(f"{cls.__qualname__}.apply of what is made or changed inside, and no tensor or plain value")
    i.outside.guard("is", source, real_of(value))
    return Same(real_of(value))


# `forward` and `backward` as nodes ------------------------------------------------------------------------------------


#: The code of what `once_differentiable` makes, which gives the same wherever gradients of gradients are not recorded.
_ONCE = torch.autograd.function.once_differentiable(lambda ctx: None).__code__


def captured_backward(
    i: Interpreter, backward: Any, context: Any, operands: Sequence[Any], objects: Collection[int],
    outputs: Sequence[TensorProxy], last: Node | None,
) -> OwnGradients:  # fmt: skip
    """What is computed by the nodes after `last`, which are those of `forward`, and by `backward`, which is captured here.

    `operands` are those of the class, of which the call gets all but those at `objects`; `outputs` are what `forward`
    returned.

    Raises:
        Unsupported: with the reason why `backward` has to be called.
        Raised: what it raises.
    """
    graph = i.graph
    forward = _computed(i, last)
    made = [graph.call("call_function", torch.zeros_like, (output,), {}) for output in outputs]
    begin, effects, mutated = last_node(graph.graph), i.outside.noted(), set(graph.mutated)
    found = i.call_now(backward, (context, *made))
    found = found if isinstance(found, tuple) else (found,)
    backward_ = _computed(i, begin)
    if i.outside.has_changed(effects) or changes_others(i, begin, mutated):
        raise Unsupported("a backward pass with side effects")
    if len(found) != len(operands) or not all(f is None or type(f) is TensorProxy for f in found):
        raise Unsupported("a backward pass that gives other things than a gradient for each operand")
    passed = [k for k, operand in enumerate(operands) if type(operand) in (TensorProxy, Symbol)]
    given = [None if found[k] is None else graph.node_of(found[k]) for k in passed]
    taken, results = [graph.node_of(operands[k]) for k in passed], [graph.node_of(output) for output in outputs]
    gradients = [graph.node_of(gradient) for gradient in made]
    saved = dict.fromkeys(graph.node_of(t) for t in context.saved if type(t) is TensorProxy)
    for node in _used(backward_, given):
        if node in saved or node in gradients or not isinstance(node.meta.get("val"), TensorMeta):
            continue
        if node in taken or node in results or not set(seen_owners(node)) <= {*forward} - {*results}:
            raise Unsupported("a tensor that a backward pass uses, which was not saved for it")
        saved[node] = None  # nobody else has it, and so nobody changes it
    copies = _Copies()
    place = {k: place for place, k in enumerate(k for k in range(len(operands)) if k not in objects)}
    not_differentiable = [k for k, o in enumerate(outputs) if any(o is other for other in context.not_differentiable)]
    return OwnGradients(
        positions=tuple([place[k] for k in passed]), operands=copies.placeholders(taken), forward=copies.of_all(forward),
        results=copies.known_of(results), not_differentiable=tuple(not_differentiable), saved=copies.known_of(saved),
        gradients=copies.placeholders(gradients), backward=copies.of_all(backward_),
        given=tuple([None if node is None else copies.known_of([node])[0] for node in given]),
        once=backward.__code__ is _ONCE,
    )  # fmt: skip


def _computed(i: Interpreter, last: Node | None) -> list[Node]:
    """The calls after a node, in order."""
    return [node for node in reversed([*nodes_after(i.graph.graph, last)]) if node.op != "placeholder"]


def changes_others(i: Interpreter, last: Node | None, mutated: set[str]) -> bool:
    """Whether operators after a node changed tensors that they did not make; `mutated` are those changed before."""
    made = {*_computed(i, last)}
    changed = [node for node in made if node.name in i.graph.mutated]
    others = i.graph.mutated - mutated - {node.name for node in changed}
    return bool(others) or any(owner not in made for node in changed for owner in seen_owners(node))


def _used(nodes: Sequence[Node], returned: Sequence[Node | None]) -> list[Node]:
    """What nodes, and a result, take from before."""
    inside = set(nodes)
    operands = [operand for node in nodes for operand in node.all_input_nodes]
    return [*dict.fromkeys(n for n in [*operands, *returned] if n is not None and n not in inside)]


class _Copies:
    """A graph of copies of nodes."""

    def __init__(self) -> None:
        self._graph = Graph()
        self._known: dict[Node, Node] = {}

    def placeholders(self, nodes: Sequence[Node]) -> tuple[Node, ...]:
        """One for each of the nodes, in their place."""
        for node in nodes:
            made = self._known[node] = new_input(self._graph, node.name)
            made.meta.update(node.meta)
        return self.known_of(nodes)

    def of_all(self, nodes: Sequence[Node]) -> tuple[Node, ...]:
        """Copies of calls. That gradients are off is said for the nodes of a capture, and not by them."""
        made = []
        for node in nodes:
            if node.target is torch._C._set_grad_enabled and node.args == (False,):
                continue
            if node.target in MODE_CHANGES:
                raise Unsupported("changes of modes")
            copy = self._known[node] = copied_node(self._graph, node, self._known_or_not)
            made.append(copy)
        return tuple(made)

    def known_of(self, nodes: Collection[Node]) -> tuple[Node, ...]:
        """The copies of nodes."""
        return tuple([self._known_or_not(node) for node in nodes])

    def _known_or_not(self, node: Node) -> Node:
        if node not in self._known:
            raise Unsupported("a tensor or number from outside that is no operand")
        return self._known[node]
