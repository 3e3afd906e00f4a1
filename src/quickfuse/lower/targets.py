"""From the target of a node to what lowers it: the forms in which one rule is called.

    torch.add(x, y)  x.add(y)  operator.add(x, y)      the value of a new tensor
    x.add_(y)  torch.add(x, y, out=x)  operator.iadd   the new value of an existing one
    torch._foreach_add([...], [...])                   the same for each member of lists
    F.relu(x, inplace=True)                            either
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any

import torch

from quickfuse.errors import Unsupported
from quickfuse.ir.signatures import signature
from quickfuse.ir.values import TensorMeta

# Modules that hold rules register them on import.
from . import (  # noqa: F401
    activations,
    arithmetic,
    assertions,
    convolution,
    creation,
    elementary,
    indexing,
    joining,
    normalisation,
    pooling,
    pooling_gradients,
    products,
    reductions,
    scans,
    scatters,
    slice_scatters,
    upsampling,
)  # fmt: skip
from .calls import FUNCTION_RULES, RULES
from .context import Context
from .creation import CONVERSIONS, convert
from .dropout import dropout, native_dropout
from .indexing import getitem
from .rules import EVALUATORS, Evaluator, NoRule, into, no_rule_if
from .scatters import setitem
from .symbolic import Tensor
from .views import VIEW_ATTRIBUTES, VIEW_NAMES, element_view, is_basic_index, view

# --- lists ---

#: Names of the arguments that follow the first list, in order, of the operators that have more than one of them.
_OPERANDS: dict[str, tuple[frozenset[str], ...]] = {
    name: (frozenset({"tensor1"}), frozenset({"tensor2"}), frozenset({"value", "scalars"}))
    for name in ("addcmul", "addcdiv")
}
_OPERANDS["lerp"] = (frozenset({"tensors1"}), frozenset({"weight", "weights", "scalars"}))
_BINARY = (frozenset({"other", "scalar", "scalars", "exponent", "src"}),)


def foreach(name: str, evaluate: Evaluator, in_place: bool) -> Callable[..., Any]:
    """The handler of `torch._foreach_<name>`, or of its in-place form."""
    operands = _OPERANDS.get(name, _BINARY)
    numbers_at = len(operands) if name in ("addcmul", "addcdiv") else -1

    def handle(ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any], metas: Any) -> Any:
        args, options = _by_position(operands, args, kwargs)
        lists = [v for v in args if isinstance(v, (list, tuple))]
        no_rule_if(not lists or len(set(map(len, lists))) != 1)
        count = len(lists[0])
        columns = [
            v if isinstance(v, (list, tuple))
            else _numbers(v) if k == numbers_at and type(v) is Tensor and v.meta.ndim == 1
            else repeat(v, count) for k, v in enumerate(args)
        ]  # fmt: skip
        if in_place:
            for members in zip(*columns, strict=True):
                into(ctx, evaluate, members[0], members, options)
            return args[0]
        no_rule_if(not isinstance(metas, (list, tuple)) or len(metas) != count)
        return [
            ctx.fresh(meta, evaluate(ctx, members, options, meta))
            for meta, members in zip(metas, zip(*columns, strict=True), strict=True)
        ]

    return handle


def _by_position(
    operands: tuple[frozenset[str], ...], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments with those given by name in their places, and the options that remain."""
    options = {name: value for name, value in kwargs.items() if name != "non_blocking"}
    bound = list(args)
    if "self" in options:
        bound.insert(0, options.pop("self"))
    for names in operands[len(bound) - 1 :]:
        name = next((n for n in names if n in options), None)
        if name is None:
            break
        bound.append(options.pop(name))
    return bound, options


def _numbers(vector: Tensor) -> list[Tensor]:
    """The elements of a 1-d tensor that is given as a list of numbers."""
    if vector.meta.device.type != "cpu":
        raise Unsupported("numbers in a tensor on a GPU")
    return vector.members() or [element_view(vector, k) for k in range(vector.meta.shape[0])]


#: (context, arguments by position, by name, metadata of the result) -> the node's value.
Handler = Callable[[Context, Sequence[Any], Mapping[str, Any], Any], Any]

# --- forms ---


def new_tensor(evaluate: Evaluator) -> Handler:
    def handle(ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any], meta: Any) -> Any:
        if "out" in kwargs:
            options = dict(kwargs)
            out = options.pop("out")
            if type(out) is not Tensor or type(meta) is not TensorMeta or out.meta.shape != meta.shape:
                raise Unsupported("an `out` argument that has to be resized")
            return into(ctx, evaluate, out, args, options)
        no_rule_if(type(meta) is not TensorMeta)
        return ctx.fresh(meta, evaluate(ctx, args, _without_layout(kwargs), meta))

    return handle


