"""What must come before what: a node for each store and each call, and the dependences between them.

    read after write    a node loads what another one stores
    write after read    a store to an input overwrites what another node still reads: loads of inputs see the old value
    write after write   a scatter changes some elements of a buffer and leaves the others as earlier stores have them
    order               random draws one after the other; nothing changes an input before it is known that no call fails
                        and that no flag was set, since then the graph runs in eager mode

A dependence names the two accesses that touch the same memory, where they are known element by element. Whether these are
the same element at each index decides whether both nodes may be in one kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

import torch

from quickfuse.ir.loop import Access, Buffer, Extern, Loop, Program, Store, StoreKind
from quickfuse.ir.overlaps import disjoint, may_read, views_read
from quickfuse.ir.reindex import IndexMap, reindex

from .index_space import Shape, reduced_axes
from .reading import Reading, read

if TYPE_CHECKING:
    from .fusion import FusionGroup


class Kind(Enum):
    """Why one node comes before another."""

    READ_AFTER_WRITE = "reads"
    WRITE_AFTER_READ = "overwrites"
    WRITE_AFTER_WRITE = "changes"
    ORDER = "follows"


@dataclass(eq=False, slots=True)
class Node:
    """A store with its index space and what it reads, or a call of PyTorch.

    A node with neither is a barrier: it does nothing, and comes after some nodes and before others.

    `reduced`: the axes that the store reduces, or the one that it goes along if it is `ordered`; None for a plain store.
    `group`: the fusion group it is in, and `into`: how its indices follow from those of the group, where that has others.
    """

    index: int
    shape: Shape = ()
    device: torch.device | None = None
    store: Store | None = None
    reading: Reading | None = None
    call: Extern | None = None
    reduced: Shape | None = None
    ordered: bool = False
    before: list[Dependence] = field(default_factory=list)
    group: FusionGroup | None = None
    into: IndexMap | None = None

    @property
    def loads(self) -> list[Access]:
        return self.reading.accesses if self.reading is not None else []

    @property
    def changes_input(self) -> bool:
        return self.store is not None and self.store.access.buffer.kind == "input"

    @property
    def target(self) -> Access | None:
        """The element that is stored to at each index; None where that is not known, as of a scatter."""
        return None if self.store is None or self.store.kind is StoreKind.SCATTER else self.store.access

    def embed(self, index_map: IndexMap, space: Shape) -> None:
        """Become the same node over the indices of `space`."""
        store = self.store
        self.into, self.shape = index_map, space
        self.store = Store(index_map.access(store.access), reindex(store.value, index_map))
        self.reading = read(self.store.value)

    def __str__(self) -> str:
        return str(self.store or self.call or "barrier")


@dataclass(eq=False, slots=True)
class Dependence:
    """`before` runs before the node that has this. `mine` and `theirs`: the accesses of that node and of `before` that touch
    the same memory, each over its node's own index space; None where it is not known element by element."""

    before: Node
    kind: Kind
    mine: Access | None = None
    theirs: Access | None = None


def store_node(index: int, shape: Shape, device: torch.device, store: Store) -> Node:
    """A node without its dependences."""
    reduced = reduced_axes(shape, store)
    return Node(index, shape, device, store, read(*store.roots), reduced=reduced, ordered=store.in_order)


def dependence_graph(program: Program) -> list[Node]:
    """The nodes of a program in its order, with what comes before each."""
    nodes: list[Node] = []
    for step in program.steps:
        if isinstance(step, Loop):
            nodes += [store_node(len(nodes) + k, step.shape, step.device, store) for k, store in enumerate(step.stores)]
        else:
            nodes.append(Node(len(nodes), call=step))
    writers = _writers(nodes)
    for node in nodes:
        node.before += _reads(node, writers)
        if node.call is not None and node.call.after is not None:
            node.before += [Dependence(writer, Kind.ORDER) for writer in writers[node.call.after.outputs[0]]]
    _overwrites(nodes)
    _changes(writers)
    return nodes + _barrier(nodes)


