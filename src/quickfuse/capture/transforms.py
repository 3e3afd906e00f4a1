"""`torch.func` and checkpoints: a call of a transformed function is one node of the graph.

The user's function is captured into a graph of its own; the node calls PyTorch's transform on that. What the transform
returns is found out by a run on tensors without data.
"""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable
from dataclasses import replace
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from ..errors import Unsupported
from ..ir.values import TensorMeta
from .containers import as_plain_dict
from .metadata import name_of, result_device
from .nested import Nested, nested_graph
from .results import SameTensor, View, tensors_in
from .stand_ins import run_without_data
from .values import NativeHandler, ShadowContainer, ShadowDict, Symbol, TensorProxy, is_constant

if TYPE_CHECKING:
    from .interpreter import Interpreter

#: (the function's graph as a function, arguments, keyword arguments) -> what the transform returns.
Run = Callable[[Callable[..., Any], Any, Any], Any]


class _Slot:
    """In a result: an output of the nested graph."""

    def __init__(self, index: int) -> None:
        self.index = index


def _tree(i: Interpreter, value: Any) -> Any:
    """A value with the user's containers as plain ones, made of what PyTorch's transforms look into."""
    value = i.outside.contents(value) if type(value) is ShadowContainer else value
    kind = type(value)
    if kind is ShadowDict:
        if type(value.real) is collections.defaultdict:
            raise Unsupported("a functional transform of a defaultdict")
        value, kind = type(value.real)(as_plain_dict(i, value)), type(value.real)
    if kind in (dict, collections.OrderedDict):
        return kind((k, _tree(i, v)) for k, v in value.items())
    if kind in (list, tuple):
        return kind([_tree(i, v) for v in value])
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make([_tree(i, v) for v in value])
    if kind in (TensorProxy, Symbol) or is_constant(value):
        return value
    raise Unsupported(f"a functional transform with a {kind.__name__} among its values")


def _created(i: Interpreter, tree: Any) -> Any:
    """A tree whose containers the captured code may change."""
    if isinstance(tree, dict):
        return i.mark_created(type(tree)((k, _created(i, v)) for k, v in tree.items()))
    if type(tree) is list:
        return i.mark_created([_created(i, v) for v in tree])
    if isinstance(tree, tuple) and type(tree) is not torch.Size:
        parts = [_created(i, v) for v in tree]
        return tree._make(parts) if hasattr(tree, "_make") else tuple(parts)
    return tree


