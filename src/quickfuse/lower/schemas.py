"""What PyTorch's schemas say of operators: which make new tensors and do nothing else, and which draw random numbers.

Operators that PyTorch composes of others may return their operand in spite of their schema, and draw random numbers without
saying so. Of these only the ones listed here are known.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch._ops import OpOverload

from quickfuse.ir.cudnn_rnn import CALLS as RECURRENT_CALLS
from quickfuse.ir.effects import Effects

#: Composed operators whose results are always new memory, whatever the arguments. Functions in Python included.
_COMPOSED = frozenset(
    "matmul linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d softmax log_softmax "
    "layer_norm group_norm rms_norm normalize cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss kl_div "
    "binary_cross_entropy binary_cross_entropy_with_logits cosine_similarity pairwise_distance tensor stack hstack vstack "
    "dstack norm std var std_mean var_mean max min outer inner isclose diff argsort max_pool1d max_pool2d max_pool3d "
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d scaled_dot_product_attention".split()
)

#: Operators that draw random numbers for dropout alone.
_ATTENTION = "scaled_dot_product_attention"
_RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})

#: Operators that PyTorch composes of others, none of which draws random numbers: by name, and by the beginning of it.
_DRAW_NOTHING = frozenset("einsum pad interpolate tensordot kron embedding_bag cdist cov corrcoef".split())
_FAMILIES_THAT_DRAW_NOTHING = ("fft_", "linalg_")

#: Operators that raise no exception on operands of shapes and types that they take, whatever these hold.
_MOVE_DATA = frozenset(
    "sort argsort topk cat stack hstack vstack dstack clone pad to rand randn rand_like randn_like randint randint_like "
    "randperm".split()
)

#: The same for floating-point numbers: capture does not know of all of them for which other types they have no kernel.
_NEVER_FAIL = frozenset(
    "matmul mm bmm mv dot addmm addmv addr addbmm baddbmm linear bilinear outer inner einsum tensordot "
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution convolution_backward "
    "scaled_dot_product_attention kthvalue median mode cumsum cumprod logcumsumexp cummax cummin "
    "norm std var std_mean var_mean max min interpolate lstm gru rnn_tanh rnn_relu cudnn_rnn native_dropout dropout "
    "bernoulli_ uniform_ normal_".split()
)
_HALF = (torch.float16, torch.bfloat16)

_FAMILIES_THAT_NEVER_FAIL = ("_scaled_dot_product", "max_pool", "avg_pool", "adaptive_", "upsample_", "fft_")

#: Operators that change an operand although their schema does not say so.
_UNDECLARED = frozenset({"native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"})

#: Operators whose result depends on contents for some operands only, for which there is no metadata.
_KNOWN_WITHOUT_CONTENTS = frozenset({"index", "_ctc_loss"})

#: Where the functions and methods that are written in C++ are found.
_NAMESPACES = [getattr(torch._C, name) for name in ("_nn", "_special", "_linalg", "_fft")]
_OWNERS: list[Any] = [torch, torch.Tensor, operator, *_NAMESPACES]


@cache
def makes_new_tensors(function: Any, name: str) -> bool:
    """Whether all that an operator does is to return new tensors."""
    if isinstance(function, OpOverload):  # calls that draw random numbers are kept in order
        return name not in _UNDECLARED and _is_function_of_operands(function, may_draw=True)
    if function in RECURRENT_CALLS:
        return True
    if isinstance(function, FunctionType):  # a wrapper in Python may do more than the operator of its name
        return name in _COMPOSED and getattr(torch.nn.functional, name, None) is function
    if not _is_torch_builtin(function):
        return False
    if name in _COMPOSED:
        return True
    overloads = list(_overloads(name))
    return name not in _UNDECLARED and bool(overloads) and all(map(_is_function_of_operands, overloads))


@cache
def is_composed(name: str) -> bool:
    """Whether PyTorch composes an operator of others, by its name."""
    return any(map(_is_composed, _overloads(name)))


@cache
def draws_nothing(function: Any, name: str) -> bool:
    """Whether an operator surely draws no random numbers."""
    if name in _COMPOSED:
        return name != _ATTENTION
    if function in RECURRENT_CALLS or name in _DRAW_NOTHING or name.startswith(_FAMILIES_THAT_DRAW_NOTHING):
        return True
    if isinstance(function, FunctionType):
        return False
    overloads = [function] if isinstance(function, OpOverload) else list(_overloads(name))
    return bool(overloads) and not any(torch.Tag.nondeterministic_seeded in o.tags or _is_composed(o) for o in overloads)


def drops_nothing(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of an operator that draws random numbers for dropout alone draws none."""
    if name == _ATTENTION:
        return _is_zero(kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0))
    if name not in _RECURRENT or kwargs or len(args) != 9:
        return False
    packed = 0 if type(args[3]) is bool else 1  # sequences of different lengths come with these
    return args[6 + packed] is False or _is_zero(args[5 + packed])


