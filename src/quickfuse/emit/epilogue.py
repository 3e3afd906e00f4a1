"""Python source of a specialisation's end: make the result or the suspended frames, and replay the effects."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

from ..errors import Unsupported
from ..ir.frame import After
from ..ir.reading import CONTAINERS, native_method
from ..ir.segment import (
    Build,
    Call,
    Cell,
    Computed,
    Constant,
    Draw,
    Effect,
    Existing,
    FrameRecipe,
    Generator,
    New,
    Output,
    Recipe,
    Segment,
    Traced,
)
from ..ir.source import Source
from .prologue import Prologue, attribute_of
from .settled import values_to_ask


class Epilogue:
    """Writes the statements that make the result and replay the effects."""

    def __init__(self, prologue: Prologue, outputs: list[str]) -> None:
        self.lines: list[str] = []
        self._prologue = prologue
        self._outputs = outputs
        self._made: dict[int, str] = {}
        #: The variables of those whose parts are being made.
        self._unfinished: set[str] = set()
        #: The activations of suspended frames, by their index.
        self._activations: dict[int, str] = {}
        self._frames: list[FrameRecipe] = []
        self._untouched: frozenset[int] = frozenset()

    def write(self, segment: Segment) -> str:
        """Emit all effects; returns the expression of the result.

        The result is made after the effects: an iterator over a list must not be made before the list is as long as the
        iterator has come. All that existed before was fetched with the guards.
        """
        self._frames = segment.frames
        self._untouched = untouched_frames(segment)
        prepared = [(e, self._operands(e)) for e in segment.effects]
        for effect, operands in prepared:
            self.lines.append(self._statement(effect, *operands))
        if segment.result is not None:
            result = self.value(segment.result)
        else:
            names = [
                self._untouched_frame(index) if index in self._untouched else self._frame(frame)
                for index, frame in enumerate(segment.frames)
            ]
            for index, frame in enumerate(segment.frames):
                if index in self._activations or frame.origin is not None:
                    self.lines.append(f"{names[index]}.activation = {self._activation(index)}")
            result = "_suspended0"
            self.lines.append(f"{result} = _Suspension([{', '.join(names)}])")
            self.lines.append(f"{result}.after = {self._prologue.constant(After(), 'after')}")
            asked = None if self._activations else values_to_ask(segment, self._untouched)
            settled = [f"not _ends_visibly({self._prologue.name(source)})" for source in asked or ()]
            self.lines.append(f"{result}.settled = {asked is not None if not asked else ' and '.join(settled)}")
        if any(effect.kind in ("refill", "extend", "discard", "do") for effect in segment.effects):
            # Elements of the user's lists are read by their index, and the effects change lists.
            self.lines[:0] = [f"{name} = [*{name}]" for name in self._prologue.lists_of_elements()]
        return result

    def draw(self, draw: Draw) -> str:
        """The statement that makes a draw of a generator of random numbers."""
        call = self._call_expression(draw.call)
        return call if draw.tensor is None else f"{self._prologue.constant(draw.tensor.fill_, 'fill')}({call})"

    def _frame(self, frame: FrameRecipe) -> str:
        """The expression of a suspended frame."""
        constant = self._prologue.constant
        parts = [
            constant(frame.code, "code"),
            constant(frame.globals, "globals"),
            f"[{', '.join(['_UNBOUND' if r is None else self.value(r) for r in frame.locals])}]",
            f"[{', '.join(['_NULL' if r is None else self.value(r) for r in frame.stack])}]",
            str(frame.position),
        ]
        if frame.keyword_names or frame.handled or frame.replacement is not None:
            parts.append(constant(frame.keyword_names))
            parts.append(f"[{', '.join([self.value(r) for r in frame.handled])}]")
        if frame.replacement is not None:
            parts.append(self.value(frame.replacement))
        name = f"_frame{len(self._made)}"
        self._made[id(frame)] = name
        self.lines.append(f"{name} = _FrameState({', '.join(parts)})")
        return name

    def _untouched_frame(self, index: int) -> str:
        """The expression of a frame that the segment begins with and leaves as it is, but for values that nobody reads."""
        name = f"_frame{len(self._made)}"
        self._made[id(self._frames[index])] = name
        self.lines.append(f"{name} = _frames[{index}]")
        unread = [f"_locals{index}[{k}] =" for k, recipe in enumerate(self._frames[index].locals) if recipe is None]
        if unread:
            self.lines.append(f"_locals{index} = {name}.locals")
            self.lines.append(f"{' '.join(unread)} _UNBOUND")
        return name

    def _activation(self, index: int) -> str:
        """The variable with the activation of a suspended frame."""
        if index not in self._activations:
            self._activations[index] = f"_activation{index}"
            origin = self._frames[index].origin
            made = "_Activation()" if origin is None else f"_frames[{origin}].activation"
            self.lines.append(f"_activation{index} = {made}")
        return self._activations[index]

    def _operands(self, effect: Effect) -> tuple[str, str, str]:
        target = self.value(effect.target) if effect.target is not None else ""
        key = self.value(effect.key) if isinstance(effect.key, Recipe) else ""
        value = self.value(effect.value) if effect.value is not None and effect.kind != "do" else ""
        return target, key, value

    def _statement(self, effect: Effect, target: str, key: str, value: str) -> str:
        constant = self._prologue.constant
        if effect.kind == "setattr":
            return set_attribute(target, effect.key, value)
        if effect.kind == "setplain":
            return f"_setplain({target}, {effect.key!r}, {value})"
        if effect.kind == "delattr":
            return f"_delattr({target}, {effect.key!r})"
        native = native_method(self._class_of(effect.target), "__delitem__" if effect.kind == "delitem" else "__setitem__")
        if effect.kind == "setitem":
            return f"{target}[{key}] = {value}" if native is None else f"{constant(native, 'set')}({target}, {key}, {value})"
        if effect.kind == "delitem":
            return f"del {target}[{key}]" if native is None else f"{constant(native, 'delete')}({target}, {key})"
        if effect.kind == "discard":
            return self._called(effect, "difference_update", target, value)
        if effect.kind == "refill" and effect.key is list and native is None:
            return f"{target}[:] = {value}"
        if effect.kind in ("extend", "refill"):
            clear = f"{self._called(effect, 'clear', target)}; " if effect.kind == "refill" else ""
            return clear + self._called(effect, "update" if effect.key is set else "extend", target, value)
        if effect.kind in ("setglobal", "delglobal"):
            globals_, name = effect.key
            place = f"{constant(globals_, 'globals')}[{name!r}]"
            return f"{place} = {value}" if effect.kind == "setglobal" else f"del {place}"
        if effect.kind == "do":
            assert isinstance(effect.value, Call)
            return self.value(effect.value)
        return f"{target}.cell_contents = {value}"

    def _class_of(self, target: Recipe | None) -> Any:
        return self._prologue.class_at(target.source) if isinstance(target, Existing) else None

    def _called(self, effect: Effect, method: str, target: str, *operands: str) -> str:
        """A call of a method of the builtin class of a container."""
        if self._class_of(effect.target) in (None, *CONTAINERS):
            return f"{target}.{method}({', '.join(operands)})"
        function = self._prologue.constant(getattr(effect.key, method), "method")
        return f"{function}({', '.join([target, *operands])})"

    # values -----------------------------------------------------------------------------------------------------

    def value(self, recipe: Recipe) -> str:
        """The expression of a value; containers and objects are made once and named."""
        if isinstance(recipe, Constant):
            return self._prologue.same_object(recipe.value)
        if isinstance(recipe, Existing):
            return self._prologue.name(recipe.source)
        if isinstance(recipe, Output):
            return self._outputs[recipe.index]
        known = self._made.get(id(recipe))
        if known is not None:
            if known in self._unfinished:
                raise Unsupported("an object that cannot be made before what it contains, which contains it")
            return known
        name = f"_made{len(self._made)}"
        self._made[id(recipe)] = name
        if isinstance(recipe, New):
            self._write_object(name, recipe)
        elif isinstance(recipe, Build):
            self._write_container(name, recipe)
        elif isinstance(recipe, Call):
            self._write_call(name, recipe)
        elif isinstance(recipe, Cell):
            self.lines.append(f"{name} = _Cell()")
            if recipe.content is not None:
                self.lines.append(f"{name}.cell_contents = {self.value(recipe.content)}")
        elif isinstance(recipe, Computed):
            # With the guards: where the arithmetic raises, the specialisation does not hold.
            self._prologue.lines.append(f"{name} = {recipe.expr.code(self._prologue.name)}")
        elif isinstance(recipe, Traced):
            trace = self._prologue.constant(recipe.trace, "trace")
            running = ", ".join(["None" if k is None else self._activation(k) for k in recipe.running])
            self.lines.append(f"{name} = _traced({self.value(recipe.exception)}, {trace}, [{running}])")
        elif isinstance(recipe, Generator):
            self.lines.append(f"{name} = _generator({self._frame(recipe.frame)})")
        return name

    def _call_expression(self, recipe: Call) -> str:
        arguments = ", ".join([self.value(argument) for argument in recipe.args])
        return f"{self._prologue.constant(recipe.function, 'function')}({arguments})"

    def _write_call(self, name: str, recipe: Call) -> None:
        self._unfinished.add(name)
        called = self._call_expression(recipe)
        self._unfinished.discard(name)
        self.lines.append(f"{name} = {called}")
        self._fill(name, recipe.items, list)

    def _fill(self, name: str, items: list[Any], cls: type) -> None:
        """Put elements into a container that exists already."""
        if items and isinstance(items[0], tuple):
            for key, value in items:
                key_code, value_code = self.value(key), self.value(value)
                if cls is list:
                    self.lines.append(f"{name}[{key_code}] = {value_code}")
                else:
                    setter = self._prologue.constant(cls.__setitem__, "set")
                    self.lines.append(f"{setter}({name}, {key_code}, {value_code})")
        elif items:
            self.lines.append(f"{name}.extend([{', '.join([self.value(item) for item in items])}])")

    def _write_object(self, name: str, recipe: New) -> None:
        cls = self._prologue.constant(recipe.cls)
        base = next((kind for kind in (dict, list, set) if issubclass(recipe.cls, kind)), object)
        self.lines.append(f"{name} = {self._prologue.constant(base)}.__new__({cls})")
        for attribute, value in recipe.attributes.items():
            if _goes_through_class(recipe.cls, attribute):
                self.lines.append(f"{name}.__dict__[{attribute!r}] = {self.value(value)}")
            else:  # an object whose __dict__ was never asked for keeps its attributes where CPython finds them sooner
                self.lines.append(f"_setplain({name}, {attribute!r}, {self.value(value)})")
        for attribute, value in recipe.slots.items():
            self.lines.append(f"_setplain({name}, {attribute!r}, {self.value(value)})")
        if base is dict:
            ordered = issubclass(recipe.cls, collections.OrderedDict)  # which has a table of its own
            self._fill(name, recipe.items, collections.OrderedDict if ordered else dict)
        elif recipe.items:
            method = list.extend if base is list else set.update
            items = ", ".join([self.value(item) for item in recipe.items])
            self.lines.append(f"{self._prologue.constant(method, 'fill')}({name}, [{items}])")

    def _write_container(self, name: str, recipe: Build) -> None:
        cls = recipe.cls
        if issubclass(cls, dict):
            self.lines.append(f"{name} = {self._prologue.constant(cls)}()")
            for key, value in recipe.items:
                self.lines.append(f"{name}[{self.value(key)}] = {self.value(value)}")
        elif cls is list:
            self.lines.append(f"{name} = []")
            self.lines.append(f"{name} += [{', '.join([self.value(item) for item in recipe.items])}]")
        else:
            self._unfinished.add(name)
            items = ", ".join([self.value(item) for item in recipe.items])
            self._unfinished.discard(name)
            self.lines.append(f"{name} = {self._constructor(cls, items)}")

    def _constructor(self, cls: type, items: str) -> str:
        if cls is tuple:
            return f"({items},)" if items else "()"
        name = self._prologue.constant(cls)
        if cls.__module__ == "torch.return_types" or issubclass(cls, (set, frozenset, collections.deque)):
            return f"{name}([{items}])"
        return f"tuple.__new__({name}, [{items}])" if issubclass(cls, tuple) else f"{name}({items})"


def set_attribute(target: str, name: str, value: str) -> str:
    """The statement `target.name = value`, for any name."""
    place = attribute_of(target, name)
    return f"{place} = {value}" if place.startswith(f"{target}.") else f"_setattr({target}, {name!r}, {value})"


def segment_recipes(segment: Segment) -> Iterator[Any]:
    """Every recipe that a segment's end needs, but for the parts of recipes."""
    yield segment.result
    yield from [draw.call for draw in segment.draws]
    untouched = untouched_frames(segment)
    for index, frame in enumerate(segment.frames):
        if index not in untouched:
            yield from frame_recipes(frame)
    for effect in segment.effects:
        yield effect.target
        yield effect.value
        if isinstance(effect.key, Recipe):
            yield effect.key


