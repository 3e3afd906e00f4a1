"""Describing the machine."""

from __future__ import annotations

import json

import torch

from quickfuse.bench import machine


def test_description_is_json_and_one_line() -> None:
    description = machine.describe_machine("cpu")
    assert json.loads(json.dumps(description)) == description
    assert description["threads"] == torch.get_num_threads()
    assert description["cpu"]
    line = machine.show_machine(description)
    assert "\n" not in line
    assert f"torch {description['torch']}" in line


def test_versions_of_what_is_not_installed_are_none() -> None:
    assert machine.version_of("quickfuse-is-not-called-this") is None


def test_busy_cores_are_between_none_and_all() -> None:
    busy = machine.busy_cores(0.05)
    assert busy is None or busy >= 0
