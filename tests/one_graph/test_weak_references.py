"""Weak references, containers of them, and sets of objects, in one graph."""

import weakref

import pytest
from torch import nn

from case_registry import case, cases
from one_graph.programs import agrees


class A:
    def __init__(s, v):
        s.v = v


@case
def set_of_modules():
    m = nn.ModuleList([nn.Linear(2, 2) for _ in range(3)])
    skip = {m[0], m[2]}

    def f(x):
        for c in m:
            if c not in skip:
                x = c(x)
        return x, len(skip), m[0] in skip, sorted(c.in_features for c in skip)

    return (f,)


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

    return (f,)


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

    return (f,)


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

    return (f,)


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

    return (f,)


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

    return (f,)


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

    return (f,)


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

    return (f,)


@case
def weak_ref_made():
    class A:
        v = 2.0

    a = A()

    def f(x):
        r = weakref.ref(a)
        return x * r().v

    return (f,)


class Held(A):
    def __init__(s, v):
        super().__init__(v)
        s.table = {"a": v}

    def up(s, by=1):
        s.v += by
        return s.v

    @property
    def twice(s):
        return s.v * 2

    def __len__(s):
        return len(s.table)

    def __getitem__(s, key):
        return s.table[key]

    def __setitem__(s, key, value):
        s.table[key] = value

    def __contains__(s, key):
        return key in s.table

    def __iter__(s):
        return iter([*s.table])


@case
def proxy():
    o = Held(2.0)
    p = weakref.proxy(o)

    def f(x):
        known = isinstance(p, A), isinstance(p, weakref.ProxyTypes), isinstance(p, nn.Module), p.__class__ is Held
        p.new = p.up() + o.v
        p["b"] = p["a"] + 1
        asked = hasattr(p, "missing"), bool(p), len(p), "b" in p, [k for k in p], p is o, type(p).__name__
        return x * p.v + p.twice, known, p.new, asked

    return (f,)


@case
def proxy_of_a_module():
    m = nn.Linear(4, 4)
    p = weakref.proxy(m)

    def f(x):
        return p(x) + p.weight.sum(), p.training, [n for n, _ in p.named_parameters()], isinstance(p, nn.Module)

    f.held = m
    return (f,)


@pytest.mark.parametrize("name", cases(__name__))
def test_one_graph(name):
    agrees(__name__, name)
