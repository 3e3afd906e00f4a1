"""Keys that say in Python how they are hashed, and containers of objects, in one graph."""

import collections
import dataclasses
import functools

import pytest

from case_registry import case, cases
from one_graph.programs import agrees


@dataclasses.dataclass(frozen=True)
class K:
    a: int
    b: str = "u"


class N:
    def __init__(s, a, d):
        s.a = a
        s.d = d

    def __hash__(s):
        return hash((type(s), s.a))

    def __eq__(s, o):
        return isinstance(o, N) and s.a == o.a


@case
def made_and_outside_mixed():
    k = K(3)

    def f(x):
        d = {k: 1.0, K(4): 2.0}
        return x * d[K(3)] + d[K(4)], k in d, K(3) in {k}, [q is k for q in d], len({k, K(3)})

    return (f,)


@case
def two_outside():
    st = [N(3, 0), N(4, 0)]

    def f(x):
        d = {st[0]: 1.0}
        d[st[1]] = 2.0
        return x * len(d), sum(d.values())

    return (f,)


@case
def lookup_two_outside():
    st = [N(3, 0), N(3, 0)]
    d = {N(3, 0): 1.0, N(4, 0): 2.0}

    def f(x):
        return x * d[st[0]] + d[st[1]]

    return (f,)


@case
def iterate_obj_keys():
    class M:
        def __init__(s, v):
            s.v = v

    a, b = M(1.0), M(2.0)
    d = {a: 3.0, b: 4.0}

    def f(x):
        for k, v in d.items():
            x = x * k.v + v
        for k in d:
            x = x + k.v
        return x, len(d), a in d, list(d.values()), [k is a for k in d.keys()]

    return (f,)


@case
def iterate_content_keys():
    d = {K(1): 2.0, K(2): 3.0}

    def f(x):
        for k, v in d.items():
            x = x * k.a + v
        if K(7) in d:
            x = x * 0
        return x, [k.b for k in d], max(d, key=d.get).a, sorted(d, key=lambda k: k.a)[0] == K(1)

    return (f,)


@case
def tuple_keys():
    d = {("a", K(1)): 2.0}
    kk = K(1)

    def f(x):
        y = x * d[("a", K(1))]
        e = {(kk, 1): 2.0}
        return y, e[(K(1), 1)], ("b", K(1)) in d

    return (f,)


@case
def pop_and_del():
    d = {K(1): 2.0, K(2): 5.0}

    def f(x):
        v = d.pop(K(1), 7.0)
        d[K(9)] = v
        if K(2) in d:
            del d[K(2)]
        return x * v, len(d), list(d.values())

    return (f,)


@case
def defaultdict_keys():
    d = collections.defaultdict(float)
    c = collections.Counter()

    def f(x):
        d[K(1)] += 1.0
        c[K(2)] += 1
        return x * d[K(1)] + c[K(2)], len(d)

    return (f,)


@case
def symbol_in_key():
    d = {K(1): 2.0, K(2): 5.0}
    st = [1]

    def f(x):
        k = K(st[0])
        return x * d.get(k, 0.5) + k.a

    return (f,)


@case
def own_hash_made_inside():
    class K:
        def __init__(s, a):
            s.a = a

        def __hash__(s):
            return hash(s.a)

        def __eq__(s, o):
            return isinstance(o, K) and s.a == o.a

    def f(x):
        d = {K(3): 2.0, K(4): 5.0}
        return x * d[K(3)] + len(d), K(4) in d, K(3) in {K(3), K(5)}

    return (f,)


@case
def frozen_dataclass_outside():
    @dataclasses.dataclass(frozen=True)
    class K:
        a: int
        b: str = "u"

    k = [K(3)]
    d = {K(3): 2.0, K(4): 5.0}

    def f(x):
        return x * d[k[0]], k[0] in {K(3), K(5)}, k[0] == K(4)

    return (f,)


@case
def lru_own_hash():
    @dataclasses.dataclass(frozen=True)
    class K:
        a: int

    @functools.lru_cache
    def g(k):
        return k.a * 2.0

    ks = [K(3)]

    def f(x):
        return x * g(ks[0])

    return (f,)


@case
def lru_inside():
    @dataclasses.dataclass(frozen=True)
    class K:
        a: int

    @functools.lru_cache
    def g(k):
        return k.a * 2.0

    def f(x):
        return x * g(K(3))

    return (f,)


@case
def frozen_dataclass_key():
    @dataclasses.dataclass(frozen=True)
    class K:
        a: int
        b: str = "u"

    d = {K(3): 2.0, K(4): 5.0}

    def f(x):
        return x * d[K(3)] + d.get(K(9), 1.0)

    return (f,)


@pytest.mark.parametrize("name", cases(__name__))
def test_one_graph(name):
    agrees(__name__, name)
