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


def outlives_the_graph(x):
    a = np.ones(4)
    print(end="")
    return x + torch.tensor(a), a.tolist(), [np.arange(2)][0].sum().item()


def warns(x):
    with np.errstate(divide="ignore"):
        return x + torch.tensor(np.log(np.arange(4.0)))


def refused(x):
    return x + torch.from_numpy(np.eye("a"))


@pytest.mark.parametrize("function", [changed_after, changed_before, two_tensors_of_one, outlives_the_graph, warns, refused])
def test_left_to_python(function):
    quickfuse.reset()
    check(function, *[(torch.randn(3, 4),) for _ in range(3)])


def test_numbers_that_change():
    def f(x, n):
        return x + torch.tensor(np.linspace(0, n, 4)) + torch.from_numpy(np.array([n, 1, 2, 3]))

    check(f, *[(torch.randn(3, 4), n + 0.5) for n in range(6)])
