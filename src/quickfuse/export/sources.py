"""From the paths that capture knows values by to the user's terms: arguments, and names in the program's state."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

from ..bytecode.decoding import codes_in
from ..errors import ExportError
from ..ir.guard import NumberExpr
from ..ir.reading import entry, plain_value
from ..ir.source import Source
from .nesting import container_of

#: Where a module keeps what the user writes as its attributes.
_TABLES = frozenset({"_parameters", "_buffers", "_modules", "__dict__", "cell_contents"})
_NOT_WORD = re.compile(r"\W+")


class Unreachable(ExportError):
    """A path that only capture can follow: to something that the call itself made, or at a place that it computes."""


class Call:
    """A captured call of `function(*args, **kwargs)`, whose first `bound` arguments are not the user's. `paths` are the
    paths of the user's positional arguments."""

    def __init__(
        self, function: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any], bound: int, paths: list[str]
    ) -> None:
        self.function = function
        code = function.__code__
        self._rest = _rest_name(code)
        self._keywords = _keywords_name(code)
        names = code.co_varnames[: code.co_argcount]
        self._values: dict[str, Any] = dict(zip(names, args, strict=False))
        self._values.update((name, value) for name, value in kwargs.items())
        if self._rest:
            self._values[self._rest] = args[len(names) :]
        if self._keywords:
            own = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            self._values[self._keywords] = {name: value for name, value in kwargs.items() if name not in own}
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.default is not parameter.empty:
                self._values.setdefault(name, parameter.default)
        self._arguments = dict(zip(names[bound:], paths, strict=False)) | {name: name for name in kwargs}
        self._rest_paths = paths[max(len(names) - bound, 0) :]
        self._rest_bound = max(bound - len(names), 0)
        self.bound = args[:bound]
        self._reached: dict[Source, Any] = {}

    # values -----------------------------------------------------------------------------------------------------

    def value_at(self, source: Source) -> Any:
        """The object that a path leads to.

        Raises:
            Unreachable: for a path that only capture can follow.
        """
        if source not in self._reached:
            try:
                self._reached[source] = self._value_at(source)
            except Unreachable:
                raise
            except Exception as error:  # the user's objects may raise anything when they are looked at
                raise Unreachable(f"{source}: {type(error).__name__}: {error}") from None
        return self._reached[source]

    def _value_at(self, source: Source) -> Any:
        key, base = source.key, source.base
        if base is None:
            return self._root(source)
        if source.kind in ("keys", "computed"):
            raise Unreachable(f"{source} is among the keys of a container, or computed before the call")
        if source.kind in ("ahead", "read_by"):
            raise Unreachable(f"{source} is in an iterator that the call advances")
        owner = self.value_at(base)
        if source.kind == "attr":
            plain = isinstance(owner, (type, ModuleType))
            return getattr(owner, key) if plain else object.__getattribute__(owner, key)
        if source.kind == "item":
            if isinstance(key, NumberExpr):
                raise Unreachable(f"{source} is at a place that the program computes")
            key = self.value_at(key) if isinstance(key, Source) else key
            return entry(owner, key) if isinstance(owner, dict) else owner[key]
        if source.kind == "plain":
            return plain_value(key, owner)
        return owner() if source.kind == "referent" else owner.item()

    def _root(self, source: Source) -> Any:
        """The object at a path of one step."""
        if source.kind == "local":
            return self._values[source.key]
        if source.kind == "closure":
            index = self.function.__code__.co_freevars.index(source.key)
            assert self.function.__closure__ is not None
            return self.function.__closure__[index].cell_contents
        if source.kind == "constant":
            return source.owner
        if source.kind != "global":
            raise Unreachable(f"{source} is a part of a suspended call")
        if source.key in source.owner:
            return source.owner[source.key]
        builtins = source.owner["__builtins__"]
        return builtins[source.key] if isinstance(builtins, dict) else getattr(builtins, source.key)

    # the user's arguments ---------------------------------------------------------------------------------------

    def argument(self, source: Source) -> str | None:
        """The path of the user's argument, or of a value in it, at a source."""
        if source.kind == "local":
            return self._arguments.get(source.key)
        if source.kind != "item" or source.base is None or isinstance(source.key, Source) or hasattr(source.key, "operands"):
            return None
        base = source.base
        if base.kind == "local" and base.key == self._rest:
            index = source.key - self._rest_bound
            return self._rest_paths[index] if 0 <= index < len(self._rest_paths) else None
        if base.kind == "local" and base.key == self._keywords:
            return str(source.key)
        path = self.argument(base)
        if path is None:
            return None
        container = container_of(self.value_at(base))
        if container is not None and container.kind == "namedtuple" and isinstance(source.key, int):
            return f"{path}.{container.keys[source.key]}"
        return f"{path}[{source.key!r}]"

    # names of what the program has ------------------------------------------------------------------------------

    def name_of(self, source: Source, names: dict[int, str]) -> str:
        """The name of what is at a source: `model.fc.weight`. `names` are those of objects, by identity."""
        parts: list[str] = []
        step: Source | None = source
        while step is not None:
            if step.base is None:
                if not (step.kind == "local" and self._is_bound(step)):
                    parts.append(_word(str(step.key)))
                break
            if self._is_bound(step):
                break
            if step.kind not in ("referent", "contents") and step.key not in _TABLES:
                parts.append(self._part(step.key, names))
            step = step.base
        return ".".join(reversed([part for part in parts if part])) or "value"

    def _is_bound(self, source: Source) -> bool:
        """Whether this is the object whose method was called."""
        if source.kind == "item" and source.base is not None and source.base.kind == "local":
            return source.base.key == self._rest and type(source.key) is int and source.key < self._rest_bound
        first = next(iter(self.function.__code__.co_varnames[: self.function.__code__.co_argcount]), None)
        return source.kind == "local" and source.key == first and bool(self.bound)

    def _part(self, key: Any, names: dict[int, str]) -> str:
        if isinstance(key, Source):
            return names.get(id(self.value_at(key))) or self.name_of(key, names)
        return _word(str(key))

    def described(self, source: Source, names: dict[int, str]) -> str:
        """What is at a source, in the user's terms, for messages: `self.history`, `batch['x']`, `the global COUNT`."""
        argument = self.argument(source)
        if argument is not None:
            return argument
        try:
            known = names.get(id(self.value_at(source)))
        except Unreachable:
            return str(source)
        if known is not None:
            return known
        root = source
        while root.base is not None and not self._is_bound(root):
            root = root.base
        name = self.name_of(source, names)
        if root is source:
            return {"global": f"the global {name}", "closure": f"the variable {name}"}.get(source.kind, "self")
        return f"self.{name}" if self._is_bound(root) else name

    # modules that the program uses ------------------------------------------------------------------------------

    def modules(self) -> Iterator[tuple[str, torch.nn.Module]]:
        """The modules that the function's own names lead to, each with its name: "" for the one that was exported."""
        for value in self.bound:
            if isinstance(value, torch.nn.Module):
                yield "", value
            else:
                yield from _modules_in(getattr(value, "__dict__", {}), "")
        for name, cell in zip(self.function.__code__.co_freevars, self.function.__closure__ or (), strict=False):
            try:
                found = cell.cell_contents
            except ValueError:
                continue
            if isinstance(found, torch.nn.Module):
                yield name, found
            elif isinstance(found, FunctionType):  # what a wrapper calls
                yield from Call(found, (), {}, 0, []).modules()
        used = {name for code in codes_in(self.function.__code__) for name in code.co_names}
        yield from _modules_in({k: v for k, v in self.function.__globals__.items() if k in used}, "")


def _modules_in(table: dict[str, Any], prefix: str) -> Iterator[tuple[str, torch.nn.Module]]:
    for name, value in table.items():
        if isinstance(value, torch.nn.Module):
            yield f"{prefix}{name}", value


def _word(text: str) -> str:
    return _NOT_WORD.sub("_", text).strip("_")


def _rest_name(code: CodeType) -> str:
    return code.co_varnames[code.co_argcount + code.co_kwonlyargcount] if code.co_flags & inspect.CO_VARARGS else ""


def _keywords_name(code: CodeType) -> str:
    if not code.co_flags & inspect.CO_VARKEYWORDS:
        return ""
    return code.co_varnames[code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)]
