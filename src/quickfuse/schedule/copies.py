"""What must be copied because both the old and the new value of an input are needed, decided before anything is fused.

Only stores to inputs can wait for each other in a circle: each reads an input that another one overwrites, as in
`a, b = b, a`. Where all of them touch the same element at each index they become one kernel, which loads before it stores.
Otherwise the new values are stored to temporaries first, and copied when nothing reads the old ones any more. A scatter
changes memory that is there; it gets a copy of what it reads instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter

import torch

from quickfuse.ir.expr import Load
from quickfuse.ir.loop import Access, Buffer, Store, StoreKind
from quickfuse.ir.reindex import rewrite_accesses
from quickfuse.ir.values import TensorMeta
from quickfuse.signals import whole_module

from .dependence import Dependence, Kind, Node, store_node
from .index_space import Shape, same_elements
from .reading import read


def make_copies(nodes: list[Node]) -> tuple[list[Node], list[list[Node]]]:
    """Break the circles among stores to inputs. Returns all nodes, and those that are to be in one kernel together."""
    together = []
    copies = _Copies(nodes)
    for circle in _circles(nodes):
        if _is_one_kernel(circle):
            together.append(circle)
        else:
            for node in circle:
                copies.break_at(node)
    return [*nodes, *copies.made], together


def _circles(nodes: list[Node]) -> list[list[Node]]:
    """Stores to inputs that wait for each other, or for themselves."""
    changing = [node for node in nodes if node.changes_input]
    edges = [
        (d.before, node) for node in changing for d in node.before
        if d.before.changes_input and (d.before is not node or not _is_same_element(node, d))
    ]  # fmt: skip
    waiting: dict[Node, list[Node]] = {}
    for before, after in edges:
        waiting.setdefault(after, []).append(before)
    try:
        TopologicalSorter(waiting).prepare()
        found: Iterable[set[Node]] = []
    except CycleError:
        found = _components(edges)
    for node in changing:  # what a plain store loads of its own element is loaded before
        if any(d.before is node for d in node.before):
            node.before = [d for d in node.before if d.before is not node or not _is_same_element(node, d)]
    return sorted([sorted(component, key=lambda node: node.index) for component in found], key=lambda c: c[0].index)


def _components(edges: list[tuple[Node, Node]]) -> list[set[Node]]:
    """The sets of nodes in each of which all wait for each other, or one for itself."""
    # Few graphs have circles, and importing it takes a third of the time that importing quickfuse does.
    networkx = whole_module("networkx")
    waits = networkx.DiGraph(edges)
    return [component for component in networkx.strongly_connected_components(waits)
            if len(component) > 1 or any(waits.has_edge(node, node) for node in component)]  # fmt: skip


def _is_same_element(node: Node, dependence: Dependence) -> bool:
    """Whether a node touches at each index the element that the other one touches there."""
    mine, theirs = dependence.mine, dependence.theirs
    if mine is None or theirs is None or dependence.before.shape != node.shape:
        return False
    return same_elements(node.shape, mine, theirs)


def _is_one_kernel(circle: list[Node]) -> bool:
    first = circle[0]
    inside = set(circle)
    return (
        all((node.shape, node.device, node.reduced) == (first.shape, first.device, None) for node in circle)
        and all(_is_same_element(node, d) for node in circle for d in node.before if d.before in inside)
    )  # fmt: skip


class _Copies:
    """The temporaries of a schedule that hold old or new values of inputs, and the nodes that fill or empty them."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.made: list[Node] = []
        self._old: dict[Buffer, tuple[Buffer, Node]] = {}

    def break_at(self, node: Node) -> None:
        (self._copy_what_it_reads if node.store.kind is StoreKind.SCATTER else self._copy_new_value)(node)

    def _add(self, shape: Shape, device: torch.device, store: Store) -> Node:
        node = store_node(len(self.nodes) + len(self.made), shape, device, store)
        self.made.append(node)
        return node

    def _copy_new_value(self, node: Node) -> None:
        """Let a store go to a temporary; another node copies from there when all that reads the old value is done."""
        store = node.store
        meta = TensorMeta.dense(store.access.buffer.meta.dtype, node.shape, node.device)
        temporary = Access(Buffer(f"new{len(self.made)}", meta, "temp"), 0, meta.stride)
        if node.reduced is not None and not node.ordered:  # one element for each row
            still = tuple([0 if k in node.reduced else stride for k, stride in enumerate(meta.stride)])
            temporary = replace(temporary, strides=still)
        copy = replace(store, value=Load(temporary, meta.dtype), kind=StoreKind.ASSIGN, combine="", along=-1)
        copied = self._add(node.shape, node.device, copy)
        node.store = replace(store, access=temporary)
        copied.before = [d for d in node.before if d.kind is not Kind.READ_AFTER_WRITE and d.before is not node]
        copied.before += [Dependence(node, Kind.READ_AFTER_WRITE, temporary, temporary)]
        copied.before += [Dependence(node, Kind.WRITE_AFTER_READ, store.access, d.theirs)
                          for d in node.before if d.before is node]  # fmt: skip
        node.before = [d for d in node.before if d.kind is Kind.READ_AFTER_WRITE]

    def _copy_what_it_reads(self, node: Node) -> None:
        """Let a scatter load from copies of the inputs that change."""
        changed = {other.store.access.buffer for other in self.nodes if other.changes_input and other.store is not None}
        read_ones = dict.fromkeys(access.buffer for access in node.loads if access.buffer in changed)
        for buffer in read_ones:
            self._read_copy(node, buffer, *self._old_value(buffer, node))

    def _old_value(self, buffer: Buffer, node: Node) -> tuple[Buffer, Node]:
        """A copy of an input as it was, in memory of the same strides, and what fills it."""
        if buffer not in self._old:
            meta = buffer.meta
            memory = Buffer(f"old{len(self.made)}", replace(meta, requires_grad=False), "temp")
            copy = Store(Access(memory, 0, meta.stride), Load(Access(buffer, 0, meta.stride), meta.dtype))
            filled = self._add(meta.shape, meta.device, copy)
            self._old[buffer] = (memory, filled)
            for other in self.nodes:
                if other.changes_input and other.store is not None and other.store.access.buffer is buffer:
                    other.before.append(Dependence(filled, Kind.WRITE_AFTER_READ, other.target, copy.access))
        return self._old[buffer]

    def _read_copy(self, node: Node, buffer: Buffer, memory: Buffer, filled: Node) -> None:
        store = node.store

        def moved(access: Access) -> Access:
            return replace(access, buffer=memory) if access.buffer is buffer else access

        node.store = store.rewritten(lambda value: rewrite_accesses(value, moved))
        node.reading = read(*node.store.roots)
        for other in self.nodes:
            if other.changes_input and other.store is not None and other.store.access.buffer is buffer:
                other.before = [d for d in other.before if d.before is not node or not _is_of(d, buffer)]
        node.before.append(Dependence(filled, Kind.READ_AFTER_WRITE))


def _is_of(dependence: Dependence, buffer: Buffer) -> bool:
    """Whether a node waits until another one has read this buffer."""
    return dependence.kind is Kind.WRITE_AFTER_READ and dependence.theirs is not None and dependence.theirs.buffer is buffer
