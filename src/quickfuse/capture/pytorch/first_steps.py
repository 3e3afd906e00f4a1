"""The first step of an optimizer of PyTorch's, which is to be one specialisation with all others.

Its state is made before the captured program, as the step would make it. Before it there are no gradients either: in place
of methods that ask what makes no difference to what they do, capture follows functions that do not ask.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from ...errors import Unsupported
from ...ir.cudnn_rnn import lie_together
from ...ir.segment import FirstState
from ...ir.signatures import signature
from ...signals import handlers_wait
from ..interpreter import Args, Interpreter, Kwargs
from ..library.in_python import forget_gradients, forget_gradients_of_module, leave_flat, step_scheduler
from ..symbolic import ABSENT, FromOutside, ShadowContainer, ShadowDict, Symbol, TensorProxy, is_constant

#: Warns about CUDA graphs and the `capturable` option; PyTorch 2.13 renamed it.
HEALTH_CHECK: Callable[..., None] = getattr(
    torch.optim.Optimizer,
    "_accelerator_graph_capture_health_check",
    vars(torch.optim.Optimizer).get("_cuda_graph_capture_health_check"),
)


def prepare_step(i: Interpreter, function: FunctionType, args: tuple[Any, ...]) -> None:
    """Make an optimizer's state before its first captured step, as its first step would: one specialisation, not two.

    It is made where the step comes to the first of its groups: a closure before that may give gradients, or take them."""
    if function.__name__ != "_init_group" or not args:
        return
    if isinstance(args[0], FromOutside) and isinstance(args[0].real, torch.optim.Optimizer):
        _make_first_state(i, args[0])
    _note_reached(i, args[1] if len(args) > 1 else None)


def _make_first_state(i: Interpreter, owner: FromOutside) -> None:
    optimizer = owner.real
    if i.outside.stand_in(optimizer.state) is not None or not type(optimizer).__module__.startswith("torch.optim"):
        return
    parameters = len(signature(optimizer._init_group).parameters) - 1
    with torch.no_grad():
        if all("capturable" in group for group in optimizer.param_groups):
            HEALTH_CHECK(optimizer)
        for group, members in _captured_groups(i, owner):
            # The parameters have other gradients meanwhile, and a state that is half there makes the optimizer raise.
            with handlers_wait(), _captured_gradients(i, members) as present:
                if all(optimizer.state.get(p) for p in present):
                    continue
                settings = _captured_settings(i, group)
                if settings is None:
                    return
                i.prepared.append(FirstState(optimizer.state, [p for p in present if p not in optimizer.state], group))
                try:
                    optimizer._init_group({**group, **settings, "params": members}, *([] for _ in range(parameters)))
                except Exception as error:  # such as gradients of a kind that it does not take: the step raises it
                    raise Unsupported(f"an optimizer that raises: {type(error).__name__}: {error}") from error


def _captured_groups(i: Interpreter, owner: FromOutside) -> Iterator[tuple[dict[str, Any], list[torch.Tensor]]]:
    """An optimizer's groups with their parameters, as the captured program has them by now, and in its order, which is that
    of the states. From the first group on that it has made itself, it makes the states, too."""
    for group in _captured_list(i, i.attribute_or(owner, "param_groups", ())):
        stand_in = group if isinstance(group, ShadowDict) else i.outside.stand_in(group)
        if stand_in is None and (type(group) is not dict or i.is_created(group)):
            return
        real = group if stand_in is None else stand_in.real
        changed = stand_in is not None and "params" in stand_in.changes
        members = _captured_list(i, stand_in.entries.get("params") if changed else real["params"])
        tensors = [p.real if type(p) is TensorProxy else p for p in members]
        if not all(isinstance(p, torch.Tensor) for p in tensors):
            return
        yield real, tensors


def _captured_list(i: Interpreter, value: Any) -> list[Any]:
    """What is in a list of the user's, or of the captured program's: stand-ins, or what nothing has read yet as it is."""
    stand_in = value if isinstance(value, FromOutside) else i.outside.stand_in(value)
    if not isinstance(stand_in, ShadowContainer):
        return list(value) if isinstance(value, (list, tuple)) else []
    return [*stand_in.real, *stand_in.added] if stand_in.items is None else list(stand_in.items)


def _captured_settings(i: Interpreter, group: Any) -> dict[Any, Any] | None:
    """What the captured program has set in an optimizer's group before the step, such as a learning rate that some
    optimizers keep in their state. None where only running the graph tells it."""
    stand_in = i.outside.stand_in(group)
    if not isinstance(stand_in, ShadowDict) or not stand_in.is_changed:
        return {}
    values = {key: stand_in.entries.get(key) for key in stand_in.changes if key != "params"}
    settings = {key: value.hint if type(value) is Symbol else value for key, value in values.items()}
    return settings if all(map(is_constant, settings.values())) and None not in settings.values() else None


def _note_reached(i: Interpreter, group: Any) -> None:
    """The captured program comes to make the state of one of an optimizer's groups, or of one that is not known."""
    for first in i.prepared:
        if first.reached < 0 and (not isinstance(group, FromOutside) or group.real is first.group):
            first.reached = i.performed


