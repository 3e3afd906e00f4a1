"""Attributes of objects change from outside, in whatever way they are found."""

import collections
import dataclasses
import enum
import functools
import threading
import types
import weakref

import pytest
import torch

from case_registry import case, cases
from changes.programs import agrees


@case
def inst_shadows_class():
    class A:
        k = 2

    a = A()
    return (lambda x: x * a.k), [lambda: setattr(a, "k", 3), lambda: delattr(a, "k"), lambda: setattr(A, "k", 5)]


@case
def becomes_a_descriptor():
    read = []

    class Counting:
        def __get__(self, instance, owner):
            read.append(owner)
            return 5.0

    class A:
        k = 2.0

    a = A()
    return (lambda x: (x * A.k + a.k, len(read))), [lambda: setattr(A, "k", Counting()), lambda: setattr(A, "k", 4.0)]


@case
def mro_insert():
    class A:
        k = 2

    class B(A):
        pass

    class C(B):
        pass

    c = C()
    return (lambda x: x * c.k), [
        lambda: setattr(B, "k", 3),
        lambda: setattr(C, "k", 4),
        lambda: delattr(C, "k"),
        lambda: delattr(B, "k"),
    ]


@case
def property_replaced():
    class A:
        @property
        def k(self):
            return 2

    a = A()
    return (lambda x: x * a.k), [
        lambda: setattr(A, "k", property(lambda s: 3)),
        lambda: setattr(A, "k", 8),
        lambda: setattr(a, "k", 10),
    ]


@case
def property_state():
    class A:
        n = 1

        @property
        def k(self):
            return self.n * 2

    a = A()
    return (lambda x: x * a.k), [lambda: setattr(A, "n", 3), lambda: setattr(a, "n", 5), lambda: delattr(a, "n")]


@case
def data_descriptor_over_instance():
    class D:
        def __get__(self, o, t=None):
            return 11

    class A:
        k = D()

    a = A()
    a.__dict__["k"] = 3
    return (lambda x: x * a.k), [
        lambda: setattr(D, "__set__", lambda s, o, v: None),
        lambda: delattr(D, "__set__"),
        lambda: setattr(D, "__get__", lambda s, o, t=None: 20),
        lambda: a.__dict__.pop("k"),
    ]


@case
def getattr_fallback():
    class A:
        def __getattr__(self, n):
            return {"k": 2}.get(n, 7)

    a = A()
    return (lambda x: x * a.k), [
        lambda: setattr(a, "k", 4),
        lambda: delattr(a, "k"),
        lambda: setattr(A, "k", 5),
        lambda: delattr(A, "k"),
        lambda: setattr(A, "__getattr__", lambda s, n: 100),
        lambda: delattr(A, "__getattr__"),
    ]


@case
def getattr_delegates():
    class Inner:
        k = 2

    class A:
        def __init__(self):
            self.inner = Inner()

        def __getattr__(self, n):
            return getattr(self.inner, n)

    a = A()
    return (lambda x: x * a.k), [
        lambda: setattr(a.inner, "k", 4),
        lambda: setattr(a, "inner", Inner()),
        lambda: setattr(Inner, "k", 9),
    ]


@case
def getattribute_added():
    class A:
        k = 2

    a = A()
    return (lambda x: x * a.k), [
        lambda: setattr(A, "__getattribute__", lambda s, n: 5),
        lambda: delattr(A, "__getattribute__"),
    ]


@case
def dict_swapped():
    class P:
        pass

    a = P()
    a.k = 2

    def setb():
        a.__dict__ = {"k": 7}

    return (lambda x: x * a.k), [setb]


@case
def slots_():
    class S:
        __slots__ = ("k", "m")

    s = S()
    s.k = 2

    def f(x):
        try:
            return x * s.k * s.m
        except AttributeError:
            return x * s.k if hasattr(s, "k") else x

    return f, [lambda: setattr(s, "m", 5), lambda: delattr(s, "k"), lambda: setattr(s, "k", 9)]


@case
def cached_property():
    class A:
        n = 2

        @functools.cached_property
        def k(self):
            return self.n * 2

    a = A()
    return (lambda x: x * a.k), [lambda: setattr(a, "n", 5), lambda: a.__dict__.pop("k"), lambda: setattr(a, "k", 1)]


@case
def dir_():
    class A:
        pass

    a = A()
    return (lambda x: x * sum(1 for k in dir(a) if not k.startswith("_"))), [
        lambda: setattr(a, "b", 1),
        lambda: setattr(A, "c", 1),
    ]


@case
def setattr_added():
    class A:
        pass

    a = A()

    def f(x):
        a.k = 3
        return x * a.k

    return f, [
        lambda: setattr(A, "__setattr__", lambda s, n, v: object.__setattr__(s, n, v * 2)),
        lambda: delattr(A, "__setattr__"),
    ]


@case
def delattr_():
    class A:
        k = 1

    a = A()
    a.k = 2

    def f(x):
        del a.k
        return x * a.k

    return f, [lambda: setattr(a, "k", 4)]


@case
def vars_inst():
    class A:
        pass

    a = A()
    a.p = 2
    return (lambda x: x * sum(vars(a).values()) + len(a.__dict__)), [lambda: setattr(a, "q", 5), lambda: delattr(a, "p")]


