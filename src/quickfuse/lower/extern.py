"""Calls of PyTorch's own operators, for what has no rule: products of matrices, convolutions, sorts.

Only operators that surely leave their operands alone and return memory of their own are called; PyTorch's schemas say
which do. Operators that PyTorch composes of others may return their operand in spite of their schema, so of these only
the ones listed here are called.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from types import FunctionType
from typing import Any

import torch

from quickfuse.errors import Unsupported
from quickfuse.ir.expr import Expr, Scalar
from quickfuse.ir.loop import Buffer, Extern
from quickfuse.ir.values import TensorMeta

from .context import Context
from .promotion import is_float
from .symbolic import Tensor, whole_load

#: Composed operators whose results are always new memory, whatever the arguments. Functions in Python included.
_COMPOSED = frozenset(
    "matmul linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d softmax log_softmax "
    "layer_norm group_norm rms_norm normalize cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss kl_div "
    "binary_cross_entropy binary_cross_entropy_with_logits cosine_similarity pairwise_distance stack hstack vstack "
    "dstack norm std var std_mean var_mean max min outer inner isclose diff argsort max_pool1d max_pool2d max_pool3d "
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d scaled_dot_product_attention".split()
)

#: Operators that change an operand although their schema does not say so.
_UNDECLARED = frozenset({"native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"})
_MASKS = (torch.bool, torch.uint8)

#: Where the functions and methods that are written in C++ are found.
_NAMESPACES = [getattr(torch._C, name) for name in ("_nn", "_special", "_linalg", "_fft")]
_OWNERS: list[Any] = [torch, torch.Tensor, operator, *_NAMESPACES]


def extern(
    ctx: Context, kind: str, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], meta: Any
) -> Any:
    """Add a call of the operator that a node calls. Returns its results.

    Raises:
        Unsupported: where it is not known to be a function of its operands that returns new memory.
    """
    function: Callable[..., Any] = getattr(torch.Tensor, target) if kind == "call_method" else target
    name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    name = name.strip("_") if name.startswith("__") else name
    if kwargs.get("out") is not None:
        raise Unsupported(f"an `out` argument of {name}")
    if name == "getitem":
        _check_index(args[1])
    else:
        _check(name, function)
    arguments = tuple(_memory(ctx, a) for a in args)
    options = {key: _memory(ctx, value) for key, value in kwargs.items()}
    if isinstance(meta, TensorMeta):
        buffer = ctx.temp(meta)
        results: Any = ctx.fresh(meta, whole_load(buffer))
        outputs = [buffer]
    elif isinstance(meta, (list, tuple)) and all(isinstance(m, TensorMeta) for m in meta):
        outputs = [ctx.temp(m) for m in meta]
        results = [ctx.fresh(b.meta, whole_load(b)) for b in outputs]
        if len(outputs) == 1:
            function = partial(_only_result, function)
    else:
        raise Unsupported(f"the result of {name}")
    ctx.program.steps.append(Extern(function, arguments, options, outputs))
    return results


def _only_result(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    (result,) = function(*args, **kwargs)
    return result


def _memory(ctx: Context, value: Any) -> Any:
    if type(value) is Tensor:
        if value.is_number:
            raise Unsupported("a tensor's number as an argument of an operator without a rule")
        return ctx.memory(value)
    if type(value) is Scalar:
        return ctx.host_scalar(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_memory(ctx, v) for v in value)
    if isinstance(value, (Expr, Buffer)):
        raise Unsupported("an argument of an operator without a rule")
    return value


@cache
def _check(name: str, function: Any) -> None:
    if isinstance(function, FunctionType):
        # A wrapper in Python may do more than the operator of its name.
        known = name in _COMPOSED and getattr(torch.nn.functional, name, None) is function
    else:
        known = _is_torch_builtin(function) and (name in _COMPOSED or _is_function_by_schema(name))
    if not known:
        raise Unsupported(f"no rule for {name}, which is not known to leave its operands alone")


def _check_index(index: Any) -> None:
    for part in index if isinstance(index, tuple) else (index,):
        if type(part) is Tensor and not part.is_number and not is_float(part.dtype) and part.dtype not in _MASKS:
            continue
        if type(part) not in (int, slice, type(None), type(Ellipsis)):
            raise Unsupported("an index that is a mask or a list")


def _is_torch_builtin(function: Any) -> bool:
    name = getattr(function, "__name__", "")
    return any(getattr(owner, name, None) is function for owner in _OWNERS)


def _is_function_by_schema(name: str) -> bool:
    packet = getattr(torch.ops.aten, name, None)
    if name in _UNDECLARED or not isinstance(packet, torch._ops.OpOverloadPacket):
        return False
    # Overloads for named axes (up to PyTorch 2.12) cannot be meant: capture gives no names.
    overloads = [getattr(packet, overload) for overload in packet.overloads() if "name" not in overload]
    checked = [o for o in overloads if _is_in_dispatcher(o) and not _is_out_variant(o)]
    return bool(checked) and all(map(_is_function_of_operands, checked))


def _is_in_dispatcher(overload: Any) -> bool:
    return torch._C._dispatch_has_kernel(overload.name())


def _is_out_variant(overload: Any) -> bool:
    return any(argument.is_out for argument in overload._schema.arguments)


def _is_function_of_operands(overload: Any) -> bool:
    schema = overload._schema
    if any(part.alias_info is not None for part in (*schema.arguments, *schema.returns)):
        return False
    unsafe = (torch.Tag.nondeterministic_seeded, torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)
    if any(tag in overload.tags for tag in unsafe):
        return False
    return not overload.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
