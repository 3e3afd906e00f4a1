"""What an exported graph may call, by names that are the same in every process.

`aten::add.Tensor` is an operator that is registered with PyTorch, `number::mul` arithmetic on numbers, `list::item` the
taking of one result out of several, `tensor::of` a small constant. Nothing else has a name, so no file can call it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

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
