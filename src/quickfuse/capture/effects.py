"""From stand-ins to recipes: how the generated code makes values, and what it does to the user's objects."""

from __future__ import annotations

import collections
import functools
import types
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType
from typing import Any

import torch

from ..bytecode.decoding import local_names
from ..errors import Unsupported
from ..ir.frame import NULL, UNBOUND
from ..ir.segment import (
    Build,
    Call,
    Cell,
    Computed,
    Constant,
    Effect,
    Existing,
    FrameRecipe,
    Generator,
    New,
    Output,
    Recipe,
    Traced,
)
from ..ir.source import Source
from . import getters, library
from .class_attributes import lookup_class
from .context_changes import ContextToken, token_recipe
from .frame import Constructed, Frame, GeneratorValue
from .interpreter import Interpreter
from .iterators import ITERATORS, ObjectIterator, put_together, take_apart
from .kinds import CODE_TYPES, VIEW_TYPES
from .liveness import live_locals
from .revival import call_with, call_with_keywords, ended_generator, make_exception, make_function, make_partial
from .values import (
    DELETED,
    ContainerMethod,
    FromOutside,
    Made,
    NativeHandler,
    ShadowContainer,
    ShadowDict,
    SuperProxy,
    Symbol,
    TensorMethod,
    TensorProxy,
    Unread,
    is_constant,
    key_value,
    real_of,
    type_of,
)

