"""`explain`: run a function once, compiled, and tell what became of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .. import errors, logs
from ..errors import kind_of
from ..ir.frame import FrameState
from ..ir.marks import without_peer
from ..ir.segment import Break
from ..ir.trace import summary
from ..launch.replayed import GraphMemory
from ..module import CompiledModule
from ..pipeline.compiled import Compiled
from ..pipeline.specialise import Specialisation
from ..settings import Settings
from .explanation import BreakReason, Explanation
from .graphs import module_of, operators_of

#: The stages of compilation, in order. "backend" is the time of a custom backend.
_STAGES = ("capture", "differentiate", "partition", "lower", "schedule", "kernels", "glue", "backend")
#: Those that are not part of each compilation.
_SOMETIMES = ("differentiate", "partition", "backend")


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Explanation]:
    """Find out what compiling a function or module comes to: `print(quickfuse.explain(function)(*args))`.

    The function runs once, compiled, with all its side effects. Nothing is kept of the compilation.

    Raises:
        TypeError: for something that cannot be called, and for arguments, which belong to the call.
    """
    if args or kwargs:
        raise TypeError("the arguments belong to a call of what explain() returns: quickfuse.explain(function)(*args)")
    if not callable(function):
        raise TypeError(f"quickfuse.explain needs a callable, not {kind_of(function)}")
    function = without_peer(function)
    settings = Settings(False, None, "quickfuse", None, None)
    before = function._compiled if isinstance(function, CompiledModule) else function
    if isinstance(function, CompiledModule):
        function = function._original
    elif isinstance(function, Compiled):
        settings.recorded, settings.tuned = function.settings.recorded, function.settings.tuned
        settings.backend, function = function.settings.backend, function.function

    def explained(*args: Any, **kwargs: Any) -> Explanation:
        call = function.__call__ if isinstance(function, torch.nn.Module) else function
        compiled = _Recording(call, settings)
        seconds = dict(logs.stage_seconds)
        compiled(*args, **kwargs)
        times = {s: logs.stage_seconds.get(s, 0.0) - seconds.get(s, 0.0) for s in _STAGES}
        times = {s: seconds for s, seconds in times.items() if seconds or s not in _SOMETIMES}
        said = before.sizes_note() if isinstance(before, Compiled) else ""
        return compiled.explanation(_name_of(function), times, [said] if said else [])

    return explained


class _Recording(Compiled):
    """A compiled function that remembers, in order, what was made of it."""

    def __init__(self, function: Callable[..., Any], settings: Settings) -> None:
        super().__init__(function, settings)
        self.made: list[Specialisation] = []
        self.notes: list[str] = []

    def _specialise(self, *args: Any) -> Specialisation | None:
        made = super()._specialise(*args)
        if made is not None:
            self.made.append(made)
        return made

    def _log_at(self, reason: str, frame: FrameState) -> None:
        self.notes.append(f"{frame.code.co_name} at {frame.location}: {reason}")
        super()._log_at(reason, frame)

    def say_native(self, reason: str, location: str = "") -> None:
        self.notes.append(f"the whole function, because of {reason}")
        super().say_native(reason, location)

    def explanation(self, name: str, times: dict[str, float], earlier: list[str]) -> Explanation:
        with_operators = [made for made in self.made if made.segment.operators]
        return Explanation(
            name,
            graphs=[module_of(made.segment.graph) for made in with_operators],
            ops_per_graph=[operators_of(made.segment.graph) for made in with_operators],
            kernels_per_graph=[made.kernels for made in with_operators],
            without_kernels=[made.without_kernels for made in with_operators],
            break_reasons=[_break_reason(pause) for pause in self.breaks],
            notes=self.notes,
            earlier_calls=earlier,
            out_guards=[guard for made in self.made for guard in made.segment.guards],
            compile_times=times,
            cuda_graphs=GraphMemory.recordings,
            cuda_graph_bytes=GraphMemory.held,
        )


def _break_reason(pause: Break) -> BreakReason:
    return BreakReason(pause.reason, pause.hint, errors.line_at(pause.location), pause.location, summary(pause.trace))


def _name_of(function: Any) -> str:
    return getattr(function, "__qualname__", None) or type(function).__name__
