"""Breaks in every place: deep in calls, in expressions, arguments, with, try, comprehensions, properties, generators."""

import contextlib
import functools
import warnings

import pytest
import torch

from language.harness import BACKENDS, case, check, names, t

#: To write to a file ends a graph, whatever is written: `None` is the usual one.
print = functools.partial(print, file=None)

TOTAL = 0


def level_one(x, trace):
    y = x + 1
    z = level_two(y, trace) * 2
    return z - y


def level_two(x, trace):
    y = x.sin()
    for k in range(2):
        y = y + level_three(y * k, trace)
    return y * 3


def level_three(x, trace):
    y = x.exp()
    print("deep", len(trace))
    trace.append(len(trace))
    return y + 1


def noisy(x, text="noisy"):
    print(text)
    return x * 2


def positive(x):
    return bool(x.sum() > 0)


class Box:
    def __init__(self, x):
        self.first = x + 1
        print("making a box")
        self.second = self.first * 2

    @property
    def loud(self):
        y = self.second - 1
        print("property")
        return y * 3

    @property
    def by_value(self):
        return self.first if self.first.sum() > 0 else -self.first

    def __add__(self, other):
        print("add")
        return self.second + other

    def __getitem__(self, k):
        print("item", k)
        return self.first * k

    def __len__(self):
        return int((self.first > 0).sum())

    def __bool__(self):
        return bool(self.first.sum() > 0)

    def __call__(self, x, scale=1):
        y = x + self.first
        print("call", scale)
        return y * scale

    def __iter__(self):
        yield self.first
        print("between")
        yield self.second

    def __enter__(self):
        print("enter")
        return self.first * 10

    def __exit__(self, *exc):
        print("exit", exc[0])
        self.second = self.second + 1
        return exc[0] is KeyError


@case((t(3),), (t(3, seed=1),))
def three_calls_deep(x):
    trace = []
    y = level_one(x * 2, trace)
    return y + x, trace


@case((t(3),), (t(3, seed=1),), graphs=3)
def in_the_middle_of_an_expression(x):
    a = x + 1
    return a * 2 + noisy(a) * (x - noisy(x.sin(), "second")) + a.exp()


@case((t(3),), (t(3, seed=1),), graphs=4)
def in_an_argument_list(x):
    return torch.add(x.sin() * 2, noisy(x + 1), alpha=len(noisy([1], "alpha"))) + torch.stack([x, noisy(x), x * 3]).sum(0)


@case((t(3),), (t(3, seed=1),))
def in_displays_and_subscripts(x):
    table = {"a": x + 1, noisy("k", "key"): noisy(x), "c": x * 3}
    values = [x, noisy(x), *(x - 1, noisy(x, "star"))]
    y = values[0 if noisy(0, "index") == 0 else 1]
    return table, values, y * 2, (x + 1)[noisy(0, "i") :] * 2


@case((t(3),), (-t(3).abs(),))
def in_conditions(x):
    y = x + 1 if positive(x) else x - 1
    z = (positive(y) and y * 2) or y * 3
    if positive(x) and not positive(-x) or z is None:
        z = z.sin()
    return z * 2, positive(z) and positive(y), 0 < x.sum() < 100


@case((t(3),), (t(3, seed=1),))
def inside_with(x):
    with torch.no_grad():
        y = x * 2
        print("inside no_grad", torch.is_grad_enabled())
        y = y + 1
        with contextlib.suppress(KeyError):
            z = y.sin()
            print("inside suppress")
            z = z * 2
            raise KeyError
    return y - z, torch.is_grad_enabled()


@case((t(3, grad=True),), (t(3, seed=1, grad=True),), graphs=3)
def grad_modes_around_breaks(x):
    with torch.no_grad():
        y = x * 2
        with torch.enable_grad():
            z = x * 3
            print("graph break", z.requires_grad)
            z = z + 1
        w = x * 4
        print(y.requires_grad)
        w = w + z
    return y, z, w, x * 5


