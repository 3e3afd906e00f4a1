"""Graphs for tests, without the capture stage: run a function on real tensors and record the PyTorch calls it makes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.overrides import TorchFunctionMode

from quickfuse.ir.values import NumberMeta, TensorMeta

_DUNDERS = {
    f"__{prefix}{name}__": getattr(operator, f"{prefix}{name}", None) or getattr(operator, f"{name}_")
    for prefix in ("", "i")
    for name in "add sub mul truediv floordiv mod pow and or xor lshift rshift".split()
} | {f"__{name}__": getattr(operator, name) for name in "neg abs invert getitem setitem eq ne lt le gt ge matmul".split()}
_REVERSED = {f"__r{name}__": _DUNDERS[f"__{name}__"] for name in "add sub mul truediv floordiv mod pow".split()}
#: What PyTorch reports in place of the reversed operators.
_WRAPPED = {"__rdiv__": operator.truediv, "__rsub__": operator.sub, "__rpow__": operator.pow}


def meta_of(tensor: torch.Tensor) -> TensorMeta:
    return TensorMeta(tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.device)


class Number(float):
    """A Python float that records what is computed from it."""

    node: Node
    recorder: Recorder
    from_tensor: bool

    def __hash__(self) -> int:
        return super().__hash__()


def _number_method(function: Callable[..., Any], swapped: bool = False) -> Callable[..., Any]:
    def method(self: Number, *others: Any) -> Any:
        if any(isinstance(other, torch.Tensor) for other in others):
            return NotImplemented
        operands = (*others, self) if swapped else (self, *others)
        value = function(*(float(o) if isinstance(o, Number) else o for o in operands))
        return self.recorder.number(value, function, operands)

    return method


for _name in "add sub mul truediv floordiv mod pow".split():
    setattr(Number, f"__{_name}__", _number_method(getattr(operator, _name)))
    setattr(Number, f"__r{_name}__", _number_method(getattr(operator, _name), swapped=True))
for _name in ("neg", "abs"):
    setattr(Number, f"__{_name}__", _number_method(getattr(operator, _name)))


class Recorder(TorchFunctionMode):
    """While active, every PyTorch function on known tensors becomes a node."""

    def __init__(self) -> None:
        super().__init__()
        self.graph = Graph()
        self.nodes: dict[int, Node] = {}
        self.kept: list[Any] = []  # so that ids stay unique

    def bind(self, value: Any, node: Node) -> None:
        self.nodes[id(value)] = node
        self.kept.append(value)

    def placeholder(self, name: str, value: Any) -> Any:
        node = self.graph.placeholder(name)
        if isinstance(value, torch.Tensor):
            node.meta["val"] = meta_of(value)
            self.bind(value, node)
            return value
        node.meta["val"] = NumberMeta(type(value))
        return self._number(value, node, from_tensor=False)

    def number(self, value: Any, function: Callable[..., Any], operands: Sequence[Any]) -> Any:
        from_tensor = any(isinstance(o, Number) and o.from_tensor for o in operands)
        node = self.graph.call_function(function, tuple(self.argument(o) for o in operands))
        node.meta["val"] = NumberMeta(type(value), from_tensor)
        return self._number(value, node, from_tensor)

    def _number(self, value: float, node: Node, from_tensor: bool) -> Number:
        number = Number(value)
        number.node, number.recorder, number.from_tensor = node, self, from_tensor
        return number

    def argument(self, value: Any) -> Any:
        if isinstance(value, Number):
            return value.node
        if isinstance(value, torch.Tensor):
            if id(value) not in self.nodes:
                raise AssertionError("a tensor that is no input of the function")
            return self.nodes[id(value)]
        if isinstance(value, (list, tuple)) and type(value) is not torch.Size:
            return type(value)(self.argument(v) for v in value)
        if isinstance(value, Mapping):
            return {k: self.argument(v) for k, v in value.items()}
        if isinstance(value, slice):
            return slice(self.argument(value.start), self.argument(value.stop), self.argument(value.step))
        return value

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        plain = [_plain(a) for a in args]
        result = function(*plain, **{k: _plain(v) for k, v in kwargs.items()})
        if name == "item":
            node = self.graph.call_method("item", self.argument(args))
            node.meta["val"] = NumberMeta(type(result), from_tensor=True)
            return self._number(result, node, from_tensor=True)
        in_place = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
        if not _has_tensor(result) and not in_place:
            return result
        if name == "__get__" and id(result) in self.nodes:
            return result
        node = self._node(function, name, args, kwargs)
        return self._record(result, node)

    def _node(self, function: Any, name: str, args: Any, kwargs: Any) -> Node:
        arguments, options = self.argument(tuple(args)), self.argument(kwargs)
        if name == "__get__":
            return self.graph.call_function(getattr, (arguments[0], function.__self__.__name__))
        if name in _REVERSED or name in _WRAPPED:
            target = _WRAPPED.get(name) or _REVERSED[name]
            return self.graph.call_function(target, (arguments[1], arguments[0]))
        if name in _DUNDERS:
            return self.graph.call_function(_DUNDERS[name], arguments)
        if getattr(function, "__objclass__", None) in (torch._C.TensorBase, torch.Tensor):
            return self.graph.call_method(name, arguments, options)
        return self.graph.call_function(function, arguments, options)

    def _record(self, result: Any, node: Node) -> Any:
        if isinstance(result, torch.Tensor):
            node.meta["val"] = meta_of(result)
            if id(result) not in self.nodes:
                self.bind(result, node)
            return result
        if isinstance(result, (list, tuple)):
            node.meta["val"] = [meta_of(r) for r in result]
            for k, element in enumerate(result):
                if id(element) not in self.nodes:
                    item = self.graph.call_function(operator.getitem, (node, k))
                    item.meta["val"] = meta_of(element)
                    self.bind(element, item)
        else:
            node.meta["val"] = None
        return result


def _plain(value: Any) -> Any:
    if isinstance(value, Number):
        return float(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(v) for v in value) if type(value) in (list, tuple) else value
    return value


def _has_tensor(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_has_tensor, value))
    return isinstance(value, torch.Tensor)


def trace(function: Callable[..., Any], *inputs: Any) -> GraphModule:
    """The graph of `function(*inputs)`. Inputs are tensors, floats, and lists of tensors; they may be changed.

    The graph's placeholders are the flattened inputs; it returns the flattened tensors and numbers that the function
    returns.
    """
    recorder = Recorder()
    arguments = [_bind(recorder, f"a{k}", value) for k, value in enumerate(inputs)]
    with torch.no_grad(), recorder:
        result = function(*arguments)
    recorder.graph.output(tuple(recorder.argument(v) for v in flatten(result)))
    return GraphModule(torch.nn.Module(), recorder.graph)


def _bind(recorder: Recorder, name: str, value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_bind(recorder, f"{name}_{k}", v) for k, v in enumerate(value))
    return recorder.placeholder(name, value)


def flatten(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [leaf for element in value for leaf in flatten(element)]
    return [] if value is None else [value]


def copy_inputs(inputs: Sequence[Any]) -> list[Any]:
    """Fresh tensors with the contents and the strides of `inputs`."""
    return [copy_inputs(v) if isinstance(v, (list, tuple)) else copy_of(v) for v in inputs]


def copy_of(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if value.numel() == 0 or any(s == 0 for s in value.stride()) or not value.is_contiguous():
        size = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True)) if value.numel() else 0
        fresh = value.new_zeros(size).as_strided(value.shape, value.stride())
        if value.numel():
            span = value.as_strided((size,), (1,), value.storage_offset())
            fresh.as_strided((size,), (1,)).copy_(span)
        return fresh
    return value.clone()


@contextmanager
def as_if_compiling() -> Iterator[None]:
    """Let `torch.compiler.is_compiling()` be true, so that optimizers take the branch that keeps numbers in tensors."""
    before = torch.compiler.is_compiling
    torch.compiler.is_compiling = lambda: True
    try:
        yield
    finally:
        torch.compiler.is_compiling = before




def on_gpu(gm: GraphModule, on_cpu: Sequence[str] = ()) -> GraphModule:
    """Pretend that a graph's tensors are on a GPU, but for the placeholders `on_cpu` and what follows from them alone."""
    gpu = torch.device("cuda", 0)

    def moved(meta: Any) -> Any:
        if isinstance(meta, (list, tuple)):
            return [moved(m) for m in meta]
        return replace(meta, device=gpu) if isinstance(meta, TensorMeta) else meta

    followers: set[Node] = set()
    for node in gm.graph.nodes:
        operands = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), (TensorMeta, list, tuple))]
        is_on_gpu = node.name not in on_cpu if node.op == "placeholder" else any(n in followers for n in operands)
        if is_on_gpu and node.op != "output":
            followers.add(node)
            node.meta["val"] = moved(node.meta["val"])
    return gm