def _writers(nodes: list[Node]) -> dict[Buffer, list[Node]]:
    writers: dict[Buffer, list[Node]] = {}
    for node in nodes:
        if node.store is not None:
            writers.setdefault(node.store.access.buffer, []).append(node)
        elif node.call is not None:
            writers.update((buffer, [node]) for buffer in node.call.outputs)
    return writers


def _reads(node: Node, writers: dict[Buffer, list[Node]]) -> list[Dependence]:
    """The stores that fill what a node reads. Those to inputs do not count: loads see what was there before."""
    found = []
    for access in node.loads:
        if access.buffer.kind == "input":
            continue
        several = writers.get(access.buffer, ())
        for writer in several:
            stored = writer.store
            if len(several) == 1 or stored is None or not disjoint(node.shape, access, writer.shape, stored.access):
                found.append(Dependence(writer, Kind.READ_AFTER_WRITE, access, writer.target))
    if node.call is not None:
        for buffer, views in views_read(node.call).items():
            several = writers.get(buffer, ()) if buffer.kind != "input" else ()
            for writer in several:
                stored = writer.store
                if len(several) == 1 or stored is None or may_read(views, writer.shape, stored.access):
                    found.append(Dependence(writer, Kind.READ_AFTER_WRITE))
    return found


def _overwrites(nodes: list[Node]) -> None:
    """Stores to inputs come after what reads the old values."""
    stores: dict[Buffer, list[Node]] = {}
    for node in nodes:
        if node.changes_input and node.store is not None:
            stores.setdefault(node.store.access.buffer, []).append(node)
    for reader in nodes if stores else ():
        for access in reader.loads:
            for node in stores.get(access.buffer, ()):
                if not disjoint(node.shape, node.store.access, reader.shape, access):
                    node.before.append(Dependence(reader, Kind.WRITE_AFTER_READ, node.target, access))
        if reader.call is not None:
            for buffer in reader.call.reads:
                for node in stores.get(buffer, ()):
                    node.before.append(Dependence(reader, Kind.WRITE_AFTER_READ))


def _changes(writers: dict[Buffer, list[Node]]) -> None:
    """Scatters come after earlier stores to their buffer, and later stores after them."""
    for nodes in writers.values():
        scatters: list[Node] = []
        plain: list[Node] = []
        for node in nodes if any(node.store and node.store.kind is StoreKind.SCATTER for node in nodes) else ():
            is_scatter = node.store is not None and node.store.kind is StoreKind.SCATTER
            earlier = [*plain, *scatters] if is_scatter else scatters
            node.before += [Dependence(other, Kind.WRITE_AFTER_WRITE) for other in earlier]
            (scatters if is_scatter else plain).append(node)


def _barrier(nodes: list[Node]) -> list[Node]:
    """A node between all that may send the graph to eager mode and all that changes an input."""
    stores = [node for node in nodes if node.changes_input]
    uncertain = [
        node for node in nodes
        if (node.call is not None and node.call.may_fail) or (node.store is not None and node.store.kind is StoreKind.FLAG)
    ]  # fmt: skip
    if not stores or not uncertain:
        return []
    barrier = Node(len(nodes), before=[Dependence(node, Kind.ORDER) for node in uncertain])
    for node in stores:
        node.before.append(Dependence(barrier, Kind.ORDER))
    return [barrier]


def topological_order(nodes: list[Node]) -> list[Node]:
    """The nodes after all that comes before them, otherwise as they are. There are no cycles any more (`copies.py`), but for
    nodes that are to be in one group."""
    done: list[Node] = []
    state: dict[Node, bool] = {}  # whether it is done, or only begun
    for first in nodes:
        stack = [first]
        while stack:
            node = stack[-1]
            if state.get(node) is None:
                state[node] = False
                stack += [d.before for d in reversed(node.before) if d.before not in state]
            else:
                stack.pop()
                if not state[node]:
                    state[node] = True
                    done.append(node)
    return done
