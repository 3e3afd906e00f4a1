"""Whether a compiled model gave what eager gives, up to rounding."""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch

#: The largest distance of a tensor from eager's, in shares of its norm. Kernels add up in another order than eager does.
TOLERANCE = {torch.float32: 2e-3, torch.float64: 1e-8}
#: On a GPU: hard sigmoids and swishes of PyTorch have constants of 32 bits there, in double precision, too.
TOLERANCE_ON_GPU = 1e-6
#: What is farther than this from eager's in 32 bits is no rounding error, whatever ours in double precision says, unless
#: eager's is as far from its own in double precision: by this many times.
MUCH = 0.2
AS_FAR_AS_EAGER = 4
#: A distance for each element that is none, where values are about one.
NOTHING = {torch.float32: 1e-7, torch.float64: 1e-15}
#: A tensor may be this many times as far from eager's as eager's own is for weights with other last bits.
AS_FAR_AS_ROUNDING = 16
#: A tensor whose norm is less than this share of the largest one matters little.
SMALL = 1e-4

Tensors = list[torch.Tensor]


class Run(Protocol):
    """Gives the tensors of one more run of a model, in eager mode or compiled."""

    def __call__(self, *, compiled: bool = False, double: bool = False, rounded: int = 0) -> Tensors: ...


def is_right(made: Tensors, wanted: Tensors, run: Run, calls: int = 1) -> bool:
    """Whether `made` is `wanted` up to rounding. The tensors are those of so many calls, of each the same number.

    Some models make much of the last bit: gradients that are zero but for rounding errors, such as those of biases before a
    batch norm, or batch norms of two elements, which multiply each error. So what is far from eager's result is compared
    with the distance of eager's own for weights with other last bits, tensor by tensor, and in double precision. Of later
    training steps only that is asked: where gradients are that large, they begin at weights that have little in common.
    """
    far = _far(made, wanted, torch.float32)
    if not far:
        return True
    bound = _distances_by_rounding(wanted, run, double=False)
    beyond = [k for k in far if distance(made[k], wanted[k]) > AS_FAR_AS_ROUNDING * bound[k]]
    largest = max(_norm(t) for t in wanted)
    matter = [k for k in far if _norm(wanted[k]) > SMALL * largest]
    if not beyond and not matter:
        return True
    in_first = {k for k in matter if k < len(wanted) // calls}
    much = [k for k in beyond if k in in_first and distance(made[k], wanted[k]) > MUCH * _norm(wanted[k])]
    try:
        exact = run(double=True)
    except Exception:  # a model that makes tensors in 32 bits
        return not beyond
    if any(_off(made[k], exact[k]) > AS_FAR_AS_EAGER * _off(wanted[k], exact[k]) for k in much):
        return False
    wanted, made = exact, run(compiled=True, double=True)
    if not (far := _far(made, wanted, torch.float64)):
        return True
    bound = _distances_by_rounding(wanted, run, double=True)
    return all(distance(made[k], wanted[k]) <= AS_FAR_AS_ROUNDING * bound[k] for k in far)


def farthest(made: Tensors, wanted: Tensors) -> float:
    """The largest distance of a tensor, in shares of its norm."""
    pairs = zip(made, wanted, strict=True)
    return max((distance(a, b) / max(_norm(b), 1e-12) for a, b in pairs), default=0.0)


def _far(made: Tensors, wanted: Tensors, dtype: torch.dtype) -> list[int]:
    """Which tensors differ by more than the order of additions explains, in general. The last bits of the largest one in
    double precision are nothing in a smaller one: where such cancel out in eager, the sum is zero there by chance."""
    nothing = torch.finfo(torch.float64).eps * max(map(_norm, wanted))
    share = max(TOLERANCE[dtype], TOLERANCE_ON_GPU if any(t.is_cuda for t in wanted) else 0)
    return [
        k
        for k, (a, b) in enumerate(zip(made, wanted, strict=True))
        if distance(a, b) > share * _norm(b) + NOTHING[dtype] * math.sqrt(b.numel()) + nothing
    ]


def _distances_by_rounding(wanted: Tensors, run: Run, *, double: bool) -> list[float]:
    """How far each of eager's results is from that for weights with other last bits, in the worse of two trials."""
    trials = [run(double=double, rounded=seed) for seed in (1, 2)]
    return [max(distance(trial[k], b) for trial in trials) for k, b in enumerate(wanted)]


def distance(made: torch.Tensor, wanted: torch.Tensor) -> float:
    """The norm of the difference; infinite for another shape, type, or place of NaN."""
    if made.shape != wanted.shape or made.dtype != wanted.dtype:
        return math.inf
    ours, theirs = made.double(), wanted.double()
    if not torch.equal(torch.isfinite(ours), torch.isfinite(theirs)):
        return math.inf
    return (torch.nan_to_num(ours, 0, 0, 0) - torch.nan_to_num(theirs, 0, 0, 0)).norm().item()


def _off(found: torch.Tensor, exact: torch.Tensor) -> float:
    """How far a result in 32 bits is from that in double precision."""
    return distance(found.to(exact.dtype), exact)


def _norm(tensor: torch.Tensor) -> float:
    return torch.nan_to_num(tensor.double(), 0, 0, 0).norm().item()


def with_other_last_bits(model: torch.nn.Module, seed: int) -> None:
    """Round the weights of a model otherwise."""
    random_numbers = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                signs = torch.randint(3, parameter.shape, generator=random_numbers).to(parameter) - 1
                parameter.mul_(1 + signs * torch.finfo(parameter.dtype).eps)


def in_double(value: Any) -> Any:
    """Arguments in double precision."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.double()
    if isinstance(value, dict):
        return {key: in_double(part) for key, part in value.items()}
    return type(value)(map(in_double, value)) if type(value) in (list, tuple) else value
