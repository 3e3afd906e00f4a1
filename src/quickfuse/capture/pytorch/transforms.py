"""`torch.func` and checkpoints: a call of a transformed function is one node of the graph.

The user's function is captured into a graph of its own; the node calls PyTorch's transform on that. What the transform
returns is found out by a run on tensors without data.
"""

from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Callable
from dataclasses import replace
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from ...errors import Unsupported
from ...ir.nodes import outputs_of
from ...ir.transforms import note_transform, transformed_graph
from ...ir.values import TensorMeta
from ..graph.builder import nested_graph
from ..inference.metadata import result_device
from ..inference.on_device import WithoutData
from ..inference.results import SameTensor, View, tensors_in
from ..inference.stand_ins import outside_inference_mode, run_without_data
from ..interpreter import Interpreter
from ..objects.containers import as_plain_dict
from ..objects.native_functions import adopt, plain_copy
from ..symbolic import NativeHandler, ShadowContainer, ShadowDict, Symbol, TensorProxy, is_constant, type_of

#: (the function's graph as a function, arguments, keyword arguments) -> what the transform returns.
Run = Callable[[Callable[..., Any], Any, Any], Any]


class _Slot:
    """In a result: an output of the nested graph."""

    def __init__(self, index: int) -> None:
        self.index = index


def tree(i: Interpreter, value: Any) -> Any:
    """A value with the user's containers as plain ones, made of what PyTorch's transforms look into."""
    value = i.outside.contents(value) if type(value) is ShadowContainer else value
    kind = type(value)
    if kind is ShadowDict:
        if type(value.real) is collections.defaultdict:
            raise Unsupported("a functional transform of a defaultdict")
        value, kind = type(value.real)(as_plain_dict(i, value)), type(value.real)
    if kind in (dict, collections.OrderedDict):
        return kind((k, tree(i, v)) for k, v in value.items())
    if kind in (list, tuple):
        return kind([tree(i, v) for v in value])
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make([tree(i, v) for v in value])
    if kind in (TensorProxy, Symbol) or is_constant(value):
        return value
    raise Unsupported(f"a functional transform with a {type_of(value).__name__} among its values")


