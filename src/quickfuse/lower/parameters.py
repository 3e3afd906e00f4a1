"""Parameters of rules: arguments by position and by name, as what a rule's function takes.

Annotations say what that is: there is no rule where an argument is of another type. Functions look themselves at arguments
whose annotation is none of `_TYPES`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quickfuse.ir.values import TensorMeta

from .symbolic import Tensor


class NoRule(Exception):
    """Raised by a rule that does not cover its arguments: PyTorch's own operator is called instead."""


def no_rule_if(condition: Any) -> None:
    """What a rule does not cover, where that is a question of its arguments.

    Raises:
        NoRule: if the condition holds.
    """
    if condition:
        raise NoRule


_REQUIRED = object()
#: Other names of parameters, as PyTorch takes them from NumPy.
_ALIASES = {"self": "input", "axis": "dim", "keepdims": "keepdim", "x": "input"}

#: The types that an annotation stands for.
_TYPES: dict[str, tuple[type, ...]] = {
    "Tensor": (Tensor,), "TensorMeta": (TensorMeta,), "int": (int,), "bool": (bool,), "float": (float, int),
    "None": (type(None),),
}  # fmt: skip


class Parameters:
    """Those of a function after the context and the metadata of the result."""

    def __init__(self, function: Callable[..., Any]) -> None:
        _, meta, *others = inspect.signature(function).parameters.values()
        self.takes_rest = others[-1].kind is inspect.Parameter.VAR_POSITIONAL  # whether the last takes all further arguments
        self.defaults = {p.name: _REQUIRED if p.default is inspect.Parameter.empty else p.default for p in others}
        self.meta_types = _types(meta.annotation)
        self.types = {p.name: found for p in others if (found := _types(p.annotation)) is not None}

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any], meta: Any) -> dict[str, Any]:
        """The argument for each parameter; a tuple for one that takes all further arguments.

        Raises:
            NoRule: where these are not the parameters, or not of their types.
        """
        names = list(self.defaults)
        if self.takes_rest:
            args = [*args[: len(names) - 1], tuple(args[len(names) - 1 :])]
        no_rule_if(len(args) > len(names) or (self.meta_types is not None and type(meta) not in self.meta_types))
        bound = {**self.defaults, **dict(zip(names, args, strict=False))}
        for name, value in kwargs.items():
            name = _ALIASES.get(name, name) if name not in self.defaults else name
            no_rule_if(name not in self.defaults)
            bound[name] = value
        for name, value in bound.items():
            if value is _REQUIRED or (name in self.types and type(value) not in self.types[name]):
                raise NoRule
        return bound

    def call(self, function: Callable[..., Any], bound: Mapping[str, Any], *first: Any) -> Any:
        """What a function gives for arguments that were bound, after others."""
        given = list(bound.values())
        return function(*first, *given[:-1], *given[-1]) if self.takes_rest else function(*first, *given)


def _types(annotation: str) -> frozenset[type] | None:
    names = annotation.split(" | ")
    return frozenset([kind for name in names for kind in _TYPES[name]]) if _TYPES.keys() >= {*names} else None
