"""Reading JSON that may say anything: each question is answered with a value of the type asked for, or an error that says
where in the file it is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

from ..errors import ExportFileError
from ..ir.values import NumberMeta, TensorMeta

T = TypeVar("T")
NUMBERS: dict[str, type] = {"int": int, "float": float, "bool": bool}
_DTYPES: dict[str, torch.dtype] = {
    str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.dtype)
}
_FORMATS = {
    str(f).removeprefix("torch."): f
    for f in (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)
}
#: No tensor has more axes (PyTorch's own limit) or elements.
MOST_AXES = 64
MOST_ELEMENTS = 1 << 44
DEEPEST = 50


class Field:
    """A value in the file, at `path`."""

    __slots__ = ("path", "value")

    def __init__(self, value: Any, path: str = "program") -> None:
        self.value = value
        self.path = path

    def fail(self, wanted: str) -> ExportFileError:
        """The error that something else than `wanted` is here."""
        return ExportFileError(f"{self.path} is {self.value!r:.60}, where {wanted} is expected")

    def __getitem__(self, key: str) -> Field:
        if not isinstance(self.value, dict) or key not in self.value:
            raise ExportFileError(f"{self.path} has no {key!r}")
        return Field(self.value[key], f"{self.path}.{key}")

    def get(self, key: str) -> Field | None:
        """The entry of an object that may be absent."""
        return self[key] if isinstance(self.value, dict) and key in self.value else None

    def is_a(self, kind: type[T]) -> T:
        """The value, which is of exactly that type."""
        if type(self.value) is not kind:
            raise self.fail(f"a {kind.__name__}")
        return self.value

    def text(self) -> str:
        """The string that is here."""
        return self.is_a(str)

    def whole(self, lowest: int = -(1 << 62), highest: int = 1 << 62) -> int:
        """The whole number that is here, in a range."""
        value = self.is_a(int)
        if not lowest <= value <= highest:
            raise self.fail(f"a number from {lowest} to {highest}")
        return value

    def flag(self) -> bool:
        """The truth value that is here."""
        return self.is_a(bool)

    def one_of(self, *choices: str) -> str:
        """The string that is here, one of these."""
        if self.value not in choices or not isinstance(self.value, str):
            raise self.fail(f"one of {', '.join(choices)}")
        return self.value

    def items(self) -> list[Field]:
        """The elements of the list that is here."""
        return [Field(v, f"{self.path}[{k}]") for k, v in enumerate(self.is_a(list))]

    def entries(self) -> Iterator[tuple[str, Field]]:
        """The names and values of the object that is here."""
        return ((k, Field(v, f"{self.path}[{k!r:.40}]")) for k, v in self.is_a(dict).items())

    def texts(self) -> list[str]:
        """The list of strings that is here."""
        return [item.text() for item in self.items()]

    def wholes(self, lowest: int) -> tuple[int, ...]:
        """The list of whole numbers that is here, none below `lowest`."""
        return tuple([item.whole(lowest) for item in self.items()])

    # what stands for more than it says --------------------------------------------------------------------------

    def dtype(self) -> torch.dtype:
        """The dtype of that name."""
        if self.text() not in _DTYPES:
            raise self.fail("a dtype")
        return _DTYPES[self.value]

    def device(self) -> torch.device:
        """The device of that name."""
        try:
            return torch.device(self.text())
        except RuntimeError:
            raise self.fail("a device") from None

    def tensor_meta(self) -> TensorMeta:
        """What a tensor is like."""
        shape, stride = self["shape"].wholes(0), self["stride"].wholes(0)
        if len(shape) != len(stride) or len(shape) > MOST_AXES:
            raise self.fail("a shape with as many strides")
        meta = TensorMeta(self["dtype"].dtype(), shape, stride, self["device"].device(), self["requires_grad"].flag())
        if meta.requires_grad and not (meta.dtype.is_floating_point or meta.dtype.is_complex):
            raise self.fail("a tensor of a dtype that can need gradients")
        if meta.numel > MOST_ELEMENTS or meta.span_bytes > MOST_ELEMENTS:
            raise self.fail("a tensor that fits into memory")
        return meta

    def meta(self, depth: int = 0) -> Any:
        """What is known of a node's value: a `TensorMeta`, a `NumberMeta`, several in a tuple, or None."""
        if self.value is None:
            return None
        if isinstance(self.value, list) and depth < 3:
            return tuple([item.meta(depth + 1) for item in self.items()])
        number = self.get("number")
        if number is not None:
            return NumberMeta(NUMBERS[number.one_of(*NUMBERS)], self["from_tensor"].flag())
        return self.tensor_meta()

    def plain(self, node: Callable[[Field], Any] | None = None, depth: int = 0) -> Any:
        """A plain value; `node` gives what stands for a node of the graph."""
        value = self.value
        if value is None or type(value) in (bool, str, int, float):
            return value
        if depth > DEEPEST:
            raise self.fail("a value that is not so deeply nested")
        if type(value) is list:
            return [item.plain(node, depth + 1) for item in self.items()]
        if type(value) is not dict or len(value) != 1:
            raise self.fail("a value")
        ((kind, _),) = value.items()
        inside = self[kind]
        if kind == "node" and node is not None:
            return node(inside)
        if kind == "tuple":
            return tuple([item.plain(node, depth + 1) for item in inside.items()])
        if kind == "float" and inside.text() in ("inf", "-inf", "nan"):
            return float(inside.value)
        if kind == "complex":
            return inside.complex_()
        if kind == "dtype":
            return inside.dtype()
        if kind == "device":
            return inside.device()
        if kind == "memory_format" and inside.text() in _FORMATS:
            return _FORMATS[inside.value]
        if kind == "layout" and inside.text() == "strided":
            return torch.strided
        raise self.fail("a value")

    def complex_(self) -> complex:
        """The complex number of these two parts, as text."""
        try:
            real, imag = map(float, self.texts())
        except ValueError:
            raise self.fail("the two parts of a complex number") from None
        return complex(real, imag)
