"""Python source of a specialisation's prologue: check the guards and fetch the graph's inputs.

Every path into the user's objects is evaluated once. Facts about many elements of one list (the parameters of a model,
their gradients, their optimizer state) become a few statements on whole lists, so that neither the source nor the time
to compile it grows with their number, and each check costs tens of nanoseconds.
"""

from __future__ import annotations

import collections
import functools
import math
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from keyword import iskeyword
from typing import Any

from ..ir.guard import MOST_BITS, Guard, NumberExpr
from ..ir.reading import native_method, reads_by_syntax
from ..ir.source import Source
from .walk import AFTER, WALK, Walk, class_of_namespace

#: Lists shorter than this are unrolled.
SMALLEST_FAMILY = 4

#: Kinds of guards of which there is one check for all members of a family.
_TOGETHER = frozenset({"type", "length", "is", "requires_grad"})

#: How sources without a key are read from what they are in.
_READS = {
    "referent": "{}()", "context": "{}.get(_MISSING)", "default": "{}.get()", "ahead": "_ahead({})",
    "read_by": "_read_by({})", "contents": "{}.item()", "numbers": "_numbers_in({})",
    "elements": "_elements_in({})", "shared": "_shared_tensor({})", "copied": "_copied_tensor({})",
    "identity": "_id({})",
}  # fmt: skip

#: Those that are read for themselves.
_READ_ALONE = frozenset({"ahead", "read_by", "numbers", "elements", "keys"})

#: When guards on an object fail that compare it, or something of it, with a constant.
_FAILS = {
    "type": "_type({0}) is not {1}", "is": "{0} is not {1}", "filters": "tuple({0}) != {1}", "unset": "_is_set({1}, {0})",
    "requires_grad": "{0}.requires_grad is not {1}",
}  # fmt: skip

#: What says that all elements of a list are alike: of a type or a length, or one object.
_ALL_ARE = {"type": "_types_are", "length": "_lengths_are", "is": "_all_are"}

#: Constants that can stand in the source as they are.
_LITERALS = (int, float, str, bool, type(None))

#: Guards of which there is one check: their kind, the family of their sources, and for those on keys the keys.
Together = tuple[str, "Family", Any]


@dataclass(eq=False, slots=True)
class Family:
    """Sources that differ in one list index alone: `base[k].attr["key"]` for all `k` in `indices`.

    `kind`: "element" (of the list `base`), "value" (of the dictionary `base`, whose keys are known), "attr" or "item" (of
    each member of `parent`), "lookup" (in the dictionary `base`, with each member of `parent` as key).
    """

    kind: str
    base: Source | None
    parent: Family | None
    key: Any
    members: dict[int, Source] = field(default_factory=dict)
    variable: str = ""
    positions: dict[int, int] = field(default_factory=dict)


