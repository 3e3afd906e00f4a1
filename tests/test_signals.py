"""Exceptions of signal handlers come out of compiling and of compiled code, as they come out of the program itself."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

import quickfuse
from quickfuse import config
from quickfuse.ir.gradients import replacing_grad
from quickfuse.launch import same_tensors
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


def interrupting(number: int, *places: str) -> Callable[[FrameType, str, Any], None]:
    """A profile function that raises a signal at the n-th place where Python handles them, at the beginning of functions and
    after calls, in the files that have one of these names."""
    seen = itertools.count(1)

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        handled = event in ("call", "return", "c_return")
        if handled and any(place in frame.f_code.co_filename for place in places) and next(seen) == number:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGALRM)

    return profile


def interrupted_everywhere(run: Callable[[], Any], *places: str) -> Iterator[int]:
    """`run()` with an exception at each of its calls and returns in these files; after each one the caller has a look."""
    in_finalizers: list[Any] = []  # where Python itself reports exceptions, and cannot raise them
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "unraisablehook", lambda report: in_finalizers.append(report.exc_type))
        for number in itertools.count(1):
            in_finalizers.clear()
            sys.setprofile(interrupting(number, *places))
            try:
                run()
                came = False
                if sys.getprofile() is not None:
                    return
            except TooLong:
                came = True
            finally:
                sys.setprofile(None)
            assert came or in_finalizers, f"the exception at event {number} is lost"
            yield number


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

    threads, shown = torch.get_num_threads(), (warnings.filters, warnings._showwarnmsg_impl)  # type: ignore[attr-defined]
    alarm(1000)
    with pytest.raises(TooLong), handlers_heard():
        TorchDispatchMode().__enter__()
        torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x).__enter__()
        torch.autograd.set_detect_anomaly(True).__enter__()
        torch.autograd.set_multithreading_enabled(False).__enter__()
        torch.autocast("cpu").__enter__()
        torch._C._set_grad_enabled(False)
        torch.set_num_threads(threads + 1)
        warnings.catch_warnings(record=True).__enter__()
        signal.raise_signal(signal.SIGALRM)
    assert torch._C._len_torch_dispatch_stack() == 0 and torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
    assert torch._C._is_multithreading_enabled() and not torch.is_anomaly_enabled()
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    assert torch.get_num_threads() == threads
    assert (warnings.filters, warnings._showwarnmsg_impl) == shown  # type: ignore[attr-defined]


class Training:
    """A network and its optimizer, a step of which is one graph."""

    def __init__(self, width: int = 4, layers: int = 2) -> None:
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01)
        self.x = torch.randn(width, width)

    def step(self) -> T:
        self.optimizer.zero_grad()
        loss = self.net(self.x).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def check(self, step: Callable[[], T]) -> None:
        """The next step is eager's."""
        other = copy.deepcopy(self)
        torch.testing.assert_close(step(), other.step())
        torch.testing.assert_close([*self.net.parameters()], [*other.net.parameters()])


@pytest.mark.parametrize("width", [4, 128])
def test_the_mode_of_gradients_in_all_of_a_training_step(alarm: Callable[..., None], width: int) -> None:
    """Between changing it and the block of a `with` or `try` statement, too. A product of 128 is a call of PyTorch's."""
    training = Training(width)
    step = quickfuse.compile(training.step)
    for _ in range(2):
        step()
    alarm(1000)
    for _ in interrupted_everywhere(step, "grad_mode", "quickfuse"):
        assert torch.is_grad_enabled()
    training.check(step)
    assert step.graph_count == 1


def test_in_a_step_that_draws_random_numbers(alarm: Callable[..., None], caplog: pytest.LogCaptureFixture) -> None:
    """Where a call fails, such a step runs natively with the same numbers. A signal handler's exception is no failure."""
    training = Training()
    training.net.insert(1, torch.nn.Dropout())
    step = quickfuse.compile(training.step)
    for _ in range(2):
        step()
    alarm(1000)
    for _ in interrupted_everywhere(step, "<quickfuse"):
        assert "internal error" not in caplog.text
    assert step.graph_count == 1


def test_the_end_of_autocast(alarm: Callable[..., None]) -> None:
    """The block is entered and left after the kernels, for the copies of weights that PyTorch keeps."""
    training = Training()

    def loss() -> T:
        with torch.autocast("cpu"):
            result = training.net(training.x)
        return result.float().square().mean()

    compiled = quickfuse.compile(loss)
    for _ in range(2):
        compiled().backward()
    alarm(1000)
    nesting = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    for _ in interrupted_everywhere(compiled, "joined", "around_autocast", "ir/modes"):
        assert not torch.is_autocast_enabled("cpu")
        now = torch.autocast_increment_nesting()
        torch.autocast_decrement_nesting()
        assert now == nesting
    torch.testing.assert_close(compiled(), loss())


