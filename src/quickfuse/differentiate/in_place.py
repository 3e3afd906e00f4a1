"""Operators that change their operands, as operators that return the new contents.

PyTorch has such a form of nearly each of them: `add` of `add_`, `mm` of `mm(..., out=)`, `rrelu_with_noise_functional` of
`rrelu_with_noise`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from ..errors import Unsupported
from ..ir.nodes import is_view
from ..ir.overlaps import apart
from .traced import TracedTensor

aten = torch.ops.aten

#: Operators in place whose functional form is not the overload of their name without the underscore.
_FUNCTIONAL = {
    "aten::bernoulli_.float": aten.bernoulli.p,
    "aten::normal_": aten.normal_functional.default,
    "aten::copy_": aten.copy.default,
}

#: What operators that make tensors of numbers take beyond their forms with `out=`.
_OF_NEW_TENSORS = [
    ("dtype", "Optional[int]"), ("layout", "Optional[int]"), ("device", "Optional[Device]"), ("pin_memory", "Optional[bool]")
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Functional:
    """An operator that changes nothing. `written` has an entry for each of its results: the argument (by name) whose new
    contents it is, or None for a result of the call. `results` says what of these the call itself returns. Arguments in
    `left_out` it does not take."""

    function: Any
    written: tuple[str | None, ...]
    results: int
    left_out: frozenset[str]

    @property
    def makes_tensors(self) -> bool:
        """Whether it asks for a type and a device, as `eye` does, where `eye(3, out=x)` takes those of `x`."""
        return bool(self.left_out) and {"dtype", "device"} <= {a.name for a in self.function._schema.arguments}

    @property
    def computes_in(self) -> bool:
        """Whether it is told the type of its result, as `mean` is, where `mean(a, out=x)` computes in that of `x`."""
        return bool(self.left_out) and any(a.name == "dtype" for a in self.function._schema.arguments)


@cache
def functional_form(function: Any) -> Functional:
    """What to compute in place of an operator that changes operands.

    Raises:
        Unsupported: for one without such a form.
    """
    schema = function._schema
    mutable = {a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write}
    outs = frozenset(a.name for a in schema.arguments if a.is_out)
    returned = [_argument_of(result, schema) for result in schema.returns]
    others = [a.name for a in schema.arguments if a.name in mutable and a.name not in returned]
    for candidate in _candidates(function, bool(outs)):
        if len(candidate._schema.returns) == len(returned) + len(others) and _is_functional(candidate, function, outs):
            return Functional(candidate, (*returned, *others), len(returned), outs)
    raise Unsupported(f"{function.name()}, which has no form that leaves its operands alone")


@cache
def view_form(function: Any) -> Any:
    """The view operator that shows its operand as an operator in place makes it look (`squeeze_`).

    Raises:
        Unsupported: for an operator in place that does something else to its operand's layout.
    """
    packet = getattr(aten, function._schema.name.removeprefix("aten::").removesuffix("_"), None)
    wanted = [(a.name, str(a.type)) for a in function._schema.arguments]
    for name in () if packet is None else packet.overloads():
        view = getattr(packet, name)
        if is_view(view) and [(a.name, str(a.type)) for a in view._schema.arguments] == wanted:
            return view
    raise Unsupported(f"{function.name()}, which gives its operand other memory")


def _argument_of(result: Any, schema: Any) -> str | None:
    """The changed argument that a result is."""
    if result.alias_info is None:
        return None
    for argument in schema.arguments:
        if argument.alias_info is not None and argument.alias_info.before_set & result.alias_info.before_set:
            return str(argument.name)
    return None


def _candidates(function: Any, is_out: bool) -> list[Any]:
    name = function.name()
    if name in _FUNCTIONAL:
        return [_FUNCTIONAL[name]]
    if not name.startswith("aten::"):
        return []
    base, _, overload = name.removeprefix("aten::").partition(".")
    found = []
    for packet_name in (base if is_out else base.removesuffix("_"), f"{base.removesuffix('_')}_functional"):
        packet = getattr(aten, packet_name, None)
        names = [] if packet is None else [overload or "default", *packet.overloads()]
        found += [getattr(packet, n) for n in names if hasattr(packet, n)]
    return found


def _is_functional(candidate: Any, function: Any, left_out: frozenset[str]) -> bool:
    """Whether an operator makes new tensors of the same arguments."""
    if candidate._schema.is_mutable or is_view(candidate):
        return False
    if function.name() in _FUNCTIONAL:
        return True
    mine = [(a.name, str(a.type)) for a in candidate._schema.arguments]
    theirs = [(a.name, str(a.type)) for a in function._schema.arguments if a.name not in left_out]
    return mine == theirs or bool(left_out) and mine == [*theirs, *_OF_NEW_TENSORS]


def check_overlaps(targets: list[Any], operands: list[TracedTensor]) -> None:
    """Refuse to change what an operand overlaps without being the same elements, which eager refuses or garbles."""
    for target in targets:
        place = int(target.storage_offset()), tuple(target.shape), target.stride()
        for operand in operands:
            if operand is target or operand.memory is not target.memory:
                continue
            other = int(operand.storage_offset()), tuple(operand.shape), operand.stride()
            if other != place and not apart(place, other):
                raise Unsupported("an in-place operator between overlapping tensors")


def check_running(running: Any, operands: Any) -> None:
    """Refuse a batch norm whose running statistics are in the memory of another operand: it changes them first."""
    memories = [operand.memory for operand in operands if type(operand) is TracedTensor]
    if any(memories.count(statistic.memory) > 1 for statistic in running):
        raise Unsupported("a batch norm whose running statistics are another operand, too")
