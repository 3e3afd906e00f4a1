"""Comprehensions, generators and generator expressions that are consumed inside."""

import itertools
from collections import deque

import pytest
import torch

from language.harness import BACKENDS, case, check, names, t


def countdown(x, n):
    while n:
        yield x * n
        n -= 1


def flatten(tree):
    for item in tree:
        if isinstance(item, list):
            yield from flatten(item)
        else:
            yield item


def averager():
    """A coroutine in the old sense: it is sent values and gives their mean."""
    total, count, mean = 0.0, 0, None
    while True:
        value = yield mean
        if value is None:
            return total
        total = total + value
        count += 1
        mean = total / count


def guarded(x, trace):
    try:
        yield x
        yield x + 1
        trace.append("exhausted")
    except ValueError as error:
        trace.append(f"thrown {error}")
        yield x * 100
    finally:
        trace.append("finally")


@case((t(3), 4), (t(3), 0), (t(3), 2))
def list_comprehensions(x, n):
    values = [x * k + 1 for k in range(n) if k != 1]
    nested = [[v + j for j in range(2)] for v in values]
    flat = [v * w for row in nested for v in row for w in (1, 2) if w > 1]
    return values, nested, flat


@case((t(3, 2),), (t(4, 2),))
def dict_and_set_comprehensions(x):
    table = {f"row{k}": row.exp() for k, row in enumerate(x)}
    sizes = {len(v) for v in table.values()} | {k % 2 for k in range(5)}
    back = {v: k for k, v in {"a": 1, "b": 2}.items()}
    return table, sizes, back, {k: v * 2 for k, v in table.items() if k != "row0"}


@case((t(3), [1.0, 2.0]), (t(3), [0.5, 1.5, 2.5]))
def generator_expressions_consumed(x, weights):
    total = sum(x * w for w in weights)
    product = torch.stack(list(x + w for w in weights)).prod(0)
    longest = max(len(str(w)) for w in weights)
    return total, product, longest, any(w > 2 for w in weights), all(w > 0 for w in weights), tuple(x - w for w in weights)


@case((t(3), 3), (t(3), 1), (t(3), 0))
def generator_function_in_a_for_loop(x, n):
    total = x
    for value in countdown(x, n):
        total = total * 0.5 + value
    return total


@case((t(3), 5), (t(3), 2))
def generator_left_early(x, n):
    total = x
    for k, value in enumerate(countdown(x, n)):
        if k == 2:
            break
        total = total + value
    return total.sin()


@case((t(3),), (t(3, seed=1),))
def recursive_yield_from(x):
    tree = [x, [x + 1, [x * 2], []], [[x - 1]]]
    flat = list(flatten(tree))
    return torch.stack(flat).sum(0), len(flat)


@case((t(3), t(3, seed=1)), (t(3, seed=2), t(3, seed=3)))
def send(x, y):
    gen = averager()
    next(gen)
    a = gen.send(x)
    b = gen.send(y)
    try:
        gen.send(None)
    except StopIteration as stop:
        total = stop.value
    return a, b, total


@case((t(3),), (t(3, seed=1),))
def value_that_next_ends_with(x):
    def generator():
        y = yield x
        yield x * y
        return "end", y

    g = generator()
    found = [next(g), g.send(2)]
    for _ in range(2):
        try:
            next(g)
        except StopIteration as stop:
            found.append((stop.value, stop.args))
    return found


@case((t(3),), (t(3, seed=1),))
def value_of_yield_from(x):
    def inner():
        received = yield x + 1
        yield received * 2
        return x * 10

    def outer():
        result = yield from inner()
        yield result + 1

    gen = outer()
    first = next(gen)
    second = gen.send(first * 3)
    return first, second, next(gen), next(gen, None)


@case((t(3), True), (t(3), False))
def throw_and_close(x, throw):
    trace = []
    gen = guarded(x, trace)
    first = next(gen)
    if throw:
        second = gen.throw(ValueError("in"))
    else:
        second = next(gen)
    gen.close()
    return first + second, trace, next(gen, "done")


@case((t(3),), (t(3, seed=1),))
def generator_with_several_consumers(x):
    gen = (x * k for k in range(6))
    first = next(gen)
    a, b = next(gen), next(gen)
    rest = list(gen)
    return first + a, b, rest, list(gen)


@case((t(3), 3), (t(3), 4))
def pipeline_of_generators(x, n):
    def source():
        for k in range(n * 2):
            yield x + k

    def every_other(values):
        for k, v in enumerate(values):
            if k % 2 == 0:
                yield v

    def scaled(values, f):
        for v in values:
            yield v * f

    return list(scaled(every_other(source()), 0.5))


@case((t(3),), (t(3, seed=1),))
def generators_are_lazy(x):
    trace = []

    def produce():
        for k in range(4):
            trace.append(f"make {k}")
            yield x * k

    out = []
    for value in produce():
        trace.append("use")
        out.append(value + 1)
        if len(out) == 3:
            break
    return out, trace


