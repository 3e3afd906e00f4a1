"""Python's random numbers and the filters of warnings."""

import functools
import random
import warnings

import numpy as np
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
def rnd_choice():
    rates = [0.5, 1.0, 2.0]

    def f(x):
        return x * random.choice(rates) + random.choice((1, 2, 3)), random.choice(range(5)), random.random()

    return (f,)


@case
def rnd_choice_of_computed():
    def f(x, s):
        found = [s, s * 2, 0.5]
        found.append(3.0)
        chosen = random.choice(found)
        found[0] = 100.0
        return x * chosen, chosen, found

    return (f, x_and(1.5), x_and(2.5), x_and(3.5))


@case
def rnd_numpy():
    np.random.seed(0)

    def f(x):
        k, m = np.random.randint(0, 7), np.random.randint(9)
        return x * k + m * np.random.rand(), k, type(m), np.random.choice(4), np.random.normal(0, 2)

    return (f,)


@case
def rnd_numpy_generators():
    rng, old = np.random.default_rng(3), np.random.RandomState(4)

    def f(x):
        a = rng.uniform(0, 2)
        return x * a + rng.normal() * old.rand() + rng.random() * old.randint(5), a, rng.beta(1.0, 2.0)

    return (f,)


@case
def rnd_numpy_refused():
    np.random.seed(0)

    def f(x, n):
        try:
            return x * np.random.randint(n)
        except ValueError as error:
            return x, str(error)

    return (f, x_and(3), x_and(0))


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


def test_choices_of_what_changes():
    """The numbers that one is chosen of are read in each call; of others Python chooses, in the same order."""
    rates, names, rng = [0.5, 1.0, 2.0], ["sin", "cos"], np.random.default_rng(1)

    def f(x):
        y = getattr(x * random.choice(rates), random.choice(names))()
        return y + random.random() + rng.integers(3) * rng.random(), random.sample(rates, 2), random.choice([1, 2.5])

    def results(function):
        rates[:], made = [0.5, 1.0, 2.0], []
        random.seed(1)
        rng.bit_generator.state = np.random.default_rng(2).bit_generator.state
        for k in range(12):
            rates[k % 3] = 2 * k if k == 5 else k / 2
            if k == 8:
                rates.append(7.5)
            made.append(function(torch.ones(3)))
        return str(made)

    assert results(quickfuse.compile(f)) == results(f)


def test_numbers_drawn_by_a_call_that_begins_again():
    """What was drawn for a graph that failed is drawn once more, as by eager."""
    rng, old = np.random.default_rng(1), np.random.RandomState(1)

    def f(x, k):
        y = x * random.choice([1.5, 2.5]) * rng.random() + old.randint(5)
        return y[k] * rng.uniform(1, 2)

    def results(function):
        random.seed(1)
        rng.bit_generator.state = np.random.default_rng(2).bit_generator.state
        old.seed(1)
        made = []
        for k in (0, 1, 9, 2, 9, 1):
            try:
                made.append(function(torch.ones(3), torch.tensor(k)))
            except IndexError:
                made.append("out of range")
        return str((made, random.random(), rng.random(), old.rand()))

    assert results(quickfuse.compile(f)) == results(f)


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