def in_place(evaluate: Evaluator) -> Handler:
    def handle(ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any], meta: Any) -> Any:
        target = args[0]
        if type(target) is not Tensor or target.is_number:  # `number += tensor` makes a new tensor
            return ctx.fresh(meta, evaluate(ctx, args, kwargs, meta))
        return into(ctx, evaluate, target, args, kwargs)

    return handle


def functional(evaluate: Evaluator, position: int) -> Handler:
    """A Python function with an `inplace` argument at `position`."""
    new, old = new_tensor(evaluate), in_place(evaluate)

    def handle(ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any], meta: Any) -> Any:
        options = dict(kwargs)
        inplace = options.pop("inplace", args[position] if len(args) > position else False)
        if "input" in options:
            args = (options.pop("input"), *args)
        return (old if inplace else new)(ctx, args[:position], options, meta)

    return handle


#: Options of operators that make tensors; the metadata of the result says what they say.
_LAYOUT_OPTIONS = frozenset("dtype device layout pin_memory requires_grad memory_format non_blocking".split())


def _without_layout(kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    if not kwargs or _LAYOUT_OPTIONS.isdisjoint(kwargs):
        return kwargs
    return {name: value for name, value in kwargs.items() if name not in _LAYOUT_OPTIONS}


# --- the tables ---

#: What lowers a call of a function, and a call of a method by its name.
FUNCTIONS: dict[Any, Handler] = {}
METHODS: dict[str, Handler] = {}

#: Python's operators -> PyTorch's: `operator.add`, `operator.iadd`, `x.__add__`, `x.__iadd__`, `x.__radd__`.
_OPERATORS = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "floordiv": "floor_divide", "mod": "remainder",
    "pow": "pow", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
}  # fmt: skip
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_UNARY_OPERATORS = {"neg": "neg", "abs": "abs", "invert": "bitwise_not"}

#: Methods that are no forms of the function of their name.
_NOT_METHODS = frozenset("where tensor arange zeros ones full empty rdiv foreach_div foreach_div_ foreach_mul_".split())


def _truediv(ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any], meta: TensorMeta) -> Any:
    dividend, divisor = args
    if type(dividend) is Tensor and not dividend.is_number:
        return EVALUATORS["div"](ctx, args, kwargs, meta)
    return EVALUATORS["rdiv"](ctx, (divisor, dividend), kwargs, meta)


def _setitem(ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any], meta: Any) -> None:
    tensor, index, value = args
    if type(tensor) is Tensor and type(index) is Tensor and index.meta.shape == tensor.meta.shape:
        into(ctx, EVALUATORS["masked_fill"], tensor, (tensor, index, value), {})
        return
    if type(tensor) is Tensor and not is_basic_index(index):
        setitem(ctx, tensor, index, value)
        return
    if type(tensor) is not Tensor:
        raise Unsupported("assignment to elements of something that is no tensor")
    part = element_view(tensor, index)
    while type(value) is Tensor and len(value.meta.shape) > len(part.meta.shape):
        value = element_view(value, 0)  # assignment, unlike `copy_`, takes no notice of leading axes of length one
    into(ctx, EVALUATORS["copy"], part, (part, value), {})


def _as_tensor(ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any], meta: Any) -> Any:
    data = args[0] if args else kwargs[next(name for name in ("data", "obj") if name in kwargs)]
    if type(data) is Tensor and not data.is_number:
        return convert(ctx, (data,), {"copy": kwargs.get("copy", False)}, meta)
    return new_tensor(EVALUATORS["tensor"])(ctx, (data,), {}, meta)


def _getattr(ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any], meta: Any) -> Any:
    tensor, name = args
    if type(tensor) is not Tensor or name not in VIEW_ATTRIBUTES:
        raise Unsupported(f"the attribute {name}")
    return view(ctx, _ATTRIBUTES[name], (tensor,), {}, meta)


_ATTRIBUTES = {name: partial(lambda name, tensor: getattr(tensor, name), name) for name in VIEW_ATTRIBUTES}


def _dropout(ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any], meta: Any) -> Any:
    names = ("input", "p", "training", "inplace")
    arguments = {**dict(zip(names, args, strict=False)), **kwargs}
    if arguments.get("training", True) is False:
        return arguments["input"]
    if arguments.get("inplace", False):
        raise Unsupported("random numbers")
    try:
        return dropout(ctx, (arguments["input"], arguments.get("p", 0.5), True), {}, meta)
    except NoRule:
        raise Unsupported("random numbers") from None


