"""Settings, iterators, contexts and classes that everyday programs read, changed between calls."""

import abc
import functools
import itertools
import operator
import types
import typing

import pytest
import torch
from torch import nn

from case_registry import case, cases, x0
from changes.programs import agrees


@case
def contextmanager_class_state():
    class CM:
        depth = 0

        def __enter__(s):
            s.depth += 1
            return s.depth

        def __exit__(s, *a):
            s.depth -= 1
            return a[0] is KeyError

    cm = CM()

    def f(x):
        with cm as a, cm as b:
            x = x * a + b
            raise KeyError
        return x + cm.depth

    return f, [lambda: setattr(cm, "depth", 3), lambda: setattr(CM, "__exit__", lambda s, *a: True)]


@case
def descriptor_set_name():
    class Scaled:
        def __set_name__(s, o, n):
            s.n = "_" + n

        def __get__(s, o, t=None):
            return s if o is None else getattr(o, s.n) * 2

        def __set__(s, o, v):
            setattr(o, s.n, v)

    class A:
        v = Scaled()

        def __init__(s):
            s.v = 3.0

    a = A()

    def f(x):
        return x * a.v

    return f, [
        lambda: setattr(a, "v", 5.0),
        lambda: setattr(a, "_v", 1.0),
        lambda: setattr(A.__dict__["v"], "n", "w") or setattr(a, "w", 8),
    ]


@case
def operator_overloads():
    class V:
        def __init__(s, k):
            s.k = k

        def __mul__(s, o):
            return V(s.k * (o.k if isinstance(o, V) else o))

        __rmul__ = __mul__

        def __matmul__(s, o):
            return s.k + o.k

        def __neg__(s):
            return V(-s.k)

        def __lt__(s, o):
            return s.k < o.k

        def __eq__(s, o):
            return s.k == o.k

        def __hash__(s):
            return hash(s.k)

        def __call__(s, x):
            return x * s.k

        def __contains__(s, q):
            return q == s.k

        def __len__(s):
            return int(abs(s.k))

    a, b = V(2), V(3)

    def f(x):
        return (-(2 * a * b))(x), a @ b, a < b, a == b, len({a, b}), 2 in a, len(b), bool(a)

    return f, [lambda: setattr(b, "k", 2), lambda: setattr(a, "k", 0), lambda: setattr(V, "__bool__", lambda s: True)]


@case
def functools_stuff():
    k = [2]

    @functools.lru_cache(maxsize=None)
    def cached(n):
        return n * k[0]

    def f(x, n):
        return x * cached(n), functools.reduce(operator.mul, [k[0], 3], 1)

    it = itertools.cycle([1, 2, 1])
    return f, [lambda: k.__setitem__(0, 5), cached.cache_clear], lambda: (x0(), next(it))


@case
def total_ordering():
    @functools.total_ordering
    class T:
        def __init__(s, v):
            s.v = v

        def __eq__(s, o):
            return s.v == o.v

        def __lt__(s, o):
            return s.v < o.v

    a = [T(1), T(2)]

    def f(x):
        return x * (a[0] <= a[1]) + (a[0] > a[1]), max(a).v, sorted(a, reverse=True)[0].v

    return f, [lambda: setattr(a[0], "v", 5), lambda: a.append(T(9))]


@case
def typing_namedtuple():
    class N(typing.NamedTuple):
        a: float
        b: int = 2

        def area(self):
            return self.a * self.b

    h = [N(1.0)]

    def f(x):
        return x * h[0].area(), h[0]._replace(a=3.0), h[0]._asdict()

    return f, [lambda: h.__setitem__(0, N(2.0, 5)), lambda: setattr(N, "area", lambda s: 1)]


@case
def simplenamespace_nested():
    n = types.SimpleNamespace(a=types.SimpleNamespace(b=2), c=[1])

    def f(x):
        return x * n.a.b + len(n.c), hasattr(n, "d"), vars(n.a)

    return f, [
        lambda: setattr(n.a, "b", 3),
        lambda: setattr(n, "d", 1),
        lambda: setattr(n, "a", types.SimpleNamespace(b=7, e=1)),
    ]


