"""Which guards follow only paths that seldom change: through modules, their dictionaries, lists and tuples.

A prologue has four parts. What is in the second one is skipped while the objects on its paths are unchanged, which
`launch.unchanged` finds out natively; and the third one as well, while the tensors are, as `launch.same_tensors` finds out:

* BEFORE:  paths from the arguments to the roots of a walk, and whatever has nothing to do with one
* WALK:    facts about modules and containers, and what is in them
* TENSORS: gradients of tensors that the walk leads to, and whether they are leaves
* AFTER:   facts about what the walk leads to that may change without a change of a container: numbers

So that a number that changes does not spoil the walk, numbers that are inputs are read afterwards, and a dictionary or
list with such a number in it does not take part; nor does a container that the captured code itself changes, nor the
globals of the user's modules: in a script those change all the time.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import numpy
import torch

from ..ir.guard import Guard, NumberExpr
from ..ir.source import Source
from ..ir.walk import PLAIN_VALUES, Step, is_plain_attribute

BEFORE, WALK, TENSORS, AFTER = range(4)

#: A walk of fewer statements than this takes no longer than asking whether it has to be made.
FEWEST_STATEMENTS = 8

_DICTS = (dict, collections.OrderedDict, collections.defaultdict)
_KEYS = (str, int, bool, float, type(None))


class Walk:
    """Sorts sources and guards into the three parts."""

    def __init__(
        self, guards: list[Guard], relatives: Callable[[Source], Iterable[Source]], changing: Iterable[Source]
    ) -> None:
        """`relatives` are the sources that are read in one statement with a source, `changing` what does not take part."""
        self._relatives = relatives
        self._types: dict[Source, Any] = {g.source: dict for g in guards if g.kind in ("keys", "absent") and g.source}
        self._types |= {g.source: g.value for g in guards if g.kind == "type" and g.source}
        fixed = {g.source for g in guards if g.kind == "equal" and type(g.value) in PLAIN_VALUES}
        self._loose = {g.source for g in guards if g.kind == "equal"} - fixed
        numbers = {s for s, kind in self._types.items() if kind in (int, float, complex) or _is_of_numpy(kind)} - fixed
        self._numbers = {s for s in numbers if s.base is None or self._types.get(s.base) is not tuple}
        self._changing = set(changing)
        self._tensors = {g.source for g in guards if g.kind == "tensor" and g.value[0] in (torch.Tensor, torch.nn.Parameter)}
        for number in self._numbers:
            base = number.base
            while base is not None and self._types.get(base) in (*_DICTS, list, tuple) and not _is_namespace(base):
                self._changing.add(base)
                base = base.base
        self._parts: dict[Source, int] = {}
        self._containers: dict[Source, bool] = {}
        self._roots: dict[Source, None] = {}
        self._libraries: dict[int, Source] = {}

    # sorting ----------------------------------------------------------------------------------------------------

    def part(self, source: Source) -> int:
        """The part in which a source's value is read."""
        known = self._parts.get(source)
        if known is None:
            relatives = list(self._relatives(source))
            parts = {self._own_part(s) for s in relatives}
            known = parts.pop() if len(parts) == 1 else AFTER
            for relative in relatives:
                self._parts[relative] = known
        return known

    def _own_part(self, source: Source) -> int:
        base, key = source.base, source.key
        if class_of_namespace(source) is not None:
            return WALK
        if self.library(source) is not None and source not in self._numbers and source not in self._loose:
            return WALK
        if base is None:
            return BEFORE
        key_part = self.part(key) if isinstance(key, Source) else BEFORE
        if isinstance(key, NumberExpr):
            key_part = max([self.part(s) for s in key.sources()], default=BEFORE)
        if key_part != AFTER and self.is_container(base) and self._is_fixed(source):
            return WALK
        of_tensor = key == "is_leaf" or (key == "grad" and source in self._tensors)
        if source.kind == "attr" and of_tensor and base in self._tensors and self.part(base) == WALK:
            return TENSORS
        return AFTER if max(key_part, self.part(base)) > BEFORE else BEFORE

    def _is_fixed(self, source: Source) -> bool:
        """Whether an unchanged container says that this value is what it was."""
        if source in self._numbers or source in self._loose:
            return False
        assert source.base is not None
        kind = self._types.get(source.base)
        if source.kind == "attr" and kind is not None and issubclass(kind, torch.nn.Module):
            return _is_namespace(source) or is_plain_attribute(kind, source.key)
        if source.kind != "item" or isinstance(source.key, NumberExpr):
            return False
        if kind in (list, tuple):
            return type(source.key) is int and source.key >= 0
        return isinstance(source.key, Source) or type(source.key) in _KEYS

    def library(self, source: Source) -> Source | None:
        """The globals of the module of PyTorch's that a source is in, or the builtins, as a source, if it is in one."""
        if source.kind == "global":
            table = source.owner
        elif source.kind == "attr" and source.base is not None and type(source.base.owner) is ModuleType:
            table = vars(source.base.owner)
        else:
            return None
        name = str(table.get("__name__"))
        if not (name.startswith("torch.") or name == "builtins") or source.key not in table:
            return None
        return self._libraries.setdefault(id(table), Source("constant", None, "globals", table))

    def is_container(self, source: Source) -> bool:
        """Whether a source leads to a module or container that takes part, as do all like it that are read with it."""
        known = self._containers.get(source)
        if known is None and not self._may_be_opened(source):
            known = self._containers[source] = False
        if known is None:
            like_it = [s for s in self._relatives(source) if s in self._types]
            known = all(map(self._may_be_opened, like_it))
            self._containers.update(dict.fromkeys([source, *like_it], known))
        return known

    def _may_be_opened(self, source: Source) -> bool:
        if source in self._changing or source in self._numbers:
            return False
        part, kind = self.part(source), self._types.get(source)
        if part == AFTER:
            return False
        if class_of_namespace(source) is not None:
            return True
        if kind is not None and issubclass(kind, torch.nn.Module):
            return True
        argument = source.base if source.kind == "item" else source
        if part == BEFORE and argument is not None and argument.kind in ("local", "slot"):  # likely another one at each call
            return False
        if _is_namespace(source):
            module = self._types.get(source.base) if source.base is not None else None
            return module is not None and issubclass(module, torch.nn.Module)
        return kind in _DICTS or kind is list or (kind is tuple and part == WALK)

    def part_of_guard(self, guard: Guard) -> int:
        """The part in which a guard is checked."""
        sources = list(guard.sources())
        parts = {self.part(s) for s in sources}
        if guard.kind in ("same", "distinct", "unique"):
            if parts == {BEFORE, WALK}:
                self._roots.update(dict.fromkeys(s for s in sources if self.part(s) == BEFORE))
                return WALK
            if parts == {WALK, TENSORS}:
                return TENSORS
        elif guard.kind in ("length", "keys", "absent"):
            assert guard.source is not None
            if self.is_container(guard.source) and all(self.part(s) == WALK for s in sources if s is not guard.source):
                return WALK
            return BEFORE if parts == {BEFORE} else AFTER
        elif guard.kind == "type" and parts == {BEFORE} and guard.source is not None and self._is_only_walked(guard.source):
            return WALK
        elif guard.kind == "requires_grad" and WALK in parts:
            return AFTER
        return parts.pop() if len(parts) == 1 else AFTER if parts else BEFORE

    def _is_only_walked(self, root: Source) -> bool:
        """Whether nothing follows a path from this root before the walk."""
        return self.is_container(root) and all(self.part(child) == WALK for child in root.children.values())

    # the walk as data -------------------------------------------------------------------------------------------

    def steps(self, guards: Iterable[Guard], results: list[Source]) -> tuple[list[Step], list[int], list[Source]]:
        """The walk that these guards and results need: its steps, the steps of the results, and its roots."""
        made = _Steps(self)
        for root in self._roots:
            made.add(root)
        for guard in guards:
            for source in guard.sources():
                made.add(source)
            if guard.kind in ("length", "keys", "absent") and guard.source is not None:
                made.opened.add(guard.source)
            if guard.kind == "keys" and guard.source is not None:
                made.ordered.add(guard.source)
            if guard.kind == "type" and guard.source is not None:
                made.typed.add(guard.source)
        numbers = [made.add(source) for source in results]
        return made.finished(), numbers, made.roots


