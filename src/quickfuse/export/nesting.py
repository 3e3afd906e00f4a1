"""The nesting of a program's arguments and results: lists, tuples and dictionaries, and the values in them.

A `Tree` is a `Container` of trees, or any other object, which stands for a value. Paths are written as Python code that
leads to a value: `batch['mask'][0]`.
"""

from __future__ import annotations

import collections
import functools
import keyword
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import ExportedCallError, ExportError

#: What may stand in arguments beside tensors and containers.
PLAIN: tuple[type, ...] = (type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.memory_format)


@dataclass(frozen=True, slots=True)
class Container:
    """A container of type `kind`: "list", "tuple", "dict", "OrderedDict", "Size", "namedtuple", or "fields", an object with
    named fields. `keys` are a dictionary's keys or the fields' names, `name` is that of the class with these fields."""

    kind: str
    children: tuple[Any, ...]
    keys: tuple[Any, ...] = ()
    name: str = ""


class Fields(dict[str, Any]):
    """What a program returns in place of an object of a class with named fields, which a file cannot bring along: the
    fields by key, as attributes, and by position."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no field {name!r}; the fields are {', '.join(self)}") from None

    def __getitem__(self, key: Any) -> Any:
        return [*self.values()][key] if isinstance(key, (int, slice)) else super().__getitem__(key)

    def to_tuple(self) -> tuple[Any, ...]:
        """The fields' values."""
        return tuple(self.values())


def container_of(value: Any) -> Container | None:
    """The container that a value is, its elements as they are; None where it is none."""
    kind = type(value)
    if kind is list or kind is tuple:
        return Container(kind.__name__, tuple(value))
    if kind is torch.Size:
        return Container("Size", tuple(value))
    if kind is dict or kind is collections.OrderedDict:
        return Container(kind.__name__, tuple(value.values()), tuple(value))
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return Container("namedtuple", tuple(value), tuple(kind._fields), kind.__name__)
    return None


def arguments_tree(value: Any, path: str, leaves: list[tuple[str, Any]]) -> Any:
    """The tree of an argument, whose leaves are positions in `leaves`, which gets (path, value) of each.

    Raises:
        ExportError: for an argument that is neither a tensor nor plain data.
    """
    container = container_of(value)
    if container is None:
        if not isinstance(value, (torch.Tensor, *PLAIN)):
            raise ExportError(
                f"{path} is a {type(value).__qualname__}: an exported program takes tensors, numbers, strings, None, and "
                "lists, tuples and dictionaries of them. Bind other arguments before: functools.partial, or an attribute"
            )
        leaves.append((path, value))
        return len(leaves) - 1
    for key in container.keys:
        if not isinstance(key, (str, int, bool, float, type(None))):
            kind = type(key).__qualname__
            raise ExportError(f"{path} has a key of type {kind}: an exported program takes strings and numbers")
    children = [arguments_tree(v, p, leaves) for v, p in zip(container.children, _paths(container, path), strict=True)]
    return Container(container.kind, tuple(children), container.keys, container.name)


def _paths(container: Container, path: str) -> Iterator[str]:
    if container.kind == "namedtuple":
        yield from (f"{path}.{key}" for key in container.keys)
    else:
        yield from (f"{path}[{key!r}]" for key in container.keys or range(len(container.children)))


def match(tree: Any, value: Any, path: str, leaves: list[Any]) -> None:
    """Put the values of an argument into `leaves`, which must be nested as `tree` is.

    Raises:
        ExportedCallError: where it is not.
    """
    if type(tree) is int:
        leaves[tree] = value
        return
    given = container_of(value)
    if given is None or (given.kind, given.name) != (tree.kind, tree.name):
        raise ExportedCallError(f"{path} is a {tree.name or tree.kind} in the exported program, got {article(value)}")
    if given.keys != tree.keys and not (tree.kind == "dict" and set(given.keys) == set(tree.keys)):
        raise ExportedCallError(f"the keys of {path} are {[*tree.keys]} in the exported program, got {[*given.keys]}")
    if len(given.children) != len(tree.children):
        raise ExportedCallError(
            f"len({path}) is {len(tree.children)} in the exported program, got {len(given.children)}"
        )
    children = [value[key] for key in tree.keys] if tree.kind == "dict" else given.children
    for child, inner, place in zip(tree.children, children, _paths(tree, path), strict=True):
        match(child, inner, place, leaves)


def article(value: Any) -> str:
    """What a value is, for messages."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    return f"a {type(value).__name__}"


def map_tree(function: Callable[[Any], Any], tree: Any) -> Any:
    """A tree with `function(leaf)` in place of each leaf."""
    if type(tree) is not Container:
        return function(tree)
    children = tuple([map_tree(function, child) for child in tree.children])
    return Container(tree.kind, children, tree.keys, tree.name)


def leaves_of(tree: Any) -> Iterator[Any]:
    """The leaves of a tree, in order."""
    if type(tree) is Container:
        for child in tree.children:
            yield from leaves_of(child)
    else:
        yield tree


def built(tree: Any, value_of: Callable[[Any], Any]) -> Any:
    """The value that a tree describes; `value_of` gives that of each leaf."""
    if type(tree) is not Container:
        return value_of(tree)
    values = [built(child, value_of) for child in tree.children]
    if tree.kind == "list":
        return values
    if tree.kind == "tuple":
        return tuple(values)
    if tree.kind == "Size":
        return torch.Size(values)
    if tree.kind == "dict":
        return dict(zip(tree.keys, values, strict=True))
    if tree.kind == "OrderedDict":
        return collections.OrderedDict(zip(tree.keys, values, strict=True))
    if tree.kind == "namedtuple":
        return named_tuple(tree.name, tree.keys)(*values)
    return Fields(zip(tree.keys, values, strict=True))


@functools.cache
def named_tuple(name: str, fields: tuple[str, ...]) -> Any:
    """The class of named tuples that stands for one of the program's."""
    return collections.namedtuple(name, fields)


def is_field_name(name: Any) -> bool:
    """Whether a name may be that of a field."""
    return isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name)
