"""Exceptions that signal handlers raise: the timeout of a `signal.alarm`, Ctrl-C.

They come between any two instructions, so also inside of the compiler, where an exception mostly means that something cannot
be compiled, and is dealt with. None of them may be lost that way:

* While something is compiled, `handlers_heard` writes down what the handlers raise, and raises it when compiling ends,
  whatever was made of it on the way: by capture, which gives exceptions to the program's own handlers, or inside PyTorch.
* LLVM's objects are freed twice where an exception comes between freeing one and writing that down. While it compiles, what
  handlers raise waits until it has ended (`handlers_wait`).
* Compiled code must not take longer for this. There, an exception is asked where it comes from before it is taken for
  something else (`let_through`).
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what `signal` wraps, whose enumerations take 100 us for all signals
import functools
import importlib
import inspect
import threading
import warnings
from types import CodeType, FrameType, TracebackType
from typing import Any, NoReturn

import torch
import torch.overrides
import torch.utils._python_dispatch

from .ir.modes import Modes

_SIGNALS = sorted(int(number) for number in _signal.valid_signals())


class _Heard:
    """A signal handler that writes down what the original raises."""

    def __init__(self, handler: Any, block: handlers_heard) -> None:
        self.handler = handler
        self.block = block

    def __call__(self, number: int, frame: FrameType | None) -> Any:
        try:
            return self.handler(number, frame)
        except BaseException as error:
            self.block.note(error, frame)
            if self.block.waits:
                return None
            raise


class handlers_heard:
    """A `with` block out of which comes what a signal handler raises inside of it, even if something inside caught it.

    `check()` raises it at once. Signals are handled in the main thread only: in others the block does nothing.
    """

    #: Whether exceptions of handlers wait for the end of the block.
    waits = False

    def __init__(self) -> None:
        self._raised: list[BaseException] = []
        self._replaced: list[tuple[int, _Heard]] = []
        self._settings = _Settings()

    def __enter__(self) -> handlers_heard:
        if threading.get_ident() == threading.main_thread().ident:
            try:
                for number in _SIGNALS:
                    handler = _signal.getsignal(number)
                    if callable(handler):  # neither the system's default nor one that was not installed by Python
                        heard = _Heard(handler, self)
                        self._replaced.append((number, heard))
                        _signal.signal(number, heard)
            except BaseException:  # there will be no `__exit__`
                self._restore()
                raise
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: TracebackType | None) -> None:
        try:
            self._restore()
        finally:  # a handler that is back may raise before the others are
            self._restore()
        raised = [*self._raised]
        if raised:
            self._settings.restore()
        self._raised.clear()  # an exception that it keeps would keep it in turn
        if raised and not any(error is other for other in raised):
            _raise(raised[0])

    def note(self, error: BaseException, frame: FrameType | None) -> None:
        """Write down what a handler raised. Where it came at the edge of the block, in whose methods nothing may catch it
        yet or any more, the handlers are the user's again at once."""
        self._raised.append(error)
        if frame is not None and frame.f_code in _EDGES and frame.f_locals.get("self") is self:
            self._restore()
            self.waits = False

    def _restore(self) -> None:
        while self._replaced:
            number, heard = self._replaced[-1]
            if _signal.getsignal(number) is heard:
                _signal.signal(number, heard.handler)
            if self._replaced and self._replaced[-1][1] is heard:
                self._replaced.pop()

    def check(self) -> None:
        """Raise the first exception of a handler so far, if there was one."""
        if self._raised:
            _raise(self._raised[0])


class handlers_wait(handlers_heard):
    """A `with` block inside of which signal handlers raise nothing: it comes out of the block's end."""

    waits = True


@functools.cache
def whole_module(name: str) -> Any:
    """Import a module that is imported late. What a signal handler raises in between would leave a part of it for good."""
    with handlers_wait():
        return importlib.import_module(name)


class _Settings:
    """The settings of PyTorch, and of `warnings`, that compiling changes for a while, as they are before.

    A `with` statement that a signal interrupts in front of its block is never left, so its `__exit__` is not enough.
    """

    def __init__(self) -> None:
        self._modes = Modes()
        self._dispatch = torch._C._len_torch_dispatch_stack()
        self._functions = [torch._C._get_function_stack_at(k) for k in range(torch._C._len_torch_function_stack())]
        self._threads = torch._C._is_multithreading_enabled()
        self._anomaly = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
        self._hooks = _saving_hooks()
        self._processors = torch.get_num_threads()
        self._warns_always = torch.is_warn_always_enabled()
        self._warnings = {name: value for name in _OF_WARNINGS if (value := getattr(warnings, name, None)) is not None}

    def restore(self) -> None:
        while torch._C._len_torch_dispatch_stack() > self._dispatch:
            torch.utils._python_dispatch._pop_mode()
        while torch._C._len_torch_function_stack() > len(self._functions):
            torch.overrides._pop_mode()
        for mode in self._functions[torch._C._len_torch_function_stack() :]:
            torch.overrides._push_mode(mode)
        while (hooks := _saving_hooks()) is not None and hooks != self._hooks:
            torch._C._autograd._pop_saved_tensors_default_hooks()
        torch._C._set_multithreading_enabled(self._threads)
        torch.set_anomaly_enabled(*self._anomaly)
        if torch.get_num_threads() != self._processors:
            torch.set_num_threads(self._processors)
        torch.set_warn_always(self._warns_always)
        if any(getattr(warnings, name) is not value for name, value in self._warnings.items()):
            vars(warnings).update(self._warnings)
        self._modes.restore()


#: What `warnings.catch_warnings` changes of the module.
_OF_WARNINGS = ("filters", "showwarning", "_showwarnmsg_impl")


def _saving_hooks() -> Any:
    """The innermost hooks on what autograd saves."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


#: The code that runs before and after what is inside of the block.
_EDGES = frozenset(m.__code__ for m in (handlers_heard.__enter__, handlers_heard.__exit__, handlers_heard._restore))


def _raise(error: BaseException) -> NoReturn:
    """Raise an exception as it was raised before, whatever was made of it meanwhile."""
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context
        del error


def let_through(error: BaseException) -> None:
    """Raise an exception again if it comes out of a signal handler."""
    step = error.__traceback__
    while step is not None and step.tb_frame.f_code.co_filename.startswith("<quickfuse"):  # generated, and so no handler
        step = step.tb_next
    if step is None:
        return
    installed = _installed_codes()
    while step is not None:
        if step.tb_frame.f_code in installed or _takes_callers_frame(step.tb_frame):
            raise error
        step = step.tb_next


def _installed_codes() -> set[CodeType]:
    """The code of all handlers that are written in Python."""
    codes = set()
    for number in _SIGNALS:
        handler: Any = _signal.getsignal(number)
        while isinstance(handler, _Heard):
            handler = handler.handler
        code = getattr(inspect.unwrap(handler) if callable(handler) else None, "__code__", None)
        if isinstance(code, CodeType):
            codes.add(code)
    return codes


def _takes_callers_frame(frame: FrameType) -> bool:
    """Whether a frame was called with a number and the frame below, as signal handlers are, those of before included."""
    code = frame.f_code
    below = frame.f_back
    if below is None or (code.co_argcount < 2 and not code.co_flags & inspect.CO_VARARGS):
        return False
    values: list[Any] = []
    for name in code.co_varnames[: code.co_argcount + 1]:
        value = frame.f_locals.get(name)
        values += value if type(value) is tuple else (value,)
    return any(second is below and isinstance(first, int) for first, second in zip(values, values[1:], strict=False))