@case
def abc_abstract_registry():
    class Base(abc.ABC):
        reg = {}

        def __init_subclass__(cls, **k):
            super().__init_subclass__(**k)
            Base.reg[cls.__name__] = cls

        @abc.abstractmethod
        def run(self, x): ...

    class A(Base):
        def run(self, x):
            return x * 2

    def f(x):
        for name in sorted(Base.reg):
            x = Base.reg[name]().run(x)
        return x, len(Base.__subclasses__())

    keep = []

    def add():
        keep.append(type("B", (Base,), {"run": lambda s, x: x + 1}))

    return f, [add, lambda: setattr(A, "run", lambda s, x: x - 1)]


@case
def chained_getattr_delegate():
    class Inner:
        k = 2.0

    class Wrap:
        def __init__(s, i):
            s.__dict__["i"] = i

        def __getattr__(s, n):
            return getattr(s.i, n)

        def __setattr__(s, n, v):
            setattr(s.i, n, v)

    w = Wrap(Inner())

    def f(x):
        w.k = w.k + 1
        return x * w.k

    return f, [lambda: setattr(Inner, "k", 9), lambda: w.__dict__.update(k=4), lambda: w.__dict__.update(i=Inner())]


@case
def memo_dict():
    memo = {}

    def fib(n):
        if n < 2:
            return n
        if n not in memo:
            memo[n] = fib(n - 1) + fib(n - 2)
        return memo[n]

    def f(x, n):
        return x * fib(n), len(memo)

    it = itertools.cycle([5, 7, 3])
    return f, [memo.clear, lambda: memo.update({2: 100})], lambda: (x0(), next(it))


@case
def rng_torch_generator():
    g = torch.Generator().manual_seed(0)

    def f(x):
        return x + torch.rand(2, generator=g), g.initial_seed()

    return f, [lambda: g.manual_seed(5), lambda: g.get_state()]


@case
def optimizer_lr_sched():
    w = nn.Parameter(torch.ones(2, 2))
    o = torch.optim.SGD([w], lr=0.1)
    s = torch.optim.lr_scheduler.StepLR(o, 2)

    def f(x):
        o.zero_grad()
        (w * x).sum().backward()
        o.step()
        s.step()
        return w.detach().clone(), o.param_groups[0]["lr"]

    return f, [
        lambda: o.param_groups[0].update(lr=0.5),
        lambda: o.add_param_group({"params": [nn.Parameter(torch.ones(1))]}),
    ]


@case
def exception_message():
    k = [2]

    def f(x):
        try:
            if k[0] > 2:
                raise ValueError(f"bad {k[0]}")
            return x * k[0]
        except ValueError as e:
            e.add_note("n")
            return x, str(e), e.__notes__

    return f, [lambda: k.__setitem__(0, 3), lambda: k.__setitem__(0, 4)]


@case
def match_statement():
    k = [{"type": "a", "v": 2}]

    def f(x):
        match k[0]:
            case {"type": "a", "v": v, **rest}:
                return x * v + len(rest)
            case [a, *b]:
                return x * a + len(b)
            case str() as s if s.startswith("q"):
                return x + len(s)
            case int(n) | float(n):
                return x * n
            case _:
                return x

    return f, [
        lambda: k[0].update(z=1),
        lambda: k.__setitem__(0, [3, 4]),
        lambda: k.__setitem__(0, "qq"),
        lambda: k.__setitem__(0, "r"),
        lambda: k.__setitem__(0, 2.5),
        lambda: k.__setitem__(0, True),
        lambda: k.__setitem__(0, None),
    ]


@pytest.mark.parametrize("name", cases(__name__))
def test_as_eager(name):
    agrees(__name__, name)
