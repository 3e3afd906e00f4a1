"""Classes, their bases and metaclasses change from outside."""

import abc
import dataclasses
import types
import typing

import pytest
import torch

from case_registry import case, cases
from changes.programs import agrees


@case
def metaclass_attr():
    class M(type):
        k = 2

    class A(metaclass=M):
        pass

    return (lambda x: x * A.k), [
        lambda: setattr(A, "k", 3),
        lambda: setattr(M, "k", 9),
        lambda: delattr(A, "k"),
        lambda: setattr(M, "k", property(lambda c: 7)),
    ]


@case
def metaclass_data_descriptor_added():
    class M(type):
        pass

    class A(metaclass=M):
        k = 2

    return (lambda x: x * A.k), [lambda: setattr(M, "k", property(lambda c: 7)), lambda: delattr(M, "k")]


@case
def abc_register():
    class Base(abc.ABC):
        pass

    class A:
        pass

    a = A()
    return (lambda x: x * 2 if isinstance(a, Base) else x), [lambda: Base.register(A)]


@case
def bases_changed():
    class P:
        k = 2

    class Q:
        k = 3

    class A(P):
        pass

    a = A()

    def setb():
        A.__bases__ = (Q,)

    return (lambda x: x * a.k), [setb]


@case
def class_reassigned():
    class P:
        k = 2

    class Q:
        k = 3

    a = P()

    def setb():
        a.__class__ = Q

    return (lambda x: x * a.k), [setb]


@case
def class_name():
    class A:
        pass

    return (lambda x: x * len(A.__name__) + len(type(A()).__qualname__)), [
        lambda: setattr(A, "__name__", "longer"),
        lambda: setattr(A, "__qualname__", "longer"),
    ]


@case
def class_doc_module():
    class A:
        "d"

    return (lambda x: x * len(A.__doc__) + len(A.__module__)), [
        lambda: setattr(A, "__doc__", "longer"),
        lambda: setattr(A, "__module__", "mm"),
    ]


@case
def annotations_():
    class A:
        a: int

    return (lambda x: x * len(A.__annotations__)), [lambda: A.__annotations__.update(b=int)]


@case
def class_vars():
    class A:
        a = 1

    return (lambda x: x * sum(1 for k in vars(A) if not k.startswith("_"))), [lambda: setattr(A, "b", 1)]


@case
def isinstance_bases():
    class P:
        pass

    class Q:
        pass

    class A(P):
        pass

    a = A()

    def setb():
        A.__bases__ = (Q,)

    return (lambda x: x * 2 if isinstance(a, Q) else x), [setb]


@case
def issubclass_bases():
    class P:
        pass

    class Q:
        pass

    class A(P):
        pass

    def setb():
        A.__bases__ = (Q,)

    return (lambda x: x * 2 if issubclass(A, Q) else x), [setb]


@case
def super_bases():
    class P:
        def g(self):
            return 2

    class Q:
        def g(self):
            return 3

    class A(P):
        def g(self):
            return super().g()

    a = A()

    def setb():
        A.__bases__ = (Q,)

    return (lambda x: x * a.g()), [setb, lambda: setattr(Q, "g", lambda s: 9)]


@case
def instancecheck():
    class M(type):
        def __instancecheck__(c, o):
            return c.yes

    class A(metaclass=M):
        yes = False

    return (lambda x: x * 2 if isinstance(3, A) else x), [
        lambda: setattr(A, "yes", True),
        lambda: delattr(M, "__instancecheck__"),
    ]


@case
def getitem_class():
    class A:
        def __class_getitem__(c, k):
            return 2

    return (lambda x: x * A[1]), [lambda: setattr(A, "__class_getitem__", classmethod(lambda c, k: 5))]


@case
def new_init_replaced():
    class A:
        def __init__(self):
            self.k = 2

    return (lambda x: x * A().k), [
        lambda: setattr(A, "__init__", lambda s: setattr(s, "k", 7)),
        lambda: setattr(A, "k", property(lambda s: 9, lambda s, v: None)),
    ]


