"""Modules of PyTorch's own compiler, which capture knows by name only and never imports."""

from __future__ import annotations

from types import ModuleType

import torch


class PeerModule:
    """Stands for such a module, or for something in it."""

    def __init__(self, name: str) -> None:
        self.name = name


def torch_lazy_module(module: ModuleType, name: str) -> PeerModule | None:
    """`torch._dynamo` before anything imported it."""
    return PeerModule("torch." + name) if module is torch and name in ("_dynamo", "_inductor") else None
