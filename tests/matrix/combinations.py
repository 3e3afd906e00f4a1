"""Combinations of a kind of value, a use, a way to the program and a change; and running one, in eager and compiled.

Both run on values of their own. Each is called with the first value, twice; then something changes, perhaps two things one
after the other; then it changes back.
"""

from __future__ import annotations

import array
import collections
import copy
import dataclasses
import datetime
import decimal
import fractions
import functools
import itertools
import math
import numbers
import operator
import pathlib
import random
import re
import textwrap
import types
import uuid
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import quickfuse
import turns

from .kinds import KINDS, Change, Values
from .uses import USES

#: How a value reaches the function: a template of the function, with the statements of the use indented.
WAYS: dict[str, str] = {
    "argument": "def f(x, v):\n{}\n    return r",
    "keyword": "def f(x, *, v):\n{}\n    return r",
    "global": "def f(x):\n    v = V\n{}\n    return r",
    "closure": (
        "def outer(v):\n    def f(x):\n{}\n        return r\n"
        "    def change(new):\n        nonlocal v\n        v = new\n    return f, change"
    ),
    "attribute": "def f(x, holder):\n    v = holder.v\n{}\n    return r",
    "default": "def f(x, v=None):\n{}\n    return r",
    "keyword default": "def f(x, *, v=None):\n{}\n    return r",
    "default of an inner call": "def h(x, v=None, *, w=None):\n{}\n    return r\ndef f(x):\n    return h(x)",
    "element": "def f(x, items):\n    v = items[0]\n{}\n    return r",
    "entry": "def f(x, items):\n    v = items['v']\n{}\n    return r",
    "nested": "def f(x, holder):\n    v = holder.items['v'][0].v\n{}\n    return r",
    "method": "class Own:\n    def f(self, x):\n        v = self.v\n{}\n        return r",
}  # fmt: skip

CHANGES = ("other", "place", "class", "delete", "missing")
#: Ways that a value can be taken away from: the name, attribute or entry is no longer there.
_CAN_BE_MISSING = ("global", "attribute", "entry", "method", "keyword default")


#: What ends with an iterator that does not.
_OF_ENDLESS = frozenset({
    "return", "if v", "bool(v)", "v or", "v and", "v is None", "v is other", "len(v)", "next(v)", "next(iter(v))", "zip(v)",
    "enumerate(v)", "for e in v", "tuple(v)", "type(v)", "callable", "v == other", "getattr(v, 'a', 7)", "v.a", "[v, v]",
})  # fmt: skip


@dataclass(frozen=True)
class Combination:
    kind: str
    use: str
    way: str
    change: str

    def __str__(self) -> str:
        return f"{self.kind} | {self.use} | {self.way} | {self.change}"


def combinations() -> Iterator[Combination]:
    """All of them: some millions."""
    for kind, factory in KINDS.items():
        own = [*factory().changes]
        for use, way in itertools.product(USES, WAYS):
            if _is_run(kind, use):
                yield from (Combination(kind, use, way, change) for change in _changes(own, way))


def drawn(seed: int) -> Iterator[Combination]:
    """Combinations drawn at random, without end: each kind is as likely as the others."""
    draw = random.Random(seed)
    kinds, uses, ways = [*KINDS], [*USES], [*WAYS]
    while True:
        kind, use, way = draw.choice(kinds), draw.choice(uses), draw.choice(ways)
        if _is_run(kind, use):
            yield Combination(kind, use, way, draw.choice(_changes([*KINDS[kind]().changes], way)))


def _changes(own: list[str], way: str) -> list[str]:
    """One change, or two in a row; `own` are those of the kind."""
    single = ["other", *own, *(["missing"] if way in _CAN_BE_MISSING else [])]
    return [*single, *("+".join(two) for two in itertools.permutations(single, 2))]


