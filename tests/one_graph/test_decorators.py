"""Decorators of every style, caches and registries."""

import contextlib
import functools
import inspect

import pytest
import torch

from case_registry import case, cases
from one_graph.programs import agrees, x_and


@case
def deco_plain():
    def d(fn):
        def w(*a, **k):
            return fn(*a, **k) * 2

        return w

    @d
    def g(x):
        return x + 1

    return (g,)


@case
def deco_wraps():
    def d(s):
        def dd(fn):
            @functools.wraps(fn)
            def w(*a, **k):
                return fn(*a, **k) * s

            return w

        return dd

    @d(2)
    @d(s=3)
    def g(x):
        return x + 1

    return (g,)


@case
def deco_bound_signature():
    """The signature is made where the function is decorated."""

    def d(fn):
        signature = inspect.signature(fn)

        @functools.wraps(fn)
        def w(*a, **k):
            bound = signature.bind(*a, **k)
            bound.apply_defaults()
            return fn(*bound.args, **bound.kwargs)

        return w

    @d
    def g(x, n=2, *more, scale=3, **others):
        return x * n * scale + len(more) + len(others)

    return (g,)


@case
def deco_known_parameters():
    def d(fn):
        names = inspect.signature(fn).parameters
        first = next(iter(names.values()))

        @functools.wraps(fn)
        def w(*a, **k):
            known = {name: value for name, value in k.items() if name in names}
            defaults = [p.default for p in names.values() if p.default is not inspect.Parameter.empty]
            return fn(*a, **known) * sum(defaults) + len(first.name) + (first.kind is first.VAR_KEYWORD)

        return w

    @d
    def g(x, n=2):
        return x * n

    return (lambda x: g(x, n=3, unknown=4),)


@case
def deco_class():
    class D:
        def __init__(self, fn):
            self.fn = fn
            functools.update_wrapper(self, fn)
            self.n = 0

        def __call__(self, *a):
            self.n += 1
            return self.fn(*a) * self.n

    @D
    def g(x):
        return x + 1

    return ((lambda x: g(x)),)


@case
def deco_class_method():
    class D:
        def __init__(self, fn):
            self.fn = fn

        def __get__(self, o, t=None):
            return functools.partial(self, o) if o is not None else self

        def __call__(self, o, x):
            return self.fn(o, x) * 2

    class A:
        k = 3

        @D
        def m(self, x):
            return x * self.k

    a = A()
    return ((lambda x: a.m(x)),)


@case
def deco_inside():
    def f(x):
        def d(fn):
            @functools.wraps(fn)
            def w(*a):
                return fn(*a) + 1

            return w

        @d
        def g(x):
            return x * 2

        return g(x) * len(g.__name__)

    return (f,)


@case
def deco_contextdecorator():
    class C(contextlib.ContextDecorator):
        def __enter__(self):
            return self

        def __exit__(self, *a):
            return False

    @C()
    def g(x):
        return x * 2

    return ((lambda x: g(x)),)


@case
def deco_nograd_fn():
    @torch.no_grad()
    def g(x):
        return x * 2

    @torch.inference_mode(False)
    def h(x):
        return x * 3

    return ((lambda x: g(x) + h(x)),)


@case
def deco_cache_methods():
    class A:
        @functools.lru_cache(maxsize=None)
        def m(self, k):
            return k * 2

    a = A()
    return ((lambda x: x * a.m(3)),)


@case
def deco_cache_static_methods():
    class A:
        @staticmethod
        @functools.lru_cache(maxsize=None)
        def m(k):
            return k * 2

        @classmethod
        @functools.lru_cache
        def n(cls, k, *, name="n"):
            return k * len(cls.__name__ + name)

    a = A()
    return ((lambda x: x * A.m(3) + a.m(4) - A.n(2, name="other")),)


@case
def registry_cls():
    REG = {}

    def register(name):
        def d(c):
            REG[name] = c
            return c

        return d

    @register("relu")
    class R:
        def __call__(self, x):
            return torch.relu(x)

    @register("mul")
    class M:
        def __init__(self, k=2):
            self.k = k

        def __call__(self, x):
            return x * self.k

    return (lambda x, n: REG[n]()(x)), x_and("relu"), x_and("mul")


@case
def functools_partialmethod():
    class A:
        def m(self, k, x):
            return x * k

        two = functools.partialmethod(m, 2)

    a = A()
    return ((lambda x: a.two(x)),)


@case
def lambda_default_sort():
    def f(x):
        ts = {"b": x, "a": x + 1}
        return torch.cat([v for _, v in sorted(ts.items())])

    return (f,)


@case
def func_attrs():
    def g(x):
        return x

    g.tag = 3
    return (
        (
            lambda x: (
                x * g.tag
                + len(g.__name__)
                + g.__code__.co_argcount
                + hasattr(g, "zz")
                + len(g.__qualname__)
                + len(g.__module__)
            )
        ),
    )


@case
def properties_computed_once():
    class Net(torch.nn.Module):
        made = 0

        @functools.cached_property
        def scale(self):
            self.made += 1
            return 2**-0.5

        @functools.cached_property
        def ramp(self):
            return torch.arange(2.0) * self.scale

        def forward(self, x):
            return x * self.scale + self.ramp * self.scale, self.made

    class Local:
        @functools.cached_property
        def half(self):
            return 0.5

    class Slots:
        __slots__ = ("other",)
        half = Local.half

    net = Net()

    def f(x):
        local = Local()
        made, again = local.half + local.half, local.__dict__.pop("half")
        try:
            failed = Slots().half
        except TypeError as error:
            failed = str(error)
        return net(x * made * again * local.half), failed, type(Local.half).__name__

    return (f,)


@pytest.mark.parametrize("name", cases(__name__))
def test_one_graph(name):
    agrees(__name__, name)
