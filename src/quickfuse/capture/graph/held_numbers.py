"""Numbers that a graph with gradients holds by their values, as their operators are no plain arithmetic."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from torch.fx import Graph, Node, map_arg

from ...errors import Unsupported
from ...ir.number_operands import numbers_that_matter
from ...ir.values import NumberMeta
from ..symbolic import Symbol


def hold_numbers(graph: Graph, symbols: Mapping[Node, Symbol], concrete: Callable[[Symbol], Any]) -> None:
    """Put values, which `concrete` guards, in place of numbers that a trace for gradients would refuse, such as the indices
    in `x[[0, 2]]`. What comes out of a tensor or keeps changing stays: that graph runs operator by operator."""
    for node in graph.nodes:
        if node.op not in ("call_function", "call_method") or isinstance(node.meta["val"], NumberMeta):
            continue
        differentiated = any(getattr(operand.meta["val"], "requires_grad", False) for operand in node.all_input_nodes)
        held = {}
        for number in numbers_that_matter(node, differentiated):
            symbol = symbols.get(number)
            if symbol is not None and not symbol.from_tensor:
                with contextlib.suppress(Unsupported):
                    held[number] = concrete(symbol)
        if held:
            node.args, node.kwargs = map_arg((node.args, node.kwargs), lambda n, held=held: held.get(n, n))  # type: ignore[misc]
