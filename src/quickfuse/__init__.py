"""quickfuse: a just-in-time compiler for PyTorch programs, written in Python.

import quickfuse

@quickfuse.compile
def step():
    optimizer.step()
"""

from __future__ import annotations

from . import config, errors
from .backends import list_backends, register_backend
from .compile import compile, reset
from .control import allow_in_graph, disable, graph_break, is_compiling, mark_dynamic
from .explain.run import explain
from .export import Exported, export, load
from .logs import set_logs

__version__ = "0.1.0"

__all__ = [
    "Exported", "__version__", "allow_in_graph", "compile", "config", "disable", "errors", "explain", "export",
    "graph_break", "is_compiling", "list_backends", "load", "mark_dynamic", "register_backend", "reset", "set_logs",
]  # fmt: skip
