"""What a call of a graph does besides making new tensors."""

from __future__ import annotations

from dataclasses import dataclass

from .values import TensorMeta


@dataclass(frozen=True, slots=True)
class Effects:
    """What a call does to its operands' memory. Tensor operands are numbered in order of appearance in its arguments.

    memory: for each tensor that the call returns, the operand that it is or whose memory it shares, or None.
    written: the operands whose contents change.
    reshaped: the operands that get another shape, other strides or another type, with their metadata afterwards.
    counted: the operands that PyTorch counts a change of (see `ir.sharing`).
    """

    memory: tuple[int | None, ...] = ()
    written: tuple[int, ...] = ()
    reshaped: tuple[tuple[int, TensorMeta], ...] = ()
    counted: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.written or self.reshaped) or any(operand is not None for operand in self.memory)


#: Of a call that makes new tensors and nothing else.
NO_EFFECTS = Effects()
