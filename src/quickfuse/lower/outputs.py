"""What a program returns: which memory each output of the graph is, and the loops that fill it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from quickfuse.errors import Unsupported
from quickfuse.ir.expr import Load, Scalar
from quickfuse.ir.loop import Buffer, Handed, Number, View
from quickfuse.ir.values import TensorMeta, is_dense

from .context import Context
from .layout import read_order
from .symbolic import Storage, Tensor, whole_load


class Outputs:
    """Gives memory to the outputs. Outputs that share memory in eager share it here."""

    def __init__(self, ctx: Context, values: Sequence[Any], free: Collection[int] = ()) -> None:
        """`free` are the positions of outputs that may have other strides than in eager."""
        self.ctx = ctx
        self.values = values
        self.free = {id(values[k]) for k in free} - {id(v) for k, v in enumerate(values) if k not in free}
        self._memory: dict[int, Buffer] = {}  # of a storage, by its id
        self._taken: set[int] = set()
        self._in_parts: set[int] = set()  # the temporaries of which parts are outputs
        self._users: dict[int, set[int]] = {}
        for value in values:
            if type(value) is Tensor:
                self._users.setdefault(id(value.storage), set()).add(id(value))

    def results(self) -> list[Any]:
        """The entries of `Program.outputs`: the same object for each output that is the same tensor."""
        made: dict[int, Any] = {}
        for value in sorted(self.values, key=lambda value: id(value) not in self.free):  # what others change lies apart
            if id(value) not in made:
                made[id(value)] = self._result(value)
        return [made[id(value)] for value in self.values]

    def versions(self) -> list[tuple[int, int]]:
        """The outputs that were changed in place since they were made, by position, and how often. Those made in inference
        mode do not count it."""
        if torch.is_inference_mode_enabled():
            return []
        return [
            (k, value.storage.mutated) for k, value in enumerate(self.values)
            if type(value) is Tensor and value.storage.mutated and value.storage.buffer is None
        ]  # fmt: skip

    def _result(self, value: Any) -> Any:
        if type(value) is Scalar:
            return self.ctx.host_scalar(value)
        if type(value) is Handed:
            value.kind = "output"
        if type(value) is not Tensor:
            if isinstance(value, (list, tuple)):
                raise Unsupported("an output that is a list")
            return value
        if value.is_number:
            buffer = self._output(value.meta)
            self.ctx.store(buffer, self.ctx.read(value))
            return Number(buffer, (), (), 0)
        storage = value.storage
        if id(value) in self.free and (own := self._as_it_lies(value)) is not None:
            return own
        if storage.buffer is not None:
            buffer = storage.buffer
        elif self._needs_no_base(value):
            buffer = self._output(value.meta)
            self.ctx.store(buffer, self.ctx.read(value))
            return buffer
        else:
            buffer = self._memory_of(storage, value)
        if value.is_base:
            return buffer
        return View(buffer, value.meta.shape, value.meta.stride, value.offset)

    def _as_it_lies(self, tensor: Tensor) -> Buffer | View | None:
        """An output in the order in which its value is there already, or is made; None for a view and for an input. What is
        the first part of a temporary, as of a concatenation that goes on, stays that."""
        storage = tensor.storage
        if storage.buffer is not None or not tensor.whole or len(self._users[id(storage)]) > 1 or not tensor.meta.numel:
            return None
        value = self.ctx.read(tensor)
        if isinstance(value, Load):
            return self._of_a_temporary(value, tensor.meta) if self._is_own(value.access.buffer, storage) else None
        buffer = self._output(read_order(value, tensor.meta))
        self.ctx.store(buffer, value)
        self._taken.add(id(buffer))
        return buffer

    def _of_a_temporary(self, value: Load, meta: TensorMeta) -> Buffer | View | None:
        """A temporary as an output, or its first part."""
        buffer = value.access.buffer
        usable = buffer.kind == "temp" or id(buffer) in self._in_parts
        if not usable or value.access != whole_load(buffer).access or buffer.meta.dtype != meta.dtype:
            return None
        if buffer.meta.shape == meta.shape and id(buffer) not in self._taken:
            self._taken.add(id(buffer))
            buffer.kind = "output"
            return buffer
        if len(buffer.meta.shape) != len(meta.shape) or id(buffer) in self._taken - self._in_parts:
            return None
        if any(n > m for n, m in zip(meta.shape, buffer.meta.shape, strict=True)):
            return None
        self._in_parts.add(id(buffer))
        buffer.kind = "output"
        return View(buffer, meta.shape, value.access.strides, 0)

    def _needs_no_base(self, tensor: Tensor) -> bool:
        """Whether a view is all that is left of its storage, so that it may have memory of its own size."""
        if tensor.is_base or len(self._users[id(tensor.storage)]) > 1:
            return False
        return is_dense(tensor.meta.shape, tensor.meta.stride) and self._own_temp(tensor) is None

    def _memory_of(self, storage: Storage, tensor: Tensor) -> Buffer:
        buffer = self._memory.get(id(storage))
        if buffer is None:
            buffer = self._own_temp(tensor)
            if buffer is not None:
                buffer.kind = "output"
                self._taken.add(id(buffer))
            else:
                buffer = self._output(storage.meta)
                self.ctx.store(buffer, storage.now())
            self._memory[id(storage)] = buffer
        return buffer

    def _own_temp(self, tensor: Tensor) -> Buffer | None:
        """The temporary that holds all of the tensor's storage already, where no other output has taken it."""
        self.ctx.read(tensor)
        value, meta = tensor.storage.value, tensor.storage.meta
        if not isinstance(value, Load):
            return None
        buffer = value.access.buffer
        same = (buffer.meta.dtype, buffer.meta.shape, buffer.meta.stride, buffer.meta.device)
        usable = buffer.kind == "temp" and id(buffer) not in self._taken and value.access == whole_load(buffer).access
        usable = usable and self._is_own(buffer, tensor.storage)
        return buffer if usable and same == (meta.dtype, meta.shape, meta.stride, meta.device) else None

    def _is_own(self, buffer: Buffer, storage: Storage) -> bool:
        """Whether a temporary is no memory of an operand, which a call has returned as another type; that result may be."""
        return self.ctx.memory_of.get(id(buffer), storage) is storage

    def _output(self, meta: TensorMeta) -> Buffer:
        buffer = self.ctx.temp(meta)
        buffer.kind = "output"
        return buffer
