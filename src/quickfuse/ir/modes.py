"""Settings of PyTorch: those that a graph may change while it runs or that forbid it to run, and what new memory holds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.fx
from torch.utils._python_dispatch import TorchDispatchMode

from .default_device import default_device
from .random_state import own_generators, set_states, states_of

#: The devices whose autocast state is followed.
AUTOCAST_DEVICES = ("cpu", "cuda")


#: The kernels of attention that `torch.nn.attention.sdpa_kernel` allows or forbids -> what asks whether one is allowed, and
#: what says so.
ATTENTION = {
    name: (getattr(torch._C, f"_get_{name}_sdp_enabled"), getattr(torch._C, f"_set_sdp_use_{name}"))
    for name in ("flash", "mem_efficient", "math", "cudnn", "overrideable")
    if hasattr(torch._C, f"_set_sdp_use_{name}")
}
#: In which order they are tried.
ATTENTION["order"] = (torch._C._get_sdp_priority_order, torch._C._set_sdp_priority_order)


def choose_algorithms(mode: bool, warn_only: bool) -> None:
    """`torch.use_deterministic_algorithms`: a node of graphs."""
    torch.use_deterministic_algorithms(mode, warn_only=warn_only)


_precision: Any = torch._C._get_fp32_precision_getter


def matmul_precision() -> str:
    """`torch.get_float32_matmul_precision()`; "mixed" where newer settings say what it has no word for, and so raises."""
    try:
        return torch._C._get_float32_matmul_precision()
    except RuntimeError:
        return "mixed"


#: Functions that set what holds for the process -> what tells what they set, by its name in Python. The setter takes the
#: last answer, `choose_algorithms` all of them.
SETTERS: dict[Any, dict[str, Callable[[], Any]]] = {
    choose_algorithms: {
        "torch.are_deterministic_algorithms_enabled()": torch.are_deterministic_algorithms_enabled,
        "torch.is_deterministic_algorithms_warn_only_enabled()": torch.is_deterministic_algorithms_warn_only_enabled,
    },
    torch.set_num_threads: {"torch.get_num_threads()": torch.get_num_threads},
    torch._C._set_cudnn_benchmark: {"torch._C._get_cudnn_benchmark()": torch._C._get_cudnn_benchmark},
    torch._C._set_cudnn_deterministic: {"torch._C._get_cudnn_deterministic()": torch._C._get_cudnn_deterministic},
    torch._C._set_float32_matmul_precision: {  # sets what the two others tell as well
        **{
            f"torch._C._get_fp32_precision_getter('{backend}', 'matmul')": partial(_precision, backend, "matmul")
            for backend in ("cuda", "mkldnn")
        },
        "torch._C._get_float32_matmul_precision()": matmul_precision,
    },
}


def _settings() -> dict[Any, tuple[Any, ...]]:
    """What to give to each of `SETTERS` for the settings as they are."""
    found = {setter: tuple([ask() for ask in questions.values()]) for setter, questions in SETTERS.items()}
    return {setter: answers if setter is choose_algorithms else answers[-1:] for setter, answers in found.items()}


def autocast_devices() -> frozenset[str]:
    """The types of devices for which autocast is on."""
    if not torch._C._is_any_autocast_enabled():
        return frozenset()
    return frozenset(filter(torch.is_autocast_enabled, AUTOCAST_DEVICES))


def leave_autocast() -> None:
    """The end of an autocast block: a node of graphs."""
    if torch.autocast_decrement_nesting() == 0:
        torch.clear_autocast_cache()


_guards = threading.local()


def _inference_guards() -> list[Any]:
    if not hasattr(_guards, "stack"):
        _guards.stack = []
    return _guards.stack  # type: ignore[no-any-return]


def enter_inference(mode: bool) -> None:
    """The beginning of a block of inference mode (or, with False, of a block without): a node of graphs."""
    guard = torch._C._InferenceMode(mode)
    guard.__enter__()
    _inference_guards().append(guard)


def leave_inference() -> None:
    _inference_guards().pop().__exit__(None, None, None)


def in_inference_mode(run: Callable[..., Any]) -> Callable[..., Any]:
    """A function that runs in inference mode as a whole."""

    def run_inside(*inputs: Any) -> Any:
        with torch.inference_mode():
            return run(*inputs)

    return run_inside


#: What nodes call that change a setting, and compute nothing.
MODE_CHANGES: frozenset[Any] = frozenset(
    {
        torch._C._set_grad_enabled, torch.set_autocast_enabled, torch.set_autocast_dtype,
        torch.set_autocast_cache_enabled, torch.autocast_increment_nesting, leave_autocast, torch.clear_autocast_cache,
        enter_inference, leave_inference, *[allow for _, allow in ATTENTION.values()], *SETTERS,
    }
)  # fmt: skip

#: A graph leaves grad mode as it was, and inference mode; of autocast it is the caller that leaves it.
STAYING_MODES = MODE_CHANGES - {torch._C._set_grad_enabled, enter_inference, leave_inference}


def in_grad_mode(enabled: bool, run: Callable[..., Any], *args: Any) -> Any:
    """`run(*args)` with gradients enabled, or not. Unlike `torch.no_grad()`, it leaves the mode as it was wherever a signal
    handler raises: also between changing it and the block of a `with` statement."""
    before = torch.is_grad_enabled()
    try:
        torch._C._set_grad_enabled(enabled)
        return run(*args)
    finally:
        torch._C._set_grad_enabled(before)


def preserving_modes(run: Callable[..., Any]) -> Callable[..., Any]:
    """A function that changes settings, made to leave them as it found them where it raises."""

    def run_or_restore(*inputs: Any) -> Any:
        before, settings = Modes(), _settings()
        try:
            return run(*inputs)
        except BaseException:
            before.restore()
            for setter, value in settings.items():
                if _settings()[setter] != value and value != ("mixed",):
                    setter(*value)
            raise

    return run_or_restore


def drawing_again(
    run: Callable[..., Any], versions: Callable[[tuple[Any, ...]], Any], generators: Sequence[int], devices: Sequence[int]
) -> Callable[..., Any]:
    """A function that may draw random numbers, made to leave PyTorch's generators for the CPU and for the GPUs `devices`,
    and its inputs `generators`, as it found them where it raises, as the program then runs from its beginning: not where
    inputs were changed before, so that `versions` of them differ."""

    def run_or_restore(*inputs: Any) -> Any:
        before = states_of([*own_generators(devices), *[inputs[k] for k in generators]])
        as_they_were = versions(inputs)
        try:
            return run(*inputs)
        except Exception:
            if versions(inputs) == as_they_were:
                set_states(before)
            raise

    return run_or_restore


@contextmanager
def modes_restored() -> Iterator[None]:
    """What changes settings inside leaves them as it found them."""
    before = Modes()
    try:
        yield
    finally:
        before.restore()


@contextmanager
def without_autocast() -> Iterator[None]:
    """A block within which autocast converts nothing."""
    devices = autocast_devices()
    try:
        for device in devices:
            torch.set_autocast_enabled(device, False)
        yield
    finally:
        for device in devices:
            torch.set_autocast_enabled(device, True)


class DispatchMode(TorchDispatchMode):
    """A mode of PyTorch's that sees each operator, and whose first call does not import PyTorch's compiler."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would make each call import PyTorch's compiler


