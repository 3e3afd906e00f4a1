"""A run of a captured graph on tensors without data, with PyTorch's own autograd.

Which gradients there are, how they are laid out, and whether they have a history themselves is autograd's to say.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ...errors import Unsupported
from ...ir.autograd_graph import leaves_behind
from ...ir.convolution import memory_format_of_convolution, stride_in_format, stride_of_weight_gradient
from ...ir.gradients import replacing_grad
from ...ir.modes import ATTENTION, MODE_CHANGES, SETTERS, DispatchMode, enter_inference, leave_inference, modes_restored
from ...ir.own_gradients import OwnGradients, applied, check_once, own_gradients
from ...ir.transforms import transformed_graph
from ...ir.values import NumberMeta, TensorMeta
from ..inference.on_device import Dispatching, OnDevice, WithoutData
from ..inference.results import check_plain, meta_of
from ..inference.stand_ins import call, is_leaf, laid_out, stand_in_for
from ..symbolic import TensorProxy
from .builder import Builder

aten = torch.ops.aten

_META = torch.device("meta")
_CHOICES = frozenset(allow for _, allow in ATTENTION.values())


class Shadow:
    """Runs the nodes of one graph, each once, as far as there are nodes. `placed`: there is autocast in it, which converts
    the operands of what is on its device."""

    def __init__(self, grad: bool, placed: bool) -> None:
        self._values: dict[torch.fx.Node, Any] = {}
        self._grad = grad
        self._placed = placed
        #: The autocast settings that the nodes so far have changed: calls that make them again.
        self._settings: list[tuple[Any, Any]] = []

    def gradients(
        self, graph: Builder, outputs: list[TensorProxy], inputs: list[TensorProxy], weights: list[Any],
        options: dict[str, Any], replaced: Sequence[tuple[TensorProxy, TensorProxy]] = (),
    ) -> tuple[Any, list[int | None]]:  # fmt: skip
        """The metadata of what `torch.autograd.grad` returns, and for each result the place of its first occurrence. The
        gradients of the tensors `replaced` are others on the way, with which they stand there. Raises `Unsupported` where
        PyTorch raises, or the graph does not run without data."""
        self._catch_up(graph)
        layouts = _LayoutsOn(outputs[0].meta.device)
        results = self._gradients(graph, outputs, self._of(graph, inputs), weights, options, layouts, replaced)
        first: dict[int, int] = {}
        places = [None if r is None else first.setdefault(id(r), k) for k, r in enumerate(results)]
        metas = [None if r is None else _meta(r, tensor.meta.device) for r, tensor in zip(results, inputs, strict=True)]
        return tuple(metas), places

    def order(
        self, graph: Builder, outputs: list[TensorProxy], wanted: list[TensorProxy], weights: list[Any],
        tensors: list[TensorProxy],
    ) -> list[int]:  # fmt: skip
        """The places of those of some `tensors` that get a gradient on the way from `outputs` to the `wanted` ones, in the
        order in which they do."""
        self._catch_up(graph)
        watched = self._of(graph, tensors)
        order: list[int] = []
        handles = [
            tensor.register_hook(lambda _, k=k: order.append(k))
            for k, tensor in enumerate(watched)
            if tensor.requires_grad  # a hook may be left on a parameter that was frozen since
        ]
        starts, options = self._of(graph, wanted), {"allow_unused": True}
        try:
            self._gradients(graph, outputs, starts, weights, options, contextlib.nullcontext())
        finally:
            for handle in handles:
                handle.remove()
        return order

    def leaves(self, graph: Builder, outputs: list[TensorProxy], weights: list[Any]) -> list[torch.fx.Node]:
        """The leaves that get a gradient from `outputs`. A history may lead to others too: to a bias, which the gradient of
        a linear layer does not depend on. Raises `Unsupported` where gradients flow out of the graph, or it does not run
        without data."""
        self._catch_up(graph)
        known: dict[int, torch.fx.Node] = {}
        for node, value in self._values.items():
            known.setdefault(id(value), node)  # others are of calls that return an operand, such as `requires_grad_()`
        ends = self._of(graph, outputs)
        own = [end for end in ends if end.is_leaf and end.requires_grad]
        leaves = [*{id(leaf): leaf for leaf in (*own, *leaves_behind(ends))}.values()]
        if any(id(leaf) not in known for leaf in leaves):
            raise Unsupported("backward() through gradients to a tensor that was computed outside of the graph")
        if not leaves:
            return []
        results = self._gradients(graph, outputs, leaves, weights, {"allow_unused": True}, contextlib.nullcontext())
        return [known[id(leaf)] for leaf, result in zip(leaves, results, strict=True) if result is not None]

    def is_used_up(self, graph: Builder, output: TensorProxy) -> bool:
        """Whether what the gradients of a tensor need was freed. Raises `Unsupported` where the graph does not run without
        data."""
        self._catch_up(graph)
        (end,) = self._of(graph, [output])
        leaves = [*leaves_behind([end])]
        try:
            if leaves:
                torch.autograd.grad([end], leaves, [torch.ones_like(end)], retain_graph=True, allow_unused=True)
        except RuntimeError as error:
            return "second time" in str(error)
        return False

    def _gradients(
        self, graph: Builder, outputs: list[TensorProxy], starts: list[torch.Tensor], weights: list[Any],
        options: dict[str, Any], layouts: contextlib.AbstractContextManager[Any],
        replaced: Sequence[tuple[TensorProxy, TensorProxy]] = (),
    ) -> Any:  # fmt: skip
        if graph.grad_enabled and not graph.keeps_history:
            raise Unsupported("torch.autograd.grad in inference mode")
        ends = self._of(graph, outputs)
        on_the_way = [self._of(graph, [pair[k] for pair in replaced]) for k in (0, 1)] if replaced else []
        given = [None if weight is None else self._of(graph, [weight])[0] for weight in weights]
        try:
            with self._in_settings(), torch.set_grad_enabled(graph.grad_enabled), layouts:
                take: Any = replacing_grad if replaced else torch.autograd.grad
                return take(ends, starts, *on_the_way, grad_outputs=given, **{**options, "retain_graph": True})
        except Exception as error:
            raise Unsupported(f"torch.autograd.grad raises: {error}") from error

    def _of(self, graph: Builder, tensors: list[TensorProxy]) -> list[torch.Tensor]:
        nodes = [graph.node_of(tensor) for tensor in tensors]
        for node, tensor in zip(nodes, tensors, strict=True):
            if node not in self._values:
                self._values[node] = self._placeholder(graph, node, tensor)
        return [self._values[node] for node in nodes]

    @contextlib.contextmanager
    def _in_settings(self) -> Iterator[None]:
        """PyTorch's settings are those of the graph where its nodes end so far."""
        with modes_restored(), Dispatching() if self._placed else contextlib.nullcontext():
            for function, args in self._settings:
                function(*args)
            yield

    def _catch_up(self, graph: Builder) -> None:
        """Run the nodes that were added since the last time."""
        with self._in_settings(), torch.set_grad_enabled(self._grad):
            for node in graph.graph.nodes:
                if node not in self._values:
                    self._values[node] = self._run(graph, node)
            self._grad = torch.is_grad_enabled()

    def _run(self, graph: Builder, node: torch.fx.Node) -> Any:
        if node.op == "placeholder":
            return self._placeholder(graph, node, graph.history.tensor(node))
        meta = node.meta.get("val")
        if isinstance(meta, NumberMeta) and meta.from_tensor:
            return meta.kind(1)
        if node.target is torch._C._set_grad_enabled:
            return torch._C._set_grad_enabled(*node.args)
        if node.target in _CHOICES or node.target in SETTERS:
            return None  # which makes no difference to layouts and to what has gradients
        if node.target in MODE_CHANGES:
            if not self._placed or node.target in (enter_inference, leave_inference):
                raise Unsupported("torch.autograd.grad in a graph with autocast around a part of it, or inference mode")
            self._settings.append((node.target, node.args))
            return node.target(*node.args)  # type: ignore[operator]
        own = own_gradients(node.target)
        if own is None and "own_gradients" in node.meta and node.target is not operator.getitem:
            raise Unsupported("torch.autograd.grad in a graph with a torch.autograd.Function")
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), self._values.__getitem__)
        args, kwargs = _moved(args), _moved(kwargs)
        kwargs.update({k: 1 for k in _NUMBERS if isinstance(v := kwargs.get(k), torch.Tensor) and not v.ndim})
        if node.target is operator.getitem and isinstance(args[0], torch.Tensor):
            args = (args[0], _with_any_number(args[1]))
        function: Any = getattr(torch.Tensor, str(node.target)) if node.op == "call_method" else node.target
        if own is not None:
            function = self._applying(graph, own, not isinstance(meta, TensorMeta))
        tensors = any(isinstance(self._values[operand], torch.Tensor) for operand in node.all_input_nodes)
        surroundings: Any = contextlib.nullcontext() if tensors else _META
        if transformed_graph(function) is not None:
            surroundings = WithoutData()
        device = meta.device if isinstance(meta, TensorMeta) else _META
        try:
            with surroundings, _LayoutsOn(device):
                made = call(function, args, kwargs, torch.is_grad_enabled())
        except Unsupported:
            raise
        except Exception as error:
            raise Unsupported(f"torch.autograd.grad in a graph that does not run without data: {error}") from error
        if type(made) in (torch.Tensor, OnDevice) and type(meta) is TensorMeta and made.shape == meta.shape:
            return made if made._is_view() or made.stride() == meta.stride else laid_out(made, meta.stride)
        return made

    def _applying(self, graph: Builder, own: OwnGradients, is_tuple: bool) -> Callable[..., Any]:
        """What a call of a custom function computes."""

        def run(nodes: tuple[torch.fx.Node, ...]) -> None:
            check_once(own, nodes)
            for node in nodes:
                self._values[node] = self._run(graph, node)

        return lambda *arguments: applied(own, self._values, run, arguments, is_tuple)

    def _placeholder(self, graph: Builder, node: torch.fx.Node, tensor: TensorProxy | None) -> Any:
        meta = node.meta["val"]
        if isinstance(meta, TensorMeta):
            return stand_in_for(meta, tensor is not None and is_leaf(tensor), self._placed)
        return next(e for k, e in zip(graph.inputs, graph.examples, strict=True) if k.name == node.name)


