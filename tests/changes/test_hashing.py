"""Objects that say in Python how they are hashed, as keys of dictionaries and caches, changed between calls."""

import collections
import dataclasses
import enum
import functools

import pytest
import torch
from torch import nn

from case_registry import case, cases
from changes.programs import agrees


@dataclasses.dataclass(frozen=True)
class K:
    a: int
    b: str = "u"


def named():
    class N:
        def __init__(s, a, d):
            s.a = a
            s.d = d

        def __hash__(s):
            return hash((type(s), s.a))

        def __eq__(s, o):
            return isinstance(o, N) and s.a == o.a

    return N


@case
def mutated_outside_key():
    N = named()
    k = N(3, 1.0)
    d = {N(3, 0): 2.0, N(4, 0): 5.0}

    def f(x):
        return x * d.get(k, 9.0)

    return f, [
        lambda: setattr(k, "a", 4),
        lambda: setattr(k, "a", 5),
        lambda: setattr(N, "__eq__", lambda s, o: False),
        lambda: setattr(N, "__eq__", lambda s, o: s.a == o.a),
    ]


@case
def two_outside():
    N = named()
    st = [N(3, 0), N(4, 0)]

    def f(x):
        d = {st[0]: 1.0}
        d[st[1]] = 2.0
        return x * len(d), sum(d.values())

    return f, [lambda: setattr(st[1], "a", 3), lambda: setattr(st[1], "a", 4)]


@case
def lookup_two_outside():
    N = named()
    st = [N(3, 0), N(3, 0)]
    d = {N(3, 0): 1.0, N(4, 0): 2.0}

    def f(x):
        return x * d[st[0]] + d[st[1]]

    return f, [lambda: setattr(st[1], "a", 4), lambda: setattr(st[0], "a", 4)]


@case
def returned_keys():
    d = {}

    def f(x, n=[0]):
        n[0] += 1
        d[K(n[0] % 2)] = x * n[0]
        return {K(1): x}, {K(2), K(3)}, [K(1)], len(d)

    return f, [lambda: d.clear()]


@case
def lru_of_attr():
    N = named()
    st = [N(3, 2.0)]

    @functools.lru_cache(maxsize=None)
    def g(n):
        return n.d

    def f(x):
        return x * g(st[0]), g.cache_info().hits

    return f, [
        lambda: st.__setitem__(0, N(3, 7.0)),
        g.cache_clear,
        lambda: st.__setitem__(0, N(4, 8.0)),
        lambda: g(N(3, 11.0)),
        lambda: st.__setitem__(0, N(3, 12.0)),
    ]


@case
def hash_side_effect():
    log = []

    class S:
        def __init__(s, a):
            s.a = a

        def __hash__(s):
            log.append(1)
            return hash(s.a)

        def __eq__(s, o):
            return s.a == o.a

    d = {S(1): 2.0}

    def f(x):
        return x * d[S(1)], len(log)

    return f, []


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

    return f, [
        lambda: d.__setitem__(M(5.0), 6.0),
        lambda: setattr(b, "v", 9.0),
        lambda: d.pop(a),
        lambda: d.__setitem__(a, 1.0),
    ]


@case
def iterate_module_keys():
    m = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    d = {c: i + 1.0 for i, c in enumerate(m)}

    def f(x):
        for k, v in d.items():
            x = k(x) * v
        for c in m:
            d[c] = d[c] + 1
        return x

    return f, [lambda: d.popitem()]


@case
def iterate_content_keys():
    d = {K(1): 2.0, K(2): 3.0}

    def f(x):
        for k, v in d.items():
            x = x * k.a + v
        if K(7) in d:
            x = x * 0
        return x, [k.b for k in d], max(d, key=d.get).a, sorted(d, key=lambda k: k.a)[0] == K(1)

    return f, [lambda: d.__setitem__(K(7, "q"), 6.0), lambda: d.pop(K(1))]


@case
def tuple_keys():
    d = {("a", K(1)): 2.0}
    kk = K(1)

    def f(x):
        y = x * d[("a", K(1))]
        e = {(kk, 1): 2.0}
        return y, e[(K(1), 1)], ("b", K(1)) in d

    return f, [lambda: d.__setitem__(("b", K(1)), 6.0), lambda: d.__setitem__(("a", K(1)), 7.0)]