class CapturedFunction:
    """A function of the user's as a graph: `outputs` are its results, in the tree `result`."""

    def __init__(self, nested: Nested, outputs: list[Any], result: Any) -> None:
        self.nested = nested
        self.outputs = outputs
        self.result = result
        self._module: torch.fx.GraphModule | None = None

    def function(self, brought_in: list[Any]) -> Callable[..., Any]:
        """As a function of the user's arguments."""
        if self._module is None:
            self._module = torch.fx.GraphModule(torch.nn.Module(), self.nested.graph)
        forward, result = self._module.forward, self.result

        def captured(*args: Any, **kwargs: Any) -> Any:
            tensors = [v for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
            outputs = forward(*tensors, *brought_in)
            return pytree.tree_map(lambda leaf: outputs[leaf.index] if isinstance(leaf, _Slot) else leaf, result)

        return captured


def capture_function(
    i: Interpreter, function: Any, args: Any, kwargs: Any, metas: dict[int, TensorMeta], grad: bool, transforms: bool
) -> CapturedFunction:
    """Capture a call of a function. `metas` are those of its tensors, by the identities of the stand-ins outside."""
    graph = i.graph
    with nested_graph(graph, transforms) as nested:
        before, graph.grad_enabled = graph.grad_enabled, grad
        graph.emitted_grad = grad
        try:
            leaves, spec = pytree.tree_flatten((args, kwargs))
            given = [nested.argument(metas[k]) if type(v) is TensorProxy else v for k, v in enumerate(leaves)]
            inner_args, inner_kwargs = _created(i, pytree.tree_unflatten(given, spec))
            returned = _tree(i, i.call_now(function, inner_args, inner_kwargs))
            if graph.grad_enabled != grad:
                raise Unsupported("a transformed function that leaves another grad mode")
            graph.sync_modes()
            leaves, spec = pytree.tree_flatten(returned)
            outputs = [v for v in leaves if type(v) in (TensorProxy, Symbol)]
            slots = iter(range(len(outputs)))
            result = [_Slot(next(slots)) if type(v) in (TensorProxy, Symbol) else v for v in leaves]
            nodes = tuple(graph.node_of(v) for v in outputs)
            nested.graph.output(nodes).meta["val"] = None
        finally:
            graph.grad_enabled = before
    return CapturedFunction(nested, outputs, pytree.tree_unflatten(result, spec))


def _apply(
    i: Interpreter, name: str, run: Run, function: Any, args: Any, kwargs: Any, *,
    called_with: Callable[[Any, Any], Any] | None = None, grad: bool = True,
    metas: Callable[[list[Any]], dict[int, TensorMeta]] | None = None,
) -> Any:  # fmt: skip
    """One node for `run(function, args, kwargs)`. `called_with` picks what the function is called with from the
    arguments of the transformed one, `metas` tells the metadata of these."""
    args, kwargs = _tree(i, tuple(args)), _tree(i, dict(kwargs))
    inner_args, inner_kwargs = called_with(args, kwargs) if called_with else (args, kwargs)
    inner_leaves = pytree.tree_leaves((inner_args, inner_kwargs))
    described = metas(inner_leaves) if metas else _same_metas(inner_leaves)
    captured = capture_function(
        i, function, inner_args, inner_kwargs, described, grad or i.graph.grad_enabled, transforms=True
    )
    if i.graph.contents.take_written(captured.nested.graph):
        raise Unsupported(f"{name} of a function that changes a tensor in place")
    leaves, spec = pytree.tree_flatten((args, kwargs))
    specs: list[Any] = []

    def call(flat: Any, brought_in: Any) -> Any:
        outer_args, outer_kwargs = pytree.tree_unflatten(list(flat), spec)
        result = run(captured.function(brought_in), outer_args, outer_kwargs)
        flat_result, result_spec = pytree.tree_flatten(result)
        specs[:] = [result_spec]
        return tuple(flat_result)

    results = _call(i, _named(call, name), leaves, captured.nested.brought_in)
    return _created(i, pytree.tree_unflatten(list(results), specs[0]))


def _same_metas(leaves: list[Any]) -> dict[int, TensorMeta]:
    """Inside of a transform, tensors are no leaves of autograd's own graph."""
    return {k: replace(v.meta, requires_grad=False) for k, v in enumerate(leaves) if type(v) is TensorProxy}


def _call(i: Interpreter, function: FunctionType, leaves: list[Any], brought_in: list[Any]) -> Any:
    args = (leaves, list(brought_in))
    tensors = [v for v in (*leaves, *brought_in) if type(v) is TensorProxy]
    result = run_without_data(function, args, {}, tensors, i.graph.grad_enabled, result_device(tensors))
    if result.written or result.changed or any(isinstance(leaf, (SameTensor, View)) for leaf in tensors_in(result.structure)):
        raise Unsupported(f"{function.__name__} of a function that returns or changes what it was given")
    i.graph.transforms = True
    return i.graph.call("call_function", function, args, {}, result.structure)


def _named(function: FunctionType, name: str) -> FunctionType:
    """A function under the name that the graph shows."""
    function.__name__ = function.__qualname__ = name.replace(".", "_")
    function.__module__ = __name__
    return function


# torch.func -----------------------------------------------------------------------------------------------------


def _plain(i: Interpreter, value: Any) -> Any:
    """An option, which is no tensor."""
    value = i.outside.contents(value)
    if isinstance(value, (list, tuple)):
        return type(value)([_plain(i, v) for v in value])
    if isinstance(value, dict):
        return {k: _plain(i, v) for k, v in value.items()}
    value = i.outside.concrete(value)
    if not is_constant(value):
        raise Unsupported("a functional transform with an option that is no plain value")
    return value


def _transformer(transform: Any, names: tuple[str, ...], grad: bool = True) -> Callable[..., Any]:
    """The handler of a function such as `torch.func.grad`, which takes a function and `names`, and returns a function."""

    def handler(i: Interpreter, func: Any, *options: Any, **named: Any) -> NativeHandler:
        named.update(zip(names, options, strict=False))
        plain = {name: _plain(i, value) for name, value in named.items()}
        return transformed(i, transform, func, plain)

    handler.grad = grad  # type: ignore[attr-defined]
    return handler


def transformed(i: Interpreter, transform: Any, function: Any, options: dict[str, Any]) -> NativeHandler:
    """What `transform(function, **options)` returns."""
    name = f"func.{transform.__name__}"
    if options.get("chunk_size") is not None:
        raise Unsupported(f"{name} in chunks")

    def run(f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return transform(f, **options)(*args, **kwargs)

    def call(i: Interpreter, *args: Any, **kwargs: Any) -> Any:
        if transform is torch.func.vmap:
            in_dims = options.get("in_dims", 0)
            metas = _batched_metas(in_dims, len(args))
            return _apply(i, name, run, function, args, kwargs, grad=False, metas=metas)
        return _apply(i, name, run, function, args, kwargs, grad=transform is not torch.func.jacfwd)

    handler = NativeHandler(call)
    handler.made_by = (transform, function, options)
    return handler


def _batched_metas(in_dims: Any, count: int) -> Callable[[list[Any]], dict[int, TensorMeta]]:
    def metas(leaves: list[Any]) -> dict[int, TensorMeta]:
        raise NotImplementedError

    return metas


def _without_axis(meta: TensorMeta, axis: int | None) -> TensorMeta:
    meta = replace(meta, requires_grad=False)
    if axis is None:
        return meta
    if not -meta.ndim <= axis < meta.ndim:
        raise Unsupported("vmap over an axis that a tensor does not have")
    axis %= meta.ndim
    return replace(
        meta, shape=meta.shape[:axis] + meta.shape[axis + 1 :], stride=meta.stride[:axis] + meta.stride[axis + 1 :]
    )


def _jvp(i: Interpreter, func: Any, primals: Any, tangents: Any, *, strict: Any = False, has_aux: Any = False) -> Any:
    options = {"strict": _plain(i, strict), "has_aux": _plain(i, has_aux)}

    def run(f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return torch.func.jvp(f, args[0], args[1], **options)

    return _apply(
        i, "func.jvp", run, func, (primals, tangents), {}, called_with=lambda args, kwargs: (args[0], {}), grad=False
    )


def _vjp(i: Interpreter, func: Any, *primals: Any, has_aux: Any = False) -> Any:
    """`torch.func.vjp`. The function that it returns runs the captured one again."""
    aux = _plain(i, has_aux)

    def forward(f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        result = torch.func.vjp(f, *args, has_aux=aux)
        return (result[0], result[2]) if aux else result[0]

    result = _apply(i, "func.vjp", forward, func, primals, {})

    def pull(i: Interpreter, cotangents: Any, retain_graph: Any = True, create_graph: Any = None) -> Any:
        if create_graph is not None:
            raise Unsupported("func.vjp with create_graph")

        def back(f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            return torch.func.vjp(f, *args[0], has_aux=aux)[1](args[1])

        return _apply(
            i, "func.vjp", back, func, (tuple(primals), cotangents), {}, called_with=lambda args, kwargs: (args[0], {})
        )

    pullback = NativeHandler(pull)
    return (result[0], pullback, result[1]) if aux else (result, pullback)
