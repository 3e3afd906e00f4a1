"""Python's random numbers, filters of warnings, attributes of modules: with breaks, errors, and changes between calls."""

import itertools
import random
import sys
import types
import warnings

import pytest
import torch
from torch import nn

from case_registry import case, cases, x0
from changes.programs import agrees

M = types.ModuleType("settings_of_mine")
K = 3


@case
def cw_break():
    def f(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            y = x * 2
            print("in", warnings.filters[0][0], warnings.filters[0][2].__name__)
            warnings.warn("old", DeprecationWarning)
            y = y + 1
        print("after", len(warnings.filters))
        return y + 1

    return f, [lambda: warnings.simplefilter("error"), lambda: warnings.simplefilter("ignore")]


@case
def cw_break_nested():
    def f(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="a.*", append=True)
                y = x * 2
                print("in", [w[0] for w in warnings.filters][:2], warnings.filters[-1][1])
                y = y + 1
            print("between", warnings.filters[0][2].__name__)
        print("after", len(warnings.filters))
        return y + 1

    return f, []


@case
def cw_break_raise():
    def f(x):
        n = len(warnings.filters)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                y = x * 2
                print("in")
                raise ValueError("a")
        except ValueError:
            y = x + 3
        return y + 1, n == len(warnings.filters)

    return f, []


@case
def cw_filters_change():
    def f(x):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            warnings.warn("a", UserWarning)
            return x + 1

    return f, [
        lambda: warnings.simplefilter("ignore"),
        lambda: warnings.simplefilter("error"),
        lambda: warnings.resetwarnings(),
    ]


@case
def cw_dup():
    def f(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("ignore")
            y = x + 1
            print(len(warnings.filters))
            return y

    return f, [
        lambda: warnings.simplefilter("ignore"),
        lambda: warnings.simplefilter("error"),
        lambda: warnings.resetwarnings(),
    ]


@case
def cw_kept_entered():
    cm = []

    def f(x):
        c = warnings.catch_warnings()
        c.__enter__()
        warnings.simplefilter("ignore")
        y = x + 1
        print(warnings.filters[0][0])
        c.__exit__(None, None, None)
        return y * 2

    return f, []


M.scale = 2.0


@case
def rnd_made_returned():
    def f(x):
        r = random.Random(5)
        y = x * r.random() + r.gauss(0, 1)
        print("b")
        return y + r.random(), [r.random() for _ in range(2)]

    return f, []


@case
def rnd_layerdrop():
    m = [nn.Linear(2, 2) for _ in range(4)]

    def f(x):
        for l in m:
            if random.random() < 0.5:
                continue
            x = l(x).relu()
        return x

    return f, [lambda: random.seed(3), lambda: random.random(), lambda: random.seed(8)]


@case
def rnd_index():
    def f(x):
        i = random.randint(0, 1)
        return x[i] * 2, random.choice([1, 2, 3]) * x

    return f, [lambda: random.seed(3), lambda: random.random(), lambda: random.seed(8)]


@case
def rnd_order_break():
    def f(x):
        a = random.random()
        y = x * a
        print(round(random.random(), 3))
        b = random.random()
        random.shuffle([1, 2, 3])
        return y + b + random.uniform(0, 1)

    return f, [lambda: random.seed(3), lambda: random.random(), lambda: random.seed(8)]


@case
def rnd_seeded():
    def f(x, n):
        random.seed(n)
        y = x * random.random()
        return y + random.gauss(0, 1), random.random()

    it = iter(range(100))
    return f, [lambda: random.seed(3)], lambda: (x0(), 7 + next(it) // 2)


@case
def rnd_raises():
    def f(x, n):
        a = random.random()
        try:
            y = x / a + x[n]
        except IndexError:
            y = x
        return y, a, random.random()

    it = iter(range(100))
    return f, [], lambda: (x0(), next(it))


@case
def rnd_error_out():
    def f(x, k):
        a = random.random()
        y = x * a
        return y[k]

    ks = itertools.cycle([torch.tensor([0, 1]), torch.tensor([0, 5])])
    return f, [lambda: None, lambda: None], lambda: (x0(), next(ks))


@case
def rnd_grad():
    def f(x):
        w = torch.ones(2, 2, requires_grad=True)
        a = random.random()
        loss = (x * w * a).sum() * random.uniform(1, 2)
        loss.backward()
        return w.grad, a, loss.detach()

    return f, [lambda: random.seed(2)]


@case
def rnd_rng_swapped():
    class C:
        pass

    c = C()
    c.r = random.Random(2)

    def f(x):
        return x * c.r.random() + c.r.randint(0, 9)

    class R(random.Random):
        def random(self):
            return 0.5

    return f, [
        lambda: setattr(c, "r", random.Random(7)),
        lambda: setattr(c, "r", R(1)),
        lambda: setattr(c, "r", random),
        lambda: c.r.seed(2),
    ]


@case
def rnd_patched():
    def f(x):
        return x * random.random() + random.uniform(0, 1)

    old = random.random, random.uniform

    def put():
        random.random = lambda: 0.25

    def put2():
        random.uniform = lambda a, b: 0.5

    def back():
        random.random, random.uniform = old

    return f, [put, put2, back]


@case
def rnd_div():
    def f(x, hi):
        a = random.uniform(0, hi)
        try:
            return x / a, 1 / a
        except ZeroDivisionError:
            return x

    it = itertools.cycle([1.0, 0.0, 2])
    return f, [lambda: None], lambda: (x0(), next(it))


@case
def rnd_bad_args():
    def f(x, a, b):
        try:
            return x * random.randint(a, b)
        except ValueError as e:
            return x, str(e)

    it = itertools.cycle([(1, 3), (3, 1), (2, 2), (0, 2**70)])
    return f, [lambda: None] * 3, lambda: (x0(), *next(it))


@case
def rnd_in_function_args():
    class Jitter(nn.Module):
        def __init__(self, p):
            super().__init__()
            self.p = p

        def forward(self, x):
            if not self.training:
                return x
            s = random.uniform(1 - self.p, 1 + self.p)
            return x * s + random.gauss(0.0, self.p)

    m = Jitter(0.2)
    return m.forward, [m.eval, m.train, lambda: setattr(m, "p", 0.7), lambda: setattr(m, "p", 2)]


@case
def rnd_checkpoint():
    from torch.utils.checkpoint import checkpoint

    def g(x):
        return (x * random.random()).sin()

    def f(x):
        w = x.clone().requires_grad_()
        checkpoint(g, w, use_reentrant=False).sum().backward()
        return w.grad

    return f, []


@case
def rnd_stored():
    log = []

    def f(x):
        a = random.random()
        log.append(a)
        return x * a, len(log), log[-1] is a

    return f, []


@case
def rnd_default_arg():
    def g(x, k=None):
        k = random.random() if k is None else k
        return x * k

    def f(x):
        return g(x) + g(x, 2.0) + sum(random.random() for _ in range(3))

    return f, []


@case
def mod_set():
    M.scale = 2.0

    def f(x):
        y = x * M.scale
        M.scale = M.scale + 1
        return y * M.scale

    return f, [lambda: setattr(M, "scale", 1), lambda: setattr(M, "scale", 2.5)]


@case
def mod_set_break():
    M.scale = 2.0

    def f(x):
        y = x * M.scale
        M.mode = y
        print(M.mode.shape)
        M.scale = 7
        print(M.scale)
        return y * M.scale

    return f, [lambda: setattr(M, "scale", 1), lambda: M.__dict__.pop("mode")]


@case
def mod_and_global():
    this = sys.modules[__name__]

    def f(x):
        global K
        K = K + 1
        y = x * this.K
        this.K = 5
        y = y + K
        K = 3
        return y

    return f, []


def namespace(source):
    names = {"__name__": "program"}
    exec(source, names)
    return names["f"]


def globals_case(name, lines):
    def factory():
        numbers = iter([0, 0, 1, 2, 2, 3])
        source = "COUNT = 0\ndef f(x, k):\n    global COUNT\n    try:\n" + "".join(f"        {n}\n" for n in lines)
        source += "    except NameError as e: return str(e)\n"
        return namespace(source), [lambda: None], lambda: (x0(), next(numbers))

    factory.__name__ = name
    case(factory)


globals_case("globals_new", ["globals()['ADDED'] = k", "return x + ADDED"])
globals_case("globals_assigned", ["names = globals()", "COUNT = COUNT + k", "return x + names['COUNT'], COUNT"])
globals_case("globals_after", ["COUNT = COUNT + k", "return x + globals()['COUNT'], COUNT"])
globals_case("globals_update", ["globals().update(COUNT=k, NEW=x)", "return x + COUNT + NEW, 'NEW' in globals()"])
globals_case("globals_popped", ["globals().pop('COUNT')", "return x + COUNT"])


@pytest.mark.parametrize("name", cases(__name__))
def test_as_eager(name):
    agrees(__name__, name)
