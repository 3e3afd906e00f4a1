"""The commands `quickfuse export`, `quickfuse inspect` and `quickfuse bench export`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import quickfuse
from quickfuse.bench.export_programs import PROGRAMS, verdict
from quickfuse.cli import app
from quickfuse.export.report import examples

MODEL = '''
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.layer = nn.Linear(width, 2)
        self.drop = nn.Dropout(0.5)

    def forward(self, x, scale=1.0):
        return self.drop(self.layer(x)) * scale

def make():
    return Net(8)

def double(x):
    return x * 2

def breaks(x):
    return x if x.sum() > 0 else -x
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "export_commands_model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


@pytest.mark.parametrize(
    "target, example, result",
    [("Net", "float32[3,4]", (3, 2)), ("make()", "float32[1, 8]", (1, 2)), ("double", "int64[5]", (5,))],
)
def test_export_and_inspect(target: str, example: str, result: tuple[int, ...], folder: Path) -> None:
    code, said = run("export", f"export_commands_model:{target}", "--example", example, "-o", "net.qfx")
    assert code == 0, said
    (argument,), _ = examples([example])
    assert quickfuse.load("net.qfx").module()(argument).shape == result
    code, said = run("inspect", "net.qfx", "--graph", "--all")
    assert code == 0 and "operators: " in said and "x is a Tensor" in said and "torch.ops.aten." in said
    if target == "Net":
        assert "training == False in drop" in said and "layer.weight: float32[2, 4]" in said


def test_arguments_by_name(folder: Path) -> None:
    given = ("--example", "float32[3,4]", "--example", "scale=2.5")
    code, said = run("export", "export_commands_model:Net", *given, "-o", "a.qfx")
    assert code == 0, said
    assert "scale: float" in run("inspect", "a.qfx")[1]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("export_commands_model:breaks", "--example", "float32[3]"), "a branch on a tensor's value"),
        (("export_commands_model:nothing", "--example", "1"), "leads nowhere"),
        (("export_commands_model", "--example", "1"), "is not MODULE:CALLABLE"),
        (("export_commands_model:double", "--example", "float7[3]"), "is no dtype"),
        (("export_commands_model:double", "--example", "import os"), "neither a tensor"),
        (("export_commands_model:double",), "missing a required argument: 'x'"),
        (("export_commands_model:double", "--example", "float32[3]", "-o", "no/such/folder.qfx"), "no such folder"),
        (("no_such_module:double", "--example", "1"), "No module named 'no_such_module'"),
    ],
)
def test_what_cannot_be_exported(arguments: tuple[str, ...], message: str, folder: Path) -> None:
    code, said = run("export", "-o", "b.qfx", *arguments)
    assert code != 0 and message in " ".join(said.replace("│", " ").split())
    assert not Path("b.qfx").exists()


def test_inspecting_something_else(folder: Path) -> None:
    code, said = run("inspect", "export_commands_model.py")
    assert code == 1 and "ExportFileError" in said


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_program_is_exported_wrongly(name: str) -> None:
    torch.manual_seed(0)
    assert verdict("quickfuse", name) in ("right", "refused")
