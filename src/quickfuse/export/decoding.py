"""From JSON back to an exported program: `encoding` says what it looks like. Nothing in the file is believed."""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

import torch
from torch.fx import Graph, Node

from ..errors import ExportFileError
from ..ir.values import NumberMeta, TensorMeta
from .arguments import Arguments
from .checks import SETTINGS
from .fields import DEEPEST, NUMBERS, Field
from .module import is_taken
from .nesting import Container, is_field_name, leaves_of
from .numbers import COUNTS, Arithmetic, Ref, takes
from .operators import function_named
from .program import SCHEMA, Assumption, Check, Condition, Program, Returned
from .signature import STATE, GraphSignature, InputSpec, OutputSpec
from .value_types import check_types
from .weights import unpacked

_MOST_NODES = 1_000_000
_LISTS_OF_KEYS = ("dict", "OrderedDict")
_FIELDS = ("namedtuple", "fields")


def decoded(text: Any, weights: bytes, namespaces: Collection[str]) -> Program:
    """The program of a file's JSON and weights.

    Raises:
        ExportFileError: for a file that is damaged, newer, or asks for what it may not.
    """
    top = Field(text)
    schema = top["schema"].whole()
    if schema > SCHEMA:
        made = text.get("made_with", {})
        version = made.get("quickfuse", "?") if isinstance(made, dict) else "?"
        raise ExportFileError(
            f"it was made by a newer quickfuse ({version!s:.20}, layout {schema}); this one reads layouts up to {SCHEMA}"
        )
    if schema < 1:
        raise top["schema"].fail("the number of a layout")
    arguments = _arguments(top["arguments"])
    state = unpacked(weights, {name: _place(place) for name, place in top["state"].entries()})
    graph = _graph(top["graph"], namespaces)
    signature = _signature(top["signature"], graph, state, arguments)
    check_types(graph)
    checks = [_check(item, arguments, state) for item in top["checks"].items()]
    aliases = {name: target.text() for name, target in top["aliases"].entries()}
    refs = _numbers_of(checks, state)
    conditions = [
        Condition(_expression(item["expression"], refs), item["is"].flag()) for item in top["conditions"].items()
    ]
    program = Program(
        top["name"].text(), graph, signature, arguments, checks, conditions,
        {name: _setting(name, value) for name, value in top["settings"].entries()},
        _tree(top["result"], _Results(graph, signature, arguments, state, refs)), state, aliases, top["apart"].texts(),
        [_assumption(item) for item in top["assumptions"].items()], top["training"].flag(),
        examples={path: value.plain() for path, value in top["examples"].entries()},
        transient=top["transient"].texts(),
        made_with={name: version.text() for name, version in top["made_with"].entries()},
    )  # fmt: skip
    _check_names(program)
    return program


def _check_names(program: Program) -> None:
    """See to it that names in the state can be those of a module's parameters and buffers."""
    names = [*program.state, *program.aliases]
    for name in names:
        parts = name.split(".")
        if not all(part and part.isprintable() for part in parts) or len(parts) > 2 * DEEPEST:
            raise ExportFileError(f"{name!r:.80} is no name of a tensor in a module")
        if any(map(is_taken, parts)):
            raise ExportFileError(f"{name!r:.80} is no name of a tensor in a module: modules have that attribute")
    taken = {*names}
    for name in names:
        parts = name.split(".")
        if any(".".join(parts[:k]) in taken for k in range(1, len(parts))):
            raise ExportFileError(f"{name!r:.80} lies within another tensor")
    for alias, target in program.aliases.items():
        if target not in program.state or alias in program.state:
            raise ExportFileError(f"{alias!r:.80} is another name of {target!r:.80}, which cannot be")
    for path in program.apart:
        if path not in program.input_metas():
            raise ExportFileError(f"{path!r:.80} is no tensor among the arguments")


# the graph ------------------------------------------------------------------------------------------------------


