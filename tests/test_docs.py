"""The documentation runs: every Python block is executed, and prints what stands below it; so do the examples.

A block marked `text` right after a Python block is that block's output. `...` in it stands for anything, as in doctest.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import logging
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import quickfuse

ROOT = Path(__file__).parents[1]
DOCUMENTS = ["README.md", "docs/how-it-works.md", "docs/limits.md"]
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
    for match, following in zip(found, [*found[1:], None], strict=True):
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
def test_blocks_run_and_print_what_they_promise(name: str) -> None:
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
    assert python_blocks(text) == [Block("python", "1\n", 3, "x\n"), Block("python", "2\n", 9)]
