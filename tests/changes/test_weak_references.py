"""Weak references, containers of them, and sets of objects, changed between calls."""

import gc
import weakref

import pytest
import torch
from torch import nn

from case_registry import case, cases, x0
from changes.programs import agrees


class A:
    def __init__(s, v):
        s.v = v


@case
def ref_dropped():
    def f(x, a):
        r = weakref.ref(a)
        v = a.v
        del a
        o = r()
        return x * v, o is None

    return f, [], lambda: (x0(), A(2.0))


@case
def ref_replaced():
    st = [A(2.0)]

    class H:
        pass

    h = H()
    h.a = A(3.0)

    def f(x):
        r = weakref.ref(h.a)
        h.a = A(h.a.v + 1)
        return x, r() is None

    return f, []


@case
def ref_kept():
    h = [A(3.0)]
    kept = []

    def f(x):
        r = weakref.ref(h[0])
        kept.append(r)
        return x * r().v, kept[-1]() is h[0], r == weakref.ref(h[0]), r is weakref.ref(h[0])

    return f, [lambda: h.__setitem__(0, A(4.0)), lambda: [k() is None for k in kept]]


@case
def set_of_modules():
    m = nn.ModuleList([nn.Linear(2, 2) for _ in range(3)])
    skip = {m[0], m[2]}

    def f(x):
        for c in m:
            if c not in skip:
                x = c(x)
        return x, len(skip), m[0] in skip, sorted(c.in_features for c in skip)

    return f, [lambda: skip.add(m[1]), lambda: skip.discard(m[0]), lambda: m.__setitem__(0, nn.Linear(2, 2))]


@case
def set_add():
    m = nn.ModuleList([nn.Linear(2, 2) for _ in range(3)])
    seen = set()

    def f(x):
        for c in (m[0], m[1], m[0]):
            if c in seen:
                x = x + 1
                continue
            seen.add(c)
            x = c(x)
        return x, len(seen)

    return f, [seen.clear, lambda: seen.discard(m[1])]


@case
def weak_keys_many():
    a, b = A(1.0), A(2.0)
    d = weakref.WeakKeyDictionary()
    d[a] = 3.0
    st = [a, b]

    def f(x):
        o = st[0]
        d[o] = d.get(o, 0.0) + 1
        return x * d[o], len(d), a in d, b in d, d.pop(o, None), d.setdefault(a, 5.0)

    return f, [lambda: st.__setitem__(0, b), lambda: d.clear(), lambda: st.__setitem__(0, a)]


@case
def weak_key_dies():
    st = [A(1.0)]
    d = weakref.WeakKeyDictionary()

    def f(x):
        o = st[0]
        d[o] = 2.0
        return x * d[o], len(d)

    return f, [lambda: (st.__setitem__(0, A(5.0)), gc.collect(), print(len(d)))]


@case
def weak_tensor_values():
    st = {}
    d = weakref.WeakValueDictionary()
    a = A(1.0)
    d["a"] = a

    def f(x):
        if "a" in d:
            x = x * d["a"].v
        return x, d.get("b") is None, len(d)

    return f, [lambda: setattr(a, "v", 3.0), lambda: d.__setitem__("b", a), lambda: d.pop("a")]


@case
def weak_parent():
    class Node:
        def __init__(s, p):
            s.parent = weakref.ref(p) if p else None
            s.v = 2.0

        def root(s):
            return s if s.parent is None else s.parent().root()

    r = Node(None)
    c = Node(r)

    def f(x):
        return x * c.root().v, c.parent() is r

    return f, [lambda: setattr(r, "v", 3.0)]


@case
def weak_ref():
    class A:
        v = 2.0

    a = [A()]
    a.append(weakref.ref(a[0]))

    def f(x):
        o = a[1]()
        return x if o is None else x * o.v

    return f, [lambda: setattr(a[0], "v", 3.0), lambda: a.__setitem__(0, None)]


@case
def weak_key_dict():
    class A:
        v = 2.0

    a = A()
    b = A()
    d = weakref.WeakKeyDictionary()
    d[a] = 5.0

    def f(x):
        return x * d[a] + d.get(b, 1.0), len(d), a in d

    return f, [lambda: d.__setitem__(a, 3.0), lambda: d.__setitem__(b, 3.0)]


@case
def weak_key_store():
    class A:
        v = 2.0

    a = A()
    d = weakref.WeakKeyDictionary()

    def f(x):
        if a not in d:
            d[a] = x * 2
        return d[a] + 1

    return f, [d.clear]


