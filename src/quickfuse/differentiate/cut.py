"""Minimum cuts, by maximum flows: along shortest paths first (Dinic's algorithm).

An algorithm of our own, since to import that of a library takes as long as a small network's first call takes otherwise.
"""

from __future__ import annotations

#: A capacity that no cut goes through.
ENDLESS = 1 << 60

_SOURCE, _SINK = 0, 1


class Network:
    """A flow network. Nodes are numbers; 0 is the source and 1 the sink.

    `_edges` has the numbers of the edges that leave each node. Edge k leads to `_heads[k]`, `_left[k]` is what may flow
    through it still, and edge k ^ 1 leads back, through which as much may flow as has flowed through edge k.
    """

    def __init__(self) -> None:
        self._edges: list[list[int]] = [[], []]
        self._heads: list[int] = []
        self._left: list[int] = []

    def node(self) -> int:
        """A new node."""
        self._edges.append([])
        return len(self._edges) - 1

    def edge(self, tail: int, head: int, capacity: int) -> None:
        """A new edge."""
        self._edges[tail].append(len(self._heads))
        self._edges[head].append(len(self._heads) + 1)
        self._heads += (head, tail)
        self._left += (capacity, 0)

    def before_sink(self) -> set[int]:
        """The nodes on the sink's side of the minimum cut that is closest to the sink."""
        while True:
            distances = self._distances()
            if _SOURCE not in distances:
                return set(distances)
            self._fill(distances)

    def _distances(self) -> dict[int, int]:
        """How many edges, through which something may flow still, lead at least from each node to the sink."""
        edges, heads, left = self._edges, self._heads, self._left
        distances = {_SINK: 0}
        reached = [_SINK]
        for node in reached:
            further = distances[node] + 1
            for edge in edges[node]:
                tail = heads[edge]
                if left[edge ^ 1] and tail not in distances:
                    distances[tail] = further
                    reached.append(tail)
        return distances

    def _fill(self, distances: dict[int, int]) -> None:
        """Let as much flow along shortest paths as can."""
        edges, heads, left = self._edges, self._heads, self._left
        untried = {node: iter(edges[node]) for node in distances}
        path: list[int] = []
        node = _SOURCE
        while True:
            if node == _SINK:
                flow = min([left[edge] for edge in path])
                full = len(path)
                for at, edge in enumerate(path):
                    left[edge] -= flow
                    left[edge ^ 1] += flow
                    if not left[edge] and at < full:
                        full = at
                node = heads[path[full] ^ 1]  # from which another edge is tried
                del path[full:]
                continue
            nearer = distances[node] - 1
            for edge in untried[node]:
                if left[edge] and distances.get(heads[edge]) == nearer:
                    path.append(edge)
                    node = heads[edge]
                    break
            else:
                if not path:
                    return
                node = heads[path.pop() ^ 1]
