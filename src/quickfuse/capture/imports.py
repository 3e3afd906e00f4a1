"""`import` statements inside captured code: modules that are loaded already; nothing is imported during capture."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import torch

from ..errors import Unsupported
from .frame import Frame
from .interpreter import Interpreter
from .kinds import is_trusted_module

_PEER = ("torch._dynamo", "torch._inductor")


def import_name(i: Interpreter, f: Frame, name: str, names: Any, level: int) -> Any:
    """IMPORT_NAME: the top package, or the named module itself in `from name import ...`."""
    if level:
        package = f.globals.get("__package__") or ""
        base = package.rsplit(".", level - 1)[0] if level > 1 else package
        name = f"{base}.{name}" if name else base
    if name.startswith(_PEER):
        return PeerModule(name) if names else sys.modules["torch"]
    module = sys.modules.get(name)
    if module is None:
        raise Unsupported(f"the first import of {name}", "import it at the top of the file")
    name = name if names else name.partition(".")[0]
    found = sys.modules[name]
    if not is_trusted_module(name):
        return i.outside.wrap(found, i.outside.roots.constant("sys.modules", sys.modules).item(name))
    source = i.outside.roots.constant(found.__name__, found)
    return i.outside.wrap(found, source, trusted=True)


def import_from(i: Interpreter, module: Any, name: str) -> Any:
    """IMPORT_FROM: an attribute of the module, or a submodule."""
    if isinstance(module, PeerModule):
        return PeerModule(f"{module.name}.{name}")
    if name not in module.__dict__:
        submodule = sys.modules.get(f"{module.__name__}.{name}")
        if submodule is None:
            raise Unsupported(f"the first import of {module.__name__}.{name}", "import it at the top of the file")
        return submodule
    return i.attribute_now(module, name)


class PeerModule:
    """Stands for such a module, or for something in it."""

    def __init__(self, name: str) -> None:
        self.name = name


def torch_lazy_module(module: ModuleType, name: str) -> PeerModule | None:
    """`torch._dynamo` before anything imported it."""
    return PeerModule("torch." + name) if module is torch and name in ("_dynamo", "_inductor") else None
