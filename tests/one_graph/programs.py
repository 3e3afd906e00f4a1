"""Programs in the style of libraries around tensor code: under `fullgraph=True` each is one graph, with eager's results.

A case is a function that makes the program anew: it returns the function to compile, and perhaps what makes the arguments of
each of its calls, which are made twice over.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import quickfuse
from case_registry import Case, case_of, x0
from matrix.combinations import described
from seeding import seed_torch


def x_and(*others: Any) -> Callable[[], tuple[Any, ...]]:
    """The arguments of a call: a matrix, and these."""
    return lambda: (x0(), *others)


def agrees(module: str, name: str) -> None:
    """Run a case in eager mode and compiled."""
    factory = case_of(module, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = _results(factory, lambda function: function)
        quickfuse.reset()
        got = _results(factory, lambda function: quickfuse.compile(function, backend="eager", fullgraph=True))
    assert wanted == got


def _results(factory: Case, compile_: Callable[[Any], Any]) -> list[str]:
    seed_torch(0)
    random.seed(0)
    function, *calls = factory()
    called = compile_(function)
    made = calls or [lambda: (x0(),), lambda: (x0() + 1,)]
    return [_call(called, arguments()) for arguments in (*made, *made)]


def _call(function: Any, arguments: tuple[Any, ...]) -> str:
    try:
        return str(described(function(*arguments)))
    except quickfuse.errors.GraphBreak:
        raise
    except Exception as error:
        return f"{type(error).__name__}: {error}"
