"""Operators on lists of tensors (`torch._foreach_add_`), member by member."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..errors import Unsupported

_PREFIX = "aten::_foreach_"


def is_on_lists(function: Any) -> bool:
    return bool(function._schema.name.startswith(_PREFIX))


def members(function: Any, args: Any, kwargs: Any) -> list[Callable[[], Any]]:
    """One call for each member of the lists.

    Raises:
        Unsupported: for an operator that has no form for one tensor.
    """
    name = function._schema.name.removeprefix(_PREFIX)
    lists = [a for a in args if isinstance(a, (list, tuple))]
    single = torch.linalg.vector_norm if name == "norm" else getattr(torch.Tensor, name, None)
    if name.rstrip("_") in ("maximum", "minimum") and function._schema.overload_name != "List":
        single = getattr(torch.Tensor, name.replace("maximum", "clamp_min").replace("minimum", "clamp_max"))
    if single is None and name.endswith("_"):
        single = _in_place(getattr(torch.Tensor, name.rstrip("_"), None))
    if single is None or not lists or not isinstance(args[0], (list, tuple)):
        raise Unsupported(f"{function} on lists")
    calls = []
    for k in range(len(lists[0])):
        picked = [a[k] if isinstance(a, (list, tuple)) else a for a in args]
        options = {n: v[k] if isinstance(v, (list, tuple)) else v for n, v in kwargs.items()}
        if name.startswith(("addcmul", "addcdiv")) and len(picked) == 4:
            options["value"] = picked.pop()
        calls.append(_call(single, picked, options))
    return calls


def _in_place(function: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """An operator that has no form in place, as one."""
    return function and (lambda first, *rest, **options: first.copy_(function(first, *rest, **options)))


def _call(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Callable[[], Any]:
    return lambda: function(*args, **kwargs)
