"""Objects of the standard library, of NumPy and of PyTorch that are neither plain values nor containers.

Each call of a factory makes the values anew, so that eager and the compiled function never share one that is changed.
"""

from __future__ import annotations

import array
import collections
import datetime
import decimal
import fractions
import functools
import itertools
import operator
import pathlib
import re
import uuid
from typing import Any

import numpy as np
import torch

from .values import Values, deleter, kind, plain, setter

# numbers, dates, paths and texts --------------------------------------------------------------------------------------

plain("fraction_negative", lambda: fractions.Fraction(-3, 2), lambda: fractions.Fraction(4, 1))
plain("decimal", lambda: decimal.Decimal("1.5"), lambda: decimal.Decimal("2"))
plain("date", lambda: datetime.date(2026, 1, 2), lambda: datetime.date(2025, 3, 4))
plain("datetime", lambda: datetime.datetime(2026, 1, 2, 3), lambda: datetime.datetime(2026, 1, 2, 4))
plain("timedelta", lambda: datetime.timedelta(1), lambda: datetime.timedelta(2))
plain("path", lambda: pathlib.PurePosixPath("a/b.c"), lambda: pathlib.PurePosixPath("d"))
plain("uuid", lambda: uuid.UUID(int=1), lambda: uuid.UUID(int=2))
plain("match_object", lambda: re.match("(a)(?P<a>b)", "ab"), lambda: re.match("(c)(?P<a>d)?", "c"))
plain("pattern", lambda: re.compile("a"), lambda: re.compile("b", re.I))
plain("complex_whole", lambda: 2 + 0j, lambda: 3 + 0j)
plain("range_steps", lambda: range(8, 0, -3), lambda: range(0))
plain("slice_of_tensors", lambda: slice(torch.tensor(0), torch.tensor(2)), lambda: slice(1, 2))
plain("bytes_empty", lambda: b"", lambda: b"\x01\x02")
plain("int_large", lambda: 1 << 70, lambda: 2)
plain("float_inf", lambda: float("inf"), lambda: float("-inf"))
plain("str_empty", lambda: "", lambda: "ab")
plain("tuple_empty", lambda: (), lambda: (1,))
plain("list_empty", list, lambda: [0])


@kind
def byte_array() -> Values:
    first = bytearray(b"\x01\x02")
    return Values(first, bytearray(b"\x03"), {"place": (lambda: first.append(4), lambda: first.pop())})


@kind
def memory_view() -> Values:
    owner = bytearray(b"\x01\x02")
    return Values(
        memoryview(owner), memoryview(b"\x03"), {"place": (lambda: owner.__setitem__(0, 7), lambda: owner.__setitem__(0, 1))}
    )


@kind
def array_array() -> Values:
    first = array.array("i", [1, 2])
    return Values(first, array.array("d", [2.0]), {"place": (lambda: first.append(3), lambda: first.pop())})


# NumPy and PyTorch ----------------------------------------------------------------------------------------------------


@kind
def numpy_array_object() -> Values:
    first = np.array([1, "a"], dtype=object)
    return Values(first, np.array([2, None], dtype=object), {"place": (lambda: first.put(0, 5), lambda: first.put(0, 1))})


@kind
def numpy_array_structured() -> Values:
    kinds = [("a", "i4"), ("b", "f8")]
    first = np.array([(1, 2.0), (3, 4.0)], dtype=kinds)
    return Values(
        first, np.array([(5, 6.0)], dtype=kinds), {"place": (lambda: first["a"].put(0, 9), lambda: first["a"].put(0, 1))}
    )


@kind
def numpy_array_scalar() -> Values:
    first = np.array(2.0)
    return Values(first, np.array(3), {"place": (lambda: first.fill(5), lambda: first.fill(2))})


plain("numpy_dtype", lambda: np.dtype("float32"), lambda: np.dtype("int64"))
plain("numpy_void", lambda: np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")])[0], lambda: np.float32(1))
plain("numpy_datetime", lambda: np.datetime64("2026-01-02"), lambda: np.timedelta64(1, "D"))
plain("torch_finfo", lambda: torch.finfo(torch.float32), lambda: torch.finfo(torch.float64))
plain("torch_iinfo", lambda: torch.iinfo(torch.int32), lambda: torch.iinfo(torch.int64))
plain("torch_size_empty", lambda: torch.Size(()), lambda: torch.Size((3,)))
plain("torch_device_meta", lambda: torch.device("meta"), lambda: torch.device("cpu", 0))
plain("torch_layout", lambda: torch.strided, lambda: torch.sparse_coo)
plain("torch_memory_format", lambda: torch.contiguous_format, lambda: torch.preserve_format)
plain("torch_generator", lambda: torch.Generator().manual_seed(1), lambda: torch.Generator().manual_seed(2))
plain("torch_return_type", lambda: torch.arange(6.0).view(2, 3).max(1), lambda: torch.ones(2, 3).sort(1))
plain("torch_operator", lambda: torch.ops.aten.sin.default, lambda: torch.ops.aten.cos.default)
plain("tensor_list", lambda: [torch.ones(3), torch.zeros(3)], lambda: [torch.ones(3, 3)])
plain("tensor_dict", lambda: {"a": torch.ones(3)}, lambda: {"a": torch.zeros(3), "b": torch.ones(1)})
plain("parameter", lambda: torch.nn.Parameter(torch.ones(3)), lambda: torch.nn.Parameter(torch.ones(3), requires_grad=False))


@kind
def parameter_list() -> Values:
    first = torch.nn.ParameterList([torch.ones(3), torch.zeros(3)])
    return Values(first, torch.nn.ParameterList([torch.ones(3)]), {"place": setter(first, "a", 5)})


@kind
def module_dict() -> Values:
    first = torch.nn.ModuleDict({"a": torch.nn.Tanh(), "b": torch.nn.Identity()})
    return Values(
        first, torch.nn.ModuleDict({"a": torch.nn.ReLU()}),
        {"place": (lambda: first.update({"c": torch.nn.ReLU()}), lambda: first.pop("c"))},
    )  # fmt: skip


@kind
def sequential() -> Values:
    first = torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Identity())
    return Values(
        first, torch.nn.Sequential(torch.nn.ReLU()), {"place": (lambda: first.append(torch.nn.ReLU()), lambda: first.pop(2))}
    )


