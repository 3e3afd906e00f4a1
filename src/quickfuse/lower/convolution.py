"""Convolutions and their gradients: calls of PyTorch, on images whose channels lie next to each other in memory.

oneDNN, which computes them on the CPU, is as fast or faster in that layout (`torch.channels_last`), and so are the loops
between convolutions that scale each channel or reduce over an image. cuDNN's kernels for tensor cores want it, and convert
images and weights in each call that have another. A tensor's strides say how its views look at it. How a temporary lies in
memory is nobody's business but ours, so operands are stored with channels last, results are read as they come, and outputs
of the graph are stored with the strides that eager gives them.

On a GPU weights are stored so, too, and biases are not given to the call: PyTorch adds them in a pass of its own, and sums
up their gradients in another.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from quickfuse import config
from quickfuse.ir.convolution import SteadyConvolution
from quickfuse.ir.cost_model import COSTS
from quickfuse.ir.expr import Load
from quickfuse.ir.loop import Buffer, Extern, View, memory_at
from quickfuse.ir.reindex import IndexMap, reindex
from quickfuse.ir.values import TensorMeta, channels_last_stride

from . import ops
from .calls import rule, several
from .computed_indices import at, spread, stepping
from .context import Context
from .joining import constant_pad
from .pooling_gradients import with_zeros_between
from .products import InputGradient, PixelwiseConvolution, is_large, is_pixelwise, weight_gradient
from .promotion import COMPUTE
from .reductions import total
from .rules import no_rule_if
from .space import Space
from .symbolic import Tensor, whole_load

#: What oneDNN computes; other types go through kernels that gain nothing. What tensor cores compute, which round float32 to
#: TF32 if the user allows it.
_TYPES = frozenset({torch.float32, torch.bfloat16})
_GPU_TYPES = frozenset({torch.float16, torch.bfloat16})
#: The names of the operators whose operands are stored with channels last.
CONVOLUTIONS = frozenset("conv2d convolution convolution_backward conv_transpose2d".split())


@rule("conv2d")
def conv2d(
    ctx: Context, meta: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    no_rule_if(isinstance(padding, str))
    settings = (_pair(stride), _pair(padding), _pair(dilation))
    known = [whole for value in settings if (whole := _integers(value)) is not None]
    if type(meta) is not TensorMeta or len(known) < len(settings) or not _is_steady(ctx, input, weight, groups):
        return convolution(ctx, meta, input, weight, bias, *settings, False, (0, 0), groups)
    if {*known[0]} != {1} or not is_pixelwise(input, weight, known[1], False, (), 1):
        steady = SteadyConvolution(known[0], known[1], known[2], groups, input.meta.shape)
        return _call(ctx, meta, steady, (channels_last(ctx, input), *_parameters(ctx, weight, bias)))
    return convolution(ctx, meta, input, weight, bias, *settings, False, (0, 0), groups)


@rule("conv_transpose2d")
def conv_transpose2d(
    ctx: Context, meta: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Tensor:  # fmt: skip
    settings = (_pair(stride), _pair(padding), _pair(dilation), True, _pair(output_padding))
    return convolution(ctx, meta, input, weight, bias, *settings, groups)


@rule("convolution")
def convolution(
    ctx: Context, meta: Any, input: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int,
) -> Tensor:  # fmt: skip
    settings = [_integers(value) for value in (stride, padding, dilation, output_padding)]
    no_rule_if(type(meta) is not TensorMeta or not all(map(is_image, (input, weight))) or None in settings)
    no_rule_if(_weighs_more(input, weight, meta))
    if _is_on_gpu(input):
        operands = (*_images_on_gpu(ctx, (input, weight), weight, transposed, groups), None)
        result = _call(ctx, meta, torch.convolution, (*operands, *settings[:3], transposed, settings[3], groups))
        return result if bias is None else _with_bias(ctx, meta, result, bias)
    if pixelwise := is_pixelwise(input, weight, settings[1], transposed, settings[3], groups):
        input = _every_other(ctx, input, settings[0], meta.shape)
    operands = (channels_last(ctx, input), *_parameters(ctx, weight, bias))
    if pixelwise:
        return _call(ctx, meta, PixelwiseConvolution(is_large(meta, weight.meta)), operands)
    return _call(ctx, meta, torch.convolution, (*operands, *settings[:3], transposed, settings[3], groups))


@rule("convolution_backward")
def convolution_backward(
    ctx: Context, meta: Any, grad_output: Tensor, input: Tensor, weight: Tensor, bias_sizes: Any, stride: Any, padding: Any,
    dilation: Any, transposed: bool, output_padding: Any, groups: int, output_mask: Any,
) -> list[Tensor | None]:  # fmt: skip
    wanted, meta = [bool(mask) for mask in output_mask], several(meta, 3)
    no_rule_if(any(want and type(m) is not TensorMeta for want, m in zip(wanted, meta, strict=True)))
    no_rule_if(not all(map(is_image, (grad_output, input, weight))))
    no_rule_if(_weighs_more(input, weight, grad_output.meta))
    made: list[Tensor | None] = [None, None, None]
    on_gpu = _is_on_gpu(input)
    pixelwise = not on_gpu and is_pixelwise(input, weight, padding, transposed, output_padding, groups)
    depthwise = wanted[1] and _is_large_and_depthwise(input, weight, transposed, groups)
    if wanted[2] and (on_gpu or pixelwise or depthwise):
        made[2], wanted[2] = total(ctx, meta[2], grad_output, (0, 2, 3), False, None), False
    if depthwise:
        made[1], wanted[1] = depthwise_weight_gradient(ctx, meta[1], grad_output, input, stride, padding, dilation), False
    if not any(wanted):
        return made
    if on_gpu:
        gradient, image, weighted = _images_on_gpu(ctx, (grad_output, input, weight), weight, transposed, groups)
    else:
        image = channels_last(ctx, _every_other(ctx, input, stride, grad_output.meta.shape) if pixelwise else input)
        gradient, weighted = channels_last(ctx, grad_output), ctx.memory(weight)
    if pixelwise:
        if wanted[0]:
            product = InputGradient(is_large(grad_output.meta, weight.meta))
            read = TensorMeta.dense(meta[0].dtype, (*meta[0].shape[:2], *grad_output.meta.shape[2:]), meta[0].device)
            of_pixels = _call(ctx, meta[0] if {*stride} == {1} else read, product, (gradient, weighted))
            made[0] = of_pixels if {*stride} == {1} else with_zeros_between(ctx, meta[0], of_pixels, stride)
        if wanted[1]:
            made[1] = _call(ctx, meta[1], weight_gradient, (gradient, image), _weight_meta(meta[1]))
        return made
    operands = (gradient, image, weighted)
    settings = (bias_sizes, stride, padding, dilation, transposed, output_padding, groups, wanted)
    nothing = TensorMeta(torch.float32, (0,), (1,), grad_output.meta.device)  # a gradient that is not asked for
    laid_out = [channels_last_meta(meta[0]) if wanted[0] else nothing, _weight_meta(meta[1]) if wanted[1] else nothing,
                meta[2] if wanted[2] else nothing]  # fmt: skip
    buffers = [ctx.temp(m) for m in laid_out]
    function = torch.ops.aten.convolution_backward.default
    ctx.program.steps.append(Extern(function, (*operands, *settings), {}, buffers, is_new=True))
    for k, (m, buffer) in enumerate(zip(meta, buffers, strict=True)):
        if wanted[k]:
            made[k] = ctx.fresh(m, whole_load(buffer))
    return made


def _every_other(ctx: Context, image: Tensor, stride: Any, shape: Any) -> Tensor:
    """The pixels that a convolution of single pixels reads, one for each of its result, which has this shape. A product of
    these takes as long as oneDNN's convolution or half of that, and memory for them alone."""
    if {*stride} == {1}:
        return image
    meta = TensorMeta.dense(image.dtype, (*image.meta.shape[:2], *shape[2:]), image.meta.device)
    steps = stride if len(stride) == 2 else (*stride, *stride)
    axes = [0, 1, *(stepping(axis, step, 0) for axis, step in enumerate(steps, 2))]
    return ctx.fresh(meta, at(ctx.read(image), axes, 4, None))


def _is_large_and_depthwise(input: Tensor, weight: Tensor, transposed: bool, groups: int) -> bool:
    """Whether each channel has a kernel of its own, too large for oneDNN's way to these, which is for 3 by 3. It takes them
    for blocks of 16 by 16 channels, all but one of them zeros: 16 times the memory, and 2 to 12 times as long as a loop."""
    is_depthwise = groups == input.meta.shape[1] == weight.meta.shape[0] and not transposed and not _is_on_gpu(input)
    return is_depthwise and groups >= COSTS.least_depthwise and max(weight.meta.shape[2:]) > COSTS.small_kernel


def depthwise_weight_gradient(
    ctx: Context, meta: TensorMeta, grad_output: Tensor, input: Tensor, stride: Any, padding: Any, dilation: Any
) -> Tensor:
    """Each element is a sum over images and pixels, of gradient times image at a distance. The images are stored with zeros
    around them first, which is less than asking for each element of each window whether it is inside."""
    settings = [whole for value in (stride, padding, dilation) if (whole := _integers(value)) is not None]
    no_rule_if(len(settings) < 3)
    (images, channels, height, width), (above, left) = input.meta.shape, settings[1]
    padded = TensorMeta.dense(input.dtype, (images, channels, height + 2 * above, width + 2 * left), input.meta.device)
    image = constant_pad(ctx, padded, input, [left, left, above, above])
    channels_last(ctx, image)
    # over the gradient's index, 1, and the place in the kernel
    shape = (*grad_output.meta.shape, *meta.shape[1:])
    rows = [[0] * 7 for _ in range(4)]
    rows[0][0] = rows[1][1] = 1
    for k, (step, distance) in enumerate(zip(settings[0], settings[2], strict=True), 2):
        rows[k][k], rows[k][k + 3] = step, distance
    windows = reindex(ctx.read(image), IndexMap((0,) * 4, tuple(map(tuple, rows)), 7))
    gradient = spread(ctx.read(grad_output), grad_output.meta.shape, range(4), 7)
    space = Space(ctx, shape, (0, 2, 3), meta.device)
    compute = COMPUTE[input.dtype]
    product = ops.via(gradient, compute) * ops.via(windows, compute)
    return ctx.fresh(meta, ops.via(space.result(space.sum(product), False), meta.dtype))


def _weight_meta(meta: TensorMeta) -> TensorMeta:
    """How oneDNN and cuDNN leave the gradient of a weight, where the images have their channels last."""
    if math.prod(meta.shape[2:]) == 1 and meta.device.type == "cpu":
        return TensorMeta.dense(meta.dtype, meta.shape, meta.device)
    return channels_last_meta(meta)


def _call(
    ctx: Context, meta: TensorMeta, function: Callable[..., Any], arguments: tuple[Any, ...], lies: TensorMeta | None = None
) -> Tensor:
    """The result of a call, which lies in memory as `lies` says, or else with its channels last."""
    return ctx.fresh(meta, whole_load(ctx.call(function, arguments, lies or channels_last_meta(meta), is_new=True)))


def _parameters(ctx: Context, weight: Tensor, bias: Any) -> tuple[Any, Any]:
    return ctx.memory(weight), None if bias is None else ctx.memory(bias)


def _weighs_more(input: Tensor, weight: Tensor, meta: TensorMeta) -> bool:
    """Whether the weight, which would have to be reordered in each call, is larger than the images around it. A GPU has the
    bandwidth for that."""
    if _is_on_gpu(input) or math.prod(weight.meta.shape[2:]) == 1:
        return False
    return weight.meta.numel > COSTS.heavy_weight * (input.meta.numel + meta.numel)


def _is_steady(ctx: Context, input: Any, weight: Any, groups: int) -> bool:
    """Whether the weight is a large tensor from outside, so that a reordered copy of it is worth keeping.

    Only calls in the user's own graph come here, which needs no gradients. In graphs of gradients, which consist of ATen's
    operators, weights change with each step.
    """
    if not is_image(input) or not is_image(weight) or groups != 1 or weight.dtype is not torch.float32:
        return False
    if _is_on_gpu(input):
        return False
    if not config.pack_weights or weight.meta.numel < COSTS.large_weight or not weight.meta.is_contiguous:
        return False
    value = ctx.read(weight)
    return isinstance(value, Load) and value == whole_load(value.access.buffer) and value.access.buffer.kind == "input"


def channels_last(ctx: Context, tensor: Tensor) -> Buffer | View:
    """Memory that holds `tensor` with its channels last."""
    value = ctx.formula(tensor)
    wanted = channels_last_meta(tensor.meta)
    load = ctx.stored(value, wanted)
    if tensor.whole and not isinstance(value, Load):
        tensor.storage.value = load  # other readers need not compute it again
    return memory_at(load.access.buffer, wanted.shape, wanted.stride, load.access.offset)


def channels_last_meta(meta: TensorMeta) -> TensorMeta:
    return TensorMeta(meta.dtype, meta.shape, channels_last_stride(meta.shape), meta.device)


def is_image(value: Any) -> bool:
    if type(value) is not Tensor or value.meta.ndim != 4 or value.meta.numel == 0:
        return False
    if not _is_on_gpu(value):
        return value.meta.device.type == "cpu" and value.dtype in _TYPES
    return torch.backends.cudnn.enabled and (value.dtype in _GPU_TYPES or value.dtype is torch.float32 and _allows_tf32())


def _is_on_gpu(tensor: Tensor) -> bool:
    return tensor.meta.device.type == "cuda"


def _allows_tf32() -> bool:
    """Whether cuDNN may round float32 to TF32: without tensor cores, it is faster with the channels first."""
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:  # the user has set newer settings, which older ones cannot tell
        return bool(torch.backends.cudnn.conv.fp32_precision == "tf32")


def _images_on_gpu(
    ctx: Context, tensors: tuple[Tensor, ...], weight: Tensor, transposed: bool, groups: int
) -> tuple[Buffer | View, ...]:
    """What cuDNN gets, with the channels last.

    Raises:
        NoRule: for several groups of more than one channel, for which its kernels are slow in that layout.
    """
    no_rule_if(groups > 1 and weight.meta.shape[1] > 1)
    return tuple([channels_last(ctx, tensor) for tensor in tensors])


def _with_bias(ctx: Context, meta: TensorMeta, result: Tensor, bias: Tensor) -> Tensor:
    """What eager stores before it adds a bias, and what it has then."""
    compute = COMPUTE[meta.dtype]
    of_channel = at(ctx.read(bias), [1], 4, None)
    added = ops.via(ctx.read(result), compute) + ops.via(of_channel, compute)
    return ctx.fresh(meta, ops.via(added, meta.dtype))


def _pair(value: Any) -> Any:
    return (value, value) if type(value) is int else value


def _integers(value: Any) -> tuple[int, ...] | None:
    """Settings along height and width; None where they are not known when the graph is compiled."""
    if not isinstance(value, (tuple, list)) or any(type(v) is not int for v in value):
        return None
    return tuple(value) * 2 if len(value) == 1 else tuple(value)
