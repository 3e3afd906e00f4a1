"""Iterators: CPython's own over stand-ins, and generators that captured code made."""

from __future__ import annotations

import collections
from typing import Any

from ...errors import Unsupported
from ...ir.iterating import iterator_over, over_dictionary
from ...ir.segment import Call, Constant, Generator, Recipe
from ..effects import RecipeBook
from ..interpreter import Interpreter
from ..library import in_python as library
from ..objects import generators
from ..objects.iterators import ObjectIterator, put_together, take_apart
from ..revival import ended_generator
from ..symbolic.frame import GeneratorValue
from ..symbolic.raising import raise_in_program
from .kind import Kind, Then, always_true, itself
from .object import ObjectKind, is_among

_OVER_DEQUE = type(iter(collections.deque()))


class IteratorKind(ObjectKind):
    """See `iterators.py`."""

    asks_class = False

    contains, iterate, truth = is_among, itself, always_true

    def advance(self, i: Interpreter, iterator: Any) -> tuple[bool, Any]:
        try:
            return True, next(iterator)
        except StopIteration as stop:
            return False, stop.value
        except (RuntimeError, ValueError) as error:  # a container that changed during iteration, or zip(strict=True)
            if isinstance(error, Unsupported):
                raise
            raise_in_program(error)

    def rebuild(self, book: RecipeBook, value: Any) -> Recipe:
        if isinstance(value, ObjectIterator):
            return book.recipe(value.parts[0])
        try:
            if (found := over_dictionary(value)) is not None:
                table, *place = found
                owner = next((shadow for shadow in book.i.outside.dictionaries if shadow.entries is table), table)
                return Call(iterator_over, [book.recipe(owner), *map(Constant, place)])
            function, arguments, *state = take_apart(value)
            if type(value) is _OVER_DEQUE:
                next(value, None)  # says whether the deque has changed since
        except RuntimeError as error:  # a container that changed since
            raise Unsupported(f"an iterator that is no longer valid: {error}") from None
        except TypeError:
            raise Unsupported(f"a {type(value).__qualname__} that goes on after the captured code") from None
        parts: list[Recipe] = [Constant(function), book.recipe(arguments)]
        if state and state[0] is not None:
            parts.append(book.recipe(state[0]))
        return Call(put_together, parts)


class GeneratorKind(Kind):
    """A generator made by the captured code: its frame runs as a part of the capture."""

    asks_class = False

    def attribute(self, i: Interpreter, base: GeneratorValue, name: str, then: Then) -> None:
        then(generators.attribute(base, name))

    contains, iterate, truth, key = is_among, itself, always_true, itself

    def advance(self, i: Interpreter, iterator: GeneratorValue) -> tuple[bool, Any]:
        return generators.resume(i, iterator)

    def rebuild(self, book: RecipeBook, value: GeneratorValue) -> Recipe:
        if value.frame.globals is vars(library):
            raise Unsupported("an iterator of itertools that outlives the captured code")
        if value.done:
            return Call(ended_generator, [Constant(value.frame.code), Constant(value.frame.globals)])
        book.generators.add(id(value))
        return Generator(book.frame(value.frame, all_variables=True))