@case
def new_added():
    class A:
        k = 2

    class B:
        k = 7

    return (lambda x: x * A().k), [lambda: setattr(A, "__new__", lambda c: B()), lambda: setattr(B, "k", 8)]


@case
def meta_call():
    class M(type):
        pass

    class A(metaclass=M):
        k = 2

    class B:
        k = 7

    return (lambda x: x * A().k), [lambda: setattr(M, "__call__", lambda c: B())]


@case
def post_init():
    @dataclasses.dataclass
    class C:
        k: int = 1

    return (lambda x: x * C(3).k + C().k), [
        lambda: setattr(C, "k", 5),
        lambda: setattr(C, "__post_init__", lambda s: setattr(s, "k", 9)),
        lambda: setattr(C, "__init__", lambda s, k=4: setattr(s, "k", k * 2)),
    ]


@case
def classmethod_subclass_k():
    class A:
        k = 3

        @classmethod
        def c(cls, x):
            return x * cls.k

    class B(A):
        pass

    return (lambda x: B.c(x)), [lambda: setattr(B, "k", 7), lambda: delattr(B, "k"), lambda: setattr(A, "k", 1)]


@case
def staticmethod_cls():
    class A:
        @staticmethod
        def s(x):
            return x * 2

        @classmethod
        def c(cls, x):
            return x * cls.k

        k = 3

    return (lambda x: A.s(x) + A.c(x) + A().s(x)), [
        lambda: setattr(A, "s", staticmethod(lambda x: x * 5)),
        lambda: setattr(A, "k", 7),
        lambda: setattr(A, "c", classmethod(lambda c, x: x)),
    ]


@case
def init_subclass_registry():
    class A:
        reg = {}

        def __init_subclass__(cls, **k):
            A.reg[cls.__name__] = cls

    class B(A):
        k = 2

    return (lambda x: x * sum(c.k for c in A.reg.values())), [lambda: type("C", (A,), {"k": 5}), lambda: setattr(B, "k", 9)]


@case
def typing_generic():
    T = typing.TypeVar("T")

    class Box(typing.Generic[T]):
        def __init__(self, v):
            self.v = v

    b = Box[int](2)
    return (lambda x: x * b.v), [lambda: setattr(b, "v", 5)]


@case
def protocol():
    @typing.runtime_checkable
    class P(typing.Protocol):
        def go(self): ...

    class A:
        pass

    a = A()
    return (lambda x: x * 2 if isinstance(a, P) else x), [
        lambda: setattr(A, "go", lambda s: 1),
        lambda: delattr(A, "go"),
        lambda: setattr(a, "go", 1),
    ]


@case
def hashable_iter_abc():
    from collections.abc import Iterable, Sized

    class A:
        pass

    a = A()
    return (lambda x: x * (2 if isinstance(a, Iterable) else 1) + (5 if isinstance(a, Sized) else 1)), [
        lambda: setattr(A, "__iter__", lambda s: iter([])),
        lambda: setattr(A, "__len__", lambda s: 1),
        lambda: delattr(A, "__iter__"),
    ]


@case
def subclasshook():
    class B(abc.ABC):
        @classmethod
        def __subclasshook__(cls, c):
            return hasattr(c, "zz")

    class A:
        pass

    a = A()

    class A2:
        zz = 1

    ns = types.SimpleNamespace(a=a)
    return (lambda x: x * 2 if isinstance(ns.a, B) else x), [lambda: setattr(ns, "a", A2())]


@case
def metaprop():
    S = [2]

    class M(type):
        @property
        def k(cls):
            return S[0]

    class A(metaclass=M):
        pass

    return (lambda x: x * A.k), [lambda: S.__setitem__(0, 5)]


@case
def class_global_replaced():
    ns = {"torch": torch}
    exec("class A:\n  k=2\ndef f(x): return x*A.k + A().k", ns)
    return ns["f"], [lambda: ns.__setitem__("A", type("A", (), {"k": 9}))]


@pytest.mark.parametrize("name", cases(__name__))
def test_as_eager(name):
    agrees(__name__, name)
