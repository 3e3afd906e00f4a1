"""What programs of `outside` call: what they do with results and inputs, in eager PyTorch.

Each function asks first whether it makes sense, as a program does not know which of its tensors have gradients.
"""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from lives.prelude import in_thread as in_thread

Tensor = torch.Tensor
Notes = dict[str, list[float]]


class Tripled(torch.autograd.Function):
    """A square whose gradient is not that of its formula."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * 3 * ctx.saved_tensors[0]


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass
class Results:
    main: Any
    others: Any


# results --------------------------------------------------------------------------------------------------------


def tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in what a function returned."""
    if isinstance(value, Tensor):
        yield value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from tensors(getattr(value, field.name))
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from tensors(one)
    elif isinstance(value, dict):
        yield from tensors([*value.values()])


def shape(value: Any) -> Any:
    """A result without its tensors."""
    if isinstance(value, Tensor):
        return "tensor"
    if dataclasses.is_dataclass(value):
        return [type(value).__name__, *[shape(getattr(value, field.name)) for field in dataclasses.fields(value)]]
    if isinstance(value, dict):
        return {k: shape(v) for k, v in value.items()}
    return [type(value).__name__, *map(shape, value)] if isinstance(value, (list, tuple)) else [repr(value)]


def first(value: Any, like: Tensor) -> Tensor:
    """The first tensor of a result that has the shape and type of another tensor, or that one."""
    return next((t for t in tensors(value) if t.shape == like.shape and t.dtype == like.dtype), like)


def like(outs: list[Any], index: int, default: Tensor) -> Tensor:
    """One of the results as an input, where it fits."""
    found = at(outs, index)
    return default if found is None or found.shape != default.shape or found.dtype != default.dtype else found


def at(outs: list[Any], index: int) -> Tensor | None:
    return outs[index % len(outs)] if outs else None


def differentiable(outs: list[Any]) -> list[Tensor]:
    return [o for o in outs if o is not None and o.requires_grad]


def number(value: Tensor) -> Tensor:
    """A real number to differentiate."""
    return value.abs().sum() if value.is_complex() else value.sum()


def as_parameter(w: Tensor) -> Any:
    """A leaf as a module's parameter, which is the same tensor where it may be."""
    if isinstance(w, nn.Parameter) or not w.is_leaf:
        return w if isinstance(w, nn.Parameter) else w.detach()
    return nn.Parameter(w.detach(), requires_grad=w.requires_grad)


# gradients ------------------------------------------------------------------------------------------------------


def backward(o: Tensor | None, **how: Any) -> None:
    if o is not None and o.requires_grad:
        number(o).backward(**how)


def together(outs: list[Any], **how: Any) -> None:
    """Backward from all results at once."""
    found = differentiable(outs)
    if found:
        sum((k + 1) * number(o) for k, o in enumerate(found)).backward(**how)  # type: ignore[union-attr]


def gradients(o: Tensor | None, wanted: list[Tensor], **how: Any) -> Any:
    wanted = [v for v in wanted if v.requires_grad]
    if o is None or not o.requires_grad or not wanted:
        return None
    return torch.autograd.grad(number(o * o), wanted, allow_unused=True, **how)


def batched(o: Tensor | None, wanted: Tensor) -> Any:
    if o is None or not o.requires_grad or not wanted.requires_grad or not o.dim():
        return None
    rows = torch.stack([torch.ones_like(o), o.detach()])
    return torch.autograd.grad(o, wanted, rows, allow_unused=True, is_grads_batched=True, retain_graph=True)


def penalty(o: Tensor | None, wanted: list[Tensor], retain: bool) -> Any:
    """Gradients, and backward from their squares."""
    wanted = [v for v in wanted if v.requires_grad]
    if o is None or not o.requires_grad or not wanted:
        return None
    found = torch.autograd.grad(number(o.sin()), wanted, allow_unused=True, create_graph=True)
    noted = [None if g is None else g.detach().clone() for g in found]
    squares = [number(g.square()) for g in found if g is not None and g.requires_grad]
    if squares:
        sum(squares).backward(retain_graph=retain)  # type: ignore[union-attr]
    return noted


def directional(o: Tensor | None, v: Tensor) -> Any:
    """A product of the Jacobian and a vector, by two products of vectors and the Jacobian."""
    if o is None or not o.requires_grad or not v.requires_grad:
        return None
    cotangent = torch.ones_like(o, requires_grad=True)
    found = torch.autograd.grad(o, v, cotangent, create_graph=True, allow_unused=True)[0]
    if found is None or not found.requires_grad:
        return found
    return torch.autograd.grad(found, cotangent, torch.ones_like(found), allow_unused=True, retain_graph=True)


