"""PyTorch's functions: operators become graph nodes, questions about metadata are answered, grad modes are tracked."""

from __future__ import annotations

import contextlib
import enum
import inspect
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import torch

from ..errors import Unsupported
from . import custom_functions
from .outside import is_trusted_module
from .values import Symbol, TensorProxy, is_constant

if TYPE_CHECKING:
    from .interpreter import Interpreter

# operators ------------------------------------------------------------------------------------------------------


def _builtins_of(owner: Any) -> set[Any]:
    names = [name for name in dir(owner) if not name.startswith("__")]
    return {f for f in (getattr(owner, name, None) for name in names) if type(f) is BuiltinFunctionType}


def _functions_of(module: ModuleType) -> set[Any]:
    return {
        f
        for name, f in vars(module).items()
        if type(f) is FunctionType and f.__module__ == module.__name__ and not name.startswith("_")
    }


#: Everything that becomes one node of the graph, as the user wrote it.
OPERATORS: frozenset[Any] = frozenset(
    _builtins_of(torch._C._VariableFunctions)
    | _builtins_of(torch._C._nn)
    | _builtins_of(torch._C._special)
    | _builtins_of(torch._C._linalg)
    | _builtins_of(torch._C._fft)
    | _functions_of(torch.nn.functional)
    | _functions_of(torch.functional)
    | {torch.tensor}
)

#: Operators whose number operands are data: a number from outside may stay symbolic there.
_SCALAR_OPERANDS = frozenset(
    "add sub subtract mul multiply div divide true_divide floor_divide remainder fmod pow rsub lerp addcmul addcdiv clamp "
    "clamp_min clamp_max clip maximum minimum eq ne lt le gt ge greater less fill masked_fill where tensor full full_like "
    "iadd isub imul itruediv ipow truediv floordiv mod neg".split()
)

#: Methods whose result is not a function of metadata and values in the graph.
_UNCAPTURED_METHODS: dict[str, str] = {
    "tolist": "a tensor's contents as Python objects",
    "numpy": "a tensor's contents in NumPy",
    "backward": "backward() inside the compiled function",
    "register_hook": "registering a hook",
    "retain_grad": "retain_grad()",
    "data_ptr": "a tensor's address",
    "untyped_storage": "a tensor's storage",
    "storage": "a tensor's storage",
    "set_": "replacing a tensor's storage",
    "resize_": "resizing a tensor",
    "share_memory_": "sharing memory",
    "pin_memory": "pinning memory",
    "is_pinned": "pinned memory",
    "get_device": "a device number",
    "cuda": "moving between devices",
    "cpu": "moving between devices",
    "type": "the name of a tensor's type",
    "__reduce_ex__": "pickling a tensor",
    "__deepcopy__": "copying a tensor deeply",
    "__array__": "a tensor's contents in NumPy",
}


_HOMES = (torch._C._nn, torch.nn.functional, torch._C._special, torch._C._linalg, torch._C._fft, torch.fft, torch.linalg,
          torch.special)  # fmt: skip


def is_operator(function: Any) -> bool:
    return type(function) in (BuiltinFunctionType, FunctionType) and function in OPERATORS


def _base_name(target: Any) -> str:
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    return str(name).removeprefix("_foreach_").strip("_")


def _operands(i: Interpreter, target: Any, value: Any) -> Any:
    """Operands as graph nodes may take them: numbers that shape a result are made plain."""
    if _base_name(target) in _SCALAR_OPERANDS:
        return _plain(i, value, keep=True)
    return _plain(i, value, keep=False)


def _plain(i: Interpreter, value: Any, keep: bool) -> Any:
    value = i.outside.contents(value)
    kind = type(value)
    if kind is TensorProxy:
        return value
    if kind is Symbol:
        return value if keep and value.kind is not bool else i.outside.concrete(value)
    if kind is tuple or kind is list:
        return kind([_plain(i, v, keep) for v in value])
    if kind is dict:
        return {k: _plain(i, v, keep) for k, v in value.items()}
    if kind is slice:
        return slice(*(_plain(i, v, False) for v in (value.start, value.stop, value.step)))
    if isinstance(value, enum.Enum):
        if not isinstance(value, (int, float)):
            raise Unsupported(f"a {kind.__name__} as an operand of a PyTorch function")
        return value.value
    if is_constant(value):
        return value
    raise Unsupported(f"a {kind.__name__} as an operand of a PyTorch function")


