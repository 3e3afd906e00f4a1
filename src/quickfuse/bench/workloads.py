"""What is measured. A workload is plain data: it is sent to fresh processes and written to result files."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch

from quickfuse.bench.optimizers import OPTIMIZERS, OptimizerSpec
from quickfuse.bench.zoo import MODELS, TITLES

Shape = tuple[int, ...]

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ("float32", "float64", "bfloat16", "float16")}


def parse_shape(text: str) -> Shape:
    """`"1024x1024"` as a shape.

    Raises:
        ValueError: for anything but positive integers separated by `x`.
    """
    sizes = text.lower().split("x")
    if not all(size.isdecimal() and int(size) > 0 for size in sizes):
        raise ValueError(f"{text!r} is no shape: write positive sizes separated by x, like 1024x1024")
    return tuple(map(int, sizes))


def show_shape(shape: Shape) -> str:
    return "x".join(map(str, shape))


def gpt2_shapes() -> list[Shape]:
    """The 148 parameters of GPT-2 124M (Radford et al., 2019): 12 layers of width 768, tied embeddings."""
    width, layers, vocabulary, context = 768, 12, 50257, 1024
    block: list[Shape] = [
        (width,), (width,),  # first layer norm
        (width, 3 * width), (3 * width,), (width, width), (width,),  # attention: query, key and value; projection
        (width,), (width,),  # second layer norm
        (width, 4 * width), (4 * width,), (4 * width, width), (width,),  # feed-forward
    ]  # fmt: skip
    return [(vocabulary, width), (context, width), *block * layers, (width,), (width,)]


@dataclass(frozen=True)
class OptimizerWorkload:
    """One `opt.step()` over `params` parameters of one shape (`params="10"`), or over a model's (`params="gpt2"`)."""

    params: str = "10"
    shape: Shape = (1024, 1024)
    optimizer: str = "Adam"
    dtype: str = "float32"
    device: str = "cpu"

    benchmark: ClassVar[str] = "optimizer"
    unit: ClassVar[str] = "step"

    def __post_init__(self) -> None:
        if self.params != "gpt2" and not (self.params.isdecimal() and int(self.params) > 0):
            raise ValueError(f"{self.params!r} is no parameter set: write a number of parameters, or gpt2")
        _check_name("optimizer", self.optimizer, OPTIMIZERS)
        _check_name("dtype", self.dtype, DTYPES)

    @property
    def spec(self) -> OptimizerSpec:
        return OPTIMIZERS[self.optimizer]

    @property
    def shapes(self) -> list[Shape]:
        return gpt2_shapes() if self.params == "gpt2" else [self.shape] * int(self.params)

    @property
    def bytes_moved(self) -> int:
        """The bytes a step must read and write if it touches each element once."""
        return self.spec.moved * DTYPES[self.dtype].itemsize * sum(map(math.prod, self.shapes))

    @property
    def shows_bandwidth(self) -> bool:
        return True

    @property
    def title(self) -> str:
        size = "GPT-2 124M, 148 tensors" if self.params == "gpt2" else f"{self.params} x {show_shape(self.shape)}"
        return f"{self.optimizer}, {size}, {self.dtype}"


@dataclass(frozen=True)
class PointwiseWorkload:
    """`torch.sin(x) + torch.cos(y)`: with small tensors, what a call costs besides its arithmetic."""

    shape: Shape = (10, 10)
    dtype: str = "float32"
    device: str = "cpu"

    benchmark: ClassVar[str] = "pointwise"
    unit: ClassVar[str] = "call"

    def __post_init__(self) -> None:
        _check_name("dtype", self.dtype, DTYPES)

    @property
    def bytes_moved(self) -> int:
        return 3 * DTYPES[self.dtype].itemsize * math.prod(self.shape)

    @property
    def shows_bandwidth(self) -> bool:
        """A few kilobytes say nothing about memory."""
        return self.bytes_moved >= 1 << 20

    @property
    def title(self) -> str:
        return f"sin(x) + cos(y), {show_shape(self.shape)}, {self.dtype}"


@dataclass(frozen=True)
class ModelWorkload:
    """A model of `zoo.MODELS`.

    `mode`: "eval" (without gradients), "train" (forward, loss and backward) or "step" (the same with Adam's step, all of
    it in one compiled function). `dtype`: that of parameters and images in evaluation, and of autocast in training. `batch`,
    `pixels` and `tokens`: in place of the model's own (see `zoo.build`).
    """

    model: str = "densenet121"
    mode: str = "eval"
    device: str = "cpu"
    dtype: str = "float32"
    batch: int | None = None
    pixels: int | None = None
    tokens: int | None = None

    benchmark: ClassVar[str] = "model"
    bytes_moved: ClassVar[int] = 0
    shows_bandwidth: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_name("model", self.model, MODELS)
        _check_name("mode", self.mode, MODES)
        _check_name("dtype", self.dtype, DTYPES)

    @property
    def size(self) -> dict[str, int]:
        """What `zoo.build` is to build in place of the model's own size."""
        sizes = {"batch": self.batch, "pixels": self.pixels, "tokens": self.tokens}
        return {name: size for name, size in sizes.items() if size is not None}

    @property
    def unit(self) -> str:
        return "call" if self.mode == "eval" else "step"

    @property
    def title(self) -> str:
        size = ", ".join(f"{name} {size}" for name, size in self.size.items())
        name = f"{self.model}, {size}" if size else TITLES[self.model]
        return f"{name}, {MODES[self.mode]}{'' if self.dtype == 'float32' else ', ' + self.dtype}"


MODES = {"eval": "evaluation", "train": "training", "step": "training with Adam in one function"}


Workload = OptimizerWorkload | PointwiseWorkload | ModelWorkload

_KINDS: dict[str, Any] = {
    kind.benchmark: kind for kind in (OptimizerWorkload, PointwiseWorkload, ModelWorkload)
}


def to_dict(workload: Workload) -> dict[str, Any]:
    """The workload as JSON data, with its kind under `benchmark`."""
    return {"benchmark": workload.benchmark, **asdict(workload)}


def from_dict(data: dict[str, Any]) -> Workload:
    """The inverse of `to_dict`."""
    fields = {name: value for name, value in data.items() if name != "benchmark"}
    if "shape" in fields:
        fields["shape"] = tuple(fields["shape"])
    workload: Workload = _KINDS[data["benchmark"]](**fields)
    return workload


def _check_name(what: str, name: str, table: dict[str, Any]) -> None:
    if name not in table:
        raise ValueError(f"unknown {what} {name!r}; known are {', '.join(table)}")
