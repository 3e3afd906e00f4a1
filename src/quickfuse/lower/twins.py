"""What is alike, and does not depend on each other, is lowered once: a graph without the twins of its parts.

An optimizer that only looks at one parameter at a time is as many parts as there are parameters. Lists of `torch._foreach_*`
are taken apart into their members, and numbers that are computed alike count as one. Two parts are twins if the same is done
in both, in one order, with tensors of the same types, shapes and strides, and both read the same tensors besides, which
nothing changes. Two parts of each kind are left, so that they become the members of one kernel, as all of them would.

`schedule/twins.py` gives the others back: what a kernel does with the tensors of a part, it does with those of its twins.
This takes part in every compilation of an optimizer, for every parameter: it is to be quick.
"""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from torch.fx import Graph, Node

from quickfuse.ir.arguments import leaves, map_leaves
from quickfuse.ir.effects import Effects
from quickfuse.ir.nodes import copied_node
from quickfuse.ir.twins import Part, WithoutTwins
from quickfuse.ir.values import NumberMeta, TensorMeta

#: How many parts of a kind are left: kernels of one member would be put together with others.
_LEFT = 2
#: A graph of fewer tensors is lowered as it is, and so is one of which less than this share would be left out.
_FEWEST_TENSORS = 16
_LEAST_SHARE = 0.5


class _Connected(Exception):
    """The graph is not taken apart."""


def without_twins(graph: Graph) -> WithoutTwins | None:
    """A graph, whose nodes say what they change, without the twins of its parts; None where it has few or none."""
    nodes = list(graph.nodes)
    inputs = [node for node in nodes if node.op == "placeholder"]
    if sum([type(node.meta.get("val")) is TensorMeta for node in inputs]) < _FEWEST_TENSORS:
        return None
    try:
        connected = _Connections(nodes)
        return _Parts(nodes, inputs, connected).without_twins(graph)
    except _Connected:
        return None


# --- what belongs together ---


class _Connections:
    """The calls of a graph, or their members, that lead to each other by tensors or by numbers out of tensors.

    `part` has the number of the part of each node that is in one, and `members` those of the members of a call. What nothing
    changes connects nothing; it is in a part if that alone reads it. `numbers` has, for each number of the host, the
    first one that is computed in the same way.
    """

    def __init__(self, nodes: list[Node]) -> None:
        self.part: dict[Node, int] = {}
        self.members: dict[Node, list[int]] = {}
        self.numbers: dict[Node, Node] = {}
        self._known: dict[Any, Node] = {}
        self._parent: list[int] = []
        self._readers: dict[Node, list[int]] = {}
        changed = _changed(nodes)
        for node in nodes:
            kind = node.op
            if kind.startswith("call"):
                self._add(node)
            elif kind == "placeholder":
                if node in changed:
                    self.part[node] = self._reading(())
                elif type(node.meta["val"]) is TensorMeta:
                    self._readers[node] = []
            elif kind != "output":
                raise _Connected
        self._finish()

    def _find(self, number: int) -> int:
        parent = self._parent
        while parent[number] != number:
            parent[number] = number = parent[parent[number]]
        return number


    def _finish(self) -> None:
        found = [self._find(number) for number in range(len(self._parent))]
        self.sizes = Counter(found)
        self.part = {node: found[number] for node, number in self.part.items()}
        self.members = {node: [found[number] for number in numbers] for node, numbers in self.members.items()}
        for node, readers in self._readers.items():
            parts = {found[number] for number in readers}
            if len(parts) == 1:
                self.part[node] = parts.pop()

    def _add(self, node: Node) -> None:
        columns = _columns(node)
        if columns is not None:
            shared = [arg for arg in (*node.args, *node.kwargs.values()) if isinstance(arg, Node)]
            self.members[node] = [self._reading((*member, *shared)) for member in zip(*columns, strict=True)]
            return
        taken = self.member_taken(node)
        if taken is not None:
            self.part[node] = self.members[taken[0]][taken[1]]
            return
        operands = node.all_input_nodes
        meta, effects = node.meta.get("val"), node.meta.get("effects")
        if any(operand in self.part or operand in self._readers for operand in operands):
            self.part[node] = self._reading(operands)
            if effects and (effects.reshaped or not all(operand in self.part for operand in _written(node))):
                raise _Connected
        elif effects or any(operand in self.members for operand in operands):
            raise _Connected  # what is in no part changes between the parts
        elif type(meta) is NumberMeta and not meta.from_tensor:
            self.numbers[node] = self._known.setdefault(self.constant((node.target, node.args, node.kwargs)), node)

    def member_taken(self, node: Node) -> tuple[Node, int] | None:
        """The call and the member of which a node takes the result, if so."""
        if node.target is not operator.getitem:
            return None
        source: Any = node.args[0]
        if not isinstance(source, Node) or source not in self.members:
            return None
        index = node.args[1]
        if type(index) is not int or not 0 <= index < len(self.members[source]):
            raise _Connected
        return source, index

    def _reading(self, operands: Iterable[Any]) -> int:
        """A number that is in one part with those of operands."""
        number = len(self._parent)
        self._parent.append(number)
        for operand in operands:
            other = self.part.get(operand)
            if other is not None:
                self._parent[self._find(other)] = number
            elif operand in self._readers:
                self._readers[operand].append(number)
            elif operand in self.members:  # the whole list
                raise _Connected
        return number

    def constant(self, value: Any) -> Any:
        """An argument that is in no part as something that is equal where it is the same."""
        return _key(value, self.of_no_part)

    def of_no_part(self, node: Node) -> Node:
        """What stands for a node in no part: of numbers that are computed alike, the first."""
        return self.numbers.get(node, node)


