"""Objects, containers and modules that everyday programs read, changed between calls."""

import bisect
import collections
import dataclasses
import enum
import functools
import heapq
import itertools

import pytest
import torch
from torch import nn

from case_registry import case, cases, x0
from changes.programs import agrees


@case
def slots_default_and_property_setter():
    class P:
        __slots__ = ("_v", "n")

        def __init__(s):
            s._v = 1.0
            s.n = 0

        @property
        def v(s):
            return s._v * 2

        @v.setter
        def v(s, k):
            s._v = k
            s.n += 1

    p = P()

    def f(x):
        p.v = p.v + 1
        return x * p.v, p.n

    return f, [
        lambda: setattr(p, "v", 9),
        lambda: setattr(P, "v", 3.0),
    ]


@case
def cached_property_invalidated():
    class P:
        def __init__(s):
            s.k = 2.0

        @functools.cached_property
        def sq(s):
            return s.k**2

    p = P()

    def f(x):
        return x * p.sq

    return f, [lambda: setattr(p, "k", 3.0), lambda: p.__dict__.pop("sq"), lambda: p.__dict__.update(sq=7)]


@case
def dataclass_field_default_factory():
    @dataclasses.dataclass
    class C:
        a: float = 1.0
        b: list = dataclasses.field(default_factory=lambda: [1, 2])

    def f(x, n):
        c = C(b=[n]) if n > 2 else C()
        c.b.append(n)
        return x * sum(c.b) + c.a, dataclasses.asdict(c)

    it = itertools.cycle([1, 3, 2, 5])
    return f, [lambda: setattr(C, "a", 2.0), lambda: C.__init__.__defaults__], lambda: (x0(), next(it))


@case
def enum_auto_and_members():
    class E(enum.Enum):
        A = enum.auto()
        B = enum.auto()

        def scale(self):
            return self.value * 2

    cur = [E.A]

    def f(x):
        return x * cur[0].scale() + len(E) + list(E).index(cur[0])

    return f, [lambda: cur.__setitem__(0, E.B), lambda: setattr(E, "scale", lambda s: 10)]


@case
def dict_subclass_missing_grows():
    class D(dict):
        def __missing__(self, k):
            self[k] = len(self) + 1.0
            return self[k]

    d = D()

    def f(x, k):
        return x * d[k], len(d)

    it = itertools.cycle(["a", "b", "a", "c", "b"])
    return f, [d.clear, lambda: d.update(a=5)], lambda: (x0(), next(it))


@case
def list_subclass_getitem():
    class L(list):
        def __getitem__(s, k):
            return list.__getitem__(s, k) * 2

    l = L([1, 2, 3])

    def f(x):
        return x * l[0] + l[-1] + sum(l), l[1:]

    return f, [lambda: l.append(4), lambda: delattr(L, "__getitem__"), lambda: l.sort(reverse=True)]


@case
def counter_arith():
    c = collections.Counter("abca")

    def f(x):
        d = c + collections.Counter(a=1)
        return x * d["a"] + d.total(), d.most_common(1)

    return f, [lambda: c.update("aa"), lambda: c.subtract("aaa"), c.clear]


@case
def ordered_move():
    d = collections.OrderedDict(a=1, b=2, c=3)

    def f(x):
        d.move_to_end("a")
        k, v = d.popitem(last=False)
        d[k] = v + 1
        return x * v, list(d)

    return f, [lambda: d.update(z=5), lambda: d.move_to_end("c", last=False)]


@case
def deque_rotate():
    q = collections.deque([1, 2, 3], maxlen=3)

    def f(x):
        q.rotate(1)
        q.append(q[0] + 1)
        return x * q[0] + q[-1], list(q), q.maxlen

    return f, [lambda: q.extend([7, 8]), q.clear, lambda: q.extend([1, 2])]


@case
def heap_and_bisect():
    h = [5, 1, 4]
    heapq.heapify(h)

    def f(x):
        s = sorted(h)
        return x * s[0] + bisect.bisect(s, 3), heapq.nsmallest(2, h)

    return f, [lambda: heapq.heappush(h, 0), lambda: heapq.heappop(h)]


