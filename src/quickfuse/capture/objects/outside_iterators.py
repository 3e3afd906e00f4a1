"""Iterators that existed before: what they give next is read by its path, and compiled code advances them afterwards.

So a loop with a break in its body goes on in the segment after the break, through its next turn. Which elements come does
not depend on how many there were before: one segment serves for many turns. Where the value of a number or text among them
matters, it is guarded; where that turns out to be another one, Python is to do what needs it.

The code of generators of which nothing has run, such as `model.parameters()` as an argument, is captured as if they had been
made inside, of what their variables hold. Afterwards the real ones are closed: at the end, which is where captured code
leaves them, or else the segment ends before it begins with one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import FunctionType, GeneratorType
from typing import Any

from ...errors import Unsupported
from ...ir.iterating import advance, ahead, is_readable, read_by
from ...ir.reading import MISSING
from ...ir.segment import Call, Constant, Effect, Existing
from ...ir.source import Source
from ..interpreter import Interpreter
from ..outside.changes import Advanced
from ..symbolic import ForeignObject, FromOutside, Unread
from ..symbolic.frame import GeneratorValue
from ..symbolic.raising import Raised, SuspendedInside
from . import generators


def next_of(i: Interpreter, iterator: FromOutside, only_moved: bool = False) -> tuple[bool, Any]:
    """What `next(iterator)` gives: (True, element) or, at the end, (False, None). An element that the next instruction puts
    into a variable (`only_moved`) is not looked at."""
    known = i.outside.iterators.get(id(iterator.real))
    if known is None:
        known = i.outside.iterators[id(iterator.real)] = _open(i, iterator)
    if any(i.outside.is_changed(part) for part, _ in known.held):  # which is seen there only when compiled code has done it
        raise Unsupported("advancing an iterator over what has changed since")
    source = iterator.source.ahead().item(known.taken)
    try:
        element = known.ahead[known.taken]
    except Exception as error:  # `zip(strict=True)`, or a dictionary that changed
        raise Unsupported(f"an iterator that fails: {error}") from None
    known.elements.append(element)
    if element is MISSING:
        i.outside.guard("is", source, MISSING)
        return False, None
    if only_moved:
        i.outside.guard("distinct", source, i.outside.roots.constant("MISSING", MISSING))
        return True, Unread(element, source)
    return True, i.outside.wrap(element, source)


def _open(i: Interpreter, iterator: FromOutside) -> Advanced:
    """Begin to read an iterator. Raises `Unsupported` where its elements come from code of the program's, or another one
    that is advanced reads it too."""
    if not is_readable(iterator.real):
        raise Unsupported("advancing an iterator from outside")
    try:
        opened = Advanced(iterator, ahead(iterator.real), [*_held(iterator.real, iterator.source)])
    except RuntimeError as error:
        raise Unsupported(f"an iterator that is no longer valid: {error}") from None
    own = {id(part) for part, _ in opened.iterators()}
    for other in i.outside.iterators.values():
        if any(id(part) in own for part, _ in other.iterators()):
            raise Unsupported("advancing two iterators of which one reads the other")
    return opened


def _held(iterator: Any, source: Source) -> Iterator[tuple[Any, Source]]:
    """The iterators and containers that an iterator reads, and those that these read."""
    for index, part in enumerate(read_by(iterator)):
        place = source.read_by().item(index)
        yield part, place
        if is_readable(part):
            yield from _held(part, place)


def effects(i: Interpreter) -> list[Effect]:
    """Advance what the captured code has advanced, before anything that is read there is changed, and end generators."""
    opened = list(i.outside.iterators.values())
    begun = {id(known.stand_in.real): known.stand_in.source for known in i.outside.generators.values()}
    if len(opened) + len(begun) > 1:  # iterators of which one reads another would be advanced together
        sources = begun | {id(part): source for known in opened for part, source in known.iterators()}
        i.outside.guard("unique", None, tuple(sources.values()))
    # other ones than those that are iterated over are changed: see `Guarding.guard_unique`
    if any(shadow.is_changed for shadow in (*i.outside.containers, *i.outside.dictionaries)):
        for part, source in [held for known in opened for held in known.held]:
            i.outside.wrap(part, source)
    done = [
        Call(function, [Existing(known.stand_in.source), Constant(rest)])
        for known in opened
        for function, rest in [(next, None) if known.taken == 1 else (advance, known.taken)]
    ]
    ended = [known.stand_in.source for known in i.outside.generators.values() if known.value.done]
    done += [Call(GeneratorType.close, [Existing(source)]) for source in ended]
    return [Effect("do", None, None, call) for call in done]


# generators -----------------------------------------------------------------------------------------------------------


_WITH_MORE_ARGUMENTS = 0x04 | 0x08
#: Attributes that tell how far a generator is.
_STATE = ("gi_frame", "gi_running", "gi_suspended", "gi_yieldfrom")


@dataclass(eq=False, slots=True)
class Begun:
    """One that the captured code iterates over: after how many instructions it began to."""

    stand_in: ForeignObject
    value: GeneratorValue
    at: int


def begin(i: Interpreter, generator: ForeignObject) -> GeneratorValue:
    """What stands for a generator while captured code iterates over it.

    Raises:
        Unsupported: for one that has begun already, or shares variables with another function.
    """
    real = generator.real
    known = i.outside.generators.get(id(real))
    if known is not None:
        return known.value  # type: ignore[no-any-return]
    code, frame = real.gi_code, real.gi_frame
    if frame is None or real.gi_suspended or real.gi_running:
        raise Unsupported("iterating over a generator that has begun")
    if code.co_freevars or code.co_flags & _WITH_MORE_ARGUMENTS:
        raise Unsupported("iterating over a generator with variables of another function, or *args")
    outside, source = i.outside, generator.source
    place = source.attr("gi_frame")
    outside.guard("is", source.attr("gi_code"), code)
    outside.guard("is", place.attr("f_globals"), frame.f_globals)
    outside.concrete(outside.wrap(frame.f_lasti, place.attr("f_lasti")))  # nothing has run: once it has ended there is none
    variables = frame.f_locals
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    held = {name: outside.wrap(variables[name], place.attr("f_locals").item(name)) for name in names}
    by_position = tuple([held.pop(name) for name in names[: code.co_argcount]])
    value = i.call_now(FunctionType(code, frame.f_globals, real.__name__), by_position, held)
    if type(value) is not GeneratorValue:
        raise Unsupported("iterating over a generator")
    outside.generators[id(real)] = Begun(generator, value, i.performed)
    return value


def is_generator(value: ForeignObject) -> bool:
    return type(value.real) is GeneratorType


def check_asked(i: Interpreter, value: ForeignObject, name: str) -> None:
    """Leave it to Python to tell how far a generator is that the captured code iterates over: the real one has not begun."""
    if name in _STATE and id(value.real) in i.outside.generators:
        raise Unsupported(f"{name} of a generator that has begun")


def check_ended(i: Interpreter) -> None:
    """Require that all that were begun have come to their ends. Raises `SuspendedInside` where one has not: the segment is
    to end in front of what begins with it."""
    for begun in list(i.outside.generators.values()):
        if not (begun.value.done or begun.value.frame.position == 0 or _would_end(i, begun.value)):
            raise SuspendedInside(begun.at, "a generator from outside that goes on after the captured code")


def _would_end(i: Interpreter, generator: GeneratorValue) -> bool:
    """Whether all that is left for a generator of PyTorch's or the standard library's is to end: `zip(a, b)` does not ask
    `b` for more once `a` has ended."""
    if not generator.frame.is_library or generator.running:
        return False
    before, nodes = i.outside.noted(), len(i.graph.root.nodes)
    try:
        found, _ = generators.resume(i, generator)
    except (Raised, Unsupported):
        return False
    return not found and not i.outside.has_changed(before) and len(i.graph.root.nodes) == nodes
