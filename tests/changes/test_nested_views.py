"""Views, copies, protocols and errors of nested objects change between calls."""

import abc
import collections
import enum
import typing

import pytest

from case_registry import case, cases
from changes.programs import agrees


@case
def inherit_change():
    class A:
        v = 1

    class B(A):
        pass

    class Z:
        v = 9

    b = B()

    def f(x):
        return x * b.v, isinstance(b, Z), B.__mro__[1].__name__, issubclass(B, A)

    def s1():
        A.v = 3

    def s2():
        B.__bases__ = (Z, A)

    def s3():
        B.v = 4

    def s4():
        b.v = 5

    def s5():
        del b.v

    def s6():
        del B.v

    return f, [s1, s2, s3, s4, s5, s6]


@case
def abcreg():
    class P(abc.ABC):
        pass

    class Q:
        pass

    q = Q()

    def f(x):
        return x * 2 if isinstance(q, P) else x

    return f, [lambda: P.register(Q)]


@case
def proto():
    @typing.runtime_checkable
    class P(typing.Protocol):
        def go(self): ...

    class Q:
        pass

    q = Q()

    def f(x):
        return x * 2 if isinstance(q, P) else x

    def s1():
        q.go = lambda: 1

    def s2():
        del q.go

    def s3():
        Q.go = lambda s: 1

    return f, [s1, s2, s3]


@case
def closures():
    def mk(n):
        def inc():
            nonlocal n
            n += 1
            return n

        def get():
            return n

        return inc, get

    inc, get = mk(1)

    def f(x):
        return x * get() + inc(), get()

    return f, [lambda: inc(), lambda: inc()]


@case
def sharing():
    l = [1, 2]
    d = {"a": l, "b": l, "c": (l, l)}

    def f(x):
        d["a"].append(3)
        return x * len(d["b"]), d["a"] is d["b"], d["c"][0] is l, len(d["c"][1])

    def s1():
        d["b"] = [1]

    def s2():
        d["a"] = d["b"]

    return f, [s1, s2]


@case
def two_in_row():
    class C:
        pass

    o = C()
    o.x = [C()]
    o.x[0].y = {"k": (1, [2])}

    def f(x):
        return x * o.x[0].y["k"][1][0], len(o.x), o.x[-1].y["k"][0]

    def s1():
        o.x[0].y["k"][1][0] = 5
        o.x.append(C())
        o.x[1].y = {"k": (7, [8])}

    def s2():
        o.x.reverse()

    def s3():
        o.x = tuple(o.x)

    def s4():
        o.x[0].y = collections.OrderedDict(k=(3, [4]))

    return f, [s1, s2, s3, s4]


@case
def props():
    class D:
        def __set_name__(s, o, n):
            s.n = "_" + n

        def __get__(s, i, o):
            return s if i is None else getattr(i, s.n, 3) * 2

        def __set__(s, i, v):
            setattr(i, s.n, v)

        def __delete__(s, i):
            delattr(i, s.n)

    class C:
        a = D()

    c = C()

    def f(x):
        r = x * c.a
        c.a = c.a + 1
        return r, c.a, C.a is C.__dict__["a"]

    def s1():
        c._a = 1

    def s2():
        del c.a

    def s3():
        D.__get__ = lambda s, i, o: 1

    return f, [s1, s2, s3]


@case
def enums():
    class E(enum.IntEnum):
        A = 1
        B = 2

    class S(enum.StrEnum):
        P = "p"
        Q = "q"

    class W(enum.Enum):
        X = {"k": 1}
        Y = [2]

        @property
        def d(s):
            return len(s.value)

    h = [E.A, S.P, W.X]

    def f(x):
        return (
            x * h[0],
            {S.P: x, S.Q: -x}[h[1]],
            x * h[2].d,
            h[2].value,
            h[0] == 1,
            h[1] == "p",
            f"{h[0]}{h[1]}",
            E(2),
            S("q"),
            W["Y"],
            list(E),
            h[1].upper(),
            [c for c in h[1]],
            h[0] + 1,
            h[1] in ("p",),
            E.A < E.B,
            h[1][0],
        )

    def s1():
        h[0] = E.B
        h[1] = S.Q

    def s2():
        h[2] = W.Y

    def s3():
        W.Y.value.append(3)

    return f, [s1, s2, s3]


@case
def hashes():
    class K:
        def __init__(s, v):
            s.v = v

        def __hash__(s):
            return hash(s.v)

        def __eq__(s, o):
            return s.v == o.v

    k = K(1)
    d = {k: 2}

    def f(x):
        return x * d[k], k in d, d.get(K(1)), K(5) in d

    def s1():
        d[k] = 7

    return f, [s1]


@case
def excs():
    class E(Exception):
        def __init__(s, a, b=2):
            super().__init__(a)
            s.b = b

    h = [E(1)]

    def f(x):
        try:
            raise E("q", 5)
        except E as e:
            r = x * e.b
            t = (e.args, str(e), e.__traceback__ is not None, e.__cause__)
        try:
            try:
                1 // 0
            except ZeroDivisionError as z:
                raise KeyError("k") from z
        except KeyError as k:
            u = (repr(k), type(k.__cause__).__name__, k.__suppress_context__)
        return r, t, u, h[0].args, h[0].b, str(h[0])

    return f, [lambda: setattr(h[0], "b", 9), lambda: setattr(h[0], "args", (7,))]


@pytest.mark.parametrize("name", cases(__name__))
def test_as_eager(name):
    agrees(__name__, name)