@case
def weak_value_dict():
    class A:
        v = 2.0

    a = A()
    d = weakref.WeakValueDictionary()
    d["a"] = a

    def f(x):
        o = d.get("a")
        return x * o.v if o is not None else x

    return f, [lambda: setattr(a, "v", 3.0), lambda: d.pop("a")]


@case
def weak_set():
    class A:
        v = 2.0

    a = A()
    d = weakref.WeakSet()
    d.add(a)

    def f(x):
        for o in d:
            x = x * o.v
        return x, len(d)

    return f, [lambda: setattr(a, "v", 3.0)]


@case
def weak_ref_made():
    class A:
        v = 2.0

    a = A()

    def f(x):
        r = weakref.ref(a)
        return x * r().v

    return f, [lambda: setattr(a, "v", 3.0)]


@case
def weak_method():
    class A:
        v = 2.0

        def m(s, x):
            return x * s.v

    a = A()
    p = weakref.WeakMethod(a.m)

    def f(x):
        return p()(x)

    return f, [lambda: setattr(a, "v", 3.0)]


@case
def proxy_of_a_trainer():
    class Trainer:
        step = 1
        rate = 0.5

    class Module(nn.Module):
        def __init__(s):
            super().__init__()
            s.layer = nn.Linear(2, 2)

        def forward(s, x):
            s.trainer.step += 1
            return s.layer(x) * s.trainer.rate, s.trainer.step, isinstance(s.trainer, Trainer), "rate" in s.trainer.__dict__

    m, held = Module(), [Trainer(), Trainer()]
    m.__dict__["trainer"] = weakref.proxy(held[0])

    def name():
        held[0].rate = 0.25

    def other():
        held[1].rate = 3.0
        m.__dict__["trainer"] = weakref.proxy(held[1])

    def end():
        gone = weakref.ref(held.pop())
        assert gone() is None

    def again():
        held.append(Trainer())
        m.__dict__["trainer"] = weakref.proxy(held[1])

    def plain():
        m.__dict__["trainer"] = held[0]

    return m, [name, other, end, again, plain, lambda: setattr(Trainer, "rate", 9.0)]


@case
def proxy_that_ends():
    held, kept = [A(3.0)], []
    p = [weakref.proxy(held[0], lambda reference: kept.append("end"))]

    def f(x):
        y = x * p[0].v
        held.clear()
        try:
            v = p[0].v
        except ReferenceError as error:
            v = str(error)
        held.append(A(5.0))
        return y, v, len(kept)

    def renew():
        p[0] = weakref.proxy(held[0])

    return f, [renew, renew]


@case
def proxy_and_its_object():
    a, b = A(3.0), A(4.0)

    def f(x, p, o):
        p.v += 1
        o.v *= 2
        return x * p.v, o.v, p is o

    given = [(weakref.proxy(a), a)]
    changes = [lambda: given.__setitem__(0, (weakref.proxy(a), b)), lambda: given.__setitem__(0, (a, weakref.proxy(a)))]
    return f, changes, lambda: (x0(), *given[0])


@case
def proxy_with_a_callback():
    """It is not called where the proxy went first."""
    ended, held = [], {"o": A(2.0)}
    held["p"] = weakref.proxy(held["o"], lambda reference: ended.append(1))

    def f(x):
        return x * held["p"].v if "p" in held else x, len(ended)

    return f, [lambda: held.pop("p"), lambda: held.clear()]


@case
def proxy_of_a_function():
    def make():
        return lambda x: x * 2

    held = [make()]
    p = weakref.proxy(held[0])

    def f(x):
        try:
            return p(x)
        except ReferenceError as error:
            return x, str(error)

    return f, [held.clear]


@case
def proxy_of_a_mapping_and_of_a_tensor():
    class Table(dict):
        pass

    table, tensor = Table(a=1.0), torch.ones(2)
    p, q = weakref.proxy(table), weakref.proxy(tensor)

    def f(x):
        try:
            abs(p)
        except TypeError as error:
            said = str(error)
        return x * p["a"], {**p}, torch.is_tensor(q), said, tensor * len(table)

    return f, [lambda: table.__setitem__("a", 5.0)]


@pytest.mark.parametrize("name", cases(__name__))
def test_as_eager(name):
    agrees(__name__, name)
