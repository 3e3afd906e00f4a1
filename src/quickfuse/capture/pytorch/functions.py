"""PyTorch's functions: operators become graph nodes, questions about metadata are answered, grad modes are tracked."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch

from ...errors import Unsupported
from ...ir.modes import ATTENTION, AUTOCAST_DEVICES, enter_inference, leave_autocast, leave_inference
from ...ir.source import Source
from ...ir.tensor_checks import TensorChecks, first_overlap, first_unlike, is_like, overlapping
from ..branches.assertions import holds, is_unknown
from ..graph.contents import owners
from ..interpreter import Args, Interpreter, Kwargs
from ..library import in_python as library
from ..objects.native_functions import gives
from ..symbolic import type_of
from ..symbolic.graph_values import TENSOR_TYPES, TensorProxy
from ..symbolic.outside import FromOutside, is_constant
from . import (  # fmt: skip
    attention_masks,
    changed_settings,
    checkpoints,
    choices,
    counts,
    creation,
    custom_functions,
    function_modes,
    gradient_hooks,
    gradients,
    settings,
    torch_function,
    transforms,
)
from .first_steps import HEALTH_CHECK


def is_compiling(i: Interpreter) -> bool:
    """True in the user's code. PyTorch's own code takes its eager branches, whose results are the reference."""
    asked_by_user = not i.frames[-1].is_library
    i.asked_compiling |= asked_by_user
    return asked_by_user


def _is_grad_enabled(i: Interpreter) -> bool:
    i.note_autograd_asked(None)
    return i.graph.grad_enabled


def _capture_health_check(i: Interpreter, optimizer: Any) -> None:
    """The real check ran in `first_steps`; what it looks at is guarded."""
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise Unsupported("a CUDA graph is being captured")
    if torch.cuda.is_available():
        i.outside.guard("state", None, ("torch.cuda.is_current_stream_capturing()", False))


def _group_by_device_and_dtype(i: Interpreter, lists: list[list[Any]], with_indices: bool = False) -> dict[Any, Any]:
    lists = [i.outside.contents(members) for members in i.outside.contents(lists)]
    groups: dict[Any, tuple[list[list[Any]], list[int]]] = {}
    if not lists or not lists[0] or any(type(tensor) is not TensorProxy for tensor in lists[0]):
        raise Unsupported("lists of tensors that PyTorch may refuse to group")
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
    if len(groups) > 1:  # in the order of PyTorch's hash table: the update of a group may fail after that of another
        alike = [torch.empty(0, device=device, dtype=dtype) for device, dtype in groups]
        groups = {key: groups[key] for key in torch._C._group_tensors_by_device_and_dtype([[*alike]], False)}
    return i.mark_created(groups)  # type: ignore[no-any-return]


def _check_with(i: Interpreter, error_type: Any, condition: Any, message: Any) -> None:
    """`torch._check` and its like."""
    if type_of(condition) is not bool:
        raise Unsupported(f"torch._check of a {type_of(condition).__name__}")
    if is_unknown(i, condition) and holds(i, condition, True):
        return
    if not i.truth(condition):
        raise Unsupported("torch._check of what is not true")


# grad modes -----------------------------------------------------------------------------------------------------


def _set_grad_enabled(i: Interpreter, mode: Any) -> None:
    """The one primitive that `torch.no_grad` and its like, which are Python, come down to."""
    i.graph.grad_enabled = i.truth(mode)


def _set_frame_name(i: Interpreter, function: Any, name: str) -> None:
    """What `torch.no_grad` and its like do to the function that they put around another one, from PyTorch 2.15 on."""
    if not i.is_created(function):
        raise Unsupported("giving a function from outside another name")
    _SET_FRAME_NAME(function, name)


#: Sets the name in a function's code.
_SET_FRAME_NAME: Callable[..., None] = getattr(torch.utils._contextlib, "_set_stack_frame_name", _set_frame_name)


def _label(i: Interpreter, name: Any, args: Any = None) -> Any:
    """`torch.profiler.record_function`, which only matters to the profiler. Kernels know nothing of blocks of the program:
    the label is that of the whole graph."""
    name = i.outside.contents(name)
    if type(name) is str:
        i.graph.labels.append(name)
    return i.mark_created(contextlib.nullcontext())


def call_peer(i: Interpreter, name: str, args: Args, kwargs: Kwargs) -> Any:
    """A call of PyTorch's own compiler. Inside PyTorch these are hints to it; in user code they ask for a break. What it can
    do at all, it says itself: that stays for the life of the process."""
    if name.endswith(".is_compiling"):
        return is_compiling(i)
    module, _, function = name.rpartition(".")
    if function in _ABOUT_PEER and module in sys.modules and all(map(is_constant, (*args, *kwargs.values()))):
        return bool(getattr(sys.modules[module], function)(*args, **kwargs))
    if function == "_get_error_on_graph_break":  # a setting of that compiler's alone: there is none within our graphs
        return getattr(sys.modules[module], function)()
    in_library = i.frames[-1].is_library
    if function == "_set_error_on_graph_break" or (in_library and name.endswith(("graph_break", ".mark_static"))):
        return None
    if in_library and name == function_modes.INDEXING:
        return function_modes.make_indexing(i)
    raise Unsupported(f"a call of {name}")


_ABOUT_PEER = frozenset({"is_compile_supported", "is_dynamo_supported", "is_inductor_supported"})

_class_method = torch.autograd.Function.__dict__["apply"]
#: In C from PyTorch 2.15 on.
_APPLY = _class_method.__func__ if isinstance(_class_method, classmethod) else _class_method

# the questions of ir.tensor_checks, asked by the program: guards hold what is answered -----------------------------


def _first_unlike(i: Interpreter, checks: Any, values: Any) -> int | None:
    """What is known of tensors is guarded, but for `requires_grad`."""
    expected = _real(i, checks).expected
    for position, (value, wanted) in enumerate(zip(i.outside.contents(values), expected, strict=True)):
        if wanted is None:
            continue
        if type(value) is not TensorProxy or value.cls not in TENSOR_TYPES:
            return position
        meta, needs_grad = wanted
        if not is_like(value.meta, value.meta.shape, value.meta.stride, meta):
            return position
        if needs_grad is not None:
            i.outside.guard_requires_grad(value)
            if value.meta.requires_grad != needs_grad:
                return position
    return None


def _overlapping(i: Interpreter, checks: Any, values: Any) -> None:
    """No tensors share memory, or the question is asked in Python."""
    asked, tensors = _real(i, checks), i.outside.contents(values)
    changed, others = ([_memory(i, tensors[k]) for k in positions] for positions in (asked.changed, asked.others))
    seen: set[torch.fx.Node] = set()
    for nodes in changed:
        if not seen.isdisjoint(nodes):
            raise Unsupported("a question about tensors that may share memory")
        seen |= nodes
    if not all(seen.isdisjoint(nodes) for nodes in others):
        raise Unsupported("a question about tensors that may share memory")
    inputs = [_inputs(i, changed), _inputs(i, others)]
    given = [tensor for found in inputs for tensor in found.values()]
    if first_overlap(given, range(len(inputs[0])), range(len(inputs[0]), len(given))) is not None:
        raise Unsupported("a question about tensors that share memory")
    if inputs[0] and len(given) > 1:
        i.outside.guard("apart", None, tuple(map(tuple, inputs)))


def _real(i: Interpreter, checks: Any) -> TensorChecks:
    if not isinstance(checks, FromOutside) or not isinstance(checks.real, TensorChecks):
        raise Unsupported("a question about tensors that is put together in the program")
    i.outside.guard("is", checks.source, checks.real)
    return checks.real


def _memory(i: Interpreter, tensor: Any) -> set[torch.fx.Node]:
    """The nodes of the graph in whose memory a tensor may lie."""
    if type(tensor) is not TensorProxy:
        raise Unsupported("a question about the memory of what is no tensor")
    return {*owners(i.graph.node_of(tensor))}


def _inputs(i: Interpreter, memories: list[set[torch.fx.Node]]) -> dict[Source, Any]:
    """The tensors from outside in whose memory nodes may lie, by where they come from."""
    return dict(i.graph.contents.example(n) for nodes in memories for n in nodes if n.op == "placeholder")


# autocast and inference mode: what PyTorch's own context managers, which are Python, come down to ------------------


def _is_autocast_enabled(i: Interpreter, device: Any = "cuda") -> bool:
    if type(device) is str and device not in AUTOCAST_DEVICES:  # of others, captured code changes nothing
        enabled = i.native(torch.is_autocast_enabled, device)
        i.outside.guard("state", None, (f"torch.is_autocast_enabled({device!r})", enabled))
        return bool(enabled)
    return bool(i.graph.autocast.get("enabled", _device(i, device)))


def _device(i: Interpreter, device: Any) -> str:
    if device not in AUTOCAST_DEVICES:
        raise Unsupported(f"autocast for the device {device}")
    return str(device)


def _setting(i: Interpreter, expression: str, *question: Any) -> Any:
    """A setting of autocast, or of attention's kernels, which is guarded unless the captured code has set it."""
    found = i.graph.autocast.get(*question)
    if question not in i.graph.autocast.settings:
        i.outside.guard("state", None, (expression, found))
    return found


