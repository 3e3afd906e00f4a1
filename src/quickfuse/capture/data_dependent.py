"""Operators whose results depend on the contents of tensors, so that only running them tells what they return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_SHAPE = "the number of elements that {} returns depends on a tensor's values"
_PYTHON = "{} answers in Python from a tensor's values"
_MASK_HINT = "torch.where(mask, x, other) keeps the shape"
_SIZES = "{} takes sizes from a tensor's values"
_SIZES_HINT = "give the sizes as Python integers"

#: Name of the operator -> reason, hint.
DATA_DEPENDENT: dict[str, tuple[str, str]] = {
    "nonzero": (_SHAPE, "torch.nonzero_static(x, size=n) returns a fixed number"),
    "argwhere": (_SHAPE, "torch.nonzero_static(x, size=n) returns a fixed number"),
    "where": (_SHAPE, "give torch.where all three arguments"),
    "masked_select": (_SHAPE, _MASK_HINT),
    "getitem": ("the number of elements that a mask selects depends on its values", _MASK_HINT),
    "__getitem__": ("the number of elements that a mask selects depends on its values", _MASK_HINT),
    "index": ("the number of elements that a mask selects depends on its values", _MASK_HINT),
    "unique": (_SHAPE, ""),
    "unique_consecutive": (_SHAPE, ""),
    "unique_dim": (_SHAPE, ""),
    "bincount": (_SHAPE, "torch.zeros(n).scatter_add_ counts into a fixed number of bins"),
    "repeat_interleave": (_SHAPE, "give output_size="),
    "one_hot": (_SHAPE, "give num_classes="),
    "tensor_split": (_SIZES, _SIZES_HINT),
    "narrow": (_SIZES, _SIZES_HINT),
    "tensordot": (_SIZES, _SIZES_HINT),
    "ctc_loss": (_SIZES, "give the lengths as tuples of integers"),
    "equal": (_PYTHON, "(a == b).all() stays a tensor"),
    "allclose": (_PYTHON, "torch.isclose(a, b).all() stays a tensor"),
    "is_nonzero": (_PYTHON, "x != 0 stays a tensor"),
    "item": (_PYTHON, "the 0-dim tensor can be used as it is"),
    "tensor": ("tensor() copies the values of tensors through Python", "torch.stack keeps them in tensors"),
    "as_tensor": ("as_tensor() copies the values of tensors through Python", "torch.stack keeps them in tensors"),
    "gaussian_nll_loss": ("gaussian_nll_loss checks the values of `var`", ""),
    "linalg_lstsq": ("the shapes that {} returns depend on a matrix's rank", "torch.linalg.pinv(a) @ b has a fixed one"),
}


def is_of_values(reason: str) -> bool:
    """Whether a reason says that a tensor's values decide."""
    return reason.endswith(("a tensor's values", "depends on its values"))


def reason_of(function: Callable[..., Any], error: Exception) -> tuple[str, str]:
    """Why `function` could not run without data, and what to write instead."""
    name = str(getattr(function, "__name__", function))
    reason, hint = DATA_DEPENDENT.get(name, ("", ""))
    if not reason:
        if isinstance(error, NotImplementedError) and "item" not in str(error):
            reason = "PyTorch has no shape rule for {}"
        else:
            reason = "{} depends on a tensor's values"
    return reason.format(f"{name}()"), hint
