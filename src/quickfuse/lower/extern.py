"""Calls of PyTorch's own operators, for what has no rule: products of matrices, convolutions, sorts, random numbers.

What a call does besides returning new tensors, capture has noted at its node (`ir.effects`); for graphs that nobody
captured, PyTorch's schemas say it. A program's values are not changed in place. So an operator that writes to its operands
gets copies, which are what the operands hold from then on, and results that share an operand's memory become views.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import BuiltinFunctionType
from typing import Any

import torch
from torch._ops import OpOverload

from quickfuse.errors import Unsupported
from quickfuse.ir.arguments import leaves, map_leaves
from quickfuse.ir.dynamic import of_sizes, stay_apart
from quickfuse.ir.effects import NO_EFFECTS, Effects
from quickfuse.ir.expr import Expr, Scalar
from quickfuse.ir.loop import Buffer, Extern, Handed, HostScalar
from quickfuse.ir.sharing import SEEN_IN_PLACE
from quickfuse.ir.values import TensorMeta

from .adapted import Adapted, OnlyResult, Path, Slot, element_at
from .context import Context
from .schemas import draws_nothing, drops_nothing, effects_by_schema, makes_new_tensors, never_fails
from .symbolic import Storage, Tensor, whole_load
from .views import lazy_bits, view_of


def extern(
    ctx: Context, kind: str, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], meta: Any,
    effects: Effects | None = None,
) -> Any:  # fmt: skip
    """Add a call of the operator that a node calls. Returns its results.

    Raises:
        Unsupported: where what it does to its operands is not known, or cannot be said in a program.
    """
    function: Callable[..., Any] = getattr(torch.Tensor, target) if kind == "call_method" else target
    name = name_of(target)
    changes = not isinstance(function, OpOverload) or function._schema.is_mutable
    if name.startswith("_fused_") and changes:  # its purpose is to change much memory in place
        raise Unsupported(f"{name}, a fused kernel of PyTorch's own")
    if effects is None and isinstance(function, OpOverload):
        effects = _effects_by_schema(function, args, kwargs, meta)
    if effects is None:
        if not makes_new_tensors(function, name) or kwargs.get("out") is not None:
            raise Unsupported(f"no rule for {name}, which is not known to leave its operands alone")
        effects = NO_EFFECTS
    call = _Call(ctx, function, name, args, kwargs, effects)
    if effects or call.needs_adapting or not _is_plain(meta):
        return call.adapted(meta)
    return call.plain(meta)


def handed_on(ctx: Context, kind: str, target: Any, args: Any, kwargs: Any, meta: Any) -> Any:
    """A call on tensors of dynamic sizes, which kernels do not read, or one that makes such a tensor."""
    function = getattr(torch.Tensor, target) if kind == "call_method" else target
    call = _Call(ctx, function, name_of(target), args, kwargs, NO_EFFECTS)

    def memory(value: Any) -> Any:
        return value if type(value) in (Handed, HostScalar) else call._memory(value)

    fixed = isinstance(meta, TensorMeta)
    ctx.handed += 1
    buffer = ctx.temp(meta) if fixed else Handed(f"d{ctx.handed}", TensorMeta.dense(torch.uint8, (0,), meta.device), "temp")
    args, kwargs = map_leaves(memory, (call.args, call.kwargs))
    step = Extern(function, args, kwargs, [buffer], may_fail=True)
    ctx.program.steps.append(step)
    surely = function in (of_sizes, stay_apart) or function in _OF_PYTHON or draws_nothing(function, call.name)
    if not surely and not drops_nothing(call.name, call.args, call.kwargs):
        ctx.keep_order(step)
    return _result(ctx, buffer) if fixed else buffer


#: Functions on tensors that draw no random numbers.
_OF_PYTHON = frozenset(f for name, f in vars(operator).items() if isinstance(f, BuiltinFunctionType))


def _effects_by_schema(overload: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], meta: Any) -> Effects | None:
    """What a call of an operator of ATen does, by its schema; None where that does not say all."""
    names = [argument.name for argument in overload._schema.arguments]
    given = [*zip(names, args, strict=False), *kwargs.items()]
    operands = [(name, sum(not t.is_number for t in _tensors(value))) for name, value in given]
    returned = [meta] if len(overload._schema.returns) == 1 else list(meta or ())
    return effects_by_schema(overload, operands, [len(list(_paths(m))) for m in returned])


def name_of(target: Any) -> str:
    """The name of an operator as users know it."""
    if isinstance(target, OpOverload):
        return target._schema.name.partition("::")[2]
    name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    return name.strip("_") if name.startswith("__") else name


class _Call:
    """A call that is to become a step of the program."""

    def __init__(
        self, ctx: Context, function: Callable[..., Any], name: str, args: Any, kwargs: Mapping[str, Any], effects: Effects
    ) -> None:
        self.ctx = ctx
        self.function = function
        self.name = name
        self.args = tuple(args)
        self.kwargs = dict(kwargs)
        self.effects = effects
        self.operands = numbered_operands((self.args, self.kwargs))
        self.needs_adapting = sum(1 for _ in _tensors((self.args, self.kwargs))) > len(self.operands)

    # --- without effects ---

    def plain(self, meta: Any) -> Any:
        """A call that makes new tensors."""
        single = isinstance(meta, TensorMeta)
        buffers = [self.ctx.temp(m) for m in ([meta] if single else meta)]
        args, kwargs = map_leaves(self._memory, (self.args, self.kwargs))
        function = quickest(self.function) if single or len(buffers) > 1 else OnlyResult(self.function)
        self._add(function, args, kwargs, buffers)
        results = [_result(self.ctx, buffer) for buffer in buffers]
        return results[0] if single else results

    def _add(self, function: Callable[..., Any], args: Any, kwargs: dict[str, Any], buffers: list[Buffer]) -> None:
        types = [operand.dtype for operand in self.operands]
        # Probabilities in a tensor may be none.
        may_fail = not never_fails(self.name, types) or (self.name == "bernoulli_" and len(types) > 1)
        step = Extern(function, args, kwargs, buffers, may_fail=may_fail)
        self.ctx.program.steps.append(step)
        if not draws_nothing(self.function, self.name) and not drops_nothing(self.name, self.args, self.kwargs):
            self.ctx.keep_order(step)

    def _memory(self, value: Any) -> Any:
        """A single argument as a step has it."""
        if type(value) is Tensor:
            return self.ctx.memory(value)
        if type(value) is Scalar:
            return self.ctx.host_scalar(value)
        if isinstance(value, (Expr, Buffer)):
            raise Unsupported(f"an argument of {self.name}")
        return value

    # --- with effects ---

    def adapted(self, meta: Any) -> Any:
        """A call that writes to operands, returns views of them, takes numbers out of tensors or returns other things."""
        self._check_overlaps()
        paths = [*_paths(meta)]
        leaves = [element_at(meta, path) for path in paths]
        memory = self.effects.memory or (None,) * len(leaves)
        if len(memory) != len(leaves):
            raise Unsupported(f"the result of {self.name}")
        replaced = self._replaced()
        views = self._views(leaves, paths, memory)
        new = [k for k in range(len(leaves)) if k not in views]
        if replaced == [0] and self.name in SEEN_IN_PLACE:
            return self._reshaped_in_place(replaced)
        buffers = [self.ctx.temp(_without_gradient(leaves[k])) for k in new]
        for k in new:
            if (operand := memory[k]) is not None:
                self.ctx.keep_apart(self.operands[operand].storage)
        layouts = dict(self.effects.reshaped)
        copies = [self.ctx.temp(_without_gradient(layouts.get(k, self.operands[k].meta))) for k in replaced]
        slots: dict[int, Slot] = {}
        values: list[Any] = []
        args, kwargs = map_leaves(lambda value: self._slotted(value, slots, values), (self.args, self.kwargs))
        numbers = tuple([s.index for s in slots.values() if s.is_number])
        written = tuple([slots[id(self.operands[k])].index for k in replaced])
        if buffers or copies:
            made_at = tuple([paths[k] for k in new])
            function = Adapted(self.function, args, kwargs, numbers, written, self._filled(slots), made_at)
            self._add(function, tuple(values), {}, [*buffers, *copies])
        for k, buffer in zip(replaced, copies, strict=True):
            self._replace(self.operands[k], buffer, k in layouts)
        made = dict(zip(new, [_result(self.ctx, buffer) for buffer in buffers], strict=True))
        for k, operand in enumerate(memory):
            if operand is not None and k in made:
                base = self.operands[operand].storage
                self.ctx.aliases.append((base, made[k].storage, base.mutated))
                self.ctx.memory_of[id(buffers[new.index(k)])] = made[k].storage
        results = iter([made[k] if k in made else views[k] for k in range(len(leaves))])
        return _with_leaves(meta, results)

    def _check_overlaps(self) -> None:
        """Refuse to write to a tensor that shares memory with another operand: eager refuses, or reads what changes."""
        for k in self._replaced():
            mine = self.operands[k]
            for other in self.operands:
                if other is not mine and other.storage is mine.storage:
                    raise Unsupported(f"{self.name} in place between overlapping tensors")

    def _replaced(self) -> list[int]:
        """The operands that have other contents or another layout afterwards."""
        return list(dict.fromkeys([*self.effects.written, *[k for k, _ in self.effects.reshaped]]))

    def _filled(self, slots: dict[int, Slot]) -> frozenset[int]:
        """The places of operands that get other contents, whatever they held."""
        fills = self.name in _FILLING
        options = {name: value for name, value in self.kwargs.items() if name != "out"}
        read = list(_tensors((self.args[1:] if fills else self.args, options)))
        tensors = [*_tensors(self.kwargs.get("out")), *(self.operands[:1] if fills else ())]
        return frozenset(slots[id(t)].index for t in tensors if not any(t is other for other in read))

    def _slotted(self, value: Any, slots: dict[int, Slot], values: list[Any]) -> Any:
        """A single argument, or for a tensor or a number of the host its place among the call's arguments."""
        if type(value) is Tensor:
            slot = slots.get(id(value))
            if slot is None:
                slot = slots[id(value)] = Slot(len(values), value.is_number)
                values.append(self._memory(value))
            return slot
        if type(value) is Scalar or isinstance(value, HostScalar):
            values.append(self._memory(value))
            return Slot(len(values) - 1)
        return self._memory(value)

    def _replace(self, operand: Tensor, buffer: Buffer, reshaped: bool) -> None:
        """An operand holds what its copy held after the call."""
        if not reshaped:
            self.ctx.assign(operand, whole_load(buffer))
            return
        if operand.storage.buffer is not None or operand.meta.numel or not operand.is_base:
            raise Unsupported(f"{self.name}, which changes the shape of a tensor with elements")
        operand.become(Storage(buffer.meta, whole_load(buffer)), buffer.meta)

    # --- results that share memory ---

    def _views(self, leaves: list[TensorMeta], paths: list[Path], memory: Sequence[int | None]) -> dict[int, Tensor]:
        """The results that are operands or views of operands, by position.

        Others share an operand's memory in a way that none of our views can, as another type above all: a call of PyTorch
        makes them, which is right as long as nobody writes to that memory.
        """
        found: dict[int, Tensor] = {}
        for k, (leaf, operand) in enumerate(zip(leaves, memory, strict=True)):
            if operand is not None:
                tensor = self.operands[operand]
                seen = tensor if operand in self._replaced() else self._view(tensor, leaf, paths[k])
                if seen is not None:
                    found[k] = seen
        return found

    def _view(self, tensor: Tensor, leaf: TensorMeta, path: Path) -> Tensor | None:
        def result(*args: Any, **kwargs: Any) -> Any:
            return element_at(self.function(*args, **kwargs), path)

        if leaf.dtype != tensor.dtype or lazy_bits(leaf) != lazy_bits(tensor.meta):
            return None
        try:
            return view_of(tensor, result, self.args, self.kwargs, leaf)
        except Unsupported:
            return None

    def _reshaped_in_place(self, replaced: list[int]) -> Tensor:
        tensor = self.operands[0]
        if not self.effects.reshaped:
            return tensor
        if tensor.storage.buffer is not None and tensor.is_base:
            raise Unsupported(f"{self.name} of a tensor from outside")
        function = getattr(torch.Tensor, self.name.removesuffix("_"))
        layout = dict(self.effects.reshaped)[0] if self.effects.reshaped else tensor.meta
        seen = view_of(tensor, function, self.args, self.kwargs, layout)
        tensor.become(seen.storage, seen.meta, seen.offset, is_base=False)
        return tensor


