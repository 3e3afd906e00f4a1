"""Objects within objects and classes of classes change between calls."""

import dataclasses
import enum
import types
import typing
import weakref

import pytest

from case_registry import case, cases
from changes.programs import agrees


@case
def two_steps_attr():
    class C:
        pass

    o = C()
    o.a = C()
    o.a.b = C()
    o.a.b.c = 2

    def f(x):
        return x * o.a.b.c

    def s1():
        o.a.b.c = 3

    def s2():
        o.a = C()
        o.a.b = C()
        o.a.b.c = 2.5

    def s3():
        o.a.b.__class__ = type("D", (C,), {"c": property(lambda s: 7)})

    def s4():
        del o.a.b.__dict__["c"]

    return f, [s1, s2, s3, s4]


@case
def slot_shadow():
    class B:
        __slots__ = ("a",)

    class D(B):
        __slots__ = ("a", "b")

    d = D()
    d.a = 1
    B.a.__set__(d, 5)

    def f(x):
        return x * d.a, B.a.__get__(d)

    def s1():
        d.a = 3

    def s2():
        B.a.__set__(d, 6)

    def s3():
        del d.a

    return f, [s1, s2, s3]


@case
def metaclass_prop():
    class M(type):
        @property
        def n(cls):
            return cls._n

        def __getitem__(cls, k):
            return cls._n + k

        def __contains__(cls, k):
            return k == cls._n

        def __iter__(cls):
            return iter([cls._n])

        def __call__(cls, *a):
            return 4

    class A(metaclass=M):
        _n = 2

    def f(x):
        return x * A.n + A[1], 2 in A, list(A), A(), len([*A])

    def s1():
        A._n = 3

    def s2():
        M.n = property(lambda c: 9)

    def s3():
        M.__getitem__ = lambda c, k: 11

    def s4():
        M.__call__ = lambda c, *a: 5

    def s5():
        M.__contains__ = lambda c, k: True

    return f, [s1, s2, s3, s4, s5]


@case
def weak():
    class C:
        pass

    a = C()
    a.v = 2
    keep = [a]
    r = weakref.ref(a)

    def f(x):
        o = r()
        return x * o.v if o is not None else x

    def s1():
        a.v = 5

    def s2():
        nonlocal a
        keep.clear()
        a = None

    return f, [s1, s2]


@case
def flags():
    class F(enum.Flag):
        A = 1
        B = 2
        C = 4

    s = types.SimpleNamespace(m=F.A | F.B)

    def f(x):
        r = x
        if F.A in s.m:
            r = r + 1
        if s.m & F.C:
            r = r * 3
        return r, s.m, ~s.m, s.m.name, [e.name for e in s.m], len(s.m)

    def s1():
        s.m = F.C

    def s2():
        s.m = F(0)

    def s3():
        s.m = F.A | F.B | F.C

    return f, [s1, s2, s3]


@case
def namedtuple_sub():
    class P(typing.NamedTuple):
        a: int = 1
        b: int = 2

    class Q(P):
        __slots__ = ()

        @property
        def s(self):
            return self.a + self.b

        def __add__(self, o):
            return Q(self.a + o.a, self.b + o.b)

    h = [Q(1, 2)]

    def f(x):
        q = h[0] + Q(1, 1)
        return x * q.s, q, q._replace(a=7), q._asdict(), Q._make([3, 4]), q == h[0], q < (5, 5)

    def s1():
        h[0] = Q(5, 6)

    def s2():
        Q.s = property(lambda s: 3)

    def s3():
        Q.__add__ = tuple.__add__

    return f, [s1, s2]


@case
def generic():
    T = typing.TypeVar("T")

    class Box(typing.Generic[T]):
        d = 3

        def __init__(s, v: T):
            s.v = v

        def get(s) -> T:
            return s.v * s.d

    b = Box[int](2)

    def f(x):
        n = Box[float](1.5)
        return x * b.get() + n.get(), isinstance(b, Box)

    def s1():
        b.v = 4

    def s2():
        Box.d = 5

    def s3():
        Box.get = lambda s: 1

    return f, [s1, s2, s3]


@case
def dc_all():
    @dataclasses.dataclass
    class In:
        w: float = 1.0

    @dataclasses.dataclass
    class D:
        a: int
        i: dataclasses.InitVar[int] = 3
        l: list = dataclasses.field(default_factory=lambda: [1, 2])
        _: dataclasses.KW_ONLY
        k: In = dataclasses.field(default_factory=In)

        def __post_init__(s, i):
            s.t = s.a * i

    g = D(2)

    def f(x):
        d = D(3, 4, k=In(2.0))
        return (
            x * d.t * g.t + g.k.w,
            d,
            d == D(3, 4, k=In(2.0)),
            dataclasses.replace(g, a=9, i=1).t,
            dataclasses.asdict(d),
            repr(d),
        )

    def s1():
        g.t = 9

    def s2():
        g.k.w = 4.0

    def s3():
        D.__post_init__ = lambda s, i: setattr(s, "t", 1)

    def s4():
        g.l.append(5)

    return f, [s1, s2, s3, s4]


@case
def classdict():
    class C:
        a = 2

    def f(x):
        return x * vars(C)["a"], C.__dict__.get("b", 1), "a" in C.__dict__

    return f, [lambda: setattr(C, "a", 3), lambda: setattr(C, "b", 4)]


@case
def getattribute_later():
    class C:
        def __init__(s):
            s.a = 2

    c = C()

    def f(x):
        return x * c.a

    def s1():
        C.__getattribute__ = lambda s, n: 50 if n == "a" else object.__getattribute__(s, n)

    def s2():
        del C.__getattribute__

    def s3():
        C.__getattr__ = lambda s, n: 9

    def s4():
        del c.a

    def s5():
        C.a = property(lambda s: 4)

    return f, [s1, s2, s3, s4, s5]


@case
def setattr_later():
    class C:
        pass

    c = C()
    c.a = 1

    def f(x):
        c.a = x + 1
        return c.a * 2

    def s1():
        C.__setattr__ = lambda s, n, v: object.__setattr__(s, n, v * 3)

    def s2():
        del C.__setattr__

    def s3():
        C.a = property(lambda s: 7, lambda s, v: None)

    return f, [s1, s2, s3]


@pytest.mark.parametrize("name", cases(__name__))
def test_as_eager(name):
    agrees(__name__, name)
