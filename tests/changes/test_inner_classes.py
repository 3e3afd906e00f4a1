"""Classes that a function makes for itself, and that outlive it, with breaks and changes between calls."""

import dataclasses
import enum
import itertools

import pytest

from case_registry import case, cases, x0
from changes.programs import agrees


@case
def cls_escapes():
    def f(x, k):
        class C:
            def __init__(self):
                self.y = x * k

            def get(self):
                return self.y + 1

        c = C()
        z = c.get()
        if k == 1:
            return c.y, type(c).__name__
        if k == 2:
            return C, z
        if k == 3:
            print(c.y)
            return c.get()
        if k == 4:
            return c.get
        return z

    def g(x, k):
        r = f(x, k)
        if k == 2:
            return r[0]().get(), r[1]
        if k == 4:
            return r()
        return r

    it = itertools.cycle([1, 2, 3, 4, 5])
    return g, [lambda: None] * 6, lambda: (x0(), next(it))


@case
def cls_break_in_body():
    def f(x):
        class C:
            print("body", file=None)
            k = 2

        print("a", file=None)
        return x * C.k

    return f, []


@case
def cls_exc_escapes():
    def f(x):
        class E(Exception):
            pass

        y = x + 1
        raise E("q")

    return f, []


@case
def cls_dataclass_inside():
    def f(x):
        @dataclasses.dataclass
        class P:
            a: float
            b: int = 2

        class N(enum.Enum):
            A = 1

        class T(tuple):
            pass

        p = P(1.5)
        return x * p.a * p.b, repr(p), N.A.value, T((1, 2))

    return f, []


@case
def cls_break_after():
    def f(x):
        class C:
            k = 2

            def m(self, y):
                return y * self.k

        y = C().m(x)
        print("b", file=None)
        return y + 1

    return f, []


@case
def cls_break_uses():
    def f(x):
        class C:
            k = 2

            def m(self, y):
                return y * self.k

        y = C().m(x)
        print("b", file=None)
        return C().m(y)

    return f, []


@case
def cls_base_changes():
    class B:
        k = 2

        def m(self, y):
            return y * self.k

    def f(x):
        class C(B):
            pass

        return C().m(x)

    return f, [
        lambda: setattr(B, "k", 3),
        lambda: setattr(B, "m", lambda s, y: y),
        lambda: setattr(B, "__init_subclass__", classmethod(lambda cls: setattr(cls, "m", lambda s, y: y * 9))),
    ]


@case
def ops_created_tensor():
    class V:
        def __init__(s, k):
            s.k = k

        def __mul__(s, o):
            return o * s.k

        def __radd__(s, o):
            return o + s.k

        def __sub__(s, o):
            return NotImplemented

        def __rtruediv__(s, o):
            return ("rdiv", o)

        def __lt__(s, o):
            return "lt"

        def __eq__(s, o):
            return "eq"

        def __matmul__(s, o):
            return "mm"

        def __iadd__(s, o):
            s.k = s.k + 1
            return s

    def attempt(g):
        try:
            return g()
        except TypeError as e:
            return str(e)

    def f(x, n):
        v = V(n)
        v += x
        return (
            v * x,
            x + v,
            attempt(lambda: v - x),
            attempt(lambda: x / v),
            v < x,
            v == x,
            attempt(lambda: x == v),
            v @ x,
            v * n,
            n + v,
            attempt(lambda: n / v),
            attempt(lambda: x - v),
            attempt(lambda: x > v),
            v * 2.5,
            attempt(lambda: x @ v),
        )

    it = itertools.cycle([2, 3, 2.5])
    return f, [lambda: None], lambda: (x0(), next(it))


@case
def ops_reflected():
    class V:
        def __init__(s, k):
            s.k = k

        def __radd__(s, o):
            return o + s.k

        def __rmul__(s, o):
            return o * s.k

        def __rsub__(s, o):
            return s.k

        def __rmatmul__(s, o):
            return o.sum() * s.k

        def __gt__(s, o):
            return "gt"

        def __eq__(s, o):
            return "eq"

    class W:
        def __rmul__(s, o):
            return NotImplemented

    class T:
        k = 3

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return "tf"

        def __rmul__(s, o):
            return "r"

    class N(float):
        def __rmul__(s, o):
            return "n"

    def attempt(g):
        try:
            return g()
        except TypeError as e:
            return str(e)

    outer = V(4)

    def f(x):
        v = V(2)
        return (
            x + v,
            x * v,
            x - v,
            x @ v,
            x < v,
            attempt(lambda: x * W()),
            attempt(lambda: x / v),
            attempt(lambda: x * T()),
            x * N(2.0),
            x + outer,
            x * outer,
            x < outer,
            attempt(lambda: x == v),
        )

    return f, [lambda: setattr(outer, "k", 7), lambda: setattr(V, "__radd__", lambda s, o: "new")]


@pytest.mark.parametrize("name", cases(__name__))
def test_as_eager(name):
    agrees(__name__, name)
