"""PyTorch's own database of modules as programs: each way of using a module, in eager and compiled.

A *way* is a function of a module, the inputs of its calls, and `wrap`, which is `quickfuse.compile` or leaves its argument
as it is. It yields everything that it can find out, under a name: what is not the same in both runs is a fault.
"""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch.testing._internal.common_modules import ModuleInfo, ModuleInput, module_db

import quickfuse
from comparing import copy_argument, leaves, random_states, seed_all, sharing

MODULES: dict[str, ModuleInfo] = {info.name.removeprefix("nn."): info for info in module_db}

Wrap = Callable[[Any], Any]
Inputs = tuple[list[Any], dict[str, Any]]
Facts = Iterator[tuple[str, Any]]

#: How far results in each type may be from eager's, relative to the largest element.
TOLERANCES = {torch.float64: 1e-10, torch.float32: 2e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}


@dataclass
class Case:
    """A module's constructor arguments, and what its forward is given."""

    name: str
    number: int
    sample: ModuleInput
    dtype: torch.dtype
    training: bool
    gradients: bool

    @property
    def label(self) -> str:
        mode = "train" if self.training else "eval"
        kind = str(self.dtype).removeprefix("torch.")
        return f"{self.name}[{self.number}] {kind} {mode}{' gradients' if self.gradients else ''}"

    def module(self) -> torch.nn.Module:
        seed_all(3)
        info, given = MODULES[self.name], self.sample.constructor_input
        options = {} if "dtype" in given.kwargs else _type_option(info, self.dtype)
        args, kwargs = copy.deepcopy((given.args, given.kwargs))
        made = info.module_cls(*args, **kwargs, **options)
        return made.to(self.dtype).train(self.training).requires_grad_(self.gradients)

    def inputs(self, calls: int) -> list[Inputs]:
        """What each call is given: other numbers each time, in the same range."""
        given = self.sample.forward_input
        return [(_scaled(given.args, k), _scaled(given.kwargs, k)) for k in range(calls)]


def _type_option(info: ModuleInfo, dtype: torch.dtype) -> dict[str, Any]:
    return {"dtype": dtype} if info.is_lazy else {}


def _scaled(value: Any, call: int) -> Any:
    """Floating-point inputs are multiplied, so that probabilities and positive numbers stay so."""
    if isinstance(value, torch.Tensor):
        made = copy_argument(value)
        if call and made.is_floating_point():
            with torch.no_grad():
                made.mul_(1 - call / 8)
        return made
    if isinstance(value, (list, tuple)):
        return type(value)(_scaled(v, call) for v in value)
    if isinstance(value, dict):
        return {k: _scaled(v, call) for k, v in value.items()}
    return value


def cases(name: str, dtype: torch.dtype, training: bool, gradients: bool, count: int | None = None) -> Iterator[Case]:
    """The inputs of a module, or the first `count` of them."""
    info = MODULES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seed_all(1)
        made = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=gradients, training=training)
        for number, sample in enumerate(islice(made, count)):
            if sample.forward_input is not None:
                yield Case(name, number, sample, dtype, training, gradients)


# ways of use ----------------------------------------------------------------------------------------------------


def loss_of(result: Any) -> torch.Tensor | None:
    """A number that depends on each element of a result, differently."""
    parts = []
    for k, leaf in enumerate(leaves(result)):
        if leaf.requires_grad:
            leaf = leaf.abs() if leaf.is_complex() else leaf
            weights = torch.linspace(0.5, 1.5 + k, leaf.numel(), dtype=leaf.dtype).reshape(leaf.shape)
            parts.append((leaf * weights).sum() + leaf.square().mean())
    return torch.stack(parts).sum() if parts else None


def tensors_of(inputs: Inputs) -> list[torch.Tensor]:
    return list(leaves([inputs[0], list(inputs[1].values())]))


def state_of(module: torch.nn.Module, where: str) -> Facts:
    for name, parameter in module.named_parameters():
        yield f"{where}: parameter {name}", parameter
        yield f"{where}: gradient of {name}", parameter.grad
    for name, buffer in module.named_buffers():
        yield f"{where}: buffer {name}", buffer
    yield f"{where}: names", list(module.state_dict())
    yield f"{where}: modes", [m.training for m in module.modules()]
    yield f"{where}: random numbers", random_states()


