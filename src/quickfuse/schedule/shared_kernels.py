"""Kernels that differ by constants alone become one kernel, which gets the constants as arguments.

A loop that was unrolled has such kernels: the softmax of `x * c`, with another c each time; and so has a network with batch
norms of images of several sizes. Compiling takes milliseconds for each of them, on a GPU a second. A few stay as they are.
Only constants by which code does not differ become arguments: operands of sums, products, quotients and comparisons that are
neither 0 nor powers of two, with which a product or a quotient costs less.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from quickfuse.ir.cost_model import COSTS
from quickfuse.ir.expr import Const, Expr, Op, cast, walk
from quickfuse.ir.kernel import ArgScalar, KernelBody, KernelCall
from quickfuse.ir.loop import HostScalar
from quickfuse.ir.target import costs_on

#: The operations that take as long, and give the same, for a constant as for an argument.
_ALIKE = frozenset("add sub mul div fma maximum minimum fmax fmin lt le gt ge where".split())


def share_kernels(calls: list[KernelCall]) -> None:
    """Give calls whose bodies differ by constants alone one body, where there are many of them."""
    for device in dict.fromkeys(call.device for call in calls):
        _share_kernels([call for call in calls if call.device == device], costs_on(device).least_alike)


def _share_kernels(calls: list[KernelCall], least: int) -> None:
    bodies = {id(call.body): call.body for call in calls}
    if len(bodies) < least:
        return
    families: dict[Any, list[tuple[KernelBody, list[Const]]]] = {}
    for body in bodies.values():
        form, constants = _form(body)
        families.setdefault(form, []).append((body, constants))
    shared: dict[int, tuple[KernelBody, list[HostScalar]]] = {}
    for family in families.values():
        if len(family) >= least:
            shared.update(_with_arguments(family))
    for call in calls:
        if id(call.body) in shared:
            call.body, numbers = shared[id(call.body)]
            call.scalars = [*call.scalars, *numbers]


def _form(body: KernelBody) -> tuple[Any, list[Const]]:
    """A key that bodies share which differ by constants alone, and these constants in order."""
    fixed = {_key(root) for root in body.roots if isinstance(root, Const)}
    for node in walk(*body.roots):
        if isinstance(node, Op):
            fixed.update([_key(arg) for arg in node.args if isinstance(arg, Const) and not _is_alike(node, arg)])
    constants: dict[Any, tuple[int, Const]] = {}

    def entry(constant: Const) -> Any:
        key = _key(constant)
        if key in fixed or not _may_change(constant):
            return key
        return ("constant", constants.setdefault(key, (len(constants), constant))[0], constant.dtype)

    form = body.key_with(entry)
    return form, [constant for _, constant in constants.values()]


def _key(constant: Expr) -> Any:
    return (repr(constant.value), constant.dtype) if isinstance(constant, Const) else None


def _is_alike(operation: Op, constant: Const) -> bool:
    """Whether an operation takes as long for a constant as for an argument: arithmetic of floats does, and the conversion of
    an integer, such as a number of elements, to a float."""
    if constant.dtype is torch.int64:
        return operation.name == "cast" and operation.dtype.is_floating_point
    return operation.name in _ALIKE


def _may_change(constant: Const) -> bool:
    """Whether no code is simpler for this constant than for another."""
    value = constant.value
    if constant.dtype is torch.int64:
        return bool(value & (value - 1))
    known = constant.dtype in (torch.float32, torch.float64) and math.isfinite(value)
    return known and abs(math.frexp(value)[0]) not in (0.0, 0.5)


def _with_arguments(
    family: list[tuple[KernelBody, list[Const]]],
) -> dict[int, tuple[KernelBody, list[HostScalar]]]:
    """For each body (by its id) the one for all, and the arguments that make it the same."""
    first, constants = family[0]
    values = [[constant.value for constant in constants] for _, constants in family]
    differing = [k for k, column in enumerate(zip(*values, strict=True)) if len({repr(v) for v in column}) > 1]
    if len(differing) > COSTS.most_constants_given:
        return {}
    count = len(first.scalars)
    dtypes = [torch.int64 if constants[k].dtype is torch.int64 else torch.float64 for k in differing]
    given = {_key(constants[k]): ArgScalar(count + n, dtypes[n]) for n, k in enumerate(differing)}
    casts: dict[Any, Expr] = {}

    def leaf(node: Expr) -> Expr:
        key = _key(node)
        return casts.setdefault(key, cast(given[key], node.dtype)) if key in given else node

    body = first.with_leaves(leaf, scalars=(*first.scalars, *dtypes))
    return {id(old): (body, [_host_scalar(own[k]) for k in differing]) for old, own in family}


def _host_scalar(constant: Const) -> HostScalar:
    is_integer = constant.dtype is torch.int64
    value = int(constant.value) if is_integer else float(constant.value)
    return HostScalar(repr(value), repr(value), torch.int64 if is_integer else torch.float64, value)
