"""Arithmetic and methods of NumPy arrays and of lists of numbers from outside, in one graph."""

import collections

import numpy as np
import pytest
import torch

from case_registry import case, cases
from one_graph.programs import agrees


@case
def returned_arrays():
    a = np.arange(4.0)

    def f(x):
        b = a * 2
        c = a.reshape(2, 2)
        d = a.T
        return x + 1, b, c, d, a, np.concatenate([a, a]) if False else np.sort(a), a.astype("int64"), a.tolist(), a.copy()

    return (f,)


@case
def mask_and_take():
    a = np.arange(4.0)
    k = np.array([2, 0])
    m = np.array([True, False, True, False])

    def f(x):
        return (
            x * a[k].sum() + a[m].max() + a[-1] + a[1:3].sum() + (a > 1).sum(),
            np.where(a > 1, a, 0.0),
            np.clip(a, 0, 2)[3],
            bool((a > 1).any()),
        )

    return (f,)


@case
def branch_on_array():
    a = np.arange(4.0)

    def f(x):
        if a.max() > 5:
            return x * 2
        if (a == 3).all():
            return x * 4
        return x * 3

    return (f,)


@case
def with_numbers():
    a = np.arange(4.0)
    st = [2, 0.5]

    def f(x):
        return x * (a * st[0] + st[1]).sum() - np.dot(a, a) + np.linalg.norm(a), (st[0] - a).min(), a**2 @ a, -a, abs(a)

    return (f,)


@case
def weights_of_an_object():
    class O:
        pass

    o = O()
    o.w = np.array([1.0, 2.0, 3.0])
    o.i = 1

    def f(x):
        total = 0.0
        for v in o.w:
            total = total + v * 2
        return x * o.w[o.i] + len(o.w) + o.w.shape[0] + o.w.ndim + o.w.size + total, (o.w / o.w.sum())[o.i]

    return (f,)


@case
def tensors_of_arithmetic():
    o = np.arange(4.0).reshape(2, 2)
    w = np.array([1.0, 2])

    def f(x):
        return (
            x + torch.from_numpy(o * w) + torch.tensor(o / 2) + torch.as_tensor(o[0]),
            torch.tensor(o.mean()),
            torch.from_numpy(o.T) * x,
        )

    return (f,)


@case
def np_mean_history():
    h = [1.0, 2.0, 3.0]

    def f(x):
        h.append(h[-1] * 0.5)
        return x * float(np.mean(h)), np.std(h[-3:]), np.max(h), np.array(h)

    return (f,)


@case
def numbers_of_a_deque():
    recent, totals = collections.deque([1.0, 2.0, 3.0], maxlen=3), collections.deque([4.0])

    def f(x):
        recent.append(recent[-1] * 0.5)
        mine = collections.deque([x.sum().item(), 1.0])
        return np.mean(recent) * x, np.std(totals), np.array(totals), np.mean(mine), np.prod(x.shape, dtype=int)

    return (f,)


@case
def np_mean_only():
    h = [1.0, 2.0, 3.0]

    def f(x):
        return x * np.mean(h)

    return (f,)


@case
def np_arith():
    o = np.arange(6.0).reshape(2, 3)
    w = np.array([1.0, 2, 3])

    def f(x):
        n = float((o * w).sum())
        m = o.mean()
        return x * n + m + np.dot(w, w) + w @ w + o.max()

    return (f,)


@case
def np_iter():
    o = np.arange(3.0)

    def f(x):
        for v in o:
            x = x * v + 1
        for i, v in enumerate(o):
            x = x + i * v
        return x, list(o), o.tolist()

    return (f,)


@pytest.mark.parametrize("name", cases(__name__))
def test_one_graph(name):
    agrees(__name__, name)