class Prologue:
    """Writes the prologue for a segment's guards and inputs. `lines` is the result, `constants` what it refers to."""

    def __init__(
        self, guards: list[Guard], wanted: Iterable[Source], remember: Callable[..., Any] | None = None,
        changing: Iterable[Source] = (), types: dict[Source, type] | None = None,
    ) -> None:  # fmt: skip
        """`remember` makes what tells whether a walk is unchanged (see `launch.unchanged`), where there is such a thing.
        `changing` are sources that lead to another object at every call, or to one that the segment changes. `types` says
        what is at sources, where that is more than `guards` say."""
        self.lines: list[str] = []
        self.parts = (self.lines, self.lines, self.lines, self.lines)
        self.walk: Walk | None = None
        self.walk_guards: list[Guard] = []
        self.read_in_walk: dict[str, list[Source] | Source] = {}
        self.remember = remember
        self.constants: dict[str, Any] = {}
        self.guards = guards
        self._names: dict[Source, str] = {}
        self._families: dict[Any, Family] = {}
        self._family_of: dict[Source, tuple[Family, int] | None] = {}
        self._constant_names: dict[int, str] = {}
        self._counter = 0
        # The keys of dictionaries may be 0, 1, .. as well.
        mappings = {g.source for g in guards if g.kind == "type" and issubclass(g.value, Mapping)}
        self._lengths = {g.source: g.value for g in guards if g.kind == "length" and g.source not in mappings}
        self._keys = {
            g.source: {key: index for index, key in enumerate(g.value)}
            for g in guards
            if g.kind == "keys" and len(g.value) >= SMALLEST_FAMILY and all(type(key) is str for key in g.value)
        }
        self._types = guarded_types(guards) if types is None else types
        self._lists = {g.source for g in guards if g.kind == "type" and g.value is list}
        for source in [*(source for guard in guards for source in guard.sources()), *wanted]:
            self._place(source)
        #: What guards want of the members of families, by their indices.
        self._facts: dict[Together, dict[int, Any]] = {}
        for guard in guards:
            together = self._together(guard)
            if together is not None:
                self._facts.setdefault(together, {})[self._place(guard.source)[1]] = guard.value  # type: ignore[arg-type, index]
        if remember is not None:
            self.parts = ([], [], [], self.lines)
            self.walk = Walk(guards, self._relatives, changing)

    # families ---------------------------------------------------------------------------------------------------

    def _place(self, source: Source) -> tuple[Family, int] | None:
        """The family that a source belongs to and its index there; None for a source of its own."""
        if source in self._family_of:
            return self._family_of[source]
        self._family_of[source] = None
        found: tuple[Family, int] | None = None
        base = source.base
        if base is not None:
            parent = self._place(base)
            key = source.key
            by_syntax = isinstance(key, Source) or reads_by_syntax(self._types.get(base), source.kind)
            if isinstance(key, NumberExpr) or not by_syntax or source.kind in _READ_ALONE:
                found = None
            elif parent is not None and not isinstance(key, Source):
                found = self._family(source.kind, None, parent[0], key), parent[1]
            elif parent is None and isinstance(key, Source):
                by_key = self._place(key)
                if by_key is not None:
                    found = self._family("lookup", base, by_key[0], None), by_key[1]
            elif source.kind == "item" and type(key) is int and self._lengths.get(base, 0) >= SMALLEST_FAMILY:
                found = self._family("element", base, None, None), key
            elif source.kind == "item" and type(key) is str and key in self._keys.get(base, ()):
                found = self._family("value", base, None, None), self._keys[base][key]
        if found is not None:
            found[0].members[found[1]] = source
        self._family_of[source] = found
        return found

    def _family(self, kind: str, base: Source | None, parent: Family | None, key: Any) -> Family:
        index = (kind, base, parent, type(key), key)
        if index not in self._families:
            self._families[index] = Family(kind, base, parent, key)
        return self._families[index]

    def lists_of_elements(self) -> list[str]:
        """The variables with the elements of lists, which may be the user's own lists."""
        families = self._families.values()
        return [f.variable for f in families if f.variable and f.kind == "element" and f.parent is None]

    def _together(self, guard: Guard) -> Together | None:
        """What a guard has in common with others that are checked with it; None for a check of its own."""
        placed = self._place(guard.source) if guard.source is not None else None
        if placed is None:
            return None
        if guard.kind in _TOGETHER or (guard.kind == "equal" and _compares_well(guard.value)):
            return guard.kind, placed[0], None
        plain = guard.kind in ("absent", "keys") and all(type(key) is str for key in guard.value)
        return (guard.kind, placed[0], guard.value) if plain else None

    def _relatives(self, source: Source) -> Iterable[Source]:
        """The sources that are read in one statement with this one."""
        placed = self._place(source)
        return placed[0].members.values() if placed is not None else (source,)

    def _part(self, source: Source) -> int:
        return self.walk.part(source) if self.walk is not None else AFTER

    def _fetch_family(self, family: Family) -> str:
        """The variable that holds the values of a family's members, in the order of their indices."""
        if family.variable:
            return family.variable
        part = self._part(next(iter(family.members.values())))
        indices = sorted(family.members)
        family.positions = {index: position for position, index in enumerate(indices)}
        if family.parent is not None:
            source_list = self._picked(self._fetch_family(family.parent), family.parent, indices)
        else:
            assert family.base is not None
            source_list = self.name(family.base)
            if family.kind == "value":
                source_list = f"[*{source_list}.values()]"
            elif family.base not in self._lists:  # native functions read lists, not tuples
                source_list = f"[*{source_list}]"
            length = len(self._keys[family.base]) if family.kind == "value" else self._lengths[family.base]
            if indices != list(range(length)):
                source_list = f"[{source_list}[k] for k in {self.constant(indices, 'picks')}]"
        if family.kind in ("element", "value"):
            expression = source_list
        elif family.kind == "attr":
            expression = f"_getattr_each({source_list}, {family.key!r})"
        elif family.kind == "item":
            expression = self._items(family, source_list)
        elif family.kind == "plain":
            expression = f"[_plain_value({self.constant(family.key)}, v) for v in {source_list}]"
        elif family.kind in _READS:
            expression = f"[{_READS[family.kind].format('v')} for v in {source_list}]"
        else:
            table = self.name(family.base)  # type: ignore[arg-type]
            keys = source_list if source_list.isidentifier() else self._assign(source_list, "keys", part)
            expression = f"_lookup_all({table}, {keys}, _same_objects)"  # to hash a tensor is slow
        family.variable = self._assign(expression, "list", part)
        if part == WALK:
            self.read_in_walk[family.variable] = [family.members[index] for index in indices]
        return family.variable

    def _items(self, family: Family, source_list: str) -> str:
        """An item of every member: natively where all members are plain dictionaries."""
        assert family.parent is not None
        kinds = self._facts.get(("type", family.parent, None), {})
        key = self.constant(family.key)
        if type(family.key) is str and len(kinds) == len(family.parent.members) and set(kinds.values()) == {dict}:
            return f"_getitem_each({source_list}, {key})"
        return f"[v[{key}] for v in {source_list}]"

    # names ------------------------------------------------------------------------------------------------------

    def constant(self, value: Any, label: str = "c") -> str:
        """How a constant is written in the source: a literal, or the name of an entry of `constants`."""
        finite = type(value) is not float or math.isfinite(value)
        if type(value) in _LITERALS and finite and not (type(value) is int and value.bit_length() > MOST_BITS):
            return repr(value)
        return self._named(value, label)

    def same_object(self, value: Any) -> str:
        """The same for a value whose identity the program may ask for: a literal is another object."""
        literal = value is None or type(value) is bool or (type(value) is int and -5 <= value <= 256)
        return repr(value) if literal else self._named(value, "c")

    def _named(self, value: Any, label: str) -> str:
        known = self._constant_names.get(id(value))
        if known is None:
            known = f"_{label}{len(self.constants)}"
            self.constants[known] = value
            self._constant_names[id(value)] = known
        return known

    def _assign(self, expression: str, label: str, part: int) -> str:
        name = f"_{label}{self._counter}"
        self._counter += 1
        self.parts[part].append(f"{name} = {expression}")
        return name

    def name(self, source: Source) -> str:
        """The expression for a source's value; what it needs is fetched first."""
        known = self._names.get(source)
        if known is not None:
            return known
        placed = self._place(source)
        if placed is not None:
            variable = self._fetch_family(placed[0])
            known = f"{variable}[{placed[0].positions[placed[1]]}]"
        else:
            known = self._fetch(source)
        self._names[source] = known
        return known

    def _fetch(self, source: Source) -> str:
        if source.kind == "local":
            return str(source.key)
        if source.kind == "constant":
            return self.constant(source.owner, "object")
        part = self._part(source)
        name = self._assign(self._path(source), "v", part)
        if part == WALK and class_of_namespace(source) is None:  # a new object each time
            self.read_in_walk[name] = source
        return name

    def _path(self, source: Source) -> str:
        """The expression that reads a source from its base."""
        if source.kind == "slot":
            depth, place, index = source.key
            entry = "" if place == "replacement" else f"[{index}]"
            return f"_frames[{depth}].{place}{entry}"
        if source.kind == "closure":
            return f"_CELLS[{source.key!r}].cell_contents"
        if source.kind == "global":
            return f"{self.constant(source.owner, 'globals')}[{source.key!r}]"
        assert source.base is not None, source
        if source.kind == "item" and source.key == 0 and source.base.kind == "ahead" and source.base.base is not None:
            return f"_next_of({self.name(source.base.base)})"
        base = self.name(source.base)
        if source.kind == "keys":
            return f"[*{self._asked(source.base, '__iter__', base)}]"
        if source.kind == "referent" and self._types.get(source.base) not in (None, weakref.ref):
            return f"_weak.__call__({base})"  # past what a class that derives from it says
        if source.kind in _READS:
            return _READS[source.kind].format(base)
        if source.kind == "part":
            return f"_part_of({base}, {source.key.code(self.name)})"
        if source.kind == "plain":
            return f"_plain_value({self.constant(source.key)}, {base})"
        if source.kind == "computed":
            return str(source.key.code(self.name))
        kind = self._types.get(source.base)
        if source.kind == "attr":
            native = native_method(kind, "__getattribute__")
            return attribute_of(base, source.key) if native is None else f"_own({base}, {source.key!r})"
        key = source.key.code(self.name) if isinstance(source.key, NumberExpr) else self._key(source.key)
        native = native_method(kind, "__getitem__")
        if kind is collections.Counter and isinstance(source.key, NumberExpr):  # an item, be it there or not
            return f"{base}[{key}]"
        if native is dict.get:  # a defaultdict must not make an entry when it is looked at
            return f"_entry({base}, {key}, _MISSING)"
        if native is not None:
            return f"{self.constant(native, 'item')}({base}, {key})"
        return f"{base}.get({key})" if isinstance(source.key, Source) else f"{base}[{key}]"

    def _asked(self, source: Source, method: str, plain: str, *operands: str) -> str:
        """The expression for a question to a container: `plain`, or a call of the builtin class's own method."""
        native = native_method(self._types.get(source), method)
        if native is None:
            return plain
        return f"{self.constant(native, 'ask')}({', '.join([self.name(source), *operands])})"

    def names(self, sources: Sequence[Source]) -> list[str]:
        """The expressions for many sources' values; a family that stands among them as a whole is one, `*list`."""
        parts: list[str] = []
        position = 0
        while position < len(sources):
            placed = self._place(sources[position])
            family = placed[0] if placed is not None else None
            members = [family.members[k] for k in sorted(family.members)] if family is not None else []
            if family is not None and list(sources[position : position + len(members)]) == members:
                parts.append(f"*{self._fetch_family(family)}")
                position += len(members)
            else:
                parts.append(self.name(sources[position]))
                position += 1
        return parts

    def class_at(self, source: Source) -> type | None:
        """The class that guards require of the object at a source."""
        return self._types.get(source)

    # guards -----------------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Emit all checks, in the order in which capture needed them: a path is checked before it is followed."""
        done: set[Together] = set()
        tensors = {guard.source for guard in self.guards if guard.kind == "tensor"}
        for guard in self.guards:
            if guard.kind in ("tensor", "apart") or (guard.kind == "condition" and contents_in(guard.value[0])):
                continue
            if guard.kind == "requires_grad" and guard.source in tensors:
                continue  # checked with the tensor
            part = self.walk.part_of_guard(guard) if self.walk is not None else AFTER
            if part == WALK:
                self.walk_guards.append(guard)
            together = self._together(guard)
            if together is None:
                self._check(self._condition(guard), part)
            elif together not in done:
                done.add(together)
                self._check_family(together, part)

    def _check(self, condition: str, part: int) -> None:
        self.parts[part].append(f"if {condition}: return _MISS")

    def _check_family(self, together: Together, part: int) -> None:
        """One check for all guards of a kind on a family's members."""
        kind, family, keys = together
        wanted = self._facts[together]
        indices = sorted(wanted)
        variable = self._picked(self._fetch_family(family), family, indices)
        values = [wanted[k] for k in indices]
        if kind == "absent":
            fails = f"_any_has({variable}, {keys!r})"
        elif kind == "keys":
            fails = f"any([[*v] != {self.constant(list(keys))} for v in {variable}])" if keys else f"any({variable})"
        elif kind == "equal":
            variable = variable if variable.isidentifier() else self._assign(variable, "list", part)
            self._check(self._any_differs("type", variable, [type(v) for v in values]), part)
            fails = f"{variable} != {self.constant(values, 'expected')}"
        elif kind == "requires_grad":
            variable = self._assign(f"_getattr_each({variable}, 'requires_grad')", "list", part)
            fails = self._any_differs("is", variable, values)
        else:
            fails = self._any_differs(kind, variable, values)
        self._check(fails, part)

    def _any_differs(self, kind: str, variable: str, values: list[Any]) -> str:
        """The condition that of a list's elements the type, the length, or (`is`) the identity is not as wanted."""
        if len({value if kind == "length" else id(value) for value in values}) == 1:
            return f"not {_ALL_ARE[kind]}({variable}, {self.constant(values[0])})"
        expected = self.constant(values, "expected")
        if kind == "is":
            return f"not all(map(_is, {variable}, {expected}))"
        return f"[*map(_{'len' if kind == 'length' else kind}, {variable})] != {expected}"

    def _picked(self, variable: str, family: Family, indices: list[int]) -> str:
        """Those of a family's members that are wanted, where `variable` holds them all."""
        if len(indices) == len(family.members):
            return variable
        picks = self.constant([family.positions[k] for k in indices], "picks")
        return f"[{variable}[k] for k in {picks}]"

    def _condition(self, guard: Guard) -> str:
        """The Python condition under which a guard fails."""
        value = guard.value
        if guard.kind == "state":
            setting, usual = value
            current = self._setting(setting)
            return f"{current} is not {usual}" if isinstance(usual, bool) else f"{current} != {self.constant(usual)}"
        if guard.kind == "unique":
            return f"_len({{*map(_id, ({', '.join(self.names(guard.value))},))}}) != {len(guard.value)}"
        if guard.kind == "apart":
            return "False"
        if guard.kind == "subclass":
            return f"_issubclass({self.constant(value[0])}, {self.constant(value[1])}) is not {value[2]}"
        if guard.kind == "condition":
            code = value[0].code(self.name)
            return f"not {code}" if value[1] else code
        assert guard.source is not None
        name = self.name(guard.source)
        if guard.kind in _FAILS:
            return _FAILS[guard.kind].format(name, self.constant(value))
        if guard.kind == "equal":
            return f"_type({name}) is not {self.constant(type(value))} or {self._differs(name, value)}"
        if guard.kind == "length":
            return f"{self._asked(guard.source, '__len__', f'_len({name})')} != {value}"
        if guard.kind == "keys":
            if not value:
                return self._asked(guard.source, "__len__", name)
            name = self._asked(guard.source, "__iter__", name)
            keys = f"[{', '.join(self._key(k) for k in value)}]"
            if any(isinstance(key, Source) for key in value):
                return f"not _same_objects([*{name}], {keys})"
            if all(type(k) is str for k in value):
                return f"[*{name}] != {keys}"
            return f"[*{name}] != {keys} or [*map(_type, {name})] != {self.constant([type(k) for k in value])}"
        if guard.kind == "absent":
            asked = [self._asked(guard.source, "__contains__", f"{key} in {name}", key) for key in map(self._key, value)]
            return " or ".join(asked)
        if guard.kind == "cached":
            return f"not _cached_holds({name}, {', '.join(map(self.constant, value))})"
        other = self.name(value)
        return f"{name} is not {other}" if guard.kind == "same" else f"{name} is {other}"

    def _differs(self, name: str, value: Any) -> str:
        """Whether a value of the same type is another one: NaN equals nothing, and -0.0 equals 0.0."""
        if type(value) is complex and not (value == value and value.real and value.imag):
            return f"repr({name}) != {repr(value)!r}"
        if type(value) is float and not (value == value and value):
            return f"{name}.hex() != {value.hex()!r}"
        return f"{name} != {self.constant(value)}"

    def _setting(self, setting: str) -> str:
        """A global setting, such as `torch.is_grad_enabled()`, with the path to it followed already."""
        if setting.endswith(")"):
            function, _, arguments = setting.partition("(")
            return f"{self.constant(_follow(function), 'setting')}({arguments}"
        place, _, name = setting.rpartition(".")
        return f"{self.constant(_follow(place), 'setting')}.{name}"

    def _key(self, key: Any) -> str:
        return self.name(key) if isinstance(key, Source) else self.constant(key)


def guarded_types(guards: Iterable[Guard]) -> dict[Source, type]:
    """The types that guards require, by source."""
    return {g.source: g.value for g in guards if g.kind == "type" and g.source is not None}


def contents_in(expr: NumberExpr) -> list[Source]:
    """The numbers in tensors that an expression reads, each once."""
    return list(dict.fromkeys(s for s in expr.sources() if s.kind == "contents"))


def attribute_of(base: str, name: str) -> str:
    """The expression `base.name`, for any name."""
    return f"{base}.{name}" if name.isidentifier() and not iskeyword(name) else f"_getattr({base}, {name!r})"


def _follow(path: str) -> Any:
    """What a dotted path that begins with a module leads to."""
    module, *names = path.split(".")
    return functools.reduce(getattr, names, sys.modules[module])


def _compares_well(value: Any) -> bool:
    """Whether `==` between values of this type says all: NaN equals nothing, and -0.0 equals 0.0."""
    return type(value) in (int, str, bool) or (type(value) is float and value == value and value != 0)
