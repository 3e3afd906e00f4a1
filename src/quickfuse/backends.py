"""What happens to a captured graph: our own kernels, eager PyTorch, or a compiler that the user brings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .errors import BackendError
from .ir.segment import GraphInput, Segment
from .ir.values import TensorMeta


class Backend:
    """Makes a callable of a captured graph: `function(graph_module, example_inputs) -> callable`."""

    def __init__(self, name: str, function: Callable[..., Any] | None) -> None:
        self.name = name
        self.function = function

    def compile(self, segment: Segment) -> Callable[..., Any]:
        """Give the graph to the backend.

        Raises:
            BackendError: naming the backend, with the cause, if it raises.
        """
        if self.function is None:
            return segment.run
        examples = [_example(graph_input) for graph_input in segment.inputs]
        try:
            compiled = self.function(segment.module, examples)
        except Exception as error:
            raise BackendError(f"the backend {self.name!r} raised {type(error).__name__}: {error}") from error
        if not callable(compiled):
            raise BackendError(f"the backend {self.name!r} returned a {type(compiled).__name__}, not a callable")
        return compiled  # type: ignore[no-any-return]


QUICKFUSE = Backend("quickfuse", None)
EAGER = Backend("eager", None)

_registered: dict[str, Backend] = {"quickfuse": QUICKFUSE, "eager": EAGER}


def resolve(backend: Any) -> Backend:
    """The backend of a name or a callable.

    Raises:
        ValueError: for an unknown name; the message lists the known ones.
    """
    if isinstance(backend, str):
        if backend not in _registered:
            raise ValueError(f"unknown backend {backend!r}; the backends are {', '.join(sorted(_registered))}")
        return _registered[backend]
    if not callable(backend):
        raise ValueError(f"a backend is a name or a callable, not a {type(backend).__name__}")
    return Backend(getattr(backend, "__name__", repr(backend)), backend)


def register_backend(function: Callable[..., Any], name: str | None = None) -> Callable[..., Any]:
    """Make a backend known by name (its own, by default)."""
    label = name or function.__name__
    _registered[label] = Backend(label, function)
    return function


def list_backends() -> list[str]:
    """Names that `compile(backend=...)` takes."""
    return sorted(_registered)


def _example(graph_input: GraphInput) -> Any:
    meta = graph_input.meta
    if not isinstance(meta, TensorMeta):
        return meta.kind(0)
    return torch.empty_strided(
        meta.shape, meta.stride, dtype=meta.dtype, device=meta.device, requires_grad=meta.requires_grad
    )
