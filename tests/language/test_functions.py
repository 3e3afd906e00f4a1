"""Functions: closures, arguments of every kind, defaults, decorators, recursion, globals."""

import functools

import pytest
import torch

import quickfuse
from language.harness import BACKENDS, Keywords, case, check, names, setup, t

COUNTER = 0
BIAS = torch.tensor([1.0, -1.0, 0.5])
HISTORY = []


def add_default(x, into=[]):
    into.append(len(into))
    return x + into[-1]


def keyword_default(x, *, cache={}):
    cache["calls"] = cache.get("calls", 0) + 1
    return x * 2


def factorial(x, n):
    return x if n <= 1 else factorial(x, n - 1) * n


def is_even(x, n):
    return x + 100 if n == 0 else is_odd(x * 1.1, n - 1)


def is_odd(x, n):
    return x - 100 if n == 0 else is_even(x + 0.1, n - 1)


def traced(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        wrapper.calls += 1
        return function(*args, **kwargs) + 1

    wrapper.calls = 0
    return wrapper


def scaled_by(factor):
    def decorate(function):
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs) * factor

        return wrapper

    return decorate


@traced
@scaled_by(3.0)
def decorated(x, shift=0.5):
    """A docstring that stays."""
    return x.sin() + shift


@case((t(3), 2), (t(3), 5))
def closure_reads(x, n):
    def add(y):
        return y + n * x

    def twice(f):
        return lambda y: f(f(y))

    return twice(add)(x) - 1


@case((t(3), 3), (t(3), 4))
def nonlocal_counter(x, n):
    count, total = 0, x

    def step(k):
        nonlocal count, total
        count += k
        total = total * 1.5 + count

    for k in range(n):
        step(k)
    return total, count


@case((t(3),), (t(3, seed=1),))
def shared_cell_between_closures(x):
    value = x

    def get():
        return value + 1

    def set_to(new):
        nonlocal value
        value = new

    a = get()
    set_to(x * 10)
    b = get()
    value = x - 5
    return a, b, get()


@case((t(3),), (t(3, seed=1),))
def closures_are_returned(x):
    state = {"n": 0}
    y = x * 2

    def bump(k=3):
        state["n"] += k
        return y + state["n"]

    first = bump()
    return bump, first, state


@setup()
def free_variables_of_the_compiled_function():
    scale = 2.0
    calls = 0
    history = []

    def run(x):
        nonlocal calls
        calls += 1
        history.append(calls)
        return x * scale + 1

    return run, [(t(3),), (t(3, seed=1),)]


@setup()
def cell_that_another_function_changes():
    scale = 2.0

    def change(value):
        nonlocal scale
        scale = value

    def run(x, new):
        y = x * scale
        change(new)
        return y + scale

    return run, [(t(3), 3.0), (t(3), 5.0), (t(3), 3.0)]


@case((t(3), 1), (t(3), 2))
def global_is_written(x, n):
    global COUNTER
    COUNTER = n + 10
    y = x + COUNTER
    COUNTER += 1
    return y * 2


@case((t(3),), (t(3, seed=1),))
def global_list_and_tensor(x):
    HISTORY.append("called")
    BIAS.add_(1.0)
    return x * BIAS


@case((t(3),), (t(3, seed=1),))
def global_appears_and_vanishes(x):
    global NEW_NAME
    NEW_NAME = x + 1
    y = NEW_NAME * 2
    del NEW_NAME
    try:
        NEW_NAME
    except NameError as error:
        return y, str(error)


@case((t(3),), (t(3, seed=1),), steady="never")
def mutable_default_is_kept(x):
    return add_default(x), add_default(x * 2), add_default(x, [1, 2])


@case((t(3),), (t(3, seed=1),), steady="never")
def mutable_default_of_the_function_itself(x, seen=[]):
    seen.append(tuple(x.shape))
    return x.exp() + len(seen)


@case((t(3),), (t(3, seed=1),), steady="later")
def keyword_only_default_is_kept(x):
    return keyword_default(x), keyword_default(x, cache={})


@case((t(3), 1, 2), (t(3), 4, 5, 6), (t(3),))
def star_arguments(x, *numbers):
    def inner(first, *rest):
        return first * 2 + sum(rest)

    return inner(x, *numbers), inner(*numbers, x) if numbers else None, numbers


@case((t(3), Keywords(a=1, b=2.0)), (t(3), Keywords(b=1.0)), (t(3), Keywords()))
def double_star_arguments(x, **options):
    def inner(*, a=0, b=0, **rest):
        return x * (a + 1) + b, rest

    y, rest = inner(**options, c=3)
    options["added"] = True
    return y + 1, rest, options


@case((t(3), 1, Keywords(scale=2.0)), (t(3), 2, Keywords(scale=3.0, shift=1)), (t(3), Keywords(scale=1.0)))
def every_kind_of_parameter(x, n=5, /, *args, scale, shift=0.5, **rest):
    def inner(a, b, /, c, d=1, *e, f, g=2, **h):
        return a * b + c + d + sum(e) + f * g + len(h)

    return inner(x, n, 1, 2, 3, 4, f=scale, z=1) + shift, args, rest


@case((t(3), 1), (t(3), 2, Keywords(n=3)), (t(3), Keywords(m=2)))
def call_that_does_not_fit(x, n, *, m=1):
    y = x * n + m
    return y.exp() - x


@case((t(3), [1.0, 2.0], {"scale": 3.0}), (t(3), [4.0], {"bias": 2.0}))
def unpacking_in_calls(x, values, options):
    def inner(a, b=1.0, *, scale=1.0, bias=0.0):
        return (x * a + b) * scale + bias

    return inner(*values, **options), inner(*[2.0], *values[:1], **{**options, "scale": 0.5})


