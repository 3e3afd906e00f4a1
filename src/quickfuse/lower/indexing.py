"""Rules of operators that select elements by index."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from quickfuse.ir.loop import Extern
from quickfuse.ir.values import TensorMeta

from .calls import rule
from .context import Context
from .rules import NoRule
from .symbolic import Tensor, whole_load


@rule("", "input weight padding_idx=None max_norm=None norm_type=2.0 scale_grad_by_freq=False sparse=False",
      [functional.embedding])  # fmt: skip
def embedding(
    ctx: Context, meta: Any, input: Any, weight: Any, padding_idx: Any, max_norm: Any, norm_type: Any,
    scale_grad_by_freq: Any, sparse: Any,
) -> Tensor:  # fmt: skip
    """A call of PyTorch, which checks the indices. `max_norm` would change the weights."""
    if max_norm is not None or type(meta) is not TensorMeta or any(type(t) is not Tensor for t in (input, weight)):
        raise NoRule
    buffer = ctx.temp(meta)
    ctx.program.steps.append(Extern(torch.embedding, (ctx.memory(weight), ctx.memory(input)), {}, [buffer]))
    return ctx.fresh(meta, whole_load(buffer))
