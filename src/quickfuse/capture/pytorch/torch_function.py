"""Classes with a `__torch_function__` of their own, subclasses of `torch.Tensor` or not: it is captured as a method.

Which function PyTorch hands to it is found out by calling the operator on tensors that write that down.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import FunctionType
from typing import Any

import torch
from torch.utils._device import _device_constructors

from ...errors import Unsupported
from ..branches import held_contents
from ..inference.mutation import name_of
from ..inference.number_operators import SCALAR_OPERANDS
from ..inference.results import View
from ..inference.stand_ins import is_of_values
from ..inference.tensor_subclasses import is_function_class, is_plain_subclass
from ..interpreter import Args, Interpreter, Kwargs
from ..library import in_python as library
from ..objects.class_attributes import guard_class_attribute, lookup_class
from ..symbolic import (
    ABSENT,
    TENSOR_TYPES,
    Either,
    ForeignTensor,
    ShadowContainer,
    Symbol,
    TensorProxy,
    Unread,
    mapped,
    symbolic_leaves,
    tensors_among,
    type_of,
)
from ..symbolic.raising import TensorOfOtherSizes
from . import dynamic_sizes, function_modes, numbered_parts, selections

_NOTHING: Mapping[str, Any] = {}
#: What parameters have instead of a `__torch_function__`.
_DISABLED = torch._C._disabled_torch_function_impl


class _Intercepted(Exception):
    def __init__(self, function: Any, types: Any, args: Any, kwargs: Any) -> None:
        super().__init__()
        self.function, self.types, self.args_seen, self.kwargs_seen = function, types, args, kwargs


class _Recorder(torch.Tensor):
    """A tensor that tells which function PyTorch calls `__torch_function__` with."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _Intercepted(func, types, args, kwargs or {})


class _ObjectRecorder:
    """The same for what is no tensor."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _Intercepted(func, types, args, kwargs or {})


def overrides(i: Interpreter, values: Sequence[Any]) -> bool:
    """What `torch.overrides.has_torch_function` says of arguments."""
    if i.graph.user_modes:
        return True
    if i.graph.without_torch_function:
        return False
    if i.graph.default_device is not None and not i.in_library():  # a mode: PyTorch's functions then do the same another way
        raise Unsupported("a question about functions of tensors within a torch.device")
    for value in values:
        if type(value) is ForeignTensor:
            raise TensorOfOtherSizes
        if type(value) is not TensorProxy:
            if _says_itself(value):
                return True
        elif value.cls is not torch.Tensor and value.cls.__torch_function__ is not _DISABLED:
            return True
    return False


#: What has no `__torch_function__`, or is not looked into.
_WITHOUT = frozenset({
    TensorProxy, Symbol, Unread, Either, int, float, bool, str, complex, type(None), torch.dtype, torch.Size,
})  # fmt: skip


def _says_itself(value: Any) -> bool:
    """Whether an operand is no tensor, and its class says what PyTorch's functions do with it."""
    if type(value) in _WITHOUT:
        return False
    cls = type_of(value)
    return not issubclass(cls, torch.Tensor) and lookup_class(cls, "__torch_function__")[1] is not ABSENT


def saying_themselves(i: Interpreter, values: Iterable[Any]) -> list[Any]:
    """The operands of which that is so, also in lists."""
    found = []
    for value in values:
        if type(value) is ShadowContainer:
            value = i.outside.contents(value)
        if type(value) in (list, tuple):
            found += saying_themselves(i, value)
        elif _says_itself(value):
            found.append(value)
    return found


def call_of_objects(i: Interpreter, kind: str, target: Any, args: Args, kwargs: Kwargs, objects: list[Any]) -> Any:
    """A PyTorch function of such operands, all of one class: what this class says."""
    classes = {*map(type_of, objects)}
    subclasses = any(t.cls not in TENSOR_TYPES for t in tensors_among((args, kwargs)))
    if len(classes) > 1 or subclasses or i.graph.nested:
        raise Unsupported("a function of PyTorch on objects of several classes that say what it does")
    cls = classes.pop()
    function, types, seen, keywords = _as_pytorch_sees(i, cls, kind, target, args, kwargs)
    types = tuple([cls if known is _ObjectRecorder else known for known in types])
    return _said_by(i, cls, function, types, seen, keywords)


