"""`compile()`: the callable that a user holds. The one module that knows all stages."""

from __future__ import annotations

import copy
import functools
import gc
import sys
import threading
import weakref
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, TypeVar, overload

import torch

from . import backends, config, errors, logs
from .capture import capture
from .emit import glue as glue_source
from .emit.body import KernelBodyWriter, graph_body
from .emit.llvm import emit as emit_llvm
from .errors import Unsupported
from .fuse import fuse
from .ir.segment import Segment
from .ir.values import TensorMeta
from .launch import bind, bulk_reads, tensor_check
from .lower import lower
from .module import CompiledModule
from .report import save_report

F = TypeVar("F", bound=Callable[..., Any])
MODES = ("default", "reduce-overhead", "max-autotune")
OPTIONS = ("raise_internal_errors",)
MISS = glue_source.MISS


class Specialisation:
    """One compiled version of a function: valid while its guards hold."""

    def __init__(self, segment: Segment, glue: glue_source.Glue, run: Callable[..., Any], kernels: int) -> None:
        self.segment = segment
        self.glue = glue
        self.run = run
        self.kernels = kernels


class Compiled:
    """A compiled function. Call it like the original; `specialisations` and `graph_count` tell what was compiled."""

    def __init__(self, function: Callable[..., Any], settings: Settings) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.settings = settings
        self.specialisations: list[Specialisation] = []
        self.native_reason: str | None = None
        self.last_failure: str | None = None
        self.failures = 0
        self._lock = threading.RLock()
        self._plain, self._bound = _plain_function(function)
        _live.add(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        bound = self._bound
        if bound:
            args = (*bound, *args)
        try:
            for specialisation in self.specialisations:
                result = specialisation.run(*args, **kwargs)
                if result is not MISS:
                    return result
            return self._compile_and_run(args, kwargs)
        except glue_source.RunNatively as request:
            failure = request.__cause__
        return self._native_after(failure, args, kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As an attribute of a class it is a method, like the function that it stands for."""
        return self if instance is None else MethodType(self, instance)

    def __deepcopy__(self, memo: dict[int, Any]) -> Compiled:
        """A copy of a method belongs to the copy of its object; functions are not copied."""
        return Compiled(copy.deepcopy(self.function, memo), self.settings)

    def __reduce__(self) -> Any:
        """Pickled by name where the name leads here, as functions are."""
        path = str(getattr(self, "__qualname__", ""))
        found: Any = sys.modules.get(self.__module__)
        for name in path.split("."):
            found = getattr(found, name, None)
        return path if found is self else (Compiled, (self.function, self.settings))

    @property
    def graph_count(self) -> int:
        return len(self.specialisations)

    def reset(self) -> None:
        """Forget every specialisation."""
        with self._lock:
            self.specialisations = []
            self.native_reason = None
            self.failures = 0

    def _native(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._plain(*args, **kwargs) if self._plain is not None else self.function(*args, **kwargs)

    def _native_after(self, failure: BaseException | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run natively where a specialisation could not, or failed: then the native run fails as well, or we did wrong."""
        result = self._native(args, kwargs)
        if isinstance(failure, Exception):
            if self.settings.raise_internal_errors or config.raise_internal_errors:
                raise failure
            self._report_internal_error(failure)
        return result

    def _compile_and_run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        specialisation = None
        with self._lock:
            if self._may_compile():
                specialisation = self._specialise(args, kwargs)
        if specialisation is not None:
            result = specialisation.run(*args, **kwargs)
            if result is not MISS:
                return result
            self._log_native("a guard that does not hold right after capture")
        return self._native(args, kwargs)

    def _may_compile(self) -> bool:
        if self._plain is None:
            self._log_native("a callable that is not a Python function")
            return False
        if self.native_reason is not None or _disabled.depth:
            return False
        if len(self.specialisations) < config.recompile_limit:
            return True
        failing = self.last_failure or "unknown (turn on QUICKFUSE_LOGS=recompiles to see it)"
        message = (
            f"{self._plain.__qualname__} was compiled {len(self.specialisations)} times; the guard that keeps failing is "
            f"{failing}. It now runs natively. Pass what changes as a tensor, or raise config.recompile_limit."
        )
        if config.on_recompile_limit == "error":
            raise errors.RecompileLimit(message)
        logs.log.warning(message)
        self.native_reason = message
        return False

    def _specialise(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Specialisation | None:
        """Capture and compile for these arguments; None where the call has to run natively."""
        self._log_recompilation(args, kwargs)
        assert self._plain is not None
        collecting = gc.isenabled()
        gc.disable()  # capture makes many objects and no garbage: collecting would take a third of its time
        try:
            with logs.stage("capture"):
                segment = capture(self._plain, args, kwargs)
            specialisation = compile_segment(segment, self._plain, self.settings)
        except Unsupported as reason:
            if self.settings.fullgraph:
                hint = f"\n  hint: {reason.hint}" if reason.hint else ""
                raise errors.GraphBreak(f"{reason.location}: {reason.reason}{hint}") from None
            self._log_native(reason.reason, reason.location)
            self._give_up_after_failures(reason.reason)
            return None
        except errors.BackendError:
            raise
        except Exception as error:
            if self.settings.raise_internal_errors or config.raise_internal_errors:
                raise
            self._report_internal_error(error)
            return None
        finally:
            if collecting:
                gc.enable()
        self.specialisations = [specialisation, *self.specialisations]
        return specialisation

    def _give_up_after_failures(self, reason: str) -> None:
        """Stop trying: capture costs more than it can ever gain for a function that it cannot follow."""
        self.failures += 1
        patience = config.recompile_limit if self.specialisations else config.capture_attempts
        if self.failures >= patience:
            self.native_reason = reason
            self._log_native(f"{reason} (from now on without trying to capture it)")

    def _log_native(self, reason: str, location: str = "") -> None:
        name = getattr(self.function, "__qualname__", None) or type(self.function).__name__
        logs.emit("graph_breaks", f"{name} runs natively: {reason}{f' at {location}' if location else ''}")

    def _log_recompilation(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self.specialisations or self._plain is None:
            return
        code = self._plain.__code__
        reasons = []
        for specialisation in self.specialisations:
            failed = glue_source.first_failure(
                specialisation.segment, self._plain, args, kwargs, bulk_reads.functions()
            )
            reasons.append(f"    - {failed or 'a tensor guard'}")
            self.last_failure = failed or self.last_failure
        if not logs.enabled("recompiles"):
            return
        head = f"Recompiling function {self._plain.__qualname__} in {code.co_filename}:{code.co_firstlineno}"
        logs.emit("recompiles", "\n".join([head, "    triggered by the following guard failure(s):", *reasons]))

    def _report_internal_error(self, error: Exception) -> None:
        self.native_reason = f"internal error: {type(error).__name__}: {error}"
        path = save_report(self.function, error)
        logs.log.warning(
            "internal error while compiling %s (%s: %s); it runs natively. Details: %s",
            getattr(self.function, "__qualname__", self.function), type(error).__name__, error, path,
        )  # fmt: skip


class Settings:
    """What `compile()` was asked for."""

    def __init__(
        self, fullgraph: bool, dynamic: bool | None, backend: Any, mode: str | None, options: dict[str, Any] | None
    ) -> None:
        if mode is not None and mode not in MODES:
            raise ValueError(f"unknown mode {mode!r}; the modes are {', '.join(MODES)}")
        unknown = [name for name in options or {} if name not in OPTIONS]
        if unknown:
            raise ValueError(f"unknown options {', '.join(unknown)}; the options are {', '.join(OPTIONS)}")
        self.fullgraph = fullgraph
        self.dynamic = dynamic
        self.mode = mode or "default"
        self.backend = backends.resolve(backend)
        self.raise_internal_errors = bool((options or {}).get("raise_internal_errors", False))

    def compile_call(self, function: Callable[..., Any]) -> Compiled:
        """Compile a function with these settings."""
        return Compiled(function, self)


class _Disabled(threading.local):
    depth = 0


_disabled = _Disabled()
_live: weakref.WeakSet[Compiled] = weakref.WeakSet()


def compile_segment(segment: Segment, function: FunctionType, settings: Settings) -> Specialisation:
    """Everything after capture."""
    if logs.enabled("guards"):
        logs.emit("guards", "\n".join(f"{g}  # {g.location}" for g in segment.guards))
    if logs.enabled("graph"):
        logs.emit("graph", str(segment.graph))
    order = glue_source.tensor_order(segment)
    expected = {g.source: g.value for g in segment.guards if g.kind == "tensor"}
    check = tensor_check([expected[source] for source in order]) if order else None
    if settings.backend is backends.QUICKFUSE:
        body, kernels = _kernels(segment, [expected[s][1] for s in order])
    else:
        body, kernels = graph_body(segment, settings.backend.compile(segment)), 0
    with logs.stage("glue"):
        glue = glue_source.Glue(segment, body, check, bulk_reads.functions(), _identifier(function))
        run = glue.function(function)
    logs.emit("glue", glue.source)
    return Specialisation(segment, glue, run, kernels)


def _kernels(segment: Segment, checked: list[TensorMeta]) -> tuple[glue_source.Body, int]:
    """Kernels for the graph, or the graph itself where there are none to be had."""
    reason = _why_not_kernels(segment)
    if reason is None:
        try:
            return _lowered(segment, checked)
        except Unsupported as unsupported:
            reason = unsupported.reason
    logs.emit("graph_breaks", f"the graph at {segment.code.co_filename}:{segment.code.co_firstlineno} runs operator by "
              f"operator: {reason}")  # fmt: skip
    body = graph_body(segment, segment.run)
    body.repeatable = not segment.mutated
    return body, 0


def _why_not_kernels(segment: Segment) -> str | None:
    if segment.needs_grad:
        return "its results need gradients"
    for graph_input in segment.inputs:
        meta = graph_input.meta
        if isinstance(meta, TensorMeta):
            if graph_input.name in segment.mutated and _overlaps_itself(meta):
                return f"{graph_input.source} overlaps itself and is changed in place"
            if meta.device.type not in ("cpu", "cuda"):
                return f"no code generator for the device {meta.device}"
    return None


def _overlaps_itself(meta: TensorMeta) -> bool:
    return any(s == 0 and n > 1 for s, n in zip(meta.stride, meta.shape, strict=True))


def _lowered(segment: Segment, checked: list[TensorMeta]) -> tuple[glue_source.Body, int]:
    with logs.stage("lower"):
        program = lower(segment.graph)
    if logs.enabled("loops"):
        logs.emit("loops", str(program))
    with logs.stage("fuse"):
        schedule = fuse(program)
    position_of = {source: k for k, source in enumerate(glue_source.tensor_order(segment))}
    position = {
        buffer: position_of[graph_input.source]
        for buffer, graph_input in zip(program.inputs, segment.inputs, strict=True)
        if buffer is not None
    }
    with logs.stage("kernels"):
        calls, placer = bind(schedule, position, checked, _emit_cpu, _emit_gpu)
    body = KernelBodyWriter(segment, schedule, calls, placer).write()
    body.repeatable = not segment.mutated
    return body, len(calls)


def _emit_cpu(body: Any, name: str) -> str:
    source = emit_llvm(body, name)
    logs.emit("kernels", source)
    return source


def _emit_gpu(body: Any, name: str) -> str:
    from .emit.triton import emit as emit_triton

    source = emit_triton(body, name)
    logs.emit("kernels", source)
    return source


def _identifier(function: FunctionType) -> str:
    name = function.__name__
    return name if name.isidentifier() else "compiled"


def _plain_function(function: Callable[..., Any]) -> tuple[FunctionType | None, tuple[Any, ...]]:
    """The Python function behind a callable, and the arguments that are bound to it already."""
    if isinstance(function, FunctionType):
        return function, ()
    if isinstance(function, MethodType):
        inner, bound = _plain_function(function.__func__)
        return inner, (*bound, function.__self__)
    return None, ()


@overload
def compile(
    model: F, *, fullgraph: bool = False, dynamic: bool | None = None, backend: Any = "quickfuse",
    mode: str | None = None, options: dict[str, Any] | None = None, disable: bool = False,
) -> F: ...  # fmt: skip
@overload
def compile(
    model: None = None, *, fullgraph: bool = False, dynamic: bool | None = None, backend: Any = "quickfuse",
    mode: str | None = None, options: dict[str, Any] | None = None, disable: bool = False,
) -> Callable[[F], F]: ...  # fmt: skip
def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: Any = "quickfuse",
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    disable: bool = False,
) -> Any:
    """Compile a function or method; also a decorator, with or without arguments.

    Args:
        model: the callable. Without it, a decorator is returned.
        fullgraph: raise `errors.GraphBreak` where the function cannot be captured whole, instead of running natively.
        dynamic: accepted for compatibility.
        backend: "quickfuse", "eager" (runs the captured graph), a registered name, or a callable
            `(graph_module, example_inputs) -> callable`.
        mode: "default", "reduce-overhead" or "max-autotune".
        options: `{"raise_internal_errors": True}` raises the compiler's own failures.
        disable: return `model` as it is.

    Raises:
        ValueError: for an unknown mode, option or backend; the message names the known ones.
        TypeError: if `model` is not callable.
    """
    settings = Settings(fullgraph, dynamic, backend, mode, options)

    def decorate(function: Any) -> Any:
        if not callable(function):
            raise TypeError(f"quickfuse.compile needs a callable, not a {type(function).__name__}")
        if disable:
            return function
        if isinstance(function, torch.nn.Module):
            return CompiledModule(function, settings.compile_call)
        return Compiled(function, settings)

    return decorate if model is None else decorate(model)


def reset() -> None:
    """Forget everything that was compiled."""
    for compiled in list(_live):
        compiled.reset()
    logs.reset_stage_seconds()