def _is_zero(value: Any) -> bool:
    return type(value) in (int, float) and value == 0


def never_fails(name: str, types: Sequence[torch.dtype]) -> bool:
    """Whether an operator raises no exception for what its operands hold, nor for their `types`.

    Products refuse operands of different types, which PyTorch's rules without data do not.
    """
    if name in _MOVE_DATA or name.endswith("_backward"):
        return True
    if len({dtype for dtype in types if dtype.is_floating_point or dtype.is_complex}) > 1:
        return False
    first = types[0] if types else None
    if first not in (None, torch.float32, torch.float64) and (first not in _HALF or name.startswith("fft_")):
        return False
    return name in _NEVER_FAIL or name.startswith(_FAMILIES_THAT_NEVER_FAIL)


def effects_by_schema(
    overload: OpOverload, operands: Sequence[tuple[str, int]], leaves: Sequence[int]
) -> Effects | None:
    """What a call of an operator of ATen does; None where its schema does not say all.

    `operands` are the arguments that are given, with the number of tensors in each; `leaves` are those of each result.
    """
    schema = overload._schema
    unknown = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)
    name = schema.name.partition("::")[2]
    has_unknown = name not in _KNOWN_WITHOUT_CONTENTS and any(tag in overload.tags for tag in unknown)
    if name in _UNDECLARED or _is_composed(overload) or has_unknown:
        return None
    first: dict[str, int] = {}
    written: list[int] = []
    total = 0
    sets = {argument.name: argument.alias_info for argument in schema.arguments}
    for name, count in operands:
        first[name] = total
        if sets[name] is not None and sets[name].is_write:
            written += range(total, total + count)
        total += count
    memory: list[int | None] = []
    for result, count in zip(schema.returns, leaves, strict=True):
        mine = result.alias_info
        sources = [n for n in first if mine is not None and sets[n] is not None and sets[n].before_set & mine.before_set]
        memory += [first[sources[0]] if sources else None] * count
    return Effects(tuple(memory), tuple(written))


def _is_torch_builtin(function: Any) -> bool:
    name = getattr(function, "__name__", "")
    return any(getattr(owner, name, None) is function for owner in _OWNERS)


def _overloads(name: str) -> Iterator[OpOverload]:
    packet = getattr(torch.ops.aten, name, None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return
    for overload_name in packet.overloads():
        overload = getattr(packet, overload_name)
        # Overloads for named axes (up to PyTorch 2.12) cannot be meant: capture gives no names.
        if "name" not in overload_name and torch._C._dispatch_has_kernel(overload.name()) and not _is_out_variant(overload):
            yield overload


def _is_out_variant(overload: OpOverload) -> bool:
    return any(argument.is_out for argument in overload._schema.arguments)


def _is_function_of_operands(overload: OpOverload, *, may_draw: bool = False) -> bool:
    schema = overload._schema
    if any(part.alias_info is not None for part in (*schema.arguments, *schema.returns)):
        return False
    unsafe = [torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output]
    if not may_draw:
        unsafe.append(torch.Tag.nondeterministic_seeded)
    return not any(tag in overload.tags for tag in unsafe) and not _is_composed(overload)


def _is_composed(overload: OpOverload) -> bool:
    return bool(overload.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd))