def call_operator(i: Interpreter, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A PyTorch function on tensors."""
    if type(function) is BuiltinFunctionType and getattr(torch, function.__name__, function) is not function:
        home = [m for m in _HOMES if getattr(m, function.__name__, None) is function]
        if not home:  # a graph names its functions, and would call what the user put in this one's place
            raise Unsupported(f"torch.{function.__name__} while something else stands in its place")
    return i.graph.call("call_function", function, _operands(i, function, args), _operands(i, function, kwargs))


def call_tensor_method(i: Interpreter, proxy: TensorProxy, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`proxy.name(*args, **kwargs)`."""
    if name == "item" or name == "__float__" or name == "__int__":
        return i.graph.item(proxy)
    if name in _UNCAPTURED_METHODS and not (name == "type" and args):
        raise Unsupported(_UNCAPTURED_METHODS[name])
    if name in ("to", "type") and any(isinstance(a, (str, torch.device)) for a in (*args, *kwargs.values())):
        return _to_device(i, proxy, name, args, kwargs)
    if name == "requires_grad_":
        return _requires_grad(i, proxy, *args, **kwargs)
    if name in ("__len__", "__iter__", "__bool__", "__contains__", "__hash__"):
        raise Unsupported(f"the tensor method {name}")
    return i.graph.call("call_method", name, (proxy, *_operands(i, name, args)), _operands(i, name, kwargs))


def _to_device(i: Interpreter, proxy: TensorProxy, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`proxy.to(device, ...)`: where the tensor is there already, only a change of type remains."""
    options = dict(kwargs)
    device = options.pop("device", None)
    if device is None:
        device, *rest = args
        args = tuple(rest)
    here = proxy.meta.device
    if isinstance(device, str):
        device = i.native(torch.device, device)
    if name == "type" or device != here and device != torch.device(here.type if here.type == "cpu" else "meta"):
        raise Unsupported("moving between devices")
    options.pop("non_blocking", None)
    if options.get("memory_format") is torch.preserve_format:
        del options["memory_format"]
    if all(a in (None, False, proxy.meta.dtype) for a in (*args, *options.values())):
        return proxy
    raise Unsupported("moving between devices and changing the type at once")


def _requires_grad(i: Interpreter, proxy: TensorProxy, requires_grad: Any = True) -> TensorProxy:
    """`proxy.requires_grad_(mode)` where that changes nothing."""
    i.outside.guard_requires_grad(proxy)
    if i.truth(requires_grad) != proxy.meta.requires_grad:
        raise Unsupported("changing requires_grad")
    return proxy


def tensor_operator(i: Interpreter, function: Any, left: Any, right: Any) -> Any:
    """A Python operator of which at least one operand is a tensor."""
    for operand in (left, right):
        if type(operand) not in (TensorProxy, Symbol) and not is_constant(operand):
            raise Unsupported(f"{function.__name__} of a tensor and a {type(operand).__name__}")
    return i.graph.call("call_function", function, _operands(i, function, (left, right)), {})


# questions ------------------------------------------------------------------------------------------------------


def _is_compiling(i: Interpreter) -> bool:
    """True in the user's code. PyTorch's own code takes its eager branches, whose results are the reference."""
    return not is_trusted_module(i.frames[-1].globals.get("__name__"))


def _is_tensor(i: Interpreter, value: Any) -> bool:
    return type(value) is TensorProxy


def _is_grad_enabled(i: Interpreter) -> bool:
    return i.graph.grad_enabled


def _has_torch_function(i: Interpreter, *args: Any) -> bool:
    return False


def _state(function: Callable[[], Any]) -> Callable[..., Any]:
    """A global setting of PyTorch that stays for the life of the process."""
    return lambda i: function()


def _default_dtype(i: Interpreter) -> torch.dtype:
    dtype = torch.get_default_dtype()
    i.outside.guard("state", None, ("torch.get_default_dtype()", dtype))
    return dtype


def _capture_health_check(i: Interpreter, optimizer: Any) -> None:
    """The real check ran in `prepare_step`; what it looks at is guarded."""
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise Unsupported("a CUDA graph is being captured")
    if torch.cuda.is_available():
        i.outside.guard("state", None, ("torch.cuda.is_current_stream_capturing()", False))


def _group_by_device_and_dtype(i: Interpreter, lists: list[list[Any]], with_indices: bool = False) -> dict[Any, Any]:
    lists = [i.outside.contents(members) for members in i.outside.contents(lists)]
    groups: dict[Any, tuple[list[list[Any]], list[int]]] = {}
    for index, tensor in enumerate(lists[0]):
        key = (tensor.meta.device, tensor.meta.dtype)
        if key not in groups:
            groups[key] = (i.mark_created([i.mark_created([]) for _ in lists]), i.mark_created([]))
        members, indices = groups[key]
        for member, source in zip(members, lists, strict=True):
            if source:
                member.append(source[index])
        if with_indices:
            indices.append(index)
    return i.mark_created(groups)  # type: ignore[no-any-return]


# grad modes -----------------------------------------------------------------------------------------------------


def _set_grad_enabled(i: Interpreter, mode: Any) -> None:
    """The one primitive that `torch.no_grad` and its like, which are Python, come down to."""
    i.graph.grad_enabled = i.truth(mode)


def _no_context(i: Interpreter, *args: Any, **kwargs: Any) -> Any:
    """A context manager that only matters to the profiler."""
    return i.mark_created(contextlib.nullcontext())


# optimizers -----------------------------------------------------------------------------------------------------


#: Warns about CUDA graphs and the `capturable` option; PyTorch 2.13 renamed it.
_HEALTH_CHECK: Callable[..., None] = getattr(
    torch.optim.Optimizer,
    "_accelerator_graph_capture_health_check",
    vars(torch.optim.Optimizer).get("_cuda_graph_capture_health_check"),
)


def prepare_step(i: Interpreter, function: FunctionType, args: tuple[Any, ...]) -> None:
    """Make an optimizer's state before its first captured step, as its first step would: one specialisation, not two."""
    if function.__name__ != "step" or not args or not isinstance(args[0], torch.optim.Optimizer):
        return
    optimizer = args[0]
    if not i.outside.is_outside(optimizer) or i.outside.stand_in(optimizer.state) is not None:
        return
    if not type(optimizer).__module__.startswith("torch.optim"):
        return
    initialise = getattr(optimizer, "_init_group", None)
    if initialise is None:
        return
    parameters = len(inspect.signature(initialise).parameters) - 1
    with torch.no_grad():
        _HEALTH_CHECK(optimizer)
        for group in optimizer.param_groups:
            if any(p.grad is not None and not optimizer.state.get(p) for p in group["params"]):
                initialise(group, *([] for _ in range(parameters)))


HANDLERS: dict[Any, Callable[..., Any]] = {
    torch.compiler.is_compiling: _is_compiling,
    torch.is_tensor: _is_tensor,
    torch.is_grad_enabled: _is_grad_enabled,
    torch._C._set_grad_enabled: _set_grad_enabled,
    torch.autograd.profiler.record_function: _no_context,
    torch.get_default_dtype: _default_dtype,
    torch.cuda.is_available: _state(torch.cuda.is_available),
    torch.backends.cuda.is_built: _state(torch.backends.cuda.is_built),
    _HEALTH_CHECK: _capture_health_check,
    torch._C._get_privateuse1_backend_name: _state(torch._C._get_privateuse1_backend_name),
    torch._C._group_tensors_by_device_and_dtype: _group_by_device_and_dtype,
    torch.overrides.has_torch_function: _has_torch_function,
    torch.overrides.has_torch_function_unary: _has_torch_function,
    torch.overrides.has_torch_function_variadic: _has_torch_function,
    torch.overrides.is_tensor_like: _is_tensor,
    torch._C._get_tracing_state: _state(lambda: None),
    torch._C._is_tracing: _state(lambda: False),
    
    
    torch._C._are_functorch_transforms_active: _state(lambda: False),
    torch.autograd.Function.__dict__["apply"].__func__: custom_functions.apply,
}
