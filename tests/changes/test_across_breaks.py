"""Keys, weak references, arrays, locks and sets of objects on both sides of a break, changed between calls."""

import contextlib
import dataclasses
import functools
import threading
import weakref

import numpy as np
import pytest
import torch
from torch import nn

from case_registry import case, cases
from changes.programs import agrees


# combinations of what is new with breaks, gradients, changes
@dataclasses.dataclass(frozen=True)
class K:
    a: int
    b: str = "u"


@case
def key_across_break():
    d = {}

    def f(x):
        k = K(1)
        e = {k: x * 2, K(2): 1.0}
        print("here")
        n = int(x.sum())
        e[K(3)] = n
        d[k] = e[K(1)] * n
        return [q.a for q in e], d[K(1)], k in e, len(d)

    return f, [d.clear]


@case
def weak_across_break():
    class A:
        v = 2.0

    a = A()
    d = weakref.WeakKeyDictionary({a: 3.0})

    def f(x):
        r = weakref.ref(a)
        n = int(x.sum())
        y = x * d[a] * n
        d[r()] = d[a] + 1
        print(len(d))
        return y * r().v, r() is a

    return f, [lambda: d.__setitem__(a, 1.0), lambda: setattr(a, "v", 5.0)]


@case
def arrays_across_break():
    a = np.arange(4.0)

    def f(x):
        b = a * 2
        m = b.mean()
        n = int(x.sum())
        a[0] = n
        return x * m + b.sum() + a.mean(), b

    return f, [lambda: a.__setitem__(1, 7.0)]


@case
def lock_in_loop_with_break():
    lock = threading.Lock()

    def f(x):
        for k in range(3):
            with lock:
                x = x + 1
                if x.sum() > 20:
                    x = x / 2
        return x, lock.acquire(False), lock.release()

    return f, []


@case
def lock_early_return():
    lock = threading.RLock()
    st = [0]

    def g(x):
        with lock:
            if st[0] > 1:
                return x * 2
            x = x + 1
        return x

    def f(x):
        with lock:
            y = g(x)
        return y

    return f, [lambda: st.__setitem__(0, 5), lambda: print(lock._is_owned())]


@case
def lock_generator():
    lock = threading.Lock()

    def gen(x):
        with lock:
            for k in range(3):
                yield x * k

    def f(x):
        t = 0
        for v in gen(x):
            t = t + v
        g = gen(x)
        t = t + next(g)
        g.close()
        return t

    return f, [lambda: print(lock.locked())]


@case
def lock_decorated():
    def synchronized(fn):
        @functools.wraps(fn)
        def w(s, *a, **k):
            with s._lock:
                return fn(s, *a, **k)

        return w

    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s._lock = threading.RLock()
            s.l = nn.Linear(2, 2)
            s.cache = {}

        @synchronized
        def get(s, n):
            if n not in s.cache:
                s.cache[n] = torch.ones(n)
            return s.cache[n]

        def forward(s, x):
            return s.l(x) * s.get(x.shape[-1])

    m = M()
    return (lambda x: m(x)), [m.cache.clear]


@case
def lock_suppressed_exception():
    lock = threading.Lock()

    def f(x):
        with contextlib.suppress(KeyError), lock:
            x = x * {}["a"]
        with contextlib.ExitStack() as st:
            st.enter_context(lock)
            x = x * 3
        return x

    return f, [lambda: print(lock.locked())]


@case
def function_attr_with_break():
    def g():
        pass

    g.n = 0

    def f(x):
        g.n += 1
        n = int(x.sum())
        g.t = x * g.n
        print(g.n)
        return g.t + n

    return f, [lambda: setattr(g, "n", 5)]


@case
def set_objects_across_break():
    class A:
        def __init__(s, v):
            s.v = v

    a, b = A(1.0), A(2.0)
    s = {a}

    def f(x):
        y = x if a in s else -x
        n = int(x.sum())
        s.add(b)
        return y * n, len(s), b in s, sum(sorted(o.v for o in s))

    return f, [lambda: s.discard(a), lambda: s.add(a), lambda: s.clear()]


@case
def np_in_training():
    w = torch.ones(2, requires_grad=True)
    sched = np.linspace(0.1, 0.01, 10)
    st = [0]
    hist = []

    def f(x):
        lr = sched[st[0]]
        st[0] += 1
        l = ((x * w) ** 2).sum()
        (g,) = torch.autograd.grad(l, w)
        with torch.no_grad():
            w.sub_(lr * g)
        hist.append(l.item())
        return float(np.mean(hist[-3:])), w.detach().clone(), float(sched[: st[0]].sum())

    return f, [lambda: None] * 2


@pytest.mark.parametrize("name", cases(__name__))
def test_as_eager(name):
    agrees(__name__, name)
