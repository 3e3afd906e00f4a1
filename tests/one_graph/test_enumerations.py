"""Named tuples, enumerations, metaclasses and other classes."""

import abc
import collections
import copy
import enum
import types
import typing

import pytest
import torch

from case_registry import case, cases
from one_graph.classes import IE, NT, Color, Fl
from one_graph.programs import agrees, x_and


@case
def copy_list_dict():
    def f(x):
        l = [x, x + 1]
        m = l.copy()
        m.append(x)
        n = copy.copy(l)
        d = dict(a=x).copy()
        return sum(m) + len(n) + d["a"]

    return (f,)


@case
def typing_cast():
    return ((lambda x: typing.cast(torch.Tensor, x) * 2),)


@case
def typing_misc():
    def f(x):
        a: typing.Optional[int] = None
        y: torch.Tensor = x * 2
        if typing.TYPE_CHECKING:
            y = y * 3
        typing.assert_type(y, torch.Tensor)
        return y

    return (f,)


@case
def namedtuple_():
    def f(x):
        n = NT(x)
        m = n._replace(b=5)
        return m.total() + m.twice + sum(1 for _ in n) + len(n._asdict()) + len(NT._fields), n

    return (f,)


@case
def namedtuple_make():
    P = collections.namedtuple("P", "a b", defaults=[2])

    def f(x):
        p = P._make([x, 3])
        q = P(x)
        a, b = q
        return p.a * b + p[1] + q._asdict()["b"], P(*p), p == p._replace(b=3)

    return (f,)


@case
def enum_():
    def f(x, n):
        c = Color.parse(n)
        if c is Color.RED:
            x = x + 1
        return x * c.scale + len(Color) + sum(1 for _ in Color) + (Color("g") == c)

    return f, x_and("red"), x_and("green")


@case
def enum_members():
    return ((lambda x: x * len(Color.__members__) + len([c.name for c in Color])),)


@case
def enum_flag():
    return ((lambda x: x * (2 if Fl.A in Fl.C else 1) + (3 if Fl.A & Fl.B else 4) + (Fl.A | Fl.B).value + (~Fl.A).value),)


@case
def enum_int():
    return ((lambda x: x * IE.X + x[IE.X] + [1, 2, 3][IE.Y] + (IE.X < IE.Y) + int(IE.Y) + x.sum(IE.X)),)


@case
def enum_str():
    class S(str, enum.Enum):
        A = "sin"
        B = "cos"

    class S2(enum.StrEnum):
        A = "sin"

    return (
        (
            lambda x: (
                getattr(torch, S.A)(x) * (S.B == "cos")
                + (S2.A == "sin")
                + len(S2.A.upper())
                + {"sin": 2}[S.A]
                + len(f"{S2.A}")
            )
        ),
    )


@case
def enum_dict_dispatch():
    D = {Color.RED: torch.sin, Color.GREEN: torch.cos}
    return (lambda x, c: D[c](x)), x_and(Color.RED), x_and(Color.GREEN)


@case
def abc_():
    class B(abc.ABC):
        @abc.abstractmethod
        def go(self, x): ...
        @property
        @abc.abstractmethod
        def k(self): ...

    class C(B):
        def go(self, x):
            return x * self.k

        k = 3

    c = C()
    return ((lambda x: c.go(x) + C().go(x) + isinstance(c, B)),)


@case
def meta_():
    class M(type):
        def __new__(m, n, b, d):
            d["added"] = 2
            return super().__new__(m, n, b, d)

        def __call__(cls, *a):
            o = super().__call__(*a)
            o.extra = 3
            return o

    class A(metaclass=M):
        def __init__(self, v):
            self.v = v

    return ((lambda x: x * A(2).extra * A.added),)


@case
def slots_desc():
    class D:
        def __set_name__(self, o, n):
            self.n = "_" + n

        def __get__(self, o, t=None):
            return self if o is None else getattr(o, self.n, 1)

        def __set__(self, o, v):
            setattr(o, self.n, v)

    class A:
        __slots__ = ("_k", "z")
        k = D()

        def __init__(self):
            self.z = 3

    def f(x):
        a = A()
        b = a.k
        a.k = 5
        return x * a.k + b + a.z

    return (f,)


@case
def getattr_all():
    class A:
        def __getattr__(self, n):
            if n.startswith("f_"):
                return lambda x: x * len(n)
            raise AttributeError(n)

        def __setattr__(self, n, v):
            self.__dict__[n] = v * 2

        def __delattr__(self, n):
            self.__dict__.pop(n)

    def f(x):
        a = A()
        a.k = 2
        del a.k
        a.q = 4
        return a.f_ab(x) + getattr(a, "nope", 3) + hasattr(a, "zzz") + a.q

    return (f,)


@case
def isinst_union():
    return (
        (
            lambda x, v: (
                x * (2 if isinstance(v, int | str) else 3)
                + isinstance(v, (list, tuple))
                + isinstance(x, torch.Tensor)
                + issubclass(type(v), collections.abc.Sequence)
            )
        ),
        x_and(1),
        x_and("a"),
        x_and([1]),
        x_and(None),
    )


@case
def model_fwd_kwargs_filter():
    class M(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.l = torch.nn.Linear(2, 2)

        def forward(self, x, scale=1, **kw):
            kw = {k: v for k, v in kw.items() if v is not None}
            kw.pop("z", None)
            return self.l(x) * scale * kw.get("m", 1)

    m = M()
    return ((lambda x: m(x, scale=2, m=3, z=4, q=None)),)


@case
def simplens():
    def f(x):
        n = types.SimpleNamespace(a=x, b=2)
        n.c = 3
        return n.a * n.b + n.c + len(vars(n)) + ("a" in n.__dict__)

    return (f,)


@case
def frozen_lookup_cls():
    class Cfg(dict):
        def __getattr__(self, n):
            try:
                return self[n]
            except KeyError:
                raise AttributeError(n)

        def __setattr__(self, n, v):
            self[n] = v

    c = Cfg(a=2)

    def f(x):
        d = Cfg(c)
        d.b = 5
        return x * c.a + d.b + hasattr(c, "zz") + getattr(c, "q", 1)

    return (f,)


@pytest.mark.parametrize("name", cases(__name__))
def test_one_graph(name):
    agrees(__name__, name)
