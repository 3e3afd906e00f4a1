"""Minimum cuts, by networkx, which is imported where the first graph with gradients is compiled."""

from __future__ import annotations

from ..signals import whole_module

#: A capacity that no cut goes through.
ENDLESS = 1 << 60


class Network:
    """A flow network. Nodes are numbers; 0 is the source and 1 the sink."""

    def __init__(self) -> None:
        self._graph = whole_module("networkx").DiGraph()
        self._graph.add_nodes_from((0, 1))

    def node(self) -> int:
        """A new node."""
        number = len(self._graph)
        self._graph.add_node(number)
        return number

    def edge(self, tail: int, head: int, capacity: int) -> None:
        """A new edge. There is one between two nodes at most."""
        self._graph.add_edge(tail, head, capacity=capacity)

    def before_sink(self) -> set[int]:
        """The nodes on the sink's side of the minimum cut that is closest to the sink."""
        networkx = whole_module("networkx")
        _, (_, side) = networkx.minimum_cut(self._graph, 0, 1, flow_func=networkx.algorithms.flow.boykov_kolmogorov)
        return set(side)
