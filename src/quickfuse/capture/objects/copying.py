"""`copy.copy` and `copy.deepcopy` of containers, of modules, and of objects whose classes say nothing about copying."""

from __future__ import annotations

import collections
from types import FunctionType, MemberDescriptorType, MethodType
from typing import Any

import torch

from ...errors import Unsupported
from ...ir.source import Source
from ...ir.tensor_checks import first_overlap
from ...ir.values import is_dense
from ..graph.contents import owners
from ..interpreter import Interpreter
from ..symbolic import instance_dict, real_of, type_of
from ..symbolic.containers import DICTS
from ..symbolic.graph_values import DynamicTensor, Symbol, TensorProxy
from ..symbolic.made import ABSENT
from ..symbolic.outside import ForeignObject, is_constant
from . import attributes, containers
from .class_attributes import is_changeable, python_method

#: What a class may say about copying its objects.
_SAY_HOW = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__", "__new__")
#: What else a class may say, by `__getattribute__` or `__getattr__`, when these are read of an object.
_READ_FIRST = {"__reduce_ex__": object.__reduce_ex__, "__getstate__": object.__getstate__}  # type: ignore[attr-defined]


def shallow(i: Interpreter, value: Any) -> Any:
    """`copy.copy(value)`."""
    if _is_its_own_copy(value):
        return value
    if type_of(value) is list or type_of(value) in DICTS:
        if instance_dict(real_of(value)):
            raise Unsupported(f"copying a {type_of(value).__name__} with attributes")
        return i.call_now(i.attribute_now(value, "copy"), ())
    if type(value) in (TensorProxy, DynamicTensor, tuple):
        raise Unsupported(f"copying a {type_of(value).__name__}")
    if (method := python_method(i, value, "__copy__")) is not None:
        return i.call_now(method, (value,))
    made = _empty(i, value, "__reduce_ex__", "__getstate__")
    _namespace_of_copy(i, made).update(_attributes(i, value))
    return made


def _is_its_own_copy(value: Any) -> bool:
    if isinstance(value, (torch.finfo, torch.iinfo)):
        raise Unsupported(f"copying a {type(value).__name__}")
    return is_constant(value) or type(value) is Symbol or isinstance(value, (type, FunctionType))


def deep(i: Interpreter, value: Any, memo: Any = None) -> Any:
    """`copy.deepcopy(value)`."""
    if memo is not None:
        raise Unsupported("copy.deepcopy with a memo")
    return _Deep(i).copy(value)


class _Deep:
    """One deep copy: what is in it twice is copied once."""

    def __init__(self, i: Interpreter) -> None:
        self._i = i
        self._known: dict[int, Any] = {}
        self._keep: list[Any] = []
        #: The tensors from outside that are copied, or whose views are, and the nodes whose memory is.
        self._outside: dict[Source, torch.Tensor] = {}
        self._memory: set[torch.fx.Node] = set()

    def copy(self, value: Any) -> Any:
        i = self._i
        if _is_its_own_copy(value):
            return value
        if id(value) in self._known:
            return self._known[id(value)]
        self._keep.append(value)
        kind = type_of(value)
        if kind in (list, set):
            made = i.mark_created(kind())
            self._known[id(value)] = made
            (made.extend if kind is list else made.update)([self.copy(v) for v in containers.iterate(i, value)])
        elif kind is dict:
            made = self._known[id(value)] = i.mark_created({})
            made.update({self.copy(k): self.copy(v) for k, v in containers.as_plain_dict(i, value).items()})
        elif kind is tuple:
            made = tuple([self.copy(v) for v in value])
        elif type(value) is collections.OrderedDict and i.is_created(value):
            made = self._known[id(value)] = i.mark_created(collections.OrderedDict())
            vars(made).update({name: self.copy(v) for name, v in vars(value).items()})
            for key in value:
                made[key] = self.copy(value[key])
        elif kind is collections.OrderedDict and not i.is_created(value) and not instance_dict(real_of(value)):
            made = self._known[id(value)] = i.mark_created(collections.OrderedDict())
            for key, entry in containers.as_plain_dict(i, value).items():
                made[self.copy(key)] = self.copy(entry)
        elif type(value) is TensorProxy and value.cls is torch.nn.Parameter:
            made = self._parameter(value)
        elif type(value) is TensorProxy and (found := self._tensor(value)) is not None:
            made = found
        elif type(value) in (TensorProxy, DynamicTensor) or python_method(i, value, "__deepcopy__") is not None:
            raise Unsupported(f"copying a {kind.__name__} deeply")
        else:
            made = self._known[id(value)] = _empty(i, value, "__deepcopy__", "__reduce_ex__", "__getstate__")
            if _is_of_modules(setter := python_method(i, value, "__setstate__")):
                state = self.copy(i.call_now(torch.nn.Module.__getstate__, (value,)))
                i.call_now(setter, (made, state))
            else:
                state = {name: self.copy(v) for name, v in _attributes(i, value).items()}
                _namespace_of_copy(i, made).update(state)
        self._known[id(value)] = made
        return made

    def _parameter(self, value: TensorProxy) -> Any:
        """`Parameter.__deepcopy__`: its contents and whether it gets gradients, and nothing else."""
        i = self._i
        data = i.attribute_now(value, "data")
        clone = i.call_now(i.attribute_now(data, "clone"), (), {"memory_format": torch.preserve_format})
        return i.call_now(torch.nn.Parameter, (clone, i.attribute_now(value, "requires_grad")))

    def _tensor(self, tensor: TensorProxy) -> TensorProxy | None:
        """A copy of a tensor without gradients that shares its memory with nothing else that is copied: tensors that do
        share it again as copies. None for other tensors."""
        i, meta, real = self._i, tensor.meta, tensor.real
        plain = tensor.cls is torch.Tensor and not meta.requires_grad and not meta.dtype.is_complex and not i.graph.nested
        changed = tensor.attributes or tensor.data is not None
        if not plain or not meta.numel or changed or not is_dense(meta.shape, meta.stride):
            return None
        if real is not None:
            if vars(real) or tensor.source is None or i.attribute_now(tensor, "grad") is not None:  # they are copied, too
                return None
            i.outside.guard("keys", tensor.source.attr("__dict__"), ())
        nodes = owners(i.graph.node_of(tensor))
        whole = all(getattr(node.meta["val"], "numel", None) == meta.numel for node in nodes)
        if not whole or not self._memory.isdisjoint(nodes):
            return None
        self._memory.update(nodes)
        for memory in nodes:
            if memory.op != "placeholder":
                continue
            source, example = i.graph.contents.example(memory)
            if example.layout is not torch.strided or example.untyped_storage().nbytes() != meta.numel * meta.dtype.itemsize:
                return None
            self._outside[source] = example
            if len(self._outside) > 1:
                found = [*self._outside.values()]
                if first_overlap(found, range(len(found)), range(0)) is not None:
                    return None
                i.outside.guard("apart", None, (tuple(self._outside), ()))
        return i.graph.call("call_method", "clone", (tensor,), {})  # type: ignore[no-any-return]