@case((t(3),), (t(3, seed=1),))
def decorators(x):
    return decorated(x), decorated(x, shift=2), decorated.calls, decorated.__name__, decorated.__doc__


@setup()
def compiled_function_is_decorated():
    @traced
    def run(x):
        y = x * 2
        return y.cos()

    return run, [(t(3),), (t(3, seed=1),)]


@case((t(3), 5), (t(3), 3), (t(3), 1))
def recursion(x, n):
    return factorial(x, n) + 1, is_even(x, n)


@case((t(3), 4), (t(3), 6))
def recursive_closure(x, n):
    def fibonacci(k):
        return x * k if k < 2 else fibonacci(k - 1) + fibonacci(k - 2)

    return fibonacci(n)


@case((t(3), {"value": 1.0, "children": [{"value": 2.0, "children": []}, {"value": 3.0, "children": []}]}),
      (t(3), {"value": 4.0, "children": []}))  # fmt: skip
def recursion_over_a_tree(x, tree):
    def visit(node, depth):
        total = x * node["value"] / depth
        for child in node["children"]:
            total = total + visit(child, depth + 1)
        node["depth"] = depth
        return total

    return visit(tree, 1), tree


@case((t(3), 0), (t(3), 1), (t(3), 2))
def dispatch_table(x, k):
    table = {0: torch.sin, 1: lambda v: v.cos() + 1, 2: functools.partial(torch.mul, other=3.0)}
    operations = [torch.relu, torch.neg, torch.abs]
    for op in operations[: k + 1]:
        x = op(x)
    return table[k](x) - 1


@case((t(3),), (t(3, seed=1),))
def functions_as_values(x):
    def compose(*functions):
        def run(v):
            for f in functions:
                v = f(v)
            return v

        return run

    pipeline = compose(torch.exp, lambda v: v + 1, torch.log, str.__call__ and torch.neg)
    return pipeline(x), list(map(torch.sin, [x, x + 1])), list(filter(callable, [torch.sin, 1]))


@case((t(3),), (t(3, seed=1),))
def function_attributes(x):
    def work(v):
        work.calls += 1
        return v * work.scale

    work.calls = 0
    work.scale = 2.0
    y = work(x) + work(x + 1)
    return y, work.calls, work.__name__, work.__qualname__, work.__defaults__


@case((t(3), 2), (t(3), 3))
def defaults_are_evaluated_once(x, n):
    made = []

    def make():
        made.append(n)
        return x * n

    def use(a=make(), *, b=make()):
        return a + b

    return use(), use(a=x), made


@case((t(3),), (t(3, seed=1),))
def unbound_local(x):
    y = (x + 1).sin() * 2
    try:
        y = y * later  # noqa: F821
        later = 2
    except UnboundLocalError as error:
        return y, str(error)
    return y


@case((t(3),), (t(3, seed=1),))
def missing_global(x):
    y = x.exp() * 2
    return y + no_such_name  # noqa: F821


@case((t(3), 3), (t(3), 30))
def y_combinator(x, n):
    def fix(f):
        return (lambda g: g(g))(lambda g: f(lambda *a: g(g)(*a)))

    power = fix(lambda self: lambda v, k: v if k == 0 else self(v * 0.9 + 0.1, k - 1))
    return power(x, n)


@case((t(3),), (t(3, seed=1),))
def returns_several_shapes_of_nothing(x):
    def nothing():
        x.add_(0)

    def early(flag):
        if flag:
            return
        return x * 2

    return nothing(), early(True), early(False), (), [], {}


@case((t(3), t(3, seed=1)), (t(3, seed=2), t(3, seed=3)))
def argument_rebinding_does_not_leak(x, y):
    def change(a, b):
        a = a + 1
        b += 1
        return a * b

    z = change(x, y)
    return z, x, y


@case((t(3), 7), (t(3), 8))
def class_as_function_argument(x, n):
    def build(kind, *args):
        return kind(*args)

    return build(list, (x, x + 1)), build(dict, a=x * 2) if n < 0 else build(tuple, [x * n]), build(int, "3")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", names(globals()))
def test_functions(name, backend):
    check(__file__, name, backend)


METHODS = {
    "of a list": ([1, 2].append, [3].append), "of a tuple": ((1, 2).index, (3,).count), "of a text": ("a".join, "b".join),
    "of a dictionary": ({}.get, {1: 2}.get), "of a number": ((2.0).is_integer, (3).bit_length), "of a module": (sum, max),
}  # fmt: skip
WANTED = {0: None}


def with_a_default(x, v=None):
    return (x * 2 if v is WANTED[0] else x), v, [v]


WAYS_OF_METHODS = {
    "default": lambda x, items: with_a_default(x),
    "argument": lambda x, items: with_a_default(x, items[0]),
    "global": lambda x, items: with_a_default(x, WANTED[0]),
}


@pytest.mark.parametrize("way", WAYS_OF_METHODS)
@pytest.mark.parametrize("methods", METHODS.values(), ids=METHODS)
def test_methods_of_builtin_objects_are_the_objects_that_they_were(methods, way, monkeypatch):
    """Wherever a bound method of a builtin class comes from, it is compared by its identity and handed out as it is."""
    function = WAYS_OF_METHODS[way]
    compiled = quickfuse.compile(function, backend="eager")
    monkeypatch.setattr(with_a_default, "__defaults__", (None,))
    monkeypatch.setitem(WANTED, 0, methods[1])
    x = torch.ones(2)
    for method in (methods[0], methods[0], methods[1], methods[1], methods[0]):
        with_a_default.__defaults__ = (method,)
        expected, found = function(x, [method]), compiled(x, [method])
        assert expected[0].tolist() == found[0].tolist()
        assert found[1] is expected[1] and found[2][0] is expected[1]
