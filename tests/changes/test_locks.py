"""Locks that the program takes and releases, changed between calls."""

import signal
import threading

import pytest
import torch
from torch import nn

import quickfuse
from case_registry import case, cases, x0
from changes.programs import agrees


@case
def with_lock():
    lock = threading.Lock()

    def f(x):
        y = x * 2
        with lock:
            y = y + 1
        return y * 3, lock.locked()

    return f, [lambda: print(lock.locked())]


@case
def lock_of_an_object():
    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.lock = threading.RLock()
            s.n = 0
            s.kept = []

        def forward(s, x):
            y = x * 2
            with s.lock:
                s.n += 1
                s.kept.append(y)
                with s.lock:
                    y = y + s.n
            return y * 3, s.n, len(s.kept)

    m = M()
    return (lambda x: m(x)), [
        lambda: setattr(m, "lock", threading.Lock()) or setattr(m, "lock", threading.RLock()),
        lambda: m.lock.acquire() and m.lock.release(),
        lambda: setattr(m, "lock", None),
    ]


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

    return f, [lambda: print(lock.locked())]


@case
def break_while_held():
    lock = threading.Lock()
    r = threading.RLock()

    def f(x):
        with lock, r:
            y = x + 1
            k = int(y.sum() * 2)
            y = y * k
        return y * 3, lock.acquire(False) and not lock.release(), r._is_owned()

    return f, [lambda: print(lock.locked(), r._is_owned())]


@case
def raises_while_held():
    lock = threading.Lock()
    d = {"a": 1.0}

    def f(x):
        try:
            with lock:
                y = x * d["a"]
                if d["a"] > 1:
                    raise ValueError("no")
        except ValueError:
            y = x - 1
        with lock:
            y = y * d["b"]
        return y

    return f, [lambda: print(lock.locked()), lambda: d.update(a=2.0), lambda: d.update(b=3.0), lambda: print(lock.locked())]


@case
def operator_fails_while_held():
    lock = threading.Lock()
    kept = [torch.ones(2, 2)]

    def f(x, y):
        with lock:
            kept[0].add_(x)
            try:
                z = x @ y
            except RuntimeError:
                z = x
        return z + 1, lock.locked()

    it = iter([torch.ones(2, 2), torch.ones(2, 2), torch.ones(3, 2), torch.ones(3, 2)] * 9)
    return f, [lambda: print(lock.locked(), kept)] * 3, lambda: (x0(), next(it))


@case
def left_taken():
    lock = threading.Lock()

    def begin(x):
        lock.acquire()
        return x * 2

    def end(x):
        lock.release()
        return x * 3

    def f(x, n=[0]):
        n[0] += 1
        return (begin if n[0] % 2 else end)(x), lock.locked()

    return f, [lambda: print(lock.locked())] * 2


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

    return f, [lambda: st.reverse(), lambda: print(a.locked(), b.locked())]


@case
def released_without_taking():
    lock = threading.Lock()

    def f(x):
        y = x + 1
        try:
            lock.release()
        except RuntimeError as e:
            return y, str(e)
        return y

    return f, []


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

    return f, []


@case
def try_to_take():
    lock = threading.Lock()

    def f(x):
        if lock.acquire(blocking=False):
            x = x * 2
            lock.release()
        else:
            x = x - 1
        if lock.acquire(timeout=0.01):
            lock.release()
        return x

    return f, [lambda: lock.acquire(), lambda: lock.release()]


@case
def arguments_that_are_refused():
    lock = threading.Lock()

    def f(x):
        found = []
        for args in ((False, 1), (1, 2, 3), (True, -2), (True, 0.5), (False,)):
            try:
                found.append(lock.acquire(*args))
                lock.release()
            except (TypeError, ValueError) as error:
                found.append(str(error))
        return x * 2, found

    return f, []


def test_exceptions_of_signal_handlers_leave_no_lock_taken():
    """Whatever instruction they come between."""
    lock = threading.Lock()

    def program(x):
        with lock:
            y = x + 1
        return y

    class Late(Exception):
        pass

    def handler(number, frame):
        raise Late

    compiled = quickfuse.compile(program, backend="eager")
    x = torch.ones(2)
    for _ in range(3):
        compiled(x)
    before = signal.signal(signal.SIGALRM, handler)
    left = came = 0
    try:
        for k in range(400):
            try:
                signal.setitimer(signal.ITIMER_REAL, 5e-6 + k % 40 * 1e-6)
                for _ in range(1000):
                    compiled(x)
            except Late:
                came += 1
            if lock.locked():
                left += 1
                lock.release()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert came > 300 and not left


@pytest.mark.parametrize("name", cases(__name__))
def test_as_eager(name):
    agrees(__name__, name)
