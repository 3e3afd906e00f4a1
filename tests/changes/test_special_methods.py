"""Special methods are replaced, added and deleted."""

import contextlib
import copy
import types

import pytest

from case_registry import case, cases
from changes.programs import agrees


@case
def special_on_class():
    class A:
        def __add__(self, o):
            return 2

    a = A()
    return (lambda x: x * (a + 1)), [
        lambda: setattr(A, "__add__", lambda s, o: 3),
        lambda: delattr(A, "__add__"),
        lambda: setattr(A, "__radd__", lambda s, o: 3),
    ]


@case
def radd_sub_priority():
    class A:
        def __add__(self, o):
            return 2

    class B(A):
        pass

    a, b = A(), B()
    return (lambda x: x * (a + b)), [lambda: setattr(B, "__radd__", lambda s, o: 30)]


@case
def call_replaced():
    class A:
        def __call__(self, x):
            return x * 2

    a = A()
    return (lambda x: a(x)), [
        lambda: setattr(A, "__call__", lambda s, x: x * 5),
        lambda: setattr(a, "__call__", lambda x: x * 50),
    ]


@case
def enter_exit():
    class A:
        k = 2

        def __enter__(self):
            return self.k

        def __exit__(self, *a):
            return False

    a = A()

    def f(x):
        with a as k:
            return x * k

    return f, [
        lambda: setattr(A, "__enter__", lambda s: 5),
        lambda: setattr(a, "k", 7),
        lambda: setattr(A, "__exit__", lambda s, *a: True),
    ]


@case
def format_():
    class A:
        def __format__(self, s):
            return "ab"

        def __str__(self):
            return "abc"

    a = A()
    return (lambda x: x * len(f"{a}") + len(str(a))), [
        lambda: setattr(A, "__format__", lambda s, k: "abcd"),
        lambda: setattr(A, "__str__", lambda s: "abcdef"),
    ]


@case
def index_():
    class A:
        def __index__(self):
            return 1

    a = A()
    return (lambda x: x[a] + [1, 2, 3][a]), [lambda: setattr(A, "__index__", lambda s: 0)]


@case
def iter_state():
    class A:
        def __init__(self):
            self.l = [1, 2]

        def __iter__(self):
            return iter(self.l)

    a = A()

    def f(x):
        for k in a:
            x = x * k
        return x

    return f, [lambda: a.l.append(3), lambda: setattr(a, "l", (5,)), lambda: setattr(A, "__iter__", lambda s: iter([7]))]


@case
def getitem_proto():
    class A:
        def __getitem__(self, k):
            if k > 2:
                raise IndexError
            return k + 1

    a = A()

    def f(x):
        for k in a:
            x = x * k
        return x

    return f, [lambda: setattr(A, "__iter__", lambda s: iter([7]))]


@case
def contains_fallback():
    class A:
        def __iter__(self):
            return iter([1, 2])

    a = A()
    return (lambda x: x * 2 if 3 in a else x), [
        lambda: setattr(A, "__contains__", lambda s, k: True),
        lambda: delattr(A, "__contains__"),
        lambda: setattr(A, "__iter__", lambda s: iter([3])),
    ]


@case
def bool_len():
    class A:
        pass

    a = A()
    return (lambda x: x * 2 if a else x), [
        lambda: setattr(A, "__len__", lambda s: 0),
        lambda: setattr(A, "__bool__", lambda s: True),
    ]


@case
def hash_eq_dict():
    class A:
        def __init__(s, k):
            s.k = k

    a, b = A(1), A(1)
    d = {a: 5}
    return (lambda x: x * d.get(b, 1)), [
        lambda: (
            setattr(A, "__eq__", lambda s, o: s.k == o.k),
            setattr(A, "__hash__", lambda s: 1),
            d.clear(),
            d.update({a: 5}),
        )
    ]


@case
def lt_sorted():
    class A:
        def __init__(s, k):
            s.k = k

        def __lt__(s, o):
            return s.k < o.k

    l = [A(3), A(1)]
    return (lambda x: x * sorted(l)[0].k), [
        lambda: setattr(l[0], "k", 0.5),
        lambda: setattr(A, "__lt__", lambda s, o: s.k > o.k),
        lambda: l.append(A(7)),
    ]


