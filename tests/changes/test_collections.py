"""Containers of the standard library, iterators and sets change between calls."""

import array
import collections
import itertools
import operator
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import quickfuse
from case_registry import case, cases
from changes.programs import agrees


@case
def chainmap():
    a = {"x": 1}
    b = {"y": 2}
    c = collections.ChainMap(a, b)

    def f(x):
        return (
            x * c["y"],
            c.get("z", 5),
            list(c),
            "x" in c,
            len(c),
            dict(c),
            c.maps[0] is a,
            c.new_child({"q": 1})["q"],
            c.parents.get("x"),
        )

    def s1():
        a["y"] = 7

    def s2():
        b["z"] = 1

    def s3():
        c.maps.insert(0, {"y": 100})

    def s4():
        del a["y"]

    return f, [s1, s2, s3, s4]


@case
def deque_ml():
    d = collections.deque([1, 2, 3], maxlen=3)

    def f(x):
        d.append(4)
        return x * d[0], list(d), d.maxlen, len(d), d.count(4), d.index(4)

    def s1():
        d.clear()

    def s2():
        d.extend([9, 8, 7])

    return f, [s1, s2, lambda: d.rotate(1)]


@case
def counters():
    c = collections.Counter("aabc")
    e = collections.Counter("ab")

    def f(x):
        return (
            x * c["a"],
            c - e,
            c + e,
            c & e,
            c | e,
            c["zz"],
            c.most_common(1),
            sum(c.values()),
            c.total(),
            sorted(c.elements()),
            +c,
            c == e,
            c >= e,
        )

    def s1():
        c["a"] = 7

    def s2():
        e["a"] = 20

    def s3():
        del c["b"]

    return f, [s1, s2, s3]


@case
def nested_dd():
    d = collections.defaultdict(lambda: collections.defaultdict(list))
    d["a"]["b"].append(1)

    def f(x):
        d["a"]["c"].append(2)
        return x * len(d["a"]), d["a"]["c"], list(d), dict(d["a"])

    def s1():
        d["a"]["z"] = [1]

    def s2():
        d["a"].default_factory = dict

    def s3():
        d["a"] = collections.defaultdict(list)

    return f, [s1, s3]


@case
def mproxy():
    b = {"k": {"n": 2}}
    m = types.MappingProxyType(b)

    def f(x):
        return x * m["k"]["n"], list(m.items()), m.get("q"), "k" in m, len(m), {**m}, m == b, m | {"z": 1}

    def s1():
        b["k"]["n"] = 3

    def s2():
        b["q"] = 4

    return f, [s1, s2]


@case
def mview():
    o = bytearray(b"\x01\x02\x03")
    m = memoryview(o)

    def f(x):
        return x * m[0], len(m), bytes(m), list(m), m[1:].tolist(), o[0], sum(o)

    return f, [lambda: o.__setitem__(0, 9), lambda: m.__setitem__(1, 7)]


@case
def arr():
    a = array.array("d", [1.0, 2.0])

    def f(x):
        return x * a[0], len(a), list(a), sum(a), a.typecode

    return f, [lambda: a.__setitem__(0, 5.0), lambda: a.append(3.0)]


@case
def genarg():
    def g():
        n = 0
        while True:
            n += 1
            yield n

    it = g()
    lst = iter([5, 6, 7, 8, 9, 10, 11, 12, 13])
    z = zip(itertools.count(), "abcdefghij")
    m = map(lambda v: v * 2, iter(range(20)))
    e = enumerate("abcdefgh")

    def f(x):
        return x * next(it) + next(lst), next(z), next(m), next(e), next(it)

    return f, [lambda: next(it), lambda: next(lst)]


