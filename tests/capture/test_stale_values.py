"""What a program reads of Python values may change between calls, also from missing to there: no answer may be stale."""

from __future__ import annotations

import builtins
import collections
import datetime
import decimal
import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import quickfuse
from differential import outcome, same


def compare(function: Callable[..., Any], *calls: tuple[Any, ...], change: Callable[[], Any] | None = None) -> None:
    """Eager and compiled agree on each call, also after a change, made once, before the last call."""
    compiled = quickfuse.compile(function)
    for k, arguments in enumerate(calls):
        if change is not None and k == len(calls) - 1:
            change()
        assert same(outcome(function, arguments), outcome(compiled, arguments)), (k, outcome(compiled, arguments))


X = torch.ones(2)


def test_a_missing_global() -> None:
    space: dict[str, Any] = {"__builtins__": builtins}
    exec("def f(x):\n    try: return x * K\n    except NameError: return -x", space)
    compare(space["f"], (X,), (X,), change=lambda: space.update(K=2.0))


@pytest.mark.parametrize("how", [getattr, hasattr])
def test_a_missing_attribute_of_a_module(how: Any) -> None:
    settings = types.ModuleType("settings")

    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if (getattr(settings, "debug", False) if how is getattr else hasattr(settings, "debug")) else x

    compare(f, (X,), (X,), change=lambda: setattr(settings, "debug", True))


def test_a_slot_that_is_set_at_the_first_call() -> None:
    class Slotted:
        __slots__ = ("a",)

    def f(x: torch.Tensor, s: Any) -> list[float]:
        if not hasattr(s, "a"):
            s.a = x.sum()
        return (x * s.a).tolist()  # type: ignore[no-any-return]

    eager, ours, compiled = Slotted(), Slotted(), quickfuse.compile(f)
    for k in (1.0, 2.0, 3.0):
        assert f(torch.full((1,), k), eager) == compiled(torch.full((1,), k), ours)


def test_a_guard_makes_no_entry() -> None:
    compiled = quickfuse.compile(lambda x, d: x * d.get("k", 5))
    d: Any = collections.defaultdict(int, a=1)
    for change, wanted in ((lambda: None, 5), (lambda: d.update(k=7), 7), (lambda: d.pop("k"), 5), (lambda: None, 5)):
        change()
        assert compiled(torch.ones(1), d).item() == wanted
        assert ("k" in d) is (wanted == 7)


PROTOCOLS: dict[str, tuple[Callable[[Any], Any], Callable[..., Any], Callable[..., Any]]] = {
    "__iter__": (lambda v: sum(v), lambda s: iter([1]), lambda s: iter([5])),
    "__len__": (len, lambda s: 1, lambda s: 5),
    "__contains__": (lambda v: 2 if 3 in v else 1, lambda s, k: True, lambda s, k: False),
    "__bool__": (lambda v: 2 if v else 1, lambda s: True, lambda s: False),
    "__float__": (float, lambda s: 1.0, lambda s: 5.0),
    "__getitem__": (lambda v: v[0], lambda s, k: 1, lambda s, k: 5),
    "__call__": (lambda v: v(), lambda s: 1, lambda s: 5),
    "__reversed__": (lambda v: list(reversed(v))[0], lambda s: iter([1]), lambda s: iter([5])),
}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_special_method_that_is_replaced(name: str) -> None:
    use, before, after = PROTOCOLS[name]
    cls = type("Own", (), {name: before})
    value = cls()
    compare(lambda x: x * use(value), (X,), (X,), change=lambda: setattr(cls, name, after))


def test_a_special_method_that_is_added() -> None:
    cls = type("Own", (), {})
    one, two = cls(), cls()
    compare(lambda x: x * 2 if one == two else x, (X,), (X,), change=lambda: setattr(cls, "__eq__", lambda s, o: True))


def test_a_method_of_tensors_that_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    change = functools.partial(monkeypatch.setattr, torch.Tensor, "relu", lambda s: s * 50, raising=False)
    compare(lambda x: x.relu(), (X,), (X,), change=change)


@pytest.mark.parametrize("base, values", [
    (int, (1, 2)), (float, (1.0, 5.0)), (str, ("a", "b")), (tuple, ((1,), (5,))), (list, ([1], [5])),
    (dict, ({0: 1}, {0: 5})),
])  # fmt: skip
def test_subclasses_of_builtin_classes(base: type, values: tuple[Any, Any]) -> None:
    made: Any = type("Own", (base,), {})

    def f(x: torch.Tensor, v: Any) -> Any:
        if isinstance(v, str):
            return x * {"a": 2, "b": 3}[v]
        return x * (v if isinstance(v, (int, float)) else v[0]), [5, 6, 7][v] if isinstance(v, int) else 0

    compare(f, *[(X, made(v)) for v in values])


