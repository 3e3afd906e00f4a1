"""Cells of recurrent layers on GPUs, as products and elementwise operators.

There PyTorch has one operator for all gates of a cell, for which it knows no shapes without running it. Formulas: the
documentation of `torch.nn.GRUCell` and `torch.nn.LSTMCell`; a kernel of ours computes the gates of either in one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from .traced import TracedTensor


def composed(target: Callable[..., Any], args: Sequence[Any]) -> Callable[..., Any]:
    """What to call in place of `target`, itself for most operators."""
    cell = _CELLS.get(target)
    if cell is None or not args or type(args[0]) is not TracedTensor or args[0].meta.device.type == "cpu":
        return target
    device = args[0].meta.device.type
    return _narrowed(cell, torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else cell


def _narrowed(cell: Callable[..., Any], dtype: torch.dtype) -> Callable[..., Any]:
    """The cell as autocast calls it: all of its operands have one type."""

    def narrow(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(dtype) if value.is_floating_point() and value.dtype is not torch.float64 else value
        return [narrow(v) for v in value] if isinstance(value, (list, tuple)) else value

    return lambda *operands: cell(*narrow(operands))


def _gru_cell(x: Any, hidden: Any, w_x: Any, w_hidden: Any, b_x: Any = None, b_hidden: Any = None) -> Any:
    """(batch, inputs) and (batch, hidden) to (batch, hidden). The gates are, in this order: reset, update, new."""
    reset_x, update_x, new_x = F.linear(x, w_x, b_x).chunk(3, 1)
    reset_h, update_h, new_h = F.linear(hidden, w_hidden, b_hidden).chunk(3, 1)
    update = torch.sigmoid(update_h + update_x)
    new = torch.tanh(new_x + torch.sigmoid(reset_h + reset_x) * new_h)
    return (hidden - new) * update + new


def _lstm_cell(x: Any, state: Any, w_x: Any, w_hidden: Any, b_x: Any = None, b_hidden: Any = None) -> Any:
    """(batch, inputs) and a pair of (batch, hidden) to such a pair. The gates are: input, forget, cell, output."""
    hidden, cell = state
    gates = F.linear(hidden, w_hidden, b_hidden) + F.linear(x, w_x, b_x)
    taken, kept, new, shown = gates.chunk(4, 1)
    cell = torch.sigmoid(kept) * cell + torch.sigmoid(taken) * torch.tanh(new)
    return torch.sigmoid(shown) * torch.tanh(cell), cell


_CELLS: dict[Any, Callable[..., Any]] = {torch.gru_cell: _gru_cell, torch.lstm_cell: _lstm_cell}
