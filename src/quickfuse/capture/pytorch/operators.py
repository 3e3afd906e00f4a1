"""PyTorch's operators: which functions and methods become nodes of the graph, and what they may be called with."""

from __future__ import annotations

import enum
import functools
import operator
import sys
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, ModuleType, WrapperDescriptorType
from typing import Any

import torch

from ...errors import Unsupported
from ...ir.number_parameters import NUMBER_PARAMETERS
from ...ir.sharing import SEEN_IN_PLACE
from ...ir.values import TensorMeta
from ..branches import held_contents
from ..graph.leaves import changes_outside
from ..inference.mutation import IN_PLACE_OF
from ..inference.number_operators import SCALAR_OPERANDS
from ..inference.stand_ins import is_view_without_gradients
from ..inference.tensor_subclasses import is_function_class
from ..interpreter import Args, Interpreter, Kwargs
from ..objects import either
from ..objects.class_attributes import python_method
from ..objects.native_functions import adopt
from ..symbolic import real_of, type_of
from ..symbolic.containers import ShadowContainer
from ..symbolic.graph_values import TENSOR_TYPES, DynamicTensor, Either, Selection, Symbol, TensorProxy
from ..symbolic.made import HeldArray
from ..symbolic.outside import ForeignArray, ForeignScalar, ForeignTensor, FromOutside, is_constant, is_numpy, numpy_class
from ..symbolic.raising import TensorOfOtherSizes
from . import dynamic_sizes, gradient_hooks, gradients, selections
from .number_parameters import changing
from .tensor_attributes import can_be_seen_otherwise, change_requires_grad, is_leaf_of_autograd, see_otherwise
from .torch_function import as_subclass, call_mode, call_of_objects, call_torch, saying_themselves


def _builtins_of(owner: Any) -> set[Any]:
    names = [name for name in dir(owner) if not name.startswith("__")]
    return {f for f in (getattr(owner, name, None) for name in names) if type(f) is BuiltinFunctionType}


def _functions_of(module: ModuleType) -> set[Any]:
    return {
        f
        for name, f in vars(module).items()
        if type(f) is FunctionType and f.__module__ == module.__name__ and not name.startswith("_")
    }


#: Where the operators that are written in C++ are found, besides `torch`.
_NAMESPACES: list[Any] = [getattr(torch._C, name) for name in ("_nn", "_special", "_linalg", "_fft")]

_METHOD_TYPES = (MethodDescriptorType, WrapperDescriptorType)
#: `torch.Tensor.add` and so on, as functions that take the tensor first, and what else the class has.
_MEMBERS: list[Any] = [getattr(torch.Tensor, name, None) for name in dir(torch.Tensor)]
_TENSOR_TYPE = type(torch.FloatTensor)
_OVERLOADS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)

#: Native functions of these namespaces that do not compute from their operands alone.
_NOT_OPERATORS = frozenset(
    {torch.from_file, torch.frombuffer, torch.from_numpy, torch._C._nn._parse_to, torch._enable_functionalization,
     torch._disable_functionalization}
) | {
    # Python that divides by its temperature, which training lowers step by step; Python that refuses negative variances.
    torch.nn.functional.gumbel_softmax, torch.nn.functional.gaussian_nll_loss,
    # Python whose results are views of one tensor that it makes.
    torch.unravel_index,
}  # fmt: skip

#: Everything that becomes one node of the graph, as the user wrote it.
OPERATORS: frozenset[Any] = frozenset(
    set().union(*map(_builtins_of, (torch._C._VariableFunctions, *_NAMESPACES)))
    | _functions_of(torch.nn.functional)
    | _functions_of(torch.functional)
    | _functions_of(torch.masked._ops)
    | {f for f in _MEMBERS if type(f) in _METHOD_TYPES and f.__objclass__ is torch._C.TensorBase}
    | {torch.tensor}
).difference(_NOT_OPERATORS)

#: Operators whose operands, but for the first tensor of a method, are sizes.
_TAKE_SIZES = frozenset(
    "view reshape expand repeat new_zeros new_ones new_empty as_strided zeros ones empty arange narrow unflatten".split()
)

#: Of these only the second operand is data, the first is a size.
_SIZED = frozenset({"full", "new_full"})

