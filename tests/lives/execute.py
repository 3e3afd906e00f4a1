"""Runs a program of `lives`, and notes what each call and event raises and leaves behind."""

from __future__ import annotations

import contextlib
import gc
import logging
import random
import re
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from lives.prelude import Stop
from programs.load import load, registered
from seeding import seed_torch
from training.execute import limited

#: Seconds of processor time that one call or event may take.
PATIENCE = 20.0

Compiler = Callable[..., Any]


@dataclass
class Seen:
    """A tensor: its contents, and all else that a program can ask it for."""

    values: torch.Tensor
    facts: tuple[Any, ...]

    def __repr__(self) -> str:
        return f"{self.facts}"


@dataclass
class Record:
    """What one call or event raised and left behind."""

    name: str
    call: bool
    quiet: bool
    error: str = ""
    trace: str = ""
    state: dict[str, Any] = field(default_factory=dict)
    captures: int = 0
    logged: list[str] = field(default_factory=list)


class Observer:
    """What a program calls `seen`: `with seen(name):` around a call or an event, `seen(value)` for a result."""

    def __init__(self, captures: Callable[[], int], logged: list[str]) -> None:
        self.records: list[Record] = []
        self._captures, self._logged = captures, logged
        self._watched: Callable[[], dict[str, Any]] = dict
        self._results: list[Any] = []

    def watch(self, watched: Callable[[], dict[str, Any]]) -> None:
        self._watched = watched

    def __call__(self, value: Any, call: bool = False, quiet: bool = False) -> Any:
        if isinstance(value, str):
            return self._around(Record(value, call, quiet))
        self._results.append(value)
        return None

    @contextlib.contextmanager
    def _around(self, record: Record) -> Iterator[None]:
        before, begun = self._captures(), len(self._logged)
        try:
            with limited(PATIENCE):
                yield
        except (Exception, Stop) as error:
            record.error = re.sub(r"0x[0-9a-f]+", "0x", f"{type(error).__name__}: {error}")
            record.trace = "".join(traceback.format_exception(error)[-12:])
            _let_go(error)
        record.captures = self._captures() - before
        record.logged = self._logged[begun:]
        record.state = observed({"result": self._results, **self._watched()})
        self._results = []
        self.records.append(record)


def _let_go(error: BaseException | None) -> None:
    """End what runs in the frames that an exception keeps: in PyTorch 2.11, a checkpoint whose function raised changes what
    autograd saves until its generator is collected."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        traceback.clear_frames(error.__traceback__)
        seen.append(error)
        error = error.__cause__ or error.__context__
    del error, seen
    gc.collect()


def execute(
    source: str, compiler: Compiler = lambda f, **options: f, reset: Callable[[], None] = lambda: None,
    captures: Callable[[], int] = lambda: 0, logged: list[str] | None = None,
    around: contextlib.AbstractContextManager[Any] | None = None,
) -> list[Record]:  # fmt: skip
    """Run a program; records in the order of its calls and events."""
    observer = Observer(captures, [] if logged is None else logged)
    with as_before(), around or contextlib.nullcontext():
        module = load(source).module
        with registered(module):
            module.life(compiler, observer, reset)
    return observer.records


@contextlib.contextmanager
def as_before() -> Iterator[None]:
    """A process as programs expect it, and afterwards as it was."""
    from torch.nn.modules import module as modules
    from torch.optim import optimizer as optimizers

    tables = [modules._global_forward_hooks, modules._global_forward_pre_hooks, optimizers._global_optimizer_post_hooks]
    threads = torch.get_num_threads()
    with warnings.catch_warnings(), torch.autograd.set_detect_anomaly(False), torch.enable_grad():
        warnings.simplefilter("ignore")
        torch.set_default_dtype(torch.float64)
        seed_torch(0)
        random.seed(0)
        np.random.seed(0)
        try:
            yield
        finally:
            torch.set_default_dtype(torch.float32)
            torch.use_deterministic_algorithms(False)
            torch.set_num_threads(threads)
            torch.__future__.set_swap_module_params_on_conversion(False)
            for table in tables:
                table.clear()


class Listener(logging.Handler):
    """Takes what quickfuse logs."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


# what is seen ---------------------------------------------------------------------------------------------------


def settings() -> tuple[Any, ...]:
    """What a call might leave changed in the whole process."""
    torch.autocast_increment_nesting()
    return (
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled(), torch.get_default_dtype(),
        torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.autocast_decrement_nesting(),
        torch.are_deterministic_algorithms_enabled(), torch.get_num_threads(), torch._C._len_torch_function_stack(),
        torch._C._len_torch_dispatch_stack(), torch._C._autograd._saved_tensors_hooks_is_enabled(),
    )  # fmt: skip


