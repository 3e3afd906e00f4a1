"""Generators, context variables, logs and what libraries ask about functions."""

import contextlib
import contextvars
import functools
import inspect
import logging
import operator
import os
import warnings

import pytest
import torch

from case_registry import case, cases
from one_graph.programs import agrees, x_and

V = contextvars.ContextVar("V", default=2.0)
LOG = logging.getLogger("one_graph")
LOG.setLevel(logging.ERROR)


@case
def ctxvar_get():
    return ((lambda x: x * V.get()),)


@case
def ctxvar_set_reset():
    def f(x):
        t = V.set(5.0)
        try:
            return x * V.get()
        finally:
            V.reset(t)

    return (f,)


@case
def ctxvar_cm():
    @contextlib.contextmanager
    def scope(v):
        t = V.set(v)
        try:
            yield
        finally:
            V.reset(t)

    def f(x):
        with scope(3.0):
            y = x * V.get()
        return y * V.get()

    return (f,)


@case
def log_debug():
    def f(x):
        LOG.debug("shape %s", x.shape)
        LOG.info("hello")
        return x.sin()

    return (f,)


@case
def log_enabled():
    def f(x):
        if LOG.isEnabledFor(logging.DEBUG):
            print("no")
        return x.sin()

    return (f,)


@case
def log_getlogger():
    def f(x):
        logging.getLogger("one_graph").debug("x")
        return x.sin()

    return (f,)


@case
def log_adapter():
    ad = logging.LoggerAdapter(LOG, {})

    def f(x):
        ad.debug("x")
        return x.sin()

    return (f,)


@case
def warn_ignored():
    def f(x):
        warnings.warn("deprecated", DeprecationWarning)
        return x.sin()

    return (f,)


@case
def warn_ignored_stack():
    def f(x):
        warnings.warn("deprecated", FutureWarning, stacklevel=2)
        return x.sin()

    return (f,)


@case
def warn_once_pattern():
    st = {}

    def warn_once(m):
        if m not in st:
            st[m] = True

    def f(x):
        warn_once("a")
        return x.sin()

    return (f,)


@case
def zip_generators():
    def g(n):
        for k in range(n):
            yield k * 2

    def f(x):
        for a, b in zip(g(3), g(2)):
            x = x * a + b
        return x

    return (f,)


@case
def sdispatch():
    @functools.singledispatch
    def g(v, x):
        return x

    @g.register
    def _(v: int, x):
        return x * v

    @g.register(str)
    def _(v, x):
        return getattr(x, v)()

    @g.register(list)
    @g.register(tuple)
    def _(v, x):
        return x + len(v)

    @g.register
    def _(v: torch.Tensor, x):
        return v + x

    return (lambda x, v: g(v, x)), x_and(3), x_and("sin"), x_and([1]), x_and((1, 2)), x_and(None), x_and(torch.ones(2))


@case
def sdispatchmethod():
    class A:
        @functools.singledispatchmethod
        def g(self, v, x):
            return x

        @g.register
        def _(self, v: int, x):
            return x * v

        @g.register
        def _(self, v: str, x):
            return getattr(x, v)()

    a = A()
    return (lambda x, v: a.g(v, x)), x_and(3), x_and("sin"), x_and(None)


@case
def insp_sig():
    def g(x, a=1, *, b=2):
        return x * a * b

    def f(x, kw):
        ok = {k: v for k, v in kw.items() if k in inspect.signature(g).parameters}
        return g(x, **ok)

    return f, x_and({"a": 3, "z": 1}), x_and({"b": 4})


@case
def insp_sig_bind():
    def g(x, a=1, *, b=2):
        return x * a * b

    def f(x):
        ba = inspect.signature(g).bind(x, 3, b=4)
        ba.apply_defaults()
        return g(*ba.args, **ba.kwargs)

    return (f,)


@case
def insp_sig_forward():
    m = torch.nn.Linear(2, 2)

    def f(x):
        names = set(inspect.signature(m.forward).parameters.keys())
        return m(x) * len(names)

    return (f,)


@case
def insp_sig_wrapped():
    def g(x, a):
        return x

    @functools.wraps(g)
    def w(*a, **k):
        return g(*a, **k)

    return ((lambda x: w(x, 1) * len(inspect.signature(w).parameters)),)


@case
def insp_getfullargspec():
    def g(x, a, b=2):
        return x

    return ((lambda x: x * len(inspect.getfullargspec(g).args)),)


@case
def insp_misc():
    def g(x):
        return x

    return (
        (
            lambda x: (
                x
                * (
                    inspect.isfunction(g)
                    + inspect.ismethod(g)
                    + inspect.isclass(int)
                    + callable(g)
                    + inspect.ismodule(torch)
                    + inspect.isbuiltin(len)
                )
            )
        ),
    )