def _empty(i: Interpreter, value: Any, *read: str) -> Any:
    """An object of the same class, without attributes. `read` are the names that `copy` reads of the object before it.
    Raises `Unsupported` where its class says how it is copied, or it holds more than attributes."""
    kind = type_of(value)
    itself = real_of(value) is value or type(value) is ForeignObject
    slots = any(isinstance(found, MemberDescriptorType) for cls in kind.__mro__ for found in vars(cls).values())
    plain = is_changeable(kind) and kind.__basicsize__ <= _Example.__basicsize__ and itself and not slots
    said = [method for name in _SAY_HOW if (method := python_method(i, value, name)) is not None]
    if not plain or not all(map(_is_of_modules, said)) or hasattr(kind, "__del__"):
        raise Unsupported(f"copying a {kind.__name__}")
    asked = [method for name in read if (method := _asked(i, value, name)) is not _READ_FIRST.get(name, ABSENT)]
    if not all(map(_is_of_modules, asked)):
        raise Unsupported(f"copying a {kind.__name__}, which gives a method for it")
    return i.mark_created(i.native(object.__new__, kind))


def _is_of_modules(method: Any) -> bool:
    """Whether a method is what PyTorch says of the state of its modules."""
    return method is torch.nn.Module.__getstate__ or method is torch.nn.Module.__setstate__


def _asked(i: Interpreter, value: Any, name: str) -> Any:
    """The method `name` that an object gives, without the object; `ABSENT` where it has none."""
    if all(python_method(i, value, getter) is None for getter in ("__getattribute__", "__getattr__")):
        return _READ_FIRST.get(name, ABSENT)  # the class has been looked into
    found = i.attribute_or(value, name, ABSENT)
    return found.__func__ if type(found) is MethodType and found.__self__ is value else found


def _namespace_of_copy(i: Interpreter, made: Any) -> dict[str, Any]:
    """The `__dict__` of a copy, read as `copy` does."""
    namespace = object.__getattribute__(made, "__dict__")
    if _asked(i, made, "__setstate__") is not ABSENT or i.attribute_now(made, "__dict__") is not namespace:
        raise Unsupported(f"copying a {type(made).__name__}, which gives something else for its attributes")
    return namespace  # type: ignore[no-any-return]


def _attributes(i: Interpreter, value: Any) -> dict[str, Any]:
    return containers.as_plain_dict(i, i.now(attributes.load_plain, i, value, "__dict__"))


class _Example:
    """An object that holds attributes and nothing else."""
