"""Operators that may fail when they run, although the shapes and types of their operands fit.

A graph whose operator fails runs again in Python, instruction by instruction, so that the exception goes to the program's
own handler. Kernels change nothing before it is known that nothing fails. What runs operator by operator does, and other
backends promise nothing: there, within a `try` statement, a graph ends in front of an operator that may fail once it has
changed something in place.
"""

from __future__ import annotations

from types import CodeType
from typing import Any

import torch

from ...bytecode.decoding import decode
from ...ir.failing import may_refuse_elements
from ...ir.segment import Segment
from ...ir.values import TensorMeta
from ..inference.mutation import name_of
from ..symbolic import TensorProxy
from .builder import Builder
from .contents import owners

REASON = "an operator that may fail in a try statement, after a change in place"

_INDEXING = frozenset({"getitem", "setitem"})
#: They change running statistics, and do not mind what memory these share.
_UPDATING = frozenset("batch_norm instance_norm native_batch_norm cudnn_batch_norm sync_batch_norm".split())


def may_fail(graph: Builder, target: Any, changed: list[TensorProxy], operands: list[TensorProxy]) -> bool:
    """Whether an operator may refuse operands that capture found to fit."""
    if _name_may_fail(target, [operand.meta for operand in operands]):
        return True
    if _name(target) in _UPDATING:
        return False
    if not changed:
        return _is_foreign(target)
    return any(_may_overlap(graph.node_of(tensor), graph.node_of(other)) for tensor in changed for other in operands)


def _name(target: Any) -> str:
    return name_of(target).strip("_")


def _name_may_fail(target: Any, operands: list[TensorMeta]) -> bool:
    name = _name(target)
    if name.startswith("linalg_") or (name in _INDEXING and len(operands) > 1):
        return True
    return may_refuse_elements(name, [operand.dtype for operand in operands])


def _is_foreign(target: Any) -> bool:
    """Whether a function is none of PyTorch's."""
    module = getattr(target, "__module__", None) or "torch"
    return module.partition(".")[0] not in ("torch", "_operator")


def _may_overlap(changed: torch.fx.Node, other: torch.fx.Node) -> bool:
    """Whether different tensors may share memory: through a view, or because both come from outside."""
    if changed is other:
        return False
    left, right = owners(changed), owners(other)
    if any(node.op == "placeholder" for node in left) and any(node.op == "placeholder" for node in right):
        return True
    return not set(left).isdisjoint(right)


def graph_may_fail(graph: torch.fx.Graph) -> bool:
    """Whether an operator of a captured graph may refuse operands that fit, by what is known of it in the end."""
    return any(node.op in ("call_function", "call_method") and _node_may_fail(node) for node in graph.nodes)


def _node_may_fail(node: torch.fx.Node) -> bool:
    if node.target is torch._assert_async:
        return True
    operands = [n.meta["val"] for n in node.all_input_nodes if isinstance(n.meta.get("val"), TensorMeta)]
    return _name_may_fail(node.target, operands) or _is_foreign(node.target)


def may_be_handled(segment: Segment) -> bool:
    """Whether an operator of a captured graph is in a `try` statement of the program, which may handle its failure. What
    stands for a `raise` statement may be handled by the manager of a `with` statement, too."""
    raising = {place for node in segment.graph.nodes if node.target is torch._assert_async for place in _places(node)}
    places = {place for node in segment.graph.nodes for place in _places(node)}
    return any(is_in_try(*place) for place in places) or any(is_handled(*place) for place in raising)


def _places(node: torch.fx.Node) -> tuple[tuple[CodeType, int], ...]:
    return node.meta.get("trace", ())


def is_handled(code: CodeType, position: int) -> bool:
    """Whether an exception of an instruction goes to a `try` or `with` statement of its function."""
    return decode(code).handler_for(position) is not None


def is_in_try(code: CodeType, position: int) -> bool:
    """Whether an exception of an instruction goes to a `try` statement of its function, and not to a `with` only."""
    decoded = decode(code)
    instructions = decoded.instructions
    for _ in range(len(decoded.handlers)):
        handler = decoded.handler_for(position)
        if handler is None:
            return False
        names = [instruction.name for instruction in instructions[handler.target : handler.target + 2]]
        if "WITH_EXCEPT_START" not in names and names[0] == "PUSH_EXC_INFO":
            return True
        position = handler.target
    return False
