"""What programs of `lives` call outside of what they compile: parts of models, other batches, and ways to interrupt."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

Batch = tuple[torch.Tensor, ...]


class Stop(BaseException):
    """Like KeyboardInterrupt: no `except Exception` of the program catches it."""


# parts of models ------------------------------------------------------------------------------------------------


def weighted(model: nn.Module, at: int = 0) -> nn.Module:
    """A submodule with a weight of its own, the first or another."""
    found = [m for m in model.modules() if isinstance(m._parameters.get("weight"), nn.Parameter)]
    return found[at % len(found)]


def linear(model: nn.Module, at: int = 0) -> nn.Linear:
    """A linear submodule without parametrizations."""
    found = [m for m in model.modules() if isinstance(m, nn.Linear) and "weight" in m._parameters]
    return found[at % len(found)]


def parent(model: nn.Module, child: nn.Module) -> tuple[nn.Module, str]:
    """Where a submodule is registered."""
    for module in model.modules():
        for name, value in module.named_children():
            if value is child:
                return module, name
    raise LookupError("the module is no child")


def parameter(model: nn.Module, at: int = 0) -> nn.Parameter:
    found = [*model.parameters()]
    return found[at % len(found)]


def buffer(model: nn.Module, at: int = 0) -> tuple[nn.Module, str]:
    """The module and the name of a buffer."""
    found = [(m, name) for m in model.modules() for name, b in m._buffers.items() if b is not None]
    return found[at % len(found)]


def stack(model: nn.Module) -> nn.ModuleList | None:
    """The list of modules that a model is made of, if it is."""
    return next((m for m in model.modules() if isinstance(m, nn.ModuleList)), None)


def fused(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it writes as many elements as a tensor has, past the memory of those that are expanded."""
    return any(group.get("fused") for group in optimizer.param_groups)


# what stands in the middle of a step -----------------------------------------------------------------------------


def looked_at(value: Any) -> Any:
    """What only Python can say of a tensor."""
    return value.detach().flatten()[:2].tolist() if isinstance(value, torch.Tensor) else type(value).__name__


def total(value: Any) -> float:
    """A number to decide by."""
    return value.detach().double().sum().item() if isinstance(value, torch.Tensor) else 0.0


@contextlib.contextmanager
def noting(noted: list[str]) -> Iterator[None]:
    """A block that says how it ended."""
    try:
        yield
    except Exception as error:
        noted.append(type(error).__name__)
        raise
    else:
        noted.append("well")


# other batches --------------------------------------------------------------------------------------------------


def shorter(batch: Batch, size: int) -> Batch:
    """The first rows: the last batch of an epoch, a batch of one, or of none."""
    return tuple(t[:size] for t in batch)


def longer(batch: Batch) -> Batch:
    return tuple(torch.cat([t, t[:1]]) for t in batch)


def spread(batch: Batch) -> Batch:
    """The same numbers, every other element of larger tensors."""
    return tuple(torch.stack([t, t], -1)[..., 0] for t in batch)


def transposed(batch: Batch) -> Batch:
    """The same numbers, last axis first in memory."""
    return tuple(t.movedim(-1, 0).contiguous().movedim(0, -1) for t in batch)


def expanded(batch: Batch) -> Batch:
    """The first row in all places, with a stride of zero."""
    return tuple(t[:1].expand(t.shape) for t in batch)


def shifted(batch: Batch) -> Batch:
    """Views that begin in the middle of larger tensors."""
    return tuple(torch.cat([t[:1], t])[1:] for t in batch)


def converted(batch: Batch, dtype: torch.dtype) -> Batch:
    return tuple(t.to(dtype) if t.is_floating_point() else t for t in batch)


def with_gradients(batch: Batch, kept: dict[str, Any]) -> Batch:
    """The first tensor requires gradients, where it may; it is kept, and its gradient with it."""
    first = kept["x"] = batch[0].requires_grad_() if batch[0].is_floating_point() else batch[0]
    return (first, *batch[1:])


def from_one(batch: Batch) -> Batch:
    """The tensors as views of one, where they are of one type."""
    if len({t.dtype for t in batch}) > 1:
        return batch
    whole = torch.cat([t.flatten() for t in batch])
    parts = whole.split([t.numel() for t in batch])
    return tuple(part.view(t.shape) for part, t in zip(parts, batch, strict=True))


def overlapping(batch: Batch) -> Batch:
    """The tensors as windows of one, where they are of one type."""
    if len({t.dtype for t in batch}) > 1:
        return batch
    whole = torch.cat([t.flatten() for t in batch])
    return tuple(whole[at : at + t.numel()].view(t.shape) for at, t in enumerate(batch))


def shared(model: nn.Module, batch: Batch) -> Batch:
    """The first tensor begins in the middle of what has become the memory of a parameter."""
    p, first = parameter(model), batch[0]
    if first.dtype != p.dtype:
        return batch
    whole = torch.cat([p.detach().flatten(), first.flatten()])
    p.data = whole[: p.numel()].view(p.shape)
    return (whole[p.numel() // 2 :][: first.numel()].view(first.shape), *batch[1:])


def kept_by_gradient(model: nn.Module, batch: Batch) -> Batch:
    """The first tensor is, in part, the gradient of a parameter."""
    p, first = parameter(model), batch[0]
    if first.dtype != p.dtype:
        return batch
    whole = torch.cat([p.detach().flatten(), first.flatten()])
    p.grad = whole[: p.numel()].view(p.shape)
    return (whole[p.numel() // 2 :][: first.numel()].view(first.shape), *batch[1:])


def of_a_parameter(model: nn.Module, batch: Batch) -> Batch:
    """The first tensor is a view of a parameter, with its history, of any strides."""
    p, first = parameter(model), batch[0]
    if first.dtype != p.dtype or not first.ndim or not p.numel():
        return batch
    return (p.flatten()[:1].expand(first.shape), *batch[1:])


def channels_last(batch: Batch) -> Batch:
    return tuple(t.contiguous(memory_format=torch.channels_last) if t.ndim == 4 else t for t in batch)


def in_inference(batch: Batch) -> Batch:
    with torch.inference_mode():
        return tuple(t.clone() for t in batch)


def spoilt(batch: Batch, value: float = float("nan")) -> Batch:
    """With one element that is no number, or infinite."""
    first = batch[0].clone()
    if first.is_floating_point() and first.numel():
        first.view(-1)[0] = value
    return (first, *batch[1:])


def misshapen(batch: Batch) -> Batch:
    """What a model refuses: one column too few."""
    return (batch[0][..., :-1], *batch[1:])


def mislabelled(batch: Batch) -> Batch:
    """A class that does not exist, where targets are classes."""
    target = batch[-1].clone()
    if not target.is_floating_point() and target.numel():
        target.view(-1)[-1] = 1000
    return (*batch[:-1], target)


# around calls ---------------------------------------------------------------------------------------------------


def in_thread(call: Callable[[], Any]) -> Any:
    """Call in another thread; exceptions come back. Modes, by which the judge rounds, go along."""
    results: list[Any] = []
    errors: list[BaseException] = []
    modes = _get_current_dispatch_mode_stack()

    def run() -> None:
        try:
            with contextlib.ExitStack() as stack:
                for mode in modes:
                    stack.enter_context(mode)
                results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


class Failing:
    """A hook that raises in one of its calls, and then no more."""

    def __init__(self, error: BaseException, after: int = 0) -> None:
        self.error, self.after = error, after

    def __call__(self, *args: Any) -> None:
        self.after -= 1
        if self.after == -1:
            raise self.error
