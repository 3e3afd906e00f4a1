"""Puts generated programs on another device: what they make there, they make with `device=`."""

from __future__ import annotations

import ast

#: What makes tensors out of nothing, if no argument says where.
FACTORIES = frozenset(
    "arange empty eye full linspace logspace ones rand randint randn randperm tensor tril_indices triu_indices zeros".split()
)
#: The same among what the programs' preludes have.
DRAWN = frozenset(["drawn"])
#: What `torch.nn` has that is no module.
NO_MODULES = ("Parameter", "Buffer", "UninitializedParameter", "UninitializedBuffer")


def placed(source: str, device: str) -> str:
    """The program with its tensors, modules and generators on a device."""
    return source if device == "cpu" else ast.unparse(_Placed(device).visit(ast.parse(source)))


class _Placed(ast.NodeTransformer):
    def __init__(self, device: str) -> None:
        self._device = ast.Constant(device)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        if ast.unparse(node.targets[0]) == "DEVICE":
            node.value = self._device
            return node
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        of, _, name = ast.unparse(node.func).rpartition(".")
        if of == "torch" and name == "Generator" and not node.args:
            node.args = [self._device]
        elif (of == "torch" and name in FACTORIES or not of and name in DRAWN) and not any(
            k.arg in ("device", None) for k in node.keywords
        ):
            node.keywords.append(ast.keyword("device", self._device))
        elif of == "nn" and name[:1].isupper() and name not in NO_MODULES:
            return ast.Call(ast.Attribute(node, "to", ast.Load()), [self._device], [])
        elif of == "torch" and name == "device":
            node.args = [self._device]
        return node
