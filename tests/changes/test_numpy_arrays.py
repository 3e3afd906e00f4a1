"""Arithmetic and methods of NumPy arrays and of lists of numbers from outside, changed between calls."""

import collections
import types
import warnings

import numpy as np
import pytest
import torch

import quickfuse
from case_registry import case, cases
from changes.programs import agrees


@case
def divide_by_zero():
    a = np.array([1.0, 2.0])
    b = np.array([1.0, 2.0])

    def f(x):
        return x * float((a / b).sum())

    return f, [lambda: b.__setitem__(0, 0.0), lambda: b.__setitem__(0, 4.0)]


@case
def shapes_change():
    st = [np.array([1.0, 2.0])]

    def f(x):
        return x * st[0].mean() + st[0].std() * len(st[0])

    return f, [
        lambda: st.__setitem__(0, np.arange(3.0)),
        lambda: st.__setitem__(0, np.array([])),
        lambda: st.__setitem__(0, np.arange(3)),
        lambda: st.__setitem__(0, np.float32([1, 2])),
    ]


@case
def deques_of_numbers():
    kept = types.SimpleNamespace(losses=collections.deque([1.0, 2.5], maxlen=4), counts=collections.deque([1, 2]))

    def f(x):
        a = np.mean(kept.losses), np.median(kept.losses), np.array(kept.losses), np.std(kept.counts)
        return x * np.max(kept.losses), a, np.prod(x.shape, dtype=int), np.sum(kept.counts, dtype=np.float32)

    return f, [
        lambda: kept.losses.append(4.0),
        lambda: kept.losses.append(0.5),
        lambda: kept.losses.append(7.0),
        lambda: kept.counts.append(3),
        lambda: kept.losses.__setitem__(0, 3),
        lambda: kept.losses.__setitem__(0, "a"),
        lambda: setattr(kept, "losses", [2.0]),
        lambda: setattr(kept, "losses", collections.deque()),
        lambda: setattr(kept, "losses", collections.deque([1.0], maxlen=1)),
    ]


@case
def returned_arrays():
    a = np.arange(4.0)

    def f(x):
        b = a * 2
        c = a.reshape(2, 2)
        d = a.T
        return x + 1, b, c, d, a, np.concatenate([a, a]) if False else np.sort(a), a.astype("int64"), a.tolist(), a.copy()

    return f, [lambda: a.__setitem__(0, 5.0)]


@case
def view_returned_and_changed():
    a = np.arange(4.0)

    def f(x):
        c = a.reshape(2, 2)
        return x, c

    def change():
        f(None)[1][0, 0] += 1

    return f, [change, lambda: a.__setitem__(3, 9.0)]


@case
def tensor_shares_written():
    a = np.arange(4.0)

    def f(x):
        t = torch.from_numpy(a)
        t.add_(1)
        return x * float(a.sum()), t

    return f, [lambda: a.__setitem__(3, 9.0)]


@case
def view_tensor_written():
    a = np.arange(4.0)

    def f(x):
        t = torch.from_numpy(a.reshape(2, 2))
        t.add_(1)
        return x + t, a[0] * 2, a.max()

    return f, [lambda: a.__setitem__(3, 9.0)]


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

    return f, [
        lambda: a.__setitem__(2, 9.0),
        lambda: k.__setitem__(0, 3),
        lambda: m.__setitem__(1, True),
        lambda: a.__setitem__(slice(None), 0),
    ]


@case
def branch_on_array():
    a = np.arange(4.0)

    def f(x):
        if a.max() > 5:
            return x * 2
        if (a == 3).all():
            return x * 4
        return x * 3

    return f, [lambda: a.__setitem__(2, 9.0), lambda: a.__setitem__(slice(None), 3), lambda: a.__setitem__(0, 1)]


@case
def with_numbers():
    a = np.arange(4.0)
    st = [2, 0.5]

    def f(x):
        return x * (a * st[0] + st[1]).sum() - np.dot(a, a) + np.linalg.norm(a), (st[0] - a).min(), a**2 @ a, -a, abs(a)

    return f, [lambda: st.__setitem__(0, 3), lambda: st.__setitem__(1, 0.7), lambda: st.__setitem__(0, 1.5)]


