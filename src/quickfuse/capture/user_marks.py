"""Calls of functions that the user said something about: see `ir.marks`."""

from __future__ import annotations

import sys
from types import FunctionType
from typing import Any

import torch

from ..errors import Unsupported
from ..ir.marks import Mark, mark_of
from . import torch_calls
from .interpreter import Interpreter
from .kinds import is_trusted_module
from .metadata import result_device, structure_of
from .mutation import name_of
from .results import SameTensor
from .stand_ins import empty_like_meta, outside_inference_mode
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
    with outside_inference_mode():
        structure = _run_without_data(function, args, kwargs, tensors, i.graph.grad_enabled)
    return i.graph.call("call_function", function, args, kwargs, structure)


def _run_without_data(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[TensorProxy], grad: bool
) -> Any:
    made = {id(t): empty_like_meta(t.meta) for t in tensors}
    before = torch.is_grad_enabled()
    torch._C._set_grad_enabled(grad)
    try:
        result = function(*_replace(args, made), **_replace(kwargs, made))
    except Exception as error:
        raise Unsupported(
            f"{name_of(function)}, allowed in graphs, does not run on tensors without data: {type(error).__name__}: {error}"
        ) from error
    finally:
        torch._C._set_grad_enabled(before)
    if any(tensor._version for tensor in made.values()):
        raise Unsupported(f"{name_of(function)}, allowed in graphs, changes its arguments")
    if _shares_memory(result, list(made.values())):
        raise Unsupported(f"{name_of(function)}, allowed in graphs, returns a view of its arguments")
    indices = {id(made[id(t)]): k for k, t in enumerate(tensors)}
    structure = structure_of(result, indices, result_device(tensors))
    if not _only_tensors(structure):
        raise Unsupported(f"{name_of(function)}, allowed in graphs, returns something else than tensors")
    return structure


def _shares_memory(result: Any, operands: list[torch.Tensor]) -> bool:
    if isinstance(result, (tuple, list)):
        return any(_shares_memory(element, operands) for element in result)
    if not isinstance(result, torch.Tensor) or any(result is operand for operand in operands):
        return False
    memory = result.untyped_storage()._cdata
    return any(operand.untyped_storage()._cdata == memory for operand in operands)


def _replace(value: Any, made: dict[int, torch.Tensor]) -> Any:
    kind = type(value)
    if kind is TensorProxy:
        return made[id(value)]
    if kind in (tuple, list):
        return kind([_replace(v, made) for v in value])
    if kind is dict:
        return {k: _replace(v, made) for k, v in value.items()}
    return value


def _only_tensors(structure: Any) -> bool:
    if isinstance(structure, (tuple, list)):
        return bool(structure) and all(_only_tensors(s) for s in structure)
    return hasattr(structure, "dtype") or isinstance(structure, SameTensor)
