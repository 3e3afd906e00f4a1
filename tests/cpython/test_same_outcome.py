"""CPython's own tests of its builtin types, captured: what passes in plain Python has to pass compiled, call after call.

The tests are those that are installed with Python; nothing of them is here. What they assert by is exchanged for functions
that capture follows, and nothing is left to Python for the sake of speed: so nearly every instruction is captured.
"""

from __future__ import annotations

import re
import signal
import sys
import unittest
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import quickfuse
from quickfuse.drive import driver
from quickfuse.pipeline import worth

MODULES = (
    "test_augassign test_binop test_bool test_dictviews test_index test_keywordonlyarg test_list "
    "test_positional_only_arg test_range test_string"
).split()

CALLS = 3
SECONDS = 20


class Assertions:
    """What tests assert by, in few instructions. `count` are those that were made so far."""

    count = 0

    def fail(self, message: Any = None) -> None:
        raise AssertionError(message)

    def subTest(self, *_: Any, **__: Any) -> Expected:
        return Expected(())

    def assertRaises(self, wanted: Any, *call: Any, **kwargs: Any) -> Any:
        Assertions.count += 1
        if not call:
            return Expected(wanted)
        with Expected(wanted):
            call[0](*call[1:], **kwargs)
        return None

    def assertRaisesRegex(self, wanted: Any, pattern: Any, *call: Any, **kwargs: Any) -> Any:
        Assertions.count += 1
        if not call:
            return Expected(wanted, pattern)
        with Expected(wanted, pattern):
            call[0](*call[1:], **kwargs)
        return None


class Expected:
    """The context that an exception has to leave; with no class of exceptions, none may."""

    def __init__(self, wanted: Any, pattern: Any = None) -> None:
        self.wanted, self.pattern = wanted, pattern

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: Any, error: Any, _: Any) -> bool:
        if kind is None and self.wanted:
            raise AssertionError(f"no {self.wanted}")
        if kind is None or not issubclass(kind, self.wanted):
            return False
        self.exception = error
        if self.pattern is not None and not re.search(self.pattern, str(error)):
            raise AssertionError(f"{error} does not say {self.pattern}")
        return True


def _assertion(holds: Callable[..., Any]) -> Callable[..., None]:
    def check(self: Any, *operands: Any, msg: Any = None) -> None:
        Assertions.count += 1
        if not holds(*operands[: holds.__code__.co_argcount]):  # a message may come after them
            raise AssertionError(f"not so: {operands!r}")

    return check


#: By what stands after `assert` in their names.
_HOLDS: dict[str, Callable[..., Any]] = {
    "Equal": lambda a, b: a == b, "NotEqual": lambda a, b: a != b, "True": lambda a: a, "False": lambda a: not a,
    "Is": lambda a, b: a is b, "IsNot": lambda a, b: a is not b, "IsNone": lambda a: a is None,
    "IsNotNone": lambda a: a is not None, "In": lambda a, b: a in b, "NotIn": lambda a, b: a not in b,
    "IsInstance": lambda a, b: isinstance(a, b), "NotIsInstance": lambda a, b: not isinstance(a, b),
    "Less": lambda a, b: a < b, "LessEqual": lambda a, b: a <= b, "Greater": lambda a, b: a > b,
    "GreaterEqual": lambda a, b: a >= b,
}  # fmt: skip


@pytest.fixture(autouse=True)
def capture_all(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fail", "subTest", "assertRaises", "assertRaisesRegex"):
        monkeypatch.setattr(unittest.TestCase, name, vars(Assertions)[name])
    for name, holds in _HOLDS.items():
        monkeypatch.setattr(unittest.TestCase, f"assert{name}", _assertion(holds))
    for name in ("PATIENCE", "PATIENCE_OUTSIDE"):
        monkeypatch.setattr(driver, name, 1 << 30)
    monkeypatch.setattr(worth, "FEWEST_INSTRUCTIONS", 0)


def _tests(suite: Any) -> Iterator[unittest.TestCase]:
    if isinstance(suite, unittest.TestSuite):
        for part in suite:
            yield from _tests(part)
    elif isinstance(getattr(suite, "_testMethodName", None), str) and not hasattr(suite, "_dt_test"):  # no doctest
        yield suite


def _outcome(test: unittest.TestCase, function: Callable[..., Any]) -> tuple[str, int]:
    """What became of a call, and how many assertions it made."""
    made = type(test)(test._testMethodName)
    Assertions.count = 0
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        made.setUp()
        try:
            function(made)
        finally:
            made.tearDown()
            made.doCleanups()
    except BaseException as error:
        return f"{type(error).__name__}: {error}", Assertions.count
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return "passed", Assertions.count


def _stop(*_: Any) -> None:
    raise KeyboardInterrupt(f"not finished after {SECONDS} s")


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="what passes is known of the tests of Python 3.11")
@pytest.mark.parametrize("name", MODULES)
def test_same_outcome(name: str) -> None:
    module = pytest.importorskip(f"test.{name}")
    before = signal.signal(signal.SIGALRM, _stop)
    different, compared = [], 0
    try:
        for test in _tests(unittest.defaultTestLoader.loadTestsFromModule(module)):
            function = getattr(type(test), test._testMethodName)
            plain = _outcome(test, function)
            if plain[0] != "passed" or _outcome(test, function) != plain:
                continue
            compared += 1
            compiled = quickfuse.compile(function)
            found = [_outcome(test, compiled) for _ in range(CALLS)]
            quickfuse.reset()
            if found != [plain] * CALLS:
                different.append(f"{test.id()}: {plain} in plain Python, {found} compiled")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert compared
    assert not different, "\n".join(different)
