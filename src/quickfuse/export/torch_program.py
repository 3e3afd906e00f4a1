"""An exported program as a `torch.export.ExportedProgram`, for the tools that take one: ONNX, ExecuTorch, AOTInductor.

This is the one place that imports `torch.export`, and it does so only when it is asked for one.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from ..errors import ExportError
from ..ir.values import TensorMeta
from .module import copied_state
from .nesting import Container, built, leaves_of
from .numbers import NAMES, OPERATIONS, evaluate, item
from .program import Program, Returned
from .signature import InputSpec
from .tensor_numbers import TensorNumbers

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_PREFIX = {"parameter": "p", "buffer": "b", "constant": "c"}


def exported_program(program: Program) -> ExportedProgram:
    """The program in PyTorch's form. Numbers among its arguments are fixed to those of the example, since `torch.export` has
    no numbers without shapes; gradients that it stores in `grad` are left out.

    Raises:
        ExportError: for a program that has no such form.
    """
    return _Conversion(program).run()


class _Conversion:
    def __init__(self, program: Program) -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.export import exported_program, graph_signature

        self.program = program
        self.state = copied_state(program.state)
        self.graph = Graph()
        self.ep = exported_program
        self.gs: Any = graph_signature
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.values: dict[Node, Any] = {}
        self.constants: dict[str, Any] = {}
        self.inputs: list[Any] = []
        self.placeholders: dict[tuple[str, str], Node] = {}
        self.numbers = TensorNumbers(self._emit)
        self._stack_trace = ""
        self._taken: set[str] = set()

    def run(self) -> Any:
        from torch._export.verifier import TrainingIRVerifier

        program = self.program
        nodes = {node.name: node for node in program.graph.nodes}
        for spec in program.signature.inputs:
            if spec.kind == "gradient":
                raise ExportError(f"the program reads {spec.target}.grad, which torch.export has no form of")
            if spec.kind != "input":
                self.values[nodes[spec.name]] = self._state_input(spec.kind, spec.target, spec.persistent)
        used = {target for _, target in self.placeholders}
        for name in [name for name in self.state if name not in used]:  # parameters and buffers are inputs, used or not
            kind = "parameter" if isinstance(self.state[name], torch.nn.Parameter) else "buffer"
            self._state_input(kind, name, name not in program.transient)
        self._lift_constants()
        by_path = {spec.target: spec for spec in program.signature.inputs if spec.kind == "input"}
        for path, meta in self._arguments():
            self._argument(path, meta, by_path.get(path), nodes)
        for node in program.graph.nodes:
            if node.op == "call_function" and node not in self.values:
                self.values[node] = self._call(node)
        outputs, specs = self._outputs(nodes)
        self.graph.output(tuple(outputs))
        signature = self.gs.ExportGraphSignature(input_specs=self.inputs, output_specs=specs)
        state = {name: tensor for name, tensor in self.state.items() if name not in self.constants}
        state |= {alias: self.state[name] for alias, name in program.aliases.items()}
        return self.ep.ExportedProgram(
            torch.nn.Module(), self.graph, signature, state, {}, [self._call_entry()], self._examples(), self.constants,
            verifiers=[TrainingIRVerifier],
        )  # fmt: skip

    # inputs -----------------------------------------------------------------------------------------------------

    def _placeholder(self, name: str, value: Any) -> Node:
        count, plain = 0, "".join(c if c.isalnum() else "_" for c in name)
        name = plain
        while name in self._taken:
            count += 1
            name = f"{plain}_{count}"
        self._taken.add(name)
        node = self.graph.create_node("placeholder", name, (), {}, name)
        node.meta["val"] = value
        return node

    def _fake(self, meta: TensorMeta) -> Any:
        with self.fake:
            return torch.empty_strided(
                meta.shape, meta.stride, dtype=meta.dtype, device=meta.device, requires_grad=meta.requires_grad
            )

    def _state_input(self, kind: str, target: str, persistent: bool) -> Node:
        tensor = self.state[target]
        needs_grad = tensor.requires_grad and kind == "parameter"
        meta = TensorMeta(tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.device, needs_grad)
        node = self._placeholder(f"{_PREFIX[kind]}_{target}", self._fake(meta))
        self.placeholders[kind, target] = node
        kinds = self.gs.InputKind
        known = {"parameter": kinds.PARAMETER, "buffer": kinds.BUFFER, "constant": kinds.CONSTANT_TENSOR}[kind]
        spec = self.gs.InputSpec(
            known, self.gs.TensorArgument(node.name), target, persistent if kind == "buffer" else None
        )
        self.inputs.append(spec)
        if kind == "constant" or (kind == "buffer" and not persistent):
            self.constants[target] = tensor
        return node

    def _lift_constants(self) -> None:
        """Small constants of the graph are inputs as well."""
        for count, node in enumerate(n for n in self.program.graph.nodes if n.target is torch.tensor):
            name = f"lifted_tensor_{count}"
            self.constants[name] = torch.tensor(*node.args, **node.kwargs)
            placed = self._placeholder(f"c_{name}", self._fake(node.meta["val"]))
            kind = self.gs.InputKind.CONSTANT_TENSOR
            self.inputs.append(self.gs.InputSpec(kind, self.gs.TensorArgument(placed.name), name))
            self.values[node] = placed

    def _arguments(self) -> list[tuple[str, Any]]:
        """The path of each leaf of the arguments, and what is known of it."""
        checks = {check.path: check for check in self.program.checks if check.kind in ("tensor", "number", "equal", "any")}
        return [(path, checks[path]) for path in self.program.arguments.leaves]

    def _argument(self, path: str, check: Any, spec: InputSpec | None, nodes: dict[str, Node]) -> None:
        name = "".join(c if c.isalnum() else "_" for c in path).strip("_")
        if check.kind == "tensor":
            node = self._placeholder(name, self._fake(check.value))
            argument = self.gs.TensorArgument(node.name)
        else:
            value = check.value if check.kind == "equal" else self.program.examples.get(path)
            if isinstance(value, (torch.dtype, torch.device, torch.memory_format, complex)):
                raise ExportError(f"{path} is {value}: torch.export takes tensors, numbers, flags and strings")
            node = self._placeholder(name, value)
            argument = self.gs.ConstantArgument(node.name, value)
        self.inputs.append(self.gs.InputSpec(self.gs.InputKind.USER_INPUT, argument, None))
        self.placeholders["input", path] = node
        if spec is not None:
            self.values[nodes[spec.name]] = node if isinstance(spec.meta, TensorMeta) else node.meta["val"]

    # operators --------------------------------------------------------------------------------------------------

    def _call(self, node: Node) -> Any:
        args, kwargs = self._operands(tuple(node.args)), self._operands(dict(node.kwargs))
        target: Any = node.target
        self._stack_trace = node.meta.get("stack_trace", "")
        if target is item or (target in NAMES and self.numbers.takes_any(args, kwargs)):
            return self.numbers.made(node, args)
        if target in NAMES and target is not operator.getitem:
            return OPERATIONS[NAMES[target]][0](*args)
        if self.numbers.takes_any(args, kwargs):
            return self.numbers.taken(target, args, kwargs, node.meta["val"])
        return self._emit(target, args, kwargs, node.meta["val"])

    def _emit(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], meta: Any) -> Node:
        made = self.graph.call_function(target, args, kwargs)
        made.meta["val"] = self._faked(meta)
        if self._stack_trace:
            made.meta["stack_trace"] = self._stack_trace
        return made

    def _operands(self, value: Any) -> Any:
        if isinstance(value, Node):
            return self.values[value]
        if isinstance(value, (list, tuple)):
            parts = [self._operands(v) for v in value]
            return parts if isinstance(value, list) else tuple(parts)
        return {key: self._operands(v) for key, v in value.items()} if isinstance(value, dict) else value

    def _faked(self, meta: Any) -> Any:
        if isinstance(meta, TensorMeta):
            return self._fake(TensorMeta(meta.dtype, meta.shape, meta.stride, meta.device))
        return tuple([self._faked(m) for m in meta]) if isinstance(meta, (list, tuple)) else meta

    # outputs ----------------------------------------------------------------------------------------------------

    def _outputs(self, nodes: dict[str, Node]) -> tuple[list[Any], list[Any]]:
        kinds = self.gs.OutputKind
        changed = {
            "buffer": kinds.BUFFER_MUTATION, "parameter": kinds.PARAMETER_MUTATION, "input": kinds.USER_INPUT_MUTATION,
        }  # fmt: skip
        outputs, specs, order = [], [], ("parameter", "buffer", "input")
        signature = self.program.signature
        for out in sorted((o for o in signature.outputs if o.kind in order), key=lambda o: order.index(o.kind)):
            node = self.values[nodes[out.name]]
            target = self.placeholders["input", out.target].name if out.kind == "input" else out.target
            outputs.append(node)
            specs.append(self.gs.OutputSpec(changed[out.kind], self.gs.TensorArgument(node.name), target))
        user = [nodes[o.name] for o in signature.outputs if o.kind == "output"]
        for leaf in leaves_of(self.program.result):
            value = self._returned(leaf, user)
            outputs.append(value)
            argument = (
                self.gs.TensorArgument(value.name) if isinstance(value, Node) else self.gs.ConstantArgument("", value)
            )
            specs.append(self.gs.OutputSpec(kinds.USER_OUTPUT, argument, None))
        return outputs, specs

    def _returned(self, leaf: Returned, user: list[Node]) -> Any:
        if leaf.kind == "output":
            return self.values[user[leaf.value]]
        if leaf.kind == "state":
            return next(node for (_, target), node in self.placeholders.items() if target == leaf.value)
        if leaf.kind == "argument":
            node = self.placeholders["input", leaf.value]
            return node if isinstance(node.meta["val"], torch.Tensor) else node.meta["val"]
        if leaf.kind == "item":
            raise ExportError("the program returns a number out of a tensor (item()), which torch.export has no form of")
        value = leaf.value
        if leaf.kind == "number":

            def number(ref: Any) -> Any:
                if ref.contents or ref.path not in self.program.examples:
                    raise ExportError("the program returns a number out of a tensor, which torch.export has no form of")
                return self.program.examples[ref.path]

            value = evaluate(value, number)
        if value is not None and not isinstance(value, (bool, int, float, str)):
            raise ExportError(f"the program returns {value}, which torch.export has no form of")
        return value

    # what is around the graph -----------------------------------------------------------------------------------

    def _call_entry(self) -> Any:
        args, kwargs = self._nested(lambda leaf: leaf)
        _, in_spec = pytree.tree_flatten((args, kwargs))
        _, out_spec = pytree.tree_flatten(built(_plain(self.program.result), lambda leaf: 0))
        signature = self.ep.ModuleCallSignature(
            inputs=[], outputs=[], in_spec=in_spec, out_spec=out_spec,
            forward_arg_names=[*self.program.arguments.order[: len(args)], *kwargs],
        )  # fmt: skip
        return self.ep.ModuleCallEntry(fqn="", signature=signature)

    def _nested(self, value_of: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments as they were nested: those by position, and those by name."""
        arguments = self.program.arguments
        made = [built(_plain(tree), value_of) for tree in arguments.trees.values()]
        names = list(arguments.trees)
        count = arguments.positional
        return tuple(made[:count]), dict(zip(names[count:], made[count:], strict=True))

    def _examples(self) -> Any:
        known = dict(self._arguments())
        paths = self.program.arguments.leaves

        def value(leaf: int) -> Any:
            check = known[paths[leaf]]
            if check.kind == "tensor":
                meta = check.value
                made = torch.zeros(0, dtype=meta.dtype, device=meta.device).new_empty(0)
                return made.new_zeros(meta.span_bytes // meta.dtype.itemsize).as_strided(meta.shape, meta.stride)
            return check.value if check.kind == "equal" else self.program.examples.get(paths[leaf])

        return self._nested(value)


def _plain(tree: Any) -> Any:
    """A tree of containers that torch.export can write down."""
    if type(tree) is not Container:
        return tree
    kind = {"namedtuple": "tuple", "Size": "tuple", "fields": "dict"}.get(tree.kind, tree.kind)
    keys = tree.keys if kind in ("dict", "OrderedDict") else ()
    return Container(kind, tuple([_plain(child) for child in tree.children]), keys, "")

