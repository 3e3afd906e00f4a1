"""Whether the values in the frames that a segment leaves have ends that can be seen, as far as its recipes tell.

The driver has to know that before the next segment (see `ir.endings`), and to look at all values takes longer than the
Python of most breaks. Where the frames that a segment begins with have no such values, those that it leaves there are none,
and the others are mostly of classes that guards name.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from ..ir.endings import is_ordinary_class, reads_others
from ..ir.iterating import advance
from ..ir.segment import Build, Call, Computed, Constant, Effect, Existing, Output, Recipe, Segment
from ..ir.source import Source


def values_to_ask(segment: Segment, untouched: Container[int]) -> list[Source] | None:
    """The values in the frames at the end of a segment of which it has to be asked whether their end can be seen, where
    there is none of that kind in the frames at its beginning. None where all values have to be asked.

    Args:
        untouched: the indices of the frames that are as they were.
    """
    if segment.only_eager or segment.draws or segment.begins or not all(map(_only_advances, segment.effects)):
        return None
    classes = {g.source: _CLASS[g.kind](g.value) for g in segment.guards if g.kind in _CLASS and g.source is not None}
    asked: list[Source] = []
    for index, frame in enumerate(segment.frames):
        if index in untouched:
            continue
        if frame.handled or frame.replacement is not None or frame.origin is not None:
            return None
        for recipe in (*frame.locals, *frame.stack):
            if isinstance(recipe, Existing) and reads_others(classes.get(recipe.source)):  # it may have been advanced
                asked.append(recipe.source)
            elif recipe is not None and not _is_ordinary(recipe, classes):
                return None
    return asked


#: What guards say about the class of a value, by their kind.
_CLASS: dict[str, Any] = {
    "type": lambda cls: cls, "tensor": lambda expected: expected[0], "is": type, "equal": type,
}  # fmt: skip


def _only_advances(effect: Effect) -> bool:
    """Whether an effect is that of an iterator, which runs no code of the program's."""
    return effect.kind == "do" and isinstance(effect.value, Call) and effect.value.function in (next, advance)


def _is_ordinary(recipe: Recipe, classes: dict[Source, Any]) -> bool:
    if isinstance(recipe, (Output, Computed)):
        return True
    if isinstance(recipe, Constant):
        return is_ordinary_class(type(recipe.value))
    if isinstance(recipe, Build):
        return is_ordinary_class(recipe.cls)
    if not isinstance(recipe, Existing):
        return False
    source = recipe.source
    if source.kind == "slot":  # a value of the frames at the beginning
        return source.key[1] in ("locals", "stack")
    if source.kind == "constant":
        return is_ordinary_class(type(source.owner))
    return source in classes and is_ordinary_class(classes[source])
