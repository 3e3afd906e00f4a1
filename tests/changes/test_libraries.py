"""Objects of the standard library, of NumPy and of PyTorch change between calls."""

import contextlib
import datetime
import decimal
import fractions
import functools
import pathlib
import re
import string
import threading

import numpy as np
import pytest
import torch

from case_registry import case, cases
from changes.programs import agrees


@case
def cachedprop():
    calls = []

    class C:
        def __init__(s):
            s.n = 2

        @functools.cached_property
        def p(s):
            calls.append(1)
            return s.n * 2

    c = C()

    def f(x):
        return x * c.p, len(calls)

    def s1():
        c.n = 5

    def s2():
        del c.p

    def s3():
        c.p = 9

    def s4():
        C.p = property(lambda s: 77)

    return f, [s1, s2, s3, s4]


@case
def fracs():
    h = [fractions.Fraction(1, 2), decimal.Decimal("1.5"), datetime.timedelta(days=2), datetime.date(2026, 1, 1)]

    def f(x):
        return (
            x * float(h[0]),
            h[0] + 1,
            float(h[1]) * x,
            h[1] + 1,
            x * h[2].days,
            x * h[3].year,
            h[3] + h[2],
            h[0] < 1,
            str(h[1]),
            h[0].numerator * x,
        )

    def s1():
        h[0] = fractions.Fraction(3, 4)

    def s2():
        h[1] = decimal.Decimal("2")
        h[2] = datetime.timedelta(days=5)

    return f, [s1, s2, lambda: h.__setitem__(3, datetime.date(2025, 5, 5))]


@case
def paths():
    h = [pathlib.PurePosixPath("a/b.txt")]

    def f(x):
        p = h[0]
        return x * len(p.parts), p.name, p.suffix, str(p / "c"), p.parent == pathlib.PurePosixPath("a"), p.stem

    return f, [lambda: h.__setitem__(0, pathlib.PurePosixPath("q"))]


@case
def rematch():
    h = [re.match(r"(?P<n>\d+)(x)?", "12x")]

    def f(x):
        m = h[0]
        return x * int(m["n"]), m.group(1, 2), m.groups(), m.groupdict(), m.span(), m.end(), bool(m), m.re.pattern, m.string

    return f, [lambda: h.__setitem__(0, re.match(r"(?P<n>\d+)(x)?", "7"))]


@case
def nps():
    h = [
        np.array([1, 2], dtype=object),
        np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
        np.array(3.0),
        np.float32(2),
        np.int64(1),
    ]

    def f(x):
        return (
            x * h[0][0],
            x * float(h[1]["b"][0]),
            x * h[2].item(),
            x * float(h[3]),
            x[h[4]],
            x * int(h[4]),
            h[2].shape,
            h[3].dtype.name,
            x + torch.from_numpy(h[2]),
        )

    def s1():
        h[0][0] = 5

    def s2():
        h[1]["b"][0] = 7.0

    def s3():
        h[2][...] = 9.0

    def s4():
        h[4] = np.int64(2)
        h[3] = np.float32(0.5)

    return f, [s1, s2, s3, s4]


@case
def partialmeth():
    class C:
        k = 2

        def m(s, a, b=1, *, c=0):
            return a * s.k + b + c

        p = functools.partialmethod(m, 3, c=1)

        @functools.singledispatchmethod
        def d(s, v):
            return "o"

        @d.register
        def _(s, v: int):
            return "i%d" % v

        @d.register(str)
        def _(s, v):
            return "s" + v

    c = C()

    def f(x):
        return x * c.p(b=4), c.d(3), c.d("q"), c.d(2.0), functools.reduce(lambda a, b: a * b, [1, 2, 3], c.k)

    return f, [lambda: setattr(c, "k", 5), lambda: setattr(C, "m", lambda s, a, b=1, c=0: 0)]


@case
def method_by_singledispatch():
    """From Python 3.13 on an object's method is kept, and is the same one each time."""

    class C:
        @functools.singledispatchmethod
        def d(self, v, x):
            return x

        @d.register
        def _(self, v: int, x):
            return x * v

    c, kept = C(), []

    def f(x):
        method = c.d
        same = [method is c.d, c.d is C().d]
        print(end="")
        return same, method is c.d, any(k is c.d for k in kept), method(3, x), c.d("a", x)

    return f, [lambda: kept.append(c.d), lambda: C.d.register(int, lambda self, v, x: x - v)]