_NATIVE = (list, tuple, dict, set, frozenset, collections.deque)
_CONTAINERS = (list, tuple, set, frozenset)
_DICTS = (dict, collections.OrderedDict, collections.Counter)


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
            return self._number(value)
        if kind is Unread or isinstance(value, FromOutside):
            return Existing(value.source)
        made = self.i.outside.made(value)
        if made is not None and made.name:
            return self._given(made)
        source = self.i.outside.source_of(value)
        if source is not None and not self.i.is_created(value):
            by_path = not isinstance(value, CODE_TYPES) or self.i.outside.is_by_code(value)
            return Existing(source) if by_path else Constant(value)
        if is_constant(value):
            return Constant(value)
        if kind is FunctionType and self.i.is_created(value):
            return self._function(value)
        if kind is BuiltinFunctionType and isinstance(value.__self__, _NATIVE):
            return Call(getattr, [self.recipe(value.__self__), Constant(value.__name__)])
        if isinstance(value, (*CODE_TYPES, CodeType, types.GenericAlias, types.UnionType)):
            return Constant(value)
        return self._made_here(value, kind)

    def _given(self, made: Made) -> Recipe:
        """What an attribute of an object, or a method without arguments, gives."""
        if isinstance(made.value, VIEW_TYPES):
            return Call(getattr(type_of(made.owner), made.name), [self.recipe(made.owner)])
        return Call(getattr, [self.recipe(made.owner), Constant(made.name)])

    def _made_here(self, value: Any, kind: type) -> Recipe:
        """An object that the captured code made."""
        if kind is CellType:
            return self._cell(value)
        if kind is MethodType and isinstance(value.__self__, ITERATORS) and not isinstance(value.__func__, FunctionType):
            name = Constant(value.__func__.__name__)  # of what will be an iterator of another type
            return Call(getattr, [self.recipe(value.__self__), name])
        if kind is MethodType:
            return Build(MethodType, [self.recipe(value.__func__), self.recipe(value.__self__)])
        if kind is functools.partial:
            keywords = self.recipe(dict(value.keywords))
            return Call(make_partial, [self.recipe(value.func), self.recipe(value.args), keywords])
        if kind in getters.KINDS:
            maker, arguments, keywords = getters.parts(value)
            return Call(call_with, [Constant(maker), self.recipe(arguments), self.recipe(keywords)])
        if kind is types.SimpleNamespace and self.i.is_created(value):
            keywords = self.recipe(dict(value.__dict__))
            return Call(call_with, [Constant(kind), Constant(()), keywords])
        if kind is bytearray and self.i.is_created(value):
            return Call(bytearray, [Constant(bytes(value))])
        if kind in _DICTS:
            return self._dict(value)
        if kind is collections.defaultdict:
            made = Call(collections.defaultdict, [self.recipe(value.default_factory)])
            return self._filled(value, made)
        if kind is collections.deque:
            return self._filled(value, Call(collections.deque, [Constant(()), Constant(value.maxlen)]))
        if kind in _CONTAINERS or isinstance(value, tuple):
            return self._container(value)
        if kind is slice:
            return Build(slice, [self.recipe(v) for v in (value.start, value.stop, value.step)])
        if kind is GeneratorValue:
            return self._generator(value)
        if isinstance(value, ITERATORS):
            return self._iterator(value)
        if kind is TensorMethod:
            return Call(getattr, [self.recipe(value.proxy), Constant(value.name)])
        if kind is ContainerMethod:
            return Call(getattr, [Existing(value.shadow.source), Constant(value.name)])
        if kind is NativeHandler and value.made_by is not None:
            function, first, options = value.made_by
            keywords = self.recipe(dict(options))
            return Call(call_with_keywords, [Constant(function), self.recipe(first), keywords])
        if kind is ContextToken:
            if value not in self.i.outside.context.tokens:
                raise Unsupported("a token of a context variable that outlives the captured code")
            return token_recipe(value, self.recipe)
        if kind is SuperProxy:
            return Call(super, [Constant(value.cls), self.recipe(value.instance)])
        if isinstance(value, BaseException):
            return self._exception(value)
        if kind is types.TracebackType and id(value) in self.i.tracebacks:
            return self._traceback(value)
        if isinstance(value, VIEW_TYPES):
            raise Unsupported("a view of a dictionary that outlives the captured code")
        own = kind is NativeHandler or kind.__module__ == library.__name__
        if self.i.is_created(value) and kind.__flags__ & (1 << 9) and not own:
            return self._object(value)
        raise Unsupported(f"a {type_of(value).__name__} that outlives the captured code")

    def _output(self, value: Any) -> Recipe:
        self.outputs.append(value)
        return Output(len(self.outputs) - 1)

    def _number(self, symbol: Symbol) -> Recipe:
        """A number: by its path, by arithmetic on paths, or, if it comes out of a tensor, by `item()` on an output."""
        if not symbol.from_tensor:
            return Existing(symbol.expr) if isinstance(symbol.expr, Source) else Computed(symbol.expr)  # type: ignore[arg-type]
        contents = self.i.graph.contents
        if self.i.graph.mutated and not contents.still_holds(symbol):  # the tensor may hold another number by now
            return self._output(symbol)
        if symbol.tensor is not None:
            return Call(torch.Tensor.item, [self.recipe(self._without_gradient(symbol.tensor))])
        assert symbol.operation is not None
        function, operands = symbol.operation
        return Call(function, [self.recipe(operand) for operand in operands])

    def _without_gradient(self, tensor: TensorProxy) -> TensorProxy:
        """What to read a number from: behind a step of training, gradients are not to be kept for that."""
        if not (self.i.graph.mutated and tensor.meta.requires_grad) or id(tensor) in self._recipes:
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

    def _container(self, value: Any) -> Recipe:
        ordered = isinstance(value, (set, frozenset)) and not any(map(_is_found_by_address, value))
        if ordered and list(type(value)(list(value))) != list(value):
            raise Unsupported("a set whose order comes from what was in it before")
        build = Build(type(value), [])
        self._recipes[id(value)] = build
        build.items.extend(self.recipe(v) for v in value)
        return build

    def _dict(self, value: Any) -> Recipe:
        build = Build(type(value), [])
        self._recipes[id(value)] = build
        build.items.extend((self.recipe(k), self.recipe(v)) for k, v in value.items())
        return build

    def _filled(self, value: Any, made: Call) -> Recipe:
        """A container that is made empty and filled afterwards."""
        self._recipes[id(value)] = made
        if isinstance(value, dict):
            made.items = [(self.recipe(k), self.recipe(v)) for k, v in value.items()]
        else:
            made.items = [self.recipe(v) for v in value]
        return made

    def _cell(self, cell: CellType) -> Recipe:
        if not self.i.is_created(cell):
            return Constant(cell)  # of a function that is the same in every call
        made = Cell()
        self._recipes[id(cell)] = made
        try:
            made.content = self.recipe(cell.cell_contents)
        except ValueError:
            made.content = None
        return made

    def _function(self, function: FunctionType) -> Recipe:
        closure = self.recipe(function.__closure__) if function.__closure__ else Constant(None)
        # From Python 3.14 on a function computes them, which may fail, when they are asked for.
        annotations = "__annotate__" if getattr(function, "__annotate__", None) is not None else "__annotations__"
        extras = {
            name: getattr(function, name)
            for name in ("__kwdefaults__", annotations, "__name__", "__qualname__", "__module__", "__doc__")
            if getattr(function, name)
        }
        extras.update(function.__dict__)
        return Call(
            make_function,
            [
                Constant(function.__code__), Constant(function.__globals__), self.recipe(function.__defaults__), closure,
                self.recipe(extras),
            ],
        )  # fmt: skip

    def _iterator(self, iterator: Any) -> Recipe:
        if isinstance(iterator, ObjectIterator):
            return self.recipe(iterator.parts[0])
        try:
            function, arguments, *state = take_apart(iterator)
        except RuntimeError as error:  # a container that changed since
            raise Unsupported(f"an iterator that is no longer valid: {error}") from None
        parts: list[Recipe] = [Constant(function), self.recipe(arguments)]
        if state and state[0] is not None:
            parts.append(self.recipe(state[0]))
        return Call(put_together, parts)

    def _generator(self, generator: GeneratorValue) -> Recipe:
        if generator.frame.globals is vars(library):
            raise Unsupported("an iterator of itertools that outlives the captured code")
        if generator.done:
            return Call(ended_generator, [Constant(generator.frame.code), Constant(generator.frame.globals)])
        self.generators.add(id(generator))
        return Generator(self.frame(generator.frame, all_variables=True))

    def _exception(self, exception: BaseException) -> Recipe:
        made = Call(
            make_exception,
            [
                Constant(type(exception)), self.recipe(exception.args), self.recipe(dict(exception.__dict__)),
                self.recipe(exception.__cause__), self.recipe(exception.__context__),
                Constant(exception.__suppress_context__),
            ],
        )  # fmt: skip
        if isinstance(exception, AttributeError):
            made.args.append(self.recipe({"name": exception.name, "obj": exception.obj}))
        trace = self.i.traces.get(id(exception))
        if not trace:
            return made
        entries = tuple([(frame.code, frame.globals, position) for frame, position in trace])
        running = {id(frame): index for index, frame in enumerate(self.i.frames)}
        return Traced(made, entries, tuple([running.get(id(frame)) for frame, _ in trace]))

    def _traceback(self, traceback: Any) -> Recipe:
        """The traceback that an exception had when it had passed fewer frames: without the outermost entries."""
        _, exception, entries = self.i.tracebacks[id(traceback)]
        found = Call(getattr, [self.recipe(exception), Constant("__traceback__")])
        for _ in range(len(self.i.traces.get(id(exception), ())) - entries):
            found = Call(getattr, [found, Constant("tb_next")])
        return found

    def _object(self, value: Any) -> Recipe:
        made = New(type(value), {})
        self._recipes[id(value)] = made
        made.attributes.update({name: self.recipe(v) for name, v in getattr(value, "__dict__", {}).items()})
        for cls in type(value).__mro__:
            slots = cls.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                mangled = f"_{cls.__name__.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name
                if name not in ("__dict__", "__weakref__") and hasattr(value, mangled):
                    made.slots[mangled] = self.recipe(object.__getattribute__(value, mangled))
        if isinstance(value, dict):
            items = (collections.OrderedDict if isinstance(value, collections.OrderedDict) else dict).items(value)
            made.items = [(self.recipe(k), self.recipe(v)) for k, v in items]
        elif isinstance(value, (list, set)):
            made.items = [self.recipe(v) for v in (list if isinstance(value, list) else set).__iter__(value)]
        return made

    # frames -----------------------------------------------------------------------------------------------------

    def frame(self, frame: Frame, all_variables: bool = False) -> FrameRecipe:
        """A frame as a segment leaves it. Variables that nothing reads any more are dropped."""
        live = live_locals(frame.code, frame.position, calling=not self.i.frames or frame is not self.i.frames[-1])
        names = local_names(frame.code)
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
        effects = [*self._attributes(), *self._dictionaries(), *self._containers(), *self._variables()]
        for kind in dict.fromkeys(self._changed_types):
            self.i.outside.guard_unique(kind)
        self.i.outside.guard_hashed()
        graph = self.i.graph
        if graph.grad_enabled != graph.grad_at_start:
            mode = Call(torch._C._set_grad_enabled, [Constant(graph.grad_enabled)])
            effects.append(Effect("do", None, None, mode))
        effects += [Effect("do", None, None, made) for made in self.i.outside.context.recipes(self.recipe)]
        for function, arguments in self.i.outside.cached_calls:
            effects.append(Effect("do", None, None, Call(function, [Constant(a) for a in arguments])))
        for function, arguments in graph.autocast.pending:
            effects.append(Effect("do", None, None, Call(function, [Constant(a) for a in arguments])))
        return effects

    def _attributes(self) -> list[Effect]:
        outside = self.i.outside
        effects = []
        for owner, name in outside.changed_attributes:
            value = owner.attributes[name]
            self._changed_types.append(type(owner) if type(owner) is TensorProxy else type_of(owner))
            if value is DELETED:
                if has_own(owner, name):
                    effects.append(Effect("delattr", self.recipe(owner), name))
                continue
            own_setter = isinstance(lookup_class(type_of(owner), "__setattr__")[1], FunctionType)
            kind = "setplain" if own_setter and type(owner) is not TensorProxy else "setattr"
            effects.append(Effect(kind, self.recipe(owner), name, self.recipe(value)))
        return effects

    def _dictionaries(self) -> list[Effect]:
        effects = []
        for shadow in self.i.outside.dictionaries:
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
        return self.recipe(key_value(self.i.outside, key))

    def _containers(self) -> list[Effect]:
        effects = []
        for shadow in self.i.outside.containers:
            target = Existing(shadow.source)
            if shadow.items is None:
                if shadow.added:
                    self._changed_types.append(type(shadow.real))
                    effects.append(Effect("extend", target, shadow.cls, self.recipe(list(shadow.added))))
            elif _changed(shadow):
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
        effects = [
            Effect("delglobal", None, (globals_, name))
            if value is DELETED
            else Effect("setglobal", None, (globals_, name), self.recipe(value))
            for (_, name), (globals_, value) in outside.global_stores.items()
            if value is not DELETED or name in globals_
        ]
        for cell, value in outside.cell_stores.values():
            if outside.source_of(cell) is not None:
                self._changed_types.append(CellType)
            effects.append(Effect("setcell", self.recipe(cell), None, self.recipe(value)))
        return effects


def _holds_tensors_only(value: Any, depth: int = 3) -> bool:
    """Whether nothing but memory is given back when a variable that is not read any more lets go of its value."""
    if type(value) in (list, tuple, dict) and depth:
        elements = value.values() if type(value) is dict else value
        return all(_holds_tensors_only(element, depth - 1) for element in elements)
    return type(value) in (TensorProxy, Symbol, SuperProxy, NativeHandler) or is_constant(value)


def has_own(owner: Any, name: str) -> bool:
    """Whether a real object has an attribute of its own."""
    owner = real_of(owner)
    try:
        object.__getattribute__(owner, name)
    except AttributeError:
        return False
    return name in getattr(owner, "__dict__", ()) or not hasattr(type(owner), "__dict__")


def _changed(shadow: ShadowContainer) -> bool:
    """Whether the captured code left a container with other contents than it found."""
    if isinstance(shadow.items, set):
        return shadow.items != set(shadow.original)
    return list(map(id, shadow.items)) != list(map(id, shadow.original))


def _is_found_by_address(value: Any) -> bool:
    """Whether the hash of a value is where it lies in memory: the order of a set with it is no one's to know."""
    return type(value) is TensorProxy or type_of(value).__hash__ is object.__hash__
