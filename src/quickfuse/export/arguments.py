"""The arguments of an exported program: their names and nesting, and how a call's are bound to them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import ExportedCallError, ExportError
from .nesting import PLAIN, arguments_tree, article, match


@dataclass(slots=True)
class Arguments:
    """The arguments that a program was exported with.

    `order` are the parameters that may be given by position, `trees` the nesting of each argument, by its path: the name
    of a parameter, or `args[0]` where the function takes any number. `leaves` are the paths of the values in them, to which
    the trees' leaves are positions. `defaults` are those plain parameters that were not given.
    `rest` is the name of `*args`, and the first `positional` arguments were given by position.
    """

    order: tuple[str, ...]
    trees: dict[str, Any]
    leaves: list[str]
    defaults: dict[str, Any] = field(default_factory=dict)
    rest: str = ""
    positional: int = 0

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The values of the leaves in a call.

        Raises:
            ExportedCallError: for arguments that are not those that the program was exported with.
        """
        given: dict[str, Any] = {}
        for k, value in enumerate(args):
            if k < len(self.order):
                given[self.order[k]] = value
            elif self.rest:
                given[f"{self.rest}[{k - len(self.order)}]"] = value
            else:
                count = f"got {len(args)} arguments by position"
                raise ExportedCallError(f"the exported program takes {self.described()}, {count}")
        for name in kwargs:
            if name in given:
                raise ExportedCallError(f"{name} is given twice")
            given[name] = kwargs[name]
        for name in given:
            if name not in self.trees:
                self._check_default(name, given[name])
        values: list[Any] = [None] * len(self.leaves)
        for path in self.trees:
            if path not in given:
                raise ExportedCallError(f"{path} is missing: the exported program takes {self.described()}")
            match(self.trees[path], given[path], path, values)
        return values

    def _check_default(self, name: str, value: Any) -> None:
        if name not in self.defaults:
            raise ExportedCallError(f"{name} is no argument of the exported program, which takes {self.described()}")
        default = self.defaults[name]
        if type(value) is not type(default) or value != default:
            raise ExportedCallError(f"{name} is {default!r} in the exported program, got {article(value)}")

    def described(self) -> str:
        """The arguments by name, in parentheses, for messages."""
        return f"({', '.join(self.trees)})"


def arguments_of(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Arguments, list[Any], list[str]]:
    """The arguments of a call, the values of their leaves, and the paths of `args` in order. `function` is what names them.

    Raises:
        ExportError: for an argument that no graph can take.
    """
    order, rest, defaults = [], "", {}
    for parameter in _parameters(function):
        if parameter.kind is parameter.VAR_POSITIONAL:
            rest = parameter.name
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            order.append(parameter.name)
        if isinstance(parameter.default, PLAIN):
            defaults[parameter.name] = parameter.default
    paths = [order[k] if k < len(order) else f"{rest or 'args'}[{k - len(order)}]" for k in range(len(args))]
    if len(args) > len(order) and not rest:
        rest = "args"
    leaves: list[tuple[str, Any]] = []
    trees = {}
    for path, value in (*zip(paths, args, strict=True), *kwargs.items()):
        if path in trees:
            raise ExportError(f"{path} is given twice")
        trees[path] = arguments_tree(value, path, leaves)
    unused = {name: value for name, value in defaults.items() if name not in trees}
    found = Arguments(tuple(order), trees, [path for path, _ in leaves], unused, rest, len(args))
    return found, [value for _, value in leaves], paths


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []
