"""Products of matrices. On the CPU: calls of oneDNN, where it is faster than the BLAS behind `torch.mm`.

That is so for the products of a linear layer forward, and backward to its input; those that sum over the batch, for the
gradient of a weight, BLAS does as well. A bias and an activation after a linear layer are applied while the product is in
registers: eager copies the bias into the result first, and goes over it once more for the activation. Where BLAS uses
narrower vectors than the processor has, oneDNN takes half the time for all but the smallest products.
On a GPU they are calls of cuBLAS, some of matrices with longer rows: see `padded_products.py`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node
from torch.nn import functional

from quickfuse.ir.cost_model import COSTS
from quickfuse.ir.loop import Buffer, View, as_view
from quickfuse.ir.modes import matmul_precision
from quickfuse.ir.values import TensorMeta, contiguous_stride

from . import ops
from .calls import made, rule
from .context import Context
from .padded_products import matrix, padded_product
from .rules import no_rule_if
from .space import Space
from .symbolic import Tensor, whole_load


def is_for_one_dnn(rows: int, columns: int, depth: int, *, activated: bool = False) -> bool:
    """Whether oneDNN is here, and the quicker way to a product of `rows` by `depth` and `depth` by `columns` numbers."""
    most = COSTS.most_before_activation if activated or blas_is_narrow() else COSTS.most_for_blas
    return _has_one_dnn() and rows * columns * depth > most


def is_summed_by_one_dnn(rows: int, columns: int, depth: int) -> bool:
    """The same for a product whose left operand lies in columns: the gradient of a weight, which sums over the batch."""
    return blas_is_narrow() and is_for_one_dnn(rows, columns, depth)


@functools.cache
def blas_is_narrow() -> bool:
    """Whether BLAS leaves half of each vector unused: MKL does, of AVX-512 on processors that are not Intel's."""
    if not torch.backends.mkl.is_available() or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    try:
        with open("/proc/cpuinfo") as file:
            return "GenuineIntel" not in file.read(256)  # the first processor's maker stands at the beginning
    except OSError:
        return False


@dataclass(frozen=True)
class LinearCall:
    """`activation(input @ weight.T + bias)`, computed by oneDNN, in whose words the activation is."""

    activation: str = "none"
    algorithm: str = ""

    @property
    def __name__(self) -> str:
        return "linear" if self == PLAIN else f"linear_{self.activation}"

    def __call__(self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return _one_dnn_linear()(input, weight, bias, self.activation, [], self.algorithm)  # type: ignore[no-any-return]


#: A linear layer without an activation.
PLAIN = LinearCall()


@functools.cache
def _one_dnn_linear() -> Any:
    """PyTorch's operator; None where this PyTorch has none."""
    if not torch.backends.mkldnn.is_available():
        return None
    try:
        return torch.ops.mkldnn._linear_pointwise.default
    except AttributeError:
        return None


# --- rules ---


@rule("linear", [functional.linear])
def linear(
    ctx: Context, meta: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None, activation: LinearCall = PLAIN
) -> Tensor:
    if _is_on_gpu(input):
        return padded_product(ctx, meta, matrix(input), matrix(weight).transposed, bias)
    no_rule_if(not _are_matrices(input, weight) or input.meta.ndim < 1 or weight.meta.ndim != 2)
    rows, (columns, depth) = input.meta.numel // max(input.meta.shape[-1], 1), weight.meta.shape
    no_rule_if(not is_for_one_dnn(rows, columns, depth, activated=activation != PLAIN))
    return _call(ctx, meta, ctx.memory(input), ctx.memory(weight), bias, activation)


@rule("mm")
def mm(ctx: Context, meta: Any, input: Tensor, mat2: Tensor) -> Tensor:
    return _product(ctx, meta, input, mat2, None)


@rule("matmul", [operator.matmul, torch.Tensor.__matmul__])
def matmul(ctx: Context, meta: Any, input: Tensor, other: Tensor) -> Tensor:
    if type(input) is type(other) is Tensor and other.meta.ndim == 1 and input.meta.ndim in (1, 2):
        return _in_a_loop(ctx, meta, input, other)
    no_rule_if(input.meta.ndim < 2 or other.meta.ndim != 2)
    return _product(ctx, meta, input, other, None)


@rule("addmm")
def addmm(ctx: Context, meta: Any, input: Tensor, mat1: Tensor, mat2: Tensor, beta: Any = 1, alpha: Any = 1) -> Tensor:
    no_rule_if((beta, alpha) != (1, 1) or input.meta.shape != mat2.meta.shape[1:])
    return _product(ctx, meta, mat1, mat2, input)


@rule("dot vdot inner")
def dot(ctx: Context, meta: Any, input: Tensor, tensor: Tensor) -> Tensor:
    no_rule_if(type(input) is not Tensor or type(tensor) is not Tensor or not (input.meta.ndim == tensor.meta.ndim == 1))
    return _in_a_loop(ctx, meta, input, tensor)


@rule("mv")
def mv(ctx: Context, meta: Any, input: Tensor, vec: Tensor) -> Tensor:
    no_rule_if(type(input) is not Tensor or type(vec) is not Tensor or (input.meta.ndim, vec.meta.ndim) != (2, 1))
    return _in_a_loop(ctx, meta, input, vec)


def _in_a_loop(ctx: Context, meta: Any, rows: Tensor, vector: Tensor) -> Tensor:
    """A small product with a vector, as a sum over a row like others: so it shares kernels with what surrounds it."""
    shape, dtype, device = rows.meta.shape, rows.dtype, rows.meta.device
    alike = vector.dtype is dtype and vector.meta.device == device and vector.meta.shape == shape[-1:]
    no_rule_if(device.type != "cpu" or dtype not in (torch.float32, torch.float64) or not alike)
    no_rule_if(not 0 < rows.meta.numel <= COSTS.most_for_product_in_loop)
    space = Space(ctx, shape, (len(shape) - 1,), device)
    products = ctx.read_as(rows, shape, device) * ctx.read_as(vector, shape, device)
    return made(ctx, meta, ops.via(space.result(space.sum(products), False), dtype))


def _product(ctx: Context, meta: Any, left: Any, right: Any, bias: Any) -> Tensor:
    if _is_on_gpu(left):
        return padded_product(ctx, meta, matrix(left), matrix(right), bias)
    no_rule_if(not _are_matrices(left, right) or not (left.meta.ndim == right.meta.ndim == 2))
    (rows, depth), columns = left.meta.shape, right.meta.shape[1]
    no_rule_if(not (is_for_one_dnn if left.meta.is_contiguous else is_summed_by_one_dnn)(rows, columns, depth))
    return _call(ctx, meta, ctx.memory(left), as_view(ctx.memory(right)).transposed, bias, PLAIN)


def _are_matrices(*operands: Any) -> bool:
    """Whether all are tensors of what oneDNN computes well: it is slow on rows with gaps between them."""
    return _has_one_dnn() and all(
        type(x) is Tensor and x.dtype is torch.float32 and x.meta.numel > 0
        and (x.meta.is_contiguous or (x.meta.ndim == 2 and x.meta.stride[::-1] == contiguous_stride(x.meta.shape[::-1])))
        for x in operands
    )  # fmt: skip


def _is_on_gpu(operand: Any) -> bool:
    return type(operand) is Tensor and operand.meta.device.type == "cuda"


def _has_one_dnn() -> bool:
    return torch.backends.mkldnn.enabled and _one_dnn_linear() is not None


def _call(
    ctx: Context, meta: Any, input: Buffer | View, weight: Buffer | View, bias: Any, layer: LinearCall
) -> Tensor:
    no_rule_if(type(meta) is not TensorMeta or not meta.is_contiguous or meta.dtype is not torch.float32)
    fits = bias is None or (type(bias) is Tensor and bias.dtype is torch.float32 and bias.meta.stride == (1,))
    no_rule_if(not fits)
    operands = (input, weight, None if bias is None else ctx.memory(bias))
    return ctx.fresh(meta, whole_load(ctx.call(layer, operands, meta, is_new=True)))


# --- activations ---

_ACTIVATIONS: dict[Any, LinearCall] = {
    **dict.fromkeys((functional.relu, torch.relu, "relu", torch.ops.aten.relu.default), LinearCall("relu")),
    **dict.fromkeys((functional.silu, torch._C._nn.silu, torch.ops.aten.silu.default), LinearCall("swish")),
}


def activation_after(node: Node) -> tuple[Node, LinearCall] | None:
    """The activation that is the only reader of a linear layer's result, and the call that computes both."""
    made = node.meta.get("val")
    if node.target is not functional.linear or len(node.users) != 1 or not isinstance(made, TensorMeta):
        return None
    (reader,) = node.users
    if made.device.type != "cpu" or reader.args != (node,) or reader.meta.get("effects"):
        return None
    activation = _activation(reader.target, reader.kwargs)
    return None if activation is None else (reader, activation)


def _activation(target: Any, options: Mapping[str, Any]) -> LinearCall | None:
    if target in (functional.gelu, torch.ops.aten.gelu.default) and set(options) <= {"approximate"}:
        algorithm = options.get("approximate", "none")
        return LinearCall("gelu", algorithm) if algorithm in ("none", "tanh") else None
    if options.get("inplace", False) or set(options) - {"inplace"}:
        return None
    return _ACTIVATIONS.get(target)


# --- convolutions whose kernel is one pixel, as products ---

def is_pixelwise(
    input: Tensor, weight: Tensor, padding: Any, transposed: Any, output_padding: Any, groups: Any
) -> bool:
    """Whether a convolution computes each pixel from one pixel of its input alone, and all channels from all."""
    if tuple(weight.meta.shape[2:]) != (1, 1) or transposed or groups != 1 or any(padding) or any(output_padding):
        return False
    single = input.dtype is weight.dtype is torch.float32
    return single and matmul_precision() == "highest"  # less is what users allow for products only


def is_large(images: TensorMeta, weight: TensorMeta) -> bool:
    """Whether the product for these images, of input or output, is worth the longer way to oneDNN."""
    batch, _, height, width = images.shape
    return is_for_one_dnn(batch * height * width, *weight.shape[:2])


@dataclass(frozen=True)
class PixelwiseConvolution:
    """The convolution, as a function of input, weight and bias."""

    is_large: bool
    __name__ = "pixelwise_convolution"

    def __call__(self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return _pixelwise(input, weight.flatten(1), bias, self.is_large)


@dataclass(frozen=True)
class InputGradient:
    """The gradient of its input, as a function of that of its result, and the weight."""

    is_large: bool
    __name__ = "pixelwise_convolution_backward_input"

    def __call__(self, gradient: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return _pixelwise(gradient, weight.flatten(1).t(), None, self.is_large)


def weight_gradient(gradient: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
    """The gradient of its weight. It sums over the pixels, which BLAS does as fast as oneDNN where vectors are as wide."""
    left, right = _pixels(gradient).flatten(0, 2).t(), _pixels(input).flatten(0, 2)
    by_one_dnn = is_summed_by_one_dnn(left.shape[0], right.shape[1], left.shape[1])
    made = PLAIN(left, right.t(), None) if by_one_dnn else torch.mm(left, right)
    return made[:, :, None, None]


weight_gradient.__name__ = "pixelwise_convolution_backward_weight"


def _pixels(images: torch.Tensor) -> torch.Tensor:
    """(batch, channels, height, width) with channels last as (batch, height, width, channels)."""
    return images.permute(0, 2, 3, 1)


def _pixelwise(images: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, is_large: bool) -> torch.Tensor:
    made: torch.Tensor = (PLAIN if is_large else functional.linear)(_pixels(images), weight, bias)
    return made.permute(0, 3, 1, 2)
