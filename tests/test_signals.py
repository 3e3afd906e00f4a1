"""Exceptions of signal handlers come out of compiling and of compiled code, as they come out of the program itself."""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
import torch

import quickfuse
from quickfuse import config
from quickfuse.pipeline import compiled as compiled_
from quickfuse.signals import handlers_heard, let_through

T = torch.Tensor


class TooLong(Exception):
    """What the handler here raises."""


@pytest.fixture(autouse=True)
def no_internal_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "raise_internal_errors", False)


@pytest.fixture
def alarm() -> Iterator[Callable[..., None]]:
    """Set a handler and an alarm after some seconds."""
    before = signal.getsignal(signal.SIGALRM)

    def after(seconds: float, error: type[BaseException] = TooLong) -> None:
        def handler(number: int, frame: Any) -> None:
            raise error("too long")

        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, seconds)

    yield after
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def many_operators(x: T, count: int = 300) -> T:
    for _ in range(count):
        x = x * 1.0001
    return x


def branches(x: T) -> T:
    for k in range(200):
        try:
            x = x * 1.0001 if k % 3 else torch.sin(x)
        except ValueError:
            x = -x
    return x


@pytest.mark.parametrize("error", [TooLong, ValueError, TypeError, RuntimeError, KeyError, KeyboardInterrupt, SystemExit])
def test_while_it_compiles(
    alarm: Callable[..., None], error: type[BaseException], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any time: whatever stage it is in. Nothing is remembered of it: the next call compiles."""
    in_finalizers: list[Any] = []  # where Python itself reports exceptions, and cannot raise them
    monkeypatch.setattr(sys, "unraisablehook", lambda report: in_finalizers.append(report.exc_type))
    for delay in (0.003, 0.01, 0.02, 0.04, 0.08):
        for function in (many_operators, branches):
            compiled = quickfuse.compile(function)
            x = torch.ones(3, requires_grad=True)
            left = 0.0
            try:
                alarm(delay, error)
                compiled(x).sum().backward()
                left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
                came = False
            except error:
                came = True
            assert came or in_finalizers or left > 0
            assert isinstance(signal.getsignal(signal.SIGALRM), type(lambda: 0)), "the handler is the user's again"
            signal.setitimer(signal.ITIMER_REAL, 0)
            torch.testing.assert_close(compiled(x), function(x))
            assert compiled.graph_count == 1
    assert "internal error" not in caplog.text


def test_while_llvm_compiles(alarm: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM's objects are freed twice where an exception comes between freeing one and writing that down: it waits."""
    monkeypatch.setattr(config, "cache_folder", "")
    came = []

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "return") and "llvmlite" in frame.f_code.co_filename:
            came.append(frame.f_code.co_name)
            signal.raise_signal(signal.SIGALRM)

    def function(x: T) -> T:
        return x * 0.4711 + torch.sin(x)  # nobody else's: no kernel of it is there

    compiled = quickfuse.compile(function)
    alarm(1000)
    with pytest.raises(TooLong) as raised:
        sys.setprofile(profile)
        try:
            compiled(torch.ones(3))
        finally:
            sys.setprofile(None)
    assert came.count("close") > 2 and not [entry for entry in raised.traceback if "llvmlite" in str(entry.path)]
    torch.testing.assert_close(compiled(torch.ones(3)), function(torch.ones(3)))


def test_a_handler_that_is_caught_on_the_way(alarm: Callable[..., None]) -> None:
    """Capture gives what native functions raise to the program's handlers, PyTorch hides some exceptions: both in vain."""

    def swallows(function: Any, args: Any, kwargs: Any, **options: Any) -> Any:
        with contextlib.suppress(TooLong):
            signal.raise_signal(signal.SIGALRM)
        return real(function, args, kwargs, **options)

    alarm(1000)
    real = compiled_.capture
    compiled = quickfuse.compile(lambda x: x + 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled_, "capture", swallows)
        with pytest.raises(TooLong):
            compiled(torch.ones(3))
    assert compiled.graph_count == 0
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0)) and compiled.graph_count == 1


@pytest.mark.parametrize("mutates", [False, True])
def test_while_a_graph_runs(alarm: Callable[..., None], mutates: bool) -> None:
    """An operator that a signal interrupts has not failed: the program does not run again."""
    calls = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            if calls.append(1) or len(calls) > 1:
                signal.raise_signal(signal.SIGALRM)
            return gm(*inputs)

        return run

    def function(x: T) -> T:
        if mutates:
            x.add_(1)
        return x * 2

    compiled = quickfuse.compile(function, backend=backend)
    compiled(torch.ones(3))
    alarm(1000)
    with pytest.raises(TooLong):
        compiled(torch.ones(3))
    assert len(calls) == 2


