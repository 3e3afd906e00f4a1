"""Calls of functions that the user said something about: see `ir.marks`."""

from __future__ import annotations

import sys
from types import FunctionType
from typing import Any

from ..errors import Unsupported
from ..ir.marks import Mark, mark_of
from ..ir.values import TensorMeta
from . import torch_calls
from .interpreter import Interpreter
from .kinds import is_trusted_module
from .metadata import result_device
from .mutation import name_of
from .results import OperatorFailed, SameTensor, View, tensors_in
from .stand_ins import outside_inference_mode, run_without_data
from .symbolic import TensorProxy, symbolic_leaves

_IN_GRAPH = Mark("in graph")


def user_mark(function: Any) -> Mark | None:
    """What the user said about a function, to us or to PyTorch's compiler."""
    mark = mark_of(function)
    if mark is None and _is_allowed_by_peer(function):
        return _IN_GRAPH
    return mark


def _is_allowed_by_peer(function: Any) -> bool:
    """Whether `torch.compiler.allow_in_graph` was called on a function of the user's. PyTorch's compiler is loaded then."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    allowed: set[int] = getattr(getattr(rules, "_allowed_callable_ids", None), "function_ids", None) or set()
    return id(function) in allowed and not is_trusted_module(getattr(function, "__module__", None))


def call_marked(i: Interpreter, mark: Mark, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call of a marked function.

    Raises:
        Unsupported: where the call is to happen in Python.
    """
    if mark.kind == "is compiling":
        return torch_calls.is_compiling(i)
    if mark.kind == "hint":
        return None
    if mark.kind == "in graph":
        return _call_in_graph(i, function, args, kwargs)
    if mark.kind == "graph break":
        raise Unsupported("quickfuse.graph_break()")
    note = f" ({mark.note})" if mark.note else ""
    if not isinstance(function, FunctionType) or function.__module__ == "quickfuse.control":
        raise Unsupported(f"quickfuse.disable(){note}")
    raise Unsupported(f"{function.__qualname__}, which quickfuse.disable keeps out of graphs{note}")


def _call_in_graph(i: Interpreter, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One node of the graph. What it returns is found out by running it on tensors without data."""
    if i.is_created(function) or i.outside.is_by_code(function):
        raise Unsupported(f"{name_of(function)}, allowed in graphs, but made anew at each call")
    args, kwargs = torch_calls.plain_operands(i, args), torch_calls.plain_operands(i, kwargs)
    tensors = [leaf for leaf in symbolic_leaves((args, kwargs)) if type(leaf) is TensorProxy]
    what = f"{name_of(function)}, allowed in graphs,"
    try:
        with outside_inference_mode():
            result = run_without_data(function, args, kwargs, tensors, i.graph.grad_enabled, result_device(tensors))
    except OperatorFailed as error:
        raise Unsupported(f"{what} does not run on tensors without data: {error}") from error
    if result.written or result.changed:
        raise Unsupported(f"{what} changes its arguments")
    if any(isinstance(leaf, View) for leaf in tensors_in(result.structure)):
        raise Unsupported(f"{what} returns a view of its arguments")
    if not _only_tensors(result.structure):
        raise Unsupported(f"{what} returns something else than tensors")
    return i.graph.call("call_function", function, args, kwargs, result.structure)


def _only_tensors(structure: Any) -> bool:
    if isinstance(structure, (tuple, list)):
        return bool(structure) and all(map(_only_tensors, structure))
    return isinstance(structure, (TensorMeta, SameTensor))
