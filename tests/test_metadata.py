"""The package's metadata, `constraints.txt`, the changelog and the code say the same of versions."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import quickfuse
from quickfuse import support

ROOT = Path(__file__).resolve().parents[1]
METADATA: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT: dict[str, Any] = METADATA["project"]
LINES = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
PINS = {requirement.name: requirement for requirement in map(Requirement, LINES)}
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
#: What `make test` installs. PyTorch's CUDA builds ask for a Triton of their own.
INSTALLED = [Requirement(text) for text in [*PROJECT["dependencies"], *EXTRAS["bench"], *EXTRAS["test"]]]
PINNED = {requirement.name: requirement for requirement in INSTALLED if requirement.name != "triton"}


def specifier(span: support.Span) -> SpecifierSet:
    (major, first), (_, after) = span
    return SpecifierSet(f">={major}.{first},<{major}.{after}")


def test_the_versions_of_python() -> None:
    assert SpecifierSet(PROJECT["requires-python"]) == specifier(support.PYTHON_VERSIONS)
    (major, first), (_, after) = support.PYTHON_VERSIONS
    prefix = f"Programming Language :: Python :: {major}."
    named = [text.removeprefix(prefix) for text in PROJECT["classifiers"] if text.startswith(prefix)]
    assert named == [str(minor) for minor in range(first, after)]


def test_the_versions_of_pytorch_and_triton() -> None:
    spans = {"torch": support.TORCH_VERSIONS, "triton": support.TRITON_VERSIONS}
    requirements = [Requirement(text) for text in [*PROJECT["dependencies"], *EXTRAS["gpu"], *EXTRAS["test"]]]
    found = [requirement for requirement in requirements if requirement.name in spans]
    assert len(found) == 3
    for requirement in found:
        assert requirement.specifier == specifier(spans[requirement.name]), requirement


@pytest.mark.parametrize("name", PINNED)
def test_what_is_installed_by_default_is_pinned(name: str) -> None:
    [pin] = PINS[name].specifier
    assert pin.operator == "==" and PINNED[name].specifier.contains(Version(pin.version))


def test_nothing_else_is_pinned() -> None:
    assert set(PINS) == set(PINNED)


def test_the_changelog_has_this_version() -> None:
    assert quickfuse.__version__ == PROJECT["version"]
    headings = [line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    assert headings[0] == "## Unreleased" and f"## {PROJECT['version']}" in headings


def test_what_the_source_archive_contains_is_there() -> None:
    archive = METADATA["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert [path for path in archive if not (ROOT / path).exists()] == []
