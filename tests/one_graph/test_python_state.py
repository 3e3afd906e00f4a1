"""Python's random numbers and the filters of warnings."""

import functools
import random
import warnings

import pytest
import torch

import quickfuse
from case_registry import case, cases
from one_graph.programs import agrees, x_and


@case
def rnd_global():
    def f(x):
        return x * random.random() + random.uniform(1, 2)

    return (f,)


@case
def rnd_int():
    def f(x):
        return x * random.randint(1, 6) + random.randrange(10)

    return (f,)


@case
def rnd_gauss():
    def f(x):
        return x + random.gauss(0, 1) + random.gauss(0.0, 2.0) + random.normalvariate(0, 1)

    return (f,)


@case
def rnd_own_attr():
    class Aug:
        def __init__(self):
            self.rng = random.Random(1)

        def __call__(self, x):
            return x * self.rng.uniform(0.5, 1.5)

    a = Aug()
    return (lambda x: a(x),)


@case
def rnd_returned():
    def f(x):
        a = random.random()
        return x + a, a

    return (f,)


@case
def rnd_arith():
    def f(x):
        a = 2 * random.random() - 1
        b = a * a + 0.5
        return x * a + b

    return (f,)


@case
def rnd_symbolic_bounds():
    def f(x, lo, hi):
        return x * random.uniform(lo, hi)

    return f, x_and(1.0, 2.0), x_and(2.0, 5.0), x_and(2, 3)


@case
def rnd_made_inside():
    def f(x):
        r = random.Random(0)
        return x * r.random() + r.randint(0, 4) + r.choice([1, 2, 3])

    return (f,)


@case
def rnd_made_inside_shuffle():
    def f(x):
        r = random.Random(5)
        order = list(range(2))
        r.shuffle(order)
        return x[order] * r.sample([1, 2, 3], 1)[0]

    return (f,)


@case
def rnd_made_inside_returned():
    def f(x):
        r = random.Random(5)
        y = x * r.random()
        return y, r

    g = f

    def h(x):
        y, r = g(x)
        return y + r.random()

    return (h,)


@case
def rnd_loop():
    def f(x):
        for _ in range(3):
            x = x + random.random()
        return x

    return (f,)


@case
def rnd_tensor_of():
    def f(x):
        return x + torch.tensor(random.random()) + torch.full((2,), random.random())

    return (f,)


@case
def cw_simple():
    def f(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.warn("hello")
            y = x * 2
        return y

    return (f,)


@case
def cw_filter():
    def f(x):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*old.*", category=DeprecationWarning)
            warnings.warn("the old way", DeprecationWarning)
            return x.sin()

    return (f,)


@case
def cw_args():
    def f(x):
        with warnings.catch_warnings(action="ignore"):
            warnings.warn("hello", FutureWarning)
            return x.sin()

    return (f,)


@case
def cw_decorated():
    def quiet(fn):
        @functools.wraps(fn)
        def inner(*a, **k):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", category=UserWarning)
                return fn(*a, **k)

        return inner

    @quiet
    def g(x):
        return x.exp()

    return (lambda x: g(x) + 1,)


@case
def cw_raises():
    def f(x):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                raise ValueError("q")
        except ValueError:
            x = x + 1
        return x

    return (f,)


@pytest.mark.parametrize("name", cases(__name__))
def test_one_graph(name):
    agrees(__name__, name)


def test_filters_that_python_begins_with(monkeypatch):
    """Their modules and messages are names, not patterns."""
    ignored = ("ignore", None, DeprecationWarning, None, 0)
    monkeypatch.setattr(warnings, "filters", [("default", "old", DeprecationWarning, "__main__", 0), ignored])

    def f(x):
        warnings.warn("an old way", DeprecationWarning)
        warnings.warn("old", DeprecationWarning)
        return x.sin()

    x = torch.ones(3)
    assert torch.equal(quickfuse.compile(f, fullgraph=True)(x), x.sin())