def _is_run(kind: str, use: str) -> bool:
    """Whether a use of a kind ends, and gives the same each time in eager mode."""
    if kind == "int_large" and use == "range(v)":
        return False
    if kind == "itertools_count":
        return use in _OF_ENDLESS
    if kind in ("dict_items", "dict_keys") and use == "x - v":  # a set of rows, which are in the order of addresses
        return False
    if kind == "torch_operator" and ("a = " in use or "+=" in use):  # there is one object of it for both
        return False
    return not (kind.startswith("numpy_array") and use == "type(v)(v)")  # whose memory has no values yet


class Program:
    """One function, and a value on its way to it."""

    def __init__(self, combination: Combination, compile_: Callable[[Any], Any]) -> None:
        self.values: Values = KINDS[combination.kind]()
        self.way = combination.way
        depth = 8 if self.way in ("closure", "method") else 4
        body = textwrap.indent(USES[combination.use], " " * depth)
        self.space: dict[str, Any] = {
            "torch": torch, "operator": operator, "math": math, "copy": copy, "functools": functools, "np": np,
            "itertools": itertools, "Mapping": Mapping, "Number": numbers.Number, "Hashable": Hashable,
            "Counter": collections.Counter, "deque": collections.deque, "OrderedDict": collections.OrderedDict,
            "G": _keywords, "dataclasses": dataclasses, "OTHER": self.values.second, "V": None, "__name__": "program",
        }  # fmt: skip
        exec(WAYS[self.way].format(body), self.space)
        self.holder = types.SimpleNamespace()
        self.items: Any = {} if self.way == "entry" else [None]
        if self.way == "closure":
            self.function, self.change_closure = self.space["outer"](None)
        elif self.way == "method":
            self.holder = self.space["Own"]()
            self.function = self.holder.f
        else:
            self.function = self.space["f"]
        self.called = compile_(self.function)
        self.give(self.values.first)

    def give(self, value: Any) -> None:
        """Put a value in its place."""
        self.value = value
        if self.way == "global":
            self.space["V"] = value
        elif self.way == "closure":
            self.change_closure(value)
        elif self.way in ("attribute", "method"):
            self.holder.v = value
        elif self.way == "nested":
            self.holder.items = {"v": [types.SimpleNamespace(v=value)]}
        elif self.way == "default":
            self.function.__defaults__ = (value,)
        elif self.way == "keyword default":
            self.function.__kwdefaults__["v"] = value
        elif self.way == "default of an inner call":
            self.space["h"].__defaults__ = (value,)
        elif self.way in ("element", "entry"):
            self.items["v" if self.way == "entry" else 0] = value

    def take_away(self) -> None:
        if self.way == "global":
            del self.space["V"]
        elif self.way in ("attribute", "method"):
            del self.holder.v
        elif self.way == "entry":
            del self.items["v"]
        else:
            del self.function.__kwdefaults__["v"]

    def call(self) -> Any:
        x = torch.arange(9.0).view(3, 3)
        if self.way == "argument":
            return self.called(x, self.value)
        if self.way == "keyword":
            return self.called(x, v=self.value)
        if self.way in ("attribute", "nested"):
            return self.called(x, self.holder)
        if self.way in ("element", "entry"):
            return self.called(x, self.items)
        return self.called(x)


def _keywords(*args: Any, **kwargs: Any) -> Any:
    return args, kwargs


def run(combination: Combination, compile_: Callable[[Any], Any]) -> list[Any]:
    """What each of the calls gave, and what became of the value."""
    results = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = Program(combination, compile_)
        undo: list[Callable[[], Any]] = []
        changes = combination.change.split("+")
        for step in ("", "", *changes, *("back" for _ in changes)):
            if step == "back":
                _quietly(undo.pop())
            elif step:
                change, back = _change(program, step)
                _quietly(change)
                undo.append(back)
            for _ in range(turns.CALLS_EACH):
                try:
                    result = described(program.call())
                except Exception as error:
                    result = f"{type(error).__name__}"
                results.append((result, described(program.value)))
    return results


def _quietly(change: Callable[[], Any]) -> None:
    """A change that is not possible any more after what the use did is none."""
    try:
        change()
    except Exception:
        return


