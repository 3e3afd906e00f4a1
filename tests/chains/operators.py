"""Calls of operators out of PyTorch's own database, as source: a sample's tensors become operands that are there already."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch

from operator_cases import OPERATORS
from seeding import seed_torch

#: What returns memory as it is, what is no function of a user's, what chooses among equal elements as it likes, and norms of
#: groups, of which eager takes weights with gaps for ones without.
LEFT_OUT = frozenset(
    "empty empty_like empty_permuted empty_strided new_empty new_empty_strided resize_ resize_as_ bmm.triton_optimized item "
    "broadcast_shapes nn.functional.multi_head_attention_forward torch._scaled_mm torch._scaled_mm_v2 bitwise_left_shift "
    "bitwise_right_shift __rlshift__ __rrshift__ __lshift__ __rshift__ to_sparse sparse.mm.reduce sparse.sampled_addmm "
    "linalg.lu_factor_ex linalg.ldl_factor_ex geqrf as_strided as_strided.partial_views as_strided_copy as_strided_scatter "
    "svd_lowrank pca_lowrank nonzero_static unsafe_split unsafe_chunk native_group_norm nn.functional.group_norm "
    "bucketize searchsorted median nanmedian kthvalue mode topk sort argsort msort _segment_reduce.lengths "
    "_segment_reduce.offsets _chunk_cat".split()
)  # fmt: skip
#: Operators that make whole numbers of others: of what is none, or too large, each processor makes something else.
TO_WHOLE = frozenset("byte char short int long to type_as".split())
NAMES = sorted(n for n in OPERATORS if n not in LEFT_OUT and not n.startswith(("jiterator", "torch.ops", "empty")))
#: Samples of an operator among which one is drawn.
MOST_SAMPLES = 12

_TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.int64, torch.int32,
          torch.uint8, torch.bool)  # fmt: skip
_LIKELY = (8, 3, 2, 1, 1.5, 2, 1, 1, 1)


@dataclass(frozen=True)
class Call:
    """`text` has a place `{0}`, `{1}`, ... for each tensor of `tensors`."""

    operator: str
    text: str
    tensors: list[torch.Tensor]
    in_place: bool


def sample(rng: random.Random) -> Call | None:
    """A call of a random operator with one of its samples, or none where a user cannot write it."""
    name = rng.choice(NAMES)
    op = OPERATORS[name]
    supported = op.supported_dtypes("cpu")
    dtype = rng.choices(_TYPES, _LIKELY)[0]
    if dtype not in supported:
        dtype = rng.choice([t for t in _TYPES if t in supported] or [None])
    if dtype is None:
        return None
    seed = rng.randrange(1000)
    random.seed(seed)
    np.random.seed(seed)
    seed_torch(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            samples = list(
                islice(op.sample_inputs_func(op, torch.device("cpu"), dtype, False), rng.randint(1, MOST_SAMPLES))
            )
        except Exception:
            return None
    if not samples:
        return None
    drawn = samples[-1]
    writer = _Writer()
    try:
        first = writer.text(drawn.input)
        rest = [writer.text(a) for a in drawn.args] + [f"{k}={writer.text(v)}" for k, v in drawn.kwargs.items()]
    except _NotText:
        return None
    return _written(rng, name, op, first, rest, writer.tensors)


def _written(
    rng: random.Random, name: str, op: Any, first: str, rest: list[str], tensors: list[torch.Tensor]
) -> Call | None:
    forms: dict[str, float] = {}
    function = _function_name(op.name)
    method = op.name.rpartition(".")[2]
    is_tensor = first == "{0}"
    if function:
        forms["function"] = 3
    if is_tensor and getattr(torch.Tensor, method, None) is not None and op.get_method() is not None:
        forms["method"] = 1.5
    if is_tensor and op.get_inplace() is not None and hasattr(torch.Tensor, f"{method}_"):
        forms["in place"] = 1.5
    if function and op.supports_out and op.name in dir(torch):
        forms["out"] = 0.7
    if not forms:
        return None
    form = rng.choices([*forms], [*forms.values()])[0]
    arguments = ", ".join([first, *rest])
    if form == "function":
        text = f"{function}({arguments})"
    elif form == "method":
        is_property = not callable(getattr(torch.Tensor, method))
        text = f"{first}.{method}" + ("" if is_property else f"({', '.join(rest)})")
    elif form == "in place":
        text = f"{first}.{method}_({', '.join(rest)})"
    else:
        text = f"{function}({arguments}, out={{out}})"
    return Call(name, text, tensors, form == "in place")


def _function_name(name: str) -> str:
    """How a user writes a function, if there is one."""
    found: Any = torch
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        return ""
    return name.replace("nn.functional", "F", 1) if name.startswith("nn.functional") else f"torch.{name}"


class _NotText(Exception):
    """An argument that a program's source cannot say."""


class _Writer:
    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []

    def text(self, value: Any) -> str:
        kind = type(value)
        write: dict[type, Callable[[Any], str]] = {
            list: lambda v: f"[{', '.join(map(self.text, v))}]",
            tuple: lambda v: f"({''.join(f'{self.text(one)}, ' for one in v)})",
            torch.Size: lambda v: repr(tuple(v)),
            dict: lambda v: "{{" + ", ".join(f"{self.text(k)}: {self.text(one)}" for k, one in v.items()) + "}}",
            slice: lambda v: f"slice({self.text(v.start)}, {self.text(v.stop)}, {self.text(v.step)})",
            type(Ellipsis): lambda v: "...",
            float: lambda v: repr(v) if math.isfinite(v) else f"float('{v}')",
        }
        if isinstance(value, torch.Tensor):
            if value.layout != torch.strided or value.is_quantized or value.numel() > 500:
                raise _NotText
            self.tensors.append(value)
            return f"{{{len(self.tensors) - 1}}}"
        if kind in write:
            return write[kind](value)
        if kind in (int, bool, str, complex, type(None), torch.dtype, torch.memory_format):
            return repr(value)
        raise _NotText


def literal(tensor: torch.Tensor) -> str:
    """A tensor of few elements as source."""
    return f"torch.tensor({tensor.tolist()!r}, dtype={tensor.dtype})"
