"""Exceptions that captured code made or that a native function raised for it: real ones."""

from __future__ import annotations

from types import TracebackType
from typing import Any, ClassVar

from ...errors import Unsupported
from ...ir.segment import Call, Constant, Recipe, Traced
from ..effects import RecipeBook
from ..interpreter import Interpreter
from ..objects import attributes
from ..objects.exceptions import set_traceback, traceback_of
from ..objects.native_functions import as_is
from ..revival import make_exception, with_traceback_of
from .kind import Then
from .object import Methods, ObjectKind

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
