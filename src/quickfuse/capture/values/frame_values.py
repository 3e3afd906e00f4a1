"""What running code makes: exceptions, iterators, generators, the cells of variables that functions share, tokens of context
variables, namespaces."""

from __future__ import annotations

import collections
import contextvars
import random
import types
import weakref
from collections.abc import Callable
from types import CellType, TracebackType
from typing import Any, ClassVar

from ...errors import Unsupported
from ...ir.iterating import iterator_over, over_dictionary
from ...ir.segment import Call, Cell, Constant, Generator, Recipe, Traced
from ..effects import RecipeBook
from ..interpreter import Interpreter
from ..library import in_python as library
from ..library.random_numbers import of_generator
from ..library.weak_references import callback_of, referent
from ..objects import attributes, generators
from ..objects.exceptions import set_traceback, stop_iteration, traceback_of
from ..objects.iterators import ObjectIterator, put_together, take_apart
from ..objects.keys import hashable
from ..objects.native_functions import as_is
from ..outside.changes import ContextToken
from ..revival import call_with, ended_generator, enter_filters, enter_inference_mode, make_exception, with_traceback_of
from ..symbolic.frame import GeneratorValue
from ..symbolic.raising import raise_in_program
from .kind import Args, Kind, Kwargs, Then, always_true, itself
from .object import Methods, ObjectKind, is_among


class CellKind(Kind):
    def rebuild(self, book: RecipeBook, value: CellType) -> Recipe:
        if not book.i.is_created(value):
            return Constant(value)  # of a function that is the same in every call
        made = book.begin(value, Cell())
        try:
            made.content = book.recipe(value.cell_contents)
        except ValueError:
            made.content = None
        return made


class TokenKind(ObjectKind):
    """What setting a context variable gives."""

    def rebuild(self, book: RecipeBook, value: ContextToken) -> Recipe:
        if value not in book.i.outside.tokens:
            raise Unsupported("a token of a context variable that outlives the captured code")
        return Call(contextvars.ContextVar.set, [Constant(value.variable), book.recipe(value.value)])


class FiltersKind(ObjectKind):
    """What `warnings.catch_warnings()` gives."""

    def rebuild(self, book: RecipeBook, value: Any) -> Recipe:
        scope = next((scope for scope in book.i.outside.filters if scope.manager is value), None)
        if scope is None:
            raise Unsupported("a warnings.catch_warnings that was not entered")
        return Call(enter_filters, [Constant(tuple(scope.calls))])


class InferenceKind(ObjectKind):
    """What `torch.inference_mode` makes where it is entered."""

    def rebuild(self, book: RecipeBook, value: Any) -> Recipe:
        if not value.active:
            return super().rebuild(book, value)
        return Call(enter_inference_mode, [Constant(value.mode), Constant(value.grad_around)])


class ReferenceKind(ObjectKind):
    """A weak reference that captured code made."""

    def call(self, i: Interpreter, function: Any, args: Args, kwargs: Kwargs, then: Then) -> None:
        if args or kwargs:
            raise Unsupported("a call of a weak reference with arguments")
        then(referent(i, function))

    def truth(self, i: Interpreter, value: Any) -> bool:
        return True

    def rebuild(self, book: RecipeBook, value: Any) -> Recipe:
        called = callback_of(value)
        target = book.recipe(book.i.referenced[id(value)])
        return Call(weakref.ref, [target] if called is None else [target, book.recipe(called)])

    def key(self, i: Interpreter, value: Any) -> Any:
        """A reference is hashed and compared by what it is to."""
        if not any(value is known for known in i.references):
            raise Unsupported("hashing a weak reference")
        hashable(i, i.referenced[id(value)])
        return value


class MadeKind(ObjectKind):
    """Objects of one native class. `again` says how compiled code makes what captured code made."""

    def __init__(self, again: Callable[[RecipeBook, Any], Recipe]) -> None:
        self.again = again

    def rebuild(self, book: RecipeBook, value: Any) -> Recipe:
        return self.again(book, value) if book.i.is_created(value) else super().rebuild(book, value)


MADE_KINDS: dict[type, MadeKind] = {
    random.Random: MadeKind(lambda book, value: of_generator(value)),
    bytearray: MadeKind(lambda book, value: Call(bytearray, [Constant(bytes(value))])),
    types.SimpleNamespace: MadeKind(lambda book, value: Call(
        call_with, [Constant(types.SimpleNamespace), Constant(()), book.recipe(dict(value.__dict__))])),
}  # fmt: skip


#: Attributes that every exception has.
_DATA = frozenset("args __cause__ __context__ __suppress_context__ __traceback__ value __dict__ name obj".split())


def _with_traceback(i: Interpreter, value: BaseException, traceback: Any) -> BaseException:
    i.kind_of(value).set_attribute(i, value, "__traceback__", traceback)
    return value


class ExceptionKind(ObjectKind):
    methods: ClassVar[Methods] = {**ObjectKind.methods, "__init__": (as_is,), "with_traceback": _with_traceback}

    def attribute(self, i: Interpreter, base: BaseException, name: str, then: Then) -> None:
        if name not in _DATA or attributes.has_own_getter(i, base):
            super().attribute(i, base, name, then)
        elif name == "__traceback__":
            then(traceback_of(i, base))
        else:
            found = i.native(getattr, base, name)
            stand_in = i.outside.stand_in(found)  # of another exception, from outside
            then(found if stand_in is None else stand_in)

    def set_attribute(self, i: Interpreter, base: BaseException, name: str, value: Any) -> None:
        if name == "__traceback__" and i.is_created(base):
            set_traceback(i, base, value)
        else:
            super().set_attribute(i, base, name, value)

    def rebuild(self, book: RecipeBook, value: BaseException) -> Recipe:
        parts = (value.args, dict(value.__dict__), value.__cause__, value.__context__)
        made = Call(make_exception, [Constant(type(value)), *map(book.recipe, parts), Constant(value.__suppress_context__)])
        if isinstance(value, AttributeError):
            made.args.append(book.recipe({"name": value.name, "obj": value.obj}))
        known = book.i.outside.note_exception(value)
        trace = known.trace
        if not trace:
            return made
        if known.divided is not None and trace == book.i.outside.note_exception(known.divided).trace:
            return Call(with_traceback_of, [made, book.recipe(known.divided)])
        entries = tuple([(frame.code, frame.globals, position) for frame, position in trace])
        running = {id(frame): index for index, frame in enumerate(book.i.frames)}
        return Traced(made, entries, tuple([running.get(id(frame)) for frame, _ in trace]))


class TracebackKind(ObjectKind):
    """The traceback of an exception that captured code made, which only a break makes a real one."""

    def attribute(self, i: Interpreter, base: TracebackType, name: str, then: Then) -> None:
        raise Unsupported(f"{name} of a traceback")


_OVER_DEQUE = type(iter(collections.deque()))


def _next_now(i: Interpreter, iterator: Any) -> Any:
    """`next(iterator)`."""
    found, element = i.kind_of(iterator).advance(i, iterator)
    if not found:
        stop_iteration(i, element)
    return element


class IteratorKind(ObjectKind):
    """See `iterators.py`."""

    asks_class = False

    methods: ClassVar[Methods] = {**ObjectKind.methods, "__next__": _next_now}
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
