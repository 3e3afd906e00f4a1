"""The documentation runs: every Python block is executed, and prints what stands below it; so do the examples.

A block marked `text` right after a Python block is that block's output. `...` in it stands for anything, as in doctest.
"""

from __future__ import annotations

import contextlib
import doctest
import functools
import io
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import quickfuse
from quickfuse import logs

ROOT = Path(__file__).parents[1]
DOCUMENTS = ["README.md", "docs/debugging.md", "docs/export.md", "docs/how-it-works.md", "docs/limits.md"]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

_FENCED = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, the line of its first line, and the output that is promised for it."""

    language: str
    text: str
    line: int
    output: str | None = None


def python_blocks(document: str) -> list[Block]:
    """The Python blocks of a Markdown text in order, each with the `text` block that follows it directly."""
    found = list(_FENCED.finditer(document))
    blocks = []
    for match, following in zip(found, [*found[1:], None], strict=False):
        if match["language"] != "python":
            continue
        follows = following is not None and not document[match.end() : following.start()].strip()
        output = following["text"] if following is not None and follows and following["language"] == "text" else None
        blocks.append(Block("python", match["text"], document.count("\n", 0, match.start("text")) + 1, output))
    return blocks


class LogToOutput(logging.Handler):
    """Prints log messages as a terminal shows them, so that a block's output has them too."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"[quickfuse] {record.getMessage()}")


@contextlib.contextmanager
def printed() -> Iterator[io.StringIO]:
    """Collect what is printed and logged."""
    handler = LogToOutput()
    log, output = logging.getLogger("quickfuse"), io.StringIO()
    log.addHandler(handler)
    try:
        with contextlib.redirect_stdout(output):
            yield output
    finally:
        log.removeHandler(handler)


