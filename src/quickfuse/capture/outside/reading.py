"""Values that existed before the call: where they come from, and the guards that reading them needs.

`Outside.wrap(value, source)` gives what the symbolic stack holds for a value of the user's program. Reading adds guards;
nothing of the user's is ever changed during capture.
"""

from __future__ import annotations

import collections
import enum
import functools
import weakref
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from ...errors import Unsupported
from ...ir.guard import WHICH_ARE_ONE, NumberExpr, in_lists
from ...ir.locks import LOCKS
from ...ir.source import Source, SourceRoots, other_sizes
from ...ir.tensor_checks import holds_its_elements
from ...ir.values import TensorMeta
from ..inference.results import meta_of
from ..inference.tensor_subclasses import is_function_class, is_plain_subclass
from ..symbolic.containers import MappingProxy, ShadowContainer, ShadowDict, dictionary_behind, opened
from ..symbolic.graph_values import TENSOR_TYPES, DynamicTensor, TensorProxy
from ..symbolic.kinds import (
    CODE_TYPES,
    CONSTANT_TYPES,
    OWNERS_OF_METHODS,
    VIEW_TYPES,
    is_bound,
    is_transient,
    is_trusted_module,
)
from ..symbolic.made import BuiltinMethod, Made, MadeException, MadeTraceback
from ..symbolic.outside import (
    PLAIN_TYPES,
    ForeignArray,
    ForeignObject,
    ForeignProxy,
    ForeignScalar,
    ForeignTensor,
    FromOutside,
    Place,
    Unread,
    is_constant,
    is_numpy,
    scalar_class,
)
from ..symbolic.raising import LeftToPython, TensorOfOtherSizes
from .containers import open_container
from .numbers import Numbers

#: Classes whose instances are the same object in each call, or other ones.
_BY_IDENTITY = (bool, torch.dtype, CodeType)


