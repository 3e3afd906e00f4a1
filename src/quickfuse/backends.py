"""What happens to a captured graph: our own kernels, eager PyTorch, or a compiler that the user brings.

Backends are known by name: ours, those given to `register_backend`, and those that installed packages publish in the
entry-point group `torch_dynamo_backends`, where backends for torch.compile are published too. We publish ourselves
there: `torch.compile(fn, backend="quickfuse")` runs our kernels.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from typing import Any, NoReturn, overload

import torch

from . import logs
from .errors import BackendError, kind_of
from .explain.graphs import module_of
from .ir.modes import preserving_modes
from .ir.nodes import outputs_of
from .ir.segment import Segment
from .ir.values import TensorMeta
from .signals import let_through

Function = Callable[..., Any]
ENTRY_POINTS = "torch_dynamo_backends"


class Backend:
    """Makes a callable of a captured graph: `function(graph_module, example_inputs) -> callable`."""

    def __init__(self, name: str, function: Function | None) -> None:
        self.name = name
        self.function = function

    def __reduce__(self) -> Any:
        return (resolve, (self.name,)) if _registered.get(self.name) is self else (Backend, (self.name, self.function))

    def compile(self, segment: Segment) -> Function:
        """Give the graph to the backend, with the values of its inputs in the captured call.

        Raises:
            BackendError: naming the backend, with the cause, if it raises.
        """
        if self.function is None:
            return segment.run
        try:
            with logs.stage("backend"):
                compiled = self.function(module_of(segment.graph), list(segment.examples))
        except Exception as error:
            raise BackendError(f"the backend {self.name!r} raised {type(error).__name__}: {error}") from error
        if not callable(compiled):
            raise BackendError(
                f"the backend {self.name!r} returned {kind_of(compiled)}, not a callable. A backend gets a "
                "torch.fx.GraphModule and example inputs, and returns what is called in place of the graph: gm.forward, for "
                "one that changes nothing"
            )
        return _Checked(self.name, compiled, segment)


class _Checked:
    """What a backend made of a graph, with a check that it does what the graph does.

    Raises:
        BackendError: where it raises and the graph itself does not, or returns something else than the graph's outputs.
    """

    def __init__(self, name: str, compiled: Function, segment: Segment) -> None:
        self.name = name
        self.compiled = compiled
        self.segment = segment
        self.expected = [node.meta.get("val") for node in outputs_of(segment.graph)]
        self.seen = False

    def __call__(self, *inputs: Any) -> Any:
        try:
            outputs = self.compiled(*inputs)
        except Exception as error:
            let_through(error)
            if self._graph_raises(inputs):
                raise
            raise BackendError(f"what the backend {self.name!r} made raised {type(error).__name__}: {error}") from error
        if type(outputs) is not tuple and type(outputs) is not list:
            self._refuse(f"{kind_of(outputs)}, not the tuple of outputs that a graph returns")
        if len(outputs) != len(self.expected):
            self._refuse(f"a tuple of length {len(outputs)}, not the graph's {len(self.expected)} outputs")
        if not self.seen:
            for index, (output, expected) in enumerate(zip(outputs, self.expected, strict=True)):
                self._check(index, output, expected)
            self.seen = True
        return outputs

    def _check(self, index: int, output: Any, expected: Any) -> None:
        if not isinstance(expected, TensorMeta):
            return
        if not isinstance(output, torch.Tensor):
            self._refuse(f"{kind_of(output)} as output {index}, which is a tensor")
        with torch._C.DisableTorchFunctionSubclass():  # the user's classes are not to notice
            made, wanted = _described(output), _described(expected)
        if made != wanted:
            self._refuse(f"output {index} as {made}, not as {wanted}")

    def _refuse(self, what: str) -> NoReturn:
        raise BackendError(f"what the backend {self.name!r} made returned {what}")

    def _graph_raises(self, inputs: tuple[Any, ...]) -> bool:
        """Whether the graph, run operator by operator, raises as well: with gradients if the backend had them, since
        writes to tensors with a history may raise. Copies are changed where it changes its inputs."""
        changed = [i.name in self.segment.mutated for i in self.segment.inputs]
        copies = [_copy(v) if written else v for v, written in zip(inputs, changed, strict=True)]
        random_state = torch.get_rng_state()
        try:
            preserving_modes(self.segment.run)(*copies)
        except Exception as error:
            let_through(error)
            return True
        finally:
            torch.set_rng_state(random_state)
        return False


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that is a leaf of the gradients' graph where the tensor is one."""
    if tensor.is_leaf:
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)
    return tensor.clone()


