"""The state of one lowering: the program so far, and how values are read, kept, stored and replaced."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from quickfuse.errors import Unsupported
from quickfuse.ir.choices import count_choices, simplified
from quickfuse.ir.cost_model import COSTS
from quickfuse.ir.expr import Const, Expr, Load, Op, Scalar, is_computed, walk
from quickfuse.ir.loop import Access, Buffer, Extern, HostScalar, Loop, Program, Store, StoreKind, View, memory_at
from quickfuse.ir.philox import Stream
from quickfuse.ir.relayout import Layout, index_map_of, relayout
from quickfuse.ir.values import TensorMeta, contiguous_stride, is_dense, overlaps_itself

from . import ops
from .adapted import with_part
from .layout import Shape, broadcast, costs_at_least, read_order, replace_part
from .promotion import NUMBER, is_float
from .symbolic import Storage, Tensor, whole_load

_CPU = torch.device("cpu")


#: How PyTorch draws random numbers on a GPU; None where that is not known.
StreamOf = Callable[[torch.device], Stream | None]


class Context:
    """What rules work with. Values are expressions over the index of the tensor that they belong to."""

    def __init__(self, stream: StreamOf | None = None) -> None:
        """`stream` tells how PyTorch draws random numbers on a GPU, where kernels may do so."""
        self.program = Program()
        self._stream_of = stream
        self.default_dtype = torch.get_default_dtype()
        self._scalars: dict[str, HostScalar] = {}
        self._scalar_of_code: dict[str, Scalar] = {}
        self._stored: dict[int, tuple[Expr, Buffer]] = {}
        #: The formulas of values that the schedule may store, by the buffers that they would be in, and how they would lie.
        self._offered: dict[Buffer, tuple[Expr, Layout]] = {}
        self._on_host: dict[int, tuple[Expr, Expr]] = {}
        self._broadcast: dict[tuple[int, Shape, Shape], tuple[Expr, Expr]] = {}
        self._temps = 0
        #: How many results of calls kernels do not read.
        self.handed = 0
        #: Storages that are the same memory, of different types, and how often the first one had been changed before.
        self.aliases: list[tuple[Storage, Storage, int]] = []
        #: The temporaries of the second ones, by id: copies of these storages may be loads of them, and are not in them.
        self.memory_of: dict[int, Storage] = {}
        self._last_in_order: Extern | None = None
        self._flags: dict[torch.device, Buffer] = {}
        self._assigned: list[tuple[Storage, Expr | None, int]] = []
        self._assigned_ids: set[int] = set()
        self._choices: dict[int, tuple[Expr, int]] = {}
        #: (id of an index, size, whether it may be negative) -> the index, the place that it means, where it is in range.
        self.checked: dict[tuple[int, int, bool, bool], tuple[Expr, Expr, Expr]] = {}
        #: id of a value -> the value, and the buffer that holds it with zeros after each row: see `padded_products.py`.
        self.padded: dict[int, tuple[Expr, Buffer]] = {}
        #: (id of the value, operation, shape, axes) -> the value, and the load of what it is reduced to.
        self.reduced: dict[tuple[int, str, Shape, Shape], tuple[Expr, Expr]] = {}
        self.moments: dict[tuple[int, Shape, Shape], tuple[Expr, Expr, Expr]] = {}

    # making values ----------------------------------------------------------------------------------------------

    def fresh(self, meta: TensorMeta, value: Expr) -> Tensor:
        """A new tensor."""
        return Tensor(Storage(meta, value), meta)

    def number(self, value: Expr, device: torch.device) -> Tensor:
        """A Python number that comes out of a tensor on `device`."""
        meta = TensorMeta(value.dtype, (), (), device)
        return Tensor(Storage(meta, value), meta, rank=NUMBER)

    def host_number(self, name: str, code: str, dtype: torch.dtype) -> Scalar:
        """The number that the host computes by `code`, called `name` unless the same code has a name already."""
        known = self._scalar_of_code.get(code)
        if known is None:
            known = self._scalar_of_code[code] = Scalar(name, dtype)
            self._scalars[name] = HostScalar(name, code, dtype)
            self.program.host_scalars.append(self._scalars[name])
        return known

    def host_scalar(self, scalar: Scalar) -> HostScalar:
        return self._scalars[scalar.name]

    def temp(self, meta: TensorMeta) -> Buffer:
        self._temps += 1
        return Buffer(f"t{self._temps}", meta, "temp")

    # reading ----------------------------------------------------------------------------------------------------

    def read(self, tensor: Tensor) -> Expr:
        """The value of `tensor` at this point of the graph, over its own index.

        A choice between many formulas is stored before: what is no formula on single elements could not be cut into loops.
        """
        value = self.formula(tensor)
        if self.program.chooses and count_choices(value, self._choices) > COSTS.most_parts_of_value:
            self.materialize(tensor.storage)
            value = self.formula(tensor)
        return value

    def formula(self, tensor: Tensor) -> Expr:
        """As `read`, for a formula on single elements, which may be cut into many loops."""
        value = tensor.storage.now()
        if tensor.whole:
            return value
        if tensor.seen is not value:
            tensor.view_value = self._read_view(tensor, value)
            tensor.seen = tensor.storage.value
        return tensor.view_value  # type: ignore[return-value]

    def _read_view(self, tensor: Tensor, value: Expr) -> Expr:
        if tensor.meta.numel == 0:
            return ops.const(0, tensor.dtype) if is_computed(tensor.dtype) else whole_load(self._empty(tensor.meta))
        storage = tensor.storage
        base = Layout(storage.meta.shape, storage.meta.stride)
        view = Layout(tensor.meta.shape, tensor.meta.stride, tensor.offset)
        seen = None if costs_at_least(value, COSTS.store_before_reindexing) else relayout(value, base, view)
        if seen is None:
            seen = relayout(self.materialize(storage, exactly=True), base, view)
            assert seen is not None, "a stored tensor has its own strides"
        return simplified(seen, view.shape) if self.program.chooses else seen

    def read_as(self, tensor: Tensor, shape: Shape, device: torch.device) -> Expr:
        """The value of `tensor`, broadcast to `shape`, for a loop on `device`."""
        if tensor.meta.device != device:
            return broadcast(self._read_from_host(tensor, device), (), shape)
        value = self.formula(tensor)
        source = tensor.meta.shape
        if source == shape:
            return value
        key = (id(value), source, shape)
        if key not in self._broadcast:
            kept = self._store_before_broadcasting(value, tensor, shape)
            self._broadcast[key] = (value, broadcast(kept, source, shape))
        return self._broadcast[key][1]

    def _store_before_broadcasting(self, value: Expr, tensor: Tensor, shape: Shape) -> Expr:
        size, target = tensor.meta.numel, math.prod(shape)
        if size == 1:
            keep = not shape or _is_simple(value)
        else:
            is_broadcast = target >= COSTS.broadcast_factor * size
            limit = COSTS.store_before_broadcasting if is_broadcast else COSTS.store_before_reindexing
            keep = not costs_at_least(value, limit)
        if keep:
            return value
        if tensor.whole:
            return self.materialize(tensor.storage)
        shape, stride = tensor.meta.shape, tensor.meta.stride
        stride = stride if is_dense(shape, stride) else contiguous_stride(shape)
        return self.stored(value, TensorMeta(value.dtype, shape, stride, tensor.meta.device))

    def _read_from_host(self, tensor: Tensor, device: torch.device) -> Expr:
        """A 0-dim CPU tensor in a loop on a GPU: a CPU loop puts it into a number that is passed by value."""
        if tensor.meta.device.type != "cpu" or tensor.meta.shape:
            raise Unsupported(f"an operand on {tensor.meta.device} in an operator on {device}")
        value = self.read(tensor)
        if isinstance(value, (Const, Scalar)):
            return value
        known = self._on_host.get(id(value))
        if known is None:
            wide = torch.float64 if is_float(value.dtype) else torch.int64
            loaded = self.stored(ops.via(value, wide), TensorMeta(wide, (), (), _CPU), copy=True)
            known = self._on_host[id(value)] = (value, ops.via(loaded, value.dtype))
        return known[1]

    # storing ----------------------------------------------------------------------------------------------------

    def stored(self, value: Expr, meta: TensorMeta, *, copy: bool = False) -> Load:
        """`value` kept in a temporary of layout `meta` by a loop of its own, as a load.

        A value that is all of a buffer already is used as it is, unless `copy`.
        """
        if not copy and (found := _as_load(value, meta)) is not None:
            return found
        known = self._stored.get(id(value))
        if known is None or known[1].meta != meta:
            known = self._stored[id(value)] = (value, self.temp(meta))
            self.store(known[1], value)
        return whole_load(known[1])

    def store(
        self, buffer: Buffer, value: Expr, shape: Shape | None = None, offset: int = 0, stride: Shape | None = None
    ) -> None:
        """Add the loop that fills `buffer`, or only a part of it: `shape` elements from `offset` on, with the strides of the
        buffer or others."""
        meta = buffer.meta
        loads = (node for node in walk(value) if isinstance(node, Load)) if meta.dtype.is_complex else ()
        if any(type(load.access.buffer.meta) is not TensorMeta for load in loads):
            raise Unsupported("a copy of a tensor that PyTorch conjugates when it is read")
        access = Access(buffer, offset, stride or meta.stride)
        value = ops.via(value, meta.dtype)
        self.program.steps.append(Loop(shape or meta.shape, [Store(access, value)], meta.device))

    def raise_where(self, condition: Expr, shape: Shape, device: torch.device = _CPU) -> None:
        """Let the graph run in eager mode, which raises an exception, if a condition over `shape` holds anywhere. On a GPU
        the kernel fails as eager's does."""
        flag = self._flags.get(device)
        if flag is None:
            flag = self._flags[device] = Buffer("flag", TensorMeta(torch.bool, (), (), device), "flag")
        if device.type == "cpu":
            self.program.flag = flag
        access = Access(flag, 0, (0,) * len(shape))
        self.program.steps.append(Loop(shape, [Store(access, condition, StoreKind.FLAG)], device))

    def materialize(self, storage: Storage, *, exactly: bool = False) -> Load:
        """What a storage holds, as a load from memory: in the order in which its value is read, or `exactly` with the
        storage's own strides, as views and calls of PyTorch need it.
        """
        value = storage.now()
        storage.value = load = self.stored(value, storage.meta if exactly else read_order(value, storage.meta))
        return load

    def keep_apart(self, storage: Storage) -> None:
        """Let a storage be in memory of its own, which a result that a call makes is to share."""
        if storage.buffer is not None or not storage.meta.numel:
            return
        load = _as_load(storage.now(), storage.meta)
        if load is None or load.access.buffer is not storage.own:
            storage.own = self.temp(storage.meta)
            self.store(storage.own, storage.value)
            storage.value = whole_load(storage.own)

    def compute_once(self, storage: Storage) -> None:
        """Store a value that is not in memory yet, so that no two kernels compute it."""
        if storage.buffer is None and not isinstance(storage.value, Const):
            self.program.optional.discard(self.materialize(storage).access.buffer)

    def offer(self, storage: Storage, users: int, lies: TensorMeta | None = None) -> None:
        """Let the schedule decide whether what a storage holds, which `users` nodes of the graph take, is stored or computed
        by each that reads it. A formula does not grow without end: a long one is offered, too. `lies`: how it should be
        laid out, if that matters. What was rounded to fewer bits takes no more memory for having been converted since.
        """
        value = storage.value
        if not isinstance(value, Op) or storage.buffer is not None or not storage.meta.shape or not storage.meta.numel:
            return  # a number, or nothing
        if users > 1:
            is_one_operation = not costs_at_least(value, 2) and sum(isinstance(arg, Load) for arg in value.args) < 2
        else:
            chooses = self.program.chooses and count_choices(value, self._choices) > 1
            is_one_operation = chooses or not costs_at_least(value, COSTS.longest_kept)
        if not is_one_operation:
            short = _before_widening(value)
            meta = lies or read_order(value, storage.meta)
            load = self.stored(short, meta if short is value else replace(meta, dtype=short.dtype))
            storage.value = load if short is value else Op("cast", (load,), value.dtype)
            self.program.optional.add(load.access.buffer)
            self._offered[load.access.buffer] = (short, Layout(storage.meta.shape, load.access.strides))

    def formula_behind(self, value: Expr, shape: Shape) -> Expr:
        """For a load of a value over `shape` that is offered the formula of it: what reads few of its elements does not ask
        for them in memory. A value of another type that is loaded is looked through."""
        if isinstance(value, Op) and value.name == "cast":
            formula = self.formula_behind(value.args[0], shape)
            return value if formula is value.args[0] else Op("cast", (formula,), value.dtype)
        if not isinstance(value, Load) or value.access.buffer not in self._offered:
            return value
        formula, base = self._offered[value.access.buffer]
        return relayout(formula, base, Layout(shape, value.access.strides, value.access.offset)) or value

    def memory(self, tensor: Tensor) -> Buffer | View:
        """Memory with the contents, shape and strides of `tensor`, to be read by a call of PyTorch."""
        if tensor.meta.numel == 0:
            if not is_computed(tensor.dtype):
                return self._empty(tensor.meta)
            return self.stored(ops.const(0, tensor.dtype), tensor.meta, copy=True).access.buffer
        load = _as_load(self.read(tensor), tensor.meta)
        if load is None:
            self.materialize(tensor.storage, exactly=True)
            load = _as_load(self.read(tensor), tensor.meta)
            assert load is not None, "a view of a stored tensor has the tensor's strides"
        return memory_at(load.access.buffer, tensor.meta.shape, tensor.meta.stride, load.access.offset)

    def call(
        self, function: Callable[..., Any], args: tuple[Any, ...], meta: TensorMeta, is_new: bool = False, **kwargs: Any
    ) -> Buffer:
        """The temporary of layout `meta` that a call of PyTorch returns; `is_new`: see `Extern`."""
        buffer = self.temp(meta)
        self.program.steps.append(Extern(function, args, kwargs, [buffer], is_new=is_new))
        return buffer

    def _empty(self, meta: TensorMeta) -> Buffer:
        """Memory without elements of a type that has no constants."""
        return self.call(torch.empty_strided, (meta.shape, meta.stride), meta, dtype=meta.dtype, device=meta.device)

    def stream(self, device: torch.device) -> Stream | None:
        """How random numbers are drawn on a device, by kernels; None where only PyTorch draws them."""
        return self._stream_of(device) if self._stream_of is not None and device.type == "cuda" else None

    def keep_order(self, step: Extern) -> None:
        """Let a call that may draw random numbers run after the others."""
        step.draws = True
        step.after = self._last_in_order
        self._last_in_order = step

    # in-place operators -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A node's lowering begins: `undo` goes back to here."""
        self._assigned.clear()
        self._assigned_ids.clear()

    def is_assigned(self, storage: Storage) -> bool:
        """Whether the node's lowering has replaced what a storage holds."""
        return id(storage) in self._assigned_ids

    def undo(self) -> None:
        """Let all tensors hold what they held when the lowering of the node began."""
        while self._assigned:
            storage, value, mutated = self._assigned.pop()
            self._assigned_ids.discard(id(storage))
            storage.value, storage.mutated = value, mutated

    def assign(self, tensor: Tensor, value: Expr) -> None:
        """Replace what `tensor` holds, and so what every view of its memory holds."""
        storage = tensor.storage
        self._assigned.append((storage, storage.value, storage.mutated))
        self._assigned_ids.add(id(storage))
        if tensor.whole:
            storage.value = value
        elif tensor.meta.numel:
            storage.value = self.with_part(tensor, value)
        storage.mutated += 1

    def with_part(self, tensor: Tensor, value: Expr) -> Expr:
        """What the storage of a view holds when the view holds `value`."""
        meta, base = tensor.meta, tensor.storage.meta
        covers = meta.numel == base.numel and tensor.offset == 0 and is_dense(meta.shape, meta.stride)
        if not covers or not is_dense(base.shape, base.stride):
            return self._with_some_elements(tensor, value)
        view, whole = Layout(meta.shape, meta.stride), Layout(base.shape, base.stride)
        seen = relayout(value, view, whole)
        if seen is None:
            seen = relayout(self.stored(value, meta), view, whole)
            assert seen is not None, "a stored tensor has its own strides"
        return seen

    def _with_some_elements(self, part: Tensor, value: Expr) -> Expr:
        """The same for a view of some of the elements: another formula for these, or a copy, by PyTorch."""
        meta, base = part.meta, part.storage.meta
        old = self.formula(Tensor(part.storage, base))
        if self.program.chooses and count_choices(old, self._choices) >= COSTS.most_parts_of_tensor:
            old = self.materialize(part.storage)
        index_map = index_map_of(Layout(base.shape, base.stride), Layout(meta.shape, meta.stride, part.offset))
        if index_map is not None and not base.dtype.is_complex:
            steps = max([factor for row in index_map.coefficients for factor in row], default=1)
            if steps > 1 and costs_at_least(value, COSTS.store_before_picking):  # no loop is over these elements alone
                value = self.stored(value, TensorMeta.dense(value.dtype, meta.shape, meta.device))
            placed = replace_part(old, base.shape, ops.via(value, base.dtype), meta.shape, index_map)
            if placed is not None:
                self.program.chooses = True
                return placed
        if overlaps_itself(meta.shape, meta.stride):
            raise Unsupported("an in-place operator on a tensor whose elements share memory")
        whole = self.memory(Tensor(part.storage, base))
        dense = TensorMeta.dense(meta.dtype, meta.shape, meta.device)
        stored = self.memory(self.fresh(dense, value))
        result = TensorMeta(base.dtype, base.shape, base.stride, base.device)
        return whole_load(self.call(with_part, (whole, stored, meta.shape, meta.stride, part.offset), result))


def _is_simple(value: Expr) -> bool:
    """Whether a 0-dim value may be formed again for each element."""
    while isinstance(value, Op) and value.name == "cast":
        value = value.args[0]
    return not isinstance(value, Op)


def _before_widening(value: Expr) -> Expr:
    """A floating-point value as it was before it was converted to a type of more bits, or itself."""
    if isinstance(value, Op) and value.name == "cast" and value.dtype.is_floating_point:
        inner = value.args[0]
        if isinstance(inner, Op) and inner.dtype.is_floating_point and inner.dtype.itemsize < value.dtype.itemsize:
            return inner
    return value


def _as_load(value: Expr, meta: TensorMeta) -> Load | None:
    """`value` if it is a load from memory laid out as `meta` says."""
    if not isinstance(value, Load) or value.access.buffer.meta.device != meta.device:
        return None
    same = all(n <= 1 or s == t for n, s, t in zip(meta.shape, value.access.strides, meta.stride, strict=True))
    return value if same else None
