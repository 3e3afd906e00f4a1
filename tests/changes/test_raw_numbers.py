"""Bytes, arrays of Python's own and templates of texts from outside, changed between calls."""

import array
import re
import string

import pytest
import torch

from case_registry import case, cases
from changes.programs import agrees


@case
def bytes_from_outside():
    b = bytearray(b"abc")
    st = [1]

    def f(x):
        return x * b[1] + len(b) + b[st[0]], list(b), sum(b), b[-1], max(b)

    return f, [lambda: b.append(3), lambda: b.__setitem__(1, 5), lambda: st.__setitem__(0, 2), lambda: st.__setitem__(0, 9)]


@case
def arrays_from_outside():
    a = array.array("f", [1.0, 2.0])
    q = array.array("q", [1, 2])

    def f(x):
        for v in a:
            x = x * v
        return x * a[1] + len(a) + q[0], sum(a), list(q), [u * 2 for u in q]

    return f, [lambda: a.__setitem__(1, 4.0), lambda: a.append(0.5), lambda: q.__setitem__(0, 9)]


@case
def views_of_bytes():
    b = bytearray(b"abcd")
    m = memoryview(b)
    two = memoryview(b).cast("B", (2, 2))

    def f(x):
        return x * m[1] + len(m), list(m), two[0, 1]

    return f, [lambda: b.__setitem__(1, 5)]


@case
def bytes_in_memory_of_a_tensor():
    b = bytearray(b"abcd")
    t = torch.frombuffer(b, dtype=torch.uint8)

    def f(x):
        k = b[0]
        t.add_(1)
        return x * k, b[0], t

    return f, [lambda: b.__setitem__(0, 5)]


@case
def changed_bytes():
    b = bytearray(b"abcd")

    def f(x):
        b[0] = b[0] + 1
        b.append(3)
        return x * b[0], len(b), bytes(b)

    return f, []


@case
def templates():
    t = string.Template("layer_$n")
    d = {"layer_1": 2.0}
    kw = {"n": 1}

    def f(x):
        return x * d[t.substitute(n=1)], t.safe_substitute(m=3), t.substitute(kw), t.template

    return f, [lambda: kw.update(n=2), lambda: setattr(t, "template", "l_$n"), lambda: kw.clear()]


@case
def released_memory():
    kept = [memoryview(b"xyz")]

    def f(x):
        return x * kept[0][1], len(kept[0]), kept[0].tolist()

    return f, [lambda: kept[0].release(), lambda: kept.__setitem__(0, memoryview(b"ab"))]


@case
def pattern_of_templates():
    t = string.Template("$a-$b")
    own = string.Template.pattern
    other = re.compile(r"(?P<escaped>z)|(?P<named>b)|(?P<braced>c)|(?P<invalid>q)")

    def f(x):
        return x + 1, t.safe_substitute(a=1, b=2)

    return f, [
        lambda: setattr(string.Template, "pattern", other),
        lambda: setattr(string.Template, "pattern", own),
        lambda: setattr(t, "pattern", other),
        lambda: delattr(t, "pattern"),
    ]


@pytest.mark.parametrize("name", cases(__name__))
def test_as_eager(name):
    agrees(__name__, name)