def _key(value: Any, of_node: Callable[[Node], Any]) -> Any:
    """An argument as something that is equal where it is the same, with what `of_node` gives for nodes."""
    kind = type(value)
    if kind is int or kind is str:
        return kind, value
    if kind is float or kind is complex:
        return kind, repr(value)  # 0.0 equals -0.0, and NaN nothing
    if isinstance(value, Node):
        return of_node(value)
    if isinstance(value, (list, tuple)):
        return kind, tuple([_key(v, of_node) for v in value])
    if isinstance(value, dict):
        return kind, tuple([(key, _key(v, of_node)) for key, v in value.items()])
    if kind is slice:
        return kind, _key((value.start, value.stop, value.step), of_node)
    return kind, value


def _columns(node: Node) -> list[Any] | None:
    """The lists that are operands of a call which does the same with each member of them, one by one; None for others."""
    if node.op != "call_function" or not _takes_lists(node.target):
        return None
    first = node.args[0] if node.args else None
    if not isinstance(first, (list, tuple)) or not all(isinstance(member, Node) for member in first):
        return None
    count, columns = len(first), []
    for arg in (*node.args, *node.kwargs.values()):
        if isinstance(arg, (list, tuple)):
            columns.append(arg)
            if len(arg) != count or any(isinstance(member, (list, tuple, dict)) for member in arg):
                return None
        elif isinstance(arg, Node) and _dimensions(arg):  # it may have a number for each member
            return None
    metas, effects = node.meta.get("val"), node.meta.get("effects")
    if metas is not None and not (isinstance(metas, (list, tuple)) and len(metas) == count):
        return None
    if effects and (effects.reshaped or any(k is not None and k != at for at, k in enumerate(effects.memory))):
        return None
    return None if effects and max(effects.written, default=0) >= count else columns


@functools.lru_cache(maxsize=4096)
def _takes_lists(target: Any) -> bool:
    return str(getattr(target, "__name__", "")).startswith("_foreach_")


def _dimensions(node: Node) -> int:
    meta = node.meta.get("val")
    return meta.ndim if type(meta) is TensorMeta else 0 if type(meta) is NumberMeta else 1


def _operands(node: Node) -> list[Node]:
    """The tensors among the arguments of a call, as `Effects` numbers them."""
    found = leaves((node.args, node.kwargs))
    return [leaf for leaf in found if isinstance(leaf, Node) and type(leaf.meta.get("val")) is TensorMeta]


def _written(node: Node) -> list[Node]:
    operands = _operands(node)
    return [operands[k] for k in node.meta["effects"].written]


def _changed(nodes: list[Node]) -> set[Node]:
    """The operands of calls that change them, or that return their memory, through which they may be changed."""
    found: set[Node] = set()
    for node in nodes:
        effects: Effects | None = node.meta.get("effects")
        if effects:
            operands = _operands(node)
            found.update([operands[k] for k in dict.fromkeys((*effects.written, *effects.memory)) if k is not None])
    return found


# --- which of it is alike ---