def observed(values: dict[str, Any]) -> dict[str, Any]:
    """Copies of all tensors and plain values that can be reached, by how one would write them."""
    into: dict[str, Any] = {}
    places: dict[int, tuple[str, int]] = {}
    with torch.no_grad():
        for name, value in values.items():
            _note(name, value, into, places)
        into["settings"] = settings()
    into["generator"] = torch.cat([torch.get_rng_state(), *_states_on_gpus()])
    into["python generator"] = hash(random.getstate())
    return into


def _states_on_gpus() -> list[torch.Tensor]:
    return torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []


#: By address of memory, the first tensor that lies there, and its offset.
_Places = dict[int, tuple[str, int]]


def _note(name: str, value: Any, into: dict[str, Any], places: _Places) -> None:
    if isinstance(value, torch.Tensor):
        _note_tensor(name, value, into, places)
    elif isinstance(value, nn.Module):
        _note_module(name, value, into, places)
    elif isinstance(value, torch.optim.Optimizer | torch.optim.lr_scheduler.LRScheduler | torch.amp.GradScaler):
        _note(f"{name}.state_dict()", value.state_dict(), into, places)
    elif isinstance(value, dict):
        keys = [_name_of_key(k, places) for k in value]
        into[f"{name}.keys()"] = keys
        for k, v in zip(keys, value.values(), strict=True):
            _note(f"{name}[{k}]", v, into, places)
    elif isinstance(value, list | tuple):
        into[f"len({name})"] = type(value).__name__, len(value)
        for k, v in enumerate(value):
            _note(f"{name}[{k}]", v, into, places)
    elif value is None or isinstance(value, bool | int | float | str):
        into[name] = value
    elif type(value).__module__ == "program_under_test" and hasattr(value, "__dict__"):
        _note(name, {k: v for k, v in vars(value).items() if not callable(v) or isinstance(v, nn.Module)}, into, places)


def _name_of_key(key: Any, places: _Places) -> str:
    """How a key is written. A parameter is known by where it was seen first: its numbers are rounded."""
    if not isinstance(key, torch.Tensor):
        return repr(key)
    memory, first = places.get(key.untyped_storage().data_ptr(), ("a tensor", 0))
    return f"{memory} + {key.storage_offset() - first}: {[*key.shape]}"


def _note_module(name: str, module: nn.Module, into: dict[str, Any], places: _Places) -> None:
    for path, inner in module.named_modules():
        here = f"{name}.{path}" if path else name
        into[f"{here}.training"] = inner.training
        own = {k: v for k, v in vars(inner).items() if isinstance(v, torch.Tensor | int | float)}
        for kind in (inner._parameters, inner._buffers, own):
            for k, v in kind.items():
                _note(f"{here}.{k}", v, into, places)


def _fits(tensor: torch.Tensor) -> bool:
    """Whether a tensor's memory has all its elements. That of an `out=` argument which could not be resized has not: it got
    its new shape before PyTorch raised."""
    last = tensor.storage_offset() + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return not tensor.numel() or (last + 1) * tensor.element_size() <= tensor.untyped_storage().nbytes()


def _note_tensor(name: str, tensor: torch.Tensor, into: dict[str, Any], places: _Places) -> None:
    if tensor.layout is not torch.strided:
        into[name] = Seen(tensor.detach().to_dense(), (tensor.layout, tensor.dtype, tensor.shape))
        return
    strides = [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size != 1]
    strides = strides if tensor.numel() else []
    # On a GPU, eager's gradients of a recurrent layer are parts of one memory.
    own = not tensor.numel() or (tensor.is_cuda and name.endswith(".grad"))
    here, storage = (name, tensor.storage_offset()), tensor.untyped_storage()
    memory, first = here if own else places.setdefault(storage.data_ptr(), here)  # what lies before the first is nobody's
    facts = (type(tensor).__name__, tensor.dtype, tensor.shape, strides, tensor.requires_grad, tensor.is_leaf,
             tensor.is_inference(), tensor.storage_offset() - first, memory)  # fmt: skip
    values = tensor.detach().clone(memory_format=torch.contiguous_format) if _fits(tensor) else torch.empty(0)
    into[name] = Seen(values, facts)
    if tensor.requires_grad and (tensor.is_leaf or tensor.retains_grad):
        into[f"{name}.grad"] = None
        if tensor.grad is not None:
            _note_tensor(f"{name}.grad", tensor.grad, into, places)