@case((t(3),), (t(3, seed=1),))
def infinite_generator_with_islice(x):
    def powers():
        value = x
        while True:
            yield value
            value = value * x

    return list(itertools.islice(powers(), 1, 6, 2)), [v for v, _ in zip(powers(), range(3))]


@case((t(3), 4), (t(3), 2), steady="never")
def generator_method_and_iter(x, n):
    class Chunks:
        def __init__(self, count):
            self.count = count

        def __iter__(self):
            for k in range(self.count):
                yield x + k * self.count

    chunks = Chunks(n)
    return [v.cos() for v in chunks], sum(chunks), len(list(chunks))


@case((t(3),), (t(3, seed=1),))
def stop_iteration_inside_a_generator(x):
    def broken():
        yield x + 1
        raise StopIteration

    values = []
    try:
        for v in broken():
            values.append(v * 2)
    except RuntimeError as error:
        return values, str(error)


@case((t(3), 2), (t(3), 3))
def exception_through_a_generator(x, n):
    def produce():
        for k in range(5):
            if k == n:
                raise KeyError(k)
            yield x * k

    total = x
    try:
        for v in produce():
            total = total + v
    except KeyError as error:
        return total - 1, error.args


@case((t(3),), (t(3, seed=1),))
def comprehension_scopes(x):
    k = "outer"
    values = [x + k for k in range(3)]
    makers = [lambda: x * j for j in range(3)]
    late = [make() for make in makers]
    bound = [make() for make in [lambda j=j: x * j for j in range(3)]]
    return values, k, late, bound


@case((t(3),), (t(3, seed=1),))
def walrus_inside_a_comprehension(x):
    values = [y for k in range(4) if (y := x * k) is not None and k % 2]
    running = x
    sums = [running := running + v for v in values]
    return values, sums, running is sums[-1], y


@case((t(4, 4),), (t(5, 5),))
def sorting_and_joining_generators(x):
    n = x.size(0)
    order = sorted((k for k in range(n)), key=lambda k: (k % 2, -k))
    text = ",".join(str(k) for k in order)
    return x[order] + 1, text, dict((k, x[k].sum()) for k in order[:2]), set(k // 2 for k in order)


@case((t(3),), (t(3, seed=1),))
def delegating_to_iterables(x):
    def produce():
        yield from [x + 1, x + 2]
        yield from (x * k for k in range(2))
        result = yield from range(2)
        yield result

    return list(produce())


@case((t(2, 3),), (t(3, 3),))
def unpacking_generators(x):
    a, *b = (row * 2 for row in x)
    first, second = (v.sum() for v in (x, x + 1))
    return a, b, first - second, [*(k for k in range(3))], max((v for v in (1, 5, 2)), default=0)


@case((t(3), 1), (t(3), 2))
def generator_state_across_calls_of_next(x, step):
    def accumulate():
        total = x
        while True:
            change = yield total
            total = total + (step if change is None else change)

    gen = accumulate()
    values = [next(gen) for _ in range(3)]
    values.append(gen.send(10))
    values.append(next(gen))
    return values


@case((t(3),), (t(3, seed=1),))
def conditional_and_nested_generator_expressions(x):
    gen = ((x * i if i % 2 else x - i) for i in range(4))
    pairs = ((i, v) for i, v in enumerate(gen) if i)
    total = x * 0
    for i, v in pairs:
        total = total + v * i
    return total, sum(sum(j for j in range(i)) for i in range(4))


@case((t(3), {"a": 1.0, "b": 2.0}), (t(3), {"c": 3.0}))
def generators_over_dictionaries(x, table):
    def items():
        for key, value in table.items():
            yield key, x * value

    return dict(items()), {k: v + 1 for k, v in items()}, list(zip(*items()))[0]


@case((t(3),), (t(3, seed=1),))
def two_generators_in_turn(x):
    left, right = countdown(x, 3), countdown(x + 1, 3)
    out = []
    for _ in range(2):
        out.append(next(left) - next(right))
    out.extend(a * b for a, b in zip(left, right))
    return out


@case((t(3), [1]), (t(3), [2, 3]), at_most=2)
def added_to_lists_and_deques(x, given):
    made, seen, queue = [1], [], deque([1])

    def watching():
        yield x * 2
        seen.append((len(made), len(queue)))
        yield 6
        seen.append((len(made), len(queue)))
        raise ValueError("in the middle")

    made += (k for k in range(3))
    queue += map(str, range(2))
    for target in (made, queue, given):
        try:
            target += watching()
        except ValueError as error:
            seen.append(str(error))
    made += made
    made += {"a": 1}
    try:
        made += 5
    except TypeError as error:
        seen.append(str(error))
    return made, queue, seen


@case((t(3),), graphs=1)
def names_of_generators(x):
    expression, running = (k for k in range(2)), countdown(x, 2)
    return x + 1, expression.__name__, expression.__qualname__, running.__name__, running.__qualname__, next(running)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", names(globals()))
def test_generators(name, backend):
    check(__file__, name, backend)
