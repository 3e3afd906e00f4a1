"""What capture and lowering know of a value without its contents."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch

from .quick import value_class


@value_class(frozen=True, slots=True)
class TensorMeta:
    """The properties of a strided tensor that generated code may rely on.

    `shape` and `stride` are in elements. `storage_offset` is left out on purpose: kernels take addresses.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    device: torch.device
    requires_grad: bool = False

    @staticmethod
    def dense(dtype: torch.dtype, shape: tuple[int, ...], device: torch.device) -> TensorMeta:
        """A tensor in row-major order without gaps."""
        return TensorMeta(dtype, shape, contiguous_stride(shape), device)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.numel * self.dtype.itemsize

    @property
    def span_bytes(self) -> int:
        """Bytes from the first element to the end of the last."""
        return span_of(self.shape, self.stride) * self.dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        return self.stride == contiguous_stride(self.shape) or self.numel == 0

    @property
    def is_expanded(self) -> bool:
        """Whether several elements share memory along an axis: PyTorch refuses to write to most such tensors."""
        return any(step == 0 and size > 1 for step, size in zip(self.stride, self.shape, strict=True))

    def looks_like(self, other: TensorMeta) -> bool:
        """Whether stages agree about a tensor. Strides of axes without several elements mean nothing."""
        if (self.dtype, self.shape, self.device) != (other.dtype, other.shape, other.device):
            return False
        return 0 in self.shape or all(
            one == two or size == 1 for size, one, two in zip(self.shape, self.stride, other.stride, strict=True)
        )

    def __str__(self) -> str:
        dims = ", ".join(map(str, self.shape))
        layout = "" if self.is_contiguous else f" stride={list(self.stride)}"
        grad = " requires_grad" if self.requires_grad else ""
        where = "" if self.device.type == "cpu" else f" {self.device}"
        return f"{str(self.dtype).removeprefix('torch.')}[{dims}]{layout}{where}{grad}"


@value_class(frozen=True, slots=True)
class NumberMeta:
    """A Python number that is a symbol of the graph: `kind` is `int`, `float` or `bool`.

    `from_tensor` says that it comes out of a tensor's contents (`.item()`), so that only running the graph tells it.
    """

    kind: type
    from_tensor: bool = False

    def __str__(self) -> str:
        return self.kind.__name__ + (" from a tensor" if self.from_tensor else "")


@value_class(frozen=True, slots=True)
class ObjectMeta:
    """Another object that a graph takes: a generator of random numbers on `device`."""

    kind: type
    device: torch.device

    def __str__(self) -> str:
        return self.kind.__name__


@value_class(frozen=True, slots=True)
class DynamicMeta:
    """A tensor some of whose sizes only the call tells, or a list with such tensors: calls of PyTorch hand it on."""

    device: torch.device


def as_parameter(made: torch.Tensor) -> torch.nn.Parameter:
    """A parameter in the memory of a tensor that a graph has made in its place; itself where it is one."""
    if isinstance(made, torch.nn.Parameter):
        return made
    return torch.Tensor._make_subclass(torch.nn.Parameter, made, made.requires_grad)


def span_of(shape: Sequence[int], stride: Sequence[int]) -> int:
    """How many elements there is place for from a tensor's first to its last, both counted; 0 for a tensor without any."""
    if 0 in shape:
        return 0
    return sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) + 1


def overlaps_itself(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether two indices may mean one element (on the safe side for strides that interleave)."""
    end = 1
    for step, size in sorted((s, n) for s, n in zip(stride, shape, strict=True) if n > 1):
        if step < end:
            return True
        end = step * (size - 1) + end
    return False


def numbered(device: torch.device) -> torch.device:
    """The device that a tensor made on `device` tells: "cuda" alone is the current one."""
    if device.index is None and device.type == "cuda" and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return device


def stride_in_order(shape: tuple[int, ...], order: Sequence[int]) -> tuple[int, ...]:
    """The strides of `shape` without gaps, with these axes from the outermost to the innermost, and 1 for all others."""
    stride, step = [1] * len(shape), 1
    for axis in reversed(order):
        stride[axis], step = step, step * shape[axis]
    return tuple(stride)


def contiguous_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The row-major strides of `shape`, with PyTorch's convention that a size of 0 counts as 1."""
    stride = []
    step = 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return tuple(reversed(stride))


def is_dense(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether the elements fill their memory without gaps and overlaps, in any order of axes; no elements always do."""
    expected = 1
    for step, size in sorted((s, n) for s, n in zip(stride, shape, strict=True) if n > 1):
        if step != expected:
            return 0 in shape
        expected *= size
    return True


def channels_last_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a batch of images with its channels last."""
    batch, channels, *sizes = shape
    first, *rest, last = contiguous_stride((batch, *sizes, channels))
    return (first, last, *rest)


def goes_by_channels_last(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether PyTorch takes a batch of images for one with its channels last, by its strides, those of axes of one element
    among them, as c10's `is_channels_last_strides` goes: a single image with an axis put before it is none."""
    if len(shape) not in (4, 5) or stride[1] == 0:
        return False
    least = 0
    for axis in (1, *range(len(shape) - 1, 1, -1), 0):
        if shape[axis] == 0 or stride[axis] < least or (axis == 0 and least == stride[1]):
            return False
        least = stride[axis] * shape[axis]
    return True


def broadcast_shape(*shapes: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape that several are broadcast to, if there is one. PyTorch's own function imports its compiler first."""
    sizes = []
    for column in itertools.zip_longest(*[shape[::-1] for shape in shapes], fillvalue=1):
        others = {*column} - {1}
        if len(others) > 1:
            return None
        sizes.append(others.pop() if others else 1)
    return tuple(sizes[::-1])
