"""Recording: PyTorch operators on traced tensors become nodes of a functional graph of ATen operators.

A dispatch mode sees each operator below autograd, in forward and in backward. What changes a tensor in place is recorded
as the operator that returns the new contents.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from ..errors import Unsupported
from ..ir.gradients import Step, takes_gradients
from ..ir.modes import DispatchMode, filling_of_memory
from ..ir.nodes import is_view
from ..ir.values import TensorMeta
from .constants import value_of
from .drawing import check_order, is_deterministic, order_in_memory
from .in_place import check_overlaps, check_running, functional_form, view_form
from .inverses import write_through
from .layouts import Out, Spec
from .lists import is_on_lists, members
from .recurrent_layers import recorded_backward, recorded_forward
from .shapes import map_spec, spec_of
from .three_operands import are_converted, as_products
from .traced import Memory, TracedTensor, cut_from_history, make_traced, map_traced, traced_in
from .writer import LAZY, SAME_ELEMENTS, Writer
from .zeros import ZEROS, gives_zeros, zeros_of

aten = torch.ops.aten

#: Gradients of activations that eager computes from the result after a change in place, which not every slope allows.
_FROM_RESULTS = frozenset({aten.leaky_relu_backward.default, aten.elu_backward.default})

#: The types of the tensors that PyTorch takes numbers for.
_WRAPPED = {float: torch.float64, int: torch.int64, bool: torch.bool}


@functools.cache
def _is_composed(function: Any) -> bool:
    """Whether PyTorch composes an operator of others, whose checks have nodes of their own then."""
    return bool(function.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd))


class Recorder(Writer, DispatchMode):
    """Records into `graph` what a `Writer` writes."""

    def __init__(self, graph: Graph, number_node: Callable[[Any], Node | None]) -> None:
        super().__init__(graph, number_node)
        #: The node of the captured graph that is recorded.
        self.captured_node: Node | None = None
        #: The types of devices for which autocast is on; a mode like this one is called with it off.
        self.autocast: frozenset[str] = frozenset()
        self.draws = False
        #: Gives what backward finds in place of what was saved without hooks; None: nothing was.
        self.found_later: Callable[[TracedTensor], TracedTensor] | None = None
        #: Gives the number in a tensor that is an operand in place of one; None: there is no such.
        self.number_in: Callable[[Node], Any] | None = None
        #: Memory of which a custom function returned a view: eager refuses to change such a view.
        self.unchanging: set[Memory] = set()

    # tensors ----------------------------------------------------------------------------------------------------

    def input(self, node: Node, meta: TensorMeta, position: int | None, requires_grad: bool) -> TracedTensor:
        """A traced tensor for a placeholder."""
        plain = TensorMeta(meta.dtype, meta.shape, meta.stride, meta.device)
        return make_traced(plain, Memory(node, plain, position), (), node, 0, requires_grad)

    def tensor_of_numbers(self, numbers: Any, meta: TensorMeta) -> TracedTensor:
        """A tensor of numbers, in lists: constants and nodes."""
        spec = Out(TensorMeta(meta.dtype, meta.shape, meta.stride, meta.device), 0)
        options = {"dtype": meta.dtype, "device": meta.device}
        made: TracedTensor = self._made(spec, self._node(torch.tensor, (numbers,), options, spec))
        return made

    # the mode ---------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.in_backward and self.found_later is not None:
            args = map_traced(self.found_later, args)
        if function in SAME_ELEMENTS:
            return self._same(function, args[0])
        if is_on_lists(function):
            return self._on_lists(function, args, kwargs)
        if torch.is_inference_mode_enabled() and _is_composed(function):  # which autograd does otherwise
            with self:
                return function.decompose(*args, **kwargs)
        if function is aten._to_copy.default and type(args[0]) in _WRAPPED:  # by `vmap`, which gives it a type and axes
            args = (torch.tensor(args[0], dtype=_WRAPPED[type(args[0])]), *args[1:])
        schema = function._schema
        if schema.is_mutable:
            return self._in_place(function, args, kwargs)
        if function is aten.cudnn_batch_norm.default:
            return self._without_cudnn(types, args)
        if function is aten.cudnn_batch_norm_backward.default:
            input_, grad, weight, *statistics, eps, _ = args
            function = aten.native_batch_norm_backward.default
            args = (grad, input_, weight, *statistics, True, eps, [True, True, True])
        if function is aten.native_batch_norm.default and args[5] and args[3] is not None:
            return self._batch_norm(args)
        if function is aten._cudnn_rnn.default:
            return self._recurrent_layer(args)
        if function is aten._cudnn_rnn_backward.default:
            return self._recurrent_layer_backward(args)
        if is_view(function):
            return self._view(function, args, kwargs)
        if function is aten.native_batch_norm_backward.default and args[7]:  # it has no use for running statistics then
            args = (*args[:3], None, None, *args[5:])
        if function is aten._trilinear.default and args[0].device.type in self.autocast and are_converted(args[:3]):
            with self:
                return as_products(*args, **kwargs)
        if torch.Tag.data_dependent_output in function.tags:
            return self._looked_at(function, args, kwargs)
        if function is aten._linalg_check_errors.default and args[0].device.type != "cpu":
            # A kernel that fails on a GPU ends all work there, while the program may handle eager's exception.
            raise Unsupported(f"{args[1]} on a GPU with gradients, as eager waits for whether it succeeds")
        if torch.Tag.nondeterministic_seeded in function.tags and not is_deterministic(function, args):
            self._note_draw()
        if function in _FROM_RESULTS:
            self._check_slope(function, args)
        kwargs = {k: v for k, v in _given(function, kwargs).items() if not (k == "pin_memory" and v is False)}
        masked = mask_in(args[1]) if function is aten.index.Tensor and self._takes_gradients() else None
        if masked is not None and "selects" in self.node_of(masked[0]).meta:
            return self._selected(args[0], *masked)
        if function is aten.index_put.default:
            self._note_mask(*args[:3])
        spec = spec_of(function, args, kwargs)
        if gives_zeros(function, args):
            function, args, kwargs = zeros_of(spec.meta)
        node = self._node(function, tuple([self._operand(a) for a in args]), self._operands(kwargs), spec)
        made = self._made(spec, node)
        if function is ZEROS:
            made.memory.zeros = True
        if function is aten._unsafe_view.default and type(args[0]) is TracedTensor:
            made.memory.part_of = args[0]
        return made

    def _on_lists(self, function: Any, args: Any, kwargs: Any) -> Any:
        with self:
            made = [call() for call in members(function, args, kwargs)]
        return None if function._schema.is_mutable and not function._schema.returns else made

    def _looked_at(self, function: Any, args: Any, kwargs: Any) -> Any:
        """An operator that answers in Python from tensors' contents: PyTorch asks it of tensors that it made itself, or of
        one that stands for a number."""
        if function is aten._local_scalar_dense.default and self.number_in is not None:
            node = self.node_of(args[0])
            return self.number_in(node) if (value := value_of(node)) is None else value.item()

        def contents(tensor: TracedTensor) -> torch.Tensor:
            value = value_of(self.node_of(tensor))
            if value is None:
                raise Unsupported(f"{function._schema.name}, which answers in Python from a tensor's contents")
            return value

        return function(*map_traced(contents, args), **map_traced(contents, kwargs))

    def _takes_gradients(self) -> bool:
        """Whether what is recorded is a gradient, of all that was captured or within it."""
        return self.in_backward or (self.captured_node is not None and takes_gradients(self.captured_node))

    def _note_mask(self, target: Any, indices: Any, values: Any) -> None:
        """Note what an assignment says of how many elements a mask selects: as many as it is given values. None: one value
        went to all of them."""
        masked = mask_in(indices)
        if masked is not None:
            mask, before = masked
            behind = target.ndim - before - mask.ndim
            count = values.shape[-1 - behind] if values.ndim > behind else 1
            facts = self.node_of(mask).meta
            facts["selects"] = facts.get("selects") if count == 1 else count

    def _selected(self, gradient: TracedTensor, mask: TracedTensor, before: int) -> TracedTensor:
        """The gradient of what was assigned to the elements that a mask selects. Where one value went to all of them, it
        will be summed up, so that zeros for the other elements do as well."""
        count = self.node_of(mask).meta["selects"]
        behind = gradient.ndim - before - mask.ndim
        with self:
            flat = gradient.flatten(before, gradient.ndim - behind - 1)
            if count is None:
                return torch.where(mask.reshape(-1, *(1,) * behind), flat, 0)  # type: ignore[return-value]
            up_to = mask.reshape(-1).cumsum(0)
            places = torch.searchsorted(up_to, torch.arange(1, count + 1, device=mask.device))
            return flat.index_select(before, places)  # type: ignore[return-value]

    def _check_slope(self, function: Any, args: Any) -> None:
        """Refuse a slope for which eager raises, and one that may be such."""
        if not any(arg is True for arg in args):
            return
        known = not any(self._number_node(arg) for arg in args if type(arg) is float or type(arg) is int)
        nothing = torch.empty(0)
        try:
            function(*map_traced(lambda _: nothing, args))
        except RuntimeError:
            known = False
        if not known:
            raise Unsupported(f"{function._schema.name}, which not every number allows after a change in place")

    def _operands(self, kwargs: Any) -> Any:
        return {k: self._operand(v) for k, v in kwargs.items()} if kwargs else kwargs

    def _note_draw(self) -> None:
        if self.in_backward:
            raise Unsupported("random numbers drawn in backward")
        self.draws = True

    def _made(self, spec: Spec, node: Node) -> Any:
        """New tensors for the results of a node."""

        def fresh(out: Out, index: int | None) -> TracedTensor:
            return _fresh(node if index is None else self._element(node, index), out)

        return map_spec(fresh, spec)

    def _same(self, function: Any, tensor: Any) -> TracedTensor:
        if type(tensor) is not TracedTensor:
            node = self._constant(tensor)
            meta = node.meta["val"]
            return make_traced(meta, Memory(node, meta), (), node)
        node = self.node_of(tensor)
        path = (*tensor.path, Step(function, with_grad=torch.is_grad_enabled()))
        return make_traced(tensor.meta, tensor.memory, path, node, int(tensor.storage_offset()), base=tensor)

    def _view(self, function: Any, args: Any, kwargs: Any) -> Any:
        base = args[0]
        if isinstance(base, complex):  # which a complex tensor is multiplied by: it is conjugated for the gradient
            number = function(torch.tensor(base, dtype=torch.complex128), *args[1:], **kwargs)
            return self._same(function, number.resolve_conj())
        if type(base) is not TracedTensor:
            raise Unsupported("a view of a tensor that is no input")
        if any(True for _ in traced_in((args[1:], kwargs))):
            raise Unsupported(f"{function} with several tensors")
        if function is aten.as_strided.default:
            return self._strided(base, *args[1:], **kwargs)
        computed = LAZY.get(function, function)
        spec = spec_of(computed, args, kwargs)
        options = self._operands(kwargs)
        node = self._node(computed, (self.node_of(base), *[self._operand(a) for a in args[1:]]), options, spec)
        offset = int(base.storage_offset())
        if computed is not function:
            base.memory.seen_lazily |= not self.in_backward

        def seen(out: Out, index: int | None) -> TracedTensor:
            own = node if index is None else self._element(node, index)
            step = Step(function, tuple(args[1:]), tuple(kwargs.items()), index, torch.is_grad_enabled())
            return make_traced(out.meta, base.memory, (*base.path, step), own, offset + out.offset, base=base)

        made = map_spec(seen, spec)
        return list(made) if isinstance(made, tuple) else made

    def _strided(self, base: TracedTensor, size: Any, stride: Any, storage_offset: int | None = None) -> TracedTensor:
        """A view by strides, which are those of the whole memory, whatever part of it `base` is."""
        memory = base.memory
        begin = int(base.storage_offset()) if storage_offset is None else storage_offset
        whole = memory.meta
        seen = TensorMeta(whole.dtype, tuple(size), tuple(stride), whole.device)
        inside = begin >= memory.offset and begin * seen.dtype.itemsize + seen.span_bytes <= whole.span_bytes
        if not inside or base.dtype != whole.dtype or whole.nbytes != whole.span_bytes:
            raise Unsupported("a view by strides of memory with gaps, or as another type")
        place: tuple[Any, ...] = (begin,)
        if memory.input is not None:  # which may be a part of a larger tensor: where it begins is not known here
            if storage_offset is not None or begin:
                raise Unsupported("a view by strides of a part of an input")
            place = ()
        elif memory.offset:
            raise Unsupported("a view by strides of a part of a tensor")
        step = Step(aten.as_strided.default, (list(size), list(stride), *place), with_grad=torch.is_grad_enabled())
        node = self._node(step.function, (memory.node, *step.args), {}, Out(seen, 0))
        return make_traced(seen, memory, (*cut_from_history(base.path), step), node, begin, base=base)

    # changes in place -------------------------------------------------------------------------------------------

    def _in_place(self, function: Any, args: Any, kwargs: Any) -> Any:
        if torch.Tag.inplace_view in function.tags:
            return self._seen_in_place(function, args, kwargs)
        schema = function._schema
        form = functional_form(function)
        if form.function is aten.index_put.default:
            self._note_mask(*args[:3])
        for argument in schema.arguments[len(args) :]:  # defaults that the other form may not have
            if not argument.kwarg_only and argument.name not in kwargs:
                args = (*args, argument.default_value)
        given = {**{a.name: value for a, value in zip(schema.arguments, args, strict=False)}, **kwargs}
        targets = [None if name is None else given[name] for name in form.written]
        if not all(t is None or type(t) is TracedTensor for t in targets):
            raise Unsupported(f"{schema.name}, which changes a tensor that is no input")
        if not self.in_backward:
            check_overlaps([t for t in targets if t is not None], [*traced_in((args, kwargs))])
        kwargs = {k: v for k, v in kwargs.items() if k not in form.left_out}
        if form.makes_tensors:
            kwargs |= {"dtype": targets[0].meta.dtype, "device": targets[0].meta.device}
        elif form.computes_in and not args[0].meta.dtype.is_complex:
            kwargs |= {"dtype": targets[0].meta.dtype}
        if torch.Tag.nondeterministic_seeded in form.function.tags:
            self._note_draw()
            check_order(targets, row_major=form.makes_tensors)
        kwargs = _given(form.function, kwargs)
        spec = spec_of(form.function, args, kwargs)
        node = self._copied(args[0], args[1]) if form.function is aten.copy.default else None
        if form.function is aten.bernoulli.p and not args[0].meta.is_contiguous:
            node = self._in_memory_order(form.function, args[0], *args[1:], **kwargs)
        if node is None:
            node = self._node(form.function, tuple([self._operand(a) for a in args]), self._operands(kwargs), spec)
        single = len(targets) == 1
        nodes = [node] if single else [self._element(node, k) for k in range(len(targets))]
        returned: list[Any] = []
        for k, (target, own, out) in enumerate(zip(targets, nodes, [spec] if single else spec, strict=True)):
            if target is not None:
                if form.written[k] in form.left_out and out.meta.shape != target.meta.shape:
                    raise Unsupported("an `out` argument that has to be resized")
                self.write(target, own, declared=k < form.results)
            returned.append(_fresh(own, out) if target is None else target)
        del returned[form.results :]
        return returned[0] if form.results == 1 else tuple(returned) if returned else None

    def _seen_in_place(self, function: Any, args: Any, kwargs: Any) -> TracedTensor:
        """An operator like `squeeze_`, after which a tensor looks at its memory in another way."""
        target = args[0]
        if function is aten.transpose_.default and args[1] == args[2]:  # see `capture.pytorch.tensor_attributes`
            return target  # type: ignore[no-any-return]
        if type(target) is not TracedTensor or target.memory.input is not None:
            raise Unsupported(f"{function._schema.name} of a tensor from outside")
        if function in _RESIZE and self._is_new_and_empty(target) and not kwargs and not all(filling_of_memory().values()):
            return self._get_elements(target, args[1].shape if type(args[1]) is TracedTensor else args[1])
        seen = self._view(view_form(function), args, kwargs)
        with torch._C._DisableTorchDispatch():
            function(*args, **kwargs)
        if (tuple(target.shape), target.stride()) != (seen.meta.shape, seen.meta.stride):
            raise Unsupported(f"{function._schema.name}, whose result looks otherwise than was expected")
        target.path, target.known, target.seen, target.meta = seen.path, seen.known, seen.seen, seen.meta
        target.memory.changes += 1
        target.memory.changed_by = self.captured_node
        return target

    def _is_new_and_empty(self, target: TracedTensor) -> bool:
        """Whether the call that is recorded is the first to use a tensor, which has no elements yet."""
        call = self.captured_node
        made = call.args[0] if call is not None and call.args else None
        first = isinstance(made, Node) and next(iter(made.users)) is call and made.op != "placeholder"
        return first and not (target.path or target.meta.numel or target.requires_grad or target.is_inference())

    def _get_elements(self, target: TracedTensor, shape: Sequence[int]) -> TracedTensor:
        """`resize_` of a tensor without elements: new memory, that nobody else has."""
        meta, memory = target.meta, target.memory
        memory.node = target.known = self.emit(aten.empty.memory_format, list(shape), dtype=meta.dtype, device=meta.device)
        memory.meta = target.meta = target.known.meta["val"]
        with torch._C._DisableTorchDispatch():
            target.data = make_traced(target.meta, memory, (), memory.node)
        memory.version += 1
        memory.changes += 1
        memory.changed_by = self.captured_node
        target.seen = memory.version
        return target

    def _in_memory_order(self, function: Any, target: TracedTensor, *args: Any, **kwargs: Any) -> Node:
        """Random numbers for the elements in the order in which they lie in memory, by an operator that goes by index."""
        order = order_in_memory(target.meta)
        permuted = self.emit(aten.permute.default, self.node_of(target), order)
        drawn = self.emit(function, permuted, *map(self._operand, args), **self._operands(kwargs))
        return self.emit(aten.permute.default, drawn, [order.index(k) for k in range(len(order))])

    def _copied(self, target: TracedTensor, source: Any) -> Node | None:
        """What `target` holds after `source` was copied to it, where that is `source` as it is."""
        if type(source) is not TracedTensor or source.meta != target.meta:
            return None
        return self.node_of(source)

    def write(self, tensor: TracedTensor, node: Node, declared: bool = True) -> None:
        """Note that a tensor holds what `node` computes from here on; `declared`: and that PyTorch counts the change."""
        if node.meta["val"] != tensor.meta:
            node = self.emit(aten.copy.default, self.node_of(tensor), node)
        memory = tensor.memory
        if memory in self.unchanging:
            raise Unsupported("a change of memory of which a torch.autograd.Function has returned a view")
        if memory.zeros:
            raise Unsupported("a change of zeros without memory, which eager refuses")
        if memory.seen_lazily:  # some operators copy such a view where they return others as they are
            raise Unsupported("a change of memory of which a view is conjugated or negated when it is read")
        parents = [memory.node]
        for step in tensor.path[:-1]:
            parents.append(self._step(step, parents[-1]))
        for parent, step in zip(reversed(parents), reversed(tensor.path), strict=False):
            meta = parent.meta["val"]
            part = node
            node = write_through(self.emit, parent, meta, part, step)
            if node.meta["val"] != meta:
                node = self.emit(aten.copy.default, parent, node)
        memory.node = node
        memory.version += 1
        memory.changes += declared
        if torch.is_grad_enabled() and not any(step.function is aten.detach.default for step in tensor.path):
            memory.changed_by = self.captured_node
        if not tensor.path:
            tensor.known, tensor.seen = node, memory.version
        if memory.part_of is not None:
            base = memory.part_of
            self.write(base, self.emit(aten.view.default, node, list(base.meta.shape)), declared=False)

    def _without_cudnn(self, types: Any, args: Any) -> Any:
        """Batch normalisation as it is without cuDNN, which needs no memory of its own for backward: kernels compute it."""
        made = self.__torch_dispatch__(aten.native_batch_norm.default, types, args)
        with self:
            return (*made, torch.empty(0, dtype=torch.uint8, device=args[0].device))

    def _recurrent_layer(self, args: Any) -> Any:
        """A recurrent layer by cuDNN, whose weights in one piece of memory are found when it runs."""
        target, arguments, spec = recorded_forward(*args)
        node = self._node(target, tuple([self._operand(a) for a in arguments]), {}, spec)
        # Backward gets the last one in place of that memory, and leaves it alone.
        return (*self._made(spec, node), _fresh(self._element(node, 3), spec[3]))

    def _recurrent_layer_backward(self, args: Any) -> Any:
        target, arguments, spec, wanted = recorded_backward(self.node_of(args[-2]), self.in_backward, *args)
        node = self._node(target, tuple([self._operand(a) for a in arguments]), {}, tuple(spec))
        made = iter(self._made(tuple(spec), node))
        found = [next(made) if is_wanted else None for is_wanted in wanted]
        return (*found[:3], found[3:] if wanted[3] else [])

    def _batch_norm(self, args: Any) -> Any:
        """Batch normalisation in training changes the running statistics, although its schema does not say so."""
        function = aten._native_batch_norm_legit_functional.default
        check_running(args[3:5], args[:5])
        spec = spec_of(function, args, {})
        node = self._node(function, tuple([self._operand(a) for a in args]), {}, spec)
        for position, index in ((3, 3), (4, 4)):
            self.write(args[position], self._element(node, index), declared=False)
        return self._made(spec[:3], node)


#: What gives a tensor another number of elements.
_RESIZE = (aten.resize_.default, aten.resize_as_.default)


def _fresh(node: Node, out: Out) -> TracedTensor:
    return make_traced(out.meta, Memory(node, out.meta, offset=out.offset), (), node, out.offset)


def mask_in(indices: Any) -> tuple[TracedTensor, int] | None:
    """The mask that selects elements, if that is all that the indices are, and how many axes come before its own."""
    given = [(index, k) for k, index in enumerate(indices) if index is not None]
    is_mask = len(given) == 1 and type(given[0][0]) is TracedTensor and given[0][0].dtype is torch.bool
    return given[0] if is_mask else None


def _given(function: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments but for those that are None, where an operator can do without."""
    nones = {k for k, v in kwargs.items() if v is None}
    if nones:
        nones = {a.name for a in function._schema.arguments if a.name in nones and a.has_default_value()}
    return {k: v for k, v in kwargs.items() if k not in nones}
