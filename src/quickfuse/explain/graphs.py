"""Captured graphs for readers: nodes named after the user's variables, with the user's lines and shapes."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx.passes.shape_prop import TensorMetadata

from ..ir.generated import graph_module
from ..ir.modes import MODE_CHANGES
from ..ir.trace import as_text, location_of
from ..ir.values import TensorMeta, contiguous_stride


def present(graph: torch.fx.Graph) -> torch.fx.Graph:
    """A copy of a captured graph as tools for torch.fx know it: names, `meta["location"]`, `stack_trace`, `tensor_meta`."""
    copy = torch.fx.Graph()
    values: dict[torch.fx.Node, Any] = {}
    texts: dict[Any, str] = {}
    for node in graph.nodes:
        variable = node.meta.get("variable")
        name = node.name if node.op == "placeholder" else variable[0] if variable else None
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
        new = values[node] = copy.create_node(node.op, node.target, args, kwargs, name, node.type)
        meta = new.meta
        meta.update(node.meta)
        meta.pop("variable", None)
        trace = meta.pop("trace", ())
        meta["location"] = location_of(trace)
        if trace and trace not in texts:
            texts[trace] = as_text(trace)
        if trace:
            meta["stack_trace"] = texts[trace]
        value = meta.pop("val", None)
        if isinstance(value, TensorMeta):
            meta["tensor_meta"] = _for_fx(value)
    return copy


def described_for_readers(graph: torch.fx.Graph) -> torch.fx.Graph:
    """A copy of a graph of ATen operators whose nodes say their results' shapes to tools for torch.fx."""
    copy = torch.fx.Graph()
    copy.output(copy.graph_copy(graph, values := {}))
    for node, made in values.items():
        made.meta = dict(node.meta)
        meta = made.meta.get("val")
        if isinstance(meta, TensorMeta):
            made.meta["tensor_meta"] = _for_fx(meta)
    return copy


def module_of(graph: torch.fx.Graph) -> torch.fx.GraphModule:
    """A captured graph as a module, for readers."""
    return graph_module(present(graph))


def readable(graph: torch.fx.Graph) -> str:
    """A captured graph as code, with the user's lines."""
    return module_of(graph).print_readable(print_output=False)


def operators_of(graph: torch.fx.Graph) -> list[str]:
    """The calls of PyTorch in a graph, as `torch.abs`, `operator.add` or `Tensor.sum`."""
    return [_name(node) for node in graph.nodes if _is_operator(node)]


def _is_operator(node: torch.fx.Node) -> bool:
    if node.op not in ("call_function", "call_method") or node.target in MODE_CHANGES:
        return False
    operands = [a for a in node.all_input_nodes if isinstance(a.meta.get("val"), (TensorMeta, list))]
    if node.target is operator.getitem and isinstance(node.args[0], torch.fx.Node):
        return not isinstance(node.args[0].meta.get("val"), list)  # taking a result out of several is no call
    return bool(operands) or isinstance(node.meta.get("val"), (TensorMeta, list))


def _name(node: torch.fx.Node) -> str:
    if node.op == "call_method":
        return f"Tensor.{node.target}"
    target: Any = node.target
    module = getattr(target, "__module__", None) or "torch"
    module = {"_operator": "operator"}.get(module, module)
    return f"{module}.{getattr(target, '__name__', target)}".replace("torch._C._", "torch.")


def _for_fx(meta: TensorMeta) -> TensorMetadata:
    contiguous = meta.stride == contiguous_stride(meta.shape)
    return TensorMetadata(
        shape=torch.Size(meta.shape), dtype=meta.dtype, requires_grad=meta.requires_grad, stride=meta.stride,
        memory_format=torch.contiguous_format if contiguous else None, is_quantized=False, qparams={},
    )  # fmt: skip
