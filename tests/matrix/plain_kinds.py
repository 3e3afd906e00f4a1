"""Plain values, NumPy's, and containers.

Each call of a factory makes the values anew, so that eager and the compiled function never share one that is changed.
"""

from __future__ import annotations

import collections
import fractions
import types
from typing import Any

import numpy as np
import torch

from .values import Values, kind, plain

# plain values -----------------------------------------------------------------------------------------------------

_LITERALS: dict[str, tuple[Any, Any]] = {
    "int": (2, 3),
    "int_zero": (0, 1),
    "bool": (True, False),
    "int_bool": (1, True),
    "float": (2.0, 0.5),
    "float_zero": (0.0, -0.0),
    "float_nan": (float("nan"), 1.0),
    "int_float": (2, 2.0),
    "complex": (1 + 2j, 2 - 1j),
    "complex_zero": (complex(0.0, 0.0), complex(-0.0, 0.0)),
    "none": (None, 2),
    "str": ("a", "b"),
    "str_int": ("1", 1),
    "bytes": (b"ab", b"c"),
    "ellipsis": (..., 0),
    "slice": (slice(0, 1), slice(1, 3)),
    "slice_step": (slice(None), slice(0, 3, 2)),
    "range": (range(2), range(1, 3)),
    "tuple": ((1, 2), (3, 4)),
    "tuple_nested": ((1, (2, 3)), (1, (4, 3))),
    "tuple_length": ((1, 2), (1, 2, 3)),
    "tuple_bool": ((1, 0), (True, 0)),
    "frozenset": (frozenset({1, 2}), frozenset({2, 3})),
    "dtype": (torch.float64, torch.int32),
    "size": (torch.Size([3, 1]), torch.Size([1, 3])),
    "device": (torch.device("cpu"), None),
    "type": (int, float),
    "negative": (-1, -2),
    "not_implemented": (NotImplemented, 1),
}
for _name, (_first, _second) in _LITERALS.items():
    plain(_name, lambda v=_first: v, lambda v=_second: v)  # type: ignore[misc]

_SCALARS = "int64 int32 uint8 int8 float32 float64 float16 bool_ complex64".split()
for _name in _SCALARS:
    plain(f"numpy_{_name}", lambda t=_name: getattr(np, t)(1), lambda t=_name: getattr(np, t)(0))  # type: ignore[misc]
plain("numpy_large", lambda: np.int64(2), lambda: np.int64(3))
plain("numpy_types", lambda: np.int64(1), lambda: np.int32(1))
plain("numpy_array_0d", lambda: np.array(1), lambda: np.array(2))
plain("numpy_str", lambda: np.str_("a"), lambda: np.str_("b"))
plain("fraction", lambda: fractions.Fraction(1, 2), lambda: fractions.Fraction(3, 2))
plain("tensor_0d", lambda: torch.tensor(1), lambda: torch.tensor(2))
plain("tensor_bool", lambda: torch.tensor(True), lambda: torch.tensor(False))
plain("generic_alias", lambda: list[int], lambda: list[float])


@kind
def numpy_array() -> Values:
    first = np.array([1, 2])
    return Values(first, np.array([2, 0]), {"place": (lambda: first.__setitem__(0, 0), lambda: first.__setitem__(0, 1))})


# containers -------------------------------------------------------------------------------------------------------


@kind
def list_() -> Values:
    first = [1, 2]
    return Values(first, [2, 1], {"place": (lambda: first.append(3), lambda: first.pop())})


@kind
def list_of_str() -> Values:
    first = ["a", "b"]
    return Values(first, ["b"], {"place": (lambda: first.__setitem__(0, "c"), lambda: first.__setitem__(0, "a"))})


@kind
def list_nested() -> Values:
    first = [[1], [2, 3]]
    return Values(first, [[1], [4]], {"place": (lambda: first[0].append(3), lambda: first[0].pop())})


