"""Signatures of functions whose annotations need not make sense."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

_OPTIONS: dict[str, Any] = {}
if sys.version_info >= (3, 14):
    import annotationlib

    _OPTIONS["annotation_format"] = annotationlib.Format.FORWARDREF


def signature(function: Callable[..., Any], follow_wrapped: bool = True) -> inspect.Signature:
    """`inspect.signature`, which from Python 3.14 on evaluates annotations, and fails where a name in one is missing.

    Raises:
        ValueError, TypeError: as `inspect.signature`, where there is no signature.
    """
    return inspect.signature(function, follow_wrapped=follow_wrapped, **_OPTIONS)