def _register_evaluators() -> None:
    namespaces = (torch, torch.Tensor, *(getattr(torch._C, name) for name in ("_nn", "_special")))
    for name, evaluate in EVALUATORS.items():
        new, old = new_tensor(evaluate), in_place(evaluate)
        for namespace in namespaces:
            for attribute, handler in ((name, new), (f"{name}_", old)):
                function = getattr(namespace, attribute, None)
                if callable(function) and not (namespace is torch.Tensor and name in _NOT_METHODS):
                    FUNCTIONS[function] = handler
        if name not in _NOT_METHODS:
            METHODS[name], METHODS[f"{name}_"] = new, old
        wrapper = getattr(torch.nn.functional, name, None)
        if inspect.isfunction(wrapper):
            parameters = list(signature(wrapper).parameters)
            inplace = "inplace" in parameters
            FUNCTIONS[wrapper] = functional(evaluate, parameters.index("inplace")) if inplace else new
        for each, by_place in ((f"foreach_{name}", False), (f"foreach_{name}_", True)):
            if (function := getattr(torch, f"_{each}", None)) is not None:
                FUNCTIONS[function] = foreach(name, EVALUATORS.get(each, evaluate), by_place)


def _register_operators() -> None:
    for python, name in _OPERATORS.items():
        evaluate = _truediv if python == "truediv" else EVALUATORS[name]
        function = getattr(operator, python, None) or getattr(operator, f"{python}_")
        FUNCTIONS[function] = METHODS[f"__{python}__"] = new_tensor(evaluate)
        FUNCTIONS[getattr(operator, f"i{python}")] = METHODS[f"__i{python}__"] = in_place(EVALUATORS[name])
        METHODS[f"__r{python}__"] = new_tensor(
            lambda ctx, args, kwargs, meta, evaluate=evaluate: evaluate(ctx, args[::-1], kwargs, meta)
        )
    for name in _COMPARISONS:
        FUNCTIONS[getattr(operator, name)] = METHODS[f"__{name}__"] = new_tensor(EVALUATORS[name])
    for python, name in _UNARY_OPERATORS.items():
        FUNCTIONS[getattr(operator, python)] = METHODS[f"__{python}__"] = new_tensor(EVALUATORS[name])
    FUNCTIONS[abs] = FUNCTIONS[operator.abs]
    for name, handler in METHODS.items():
        if name.startswith("__") and (method := getattr(torch.Tensor, name, None)) is not None:
            FUNCTIONS[method] = handler


def _register_views() -> None:
    for name in VIEW_NAMES:
        for namespace in (torch, torch.Tensor):
            function = getattr(namespace, name, None)
            if callable(function):
                FUNCTIONS[function] = partial(_view_handler, function)
        if method := getattr(torch.Tensor, name, None):
            METHODS[name] = partial(_view_handler, method)
    FUNCTIONS[operator.pos] = METHODS["__pos__"] = METHODS["positive"]
    FUNCTIONS[operator.getitem] = METHODS["__getitem__"] = getitem
    FUNCTIONS[operator.setitem] = METHODS["__setitem__"] = _setitem
    FUNCTIONS[getattr] = _getattr


def _register_rules() -> None:
    """Rules come before formulas of the same name: `torch.max` of one tensor, and of two."""
    for name, rule in RULES.items():
        for table, key in ((FUNCTIONS, getattr(torch, name, None)), (METHODS, name)):
            if key and (table is FUNCTIONS or hasattr(torch.Tensor, name)):
                table[key] = _first_of(rule, table.get(key))
        if (method := getattr(torch.Tensor, name, None)) is not None:
            FUNCTIONS[method] = METHODS[name]
    FUNCTIONS.update(FUNCTION_RULES)


def _first_of(rule: Handler, other: Handler | None) -> Handler:
    if other is None:
        return rule

    def handle(ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any], meta: Any) -> Any:
        try:
            return rule(ctx, args, kwargs, meta)
        except NoRule:
            return other(ctx, args, kwargs, meta)

    return handle


def _view_handler(
    function: Callable[..., Any], ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any], meta: Any
) -> Any:
    return view(ctx, function, args, kwargs, meta)


def _register_others() -> None:
    for name in CONVERSIONS:
        METHODS[name] = FUNCTIONS[getattr(torch.Tensor, name)] = convert
    where = EVALUATORS["where"]
    METHODS["where"] = FUNCTIONS[torch.Tensor.where] = new_tensor(
        lambda ctx, args, kwargs, meta: where(ctx, (args[1], args[0], *args[2:]), kwargs, meta)
    )
    FUNCTIONS[torch.nn.functional.dropout] = _dropout
    FUNCTIONS[torch.dropout] = dropout
    FUNCTIONS[torch.native_dropout] = native_dropout
    FUNCTIONS[torch.as_tensor] = FUNCTIONS[torch.asarray] = _as_tensor


_register_evaluators()
_register_operators()
_register_views()
_register_others()
_register_rules()