@case((t(3),), (-t(3),))
def inside_user_contexts(x):
    box = Box(x)
    with box as y:
        z = y + 1
        if z.sum() > 0:
            z = z * 2
            raise KeyError("swallowed")
        z = z - 1
    return z, box.second


@case((t(3),), (-t(3).abs(),))
def inside_try(x):
    trace = []
    try:
        y = x + 1
        print("try")
        if y.sum() > 2:
            raise ValueError("large")
        y = y * 2
    except ValueError as error:
        print("except", error)
        y = y * 3
        trace.append(str(error))
    else:
        y = y - 1
        print("else")
    finally:
        z = y.sin()
        print("finally")
        z = z + 1
    return y, z, trace


@case((t(3),), (-t(3).abs(),))
def exception_from_a_deep_break(x):
    def inner(v):
        w = v * 2
        if w.sum() > 0:
            raise ValueError("positive")
        return w + 1

    def middle(v):
        try:
            return inner(v + 1) * 3
        finally:
            print("cleaning up")

    try:
        y = middle(x)
    except ValueError as error:
        y = x - 1
        return y * 2, str(error)
    return y


@case((t(3),), (-t(3).abs(),))
def exception_escapes_after_a_break(x):
    y = x * 2
    print("before")
    y.add_(1)
    if y.sum() > 0:
        raise RuntimeError("escapes")
    return y.sin()


@case((t(4),), (t(4, seed=1),))
def inside_comprehensions(x):
    values = [noisy(x * k, f"list {k}") + 1 for k in range(3)]
    table = {k: v * 2 for k, v in enumerate(values) if positive(v)}
    nested = [[v + float(v.sum()) for v in values[:2]] for _ in range(2)]
    return values, table, nested, sum(noisy(v, "gen") for v in values)


@case((t(3),), (-t(3).abs(),))
def inside_init_and_properties(x):
    box = Box(x * 2)
    y = box.loud + box.by_value
    return y, box, box.second + 1


@case((t(3),), (-t(3).abs(),))
def inside_special_methods(x):
    box = Box(x)
    y = box + x
    z = box[2] * 3 - box(x, scale=2)
    n = len(box)
    if box:
        z = z + n
    return y, z, [v * 2 for v in box], n


@case((t(3),), (t(3, seed=1),))
def inside_generators(x):
    def produce():
        y = x + 1
        print("first")
        yield y * 2
        if y.sum() > 0:
            yield y * 3
        print("last")
        yield y.sin()

    total = x * 0
    for value in produce():
        total = total + value
    return total, [v + 1 for v in produce()], sum(produce())


@case((t(3),), (t(3, seed=1),))
def generator_is_suspended_over_a_break(x):
    def produce():
        for k in range(4):
            yield x * k

    values = produce()
    a = next(values) + 1
    print("suspended")
    b = next(values) * 2
    if b.sum() > 0:
        b = b + next(values)
    return a, b, list(values)


@case((t(3),), (t(3, seed=1),))
def inside_lambdas_and_closures(x):
    count = 0

    def step(v):
        nonlocal count
        count += 1
        w = v + count
        print("step", count)
        count += 10
        return w * 2

    apply = lambda f, v: f(f(v)) - v
    y = apply(step, x)
    return y + count, count


@case((t(3),), (t(3, seed=1),))
def global_around_a_break(x):
    global TOTAL
    TOTAL = TOTAL % 5 + 1
    y = x * TOTAL
    print("total", TOTAL)
    TOTAL += 1
    return y + TOTAL


@case((t(3), {"n": 0}, []), (t(3), {"n": 5}, [1]))
def mutations_before_and_after_a_break(x, state, log):
    state["n"] += 1
    log.append(x + 1)
    y = x * state["n"]
    print("state", state["n"], len(log))
    state["n"] += 1
    log[-1] = log[-1] * 2
    state["y"] = y
    if y.sum() > 0:
        log.append("positive")
        state["last"] = log
    return y + len(log), log


