"""Reports of internal failures: what a user can send us, written to a file."""

from __future__ import annotations

import platform
import sys
import tempfile
import traceback
from typing import Any

import torch


def save_report(function: Any, error: BaseException) -> str:
    """Write what is known about a failure of the compiler to a temporary file.

    Returns:
        Where it is, for the log; or what keeps it from being written, with the report itself.
    """
    lines = [
        f"quickfuse failed to compile {getattr(function, '__qualname__', type(function).__name__)!r} and ran it natively.",
        f"Python {sys.version.split()[0]}, PyTorch {torch.__version__}, {platform.platform()}",
        "",
        "".join(traceback.format_exception(error)),
    ]
    text = "\n".join(lines)
    try:
        with tempfile.NamedTemporaryFile("w", prefix="quickfuse-report-", suffix=".txt", delete=False) as file:
            file.write(text)
    except (OSError, ValueError) as refusal:  # a full or read-only disk; text that the file's encoding does not have
        return f"Details cannot be written to a file ({refusal}):\n{text}"
    return f"Details: {file.name}"