@case
def ctxs():
    @contextlib.contextmanager
    def cm(v):
        log.append(v)
        try:
            yield v * 2
        finally:
            log.append(-v)

    log = []
    h = [contextlib.nullcontext(3), 2, contextlib.suppress(ZeroDivisionError)]

    def f(x):
        with h[0] as a, cm(h[1]) as b:
            x = x * b + (a or 0)
        with h[2]:
            x = x + 1
            1 // 0
            x = x + 100
        with contextlib.ExitStack() as st:
            y = st.enter_context(cm(5))
            st.callback(log.append, 0)
        return x, y, list(log)

    def s1():
        h[1] = 7

    def s2():
        h[0] = contextlib.nullcontext()

    return f, [s1, s2]


@case
def ctxdeco():
    log = []

    class T(contextlib.ContextDecorator):
        def __enter__(s):
            log.append("e")
            return s

        def __exit__(s, *a):
            log.append("x")

    @T()
    def inner(x):
        return x * 2

    def f(x):
        return inner(x) + 1, list(log)

    return f, [lambda: log.clear()]


@case
def partial_nested():
    def b(a, k=1, *, z=0):
        return a * k + z

    p = functools.partial(functools.partial(b, k=2), z=3)
    h = {"p": p}

    def f(x):
        return h["p"](x), h["p"](x, k=5), p.keywords, p.func is b

    def s1():
        p.keywords["z"] = 9

    def s2():
        h["p"] = functools.partial(b, z=1)

    def s3():
        b.__kwdefaults__["z"] = 4

    def s4():
        b.__defaults__ = (7,)

    return f, [s1, s2, s3, s4]


@case
def tlocal():
    t = threading.local()
    t.v = 2

    def f(x):
        return x * t.v, hasattr(t, "w")

    def s1():
        t.v = 3

    def s2():
        t.w = 1

    return f, [s1, s2]


@case
def stringmod():
    t = string.Template("$a-$b")
    h = {"a": 1, "b": "q"}

    def f(x):
        return x * 2, t.substitute(h), "{a}".format(**h), "%(a)s" % h, f"{h['a']:>4}|{h['b']!r}"

    return f, [lambda: h.update(a=5)]


@case
def torchsmall():
    h = [torch.Size([3, 1]), torch.device("cpu"), torch.float64, torch.finfo(torch.float16), torch.iinfo(torch.int8)]

    def f(x):
        return (
            x.expand(h[0].numel(), 3) if h[0].numel() == 3 else x,
            x.to(h[1]).to(h[2]),
            x.clamp(max=h[3].max),
            x + h[4].max,
            h[0] + (1,),
            h[0][0] * x,
            list(h[0]),
            h[1].type,
            h[2].is_floating_point,
            h[0] == (3, 1),
            str(h[2]),
        )

    def s1():
        h[0] = torch.Size([1])

    def s2():
        h[2] = torch.int32
        h[3] = torch.finfo(torch.bfloat16)

    return f, [s1, s2]


@case
def module_stuff():
    class L(torch.nn.Module):
        def __init__(s):
            super().__init__()
            s.lin = torch.nn.Identity()
            s.cfg = {"a": [1, 2]}
            s.register_buffer("b", torch.ones(3))
            s.acts = torch.nn.ModuleDict({"t": torch.nn.Tanh()})

        @property
        def scale(s):
            return s.cfg["a"][0]

        def forward(s, x):
            return s.acts["t"](s.lin(x) * s.scale) + s.b

    l = L()

    def f(x):
        return l(x), len(list(l.children())), l.training, [n for n, _ in l.named_modules()]

    def s1():
        l.cfg["a"][0] = 5

    def s2():
        l.acts["t"] = torch.nn.ReLU()

    def s3():
        l.eval()

    def s4():
        l.b = torch.zeros(3)

    def s5():
        L.scale = property(lambda s: 9)

    def s6():
        l.lin = torch.nn.Sequential(torch.nn.Tanh())

    def s7():
        l.forward = lambda x: x

    return f, [s1, s2, s3, s4, s5, s6, s7]


@pytest.mark.parametrize("name", cases(__name__))
def test_as_eager(name):
    agrees(__name__, name)
