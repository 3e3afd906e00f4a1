"""Settings of PyTorch that the captured program changes, such as how many threads there are.

Where operators come after that, the graph makes the change, and PyTorch itself runs it; in the next call the setting is as
it is to be, and guards hold it. Otherwise the change comes after the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ...errors import Unsupported
from ...ir.modes import SETTERS, choose_algorithms
from ..interpreter import Interpreter


def _change(i: Interpreter, setter: Any, allowed: Callable[[Any], bool], *given: Any) -> None:
    values = tuple([i.outside.concrete(value) for value in given])
    if not all(map(allowed, values)) or i.graph.nested:
        raise Unsupported(f"a change of a setting by {setter.__name__}")
    changed = i.graph.changed_settings
    if not any(question in changed.answers for question in SETTERS[setter]):
        before = {question: ask() for question, ask in SETTERS[setter].items()}
        for question, answer in before.items():
            i.outside.guard("state", None, (question, answer))
        if (*before.values(),) == _told_by(setter, values):
            return
    changed.answers |= dict(zip(SETTERS[setter], _told_by(setter, values), strict=True))
    changed.pending.append((setter, values))


def _told_by(setter: Any, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """What the questions about a setting are answered with after it was set."""
    return (*_PARTS[values[0]], *values) if setter is torch._C._set_float32_matmul_precision else values


#: What products of matrices are computed with on a GPU, and by oneDNN, for each precision that there is.
_PARTS = {"highest": ("ieee", "ieee"), "high": ("tf32", "tf32"), "medium": ("tf32", "bf16")}


def _is_flag(value: Any) -> bool:
    return type(value) is bool


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 < value <= 4096


def _is_precision(value: Any) -> bool:
    return type(value) is str and value in _PARTS


def _algorithms(i: Interpreter, mode: Any, *, warn_only: Any = False) -> None:
    _change(i, choose_algorithms, _is_flag, mode, warn_only)


HANDLERS: dict[Any, Callable[..., Any]] = {
    torch.use_deterministic_algorithms: _algorithms,
    **{
        setter: partial(lambda i, value, setter, allowed: _change(i, setter, allowed, value), setter=setter, allowed=allowed)
        for setter, allowed in (
            (torch.set_num_threads, _is_count), (torch._C._set_cudnn_benchmark, _is_flag),
            (torch._C._set_cudnn_deterministic, _is_flag), (torch._C._set_float32_matmul_precision, _is_precision),
        )
    },
}  # fmt: skip
