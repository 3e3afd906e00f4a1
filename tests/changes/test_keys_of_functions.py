"""Dictionaries keyed by functions, changed between calls."""

import collections

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_map

from case_registry import case, cases, x0
from changes.programs import agrees

P = collections.namedtuple("P", "a b")


@case
def fl():
    d = {"x": [torch.ones(2), P(torch.ones(1), (torch.ones(3),))]}

    def f(x):
        l, s = tree_flatten(d)
        return len(l), x * 2

    return f, []


@case
def tm():
    d = {"x": [torch.ones(2), (torch.ones(1), (torch.ones(3),))]}

    def f(x):
        return tree_map(lambda t: t + 1, d), x * 2

    return f, []


@case
def handled_functions():
    H = {}

    def implements(f):
        def d(g):
            H[f] = g
            return g

        return d

    @implements(torch.add)
    def my_add(a, b):
        return a * b

    def helper(x):
        return x

    H[helper] = lambda x: x + 1
    st = [torch.add, helper]

    def f(x):
        y = H[st[0]](x, x) if st[0] in H else st[0](x, x)
        return H[helper](y), torch.mul in H, len(H), H.get(torch.sub), [k is st[1] for k in H]

    return f, [
        lambda: H.__setitem__(torch.sub, 1),
        lambda: st.__setitem__(0, torch.sub),
        lambda: H.pop(torch.sub),
        lambda: H.__setitem__(helper, torch.sin),
    ]


@case
def functions_made_anew():
    H = {}

    def f(x):
        def g(x):
            return x * 2

        H[g] = 1
        return x, len(H), list(H.values())

    return f, [H.clear]


@case
def arguments_as_keys():
    H = {torch.sin: 2.0}

    def make():
        def g(x):
            return x

        return g

    fs = iter([torch.sin, torch.cos, make(), make(), torch.sin] * 8)

    def f(x, g):
        return x * H.get(g, 5.0), g in H

    return f, [lambda: H.__setitem__(torch.cos, 3.0)], lambda: (x0(), next(fs))


@pytest.mark.parametrize("name", cases(__name__))
def test_as_eager(name):
    agrees(__name__, name)