def call_facts(module: Any, function: Any, inputs: Inputs, where: str, backward: bool = True) -> Facts:
    """All about one call, and of a backward pass outside of it."""
    args, kwargs = inputs
    mine = [*tensors_of(inputs), *module.parameters(), *module.buffers()]
    result = function(*args, **kwargs)
    yield f"{where}: result", result
    yield f"{where}: memory", sharing(result, mine)
    yield f"{where}: leaves", [t.is_leaf for t in leaves(result)]
    loss = loss_of(result) if backward else None
    if loss is not None:
        loss.backward()
    for k, tensor in enumerate(tensors_of(inputs)):
        yield f"{where}: input {k}", tensor
        yield f"{where}: gradient of input {k}", tensor.grad if tensor.is_leaf else None
    yield from state_of(module, where)


def plain(case: Case, wrap: Wrap) -> Facts:
    """Three calls, each with a backward pass outside, whose gradients add up."""
    module = case.module()
    function = wrap(module)
    for k, inputs in enumerate(case.inputs(3)):
        yield from call_facts(module, function, inputs, f"call {k}")


def step(case: Case, wrap: Wrap) -> Facts:
    """Whole training steps in one compiled function."""
    module = case.module()
    case_inputs = case.inputs(4)
    with torch.no_grad():
        module(*case_inputs[3][0], **case_inputs[3][1])  # lazy modules get their parameters
    parameters = list(module.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.01, momentum=0.9) if parameters else None

    def training_step(*args: Any, **kwargs: Any) -> Any:
        if optimizer is not None:
            optimizer.zero_grad()
        result = module(*args, **kwargs)
        loss = loss_of(result)
        if loss is not None:
            loss.backward()
            if optimizer is not None:
                optimizer.step()
        return result, loss

    function = wrap(training_step)
    for k, inputs in enumerate(case_inputs[:3]):
        yield from call_facts(module, function, inputs, f"step {k}", backward=False)
        if optimizer is not None:
            state = optimizer.state_dict()["state"]
            yield f"step {k}: momentum", [state[p].get("momentum_buffer") for p in sorted(state)]


def switches(case: Case, wrap: Wrap) -> Facts:
    """What users do to a module between calls."""
    module = wrap(case.module())
    inputs = iter(case.inputs(9))
    yield from call_facts(module, module, next(inputs), "as made")
    module.train(not case.training)
    yield from call_facts(module, module, next(inputs), "other mode")
    module.train(case.training)
    yield from call_facts(module, module, next(inputs), "mode as before")
    twin = copy.deepcopy(module)
    yield from call_facts(twin, twin, next(inputs), "deep copy")
    yield from state_of(module, "copied")
    stored = pickle.loads(pickle.dumps(module))
    yield from call_facts(stored, stored, next(inputs), "pickled")
    with torch.no_grad():
        yield from call_facts(module, module, next(inputs), "no_grad")
    module.requires_grad_(not case.gradients)
    yield from call_facts(module, module, next(inputs), "parameters frozen or not")
    changed = next(inputs)
    for tensor in tensors_of(changed):
        if tensor.is_floating_point():
            tensor.requires_grad_(not tensor.requires_grad)
    yield from call_facts(module, module, changed, "inputs frozen or not")
    module.load_state_dict({k: v * 0.5 for k, v in case.module().state_dict().items() if _is_made(v)}, strict=False)
    module.zero_grad()
    yield from call_facts(module, module, next(inputs), "loaded")


def _is_made(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.parameter.UninitializedTensorMixin)


def other_types(case: Case, wrap: Wrap) -> Facts:
    """The module and its inputs in another type between calls."""
    module = wrap(case.module())
    inputs = case.inputs(3)
    other = torch.float32 if case.dtype == torch.float64 else torch.float64
    yield from call_facts(module, module, inputs[0], "as made")
    module.to(other)
    module.zero_grad()
    moved = tuple(_converted(part, other) for part in inputs[1])
    yield from call_facts(module, module, moved, "other type")
    module.to(case.dtype)
    module.zero_grad()
    yield from call_facts(module, module, inputs[2], "type as before")