@case
def nested_content():
    @dataclasses.dataclass(frozen=True)
    class Q:
        k: K
        t: tuple = (1, 2)

    d = {Q(K(1)): 2.0}
    q = Q(K(1))

    def f(x):
        return x * d[Q(K(1))] + d.get(q, 3.0), Q(K(2), (3,)) in d

    return f, [lambda: d.clear(), lambda: d.__setitem__(Q(K(2), (3,)), 1.0)]


@case
def pop_and_del():
    d = {K(1): 2.0, K(2): 5.0}

    def f(x):
        v = d.pop(K(1), 7.0)
        d[K(9)] = v
        if K(2) in d:
            del d[K(2)]
        return x * v, len(d), list(d.values())

    return f, [lambda: d.update({K(2): 3.0}), lambda: d.update({K(1): 3.0})]


@case
def defaultdict_keys():
    d = collections.defaultdict(float)
    c = collections.Counter()

    def f(x):
        d[K(1)] += 1.0
        c[K(2)] += 1
        return x * d[K(1)] + c[K(2)], len(d)

    return f, [d.clear, c.clear]


@case
def symbol_in_key():
    d = {K(1): 2.0, K(2): 5.0}
    st = [1]

    def f(x):
        k = K(st[0])
        return x * d.get(k, 0.5) + k.a

    return f, [lambda: st.__setitem__(0, 2), lambda: st.__setitem__(0, 3)]


@case
def key_mutated_inside():
    N = named()

    def f(x):
        k = N(1, 0)
        d = {k: 1.0}
        k.a = 2
        return x, k in d, N(1, 0) in d, N(2, 0) in d

    return f, []


@case
def tensor_attr_key():
    N = named()

    def f(x):
        try:
            return {N(x, 0): 1}
        except Exception as e:
            return type(e).__name__

    return f, []


@case
def made_and_outside_mixed():
    k = K(3)

    def f(x):
        d = {k: 1.0, K(4): 2.0}
        return x * d[K(3)] + d[K(4)], k in d, K(3) in {k}, [q is k for q in d], len({k, K(3)})

    return f, [lambda: object.__setattr__(k, "a", 4), lambda: object.__setattr__(k, "a", 3)]


@case
def frozen_dataclass_store():
    @dataclasses.dataclass(frozen=True)
    class K:
        a: int
        b: str = "u"

    d = {}

    def f(x, n=[0]):
        n[0] += 1
        key = K(n[0] % 3)
        if key not in d:
            d[key] = x * 2
        return d[key] + 1, len(d)

    return f, [d.clear]


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

    return f, [lambda: k.__setitem__(0, K(4))]


@case
def frozen_dataclass_set():
    @dataclasses.dataclass(frozen=True)
    class K:
        a: int

    seen = set()

    def f(x):
        seen.add(K(3))
        return x * len(seen), K(4) in seen

    return f, [lambda: seen.add(K(4))]


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

    return f, [lambda: ks.__setitem__(0, K(4)), g.cache_clear]


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

    return f, [g.cache_clear]


@case
def class_attribute_in_hash():
    class K:
        scale = 2.0

        def __init__(s, a):
            s.a = a

        def __hash__(s):
            return hash((s.a, s.scale))

        def __eq__(s, o):
            return s.a == o.a and s.scale == o.scale

    d = {}

    def f(x):
        k = K(1)
        d[k] = x
        return x * d[K(1)], vars(k), len(d)

    return f, [lambda: setattr(K, "scale", 3.0), d.clear, lambda: setattr(K, "scale", 2.0)]


@case
def class_attribute_set_inside():
    class K:
        scale = 2.0

        def __init__(s, a):
            s.a = a

        def __hash__(s):
            return hash((s.a, s.scale))

        def __eq__(s, o):
            return s.a == o.a and s.scale == o.scale

    def f(x):
        d = {K(1): 3.0}
        K.scale = K.scale + 1
        return x, K(1) in d

    return f, []


@case
def sets_of_classes():
    s = {nn.Linear, nn.Conv2d, torch.relu}
    m = nn.Sequential(nn.Linear(2, 2), nn.ReLU())

    def f(x):
        for c in m:
            if type(c) in s:
                x = c(x) * 2
        return x, nn.ReLU in s, len(s), torch.relu in s, isinstance(m[0], tuple(t for t in s if isinstance(t, type)))

    return f, [lambda: s.add(nn.ReLU), lambda: s.discard(nn.Linear)]