class _Steps:
    """Steps in the making."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._numbers: dict[Source, int] = {}
        self._made: list[tuple[Source, str, int, Any]] = []
        self.roots: list[Source] = []
        self.opened: set[Source] = set()
        self.ordered: set[Source] = set()
        self.typed: set[Source] = set()

    def add(self, source: Source) -> int:
        """The number of the step that leads to a source."""
        known = self._numbers.get(source)
        if known is not None:
            return known
        owner = class_of_namespace(source)
        if owner is not None:
            step: tuple[Source, str, int, Any] = (source, "class", -1, owner)
        elif self._walk.part(source) == BEFORE:
            step = (source, "root", -1, len(self.roots))
            self.roots.append(source)
        else:
            library = self._walk.library(source)
            container = library if library is not None else source.base
            assert container is not None
            base = self.add(container)
            self.opened.add(container)
            if library is not None:
                step = (source, "item", base, source.key)
            elif class_of_namespace(container) is not None:
                step = (source, "member", base, source.key)
            elif isinstance(source.key, Source):
                step = (source, "lookup", base, self.add(source.key))
            else:
                step = (source, "dict" if _is_namespace(source) else source.kind, base, source.key)
        self._numbers[source] = len(self._made)
        self._made.append(step)
        return len(self._made) - 1

    def finished(self) -> list[Step]:
        return [
            Step(kind, base, key, source in self.opened, source in self.ordered, source in self.typed)
            for source, kind, base, key in self._made
        ]


def class_of_namespace(source: Source) -> type | None:
    """The class whose `__dict__` a source is, for a class that is a constant of the generated code."""
    if not _is_namespace(source) or source.base is None or source.base.kind != "constant":
        return None
    return source.base.owner if isinstance(source.base.owner, type) else None


def _is_of_numpy(kind: Any) -> bool:
    """Whether this is a class of NumPy's numbers."""
    return isinstance(kind, type) and issubclass(kind, numpy.number)


def _is_namespace(source: Source) -> bool:
    return source.kind == "attr" and source.key == "__dict__"
