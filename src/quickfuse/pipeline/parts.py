"""What is asked about the nodes of a captured graph that is taken apart into subgraphs and calls."""

from __future__ import annotations

from types import FunctionType

from torch.fx import Node

from ..ir.effects import Effects
from ..ir.gradients import registers_hook, takes_gradients
from ..ir.nodes import takes_a_result
from ..ir.sharing import base_of, effects_in, takes_data, tensor_operands
from ..ir.values import NumberMeta, ObjectMeta, TensorMeta


def is_view_from_outside(node: Node, part: set[Node]) -> bool:
    """Whether a node of a part is for those after it, and only looks at memory from before it, as `loss.detach()`."""
    effects = node.meta.get("effects")
    if effects is None or effects.written or effects.reshaped:
        return False
    is_view = len(effects.memory) == 1 and effects.memory[0] is not None and not requires_grad(node)
    return is_view and part.isdisjoint((*node.all_input_nodes, *node.users))


def requires_grad(node: Node) -> bool:
    """Whether a result, or one of several, may have a history."""
    meta = node.meta.get("val")
    metas = meta if isinstance(meta, (list, tuple)) else [meta]
    return any(isinstance(m, TensorMeta) and m.requires_grad for m in metas)


def is_number(node: Node) -> bool:
    """Whether a node is a number, or a generator of random numbers."""
    return isinstance(node.meta.get("val"), (NumberMeta, ObjectMeta))


def is_used_outside(node: Node, part: set[Node]) -> bool:
    """Whether what is not in a part takes a value of it, or a number that comes out of that."""
    return any(user not in part or (is_number(user) and is_used_outside(user, part)) for user in node.users)


def is_near_gradients(node: Node) -> bool:
    """Whether a node takes gradients, or one of these, or copies that."""
    operands = [node, *node.all_input_nodes, *[n for operand in node.all_input_nodes for n in operand.all_input_nodes]]
    return any(map(takes_gradients, operands))


def with_results(call: Node, nodes: list[Node]) -> tuple[int, int]:
    """Where a call, or that of which a node takes a result, begins and ends with the nodes that take its results."""
    call = call.args[0] if takes_a_result(call) else call  # type: ignore[assignment]
    at = behind = nodes.index(call)
    while behind < len(nodes) and (behind == at or takes_a_result(nodes[behind]) and nodes[behind].args[0] is call):
        behind += 1
    return at, behind


def differentiated(call: Node) -> list[Node]:
    """The tensors to which a call takes gradients."""
    if not takes_gradients(call):
        return []
    inputs = call.args[1] if len(call.args) > 1 else call.kwargs.get("inputs", ())
    return [n for n in (inputs if isinstance(inputs, (list, tuple)) else [inputs]) if isinstance(n, Node)]


def last_change(tensor: Node, nodes: list[Node]) -> int:
    """The place of the last of some nodes that computes a tensor or changes its memory."""
    last, base = nodes.index(tensor), base_of(tensor)
    for k, node in enumerate(nodes[last:], last):
        effects: Effects | None = node.meta.get("effects")
        if effects is not None and effects.written:
            operands = tensor_operands(node)
            if any(base_of(operands[number]) is base for number in effects.written):
                last = k
    return last


def changes(nodes: list[Node], operands: list[Node]) -> dict[int, int]:
    """How often some nodes change the tensors among their operands or results, by the positions of these."""
    position = {n: k for k, n in enumerate([n for n in operands if not is_number(n)])}
    times: dict[int, int] = {}
    for node in nodes:
        effects: Effects | None = node.meta.get("effects")
        if effects is None or not effects.counted:
            continue
        tensors = tensor_operands(node)
        for changed in [tensors[k] for k in effects.counted]:
            while changed not in position and "view_of" in changed.meta and not takes_data(changed):
                changed = changed.meta["view_of"][0]
            if changed in position:
                times[position[changed]] = times.get(position[changed], 0) + 1
    return times


def results_first(nodes: list[Node]) -> list[Node]:
    """The nodes with those that take a call's results directly after the call."""
    ordered: list[Node] = []

    def add(node: Node) -> None:
        ordered.append(node)
        if isinstance(node.meta.get("val"), (list, tuple)):
            for user in node.users:
                if takes_a_result(user) and user.args[0] is node:
                    add(user)

    for node in nodes:
        if not takes_a_result(node):
            add(node)
    return ordered


def hooks_first(nodes: list[Node]) -> list[Node]:
    """The nodes with those that register hooks directly after the last that computes or changes what they take: they are
    part of the graph that computes it. No gradients are taken between."""
    hooks = [n for n in nodes if registers_hook(n.target)]
    ordered = [n for n in nodes if n not in hooks]
    for hook in reversed(hooks):
        place = max(last_change(n, ordered) for n in hook.all_input_nodes if n in ordered) + 1
        while place < len(ordered) and takes_a_result(ordered[place]):
            place += 1
        ordered.insert(place, hook)
    return ordered


def may_stay(node: Node) -> bool:
    """Whether a call may stand between two subgraphs: it changes nothing, and capture knows what it returns. Of a tensor
    that begins to require gradients, the parts after know that."""
    if node.target == "requires_grad_":
        return True
    effects = effects_in(node)
    if node.op not in ("call_function", "call_method") or effects.written or effects.reshaped:
        return False
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "_")
    changes = name.endswith("_") and not isinstance(node.target, FunctionType)
    return not changes and "out" not in node.kwargs and not is_number(node)
