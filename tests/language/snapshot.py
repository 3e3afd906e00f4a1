"""What can be observed of Python objects, as plain data: values, types, layout, and which objects are the same one.

`Observer.see(value)` walks everything that is reachable from a value. Objects with an identity get a number when they are
met first, in the whole run; a second meeting is a reference to that number. Two runs of the same program number the same
objects alike, so comparing two observations compares values and identities at once.
"""

from __future__ import annotations

import collections
import enum
import functools
import logging
import math
import re
import types
import weakref
from typing import Any

import numpy
import torch

Node = tuple[Any, ...]
ATOMS = (int, float, complex, str, bytes, bool, type(None), type(NotImplemented), type(Ellipsis), range, slice)
#: Values without an identity of their own: some are made anew whenever someone asks for them.
PLAIN = (torch.dtype, torch.device, torch.layout, torch.memory_format, types.GenericAlias, types.UnionType)
ADDRESS = re.compile(r"0x[0-9a-f]{6,}")


class TensorValue:
    """A tensor's elements, copied when they were seen."""

    def __init__(self, elements: torch.Tensor) -> None:
        self.elements = elements

    def __repr__(self) -> str:
        return repr(self.elements)


def qualified(cls: Any) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def without_addresses(text: str) -> str:
    return ADDRESS.sub("0x", text)


