"""Where quickfuse cannot compile it says so in one sentence, and programs run as they are."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from interpreters import interpreters
from quickfuse import support, unsupported
from quickfuse.cli import app

SOURCE = str(Path(support.__file__).parents[1])

PROGRAM = """
import warnings
import quickfuse

class Model:
    def __call__(self, x):
        return x + 1

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert quickfuse.compile(abs)(-3) == 3
    model = Model()
    assert quickfuse.compile(model, mode="reduce-overhead", fullgraph=True) is model

    @quickfuse.compile
    def bare(x):
        return x * 2

    @quickfuse.compile(dynamic=True)
    def with_options(x):
        return x * 2

    @quickfuse.disable
    def disabled(x):
        return x

    @quickfuse.register_backend(name="mine")
    def backend(gm, inputs):
        return gm

    with quickfuse.disable():
        assert bare(2) == with_options(2) == disabled(4) == 4
    quickfuse.set_logs(recompiles=True)
    quickfuse.reset()
    quickfuse.graph_break()
    quickfuse.config.recompile_limit = 3
    assert not quickfuse.is_compiling()
    for name in quickfuse.__all__:
        getattr(quickfuse, name)
    try:
        quickfuse.explain(bare)
    except quickfuse.errors.QuickfuseError as error:
        assert "compiles nothing here" in str(error)
    else:
        raise AssertionError
assert len(caught) == 1, [str(w.message) for w in caught]
print(caught[0].message)
"""

OTHERS = {
    version: path
    for version, path in interpreters().items()
    if version >= (3, 7) and not support.within(version, support.PYTHON_VERSIONS)
}

#: What makes an interpreter look like another one.
NEWER = "import platform, sys; sys.version_info = (3, 15, 0, 'alpha', 1); platform.python_version = lambda: '3.15.0a1'; "
FREE_THREADED = """import sysconfig; ask = sysconfig.get_config_var
sysconfig.get_config_var = lambda name: 1 if name == "Py_GIL_DISABLED" else ask(name)
"""


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """All that can stand after `quickfuse`."""
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


COMMANDS = [[*path] for path in commands(typer.main.get_command(app))]


def run(python: str, arguments: list[str], *paths: str, first: str = "") -> subprocess.CompletedProcess[str]:
    """Run Python with nothing but the compiler's source and `paths` to import from, after the statements `first`."""
    code = f"{first}import sys; sys.path[:0] = {[*paths, SOURCE]!r}"
    if arguments[:1] == ["-c"]:
        start = f"{code}; exec({arguments[1]!r})"
    else:
        start = f"{code}; import runpy; sys.argv[1:] = {arguments!r}; runpy.run_module('quickfuse', run_name='__main__')"
    return subprocess.run([python, "-S", "-c", start], capture_output=True, text=True, timeout=120)


def check(python: str, reason: str, *paths: str, first: str = "") -> None:
    """Importing says why in one sentence, `compile` once more as a warning, and each command says it and nothing else."""
    ran = run(python, ["-c", PROGRAM], *paths, first=first)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == ran.stderr and ran.stdout.count("\n") == 1
    assert reason in ran.stdout
    for command in ([], ["--help"], ["--version"], ["doctor"], ["bench", "optimizer"]):
        check_command(python, command, ran.stderr, *paths, first=first)


def check_command(python: str, command: list[str], sentence: str, *paths: str, first: str = "") -> None:
    said = run(python, command, *paths, first=first)
    assert said.returncode == 1 and said.stdout == ""
    assert said.stderr == sentence


@pytest.mark.parametrize("version", OTHERS, ids=lambda v: f"{v[0]}.{v[1]}")
def test_another_python(version: tuple[int, int]) -> None:
    check(OTHERS[version], f"it needs Python 3.11 to 3.14, and this is Python {version[0]}.{version[1]}.")


def test_what_looks_like_a_newer_python() -> None:
    check(sys.executable, "it needs Python 3.11 to 3.14, and this is Python 3.15.0a1.", first=NEWER)


def test_what_looks_like_a_free_threaded_python() -> None:
    reason = "it needs a Python with the global interpreter lock, and this one is free-threaded"
    check(sys.executable, reason, first=FREE_THREADED)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_each_command(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("__version__ = '2.16.0'\n")
    reason = "it needs PyTorch 2.11 to 2.15, and this is PyTorch 2.16.0"
    sentence = f"quickfuse compiles nothing here and runs programs as they are: {reason}.\n"
    check_command(sys.executable, command, sentence, str(tmp_path))


@pytest.mark.parametrize("version", ["1.13.1", "2.10.0+cu128", "2.16.0.dev20261101"])
def test_another_pytorch(version: str, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(f"__version__ = {version!r}\n")
    check(sys.executable, f"it needs PyTorch 2.11 to 2.15, and this is PyTorch {version}", str(tmp_path))


def test_no_pytorch() -> None:
    check(sys.executable, "it needs PyTorch 2.11 to 2.15, which is not installed")


def test_a_broken_pytorch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.13: no such file')\n")
    check(sys.executable, "PyTorch cannot be imported (libcudart.so.13: no such file)", str(tmp_path))


def test_the_backend_for_torch_compile(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("__version__ = '2.10.0'\n")
    program = """
        from types import SimpleNamespace
        from quickfuse.backends import for_torch_compile
        assert for_torch_compile(SimpleNamespace(forward=abs), [], mode=None) is abs
    """
    ran = run(sys.executable, ["-c", textwrap.dedent(program)], str(tmp_path))
    assert ran.returncode == 0, ran.stderr


def test_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    assert support.problem() is None
    with monkeypatch.context() as patch:
        patch.setattr(support.sys, "version_info", (3, 15, 0, "final", 0))
        assert "it needs Python 3.11 to 3.14" in (support.problem() or "")
    with monkeypatch.context() as patch:
        patch.setattr(sysconfig, "get_config_var", lambda name: 1)
        assert "free-threaded" in (support.problem() or "")
    with monkeypatch.context() as patch:
        patch.setattr(support.sys, "implementation", types.SimpleNamespace(name="pypy"))
        assert "it reads the bytecode of CPython" in (support.problem() or "")


def test_the_names_are_the_same() -> None:
    import quickfuse

    for name in quickfuse.__all__:
        if name not in ("__version__", "config", "errors"):
            assert callable(getattr(unsupported, name)), name