@case
def hash_user():
    class H:
        def __init__(s, k):
            s.k = k

        def __hash__(s):
            return hash(s.k)

        def __eq__(s, o):
            return s.k == o.k

    a = H(1)
    d = {H(1): 5, H(2): 6}
    return (lambda x: x * d.get(a, 1)), [lambda: setattr(a, "k", 2), lambda: setattr(a, "k", 3)]


@case
def eq_user_in_list():
    class H:
        def __init__(s, k):
            s.k = k

        def __eq__(s, o):
            return s.k == o.k

    a = H(1)
    l = [H(3), H(2)]
    return (lambda x: x * 2 if a in l else x * 3), [
        lambda: setattr(a, "k", 2),
        lambda: setattr(l[0], "k", 9),
        lambda: l.pop(),
    ]


@case
def text_objs():
    class A:
        def __repr__(self):
            return f"A({self.k})"

    a = A()
    a.k = 1
    return (lambda x: (x, f"{a}", str(a), repr([1, a.k]), "%s %r" % (a.k, "z"), "{:>5}".format(a.k), f"{a!r:>9}")), [
        lambda: setattr(a, "k", 2),
        lambda: setattr(A, "__str__", lambda s: "S"),
        lambda: setattr(A, "__format__", lambda s, q: "F"),
        lambda: delattr(A, "__repr__") if False else None,
    ]


@case
def sorted_objs():
    class A:
        def __init__(s, k):
            s.k = k

        def __lt__(s, o):
            return s.k < o.k

    ns = types.SimpleNamespace(l=[A(3), A(1), A(2)])
    return (lambda x: (x, [a.k for a in sorted(ns.l)], [a.k for a in sorted(ns.l, reverse=True)])), [
        lambda: setattr(ns.l[0], "k", 0),
        lambda: ns.l.append(A(1.5)),
    ]


@case
def dict_missing_method():
    class D(dict):
        def __missing__(self, k):
            return 4

    d = D()
    return (lambda x: x * d["q"]), [
        lambda: d.update(q=7),
        lambda: d.clear(),
        lambda: setattr(D, "__missing__", lambda s, k: 44),
        lambda: delattr(D, "__missing__"),
    ]


@case
def reduce_ex():
    class A:
        def __init__(s, k):
            s.k = k

        def __copy__(s):
            return A(s.k * 2)

    a = A(3)
    return (lambda x: x * copy.copy(a).k), [lambda: setattr(a, "k", 5), lambda: delattr(A, "__copy__")]


@case
def copy_cfg():
    c = types.SimpleNamespace(a=1, l=[1, 2])

    def f(x):
        d = copy.deepcopy(c)
        d.a = d.a + 1
        d.l.append(3)
        return x * d.a + sum(d.l) + sum(c.l)

    return f, [lambda: setattr(c, "a", 7), lambda: c.l.append(9), lambda: setattr(c, "__deepcopy__", lambda m: c)]


@case
def context_manager_state():
    st = [1]

    @contextlib.contextmanager
    def cm():
        st[0] += 1
        try:
            yield st[0]
        finally:
            st[0] -= 1

    def f(x):
        with cm() as k:
            return x * k

    return f, [lambda: st.__setitem__(0, 5)]


@case
def exitstack():
    cbs = [lambda: None]

    def f(x):
        with contextlib.ExitStack() as s:
            for c in cbs:
                s.callback(c)
            y = x * len(cbs)
        return y

    n = []
    return f, [lambda: cbs.append(lambda: n.append(1)), lambda: cbs.clear()]


@case
def suppress():
    d = {}

    def f(x):
        with contextlib.suppress(KeyError):
            x = x * d["k"]
        return x

    return f, [lambda: d.update(k=2), lambda: d.clear()]


@case
def excinfo():
    class C:
        def __exit__(self, *a):
            return False

        def __enter__(self):
            return self

    def f(x):
        with contextlib.ExitStack() as s:
            s.enter_context(C())
            s.callback(lambda: print("cb"))
            x = x * 2
        return x

    def g(x):
        try:
            raise ValueError
        except ValueError:
            return f(x)

    return g, []


@pytest.mark.parametrize("name", cases(__name__))
def test_as_eager(name):
    agrees(__name__, name)
