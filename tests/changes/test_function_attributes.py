"""Attributes that the program gives to functions, changed between calls."""

import enum
import functools

import pytest

from case_registry import case, cases
from changes.programs import agrees


def counted(fn):
    @functools.wraps(fn)
    def w(*a, **k):
        w.calls += 1
        w.last = a[0] * 2
        return fn(*a, **k) * 2

    w.calls = 0
    return w


@case
def counting_wrapper():
    @counted
    def g(x):
        return x + 1

    def f(x):
        return g(x), g.calls, g.last, g(x), g.calls, g.__name__, g.__wrapped__(x), hasattr(g, "other")

    return f, [
        lambda: setattr(g, "calls", 10),
        lambda: setattr(g, "calls", 1.5),
        lambda: delattr(g, "last"),
        lambda: setattr(g, "other", 1),
    ]


@case
def static_counter():
    def f(x):
        if not hasattr(f0, "n"):
            f0.n = 0
        f0.n += 1
        return x * f0.n

    def f0():
        pass

    return f, [lambda: delattr(f0, "n"), lambda: setattr(f0, "n", 7)]


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

    return f, [lambda: st.__setitem__(1, a), lambda: st.__setitem__(0, b)]


@case
def function_dict():
    def a():
        pass

    def f(x):
        a.k = 3.0
        return x * a.__dict__["k"], sorted(vars(a))

    return f, []


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

    return f, [
        lambda: st.__setitem__(0, Fl.C),
        lambda: n.__setitem__(0, 6),
        lambda: n.__setitem__(0, 7),
        lambda: st.__setitem__(0, Fl.A),
    ]


@case
def deleted():
    def g(x):
        return x + 1

    g.scale = 2.0

    def f(x):
        had = hasattr(g, "scale"), getattr(g, "last", None)
        if had[0]:
            x = x * g.scale
            del g.scale
        g.last, g.tag = 1, "t"
        del g.tag
        try:
            del g.tag
        except AttributeError as error:
            said = str(error)
        g.kept = x * 2
        return g(x), had, hasattr(g, "scale"), hasattr(g, "tag"), said, getattr(g, "tag", 5)

    return f, [
        lambda: setattr(g, "scale", 3.0),
        lambda: setattr(g, "tag", 1),
        lambda: delattr(g, "last"),
        lambda: [*vars(g)],
    ]


@case
def deleted_and_set_again():
    def g(x):
        return x + 1

    g.a, g.b = 1, 2

    def f(x):
        a = g.a
        del g.a
        g.a = a + 1
        x = x * g.a
        del g.b
        g.b = a
        return g(x), g.a, g.b

    return f, [lambda: setattr(g, "a", 2.5), lambda: print([*vars(g)]), lambda: delattr(g, "b"), lambda: setattr(g, "b", 1)]


@case
def deleted_of_what_is_made_inside():
    def f(x):
        def g(y):
            return y * 2

        g.a = 3
        del g.a
        try:
            del g.a
        except AttributeError as error:
            return g(x), str(error), g.__dict__

    return f, []


@pytest.mark.parametrize("name", cases(__name__))
def test_as_eager(name):
    agrees(__name__, name)