def untouched_frames(segment: Segment) -> frozenset[int]:
    """The indices of frames that the segment begins with and ends with, with the same values at the same position.

    At one position a frame that waits for a call has one value less on its stack than after the call.
    """
    began, ended = len(segment.began) - 1, len(segment.frames) - 1
    found = []
    for index, (frame, (code, position)) in enumerate(zip(segment.frames, segment.began, strict=False)):
        waits_as_before = (index < began) == (index < ended)
        if waits_as_before and frame.code is code and frame.position == position and _is_untouched(frame, index):
            found.append(index)
    return frozenset(found)


def _is_untouched(frame: FrameRecipe, depth: int) -> bool:
    if frame.keyword_names or frame.handled or frame.replacement is not None or frame.origin is not None:
        return False
    return all(
        isinstance(recipe, Existing) and recipe.source.kind == "slot" and recipe.source.key == (depth, place, index)
        for place, recipes in (("locals", frame.locals), ("stack", frame.stack))
        for index, recipe in enumerate(recipes)
        if recipe is not None
    )


def frame_recipes(frame: FrameRecipe) -> Iterator[Any]:
    """The recipes of a frame's values."""
    yield from frame.locals
    yield from frame.stack
    yield from frame.handled
    yield frame.replacement


def _goes_through_class(cls: type, name: str) -> bool:
    """Whether setting an attribute of an instance is left to a descriptor in its class."""
    found = next((vars(owner)[name] for owner in cls.__mro__ if name in vars(owner)), None)
    return hasattr(type(found), "__set__") or hasattr(type(found), "__delete__")


def sources_in(recipe: Any, seen: set[int] | None = None) -> Iterator[Source]:
    """The sources of existing objects that a recipe needs."""
    seen = set() if seen is None else seen
    if recipe is None or id(recipe) in seen:
        return
    seen.add(id(recipe))
    if isinstance(recipe, Existing):
        yield recipe.source
    elif isinstance(recipe, Computed):
        yield from recipe.expr.sources()
    for part in _parts(recipe):
        yield from sources_in(part, seen)


def _parts(recipe: Any) -> list[Any]:
    if isinstance(recipe, Generator):
        return list(frame_recipes(recipe.frame))
    if isinstance(recipe, Cell):
        return [recipe.content]
    if isinstance(recipe, Traced):
        return [recipe.exception]
    if isinstance(recipe, New):
        parts = [*recipe.attributes.values(), *recipe.slots.values(), *recipe.items]
    elif isinstance(recipe, Build):
        parts = list(recipe.items)
    elif isinstance(recipe, Call):
        parts = [*recipe.args, *recipe.items]
    else:
        return []
    return [p for part in parts for p in (part if isinstance(part, tuple) else (part,))]
