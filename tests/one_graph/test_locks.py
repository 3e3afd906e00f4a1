"""Locks around tensor code, in one graph."""

import threading

import pytest
import torch

from case_registry import case, cases
from one_graph.programs import agrees


@case
def acquire_and_release():
    lock = threading.Lock()

    def f(x):
        y = x * 2
        lock.acquire()
        try:
            y = y + 1
        finally:
            lock.release()
        return y * 3

    return (f,)


@case
def two_locks():
    a, b = threading.Lock(), threading.Lock()
    st = [a, b]

    def f(x):
        with st[0]:
            x = x * 2
        with st[1]:
            with st[0]:
                x = x + 1
        with st[0]:
            x = x * 2
        return x

    return (f,)


@case
def gradients_while_held():
    lock = threading.Lock()
    w = torch.ones(2, requires_grad=True)

    def f(x):
        with lock:
            l = (x * w).sum()
            l.backward()
            with torch.no_grad():
                w.sub_(0.1 * w.grad)
                w.grad = None
        return l.detach(), w.detach().clone()

    return (f,)


@pytest.mark.parametrize("name", cases(__name__))
def test_one_graph(name):
    agrees(__name__, name)
