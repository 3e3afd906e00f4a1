"""functools, itertools, operator and math."""

import functools
import itertools
import math
import operator

import pytest
import torch

import quickfuse
from language.harness import BACKENDS, case, check, names, setup, t


class Model:
    def __init__(self, weight):
        self.weight = weight
        self.computed = 0

    @functools.cached_property
    def doubled(self):
        self.computed += 1
        return self.weight * 2 + 1

    def scale(self, x, factor, *, bias=0.0):
        return x * self.weight * factor + bias

    half = functools.partialmethod(scale, factor=0.5)


@functools.lru_cache(maxsize=None)
def coefficients(n):
    return tuple(1.0 / (k + 1) for k in range(n))


@functools.cache
def table_of(n):
    return [k * 2 for k in range(n)]


@functools.singledispatch
def describe(value, x):
    return x - 1


@describe.register
def _(value: int, x):
    return x + value


@describe.register(str)
def _(value, x):
    return x * len(value)


@describe.register(list)
@describe.register(tuple)
def _(value, x):
    return sum((describe(v, x) for v in value), x)


@functools.total_ordering
class Version:
    def __init__(self, number):
        self.number = number

    def __eq__(self, other):
        return self.number == other.number

    def __lt__(self, other):
        return self.number < other.number


def scaled_sum(a, b, c=1.0, *, scale=1.0):
    return (a + b * c) * scale


@case((t(3), 2.0), (t(3), 3.0))
def partial(x, n):
    double = functools.partial(torch.mul, x)
    full = functools.partial(scaled_sum, x, c=n, scale=0.5)
    nested = functools.partial(full, scale=2.0)
    return double(n) + 1, full(x + 1), nested(x), nested.args[0] is x, nested.keywords, full.func is scaled_sum


@case((t(3), functools.partial(scaled_sum, c=2.0)), (t(3), functools.partial(scaled_sum, c=3.0)), (t(3), scaled_sum))
def partial_as_an_argument(x, function):
    return function(x, x + 1) * 2, function(x, 1, scale=3.0)


@case((t(3), [1, 2, 3]), (t(3), [4]), (t(3), []))
def reduce(x, numbers):
    total = functools.reduce(lambda a, n: a * 0.5 + n, numbers, x)
    joined = functools.reduce(operator.add, [x, x * 2, x * 3])
    return total, joined


@case((t(3), 3), (t(3), 4), (t(3), 3))
def lru_cache(x, n):
    y = x
    for k in coefficients(n):
        y = y * 0.5 + k
    return y, table_of(n), table_of(n) is table_of(n), coefficients.cache_info().maxsize


@setup(steady="later")
def cached_property():
    model = Model(t(3))

    def run(x):
        return x * model.doubled + model.doubled, model.computed

    return run, [(t(3),), (t(3, seed=1),)]


@case((t(3), 2), (t(3), "abc"), (t(3), [1, "a"]), (t(3), 1.5), steady="never")
def singledispatch(x, value):
    return describe(value, x).exp()


@case((t(3),), (t(3, seed=1),))
def partialmethod_and_bound_methods(x):
    model = Model(x + 1)
    bound = model.scale
    return model.half(x), bound(x, 2.0), bound(x, factor=1.0, bias=3.0), Model.scale(model, x, 1.0)


@case((t(3), 1, 2), (t(3), 2, 2), (t(3), 3, 2))
def total_ordering(x, a, b):
    left, right = Version(a), Version(b)
    if left >= right:
        x = x * 2
    if left > right:
        x = x + 1
    return x.sin(), left <= right, left != right


@case((t(4),), (t(4, seed=1),))
def chain_and_islice(x):
    values = itertools.chain([x, x + 1], (x * k for k in range(2)))
    out = list(itertools.islice(values, 1, None))
    more = itertools.chain.from_iterable([[x - 1], [x - 2, x - 3]])
    return out, sum(more)


@case((t(3), 3), (t(3), 4))
def count_cycle_repeat(x, n):
    total = x
    for k, sign, step in zip(itertools.count(1, 2), itertools.cycle([1, -1]), itertools.repeat(0.5, n)):
        total = total + x * k * sign * step
    return total


@case((t(3),), (t(3, seed=1),))
def products_and_combinations(x):
    total = x * 0
    for i, j in itertools.product(range(2), repeat=2):
        total = total + x * i - j
    for i, j in itertools.combinations(range(4), 2):
        total = total + i * j
    for p in itertools.permutations([1, 2, 3], 2):
        total = total * 0.9 + p[0]
    pairs = [a - b for a, b in itertools.pairwise([x, x * 2, x * 4])]
    return total, pairs, list(itertools.combinations_with_replacement("ab", 2))


@case((t(3),), (t(3, seed=1),))
def accumulate_and_starmap(x):
    sums = list(itertools.accumulate([x, x + 1, x * 2]))
    products = list(itertools.accumulate([x, x, x], operator.mul, initial=x + 1))
    mapped = list(itertools.starmap(torch.add, [(x, 1), (x, x)]))
    return sums, products, mapped


