"""Generators that existed before and of which nothing has run, such as `model.parameters()` as an argument.

Their code is captured as if they had been made inside, of what their variables hold. Afterwards the real ones are closed:
at the end, which is where captured code leaves them, or else the segment ends before it begins with one.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import FunctionType, GeneratorType

from ...errors import Unsupported
from ...ir.segment import Call, Effect, Existing
from ..interpreter import Interpreter
from ..symbolic import ForeignObject
from ..symbolic.frame import GeneratorValue
from ..symbolic.raising import Raised, SuspendedInside
from . import generators

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


def effects(i: Interpreter) -> list[Effect]:
    """End the real ones."""
    ended = [begun.stand_in.source for begun in i.outside.generators.values() if begun.value.done]
    return [Effect("do", None, None, Call(GeneratorType.close, [Existing(source)])) for source in ended]