def _graph(field: Field, namespaces: Collection[str]) -> Graph:
    graph = Graph()
    known: dict[str, Node] = {}
    stacks = field["stacks"].texts()
    nodes = field["nodes"].items()
    if not nodes or len(nodes) > _MOST_NODES:
        raise field["nodes"].fail("a list of nodes")

    def node_named(name: Field) -> Node:
        found = known.get(name.text())
        if found is None:
            raise name.fail("the name of a node before this one")
        return found

    for place, item in enumerate(nodes):
        name, op = item["name"].text(), item["op"].one_of("input", "call", "output")
        if name in known or not name.isidentifier():
            raise item["name"].fail("a new name")
        if (op == "output") != (place == len(nodes) - 1):
            raise item["op"].fail("one output, at the end")
        if op == "input":
            if place and nodes[place - 1]["op"].value != "input":
                raise item["op"].fail("inputs before all others")
            node = graph.create_node("placeholder", name, (), {}, name)
            node.target = node.name
        elif op == "output":
            node = graph.output(tuple([node_named(a["node"]) for a in item["args"].items()]))
        else:
            node = _call(graph, item, name, node_named, namespaces)
        known[name] = node
        node.meta["val"] = None if op == "output" else item["value"].meta()
        stack = item.get("stack")
        if stack is not None:
            node.meta["stack_trace"] = stacks[stack.whole(0, len(stacks) - 1)]
            node.meta["location"] = _location(node.meta["stack_trace"])
        if node.name != name and op == "input":
            raise item["name"].fail("a name that can be that of a variable")
    return graph


def _call(graph: Graph, item: Field, name: str, node_named: Any, namespaces: Collection[str]) -> Node:
    target = function_named(item["target"].value, namespaces)
    args = tuple([a.plain(node_named) for a in item["args"].items()])
    options = item.get("kwargs")
    kwargs = {} if options is None else {key: value.plain(node_named) for key, value in options.entries()}
    if not all(is_field_name(key) for key in kwargs):
        raise item["kwargs"].fail("names of arguments")
    if target is operator.getitem:
        several = args[0].meta["val"] if len(args) == 2 and isinstance(args[0], Node) else None
        if not isinstance(several, tuple) or type(args[1]) is not int or not 0 <= args[1] < len(several) or kwargs:
            raise item["args"].fail("a node of several results, and the number of one")
    return graph.create_node("call_function", target, args, kwargs, name)


def _location(stack: str) -> str:
    for line in reversed(stack.splitlines()):
        if line.startswith('  File "') and '", line ' in line:
            file, _, rest = line[8:].partition('", line ')
            return f"{file}:{rest.partition(',')[0]}"
    return ""


# the rest -------------------------------------------------------------------------------------------------------


def _place(field: Field) -> tuple[str, TensorMeta, int, bool]:
    return field["data"].text(), field.tensor_meta(), field["offset"].whole(0), field["parameter"].flag()


def _arguments(field: Field) -> Arguments:
    leaves = field["leaves"].texts()
    if len({*leaves}) < len(leaves):
        raise field["leaves"].fail("paths that differ")
    trees = {path: _tree(tree, None) for path, tree in field["trees"].entries()}
    found = [leaf for tree in trees.values() for leaf in leaves_of(tree)]
    if sorted(found) != list(range(len(leaves))):
        raise field["trees"].fail("each leaf once")
    defaults = {name: value.plain() for name, value in field["defaults"].entries()}
    positional = field["positional"].whole(0, len(trees))
    return Arguments(tuple(field["order"].texts()), trees, leaves, defaults, field["rest"].text(), positional)


def _numbers_of(checks: list[Check], state: dict[str, torch.Tensor]) -> dict[str, bool]:
    """Where expressions may find numbers: the paths of arguments that are checked to be numbers (False), or tensors of one
    element (True), and the names of such tensors in the state (True)."""
    found = {name: True for name, tensor in state.items() if tensor.numel() == 1}
    for check in checks:
        if check.kind == "number" or (check.kind == "equal" and type(check.value) in (bool, int, float)):
            found[check.path] = False
        elif check.kind == "tensor" and check.value.numel == 1:
            found[check.path] = True
    return found