@case((t(3), [1, 1, 2, 3, 3]), (t(3), [5]))
def groupby_and_compress(x, numbers):
    groups = [(key, x * len(list(group))) for key, group in itertools.groupby(numbers)]
    kept = list(itertools.compress([x, x + 1, x + 2], [1, 0, 1]))
    return groups, kept, list(itertools.filterfalse(lambda n: n % 2, numbers))


@case((t(3), [1, 2, 5, 1]), (t(3), [9, 1]))
def takewhile_dropwhile_zip_longest(x, numbers):
    head = [x + n for n in itertools.takewhile(lambda n: n < 5, numbers)]
    tail = [x - n for n in itertools.dropwhile(lambda n: n < 5, numbers)]
    padded = [x * a + b for a, b in itertools.zip_longest(numbers, [1.0], fillvalue=0.5)]
    return head, tail, padded


@case((t(3),), (t(3, seed=1),))
def tee(x):
    left, right = itertools.tee((x * k for k in range(3)), 2)
    first = next(left)
    return first + next(right), list(left), list(right)


@setup(steady="never")
def count_that_outlives_the_call():
    numbers = itertools.count(3)

    def run(x):
        return x * next(numbers) + 1

    return run, [(t(3),), (t(3, seed=1),)]


@case((t(3), t(3, seed=1)), (t(3, seed=2), t(3, seed=3)))
def operator_functions(x, y):
    values = [operator.add(x, y), operator.mul(x, 2), operator.neg(x), operator.truediv(x, y), operator.sub(1, x)]
    values.append(operator.matmul(x, y))
    z = operator.iadd(values[0], 1)
    return values, z is values[0], operator.lt(x, y), operator.pow(x, 2), operator.getitem(x, slice(1, 3))


@case((t(3), {"a": [1, 2], "b": [3]}), (t(3), {"a": [5], "b": []}))
def getters(x, table):
    item = operator.itemgetter("a", "b")
    a, b = item(table)
    shape = operator.attrgetter("shape")(x)
    call = operator.methodcaller("clamp", min=0.0)
    ordered = sorted([(2, "x"), (1, "y")], key=operator.itemgetter(0))
    return x * sum(a) + sum(b), shape, call(x) + 1, ordered


@case((t(3), [1, 2]), (t(3), [3, 4]))
def operator_on_containers(x, values):
    operator.setitem(values, 0, 10)
    operator.iconcat(values, [7])
    y = operator.mul(x, values[0]).sin() + values[-1]
    return y, operator.contains(values, 7), operator.countOf(values, 7), operator.concat(values, [1])


@case((t(3), 3), (t(3), 4), (t(3), 2.5))
def math_functions(x, n):
    a = math.sqrt(n) + math.exp(-n) + math.log(n) + math.sin(n) + math.pow(n, 1.5)
    b = math.floor(n / 2), math.ceil(n / 2), math.trunc(n), math.fabs(-n), math.isnan(n), math.isfinite(n)
    return x * a + math.pi, b, math.inf > n, math.hypot(3, n), math.copysign(1, -n)


@case((t(4, 6),), (t(5, 7),))
def math_on_sizes(x):
    fan_in, fan_out = x.shape
    bound = math.sqrt(6.0 / (fan_in + fan_out))
    groups = math.gcd(fan_in, fan_out)
    return x * bound, groups, math.prod(x.shape), math.factorial(fan_in), math.comb(fan_out, 2), math.log2(fan_in) + x


@case((t(3), 0), (t(3), -1.0), (t(3), 2.0))
def math_domain_errors(x, n):
    y = x * 2
    try:
        y = y + math.sqrt(n) + math.log(n)
    except ValueError as error:
        return y, str(error)
    return y.exp()


@case((t(3), 2), (t(3), 3))
def wraps_and_update_wrapper(x, n):
    def logged(function):
        @functools.wraps(function)
        def inner(*args):
            names_seen.append(inner.__name__)
            return function(*args)

        return inner

    names_seen = []

    @logged
    def work(v, k):
        """Multiply."""
        return v * k + 1

    return work(x, n), names_seen, work.__doc__, work.__wrapped__(x, 1)


@case((t(3), [3, 1, 2]), (t(3), [1.0, 5.0]))
def cmp_to_key(x, values):
    ordered = sorted(values, key=functools.cmp_to_key(lambda a, b: b - a))
    for k in ordered:
        x = x * 0.5 + k
    return x, ordered


class Breaking:
    """Making an iterator of it ends the graph, within the native function that asks for it."""

    def __iter__(self):
        quickfuse.graph_break()
        return iter([1, 2, 3])


@case((t(3),), (t(4),))
def iterators_that_begin_with_a_break(x):
    values = Breaking()
    made = [
        itertools.accumulate(values),
        itertools.compress(values, values),
        itertools.dropwhile(lambda k: k < 2, values),
        itertools.filterfalse(lambda k: k < 2, values),
        itertools.groupby(values),
        *itertools.tee(values),
    ]
    x = x * 2
    return x, [type(iterator).__name__ for iterator in made], list(made[0]), list(made[1]), list(made[-1])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", names(globals()))
def test_functools_itertools(name, backend):
    check(__file__, name, backend)