def _change(program: Program, change: str) -> Change:
    values = program.values
    if change == "other":
        return (lambda: program.give(values.second)), (lambda: program.give(values.first))
    if change == "missing":
        return program.take_away, (lambda: program.give(values.first))
    return values.changes[change]


_ADDRESS = re.compile(r"0x[0-9a-f]+")


def described(value: Any, depth: int = 4) -> Any:
    """A value as text that two equal ones share: with types, order, dtypes and attributes."""
    kind = type(value).__name__
    if isinstance(value, torch.Tensor):
        return f"{kind} {value.dtype} {tuple(value.shape)} {value.stride()} {value.tolist()}"
    if not depth or isinstance(value, (type, types.FunctionType)):
        return f"{kind} {getattr(value, '__name__', '')}"
    if isinstance(value, dict):
        inner = [(described(k, depth - 1), described(v, depth - 1)) for k, v in dict.items(value)]
        return f"{kind} {inner}{_attributes(value, depth)}"
    for cls in (list, tuple, set, frozenset, collections.deque):
        if isinstance(value, cls):
            return f"{kind} {[described(v, depth - 1) for v in cls.__iter__(value)]}{_attributes(value, depth)}"
    for cls in (bool, int, float, str, complex, bytes):
        if isinstance(value, cls):
            return f"{kind} {_ADDRESS.sub('', cls.__repr__(value))}{_attributes(value, depth)}"
    if isinstance(value, (np.generic, np.ndarray)):
        return f"{kind} {value.dtype} {value!r}"
    if isinstance(value, torch.nn.Module):
        return f"{kind} {[described(m, depth - 1) for m in value._modules.values()]} {sorted(map(str, vars(value)))}"
    if isinstance(value, BaseException):
        return f"{kind} {value.args!r}"
    if isinstance(value, _PLAIN):
        return f"{kind} {value!r}"
    if isinstance(value, Iterator) and type(value).__module__ in ("builtins", "itertools"):
        return f"{kind} {_left(value, depth)}"
    if isinstance(value, _NATIVE):
        return f"{kind} {_ADDRESS.sub('', object.__repr__(value))}"
    if isinstance(value, types.ModuleType):
        return f"{kind} {_ADDRESS.sub('', object.__repr__(value))}{_attributes(value, depth)}"
    return f"{kind}{_attributes(value, depth)}"


_NATIVE = (types.BuiltinFunctionType, types.MethodType, range, slice, torch._ops.OpOverload)
#: Objects whose text says all there is to know of them.
_PLAIN = (
    array.array, bytearray, datetime.date, datetime.timedelta, decimal.Decimal, fractions.Fraction, pathlib.PurePath,
    torch.Size, torch.device, torch.dtype, uuid.UUID,
)  # fmt: skip


def _left(iterator: Iterator[Any], depth: int) -> Any:
    """What an iterator has yet to give, without taking it; "" where that cannot be told."""
    try:
        return [described(v, depth - 1) for v in itertools.islice(copy.deepcopy(iterator), 12)]
    except TypeError:
        return ""


def _attributes(value: Any, depth: int) -> str:
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        found = {}
    own = {k: v for k, v in found.items() if not k.startswith("__")}
    for cls in type(value).__mro__:
        for name in getattr(cls, "__slots__", ()) if isinstance(getattr(cls, "__slots__", ()), tuple) else ():
            member = vars(cls).get(name)
            if isinstance(member, types.MemberDescriptorType):
                try:
                    own[name] = member.__get__(value)
                except AttributeError:
                    own[name] = "unset"
    return f" {[(k, described(v, depth - 1)) for k, v in own.items()]}" if own else ""


def difference(combination: Combination, backend: str = "eager") -> str:
    """What a compiled function gives in place of eager's results, "" if nothing."""
    wanted = run(combination, lambda function: function)
    got = run(combination, lambda function: quickfuse.compile(function, backend=backend))
    for call, (eager, ours) in enumerate(zip(wanted, got, strict=True)):
        if eager != ours:
            return f"call {call}: {ours} instead of {eager}"
    return ""


__all__ = ["Combination", "combinations", "difference", "drawn", "run"]
