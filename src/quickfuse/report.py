"""Reports of internal failures: what a user can send us, written to a file."""

from __future__ import annotations

import platform
import sys
import tempfile
import traceback
from typing import Any

import torch


def save_report(function: Any, error: BaseException) -> str:
    """Write what is known about a failure of the compiler to a temporary file; returns its path."""
    lines = [
        f"quickfuse failed to compile {getattr(function, '__qualname__', function)!r} and ran it natively.",
        f"Python {sys.version.split()[0]}, PyTorch {torch.__version__}, {platform.platform()}",
        "",
        "".join(traceback.format_exception(error)),
    ]
    with tempfile.NamedTemporaryFile("w", prefix="quickfuse-report-", suffix=".txt", delete=False) as file:
        file.write("\n".join(lines))
    return file.name