def _allowing(name: str) -> tuple[Callable[[Interpreter], Any], Callable[[Interpreter, Any], None]]:
    """Whether a kernel of attention is allowed, and to allow it or not; their order, and to say that."""
    if name == "order":
        return (
            lambda i: i.mark_created([*_setting(i, "torch._C._get_sdp_priority_order()", name)]),
            lambda i, order: i.graph.autocast.set([i.outside.concrete(n) for n in i.outside.contents(order)], name),
        )
    return (
        lambda i: bool(_setting(i, f"torch._C._get_{name}_sdp_enabled()", name)),
        lambda i, allowed: i.graph.autocast.set(i.truth(allowed), name),
    )


def _later(function: Callable[[], Any], result: Any) -> Callable[[Interpreter], Any]:
    """A call that the running graph makes before the next operator."""

    def handler(i: Interpreter) -> Any:
        i.graph.autocast.pending.append((function, ()))
        return result

    return handler


def _enter_inference(i: Interpreter, mode: Any) -> None:
    if i.graph.nested:
        raise Unsupported("inference mode inside of a functional transform or checkpoint")
    i.graph.inference.enter(i.graph, i.truth(mode))


def _make_inference(i: Interpreter, mode: Any) -> Any:
    i.graph.inference.made_at = i.performed
    return i.call_now(library.InferenceMode, (mode,))


