"""Arrays that NumPy makes of constants, inside of what is compiled."""

import numpy as np
import pytest
import torch

import quickfuse
from case_registry import case, cases
from differential import check
from one_graph.programs import agrees


@case
def made_into_tensors():
    def f(x):
        x = x + torch.from_numpy(np.arange(4))
        x = x @ torch.tensor(np.eye(4), dtype=torch.float32) + torch.as_tensor(np.linspace(0, 1, 4), dtype=x.dtype)
        return x * torch.from_numpy(np.array([1.0, 2.0, 3.0, 4.0])).to(x) + torch.from_numpy(np.zeros(4, np.float32))

    return (f,)


@case
def computed_before():
    def f(x):
        betas = np.linspace(1e-4, 0.02, 4)
        kept = np.cumprod(1 - betas)
        return x * torch.tensor(np.sqrt(kept), dtype=torch.float32) + torch.tensor(np.hanning(4).astype(np.float32))

    return (f,)


@case
def read():
    def f(x):
        a = np.arange(3.0)
        for value in np.linspace(0, 1, 4):
            x = x + value
        return x * a[1] + sum(a), isinstance(a, np.ndarray), type(a).__name__, a.shape, a.size, len(a), a.tolist()

    return (f,)


@case
def scalars():
    def f(x):
        return x * np.float64(1.5) + np.float32(0.5) + np.int64(2) / np.sqrt(2), np.float64(2) * 3

    return (f,)


@case
def new_tensors():
    class Offsets:
        offsets = np.array((0, 3, 7, 9), dtype=np.int64)

    def f(x, offsets):
        k = torch.arange(4) + torch.arange(4).new_tensor(offsets.offsets)
        return x + x.new_tensor(np.arange(4) * 1.5), k, k.new_tensor(np.array([0.5, 1.5]))

    return (f, lambda: (torch.ones(3, 4), Offsets()))


@case
def of_other_arrays():
    def f(x):
        sobel = np.outer([1, 2, 1], [-1, 0, 1]) / 8.0
        turned = np.cos(0.3) * sobel - np.sin(0.3) * sobel.T
        mask = torch.from_numpy(np.triu(np.ones((1, 4, 4)), k=1).astype("uint8")) == 0
        both = np.stack([sobel, np.concatenate((turned[:2], np.zeros((1, 3))))])
        return x.view(1, 4, 4) * mask, torch.tensor(both), both.sum(), both.max(axis=0).tolist(), turned.shape

    return (f, lambda: (torch.ones(4, 4),))


@case
def other_views():
    def f(x):
        for k in np.delete(np.arange(3), 1):
            x = x + k * x[:, k : k + 1]
        for low, high in zip(np.cumsum([0, 2]), np.cumsum([2, 2]), strict=True):
            x = x + x[:, low:high].sum()
        order = np.argsort([3, 1, 2, 0])
        for row in np.eye(4)[1:3]:
            x = x * torch.tensor(row)
        sizes = [part.size for part in np.split(order, 2)]
        return x[:, order], x[order[:2]], int(np.argmax([1, 3, 2])), (order > 1).any(), sizes

    return (f,)


@case
def transposed():
    def f(x):
        a = np.arange(12.0).reshape(3, 4)
        t = torch.from_numpy(a.T)
        return x + t.t(), t.stride()

    return (f,)


@pytest.mark.parametrize("name", cases(__name__))
def test_one_graph(name):
    agrees(__name__, name)


def changed_after(x):
    a = np.arange(4.0)
    t = torch.from_numpy(a)
    t.add_(1)
    return x + t, float(a.sum())


def changed_before(x):
    a = b = np.arange(4.0)
    a[0] = 5
    a += 1
    return x + torch.from_numpy(b)


def two_tensors_of_one(x):
    a = np.arange(4.0)
    t, u = torch.from_numpy(a), torch.from_numpy(a)
    t.add_(1)
    return x + u


def two_views_of_one(x):
    a = np.zeros((2, 4))
    t = torch.from_numpy(a[0])
    t.add_(1)
    return x + torch.from_numpy(a[1:]) + torch.tensor(a).sum()


def written_to(x):
    a, b = np.arange(4.0), np.zeros(4)
    np.cumsum(a, 0, None, b)
    np.sqrt(a, b)
    np.clip(a, 0, 1, out=a)
    return x + torch.tensor(a) + torch.tensor(b)


def turned_around(x):
    return x + torch.from_numpy(np.flip(np.arange(4.0))).sum()


def in_gaps(x):
    t = torch.from_numpy(np.arange(12.0).reshape(4, 3)[:, 1])
    return x + t, t.stride()


def divides_by_zero(x):
    with np.errstate(divide="ignore", invalid="ignore"):
        return x + torch.from_numpy(np.arange(4) // 0) + torch.from_numpy(np.arange(4.0) / 0)


def of_numbers_from_tensors(x):
    return x * int(np.argmax([x.sum().item(), 1.0, 0.5]))


def itself(x):
    a = np.arange(4.0)
    return x + a[1], np.asarray(a) is a, a.astype(np.float64, copy=False) is a, a.reshape(4) is a


def outlives_the_graph(x):
    a = np.ones(4)
    print(end="")
    return x + torch.tensor(a), a.tolist(), [np.arange(2)][0].sum().item()


def warns(x):
    with np.errstate(divide="ignore"):
        return x + torch.tensor(np.log(np.arange(4.0)))


def refused(x):
    return x + torch.from_numpy(np.eye("a"))


LEFT_TO_PYTHON = [
    changed_after, changed_before, two_tensors_of_one, two_views_of_one, written_to, turned_around, in_gaps, divides_by_zero,
    of_numbers_from_tensors, itself, outlives_the_graph, warns, refused,
]  # fmt: skip


@pytest.mark.parametrize("function", LEFT_TO_PYTHON)
def test_left_to_python(function):
    quickfuse.reset()
    check(function, *[(torch.randn(3, 4),) for _ in range(3)])


def test_numbers_that_change():
    def f(x, n):
        return x + torch.tensor(np.linspace(0, n, 4)) + torch.from_numpy(np.array([n, 1, 2, 3]))

    check(f, *[(torch.randn(3, 4), n + 0.5) for n in range(6)])