class _Results:
    """What the leaves of what a program returns may speak of."""

    def __init__(
        self, graph: Graph, signature: GraphSignature, arguments: Arguments, state: dict[str, torch.Tensor],
        refs: dict[str, bool],
    ) -> None:  # fmt: skip
        metas = {node.name: node.meta["val"] for node in graph.nodes}
        self.outputs = [metas[spec.name] for spec in signature.outputs if spec.kind == "output"]
        self.paths = {*arguments.leaves}
        self.state = state
        self.refs = dict(refs)
        for k, meta in enumerate(self.outputs):
            if isinstance(meta, NumberMeta) or (isinstance(meta, TensorMeta) and meta.numel == 1):
                self.refs[f"output {k}"] = isinstance(meta, TensorMeta)


def _tree(field: Field, results: _Results | None, depth: int = 0) -> Any:
    if depth > DEEPEST:
        raise field.fail("a value that is not so deeply nested")
    if results is None and type(field.value) is int:
        return field.value
    if field.get("container") is not None:
        return _container(field, results, depth)
    if results is None:
        raise field.fail("a container or the number of a leaf")
    kind = field["returned"].one_of("output", "item", "argument", "state", "constant", "number")
    value = field["value"]
    if kind in ("output", "item"):
        index = value.whole(0, len(results.outputs) - 1)
        if kind == "item" and not results.refs.get(f"output {index}", False):
            raise value.fail("an output that is a tensor of one element")
        return Returned(kind, index)
    if kind == "number":
        return Returned(kind, _expression(value, results.refs))
    if kind == "constant":
        return Returned(kind, value.plain())
    if value.text() not in (results.paths if kind == "argument" else results.state):
        raise value.fail("the path of an argument" if kind == "argument" else "the name of a tensor in the state")
    return Returned(kind, value.value)


def _container(field: Field, results: _Results | None, depth: int) -> Container:
    kind = field["container"].one_of("list", "tuple", "dict", "OrderedDict", "Size", *_FIELDS)
    children = tuple([_tree(item, results, depth + 1) for item in field["children"].items()])
    if kind == "Size" and not all(type(c) is int or (type(c) is Returned and _may_be_a_size(c)) for c in children):
        raise field["children"].fail("a list of sizes")
    keys = tuple([item.plain() for item in field["keys"].items()])
    name = field["name"].text()
    if kind in _FIELDS and not (is_field_name(name) and all(map(is_field_name, keys)) and all(k[0] != "_" for k in keys)):
        raise field["keys"].fail("names of fields")
    if kind in (*_FIELDS, *_LISTS_OF_KEYS):
        if not all(isinstance(key, (str, int, float, bool, type(None))) for key in keys):
            raise field["keys"].fail("keys")
        if len({*keys}) != len(keys) or len(keys) != len(children):
            raise field["keys"].fail("as many keys as values, which differ")
    elif keys:
        raise field["keys"].fail("no keys")
    return Container(kind, children, keys, name)


def _may_be_a_size(leaf: Returned) -> bool:
    return type(leaf.value) is int if leaf.kind == "constant" else leaf.kind in ("item", "argument", "number")


def _check(field: Field, arguments: Arguments, state: dict[str, torch.Tensor]) -> Check:
    kind = field["kind"].one_of("tensor", "requires_grad", "state_requires_grad", "number", "equal", "same", "any")
    path, value = field["path"].text(), field["value"]
    if kind == "state_requires_grad":
        if path not in state:
            raise field["path"].fail("the name of a tensor in the state")
        return Check(kind, path, value.flag())
    if path not in arguments.leaves or (kind == "same" and value.text() not in arguments.leaves):
        raise field["path"].fail("the path of an argument")
    if kind == "tensor":
        return Check(kind, path, value.tensor_meta())
    if kind == "number":
        return Check(kind, path, NUMBERS[value.one_of("int", "float")])
    if kind == "requires_grad":
        return Check(kind, path, value.flag())
    return Check(kind, path, value.plain())