def _parse_to(i: Interpreter, *args: Any, **kwargs: Any) -> Any:
    """What `Module.to` makes of its arguments: a device, a type, whether to wait, and a memory format."""
    if len(args) == 1 and type(args[0]) is TensorProxy and not kwargs:
        return (args[0].meta.device, args[0].meta.dtype, False, None)
    plain = [i.outside.concrete(v) for v in args], {name: i.outside.concrete(v) for name, v in kwargs.items()}
    if not all(is_constant(v) or isinstance(v, (torch.device, torch.dtype)) for v in (*plain[0], *plain[1].values())):
        raise Unsupported("Module.to of other things than a device, a type or a tensor")
    return i.read(torch._C._nn._parse_to, *plain[0], **plain[1])


def _infer_size(i: Interpreter, *shapes: Any) -> torch.Size:
    """The shape to which two are broadcast."""
    shape: torch.Size = i.read(torch._C._infer_size, *[torch.Size(i.outside.contents(shape)) for shape in shapes])
    return shape


def _may_share(i: Interpreter, one: Any, other: Any) -> bool:
    """Whether `tensor.data = value` takes a tensor of this kind."""
    if not all(type(t) is TensorProxy and t.cls in TENSOR_TYPES for t in (one, other)):
        raise Unsupported("a question about the kinds of what are no plain tensors")
    if one.meta.device != other.meta.device:
        raise Unsupported("a question about tensors on several devices")
    return True


#: Questions whose answers stay for the life of the process, and those that are about what captured code is never in.
_OF_PROCESS = (
    torch.cuda.is_available, torch.cuda.is_bf16_supported, torch.backends.cuda.is_built, torch.accelerator.is_available,
    torch.distributed.is_available, torch._C._get_privateuse1_backend_name,
    torch.cuda.amp.common.amp_definitely_not_available,
)  # fmt: skip
_OFF = (torch._C._is_tracing, torch._C._are_functorch_transforms_active, torch._C._is_torch_function_mode_enabled)


def _is_tensor(i: Any, value: Any) -> bool:
    if issubclass(type_of(value), weakref.ProxyTypes):
        raise Unsupported("a question about a weakref.proxy")
    return issubclass(type_of(value), torch.Tensor)


def asks_for_operators(i: Interpreter) -> bool:
    """`torch.compiler.is_dynamo_compiling()`: whether it is PyTorch's compiler that looks at the program. To PyTorch's
    functions around the operators of `library.higher_order` that means to call these, where else they would compile them."""
    return i.in_library() and i.frames[-1].globals.get("__name__") in _CALL_OPERATORS


