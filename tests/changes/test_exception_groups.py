"""Groups of exceptions, with breaks and other exceptions in their handlers; tensors that begin to require gradients."""

import sys

import pytest

from case_registry import case, cases, x0
from changes.programs import agrees


@case
def eg_all():
    class E(Exception):
        pass

    def raising(k):
        if k == 0:
            return
        if k == 1:
            raise ValueError("a")
        if k == 2:
            raise ExceptionGroup("g", [ValueError("a"), TypeError("b"), ExceptionGroup("h", [ValueError("c"), E("d")])])
        if k == 3:
            raise ExceptionGroup("g", [E(1)])
        if k == 4:
            raise BaseExceptionGroup("g", [KeyboardInterrupt(), ValueError("z")])
        if k == 5:
            raise E("naked")
        if k == 6:
            raise ExceptionGroup("g", [])

    def f(x, k):
        log = []
        try:
            try:
                raising(k)
            except* ValueError as e:
                log.append(("v", type(e).__name__, e.message, [str(q) for q in e.exceptions]))
                x = x + 1
            except* (TypeError, KeyboardInterrupt) as e:
                log.append(("t", [type(q).__name__ for q in e.exceptions]))
                x = x * 2
            else:
                log.append("else")
            finally:
                log.append("fin")
        except BaseException as e:
            log.append((type(e).__name__, str(e), e.__context__ is None, [str(q) for q in getattr(e, "exceptions", ())]))
        return x, log

    it = iter(list(range(7)) * 3)
    return f, [lambda: None] * 4, lambda: (x0(), next(it))


@case
def eg_raise_inside():
    def f(x, k):
        try:
            try:
                raise ExceptionGroup("g", [ValueError("a"), TypeError("b"), OSError("o")])
            except* ValueError as e:
                if k == 1:
                    raise
                if k == 2:
                    raise KeyError("new")
                if k == 3:
                    raise e
                if k == 4:
                    raise KeyError("new") from e
            except* TypeError:
                x = x + 1
        except BaseException as e:
            return x, type(e).__name__, str(e), repr(e.exceptions), repr(e.__cause__), repr(e.__context__)
        return x

    it = iter(list(range(5)) * 3)
    return f, [lambda: None] * 4, lambda: (x0(), next(it))


@case
def eg_outer():
    def f(x, err):
        try:
            raise ExceptionGroup("g", [err])
        except* ValueError as e:
            return_ = x + len(e.exceptions)
        return return_

    it = iter([ValueError("a"), ValueError("b"), TypeError("b")] * 4)
    return f, [lambda: None], lambda: (x0(), next(it))


@case
def eg_break():
    def f(x):
        try:
            raise ExceptionGroup("g", [ValueError("a"), TypeError("b")])
        except* ValueError as e:
            print("b", e, sys.exc_info()[1])
            x = x + 1
        except* TypeError as e:
            x = x * 2
            print("c", e)
        return x

    return f, []


@case
def eg_leaves():
    def f(x):
        y = x + 1
        try:
            raise ExceptionGroup("g", [ValueError("a"), TypeError("b")])
        except* ValueError as e:
            y = y + 1
        return y

    return f, []


@case
def rg_set():
    def f(x, k):
        y = x.clone()
        y.requires_grad = k
        z = (y * 2).sum()
        if y.requires_grad:
            z.backward()
            return y.grad, y.is_leaf
        return z, y.requires_grad

    it = iter([True, True, False, True, False, False, 1, 0] * 4)
    return f, [lambda: None], lambda: (x0(), next(it))


@case
def rg_nonleaf():
    def f(x, w):
        y = w * 2
        try:
            y.requires_grad = False
        except RuntimeError as e:
            return x, str(e)
        return y

    return f, [lambda: None], lambda: (x0(), x0().requires_grad_())


@case
def rg_outer():
    def f(x):
        x.requires_grad = True
        (x * 2).sum().backward()
        return x.grad

    return f, [lambda: None]


@case
def rg_int():
    def f(x):
        y = x.long()
        try:
            y.requires_grad = True
        except RuntimeError as e:
            return x * 2, str(e)
        return y

    return f, [lambda: None]


@case
def eg_raise_one():
    def f(x, k):
        try:
            try:
                raise ExceptionGroup("g", [ValueError("a")]) if k < 3 else ValueError("q")
            except* ValueError as e:
                if k in (1, 3):
                    raise KeyError("new")
                if k in (2, 4):
                    raise
        except BaseException as e:
            return x, type(e).__name__, str(e), repr(getattr(e, "exceptions", None)), repr(e.__cause__), repr(e.__context__)
        return x

    it = iter(list(range(5)) * 3)
    return f, [lambda: None] * 4, lambda: (x0(), next(it))


@case
def eg_break_left():
    def f(x, k):
        try:
            try:
                raise ExceptionGroup("g", [ValueError("a"), TypeError("b"), OSError("o")])
            except* ValueError as e:
                x = x + 1
                if k > 0:
                    print("b", e)
                if k == 2:
                    raise
            except* TypeError as e:
                x = x + 1
                if k == 3:
                    raise e
        except BaseException as e:
            return x, type(e).__name__, str(e), repr(getattr(e, "exceptions", None)), repr(e.__cause__), repr(e.__context__)
        return x

    it = iter(list(range(4)) * 5)
    return f, [lambda: None] * 4, lambda: (x0(), next(it))


@pytest.mark.parametrize("name", cases(__name__))
def test_as_eager(name):
    agrees(__name__, name)