def _expression(field: Field, refs: dict[str, bool], depth: int = 0) -> Any:
    if depth > 2 * DEEPEST:
        raise field.fail("an expression that is not so deeply nested")
    if field.get("operation") is not None:
        name = field["operation"].one_of(*COUNTS)
        operands = tuple([_expression(item, refs, depth + 1) for item in field["operands"].items()])
        if not takes(name, len(operands)):
            raise field["operands"].fail(f"{COUNTS[name]} operands")
        return Arithmetic(name, operands)
    if field.get("path") is not None:
        path, contents = field["path"].text(), field["contents"].flag()
        if refs.get(path) is not contents:
            raise field["path"].fail("the path of a number, or that of a tensor of one element")
        return Ref(path, contents)
    value = field.plain()
    if type(value) not in (int, float, bool):
        raise field.fail("a number")
    return value


def _signature(field: Field, graph: Graph, state: dict[str, torch.Tensor], arguments: Arguments) -> GraphSignature:
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    results = next(node for node in reversed(graph.nodes) if node.op == "output").args[0]
    inputs, outputs = field["inputs"].items(), field["outputs"].items()
    if len(inputs) != len(placeholders) or len(outputs) != len(results):
        raise field.fail("an entry for each input and output of the graph")
    signature = GraphSignature(cleared=field["cleared"].texts())
    for item, node in zip(inputs, placeholders, strict=True):
        signature.inputs.append(_input(item, node, state, arguments))
    targets = {(spec.kind, spec.target): spec.meta for spec in signature.inputs}
    for item, node in zip(outputs, results, strict=True):
        kind: Any = item["kind"].one_of("output", "parameter", "buffer", "input", "gradient")
        target = item["target"].text()
        if kind != "output":
            _check_changed(item, kind, target, node, targets, state)
        signature.outputs.append(OutputSpec(kind, node.name, target))
    kinds = [spec.kind == "output" for spec in signature.outputs]
    if kinds != sorted(kinds, reverse=True):
        raise field["outputs"].fail("the user's outputs before all others")
    for name in signature.cleared:
        if name not in state:
            raise field["cleared"].fail("names of parameters")
    return signature


def _input(item: Field, node: Node, state: dict[str, torch.Tensor], arguments: Arguments) -> InputSpec:
    kind: Any = item["kind"].one_of("parameter", "buffer", "constant", "gradient", "input")
    target, meta = item["target"].text(), node.meta["val"]
    if item["name"].text() != node.name or not isinstance(meta, (TensorMeta, NumberMeta)):
        raise item["name"].fail("the name of an input of the graph, a tensor or a number")
    if kind == "input":
        if target not in arguments.leaves:
            raise item["target"].fail("the path of an argument")
    elif target not in state or not isinstance(meta, TensorMeta):
        raise item["target"].fail("the name of a tensor in the state")
    if kind in STATE:
        tensor = state[target]
        if (tensor.dtype, tuple(tensor.shape), tensor.device) != (meta.dtype, meta.shape, meta.device):
            found = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
            raise ExportFileError(f"{target!r:.80} is {found} and the graph takes {meta}")
        if (kind == "parameter") != isinstance(tensor, torch.nn.Parameter):
            raise item["kind"].fail("what the tensor is")
    return InputSpec(kind, node.name, target, meta, item["persistent"].flag())


def _check_changed(
    item: Field, kind: str, target: str, node: Node, targets: dict[Any, Any], state: dict[str, torch.Tensor]
) -> None:
    """See to it that new contents fit what they are the contents of."""
    new = node.meta["val"]
    if kind == "input":
        old = targets.get(("input", target))
    elif target in state:
        tensor = state[target]
        old = TensorMeta(tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.device)
    else:
        old = None
    known = isinstance(old, TensorMeta) and isinstance(new, TensorMeta)
    if not known or (old.dtype, old.shape) != (new.dtype, new.shape):  # type: ignore[union-attr]
        raise item["target"].fail("something of the same dtype and shape")


def _setting(name: str, field: Field) -> Any:
    if name not in SETTINGS:
        raise ExportFileError(f"{name!r:.80} is no setting that a program can rely on")
    return field.plain()


def _assumption(field: Field) -> Assumption:
    text, location = field["text"].text(), field["location"].text()
    return Assumption(text, location, field["checked"].flag(), tuple(field["where"].texts()))
