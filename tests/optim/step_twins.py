"""Two equal optimizers, one stepped by eager PyTorch and one by compiled code, and how to tell them apart.

A test makes `Twins`, gives both the same gradients, steps both, and asserts that nothing differs: parameters, optimizer
state with its types, param_groups, and the optimizer's own attributes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

import quickfuse

#: Two equal shapes, for loops over equal parameters to be grouped, and one with another number of dimensions.
SHAPES: tuple[tuple[int, ...], ...] = ((4, 3), (5,), (4, 3))

#: What backend="eager" must reach: it runs the very operators of eager PyTorch.
EXACT = (0.0, 0.0)
#: Fused kernels round where eager rounds, but vector math libraries differ in the last bits.
CLOSE = (1e-5, 1e-7)


def compiled_count(compiled: Any) -> int:
    """How often something was compiled for this callable so far. The only place that knows how quickfuse counts."""
    return compiled.graph_count


class Twins:
    """Optimizers over two equal lists of parameters, which get equal gradients: `eager` and `optimizer`, ours."""

    def __init__(
        self, make: Callable[[list[torch.nn.Parameter]], Any], shapes: Sequence[tuple[int, ...]] = SHAPES,
        dtype: torch.dtype = torch.float32,
    ) -> None:  # fmt: skip
        self.generator = torch.Generator().manual_seed(1)
        values = [torch.randn(shape, generator=self.generator).to(dtype) for shape in shapes]
        self.eager_parameters = [torch.nn.Parameter(value.clone()) for value in values]
        self.parameters = [torch.nn.Parameter(value.clone()) for value in values]
        self.eager = make(self.eager_parameters)
        self.optimizer = make(self.parameters)

    def gradients(self, missing: Sequence[int] = ()) -> None:
        """New gradient tensors with new values, as after `zero_grad(set_to_none=True)` and a backward pass."""
        for k, (mine, theirs) in enumerate(zip(self.parameters, self.eager_parameters, strict=True)):
            value = torch.randn(mine.shape, generator=self.generator).to(mine.dtype)
            mine.grad, theirs.grad = (None, None) if k in missing else (value.clone(), value.clone())

    def both(self, change: Callable[[Any], Any]) -> None:
        """Do the same to both optimizers, outside compiled code."""
        change(self.eager)
        change(self.optimizer)

    def check(self, tolerance: tuple[float, float] = EXACT) -> None:
        for k, (mine, theirs) in enumerate(zip(self.parameters, self.eager_parameters, strict=True)):
            assert not (found := difference(mine, theirs, tolerance, f"parameter {k}")), found
            assert not (found := difference(mine.grad, theirs.grad, tolerance, f"gradient {k}")), found
        check_optimizers(self.optimizer, self.eager, tolerance)


def check_optimizers(mine: torch.optim.Optimizer, theirs: torch.optim.Optimizer, tolerance: Any = EXACT) -> None:
    """Assert that two optimizers over different parameters are equal in everything else."""
    found = difference(mine.state_dict(), theirs.state_dict(), tolerance, "state_dict()")
    assert not found, found
    assert [len(state) for state in mine.state.values()] == [len(state) for state in theirs.state.values()]
    assert list(vars(mine)) == list(vars(theirs)), "an attribute of the optimizer was lost or added"


def difference(mine: Any, theirs: Any, tolerance: tuple[float, float] = EXACT, path: str = "result") -> str:
    """Where two values differ in type, structure or value: a sentence, or "" if they are equal."""
    if type(mine) is not type(theirs):
        return f"{path} is a {type(mine).__name__}, and a {type(theirs).__name__} in eager"
    if isinstance(mine, torch.Tensor):
        return _tensor_difference(mine, theirs, tolerance, path)
    if isinstance(mine, dict):
        if list(mine) != list(theirs):
            return f"{path} has the keys {list(mine)}, and {list(theirs)} in eager"
        return _first(difference(mine[key], theirs[key], tolerance, f"{path}[{key!r}]") for key in mine)
    if isinstance(mine, (list, tuple)):
        if len(mine) != len(theirs):
            return f"{path} has {len(mine)} elements, and {len(theirs)} in eager"
        pairs = enumerate(zip(mine, theirs, strict=True))
        return _first(difference(a, b, tolerance, f"{path}[{k}]") for k, (a, b) in pairs)
    if isinstance(mine, float):
        equal = mine == theirs or (math.isnan(mine) and math.isnan(theirs))
        equal = equal or math.isclose(mine, theirs, rel_tol=tolerance[0], abs_tol=tolerance[1])
    else:
        equal = mine == theirs
    return "" if equal else f"{path} is {mine!r}, and {theirs!r} in eager"


def _first(found: Any) -> str:
    return next(filter(None, found), "")


def _tensor_difference(mine: torch.Tensor, theirs: torch.Tensor, tolerance: tuple[float, float], path: str) -> str:
    for name in ("dtype", "device", "shape", "layout", "requires_grad", "is_leaf"):
        if getattr(mine, name) != getattr(theirs, name):
            return f"{path}.{name} is {getattr(mine, name)}, and {getattr(theirs, name)} in eager"
    if mine.layout is not torch.strided:
        mine, theirs = mine.to_dense(), theirs.to_dense()
    elif mine.stride() != theirs.stride():
        return f"{path}.stride() is {mine.stride()}, and {theirs.stride()} in eager"
    mine, theirs = mine.detach(), theirs.detach()
    if torch.allclose(mine, theirs, rtol=tolerance[0], atol=tolerance[1], equal_nan=True):
        return ""
    return f"{path} differs by up to {(mine.double() - theirs.double()).abs().max().item():.3g}"


def compile_step(function: Callable[..., Any], **settings: Any) -> Any:
    """Compile so that the captured graph itself runs, and whatever breaks it is an error."""
    return quickfuse.compile(function, **{"backend": "eager", "fullgraph": True, **settings})


def frozen(value: Any) -> Any:
    """A copy of param_groups without the parameters, to be compared later."""
    return [{name: copy.deepcopy(v) for name, v in group.items() if name != "params"} for group in value]