_CALL_OPERATORS = frozenset(
    f"torch.{name}" for name in "nn.attention.flex_attention _higher_order_ops.cond _higher_order_ops.while_loop "
    "_higher_order_ops.utils".split()
)  # fmt: skip

HANDLERS: dict[Any, Callable[..., Any]] = {
    torch.compiler.is_compiling: is_compiling,
    torch.compiler.is_dynamo_compiling: asks_for_operators,
    torch._jit_internal.is_scripting: lambda i: False,
    **dict.fromkeys((torch.is_tensor, torch.overrides.is_tensor_like), _is_tensor),
    torch.is_grad_enabled: _is_grad_enabled,
    torch._C._log_api_usage_once: lambda i, *names: None,  # which counts who uses what, where PyTorch is built to do so
    torch._C._set_grad_enabled: _set_grad_enabled,
    torch.autograd.profiler.record_function: _label,
    _SET_FRAME_NAME: _set_frame_name,
    torch._check_with: _check_with,
    **{function: gives(function) for function in _OF_PROCESS},
    torch.accelerator.current_accelerator: lambda i, check_available=False: torch.accelerator.current_accelerator(
        i.truth(check_available)
    ),
    HEALTH_CHECK: _capture_health_check,
    torch._C._group_tensors_by_device_and_dtype: _group_by_device_and_dtype,
    torch._C._nn._parse_to: _parse_to,
    torch._C._infer_size: _infer_size,
    torch._has_compatible_shallow_copy_type: _may_share,
    torch.overrides.has_torch_function: lambda i, values: torch_function.overrides(i, i.outside.contents(values)),
    **dict.fromkeys(
        (torch.overrides.has_torch_function_unary, torch.overrides.has_torch_function_variadic),
        lambda i, *values: torch_function.overrides(i, values),
    ),
    torch._C._get_tracing_state: lambda i: None,
    torch._C._len_torch_dispatch_stack: lambda i: 0,
    **dict.fromkeys(_OFF, lambda i: False),
    _APPLY: custom_functions.apply,
    torch.autograd.backward: gradients.backward,
    torch.autograd.grad: gradients.grad,
    # the segment's surroundings are guarded
    torch.is_autocast_enabled: _is_autocast_enabled,
    torch.get_autocast_dtype: lambda i, on: _setting(i, f"torch.get_autocast_dtype({on!r})", "dtype", _device(i, on)),
    torch.is_autocast_cache_enabled: lambda i: _setting(i, "torch.is_autocast_cache_enabled()", "cache"),
    torch.set_autocast_enabled: lambda i, device, on: i.graph.autocast.set(i.truth(on), "enabled", _device(i, device)),
    torch.set_autocast_dtype: lambda i, device, dtype: i.graph.autocast.set(dtype, "dtype", _device(i, device)),
    torch.set_autocast_cache_enabled: lambda i, enabled: i.graph.autocast.set(i.truth(enabled), "cache"),
    **{asked: rule for name, both in ATTENTION.items() for asked, rule in zip(both, _allowing(name), strict=True)},
    torch.autocast_increment_nesting: _later(torch.autocast_increment_nesting, 1),
    # PyTorch empties the cache of converted weights if nothing is nested any more: the node does both
    torch.autocast_decrement_nesting: _later(leave_autocast, 1),
    torch.clear_autocast_cache: _later(torch.clear_autocast_cache, None),
    torch._C._is_any_autocast_enabled: lambda i: i.graph.autocast.is_active,
    torch.amp.is_autocast_available: lambda i, device: torch.amp.is_autocast_available(_device(i, device)),
    torch._C._InferenceMode: _make_inference,
    torch.is_inference_mode_enabled: lambda i: i.graph.inference.on,
    enter_inference: _enter_inference,
    leave_inference: lambda i: i.graph.inference.leave(i.graph),
    first_unlike: _first_unlike, overlapping: _overlapping,
    **settings.HANDLERS,
    **changed_settings.HANDLERS,
    **attention_masks.HANDLERS,
    **function_modes.HANDLERS,
    **transforms.HANDLERS,
    **checkpoints.HANDLERS,
    **choices.HANDLERS,
    **creation.HANDLERS,
    **counts.HANDLERS,
    **gradient_hooks.HANDLERS,
    **torch_function.HANDLERS,
}  # fmt: skip
