"""Which interpreters and PyTorch releases quickfuse works with, and what it says where it does not.

This module and `unsupported.py` are all that is imported then, so they are written for any Python 3.7.
"""

from __future__ import annotations

import platform
import sys
import sysconfig
from typing import Any, Tuple

Version = Tuple[int, int]
#: The first version that is supported, and the first one after the last.
Span = Tuple[Version, Version]

PYTHON_VERSIONS: Span = ((3, 11), (3, 15))
TORCH_VERSIONS: Span = ((2, 11), (2, 16))
TRITON_VERSIONS: Span = ((3, 6), (3, 10))


def problem() -> str | None:
    """Why quickfuse cannot compile anything in this process, as a sentence; None where it can."""
    reason = python_problem() or torch_problem()
    return None if reason is None else f"quickfuse compiles nothing here and runs programs as they are: {reason}."


def python_problem() -> str | None:
    """What is wrong with the interpreter, as a clause."""
    if sys.implementation.name != "cpython":
        return f"it reads the bytecode of CPython, and this is {platform.python_implementation()}"
    if not within(sys.version_info[:2], PYTHON_VERSIONS):
        return f"it needs Python {spoken(PYTHON_VERSIONS)}, and this is Python {platform.python_version()}"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "it needs a Python with the global interpreter lock, and this one is free-threaded"
    return None


def torch_problem() -> str | None:
    """What is wrong with PyTorch, as a clause."""
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name == "torch":
            return f"it needs PyTorch {spoken(TORCH_VERSIONS)}, which is not installed"
        return f"PyTorch cannot be imported ({error})"
    except Exception as error:
        return f"PyTorch cannot be imported ({error})"
    version: Any = getattr(torch, "__version__", "0.0")
    if not within(release(version), TORCH_VERSIONS):
        return f"it needs PyTorch {spoken(TORCH_VERSIONS)}, and this is PyTorch {version}"
    return None


def release(version: str) -> Version:
    """`"2.13.0+cpu"` as `(2, 13)`."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def within(version: Tuple[int, ...], span: Span) -> bool:
    return span[0] <= version < span[1]


def spoken(span: Span) -> str:
    """`((3, 11), (3, 15))` as "3.11 to 3.14"."""
    (major, first), (_, after) = span
    return f"{major}.{first} to {major}.{after - 1}"
