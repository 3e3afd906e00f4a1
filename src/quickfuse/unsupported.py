"""What the names of `quickfuse` are where it cannot compile: programs run as they are, after one warning.

It also stands for the modules that installed entry points name: the command, and the backend for torch.compile.
"""

from __future__ import annotations

import functools
import logging
import sys
import warnings
from typing import Any, Callable

from . import support
from .errors import QuickfuseError

problem: str = support.problem() or "quickfuse is supported here."


@functools.lru_cache(maxsize=None)
def warn_once() -> None:
    warnings.warn(problem, RuntimeWarning, stacklevel=3)


def announce() -> None:
    """Say so when quickfuse is imported."""
    logging.getLogger("quickfuse").warning(problem)


def app(**options: Any) -> None:
    """The command `quickfuse`. What it would say has been said when the package was imported."""
    sys.exit(1)


def compile(model: Any = None, **options: Any) -> Any:
    """Give back the function or module as it is, or a decorator that does so."""
    warn_once()
    return _unchanged if model is None else model


def for_torch_compile(gm: Any, example_inputs: Any, **options: Any) -> Any:
    """The backend for torch.compile: the graph runs as it is."""
    warn_once()
    return gm.forward


def explain(function: Callable[..., Any]) -> Any:
    """Raises:
        QuickfuseError: nothing is compiled, so that there is nothing to explain.
    """
    raise QuickfuseError(problem)


def export(*args: Any, **options: Any) -> Any:
    """Raises:
        QuickfuseError: nothing is captured, so that there is nothing to export.
    """
    raise QuickfuseError(problem)


load = export


class Exported:
    """There are none."""


def _unchanged(function: Any) -> Any:
    return function


class _Disabled:
    def __call__(self, function: Any) -> Any:
        return function

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: Any) -> None:
        pass


def disable(function: Any = None, recursive: bool = True, *, reason: Any = None) -> Any:
    """Give back the function as it is; without one, a decorator and context manager that does nothing."""
    return _Disabled() if function is None else function


def allow_in_graph(function: Any) -> Any:
    """Give back the function as it is."""
    return function


def register_backend(function: Any = None, name: Any = None) -> Any:
    """Give back the backend as it is: no graph will be captured for it."""
    return _unchanged if function is None or isinstance(function, str) else function


def list_backends() -> list[str]:
    """None."""
    return []


def is_compiling() -> bool:
    """False."""
    return False


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Do nothing."""


graph_break = mark_dynamic = reset = set_logs = _nothing
