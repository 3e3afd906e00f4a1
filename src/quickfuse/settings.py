"""What `compile()` was asked for."""

from __future__ import annotations

from typing import Any

from . import backends

MODES = ("default", "reduce-overhead", "max-autotune")
OPTIONS = ("raise_internal_errors",)


class Settings:
    """The arguments of `compile()`, checked."""

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
