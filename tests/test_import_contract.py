"""quickfuse does not use PyTorch's own compiler.

import-linter checks what our modules import of each other. This checks what they import of `torch`, which import-linter
sees as one package: at the top of a module, within functions, and by name. And it checks that no modules of a stage
import one another in a circle, not within functions either, and not for types.
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


# circles --------------------------------------------------------------------------------------------------------


def imports_within(package: Path) -> dict[str, set[str]]:
    """What each module of a package imports of the package: at its top, within functions, and for types."""
    names = {
        ".".join(path.relative_to(package).with_suffix("").parts).removesuffix(".__init__") for path in package.rglob("*.py")
    }
    found: dict[str, set[str]] = {}
    for path in package.rglob("*.py"):
        parts = path.relative_to(package).with_suffix("").parts
        name = ".".join(parts).removesuffix(".__init__")
        imported = found.setdefault(name, set())
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or not 0 < node.level <= len(parts):
                continue
            base = (*parts[: len(parts) - node.level], *(node.module.split(".") if node.module else ()))
            for alias in node.names:
                whole = ".".join((*base, alias.name))
                imported.add(whole if whole in names else ".".join(base) or "__init__")
        imported.discard(name)
    return found


def circles(imports: dict[str, set[str]]) -> list[str]:
    """The modules that import themselves through others."""

    def reached(name: str) -> set[str]:
        seen: set[str] = set()
        waiting = list(imports.get(name, ()))
        while waiting:
            step = waiting.pop()
            if step not in seen:
                seen.add(step)
                waiting.extend(imports.get(step, ()))
        return seen

    return sorted(name for name in imports if name in reached(name))


def test_modules_of_capture_do_not_import_one_another_in_a_circle() -> None:
    assert circles(imports_within(SOURCE / "capture")) == []


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]
