"""From stand-ins to recipes: how the generated code makes values, and what it does to the user's objects."""

from __future__ import annotations

from types import CellType
from typing import Any, TypeVar

import torch

from ..bytecode.decoding import local_names
from ..errors import Unsupported
from ..ir.frame import NULL, UNBOUND
from ..ir.iterating import view_of
from ..ir.segment import Build, Call, Constant, Effect, Existing, FrameRecipe, Output, Recipe
from ..ir.sharing import count_changes
from .interpreter import Interpreter
from .liveness import live_locals
from .objects import outside_iterators
from .objects.class_attributes import lookup_class, replaces
from .objects.construction import refuse_outside
from .objects.hashing import is_key_by_content
from .objects.variables import note_shared_cell
from .symbolic import instance_dict, type_of
from .symbolic.containers import ShadowContainer, ShadowDict, key_value
from .symbolic.frame import Constructed, Frame
from .symbolic.graph_values import DynamicTensor, Selection, Symbol, TensorProxy
from .symbolic.hooks import HookHandle
from .symbolic.kinds import CODE_TYPES, VIEW_TYPES
from .symbolic.made import DELETED, HeldArray, Made, MadeTraceback, NativeHandler, SuperProxy
from .symbolic.outside import is_constant

_R = TypeVar("_R", bound=Recipe)


