"""Classes that say themselves how attributes are read, set and deleted, and the order that attributes are left in."""

import sys
import threading
import types
import typing

import pytest

from case_registry import case, cases
from changes.programs import agrees


@case
def native_methods_under_other_names():
    class Attributes(dict):
        __getattr__ = dict.get
        __setattr__ = dict.__setitem__
        __delattr__ = dict.__delitem__

    a = Attributes(p=1.0)

    def f(x):
        a.p = a.p * 2
        x = x * a.p + (a.missing or 3)
        made = Attributes(q=x)
        made.q, made.r = made.q + 1, 5
        try:
            del a.q
        except KeyError:
            x = x + 0.5
        del a.p
        a.p = 3
        return x + a.p, made, vars(made), dict(a), vars(a)

    return f, [
        lambda: a.update(p=7, q=1),
        lambda: setattr(Attributes, "p", 5.0),
        lambda: setattr(Attributes, "__getattr__", lambda self, name: 1),
        lambda: delattr(Attributes, "__setattr__"),
    ]


@case
def native_getattribute():
    class Items(dict):
        __setattr__ = dict.__setitem__
        __getattribute__ = dict.__getitem__

    a = Items(u=1)

    def f(x):
        a.z = a.u + 1
        return x * a.z

    return f, [lambda: dict.update(a, u=3)]


@case
def getattribute_does_not_call_getattr():
    asked = []

    class Asked:
        def __getattr__(self, name):
            asked.append(name)
            raise AttributeError(name)

        def __getattribute__(self, name):
            return object.__getattribute__(self, name)

    a = Asked()
    return (lambda x: (x + getattr(a, "b", 7), list(asked))), [lambda: setattr(a, "b", 2)]


@case
def nothing_else_is_read():
    seen = []

    class Seen:
        def __getattribute__(self, name):
            seen.append(name)
            return object.__getattribute__(self, name)

        def __call__(self, t):
            return t + self.u

    class SeenClass:
        u = 3

        @property
        def __class__(self):
            seen.append("class")
            return int

    a, b = Seen(), SeenClass()
    a.u = 1

    def f(x):
        made = Seen()
        made.u = x * b.u
        a.u = a.u + 1
        print("a break", file=None)
        return a(x) * made.u, list(seen)

    return f, [lambda: setattr(a, "u", 2)]


@case
def getattribute_without_class():
    class Table:
        def __getattribute__(self, name):
            return {"u": 3}[name]

    outside = Table()
    return (lambda x: x * Table().u + outside.u), []


@case
def an_attribute_that_is_set_again_is_last():
    class A:
        pass

    a = A()
    a.u, a.v = 1, 2

    def f(x):
        del a.u
        a.u = 3
        a.z = 1
        del a.z
        a.z = 2
        del a.z
        order = list(vars(a))
        del a.v
        a.v = 7
        return x, order, list(vars(a).items())

    def unseen(x):
        del a.u
        a.u = 3
        return x

    return (lambda x: (f(x), unseen(x), print(list(vars(a))))), [lambda: setattr(a, "w", 2)]


@case
def dictionary_of_a_thread():
    local = threading.local()
    local.v = 1.5

    def f(x):
        local.__dict__["v"] = 2.0
        return x * local.v, vars(local)

    return f, [lambda: vars(local).clear(), lambda: setattr(local, "w", 2)]


@case
def super_on_the_stack():
    T = typing.TypeVar("T")

    class Base:
        def go(self, t):
            return t + 1

    class Leaf(Base):
        def go(self, t):
            return t * 100

    class Box(typing.Generic[T]):
        def __init__(self, value: T):
            self.value = value

    leaf, log = Leaf(), []

    def f(x):
        print("a break", file=None)
        try:
            x = super(Leaf, leaf).go(x) if isinstance(leaf, Leaf) else x
        finally:
            log.append("finally")
        box = Box[float](2)
        print("a break", file=None)
        return x * box.value

    return f, [lambda: setattr(Base, "go", lambda self, t: t - 3)]


@case
def import_from_what_is_no_module():
    sys.modules["changes_no_module"] = types.SimpleNamespace(v=2)

    def f(x):
        from changes_no_module import v

        return x * v

    return f, [lambda: delattr(sys.modules["changes_no_module"], "v"), lambda: sys.modules.pop("changes_no_module")]


@pytest.mark.parametrize("name", cases(__name__))
def test_as_eager(name):
    agrees(__name__, name)