def _said_by(i: Interpreter, cls: type, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
    owner, raw = lookup_class(cls, "__torch_function__")
    guard_class_attribute(i, cls.__mro__, owner, "__torch_function__", raw)
    if not (isinstance(raw, classmethod) and isinstance(raw.__func__, FunctionType)):
        raise Unsupported(f"the __torch_function__ of a {cls.__name__}, which is no class method in Python")
    result = i.call_now(raw.__func__, (cls, function, types, args, i.mark_created(dict(kwargs))))
    if result is NotImplemented:
        raise Unsupported(f"an operator that {cls.__name__} does not implement")
    return result


def _handle(i: Interpreter, public_api: Any, relevant_args: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch.overrides.handle_torch_function`, for objects of one class among tensors that leave it to that."""
    relevant = tuple(i.outside.contents(relevant_args))
    if i.graph.user_modes:
        if any(_says_itself(v) or (type(v) is TensorProxy and v.cls not in TENSOR_TYPES) for v in relevant):
            raise Unsupported("a torch function mode and a class with a __torch_function__")
        return _ask_mode(i, public_api, (), args, i.mark_created(dict(kwargs)))
    with torch._C._EnableTorchFunction():
        types = tuple(map(type_of, torch.overrides._get_overloaded_args(relevant, type_of)))
    classes = {type_of(value) for value in relevant if _says_itself(value)}
    if len(classes) != 1 or not {*types} <= {*classes, torch.Tensor} or i.graph.without_torch_function:
        raise Unsupported("torch.overrides.handle_torch_function of these classes")
    return _said_by(i, classes.pop(), public_api, types, args, kwargs)


def call_torch(
    i: Interpreter, kind: str, target: Any, args: Args, kwargs: Kwargs,
    extra: Mapping[str, Any] = _NOTHING,
) -> Any:  # fmt: skip
    """An operator on tensors: a node of the graph, or what the tensors' class says."""
    if i.graph.user_modes:
        if extra:
            raise Unsupported("a generator of random numbers in a torch function mode")
        return call_mode(i, kind, target, args, kwargs)
    if i.outside.dynamic_sizes and _is_dynamic(i, target, args, kwargs):
        return dynamic_sizes.call(i, kind, target, args, kwargs)
    if i.outside.function_classes and not i.graph.without_torch_function:
        classes = {v.cls for v in symbolic_leaves((args, kwargs)) if type(v) is TensorProxy and is_function_class(v.cls)}
        if len(classes) > 1:
            raise Unsupported("an operator on tensors of several classes")
        if classes:
            return _call_class(i, classes.pop(), kind, target, args, kwargs)
    if i.graph.indexing_modes and (made := function_modes.as_indexed(i, target, args)) is not NotImplemented:
        return made
    if (made := numbered_parts.changed(i, kind, target, args, kwargs)) is not NotImplemented:
        return made
    try:
        return i.graph.call(kind, target, args, kwargs, extra=extra)
    except Unsupported as reason:
        made = held_contents.call(i, kind, target, args, kwargs) if is_of_values(reason.reason) else NotImplemented
        if made is NotImplemented and name_of(target).strip("_") in ("getitem", "setitem"):
            made = _with_indices_there(i, kind, target, args, kwargs)
        if made is NotImplemented and target is operator.setitem:
            made = numbered_parts.assigned(i, *args)
        if made is NotImplemented and target is operator.getitem:
            made = selections.selected(i, *args)
        if made is NotImplemented:
            raise
        return made


def _with_indices_there(i: Interpreter, kind: str, target: Any, args: Args, kwargs: Kwargs) -> Any:
    """Indices on the CPU into a tensor on a GPU, which PyTorch copies to it. NotImplemented where there are none."""
    if type(args[0]) is not TensorProxy or args[0].meta.device.type == "cpu":
        return NotImplemented
    device = args[0].meta.device

    def there(index: Any) -> Any:
        moves = type(index) is TensorProxy and index.meta.device.type == "cpu" and index.meta.ndim
        return i.graph.call("call_method", "to", (index, device), {}) if moves else index

    key = mapped(there, args[1])
    if [*symbolic_leaves(key)] == [*symbolic_leaves(args[1])]:
        return NotImplemented
    return i.graph.call(kind, target, (args[0], key, *args[2:]), kwargs)


def _is_dynamic(i: Interpreter, target: Any, args: Args, kwargs: Kwargs) -> bool:
    """Whether a call is on tensors of dynamic sizes, or makes one: its sizes are symbols."""
    if dynamic_sizes.dynamic_in([args, kwargs]):
        return True
    name = name_of(target).strip("_")
    as_data = name in SCALAR_OPERANDS and name not in ("full", "new_full")
    return dynamic_sizes.sizes_in(i, [args, kwargs]) and not as_data


def _call_class(i: Interpreter, cls: type, kind: str, target: Any, args: Any, kwargs: Any) -> Any:
    function, _, seen, keywords = _as_pytorch_sees(i, cls, kind, target, args, kwargs)
    return _said_by(i, cls, function, (cls,), seen, keywords)


def _as_pytorch_sees(
    i: Interpreter, cls: type | None, kind: str, target: Any, args: Any, kwargs: Any
) -> tuple[Any, Any, Any, Any]:  # fmt: skip
    """(function, types, arguments, keyword arguments) of the call of `__torch_function__`. No class: of a mode's."""
    originals: dict[int, Any] = {}
    kept: list[Any] = []

    def replace(value: Any) -> Any:
        if type(value) is TensorProxy:
            made = torch.empty(())
            made = made.as_subclass(_Recorder) if value.cls is cls else made
            originals[id(made)] = value
            kept.append(made)
            return made
        if cls is not None and type_of(value) is cls:
            stands_for = _ObjectRecorder()
            originals[id(stands_for)] = value
            kept.append(stands_for)
            return stands_for
        return i.outside.concrete(value) if type(value) is Symbol else value

    def back(value: Any) -> Any:
        return originals[id(value)] if isinstance(value, (torch.Tensor, _ObjectRecorder)) else value

    function = getattr(torch.Tensor, target) if kind == "call_method" else target
    stand_ins, named = mapped(replace, args), mapped(replace, kwargs)
    try:
        with torch._C._EnableTorchFunction(), nullcontext() if cls is not None else _RecordingMode():
            function(*stand_ins, **named)
    except _Intercepted as seen:
        return seen.function, seen.types, mapped(back, tuple(seen.args_seen)), mapped(back, dict(seen.kwargs_seen))
    except Exception as error:
        raise Unsupported(f"an operator that a subclass of torch.Tensor does not see: {error}") from error
    raise Unsupported("an operator that a subclass of torch.Tensor does not see")


def by_mode(i: Interpreter, function: Any, has_rule: bool, args: Args, kwargs: Kwargs) -> Any:
    """What a function of PyTorch's gives in a mode of the program's; NotImplemented for a function that it does not see.
    `has_rule`: capture would not follow it, but do as it does."""
    try:
        seen = function in _seen_by_modes() or type(function) in (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
    except Exception:  # it cannot be hashed
        return NotImplemented
    if seen:
        return call_mode(i, "call_function", function, args, kwargs)
    module = str(getattr(function, "__module__", None))
    on_tensors = next(iter(tensors_among((*args, *kwargs.values()))), None) is not None
    if on_tensors and has_rule and module.startswith(("torch", "numpy", "math")) and function not in _ASKING:
        raise Unsupported(f"{name_of(function)} in a torch function mode")
    return NotImplemented


#: What asks which functions modes and classes see.
_ASKING = frozenset({
    torch.overrides.has_torch_function, torch.overrides.has_torch_function_unary,
    torch.overrides.has_torch_function_variadic, torch.overrides.handle_torch_function, torch.overrides.is_tensor_like,
    torch.is_tensor,
})  # fmt: skip


#: What modes see besides what `torch.overrides` and `torch.device` speak of.
_SEEN = (torch._C._set_grad_enabled, torch._C._nn._parse_to)


@functools.cache
def _seen_by_modes() -> frozenset[Any]:
    """The functions and methods of PyTorch's that modes see, those among them that make tensors."""
    overridable = torch.overrides.get_overridable_functions().values()
    return frozenset([*(f for functions in overridable for f in functions), *_device_constructors(), *_SEEN])


def call_mode(i: Interpreter, kind: str, target: Any, args: Args, kwargs: Kwargs) -> Any:
    """A function of PyTorch's in a mode of the program's: what this makes of it."""
    leaves = [*symbolic_leaves((args, kwargs))]
    if i.graph.nested or any(type(v) not in (TensorProxy, Symbol) or _has_class(v) for v in leaves):
        raise Unsupported("an operator in a torch function mode on something else than plain tensors")
    return _ask_mode(i, *_as_pytorch_sees(i, None, kind, target, args, kwargs))


def _has_class(value: Any) -> bool:
    return type(value) is TensorProxy and value.cls not in TENSOR_TYPES


def _ask_mode(i: Interpreter, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
    """Call the innermost mode, which is none while it runs."""
    mode, entered = i.graph.user_modes.pop()
    try:
        result = i.call_now(i.attribute_now(mode, "__torch_function__"), (function, types, args, i.mark_created(kwargs)))
    finally:
        i.graph.user_modes.append((mode, entered))
    if result is NotImplemented:
        raise Unsupported("an operator that a torch function mode does not implement")
    return result


class _RecordingMode(torch.overrides.TorchFunctionMode):
    """A mode that tells which function PyTorch calls `__torch_function__` with."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _Intercepted(func, types, args, kwargs or {})


def default_function(i: Interpreter, cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """`torch.Tensor.__torch_function__`: calls the function, and gives new tensors the class."""
    if not all(issubclass(cls, kind) for kind in types):
        return NotImplemented
    if getattr(func, "__name__", "") == "__get__":
        raise Unsupported("an attribute of a tensor with a __torch_function__ of its own")
    keywords = dict(i.outside.contents(kwargs)) if kwargs is not None else {}
    with _asking_no_class(i):
        result = i.call_now(func, tuple(i.outside.contents(args)), keywords)
    return _converted(i, result, cls)


@contextmanager
def _asking_no_class(i: Interpreter) -> Iterator[None]:
    """Operators are called within as if tensors were plain ones."""
    i.graph.without_torch_function += 1
    try:
        yield
    finally:
        i.graph.without_torch_function -= 1


def _converted(i: Interpreter, value: Any, cls: Any) -> Any:
    if type(value) is TensorProxy and cls is not torch.Tensor and not issubclass(value.cls, cls):
        return as_subclass(i, value, cls)
    if isinstance(value, (list, tuple)) and type(value) is not torch.Size:
        elements = [_converted(i, v, cls) for v in value]
        return value._make(elements) if hasattr(value, "_make") else type(value)(elements)
    return value


def as_subclass(i: Interpreter, proxy: TensorProxy, cls: Any) -> TensorProxy:
    """`tensor.as_subclass(cls)`: a view of the same memory, of another class."""
    if cls is not torch.Tensor and not (isinstance(cls, type) and (is_plain_subclass(cls) or is_function_class(cls))):
        raise Unsupported(f"a tensor of type {getattr(cls, '__qualname__', cls)}")
    with _asking_no_class(i):
        made: TensorProxy = i.graph.call("call_function", _converter(cls), (proxy,), {}, View(proxy.meta, 0))
    made.cls = cls
    if cls not in TENSOR_TYPES:
        i.outside.note_subclass(cls)
    i.graph.converted[made.node] = None
    return made


@functools.cache
def _converter(cls: type) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function for the graph, under a name that tells the class."""

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        with torch._C.DisableTorchFunctionSubclass():
            return tensor.as_subclass(cls)

    convert.__name__ = convert.__qualname__ = f"as_{cls.__name__}"
    return convert


def _disable(i: Interpreter) -> Any:
    if not i.nesting:  # the segment might end inside
        raise Unsupported("torch._C.DisableTorchFunctionSubclass outside of a __torch_function__")
    return i.call_now(library.WithoutTorchFunction, ())


def _asks_classes(i: Interpreter) -> bool:
    asks = i.outside.asks_classes
    i.outside.guard("state", None, ("torch._C._is_torch_function_enabled()", asks))
    return asks and not i.graph.without_torch_function


def _ask_no_class(i: Interpreter, begins: bool) -> None:
    i.graph.without_torch_function += 1 if begins else -1


HANDLERS: dict[Any, Callable[..., Any]] = {
    torch.overrides.handle_torch_function: _handle,
    torch.Tensor.__torch_function__.__func__: default_function,
    torch._C.DisableTorchFunctionSubclass: _disable,
    library.ask_no_class: _ask_no_class,
    torch._C._is_torch_function_enabled: _asks_classes,
}