class RecipeBook:
    """Writes recipes; `outputs` collects what the graph has to return."""

    def __init__(self, interpreter: Interpreter) -> None:
        self.i = interpreter
        self.outputs: list[Any] = []
        self.generators: set[int] = set()
        self._recipes: dict[int, Recipe] = {}
        self._changed_types: list[type] = []
        self._detached: dict[int, TensorProxy] = {}
        self._keep: list[Any] = []
        self._cached_calls = [Call(c.called, [*map(self._cached, c.args)]) for c in interpreter.outside.cached_calls]
        for made, recipe in zip(interpreter.outside.cached_calls, self._cached_calls, strict=True):
            if type(made.result) is tuple and not is_constant(made.result):
                self._recipes.setdefault(id(made.result), recipe)  # what the cache holds from then on

    def _cached(self, argument: Any) -> Recipe:
        """An argument of a cached function: another object may be equal to it, which guards do not hold by its identity."""
        return self.recipe(argument) if is_key_by_content(self.i, argument) else Constant(argument)

    def makes(self, value: Any) -> bool:
        """Whether a value outlives the graph, as far as is known."""
        return id(value) in self._recipes

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
        refuse_outside(self.i, value)
        made = self.i.outside.made(value)
        if made is not None and made.name:
            return self._given(made)
        source = self.i.outside.source_of(value)
        if source is not None and not self.i.is_created(value):
            by_path = not isinstance(value, CODE_TYPES) or self.i.outside.is_by_code(value)
            return Existing(source) if by_path else Constant(value)
        if is_constant(value):
            return Constant(value)
        return self.i.kind_of(value).rebuild(self, value)  # type: ignore[no-any-return]

    # for what kinds of values say about themselves ---------------------------------------------------------------

    def begin(self, value: Any, recipe: _R) -> _R:
        """Note the recipe of a value that may hold itself, before those of what is in it."""
        self._recipes[id(value)] = recipe
        return recipe

    def build(self, kind: type, parts: list[Any]) -> Recipe:
        """`kind(*parts)`."""
        return Build(kind, [self.recipe(part) for part in parts])

    def container(self, value: Any) -> Recipe:
        """A list, tuple or set, with its elements, whatever a class that derives from tuple says of going through them."""
        made = self.begin(value, Build(type(value), []))
        made.items.extend(self.recipe(v) for v in (tuple.__iter__(value) if isinstance(value, tuple) else value))
        return made

    def output(self, value: Any) -> Recipe:
        """A result of the graph."""
        if type(value) is DynamicTensor and value.shares:
            raise Unsupported("a view of dynamic sizes of what kernels compute, which outlives the graph")
        self.outputs.append(value)
        return Output(len(self.outputs) - 1)

    def _given(self, made: Made) -> Recipe:
        """What an attribute of an object, or a method without arguments, gives."""
        if isinstance(made.value, VIEW_TYPES):
            return Call(view_of, [self.recipe(made.owner), Constant(made.name)])
        found = Call(getattr, [self.recipe(made.owner), Constant(made.name)])
        if isinstance(made, MadeTraceback):  # when the exception had passed fewer frames: without the outermost entries
            for _ in range(len(self.i.outside.note_exception(made.owner).trace) - made.entries):
                found = Call(getattr, [found, Constant("tb_next")])
        return found

    def without_gradient(self, tensor: TensorProxy) -> TensorProxy:
        """What to read a number from: gradients are not to be kept for that after a step of training, and before a break
        autograd is not to have a result more."""
        if not (self.i.graph.mutated or self.i.frames) or not tensor.meta.requires_grad or id(tensor) in self._recipes:
            return tensor
        if id(tensor) not in self._detached:
            node = self.i.graph.node_of(tensor)
            known = next((user for user in node.users if user.target == "detach"), None)  # the program's own
            self._detached[id(tensor)] = (
                self.i.graph.call("call_method", "detach", (tensor,), {})
                if known is None
                else TensorProxy(known.meta["val"], known)
            )
        return self._detached[id(tensor)]

    # frames -----------------------------------------------------------------------------------------------------

    def frame(self, frame: Frame, all_variables: bool = False) -> FrameRecipe:
        """A frame as a segment leaves it. Variables that nothing reads any more are dropped."""
        all_variables = all_variables or bool(self.i.referenced)  # which may hold what weak references are to
        live = live_locals(frame.code, frame.position, calling=not self.i.frames or frame is not self.i.frames[-1])
        names = local_names(frame.code)
        for name in frame.code.co_freevars:
            note_shared_cell(self.i, frame, names.index(name))
        return FrameRecipe(
            frame.code,
            frame.globals,
            [
                None if v is UNBOUND or (n not in live and not all_variables and _holds_tensors_only(v)) else self.recipe(v)
                for n, v in zip(names, frame.locals, strict=True)
            ],
            [None if v is NULL or v is UNBOUND else self.recipe(v) for v in frame.stack],
            frame.position,
            frame.keyword_names,
            [self.recipe(e) for e in frame.exceptions],
            self.recipe(frame.on_result.instance) if type(frame.on_result) is Constructed else None,
            frame.origin,
        )

    # effects ----------------------------------------------------------------------------------------------------

    def effects(self) -> list[Effect]:
        """Every change of the user's objects, to be replayed in this order."""
        effects = [*outside_iterators.effects(self.i), *self._attributes(), *self._dictionaries()]
        effects += [*self._containers(), *self._variables()]
        effects += self._of_made_tensors()
        changed = self.i.graph.changed_elsewhere.items()
        done: list[Recipe] = [Call(count_changes, [self.recipe(tensor), Constant(times)]) for tensor, times in changed]
        for kind in dict.fromkeys(self._changed_types):
            self.i.outside.guard_unique(kind)
        self.i.outside.guard_hashed()
        self.i.outside.guard_changed_leaves()
        graph = self.i.graph
        if graph.grad_enabled != graph.grad_at_start and not graph.inference.entered_at:  # entering it sets the grad mode
            done.append(Call(torch._C._set_grad_enabled, [Constant(graph.grad_enabled)]))
        managers = [scope.manager for scope in self.i.outside.filters]
        done += [*map(self.recipe, self.i.outside.tokens), *self._cached_calls]
        done += [Call(function, [*map(self.recipe, texts)]) for function, texts in self.i.outside.printed]
        done += map(self.recipe, managers)  # under whose filters no warning is shown
        pending = [*graph.autocast.pending, *graph.changed_settings.pending]
        done += [Call(function, [*map(Constant, arguments)]) for function, arguments in pending]
        graph.changed_settings.pending.clear()
        graph.autocast.pending.clear()  # what the graph gets after this, such as hooks that are left, does not do it as well
        return effects + [Effect("do", None, None, call) for call in done]

    def _attributes(self) -> list[Effect]:
        outside = self.i.outside
        effects = []
        gone = set()
        for owner, name, value in outside.attribute_changes():
            if type(owner) is TensorProxy and owner.source is None:
                continue
            if type(owner) is TensorProxy and name == "requires_grad":
                if not value:  # while the graph runs, it requires them
                    effects.append(Effect("setattr", self.recipe(owner), name, self.recipe(value)))
                continue
            self._changed_types.append(type(owner) if type(owner) is TensorProxy else type_of(owner))
            if value is DELETED:
                if name in (instance_dict(owner.real) or ()) and (id(owner), name) not in gone:
                    effects.append(Effect("delattr", self.recipe(owner), name))
                    gone.add((id(owner), name))
                continue
            own_setter = replaces(lookup_class(type_of(owner), "__setattr__")[1], "__setattr__")
            kind = "setplain" if own_setter and type(owner) is not TensorProxy else "setattr"
            effects.append(Effect(kind, self.recipe(owner), name, self.recipe(value)))
        return effects

    def _of_made_tensors(self) -> list[Effect]:
        """The attributes of those tensors made inside that outlive the graph, such as the gradients of leaves."""
        effects: list[Effect] = []
        waiting = [
            change for change in self.i.outside.attribute_changes()
            if type(change[0]) is TensorProxy and change[0].source is None and change[2] is not DELETED
        ]  # fmt: skip
        while reached := [change for change in waiting if id(change[0]) in self._recipes]:
            waiting = [change for change in waiting if id(change[0]) not in self._recipes]
            effects += [Effect("setattr", self.recipe(owner), name, self.recipe(value)) for owner, name, value in reached]
        return effects

    def _dictionaries(self) -> list[Effect]:
        effects = []
        for shadow in self.i.outside.dictionaries:
            if shadow.changes or shadow.late:
                self._changed_types.append(ShadowDict)
            target = Existing(shadow.source)
            removed = [key for key in shadow.removed if dict.__contains__(shadow.real, key)]
            effects += [Effect("delitem", target, self._key(key)) for key in removed]
            effects += [
                Effect("setitem", target, self._key(key), self.recipe(shadow.entries[key]))
                for key in ([k for k in shadow.entries if k in shadow.changes] if shadow.removed else shadow.changes)
                if key in shadow.entries and not self._is_there(shadow, key)
            ]
            effects += [Effect("setitem", target, self.recipe(key), self.recipe(value)) for key, value in shadow.late]
        return effects

    def _is_there(self, shadow: ShadowDict, key: Any) -> bool:
        """Whether a plain dictionary gets the value that it has: nothing changes then."""
        if type(shadow.real) is not dict or shadow.removed or type(key) is not str or key not in shadow.real:
            return False
        recipe = self.recipe(shadow.entries[key])
        return isinstance(recipe, Existing) and recipe.source is shadow.source.item(key)

    def _key(self, key: Any) -> Recipe:
        return self.recipe(key_value(self.i.outside, key))

    def _containers(self) -> list[Effect]:
        effects = []
        for shadow in self.i.outside.containers:
            target = Existing(shadow.source)
            if shadow.items is None:
                if shadow.added:
                    self._changed_types.append(type(shadow.real))
                    effects.append(Effect("extend", target, shadow.cls, self.recipe(list(shadow.added))))
            elif shadow.is_changed:
                self._changed_types.append(type(shadow.real))
                effects += self._of_set(shadow, target) if shadow.cls is set else [
                    Effect("refill", target, shadow.cls, self.recipe(list(shadow.items)))
                ]
        return effects

    def _of_set(self, shadow: ShadowContainer, target: Existing) -> list[Effect]:
        """What was taken out, then what was added: the order of a set comes from both."""
        gone = [v for v in shadow.original if v not in shadow.items]
        new = [v for v in shadow.items if v not in shadow.original]
        removed = [Effect("discard", target, set, self.recipe(gone))] if gone else []
        return removed + ([Effect("extend", target, set, self.recipe(new))] if new else [])

    def _variables(self) -> list[Effect]:
        outside = self.i.outside
        effects = []
        for variable in outside.variables:
            place, name, value = variable.place, variable.name, variable.value
            if isinstance(place, type):
                effects.append(Effect("setattr", self.recipe(place), name, self.recipe(value)))
            elif not name:
                if outside.source_of(place) is not None:
                    self._changed_types.append(CellType)
                effects.append(Effect("setcell", self.recipe(place), None, self.recipe(value)))
            elif value is not DELETED:
                effects.append(Effect("setglobal", None, (place, name), self.recipe(value)))
            elif name in place:
                effects.append(Effect("delglobal", None, (place, name)))
        return effects


def _holds_tensors_only(value: Any, depth: int = 3) -> bool:
    """Whether nothing but memory is given back when a variable that is not read any more lets go of its value."""
    if type(value) in (list, tuple, dict) and depth:
        elements = value.values() if type(value) is dict else value
        return all(_holds_tensors_only(element, depth - 1) for element in elements)
    known = (TensorProxy, DynamicTensor, Selection, Symbol, HeldArray, SuperProxy, NativeHandler, HookHandle, type)
    return type(value) in known or is_constant(value)