class Modes:
    """The settings as they are, to `restore()` them."""

    def __init__(self) -> None:
        self.grad = torch.is_grad_enabled()
        self.autocast = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in AUTOCAST_DEVICES]
        self.cache = torch.is_autocast_cache_enabled()
        self.nesting = _nesting()
        self.inference = len(_inference_guards())
        self.attention = [(allow, allowed()) for allowed, allow in ATTENTION.values()]

    def restore(self) -> None:
        """Set them again as they were."""
        while len(_inference_guards()) > self.inference:
            leave_inference()
        torch._C._set_grad_enabled(self.grad)
        self.restore_autocast()
        for allow, allowed in self.attention:
            allow(allowed)
        torch.set_autocast_cache_enabled(self.cache)
        deeper = _nesting() - self.nesting
        for _ in range(deeper):
            leave_autocast()
        for _ in range(-deeper):  # a graph that begins inside of a block may leave it
            torch.autocast_increment_nesting()

    def restore_autocast(self) -> None:
        """Set the types of autocast again as they were."""
        for device, enabled, dtype in self.autocast:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)


def _nesting() -> int:
    try:
        torch.autocast_increment_nesting()
    finally:
        nesting = torch.autocast_decrement_nesting()
    return nesting


def filling_of_memory() -> dict[str, bool]:
    """The settings that tell whether new memory is filled with values that are no result of anything, and their values."""
    deterministic: Any = torch.utils.deterministic
    return {
        "torch.are_deterministic_algorithms_enabled()": torch.are_deterministic_algorithms_enabled(),
        "torch.utils.deterministic.fill_uninitialized_memory": deterministic.fill_uninitialized_memory,
    }


def checks_gradients() -> bool:
    """Whether autograd is to say which operator's gradients are no numbers, and where in the program it was called."""
    return torch.is_anomaly_enabled() and torch.is_grad_enabled()


#: Whether torch.fx traces in this thread. Up to PyTorch 2.13 a variable says so, later a function.
_fx_is_tracing: Callable[[], bool] = getattr(
    torch.fx._symbolic_trace, "_get_is_fx_tracing",
    lambda: getattr(torch.fx._symbolic_trace, "_is_fx_tracing_flag", False),
)  # fmt: skip
_functions, _dispatchers = torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack
_jit_state, _transforms = torch._C._get_tracing_state, torch._C._functorch.peek_interpreter_stack
_forward_ad = torch.autograd.forward_ad


def outer_tracer() -> str | None:
    """What it is that records or changes the operators called in this thread, if anything does: it has to see them all, so
    nothing is compiled for calls inside of it, and no compiled code runs. A default device is none."""
    if _jit_state() is not None:
        return "torch.jit.trace records the operators"
    if (_functions() and default_device() is None) or _dispatchers():
        return "an active torch function or dispatch mode"
    if _fx_is_tracing():
        return "torch.fx records the operators"
    if _transforms() is not None:
        return "a transform of torch.func around the call"
    if _forward_ad._current_level >= 0:
        return "forward-mode differentiation"
    return None


def is_unobserved() -> bool:
    """Whether nothing has to see the operators of compiled code one by one."""
    return outer_tracer() is None and not checks_gradients()
