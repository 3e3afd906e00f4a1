"""Python source of a specialisation: guards, inputs, kernels, and what happens to the user's objects afterwards.

The generated function has the signature of the user's function, and returns its result, or `MISS` where a guard fails.
"""

from __future__ import annotations

import builtins
import inspect
import linecache
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import is_
from types import CodeType, FunctionType
from typing import Any

import torch

from ..errors import Unsupported
from ..ir.segment import Build, Constant, Effect, Existing, New, Output, Recipe, Segment
from ..ir.source import Source
from ..ir.values import TensorMeta
from .prologue import Prologue, attribute_of, lookup_all

#: Names of the generated code's own variables and constants.
_OURS = re.compile(
    r"torch|_(MISS|is|lookup_all|check|types_are|lengths_are|same_objects|get(attr|item)_each|CELLS|tensors|state|lock|type|len|"
    r"id|(get|set|del)attr|setplain|Exception|RunNatively|[a-z]+\d\w*)"
)


#: Functions on whole lists that generated code calls: see `launch.bulk_reads`.
Helpers = dict[str, Callable[..., Any]]


class RunNatively(Exception):
    """A specialisation asks its caller to run the function natively: it is running already (in a finalizer or signal
    handler that interrupted it), or an operator failed, which is the `__cause__`, before anything was changed."""


class Miss:
    """What a specialisation returns when a guard fails."""

    def __repr__(self) -> str:
        return "MISS"


MISS = Miss()

#: Builtins under names that no argument of the user's hides.
_NATIVE: dict[str, Any] = {
    "_is": is_, "_type": type, "_len": len, "_id": id, "_getattr": getattr, "_setattr": setattr, "_delattr": delattr,
    "_setplain": object.__setattr__, "_Exception": Exception, "_RunNatively": RunNatively,
}  # fmt: skip


@dataclass(eq=False, slots=True)
class Body:
    """The part of a specialisation that computes.

    `lines` compute from the variables `_tensors` (all guarded tensors, see `tensor_order`), `_state` (what their check
    said) and the number inputs by their placeholder names; `outputs` are the expressions of the graph's outputs
    afterwards. Names that start with an underscore are ours, others the user's. `numbers` come first, with the guards:
    where a number cannot be computed, or does not fit, the specialisation does not hold. `repeatable` says that it changes
    nothing, so that the function can run natively after an operator failed, for its effects so far and its traceback.
    """

    lines: list[str]
    outputs: list[str]
    constants: dict[str, Any]
    numbers: list[str] = field(default_factory=list)
    repeatable: bool = False


