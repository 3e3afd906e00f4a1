"""Native functions that only compute, and counters in attributes of functions, in one graph."""

import cmath
import collections
import enum
import functools
import heapq
import math
import re
import zlib

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_map

from case_registry import case, cases
from one_graph.programs import agrees

P = collections.namedtuple("P", "a b")


def counted(fn):
    @functools.wraps(fn)
    def w(*a, **k):
        w.calls += 1
        w.last = a[0] * 2
        return fn(*a, **k) * 2

    w.calls = 0
    return w


@case
def finditer():
    pat = re.compile(r"layer_(\d+)")

    def f(x):
        return (
            x * len([m for m in pat.finditer("layer_1 layer_2")]),
            [int(q.group(1)) for q in re.finditer(r"(\d)", "1 2")],
            next(pat.finditer("layer_3")).span(),
        )

    return (f,)


@case
def merged_heaps():
    a = [1, 4, 6]
    b = [2, 5]

    def f(x):
        return x * list(heapq.merge(a, b))[1], list(heapq.merge(["a"], ["b"], key=lambda s: s))

    return (f,)


@case
def small_natives():
    def f(x):
        return (
            x * abs(cmath.sqrt(-4)),
            cmath.phase(1j),
            zlib.crc32(b"abc"),
            zlib.adler32(b"a"),
            cmath.exp(0),
            cmath.polar(1j),
        )

    return (f,)


@case
def counting_wrapper():
    @counted
    def g(x):
        return x + 1

    def f(x):
        return g(x), g.calls, g.last, g(x), g.calls, g.__name__, g.__wrapped__(x), hasattr(g, "other")

    return (f,)


@case
def deleted_attribute_of_a_function():
    def g(x):
        return x + 1

    g.left = 1

    def f(x):
        left = g.left
        del g.left
        g.left = left + 1
        g.seen = True
        del g.seen
        return g(x) * g.left, hasattr(g, "seen")

    return (f,)


@case
def static_counter():
    def f(x):
        if not hasattr(f0, "n"):
            f0.n = 0
        f0.n += 1
        return x * f0.n

    def f0():
        pass

    return (f,)


@case
def two_names_one_function():
    def a():
        pass

    def b():
        pass

    a.n = b.n = 0
    st = [a, b]

    def f(x):
        st[0].n = st[1].n + 1
        st[1].n += 5
        return x * st[0].n + st[1].n

    return (f,)


@case
def inverted_flags():
    class Fl(enum.Flag):
        A = 1
        B = 2
        C = 4

    st = [Fl.A | Fl.B]
    n = [5]

    def f(x):
        m = st[0]
        return x * (~n[0]), ~m, -n[0], +n[0], ~True

    return (f,)


@case
def fl():
    d = {"x": [torch.ones(2), P(torch.ones(1), (torch.ones(3),))]}

    def f(x):
        l, s = tree_flatten(d)
        return len(l), x * 2

    return (f,)


@case
def tm():
    d = {"x": [torch.ones(2), (torch.ones(1), (torch.ones(3),))]}

    def f(x):
        return tree_map(lambda t: t + 1, d), x * 2

    return (f,)


@case
def products():
    h = [2.0, 3.0]

    def f(x):
        return (
            x * math.prod(v for v in h),
            math.prod([2, 3]),
            math.prod(h, start=2),
        )

    return (f,)


@pytest.mark.parametrize("name", cases(__name__))
def test_one_graph(name):
    agrees(__name__, name)