class Outside(Numbers):
    """Everything that the capture of one segment has read so far.

    `volatile` names sources whose numbers keep changing: no guard on the value of one is worth having.
    """

    def __init__(self, program: Any, volatile: frozenset[str]) -> None:
        super().__init__(program, volatile)
        self.roots = SourceRoots()
        self.tensors_read = 0
        #: Whether there are tensors of a class with a `__torch_function__` of its own.
        self.function_classes = False
        #: Whether PyTorch asks the classes of tensors what its functions do, where the segment begins.
        self.asks_classes = True
        #: Classes that the captured code made, and after how many instructions.
        self.classes_made: dict[type, int] = {}
        #: Where PyTorch's generators of random numbers are that it made, and after how many instructions.
        self.generators_made: dict[Source, int] = {}
        #: What capture made, by identity.
        self._made: dict[int, Made] = {}
        #: The second stand-ins of tensors that were found at two places.
        self.found_again: dict[Source, TensorProxy] = {}
        #: Parts of tensors at an index that changes: see `objects.changing_parts`.
        self.parts: dict[Source, TensorProxy] = {}
        #: Tensors with the numbers of an index that change: see `pytorch.numbered_parts`.
        self.index_tensors: dict[str, TensorProxy] = {}
        #: Whether two tensors were compared by identity.
        self.told_apart = False

    # guards -----------------------------------------------------------------------------------------------------

    def guard_function(self, function: FunctionType, source: Source) -> None:
        """Require that nobody gives a function of the user's another body or other defaults."""
        if is_trusted_module(function.__module__):
            return
        if self.is_by_code(function):
            for name in ("__defaults__", "__kwdefaults__"):
                self.wrap(getattr(function, name), source.attr(name))
            return
        self.guard("is", source.attr("__code__"), function.__code__)
        if function.__defaults__ is not None:
            self.guard("is", source.attr("__defaults__"), function.__defaults__)
        if function.__kwdefaults__ is not None:  # whose values are read by their paths
            self.guard("keys", source.attr("__kwdefaults__"), tuple(function.__kwdefaults__))

    def default(self, function: FunctionType, source: Source | None, name: str, key: Any) -> Any:
        """A default argument: constants as they are, what the user could change by its path. `source` is None for a function
        that the captured code made."""
        value = getattr(function, name)[key]
        if source is None:
            return value
        if self.is_by_code(function):
            table = self.wrap(getattr(function, name), source.attr(name))
            return table.get(self, key) if type(table) is ShadowDict else table[key]
        trusted = is_trusted_module(function.__module__)
        path = source.attr(name).item(key)
        by_object = type(value) is BuiltinFunctionType and is_bound(value, path)
        if (trusted or name == "__defaults__") and (is_constant(value) or isinstance(value, CODE_TYPES)) and not by_object:
            return value
        return self.wrap(value, path, trusted)

    def source_of(self, value: Any) -> Source | None:
        """Where an object (not a number or string) was first found, None if the captured code made it."""
        if type(value) in (TensorProxy, DynamicTensor) or issubclass(type(value), FromOutside):
            return value.source  # type: ignore[no-any-return]
        known = self.known.get(id(value))
        if known is None:
            known = self.container_of(value)
        return None if known is None else known.source

    # what capture made ------------------------------------------------------------------------------------------

    def mark_made(self, value: Any, owner: Any = None, name: str = "") -> Any:
        """Note how an object came to be: see `Made`."""
        self._made[id(value)] = Made(value, owner, name)
        return value

    def note_exception(self, exception: BaseException) -> MadeException:
        """What is known of an exception that the captured code raised."""
        known = self._made.get(id(exception))
        if not isinstance(known, MadeException):
            known = self._made[id(exception)] = MadeException(exception)
        return known

    def note_traceback(self, traceback: Any, exception: MadeException) -> None:
        """A traceback stands for that of an exception as it is now."""
        made = self._made[id(traceback)] = MadeTraceback(traceback, exception.value, len(exception.trace))
        exception.tracebacks.append(made)

    def made(self, value: Any) -> Made | None:
        """How an object came to be, None if capture did not make it."""
        return self._made.get(id(value))

    def made_of(self, owner: Any, name: str) -> Any:
        """What capture made as an attribute of an object before, None if it did not."""
        return next((made.value for made in self._made.values() if made.owner is owner and made.name == name), None)

    def container_of(self, value: Any) -> FromOutside | None:
        """The container of the user's whose contents these are."""
        made = self._made.get(id(value))
        return made.owner if made is not None and not made.name else None

    def itself(self, value: Any) -> Any:
        """The container of the user's, where a value is what it has inside."""
        container = self.container_of(value)
        return value if container is None else container

    # reading ----------------------------------------------------------------------------------------------------

    def wrap(self, value: Any, source: Source, trusted: bool = False) -> Any:
        """The stand-in for the value at `source`, with the guards that using it needs.

        `trusted`: found where only PyTorch or the standard library put things, so that code is not guarded.
        """
        kind = type(value)
        if kind in TENSOR_TYPES:
            return self._tensor(value, source)
        if kind is bool and self._changes_in_lists(kind, source):
            return self.number_at(value, kind, source)
        if value is None or kind in _BY_IDENTITY or issubclass(kind, enum.Enum):
            self.guard("is", source, value)
            return value
        if kind is float or kind is int:
            return self.number_at(value, kind, source)
        if kind in PLAIN_TYPES:
            return self._plain(value, kind, source)
        if kind in VIEW_TYPES:
            raise Unsupported("a view of a dictionary from outside")
        if kind is frozenset:
            return self._frozenset(value, source)
        if kind in CONSTANT_TYPES:
            self.guard("equal", source, value)
            return value
        if kind is CellType:
            self.guard("type", source, kind)
            self.remember_cell(value, source)
            return value
        if kind is BuiltinFunctionType and is_bound(value, source):
            return self._bound_method(value, source)
        if issubclass(kind, CODE_TYPES):
            return self._code(value, source, trusted)
        if issubclass(kind, torch.Tensor):
            return self._tensor(value, source)
        known = self.known.get(id(value))
        if known is not None:
            return self._again(known, source)
        if kind is MethodType:
            self.guard("type", source, kind)
            function = self.wrap(value.__func__, source.attr("__func__"), trusted)
            made = MethodType(function, self.wrap(value.__self__, source.attr("__self__"), trusted))
            self.note_replacement(value, source, made)
            return made
        if kind is functools.partial:
            return self._partial(value, source)
        if is_numpy(value) and scalar_class(value) is None:
            if isinstance(value, np.flexible | np.object_):
                raise Unsupported(f"a {kind.__name__} of NumPy's")
            self._refuse_changing(source)
            self.guard("equal", source, value)
            return value
        self.guard("type", source, kind)
        if kind is tuple or (issubclass(kind, tuple) and hasattr(kind, "_fields") and not kind.__dictoffset__):
            return self._tuple(value, source)
        return self._stand_in_for(value, source)

    def _plain(self, value: Any, kind: type, source: Source) -> Any:
        if not is_constant(value):
            raise Unsupported(f"a {kind.__name__} of objects")
        if kind in (str, bytes) and (self.keeps_changing(source) or self._changes_in_lists(kind, source)):
            return self.string_at(value, source)
        if kind is range and self.keeps_changing(source):  # a loop over it is a break where it begins
            self.guard("type", source, range)
            known = self.known.get(id(value))
            return self._stand_in_for(value, source) if known is None else self._again(known, source)
        self._refuse_changing(source)
        self.guard("equal", source, value)
        return value

    def _frozenset(self, value: frozenset[Any], source: Source) -> Any:
        if value and all(type(element) in (type, FunctionType, BuiltinFunctionType) for element in value):
            self.guard("is", source, value)
            return value
        if not is_constant(value):
            raise Unsupported("a frozenset of objects")
        self._refuse_changing(source)
        self.guard("type", source, frozenset)
        self.guard("keys", source, tuple(value))
        return value

    def _code(self, value: Any, source: Source, trusted: bool) -> Any:
        """Code is the same in each call, but for functions that the program makes anew: these are known by their code, and
        by what they close over."""
        by_code = type(value) is FunctionType and "<locals>" in value.__code__.co_qualname and is_transient(source)
        if by_code:
            self.guard("type", source, FunctionType)
            self.guard("is", source.attr("__code__"), value.__code__)
            self.guard("is", source.attr("__globals__"), value.__globals__)
        elif not trusted:
            self.guard("is", source, value)
        if (by_code and id(value) in self.known) or self.is_by_code(value):  # it was found by another path
            return self._again(self.known[id(value)], source)
        self.note_place(value, source, by_code)
        return value

    def wrap_library_code(self, namespace: dict[str, Any], name: str, value: Any, source: Source) -> Any:
        """The stand-in of a name that PyTorch or the standard library looks up."""
        made = self.wrap(value, source, trusted=True)
        kind = type(value)
        if kind is FunctionType:
            stays = "<locals>" not in value.__code__.co_qualname
        else:
            stays = kind is ModuleType or isinstance(value, type) or (
                kind is BuiltinFunctionType and type(value.__self__) is ModuleType
            )  # fmt: skip
        if stays and made is value:
            self._keep.append(namespace)
            self.library_code[id(namespace), name] = value
        return made

    def _changes_in_lists(self, kind: type, source: Source) -> bool:
        """Whether values of a kind keep changing at places that differ from a source in the index of a list alone."""
        return bool(self.volatile) and in_lists(str(source), kind) in self.volatile

    def constant_object(self, value: Any, label: str) -> FromOutside:
        """What stands for an object that a guard requires to be this very one."""
        known = self.known.get(id(value))
        return self._stand_in_for(value, self.roots.constant(label, value)) if known is None else known  # type: ignore[return-value]

    def _stand_in_for(self, value: Any, source: Source) -> FromOutside:
        """What stands for an object: containers and scalars, those of classes of the user's too. Others are looked into by
        their attributes, each with its guards."""
        made = self.known[id(value)] = self._new_stand_in(value, source)
        return made

    def _new_stand_in(self, value: Any, source: Source) -> FromOutside:
        if issubclass(type(value), (list, set, collections.deque, tuple, frozenset)):
            if isinstance(value, collections.deque):  # decides what appending does
                self.guard("is" if value.maxlen is None else "equal", source.attr("maxlen"), value.maxlen)
            container = ShadowContainer(value, source)
            self.containers.append(container)
            return container
        if issubclass(type(value), dict):
            if any(variable.place is value for variable in self.variables):
                raise Unsupported("the dictionary of globals, of which one was assigned")
            if any(view.behind.real is value for view in self.views):
                raise Unsupported("a dictionary beside a view of it")
            shadow = ShadowDict(value, source)
            self.dictionaries.append(shadow)
            return shadow
        if type(value) is MappingProxyType and (behind := dictionary_behind(value)) is not None:
            if any(shadow.real is behind for shadow in self.dictionaries):  # what it shows may be changed there
                raise Unsupported("a dictionary beside a view of it")
            self.views.append(MappingProxy(value, source, ShadowDict(behind, source)))
            return self.views[-1]
        if type(value) is np.ndarray:
            return ForeignArray(value, source)
        if type(value) in weakref.ProxyTypes:
            return ForeignProxy(value, source)
        cls = scalar_class(value)
        return ForeignObject(value, source) if cls is None else ForeignScalar(value, cls, source)

    def note_place(self, value: Any, source: Source, by_code: bool = False) -> None:
        """Note where something was found that lies on the stack as it is."""
        if id(value) not in self.known:
            self.known[id(value)] = Place(value, source, by_code)

    def _again(self, known: FromOutside | TensorProxy, source: Source) -> Any:
        """An object found by a second path: both paths must keep leading to one object."""
        if known.source is not source:
            self.guard("same", source, known.source)
        if type(known) is not Place:
            return known
        return known.contents if known.contents is not None else known.real

    def note_subclass(self, cls: type) -> None:
        """There are tensors of a subclass: PyTorch has to ask it, as usual."""
        self.guard("state", None, ("torch._C._is_torch_function_enabled()", self.asks_classes))
        if not self.asks_classes:
            raise Unsupported("a subclass of torch.Tensor that PyTorch's functions do not ask")
        self.function_classes |= is_function_class(cls)

    def _tensor(self, value: torch.Tensor, source: Source) -> Any:
        cls = type(value)
        known = self.found_again.get(source) or self.known.get(id(value))
        if known is not None:  # another one may be there the next time: what is changed or differentiated has one stand-in
            changing = WHICH_ARE_ONE in self.volatile and source is not known.source
            if not changing or cls not in TENSOR_TYPES or value.requires_grad:
                return self._again(known, source)
        if cls not in TENSOR_TYPES:
            self.note_subclass(cls)
        if cls not in TENSOR_TYPES and not is_plain_subclass(cls) and not is_function_class(cls):
            raise Unsupported(f"a tensor of type {cls.__qualname__} ({source})")
        if not holds_its_elements(value) or value.is_nested or value.is_quantized:
            end = LeftToPython if (source.kind, source.key) == ("attr", "grad") else Unsupported  # in an optimizer's step
            raise end(f"a tensor that is not plain strided memory ({source})")
        if torch._C._functorch.is_functorch_wrapped_tensor(value):
            raise Unsupported(f"a tensor inside a functional transform ({source})")
        if self.volatile and other_sizes(source) in self.volatile and known is None:
            self.guard("type", source, cls)
            foreign = self.known[id(value)] = ForeignTensor(value, source)
            return foreign
        meta = meta_of(value)
        if self.volatile and (axes := self._dynamic_axes(value, source)):
            return self._dynamic(value, source, meta, axes)
        self.guard("tensor", source, (cls, meta))
        proxy = TensorProxy(meta, source=source, real=value, cls=cls)
        if known is None:
            self.known[id(value)] = proxy
        else:
            self.found_again[source] = proxy
        self.tensors_read += 1
        return proxy

    def _dynamic_axes(self, value: torch.Tensor, source: Source) -> list[int]:
        """The axes whose sizes keep changing, where symbols can be put for them. Sizes of 0 and 1 mean other things to
        operators than larger ones."""
        axes = [k for k in range(value.ndim) if f"{source}.shape[{k}]" in self.volatile]
        plain = type(value) is torch.Tensor and not value.requires_grad
        return axes if plain and all(value.shape[k] > 1 for k in axes) else []

    def _dynamic(self, value: torch.Tensor, source: Source, meta: TensorMeta, axes: list[int]) -> DynamicTensor:
        """A tensor some of whose sizes are symbols."""
        self.guard("type", source, torch.Tensor)
        for name in ("dtype", "layout", "requires_grad"):
            self.guard("is", source.attr(name), getattr(value, name))
        self.guard("equal", source.attr("device"), value.device)
        shape, sizes = source.attr("shape"), []
        self.guard("length", shape, value.ndim)
        for axis, size in enumerate(meta.shape):
            symbol = self.number_at(size, int, shape.item(axis))
            if axis in axes:
                self.dynamic_sizes[symbol.expr] = symbol
                self.require(NumberExpr("({} > 1)", (symbol.expr,)), True)
            sizes.append(symbol if axis in axes else self.concrete(symbol))
        made = DynamicTensor(meta, tuple(sizes), self.program.graph.object_input(source, value), source)
        self.known[id(value)] = made  # type: ignore[assignment]
        self._keep.append(value)
        return made

    def _tuple(self, value: Any, source: Source) -> Any:
        self.guard("length", source, len(value))
        elements = [self.wrap(v, source.item(k)) for k, v in enumerate(value)]
        made = tuple(elements) if type(value) is tuple else tuple.__new__(type(value), elements)
        if value:  # there is one empty tuple
            self.note_replacement(value, source, made)
        return made

    def note_replacement(self, value: Any, source: Source, made: Any) -> None:
        """Note an object of stand-ins that is in the place of one of the user's, which nobody changes."""
        place = Place(value, source)
        place.contents = made
        self.known[id(value)] = place
        self.mark_made(made, place)

    def _partial(self, value: functools.partial[Any], source: Source) -> Any:
        """One of what stands for the function and the arguments of a partial function."""
        self.guard("type", source, functools.partial)
        function = self.wrap(value.func, source.attr("func"))
        args = self.wrap(value.args, source.attr("args"))
        keywords = self.wrap(value.keywords, source.attr("keywords"))
        made = functools.partial(function, *args, **{k: keywords.get(self, k) for k in keywords.keys(self)})
        state: Any = value.__reduce__()[2]
        if state[-1]:  # asked for __dict__, a partial function would make one, and be no longer merged into what wraps it
            made.__dict__.update(state[-1])
        self.note_replacement(value, source, made)
        return made

    def _bound_method(self, method: Any, source: Source) -> Any:
        """A method of a built-in type that is bound to an object of the user's."""
        name = method.__name__
        self.guard("type", source, BuiltinFunctionType)
        self.guard("equal", source.attr("__name__"), name)
        owner = self.wrap(method.__self__, source.attr("__self__"))
        made: Any = None
        if type(owner) is ForeignTensor:
            raise TensorOfOtherSizes
        if type(owner) in (ShadowDict, ShadowContainer, TensorProxy) or type(method.__self__) in LOCKS:
            made = BuiltinMethod(owner, name)
        elif type(owner) is ForeignScalar:
            made = getattr(self.concrete(owner), name)
        if made is not None:
            return self.mark_made(made, Place(method, source))
        if isinstance(method.__self__, OWNERS_OF_METHODS) and not is_constant(owner):
            raise Unsupported(f"the method {name} of a {type(method.__self__).__name__}")
        self.note_place(method, source, by_code=True)
        return method

    def is_by_code(self, value: Any) -> bool:
        """Whether a function is known by its code, or a method by its object, so that another function object may stand
        at its source."""
        known = self.known.get(id(value))
        return type(known) is Place and known.by_code

    def remember_cell(self, cell: CellType, source: Source) -> None:
        """A cell of a suspended frame."""
        known = self.known.get(id(cell))
        if known is None:
            self.note_place(cell, source)
        else:
            self._again(known, source)

    def read(self, value: Any) -> Any:
        """The stand-in of a variable of a suspended frame, now that it is read."""
        return self.wrap(value.value, value.source) if type(value) is Unread else value

    # containers -------------------------------------------------------------------------------------------------

    def open(self, shadow: ShadowContainer) -> Any:
        """The contents of a list, set or deque of the user's, as a container that may be changed in place; those of a tuple
        or frozenset of a class of the user's, as a plain one."""
        return open_container(self, shadow) if shadow.items is None else shadow.items

    def is_changed_set(self, items: Any, in_order: bool = False) -> bool:
        """Whether these are the elements of a set of the user's that captured code changed, or that has another order than
        what stands for it, unless they are taken `in_order`: in what order it has them is not known."""
        shadow = self.container_of(items)
        if type(shadow) is not ShadowContainer:
            return False
        return (shadow.unordered and not in_order) or (shadow.cls is set and shadow.is_changed)

    def contents(self, value: Any) -> Any:
        """A container of the user's as the container of its stand-ins; other values as they are."""
        return self.open(value) if type(value) is ShadowContainer else opened(value)

    def stand_in(self, value: Any) -> Any:
        """The stand-in of a real object that was read before, or None."""
        known = self.known.get(id(value))
        return None if type(known) is Place else known