#: Methods whose result is not a function of metadata and of values in the graph, with what to do instead.
_UNCAPTURED_METHODS: dict[str, tuple[str, str]] = {name: why for names, why in {
    "numpy __array__": ("a tensor's contents in NumPy", "most of NumPy's functions have equals in torch"),
    "__dlpack__": ("a tensor's memory for another library", ""),
    "data_ptr const_data_ptr": ("a tensor's address", ""),
    "untyped_storage storage storage_type is_set_to": ("a tensor's storage", ""),
    "storage_offset": ("the place of a tensor in its storage", ""),
    "set_": ("replacing a tensor's storage", "copy_() changes the contents"),
    "is_shared share_memory_": ("shared memory", ""),
    "pin_memory": ("pinned memory", ""),
    "is_inference": ("inference mode", ""),
    "apply_ map_ map2_": ("a Python function applied to each element", "write it with operators on whole tensors"),
    "__reduce_ex__": ("pickling a tensor", ""),
    "__deepcopy__": ("copying a tensor deeply", "clone() copies the contents"),
    "__contains__": ("looking for a value in a tensor", "(x == value).any() stays a tensor"),
    "__format__ __repr__": ("the text of a tensor", ""),
    "__hash__": ("the identity of a tensor as a number", ""),
    "__bool__ is_nonzero": ("a branch on a tensor's value", "torch.where keeps both sides on the device"),
    "__index__": ("a tensor's value as an index", "index_select takes a tensor"),
    "__complex__": ("a tensor's value as a complex number", ""),
}.items() for name in names.split()}  # fmt: skip

#: Python's types as dtypes: `torch.zeros(2, dtype=float)`.
_DTYPES = {float: torch.float64, int: torch.int64, bool: torch.bool, complex: torch.complex128}


_HOMES = (torch.nn.functional, torch.fft, torch.linalg, torch.special, *_NAMESPACES)


#: Operators that take tensors for the numbers in them, and give a result of another size for each.
_TAKE_NUMBERS = frozenset({torch.arange, torch.range})


def is_operator(function: Any) -> bool:
    kind = type(function)
    if kind in (BuiltinFunctionType, FunctionType, *_METHOD_TYPES):
        return function in OPERATORS
    return kind in _OVERLOADS


def _base_name(target: Any) -> str:
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    return str(name).removeprefix("_foreach_").strip("_")