@kind
def dict_() -> Values:
    first = {"a": 1, "b": 2}
    return Values(
        first,
        {"b": 2, "a": 1},
        {
            "place": (lambda: first.update(a=5), lambda: first.update(a=1)),
            "delete": (lambda: first.pop("b"), lambda: first.update(b=2)),
        },
    )


@kind
def dict_grown() -> Values:
    first: dict[Any, Any] = {"a": 1}
    return Values(first, {1: 2, 0: 3}, {"place": (lambda: first.update(c=7), lambda: first.pop("c"))})


@kind
def set_() -> Values:
    first = {1, 2}
    return Values(first, {2, 3}, {"place": (lambda: first.add(5), lambda: first.discard(5))})


@kind
def set_with_history() -> Values:
    first = set(range(100))
    first -= set(range(100)) - {1, 8, 40}
    return Values(first, {1, 8, 40})


@kind
def deque() -> Values:
    first = collections.deque([1, 2], maxlen=3)
    return Values(first, collections.deque([2, 1]), {"place": (lambda: first.append(3), lambda: first.pop())})


@kind
def ordered_dict() -> Values:
    first = collections.OrderedDict(a=1, b=2)
    return Values(
        first, collections.OrderedDict(b=2, a=1), {"place": (lambda: first.move_to_end("a"), lambda: first.move_to_end("b"))}
    )


@kind
def default_dict() -> Values:
    first: Any = collections.defaultdict(int, b=1)
    return Values(
        first, collections.defaultdict(lambda: 4, b=2), {"place": (lambda: first.update(a=5), lambda: first.pop("a"))}
    )


@kind
def counter() -> Values:
    first = collections.Counter("aab")
    return Values(first, collections.Counter("bbc"), {"place": (lambda: first.update("a"), lambda: first.subtract("a"))})


@kind
def chain_map() -> Values:
    own: dict[str, int] = {"a": 1}
    return Values(
        collections.ChainMap(own, {"b": 2}),
        collections.ChainMap({"b": 3}),
        {"place": (lambda: own.update(b=7), lambda: own.pop("b"))},
    )


@kind
def user_dict() -> Values:
    first = collections.UserDict(a=1, b=2)
    return Values(first, collections.UserDict(a=3), {"place": (lambda: first.update(a=5), lambda: first.update(a=1))})


@kind
def user_list() -> Values:
    first = collections.UserList([1, 2])
    return Values(first, collections.UserList([2]), {"place": (lambda: first.append(3), lambda: first.pop())})


@kind
def mapping_proxy() -> Values:
    own = {"a": 1}
    return Values(
        types.MappingProxyType(own),
        types.MappingProxyType({"b": 1}),
        {"place": (lambda: own.update(a=5), lambda: own.update(a=1))},
    )


@kind
def dict_keys() -> Values:
    own = {1: 1, 2: 2}
    return Values(own.keys(), {2: 1}.keys(), {"place": (lambda: own.update({3: 3}), lambda: own.pop(3))})


@kind
def dict_values() -> Values:
    own = {1: 1, 2: 2}
    return Values(own.values(), {2: 1}.values(), {"place": (lambda: own.update({1: 3}), lambda: own.update({1: 1}))})


@kind
def dict_items() -> Values:
    own = {1: 1, 2: 2}
    return Values(own.items(), {2: 1}.items(), {"place": (lambda: own.update({1: 3}), lambda: own.update({1: 1}))})


@kind
def list_iterator() -> Values:
    return Values(iter([1, 2, 3, 4, 5, 6]), iter([4, 5, 6, 7, 8, 9]))


@kind
def generator() -> Values:
    return Values((k for k in range(1, 9)), (k for k in range(5, 9)))


plain("bytearray", lambda: bytearray(b"ab"), lambda: bytearray(b"c"))
plain("memoryview", lambda: memoryview(b"ab"), lambda: memoryview(b"c"))