class _Parts:
    """Tells which parts of a graph are alike, and makes the graph without some of them."""

    def __init__(self, nodes: list[Node], inputs: list[Node], connected: _Connections) -> None:
        self.nodes, self.connected, self.part = nodes, connected, connected.part
        self.position = {node: k for k, node in enumerate(inputs)}
        self.results = nodes[-1].args[0]
        if nodes[-1].op != "output" or not isinstance(self.results, (list, tuple)):
            raise _Connected
        #: What is done in each part, and the part as others see it.
        self.done: dict[int, list[Any]] = {}
        self.parts: dict[int, Part] = {}
        self._number: dict[Any, int] = {}

    def without_twins(self, graph: Graph) -> WithoutTwins | None:
        sizes = self.connected.sizes
        if len(sizes) <= _LEFT or max(sizes.values()) > (1 - _LEAST_SHARE) * sizes.total():
            return None
        self._describe()
        alike: dict[Any, list[int]] = {}
        for part, done in self.done.items():
            if self.parts[part].inputs:  # what has no tensors of its own changes none
                try:
                    alike.setdefault(tuple(done), []).append(part)
                except TypeError:  # an argument without a hash
                    return None
        for members in alike.values():
            self.parts[members[0]].twins = [self.parts[part] for part in members[_LEFT:]]
        gone = {part for members in alike.values() for part in members[_LEFT:]}
        if sum([sizes[part] for part in gone]) < _LEAST_SHARE * sizes.total():
            return None
        kept = [k for node, k in self.position.items() if self.part.get(node) not in gone]
        given = [k for k, node in enumerate(self.results) if not isinstance(node, Node) or self.part.get(node) not in gone]
        left = [part for number, part in self.parts.items() if number not in gone]
        return WithoutTwins(self._without(gone, given), graph, kept, given, left)

    def _describe(self) -> None:
        connected, block = self.connected, 0
        for node in self.nodes:
            if node in connected.members:
                self._describe_members(node)
            elif node.op.startswith("call"):
                part, meta = self.part.get(node), node.meta
                if part is None:
                    block += meta.get("val") is None  # other modes may hold after it
                elif (taken := connected.member_taken(node)) is not None:
                    self._number[node] = self._number[taken]
                else:
                    args, kwargs = self._constant(part, node.args), node.kwargs and self._constant(part, node.kwargs)
                    known = meta.get("val")
                    known = tuple(known) if isinstance(known, list) else known
                    self._add(part, node, (
                        node.target, block, args, kwargs, known, meta.get("effects"), meta.get("never_raises"),
                    ))  # fmt: skip
        for k, node in enumerate(self.results):
            part = self.part.get(node) if isinstance(node, Node) else None
            if part is not None:
                self._add(part, None, ("output", self._constant(part, node)))
                self.parts[part].outputs.append(k)
            elif isinstance(node, (list, tuple, dict)) or node in connected.members:
                raise _Connected

    def _describe_members(self, node: Node) -> None:
        metas = node.meta.get("val")
        columns = [arg for arg in (*node.args, *node.kwargs.values()) if isinstance(arg, (list, tuple))]
        for k, (part, member) in enumerate(zip(self.connected.members[node], zip(*columns, strict=True), strict=True)):
            self._add(part, (node, k), (node, metas and metas[k], *[self._constant(part, operand) for operand in member]))

    def _add(self, part: int, key: Any, entry: Any) -> None:
        done = self._done(part)
        self._number[key] = len(done)
        done.append(entry)

    def _done(self, part: int) -> list[Any]:
        done = self.done.get(part)
        if done is None:
            done = self.done[part] = []
            self.parts[part] = Part(len(self.parts))
        return done

    def _constant(self, part: int, value: Any) -> Any:
        """An argument as something that is equal where the same is done in other parts."""
        return _key(value, functools.partial(self._of_part, part))

    def _of_part(self, part: int, node: Node) -> Any:
        if self.part.get(node) != part:
            return self.connected.of_no_part(node)
        number = self._number.get(node)
        if node.op != "placeholder":
            return number
        if number is None:
            self._done(part)
            own = self.parts[part].inputs
            number = self._number[node] = len(own)
            own.append(self.position[node])
        return "input", number, node.meta["val"], node.meta.get("lies")

    def _without(self, gone: set[int], given: list[int]) -> Graph:
        """The graph without some parts."""
        reduced = Graph()
        copies: dict[Node, Node] = {}
        members, numbers = self.connected.members, self.connected.numbers

        def copy_of(node: Node) -> Node:
            return copies[numbers.get(node, node)]

        for node in self.nodes[:-1]:
            if node in members:
                kept = [k for k, part in enumerate(members[node]) if part not in gone]
                copies[node] = _with_members(reduced, node, kept, copy_of)
            elif self.part.get(node) not in gone and numbers.get(node, node) is node:
                copies[node] = copied_node(reduced, node, copy_of)
                taken = self.connected.member_taken(node)
                if taken is not None:
                    before = sum([part not in gone for part in members[taken[0]][: taken[1]]])
                    copies[node].args = (copies[taken[0]], before)
            else:
                continue
            copies[node].name = node.name  # by which numbers are known
        reduced.output(tuple([copy_of(r) if isinstance(r, Node) else r for r in [self.results[k] for k in given]]))
        return reduced


def _with_members(graph: Graph, node: Node, kept: list[int], copy_of: Callable[[Node], Node]) -> Node:
    """A copy of a call that has only some of its members."""

    def some(value: Any) -> Any:
        return [value[k] for k in kept] if isinstance(value, (list, tuple)) else value

    def copied(leaf: Any) -> Any:
        return copy_of(leaf) if isinstance(leaf, Node) else leaf

    copy = graph.create_node(node.op, node.target, name=node.name)
    copy.args = tuple([map_leaves(copied, some(arg)) for arg in node.args])
    copy.kwargs = {name: map_leaves(copied, some(arg)) for name, arg in node.kwargs.items()}
    copy.meta = {**node.meta, "val": some(node.meta.get("val"))}
    effects: Effects | None = node.meta.get("effects")
    if effects:
        memory = tuple([None if effects.memory[k] is None else at for at, k in enumerate(kept)]) if effects.memory else ()
        copy.meta["effects"] = Effects(memory, tuple([at for at, k in enumerate(kept) if k in effects.written]))
    return copy
