"""Runs a program plainly and compiled, and finds the first difference."""

from __future__ import annotations

import contextlib
import gc
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

import quickfuse
import turns
from programs.equality import Equality, Unequal, tensors_in, user_lines
from programs.load import Hang, Loaded, load, patience, quietly, registered
from quickfuse import config, errors

#: The calls that are compared. The last repeats the first: what was compiled for it runs again.
CALLS = (0, 1, 2, 0)
#: Part of the one warning that a random program may deserve: branches on many values compile many times.
DESERVED = "raise config.recompile_limit"

Compiler = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True)
class Difference:
    """`kind`: "wrong", "raised" (an exception that eager has not), "hang", "warning", "environment" or "traceback".

    `what` tells differences of a kind apart, while a program is reduced.
    """

    kind: str
    call: int
    what: str
    detail: str

    @property
    def signature(self) -> tuple[str, str]:
        return self.kind, self.what

    def __str__(self) -> str:
        return f"{self.kind} in call {self.call}: {self.detail}"


@dataclass
class Outcome:
    """What a call did, as far as it can be seen from outside."""

    value: Any = None
    error: BaseException | None = None
    printed: str = ""
    warned: list[str] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)


def with_eager_backend(function: Callable[..., Any]) -> Callable[..., Any]:
    return quickfuse.compile(function, backend="eager")


def compare(
    source: str, compiler: Compiler = with_eager_backend, tracebacks: bool = True, calls: Sequence[int] = CALLS
) -> Difference | None:
    """Run the program of `source` plainly and compiled, in lock-step; the first difference, or None.

    Without `tracebacks`, exceptions may come from other lines.
    """
    quickfuse.reset()
    calls = [*calls] * turns.CALLS_EACH
    before, config.raise_internal_errors = config.raise_internal_errors, True
    collecting = gc.isenabled()
    gc.disable()  # when cycles are collected, and generators in them closed, depends on all that the process does
    try:
        left, right = load(source), load(source)
        runs = Run(left, left.function), Run(right, compiler(right.function))
        for number, call in enumerate(calls):
            outcomes = runs[0].call(call), runs[1].call(call)
            found = difference(number, *outcomes) or changes(number, *runs)
            if found is None and tracebacks:
                found = other_lines(number, *outcomes, left.filename)
            if found is not None:
                return found
    finally:
        config.raise_internal_errors = before
        if collecting:
            gc.enable()
    return None


class Run:
    """One side: the function to call, and all that stays visible after its calls."""

    def __init__(self, loaded: Loaded, function: Callable[..., Any]) -> None:
        self.loaded = loaded
        self.function = function
        self.seen: list[Any] = []

    def call(self, call: int) -> Outcome:
        """Make a call on fresh arguments, which are kept with the result."""
        outcome = Outcome()
        with registered(self.loaded.module):
            args, kwargs = self.loaded.arguments(call)
            with observed(outcome), patience():
                try:
                    outcome.value = self.function(*args, **kwargs)
                except (Exception, Hang) as error:
                    outcome.error = error
            _backward(outcome.value)
        self.seen.append((args, kwargs, outcome.value))
        return outcome

    def state(self) -> Any:
        return self.seen, {n: v for n, v in self.loaded.state.items() if n not in ("arguments", "data")}


@contextlib.contextmanager
def observed(outcome: Outcome) -> Iterator[None]:
    """Note what is printed, warned and left changed in the process."""
    handler = Warned(outcome.warned)
    log = logging.getLogger("quickfuse")
    log.addHandler(handler)
    grad = torch.is_grad_enabled()
    try:
        with quietly() as printed, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
        outcome.warned += [str(w.message) for w in caught if "quickfuse" in f"{w.filename} {w.message}"]
        outcome.printed = printed.getvalue()
        outcome.environment = {
            "grad mode": torch.is_grad_enabled(), "collecting": gc.isenabled(), "handling": sys.exception(),
            "trace function": sys.gettrace(), "profile function": sys.getprofile(), "dtype": torch.get_default_dtype(),
        }  # fmt: skip
    finally:
        torch.set_grad_enabled(grad)
        log.removeHandler(handler)


class Warned(logging.Handler):
    """Collects what quickfuse warns of."""

    def __init__(self, into: list[str]) -> None:
        super().__init__(logging.WARNING)
        self.into = into

    def emit(self, record: logging.LogRecord) -> None:
        if DESERVED not in record.getMessage():
            self.into.append(record.getMessage())


def _backward(value: Any) -> None:
    """Fill in the gradients of leaves, so that they are compared too."""
    roots = [t.float().sum() for t in tensors_in(value) if t.requires_grad and t.grad_fn is not None]
    if roots:
        with contextlib.suppress(RuntimeError):
            torch.stack(roots).sum().backward()


def difference(number: int, left: Outcome, right: Outcome) -> Difference | None:
    """Between two outcomes of a call, values apart."""
    if isinstance(right.error, Hang):
        return Difference("hang", number, "", str(right.error))
    kinds = f"{type(left.error).__name__} {type(right.error).__name__}"
    if (left.error is None) != (right.error is None):
        kind = "wrong" if right.error is None else "raised"
        return Difference(kind, number, kinds, f"eager {_said(left)}, compiled {_said(right)}")
    if left.error is not None and right.error is not None:
        try:
            Equality().check(left.error, right.error, "exception")
        except Unequal as unequal:
            kind = "raised" if isinstance(right.error, errors.QuickfuseError) else "wrong"
            return Difference(kind, number, kinds, f"{unequal}; eager {_said(left)}, compiled {_said(right)}")
    if left.printed != right.printed:
        return Difference("wrong", number, "printed", f"eager printed {left.printed!r}, compiled {right.printed!r}")
    if right.warned:
        return Difference("warning", number, "", "; ".join(right.warned))
    if left.environment != right.environment:
        return Difference("environment", number, "", f"eager left {left.environment}, compiled {right.environment}")
    return None


def other_lines(number: int, left: Outcome, right: Outcome, filename: str) -> Difference | None:
    """Between the user's parts of two tracebacks."""
    if left.error is None or right.error is None:
        return None
    lines = user_lines(left.error, filename), user_lines(right.error, filename)
    if lines[0] == lines[1]:
        return None
    return Difference("traceback", number, "", f"eager {lines[0]}, compiled {lines[1]}")


def _said(outcome: Outcome) -> str:
    if outcome.error is None:
        return "returned"
    return f"raised {type(outcome.error).__name__}: {str(outcome.error)[:300]}"


def changes(number: int, left: Run, right: Run) -> Difference | None:
    """Between all results and arguments so far, and the module's variables."""
    try:
        Equality().check(left.state(), right.state(), "state")
    except Unequal as unequal:
        return Difference("wrong", number, unequal.what, str(unequal))
    return None
