"""Groups of exceptions, and tensors made inside that begin to require gradients."""

import pytest
import torch

from case_registry import case, cases
from one_graph.programs import agrees, x_and


@case
def eg_simple():
    def f(x, k):
        try:
            if k:
                raise ExceptionGroup("g", [ValueError("a"), TypeError("b")])
        except* ValueError as e:
            x = x + len(e.exceptions)
        except* TypeError:
            x = x * 3
        return x

    return f, x_and(0), x_and(1)


@case
def eg_naked():
    def f(x):
        try:
            raise ValueError("a")
        except* ValueError as e:
            x = x + len(e.exceptions)
        return x

    return (f,)


@case
def eg_rest():
    def f(x):
        try:
            try:
                raise ExceptionGroup("g", [ValueError("a"), TypeError("b")])
            except* ValueError:
                x = x + 1
        except ExceptionGroup as g:
            x = x * len(g.exceptions)
        return x

    return (f,)


@case
def eg_none():
    def f(x):
        try:
            try:
                raise ExceptionGroup("g", [ValueError("a"), TypeError("b")])
            except* KeyError:
                x = x + 1
        except ExceptionGroup as g:
            x = x * len(g.exceptions)
        return x

    return (f,)


@case
def eg_nested():
    def f(x):
        try:
            raise ExceptionGroup("g", [ValueError("a"), ExceptionGroup("h", [KeyError("k"), OSError("o")])])
        except* (KeyError, ValueError) as e:
            x = x + len(e.exceptions)
        except* OSError as e:
            x = x * 2
        return x

    return (f,)


@case
def rg_detach():
    def f(x):
        y = x.detach().requires_grad_()
        (g,) = torch.autograd.grad((y * y).sum(), y)
        return g

    return (f,)


@case
def rg_attr():
    def f(x):
        y = x.clone()
        y.requires_grad = True
        z = (y**3).sum()
        z.backward()
        return y.grad

    return (f,)


@case
def rg_new():
    def f(x):
        w = torch.ones(2, 2, requires_grad=True)
        loss = (x * w).sum()
        loss.backward()
        return w.grad + x

    return (f,)


@case
def rg_returned():
    def f(x):
        y = (x * 2).detach().requires_grad_(True)
        return y

    return (f,)


@case
def rg_penalty():
    def f(x):
        alpha = torch.full((2, 1), 0.25)
        mixed = (alpha * x + (1 - alpha) * x.flip(0)).requires_grad_(True)
        out = (mixed**2).sum()
        g = torch.autograd.grad(out, mixed, create_graph=False)[0]
        return ((g.norm(2, dim=1) - 1) ** 2).mean()

    return (f,)


@case
def rg_enable():
    def f(x):
        with torch.no_grad():
            with torch.enable_grad():
                y = x.detach().requires_grad_()
                loss = y.sin().sum()
            (g,) = torch.autograd.grad(loss, y)
        return g

    return (f,)


@case
def rg_isleaf():
    def f(x):
        y = x.clone().requires_grad_()
        return x * (2 if y.is_leaf and y.requires_grad else 3)

    return (f,)


@pytest.mark.parametrize("name", cases(__name__))
def test_one_graph(name):
    agrees(__name__, name)