@case
def getattr_dynamic_name():
    class A:
        a = 1
        b = 2

    ns = types.SimpleNamespace(n="a", o=A())
    return (lambda x: x * getattr(ns.o, ns.n)), [
        lambda: setattr(ns, "n", "b"),
        lambda: setattr(ns.o, "b", 9),
        lambda: setattr(ns, "n", "zz"),
    ]


@case
def is_identity():
    a, b = object(), object()
    ns = types.SimpleNamespace(a=a, b=b)
    return (lambda x: x * 2 if ns.a is ns.b else x), [lambda: setattr(ns, "b", a), lambda: setattr(ns, "a", b)]


@case
def sentinel_default():
    S = object()

    def g(x, v=S):
        return x if v is S else x * 2

    ns = types.SimpleNamespace(v=S)
    return (lambda x: g(x, ns.v)), [
        lambda: setattr(ns, "v", 1),
        lambda: setattr(ns, "v", S),
        lambda: setattr(g, "__defaults__", (None,)),
    ]


@case
def none_vs_missing():
    ns = types.SimpleNamespace()
    return (lambda x: x * (getattr(ns, "k", None) or 3)), [
        lambda: setattr(ns, "k", None),
        lambda: setattr(ns, "k", 0),
        lambda: setattr(ns, "k", 7),
    ]


@case
def enum_value():
    class E(enum.Enum):
        A = 1
        B = 2

    ns = types.SimpleNamespace(e=E.A)
    return (lambda x: x * ns.e.value), [lambda: setattr(ns, "e", E.B), lambda: setattr(E.B, "_value_", 7)]


@case
def enum_lookup():
    class E(enum.Enum):
        A = 1
        B = 2

    ns = types.SimpleNamespace(n="A", v=1)
    return (lambda x: x * E[ns.n].value + E(ns.v).value), [
        lambda: setattr(ns, "n", "B"),
        lambda: setattr(ns, "v", 2),
        lambda: setattr(ns, "v", 3),
    ]


@case
def intflag():
    class F(enum.IntFlag):
        A = 1
        B = 2

    ns = types.SimpleNamespace(e=F.A)
    return (lambda x: x * (2 if ns.e & F.B else 1) + int(ns.e)), [
        lambda: setattr(ns, "e", F.A | F.B),
        lambda: setattr(ns, "e", F(0)),
    ]


@case
def str_enum():
    class S(str, enum.Enum):
        A = "sin"
        B = "cos"

    ns = types.SimpleNamespace(k=S.A)
    return (lambda x: getattr(torch, ns.k)(x) * (2 if ns.k == "sin" else 1)), [
        lambda: setattr(ns, "k", S.B),
        lambda: setattr(ns, "k", "sin"),
    ]


@case
def dataclass_replaced():
    @dataclasses.dataclass(frozen=True)
    class C:
        k: int = 1

    ns = types.SimpleNamespace(c=C(1))
    return (lambda x: x * ns.c.k), [
        lambda: setattr(ns, "c", dataclasses.replace(ns.c, k=5)),
        lambda: object.__setattr__(ns.c, "k", 8),
    ]


@case
def dataclass_eq():
    @dataclasses.dataclass
    class C:
        k: int = 1
        l: list = dataclasses.field(default_factory=list)

    a, b = C(1), C(1)
    return (lambda x: x * 2 if a == b else x), [
        lambda: setattr(a, "k", 5),
        lambda: setattr(b, "k", 5),
        lambda: a.l.append(3),
        lambda: b.l.append(3),
    ]


@case
def namedtuple_sub():
    P = collections.namedtuple("P", "a b")

    class Q(P):
        scale = 2

        def total(self):
            return (self.a + self.b) * self.scale

    ns = types.SimpleNamespace(p=Q(1, 2))
    return (lambda x: x * ns.p.total()), [
        lambda: setattr(ns, "p", Q(3, 4)),
        lambda: setattr(Q, "scale", 5),
        lambda: setattr(ns.p, "scale", 9),
    ]


@case
def weakref_():
    class O:
        k = 2

    o = [O()]
    w = weakref.ref(o[0])

    def f(x):
        t = w()
        return x if t is None else x * t.k

    return f, [lambda: setattr(o[0], "k", 5), lambda: o.clear()]


@case
def weakkeydict():
    class O:
        pass

    o = O()
    d = weakref.WeakKeyDictionary({o: 2})
    return (lambda x: x * d.get(o, 100)), [lambda: d.__setitem__(o, 5), lambda: d.pop(o)]


@case
def weakvaluedict():
    class O:
        k = 3

    o = [O()]
    d = weakref.WeakValueDictionary({"o": o[0]})
    return (lambda x: x * 2 if "o" in d else x), [lambda: o.clear()]


@case
def threadlocal():
    t = threading.local()
    t.k = 2
    return (lambda x: x * getattr(t, "k", 9)), [lambda: setattr(t, "k", 4), lambda: delattr(t, "k")]


@pytest.mark.parametrize("name", cases(__name__))
def test_as_eager(name):
    agrees(__name__, name)