@case((t(3),), (t(3, seed=1),), graphs=2)
def aliases_survive_a_break(x):
    y = x * 2
    view = y[1:]
    holder = [y, view, [y]]
    print("break")
    view.add_(10)
    holder[2][0].mul_(2)
    return y, holder, holder[0] is holder[2][0], view


@case((t(3),), (t(3, seed=1),))
def argument_is_mutated_around_a_break(x):
    x.add_(1)
    y = x * 2
    print(float(x.sum()) > -1000)
    x.mul_(3)
    z = x + y
    x[0] = z.sum().item()
    return z, x


@case((t(3),), (t(3, seed=1),))
def iterators_survive_a_break(x):
    pairs = iter([(1, "a"), (2, "b"), (3, "c")])
    n, letter = next(pairs)
    y = x * n
    print(letter)
    for n, letter in pairs:
        y = y + n
        print(letter, end=" ")
    numbers = enumerate(zip(range(3), "xyz"))
    next(numbers)
    print("middle")
    return y * 2, list(numbers)


@case((t(3),), (-t(3).abs(),))
def loop_with_break_statement_by_value(x):
    for k in range(5):
        y = x * k
        if y.sum() > 3:
            print("found", k)
            break
        x = x + 0.5
    else:
        x = x.sin()
    return x + k, y


@case((t(3),), (t(3, seed=1),))
def decorated_and_partial_functions(x):
    def loud(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            print("calling", function.__name__)
            return function(*args, **kwargs) + 1

        return wrapper

    @loud
    def work(a, b, *, c=1):
        y = a * b
        print("working")
        return y + c

    return functools.partial(work, x, c=3)(x + 1) * 2, list(map(functools.partial(noisy, text="map"), [x, x + 1]))


@case((t(3), 4), (t(3), 2), (-t(3).abs(), 3))
def recursion_with_breaks(x, n):
    if n == 0:
        print("bottom")
        return x + 1
    y = recursion_with_breaks(x * 0.9, n - 1)
    if y.sum() > 0:
        return y + n
    return y * 2


@case((t(3, 3),), (t(3, 3, seed=1),))
def values_on_the_stack(x):
    return [x[0] + 1, (x[1] * 2, print("a"), x[2] - 1), {"k": x.sum() + float(x[0, 0]), "v": x.t() * 2}, print("b") or x]


@case((t(4),), (t(4, seed=1),), steady="never")
def chained_methods_over_a_break(x):
    class Chain:
        def __init__(self, v):
            self.v = v

        def add(self, n):
            self.v = self.v + n
            return self

        def show(self):
            print("norm", round(float(self.v.norm()), 3))
            return self

        def mul(self, n):
            self.v = self.v * n
            return self

    return Chain(x).add(1).show().mul(2).show().add(3).v


@case((t(3), 0), (t(3), 1), (t(3), 2))
def match_around_breaks(x, n):
    match n, bool(x.sum() > 0):
        case 0, _:
            y = x + 1
            print("zero")
        case k, True:
            y = x * k
        case k, False:
            print("negative", k)
            y = x - k
    return y * 2


@case((t(3),), (t(3, seed=1),), graphs=3)
def delete_and_rebind_over_a_break(x):
    a = x + 1
    b = a * 2
    del a
    print("a is gone")
    try:
        a  # noqa: F821
    except UnboundLocalError:
        a = b - 1
    c, b = b, a
    print("rebound")
    return a + b * c


class Recorded:
    def __init__(self, x):
        self.x = x
        with warnings.catch_warnings(record=True) as caught:
            self.size = len(x)
        self.caught = len(caught)


@case((t(3),), (t(3, seed=1),), at_most=2)
def a_break_where_what_a_function_holds_cannot_be_made_again(x):
    y = x * 2
    recorded = Recorded(y)
    return y + recorded.size, recorded.caught


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", names(globals()))
def test_breaks_nested(name, backend):
    check(__file__, name, backend)