class Glue:
    """A generated function and its source."""

    def __init__(
        self, segment: Segment, body: Body, check: Callable[[list[Any]], int] | None, helpers: Helpers, name: str
    ) -> None:
        """`check` tells what became of the tensors; `helpers` are the functions that read lists in bulk, by name."""
        self.segment = segment
        self.constants: dict[str, Any] = {
            "_MISS": MISS, "torch": torch, "_lookup_all": lookup_all, "_check": check, **_NATIVE, "_lock": threading.RLock(),
            **{f"_{name}": function for name, function in helpers.items()}, **body.constants,
        }  # fmt: skip
        self.source = self._write(body, name)

    # source -----------------------------------------------------------------------------------------------------

    def _write(self, body: Body, name: str) -> str:
        segment = self.segment
        prologue = Prologue(segment.guards, self._wanted())
        prologue.write()
        fetched = {i.name: prologue.name(i.source) for i in segment.inputs}
        tensors = self._tensor_list(prologue)
        epilogue = Epilogue(prologue, body.outputs)
        result = epilogue.write(segment)
        numbers = [
            f"{i.name} = {fetched[i.name]}"
            for i in segment.inputs
            if not isinstance(i.meta, TensorMeta) and i.name != fetched[i.name]
        ]
        self.constants.update(prologue.constants)
        checks = [*prologue.lines, *numbers, *body.numbers]
        locked = [*body.lines]
        if tensors:
            checks.append(f"_tensors = [{tensors}]")
            locked[:0] = ["_state = _check(_tensors)", "if _state < 0: return _MISS"]
        if locked:  # the check's notes and the kernels' argument blocks belong to one thread at a time
            locked = ["with _lock:", *(f"    {line}" for line in locked)]
            if body.repeatable:
                locked = ["try:", *(f"    {line}" for line in locked), _ON_ERROR]
            locked.insert(0, "if _lock._is_owned(): raise _RunNatively")
        guarded = ["try:", *(f"    {line}" for line in checks or ["pass"]), f"except {_FETCH_ERRORS}: return _MISS"]
        lines = [*guarded, *locked, *epilogue.lines, f"return {result}"]
        self._refuse_collisions("\n".join(lines))
        return "\n".join([f"def {name}{signature_source(segment.code)}:", *(f"    {line}" for line in lines)]) + "\n"

    def _refuse_collisions(self, source: str) -> None:
        """Arguments are variables of the generated function: no other variable may have their names."""
        code = self.segment.code
        arguments = set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + 2])
        for graph_input in self.segment.inputs:
            if graph_input.name in arguments and str(graph_input.source) != f"L[{graph_input.name!r}]":
                raise Unsupported(f"an argument with the name of another value, {graph_input.name}")
        if any(_OURS.fullmatch(name) for name in arguments):
            raise Unsupported("an argument with a name of the generated code")
        used = {a or b for a, b in re.findall(r"(?<![\w.])([a-z]+)[(.]|\bis ([a-z]+)\b", source)}
        hidden = sorted(arguments & used & (vars(builtins).keys() | {"math"}))
        if hidden:
            raise Unsupported(f"arguments that hide what the generated code uses: {', '.join(hidden)}")

    def _wanted(self) -> list[Source]:
        """Sources that the body and the epilogue use."""
        found = [i.source for i in self.segment.inputs]
        seen: set[int] = set()

        def visit(recipe: Any) -> None:
            if recipe is None or id(recipe) in seen:
                return
            seen.add(id(recipe))
            if isinstance(recipe, Existing):
                found.append(recipe.source)
            elif isinstance(recipe, Build):
                for item in recipe.items:
                    for part in item if isinstance(item, tuple) else (item,):
                        visit(part)
            elif isinstance(recipe, New):
                for part in recipe.attributes.values():
                    visit(part)

        visit(self.segment.result)
        for effect in self.segment.effects:
            visit(effect.target)
            visit(effect.value)
            if isinstance(effect.key, Recipe):
                visit(effect.key)
        return found

    def _tensor_list(self, prologue: Prologue) -> str:
        """The list of all tensors that have a guard, graph inputs first, in the order of `tensor_order`."""
        return ", ".join(prologue.names(tensor_order(self.segment)))

    # function ---------------------------------------------------------------------------------------------------

    def function(self, like: FunctionType) -> Callable[..., Any]:
        """Compile the source to a function with the defaults and free variables of `like`."""
        filename = f"<quickfuse {like.__qualname__} {id(self):x}>"
        linecache.cache[filename] = (len(self.source), None, self.source.splitlines(keepends=True), filename)
        namespace = self.constants
        namespace["_CELLS"] = dict(zip(like.__code__.co_freevars, like.__closure__ or (), strict=True))
        exec(compile(self.source, filename, "exec"), namespace)
        made: FunctionType = namespace[self._name()]
        made.__defaults__ = like.__defaults__
        made.__kwdefaults__ = like.__kwdefaults__
        made.__qualname__ = like.__qualname__
        return made

    def _name(self) -> str:
        return self.source[len("def ") : self.source.index("(")]


_ON_ERROR = "except _Exception as _error0: raise _RunNatively from _error0"
_FETCH_ERRORS = "(AttributeError, LookupError, TypeError, ValueError, ArithmeticError)"


def tensor_order(segment: Segment) -> list[Source]:
    """Sources of all guarded tensors, in the order in which they are checked: by family, then index.

    Several steps of compilation ask for it, and finding it goes through every guard: it is found once.
    """
    if segment._tensor_order is None:
        segment._tensor_order = _find_tensor_order(segment)
    return segment._tensor_order


def _find_tensor_order(segment: Segment) -> list[Source]:
    prologue = Prologue(segment.guards, [])
    placed = {g.source: prologue._place(g.source) for g in segment.guards if g.kind == "tensor" and g.source is not None}
    families: dict[Any, list[tuple[int, Source]]] = {}
    singles: list[Source] = []
    for source, where in placed.items():
        if where is None:
            singles.append(source)
        else:
            families.setdefault(id(where[0]), []).append((where[1], source))
    ordered = [source for members in families.values() for _, source in sorted(members, key=lambda m: m[0])]
    return ordered + singles