@case
def heap_inside():
    h = [1, 4, 5]

    def f(x):
        heapq.heappush(h, 2)
        return x * heapq.heappop(h), h[:]

    return f, [lambda: h.append(9)]


@case
def class_counter():
    class C:
        count = 0

        def __init__(self):
            C.count += 1
            self.id = C.count

    def f(x):
        c = C()
        return x * c.id

    return f, [lambda: setattr(C, "count", 10)]


@case
def type_self_attr():
    class M(nn.Module):
        calls = 0

        def forward(s, x):
            type(s).calls += 1
            return x * s.calls

    m = M()
    return lambda x: m(x), [lambda: setattr(M, "calls", 5), lambda: setattr(m, "calls", 3)]


@case
def module_buffer_list():
    m = nn.BatchNorm1d(2)

    def f(x):
        y = m(x)
        return y, int(m.num_batches_tracked), m.running_mean

    return f, [m.eval, m.train, m.reset_running_stats, lambda: setattr(m, "momentum", None)]


@case
def module_dict_pop():
    m = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.ReLU()})

    def f(x):
        for k, v in m.items():
            x = v(x)
        return x

    return f, [lambda: m.pop("a"), lambda: m.update({"c": nn.Tanh()}), lambda: m.clear()]


@case
def parameter_list():
    p = nn.ParameterList([nn.Parameter(torch.ones(2)), nn.Parameter(torch.zeros(2))])

    def f(x):
        return x + sum(p) + len(p)

    return f, [
        lambda: p.append(nn.Parameter(torch.ones(2) * 3)),
        lambda: p.__setitem__(0, nn.Parameter(torch.ones(2) * 9)),
        lambda: p[1].data.fill_(4),
    ]


@case
def hooks_added():
    m = nn.Linear(2, 2)
    hs = []

    def f(x):
        return m(x)

    return f, [
        lambda: hs.append(m.register_forward_hook(lambda mod, a, o: o * 2)),
        lambda: hs.append(m.register_forward_pre_hook(lambda mod, a: (a[0] + 1,))),
        lambda: hs[0].remove(),
        lambda: hs[1].remove(),
    ]


@case
def global_hook():
    m = nn.Linear(2, 2)
    hs = []

    def f(x):
        return m(x)

    return f, [
        lambda: hs.append(nn.modules.module.register_module_forward_hook(lambda mod, a, o: o * 2)),
        lambda: hs[0].remove(),
    ]


@case
def weight_norm_param():
    m = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))

    def f(x):
        return m(x)

    return f, [lambda: m.weight.shape, lambda: nn.utils.parametrize.remove_parametrizations(m, "weight")]


@case
def tie_weights():
    a, b = nn.Linear(2, 2), nn.Linear(2, 2)

    def f(x):
        return b(a(x))

    return f, [lambda: setattr(b, "weight", a.weight), lambda: a.weight.data.mul_(2), lambda: setattr(b, "bias", None)]


@case
def to_dtype():
    m = nn.Linear(2, 2)

    def f(x):
        return m(x.to(m.weight.dtype))

    return f, [m.double, m.float, m.bfloat16]


@case
def state_dict_loaded():
    m = nn.Linear(2, 2)
    s = {k: v.clone() + 1 for k, v in m.state_dict().items()}

    def f(x):
        return m(x)

    return f, [lambda: m.load_state_dict(s), lambda: m.load_state_dict(s, assign=True)]


@case
def closure_swapped():
    def make():
        k = 1.0

        def set_(v):
            nonlocal k
            k = v

        return (lambda x: x * k), set_

    f, set_ = make()
    return f, [lambda: set_(3.0), lambda: set_(2), lambda: set_(torch.tensor(5.0)), lambda: set_("a")]


@pytest.mark.parametrize("name", cases(__name__))
def test_as_eager(name):
    agrees(__name__, name)
