"""Python code that is generated: it can be printed and stepped through while it is in use, and leaves nothing behind."""

from __future__ import annotations

import itertools
import linecache
import weakref
from types import CodeType, FunctionType
from typing import Any

import torch
from torch.fx import Graph, GraphModule
from torch.fx.graph_module import _loader

_serial = itertools.count()

#: Code of functions that are in use, by its source: what is generated for other sizes is often the same text, and compiling
#: it takes a twentieth of what compiling for these takes.
_codes: weakref.WeakValueDictionary[str, CodeType] = weakref.WeakValueDictionary()


def generated_function(source: str, label: str, namespace: dict[str, Any], name: str) -> FunctionType:
    """The function `name` that `source` defines in `namespace`. Tracebacks and debuggers find its lines; `label` tells users
    what it belongs to."""
    filename = f"<quickfuse {label} {next(_serial)}>"
    code = _codes.get(source)
    if code is None:
        _codes[source] = code = compile(source, filename, "exec")
    exec(code if code.co_filename == filename else _in_file(code, filename), namespace)
    function: FunctionType = namespace[name]
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    _forget_with(function, filename, code)
    return function


def _in_file(code: CodeType, filename: str) -> CodeType:
    """The same code, of another file."""
    inner = [_in_file(constant, filename) if isinstance(constant, CodeType) else constant for constant in code.co_consts]
    return code.replace(co_filename=filename, co_consts=tuple(inner))


def graph_module(graph: Graph) -> GraphModule:
    """A graph as a module. PyTorch keeps the source that it generates: here, until the module is collected."""
    module = GraphModule(torch.nn.Module(), graph)
    _forget_with(module, type(module).forward.__code__.co_filename)
    return module


def _forget_with(owner: Any, filename: str, code: CodeType | None = None) -> None:
    weakref.finalize(owner, _forget, filename, code).atexit = False


def _forget(filename: str, code: CodeType | None) -> None:
    """Forget the text of a file; the code was kept until now."""
    linecache.cache.pop(filename, None)
    _loader.eval_cache.pop(filename, None)
