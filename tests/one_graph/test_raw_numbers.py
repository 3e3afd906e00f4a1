"""Bytes, arrays of Python's own and templates of texts from outside, in one graph."""

import array
import string

import pytest

from case_registry import case, cases
from one_graph.programs import agrees


@case
def bytes_from_outside():
    b = bytearray(b"abc")
    st = [1]

    def f(x):
        return x * b[1] + len(b) + b[st[0]], list(b), sum(b), b[-1], max(b)

    return (f,)


@case
def arrays_from_outside():
    a = array.array("f", [1.0, 2.0])
    q = array.array("q", [1, 2])

    def f(x):
        for v in a:
            x = x * v
        return x * a[1] + len(a) + q[0], sum(a), list(q), [u * 2 for u in q]

    return (f,)


@case
def templates():
    t = string.Template("layer_$n")
    d = {"layer_1": 2.0}
    kw = {"n": 1}

    def f(x):
        return x * d[t.substitute(n=1)], t.safe_substitute(m=3), t.substitute(kw), t.template

    return (f,)


@pytest.mark.parametrize("name", cases(__name__))
def test_one_graph(name):
    agrees(__name__, name)
