"""Numbers that a program reads out of tensors, as tensors of one element: `torch.export` has no numbers.

An optimizer that reads its count of steps computes with it in double precision. Here that is arithmetic on tensors of
float64, and operators that take such a number take the tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from ..errors import ExportError
from ..ir.values import NumberMeta, TensorMeta
from .numbers import NAMES

aten = torch.ops.aten

#: Arithmetic on numbers -> operators on tensors, where one operand may be a number.
_ARITHMETIC: dict[str, Any] = {
    "add": aten.add.Tensor, "sub": aten.sub.Tensor, "mul": aten.mul.Tensor, "truediv": aten.div.Tensor,
    "neg": aten.neg.default, "abs": aten.abs.default, "math.sqrt": aten.sqrt.default, "math.exp": aten.exp.default,
    "math.log": aten.log.default,
}  # fmt: skip
#: Operators that multiply what comes of their second and third operand by a number -> what comes of these.
_SCALED: dict[Any, Any] = {aten.addcdiv.default: aten.div.Tensor, aten.addcmul.default: aten.mul.Tensor}
_NUMBER = TensorMeta(torch.float64, (), (), torch.device("cpu"))

Emit = Callable[[Any, tuple[Any, ...], dict[str, Any], TensorMeta], Node]


class TensorNumbers:
    """Writes nodes for numbers out of tensors and for what takes them. `emit` makes a node of (operator, operands, keyword
    operands, metadata)."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._numbers: set[Node] = set()

    def made(self, node: Node, args: tuple[Any, ...]) -> Node:
        """The tensor for a number: out of a tensor, or computed from numbers.

        Raises:
            ExportError: for whole numbers, and arithmetic that has no such form.
        """
        meta = node.meta["val"]
        name = NAMES.get(node.target, "")  # type: ignore[arg-type]
        known = name in ("item", "pow", *_ARITHMETIC)
        if not known or not isinstance(meta, NumberMeta) or meta.kind is not float:
            raise ExportError("the program reads a number out of a tensor (item()), which torch.export has no form of")
        if name == "item":
            held = args[0].meta["val"]
            flat = self._emit(aten.view.default, (args[0], []), {}, TensorMeta(held.dtype, (), (), held.device))
            made = self._emit(aten._to_copy.default, (flat,), {"dtype": torch.float64, "device": _NUMBER.device}, _NUMBER)
        elif name == "pow":
            made = self._emit(_power(args, self._numbers), args, {}, _NUMBER)
        else:
            operands = [a if a in self._numbers else self._constant(a) for a in args]
            made = self._emit(_ARITHMETIC[name], tuple(operands), {}, _NUMBER)
        self._numbers.add(made)
        return made

    def takes_any(self, args: Any, kwargs: Any) -> bool:
        """Whether an operator takes a number out of a tensor."""
        return any(isinstance(a, Node) and a in self._numbers for a in (*args, *kwargs.values()))

    def taken(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], meta: TensorMeta) -> Node:
        """What an operator gives that takes such numbers.

        Raises:
            ExportError: for an operator that takes no tensor in place of a number.
        """
        if target in _SCALED and kwargs.get("value") in self._numbers:
            scaled = self._emit(_SCALED[target], args[1:], {}, meta)
            scaled = self._emit(aten.mul.Tensor, (scaled, self._as(kwargs["value"], meta)), {}, meta)
            return self._emit(aten.add.Tensor, (args[0], scaled), {}, meta)
        if target in (aten.add.Tensor, aten.sub.Tensor) and kwargs.get("alpha") in self._numbers:
            scaled = self._emit(aten.mul.Tensor, (args[1], self._as(kwargs["alpha"], meta)), {}, meta)
            return self._emit(target, (args[0], scaled), {}, meta)
        takes = getattr(target, "_overloadname", "") in ("Tensor", "Scalar") and not kwargs
        tensors = getattr(getattr(target, "overloadpacket", None), "Tensor", None)
        if not takes or tensors is None:
            raise ExportError(f"{target} takes a number out of a tensor (item()), which torch.export has no form of")
        return self._emit(tensors, tuple([self._as(a, meta) if a in self._numbers else a for a in args]), {}, meta)

    def _as(self, number: Node, meta: TensorMeta) -> Node:
        """A number in the type that an operator computes in."""
        like = TensorMeta(meta.dtype, (), (), meta.device)
        return self._emit(aten._to_copy.default, (number,), {"dtype": meta.dtype, "device": meta.device}, like)

    def _constant(self, value: Any) -> Node:
        options = {"dtype": torch.float64, "device": _NUMBER.device}
        return self._emit(aten.full.default, ([], float(value)), options, _NUMBER)


def _power(args: tuple[Any, ...], numbers: set[Node]) -> Any:
    base, exponent = (isinstance(a, Node) and a in numbers for a in args)
    return aten.pow.Tensor_Tensor if base and exponent else aten.pow.Tensor_Scalar if base else aten.pow.Scalar