def _operands(i: Interpreter, target: Any, args: Args, kwargs: Kwargs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Operands as graph nodes may take them: numbers that shape a result are made plain."""
    name = _base_name(target)
    if name in _OF_VALUES:
        _refuse_numpy(i, (*args, *kwargs.values()))
    keep = name in SCALAR_OPERANDS
    if target in (torch.tensor, torch.as_tensor) and args:
        return (_plain(i, args[0], keep, in_lists=True), *_plain(i, args[1:], keep)), _plain(i, kwargs, keep)
    stays = changing(i, target, name, args, kwargs) if name in NUMBER_PARAMETERS else ()
    if stays:
        made = [v if id(v) in stays else _plain(i, v, keep) for v in args]
        return tuple(made), {key: v if id(v) in stays else _plain(i, v, keep) for key, v in kwargs.items()}
    if name in _SIZED:
        value = tuple([_plain(i, v, keep=position == 1) for position, v in enumerate(args)])
        return value, {key: _plain(i, v, keep=key == "fill_value") for key, v in kwargs.items()}
    if target is torch.nn.functional.batch_norm:  # whose momentum may come from a counter of batches
        given = [*enumerate(args), *kwargs.items()]
        kept = {k: v for k, v in given if k in (6, "momentum") and type(v) is Symbol and v.from_tensor}
        value = tuple([kept[k] if k in kept else _plain(i, v, keep) for k, v in enumerate(args)])
        return value, {key: kept[key] if key in kept else _plain(i, v, keep) for key, v in kwargs.items()}
    return _plain(i, args, keep), _plain(i, kwargs, keep)


#: Operators whose results have the type of a NumPy scalar that they are given.
_OF_VALUES = frozenset({"tensor", "as_tensor", "asarray", "new_tensor"})


def _refuse_numpy(i: Interpreter, values: Any) -> None:
    for value in values:
        value = i.outside.contents(value)
        if isinstance(value, (list, tuple)):
            _refuse_numpy(i, value)
        elif is_numpy(real_of(value)) or (type(value) is Symbol and value.cls is not value.kind):
            raise Unsupported("a tensor of a NumPy scalar")


def plain_operands(i: Interpreter, value: Any) -> Any:
    """Operands without symbols, for what takes no symbolic numbers."""
    return _plain(i, value, keep=False)


#: What needs no thought.
_AS_IT_IS = frozenset({TensorProxy, DynamicTensor, int, float, bool, type(None), torch.dtype})


def _plain(i: Interpreter, value: Any, keep: bool, in_lists: bool = False) -> Any:
    """`keep`: numbers stay symbols; `in_lists`: so do truth values in lists and tuples."""
    if type(value) in _AS_IT_IS:
        return value
    if type(value) is ShadowContainer and any(python_method(i, value, name) is not None for name in _OF_SEQUENCES):
        raise Unsupported(f"a {type(value.real).__name__} as an operand of a PyTorch function")
    if is_numpy(real_of(value)) and numpy_class(real_of(value)) is bool:  # for some functions a number, for others none
        raise Unsupported("a bool of NumPy's as an operand of a PyTorch function")
    value = i.outside.number(i.outside.contents(value))
    kind = type(value)
    if kind is TensorProxy or kind is DynamicTensor or i.outside.is_dynamic_size(value):
        return value
    if is_numpy(value):
        raise Unsupported(f"a {kind.__name__} of NumPy's as an operand of a PyTorch function")
    if kind is complex and repr(eval(repr(value))) != repr(value):  # torch.fx writes constants so
        raise Unsupported("a complex number with a negative zero")
    if kind is Symbol:
        return value if keep and value.kind is not bool else i.outside.number(i.outside.concrete(value))
    if kind is list:
        return [v if in_lists and type(v) is Symbol and v.kind is bool else _plain(i, v, keep, in_lists) for v in value]
    if isinstance(value, tuple) and kind is not torch.Size:  # of a named tuple, PyTorch sees the elements
        if kind is not tuple and any(python_method(i, value, name) is not None for name in _OF_SEQUENCES):
            raise Unsupported(f"a {kind.__name__} as an operand of a PyTorch function")
        return tuple(_plain(i, [*value], keep, in_lists))
    if kind is dict:
        return {k: _plain(i, v, keep) for k, v in value.items()}
    if kind is slice:
        return slice(*(_plain(i, v, False) for v in (value.start, value.stop, value.step)))
    if kind in (torch.device, str) and str(value) == "cuda" and torch.cuda.is_available():  # which is the current one
        i.outside.guard("state", None, ("torch.cuda.current_device()", torch.cuda.current_device()))
    if isinstance(value, enum.Enum):
        if not isinstance(value, (int, float)):
            raise Unsupported(f"a {kind.__name__} as an operand of a PyTorch function")
        return value.value
    if is_constant(value):
        return value
    if type_of(value) is torch.Generator:
        return value
    if kind is type and value in _DTYPES:
        return _DTYPES[value]
    if kind is _TENSOR_TYPE:
        return f"{value.__module__}.{value.__name__}"
    if kind is ForeignTensor:
        raise TensorOfOtherSizes
    raise Unsupported(f"a {type_of(value).__name__} as an operand of a PyTorch function")


#: How PyTorch reads a sequence.
_OF_SEQUENCES = ("__len__", "__getitem__", "__iter__")


def _generator_input(i: Interpreter, generator: Any) -> torch.fx.Node:
    """A generator of random numbers that belongs to the user, as an input of the graph."""
    if not isinstance(generator, FromOutside):
        raise Unsupported("a generator of random numbers without a path to it")
    i.outside.guard("equal", generator.source.attr("device"), generator.real.device)
    return i.graph.object_input(generator.source, generator.real)


#: Functions that say of a tensor what its type says.
_OF_TYPES = frozenset({torch.is_complex, torch.is_floating_point})


def call_operator(i: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """A PyTorch function on tensors."""
    if i.graph.user_modes:
        return call_mode(i, "call_function", function, args, kwargs)
    tensor = args[0] if len(args) == 1 and not kwargs and function in _OF_TYPES else None
    if type(tensor) is TensorProxy and tensor.cls in TENSOR_TYPES and not i.graph.indexing_modes and _is_at_home(function):
        return getattr(tensor.meta.dtype, function.__name__)
    if any(type(v) is Selection for v in args):
        return selections.called(i, "call_function", function, function.__name__, args, kwargs)
    if any(type(v) is Either for v in (*args, *kwargs.values())):
        return either.called(i, "call_function", function, args, kwargs)
    if objects := saying_themselves(i, (*args, *kwargs.values())):
        return call_of_objects(i, "call_function", function, args, kwargs, objects)
    kind = type(function)
    if kind in _METHOD_TYPES:
        if not args or type(args[0]) not in (TensorProxy, DynamicTensor):
            raise Unsupported(f"the tensor method {function.__name__} of something else")
        return call_tensor_method(i, args[0], function.__name__, args[1:], kwargs)
    if not _is_at_home(function):  # a graph names its functions, and would call what the user put in this one's place
        raise Unsupported(f"torch.{function.__name__} while something else stands in its place")
    if kind is FunctionType and not all(_is_operand(i, v) for v in (*args, *kwargs.values())):
        return i.now(i.inline, function, args, kwargs)  # it calls back into the user's code
    if _base_name(function) in _TAKE_SIZES:
        args, kwargs = held_contents.with_sizes(i, args), held_contents.with_sizes(i, kwargs)
    if function in _TAKE_NUMBERS and any(type(v) is TensorProxy for v in (*args, *kwargs.values())):
        raise Unsupported(f"a tensor's value as a number for torch.{function.__name__}")
    operands, options = _operands(i, function, args, kwargs)
    if kind in _OVERLOADS and (number := _number_of(function)) is not None:
        i.graph.only_pytorch = "an operator that gives a number"
        meta = TensorMeta.dense(number.dtype, (), torch.device("cpu"))
        return i.graph.item(i.graph.call("call_function", number, operands, options, meta))
    result = _call(i, "call_function", function, operands, options)
    name = str(function.__name__)
    if type(result) is list and args and name.startswith("_foreach_") and name.endswith("_"):
        return args[0]  # the very list of the program
    return result


@functools.cache
def _number_of(function: Any) -> Any:
    """What puts the number that an operator of the program's gives into a tensor, as graphs need it. None for others."""
    overload = function.default if hasattr(function, "default") else function
    schema = getattr(overload, "_schema", None)
    if schema is None or schema.is_mutable or len(schema.returns) != 1 or schema.name.startswith(("aten::", "prims::")):
        return None
    dtype = {"int": torch.int64, "float": torch.float64, "bool": torch.bool}.get(str(schema.returns[0].type))
    if dtype is None:
        return None

    def number(*args: Any, **kwargs: Any) -> torch.Tensor:
        return torch.tensor(function(*args, **kwargs), dtype=dtype)

    number.dtype = dtype  # type: ignore[attr-defined]
    number.__name__ = number.__qualname__ = str(schema.name.partition("::")[2])
    return number


def _is_at_home(function: Any) -> bool:
    """Whether PyTorch's namespaces still hold a function under its name."""
    if type(function) is BuiltinFunctionType:
        return getattr(torch, function.__name__, function) is function or any(
            getattr(home, function.__name__, None) is function for home in _HOMES
        )
    if type(function) is FunctionType:
        return getattr(sys.modules.get(function.__module__), function.__name__, None) is function
    return True


def call_tensor_method(i: Interpreter, proxy: TensorProxy, name: str, args: Args, kwargs: Kwargs) -> Any:
    """`proxy.name(*args, **kwargs)`."""
    if type(proxy) is DynamicTensor:
        return _call_dynamic(i, proxy, name, args, kwargs)
    if i.graph.user_modes and name != "__init__":
        return call_mode(i, "call_method", name, (proxy, *args), kwargs)
    if any(type(v) is Either for v in (*args, *kwargs.values())):
        return either.called(i, "call_method", name, (proxy, *args), kwargs)
    if objects := saying_themselves(i, (*args, *kwargs.values())):
        return call_of_objects(i, "call_method", name, (proxy, *args), kwargs, objects)
    if name == "as_subclass" and len(args) == 1 and not kwargs:  # which asks no class
        return as_subclass(i, proxy, args[0])
    if name == "__init__" and not args and not kwargs:  # that of `object`, which a subclass calls
        return None
    if not i.graph.without_torch_function and is_function_class(proxy.cls):
        args, kwargs = _operands(i, name, args, kwargs)
        return call_torch(i, "call_method", name, (proxy, *args), kwargs)
    if name == "retain_grad" and proxy.meta.requires_grad and not args and not kwargs and is_leaf_of_autograd(i, proxy):
        return None  # it has a gradient anyway
    if name in _WATCH_GRADIENTS:
        return _WATCH_GRADIENTS[name](i, proxy, *args, **kwargs)
    if name in _UNCAPTURED_METHODS:
        raise Unsupported(*_UNCAPTURED_METHODS[name])
    if name in _NUMBERS:
        return _NUMBERS[name](i, proxy)
    if name == "type":
        args, kwargs = _default_type(i, args), {key: _default_type(i, (v,))[0] for key, v in kwargs.items()}
    if name == "backward":
        return _backward(i, proxy, *args, **kwargs)
    if name == "requires_grad_":
        i.outside.guard_requires_grad(proxy)
        wanted = i.truth(args[0] if args else kwargs.get("requires_grad", True))
        if wanted == proxy.meta.requires_grad:
            if wanted and is_view_without_gradients(proxy):
                raise Unsupported("a view made without gradients that begins to get some")
            return proxy
        if changes_outside(proxy):
            change_requires_grad(i, proxy, wanted)
            return proxy
        args, kwargs = (wanted,), {}
    if name == "new_tensor" and len(args) == 1 and proxy.cls in TENSOR_TYPES and _is_of_numbers(i, args[0]):
        options = {"dtype": proxy.meta.dtype, "device": proxy.meta.device, **kwargs}
        if None not in options.values():
            return i.call_now(torch.tensor, args, options)
    if name == "bincount":
        return i.call_now(torch.bincount, (proxy, *args), kwargs)
    if name in SEEN_IN_PLACE and can_be_seen_otherwise(i, proxy):
        return see_otherwise(i, proxy, name, args, kwargs)
    args, kwargs = _operands(i, name, args, kwargs)
    if name in _TAKE_SIZES:
        args, kwargs = held_contents.with_sizes(i, args), held_contents.with_sizes(i, kwargs)
    if name == "new" and len(args) == 1 and type(args[0]) is torch.Size:  # a tuple, as graphs hold, would be contents
        name = "new_empty"
    return _call(i, "call_method", name, (proxy, *args), kwargs)


#: Methods that do more than what an operator of this name does.
_ASK_MORE = ("as_subclass", "type", "backward", "requires_grad_", "new")


def _is_of_numbers(i: Interpreter, data: Any) -> bool:
    """Whether a tensor is made of numbers, lists, or an array of NumPy's."""
    if type(data) in (ForeignArray, HeldArray):
        return True
    return type(i.outside.contents(data)) in (list, tuple) or type_of(data) in (int, float, bool)


def _call_dynamic(i: Interpreter, proxy: DynamicTensor, name: str, args: Any, kwargs: Any) -> Any:
    """The same for a tensor of dynamic sizes."""
    found = dynamic_sizes.call_method(i, proxy, name, args, kwargs)
    if found is not NotImplemented:
        return found
    if name in _UNCAPTURED_METHODS or name in _NUMBERS or name in _ASK_MORE or name in _WATCH_GRADIENTS:
        raise Unsupported(f"{name}() of a tensor of dynamic sizes")
    args, kwargs = _operands(i, name, args, kwargs)
    return _call(i, "call_method", name, (proxy, *args), kwargs)


def _default_type(i: Interpreter, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """`torch.Tensor` among the arguments of `x.type()`, the class or its name: the type that is set as the default one."""
    given = [i.outside.concrete(v) for v in args]
    if not any(v is torch.Tensor or (type(v) is str and v == "torch.Tensor") for v in given):
        return args
    i.outside.guard("state", None, ("torch.get_default_dtype()", torch.get_default_dtype()))
    return tuple(["torch.Tensor" if v is torch.Tensor else v for v in given])


def _backward(
    i: Interpreter, proxy: TensorProxy, gradient: Any = None, retain_graph: Any = None, create_graph: Any = False,
    inputs: Any = None,
) -> None:  # fmt: skip
    with i.called_through(1):
        gradients.backward(i, proxy, gradient, retain_graph, create_graph, inputs=inputs)


#: Operators that NumPy's numbers leave to a tensor on their right, because of its `__array_priority__`.
_LEFT_TO_TENSORS = frozenset({
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow,
    operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne,
})  # fmt: skip


def leaves_to_tensor(function: Any, left: Any, right: Any) -> bool:
    """Whether the tensor's own operator answers for what stands on its left, which is then a number like Python's."""
    left = left.hint if type(left) is Symbol and left.cls is not left.kind else left
    if not is_numpy(left):
        return True
    numpy = sys.modules["numpy"]
    return (
        IN_PLACE_OF.get(function, function) in _LEFT_TO_TENSORS
        and numpy_class(left) in (int, float)
        and not isinstance(left, numpy.unsignedinteger)
        and type(right) is TensorProxy
        and right.cls in TENSOR_TYPES
        and not numpy.__version__.startswith(("0.", "1."))
    )


def tensor_operator(i: Interpreter, function: Any, left: Any, right: Any) -> Any:
    """A Python operator of which at least one operand is a tensor."""
    if not leaves_to_tensor(function, left, right):
        raise Unsupported(f"an operator of a {type(left).__name__} and a tensor")
    if objects := saying_themselves(i, (left, right)):
        return call_of_objects(i, "call_function", function, (left, right), {}, objects)
    for operand in (left, right):
        if type(operand) not in (TensorProxy, DynamicTensor, Symbol) and not is_constant(operand):
            raise Unsupported(f"{function.__name__} of a tensor and a {type_of(operand).__name__}")
    args, kwargs = _operands(i, function, (left, right), {})
    return call_torch(i, "call_function", function, args, kwargs)


def _call(i: Interpreter, kind: str, target: Any, args: Args, kwargs: Kwargs) -> Any:
    extra = {}
    if kwargs.get("generator") is not None:
        extra["generator"] = _generator_input(i, kwargs["generator"])
        kwargs = {name: value for name, value in kwargs.items() if name != "generator"}
    if any(type_of(a) is torch.Generator for a in args):
        raise Unsupported("a generator of random numbers that is no keyword argument")
    result = call_torch(i, kind, target, args, kwargs, extra)
    return i.mark_created(result) if type(result) is list else result


def _is_operand(i: Interpreter, value: Any) -> bool:
    """Whether a value may be an operand of a node: not so functions and modules."""
    value = i.outside.contents(value)
    if isinstance(value, (list, tuple)):
        return all(_is_operand(i, v) for v in value)
    known = (TensorProxy, DynamicTensor, Symbol, ForeignScalar, dict, slice, type, _TENSOR_TYPE)
    return type(value) in known or type_of(value) is torch.Generator or isinstance(value, enum.Enum) or is_constant(value)


def _list(i: Interpreter, proxy: TensorProxy) -> Any:
    if (numbers := held_contents.numbers_of(i, proxy)) is not None:
        return numbers
    constant = i.graph.contents.constant(proxy)
    constant = held_contents.held(i, proxy) if constant is None else constant
    if constant is None:
        raise Unsupported("a tensor's contents as Python objects", "torch.unbind keeps them in tensors")
    return adopt(i, constant.tolist())


#: What is told of a tensor's gradient.
_WATCH_GRADIENTS: dict[str, Callable[..., Any]] = {
    "register_hook": lambda i, proxy, hook: gradient_hooks.register(i, proxy, hook),
    "register_post_accumulate_grad_hook": lambda i, proxy, hook: gradient_hooks.register(i, proxy, hook, after=True),
    "retain_grad": gradient_hooks.retain_grad,
}

#: Methods that answer in Python.
_NUMBERS: dict[str, Callable[[Interpreter, TensorProxy], Any]] = {
    "item": held_contents.number_in, "tolist": _list,
    "__float__": lambda i, proxy: i.call_now(float, (proxy,)), "__int__": lambda i, proxy: i.call_now(int, (proxy,)),
    "__len__": lambda i, proxy: i.length(proxy), "__iter__": lambda i, proxy: i.iterator(proxy),
}  # fmt: skip