#: Operators that give their operand other contents, whatever it held.
_FILLING = frozenset("normal_ uniform_ exponential_ geometric_ log_normal_ cauchy_ random_ bernoulli_".split())


def _result(ctx: Context, buffer: Buffer) -> Tensor:
    made = ctx.fresh(buffer.meta, whole_load(buffer))
    made.storage.own = buffer
    return made


def _is_plain(meta: Any) -> bool:
    """Whether a call's result is one new tensor, or a list of them."""
    if isinstance(meta, TensorMeta):
        return True
    return isinstance(meta, (list, tuple)) and bool(meta) and all(isinstance(m, TensorMeta) for m in meta)


def _without_gradient(meta: TensorMeta) -> TensorMeta:
    return meta if not meta.requires_grad else TensorMeta(meta.dtype, meta.shape, meta.stride, meta.device)


# --- nested arguments and results ---


def numbered_operands(arguments: Any) -> list[Tensor]:
    """The tensors among a call's arguments, in the order in which `Effects` numbers them."""
    return [tensor for tensor in _tensors(arguments) if not tensor.is_number]


def _tensors(arguments: Any) -> Iterator[Tensor]:
    return (leaf for leaf in leaves(arguments) if type(leaf) is Tensor)


def _paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """The places of the tensors in a result."""
    if isinstance(value, TensorMeta):
        yield path
    elif isinstance(value, (list, tuple)):
        for k, element in enumerate(value):
            yield from _paths(element, (*path, k))


def _with_leaves(meta: Any, results: Iterator[Any]) -> Any:
    """The metadata of a result, with the results in their places."""
    if isinstance(meta, TensorMeta):
        return next(results)
    if isinstance(meta, (list, tuple)):
        return [_with_leaves(m, results) for m in meta]
    return meta


# --- the quickest way from Python into an operator of ATen ---

#: Operators that are called often, and whose bindings take the same arguments in the same order.
_BINDINGS: dict[Any, Callable[..., Any]] = {
    getattr(torch.ops.aten, name).default: getattr(torch, name)
    for name in ("mm", "bmm", "addmm", "baddbmm", "convolution", "embedding")
}


def quickest(function: Callable[..., Any]) -> Callable[..., Any]:
    """What does the same as `function`, called from Python."""
    return _BINDINGS.get(function, function)
