"""quickfuse does not use PyTorch's own compiler.

import-linter checks what our modules import of each other. This checks what they import of `torch`, which import-linter
sees as one package: at the top of a module, within functions, and by name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "quickfuse"

FORBIDDEN = (
    "torch._dynamo",
    "torch._inductor",
    "torch.jit",
    "torch._functorch.aot_autograd",
    "torch._functorch.partitioners",
    "torch.export",
    "torch._export",
)

#: What one module may import all the same: it makes programs of `torch.export`, when it is asked for one.
ALLOWED = {"export/torch_program.py": ("torch.export", "torch._export")}

#: Calls that import the module named by their first argument.
IMPORTERS = ("import_module", "__import__", "find_spec", "run_module", "importorskip", "resolve_name")


def violations(source: str, allowed: tuple[str, ...] = ()) -> list[str]:
    """Each as `line: module`."""
    return [f"{node.lineno}: {name}" for node, name in _names(ast.parse(source)) if _is_forbidden(name, allowed)]


def _is_forbidden(name: str, allowed: tuple[str, ...]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in FORBIDDEN if module not in allowed)


def _names(tree: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Every module that the code may import, and every dotted name: `torch._dynamo` imports when it is looked at."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from ((node, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield node, ast.unparse(node)
        elif isinstance(node, ast.Call) and node.args and _called(node.func) in IMPORTERS:
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield node, first.value.replace(":", ".")


def _called(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


MODULES = [path for path in sorted(SOURCE.rglob("*.py")) if "bench" not in path.relative_to(SOURCE).parts]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_module_does_not_import_pytorchs_compiler(path: Path) -> None:
    assert violations(path.read_text(), ALLOWED.get(path.relative_to(SOURCE).as_posix(), ())) == []


def test_torch_export_is_imported_inside_of_functions_only() -> None:
    tree = ast.parse((SOURCE / "export" / "torch_program.py").read_text())
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            assert not ast.unparse(node).startswith(("from torch.export", "from torch._export", "import torch.export"))


@pytest.mark.parametrize(
    "code",
    [
        "import torch._dynamo",
        "import torch._inductor.config as c",
        "from torch import _dynamo",
        "from torch._functorch import aot_autograd",
        "from torch._functorch.partitioners import min_cut_rematerialization_partition",
        "def f():\n    from torch._dynamo.utils import counters",
        "import importlib\nimportlib.import_module('torch._inductor.codecache')",
        "__import__('torch._dynamo')",
        "torch._dynamo.graph_break()",
        "torch.jit.script(f)",
        "from torch.export import ExportedProgram",
    ],
)
def test_the_check_catches(code: str) -> None:
    assert violations(code)


@pytest.mark.parametrize(
    "code",
    [
        "import torch._jit_internal",
        "from torch._functorch.vmap import vmap",
        "import sys\nsys.modules.get('torch._dynamo')",
        "from . import jit",
        "'torch._dynamo is not used'",
    ],
)
def test_the_check_leaves_alone(code: str) -> None:
    assert violations(code) == []
