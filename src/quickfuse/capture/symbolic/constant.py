"""Values that are fixed when they are captured."""

from __future__ import annotations

import enum
import re
from typing import Any

import torch

from .foreign import is_numpy

#: Immutable types whose instances are plain constants: comparing values tells all there is to know.
PLAIN_TYPES: frozenset[type] = frozenset(
    {
        int, float, bool, str, bytes, complex, type(None), type(Ellipsis), type(NotImplemented), slice, range,
        torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, torch.finfo, torch.iinfo,
        re.Pattern, re.Match,
    }
)  # fmt: skip


def is_constant(value: Any) -> bool:
    """Whether a value is fixed when captured: plain, or a tuple or frozenset of constants."""
    kind = type(value)
    if kind is tuple or kind is frozenset:
        return all(is_constant(v) for v in value)
    if kind is slice:
        return is_constant(value.start) and is_constant(value.stop) and is_constant(value.step)
    return kind in PLAIN_TYPES or isinstance(value, enum.Enum) or is_numpy(value)
