"""Minimum cuts, by networkx, which is imported where the first graph with gradients is compiled."""

from __future__ import annotations

#: A capacity that no cut goes through.
ENDLESS = 1 << 60


class Network:
    """A flow network. Nodes are numbers; 0 is the source and 1 the sink."""

    def __init__(self) -> None:
        from networkx import DiGraph

        self._graph = DiGraph()
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
        from networkx import minimum_cut
        from networkx.algorithms.flow import boykov_kolmogorov

        _, (_, behind) = minimum_cut(self._graph, 0, 1, flow_func=boykov_kolmogorov)
        return set(behind)
