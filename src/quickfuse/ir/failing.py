"""Operators that look at their operands' elements and may refuse them, although the shapes and types fit."""

from __future__ import annotations

from collections.abc import Iterable

import torch

#: Names, without underscores in front and behind, of PyTorch's functions and of ATen's operators.
_REFUSING = frozenset(
    "gather scatter scatter_add scatter_reduce index index_select index_add index_copy index_fill index_put index_reduce "
    "take take_along_dim put embedding embedding_bag one_hot multinomial bernoulli normal cross_entropy nll_loss "
    "nll_loss_forward nll_loss2d_forward binary_cross_entropy ctc_loss cholesky cholesky_solve inverse pinverse svd "
    "lu_solve multi_margin_loss multilabel_margin_loss multilabel_margin_loss_forward masked_scatter max_unpool1d "
    "max_unpool2d max_unpool3d poisson binomial repeat_interleave histc quantile nanquantile segment_reduce".split()
)
#: Of whole numbers, by zero.
_DIVISIONS = frozenset("floor_divide floordiv ifloordiv remainder mod imod fmod div divide".split())


def may_refuse_elements(name: str, dtypes: Iterable[torch.dtype]) -> bool:
    """Whether an operator with operands of these types may refuse what is in them."""
    return name in _REFUSING or (name in _DIVISIONS and not any(dtype.is_floating_point for dtype in dtypes))
