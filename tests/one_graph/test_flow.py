"""Exceptions, context managers, patterns and other control flow."""

import contextlib
import dataclasses
import enum

import pytest
import torch

from case_registry import case, cases
from one_graph.programs import agrees, x_and


class Color(enum.Enum):
    RED = 1


@case
def try_all():
    def f(x, k):
        r = []
        try:
            try:
                if k == 1:
                    raise ValueError("a")
                if k == 2:
                    raise KeyError("b")
                r.append("body")
            except ValueError as e:
                r.append(str(e))
            else:
                r.append("else")
            finally:
                r.append("fin")
        except (KeyError, IndexError) as e:
            r.append(repr(e))
            x = x * 2
        try:
            {}["q"]
        except KeyError as e:
            r.append(e.args[0])
        try:
            [][1]
        except IndexError:
            r.append("i")
        try:
            int("z")
        except ValueError:
            r.append("v")
        try:
            x.nope
        except AttributeError:
            r.append("attr")
        try:
            None + 1
        except TypeError:
            r.append("t")
        try:
            1 / 0
        except ZeroDivisionError:
            r.append("z")
        try:
            raise RuntimeError from ValueError("c")
        except RuntimeError as e:
            r.append(type(e.__cause__).__name__)
        return x * len(r), r

    return f, x_and(0), x_and(1), x_and(2)


@case
def try_user_exc():
    class E(Exception):
        def __init__(self, code):
            super().__init__(f"code {code}")
            self.code = code

    def f(x):
        try:
            raise E(3)
        except E as e:
            return x * e.code + len(str(e))

    return (f,)


@case
def with_all():
    class C:
        def __init__(self, k):
            self.k = k

        def __enter__(self):
            self.k += 1
            return self

        def __exit__(self, t, v, tb):
            return t is ValueError

    @contextlib.contextmanager
    def cm(k):
        try:
            yield k
        finally:
            pass

    def f(x):
        with C(1) as c, cm(3) as k:
            x = x * c.k * k
        with C(1):
            raise ValueError
        with contextlib.nullcontext(2) as n:
            x = x * n
        with contextlib.ExitStack() as st:
            a = st.enter_context(cm(5))
            st.callback(lambda: None)
            x = x * a
        with contextlib.suppress(KeyError):
            {}["a"]
        with contextlib.nullcontext():
            pass
        return x

    return (f,)


@case
def match_all():
    @dataclasses.dataclass
    class P:
        a: int
        b: int

    def f(x, v):
        match v:
            case 0 | 1:
                return x
            case int(k) if k > 10:
                return x * k
            case [a, b]:
                return x * a + b
            case [a, *rest]:
                return x * a + len(rest)
            case {"k": k, **r}:
                return x * k + len(r)
            case P(a=1, b=b):
                return x * b
            case P(a, b):
                return x * a * b
            case str() as s:
                return x * len(s)
            case None:
                return x * 2
            case Color.RED:
                return x * 77
            case _:
                return x * 99

    return (
        f,
        x_and(0),
        x_and(20),
        x_and([2, 3]),
        x_and((2, 3, 4)),
        x_and({"k": 5, "z": 1}),
        x_and(P(1, 5)),
        x_and(P(2, 5)),
        x_and("abc"),
        x_and(None),
        x_and(Color.RED),
        x_and(2.5),
    )


@case
def walrus():
    def f(x):
        if (n := x.shape[0]) > 1:
            x = x * n
        l = [y := 2, y**2]
        while (n := n - 1) > 0:
            x = x + n
        return x * sum(l), [last := k for k in range(3)], last

    return (f,)


@case
def comprehension_all():
    def f(x):
        d = {k: v for k, v in zip("ab", [x, x + 1])}
        s = {k % 2 for k in range(4)}
        n = [[i * j for j in range(2)] for i in range(2)]
        return d["b"] * len(s) + n[1][1] + sum([v for v in d.values()])

    return (f,)


@case
def global_write():
    ns = {"torch": torch, "COUNT": 0}
    exec("def f(x):\n  global COUNT\n  COUNT += 1\n  return x * COUNT", ns)
    return (ns["f"],)


@case
def del_things():
    def f(x):
        a = [1, 2]
        del a[0]
        d = {"a": 1}
        del d["a"]
        y = x
        del y
        return x * len(a) + len(d)

    return (f,)


@case
def chained_compare():
    return (
        (lambda x, k: x * (1 < k < 5) + (0 == 0 != 1) + (3 if k in (1, 2) else 4) + (k not in {9}) + (None is None)),
        x_and(3),
        x_and(7),
    )


@case
def assert_():
    def f(x):
        assert x.ndim == 2, f"bad {x.shape}"
        assert isinstance(x, torch.Tensor)
        return x * 2

    return (f,)


@case
def batch_norms_in_try():
    """Running statistics change in place, and the norms after that cannot fail for it."""
    one, two = torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3)

    def f(x):
        try:
            return one(two(x) + 1) + two(x), one.running_mean.clone()
        finally:
            x.sin()

    return f, lambda: (torch.randn(5, 3, generator=torch.Generator().manual_seed(1)),)


@pytest.mark.parametrize("name", cases(__name__))
def test_one_graph(name):
    agrees(__name__, name)
