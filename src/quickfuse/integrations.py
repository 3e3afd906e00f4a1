"""Other libraries that keep lists of backends of their own.

`accelerate`, and so `transformers.Trainer(torch_compile_backend=...)`, accepts the backends of an enumeration only, not
those that packages publish for torch.compile. Once quickfuse is imported, its name is in that enumeration, whichever of the
two is imported first.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_MODULE = "accelerate.utils.dataclasses"
_NAME = "QUICKFUSE"


def publish() -> None:
    """Add our backend to the lists of libraries that are imported, and of those that will be."""
    module = sys.modules.get(_MODULE)
    if module is not None:
        _add_to(module)
    else:
        sys.meta_path.insert(0, _WhenImported())


class _WhenImported:
    """An import hook for one module, which it finds as usual. Then it is gone."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        loader: Any = spec.loader if spec is not None else None
        if loader is not None:
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _add_to(module)

            loader.exec_module = exec_module
        return spec


def _add_to(module: ModuleType) -> None:
    """Give accelerate's enumeration of backends a member for ours, as if its class had had it."""
    backends: Any = getattr(module, "DynamoBackend", None)
    members = getattr(backends, "_member_map_", None)
    if members is None or _NAME in members:
        return
    member: Any = str.__new__(backends, _NAME)
    member._name_ = member._value_ = _NAME
    member.__objclass__ = backends
    members[_NAME] = backends._value2member_map_[_NAME] = member
    backends._member_names_.append(_NAME)