def _converted(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().to(dtype).requires_grad_(value.requires_grad) if value.is_floating_point() else value
    if isinstance(value, (list, tuple)):
        return type(value)(_converted(v, dtype) for v in value)
    if isinstance(value, dict):
        return {k: _converted(v, dtype) for k, v in value.items()}
    return value


def channels_last(case: Case, wrap: Wrap) -> Facts:
    """Inputs, and then parameters too, in channels last."""
    module = wrap(case.module())
    first, second = ((tuple(map(_channels_last, args)), kwargs) for args, kwargs in case.inputs(2))
    yield from call_facts(module, module, first, "inputs")
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    for dimensions, wanted in formats.items():
        if any(p.dim() == dimensions for p in module.parameters()):
            module.to(memory_format=wanted)
    yield from call_facts(module, module, second, "inputs and parameters")


def _channels_last(value: Any) -> Any:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if isinstance(value, torch.Tensor) and value.dim() in formats:
        needs = value.requires_grad
        return value.detach().contiguous(memory_format=formats[value.dim()]).requires_grad_(needs)
    return value


def gaps(case: Case, wrap: Wrap) -> Facts:
    """Inputs that are transposed, or each second element of something."""
    module = wrap(case.module())
    first, second = case.inputs(2)
    turned = [_with(v, lambda t: t.transpose(0, -1).contiguous().transpose(0, -1) if t.dim() > 1 else t) for v in first[0]]
    yield from call_facts(module, module, (turned, first[1]), "transposed")
    spread = [_with(v, lambda t: torch.stack([t, t], -1)[..., 1] if t.dim() else t) for v in second[0]]
    yield from call_facts(module, module, (spread, second[1]), "with gaps")


def _with(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value.detach()).requires_grad_(value.requires_grad)
    return value


def hooks(case: Case, wrap: Wrap) -> Facts:
    """Hooks that change what goes through them, registered before and between calls."""
    module = wrap(case.module())
    seen: list[Any] = []
    inputs = iter(case.inputs(6))

    def double(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value * 2 if value.is_floating_point() else value
        return type(value)(map(double, value)) if isinstance(value, (list, tuple)) else value

    def before(module: Any, args: Any) -> Any:
        seen.append(("before", len(args)))

    def after(module: Any, args: Any, kwargs: Any, result: Any) -> Any:
        seen.append(("after", type(result).__name__))
        return double(result)

    def backward(module: Any, into: Any, outof: Any) -> None:
        seen.append(("backward", [None if t is None else t.detach().clone() for t in (*into, *outof)]))

    handles = [module.register_forward_pre_hook(before), module.register_forward_hook(after, with_kwargs=True)]
    yield from call_facts(module, module, next(inputs), "forward hooks")
    yield from call_facts(module, module, next(inputs), "forward hooks again")
    handles.append(module.register_full_backward_hook(backward))
    yield from call_facts(module, module, next(inputs), "backward hook")
    yield "seen", list(seen)
    for parameter in module.parameters():
        if parameter.requires_grad:
            handles.append(parameter.register_hook(lambda gradient: gradient * 3))
    yield from call_facts(module, module, next(inputs), "parameters' hooks")
    for handle in handles:
        handle.remove()
    yield from call_facts(module, module, next(inputs), "no hooks")
    yield "seen in all", list(seen)


def functional(case: Case, wrap: Wrap) -> Facts:
    """The module called with other parameters, and its gradients and their gradients by autograd."""
    module = case.module()
    inputs = case.inputs(3)
    with torch.no_grad():
        module(*inputs[2][0], **inputs[2][1])

    def called(state: Any, args: Any, kwargs: Any) -> Any:
        return torch.func.functional_call(module, state, args, kwargs)

    function = wrap(called)
    for k, (args, kwargs) in enumerate(inputs[:2]):
        state = {name: (p * (0.5 + k)).detach().requires_grad_(case.gradients) for name, p in module.named_parameters()}
        result = function(state, tuple(args), kwargs)
        yield f"call {k}: result", result
        loss = loss_of(result)
        needed = [t for t in (*state.values(), *tensors_of((args, kwargs))) if t.requires_grad]
        if loss is not None:
            again = MODULES[case.name].supports_gradgrad
            gradients = torch.autograd.grad(loss, needed, create_graph=again, allow_unused=True)
            yield f"call {k}: gradients", list(gradients)
            second = loss_of(list(gradients))
            if second is not None:  # whose layout depends on which of the terms came first
                found = torch.autograd.grad(second, needed, allow_unused=True)
                yield f"call {k}: second gradients", [None if g is None else g.contiguous().clone() for g in found]
    yield from state_of(module, "in the end")


def autocast(case: Case, wrap: Wrap) -> Facts:
    """Calls under autocast, which the compiled function enters or is called in."""
    module = case.module()

    def within(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return module(*args, **kwargs)

    function = wrap(within)
    first, second = case.inputs(2)
    yield from call_facts(module, function, first, "within")
    with torch.autocast("cpu", torch.bfloat16):
        yield from call_facts(module, wrap(module), second, "around", backward=False)


Way = Callable[[Case, Wrap], Facts]
WAYS: dict[str, Way] = {
    way.__name__: way
    for way in (plain, step, switches, other_types, channels_last, gaps, hooks, functional, autocast)
}


# comparing ------------------------------------------------------------------------------------------------------


@dataclass
class Seen:
    """A tensor as it was: its elements are copied, as programs change tensors later."""

    facts: tuple[Any, ...]
    elements: torch.Tensor


def frozen(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if isinstance(value, torch.nn.parameter.UninitializedTensorMixin):
            return "not made yet"
        layout = (value.stride(), value.storage_offset()) if value.layout == torch.strided else value.layout
        facts = (type(value).__name__, value.dtype, tuple(value.shape), layout, value.requires_grad, value.is_leaf,
                 value.grad_fn is None, value.is_conj(), value.is_neg())  # fmt: skip
        elements = value.detach()
        return Seen(facts, elements.clone() if elements.layout == torch.strided else elements.to_dense())
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [frozen(v) for v in value]
    if isinstance(value, dict):
        return [(k, frozen(v)) for k, v in value.items()]
    return value


def run(case: Case, way: Way, wrap: Wrap) -> list[tuple[str, Any]]:
    """All that a way found out, with the exception that it ended in and what it warned of."""
    seed_all(5)
    found = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            for name, value in way(case, wrap):
                found.append((name, frozen(value)))
        except Exception as error:
            found.append(("raised", (type(error).__name__, str(error).partition("\n\nWhile executing")[0])))
    said = {(w.category.__name__, str(w.message).partition("\n")[0]) for w in caught}
    found.append(("warnings", sorted(said)))
    return found


def difference(expected: Any, found: Any, dtype: torch.dtype) -> str:
    """The first way in which something is not as in eager, or nothing."""
    if isinstance(expected, Seen) and isinstance(found, Seen):
        if expected.facts != found.facts:
            return f"{found.facts} where eager has {expected.facts}"
        return _elements_differ(expected.elements, found.elements, dtype)
    if isinstance(expected, (list, tuple)) and isinstance(found, (list, tuple)):
        if len(expected) != len(found):
            return f"{len(found)} where eager has {len(expected)}: {found} {expected}"
        return next((text for e, f in zip(expected, found, strict=True) if (text := difference(e, f, dtype))), "")
    return "" if type(expected) is type(found) and expected == found else f"{found} where eager has {expected}"


def _elements_differ(expected: torch.Tensor, found: torch.Tensor, dtype: torch.dtype) -> str:
    if not (expected.is_floating_point() or expected.is_complex()):
        return "" if torch.equal(expected, found) else f"{found} where eager has {expected}"
    dtypes = {d for d in (expected.dtype, dtype) if d in TOLERANCES}
    tolerance = max((TOLERANCES[d] for d in dtypes), default=1e-10)
    finite = expected.isfinite()
    largest = float(expected[finite].abs().max()) if finite.any() else 0.0
    if torch.allclose(found, expected, rtol=tolerance, atol=tolerance * largest, equal_nan=True):
        return ""
    some = f"{found.flatten()[:6]} where eager has {expected.flatten()[:6]}"
    return f"off by {float((expected - found).abs().max())} of {largest}: {some}"


#: What eager's gradients of some losses raise for other layouts, where kernels take any.
_LAYOUT_REFUSED = ("raised", ("RuntimeError", "grad_input must be contiguous"))


def faults(case: Case, way: Way) -> list[str]:
    """How a compiled module, used in this way, is not as in eager."""
    expected = run(case, way, lambda value: value)
    quickfuse.reset()
    found = run(case, way, quickfuse.compile)
    wrong = []
    for (name, theirs), (other, ours) in zip(expected, found, strict=False):
        if (name, theirs) == _LAYOUT_REFUSED:
            break
        if name != other:
            wrong.append(f"{other} {ours} where eager has {name} {str(theirs)[:200]}")
            break
        text = difference(theirs, ours, torch.float32 if way in (other_types, autocast) else case.dtype)
        if text:
            wrong.append(f"{name}: {text}")
    return wrong
