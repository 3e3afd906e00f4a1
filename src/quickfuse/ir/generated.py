"""Python code that is generated: it can be printed and stepped through while it is in use, and leaves nothing behind."""

from __future__ import annotations

import itertools
import linecache
import weakref
from types import FunctionType
from typing import Any

import torch
from torch.fx import Graph, GraphModule
from torch.fx.graph_module import _loader

_serial = itertools.count()


def generated_function(source: str, label: str, namespace: dict[str, Any], name: str) -> FunctionType:
    """The function `name` that `source` defines in `namespace`. Tracebacks and debuggers find its lines; `label` tells users
    what it belongs to."""
    filename = f"<quickfuse {label} {next(_serial)}>"
    exec(compile(source, filename, "exec"), namespace)
    function: FunctionType = namespace[name]
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    _forget_with(function, filename)
    return function


def graph_module(graph: Graph) -> GraphModule:
    """A graph as a module. PyTorch keeps the source that it generates: here, until the module is collected."""
    module = GraphModule(torch.nn.Module(), graph)
    _forget_with(module, type(module).forward.__code__.co_filename)
    return module


def _forget_with(owner: Any, filename: str) -> None:
    weakref.finalize(owner, _forget, filename).atexit = False


def _forget(filename: str) -> None:
    linecache.cache.pop(filename, None)
    _loader.eval_cache.pop(filename, None)