@case
def set_of_mixed():
    class A:
        pass

    a = A()
    s = {a, 1, "b", None}

    def f(x):
        return x * len(s), a in s, 1 in s, "c" in s, A() in s

    return f, [lambda: s.add("c"), lambda: s.remove(a)]


@case
def hash_of_enum_and_types():
    class E(enum.Enum):
        A = 1
        B = 2

    @dataclasses.dataclass(frozen=True, slots=True)
    class K:
        e: E
        t: type = int
        d: torch.dtype = torch.float32
        o: tuple = ()

    d = {K(E.A): 2.0, K(E.B, float, torch.int64, (1, K(E.A))): 3.0}
    st = [K(E.B, float, torch.int64, (1, K(E.A)))]

    def f(x):
        return x * d[K(E.A)] + d[K(E.B, float, torch.int64, (1, K(E.A)))] + d[st[0]], K(E.A, str) in d

    return f, [lambda: d.__setitem__(K(E.A, str), 2)]


@case
def subclass_of_key():
    @dataclasses.dataclass(frozen=True)
    class K:
        a: int

    class L(K):
        pass

    d = {K(1): 2.0, L(1): 3.0}

    def f(x):
        return x * d[K(1)] + d[L(1)], len({K(1), L(1), K(1)})

    return f, [lambda: d.__setitem__(L(1), 9.0)]


@case
def eq_without_class_check():
    class K:
        def __init__(s, a):
            s.a = a

        def __hash__(s):
            return hash(s.a)

        def __eq__(s, o):
            return s.a == o.a

    d = {K(1): 2.0, 5: 7.0}

    def f(x):
        try:
            return x * d[K(5)]
        except AttributeError as e:
            return x, str(e)

    return f, []


@case
def ordered_and_default():
    K = collections.namedtuple("K", "a b")

    @dataclasses.dataclass(frozen=True)
    class Q:
        a: int

    d = collections.OrderedDict({Q(1): 1.0, Q(2): 2.0})
    c = collections.defaultdict(list)

    def f(x):
        d.move_to_end(Q(1))
        c[Q(1)].append(x.sum())
        d[Q(3)] = d.pop(Q(2), 5.0)
        return x * d[Q(1)], [k.a for k in d], len(c[Q(1)]), c[K(1, 2)] == []

    return f, [lambda: d.update({Q(2): 8.0}), c.clear]


@case
def cached_method_of_key():
    @dataclasses.dataclass(frozen=True)
    class Q:
        a: int

        @functools.lru_cache
        def big(self, n):
            return self.a * 10.0 + n

        @functools.cached_property
        def sq(self):
            return self.a**2

    st = [Q(1)]

    def f(x):
        return x * st[0].big(2) + st[0].sq

    return f, [lambda: st.__setitem__(0, Q(2)), lambda: Q.big.cache_clear()]


def counting(log):
    class A:
        def __init__(s, a):
            s.a = a

        def __hash__(s):
            return hash(s.a)

        def __eq__(s, o):
            log.append(1)
            return s.a == (o if type(o) is int else o.a)

    return A


@case
def keys_that_count_comparisons():
    log = []
    A, N = counting(log), named()
    N.__eq__ = lambda s, o: s.a == o.a
    a, k = A(1), N(1, 0)
    d = {a: 2.0, "k": 3.0}

    def get(x):
        return x * d.get(k, 5.0), len(log)

    def get_constant(x):
        return x * d.get(1, 5.0) * d["k"], len(log)

    def set_constant(x):
        d[1] = 7.0
        return x * d[1], len(log), len(d)

    def delete(x):
        d.pop(9, None)
        return x, len(log), len(d)

    def made(x):
        e = {a: 1.0}
        return x * e.get(1, 5.0), len(log)

    def f(x):
        return get(x), get_constant(x), set_constant(x), delete(x), made(x)

    return f, [lambda: setattr(k, "a", 2)]


@pytest.mark.parametrize("name", cases(__name__))
def test_as_eager(name):
    agrees(__name__, name)