def test_numpy_numbers() -> None:
    rows = torch.arange(6.0).view(3, 2)
    compare(lambda x, i: x[i] * 2, *[(rows, i) for i in np.arange(3)])
    compare(lambda x, i: x * len(range(i)), *[(rows, i) for i in np.arange(1, 4)])
    compare(lambda x, i: x * 2 if i % 2 == 0 else x, *[(rows, i) for i in np.arange(3)])
    compare(lambda x, order: torch.stack([x[i] for i in order]), (rows, np.array([2, 0, 1])), (rows, np.array([1, 0, 2])))
    compare(lambda x, s: x * s, (rows, np.float64(2.0)), (rows, np.float64(3.0)), (rows, np.float32(0.5)))


@pytest.mark.parametrize("wanted", [torch.Tensor, "torch.Tensor"])
def test_the_default_type_of_tensors(wanted: Any) -> None:
    compiled = quickfuse.compile(lambda x: x.type(wanted))
    before = torch.get_default_dtype()
    try:
        for dtype in (torch.float32, torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            for x in (torch.arange(3), torch.ones(2, dtype=torch.float32)):
                assert compiled(x).dtype is dtype and (compiled(x) is x) is (x.dtype is dtype)
    finally:
        torch.set_default_dtype(before)


def test_numpy_numbers_on_the_left_of_tensors() -> None:
    half, rows = np.log(2.0), torch.arange(6.0).view(3, 2)

    def f(x: torch.Tensor, s: Any) -> Any:
        return half - x, s + x, s / (x + 1), s // (x + 1), s % (x + 1), s**x, s < x, s == x, np.log(3.0) * x

    numbers = (np.float64(2.0), np.float64(3.0), np.float32(0.5), np.int64(3), np.uint8(3), np.bool_(True))
    compare(f, *[(x, s) for s in numbers for x in (rows, rows.long(), torch.tensor(2.0), torch.ones(1))])


def test_keyword_defaults_and_keywords_of_a_partial() -> None:
    def defaulted(x: torch.Tensor, *, m: float = 3.0) -> torch.Tensor:
        return x * m

    keywords = defaulted.__kwdefaults__
    compare(lambda x: defaulted(x), (X,), (X,), change=lambda: keywords.update(m=10.0))
    partial = functools.partial(lambda x, **k: x * sum(k.values()), k=3)
    compare(lambda x: partial(x), (X,), (X,), change=lambda: partial.keywords.update(m=9))


def test_a_tensor_that_becomes_a_negative_view() -> None:
    z = torch.tensor([1 + 2j, 3 - 4j])
    n = z.imag
    compare(lambda x: n * 2, (X,), (X,), change=lambda: setattr(n, "data", z.conj().imag))


def test_a_range_up_to_a_number_in_a_tensor() -> None:
    compare(lambda x, t: torch.arange(t.max()), (X, torch.tensor([1, 3])), (X, torch.tensor([2, 5])))


def test_order_of_sets() -> None:
    def make() -> set[int]:
        made = set(range(100))
        made -= set(range(100)) - {1, 8, 40}
        return made

    assert quickfuse.compile(lambda x, s: (x, list(s)))(X, make())[1] == list(make())
    assert quickfuse.compile(lambda x, s: (x, s.pop(), list(s)))(X, make())[1:] == (lambda s: (s.pop(), list(s)))(make())


def test_what_a_property_does_not_find() -> None:
    class Own:
        @property
        def p(self) -> int:
            raise AttributeError("inner")

        def __getattr__(self, name: str) -> int:
            return 7

    class Module(torch.nn.Module):
        @property
        def p(self) -> Any:
            return self.missing

        def forward(self, x: torch.Tensor) -> Any:
            return x * self.p

    own, module = Own(), Module()
    compare(lambda x: x * own.p, (X,))
    compare(lambda x: module(x), (X,))


def test_a_check_of_a_metaclass() -> None:
    class Meta(type):
        def __instancecheck__(cls, other: Any) -> bool:
            return isinstance(other, torch.Tensor) and other.ndim == 2

    class Matrix(metaclass=Meta):
        pass

    compare(lambda x: x * 2 if isinstance(x, Matrix) else x * 3, (X,), (torch.ones(1, 1),))


@pytest.mark.parametrize("make", [
    lambda: collections.OrderedDict(a=1), lambda: collections.defaultdict(int, a=1), lambda: collections.UserDict(a=1),
    lambda: collections.Counter("aab"),
])  # fmt: skip
def test_dictionaries_stay_of_their_kind(make: Callable[[], Any]) -> None:
    for use in (lambda x, d: (x, d.copy()), lambda x, d: (x, d | {"z": 1}), lambda x, d: (x, dict(d)), _updated):
        assert repr(use(X, make())) == repr(quickfuse.compile(use)(X, make()))  # type: ignore[operator]


def _updated(x: torch.Tensor, d: Any) -> Any:
    made: dict[Any, Any] = {}
    made.update(d)
    return x, made


def test_a_method_that_is_compiled_already() -> None:
    class Own:
        n = 1

        @quickfuse.compile
        def run(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 + self.n

    assert quickfuse.compile(Own().run)(X).tolist() == [3.0, 3.0]


class Thing:
    """Compared and hashed by identity."""

    def __init__(self, a: int = 1) -> None:
        self.a = a


ONE, OTHER = Thing(1), Thing(2)


@pytest.mark.parametrize("use", [
    lambda x, p, q: x + len({p, q}),
    lambda x, p, q: x + {p: 1, q: 2}[p],
    lambda x, p, q: x + len(dict.fromkeys([p, q])),
    lambda x, p, q: x + (p in [q]),
    lambda x, p, q: x + (p, 1).count(q),
])  # fmt: skip
def test_objects_that_become_one(use: Callable[..., Any]) -> None:
    compare(use, (X, ONE, OTHER), (X, ONE, ONE), (X, OTHER, ONE))


def test_tensors_that_become_one() -> None:
    y = torch.zeros(2)
    compare(lambda x, y: x + len({x, y}), (X, y), (X, X))


@pytest.mark.parametrize("use", [
    lambda x, n, d: x + 1 if n == d else x,
    lambda x, n, d: x + 1 if d == n else x,
    lambda x, n, d: x + {d: 1}.get(n, 0),
])  # fmt: skip
def test_numbers_and_objects_whose_classes_compare_in_c(use: Callable[..., Any]) -> None:
    compare(use, (X, 3, decimal.Decimal(3)), (X, 4, decimal.Decimal(3)), (X, 4, decimal.Decimal(4)))


def test_dates_as_keys() -> None:
    first, second = datetime.date(2020, 1, 1), datetime.date(2021, 1, 1)
    table = {datetime.date(2020, 1, 1): 1.0}
    compare(lambda x, d: x + table.get(d, 5.0), (X, first), (X, second))
    compare(lambda x, d: x + (d in [datetime.date(2020, 1, 1)]), (X, first), (X, second))


def test_another_operator_of_pytorchs() -> None:
    compare(lambda x, f: f(x, x * 3), (X, torch.ops.aten.add.Tensor), (X, torch.ops.aten.mul.Tensor))


def test_objects_as_keys_of_the_users_dictionary() -> None:
    for use in (
        lambda x, p, d: x + d[p],
        lambda x, p, d: [(k.a, k is p, v) for k, v in d.items()],
        lambda x, p, d: x + (p in d),
    ):
        compare(use, (X, ONE, {ONE: 1, OTHER: 2}), (X, OTHER, {ONE: 1, OTHER: 2}), (X, ONE, {ONE: 3}))


def test_exceptions_from_outside_as_causes() -> None:
    def f(x: torch.Tensor, e: Exception) -> Any:
        try:
            raise KeyError("a") from e
        except KeyError as error:
            return error.__cause__ is e, x * 2

    compare(f, (X, ValueError(1)), (X, ValueError(2)))


def test_a_sentinel_in_a_default() -> None:
    missing = object()

    def get(x: torch.Tensor, default: Any = missing) -> Any:
        return x if default is missing else x + default

    compare(lambda x: get(x) + get(x, 2), (X,), (X * 2,))


def test_compiled_methods_in_compiled_functions() -> None:
    class Own:
        n = 1

        @quickfuse.compile
        def run(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 + self.n

    first = Own()
    compare(lambda x, o: o.run(x) + Own.run(o, x), (X, first), (X, first), change=lambda: setattr(Own, "n", 5))
    compare(lambda x, o: o.run(x), (X, first), (X, first), change=lambda: setattr(Own, "run", lambda self, x: x * 7))


def test_the_hash_of_an_object() -> None:
    class Own:
        def __init__(self, a: int) -> None:
            self.a = a

        def __hash__(self) -> int:
            return hash((self.a, 1))

    compare(lambda x, o: x + hash(o) % 7 + hash(Own(3)) % 5, (X, Own(1)), (X, Own(2)), (X, Own(5)))


def test_a_class_attribute_through_super() -> None:
    class Base:
        table = [1.0, 2.0]
        scale = 2.0

    class Own(Base):
        def run(self, x: torch.Tensor) -> torch.Tensor:
            return x * super().scale + super().table[0] + len(super().table)

    compare(lambda x, o: o.run(x), (X, Own()), (X, Own()), change=lambda: Base.table.append(3.0))
    compare(lambda x, o: o.run(x), (X, Own()), (X, Own()), change=lambda: setattr(Base, "scale", 7.0))


def test_the_shape_of_a_tensor_that_is_only_replaced_matters_to_nobody() -> None:
    features: dict[str, object] = {}
    layer = torch.nn.Linear(3, 2)
    layer.register_forward_hook(lambda module, args, result: features.__setitem__("result", result))

    @quickfuse.compile
    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return layer(x).sum() + features["result"].exp()  # type: ignore[attr-defined]

    for rows in (4, 4, 3, 4, 3, 4):
        x = torch.arange(3.0 * rows).reshape(rows, 3) / 9
        wanted = torch.nn.functional.linear(x, layer.weight.detach(), layer.bias.detach())
        torch.testing.assert_close(program(x), wanted.sum() + wanted.exp())
        torch.testing.assert_close(features["result"], wanted)
    assert program.graph_count == 3  # without a feature, and for two numbers of rows
    features["result"] = None
    assert program(x).shape == (4, 2)
    del features["result"]
    assert program(x).shape == features["result"].shape == (4, 2)  # type: ignore[attr-defined]
