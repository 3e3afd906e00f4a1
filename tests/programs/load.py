"""Executes the source of a program in a module namespace of its own."""

from __future__ import annotations

import contextlib
import io
import linecache
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

#: The module name of every program: what prints it must not tell two runs apart.
MODULE = "program_under_test"
#: Seconds after which a call counts as one that does not end.
PATIENCE = 20.0


@dataclass(frozen=True)
class Loaded:
    """A program that can run. Two loads of a source share nothing."""

    module: types.ModuleType
    filename: str

    @property
    def function(self) -> Callable[..., Any]:
        return self.module.program  # type: ignore[no-any-return]

    def arguments(self, call: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return self.module.arguments(call)  # type: ignore[no-any-return]

    @property
    def state(self) -> dict[str, Any]:
        """The module's own variables, functions and classes."""
        found = vars(self.module).items()
        return {n: v for n, v in found if not n.startswith("__") and not isinstance(v, types.ModuleType)}


def load(source: str) -> Loaded:
    """Run a program's definitions."""
    filename = f"<{MODULE}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    module = types.ModuleType(MODULE)
    with registered(module):
        exec(compile(source, filename, "exec"), vars(module))
    return Loaded(module, filename)


@contextlib.contextmanager
def registered(module: types.ModuleType) -> Iterator[None]:
    """With the module where imports, dataclasses and pickle look for it."""
    before = sys.modules.get(MODULE)
    sys.modules[MODULE] = module
    try:
        yield
    finally:
        if before is None:
            del sys.modules[MODULE]
        else:
            sys.modules[MODULE] = before


@contextlib.contextmanager
def quietly() -> Iterator[io.StringIO]:
    """Take what is printed."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        yield printed


class Hang(BaseException):
    """A call that does not end."""


@contextlib.contextmanager
def patience(seconds: float = PATIENCE) -> Iterator[None]:
    """Raise Hang in what takes longer, and again after as long: Python swallows what a finalizer raises. Signals arrive in
    the main thread only; elsewhere there is no limit."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def give_up(number: int, frame: types.FrameType | None) -> None:
        raise Hang(f"no end after {seconds} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