# iterators that come from outside -------------------------------------------------------------------------------------


def _begun(iterator: Any) -> Any:
    next(iterator)
    return iterator


def _count() -> Any:
    yield from range(1, 9)


plain("iterator_begun", lambda: _begun(iter([1, 2, 3, 4, 5, 6, 7])), lambda: iter([4, 5, 6, 7, 8, 9]))
plain("generator_begun", lambda: _begun(_count()), lambda: _count())
plain("zip_object", lambda: zip([1, 2, 3, 4, 5, 6], "abcdef", strict=False), lambda: zip([4] * 6, [5] * 6, strict=True))
plain("map_object", lambda: map(abs, [-1, 2, -3, 4, -5, 6]), lambda: map(str, range(6)))
plain("filter_object", lambda: filter(None, [0, 1, 2, 3, 4, 5, 6]), lambda: filter(None, [3, 4, 5, 6, 7]))
plain("enumerate_object", lambda: enumerate([5, 6, 7, 8, 9, 10]), lambda: _begun(enumerate([5, 6, 7, 8, 9, 10])))
plain("reversed_object", lambda: reversed([1, 2, 3, 4, 5, 6]), lambda: reversed((7, 8, 9, 1, 2)))
plain("chain_object", lambda: itertools.chain([1, 2], [3, 4, 5, 6]), lambda: itertools.chain([4, 5, 6, 7, 8]))
plain("islice_object", lambda: itertools.islice([1, 2, 3, 4, 5, 6, 7], 6), lambda: itertools.islice([5, 6, 7, 8, 9], 1, 5))
plain("repeat_object", lambda: itertools.repeat(3, 6), lambda: itertools.repeat(4, 5))
plain("product_object", lambda: itertools.product([1, 2], [3, 4]), lambda: itertools.product([5, 6], repeat=2))
plain("accumulate_object", lambda: itertools.accumulate([1, 2, 3, 4, 5]), lambda: itertools.accumulate([4, 5, 6, 7]))
plain("dict_iterator", lambda: iter({1: 2, 3: 4, 5: 6, 7: 8, 9: 0}), lambda: iter({4: 5, 6: 7, 8: 9, 1: 1}.items()))
plain("range_iterator", lambda: iter(range(7)), lambda: _begun(iter(range(7))))

# containers of the standard library, and what asks for items ----------------------------------------------------------


@kind
def deque_full() -> Values:
    first = collections.deque([1, 2, 3], maxlen=3)
    return Values(first, collections.deque([2], maxlen=1), {"place": (lambda: first.append(4), lambda: first.appendleft(1))})


@kind
def counter_negative() -> Values:
    first = collections.Counter(a=2, b=-1)
    return Values(
        first, collections.Counter({1: 2, 2: 1}), {"place": (lambda: first.update(b=5), lambda: first.subtract(b=5))}
    )


@kind
def chain_map_deep() -> Values:
    one: dict[Any, Any] = {"b": 1}
    two: dict[Any, Any] = {"a": 2, 0: 3}
    return Values(
        collections.ChainMap({}, one, two),
        collections.ChainMap({"a": 4}, two),
        {
            "place": (lambda: one.update(a=7), lambda: one.pop("a")),
            "delete": (lambda: two.pop("a"), lambda: two.update(a=2)),
        },
    )


plain("itemgetter_two", lambda: operator.itemgetter(0, 1), lambda: operator.itemgetter(1, 0))
plain("method_caller", lambda: operator.methodcaller("sum", 0), lambda: operator.methodcaller("sum", dim=1))
plain("attribute_path", lambda: operator.attrgetter("T.shape"), lambda: operator.attrgetter("ndim", "dtype"))


@kind
def partial_with_attribute() -> Values:
    first = functools.partial(torch.add, alpha=2)
    first.a = 1  # type: ignore[attr-defined]
    return Values(first, functools.partial(torch.sub), {"place": setter(first, "a", 5), "delete": deleter(first, "a")})