# hooks ----------------------------------------------------------------------------------------------------------


def hook(o: Tensor | None, notes: Notes, name: str, factor: float) -> Any:
    """A hook that notes gradients and changes them. Not of changed results, of which eager has rules of its own."""
    if o is None or not o.requires_grad or (not o.is_leaf and o._version):
        return None
    noted = notes.setdefault(name, [])

    def noting(gradient: Tensor) -> Tensor:
        noted.append(number(gradient).item())
        return gradient * factor

    return o.register_hook(noting)


def hook_when_added(v: Tensor, notes: Notes, name: str) -> Any:
    if not v.is_leaf or not v.requires_grad:
        return None
    noted = notes.setdefault(name, [])
    return v.register_post_accumulate_grad_hook(lambda p: noted.append(number(p.grad).item()))


def hook_module(module: nn.Module, kind: str, notes: Notes, name: str) -> Any:
    """A hook of one of the four kinds that modules have."""
    noted = notes.setdefault(name, [])

    def noting(module: nn.Module, *given: Any) -> None:
        for value in tensors([*given]):
            if not value.is_complex():
                noted.append(value.detach().double().sum().item())

    return getattr(module, f"register_{kind}")(noting)


def retain(o: Tensor | None) -> None:
    if o is not None and o.requires_grad and (o.is_leaf or not o._version):
        o.retain_grad()


# changes --------------------------------------------------------------------------------------------------------


def changeable(o: Tensor | None) -> bool:
    """Whether a result may be changed in place: not where it is watched, of which eager has rules of its own."""
    return o is not None and not o.is_inference() and (o.is_leaf or not (o.retains_grad or o._backward_hooks))


def change(o: Tensor | None, how: Callable[[Any], Any]) -> None:
    if changeable(o):
        how(o)


def change_data(v: Tensor, how: str) -> None:
    """Other memory or contents behind autograd's back."""
    if not v.is_leaf:
        return
    if how == "set_":
        with torch.no_grad():
            v.set_(v.detach().clone() * 0.9)  # type: ignore[call-overload]
    elif how == "resize_":
        v.data.resize_(2, 3).resize_(3, 3)
    else:
        v.data = v.data * 1.1


def switch(v: Tensor, on: bool) -> None:
    if v.is_leaf and (not on or v.is_floating_point()):
        v.requires_grad_(on)


def add_to_gradient(v: Tensor) -> None:
    if v.is_leaf and v.grad is not None:
        v.grad.add_(0.1)


def copied(o: Tensor | None, how: str) -> Any:
    """What copies of a result are."""
    if o is None:
        return None
    if how == "deepcopy":
        return copy.deepcopy(o)
    if how == "pickle":
        return pickle.loads(pickle.dumps(o.detach()))
    return [o.data, o.detach().clone(), o.data.requires_grad, o.is_leaf, o.layout is torch.strided]


def kept(o: Tensor | None, outs: list[Any], index: int, how: str) -> None:
    """Let go of a result, or keep it detached."""
    if o is not None:
        outs[index % len(outs)] = None if how == "none" else o.detach()


def used(o: Tensor | None, other: Tensor | None) -> Tensor | None:
    if o is None:
        return None
    return torch.sin(o) * (other if other is not None and other.shape == o.shape else 2)


# surroundings ---------------------------------------------------------------------------------------------------


def around(function: Callable[..., Any], *inputs: Tensor) -> Tensor:
    """A function's first result by a `torch.autograd.Function` that computes it, and calls autograd in backward."""

    class Around(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *given: Tensor) -> Tensor:
            with torch.enable_grad():
                ctx.inputs = [t.detach().requires_grad_(t.is_floating_point()) for t in given]
                ctx.made = next(tensors(function(*ctx.inputs)))
            return ctx.made.detach()

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            if not ctx.made.requires_grad:
                return (None,) * len(ctx.inputs)
            return torch.autograd.grad(ctx.made, ctx.inputs, gradients[0], allow_unused=True)

    return Around.apply(*inputs)


def pack_double(t: Tensor) -> Any:
    """What is saved in backward, on its way through NumPy."""
    return t.dtype, t.detach().double().numpy().copy() if not t.is_complex() else t


def unpack_double(packed: Any) -> Tensor:
    dtype, found = packed
    return found if isinstance(found, Tensor) else torch.from_numpy(found).to(dtype)
