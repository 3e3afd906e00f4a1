"""Numbers and texts from outside: symbols where they may change, held by guards where their value matters."""

from __future__ import annotations

import math
from typing import Any

from ... import config
from ...errors import Unsupported
from ...ir.guard import NumberExpr
from ...ir.number_parameters import changed
from ...ir.reading import plain_value
from ...ir.source import Source
from ..symbolic import ForeignScalar, Symbol, is_numpy, numpy_class
from .changes import Changes
from .guarding import expression, identity

#: The length of a list that keeps changing.
LENGTH = "_len({})"

_NO_BRANCH = ("a branch on a tensor's value (through item())", "torch.where keeps both sides on the device")


class Numbers(Changes):
    """The numbers that the capture of one segment has read so far."""

    def __init__(self, program: Any, volatile: frozenset[str]) -> None:
        super().__init__(program, volatile)
        self.symbols: dict[Source, Symbol] = {}
        #: The sizes of tensors that are symbols, by their sources: see `pytorch.dynamic_sizes`.
        self.dynamic_sizes: dict[Source, Symbol] = {}
        self._strings: dict[Source, ForeignScalar] = {}
        self._keys: dict[str, NumberExpr] = {}

    def number_at(self, value: Any, kind: type, source: Source) -> Any:
        symbol = self.symbols.get(source)
        if symbol is None:
            self.guard("type", source, kind)
            symbol = self.symbols[source] = Symbol(kind, value, source)
        if config.specialize_floats and kind is float:
            return self.concrete(symbol)
        return symbol

    def string_at(self, value: str | bytes, source: Source) -> ForeignScalar:
        """A string, or bytes, that keep changing, which can be handed on. What is one at two sources need not stay so: each
        has its own stand-in."""
        made = self._strings.get(source)
        if made is None:
            self.guard("type", source, type(value))
            made = self._strings[source] = ForeignScalar(value, type(value), source)
        return made

    def is_changing_text(self, value: ForeignScalar) -> bool:
        return value.source in self._strings

    def concrete(self, value: Any) -> Any:
        """The plain value of a symbol or of a scalar of a class of the user's, guarded to stay so; other values as they are.
        Raises `Unsupported` for numbers out of tensors."""
        if type(value) is ForeignScalar:
            if self.is_changing_text(value):
                raise Unsupported("a string that keeps changing where its value matters")
            self._refuse_changing(value.source)
            self._refuse_changing(value.source.plain(value.cls))
            plain = plain_value(value.cls, value.real)
            self.guard("equal", value.source.plain(value.cls), plain)
            return value.real if is_numpy(value.real) else plain
        if type(value) is not Symbol:
            return value
        if value.from_tensor:
            if (held := self.program.number_out_of_tensor(value)) is None:
                raise Unsupported(*_NO_BRANCH)
            return held
        if self._was_held(value) or self.is_dynamic_size(value):
            raise Unsupported("a number that keeps changing where its value matters")
        if isinstance(value.expr, Source):
            plain = value.cls is value.kind
            self.guard(
                "is" if value.kind is bool else "equal", value.expr if plain else value.expr.plain(value.kind),
                value.hint if plain else value.kind(value.hint),
            )  # fmt: skip
        else:
            self.guard("condition", None, (NumberExpr("({} == {})", (value.expr, value.hint)), True))
            if value.kind is float and value.hint == 0:  # -0.0 equals it
                self.require(NumberExpr("(math.copysign(1, {}) > 0)", (value.expr,)), math.copysign(1, value.hint) > 0)
        return value.hint

    def has_other_values(self, symbol: Symbol) -> bool:
        """Whether what a number is computed from was held by its value before, and had another one."""
        if not self.volatile:
            return False
        sources = {*expression(symbol.expr).sources()}
        if symbol.cls is not symbol.kind:  # a guard holds the plain number
            sources |= {s.plain(symbol.kind) for s in sources}
        return any(changed(str(s)) in self.volatile for s in sources)

    def varies(self, symbol: Symbol) -> bool:
        """Whether a number had another value in an earlier call, or keeps changing."""
        return self.has_other_values(symbol) or self.has_changing_sources(symbol)

    def has_changing_sources(self, symbol: Symbol) -> bool:
        """Whether a number, or what it is computed from, keeps changing."""
        changes = bool(self.volatile) and any(self.keeps_changing(s) for s in expression(symbol.expr).sources())
        return changes or self._was_held(symbol)

    def _was_held(self, symbol: Symbol) -> bool:
        """Whether a number was held by its value, and was another one in many calls."""
        if not self.volatile:
            return False
        if isinstance(symbol.expr, NumberExpr):
            return symbol.expr.code() in self.volatile or _is_length(symbol.expr)
        source: Any = symbol.expr
        held = source if symbol.cls is symbol.kind else source.plain(symbol.kind)
        return str(held) in self.volatile

    def number(self, value: Any) -> Any:
        """A scalar of a class of the user's or of NumPy's as a plain number or symbol; other values as they are."""
        if is_numpy(value):
            cls = numpy_class(value)
            return value if cls is None else plain_value(cls, value)
        if type(value) is not ForeignScalar:
            return value
        plain = plain_value(value.cls, value.real)
        if value.cls in (int, float):
            return self.number_at(plain, value.cls, value.source.plain(value.cls))
        self.concrete(value)
        return plain

    def number_of_numpy(self, value: Any) -> Any:
        """A scalar of NumPy's as a symbol of its class; other values as they are."""
        if type(value) is not ForeignScalar or not is_numpy(value.real) or value.cls not in (int, float):
            return value
        if config.specialize_floats and value.cls is float:
            return self.concrete(value)
        symbol = self.symbols.get(value.source)
        if symbol is None:
            symbol = self.symbols[value.source] = Symbol(value.cls, value.real, value.source)
        return symbol

    def _refuse_changing(self, source: Source) -> None:
        """No guard on the value of what keeps changing is worth having."""
        if self.keeps_changing(source):
            raise Unsupported("a value that keeps changing where it matters")

    def key_of(self, symbol: Symbol) -> NumberExpr:
        """A number as the key of a source. Equal expressions are one key."""
        return self.key_of_expr(expression(symbol.expr))

    def key_of_expr(self, expr: NumberExpr) -> NumberExpr:
        return self._keys.setdefault(expr.code(identity), expr)

    def is_dynamic_size(self, value: Any) -> bool:
        """Whether a number is computed from sizes that are symbols."""
        if type(value) is not Symbol or not self.dynamic_sizes or value.from_tensor:
            return False
        return any(source in self.dynamic_sizes for source in expression(value.expr).sources())


def _is_length(expr: Any) -> bool:
    """Whether a number is the length of a list that grows (`objects.changing_parts`), or differs from it by a constant."""
    if not isinstance(expr, NumberExpr):
        return False
    if expr.template in ("({} + {})", "({} - {})"):
        return type(expr.operands[1]) is int and _is_length(expr.operands[0])
    return expr.template == LENGTH