class Observer:
    """Sees objects on behalf of one run of a program, whose own module is `module`."""

    def __init__(self, module: types.ModuleType) -> None:
        self.module = module
        self.numbers: dict[int, tuple[int, Any]] = {}  # keeps the objects alive, so that no address is used twice
        self.memory: dict[int, int] = {}
        self.visited: set[int] = set()
        self.tuples_have_identity = False

    def begin(self) -> None:
        """From here on everything is seen anew; the numbers stay."""
        self.visited.clear()

    def see(self, value: Any) -> Node:
        cls = type(value)
        if cls in ATOMS:
            return ("value", qualified(cls), value)
        if cls in PLAIN:
            return ("value", qualified(cls), str(value))
        if isinstance(value, types.ModuleType):
            return ("module", value.__name__)
        if isinstance(value, enum.Enum):
            return ("enum", qualified(cls), value.name, self.see(value._value_))
        if cls is torch.Size:  # made anew whenever someone asks for it
            return ("torch.Size", tuple(value))
        if cls in (tuple, frozenset) and not self._has_identity(value):
            return (qualified(cls), self._items(value) if cls is tuple else self._unordered(value))
        if isinstance(value, (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)):
            return ("builtin", getattr(value, "__qualname__", str(value)))
        if isinstance(value, (type, types.FunctionType)) and not self._is_ours(value):
            return ("named", qualified(value))
        number = self._number(value)
        if id(value) in self.visited:
            return ("same as", number)
        self.visited.add(id(value))
        return (qualified(cls), number, *self._content(value))

    def _has_identity(self, value: Any) -> bool:
        """Tuples that came as arguments keep theirs; Python shares and copies constant ones as it likes."""
        return not _is_constant(value) and (self.tuples_have_identity or id(value) in self.numbers)

    def _is_ours(self, value: Any) -> bool:
        if isinstance(value, type):
            return value.__module__ == self.module.__name__
        return value.__globals__ is self.module.__dict__

    def _number(self, value: Any) -> int:
        known = self.numbers.get(id(value))
        if known is None:
            known = self.numbers[id(value)] = (len(self.numbers), value)
        return known[0]

    def _memory(self, address: int, owner: Any) -> int:
        """A number for what tensors and arrays keep their elements in."""
        self._number(owner)
        return self.memory.setdefault(address, len(self.memory))

    def _items(self, values: Any) -> Node:
        return tuple(self.see(value) for value in values)

    def _unordered(self, values: Any) -> Node:
        return tuple(sorted(self._items(values), key=repr))

    def _pairs(self, mapping: Any) -> Node:
        items = collections.OrderedDict.items if isinstance(mapping, collections.OrderedDict) else dict.items
        return tuple((self.see(key), self.see(value)) for key, value in items(mapping))

    def _content(self, value: Any) -> Node:
        """What an object holds. The order of the questions goes from special kinds of objects to general ones."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, BaseException):
            return self._exception(value)
        for kind, see in _KINDS.items():
            if isinstance(value, kind):
                return see(self, value)
        content = self._container(value)
        return (*content, ("attributes", self._attributes(value)))

    def _container(self, value: Any) -> Node:
        if isinstance(value, dict):
            extra = (self.see(value.default_factory),) if isinstance(value, collections.defaultdict) else ()
            return (*extra, self._pairs(value))
        if isinstance(value, (list, tuple)):
            return self._items(list.__iter__(value) if isinstance(value, list) else tuple.__iter__(value))
        if isinstance(value, (set, frozenset)):
            return self._unordered(value)
        if isinstance(value, collections.deque):
            return (("value", "maxlen", value.maxlen), *self._items(value))
        if isinstance(value, ATOMS):  # a subclass of str, int, ...
            for atom in (bool, int, float, complex, str, bytes):
                if isinstance(value, atom):
                    return (("value", atom.__name__, atom(value) if atom is not str else str.__str__(value)),)
        return ()

    def _attributes(self, value: Any) -> Node:
        found: list[Node] = []
        for cls in type(value).__mro__:
            slots = cls.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                descriptor = cls.__dict__.get(name)
                if isinstance(descriptor, types.MemberDescriptorType):
                    try:
                        found.append((name, self.see(descriptor.__get__(value, cls))))
                    except AttributeError:
                        found.append((name, ("unset",)))
        try:
            own = object.__getattribute__(value, "__dict__")
        except (AttributeError, TypeError):
            return tuple(found)
        is_module = isinstance(value, torch.nn.Module)
        for name, attribute in own.items():
            if is_module and "hooks" in name and isinstance(attribute, dict):
                found.append((name, self._items(attribute.values())))  # the keys are numbers that only ever grow
            else:
                found.append((name, self.see(attribute)))
        return tuple(found)

    def _tensor(self, value: torch.Tensor) -> Node:
        with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            facts: list[Any] = [
                ("dtype", str(value.dtype)), ("shape", tuple(value.shape)), ("device", str(value.device)),
                ("requires_grad", value.requires_grad), ("is_leaf", value.is_leaf), ("layout", str(value.layout)),
                ("inference", value.is_inference()),
            ]  # fmt: skip
            if value.layout is torch.strided:
                facts += [("stride", value.stride()), ("offset", value.storage_offset()), ("conj", value.is_conj())]
                storage = value.untyped_storage()
                facts.append(("memory", self._memory(storage.data_ptr() or storage._cdata, storage)))
            plain = value.detach() if type(value) in (torch.Tensor, torch.nn.Parameter) else _as_plain(value)
            if plain is not None:
                plain = plain.to_dense() if plain.layout is not torch.strided else plain
                facts.append(("elements", TensorValue(plain.resolve_conj().clone())))
            if value.is_leaf and value.requires_grad:
                facts.append(("grad", self.see(value.grad)))
        attributes = {k: v for k, v in vars(value).items() if not k.startswith("_")} if hasattr(value, "__dict__") else {}
        return (*facts, *((name, self.see(attribute)) for name, attribute in attributes.items()))

    def _function(self, value: types.FunctionType) -> Node:
        cells = tuple(self.see(cell) for cell in value.__closure__ or ())
        used = tuple(
            (name, self.see(self.module.__dict__[name]))
            for name in sorted(_names(value.__code__))
            if name in self.module.__dict__ and name not in ("CASES",)
        )
        return (
            value.__qualname__, self.see(value.__defaults__), self.see(value.__kwdefaults__), cells, used,
            tuple((k, self.see(v)) for k, v in value.__dict__.items()),
        )  # fmt: skip

    def _class(self, value: type) -> Node:
        # Annotations are computed when somebody asks for them, by a function that holds the namespace of the class, and with
        # `dataclass(slots=True)` that of the class that was replaced, which is emptied when it is let go.
        hidden = {"__dict__", "__weakref__", "__doc__", "__module__", "_abc_impl", "__annotations__", "__classcell__",
                  "__annotations_cache__", "__annotate_func__"}  # fmt: skip
        contents = tuple((k, self.see(v)) for k, v in list(vars(value).items()) if k not in hidden)
        return (qualified(value), tuple(self.see(base) for base in value.__bases__), contents)

    def _exception(self, value: BaseException) -> Node:
        attributes = tuple((k, self.see(v)) for k, v in vars(value).items())
        group = self._items(value.exceptions) if isinstance(value, BaseExceptionGroup) else ()
        return (
            ("text", without_addresses(str(value))), ("args", self._items(value.args)), ("attributes", attributes),
            ("cause", self.see(value.__cause__)), ("context", self.see(value.__context__)),
            ("suppressed", value.__suppress_context__), ("group", group),
        )  # fmt: skip


class Blind(Observer):
    """For runs of which nothing is compared."""

    def see(self, value: Any) -> Node:
        return ()


def _as_plain(value: torch.Tensor) -> torch.Tensor | None:
    """The elements of a tensor of a subclass; None where the subclass has none of its own."""
    try:
        plain = value.detach().as_subclass(torch.Tensor)
        return plain if type(plain) is torch.Tensor and plain.untyped_storage().nbytes() else None
    except (RuntimeError, NotImplementedError, TypeError):
        return None


@functools.cache
def _names(code: types.CodeType) -> frozenset[str]:
    """Names that code, and the code inside it, looks up: its globals are among them."""
    nested = [_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return frozenset(code.co_names).union(*nested)


def _is_constant(value: Any) -> bool:
    if type(value) in (tuple, frozenset):
        return all(_is_constant(item) for item in value)
    return type(value) in ATOMS


def _cell(observer: Observer, cell: types.CellType) -> Node:
    try:
        return (observer.see(cell.cell_contents),)
    except ValueError:
        return ("empty",)


def _array(observer: Observer, array: numpy.ndarray) -> Node:
    base = array
    while isinstance(base.base, numpy.ndarray):
        base = base.base
    memory = observer._memory(base.ctypes.data, base)
    if array.dtype == object:
        return (array.shape, memory, observer._items(array.ravel()))
    return (str(array.dtype), array.shape, array.strides, memory, TensorValue(torch.from_numpy(array.copy())))


def _partial(observer: Observer, value: Any) -> Node:
    return tuple(observer.see(part) for part in (value.func, value.args, value.keywords))


#: Kinds of objects that hold something which is no attribute of theirs.
_KINDS: dict[Any, Any] = {
    types.CellType: _cell,
    numpy.ndarray: _array,
    numpy.generic: lambda o, v: (str(v.dtype), v.item()),
    types.MethodType: lambda o, v: (o.see(v.__self__), o.see(v.__func__)),
    functools.partial: _partial,
    (staticmethod, classmethod): lambda o, v: (o.see(v.__func__),),
    property: lambda o, v: (o.see(v.fget), o.see(v.fset), o.see(v.fdel)),
    functools.cached_property: lambda o, v: (o.see(v.func),),
    types.MappingProxyType: lambda o, v: (o.see(dict(v)),),
    weakref.ref: lambda o, v: (o.see(v()),),
    (types.GeneratorType, types.CoroutineType): lambda o, v: (v.__qualname__,),
    functools._lru_cache_wrapper: lambda o, v: (tuple(v.cache_info()), o.see(v.__wrapped__)),
    (torch.utils.hooks.RemovableHandle, logging.Logger): lambda o, v: (),
    (type({}.keys()), type({}.values()), type({}.items())): lambda o, v: o._items(v),
    (types.GetSetDescriptorType, types.MemberDescriptorType): lambda o, v: (v.__name__,),
    torch.utils._python_dispatch.TorchDispatchMode: lambda o, v: (),
    torch.Generator: lambda o, v: (hash(bytes(v.get_state().tolist())),),
}


def first_difference(left: Any, right: Any, exact: bool, path: str = "") -> str | None:
    """Where two observations differ first, in words; None where they are equal."""
    if isinstance(left, TensorValue) and isinstance(right, TensorValue):
        return None if _elements_agree(left.elements, right.elements, exact) else f"{path}: {left!r} != {right!r}"
    if type(left) is not type(right):
        return f"{path}: {left!r} != {right!r}"
    if isinstance(left, tuple):
        for k, (a, b) in enumerate(zip(left, right)):
            is_fact = isinstance(a, tuple) and len(a) == 2 and isinstance(a[0], str)
            found = first_difference(a, b, exact, f"{path}.{a[0] if is_fact else k}")
            if found:
                return found
        return None if len(left) == len(right) else f"{path}: {left!r} != {right!r}"
    return None if _values_agree(left, right, exact) else f"{path}: {left!r} != {right!r}"


def _elements_agree(left: torch.Tensor, right: torch.Tensor, exact: bool) -> bool:
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if left.dtype.is_floating_point or left.dtype.is_complex:
        if exact:
            return bool(((left == right) | (left.isnan() & right.isnan())).all())
        return torch.allclose(left, right, rtol=1e-4 if left.dtype.itemsize >= 4 else 2e-2, atol=1e-5, equal_nan=True)
    return torch.equal(left, right)


def _values_agree(left: Any, right: Any, exact: bool) -> bool:
    if isinstance(left, float):
        if math.isnan(left) or math.isnan(right):
            return math.isnan(left) and math.isnan(right)
        if not exact:
            return math.isclose(left, right, rel_tol=1e-4, abs_tol=1e-5)
        return left == right and math.copysign(1.0, left) == math.copysign(1.0, right)
    if isinstance(left, complex):
        return left == right or (left != left and right != right)
    return bool(left == right)
