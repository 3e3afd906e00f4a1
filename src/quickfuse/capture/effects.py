"""From stand-ins to recipes: how the generated code makes the result, and what it does to the user's objects."""

from __future__ import annotations

import collections
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from ..errors import Unsupported
from ..ir.segment import Build, Constant, Effect, Existing, New, Output, Recipe
from ..ir.source import Source
from .attributes import lookup_class
from .builtin_calls import type_of
from .frame import GeneratorValue
from .values import DELETED, ShadowDict, Symbol, TensorProxy, is_constant

if TYPE_CHECKING:
    from .interpreter import Interpreter

_CODE = (FunctionType, BuiltinFunctionType, type, ModuleType)
_CONTAINERS = (list, tuple, set, frozenset, collections.deque)
_DICTS = (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)


class RecipeBook:
    """Writes recipes; `outputs` collects what the graph has to return."""

    def __init__(self, interpreter: Interpreter) -> None:
        self.i = interpreter
        self.outputs: list[Any] = []
        self._recipes: dict[int, Recipe] = {}
        self._changed_types: list[type] = []
        self._keep: list[Any] = []

    def recipe(self, value: Any) -> Recipe:
        """How to make the real value that a stand-in stands for."""
        known = self._recipes.get(id(value))
        if known is not None:
            return known
        self._keep.append(value)
        made = self._new_recipe(value)
        self._recipes.setdefault(id(value), made)
        return made

    def _new_recipe(self, value: Any) -> Recipe:
        kind = type(value)
        if kind is TensorProxy:
            return Existing(value.source) if value.source is not None else self._output(value)
        if kind is Symbol:
            return Existing(value.expr) if isinstance(value.expr, Source) else self._output(value)
        source = self.i.outside.source_of(value)
        if kind is ShadowDict or (source is not None and id(value) not in self.i.created):
            return Existing(source) if not isinstance(value, _CODE) else Constant(value)  # type: ignore[arg-type]
        if is_constant(value):
            return Constant(value)
        if isinstance(value, FunctionType) and id(value) in self.i.created:
            raise Unsupported("a function made by the captured code that outlives it")
        if isinstance(value, _CODE):
            return Constant(value)
        if kind is MethodType:
            return Build(MethodType, [self.recipe(value.__func__), self.recipe(value.__self__)])
        if kind in _DICTS:
            return self._dict(value)
        if kind in _CONTAINERS or isinstance(value, tuple):
            return self._container(value)
        if kind is slice:
            return Build(slice, [self.recipe(v) for v in (value.start, value.stop, value.step)])
        if kind is GeneratorValue:
            raise Unsupported("a generator that outlives the captured code")
        if id(value) in self.i.created and type(value).__flags__ & (1 << 9) and not isinstance(value, BaseException):
            return self._object(value)
        raise Unsupported(f"a {type_of(value).__name__} that outlives the captured code")

    def _output(self, value: Any) -> Recipe:
        self.outputs.append(value)
        return Output(len(self.outputs) - 1)

    def _container(self, value: Any) -> Recipe:
        if isinstance(value, collections.deque) and value.maxlen is not None:
            raise Unsupported("a bounded deque that outlives the captured code")
        build = Build(type(value), [])
        self._recipes[id(value)] = build
        build.items.extend(self.recipe(v) for v in value)
        return build

    def _dict(self, value: Any) -> Recipe:
        if isinstance(value, collections.defaultdict):
            raise Unsupported("a defaultdict that outlives the captured code")
        build = Build(type(value), [])
        self._recipes[id(value)] = build
        build.items.extend((self.recipe(k), self.recipe(v)) for k, v in value.items())
        return build

    def _object(self, value: Any) -> Recipe:
        if not hasattr(value, "__dict__") or type(value).__setattr__ is not object.__setattr__:
            raise Unsupported(f"a {type(value).__name__} that outlives the captured code")
        made = New(type(value), {})
        self._recipes[id(value)] = made
        made.attributes.update({name: self.recipe(v) for name, v in value.__dict__.items()})
        return made

    # effects ----------------------------------------------------------------------------------------------------

    def effects(self) -> list[Effect]:
        """Every change of the user's objects, to be replayed in this order."""
        effects = [*self._attributes(), *self._dictionaries(), *self._lists(), *self._variables()]
        for kind in dict.fromkeys(self._changed_types):
            self.i.outside.guard_unique(kind)
        return effects

    def _attributes(self) -> list[Effect]:
        outside = self.i.outside
        effects = []
        for (_, name), owner in outside.changed_attributes.items():
            value = outside.attributes[id(owner), name]
            self._changed_types.append(type(owner))
            if value is DELETED:
                effects.append(Effect("delattr", self.recipe(owner), name))
                continue
            own_setter = isinstance(lookup_class(type(owner), "__setattr__")[1], FunctionType)
            kind = "setplain" if own_setter and type(owner) is not TensorProxy else "setattr"
            effects.append(Effect(kind, self.recipe(owner), name, self.recipe(value)))
        return effects

    def _dictionaries(self) -> list[Effect]:
        effects = []
        for shadow in self.i.outside._stand_ins.values():
            if type(shadow) is not ShadowDict:
                continue
            if shadow.changes:
                self._changed_types.append(ShadowDict)
            target = Existing(shadow.source)
            effects += [Effect("delitem", target, self._key(key)) for key in shadow.removed if key in shadow.real]
            effects += [
                Effect("setitem", target, self._key(key), self.recipe(shadow.entries[key]))
                for key in ([k for k in shadow.entries if k in shadow.changes] if shadow.removed else shadow.changes)
                if key in shadow.entries
            ]
        return effects

    def _key(self, key: Any) -> Recipe:
        return self.recipe(self.i.outside.key_value(key))

    def _lists(self) -> list[Effect]:
        effects = []
        for shadow, _, source, original in self.i.outside.lists.values():
            if len(shadow) != len(original) or any(a is not b for a, b in zip(shadow, original, strict=True)):
                self._changed_types.append(list)
                build = Build(list, [self.recipe(v) for v in shadow])
                effects.append(Effect("refill", Existing(source), None, build))
        return effects

    def _variables(self) -> list[Effect]:
        outside = self.i.outside
        effects = [
            Effect("setglobal", None, (globals_, name), self.recipe(value))
            for (_, name), (globals_, value) in outside.global_stores.items()
        ]
        for cell, value in outside.cell_stores.values():
            effects.append(Effect("setcell", None, cell, self.recipe(value)))
        return effects
