"""Checks of what a tensor holds, where eager mode raises an exception."""

from __future__ import annotations

from typing import Any

from . import ops
from .calls import rule
from .context import Context
from .rules import no_rule_if
from .symbolic import Tensor

__all__ = ["assert_async", "linalg_check_errors"]


@rule("_assert_async")
def assert_async(ctx: Context, meta: Any, input: Tensor, assert_msg: Any = None) -> None:
    """`torch._assert_async`: the only element is not zero."""
    no_rule_if(input.meta.numel != 1)
    value = ctx.formula(input)
    ctx.raise_where(ops.eq(value, 0), input.meta.shape, input.meta.device)


@rule("_linalg_check_errors")
def linalg_check_errors(ctx: Context, meta: Any, info: Tensor, api_name: str, is_matrix: bool) -> None:
    """What `linalg.inv` and the like end with where autograd sees them: for each matrix a number, zero if it succeeded.

    Where one is not, the program runs again in Python, which raises the exception with its text. On GPUs it is not traced.
    """
    value = ctx.formula(info)
    ctx.raise_where(ops.ne(value, 0), info.meta.shape, info.meta.device)
