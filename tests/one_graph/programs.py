"""Programs in the style of libraries around tensor code: under `fullgraph=True` each is one graph, with eager's results.

A case is a function that makes the program anew: it returns the function to compile, and perhaps what makes the arguments of
each of its calls, which are made twice over.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import torch

import quickfuse
from matrix.combinations import described

Case = Callable[[], Any]

_cases: dict[str, dict[str, Case]] = {}


def case(factory: Case) -> Case:
    """Register a case under its name."""
    _cases.setdefault(factory.__module__, {})[factory.__name__] = factory
    return factory


def cases(module: str) -> list[str]:
    return list(_cases[module])


def x0() -> torch.Tensor:
    return torch.arange(1.0, 5.0).view(2, 2)


def x_and(*others: Any) -> Callable[[], tuple[Any, ...]]:
    """The arguments of a call: a matrix, and these."""
    return lambda: (x0(), *others)


def agrees(module: str, name: str) -> None:
    """Run a case in eager mode and compiled."""
    factory = _cases[module][name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = _results(factory, lambda function: function)
        quickfuse.reset()
        got = _results(factory, lambda function: quickfuse.compile(function, backend="eager", fullgraph=True))
    assert wanted == got


def _results(factory: Case, compile_: Callable[[Any], Any]) -> list[str]:
    torch.manual_seed(0)
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