def stripped(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines()) + "\n"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_blocks_run_and_print_what_they_promise(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # for the files that they write
    path = ROOT / name
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in python_blocks(path.read_text()):
        code = compile("\n" * (block.line - 1) + block.text, str(path), "exec")
        with printed() as output:
            exec(code, namespace)
        if block.output is not None:
            wanted, found = stripped(block.output), stripped(output.getvalue())
            same = doctest.OutputChecker().check_output(wanted, found, doctest.ELLIPSIS)
            assert same, f"{name}:{block.line} promises\n{wanted}\nand prints\n{found}"


def test_blocks_are_found() -> None:
    text = "a\n```python\n1\n```\n\n```text\nx\n```\n```python\n2\n```\nb\n```text\ny\n```\n"
    assert python_blocks(text) == [Block("python", "1\n", 3, "x\n"), Block("python", "2\n", 10)]


# docs/limits.md -------------------------------------------------------------------------------------------------------

LIMITS = (ROOT / "docs" / "limits.md").read_text()


def limit_rows() -> list[tuple[str, str, str]]:
    """(what happens, expression, reason) of the tables of reasons."""
    rows, outcome = [], ""
    for line in LIMITS.splitlines():
        if heading := re.fullmatch(r"\| (.+) \| the log says \|", line):
            outcome = heading[1]
        elif row := re.fullmatch(r"\| `([^`]+)` \| (.+) \|", line):
            rows.append((outcome, row[1], row[2]))
        elif not line.startswith("|"):
            outcome = ""
    return [row for row in rows if row[0]]


def graph_rows() -> list[tuple[str, str]]:
    """(expression, what it is compiled to) of the table of what is one graph."""
    return re.findall(r"^\| `([^`]+)` \| (kernels|kernels and calls|calls) \|$", LIMITS, re.MULTILINE)


def change_rows() -> list[tuple[str, str, str, int]]:
    """(expression, a value of n, another, how often it is compiled) of the table of specialisations."""
    rows = re.findall(r"^\| [^|]* in `([^`]+)` \| `([^`]+)` \| `([^`]+)` \| (once|twice) \|$", LIMITS, re.MULTILINE)
    return [(expression, one, another, 1 + (times == "twice")) for expression, one, another, times in rows]


def optimizer_rows() -> list[tuple[str, str]]:
    """(name, what happens) for each optimizer in the table of optimizers."""
    outcomes = "one kernel|two kernels|three kernels|kernels between|in parts"
    rows = re.findall(rf"^\| (`\w+`(?:, `\w+`)*) \| ({outcomes})", LIMITS, re.MULTILINE)
    return [(name, outcome) for names, outcome in rows for name in re.findall(r"\w+", names)]


def under(context: Any) -> Any:
    """A marker: call a simple function inside of this context."""
    return context


LIMIT_NAMES = {"torch": torch, "F": F, "time": time, "functools": functools, "SimpleNamespace": SimpleNamespace}


@pytest.mark.parametrize(("outcome", "expression", "reason"), limit_rows(), ids=[row[1] for row in limit_rows()])
@pytest.mark.filterwarnings("ignore")
def test_limits_are_as_documented(outcome: str, expression: str, reason: str) -> None:
    quickfuse.set_logs(graph_breaks=True)
    x, w = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
    arguments: tuple[Any, ...] = (x, w, torch.randn(4, dtype=torch.complex64), torch.arange(4))
    context: Any = contextlib.nullcontext()
    if expression.startswith("under("):
        function, arguments, context = (lambda x: x + 1), (x,), eval(expression, {"under": under, **LIMIT_NAMES})
    elif outcome != "natively":
        function = eval(f"lambda x, w, c, k: {expression}", LIMIT_NAMES)
    else:
        function, arguments = eval(expression, LIMIT_NAMES), (x,)
    compiled = quickfuse.compile(function)
    with printed() as output, context:
        compiled(*arguments)
    said = {
        "natively": f" runs natively: {reason}",
        "operator by operator": f" runs operator by operator: {reason}",
        "with a break": f"graph break at <string>:1: {reason}",
    }[outcome]
    assert said in output.getvalue(), f"docs/limits.md is out of date: {output.getvalue() or 'no log'}"


@pytest.mark.parametrize(("expression", "outcome"), graph_rows(), ids=[expression for expression, _ in graph_rows()])
def test_graphs_are_as_documented(expression: str, outcome: str) -> None:
    quickfuse.set_logs(graph_breaks=True)
    x, w = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
    compiled = quickfuse.compile(eval(f"lambda x, w, k: {expression}", LIMIT_NAMES), fullgraph=True)
    before = dict(logs.counts)
    with printed() as output:
        compiled(x, w, torch.arange(4))
    made = {name: count - before.get(name, 0) for name, count in logs.counts.items()}
    found = [word for word, name in {"kernels": "kernel launches", "calls": "operator calls"}.items() if made.get(name)]
    assert not output.getvalue()
    # Where neither is counted, no kernel program was made: the graph is a call as it stands.
    assert " and ".join(found or ["calls"]) == outcome and len(compiled.specialisations) == 1


@pytest.mark.parametrize(("expression", "one", "another", "times"), change_rows())
def test_specialisations_are_as_documented(expression: str, one: str, another: str, times: int) -> None:
    x = torch.randn(4, 4)
    compiled = quickfuse.compile(eval(f"lambda x, n: {expression}", LIMIT_NAMES), fullgraph=True)
    for value in (one, another, one):
        compiled(x, eval(value, {"x": x, **LIMIT_NAMES}))
    assert len(compiled.specialisations) == times


@pytest.mark.parametrize(("name", "outcome"), optimizer_rows())
def test_optimizers_are_as_documented(name: str, outcome: str) -> None:
    parameters = [torch.nn.Parameter(torch.randn(4, 4)) for _ in range(5)]
    for parameter in parameters:
        parameter.grad = torch.randn(4, 4).to_sparse() if name == "SparseAdam" else torch.randn(4, 4)
    step = quickfuse.compile(getattr(torch.optim, name)(parameters, lr=0.01).step)
    step(*[lambda: torch.tensor(1.0)] if name == "LBFGS" else [])
    kernels = [specialisation.kernels for specialisation in step.specialisations]
    if outcome == "in parts":
        assert step.breaks
    elif outcome == "kernels between":
        assert len(kernels) == 1 and kernels[0] >= 1 and not step.breaks
    else:
        assert kernels == [{"one kernel": 1, "two kernels": 2, "three kernels": 3}[outcome]] and not step.breaks


def test_limits_has_rows() -> None:
    outcomes = [outcome for outcome, _, _ in limit_rows()]
    assert min(outcomes.count(kind) for kind in ("natively", "operator by operator", "with a break")) > 4
    assert len(graph_rows()) > 10 and len(change_rows()) > 10 and len(optimizer_rows()) > 10


# examples -------------------------------------------------------------------------------------------------------------


def run_example(name: str, device: str, *arguments: str) -> str:
    """What an example prints."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "QUICKFUSE_LOGS": ""}
    command = [sys.executable, str(ROOT / "examples" / name), "--device", device, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.usefixtures("forked_interpreters")
def test_optimizer_example(device: str) -> None:
    output = run_example("optimizer.py", device, "--size", "32", "--layers", "3")
    assert re.fullmatch(r"eager runtime: \d+\.\dus\ncompiled runtime: \d+\.\dus\n", output)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.usefixtures("forked_interpreters")
def test_scheduler_example(device: str) -> None:
    output = run_example("scheduler.py", device, "--size", "8")
    rates = re.findall(r"learning rate (\d\.\d{4}), compiled \d+ times", output)
    assert rates == 2 * ["0.0047", "0.0060", "0.0073", "0.0087", "0.0100"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.usefixtures("forked_interpreters")
def test_pointwise_example(device: str) -> None:
    output = run_example("pointwise.py", device, "--size", "20")
    assert output.endswith("compiled 1 time, to 1 kernel\n")
    assert max(map(float, re.findall(r"to eager (.*)", output))) < 1e-5


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.usefixtures("forked_interpreters")
def test_training_step_example(device: str) -> None:
    output = run_example("training_step.py", device, "--steps", "6")
    rows = re.findall(r"loss (\S+), eager (\S+), (\d+) graphs", output)
    assert len(rows) == 6 and all(abs(float(loss) - float(eager)) < 1e-4 for loss, eager, _ in rows)
    assert rows[1][2] == rows[-1][2]  # the learning rate changes in every step


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.usefixtures("forked_interpreters")
def test_train_example(device: str) -> None:
    output = run_example("train.py", device, "--steps", "40")
    losses = [float(loss) for loss in re.findall(r"loss (\S+),", output)]
    assert len(losses) == 4 and losses[-1] < losses[0]
    assert "step: 1 graph with" in output and "torch.autograd.grad" in output and "0 graph breaks" in output


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.usefixtures("forked_interpreters")
def test_breaks_example(device: str) -> None:
    output = run_example("breaks.py", device)
    assert "normalise: 3 graphs" in output and "2 graph breaks" in output
    assert output.endswith("without:     1 graph, history [0.3, 3.0, 30.0]\n")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.usefixtures("forked_interpreters")
def test_backend_example(device: str) -> None:
    first, said, second = run_example("backend.py", device).partition("between the graphs, in Python: tensor(15.")
    assert said and "torch.square(velocities)" in first and "torch.square(positions)" in second
    assert second.endswith("\n30.0\n")


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_are_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 60
