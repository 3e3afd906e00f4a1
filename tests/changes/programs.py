"""Programs that read Python objects, and what changes those between calls: eager and compiled agree after each change.

A case is a function that makes the program anew: it returns the function to compile, the changes in order, and, if the
function takes more than one matrix, what makes its arguments.
"""

from __future__ import annotations

import contextlib
import io
import logging
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

import quickfuse
import turns
from case_registry import Case, case_of, x0
from matrix.combinations import described
from seeding import seed_torch


def agrees(module: str, name: str) -> None:
    """Run a case in eager mode and compiled."""
    factory = case_of(module, name)
    with _settings():
        wanted = _results(factory, lambda function: function)
    with _settings():
        quickfuse.reset()
        got = _results(factory, lambda function: quickfuse.compile(function, backend="eager"))
    assert wanted == got


@contextlib.contextmanager
def _settings() -> Any:
    """Leave Python's and PyTorch's settings as they were."""
    dtype, limit = torch.get_default_dtype(), sys.getrecursionlimit()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            sys.setrecursionlimit(limit)
            logging.disable(logging.NOTSET)


def _results(factory: Case, compile_: Callable[[Any], Any]) -> list[str]:
    """What each call gave, twice at first and after each change."""
    seed_torch(0)
    random.seed(0)
    function, changes, *rest = factory()
    arguments = rest[0] if rest else lambda: (x0(),)
    called = compile_(function)
    results = []
    for change in (lambda: None, *changes, lambda: None):
        try:
            change()
        except Exception as error:
            results.append(f"the change raised {type(error).__name__}")
        with contextlib.suppress(StopIteration):  # some have arguments for two calls each
            for _ in range(2 * turns.CALLS_EACH):
                results.append(_call(called, arguments()))
    return results


def _call(function: Any, arguments: tuple[Any, ...]) -> str:
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            result = described(function(*arguments))
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
    return f"{result}|{printed.getvalue()}"
