"""quickfuse: a just-in-time compiler for PyTorch programs, written in Python.

import quickfuse

@quickfuse.compile
def step():
    optimizer.step()
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from . import config, errors, support

if TYPE_CHECKING or support.problem() is None:
    from .ir.garbage import collected_later

    with collected_later():  # going through all of PyTorch's objects would take a fifth of the time
        from .backends import list_backends, register_backend
        from .compile import compile, reset
        from .control import allow_in_graph, disable, graph_break, is_compiling, mark_dynamic
        from .explain.run import explain
        from .export import Exported, export, load
        from .integrations import publish
        from .logs import set_logs

    publish()
else:
    from . import unsupported
    from .unsupported import (
        Exported,
        allow_in_graph,
        compile,
        disable,
        explain,
        export,
        graph_break,
        is_compiling,
        list_backends,
        load,
        mark_dynamic,
        register_backend,
        reset,
        set_logs,
    )

    # What installed entry points name.
    sys.modules[f"{__name__}.cli"] = sys.modules[f"{__name__}.backends"] = unsupported
    unsupported.announce()

__version__ = "0.1.0"

__all__ = [
    "Exported", "__version__", "allow_in_graph", "compile", "config", "disable", "errors", "explain", "export",
    "graph_break", "is_compiling", "list_backends", "load", "mark_dynamic", "register_backend", "reset", "set_logs",
]  # fmt: skip
