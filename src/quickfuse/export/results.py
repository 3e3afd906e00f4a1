"""What an exported program returns, from the recipes of a captured call."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..errors import ExportError
from ..ir.segment import Build, Computed, Constant, Existing, New, Output, Recipe
from ..ir.segment import Call as CallRecipe
from ..ir.source import Source
from .arguments import Arguments
from .nesting import PLAIN, Container, container_of, map_tree
from .numbers import NAMES, Arithmetic, Ref, Unknown, expression_of
from .program import Returned
from .sources import Call

#: The path of output number k of the graph, in expressions.
OUTPUT = "output {}"


class Results:
    """Makes the tree of what a call returns. `outputs` are the outputs of the captured graph that are needed for it."""

    def __init__(
        self, call: Call, names: dict[int, str], values: dict[str, Any], arguments: Arguments,
        state: dict[str, torch.Tensor], resolve: Callable[[Source], Any],
    ) -> None:  # fmt: skip
        self.call = call
        self.names = names
        self.values = values
        self.arguments = arguments
        self.state = state
        self.resolve = resolve
        self.outputs: list[int] = []

    def tree(self, recipe: Any) -> Any:
        """The tree of what a recipe makes.

        Raises:
            ExportError: for something that is no data.
        """
        if isinstance(recipe, Output):
            return Returned("output", self._output(recipe))
        if isinstance(recipe, Constant):
            return self._constant(recipe.value)
        if isinstance(recipe, Existing):
            return self._existing(recipe.source)
        if isinstance(recipe, Computed):
            try:
                return Returned("number", expression_of(recipe.expr, self.resolve))
            except Unknown:
                raise ExportError(f"the program returns a number, {recipe.expr}, that no file can describe") from None
        if isinstance(recipe, Build):
            return self._build(recipe)
        if isinstance(recipe, New):
            return self._object(recipe)
        if isinstance(recipe, CallRecipe):
            return self._call(recipe)
        raise ExportError(f"the program returns a {type(recipe).__name__.lower()}, which is no data")

    def paths(self, tree: Any) -> list[str]:
        """The paths of the graph's outputs in what the program returns, `result` being all of it."""
        found: dict[int, str] = {}
        for path, leaf in _with_paths(tree, "result"):
            for index in _outputs_in(leaf):
                found.setdefault(index, path)
        return [found.get(k, "result") for k in range(len(self.outputs))]

    def _output(self, recipe: Output) -> int:
        if recipe.index not in self.outputs:
            self.outputs.append(recipe.index)
        return self.outputs.index(recipe.index)

    def _constant(self, value: Any) -> Any:
        if isinstance(value, PLAIN):
            return Returned("constant", value)
        container = container_of(value)
        if container is None:
            raise ExportError(f"the program returns a {type(value).__qualname__}, which is no data")
        return Container(container.kind, tuple(map(self._constant, container.children)), container.keys, container.name)

    def _existing(self, source: Source) -> Any:
        path = self.call.argument(source)
        if path is not None:
            if path in self.values:
                return Returned("argument", path)
            tree = self._subtree(source)
            if tree is not None:
                return map_tree(lambda leaf: Returned("argument", self.arguments.leaves[leaf]), tree)
        return self._found(self.call.value_at(source), source)

    def _found(self, value: Any, source: Source) -> Any:
        """Something of the program's own that it returns."""
        if isinstance(value, torch.Tensor):
            name = self.names.get(id(value)) or self.call.name_of(source, self.names)
            self.names[id(value)] = name
            self.state[name] = value
            return Returned("state", name)
        if isinstance(value, PLAIN):
            return Returned("constant", value)
        container = container_of(value)
        if container is None:
            described = self.call.described(source, self.names)
            raise ExportError(f"the program returns {described}, a {type(value).__qualname__}, which is no data")
        children = [self._found(v, source.item(k)) for v, k in zip(container.children, _keys(container), strict=True)]
        return Container(container.kind, tuple(children), container.keys, container.name)

    def _subtree(self, source: Source) -> Any:
        """The tree of a container among the arguments."""
        path = self.call.argument(source)
        if path in self.arguments.trees:
            return self.arguments.trees[path]
        if source.base is None:
            return None
        above = self._subtree(source.base)
        if type(above) is not Container:
            return None
        return dict(zip(_keys(above), above.children, strict=True)).get(source.key)

    def _build(self, recipe: Build) -> Any:
        cls, items = recipe.cls, recipe.items
        if cls is list or cls is tuple:
            return Container(cls.__name__, tuple(map(self.tree, items)))
        if cls is torch.Size:
            return Container("Size", tuple(map(self.tree, items)))
        if issubclass(cls, tuple):
            fields: Any = getattr(cls, "_fields", None) or getattr(cls, "__match_args__", ())
            return Container("namedtuple", tuple(map(self.tree, items)), tuple(fields), cls.__name__)
        if cls is dict or cls is collections.OrderedDict:
            keys = tuple([self._key(key) for key, _ in items])
            return Container(cls.__name__, tuple([self.tree(value) for _, value in items]), keys)
        raise ExportError(f"the program returns a {cls.__qualname__}: return lists, tuples and dictionaries")

    def _key(self, recipe: Recipe) -> Any:
        key = self.tree(recipe)
        if type(key) is Returned and key.kind == "constant" and isinstance(key.value, (str, int, float, bool, type(None))):
            return key.value
        raise ExportError("the program returns a dictionary whose keys are not constants")

    def _object(self, recipe: New) -> Any:
        """An object of a class with named fields: a data class, or a dictionary as the transformers library returns."""
        if recipe.items and issubclass(recipe.cls, dict):
            fields = {self._key(key): value for key, value in recipe.items}
        elif dataclasses.is_dataclass(recipe.cls):
            names = [f.name for f in dataclasses.fields(recipe.cls) if f.name in recipe.attributes]
            fields = {name: recipe.attributes[name] for name in names}
        else:
            name = recipe.cls.__qualname__
            raise ExportError(f"the program returns a {name}, which a graph cannot make: return its tensors")
        return Container("fields", tuple(map(self.tree, fields.values())), tuple(fields), recipe.cls.__name__)

    def _call(self, recipe: CallRecipe) -> Any:
        if recipe.function is torch.Tensor.item and isinstance(recipe.args[0], Output):
            return Returned("item", self._output(recipe.args[0]))
        return Returned("number", self._arithmetic(recipe))

    def _arithmetic(self, recipe: Any) -> Any:
        """Arithmetic on numbers that come out of tensors."""
        if isinstance(recipe, CallRecipe):
            if recipe.function is torch.Tensor.item and isinstance(recipe.args[0], Output):
                return Ref(OUTPUT.format(self._output(recipe.args[0])), True)
            name = NAMES.get(recipe.function)
            if name is not None:
                return Arithmetic(name, tuple(map(self._arithmetic, recipe.args)))
        if isinstance(recipe, Constant) and type(recipe.value) in (int, float, bool):
            return recipe.value
        if isinstance(recipe, Existing):
            return self.resolve(recipe.source)
        if isinstance(recipe, Computed):
            return expression_of(recipe.expr, self.resolve)
        if isinstance(recipe, Output):  # a number of the graph
            return Ref(OUTPUT.format(self._output(recipe)), False)
        name = getattr(getattr(recipe, "function", None), "__name__", "an object")
        raise ExportError(f"the program returns what Python makes by {name}, which is no data: return tensors and numbers")


def _keys(container: Container) -> list[Any]:
    return list(container.keys) if container.kind in ("dict", "OrderedDict") else list(range(len(container.children)))


def _with_paths(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    if type(tree) is not Container:
        yield path, tree
        return
    for key, child in zip(tree.keys or range(len(tree.children)), tree.children, strict=True):
        named = tree.kind in ("namedtuple", "fields")
        yield from _with_paths(child, f"{path}.{key}" if named else f"{path}[{key!r}]")


def _outputs_in(leaf: Returned) -> Iterator[int]:
    if leaf.kind in ("output", "item"):
        yield leaf.value
    elif leaf.kind == "number":
        yield from _outputs_of(leaf.value)


def _outputs_of(expression: Any) -> Iterator[int]:
    if isinstance(expression, Arithmetic):
        for operand in expression.operands:
            yield from _outputs_of(operand)
    elif isinstance(expression, Ref) and expression.path.startswith("output "):
        yield int(expression.path.removeprefix("output "))
