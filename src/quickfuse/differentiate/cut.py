"""Minimum cuts: Dinic's algorithm on graphs of a few thousand edges.

networkx has it too, but importing networkx takes longer than differentiating most graphs. The tests compare with it.
"""

from __future__ import annotations

from collections import deque

#: A capacity that no cut goes through.
ENDLESS = 1 << 60


class Network:
    """A flow network. Nodes are numbers; 0 is the source and 1 the sink."""

    def __init__(self) -> None:
        self._edges: list[list[int]] = [[], []]  # of each node: numbers of the edges that leave it
        self._head: list[int] = []
        self._room: list[int] = []

    def node(self) -> int:
        """A new node."""
        self._edges.append([])
        return len(self._edges) - 1

    def edge(self, tail: int, head: int, capacity: int) -> None:
        """A new edge. Edge `e ^ 1` is the way back along edge `e`."""
        self._edges[tail].append(len(self._head))
        self._head.append(head)
        self._room.append(capacity)
        self._edges[head].append(len(self._head))
        self._head.append(tail)
        self._room.append(0)

    def before_sink(self) -> set[int]:
        """The nodes on the sink's side of the minimum cut that is closest to the sink."""
        while self._level():
            self._next = [0] * len(self._edges)
            while self._push_along_path():
                pass
        side = {1}
        waiting = [1]
        while waiting:
            for edge in self._edges[waiting.pop()]:
                other = self._head[edge]
                if self._room[edge ^ 1] and other not in side:
                    side.add(other)
                    waiting.append(other)
        return side

    def _level(self) -> bool:
        """Number the nodes by their distance from the source; whether the sink can be reached."""
        level = self._levels = [-1] * len(self._edges)
        level[0] = 0
        waiting = deque([0])
        head, room = self._head, self._room
        while waiting:
            node = waiting.popleft()
            for edge in self._edges[node]:
                if room[edge] and level[head[edge]] < 0:
                    level[head[edge]] = level[node] + 1
                    waiting.append(head[edge])
        return level[1] >= 0

    def _push_along_path(self) -> bool:
        """Find one path to the sink, by steps from level to level, and use up its capacity."""
        head, room, level, following = self._head, self._room, self._levels, self._next
        path: list[int] = []
        node = 0
        while node != 1:
            edges = self._edges[node]
            while following[node] < len(edges):
                edge = edges[following[node]]
                if room[edge] and level[head[edge]] == level[node] + 1:
                    break
                following[node] += 1
            else:
                if not path:
                    return False
                edge = path.pop()
                node = head[edge ^ 1]
                following[node] += 1
                continue
            path.append(edge)
            node = head[edge]
        amount = min([room[edge] for edge in path])
        for edge in path:
            room[edge] -= amount
            room[edge ^ 1] += amount
        return True