@case
def iters2():
    mk = lambda: [
        filter(None, [0, 1, 2, 0, 3, 4, 5, 6, 7, 8]),
        itertools.islice(itertools.count(3), 9),
        itertools.cycle([1, 2, 3]),
        itertools.repeat(4, 9),
        itertools.accumulate(range(1, 9)),
        itertools.chain([1], [2, 3], range(9)),
        reversed([1, 2, 3, 4, 5, 6]),
        iter({1: 2, 3: 4, 5: 6, 7: 8}.items()),
    ]
    h = mk()

    def f(x):
        return [x * 0 + float(next(i) if not isinstance(i, type(iter({}.items()))) else next(i)[1]) for i in h]

    def s1():
        next(h[2])

    def s2():
        h[:] = mk()

    return f, [s1, s2]


@case
def forgen():
    h = [iter([1, 2, 3, 4, 5, 6, 7, 8])]

    def f(x):
        for v in h[0]:
            x = x + v
            if v % 2 == 0:
                break
        return x

    return f, [lambda: next(h[0])]


@case
def getters():
    h = {
        "g": operator.itemgetter("a", "b"),
        "m": operator.methodcaller("get", "zz", 3),
        "t": operator.attrgetter("T.shape"),
        "d": {"a": 1, "b": 2},
    }

    def f(x):
        return x * h["g"](h["d"])[1], h["m"](h["d"]), h["t"](x)

    def s1():
        h["d"]["b"] = 5

    def s2():
        h["g"] = operator.itemgetter("b", "a")

    def s3():
        h["d"]["zz"] = 8

    return f, [s1, s2, s3]


@case
def slicer():
    h = [slice(0, 2), range(0, 9, 4), 2 + 1j, b"ab", ...]

    def f(x):
        return (
            x[h[0]],
            [x * v for v in h[1]],
            x * h[2],
            x * h[3][0],
            x[h[4], 0],
            h[0].stop,
            h[1][-1],
            h[2].imag * x,
            h[0] == slice(0, 2),
            4 in h[1],
            h[1].step,
        )

    def s1():
        h[0] = slice(1, None)
        h[1] = range(3)

    def s2():
        h[2] = 2j
        h[3] = b"c"
        h[4] = 1

    return f, [s1, s2]


@case
def setops():
    a = {1, 2, 3}
    b = frozenset({3, 4})

    def f(x):
        return x * len(a | b), a & b, a - b, a ^ b, b <= a, 3 in a, a.isdisjoint(b), sorted(a), sum(a) * x, max(a)

    return f, [lambda: a.add(9), lambda: a.discard(3), lambda: a.clear() or a.add(1)]


@case
def userdicts():
    class U(collections.UserDict):
        def __getitem__(s, k):
            return super().__getitem__(k) * 2

        def __missing__(s, k):
            return -1

    class M(dict):
        def __missing__(s, k):
            return len(k)

        def __getattr__(s, n):
            return s[n]

    u = U(a=1)
    m = M(b=2)

    def f(x):
        return x * u["a"] + m.b, u["zzz"] if 0 else 1, m.qqq, m["xy"], u.get("a"), list(u), dict(u), "a" in u

    def s1():
        u["a"] = 5
        m["b"] = 7

    def s2():
        M.__missing__ = lambda s, k: 50

    def s3():
        U.__getitem__ = lambda s, k: 1

    return f, [s1, s2, s3]


@pytest.mark.parametrize("name", cases(__name__))
def test_as_eager(name):
    agrees(__name__, name)


class Tags(set):
    """A set of a class of its own."""


@pytest.mark.parametrize(
    "change",
    [lambda s: s.add(3), lambda s: s.discard(1), lambda s: (s.clear(), s.add(2)), lambda s: s.update([5, 6])],
    ids=["add", "discard", "clear", "update"],
)
def test_sets_of_a_class_of_their_own_are_changed(change: Callable[[Any], Any]) -> None:
    def function(x: torch.Tensor, tags: Any) -> torch.Tensor:
        change(tags)
        return x + len(tags)

    ours, eager = Tags([1, 2]), Tags([1, 2])
    compiled = quickfuse.compile(function, options={"raise_internal_errors": True})
    for _ in range(2):
        torch.testing.assert_close(compiled(torch.ones(2), ours), function(torch.ones(2), eager))
        assert ours == eager
