"""What keys, arrays, locks and functions are found through, changed between calls."""

import dataclasses
import threading

import numpy as np
import pytest
import torch

from case_registry import case, cases
from changes.programs import agrees


# staleness hunts
@dataclasses.dataclass(frozen=True)
class K:
    a: float
    b: str = "u"


TOL = 0.1


def set_tol(v):
    globals().update(TOL=v)


@case
def minus_zero_keys():
    d = {K(0.0): 2.0, K(1): 3.0, K(True, "v"): 4.0}

    def f(x):
        return x * d[K(-0.0)] + d[K(1.0)] + d[K(1, "v")]

    return f, []


@case
def nan_key():
    d = {K(float("nan")): 2.0}

    def f(x):
        return x * d.get(K(float("nan")), 1.0), len({K(float("nan")), K(float("nan"))})

    return f, []


@case
def eq_replaced_on_base():
    class B:
        def __init__(s, a):
            s.a = a

        def __eq__(s, o):
            return s.a == o.a

        def __hash__(s):
            return 7

    class C(B):
        pass

    d = {C(1): 2.0, C(2): 3.0}

    def f(x):
        return x * d.get(C(1), 9.0), C(3) in d

    def s1():
        C.__eq__ = lambda s, o: s.a == o.a + 1
        C.__hash__ = lambda s: 7

    return f, [s1, lambda: setattr(C, "__hash__", lambda s: 8), lambda: (delattr(C, "__eq__"), delattr(C, "__hash__"))]


@case
def global_in_eq():
    class C:
        def __init__(s, a):
            s.a = a

        def __eq__(s, o):
            return isinstance(o, C) and abs(s.a - o.a) < TOL

        def __hash__(s):
            return 7

    set_tol(0.1)
    d = {C(1): 2.0}

    def f(x):
        return x * d.get(C(1.4), 9.0)

    return f, [lambda: set_tol(2.0)]


@case
def closure_class_in_eq():
    def make():
        class Other:
            pass

        class C:
            def __init__(s, a):
                s.a = a

            def __eq__(s, o):
                return isinstance(o, Other) or s.a == o.a

            def __hash__(s):
                return hash(s.a)

        def rebind():
            nonlocal Other
            Other = C

        return C, rebind

    C, rebind = make()
    d = {C(1): 2.0}

    def f(x):
        return x * d.get(C(1), 9.0), C(2) in d

    return f, [rebind]


@case
def key_in_user_dict_mutated():
    class C:
        def __init__(s, a):
            s.a = a

        def __eq__(s, o):
            return s.a == o.a

        def __hash__(s):
            return 7

    k = C(1)
    d = {k: 2.0, C(5): 3.0}

    def f(x):
        return x * d.get(C(1), 9.0) + d.get(C(2), 4.0), [q.a for q in d]

    return f, [lambda: setattr(k, "a", 2), lambda: setattr(k, "a", 5), lambda: setattr(k, "a", 1)]


@case
def user_dict_of_subclass():
    class D(dict):
        def __getitem__(s, k):
            return dict.__getitem__(s, k) * 2

        def __contains__(s, k):
            return True

    d = D({K(1): 2.0})

    def f(x):
        return x * d[K(1)], K(2) in d, d.get(K(2)), len(d)

    return f, [lambda: d.update({K(2): 1.0}), lambda: setattr(D, "__getitem__", dict.__getitem__)]


@case
def two_dicts_same():
    d = {K(1): 2.0}
    st = [d, d]

    def f(x):
        st[0][K(1)] = st[0][K(1)] + 1
        return x * st[1][K(1)]

    return f, [lambda: st.__setitem__(1, dict(d)), lambda: st.__setitem__(1, d)]


@case
def np_user_errstate():
    a = np.array([1.0, 0.0])

    def f(x):
        with np.errstate(divide="ignore"):
            return x * float(np.where(a > 0, 1 / a, 0.0).sum())

    return f, [lambda: a.__setitem__(1, 2.0)]