def signature_source(code: CodeType) -> str:
    """The parameter list of a code object; defaults are attached to the function afterwards."""
    names = list(code.co_varnames)
    positional = names[: code.co_argcount]
    parts = positional[: code.co_posonlyargcount]
    if parts:
        parts.append("/")
    parts += positional[code.co_posonlyargcount :]
    keyword_only = names[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    rest = code.co_argcount + code.co_kwonlyargcount
    if code.co_flags & inspect.CO_VARARGS:
        parts.append(f"*{names[rest]}")
        rest += 1
    elif keyword_only:
        parts.append("*")
    parts += keyword_only
    if code.co_flags & inspect.CO_VARKEYWORDS:
        parts.append(f"**{names[rest]}")
    return f"({', '.join(parts)})"


class Epilogue:
    """Writes the statements that make the result and replay the effects."""

    def __init__(self, prologue: Prologue, outputs: list[str]) -> None:
        self.lines: list[str] = []
        self._prologue = prologue
        self._outputs = outputs
        self._made: dict[int, str] = {}

    def write(self, segment: Segment) -> str:
        """Emit all effects; returns the expression of the result."""
        result = self.value(segment.result)
        prepared = [(e, self._operands(e)) for e in segment.effects]
        for effect, operands in prepared:
            self.lines.append(self._statement(effect, *operands))
        return result

    def _operands(self, effect: Effect) -> tuple[str, str, str]:
        target = self.value(effect.target) if effect.target is not None else ""
        key = self.value(effect.key) if isinstance(effect.key, Recipe) else ""
        value = self.value(effect.value) if effect.value is not None else ""
        return target, key, value

    def _statement(self, effect: Effect, target: str, key: str, value: str) -> str:
        constant = self._prologue.constant
        if effect.kind == "setattr":
            return set_attribute(target, effect.key, value)
        if effect.kind == "setplain":
            return f"_setplain({target}, {effect.key!r}, {value})"
        if effect.kind == "delattr":
            return f"_delattr({target}, {effect.key!r})"
        if effect.kind == "setitem":
            return f"{target}[{key}] = {value}"
        if effect.kind == "delitem":
            return f"del {target}[{key}]"
        if effect.kind == "refill":
            return f"{target}[:] = {value}"
        if effect.kind == "setglobal":
            globals_, name = effect.key
            return f"{constant(globals_, 'globals')}[{name!r}] = {value}"
        return f"{constant(effect.key, 'cell')}.cell_contents = {value}"

    def value(self, recipe: Recipe) -> str:
        """The expression of a value; containers and objects are made once and named."""
        if isinstance(recipe, Constant):
            return self._prologue.constant(recipe.value)
        if isinstance(recipe, Existing):
            return self._prologue.name(recipe.source)
        if isinstance(recipe, Output):
            return self._outputs[recipe.index]
        known = self._made.get(id(recipe))
        if known is not None:
            return known
        name = f"_made{len(self._made)}"
        self._made[id(recipe)] = name
        if isinstance(recipe, New):
            self._write_object(name, recipe)
        elif isinstance(recipe, Build):
            self._write_container(name, recipe)
        return name

    def _write_object(self, name: str, recipe: New) -> None:
        cls = self._prologue.constant(recipe.cls)
        self.lines.append(f"{name} = {cls}.__new__({cls})")
        for attribute, value in recipe.attributes.items():
            self.lines.append(set_attribute(name, attribute, self.value(value)))

    def _write_container(self, name: str, recipe: Build) -> None:
        cls = recipe.cls
        if issubclass(cls, dict):
            self.lines.append(f"{name} = {self._prologue.constant(cls)}()")
            for key, value in recipe.items:
                self.lines.append(f"{name}[{self.value(key)}] = {self.value(value)}")
        elif cls is list:
            self.lines.append(f"{name} = []")
            items = ", ".join(self.value(item) for item in recipe.items)
            self.lines.append(f"{name} += [{items}]")
        else:
            items = ", ".join(self.value(item) for item in recipe.items)
            self.lines.append(f"{name} = {self._call(cls, items)}")

    def _call(self, cls: type, items: str) -> str:
        if cls is tuple:
            return f"({items},)" if items else "()"
        name = self._prologue.constant(cls)
        if issubclass(cls, tuple):
            return f"tuple.__new__({name}, [{items}])"
        if cls in (set, frozenset) or cls.__name__ == "deque":
            return f"{name}([{items}])"
        return f"{name}({items})"


def set_attribute(target: str, name: str, value: str) -> str:
    """The statement `target.name = value`, for any name."""
    place = attribute_of(target, name)
    return f"{place} = {value}" if place.startswith(f"{target}.") else f"_setattr({target}, {name!r}, {value})"


def first_failure(
    segment: Segment, like: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any], helpers: Helpers
) -> str | None:
    """The first guard of a segment that does not hold for a call, as text with the user's source line.

    Evaluates one guard at a time, each with a prologue of its own: slow, and only run to explain a recompilation.
    """
    for guard in segment.guards:
        prologue = Prologue([guard], [])
        try:
            condition = prologue._condition(guard) if guard.kind != "tensor" else _tensor_condition(prologue, guard)
            lines = [*prologue.lines, f"return bool({condition})"]
            source = f"def probe{signature_source(segment.code)}:\n" + "\n".join(f"    {line}" for line in lines)
            namespace: dict[str, Any] = {
                "torch": torch, "_lookup_all": lookup_all, **_NATIVE,
                **{f"_{name}": function for name, function in helpers.items()},
                "_CELLS": dict(zip(like.__code__.co_freevars, like.__closure__ or (), strict=True)),
                **prologue.constants,
            }  # fmt: skip
            exec(source, namespace)
            probe: FunctionType = namespace["probe"]
            probe.__defaults__, probe.__kwdefaults__ = like.__defaults__, like.__kwdefaults__
            failed = probe(*args, **kwargs)
        except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError):
            failed = True
        if failed:
            return f"{guard}" + (f"  # {guard.location}" if guard.location else "")
    return None


def _tensor_condition(prologue: Prologue, guard: Any) -> str:
    cls, meta = guard.value
    name = prologue.name(guard.source)
    wanted = prologue.constant((cls, meta.dtype, meta.shape, meta.stride, meta.device), "meta")
    return f"(type({name}), {name}.dtype, tuple({name}.shape), {name}.stride(), {name}.device) != {wanted}"
