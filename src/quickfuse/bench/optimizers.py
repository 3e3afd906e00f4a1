"""The optimizers that the benchmark knows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimizer by its PyTorch and its Optax name.

    `moved`: how many tensors of the parameter's size a step reads or writes at the least. Adam reads parameter,
    gradient and two moments, and writes all but the gradient: 7. Step counters are too small to count.
    """

    torch_name: str
    moved: int
    options: dict[str, Any] = field(default_factory=dict)
    optax_name: str = ""
    optax_options: dict[str, Any] = field(default_factory=dict)

    def torch_optimizer(self, parameters: list[torch.nn.Parameter], **extra: Any) -> torch.optim.Optimizer:
        """The optimizer over `parameters`, with the learning rate 0.01."""
        return getattr(torch.optim, self.torch_name)(parameters, lr=0.01, **self.options, **extra)


OPTIMIZERS: dict[str, OptimizerSpec] = {
    "Adam": OptimizerSpec("Adam", 7, optax_name="adam"),
    "AdamW": OptimizerSpec("AdamW", 7, optax_name="adamw", optax_options={"weight_decay": 0.01}),
    "Adam-amsgrad": OptimizerSpec("Adam", 9, {"amsgrad": True}, "amsgrad"),
    "SGD": OptimizerSpec("SGD", 3, optax_name="sgd"),
    "SGD-momentum": OptimizerSpec("SGD", 5, {"momentum": 0.9}, "sgd", {"momentum": 0.9}),
    "Adagrad": OptimizerSpec("Adagrad", 5, optax_name="adagrad"),
    "RMSprop": OptimizerSpec("RMSprop", 5, optax_name="rmsprop", optax_options={"decay": 0.99}),
    "Adadelta": OptimizerSpec("Adadelta", 7, optax_name="adadelta"),
    "Adamax": OptimizerSpec("Adamax", 7, optax_name="adamax"),
    "NAdam": OptimizerSpec("NAdam", 7, optax_name="nadam"),
    "RAdam": OptimizerSpec("RAdam", 7, optax_name="radam"),
}
