"""Cases that a module of tests registers by name: functions without arguments that make what is compared with eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Case = Callable[[], Any]

_cases: dict[str, dict[str, Case]] = {}


def case(factory: Case) -> Case:
    """Register a case under its name."""
    _cases.setdefault(factory.__module__, {})[factory.__name__] = factory
    return factory


def cases(module: str) -> list[str]:
    """The names of a module's cases, in order."""
    return list(_cases[module])


def case_of(module: str, name: str) -> Case:
    return _cases[module][name]


def x0() -> torch.Tensor:
    """The argument of a case that names none."""
    return torch.arange(1.0, 5.0).view(2, 2)