def test_while_it_is_noted_that_tensors_are_the_same(
    alarm: Callable[..., None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What generated code compares tensors with is written down after some calls. The exception is the program's, and what
    is let go is not compared with any more."""
    made: list[Any] = []
    begin = same_tensors.SameTensors.__init__

    def noted(self: Any, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        made.append(self)

    monkeypatch.setattr(same_tensors.SameTensors, "__init__", noted)
    tensors = [torch.zeros(3) for _ in range(14)]
    add = quickfuse.compile(lambda tensors: torch._foreach_add_(tensors, 1.0))
    for _ in range(6):
        add(tensors)
    assert len(made) == 1 and made[0].block[0], "it is written down"
    alarm(1000)
    numbers = []

    def again() -> None:
        made[0]._skip = 0
        made[0].note([tensors], tensors)

    for number in interrupted_everywhere(again, "same_tensors", "unchanged"):
        kept = {array.ctypes.data for array in made[0]._kept if isinstance(array, np.ndarray)}
        assert made[0].block[0] == 0 or kept.intersection(made[0].block), "it is all there, or not in use"
        tensors[0] = torch.zeros(3)
        before = [t.clone() for t in tensors]
        add(tensors)
        assert all(torch.equal(t, old + 1) for t, old in zip(tensors, before, strict=True))
        numbers.append(number)
    assert len(numbers) > 10
    assert "internal error" not in caplog.text


def test_no_lock_is_left_held(alarm: Callable[..., None]) -> None:
    """Other threads can compile, whenever the exception comes while the order of specialisations changes."""
    function = quickfuse.compile(lambda x: x + 1)
    shapes = itertools.cycle([2, 3])
    for _ in range(3):
        function(torch.ones(next(shapes)))
    free: list[bool] = []

    def acquire() -> None:
        free.append(function._lock.acquire(timeout=10))
        function._lock.release()


    def run() -> None:
        for _ in range(2):
            function(torch.ones(next(shapes)))

    alarm(1000)
    for _ in interrupted_everywhere(run, "pipeline/"):
        thread = threading.Thread(target=acquire)
        thread.start()
        thread.join()
        assert free[-1]
    assert free and function.graph_count == 2


def test_while_the_first_step_of_an_optimizer_is_prepared(alarm: Callable[..., None]) -> None:
    """Parameters have other gradients while the optimizer makes its state: not afterwards."""
    alarm(1000)
    for name in ("_laid_out_as", "_init_group", "take_back"):
        training = Training()
        step = quickfuse.compile(training.step)
        came: list[int] = []

        def profile(frame: FrameType, event: str, argument: Any, name: str = name, came: list[int] = came) -> None:
            if event == "return" and frame.f_code.co_name == name:
                came.append(1)
                if len(came) == (3 if name == "_laid_out_as" else 1):
                    signal.raise_signal(signal.SIGALRM)

        sys.setprofile(profile)
        try:
            with contextlib.suppress(TooLong):
                step()
        finally:
            sys.setprofile(None)
        assert name == "take_back" or (came and all(p.grad is None for p in training.net.parameters()))
        training.check(step)


def test_hooks_that_are_set_aside(alarm: Callable[..., None]) -> None:
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    assert y.requires_grad
    for tensor in (x, y):
        tensor.register_hook(lambda gradient: gradient * 2)
        tensor.register_hook(lambda gradient: gradient * 3)
    hooks = [list(tensor._backward_hooks.items()) for tensor in (x, y)]  # type: ignore[union-attr]
    z = y.sum()
    alarm(1000)
    for _ in interrupted_everywhere(
        lambda: replacing_grad([z], [x], [y], [torch.ones(3)], retain_graph=True), "ir/gradients", "utils/hooks"
    ):
        now = [list(tensor._backward_hooks.items())[:2] for tensor in (x, y)]  # type: ignore[union-attr]
        assert now == hooks


def test_while_a_library_is_imported(tmp_path: Any) -> None:
    """What is imported late is there as a whole, or not at all: a part of it would stay for the life of the process."""
    program = """
import signal, sys, torch, quickfuse

def f(x):
    return (x.sin() * x).exp().sum()

class Late(Exception):
    pass

def handler(*_):
    raise Late

class Finder:
    def find_spec(self, name, *_):
        if name == "networkx.algorithms.flow.utils":
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGALRM)

signal.signal(signal.SIGALRM, handler)
sys.meta_path.insert(0, Finder())
x = torch.ones(3, requires_grad=True)
try:
    quickfuse.compile(f)(x).backward()
    print("nothing raised")
except Late:
    print("raised")
quickfuse.compile(f, fullgraph=True, options={"raise_internal_errors": True})(x).backward()
print("done")
"""
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run([sys.executable, str(tmp_path / "program.py")], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["raised", "done"], done.stdout + done.stderr
