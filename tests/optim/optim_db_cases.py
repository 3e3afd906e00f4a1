"""PyTorch's own database of optimizer configurations, as cases for the CPU."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._internal.common_optimizers import OptimizerInfo, optim_db

# The import above freezes torch.backends' flags for the rest of the process, which other tests set.
torch.backends.__allow_nonbracketed_mutation_flag = True

#: They run user code (a closure) in the middle of a step, or use sparse tensors: not one graph.
MAY_BREAK = ("LBFGS", "SparseAdam")


@dataclass(frozen=True)
class Case:
    """One way to construct an optimizer: `make(parameters)`."""

    cls: type[torch.optim.Optimizer]
    options: dict[str, Any]
    description: str

    @property
    def name(self) -> str:
        return self.cls.__name__

    @property
    def id(self) -> str:
        words = [self.name, *self.description.replace(",", "").replace("w/ ", "").split()]
        return "-".join(words)

    def make(self, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        return self.cls(parameters, **copy.deepcopy(self.options))

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return ((4, 3), (2, 5), (4, 3)) if self.name == "Muon" else ((4, 3), (5,), (4, 3))


def cases() -> list[Case]:
    """Every configuration of the database, with each implementation, and a float and a tensor learning rate."""
    return [case for info in optim_db for case in _cases_of(info) if _is_valid(case)]


def _cases_of(info: OptimizerInfo) -> Iterator[Case]:
    for options, description in _with_both_rates(info):
        for implementation, flags in _implementations(info).items():
            yield Case(info.optim_cls, {**options, **flags}, f"{description} {implementation}".strip())


def _implementations(info: OptimizerInfo) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {"": {}}
    if "foreach" in info.supported_impls:
        found = {"for": {"foreach": False}, "foreach": {"foreach": True}}
    if "cpu" in info.supports_fused_on:
        found["fused"] = {"fused": True}
    return found


def _with_both_rates(info: OptimizerInfo) -> Iterator[tuple[dict[str, Any], str]]:
    for entry in info.optim_inputs_func(device="cpu"):
        rate = entry.kwargs.get("lr")
        yield entry.kwargs, entry.desc
        if not isinstance(rate, torch.Tensor):
            default = info.optim_cls([torch.nn.Parameter(torch.zeros(1, 1))]).defaults["lr"]
            yield {**entry.kwargs, "lr": torch.tensor(default if rate is None else rate)}, f"{entry.desc} tensor lr"


def _is_valid(case: Case) -> bool:
    """Some optimizers refuse a tensor learning rate with foreach=True."""
    try:
        case.make([torch.nn.Parameter(torch.zeros(2, 2))])
    except ValueError as error:
        assert "lr as a Tensor" in str(error), error
        return False
    return True
