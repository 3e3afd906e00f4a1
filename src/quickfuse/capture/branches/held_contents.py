"""Few whole numbers in a tensor from outside on which shapes depend: guards hold them, so that what follows is constant.

Models take the sizes of images as a tensor, `grid_thw`, and make indices of it with operators whose results have as many
elements as it says: `repeat_interleave`, `nonzero`, a mask. Such a tensor holds sizes, not data, and sizes are specialised
on. What does nothing but compute with the numbers, or changes them, needs no guard.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from ...errors import Unsupported
from ...ir.reading import MOST_NUMBERS, numbers_in
from ...ir.source import Source
from ...ir.values import NumberMeta, TensorMeta
from ..graph.constant_tensors import OPERATORS, VIEWS
from ..inference.mutation import name_of
from ..interpreter import Args, Interpreter, Kwargs
from ..symbolic import Symbol, TensorProxy, mapped, symbolic_leaves, tensors_among

#: Of what tensors numbers are held. A mask is data.
_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_CLASSES = (torch.Tensor, torch.nn.Parameter)

#: The label of tensors that hold what is known.
_CONSTANT = "held"

#: Operators all of whose operands but the first are numbers.
_TAKE_LENGTHS = frozenset(
    "pad interpolate repeat tile expand narrow split chunk tensor_split roll unflatten topk adaptive_avg_pool1d "
    "adaptive_avg_pool2d adaptive_max_pool1d adaptive_max_pool2d avg_pool1d avg_pool2d max_pool1d max_pool2d".split()
)


class _Held:
    """Numbers and small tensors from outside, which guards hold as they are."""

    operators = OPERATORS

    def __init__(self, i: Interpreter, tensors: bool, only_buffers: bool = False) -> None:
        self._i = i
        self._tensors = tensors
        self._only_buffers = only_buffers

    def takes(self, node: torch.fx.Node) -> bool:
        meta = node.meta.get("val")
        if isinstance(meta, NumberMeta):
            return not meta.from_tensor
        if not self._tensors or node.op != "placeholder" or not isinstance(meta, TensorMeta):
            return False
        contents = self._i.graph.contents
        if contents.is_written(node) or (self._only_buffers and not _is_buffer(contents.example(node)[0])):
            return False
        return _may_hold(self._i, *contents.example(node))

    def value(self, node: torch.fx.Node) -> Any:
        if isinstance(node.meta["val"], NumberMeta):
            return self._i.outside.concrete(self._i.graph.numbers[node])
        source, tensor = self._i.graph.contents.example(node)
        if source.kind != "constant":
            self._i.graph.contents.note_contents_read(source, tensor)
            self._i.outside.guard("equal", source.numbers(), numbers_in(tensor))
        return tensor


class _Places:
    """In place of the numbers in a small tensor from outside, where each of them is."""

    operators = VIEWS

    def __init__(self, i: Interpreter) -> None:
        self._held = _Held(i, tensors=True)
        self._i = i
        self.inputs: list[tuple[Source, torch.Tensor]] = []

    def takes(self, node: torch.fx.Node) -> bool:
        return node.op == "placeholder" and self._held.takes(node)

    def value(self, node: torch.fx.Node) -> torch.Tensor:
        source, tensor = self._i.graph.contents.example(node)
        self.inputs.append((source, tensor))
        return torch.arange(tensor.numel()).view(tensor.shape)


def _may_hold(i: Interpreter, source: Source, tensor: Any) -> bool:
    """Whether the numbers in a tensor from outside may be held by a guard."""
    if not i.begins_call or type(tensor) not in _CLASSES or tensor.dtype not in _DTYPES:
        return False
    if source.kind == "constant":  # what random numbers are drawn into is another one
        return bool(source.key == _CONSTANT)
    return tensor.numel() <= MOST_NUMBERS and not i.outside.keeps_changing(source.numbers()) and len(numbers_in(tensor)) > 0


def _is_buffer(source: Source) -> bool:
    """Whether a tensor is a buffer of a module: a part of the model, where arguments are its data."""
    return source.base is not None and source.base.kind in ("attr", "item") and source.base.key == "_buffers"


def truth(i: Interpreter, condition: TensorProxy | Symbol) -> bool | None:
    """The truth value of a condition that is computed from constants and from small buffers, which are guarded to stay the
    same; None for others."""
    tensor = condition.tensor if type(condition) is Symbol else condition
    if not i.begins_call or type(tensor) is not TensorProxy or tensor.node is None or tensor.meta.numel != 1:
        return None
    if type(condition) is Symbol and condition.clock != i.graph.contents.clock:
        return None
    found = i.graph.contents.constant(tensor, _Held(i, tensors=True, only_buffers=True))
    return None if found is None else bool(found)


def size_in(i: Interpreter, tensor: TensorProxy) -> Any:
    """The whole number in a 0-dim tensor that stands for a size, where it is computed from constants and from numbers from
    outside, which are guarded to stay the same; the tensor itself otherwise."""
    if tensor.meta.shape or tensor.meta.dtype.is_floating_point:
        return tensor
    number = i.graph.contents.constant(tensor, _Held(i, tensors=False))
    number = held(i, tensor) if number is None else number
    return tensor if number is None else number.item()


def with_sizes(i: Interpreter, value: Any) -> Any:
    """Operands with numbers in place of the tensors that stand for sizes."""
    return mapped(lambda v: size_in(i, v) if type(v) is TensorProxy else v, value)


def held(i: Interpreter, tensor: TensorProxy) -> torch.Tensor | None:
    """What is in a tensor that is computed from constants, numbers and small tensors from outside, which are guarded to stay
    the same; None for other tensors."""
    if not i.begins_call or tensor.cls is not torch.Tensor or tensor.meta.dtype.is_complex:
        return None
    if tensor.node is None and tensor.source is not None and not _may_hold(i, tensor.source, tensor.real):
        return None  # without an input of the graph for it
    i.graph.node_of(tensor)
    return i.graph.contents.constant(tensor, _Held(i, tensors=True))


def number_in(i: Interpreter, tensor: TensorProxy) -> Any:
    """`tensor.item()`: of an element of a small tensor from outside that nothing changed, a number from outside."""
    if i.begins_call and tensor.meta.numel == 1 and tensor.node is not None and tensor.meta.dtype in _DTYPES:
        places = _Places(i)
        place = i.graph.contents.constant(tensor, places)
        if place is not None and len(places.inputs) == 1:
            source, real = places.inputs[0]
            if source.kind != "constant":
                return _numbers(i, source, real)[int(place)]
    return i.graph.number_in(tensor)


def float_in(i: Interpreter, tensor: TensorProxy) -> Any:
    """`float(tensor)`, as a number that may be a whole one. PyTorch warns, once a process, that no gradients will flow.
    Raises `Unsupported` where the warning may be an exception, which the program gets at this place."""
    if tensor.meta.requires_grad and i.graph.keeps_history:
        if any(action == "error" for action, *_ in warnings.filters):
            raise Unsupported("a number out of a tensor that requires gradients, while warnings are exceptions")
        with torch.enable_grad(), torch.inference_mode(False):
            float(torch.zeros((), requires_grad=True))
    return number_in(i, tensor)


def _numbers(i: Interpreter, source: Source, tensor: torch.Tensor) -> tuple[Any, ...]:
    """The numbers in a small tensor, as numbers from outside."""
    i.graph.contents.note_contents_read(source, tensor)
    return i.outside.wrap(numbers_in(tensor), source.numbers())  # type: ignore[no-any-return]


def numbers_of(i: Interpreter, tensor: TensorProxy) -> Any:
    """`tensor.tolist()` of a tensor from outside that nothing changed, as numbers from outside; None for other tensors."""
    source, real = tensor.source, tensor.real
    if source is None or real is None or source.kind == "constant" or not _may_hold(i, source, real):
        return None
    if tensor.node is not None and i.graph.contents.is_written(tensor.node):
        return None
    flat = iter(_numbers(i, source, real))

    def nested(shape: tuple[int, ...]) -> Any:
        return i.mark_created([nested(shape[1:]) for _ in range(shape[0])]) if shape else next(flat)

    return nested(tensor.meta.shape)


def number_of(i: Interpreter, symbol: Symbol) -> Any:
    """The number that a symbol out of a tensor stands for, by `held`; None where that does not tell it."""
    if symbol.tensor is not None:
        found = held(i, symbol.tensor)
        return None if found is None else found.item()
    if symbol.operation is None:
        return None
    function, operands = symbol.operation
    plain = [number_of(i, o) if type(o) is Symbol and o.from_tensor else i.outside.concrete(o) for o in operands]
    return None if any(number is None for number in plain) else i.native(function, *plain)


def call(i: Interpreter, kind: str, target: Any, args: Args, kwargs: Kwargs) -> Any:
    """A call whose results have as many elements as numbers in tensors say, which are held. NotImplemented otherwise."""
    name = target if isinstance(target, str) else name_of(target)
    if not i.begins_call or i.graph.nested or not args:
        return NotImplemented
    if name in _TAKE_LENGTHS:
        return _with_numbers(i, kind, target, args, kwargs)
    if name not in _RULES:
        return NotImplemented
    rule = _RULES[name]
    made = NotImplemented if rule is None else rule(i, *args, **kwargs)
    return _computed(i, target, args, kwargs) if made is NotImplemented else made


def _with_numbers(i: Interpreter, kind: str, target: Any, args: Args, kwargs: Kwargs) -> Any:
    """The same call with numbers in place of the tensors that stand for sizes."""
    of_split = tensors_among([*args[1:], kwargs]) if name_of(target) == "tensor_split" else ()
    if any((t.meta.dtype, t.meta.device.type) != (torch.int64, "cpu") for t in of_split):  # the operator refuses them
        return NotImplemented
    numbers = (args[0], *with_sizes(i, args[1:])), with_sizes(i, kwargs)
    if [*symbolic_leaves(numbers)] == [*symbolic_leaves((args, kwargs))]:
        return NotImplemented
    return i.graph.call(kind, target, *numbers)


def _computed(i: Interpreter, target: Any, args: Args, kwargs: Kwargs) -> Any:
    """The results of a call all of whose operands are held."""
    leaves = [*symbolic_leaves((args, kwargs))]
    if any(type(leaf) is not TensorProxy for leaf in leaves):
        return NotImplemented
    plain = {id(leaf): held(i, leaf) for leaf in leaves}
    if any(value is None for value in plain.values()):
        return NotImplemented
    function = getattr(torch.Tensor, target) if isinstance(target, str) else target
    args, kwargs = tree_map(lambda v: plain.get(id(v), v), (args, kwargs))
    with torch.no_grad():
        made = i.native(function, *args, **kwargs)
    bases: dict[int, TensorProxy] = {}

    def result(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        base = value._base
        if base is None or base.ndim != 2 or value.shape != base.shape[:1] or not value.numel():
            return constant(i, value)
        if id(base) not in bases:  # the columns that `nonzero(as_tuple=True)` gives
            bases[id(base)] = constant(i, base)
        return i.graph.call("call_method", "select", (bases[id(base)], 1, value.storage_offset() // base.stride(1)), {})

    return tree_map(result, made)


def constant(i: Interpreter, tensor: torch.Tensor) -> TensorProxy:
    """A tensor that holds what this one does, new in each call."""
    source = i.outside.roots.constant(_CONSTANT, tensor.clone())
    return i.graph.call("call_method", "clone", (i.outside.wrap(source.owner, source),), {})


def _getitem(i: Interpreter, tensor: TensorProxy, key: Any) -> Any:
    """`tensor[mask]`: the same by indices."""
    indices: list[Any] = []
    for part in key if type(key) is tuple else (key,):
        if type(part) is not TensorProxy and type(part) is not slice:
            return NotImplemented
        if type(part) is slice or part.meta.dtype is not torch.bool:
            indices.append(part)
            continue
        mask = held(i, part)
        begin = len(indices)
        if mask is None or not mask.ndim or mask.shape != tensor.meta.shape[begin : begin + mask.ndim]:
            return NotImplemented
        indices += [constant(i, index) for index in mask.nonzero(as_tuple=True)]
    return i.graph.call("call_function", operator.getitem, (tensor, tuple(indices)), {})


def _repeat_interleave(i: Interpreter, tensor: TensorProxy, repeats: Any = None, dim: Any = None, **options: Any) -> Any:
    """Each element as often as a tensor says: the same by an index."""
    if type(repeats) is not TensorProxy or type(dim) not in (int, type(None)) or options:
        return NotImplemented
    counts = held(i, repeats)
    if counts is None or counts.ndim > 1:
        return NotImplemented
    if dim is None:
        tensor, dim = i.graph.call("call_method", "flatten", (tensor,), {}), 0
    size = tensor.meta.shape[dim]
    if counts.numel() not in (1, size):
        return NotImplemented
    index = constant(i, i.native(torch.repeat_interleave, counts.expand(size)))
    return i.graph.call("call_method", "index_select", (tensor, dim, index), {})


#: Operators whose results have as many elements as the contents of tensors say. A rule says which tensors that are, and
#: gives an operator that needs no others; without one, all operands have to be known.
_RULES: dict[str, Callable[..., Any] | None] = {
    "getitem": _getitem, "repeat_interleave": _repeat_interleave, "nonzero": None, "argwhere": None, "where": None,
    "unique": None, "unique_consecutive": None, "unique_dim": None, "bincount": None, "one_hot": None, "masked_select": None,
}  # fmt: skip
