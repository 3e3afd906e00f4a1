"""Programs that are compared as wholes: a file of tests registers functions that take `compiled`, the decorator which
compiles (or does nothing, for eager), and return whatever of the program's results and state is worth comparing."""

from __future__ import annotations

import contextlib
import io
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import quickfuse
from seeding import seed_torch

Program = Callable[[Callable[..., Any]], Any]


class Programs:
    """The programs of one file of tests."""

    def __init__(self) -> None:
        self.by_name: dict[str, Program] = {}

    def add(self, function: Program) -> Program:
        """The decorator of a program."""
        assert function.__name__ not in self.by_name, "one of two programs of the same name would never run"
        self.by_name[function.__name__] = function
        return function

    def in_each_backend(self, test: Callable[..., None]) -> Any:
        """Parametrise a test of (name, backend) with the programs added so far."""
        with_names = pytest.mark.parametrize("name", list(self.by_name))(test)
        return pytest.mark.parametrize("backend", ["eager", "quickfuse"])(with_names)

    def compare(self, name: str, backend: str) -> None:
        """Run a program twice, first as it is and then compiled: what it returns and prints is the same."""

        def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
            return quickfuse.compile(function, backend=backend, options={"raise_internal_errors": True})

        program = self.by_name[name]
        expected = outcome(program, lambda function: function)
        differing = difference(expected, outcome(program, compiled))
        assert differing is None, differing


def outcome(program: Program, compiled: Callable[..., Any]) -> tuple[Any, str]:
    """What a program returns and prints, with the same random numbers each time."""
    seed_torch(0)
    random.seed(0)
    np.random.seed(0)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        result = program(compiled)
    return result, printed.getvalue()


def difference(a: Any, b: Any, path: str = "result") -> str | None:
    """Where two results first differ, None where they don't."""
    if type(a) is not type(b):
        return f"{path}: {type(a)} and {type(b)}"
    if isinstance(a, torch.Tensor):
        same = a.shape == b.shape and a.dtype == b.dtype
        same = same and torch.allclose(a.double(), b.double(), atol=2e-5, rtol=1e-4, equal_nan=True)
        return None if same else f"{path}: {a} and {b}"
    if isinstance(a, dict):
        a, b = list(a.items()), list(b.items())
    if isinstance(a, (list, tuple)):
        if len(a) != len(b):
            return f"{path}: {len(a)} and {len(b)} elements"
        pairs = enumerate(zip(a, b, strict=True))
        return next((d for k, (x, y) in pairs if (d := difference(x, y, f"{path}[{k}]"))), None)
    same = math.isclose(a, b, rel_tol=2e-4, abs_tol=2e-5) if isinstance(a, float) else a == b
    return None if same else f"{path}: {a} and {b}"


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """A copy of a model's state, which later steps don't change."""
    return {k: v.detach().clone() for k, v in model.state_dict().items()}
