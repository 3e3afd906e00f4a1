"""Facts that a specialisation relies on. Each prints as the Python expression that must hold."""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

import numpy

from .quick import value_class
from .source import Source
from .values import TensorMeta

#: Whole numbers up to this one are also floating-point ones.
_EXACT = 1 << 53
#: Among what keeps changing: at which of the places that a call reads there is one and the same object.
WHICH_ARE_ONE = "which objects are one"


@value_class(frozen=True, slots=True, eq=False)
class Guard:
    """`kind` says what must hold of `source`:

    * "type":     `type(source) is value`
    * "is":       `source is value` (None, True, False, functions, classes, modules, dtypes)
    * "equal":    `source == value`, with the same type
    * "length":   `len(source) == value`
    * "keys":     `list(source) == value`: a dictionary's keys or a set's elements, in order
    * "absent":   no key of `value` (a tuple) is in the dictionary `source`
    * "unset":    the slot `value` (a member descriptor) of `source` has no value
    * "tensor":   type `value[0]`, and metadata `value[1]` (`TensorMeta`) but for `requires_grad`
    * "requires_grad": `source.requires_grad is value`
    * "same":     `source is value`, another source
    * "distinct": `source is not value`, another source
    * "apart":    no tensor of `value[0]` shares memory with another one of `value[0]` or `value[1]`; `source` is None
    * "unique":   the sources in `value` (a tuple) lead to as many objects; `source` is None
    * "condition": the number expression `value[0]` (see `NumberExpr`) has the truth value `value[1]`
    * "cached":   the dictionary at `source` has `value[1]`, or nothing, under the key `value[0]`; it is the cache of the
      function `value[2]` behind `functools.lru_cache`, if that is not None
    * "filters":  the list at `source`, of filters of warnings, has the elements `value`
    * "subclass": `issubclass(value[0], value[1]) is value[2]`, where classes can be registered; `source` is None
    * "state":    the global setting named `value[0]` is `value[1]`; `source` is None

    `location` is the user's "file:line" that made it necessary, and `library_code` the function of PyTorch's or of the
    standard library that line called, if it is one of those that needs it.
    """

    kind: str
    source: Source | None
    value: Any
    location: str = ""
    library_code: CodeType | None = None

    def __str__(self) -> str:
        return FORMATS[self.kind](self.source, self.value)

    def sources(self) -> Iterator[Source]:
        """The sources that it speaks of."""
        if self.source is not None:
            yield self.source
        if self.kind in ("same", "distinct"):
            yield self.value
        elif self.kind == "unique":
            yield from self.value
        elif self.kind in ("keys", "absent"):
            yield from (k for k in self.value if isinstance(k, Source))
        elif self.kind == "condition":
            yield from self.value[0].sources()

    def values_held(self) -> list[str]:
        """What this guard holds fixed by value: a number, string, length, or keys, by the name that `Outside` knows it
        under; or that two sources lead to one object."""
        if self.kind in ("length", "equal", "keys"):
            return [str(self.source)]
        if self.kind == "condition" and self.value[0].template == "({} == {})":
            operand = self.value[0].operands[0]
            return [operand.code() if isinstance(operand, NumberExpr) else str(operand)]
        return [WHICH_ARE_ONE] if self.kind == "same" else []

    def one_value(self, n: int) -> str:
        """Something that is equal for the guards that hold one value of a name of `values_held`. Guards on which objects are
        one hold no value, so that `n`, which counts guards, tells them apart."""
        return str(n) if self.kind == "same" else repr(self.value[0].operands if self.kind == "condition" else self.value)

    def truth_values_held(self) -> str | None:
        """Where the truth value in a list is that this guard holds, as `in_lists` says it."""
        return self._in_lists() if self.kind == "is" and type(self.value) is bool else None

    def texts_held(self) -> str | None:
        """The same of a text in a list."""
        return self._in_lists() if self.kind == "equal" and type(self.value) in (str, bytes) else None

    def _in_lists(self) -> str | None:
        name = str(self.source)
        return in_lists(name, type(self.value)) if _INDEX.search(name) else None


def in_lists(name: str, kind: type) -> str:
    """How it is said to capture that what is at places like the one of this name, in lists, keeps changing."""
    return f"each {kind.__name__} at {_INDEX.sub('[...]', name)}"


