"""Every name of PyTorch that the sources use exists in the PyTorch that is installed, private ones too.

A name that a new release dropped is found here, not in the first call that happens to reach it. What one release has and
another has not is asked for with `getattr` or `hasattr`, which this leaves alone.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

SOURCE = Path(__file__).resolve().parents[1] / "src" / "quickfuse"
FILES = {str(path.relative_to(SOURCE)): path for path in sorted(SOURCE.rglob("*.py"))}
#: What only some builds have. (Imports of PyTorch's compiler are the subject of `test_import_contract.py`.)
OPTIONAL = ("torch._dynamo", "torch._inductor", "torch._C._cuda")


def missing(source: str) -> list[str]:
    """Each as `line: name`."""
    tree = ast.parse(source)
    return [f"{line}: {name}" for line, name in _names(tree) if not name.startswith(OPTIONAL) and not _exists(name)]


def _names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The imports from PyTorch, and the longest chains of attributes that begin at one of them."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "torch":
                    yield node.lineno, alias.name
                    aliases[alias.asname or "torch"] = alias.name if alias.asname else "torch"
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "torch":
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"
                aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    inner: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node not in inner and isinstance(node.ctx, ast.Load):
            parts: list[str] = []
            part: ast.expr = node
            while isinstance(part, ast.Attribute):
                inner.add(part)
                parts.append(part.attr)
                part = part.value
            if isinstance(part, ast.Name) and part.id in aliases:
                yield node.lineno, ".".join([aliases[part.id], *reversed(parts)])


def _exists(name: str) -> bool:
    found: object = torch
    path = "torch"
    for part in name.split(".")[1:]:
        path += f".{part}"
        if not hasattr(found, part):
            if not isinstance(found, ModuleType):
                # Attributes of values, such as a thread's state, may come and go.
                return not isinstance(found, type) and not callable(found)
            try:
                importlib.import_module(path)
            except ImportError:
                return False
        found = getattr(found, part)
    return True


@pytest.mark.parametrize("name", FILES)
def test_names_of_pytorch_exist(name: str) -> None:
    assert missing(FILES[name].read_text()) == []


def test_what_is_missing_is_found() -> None:
    source = "import torch\nfrom torch.fx import Graf\ntorch._C._no_such(torch.relu, torch.fx._symbolic_trace._gone)\n"
    assert missing(source) == ["2: torch.fx.Graf", "3: torch._C._no_such", "3: torch.fx._symbolic_trace._gone"]