def _laid_out_as(parameter: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """Some tensor of a parameter's shape and type, whose memory nobody reads."""
    if stride == parameter.stride():
        return parameter.detach()
    return torch.empty_strided(parameter.shape, stride, dtype=parameter.dtype, device=parameter.device)


@contextlib.contextmanager
def _captured_gradients(i: Interpreter, parameters: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """The parameters that have a gradient by now in the captured program. What it gave or took is in `grad` meanwhile;
    in place of a gradient that only exists in the graph, some tensor of its strides, which a state may take over."""
    changed = []
    for parameter in parameters:
        stand_in = i.outside.stand_in(parameter)
        if type(stand_in) is TensorProxy and "grad" in stand_in.attributes:
            captured = stand_in.attributes["grad"]
            if captured is None or parameter.grad is None or captured.meta.stride != parameter.grad.stride():
                changed.append((parameter, parameter.grad))
                parameter.grad = None if captured is None else _laid_out_as(parameter, captured.meta.stride)
    try:
        yield [parameter for parameter in parameters if parameter.grad is not None]
    finally:
        for parameter, before in changed:
            parameter.grad = before


def without_asking(i: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """The function that does what this call does and does not ask, None where there is none."""
    same, makes_no_difference = _METHODS.get(function, (None, None))
    return same if makes_no_difference is not None and args and makes_no_difference(i, args, kwargs) else None


def _forgets(i: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """Whether there are no gradients afterwards: then it is all one which there were."""
    options = [*args[1:], *kwargs.values()]
    return not options or (len(options) == 1 and options[0] is True and kwargs.keys() <= {"set_to_none"})


def _module_forgets(i: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    return _forgets(i, args, kwargs) and i.attribute_or(args[0], "_is_replica", ABSENT) is ABSENT  # replicas are warned of


def _warns_of_nothing(i: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """Whether a scheduler's first step would find that its optimizer has made one, too."""
    if len(args) > 1 or kwargs:
        return False
    optimizer = i.attribute_or(args[0], "optimizer", None)
    step = i.attribute_or(optimizer, "step", None)
    counted = i.attribute_or(step, "_wrapped_by_lr_sched", ABSENT)
    return counted is not ABSENT and i.attribute_or(optimizer, "_opt_called", None) is True


def _is_flat(i: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """Whether a recurrent layer's weights lie in one piece of memory: then they need not be put into another."""
    module = args[0]
    return isinstance(module, FromOutside) and not module.attributes and lie_together(module.real)


#: For each what does the same, and whether what is not asked makes no difference in a call.
_METHODS: dict[Any, tuple[Callable[..., None], Callable[..., bool]]] = {
    inspect.unwrap(torch.optim.Optimizer.zero_grad): (forget_gradients, _forgets),
    torch.nn.Module.zero_grad: (forget_gradients_of_module, _module_forgets),
    LRScheduler.step: (step_scheduler, _warns_of_nothing),
    torch.nn.RNNBase.flatten_parameters: (leave_flat, _is_flat),
}