def test_while_guards_are_checked(alarm: Callable[..., None]) -> None:
    class Holder:
        @property
        def scale(self) -> float:
            return 2.0

    class Raising:
        """A signal comes while a guard asks for the attribute."""

        def __getattribute__(self, name: str) -> Any:
            if name == "scale":
                signal.raise_signal(signal.SIGALRM)
            return super().__getattribute__(name)

    compiled = quickfuse.compile(lambda x, holder: x * holder.scale)
    compiled(torch.ones(3), Holder())
    alarm(1000, ValueError)
    with pytest.raises(ValueError, match="too long"):
        compiled(torch.ones(3), Raising())


@pytest.mark.parametrize("error", [TooLong, KeyboardInterrupt])
def test_the_programs_own_handlers_see_it(alarm: Callable[..., None], error: type[BaseException]) -> None:
    """`with`, `finally` and `except` of compiled code that is suspended at a break."""

    class Block:
        def __enter__(self) -> Block:
            seen.append("enter")
            return self

        def __exit__(self, kind: Any, *rest: Any) -> None:
            seen.append(f"exit {kind and kind.__name__}")

    def program(x: T) -> T:
        try:
            with Block():
                for _ in range(100_000_000):
                    x = x.sin() + 1
                    seen_now(x)
        except error as caught:
            seen.append(f"caught {caught}")
        finally:
            seen.append("finally")
        return x

    @quickfuse.disable
    def seen_now(x: T) -> None:
        counted.append(1)
        if len(counted) == 1:  # before that, a handler's exception is one of the call
            alarm(0.3, error)

    for function in (program, quickfuse.compile(program)):
        seen: list[str] = []
        counted: list[int] = []
        function(torch.ones(3))
        assert seen == ["enter", f"exit {error.__name__}", "caught too long", "finally"] and counted


def test_handlers_of_all_kinds() -> None:
    """A handler is known by how it was called, also where it is not installed any more."""

    class Handler:
        def __call__(self, number: int, frame: Any) -> None:
            raise TooLong

        def method(self, *args: Any) -> None:
            raise TooLong

    def leaves(number: int, frame: Any) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        raise TooLong

    def takes_more(more: int, number: int, frame: Any) -> None:
        raise TooLong

    before = signal.getsignal(signal.SIGALRM)
    try:
        for handler in (Handler(), Handler().method, leaves, functools.partial(takes_more, 1)):
            signal.signal(signal.SIGALRM, handler)
            with pytest.raises(TooLong) as raised:
                signal.raise_signal(signal.SIGALRM)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            with pytest.raises(TooLong):
                let_through(raised.value)
    finally:
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(TooLong) as raised:
        leaves_not = [takes_more]
        leaves_not[0](1, 2, 3)
    let_through(raised.value)


def test_blocks_inside_blocks_and_threads(alarm: Callable[..., None]) -> None:
    alarm(1000)
    with pytest.raises(TooLong), handlers_heard():
        with pytest.raises(TooLong), handlers_heard() as inner:
            try:
                signal.raise_signal(signal.SIGALRM)
            except TooLong:
                inner.check()
        raise AssertionError("the outer block raises it, too")
    done = []

    def elsewhere() -> None:
        with handlers_heard():
            done.append(1)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert done


def test_settings_that_a_signal_leaves_changed(alarm: Callable[..., None]) -> None:
    """A mode that was entered when the signal came, in front of the block that it was entered for, is left."""
    from torch.utils._python_dispatch import TorchDispatchMode

    alarm(1000)
    with pytest.raises(TooLong), handlers_heard():
        TorchDispatchMode().__enter__()
        torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x).__enter__()
        torch.autograd.set_detect_anomaly(True).__enter__()
        torch.autograd.set_multithreading_enabled(False).__enter__()
        torch.autocast("cpu").__enter__()
        torch._C._set_grad_enabled(False)
        signal.raise_signal(signal.SIGALRM)
    assert torch._C._len_torch_dispatch_stack() == 0 and torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
    assert torch._C._is_multithreading_enabled() and not torch.is_anomaly_enabled()
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