@case
def operator_all():
    def f(x):
        s = (
            operator.add(1, 2)
            + operator.itemgetter(1)([1, 2])
            + operator.attrgetter("ndim")(x)
            + operator.methodcaller("dim")(x)
            + operator.index(3)
            + operator.not_(0)
            + operator.xor(1, 2)
            + operator.lshift(1, 2)
            + operator.mod(5, 3)
            + operator.floordiv(7, 2)
            + operator.length_hint([1])
            + operator.truth(3)
            + operator.contains([1], 1)
            + operator.countOf([1, 1], 1)
            + operator.indexOf([1, 2], 2)
            + operator.inv(3)
            + operator.concat([1], [2])[1]
        )
        y = operator.matmul(x, x)
        y = operator.iadd(y, x)
        y = operator.neg(y)
        y = operator.pow(y, 2)
        y = operator.getitem(y, 0)
        a, b = operator.itemgetter("a", "b")({"a": 1, "b": 2})
        return y * s + a + b

    return (f,)


@case
def operator_of_tensors():
    def f(x):
        y = operator.abs(x) + operator.abs(-2) + operator.__abs__(x) + operator.call(torch.sin, x)
        y = functools.reduce(operator.iadd, map(operator.abs, [x, y, x * 2]), y.clone())
        operator.setitem(y, (slice(None), 0), 3.0)
        y = operator.imul(y, 2) + operator.methodcaller("sum", dim=1, keepdim=True)(x) + operator.attrgetter("T.shape")(x)[0]
        return y, operator.itemgetter(0, slice(1, 3))(y), operator.invert(x > 0), operator.ixor(x > 0, x > 1)

    return (f,)


@case
def star_args():
    def g(a, /, b, *c, d, e=5, **k):
        return a * b + sum(c) + d + e + sum(k.values())

    def f(x, l, d):
        a, *m, z = [x, *l, x]
        first, *_ = l
        return g(*[x, 2], *l, d=1, **d) + len(m) + first

    return f, x_and([1, 2], {"q": 2}), x_and([3], {})


@case
def nested_nonlocal():
    def f(x):
        n = 0

        def inc(k):
            nonlocal n

            def deeper():
                nonlocal n
                n += k

            deeper()
            return n

        inc(2)
        inc(3)
        fs = [lambda y, k=k: y * k for k in range(3)]
        return x * n + fs[2](x)

    return (f,)


@case
def gen_yield_tensors():
    def layers(x):
        for k in range(3):
            x = x * 2
            yield x

    def outer(x):
        r = yield from layers(x)
        yield x
        return 3

    def f(x):
        return sum(outer(x)), [t + 1 for t in layers(x)], next(layers(x))

    return (f,)


@case
def gen_send():
    def g():
        t = 0
        while True:
            v = yield t
            if v is None:
                return
            t = t + v

    def f(x):
        it = g()
        next(it)
        it.send(x)
        r = it.send(x)
        it.close()
        return r

    return (f,)


@case
def gen_return_value():
    def g():
        yield 1
        return 5

    def h():
        v = yield from g()
        yield v

    return ((lambda x: x * sum(h())),)


@case
def gen_expr():
    return ((lambda x: sum(x * k for k in range(3) if k % 2) + max(k for k in [1, 2]) + any(k > 1 for k in [1, 2])),)


@case
def gen_throw_finally():
    def g(log):
        try:
            yield 1
        except ValueError:
            yield 2
        finally:
            log.append(1)

    def f(x):
        l = []
        it = g(l)
        a = next(it)
        b = it.throw(ValueError)
        it.close()
        return x * a + b + len(l)

    return (f,)


@case
def environ_():
    return (
        (
            lambda x: (
                x * len(os.environ.get("NOPE_X", "ab"))
                + ("NOPE_X" in os.environ)
                + len(os.path.join("a", "b"))
                + len(os.sep)
                + len(os.path.basename("a/b.c"))
                + len(os.path.splitext("a.bc")[1])
            )
        ),
    )


@case
def checks_of_torch():
    def f(x):
        torch._check(x.shape[0] > 1)
        torch._check(x.dim() == 2, lambda: f"a tensor of {x.dim()} axes")
        return x * 2

    return (f,)


@case
def async_refused():
    async def g(x):
        return x

    def f(x):
        return inspect.iscoroutinefunction(g) * x

    return (f,)


@pytest.mark.parametrize("name", cases(__name__))
def test_one_graph(name):
    agrees(__name__, name)