@case
def np_alias_list():
    a = np.arange(3.0)
    st = [a, a]

    def f(x):
        m = st[0].mean()
        return x * m + st[1].sum(), st[0] is st[1]

    return f, [lambda: st.__setitem__(1, a.copy()), lambda: a.__setitem__(0, 9.0)]


@case
def np_slices_vary():
    a = np.arange(10.0)
    st = [0]

    def f(x):
        st[0] += 1
        return x * a[: st[0]].sum() + a[st[0] :].mean()

    return f, [lambda: None] * 3


@case
def np_returned_then_changed():
    a = np.arange(3.0)
    kept = []

    def f(x):
        b = a + 1
        kept.append(b)
        return x * b.sum(), b

    def ch():
        kept[-1][0] = 100.0

    return f, [ch, lambda: a.__setitem__(0, 5.0)]


@case
def np_float_int_lists():
    h = [1, 2]

    def f(x):
        return x * np.mean(h), np.sum(h), np.max([1, 2.5]), np.prod(x.shape)

    return f, [lambda: h.append(3), lambda: h.append(2.5), lambda: h.append(1.5)]


@case
def list_mean_aliased():
    h = [1.0, 2.0]
    o = {"a": h, "b": h}

    def f(x):
        o["a"].append(5.0)
        return x * np.mean(o["b"]), len(h)

    return f, [lambda: o.__setitem__("b", [1.0]), lambda: o.__setitem__("b", h)]


@case
def function_attr_deleted_inside():
    def g():
        pass

    g.n = 1.0

    def f(x):
        y = x * g.n
        try:
            del g.n
        except AttributeError:
            pass
        g.n = 2.0
        return y, g.n

    return f, [lambda: setattr(g, "n", 7.0)]


@case
def method_attr():
    class M:
        def step(s, x):
            M.step.calls = getattr(M.step, "calls", 0) + 1
            return x * M.step.calls

    m = M()

    def f(x):
        return m.step(x), M.step.calls, m.step.calls

    return f, [lambda: setattr(M.step, "calls", 9), lambda: setattr(M, "step", lambda s, x: x)]


@case
def lock_replaced_by_other_type():
    class Fake:
        def __enter__(s):
            return s

        def __exit__(s, *a):
            return False

        def acquire(s):
            return True

        def release(s):
            pass

    st = [threading.Lock()]

    def f(x):
        with st[0]:
            x = x * 2
        st[0].acquire()
        x = x + 1
        st[0].release()
        return x

    return f, [lambda: st.__setitem__(0, Fake()), lambda: st.__setitem__(0, threading.RLock())]


@case
def as_value_of_with():
    lock = threading.Lock()
    r = threading.RLock()

    def f(x):
        with lock as a, r as b:
            x = x * 2
        return x, a, b

    return f, []


@case
def memory_of_bytes_and_numpy():
    b = bytearray(8)
    a = np.frombuffer(b, dtype=np.uint8)

    def f(x):
        return x * b[0] + a[0] + int(a.sum()), len(b)

    return f, [lambda: b.__setitem__(0, 5), lambda: a.__setitem__(1, 3)]


@case
def np_shape_change_other():
    st = [np.arange(4.0)]

    def f(x):
        a = st[0]
        b = a * 2
        return x * b.sum(), b, a.std(ddof=1), b.shape, torch.from_numpy(a + 1).sum(), a.reshape(-1, 1).shape, np.sort(a)[0]

    return f, [
        lambda: st.__setitem__(0, np.arange(6.0)),
        lambda: st.__setitem__(0, np.arange(4.0).reshape(2, 2)),
        lambda: st.__setitem__(0, np.zeros(1)),
        lambda: st.__setitem__(0, np.zeros((2, 0))),
        lambda: st.__setitem__(0, np.array(3.0)),
    ]


@case
def np_broadcast_fails():
    st = [np.arange(4.0), np.arange(4.0)]

    def f(x):
        return x * (st[0] * st[1]).sum()

    return f, [lambda: st.__setitem__(0, np.arange(3.0)), lambda: st.__setitem__(1, np.arange(3.0))]


@pytest.mark.parametrize("name", cases(__name__))
def test_as_eager(name):
    agrees(__name__, name)