class CapturedFunction:
    """A function of the user's as a graph. `result` is the tree of its results, with a `_Slot` for each output."""

    def __init__(self, graph: torch.fx.Graph, result: Any) -> None:
        self.graph = graph
        self.result = result
        self._module: torch.fx.GraphModule | None = None

    def function(self, brought_in: Any) -> Callable[..., Any]:
        """As a function of the user's arguments."""
        if self._module is None:
            self._module = torch.fx.GraphModule(torch.nn.Module(), self.graph)
        forward, result = self._module.forward, self.result

        def captured(*args: Any, **kwargs: Any) -> Any:
            tensors = [v for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
            outputs = forward(*tensors, *brought_in)
            return pytree.tree_map(lambda leaf: outputs[leaf.index] if isinstance(leaf, _Slot) else leaf, result)

        return captured


class Captured(NamedTuple):
    """A captured function, what it uses of the graphs around it, and its outputs there."""

    function: CapturedFunction
    brought_in: list[Any]
    outputs: list[Any]


def capture_function(
    i: Interpreter, function: Any, args: Any, kwargs: Any, metas: list[TensorMeta | None], grad: bool, transforms: bool
) -> Captured:
    """Capture a call of a function. `metas` are those of the leaves of its arguments, None for what is no tensor."""
    builder = i.graph
    with nested_graph(builder, transforms) as nested:
        before, builder.grad_enabled = builder.grad_enabled, grad
        builder.emitted_grad = grad
        try:
            leaves, spec = pytree.tree_flatten((args, kwargs))
            given = [v if meta is None else nested.argument(meta) for v, meta in zip(leaves, metas, strict=True)]
            inner_args, inner_kwargs = adopt(i, pytree.tree_unflatten(given, spec))
            returned = tree(i, i.call_now(function, inner_args, inner_kwargs))
            if builder.grad_enabled != grad:
                raise Unsupported("a transformed function that leaves another grad mode")
            builder.sync_modes()
            leaves, spec = pytree.tree_flatten(returned)
            outputs = [v for v in leaves if type(v) in (TensorProxy, Symbol)]
            count = itertools.count()
            result = [_Slot(next(count)) if type(v) in (TensorProxy, Symbol) else v for v in leaves]
            nested.graph.output(tuple([builder.node_of(v) for v in outputs])).meta["val"] = None
        finally:
            builder.grad_enabled = before
    function_graph = CapturedFunction(nested.graph, pytree.tree_unflatten(result, spec))
    return Captured(function_graph, nested.brought_in, outputs)


def capture_pure(
    i: Interpreter, name: str, function: Any, args: Any, kwargs: Any, metas: list[TensorMeta | None], grad: bool = False
) -> Captured:
    """The same of a function that is transformed, which must not change what it is given."""
    captured = capture_function(i, function, args, kwargs, metas, grad or i.graph.grad_enabled, transforms=True)
    if i.graph.contents.take_written(captured.function.graph):
        raise Unsupported(f"{name} of a function that changes a tensor in place")
    return captured


def _node(i: Interpreter, name: str, run: Run, captured: Captured, args: Any, kwargs: Any) -> Any:
    """One node for `run(function, args, kwargs)`."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    function = captured.function
    specs: list[Any] = []

    def call(flat: Any, brought_in: Any) -> Any:
        outer_args, outer_kwargs = pytree.tree_unflatten(list(flat), spec)
        result = run(function.function(brought_in), outer_args, outer_kwargs)
        flat_result, result_spec = pytree.tree_flatten(result)
        specs[:] = [result_spec]
        return tuple(flat_result)

    note_transform(named(call, name), function.graph)
    results = call_node(i, call, leaves, captured.brought_in)
    return adopt(i, pytree.tree_unflatten(list(results), specs[0]))


def same_metas(args: Any, kwargs: Any) -> list[TensorMeta | None]:
    """Inside of a transform, tensors are no leaves of autograd's own graph."""
    leaves = pytree.tree_leaves((args, kwargs))
    return [replace(v.meta, requires_grad=False) if type(v) is TensorProxy else None for v in leaves]


def call_node(i: Interpreter, function: FunctionType, leaves: list[Any], brought_in: list[Any]) -> Any:
    args = (leaves, list(brought_in))
    tensors = [v for v in (*leaves, *brought_in) if type(v) is TensorProxy]
    device = result_device(tensors)
    _check_devices(transformed_graph(function), device)
    with outside_inference_mode(), i.graph.autocast.in_force(), WithoutData():
        result = run_without_data(function, args, {}, tensors, i.graph.grad_enabled, device)
    given = any(isinstance(leaf, (SameTensor, View)) for leaf in tensors_in(result.structure))
    if result.written or result.changed or given:
        raise Unsupported(f"{function.__name__} of a function that returns or changes what it was given")
    i.graph.only_pytorch = "a functional transform"
    inference = i.graph.inference
    inside, inference.on = inference.on, inference.on and not _differentiates(function)
    try:
        return i.graph.call("call_function", function, args, {}, result.structure)
    finally:
        inference.on = inside


def _check_devices(graph: Any, device: torch.device) -> None:
    """Refuse a function that returns something on another device than what it was given."""
    for node in outputs_of(graph):
        meta = node.meta.get("val")
        if isinstance(meta, TensorMeta) and meta.device != device:
            raise Unsupported("a functional transform of a function that returns a tensor on another device")


def _differentiates(function: Any) -> bool:
    """Whether a call is of a transform that differentiates, or of one of a function that does: its results are made outside
    of inference mode."""
    graph = transformed_graph(function)
    return graph is not None and (
        function.__name__ != "func_vmap" or any(_differentiates(node.target) for node in graph.nodes)
    )


def named(function: FunctionType, name: str) -> FunctionType:
    """A function under the name that the graph shows."""
    function.__name__ = function.__qualname__ = name.replace(".", "_")
    function.__module__ = __name__
    return function


# torch.func -----------------------------------------------------------------------------------------------------


#: Options are no tensors.
_option = functools.partial(plain_copy, what="a functional transform with an option")


def _transformer(transform: Any, *names: str) -> Callable[..., Any]:
    """The handler of a function such as `torch.func.grad`, which takes a function and `names`, and returns a function."""

    def handler(i: Interpreter, func: Any, *options: Any, **named: Any) -> NativeHandler:
        named.update(zip(names, options, strict=False))
        return transformed(transform, func, {name: _option(i, value) for name, value in named.items()})

    return handler


def transformed(transform: Any, function: Any, options: dict[str, Any]) -> NativeHandler:
    """What `transform(function, **options)` returns."""
    name = f"func.{transform.__name__}"
    chunk = options.get("chunk_size")
    if chunk is not None and (type(chunk) is not int or chunk < 1 or options.get("randomness") == "same"):
        raise Unsupported(f"{name} in chunks of {chunk}, which raises or draws the same numbers for each chunk")

    def run(f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return transform(f, **options)(*args, **kwargs)

    def call(i: Interpreter, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree(i, args), tree(i, kwargs)
        if transform is torch.func.vmap:
            metas = _batched_metas(args, kwargs, options.get("in_dims", 0))
        else:
            metas = same_metas(args, kwargs)
        enables_grad = transform not in (torch.func.vmap, torch.func.jacfwd)
        captured = capture_pure(i, name, function, args, kwargs, metas, enables_grad)
        return _node(i, name, run, captured, args, kwargs)

    return NativeHandler(call, made_by=(transform, function, options))


def _batched_metas(args: Any, kwargs: Any, in_dims: Any) -> list[TensorMeta | None]:
    """The metadata of one element of the batch."""
    leaves, spec = pytree.tree_flatten(args)
    axes = pytree._broadcast_to_and_flatten(in_dims, spec)
    if axes is None:
        raise Unsupported("func.vmap with in_dims that do not fit")
    named = pytree.tree_leaves(kwargs)
    pairs = [*zip(leaves, axes, strict=True), *((leaf, 0) for leaf in named)]
    return [_without_axis(leaf.meta, axis) if type(leaf) is TensorProxy else None for leaf, axis in pairs]


def _without_axis(meta: TensorMeta, axis: int | None) -> TensorMeta:
    meta = replace(meta, requires_grad=False)
    if axis is None:
        return meta
    if type(axis) is not int or not -meta.ndim <= axis < meta.ndim:
        raise Unsupported("func.vmap over an axis that a tensor does not have")
    axis %= meta.ndim
    shape, stride = meta.shape, meta.stride
    return replace(meta, shape=shape[:axis] + shape[axis + 1 :], stride=stride[:axis] + stride[axis + 1 :])


def _jvp(i: Interpreter, func: Any, primals: Any, tangents: Any, *, strict: Any = False, has_aux: Any = False) -> Any:
    options = {"strict": _option(i, strict), "has_aux": _option(i, has_aux)}
    primals, tangents = tree(i, primals), tree(i, tangents)
    if type(primals) is not tuple:
        raise Unsupported("func.jvp of primals that are no tuple")
    captured = capture_pure(i, "func.jvp", func, primals, {}, same_metas(primals, {}), grad=False)

    def run(f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return torch.func.jvp(f, args[0], args[1], **options)

    return _node(i, "func.jvp", run, captured, (primals, tangents), {})


def _vjp(i: Interpreter, func: Any, *primals: Any, has_aux: Any = False) -> Any:
    """`torch.func.vjp`. A node for what the function returns, and one for each call of what pulls back, which computes
    the function once more."""
    aux = _option(i, has_aux)
    primals = tree(i, primals)
    captured = capture_pure(i, "func.vjp", func, primals, {}, same_metas(primals, {}), grad=True)
    clock = i.graph.contents.clock

    def forward(f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        result = torch.func.vjp(f, *args, has_aux=aux)
        return (result[0], result[2]) if aux else result[0]

    def back(f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return torch.func.vjp(f, *args[0], has_aux=aux)[1](args[1])

    def pull(i: Interpreter, cotangents: Any) -> Any:
        if i.graph.contents.clock != clock:
            raise Unsupported("func.vjp after tensors were changed in place")
        return _node(i, "func.vjp", back, captured, (primals, tree(i, cotangents)), {})

    result = _node(i, "func.vjp", forward, captured, primals, {})
    return (result[0], NativeHandler(pull), result[1]) if aux else (result, NativeHandler(pull))


# transformed functions that were made outside --------------------------------------------------------------------


def _inner_code(transform: Any) -> CodeType:
    """The code of the function that a transform returns."""
    codes = [c for c in transform.__code__.co_consts if isinstance(c, CodeType) and "func" in c.co_freevars]
    return next(c for c in codes if c.co_name.startswith("wrap"))


_TRANSFORMS: dict[Any, tuple[str, ...]] = {
    torch.func.grad: ("argnums", "has_aux"),
    torch.func.grad_and_value: ("argnums", "has_aux"),
    torch.func.vmap: ("in_dims", "out_dims", "randomness", "chunk_size"),
    torch.func.jacrev: ("argnums",),
    torch.func.jacfwd: ("argnums", "has_aux"),
    torch.func.hessian: ("argnums",),
}
_OPTIONS = frozenset({*itertools.chain(*_TRANSFORMS.values()), "has_aux", "chunk_size"})
_BY_CODE: dict[CodeType, Any] = {
    _inner_code(transform): transform for transform in _TRANSFORMS if transform is not torch.func.hessian
}


def made_outside(i: Interpreter, function: FunctionType) -> NativeHandler | None:
    """The transformed function that a Python function is, if it is one."""
    transform = _BY_CODE.get(function.__code__)
    source = i.outside.source_of(function)
    if transform is None or source is None:
        return None
    found: dict[str, Any] = {}
    for k, (name, cell) in enumerate(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)):
        if name == "func" or name in _OPTIONS:
            place = source.attr("__closure__").item(k).attr("cell_contents")
            found[name] = i.outside.wrap(cell.cell_contents, place)
    inner = found.pop("func")
    return transformed(transform, inner, {name: _option(i, value) for name, value in found.items()})


def same_slots(captured: Captured) -> list[Any]:
    """The results of a captured function as the program sees them outside, one for each leaf."""
    leaves = pytree.tree_leaves(captured.function.result)
    return [captured.outputs[leaf.index] if isinstance(leaf, _Slot) else leaf for leaf in leaves]


HANDLERS: dict[Any, Callable[..., Any]] = {
    **{transform: _transformer(transform, *names) for transform, names in _TRANSFORMS.items()},
    torch.func.jvp: _jvp,
    torch.func.vjp: _vjp,
}
