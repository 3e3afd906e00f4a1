"""What an exported graph may call, by names that are the same in every process.

`aten::add.Tensor` is an operator that is registered with PyTorch, `number::mul` arithmetic on numbers, `list::item` the
taking of one result out of several, `tensor::of` a small constant. Nothing else has a name, so no file can call it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.fx import Node

from ..errors import ExportError, ExportFileError
from .numbers import NAMES, OPERATIONS

_NAME = re.compile(r"([A-Za-z_]\w*)::([A-Za-z_]\w*)(?:\.([A-Za-z_]\w*))?", re.ASCII)

#: Operators of ATen that reach outside of their operands, or trust them without a look.
_REFUSED = frozenset(
    "from_file set set_ data record_stream resize resize_as _resize_output lift alias_copy _make_dual _fw_primal "
    "_unpack_dual _nested_view_from_buffer _nested_view_from_jagged _nested_from_padded _print _assert_async "
    "_functional_assert_async _unsafe_view_dtype _cslt_compress _sparse_coo_tensor_unsafe _sparse_csr_tensor_unsafe "
    "_sparse_compressed_tensor_unsafe _sparse_csc_tensor_unsafe _sparse_bsr_tensor_unsafe _sparse_bsc_tensor_unsafe "
    "_pin_memory pin_memory _use_cudnn_rnn_flatten_weight".split()
)
_TENSORS = ("Tensor", "List[Tensor]", "Optional[Tensor]")

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "list::item": operator.getitem, "tensor::of": torch.tensor,
    **{f"number::{name}": function for name, (function, _) in OPERATIONS.items()},
}  # fmt: skip


def name_of(target: Any) -> str:
    """The name of what a node calls.

    Raises:
        ExportError: for something without one.
    """
    if isinstance(target, OpOverload):
        overload = target._schema.overload_name
        return f"{target._schema.name}.{overload}" if overload else target._schema.name
    if target is operator.getitem:
        return "list::item"
    if target is torch.tensor:
        return "tensor::of"
    known = NAMES.get(target)
    if known is None:
        raise ExportError(f"{getattr(target, '__name__', target)} is no operator that a file can name")
    return f"number::{known}"


def function_named(name: Any, namespaces: Collection[str]) -> Callable[..., Any]:
    """What a name in a file stands for.

    Raises:
        ExportFileError: for a name that stands for nothing, or for something that a graph may not call.
    """
    if not isinstance(name, str):
        raise ExportFileError(f"an operator is named by a string, not by {name!r:.60}")
    known = _FUNCTIONS.get(name)
    if known is not None:
        return known
    matched = _NAME.fullmatch(name)
    if matched is None:
        raise ExportFileError(f"{name!r:.80} is no name of an operator")
    namespace, operator_name, overload = matched.groups()
    if namespace not in namespaces:
        raise ExportFileError(
            f"the operator {name} is not of ATen: import the library that registers it, and pass "
            f"namespaces=[{namespace!r}] if you trust it"
        )
    packet = getattr(getattr(torch.ops, namespace), operator_name, None)
    if not isinstance(packet, OpOverloadPacket) or (overload or "default") not in packet.overloads():
        hint = "" if namespace == "aten" else ": import the library that registers it"
        raise ExportFileError(f"PyTorch {torch.__version__} has no operator {name}{hint}")
    found: OpOverload = getattr(packet, overload or "default")
    problem = _why_refused(found)
    if problem:
        raise ExportFileError(f"the operator {name} {problem}")
    return found


def check_operands(function: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Why an operator does not take these operands, by its schema; "" where it does. Nodes stand for tensors and numbers."""
    arguments = function._schema.arguments
    positional = [argument for argument in arguments if not argument.kwarg_only]
    if len(args) > len(positional):
        return f"takes {len(positional)} operands by position, and {len(args)} are given"
    given = {argument.name: value for argument, value in zip(positional, args, strict=False)}
    for name in kwargs:
        if name in given or not any(argument.name == name for argument in arguments):
            return f"is given the operand {name!r:.40} twice, or does not take it"
    given |= kwargs
    for argument in arguments:
        if argument.name not in given:
            if not argument.has_default_value():
                return f"is not given the operand {argument.name!r}"
        elif not _fits(argument.real_type, given[argument.name]):
            return f"takes no {given[argument.name]!r:.40} as {argument.name!r}, which is {argument.real_type}"
    return ""


def _fits(kind: Any, value: Any, inside: bool = False) -> bool:
    """Whether a value is of a type in PyTorch's terms, which is `inside` of another. Lists of numbers may be one number, for
    all of them; and a number may stand for a tensor."""
    name = kind.kind()
    if name == "OptionalType":
        return value is None or _fits(kind.getElementType(), value, True)
    if name == "ListType":
        inner = kind.getElementType()
        if isinstance(value, (list, tuple)):
            return all(_fits(inner, v, True) for v in value)
        return inner.kind() in ("IntType", "SymIntType", "FloatType") and _fits(inner, value)
    accepted = (Node,) if inside and name == "TensorType" else _ACCEPTED.get(name)
    return accepted is None or isinstance(value, accepted)


#: By the kind of a type: what a graph may have as an operand of that type.
_ACCEPTED: dict[str, tuple[type, ...]] = {
    "TensorType": (Node, bool, int, float, complex), "NumberType": (Node, bool, int, float, complex),
    "IntType": (Node, int), "SymIntType": (Node, int), "FloatType": (Node, int, float), "BoolType": (bool,),
    "StringType": (str,), "DeviceObjType": (torch.device, str), "ScalarTypeType": (torch.dtype,),
    "LayoutType": (torch.layout,), "MemoryFormatType": (torch.memory_format,),
}  # fmt: skip


def _why_refused(found: OpOverload) -> str:
    schema = found._schema
    if schema.is_mutable:
        return "changes its operands, which nothing in an exported graph does"
    if found.namespace == "aten" and schema.name.partition("::")[2] in _REFUSED:
        return "is not for graphs out of files"
    if not schema.returns or not any(str(result.type) in _TENSORS for result in schema.returns):
        return "returns no tensors"
    if any(kind in str(argument.type) for argument in schema.arguments for kind in ("Storage", "Stream", "__torch__")):
        return "takes more than tensors and plain values"
    return ""