class _LayoutsOn(DispatchMode):
    """Lays out the results of convolutions, and of their gradients, as the library for a device does: `meta` has none."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        if function is aten.convolution.default:
            x, weight, bias, *settings = args
            memory_format, _ = self._format(x, weight, bias, *settings, None)
            return _restrided(made, stride_in_format(made.shape, memory_format))
        if function is aten.convolution_backward.default:
            _, x, weight, bias_sizes, *settings, _ = args
            memory_format, backend = self._format(x, weight, None, *settings, bias_sizes)
            of_input, of_weight, of_bias = made
            if of_input is not None:
                of_input = _restrided(of_input, stride_in_format(x.shape, memory_format))
            if of_weight is not None:
                of_weight = _restrided(of_weight, stride_of_weight_gradient(meta_of(weight), memory_format, backend))
            return of_input, of_weight, of_bias
        return made

    def _format(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *settings: Any) -> Any:
        axes = weight.ndim - 2
        settings = tuple([v * axes if type(v) is list and len(v) == 1 else v for v in settings])
        operands = [None if t is None else OnDevice(t.detach(), self._device) for t in (x, weight, bias)]
        return memory_format_of_convolution(*operands, *settings)


def _restrided(made: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    return torch.empty_strided(made.shape, stride, dtype=made.dtype, device=made.device)


def _with_any_number(index: Any) -> Any:
    """An index with a number in place of tensors that hold one: which it is makes no difference here."""
    if isinstance(index, tuple):
        return tuple([_with_any_number(part) for part in index])
    whole = isinstance(index, torch.Tensor) and not index.ndim and index.dtype not in (torch.bool, torch.uint8)
    return 0 if whole else index


#: Numbers for which a program may give tensors that hold them: any number does here.
_NUMBERS = frozenset({"alpha", "beta", "value"})


def _moved(value: Any) -> Any:
    """Operands with `meta` in place of any device, and without generators, whose numbers are the program's."""
    kind = type(value)
    if kind is torch.Generator:
        return None
    if kind is torch.device:
        return _META
    if isinstance(value, (list, tuple)):
        elements = [_moved(v) for v in value]
        return elements if isinstance(value, list) else tuple(elements)
    if isinstance(value, dict):
        return {k: _META if k == "device" and v is not None else _moved(v) for k, v in value.items()}
    return value


def _meta(tensor: torch.Tensor, device: torch.device) -> TensorMeta:
    if type(tensor) is not OnDevice:
        check_plain(tensor)
    return meta_of(tensor, device)