@case
def means_of_lists():
    h = [1.0, 2.0]
    st = [0.5]

    def f(x, n=[0.0]):
        n[0] += 1
        h.append(n[0])
        m = np.mean(h)
        l = [st[0], n[0]]
        return x * m, np.max(l), np.std(h), np.median(h[-2:]), np.array(l), sum(h)

    return f, [
        h.pop,
        lambda: h.__setitem__(0, 7.0),
        lambda: st.__setitem__(0, 9.0),
        lambda: h.__setitem__(0, 8.0),
        lambda: h.__setitem__(0, 9.0),
        lambda: h.append(torch.tensor(1.0)),
        h.clear,
    ]


@case
def ints_and_shapes():
    o = np.array([2, 2])

    def f(x):
        return x.repeat(o[0], o[1]), x.reshape(*o), tuple(o), x.reshape(np.prod(o)), torch.zeros(o.sum()), range(o[0])

    return f, [lambda: o.__setitem__(1, 1)]


@case
def dtype_kept():
    a = np.float32([1, 2])
    b = np.int32([3, 4])

    def f(x):
        return (
            x * a.sum() + b.sum(),
            a.sum(),
            b.sum(),
            a * b,
            (a * 2).dtype == np.float32,
            a.mean(dtype=np.float64),
            b.sum(keepdims=True),
            a.sum(axis=0),
        )

    return f, [lambda: a.__setitem__(0, 3)]


@case
def set_item_then():
    a = np.zeros(3)

    def f(x):
        a[0] += 1
        return x * a.sum()

    return f, []


@case
def nan_warn():
    a = np.array([1.0, 2.0])

    def f(x):
        return x * np.sqrt(a).sum() + np.log(a).mean()

    return f, [lambda: a.__setitem__(0, -1.0), lambda: a.__setitem__(0, 3.0)]


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

    return f, [
        lambda: o.w.__setitem__(1, 7),
        lambda: setattr(o, "w", np.ones(4)),
        lambda: setattr(o, "i", 0),
        lambda: setattr(o, "i", 2),
    ]


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

    return f, [lambda: o.__setitem__((0, 1), 7)]


@case
def np_mean_history():
    h = [1.0, 2.0, 3.0]

    def f(x):
        h.append(h[-1] * 0.5)
        return x * float(np.mean(h)), np.std(h[-3:]), np.max(h), np.array(h)

    return f, [h.pop]


@case
def np_mean_only():
    h = [1.0, 2.0, 3.0]

    def f(x):
        return x * np.mean(h)

    return f, [
        h.pop,
        lambda: h.append(9.0),
        lambda: h.__setitem__(0, 7.0),
        lambda: h.__setitem__(0, 8.0),
        lambda: h.__setitem__(0, 9.0),
        lambda: h.__setitem__(0, 10.0),
    ]


@case
def np_arith():
    o = np.arange(6.0).reshape(2, 3)
    w = np.array([1.0, 2, 3])

    def f(x):
        n = float((o * w).sum())
        m = o.mean()
        return x * n + m + np.dot(w, w) + w @ w + o.max()

    return f, [lambda: o.__setitem__((0, 1), 7)]


@case
def np_iter():
    o = np.arange(3.0)

    def f(x):
        for v in o:
            x = x * v + 1
        for i, v in enumerate(o):
            x = x + i * v
        return x, list(o), o.tolist()

    return f, [lambda: o.__setitem__(1, 7)]


@case
def np_mean_append():
    h = [1.0, 2.0, 3.0]

    def f(x):
        y = x * 2
        h.append(float(len(h)))
        m = np.mean(h[-5:])
        return y + m

    return f, [h.pop]


def test_warnings_come_once_and_from_the_program():
    gaps = np.array([1.0, np.nan])
    flat = np.arange(2.0 if np.lib.NumpyVersion(np.__version__) < "2.5.0" else 3.0)  # later an error
    numbers = [1.0, 2.0]

    def f(x):
        return x * np.nanmean(gaps), np.cross(flat, flat), np.mean(numbers)

    found = []
    for function in (f, quickfuse.compile(f, backend="eager")):
        gaps[:], numbers[:] = (1.0, np.nan), [1.0, 2.0]
        said = []
        for change in (lambda: None, lambda: gaps.fill(np.nan), numbers.clear, lambda: numbers.append(1.0)):
            change()
            for _ in range(3):
                with warnings.catch_warnings(record=True) as seen:
                    warnings.simplefilter("always")
                    function(torch.ones(2))
                said.append([(str(w.message), w.filename) for w in seen])
        found.append(said)
    assert found[0] == found[1] and any(found[0])


@pytest.mark.parametrize("name", cases(__name__))
def test_as_eager(name):
    agrees(__name__, name)
