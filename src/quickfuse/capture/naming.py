"""Names and paths in the user's terms: placeholders of the graph, and arguments behind wrappers of `*args`."""

from __future__ import annotations

import inspect
import re
from types import CodeType, FunctionType
from typing import Any

import torch

from ..ir.source import Source, SourceRoots

_NOT_IDENTIFIER = re.compile(r"\W+")

#: Where a module keeps what the user writes as its attributes.
_MODULE_TABLES = frozenset({"_parameters", "_buffers", "_modules", "__dict__", "cell_contents"})

#: What stands between a call of a module and its `forward`.
_MODULE_CALLS: frozenset[CodeType] = frozenset(
    {torch.nn.Module._wrapped_call_impl.__code__, torch.nn.Module._call_impl.__code__}
)


def placeholder_name(source: Source) -> str:
    """The name of a graph input: `L['self']._modules['lin']._parameters['weight']` is `self_lin_weight`."""
    parts: list[str] = []
    step: Source | None = source
    while step is not None:
        if step.label or step.base is None:
            parts.append(_root_name(step))
            break
        if step.kind == "computed":
            step = step.base
            continue
        key = placeholder_name(step.key) if isinstance(step.key, Source) else str(step.key)
        if key not in _MODULE_TABLES:
            parts.append(key)
        step = step.base
    name = _NOT_IDENTIFIER.sub("_", "_".join(reversed(parts))).strip("_") or "arg"
    return f"arg_{name}" if name[0].isdigit() else name


def _root_name(source: Source) -> str:
    text = str(source)  # L['x'], "inner: S[0]" or the name of a function
    before, bracket, inside = text.rpartition("[")
    return inside.rstrip("]").strip("'") if bracket and not before.endswith("S") else text.rpartition(" ")[2]


def user_function(function: FunctionType, args: tuple[Any, ...]) -> FunctionType:
    """The function that a user would name: what a wrapper wraps, and a module's `forward`."""
    return _behind(function, args)[0]


def label_arguments(roots: SourceRoots, function: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Let the arguments of a wrapper print by the names that they have in the function behind it: `args[0]` of a
    decorated method is `self`."""
    code = function.__code__
    inner, skipped, first = _behind(function, args)
    if inner is function or not code.co_flags & inspect.CO_VARARGS:
        return
    own = code.co_argcount + code.co_kwonlyargcount
    taken = code.co_varnames[: own + 1 + bool(code.co_flags & inspect.CO_VARKEYWORDS)]
    names = inner.__code__.co_varnames[: inner.__code__.co_argcount + inner.__code__.co_kwonlyargcount]
    rest = taken[own]
    for k, name in enumerate(names[skipped : inner.__code__.co_argcount]):
        if k < len(args) - first and name not in taken:
            roots.local(rest).item(k).label = f"L[{name!r}]"
    if code.co_flags & inspect.CO_VARKEYWORDS:
        keywords = roots.local(taken[own + 1])
        for name in kwargs:
            if name in names and name not in taken:
                keywords.item(name).label = f"L[{name!r}]"


def _behind(function: FunctionType, args: tuple[Any, ...]) -> tuple[FunctionType, int, int]:
    """The function behind wrappers; how many of its parameters and of the given arguments the wrapper's own parameters
    stand for."""
    code = function.__code__
    if code in _MODULE_CALLS and args:
        forward = getattr(type(args[0]), "forward", None)
        return (forward, 1, 1) if type(forward) is FunctionType else (function, 0, 0)
    inner = inspect.unwrap(function)
    if code.co_argcount or not code.co_flags & inspect.CO_VARARGS or type(inner) is not FunctionType:
        return function, 0, 0
    names = inner.__code__.co_varnames[: inner.__code__.co_argcount]
    method = getattr(type(args[0]), inner.__name__, None) if args else None
    bound_already = names[:1] == ("self",) and not (callable(method) and inspect.unwrap(method) is inner)
    return inner, int(bound_already), 0
