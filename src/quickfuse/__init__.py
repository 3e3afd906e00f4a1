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
from .logs import set_logs

__version__ = "0.1.0"

__all__ = ["__version__", "compile", "config", "errors", "list_backends", "register_backend", "reset", "set_logs"]