_INDEX = re.compile(r"\[\d+\]")


@dataclass(frozen=True, slots=True, eq=False)
class NumberExpr:
    """Python arithmetic on numbers of the user's program: `template.format(*operands)`.

    Operands are sources, number expressions, or constants.
    """

    template: str
    operands: tuple[Any, ...]

    def sources(self) -> Iterator[Source]:
        """The sources among the operands, and theirs."""
        for operand in self.operands:
            if isinstance(operand, Source):
                yield operand
            elif isinstance(operand, NumberExpr):
                yield from operand.sources()

    def code(self, name_of: Any = str) -> str:
        parts = [
            operand.code(name_of)
            if isinstance(operand, NumberExpr)
            else name_of(operand)
            if isinstance(operand, Source)
            else literal(operand)
            for operand in self.operands
        ]
        return self.template.format(*parts)

    def __str__(self) -> str:
        return self.code()


#: Of whole numbers that are written in decimal: Python may refuse to write longer ones so, from 640 digits on.
MOST_BITS = 2048


def float32(value: float) -> float:
    """A number as a float32 tensor holds it: `_float32` in templates and in generated code."""
    if type(value) is int and _EXACT < abs(value) < 1 << 63:  # by way of a float it would be rounded twice
        return float(numpy.int64(value).astype(numpy.float32))
    return ctypes.c_float(value).value


def added(start: Any, *numbers: Any) -> Any:
    """Python's `sum`, which makes up for rounding errors from 3.12 on: `_added` in templates and in generated code."""
    return sum(numbers, start)


def literal(value: Any) -> str:
    """A constant as it can stand anywhere in an expression, without the help of a name."""
    if type(value).__module__ == "numpy":
        return f"_np.{type(value).__name__}({literal(value.item())})"
    if isinstance(value, float) and not math.isfinite(value):
        return "(1e999 - 1e999)" if math.isnan(value) else "1e999" if value > 0 else "(-1e999)"
    text = hex(value) if type(value) is int and value.bit_length() > MOST_BITS else repr(value)
    return f"({text})" if text.startswith("-") else text


def _tensor(source: Source | None, value: tuple[type, TensorMeta]) -> str:
    return f"{source} is a {value[0].__name__} {value[1]}"


def _condition(source: Source | None, value: tuple[NumberExpr, bool]) -> str:
    code = value[0].code()
    if not _in_parentheses(code):
        code = f"({code})"
    return code if value[1] else f"not {code}"


def _in_parentheses(code: str) -> bool:
    """Whether one pair of parentheses is around everything."""
    depth = 0
    for position, character in enumerate(code):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return position > 0 and position == len(code) - 1
    return False


FORMATS: dict[str, Any] = {
    "type": lambda s, v: f"type({s}) is {v.__qualname__}",
    "is": lambda s, v: f"{s} is {getattr(v, '__qualname__', None) or getattr(v, '__name__', None) or repr(v)}",
    "equal": lambda s, v: f"{s} == {v!r}",
    "length": lambda s, v: f"len({s}) == {v}",
    "keys": lambda s, v: f"list({s}) == {list(v)!r}",
    "absent": lambda s, v: f"{', '.join(map(repr, v))} not in {s}",
    "unset": lambda s, v: f"{s}.{v.__name__} is not set",
    "tensor": _tensor,
    "requires_grad": lambda s, v: f"{s}.requires_grad is {v}",
    "same": lambda s, v: f"{s} is {v}",
    "distinct": lambda s, v: f"{s} is not {v}",
    "apart": lambda s, v: f"{', '.join(map(str, v[0]))} share no memory with each other" + (
        f" or with {', '.join(map(str, v[1]))}" if v[1] else ""
    ),
    "unique": lambda s, v: f"{', '.join(map(str, v))} are different objects",
    "condition": _condition,
    "cached": lambda s, v: f"{s}[{v[0]!r}] is missing or {v[1]!r}",
    "filters": lambda s, v: f"{s} has the same {len(v)} elements",
    "subclass": lambda s, v: f"{'' if v[2] else 'not '}issubclass({v[0].__qualname__}, {v[1].__qualname__})",
    "state": lambda s, v: f"{v[0]} == {v[1]!r}",
}