def _described(tensor: Any) -> str:
    return f"{tensor.dtype} of shape {tuple(tensor.shape)} on {tensor.device.type}"



QUICKFUSE = Backend("quickfuse", None)
EAGER = Backend("eager", None)

#: Names that `torch.compile(backend=...)` takes and that belong to PyTorch's own compiler.
_OF_TORCH_COMPILE = ("inductor", "aot_eager", "aot_eager_decomp_partition", "cudagraphs", "onnxrt", "openxla", "tvm")

_registered: dict[str, Backend] = {"quickfuse": QUICKFUSE, "eager": EAGER}


def resolve(backend: Any) -> Backend:
    """The backend of a name or a callable. A published one is loaded when it is first asked for.

    Raises:
        ValueError: for an unknown name; the message lists the known ones.
        BackendError: for a published backend that cannot be loaded, with the cause.
    """
    if isinstance(backend, str):
        if backend not in _registered:
            _registered[backend] = _load(backend)
        return _registered[backend]
    if not callable(backend):
        raise ValueError(f"a backend is a name or a callable, not {kind_of(backend)}")
    return Backend(getattr(backend, "__name__", None) or type(backend).__name__, backend)


def _load(name: str) -> Backend:
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS, name=name):
        try:
            function = entry.load()
        except Exception as error:
            let_through(error)
            raise BackendError(f"the backend {name!r}, published as {entry.value}, cannot be loaded: {error}") from error
        return Backend(name, function)
    if name in _OF_TORCH_COMPILE:
        raise ValueError(
            f"the backend {name!r} is a part of torch.compile itself, and gets graphs of its own kind: leave it out for "
            f"quickfuse's kernels; the backends are {', '.join(list_backends())}"
        )
    raise ValueError(f"unknown backend {name!r}; the backends are {', '.join(list_backends())}")


@overload
def register_backend(function: Function, name: str | None = None) -> Function: ...
@overload
def register_backend(function: str | None = None, name: str | None = None) -> Callable[[Function], Function]: ...
def register_backend(function: Function | str | None = None, name: str | None = None) -> Any:
    """Make a backend known by name (its own, by default).

        @quickfuse.register_backend
        def printing(gm, example_inputs): ...

        @quickfuse.register_backend(name="printer")
        def print_graph(gm, example_inputs): ...

        quickfuse.register_backend(print_graph, name="printer")

    Raises:
        ValueError: for the names of our own backends, and for a backend without a name.
        TypeError: for a backend that is not callable.
    """
    if function is None or isinstance(function, str):
        label = name or function
        return lambda decorated: register_backend(decorated, label)
    if not callable(function):
        raise TypeError(f"a backend is a callable, not {kind_of(function)}")
    label = name or getattr(function, "__name__", "")
    if not label:
        raise ValueError("this backend has no __name__: register_backend(backend, name=...)")
    if label in ("quickfuse", "eager"):
        raise ValueError(f"the name {label!r} is taken")
    _registered[label] = Backend(label, function)
    return function


def list_backends() -> list[str]:
    """Names that `compile(backend=...)` takes."""
    return sorted({*_registered, *importlib.metadata.entry_points(group=ENTRY_POINTS).names})


def for_torch_compile(
    gm: torch.fx.GraphModule, example_inputs: list[Any], *, mode: str | None = None, options: dict[str, Any] | None = None
) -> Function:
    """A backend for torch.compile: `torch.compile(fn, backend="quickfuse")`.

    The graph is captured again, as a function, when it is first called. Where that cannot be done it runs as it is; so do
    graphs of ATen operators, which come from other tools than torch.compile itself.
    """
    from .pipeline.compiled import Compiled
    from .settings import Settings

    settings = Settings(False, None, "quickfuse", mode, options)
    if any(isinstance(node.target, torch._ops.OpOverload) for node in gm.graph.nodes):
        return gm.forward

    real_recompile = getattr(gm, "real_recompile", None)  # graphs of torch.compile generate their code late
    if callable(real_recompile):
        real_recompile()
    return Compiled(gm.forward, settings)
