"""What a workload gives for one variant: something to time, and tensors to compare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch


class Missing(Exception):
    """A peer that cannot run this workload here. The message is one clause for the user."""


@dataclass
class Step:
    """What is timed: `make()` gives the function, which is called with `args`.

    `make` is a part of the cold time, because wrapping a function may already cost something. `synchronize` waits for
    the work that calls have started. `state` are the tensors that a call changes, for comparing variants; `collect()`
    finds those that a call makes anew. `forward`, if any, makes from the function what is kept until `backward()`.
    """

    make: Callable[[], Callable[..., Any]]
    args: tuple[Any, ...] = ()
    synchronize: Callable[[], None] = lambda: None
    state: list[torch.Tensor] = field(default_factory=list)
    collect: Callable[[], list[torch.Tensor]] = list
    forward: Callable[[], Any] | None = None

    def results(self) -> list[torch.Tensor]:
        """All tensors to compare."""
        return [*self.state, *self.collect()]
